"""The value that ``connect``, ``create_ledger`` and ``open_ledger`` return: awaitable, and an async context manager."""

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any

from octavo.client.async_context import Closable


class Opening[T: Closable]:
    """A client, writer or reader about to be opened.

    ``thing = await opening``, or ``async with opening as thing``. It is used once.

    Examples:
        >>> log = await client.create_log("payments")
        >>> await log.close()
        >>> async with client.open_log("payments") as log:
        ...     log.end
        0
    """

    def __init__(self, open_thing: Callable[[], Coroutine[Any, Any, T]], call: str) -> None:
        """``call``: what made it, for messages."""
        self._call = call
        self._open: Callable[[], Coroutine[Any, Any, T]] | None = open_thing
        self._thing: T | None = None

    def __repr__(self) -> str:
        return f"<{self._call}, {'not awaited or entered yet' if self._open is not None else 'used'}>"

    def __await__(self) -> Generator[Any, Any, T]:
        return self._take()().__await__()

    async def __aenter__(self) -> T:
        self._thing = await self._take()()
        return await self._thing.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._thing is not None, "entered before it is left"
        await self._thing.__aexit__(kind, error, traceback)

    def _take(self) -> Callable[[], Coroutine[Any, Any, T]]:
        if self._open is None:
            raise RuntimeError(f"{self._call} was awaited or entered already; call it again")
        open_thing, self._open = self._open, None
        return open_thing
