"""What ``connect``, ``create_ledger`` and ``open_ledger`` return: awaitable, and an async context manager."""

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Protocol, Self


class Closable(Protocol):
    """What can be opened: it closes itself on the way out of a block."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None: ...


class Opening[T: Closable]:
    """Something about to be opened: ``thing = await opening``, or ``async with opening as thing``. For one use."""

    def __init__(self, open_thing: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._open: Callable[[], Coroutine[Any, Any, T]] | None = open_thing
        self._thing: T | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self._take()().__await__()

    async def __aenter__(self) -> T:
        self._thing = await self._take()()
        return await self._thing.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._thing is not None, "entered before it is left"
        return await self._thing.__aexit__(kind, error, traceback)

    def _take(self) -> Callable[[], Coroutine[Any, Any, T]]:
        if self._open is None:
            raise RuntimeError("this was awaited or entered before; ask for another one")
        open_thing, self._open = self._open, None
        return open_thing
