"""The writer of one ledger, as an application sees it.

The adds of one turn of the event loop are collected, then sealed, cut into frames and handed to the replication, which
reports in order what is acknowledged. Two windows bound the unacknowledged adds, one by their number and one by their
bytes. Adds beyond the windows wait in the *queue*, first in, first out; while the queue is not empty every later add
joins it.

::

    add -> [queue] -> the turn's adds -> runs -> acknowledged
           no room     not sealed yet     pending

The write path is set up by the first add. Before that a writer has no task, no timer and no watch, so that creating a
ledger costs little more than writing its metadata. From the first add on the writer watches the metadata, and notices
even while idle that its ledger is deleted or recovered. Before the first add no entry has been acknowledged; the
first add or the close notices any change made until then (the bookies are fenced, or the metadata differ).

The writer fails at most once (rule W7): when a bookie reports that another client recovers the ledger, when an add
misses the quorum timeout, or when the metadata say that the ledger is deleted or being recovered. Then every
unacknowledged add fails, in doubt if it was ever sent to a bookie (rule W6), and every later add is refused.
:mod:`octavo.client.write.writer_life` has the writer's states as a table.

An entry costs one future, two list appends and its seal; all other costs are per frame.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from octavo.client.async_context import Closable
from octavo.client.choose.placer import Placer
from octavo.client.options import ClientOptions
from octavo.client.same_loop import check_loop
from octavo.client.supervisor import Supervisor
from octavo.client.wire.pool import ConnectionPool
from octavo.client.write.ensemble_changes import Commit
from octavo.client.write.front.adds import (
    Payload,
    Queued,
    checked_payload,
    checked_payloads,
    copy_error,
    frames_of,
    internal_error,
    reject,
)
from octavo.client.write.front.batching import WAIT_SECONDS_MAX
from octavo.client.write.front.window import AddWindow, Futures
from octavo.client.write.lac_sender import LacSender
from octavo.client.write.own_metadata import OwnMetadata
from octavo.client.write.pipeline import Pipeline
from octavo.client.write.replication import Replication
from octavo.client.write.write_path import EMPTY_DEQUE, EMPTY_PIPELINE, EmptyPipeline, WritePath
from octavo.client.write.writer_life import WriterLife, WriterState
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.own_tasks import result_of
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned
from octavo.protocol.entries import LedgerSecrets, Sealer
from octavo.protocol.errors import (
    ClientClosedError,
    LedgerClosedError,
    MetadataUnavailableError,
    OctavoError,
    QuorumLostError,
    WouldBlock,
)
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

DRAIN_SHARE = 0.75
"""Share of the closing time that pending adds may take; the rest is for writing the end into the metadata."""


OVER = (WriterState.SETTLING, WriterState.CLOSED)
"""States in which nothing is acknowledged any more."""


class WriterTools(NamedTuple):
    """The parts of a client that its writers share."""

    store: MetadataStore
    pool: ConnectionPool
    placer: Placer
    options: ClientOptions
    clock_ms: Callable[[], int]
    """The time of day in milliseconds since 1970, which is sealed into the entries."""
    wait_seconds_max: float = WAIT_SECONDS_MAX
    """The longest time that adds wait for later adds to join their frame."""


class LedgerWriter(AddWindow, Closable):
    """Appends entries to one ledger. Made by :meth:`octavo.client.client.Client.create_ledger`.

    An async context manager: leaving the block waits for pending adds, closes the ledger and raises the first failure.
    Leaving it on an exception closes the ledger with the entries acknowledged so far and never masks that exception.
    Used from one event loop.
    """

    _create_future: Callable[[], asyncio.Future[EntryId]]

    def __init__(
        self,
        ledger: Versioned[LedgerMetadata],
        secrets: LedgerSecrets,
        tools: WriterTools,
        *,
        on_close: Callable[["LedgerWriter"], object] | None = None,
        on_failure: Callable[[OctavoError], object] | None = None,
        own_metadata: OwnMetadata | None = None,
    ) -> None:
        """``ledger``: as just created, empty and OPEN. ``on_close`` is called when closing is over, with or without an
        error; ``on_failure`` when the writer fails, in the same step. ``own_metadata``: for a writer that changes other
        metadata than those of a ledger."""
        store, pool, placer, options, clock_ms, wait_seconds_max = tools
        super().__init__(options, wait_seconds_max=wait_seconds_max)
        self._own_metadata = own_metadata or OwnMetadata(
            ledger, store=store, retry_seconds=options.resend_delay_seconds
        )
        self._secrets = secrets
        self._pool = pool
        self._placer = placer
        self._clock_ms = clock_ms
        self._sealed_at_ms = 0
        self._on_close = on_close
        self._on_failure = on_failure
        self._life = WriterLife()
        self._closing: asyncio.Task[None] | None = None
        self._write_path: WritePath | None = None
        """None before the first add."""
        self._pipeline: Pipeline | EmptyPipeline = EMPTY_PIPELINE
        self._position_shift = 0
        """What is added to an entry's id for its caller."""
        self._queue: deque[Queued] = EMPTY_DEQUE
        self._queued_entries = 0
        self._unacknowledged: deque[tuple[int, Futures]] = EMPTY_DEQUE
        """First id and futures of each frame pushed."""
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = EMPTY_DEQUE
        for bookie_id in ledger.value.last_fragment.bookies:
            # So that the first add finds the connections established.
            pool.get(bookie_id).connect_soon()

    # --- properties -----------------------------------------------------------------------------------------------

    @property
    def id(self) -> LedgerId:
        """The ledger's id."""
        return self._own_metadata.value.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The latest metadata of the ledger that this writer has seen or written."""
        return self._own_metadata.value

    @property
    def last_add_confirmed(self) -> EntryId | None:
        """The highest id such that its entry and all lower ones are acknowledged; None before the first."""
        return self._pipeline.last_add_confirmed

    @property
    def last_add_pushed(self) -> EntryId | None:
        """The highest id assigned to an add; None before the first. An add that waits for room has no id yet."""
        end = self._pipeline.next_entry_id + len(self._payloads)
        return EntryId(end - 1) if end else None

    @property
    def length(self) -> int:
        """Payload bytes of all acknowledged entries."""
        return self._pipeline.length

    @property
    def closed(self) -> bool:
        """Whether closing this writer is over. False while it closes, and after a failure until it is closed."""
        return self._life.state is WriterState.CLOSED

    def __repr__(self) -> str:
        lac = self.last_add_confirmed
        confirmed = "nothing confirmed" if lac is None else f"confirmed up to entry {lac}"
        return f"<{type(self).__name__} of ledger {self.id}, {self._life.state.value}, {confirmed}>"

    # --- adding ---------------------------------------------------------------------------------------------------

    async def add(self, payload: Payload) -> EntryId:
        """Append an entry and return its id, once it and all entries before it are acknowledged (rule I1).

        Waits for room in the window (options ``window_entries`` and ``window_bytes``). Cancelling the call does not
        withdraw the entry: it is added all the same. ``payload`` may be a bytearray or memoryview, which is copied; it
        has at most ``octavo.protocol.limits.ENTRY_PAYLOAD_BYTES_MAX`` bytes.

        Raises :class:`EntryTooLargeError` and :class:`InvalidArgumentError` for the payload, and
        :class:`LedgerClosedError` after :meth:`close`. When the writer has failed, raises the failure:
        :class:`LedgerFencedError` (another client recovers the ledger), :class:`QuorumLostError`,
        :class:`MetadataUnavailableError` (a failed bookie could not be replaced), :class:`NoSuchLedgerError` (the
        ledger has been deleted), :class:`UnauthorizedError`, :class:`DuplicateEntryError`. ``may_have_happened`` of the
        error says whether the entry may be in the ledger (rule W6).
        """
        # The same as `_put_into_window`, written out: this is the only path whose cost counts for every single entry.
        if type(payload) is bytes and self._skips_queue and self._free_entries > 0:
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
                try:
                    return await future
                except RuntimeError:  # asyncio's, about a future of another event loop
                    check_loop(self._loop, may_have_happened=True)
                    raise
        check_loop(self._loop)
        payload = checked_payload(payload)
        self._check_usable()
        future = self._create_future()
        self._enqueue([payload], future)
        return EntryId(await future)

    def add_nowait(self, payload: Payload) -> asyncio.Future[EntryId]:
        """Append an entry without waiting, and return a future of its id.

        Raises at once what :meth:`add` raises about the payload or about a closed or failed writer, and
        :class:`WouldBlock`, with nothing queued, when the window is full. The future gets every other failure; if
        the application never retrieves it, :meth:`close` raises it.
        """
        payload = checked_payload(payload)
        self._check_usable()
        self._check_room(len(payload))
        future = self._create_future()
        self._put_into_window(payload, future)
        return future

    def _check_room(self, size: int) -> None:
        """Raise :class:`WouldBlock` if an add of ``size`` bytes would have to wait. Used only inside this package."""
        if self._queue or not self._has_room(size):
            raise WouldBlock(
                f"ledger {self.id}: the window of {self._options.window_entries} entries and "
                f"{self._options.window_bytes} bytes is full; wait for an earlier add"
            )

    async def add_many(self, payloads: Iterable[Payload]) -> range:
        """Append entries under consecutive ids and return the range of ids, once the last is acknowledged.

        The entries may exceed the window; those beyond it wait for room. All payloads are checked before the first is
        queued. Raises as :meth:`add` does; the first few entries may have been added then.
        """
        check_loop(self._loop)
        checked = checked_payloads(payloads)
        self._check_usable()
        if not checked:
            end = self._pipeline.next_entry_id + len(self._payloads) + self._position_shift
            return range(end, end)
        future = self._create_future()
        self._enqueue(checked, future)
        last = await future
        return range(last + 1 - len(checked), last + 1)

    async def flush(self) -> None:
        """Return once every add made so far is acknowledged, including those that wait for room. Raises the writer's
        failure.
        """
        check_loop(self._loop)
        if self._life.failure is not None:
            raise copy_error(self._life.failure)
        unacknowledged = self._pipeline.unacknowledged + len(self._payloads) + self._queued_entries
        if unacknowledged:
            if self._life.state in OVER:
                raise copy_error(
                    self._life.close_error or LedgerClosedError(f"ledger {self.id}: this writer is closed")
                )
            end = self._pipeline.next_entry_id + len(self._payloads) + self._queued_entries
            acknowledged: asyncio.Future[None] = self._loop.create_future()
            if self._flushes is EMPTY_DEQUE:
                self._flushes = deque()
            self._flushes.append((end - 1, acknowledged))
            self._hurry()
            await acknowledged

    async def force(self) -> None:
        """Return once every add made so far is durable on Qa bookies, including those that wait for room; with
        ``sync="immediate"`` that is :meth:`flush`. Raises the writer's failure: then the adds that have returned since
        the last force may be lost (rule W10)."""
        await self.flush()

    def _enqueue(self, payloads: Sequence[bytes], future: asyncio.Future[EntryId]) -> None:
        """Append checked payloads to the queue, whether there is room or not; ``future`` gets the id of the last. The
        caller has called :meth:`_check_usable`, and limits the size of the queue. Used only inside this package."""
        if self._queue is EMPTY_DEQUE:
            self._queue = deque()
        self._queue.append(Queued(payloads, future))
        self._queued_entries += len(payloads)
        self._skips_queue = False
        self._admit()

    def _admit(self) -> None:
        """Move adds from the queue into the window while there is room, in order."""
        queue = self._queue
        while queue:
            queued = queue[0]
            payloads, at, last = queued.payloads, queued.at, len(queued.payloads) - 1
            while at <= last and self._has_room(len(payloads[at])):
                self._put_into_window(payloads[at], queued.future if at == last else None)
                at += 1
            self._queued_entries -= at - queued.at
            queued.at = at
            if at <= last:
                return
            queue.popleft()
        self._skips_queue = self._life.state is WriterState.OPEN

    def _check_usable(self) -> None:
        """Raise the error with which an add would be refused: the writer's failure, or :class:`LedgerClosedError`. Used
        only inside this package."""
        failure = self._life.failure
        if failure is not None:
            # rule W6: an add issued after the failure did not happen.
            raise copy_error(failure, may_have_happened=False)
        if self._life.state is not WriterState.OPEN:
            raise LedgerClosedError(f"ledger {self.id}: this writer is closed")

    def _refuse_for_ever(self, error: OctavoError) -> None:
        self._life.failure = error

    # --- pushing and acknowledging ----------------------------------------------------------------------------------

    @property
    def _frames_under_way(self) -> int:
        return len(self._unacknowledged)

    def _send_turn(self) -> None:
        """Seal and send the adds that have been collected."""
        payloads, futures = self._take_turn()
        if not payloads:
            return
        pushed = 0
        try:
            path = self._write_path if self._write_path is not None else self._set_up_write_path()
            for start, stop in frames_of(payloads):
                whole = start == 0 and stop == len(payloads)
                self._unacknowledged.append((self._pipeline.next_entry_id, futures if whole else futures[start:stop]))
                pushed = stop
                self._push(path, payloads if whole else payloads[start:stop])
        except Exception as error:  # a broken invariant: nothing may be added any more
            self._futures = futures[pushed:]
            self._fail(internal_error(self.id, error))
            raise

    def _set_up_write_path(self) -> WritePath:
        """Before the first add: connect the replication, and watch the metadata."""
        metadata = self._own_metadata.value
        supervisor = Supervisor(f"octavo writer of ledger {metadata.ledger_id}", self._on_supervisor_failure)
        replication = self._make_replication(metadata, supervisor)
        sealer = Sealer(metadata.ledger_id, metadata.digest, self._secrets)
        lac_sender = LacSender(
            replication.pipeline,
            self._options.explicit_lac_delay_seconds,
            is_adding=lambda: bool(self._payloads),
            send=lambda lac, length: replication.write_lac(
                sealer.seal_explicit_lac(lac, length=length, sealed_at_ms=self._next_sealed_at_ms())
            ),
        )
        self._write_path = path = WritePath(supervisor, replication, sealer, lac_sender)
        self._pipeline = replication.pipeline
        self._unacknowledged = deque()
        supervisor.start(self._own_metadata.watch(self._fail))
        return path

    def _make_replication(
        self, metadata: LedgerMetadata, supervisor: Supervisor, make: Callable[..., Replication] = Replication
    ) -> Replication:
        return make(
            metadata,
            self._secrets.ledger_key,
            pool=self._pool,
            placer=self._placer,
            options=self._options,
            commit=self._change_ensemble,
            start=supervisor.start,
            on_acknowledged=self._on_acknowledged,
            on_failure=self._fail,
            first_entry_id=self._pipeline.next_entry_id,
            length=self._pipeline.length,
        )

    def _replace_departed(self, departed: frozenset[BookieId]) -> None:
        """Replace members of the last fragment that have departed, also in a ledger that is idle or was never written
        (rule O2). Called by the client."""
        if self._life.state is not WriterState.OPEN:
            return
        path = self._write_path
        if path is None:
            if departed.isdisjoint(self._own_metadata.value.last_fragment.bookies):
                return
            path = self._set_up_write_path()
        path.replication.replace_departed(departed)

    def _push(self, path: WritePath, payloads: Sequence[bytes]) -> None:
        """Seal the entries of one frame, with the LAC known now (rule W2), and send them."""
        pipeline = path.replication.pipeline
        lac, length = pipeline.last_add_confirmed, pipeline.length_pushed
        sealed = path.sealer.seal(
            EntryId(pipeline.next_entry_id),
            payloads,
            last_add_confirmed=lac,
            length=length,
            sealed_at_ms=self._next_sealed_at_ms(),
        )
        length_after = length + sum(map(len, payloads))
        path.replication.push(sealed, sealed_bytes=sum(map(len, sealed)), length_after=length_after)

    def _next_sealed_at_ms(self) -> int:
        """The time of day, or the previous time if the clock went back: times never decrease within a ledger."""
        self._sealed_at_ms = now = max(self._sealed_at_ms, self._clock_ms())
        return now

    def _on_acknowledged(self, first: int, last: int, payload_bytes: int) -> None:
        self._free_entries += last + 1 - first
        self._free_bytes += payload_bytes
        self._tell_callers(first, last)
        path = self._write_path
        assert path is not None, "only what was pushed is acknowledged"
        if path.lac_sender.timer is None and not self._pipeline.pending:
            path.lac_sender.arm()

    def _tell_callers(self, first: int, last: int) -> None:
        """Tell the callers of these adds, and of :meth:`flush`; what waits may be sent now."""
        unacknowledged = self._unacknowledged
        while first <= last:
            run_first, futures = unacknowledged[0]
            if run_first + len(futures) - 1 <= last:
                unacknowledged.popleft()
            if run_first != first or len(futures) > last + 1 - first:
                futures = futures[first - run_first : last + 1 - run_first]
            for position, future in enumerate(futures, first + self._position_shift):
                # Done already if the caller was cancelled; the entry was added all the same.
                if future is not None and not future.done():
                    future.set_result(position)
            first += len(futures)
        self._frame_acknowledged(self._flushes)
        if self._queue:
            self._admit()
        while self._flushes and self._flushes[0][0] <= last:
            acknowledged = self._flushes.popleft()[1]
            if not acknowledged.done():
                acknowledged.set_result(None)

    def _on_ledger_deleted(self) -> None:
        """Fail the writer, because this client has deleted the ledger and the watch reports it only later. Used only
        inside this package."""
        deleted = self._own_metadata.mark_deleted()
        if deleted is not None:
            self._fail(deleted)

    # --- failing ----------------------------------------------------------------------------------------------------

    def _fail(self, error: OctavoError) -> None:
        """Fail the writer, and every unacknowledged add with it (rule W7)."""
        if not self._life.fail(error):
            return
        if self._write_path is not None:
            self._write_path.replication.stop()
        self._fail_pending(error, in_doubt=True)
        if self._on_failure is not None:
            self._on_failure(error)

    def _fail_pending(self, error: OctavoError, *, in_doubt: bool) -> None:
        """Fail every unacknowledged add. ``in_doubt``: the error of an add that may be on a bookie is marked so (rule
        W6)."""
        self._skips_queue = False
        if self._write_path is not None:
            self._write_path.lac_sender.cancel()
        sent = self._pipeline.highest_sent if in_doubt else -1
        unacknowledged, self._unacknowledged = self._unacknowledged, EMPTY_DEQUE
        futures, self._futures = self._futures, []
        queue, self._queue = self._queue, EMPTY_DEQUE
        flushes, self._flushes = self._flushes, EMPTY_DEQUE
        if self._pipeline.pending or futures or queue:
            self._life.adds_failed()
        self._payloads = []
        self._queued_entries = 0
        for first, run_futures in unacknowledged:
            for entry_id, future in enumerate(run_futures, first):
                if future is not None:
                    reject(future, error, may_have_happened=entry_id <= sent)
        for future in futures:
            if future is not None:
                reject(future, error, may_have_happened=False)
        for queued in queue:
            # Of an add_many, the part that found room may have been sent.
            reject(queued.future, error, may_have_happened=in_doubt and queued.at > 0)
        for _, flushed in flushes:
            reject(flushed, error, may_have_happened=in_doubt)

    def _on_supervisor_failure(self, error: BaseException) -> None:
        self._fail(internal_error(self.id, error))

    async def _change_ensemble(self, change: Commit) -> bool:
        return await self._own_metadata.change_ensemble(change, lambda: self._life.failure is None)

    # --- closing ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for pending adds, then close the ledger at the last acknowledged entry, within the time given by the
        option ``close_timeout_seconds``.

        Any task may call it, any number of times: all calls share one closing, and cancelling a call does not stop it.
        Raises the first failure: of an add, otherwise of closing. An add that is still pending after three quarters of
        the time fails when the end of the ledger is written: that add did not happen (rule W9).
        """
        check_loop(self._loop)
        closing = self._closing
        if closing is None or (closing.cancelled() and not self.closed):
            self._life.close()
            self._skips_queue = False
            closing = self._loop.create_task(self._close(), name=f"octavo closing of ledger {self.id}")
            self._closing = closing
        await result_of(closing, f"closing ledger {self.id}")
        if self._life.close_error is not None:
            raise copy_error(self._life.close_error)

    async def _close(self) -> None:
        life = self._life
        deadline = self._loop.time() + self._options.close_timeout_seconds
        try:
            await self._drain(self._options.close_timeout_seconds * DRAIN_SHARE)
            path = self._write_path
            too_late = QuorumLostError(
                f"ledger {self.id}: closed before the add reached its ack quorum; "
                f"{'' if path is None else path.replication.describe()}"
            )
            # From here on nothing more is acknowledged: the end of the ledger is fixed.
            life.drained()
            self._own_metadata.stop_watching()
            if path is not None:
                path.replication.stop()
            refused = await self._settle_end(deadline)
            if life.failure is None:
                self._fail_pending(refused or too_late, in_doubt=refused is not None)
            life.settled(refused or too_late, end_written=refused is None)
        finally:
            try:
                await self._tear_down_write_path()
            finally:
                life.ended()
                if self._on_close is not None:
                    self._on_close(self)

    async def _abandon(self) -> None:
        """Stop, and leave the ledger as a crash would. Used only by the client, for a writer that could not be
        closed."""
        await self._tear_down_write_path()
        if self._life.state is WriterState.DRAINING:
            # What is under way is on some bookie perhaps, and the ledger stays open for a recovery to find it.
            self._fail_pending(ClientClosedError(f"ledger {self.id}: the client is closed"), in_doubt=True)
            self._life.ended()

    async def _tear_down_write_path(self) -> None:
        path = self._write_path
        if path is not None:
            path.lac_sender.cancel()
            path.replication.close()
            await path.supervisor.close()

    async def _drain(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.force()
        except (TimeoutError, OctavoError):
            # Unacknowledged adds fail once the end is written; `_life` has stored the failure, if there is one.
            return

    async def _settle_end(self, deadline: float) -> OctavoError | None:
        """Write the end into the metadata. Returns why it could not be written, or None."""
        pipeline = self._pipeline
        try:
            async with asyncio.timeout_at(deadline):
                if self._write_path is not None:
                    await self._write_path.replication.wait_change_settled()
                await self._own_metadata.close(pipeline.last_add_confirmed, pipeline.length, pipeline.debt())
        except TimeoutError:
            return MetadataUnavailableError(
                f"ledger {self.id}: the metadata store did not confirm the end of the ledger in time"
            )
        except OctavoError as error:
            return error
        return None
