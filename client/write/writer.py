"""The writer of one ledger, as an application sees it.

Adds gather for one turn of the event loop; then they are sealed, cut into frames and handed to the replication, which
tells in order what is acknowledged. Two windows bound what is unacknowledged, one by entries and one by bytes. Adds
over them wait in the *queue*, first come first served; while anybody waits there, every later add goes behind.

::

    add -> [queue] -> the turn's adds -> runs -> acknowledged
           no room     not sealed yet     pending

Nothing is set up before the first add: a writer that only waits costs no task, no timer and no watch, and creating
ledgers is as cheap as their metadata. From the first add on the metadata are watched, so that a writer notices that its
ledger is deleted or taken over also while it adds nothing. Before it nobody has been promised anything, and whatever
happened to the ledger meets the first add (bookies are fenced; the watch begins with a look) or the change that closes.

The writer fails once (rule W7): a bookie says that somebody recovers the ledger, an add misses the quorum
timeout, the metadata say that the ledger is deleted or taken over. Then every unacknowledged add fails, in doubt if
it was ever sent to a bookie (rule W6), and every later one is refused.

Per entry this costs one future, two list appends and the seal; everything else is per frame.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from octavo.client.options import ClientOptions
from octavo.client.place.placer import Placer
from octavo.client.supervisor import Supervisor
from octavo.client.wire.pool import ConnectionPool
from octavo.client.write.adds import Payload, Queued, another, checked_payload, frames_of, internal_error, reject
from octavo.client.write.ensemble_changes import Commit
from octavo.client.write.lac_teller import LacTeller
from octavo.client.write.own_metadata import OwnMetadata
from octavo.client.write.pipeline import Pipeline
from octavo.client.write.replication import Replication
from octavo.client.write.writer_work import NO_DEQUE, NOTHING_PUSHED, NothingPushed, Work
from octavo.metadata.model import LedgerMetadata
from octavo.metadata.store import MetadataStore, Versioned
from octavo.protocol.entries import LedgerSecrets, Sealer
from octavo.protocol.errors import (
    LedgerClosedError,
    MetadataUnavailableError,
    OctavoError,
    QuorumLostError,
    WouldBlock,
)
from octavo.protocol.ids import EntryId, LedgerId
from octavo.protocol.limits import (
    ENTRY_PAYLOAD_BYTES_MAX,
)

_DRAIN_SHARE = 0.75
"""Share of the time to close that pending adds may take; the rest is for the metadata."""

type _Futures = list[asyncio.Future[Any] | None]
"""One place per entry; None for entries that nobody waits for by themselves (all but the last of an ``add_many``)."""


class LedgerWriter:
    """Appends entries to one ledger. Made by :meth:`octavo.client.client.Client.create_ledger`.

    An async context manager: leaving the block waits for pending adds, closes the ledger and raises the first failure;
    leaving it on an exception closes with what is acknowledged and never masks that exception. Used from one event
    loop.
    """

    def __init__(
        self,
        ledger: Versioned[LedgerMetadata],
        secrets: LedgerSecrets,
        *,
        store: MetadataStore,
        pool: ConnectionPool,
        placer: Placer,
        options: ClientOptions,
        clock_ms: Callable[[], int],
        on_close: Callable[["LedgerWriter"], object] | None = None,
        on_failure: Callable[[OctavoError], object] | None = None,
    ) -> None:
        """``ledger``: as just created, empty and OPEN. ``clock_ms`` gives the time of day in milliseconds since 1970,
        which is sealed into the entries. ``on_close`` is called once closing has ended, however it
        ended; ``on_failure`` when the writer fails, in that step.
        """
        self._own = OwnMetadata(ledger, store=store, retry_seconds=options.resend_delay_seconds)
        self._secrets = secrets
        self._pool = pool
        self._placer = placer
        self._options = options
        self._clock_ms = clock_ms
        self._sealed_at_ms = 0
        self._on_close = on_close
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._create_future: Callable[[], asyncio.Future[EntryId]] = self._loop.create_future
        self._work: Work | None = None
        """What adding takes; None before the first add."""
        self._pipeline: Pipeline | NothingPushed = NOTHING_PUSHED

        self._direct = True
        """Whether an add that finds room may skip the queue: it is empty, and the writer neither failed nor closing."""
        self._free_entries = options.window_entries
        self._free_bytes = options.window_bytes
        self._queue: deque[Queued] = NO_DEQUE
        self._queued_entries = 0
        self._payloads: list[bytes] = []
        self._futures: _Futures = []
        self._turn_scheduled = False
        self._waiting: deque[tuple[int, _Futures]] = NO_DEQUE
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = NO_DEQUE

        self._length_pushed = 0
        self._length_freed = 0

        self._failure: OctavoError | None = None
        self._failed_adds = False
        self._settling = False
        self._closing: asyncio.Task[None] | None = None
        self._close_error: OctavoError | None = None
        for bookie_id in ledger.value.last_fragment.bookies:
            # The first add should find them connected.
            pool.get(bookie_id).connect_soon()

    # --- what is known --------------------------------------------------------------------------------------------

    @property
    def id(self) -> LedgerId:
        """The ledger."""
        return self._own.value.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer knows them."""
        return self._own.value

    @property
    def last_add_confirmed(self) -> EntryId | None:
        """The highest id such that it and all lower ones are acknowledged; None before the first."""
        return self._pipeline.last_add_confirmed

    @property
    def last_add_pushed(self) -> EntryId | None:
        """The highest id given to an add; None before the first. Adds that wait for room have none yet."""
        end = self._pipeline.next_entry_id + len(self._payloads)
        return EntryId(end - 1) if end else None

    @property
    def length(self) -> int:
        """Acknowledged payload bytes."""
        return self._pipeline.length

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` of this handle has ended."""
        return self._closing is not None and self._closing.done()

    # --- adding ---------------------------------------------------------------------------------------------------

    async def add(self, payload: Payload) -> EntryId:
        """Append an entry; its id, once it and all lower ones are acknowledged (rule I1). Waits for room in the window.

        Cancelling withdraws nothing: the entry is added all the same. ``payload`` may be a bytearray or memoryview,
        which is copied.

        Raises :class:`EntryTooLargeError`, :class:`InvalidArgumentError`, :class:`LedgerClosedError`; and when the
        writer fails :class:`LedgerFencedError`, :class:`QuorumLostError`, :class:`MetadataUnavailableError` (a bookie
        could not be replaced), :class:`NoSuchLedgerError`, :class:`UnauthorizedError`, :class:`DuplicateEntryError`:
        ``may_have_happened`` says whether the entry may exist.
        """
        # The same as `_enter`, spelt out: this is the one path whose cost is counted per entry.
        if type(payload) is bytes and self._direct and self._free_entries > 0:
            size = len(payload)
            if size <= self._free_bytes and size <= ENTRY_PAYLOAD_BYTES_MAX:
                self._free_entries -= 1
                self._free_bytes -= size
                future = self._create_future()
                self._payloads.append(payload)
                self._futures.append(future)
                if not self._turn_scheduled:
                    self._turn_scheduled = True
                    self._loop.call_soon(self._end_turn)
                return await future
        payload = checked_payload(payload)
        self.check_usable()
        future = self._create_future()
        self.enqueue([payload], future)
        return EntryId(await future)

    def add_nowait(self, payload: Payload) -> asyncio.Future[EntryId]:
        """Queue an entry; a future of its id. Raises :class:`WouldBlock`, and queues nothing, when the window is full.

        Otherwise as :meth:`add`, whose errors about the entry or a closed or failed writer it raises at once. A
        failure that nobody asks the future about is raised by :meth:`close`.
        """
        payload = checked_payload(payload)
        self.check_usable()
        self.check_room(len(payload))
        future = self._create_future()
        self._enter(payload, future)
        return future

    def check_room(self, size: int) -> None:
        """Raise :class:`WouldBlock` if an add of so many bytes would have to wait."""
        if self._queue or not self._has_room(size):
            raise WouldBlock(
                f"ledger {self.id}: the window of {self._options.window_entries} entries and "
                f"{self._options.window_bytes} bytes is full"
            )

    async def add_many(self, payloads: Iterable[Payload]) -> range:
        """Append entries, also more than a window, with consecutive ids; the ids, once the last is acknowledged.

        All payloads are checked before the first is queued. Otherwise as :meth:`add`; if it fails, a prefix may have
        been added.
        """
        checked = [checked_payload(payload) for payload in payloads]
        self.check_usable()
        if not checked:
            end = self._pipeline.next_entry_id + len(self._payloads)
            return range(end, end)
        future = self._create_future()
        self.enqueue(checked, future)
        last = await future
        return range(last + 1 - len(checked), last + 1)

    async def flush(self) -> None:
        """Return once every add made so far is acknowledged, those waiting for room included. Raises the writer's
        failure.
        """
        if self._failure is not None:
            raise another(self._failure)
        unacknowledged = self._pipeline.pending + len(self._payloads) + self._queued_entries
        if unacknowledged:
            end = self._pipeline.next_entry_id + len(self._payloads) + self._queued_entries
            acknowledged: asyncio.Future[None] = self._loop.create_future()
            if self._flushes is NO_DEQUE:
                self._flushes = deque()
            self._flushes.append((end - 1, acknowledged))
            await acknowledged

    def enqueue(self, payloads: Sequence[bytes], future: asyncio.Future[EntryId]) -> None:
        """Queue checked payloads behind everything else, room or not; ``future`` gets the id of the last. For callers
        who have called :meth:`check_usable` and bound by themselves what waits."""
        if self._queue is NO_DEQUE:
            self._queue = deque()
        self._queue.append(Queued(payloads, future))
        self._queued_entries += len(payloads)
        self._direct = False
        self._admit()

    def _admit(self) -> None:
        """Let in from the queue what there is room for, in order."""
        queue = self._queue
        while queue:
            queued = queue[0]
            payloads, at, last = queued.payloads, queued.at, len(queued.payloads) - 1
            while at <= last and self._has_room(len(payloads[at])):
                self._enter(payloads[at], queued.future if at == last else None)
                at += 1
            self._queued_entries -= at - queued.at
            queued.at = at
            if at <= last:
                return
            queue.popleft()
        self._direct = self._failure is None and self._closing is None

    def _has_room(self, size: int) -> bool:
        """Whether the windows have room. A payload over the whole window of bytes goes when nothing else is under
        way.
        """
        return self._free_entries > 0 and (
            size <= self._free_bytes or self._free_entries == self._options.window_entries
        )

    def _enter(self, payload: bytes, future: asyncio.Future[EntryId] | None) -> None:
        self._free_entries -= 1
        self._free_bytes -= len(payload)
        self._payloads.append(payload)
        self._futures.append(future)
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._end_turn)

    def check_usable(self) -> None:
        """Raise what an add would be refused with now: the writer's failure, or :class:`LedgerClosedError`."""
        if self._failure is not None:
            # Rule W6: an add issued after the failure did not happen.
            raise another(self._failure, may_have_happened=False)
        if self._closing is not None:
            raise LedgerClosedError(f"ledger {self.id}: this writer is closed")

    # --- pushing and acknowledging ----------------------------------------------------------------------------------

    def _end_turn(self) -> None:
        """Seal and send the adds of this turn of the loop."""
        self._turn_scheduled = False
        payloads, self._payloads = self._payloads, []
        futures, self._futures = self._futures, []
        if not payloads:
            return
        pushed = 0
        try:
            work = self._work if self._work is not None else self._begin_work()
            for start, stop in frames_of(payloads):
                whole = start == 0 and stop == len(payloads)
                self._waiting.append((self._pipeline.next_entry_id, futures if whole else futures[start:stop]))
                pushed = stop
                self._push(work, payloads if whole else payloads[start:stop])
        except Exception as error:  # a broken invariant: nothing may be added after it
            self._futures = futures[pushed:]
            self._fail(internal_error(self.id, error))
            raise

    def _begin_work(self) -> Work:
        """Before the first add: listen to the bookies, watch the metadata."""
        metadata = self._own.value
        supervisor = Supervisor(f"octavo writer of ledger {metadata.ledger_id}", self._supervisor_failed)
        replication = Replication(
            metadata,
            self._secrets.ledger_key,
            pool=self._pool,
            placer=self._placer,
            options=self._options,
            commit=self._change_ensemble,
            start=supervisor.start,
            on_acknowledged=self._acknowledged,
            on_failure=self._fail,
        )
        sealer = Sealer(metadata.ledger_id, metadata.digest, self._secrets)
        lac_teller = LacTeller(
            replication.pipeline,
            self._options.explicit_lac_delay_seconds,
            is_adding=lambda: bool(self._payloads),
            tell=lambda lac, length: replication.write_lac(
                sealer.seal_explicit_lac(lac, length=length, sealed_at_ms=self._next_sealed_at_ms())
            ),
        )
        self._work = work = Work(supervisor, replication, sealer, lac_teller)
        self._pipeline = replication.pipeline
        self._waiting = deque()
        supervisor.start(self._own.watch(self._fail))
        return work

    def _push(self, work: Work, payloads: Sequence[bytes]) -> None:
        """Seal the entries of one frame, with the LAC of this moment (rule W2), and send them."""
        pipeline, length = self._pipeline, self._length_pushed
        lac = pipeline.last_add_confirmed
        sealed = work.sealer.seal(
            EntryId(pipeline.next_entry_id),
            payloads,
            last_add_confirmed=lac,
            length=length,
            sealed_at_ms=self._next_sealed_at_ms(),
        )
        self._length_pushed = length + sum(map(len, payloads))
        work.replication.push(sealed, sealed_bytes=sum(map(len, sealed)), length_after=self._length_pushed)

    def _next_sealed_at_ms(self) -> int:
        """The time of day, or the last one given where the clock has gone back: times never fall within a ledger."""
        self._sealed_at_ms = now = max(self._sealed_at_ms, self._clock_ms())
        return now

    def _acknowledged(self, first: int, last: int) -> None:
        length = self._pipeline.length
        self._free_entries += last + 1 - first
        self._free_bytes += length - self._length_freed
        self._length_freed = length
        waiting = self._waiting
        while first <= last:
            run_first, futures = waiting[0]
            if run_first + len(futures) - 1 <= last:
                waiting.popleft()
            if run_first != first or len(futures) > last + 1 - first:
                futures = futures[first - run_first : last + 1 - run_first]
            for entry_id, future in enumerate(futures, first):
                # Done already if whoever waited was cancelled; the entry was added all the same.
                if future is not None and not future.done():
                    future.set_result(entry_id)
            first += len(futures)
        if self._queue:
            self._admit()
        while self._flushes and self._flushes[0][0] <= last:
            acknowledged = self._flushes.popleft()[1]
            if not acknowledged.done():
                acknowledged.set_result(None)
        work = self._work
        assert work is not None, "something is acknowledged"
        if work.lac_teller.timer is None and not self._pipeline.pending:
            work.lac_teller.arm()

    def ledger_deleted(self) -> None:
        """The ledger has been deleted by this very client, which need not wait for a watch's news."""
        deleted = self._own.deleted()
        if deleted is not None:
            self._fail(deleted)

    # --- failing ----------------------------------------------------------------------------------------------------

    def _fail(self, error: OctavoError) -> None:
        """The writer is dead (rule W7). The first reason is the one that counts."""
        if self._failure is not None or self._settling:
            return
        self._failure = error
        if self._work is not None:
            self._work.replication.stop()
        self._fail_pending(error, in_doubt=True)
        if self._on_failure is not None:
            self._on_failure(error)

    def _fail_pending(self, error: OctavoError, *, in_doubt: bool) -> None:
        """Fail every unacknowledged add; with ``in_doubt`` those that may be on some bookie say so (rule W6)."""
        self._direct = False
        if self._work is not None:
            self._work.lac_teller.cancel()
        sent = self._pipeline.highest_sent if in_doubt else -1
        waiting, self._waiting = self._waiting, NO_DEQUE
        futures, self._futures = self._futures, []
        queue, self._queue = self._queue, NO_DEQUE
        flushes, self._flushes = self._flushes, NO_DEQUE
        self._failed_adds = self._failed_adds or bool(self._pipeline.pending or futures or queue)
        self._payloads = []
        self._queued_entries = 0
        for first, run_futures in waiting:
            for entry_id, future in enumerate(run_futures, first):
                if future is not None:
                    reject(future, error, may_have_happened=entry_id <= sent)
        for future in futures:
            if future is not None:
                reject(future, error, may_have_happened=False)
        for queued in queue:
            # Of an add_many, the part let in so far may have been sent.
            reject(queued.future, error, may_have_happened=in_doubt and queued.at > 0)
        for _, flushed in flushes:
            reject(flushed, error, may_have_happened=in_doubt)

    def _supervisor_failed(self, error: BaseException) -> None:
        self._fail(internal_error(self.id, error))

    async def _change_ensemble(self, change: Commit) -> bool:
        return await self._own.change_ensemble(change, lambda: self._failure is None)

    # --- closing ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for pending adds, then close the ledger with what is acknowledged; within ``close_timeout_seconds``.

        Any task may call it, any number of times: all calls share one closing, and cancelling one leaves it going on.
        Raises the first failure: of an add, else of closing. Adds that are still pending when their share of the time
        is over fail once the end is settled; they did not happen then (rule W9).
        """
        if self._closing is None:
            self._direct = False
            self._closing = self._loop.create_task(self._close(), name=f"octavo closing of ledger {self.id}")
        await asyncio.wait([self._closing])
        self._closing.result()
        if self._close_error is not None:
            raise another(self._close_error)

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

    async def _close(self) -> None:
        deadline = self._loop.time() + self._options.close_timeout_seconds
        try:
            await self._drain(self._options.close_timeout_seconds * _DRAIN_SHARE)
            answers = "" if self._work is None else self._work.replication.describe()
            # From here on nothing more is acknowledged: the end that is about to be written is the end.
            self._settling = True
            self._own.heed_no_more_news()
            if self._work is not None:
                self._work.replication.stop()
            refused = await self._settle_end(deadline)
            if self._failure is None:
                reason = refused or QuorumLostError(
                    f"ledger {self.id}: closed before the add reached its ack quorum; {answers}"
                )
                self._fail_pending(reason, in_doubt=refused is not None)
                if self._failed_adds or refused is not None:
                    self._close_error = reason
            elif self._failed_adds or refused is not None:
                self._close_error = self._failure
        finally:
            if self._work is not None:
                self._work.lac_teller.cancel()
                self._work.replication.close()
                await self._work.supervisor.close()
            if self._on_close is not None:
                self._on_close(self)

    async def _drain(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.flush()
        except (TimeoutError, OctavoError):
            # What is unacknowledged is dealt with once the end is settled; a failure is kept in `_failure`.
            return

    async def _settle_end(self, deadline: float) -> OctavoError | None:
        """Write the end into the metadata; why it could not be written, or None."""
        pipeline = self._pipeline
        try:
            async with asyncio.timeout_at(deadline):
                if self._work is not None:
                    await self._work.replication.settled()
                await self._own.close(pipeline.last_add_confirmed, pipeline.length)
        except TimeoutError:
            return MetadataUnavailableError(f"ledger {self.id}: the metadata store did not settle its end in time")
        except OctavoError as error:
            return error
        return None
