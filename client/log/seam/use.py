"""The use of something for the time of a block, by iterators that a program may leave unfinished.

Classes, and not generators (``asynccontextmanager``): an event loop that ends closes every generator that a program
still refers to, and a block inside one could find its own closed before it. The program, which did nothing wrong, would
get a traceback at its end.
"""

from collections.abc import Awaitable, Callable
from types import TracebackType


class Use[T]:
    """``async with Use(take, give_back) as thing``. Can be entered once."""

    def __init__(
        self, take: Callable[[], Awaitable[T]], give_back: Callable[[T, BaseException | None], Awaitable[None]]
    ) -> None:
        """``give_back`` is told what ended the block."""
        self._take = take
        self._give_back = give_back
        self._taken: list[T] = []

    async def __aenter__(self) -> T:
        thing = await self._take()
        self._taken.append(thing)
        return thing

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._give_back(self._taken.pop(), error)
