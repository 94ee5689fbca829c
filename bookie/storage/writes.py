"""The write side of a storage: adds, fences and explicit LACs, each decided in one synchronous step.

An add whose ids are all above the highest held one is in the cache and in the journal's queue when the call returns.
Any other add is *slow*: what is held at its ids must be looked up and compared (rule W11), which may need the
disk. One task works off the slow adds of a ledger in order, and later adds of that ledger queue behind them. Their
memory is charged to ``Admission`` until they are decided, so that they push back on the sockets like other adds.
"""

import asyncio
import hmac
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import structlog
from octavo.bookie.index.runs import Run, is_inside, lone_runs
from octavo.bookie.journal.journal import Journal, RecordKind, settle_future
from octavo.bookie.storage.admission import Admission, Done, Health, SlowAdd
from octavo.bookie.storage.background import Background
from octavo.bookie.storage.cache import WriteCache
from octavo.bookie.storage.ledger_state import (
    BARRIER,
    LedgerState,
    encode_add_head,
    encode_ledger_record,
    encode_lone_add_heads,
    encode_term_fence,
    encode_trim,
)
from octavo.bookie.storage.ledgers import (
    LedgerTable,
    apply_explicit_lac,
    is_known,
    is_over,
    note_next_entries,
    wake_waiters,
)
from octavo.bookie.storage.reads import EntryReader, Selection, pieces_of
from octavo.protocol.entries import LoneEntries, SealedBatch, verify_batch
from octavo.protocol.errors import (
    BookieInDoubtError,
    DuplicateEntryError,
    InternalError,
    LedgerFencedError,
    NoSuchLedgerError,
    OctavoError,
    TermOverError,
    UnauthorizedError,
)
from octavo.protocol.ids import EntryId, LedgerId
from octavo.protocol.packs import PlainAdds

log = structlog.get_logger()


_LOOKUPS_AT_ONCE = 16
"""Ledgers whose slow adds are looked up at the same time: bounds the memory of what is read."""


class EntryWriter:
    """Accepts what writers and recovering clients send.

    All methods decide at once and raise :class:`UnauthorizedError`, :class:`NoSuchLedgerError` (the ledger has been
    deleted), :class:`BookieStorageError` (the storage has failed) and :class:`BookieShuttingDownError`.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        cache: WriteCache,
        ledgers: LedgerTable,
        reader: EntryReader,
        health: Health,
        admission: Admission,
        background: Background,
        clear_dropped: Callable[[LedgerId], Awaitable[None]],
    ) -> None:
        """``clear_dropped`` takes the places of a dropped ledger out of the index."""
        self._journal = journal
        self._cache = cache
        self._ledgers = ledgers
        self._reader = reader
        self._health = health
        self._admission = admission
        self._clear_dropped = clear_dropped
        self._changed = background.changed
        self._slow_tasks: set[asyncio.Task[None]] = set()
        self._lookups = asyncio.Semaphore(_LOOKUPS_AT_ONCE)
        self.before_new_ledger: Callable[[], None] = _nothing
        """Called before a ledger that was not known here gets its key or its fence; what it raises refuses the
        request."""
        self.on_deleted: Callable[[LedgerId], None] = _ignore
        """Called when a ledger is deleted here."""
        self.duplicates_refused = 0
        self.fences = 0

    # --- adds -------------------------------------------------------------------------------------------------

    def add(
        self,
        ledger_id: LedgerId,
        ledger_key: bytes,
        entries: Sequence[bytes],
        *,
        recovery: bool,
        batch: SealedBatch | None = None,
        deferred: bool = False,
        term: int = 0,
    ) -> asyncio.Future[None]:
        """Accept a frame of sealed entries, all or none; the future is done once they are durable, or with ``deferred``
        as soon as they are on their way to the disk (rule W10). ``term`` is that of all the entries, which the caller
        has compared with their ids; 0 for a ledger with one writer.

        ``batch`` is the result of ``verify_batch``, which is called if it is not given. The first add of a ledger pins
        its key. An id already held with the same bytes is a success once the held copy is durable; a held copy that is
        damaged is replaced (rule W11). Cancelling the future withdraws nothing.

        Raises at once, or fails the future with, :class:`LedgerFencedError`, with a term :class:`TermOverError`, and
        :class:`BookieInDoubtError` (none of them for recovery adds); the future may also fail with
        :class:`DuplicateEntryError`.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        batch = batch or verify_batch(ledger_id, entries)
        done = partial(settle_future, future)
        self.add_then(
            ledger_id, ledger_key, entries, recovery=recovery, batch=batch, done=done, deferred=deferred, term=term
        )  # fmt: skip
        return future

    def add_then(
        self,
        ledger_id: LedgerId,
        ledger_key: bytes,
        entries: Sequence[bytes],
        *,
        recovery: bool,
        batch: SealedBatch,
        done: Done,
        deferred: bool = False,
        term: int = 0,
    ) -> None:
        """As :meth:`add`, without a future: ``done`` is called in the very step in which the outcome is known, and not
        when this raises."""
        assert not (recovery and deferred), "a recovery add is durable when it is answered (rule F5)"
        ledger = self._ledgers.get(ledger_id)
        self._admit(ledger, ledger_key, recovery, term)
        if ledger.ledger_key is None:
            self._pin(ledger, ledger_key)
        if batch.entry_ids[0] >= ledger.highest_plus_one and ledger.slow_adds is None and not ledger.dropped:
            self._append(ledger, batch, done, deferred=deferred)
        else:
            self._queue_slow_add(ledger, entries, batch, recovery, done, deferred=deferred, term=term)

    def add_plain_then(self, adds: PlainAdds, entries: LoneEntries, done: Callable[[Sequence[int]], Done]) -> list[int]:
        """As :meth:`add_then` for each of these adds, one entry each of different ledgers; ``entries``: what has been
        verified of them. Returns the indexes of the adds that were left out. Only :meth:`add_then` says whether they
        are refused.

        ``done`` is called with the indexes of the others, and makes what is called once all of these are durable."""
        if not self._health.usable:
            return list(range(len(adds.entries)))
        taken, left, ledgers = list[int](), list[int](), list[LedgerState]()
        get, dirty, same = self._ledgers.get, self._ledgers.dirty, hmac.compare_digest
        in_doubt, is_below_floor = self._ledgers.doubt is not None, self._ledgers.is_below_floor
        columns = zip(adds.ledger_ids, adds.ledger_keys, adds.terms, entries.entry_ids, strict=True)
        for index, (ledger_id, key, term, entry_id) in enumerate(columns):
            ledger = get(ledger_id)
            pinned = ledger.ledger_key
            # Nothing passes here that `_admit` would refuse.
            is_next = entry_id >= ledger.highest_plus_one and ledger.slow_adds is None
            is_gone, is_fenced = ledger.dropped or ledger.deleted, ledger.fenced and term <= ledger.fenced_term
            is_doubted = (in_doubt or ledger.in_doubt) and is_below_floor(ledger, term)
            if not is_next or is_gone or is_fenced or is_doubted or pinned is None or not same(pinned, key):
                left.append(index)
                continue
            dirty[ledger_id] = ledger  # from here on the table keeps this very object
            taken.append(index)
            ledgers.append(ledger)
        if not ledgers:
            return left
        if left:
            adds, entries = adds.only(taken), entries.only(taken)
        runs = lone_runs(entries.entry_ids, entries.sizes, adds.entries)
        heads = encode_lone_add_heads(adds.ledger_ids, entries.entry_ids, entries.sizes)
        try:
            self._journal.append_each(RecordKind.ADD, list(zip(heads, adds.entries, strict=True)))
        except OctavoError:
            return sorted(left + taken)
        self._journal.report_last(done(taken))
        self._cache.put_each(adds.ledger_ids, runs, sum(entries.sizes))
        note_next_entries(ledgers, entries.entry_ids, entries.lacs_plus_one)
        self._changed(ledgers[-1])
        return left

    def force(self, ledger_id: LedgerId, ledger_key: bytes, term: int = 0) -> asyncio.Future[None]:
        """Make everything of the ledger durable that this bookie has answered since it started; the future is done
        then (rule W10). Says nothing of entries that were answered before that.

        Raises what :meth:`add` raises: a term that is over has no writer that may be told of its entries (rule I7).
        """
        self._admit(self._ledgers.get(ledger_id), ledger_key, False, term)
        if self._journal.pending_bytes:
            return self._journal.append(RecordKind.LEDGER_KEY, [BARRIER])
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def make_private(self, ledger_id: LedgerId, ledger_key: bytes) -> None:
        """The writer or recoverer of the ledger says that it is private (rule S3). Pins the key. What is journaled
        later is durable only together with that. Idempotent."""
        ledger = self._ledgers.get(ledger_id)
        if ledger.private:
            return
        self._admit(ledger, ledger_key, True, 0)
        if ledger.ledger_key is None:
            self._pin(ledger, ledger_key)
        self._mark_private(ledger)

    def note_privacy(self, ledger_id: LedgerId, *, private: bool) -> None:
        """The metadata say whether the ledger is private, which this bookie may have lost (rule S3). Only that it is
        private is journaled: what is forgotten otherwise is asked again. Idempotent."""
        self._health.check_usable()
        self._learn_privacy(self._ledgers.get(ledger_id), private)

    def _learn_privacy(self, ledger: LedgerState, private: bool) -> None:
        if private and not ledger.private:
            self._mark_private(ledger)
        elif not private and self._ledgers.privacy_is_lost(ledger):
            ledger.public = True
            self._changed(ledger)

    def _mark_private(self, ledger: LedgerState) -> None:
        ledger.private = True
        self._journal.append(RecordKind.PRIVATE, [encode_ledger_record(ledger.ledger_id)])
        self._changed(ledger)

    def copy_in(self, ledger_id: LedgerId, entries: Sequence[bytes], *, private: bool = False) -> asyncio.Future[None]:
        """Accept sealed entries that this bookie has read from another one, as they are; the future is done once they
        are durable (rules C6 and C7).

        As a recovery add, but without the ledger's key, which no bookie can give away: none is checked, and none is
        pinned. ``private``: the metadata say that the ledger is (rule S3). Only the bookie itself calls this. Raises,
        besides what :meth:`add` raises, :class:`ProtocolError` for
        entries of another ledger or format and :class:`DigestMismatchError` for damaged ones.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._health.usable:
            self._health.refuse()
        batch = verify_batch(ledger_id, entries)
        ledger = self._ledgers.get(ledger_id)
        if ledger.deleted:
            self._refuse_deleted(ledger)
        self._learn_privacy(ledger, private)
        done = partial(settle_future, future)
        if batch.entry_ids[0] >= ledger.highest_plus_one and ledger.slow_adds is None and not ledger.dropped:
            self._append(ledger, batch, done)
        else:
            self._queue_slow_add(ledger, entries, batch, True, done)
        return future

    def _admit(self, ledger: LedgerState, ledger_key: bytes, recovery: bool, term: int) -> None:
        if not self._health.usable:
            self._health.refuse()
        if ledger.deleted:
            self._refuse_deleted(ledger)
        pinned = ledger.ledger_key
        if pinned is not None and not hmac.compare_digest(pinned, ledger_key):
            raise UnauthorizedError(f"ledger {ledger.ledger_id}: not the ledger's key")
        if not ledger_key:
            raise UnauthorizedError(f"ledger {ledger.ledger_id}: adds need the ledger key")
        if recovery:
            return
        if ledger.fenced and term <= ledger.fenced_term:
            self._refuse_fenced(ledger, term)
        if self._ledgers.is_below_floor(ledger, term):
            raise BookieInDoubtError(
                f"ledger {ledger.ledger_id}: this bookie may have lost entries or a fence of this ledger; it takes "
                "only recovery adds of it",
                may_have_happened=False,
            )

    def _refuse_deleted(self, ledger: LedgerState) -> None:
        raise NoSuchLedgerError(f"ledger {ledger.ledger_id} has been deleted", may_have_happened=False)

    def _refuse_fenced(self, ledger: LedgerState, term: int) -> None:
        if term:
            raise TermOverError(
                f"ledger {ledger.ledger_id}: term {term} is over, as term {ledger.fenced_term} is",
                may_have_happened=False,
            )
        raise LedgerFencedError(
            f"ledger {ledger.ledger_id} is fenced; its metadata say by which client and when "
            f"(octavo ledger show {ledger.ledger_id})",
            may_have_happened=False,
        )

    def _pin(self, ledger: LedgerState, ledger_key: bytes) -> None:
        self.before_new_ledger()
        ledger.ledger_key = ledger_key
        self._journal.append(RecordKind.LEDGER_KEY, [encode_ledger_record(ledger.ledger_id, ledger_key)])
        self._changed(ledger)

    def _append(self, ledger: LedgerState, batch: SealedBatch, done: Done, *, deferred: bool = False) -> None:
        """Entries none of which is held, of a ledger that is not dropped: cache, journal, state, in one synchronous
        step. ``deferred``: ``done`` is called in this step, too."""
        data, sizes = batch.data, batch.sizes
        size = sizes[0]
        packed: int | array[int] = size if sizes.count(size) == len(sizes) else array("I", sizes)
        ids = batch.entry_ids
        kept = ids if type(ids) is range else array("Q", ids)
        run = Run(ids[0], ids[-1], kept, packed, data, 0)
        record = (encode_add_head(ledger.ledger_id, run), data)
        if deferred:
            # Its sync may fail later: that ends the bookie, and no force has been answered then (rule B1).
            self._journal.append_unwaited(RecordKind.ADD, record)
        else:
            self._journal.append_then(RecordKind.ADD, record, done)
        self._cache.put(ledger.ledger_id, run, len(data))
        lac_plus_one = batch.last_add_confirmed_plus_one
        if run.last >= ledger.highest_plus_one:
            ledger.highest_plus_one = run.last + 1
        if lac_plus_one > ledger.lac_plus_one:
            ledger.lac_plus_one = lac_plus_one
            if ledger.waiters is not None:
                wake_waiters(ledger)
        if ledger.followers is not None:
            ledger.tell_followers()
        self._changed(ledger)
        if deferred:
            done(None)

    # --- slow adds --------------------------------------------------------------------------------------------

    def _queue_slow_add(
        self,
        ledger: LedgerState,
        entries: Sequence[bytes],
        batch: SealedBatch,
        recovery: bool,
        done: Done,
        *,
        deferred: bool = False,
        term: int = 0,
    ) -> None:
        slow_add = SlowAdd(entries, batch, recovery, deferred, term, done, 2 * len(batch.data))
        self._admission.charge_waiting(slow_add.cost_bytes)
        if ledger.slow_adds is not None:
            ledger.slow_adds.append(slow_add)
            return
        ledger.slow_adds = deque((slow_add,))
        task = asyncio.get_running_loop().create_task(self._work_off(ledger, ledger.slow_adds))
        self._slow_tasks.add(task)
        task.add_done_callback(self._slow_tasks.discard)

    async def _work_off(self, ledger: LedgerState, queue: deque[SlowAdd]) -> None:
        """Decide the slow adds of a ledger one after another, and every add of the ledger that came after them."""
        while queue:
            slow_add = queue[0]
            try:
                missing = None
                if not ledger.dropped:
                    async with self._lookups:
                        with self._reader.places_kept():
                            missing = await self._missing(ledger, slow_add)
                if ledger.dropped:  # it may have been dropped during the look-up
                    await self._clear_dropped(LedgerId(ledger.ledger_id))
                    missing = None
                # From here to the end of the turn nothing else runs: the answer above still holds.
                self._append_missing(ledger, slow_add, missing)
            except OctavoError as error:
                slow_add.done(error)
            except Exception as error:
                log.exception("add failed", ledger=ledger.ledger_id)
                slow_add.done(InternalError(f"ledger {ledger.ledger_id}: the add failed: {error!r}"))
            queue.popleft()
            self._admission.release_waiting(slow_add.cost_bytes)
        ledger.slow_adds = None

    def _append_missing(self, ledger: LedgerState, slow_add: SlowAdd, missing: list[int] | None) -> None:
        """Store the entries at these positions of the frame; None: all of them, because nothing of the ledger is left.
        Not those below a trim, which count as added (rule U5). The ledger may have changed since the add was
        admitted."""
        if ledger.deleted:
            self._refuse_deleted(ledger)
        if is_over(ledger, slow_add.term) and not slow_add.recovery:
            self._refuse_fenced(ledger, slow_add.term)
        self._health.check_usable()
        batch = slow_add.batch
        wanted = range(len(slow_add.entries)) if missing is None else missing
        wanted = [at for at in wanted if batch.entry_ids[at] >= ledger.first_kept]
        if not wanted and slow_add.deferred:
            slow_add.done(None)  # held or trimmed already, and so on its way to the disk at least
            return
        if not wanted:
            # Held or trimmed already: a success once that is durable, as is everything before this record then.
            self._journal.append_then(RecordKind.LEDGER_KEY, [BARRIER], slow_add.done)
            return
        ledger.bring_back()
        if len(wanted) < len(slow_add.entries):
            entries = [slow_add.entries[at] for at in wanted]
            batch = batch._replace(
                entry_ids=tuple(batch.entry_ids[at] for at in wanted),
                sizes=list(map(len, entries)),
                data=b"".join(entries),
            )
        self._append(ledger, batch, slow_add.done, deferred=slow_add.deferred)

    async def _missing(self, ledger: LedgerState, slow_add: SlowAdd) -> list[int]:
        """Positions in the frame to be stored: not held, or held in a copy that does not verify. Nothing is looked up
        below a trim.

        Raises :class:`DuplicateEntryError`.
        """
        ids = slow_add.batch.entry_ids
        first = max(ids[0], ledger.first_kept)
        positions = {entry_id: at for at, entry_id in enumerate(ids) if entry_id >= first}
        missing = set(positions.values())
        if not missing:
            return []
        lookup = await self._reader.lookup(ledger.ledger_id, first, ids[-1])
        for run in lookup.runs:
            for wanted in pieces_of(run, [at for at, entry_id in enumerate(run.ids) if entry_id in positions]):
                held = await self._reader.fetch(ledger.ledger_id, Selection(run, wanted))
                for at, sealed in zip(wanted, held, strict=True):
                    if sealed is not None:
                        position = positions[run.ids[at]]
                        self._compare(ledger.ledger_id, run.ids[at], sealed, slow_add.entries[position])
                        missing.discard(position)
        # What is being removed is held no longer, though the look-up may have found it (rule C11).
        removed = self._ledgers.relieving.get(ledger.ledger_id, ())
        missing |= {at for one, at in positions.items() if is_inside(removed, one)}
        return sorted(missing)

    def _compare(self, ledger_id: int, entry_id: int, held: bytes, added: bytes) -> None:
        if held != added:
            self.duplicates_refused += 1
            log.error("add refused: the entry is held with other bytes", ledger=ledger_id, entry=entry_id)
            raise DuplicateEntryError(
                f"ledger {ledger_id} entry {entry_id} is held with other bytes; nothing was stored",
                may_have_happened=False,
            )

    async def drain(self) -> None:
        """Wait until the slow adds accepted so far are decided."""
        if self._slow_tasks:
            await asyncio.wait(self._slow_tasks)

    async def sync_accepted(self) -> None:
        """Wait until everything accepted so far is durable. Raises :class:`BookieStorageError`."""
        if self._journal.pending_bytes:
            await self._journal.append(RecordKind.LEDGER_KEY, [BARRIER])

    # --- fences, LACs, deletion -------------------------------------------------------------------------------

    def fence(self, ledger_id: LedgerId, ledger_key: bytes, term: int = 0) -> asyncio.Future[None]:
        """Refuse ordinary adds of the terms up to this one from now on; the future is done once that is durable (rules
        F2, B2 and T7). Idempotent; a fence of an earlier term takes nothing back.

        An unknown ledger is fenced too, and no key is pinned (rule F0).
        """
        self._health.check_usable()
        ledger = self._ledgers.get(ledger_id)
        if ledger.deleted:
            self._refuse_deleted(ledger)
        if ledger.ledger_key is not None and not hmac.compare_digest(ledger.ledger_key, ledger_key):
            raise UnauthorizedError(f"ledger {ledger_id}: not the ledger's key")
        if not is_known(ledger):
            self.before_new_ledger()
        if ledger.fence(term):
            log.info("ledger fenced", ledger=ledger_id, term=term)
            self.fences += 1
        # A second fence is journaled again: its future then says that the first is durable too.
        if term:
            future = self._journal.append(RecordKind.TERM_FENCE, [encode_term_fence(ledger_id, term)])
        else:
            future = self._journal.append(RecordKind.FENCE, [encode_ledger_record(ledger_id)])
        self._changed(ledger)
        wake_waiters(ledger)
        return future

    def write_lac(self, ledger_id: LedgerId, ledger_key: bytes, sealed: bytes, lac: EntryId) -> None:
        """Apply an explicit LAC that ``verify_explicit_lac`` has passed; journaled, not waited for (rule W2)."""
        ledger = self._ledgers.get(ledger_id)
        self._admit(ledger, ledger_key, True, 0)
        if ledger.ledger_key is None:
            self._pin(ledger, ledger_key)
        if not apply_explicit_lac(ledger, sealed, lac):
            return
        self._journal.append_deferred(RecordKind.EXPLICIT_LAC, encode_ledger_record(ledger_id, sealed))
        self._changed(ledger)
        wake_waiters(ledger)

    def delete(self, ledger_id: LedgerId) -> asyncio.Future[None]:
        """Delete a ledger: from now on it is refused with :class:`NoSuchLedgerError`, and a tombstone keeps it so (rule
        B5). The future is done once the tombstone is durable; from then on entries of the ledger may be removed. Key,
        fence and highest id are kept. Idempotent.

        Only for ledgers that the metadata say are deleted."""
        self._health.check_usable()
        ledger = self._ledgers.get(ledger_id)
        if not ledger.deleted:
            ledger.mark_deleted()
            log.info("ledger deleted", ledger=ledger_id)
            self.on_deleted(ledger_id)
            wake_waiters(ledger)
        return self._remove_entries(ledger, RecordKind.TOMBSTONE)

    def drop(self, ledger_id: LedgerId) -> asyncio.Future[None]:
        """Give up the entries of a ledger; its key and its fence stay (rule C8). The future is done once that is
        durable; from then on the entries may be removed. This bookie does not deny them: metadata that are restored
        from an older state may name it again. A later recovery add, or copy, brings the ledger back, with that entry
        alone: the places of the old ones are taken out of the index first.

        Only for ledgers of which a synced read of the metadata, made under the ledger's lock, says that they are CLOSED
        and do not name this bookie."""
        self._health.check_usable()
        ledger = self._ledgers.get(ledger_id)
        if ledger.deleted:
            self._refuse_deleted(ledger)
        ledger.dropped = True
        return self._remove_entries(ledger, RecordKind.DROP)

    def _remove_entries(self, ledger: LedgerState, kind: RecordKind) -> asyncio.Future[None]:
        """Journal that the entries of the ledger may be removed, which nothing does before that is durable."""
        ledger_id = ledger.ledger_id
        self._ledgers.deleting.add(ledger_id)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def durable(failure: BaseException | None) -> None:
            if failure is None:
                self._ledgers.deleting.discard(ledger_id)
            settle_future(future, failure)

        self._journal.append_then(kind, [encode_ledger_record(ledger_id)], durable)
        self._changed(ledger)
        return future

    def trim(self, ledger_id: LedgerId, first_kept: int) -> asyncio.Future[None]:
        """Keep nothing of a stream below the place ``first_kept``, where it begins after truncation (rule U5): from now
        on what lies below is unknown, and adds of it store nothing. The future is done once that is durable; from then
        on what lies below may be removed. Idempotent; a lower place than before takes nothing back.

        Only for streams of which the metadata say that they begin there, or later."""
        self._health.check_usable()
        ledger = self._ledgers.get(ledger_id)
        if ledger.deleted:
            self._refuse_deleted(ledger)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        durably_kept = self._ledgers.first_kept(ledger_id)
        if first_kept <= durably_kept:
            future.set_result(None)
            return future
        ledger.trim(first_kept)
        first_kept = ledger.first_kept
        self._ledgers.trimming.setdefault(ledger_id, durably_kept)

        def durable(failure: BaseException | None) -> None:
            if failure is None:
                self._ledgers.note_trimmed(ledger_id, first_kept)
            settle_future(future, failure)

        self._journal.append_then(RecordKind.TRIM, [encode_trim(ledger_id, first_kept)], durable)
        self._changed(ledger)
        return future

    def revive(self, ledger_id: LedgerId) -> asyncio.Future[None]:
        """Reverse :meth:`delete` for a ledger that a synced read of the metadata has found alive. The ledger is in
        doubt from now on, as entries may have been removed (rule B5). The future is done once that is durable."""
        self._health.check_usable()
        ledger = self._ledgers.get(ledger_id)
        assert ledger.deleted, "only a deleted ledger is revived"
        ledger.revive()
        log.error("deleted ledger is alive in the metadata: it is in doubt now", ledger=ledger_id)
        future = self._journal.append(RecordKind.REVIVAL, [encode_ledger_record(ledger_id)])
        self._changed(ledger)
        return future


def _nothing() -> None:
    pass


def _ignore(_ledger_id: LedgerId) -> None:
    pass
