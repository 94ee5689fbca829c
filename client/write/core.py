"""The core of a writer: it seals entries, has them replicated, and settles the end. It knows nothing of callers.

Its *front* brings payloads in order, and is told what is acknowledged, what room is free again, and that the core has
failed. :class:`~octavo.client.write.writer.LedgerWriter` completes futures with that; a log's writer sends adds again
to another core. How a ledger keeps copies and when its entries become durable are two policies of the core
(:mod:`octavo.client.write.copies.policy`, :mod:`octavo.client.write.deferred.policy`).

The write path is set up by the first entry. Before that a core has no task, no timer and no watch, so that creating a
ledger costs little more than writing its metadata. From the first entry on it watches the metadata, and notices even
while idle that its ledger is deleted or recovered. Before that nothing has been acknowledged; the first entry or the
close notices any change made until then (the bookies are fenced, or the metadata differ).

A core fails at most once (rule W7): when a bookie reports that another client recovers the ledger, when an entry misses
the quorum timeout, or when the metadata say that the ledger is deleted or being recovered.
:mod:`octavo.client.write.writer_life` has its states as a table.

What is told to the front is counted in *positions*: an entry's id plus :attr:`Core.position_shift`.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from octavo.client.choose.placer import Placer
from octavo.client.options import ClientOptions
from octavo.client.supervisor import Supervisor
from octavo.client.wire.pool import ConnectionPool
from octavo.client.write.ensemble_changes import Commit
from octavo.client.write.front.adds import EMPTY_DEQUE, copy_error, internal_error, reject
from octavo.client.write.front.batching import WAIT_SECONDS_MAX, frames_of
from octavo.client.write.lac_sender import LacSender
from octavo.client.write.own_metadata import OwnMetadata
from octavo.client.write.part import Part
from octavo.client.write.pipeline import Pipeline
from octavo.client.write.policies import NO_COPIES, Copies, Deferred
from octavo.client.write.replication import Replication
from octavo.client.write.write_path import EMPTY_PIPELINE, EmptyPipeline, WritePath
from octavo.client.write.writer_life import WriterLife, WriterState
from octavo.metadata.ledger.stored import StoredLedger
from octavo.metadata.ledger.term import Term
from octavo.metadata.own_tasks import result_of
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.entries import LedgerSecrets, Sealer
from octavo.protocol.errors import (
    ClientClosedError,
    LedgerClosedError,
    MetadataUnavailableError,
    OctavoError,
    QuorumLostError,
    UnderReplicatedError,
)
from octavo.protocol.ids import BookieId, EntryId, LedgerId

DRAIN_SHARE = 0.75
"""Share of the closing time that pending adds may take; the rest is for writing the end into the metadata."""


class WriterTools(NamedTuple):
    """The parts of a client that its writers share."""

    store: MetadataStore
    pool: ConnectionPool
    placer: Placer
    options: ClientOptions
    wall_clock: Callable[[], datetime]
    """The time of day, which is sealed into the entries."""
    wait_seconds_max: float = WAIT_SECONDS_MAX
    """The longest time that adds wait for later adds to join their frame."""
    frame_clock: Callable[[], float] | None = None
    """Gives the seconds by which frames are due; None: the loop's, with more than whole milliseconds."""
    renewal_offset: Callable[[int], int] | None = None
    """Gives the offset from which a term of a stream, by its number, is renewed; None: short of its last place."""

    def clock_ms(self) -> int:
        """The time of day in milliseconds since 1970."""
        return int(self.wall_clock().timestamp() * 1000)


def _nothing() -> None:
    """Where a front has nothing to do."""


async def _nothing_to_wait_for() -> None:
    """Where a front has nothing that its core does not know."""


class CoreFront(NamedTuple):
    """The side that brings payloads to a core, as the core sees it: what it is told, and asked."""

    acknowledged: Callable[[int, int], None]
    """``acknowledged(stop, payload_bytes)``: every entry below this position is acknowledged, this number of bytes
    more than before. With deferred sync: accepted."""
    freed: Callable[[int, int], None]
    """``freed(entries, payload_bytes)``: acknowledged entries need no room any more. Only where acknowledging them does
    not free it."""
    failed: Callable[[OctavoError], None]
    """The core has failed, and rejected what was pending. Called once."""
    reject_pending: Callable[[OctavoError, bool], bool] = lambda _error, _in_doubt: False
    """``reject_pending(error, in_doubt)``: nothing more is acknowledged. Whether the front had adds that are not.
    ``in_doubt``: what was sent may be on a bookie (rule W6)."""
    is_adding: Callable[[], bool] = lambda: False
    """Whether the front has adds of this turn that are not pushed yet."""
    go_on: Callable[[], None] = _nothing
    """Entries may be pushed again, after :attr:`Core.limit` was reached."""
    drain: Callable[[], Awaitable[None]] = _nothing_to_wait_for
    """Returns once what the front was given is acknowledged, as far as the core does not know it."""
    ended: Callable[[], None] = _nothing
    """Closing is over, with or without an error."""


class Core:
    """See the module. ``own_metadata``: of a ledger as just created, or of a term as just opened.

    ``not_closed`` begins the message about an end that cannot be written because copies are missing. ``on_ending`` is
    awaited before the end is written, and before the core stops; ``on_limit`` is called when an entry is pushed that
    has reached :attr:`limit`."""

    def __init__(
        self,
        own_metadata: OwnMetadata,
        secrets: LedgerSecrets,
        tools: WriterTools,
        front: CoreFront,
        *,
        not_closed: str,
        copies: Copies = NO_COPIES,
        deferred: Deferred | None = None,
        on_ending: Callable[[], Awaitable[None]] | None = None,
        on_limit: Callable[[], object] | None = None,
    ) -> None:
        self.own_metadata = own_metadata
        self.secrets = secrets
        self.tools = tools
        self.life = WriterLife()
        self.copies = copies
        self.deferred = deferred
        self.path: WritePath | None = None
        """None before the first entry."""
        self.pipeline: Pipeline | EmptyPipeline = EMPTY_PIPELINE
        self.position_shift = 0
        """What is added to an entry's id for the front."""
        self.limit = sys.maxsize
        """Entries from this id on are not sent; they wait until :meth:`go_on`."""
        self.sealed_at_ms = 0
        """The time of the last sealing, in milliseconds since 1970."""
        self._options = tools.options
        self._wall_clock = tools.wall_clock
        self._front = front
        self._not_closed = not_closed
        self._on_ending = on_ending
        self._on_limit = on_limit
        self._loop = asyncio.get_running_loop()
        self._closing: asyncio.Task[None] | None = None
        self._waiting: list[Sequence[bytes]] = []
        """Pushed, and not sent because of :attr:`limit`."""
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = EMPTY_DEQUE
        """Last id that each caller of :meth:`wait_acknowledged` waits for."""
        for bookie_id in own_metadata.term.bookies:
            # So that the first add finds the connections established.
            tools.pool.get(bookie_id).connect_soon()

    def at_turn_end(self, step: Callable[[], None]) -> None:
        """Call ``step`` when the turn of the event loop ends, before what is posted in the turn is sent."""
        self.tools.pool.turn.at_end(step)

    # --- what is known --------------------------------------------------------------------------------------------

    @property
    def id(self) -> LedgerId:
        """The ledger's id."""
        return self.own_metadata.term.ledger_id

    @property
    def term(self) -> Term:
        """The term that it writes, by the latest metadata that it has seen or written."""
        return self.own_metadata.term

    @property
    def closed(self) -> bool:
        """Whether closing is over."""
        return self.life.state is WriterState.CLOSED

    @property
    def last_add_confirmed(self) -> EntryId | None:
        """The highest id such that its entry and all lower ones are acknowledged; None before the first."""
        return self.pipeline.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of all acknowledged entries."""
        return self.pipeline.length

    @property
    def length_pushed(self) -> int:
        """Payload bytes sent, acknowledged or not."""
        path = self.path
        return 0 if path is None else path.replication.pipeline.length_pushed

    @property
    def is_written(self) -> bool:
        """Whether anything was sent; always of a term of a stream."""
        return self.pipeline.next_entry_id > 0

    def check_usable(self) -> None:
        """Raise the error with which an add would be refused: the failure, or :class:`LedgerClosedError`."""
        failure = self.life.failure
        if failure is not None:
            # rule W6: an add issued after the failure did not happen.
            raise copy_error(failure, may_have_happened=False)
        if self.life.state is not WriterState.OPEN:
            raise LedgerClosedError(f"ledger {self.id}: this writer is closed")

    def under_replicated(self) -> UnderReplicatedError | None:
        """Why the end cannot be written for lack of copies that are required; None if it can, or if the writer has
        failed."""
        return self._lacking() if self.life.failure is None else None

    def _lacking(self) -> UnderReplicatedError | None:
        copies = self.copies.lacking()
        if copies is None:
            return None
        shift, lac = self.position_shift, self.pipeline.last_add_confirmed
        return UnderReplicatedError(
            f"{self._not_closed}: its entries {copies.first + shift} to {(-1 if lac is None else lac) + shift} do not "
            f"have all copies that it requires: {copies.why}"
        )

    # --- sending --------------------------------------------------------------------------------------------------

    def seal_not_before(self, sealed_at_ms: int) -> None:
        """Seal no further entry with an earlier time."""
        self.sealed_at_ms = max(self.sealed_at_ms, sealed_at_ms)

    def begin_watching(self) -> None:
        """Notice from now on, also while nothing is added, that the ledger is recovered or the term over."""
        if self.path is None:
            self._set_up()

    def push(self, payloads: Sequence[bytes]) -> None:
        """Send entries under the next ids; nothing happens once the core has failed or is closing."""
        if self.pipeline.next_entry_id >= self.limit:
            self._waiting.append(payloads)
            self.reach_limit()
            return
        if self.life.state is not WriterState.OPEN:
            return
        try:
            frames = frames_of(payloads)
            if len(frames) == 1:
                self.send(payloads)
            else:
                for start, stop in frames:
                    self.send(payloads[start:stop])
        except Exception as error:  # a broken invariant: nothing may be added any more
            self.fail(internal_error(self.id, error))
            raise

    def send(self, payloads: Sequence[bytes]) -> None:
        """Seal the entries of one frame, with the LAC known now (rule W2), and send them."""
        path = self.path if self.path is not None else self._set_up()
        pipeline = path.replication.pipeline
        first = pipeline.next_entry_id
        lac, length = pipeline.last_add_confirmed, pipeline.length_pushed
        sealed = path.sealer.seal(
            EntryId(first),
            payloads,
            last_add_confirmed=lac,
            length=length,
            sealed_at_ms=self._next_sealed_at_ms(),
        )
        length_after = length + sum(map(len, payloads))
        path.replication.push(sealed, sealed_bytes=sum(map(len, sealed)), length_after=length_after)
        if self.deferred is not None:
            self.deferred.pushed(first)

    def _next_sealed_at_ms(self) -> int:
        """The time of day, or the previous time if the clock went back: times never decrease within a ledger."""
        self.sealed_at_ms = now = max(self.sealed_at_ms, int(self._wall_clock().timestamp() * 1000))
        return now

    def _set_up(self) -> WritePath:
        """Before the first entry: connect the replication, and watch the metadata."""
        term, tools = self.own_metadata.term, self.tools
        supervisor = Supervisor(f"octavo writer of ledger {term.ledger_id}", self._on_supervisor_failure)
        replication = Replication(
            term,
            self.secrets.ledger_key,
            pool=tools.pool,
            placer=tools.placer,
            options=self._options,
            commit=self._change_ensemble,
            start=supervisor.start,
            on_acknowledged=self._acknowledged,
            on_failure=self.fail,
            first_entry_id=self.pipeline.next_entry_id,
            length=self.pipeline.length,
            part=self._new_part(),
        )
        sealer = Sealer(term.ledger_id, term.key.digest, self.secrets)
        lac_sender = LacSender(
            replication.pipeline,
            self._options.explicit_lac_delay_seconds,
            turn=tools.pool.turn,
            is_adding=self._front.is_adding,
            send=lambda lac, length: replication.explicit_lacs.write(
                sealer.seal_explicit_lac(lac, length=length, sealed_at_ms=self._next_sealed_at_ms())
            ),
        )
        self.path = path = WritePath(supervisor, replication, sealer, lac_sender)
        self.pipeline = replication.pipeline
        self.own_metadata.begin_watching(self.fail)
        return path

    def _new_part(self) -> Part | None:
        if self.deferred is not None:
            return self.deferred.new_part(on_room=self._front.freed, on_forced=self._announce_when_idle)
        return self.copies.new_part(on_room=self._front.freed)

    def replace_departed(self, departed: frozenset[BookieId]) -> None:
        """Replace members of the last fragment that have departed, also in a ledger that is idle or was never written
        (rule O2). Called by the client."""
        if self.life.state is not WriterState.OPEN:
            return
        path = self.path
        if path is None:
            if departed.isdisjoint(self.own_metadata.term.bookies):
                return
            path = self._set_up()
        path.replication.replacing.replace_departed(departed)

    async def _change_ensemble(self, change: Commit) -> bool:
        return await self.own_metadata.change_ensemble(change, lambda: self.life.failure is None)

    # --- acknowledging --------------------------------------------------------------------------------------------

    def _acknowledged(self, first: int, last: int, payload_bytes: int) -> None:
        if self.deferred is not None:
            self.deferred.accepted(last + 1 - first, payload_bytes)
        self._front.acknowledged(last + 1 + self.position_shift, payload_bytes)
        while self._waiters and self._waiters[0][0] <= last:
            acknowledged = self._waiters.popleft()[1]
            if not acknowledged.done():
                acknowledged.set_result(None)
        path = self.path
        assert path is not None, "only what was pushed is acknowledged"
        if not path.lac_sender.armed and not self.pipeline.pending:
            path.lac_sender.arm()

    def _announce_when_idle(self) -> None:
        """The LAC has risen: readers learn it, if nothing follows."""
        path = self.path
        assert path is not None, "only what was pushed is forced"
        if not path.lac_sender.armed and not self.pipeline.pending:
            path.lac_sender.arm()

    async def wait_acknowledged(self) -> None:
        """Wait until everything sent is acknowledged. Raises the failure of the writer."""
        if self.life.failure is not None:
            raise self.life.failure  # futures added from here on would never be completed
        if self.pipeline.unacknowledged:
            acknowledged: asyncio.Future[None] = self._loop.create_future()
            if self._waiters is EMPTY_DEQUE:
                self._waiters = deque()
            self._waiters.append((self.pipeline.next_entry_id - 1, acknowledged))
            await acknowledged

    # --- going on elsewhere ---------------------------------------------------------------------------------------

    def reach_limit(self) -> None:
        """The next entry is beyond :attr:`limit`."""
        if self._on_limit is not None:
            self._on_limit()

    def begin(self, first_entry_id: int, length: int, *, first_position: int, limit: int) -> None:
        """The next entry gets this id, and follows ``length`` bytes. Nothing is under way."""
        self.pipeline = EmptyPipeline(first_entry_id, length)
        self.position_shift = first_position - first_entry_id
        self.limit = limit

    async def end_path(self) -> None:
        """Stop sending; the next entry sets the path up anew."""
        await self._close_path()
        self.path = None

    def go_on(self) -> None:
        """Send what has waited for :attr:`limit` to rise."""
        waiting, self._waiting = self._waiting, []
        for payloads in waiting:
            self.push(payloads)
        self._front.go_on()

    # --- failing --------------------------------------------------------------------------------------------------

    def fail(self, error: OctavoError) -> None:
        """Fail, and reject everything that is not acknowledged (rule W7)."""
        if not self.life.fail(error):
            return
        if self.path is not None:
            self.path.replication.stop()
        self._reject_pending(error, in_doubt=True)
        self._front.failed(error)

    def _reject_pending(self, error: OctavoError, *, in_doubt: bool) -> None:
        if self.path is not None:
            self.path.lac_sender.cancel()
        if self._front.reject_pending(error, in_doubt) or self.pipeline.pending:
            self.life.adds_failed()
        waiters, self._waiters = self._waiters, EMPTY_DEQUE
        for _, waiter in waiters:
            reject(waiter, error, may_have_happened=in_doubt)
        if self.deferred is not None:
            self.deferred.failed(error, in_doubt=in_doubt)

    def on_deleted(self) -> None:
        """Fail, because this client has deleted the ledger and the watch reports it only later."""
        deleted = self.own_metadata.mark_deleted()
        if deleted is not None:
            self.fail(deleted)

    def _on_supervisor_failure(self, error: BaseException) -> None:
        self.fail(internal_error(self.id, error))

    # --- closing --------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for what is pending, then write the end, within ``close_timeout_seconds``. All calls share one closing,
        and cancelling one does not stop it. Raises the first failure: of an add, otherwise of closing.

        Raises :class:`UnderReplicatedError` while copies are missing that the ledger requires (rule G4): the core goes
        on copying, and the next call tries again."""
        closing = self._closing
        if closing is None or (closing.done() and not self.closed):
            self.life.close()
            closing = self._loop.create_task(self._close(), name=f"octavo closing of ledger {self.id}")
            self._closing = closing
        await result_of(closing, f"closing ledger {self.id}")
        if self.life.close_error is not None:
            raise copy_error(self.life.close_error)

    async def _close(self) -> None:
        deadline = self._loop.time() + self._options.close_timeout_seconds
        is_refused = False
        try:
            await self._drain(self._options.close_timeout_seconds * DRAIN_SHARE)
            lacking = self.under_replicated()
            if lacking is not None:
                is_refused = True
                self.life.refused()
                raise lacking
            await self._settle_end(deadline)
        except asyncio.CancelledError:
            if self.copies.hold_room and self.life.state is WriterState.DRAINING:
                is_refused = True
                self.life.refused()
                await self._tear_down()
            raise
        finally:
            if not is_refused:
                await self._end()

    async def _end(self) -> None:
        try:
            await self._tear_down()
        finally:
            self.life.ended()
            self._front.ended()

    async def _drain(self, seconds: float) -> None:
        end = self._loop.time() + seconds
        try:
            async with asyncio.timeout(seconds):
                await self._front.drain()
                await self.wait_acknowledged()
        except (TimeoutError, OctavoError):
            # Unacknowledged adds fail once the end is written; `life` has stored the failure, if there is one.
            pass
        if self.life.failure is None:
            await self.copies.wait_before_end(max(end - self._loop.time(), 0.0))

    async def _settle_end(self, deadline: float) -> None:
        """From here on nothing more is acknowledged: the end of the ledger is fixed."""
        path = self.path
        too_late = QuorumLostError(
            f"ledger {self.id}: closed before the add reached its ack quorum; "
            f"{'' if path is None else path.replication.slots.describe()}"
        )
        self.life.drained()
        self.own_metadata.heed_close_only()
        if path is not None:
            path.replication.stop()
        refused = await self._write_end(deadline)
        if self.life.failure is None:
            self._reject_pending(refused or too_late, in_doubt=refused is not None)
        self.life.settled(refused or too_late, end_written=refused is None)

    async def _write_end(self, deadline: float) -> OctavoError | None:
        """Write the end into the metadata. Returns why it could not be written, or None."""
        lacking = self._lacking()
        if lacking is not None:
            return lacking  # the writer has failed: a recovery makes the copies and closes it
        if self._on_ending is not None:
            await self._on_ending()
        pipeline = self.pipeline
        try:
            async with asyncio.timeout_at(deadline):
                if self.path is not None:
                    await self.path.replication.replacing.wait_settled()
                await self.own_metadata.close(pipeline.last_add_confirmed, pipeline.length, pipeline.debt())
        except TimeoutError:
            return MetadataUnavailableError(
                f"ledger {self.id}: the metadata store did not confirm the end of the ledger in time"
            )
        except OctavoError as error:
            return error
        return None

    async def leave(self) -> None:
        """Stop, and leave the ledger as a crash would, after a close that was refused. Used only by the client."""
        await self._tear_down()
        if self.life.state in (WriterState.DRAINING, WriterState.UNCLOSED):
            # What is under way is on some bookie perhaps, and the ledger stays open for a recovery to find it.
            self._reject_pending(ClientClosedError(f"ledger {self.id}: the client is closed"), in_doubt=True)
            self.life.ended()

    async def abandon(self) -> None:
        """Stop writing and leave the ledger as a crash would, for a recovery to close. Does nothing to a closed
        ledger."""
        if self._closing is not None and (self.closed or not self._closing.done()):
            self._closing.cancel()
            await asyncio.wait([self._closing])
            return
        self.own_metadata.heed_close_only()
        self.fail(ClientClosedError(f"ledger {self.id}: the writer of its log has abandoned it"))
        await self._tear_down()

    async def _tear_down(self) -> None:
        if self._on_ending is not None:
            await self._on_ending()
        await self._close_path()

    async def _close_path(self) -> None:
        path = self.path
        if path is not None:
            path.lac_sender.cancel()
            path.replication.close()
            self.own_metadata.stop_watching()
            await path.supervisor.close()


def created_at_ms(metadata: StoredLedger) -> int:
    """When the ledger was created, by its creator's clock: a segment of a log has no entry that was sealed before."""
    return int(metadata.created_at.timestamp() * 1000)
