"""How long a handle relies on what it knows of where its log begins (rule P7).

A client that truncates the log tells the other handles of its own client, and no other client. So a reader asks the
metadata store where the log begins before it gives an entry, if it has not asked for ``log_truncation_seconds``. Its
own clock measures that, from the beginning of the question: what was truncated before is never given.

A store that does not answer does not stop readers: they wait for it once, as long as they may rely on an answer, then
go on with what they know, and say so in the log. As soon as it answers, they keep to what it says.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from octavo.protocol.errors import NoSuchLogError, OctavoError

log = logging.getLogger("octavo.client")


class Beginning:
    """See the module. Of one handle."""

    def __init__(self, log_name: str, seconds: float, read: Callable[[], Awaitable[None]], *, known_at: float) -> None:
        """``read`` asks the store and notes its answer. ``known_at``: on the loop's clock, when what the handle knows
        now was asked for."""
        self._log_name = log_name
        self._seconds = seconds
        self._read = read
        self._loop = asyncio.get_running_loop()
        self._known_at = known_at
        self._due_at = known_at + seconds
        self._asking: asyncio.Task[None] | None = None
        self._is_silent = False
        """The store has not answered in time, and not since."""
        self._gone: NoSuchLogError | None = None

    @property
    def is_due(self) -> bool:
        """Whether a reader is to call :meth:`ask` before it gives anything."""
        return self._loop.time() >= self._due_at

    @property
    def known_seconds(self) -> float:
        """How long ago was asked for what the handle knows now."""
        return self._loop.time() - self._known_at

    @property
    def is_silent(self) -> bool:
        """Whether the store did not answer in time when it was asked last."""
        return self._is_silent

    def known(self, since: float) -> None:
        """The handle has been told what stood in the store at ``since`` or later, on the loop's clock."""
        self._known_at = max(self._known_at, since)
        self._due_at = max(self._due_at, since + self._seconds)
        if self._is_silent:
            self._is_silent = False
            log.info("log %s: the metadata store says again where it begins", self._log_name)

    async def ask(self) -> None:
        """Return once the handle knows enough to go on. Raises :class:`NoSuchLogError` when the log has been
        deleted."""
        if not self.is_due:
            return
        asking = self._asking
        if asking is None:
            asking = self._asking = self._loop.create_task(self._ask(), name="octavo log beginning")
            asking.add_done_callback(self._asked)
        if not self._is_silent:
            await asyncio.wait([asking], timeout=self._seconds)
            if not asking.done():
                self._fell_silent("it does not answer")
        if self._gone is not None:
            raise self._gone

    async def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    async def _ask(self) -> None:
        began_at = self._loop.time()
        await self._read()
        self.known(began_at)

    def _asked(self, asking: asyncio.Task[None]) -> None:
        self._asking = None
        error = None if asking.cancelled() else asking.exception()
        if isinstance(error, NoSuchLogError):
            self._gone = error
        elif isinstance(error, OctavoError):
            self._fell_silent(error.message)
            self._due_at = max(self._due_at, self._loop.time() + self._seconds)  # not for every entry
        elif error is not None:
            raise error

    def _fell_silent(self, why: str) -> None:
        if not self._is_silent:
            self._is_silent = True
            log.warning(
                "log %s: the metadata store does not say where it begins (%s); readers go on with what they know",
                self._log_name,
                why,
            )
