"""Opens each thing when it is first asked for, by one task, however many requests wait for it."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any


class Openings[Key: Hashable, Opened]:
    """See the module."""

    def __init__(self) -> None:
        self._under_way: dict[Key, asyncio.Task[Opened]] = {}

    def __len__(self) -> int:
        """Those that are under way."""
        return len(self._under_way)

    async def get(self, key: Key, begin: Callable[[], Coroutine[Any, Any, Opened]], seconds: float) -> Opened | None:
        """Wait for what is being opened under this key; if there is nothing, ``begin`` opens it. None: it was given up,
        or has not been opened in this time, and goes on. Raises what ``begin`` raises."""
        opening = self._under_way.get(key)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(begin())
            self._under_way[key] = opening
            opening.add_done_callback(lambda done: self._ended(key, done))
        await asyncio.wait([opening], timeout=seconds)
        return None if not opening.done() or opening.cancelled() else opening.result()

    async def give_up(self, *keys: Key) -> None:
        """Cancel what is being opened under these keys, which may wait for another gateway, and wait until it has
        ended."""
        ending = [opening for key in keys if (opening := self._under_way.get(key)) is not None]
        for opening in ending:
            opening.cancel()
        if ending:
            await asyncio.wait(ending)

    async def give_up_all(self) -> None:
        """As :meth:`give_up`, of all."""
        await self.give_up(*self._under_way)

    def _ended(self, key: Key, opening: asyncio.Task[Opened]) -> None:
        del self._under_way[key]
        if not opening.cancelled():
            opening.exception()  # the requests that waited for it may be gone
