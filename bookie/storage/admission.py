"""Whether a storage accepts more: it must be usable, and there must be memory for it.

*Usable*: the storage has not failed and is not closing (:class:`Health`). *Memory*: the write cache, the journal's
queue and the adds that wait for a look-up each have a bound (:class:`Admission`). Without free memory the server stops
reading its sockets; what has been read already is accepted nevertheless.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import structlog
from octavo.bookie.journal.journal import Journal, RecordKind
from octavo.bookie.storage.cache import WriteCache
from octavo.bookie.storage.ledger_state import BARRIER
from octavo.protocol.entries import SealedBatch
from octavo.protocol.errors import BookieShuttingDownError, BookieStorageError

log = structlog.get_logger()


type Done = Callable[[BaseException | None], None]
"""Called once with an add's failure, or None when its entries are durable; it must be quick and must not raise."""


class SlowAdd(NamedTuple):
    """An add that waits until what is held at its ids has been looked up."""

    entries: Sequence[bytes]
    batch: SealedBatch
    recovery: bool
    deferred: bool
    term: int
    done: Done
    cost_bytes: int
    """Memory charged: the entries, and the joined copy of them in ``batch``."""


class Health:
    """Whether the storage can be used. ``on_fatal`` is called once, with the first failure."""

    def __init__(self, on_fatal: Callable[[BaseException], None]) -> None:
        self._on_fatal = on_fatal
        self.failure: BaseException | None = None
        self.closing = False
        self.usable = True
        """Neither failed nor closing."""
        self._wakes: list[asyncio.Event] = []

    def wakes(self, *events: asyncio.Event) -> None:
        """Set these events as soon as the storage is no longer usable: their tasks must look again."""
        self._wakes += events

    def fail(self, error: BaseException) -> None:
        """A write or sync has failed: nothing more is accepted, and the process must end (rule B1)."""
        if self.failure is None:
            self.failure = error
            self._end()
            self._on_fatal(error)  # before the line: what becomes of that decides nothing (rule B11)
            if not isinstance(error, asyncio.CancelledError):  # the process is being ended: no disk has failed
                log.critical("storage failed", reason=repr(error))

    def close(self) -> None:
        """The storage begins to close: nothing more is accepted."""
        self.closing = True
        self._end()

    def check_usable(self) -> None:
        """Raises :class:`BookieStorageError` after a failure, :class:`BookieShuttingDownError` while closing."""
        if not self.usable:
            self.refuse()

    def refuse(self) -> NoReturn:
        """Raise the reason why the storage is not usable."""
        if self.failure is not None:
            raise BookieStorageError(f"the storage has failed: {self.failure!r}", may_have_happened=False)
        raise BookieShuttingDownError("the bookie is stopping")

    def _end(self) -> None:
        self.usable = False
        for event in self._wakes:
            event.set()


class Admission:
    """The memory that accepted and not yet stored entries take. Each of the three bounds is ``bytes_max``: one
    half of the write cache, bytes queued for the journal, and adds that wait for a look-up."""

    def __init__(self, health: Health, cache: WriteCache, journal: Journal, bytes_max: int) -> None:
        self._health = health
        self._cache = cache
        self._journal = journal
        self.bytes_max = self._bytes_max = bytes_max
        """Each of the three bounds."""
        self._freed = asyncio.Event()
        health.wakes(self._freed)
        self.waiting_bytes = 0
        """Memory of adds that wait for a look-up (see ``writes``)."""

    @property
    def has_room(self) -> bool:
        """Whether more adds may be read from sockets."""
        bytes_max = self._bytes_max
        return self._cache.has_room and self._journal.pending_bytes < bytes_max and self.waiting_bytes < bytes_max

    async def wait_for_room(self) -> None:
        """Returns once there is room, or the storage has failed or is closing."""
        while not self.has_room and self._health.usable:
            if self._cache.has_room and self.waiting_bytes < self._bytes_max:
                await asyncio.wait([self._journal.append(RecordKind.LEDGER_KEY, [BARRIER])])
            else:
                self._freed.clear()
                await self._freed.wait()

    def memory_freed(self) -> None:
        """A half of the cache has been flushed, or a waiting add has been decided."""
        self._freed.set()

    def charge_waiting(self, size: int) -> None:
        """An add of ``size`` bytes of memory begins to wait for a look-up."""
        self.waiting_bytes += size

    def release_waiting(self, size: int) -> None:
        """The add has been decided."""
        self.waiting_bytes -= size
        assert self.waiting_bytes >= 0, "an add is released once"
        self._freed.set()
