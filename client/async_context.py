"""The common base of client, writer and reader: an async context manager that closes itself."""

import asyncio
import warnings
from types import TracebackType
from typing import Self

from octavo.protocol.errors import OctavoError
from octavo.security import forks


class Closable:
    """An async context manager whose block ends with ``close()``.

    If the block ends with an exception, that exception is what the caller sees, whatever closing raises.
    """

    _warns_if_unclosed = False
    """Whether to warn if it is garbage-collected without having been closed. True once the application has it."""

    _loop: asyncio.AbstractEventLoop
    """In which it was made."""

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close it. May be called more than once."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except OctavoError:
            if error is None:
                raise

    def __del__(self) -> None:
        # In a forked child it is the parent's to close.
        if self._warns_if_unclosed and not self.closed and not forks.is_inherited(getattr(self, "_loop", None)):
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1, source=self)
