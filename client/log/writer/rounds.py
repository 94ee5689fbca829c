"""The rounds of upkeep that a leader makes: one a minute, and one at once where its layout wants it.

There is a task while a round lasts, and a timer otherwise.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from octavo.client.log.seam.lead import Upkeep


class Rounds:
    """Makes rounds until :meth:`stop`. ``work`` is one of them, and ``start`` runs it in the background."""

    __slots__ = ("_is_wanted", "_is_working", "_loop", "_seconds", "_start", "_timer", "_work")

    def __init__(
        self,
        upkeep: Upkeep,
        seconds: float,
        *,
        start: Callable[[Coroutine[Any, Any, None]], None],
        work: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._start = start
        self._work = work
        self._is_working = False
        self._is_wanted = False
        """A round was wanted while one was being made."""
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(seconds, self._begin)
        upkeep.on_wanted(self._want)

    def stop(self) -> None:
        """Make no further round."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _want(self) -> None:
        if self._is_working:
            self._is_wanted = True
        elif self._timer is not None:
            self._timer.cancel()
            self._begin()

    def _begin(self) -> None:
        self._timer = None
        self._is_working = True
        self._start(self._make())

    async def _make(self) -> None:
        await self._work()
        while self._is_wanted:
            self._is_wanted = False
            await self._work()
        self._is_working = False
        self._timer = self._loop.call_later(self._seconds, self._begin)
