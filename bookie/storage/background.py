"""When a storage flushes its cache, takes a checkpoint and merges index parts, and the tasks that do so."""

import asyncio

import structlog
from octavo.bookie.disk.filesystem import is_disk_full
from octavo.bookie.journal.journal import Journal
from octavo.bookie.storage.admission import Health
from octavo.bookie.storage.cache import WriteCache
from octavo.bookie.storage.checkpoint import Checkpointer
from octavo.bookie.storage.index_merger import IndexMerger
from octavo.bookie.storage.ledger_state import LedgerState
from octavo.bookie.storage.ledgers import LedgerTable
from octavo.bookie.storage.settings import StorageSettings

log = structlog.get_logger()


class CheckpointTrigger:
    """Asks for a checkpoint: now, or some time after a change that no checkpoint covers yet."""

    def __init__(self, delay_seconds: float) -> None:
        self._delay_seconds = delay_seconds
        self._timer: asyncio.TimerHandle | None = None
        self.armed = False
        self.wanted = asyncio.Event()

    def arm(self) -> None:
        """Ask once the delay has passed."""
        assert not self.armed, "armed once"
        self.armed = True
        self._timer = asyncio.get_running_loop().call_later(self._delay_seconds, self.wanted.set)

    def disarm(self) -> None:
        """A checkpoint has fixed what it covers: the requests made before are met."""
        self.wanted.clear()
        self.armed = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Background:
    """Owns the tasks. Started once, when the storage has been opened."""

    def __init__(
        self,
        *,
        settings: StorageSettings,
        health: Health,
        trigger: CheckpointTrigger,
        cache: WriteCache,
        journal: Journal,
        ledgers: LedgerTable,
        checkpointer: Checkpointer,
        merger: IndexMerger,
    ) -> None:
        self._settings = settings
        self._health = health
        self._trigger = trigger
        self._cache = cache
        self._journal = journal
        self._ledgers = ledgers
        self._checkpointer = checkpointer
        self._merger = merger
        self._flush_wanted = asyncio.Event()
        self._merge_wanted = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self.gave_up = False
        """While closing a write has found the disk full; the journal keeps what could not be written."""
        health.wakes(self._flush_wanted, trigger.wanted, self._merge_wanted)

    def start(self) -> None:
        self._merge_wanted.set()
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise(), name="octavo-storage")

    async def wait_ended(self) -> None:
        """Returns when the tasks have ended, as they do once the storage is not usable."""
        self._trigger.disarm()
        self._trigger.wanted.set()
        if self._supervisor is not None:
            await self._supervisor

    def changed(self, ledger: LedgerState) -> None:
        """The ledger's state or entries have changed: a checkpoint must cover it in time."""
        dirty = self._ledgers.dirty
        dirty[ledger.ledger_id] = ledger
        if not self._trigger.armed:
            self._trigger.arm()
        if self._cache.is_full:
            self._flush_wanted.set()
        settings = self._settings
        if (
            self._journal.bytes_appended - self._checkpointer.mark_bytes >= settings.checkpoint_journal_bytes
            or len(dirty) >= settings.checkpoint_ledgers
        ):
            self._trigger.wanted.set()

    def request_checkpoint(self) -> None:
        """Take a checkpoint soon."""
        self._trigger.wanted.set()

    async def checkpoint(self) -> None:
        """Make everything accepted so far durable outside the journal, as fast as that can be. Raises OSError, which is
        fatal."""
        with self._checkpointer.hurrying():
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        await self._checkpointer.checkpoint()
        self._merge_wanted.set()

    def _goes_on(self) -> bool:
        return self._health.usable

    async def _supervise(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._flush_when_wanted())
                group.create_task(self._checkpoint_when_wanted())
                group.create_task(self._merge_when_wanted())
        except* Exception as errors:
            error = errors.exceptions[0]
            if self._health.closing and isinstance(error, OSError) and is_disk_full(error):
                self.gave_up = True
                log.warning("closing with a full disk: the journal keeps what could not be written", reason=str(error))
            else:
                self._health.fail(error)

    async def _flush_when_wanted(self) -> None:
        while self._goes_on():
            await self._flush_wanted.wait()
            self._flush_wanted.clear()
            while self._cache.is_full and self._health.failure is None:
                await self._checkpointer.flush()

    async def _checkpoint_when_wanted(self) -> None:
        while self._goes_on():
            await self._trigger.wanted.wait()
            if self._goes_on():
                await self._checkpoint()

    async def _merge_when_wanted(self) -> None:
        while self._goes_on():
            await self._merge_wanted.wait()
            self._merge_wanted.clear()
            while self._goes_on() and await self._merger.merge():
                pass
