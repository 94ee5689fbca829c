"""The write side of a storage: adds, fences and explicit LACs, each decided in one synchronous step.

An add whose ids are all above the highest held one is in the cache and in the journal's queue when the call returns.
Any other add is *slow*: what is held at its ids must be looked up and compared (rule W11), which may need the
disk. Slow adds of a ledger are worked off in order, by one task, and later adds of that ledger queue behind them.
"""

import asyncio
import hmac
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog
from octavo.bookie.index.runs import Run
from octavo.bookie.journal.journal import Journal, RecordKind, settle_future
from octavo.bookie.storage.cache import WriteCache
from octavo.bookie.storage.ledger_state import LedgerState, encode_add_head, encode_ledger_record
from octavo.bookie.storage.ledgers import LedgerTable, apply_explicit_lac, wake_waiters
from octavo.bookie.storage.reads import EntryReader, Selection
from octavo.protocol.entries import SealedBatch
from octavo.protocol.errors import (
    BookieInDoubtError,
    DuplicateEntryError,
    InternalError,
    LedgerFencedError,
    NoSuchLedgerError,
    OctavoError,
    UnauthorizedError,
)

log = structlog.get_logger()


type Done = Callable[[BaseException | None], None]
"""Called once with an add's failure, or None when its entries are durable; it must be quick and must not raise."""


class _SlowAdd(NamedTuple):
    entries: Sequence[bytes]
    batch: SealedBatch
    recovery: bool
    done: Done


class EntryWriter:
    """Accepts what writers and recoverers send. ``changed`` is told of every ledger whose state has changed;
    ``check_usable`` raises when nothing may be accepted any more."""

    def __init__(
        self,
        journal: Journal,
        cache: WriteCache,
        ledgers: LedgerTable,
        reader: EntryReader,
        *,
        changed: Callable[[LedgerState], None],
        check_usable: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._cache = cache
        self._ledgers = ledgers
        self._reader = reader
        self._changed = changed
        self._check_usable = check_usable
        self._slow_tasks: set[asyncio.Task[None]] = set()
        self.duplicates_refused = 0

    def add(
        self,
        ledger_id: int,
        ledger_key: bytes,
        entries: Sequence[bytes],
        *,
        recovery: bool,
        batch: SealedBatch,
        done: Done,
    ) -> None:
        """See ``Storage.add_then``."""
        ledger = self._ledgers.get(ledger_id)
        self._admit(ledger, ledger_key, recovery)
        if ledger.ledger_key is None:
            self._pin(ledger, ledger_key)
        if batch.entry_ids[0] >= ledger.highest_plus_one and ledger.slow_adds is None:
            self._append(ledger, batch, done)
            return
        slow_add = _SlowAdd(entries, batch, recovery, done)
        if ledger.slow_adds is None:
            ledger.slow_adds = deque((slow_add,))
            self._spawn(ledger, ledger.slow_adds)
        else:
            ledger.slow_adds.append(slow_add)

    def _admit(self, ledger: LedgerState, ledger_key: bytes, recovery: bool) -> None:
        self._check_usable()
        self._refuse_deleted(ledger)
        pinned = ledger.ledger_key
        if pinned is not None and not hmac.compare_digest(pinned, ledger_key):
            raise UnauthorizedError(f"ledger {ledger.ledger_id}: not the ledger's key")
        if not ledger_key:
            raise UnauthorizedError(f"ledger {ledger.ledger_id}: adds need the ledger key")
        if ledger.fenced and not recovery:
            raise LedgerFencedError(f"ledger {ledger.ledger_id} is fenced", may_have_happened=False)
        if not recovery and self._ledgers.in_doubt(ledger.ledger_id):
            raise BookieInDoubtError(
                f"ledger {ledger.ledger_id}: this bookie may have lost what it held of it, its fence included",
                may_have_happened=False,
            )

    def _refuse_deleted(self, ledger: LedgerState) -> None:
        if ledger.deleted:
            raise NoSuchLedgerError(f"ledger {ledger.ledger_id} has been deleted", may_have_happened=False)

    def _pin(self, ledger: LedgerState, ledger_key: bytes) -> None:
        ledger.ledger_key = ledger_key
        self._journal.append(RecordKind.LEDGER_KEY, [encode_ledger_record(ledger.ledger_id, ledger_key)])
        self._changed(ledger)

    def _append(self, ledger: LedgerState, batch: SealedBatch, done: Done) -> None:
        """Entries none of which is held: cache, journal, state, in one synchronous step."""
        data, sizes = batch.data, batch.sizes
        size = sizes[0]
        packed: int | array[int] = size if sizes.count(size) == len(sizes) else array("I", sizes)
        ids = batch.entry_ids
        kept = ids if isinstance(ids, range) else array("Q", ids)
        run = Run(ids[0], ids[-1], kept, packed, data, 0)
        self._journal.append_then(RecordKind.ADD, (encode_add_head(ledger.ledger_id, run), data), done)
        self._cache.put(ledger.ledger_id, run, len(data))
        if run.last >= ledger.highest_plus_one:
            ledger.highest_plus_one = run.last + 1
        if batch.last_add_confirmed_plus_one > ledger.lac_plus_one:
            ledger.lac_plus_one = batch.last_add_confirmed_plus_one
            if ledger.waiters is not None:
                wake_waiters(ledger)
        self._changed(ledger)

    def barrier(self) -> asyncio.Future[None]:
        """Done once everything journaled so far is durable. A record of its own, so that nobody shares a future."""
        return self._journal.append(RecordKind.LEDGER_KEY, [encode_ledger_record(0)])

    def _spawn(self, ledger: LedgerState, queue: deque[_SlowAdd]) -> None:
        task = asyncio.get_running_loop().create_task(self._work_off(ledger, queue))
        self._slow_tasks.add(task)
        task.add_done_callback(self._slow_tasks.discard)

    async def _work_off(self, ledger: LedgerState, queue: deque[_SlowAdd]) -> None:
        """Adds of ids that may be held, one after another, and every add of the ledger that came after them."""
        while queue:
            slow_add = queue[0]
            try:
                with self._reader.places_kept():
                    missing = await self._missing(ledger, slow_add)
                # From here to the end of the turn nothing else runs: the answer above still holds.
                self._refuse_deleted(ledger)
                if ledger.fenced and not slow_add.recovery:
                    raise LedgerFencedError(f"ledger {ledger.ledger_id} is fenced", may_have_happened=False)  # noqa: TRY301
                self._check_usable()
                self._append_some(ledger, slow_add, missing)
            except OctavoError as error:
                slow_add.done(error)
            except Exception as error:
                log.exception("add failed", ledger=ledger.ledger_id)
                slow_add.done(InternalError(f"ledger {ledger.ledger_id}: the add failed: {error!r}"))
            queue.popleft()
        ledger.slow_adds = None

    def _append_some(self, ledger: LedgerState, slow_add: _SlowAdd, missing: list[int]) -> None:
        batch = slow_add.batch
        if not missing:
            # Held already: a success once the held copies are durable, as is everything before this record then.
            self._journal.append_then(RecordKind.LEDGER_KEY, [encode_ledger_record(0)], slow_add.done)
            return
        if len(missing) < len(slow_add.entries):
            entries = [slow_add.entries[at] for at in missing]
            batch = batch._replace(
                entry_ids=tuple(batch.entry_ids[at] for at in missing),
                sizes=list(map(len, entries)),
                data=b"".join(entries),
            )
        self._append(ledger, batch, slow_add.done)

    async def _missing(self, ledger: LedgerState, slow_add: _SlowAdd) -> list[int]:
        """Positions in the frame to be stored: not held, or held in a copy that does not verify.

        Raises :class:`DuplicateEntryError`.
        """
        ids = slow_add.batch.entry_ids
        positions = {entry_id: at for at, entry_id in enumerate(ids)}
        missing = set(range(len(ids)))
        lookup = await self._reader.lookup(ledger.ledger_id, ids[0], ids[-1])
        for run in lookup.runs:
            wanted = [at for at, entry_id in enumerate(run.ids) if entry_id in positions]
            held = await self._reader.fetch(ledger.ledger_id, Selection(run, wanted))
            for at, sealed in zip(wanted, held, strict=True):
                entry_id = run.ids[at]
                if sealed is None:
                    continue
                if sealed != slow_add.entries[positions[entry_id]]:
                    self.duplicates_refused += 1
                    log.error("other bytes for a held entry refused", ledger=ledger.ledger_id, entry=entry_id)
                    raise DuplicateEntryError(
                        f"ledger {ledger.ledger_id} entry {entry_id} is held with other bytes; nothing was stored",
                        may_have_happened=False,
                    )
                missing.discard(positions[entry_id])
        return sorted(missing)

    def fence(self, ledger_id: int, ledger_key: bytes) -> asyncio.Future[None]:
        """See ``Storage.fence``."""
        self._check_usable()
        ledger = self._ledgers.get(ledger_id)
        self._refuse_deleted(ledger)
        if ledger.ledger_key is not None and not hmac.compare_digest(ledger.ledger_key, ledger_key):
            raise UnauthorizedError(f"ledger {ledger_id}: not the ledger's key")
        if not ledger.fenced:
            ledger.fenced = True
            log.info("ledger fenced", ledger=ledger_id)
        # A second fence is journaled again: its future then says that the first is durable too.
        future = self._journal.append(RecordKind.FENCE, [encode_ledger_record(ledger_id)])
        self._changed(ledger)
        wake_waiters(ledger)
        return future

    def delete(self, ledger_id: int) -> asyncio.Future[None]:
        """See ``Storage.delete``."""
        self._check_usable()
        ledger = self._ledgers.get(ledger_id)
        if not ledger.deleted:
            ledger.bury()
            log.info("ledger deleted", ledger=ledger_id)
            wake_waiters(ledger)
        self._ledgers.deleting.add(ledger_id)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def durable(failure: BaseException | None) -> None:
            if failure is None:
                self._ledgers.deleting.discard(ledger_id)
            settle_future(future, failure)

        self._journal.append_then(RecordKind.TOMBSTONE, [encode_ledger_record(ledger_id)], durable)
        self._changed(ledger)
        return future

    def write_lac(self, ledger_id: int, ledger_key: bytes, sealed: bytes, lac: int) -> None:
        """See ``Storage.write_lac``."""
        ledger = self._ledgers.get(ledger_id)
        self._admit(ledger, ledger_key, recovery=True)
        if ledger.ledger_key is None:
            self._pin(ledger, ledger_key)
        if not apply_explicit_lac(ledger, sealed, lac):
            return
        self._journal.append_deferred(RecordKind.EXPLICIT_LAC, encode_ledger_record(ledger_id, sealed))
        self._changed(ledger)
        wake_waiters(ledger)

    async def drain(self) -> None:
        """Wait until the slow adds accepted so far are decided."""
        if self._slow_tasks:
            await asyncio.wait(self._slow_tasks)
