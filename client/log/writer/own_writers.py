"""The writers that one handle on a log has made: how far they have got, and that one of them leads at a time (rule
P14)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from octavo.protocol.errors import InvalidArgumentError

if TYPE_CHECKING:
    from octavo.client.log.writer.writer import LogWriter


class OwnWriters:
    """See the module."""

    def __init__(self, log_name: str) -> None:
        self._log_name = log_name
        self._writers: dict[LogWriter, None] = {}
        """Those that are not closed, in the order in which they were made."""
        self._end = 0
        self._is_waiting = False

    @property
    def end(self) -> int:
        """The position after the last one that a writer of the handle has had acknowledged."""
        return max(self._end, *(writer.end for writer in self._writers), 0)

    @property
    def leads(self) -> bool:
        """Whether one of them leads."""
        return any(not writer._leader.loss.is_over for writer in self._writers)

    def made(self, writer: "LogWriter") -> None:
        """The handle has made this writer."""
        self._writers[writer] = None

    def closed(self, writer: "LogWriter") -> None:
        """The writer is closed."""
        self._end = max(self._end, writer.end)
        self._writers.pop(writer, None)

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """The block waits for the lock, and makes a writer that holds it.

        Raises :class:`InvalidArgumentError` while a writer of the handle holds it, or another block waits: the program
        would wait for itself. A writer that no longer leads lets go of it.
        """
        if self._is_waiting:
            raise InvalidArgumentError(
                f"log {self._log_name}: this handle is waiting to lead already; call lead() once, or open the log a "
                "second time"
            )
        self._is_waiting = True
        try:
            for writer in list(self._writers):
                await writer._make_way()
            yield
        finally:
            self._is_waiting = False
