"""The writer of a log: it leads, adds, rolls from segment to segment, and heals itself.

A writer has one *active* segment, a ledger or a term of a stream, that only it writes. What becomes of a segment
depends on the layout of the log; that part is its *lead* (:mod:`octavo.client.log.seam.lead`). Three things end or
change it (rules L2, U6, P2, P5):

* It *rolls*: the log goes on in a new ledger, or in a new fragment of the stream, and adds go on meanwhile.
* It *heals*: the segment failed, and no other client leads. The writer takes over from itself as any candidate would.
  The recovered end tells which adds in doubt happened; the others are sent again, in order, at the positions they had.
* It is *lost*: another client has taken the log over, or the lock's lease ended. Nothing is added any more.

One change of the metadata is made at a time: rolling, healing and retention take turns.
:mod:`octavo.client.log.writer.life` tells what a writer does in each state of its life.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from octavo.client.async_context import Closable
from octavo.client.log.seam.access import LedgerAccess, used_before
from octavo.client.log.seam.active_segment import ActiveSegment
from octavo.client.log.seam.lead import LogLead
from octavo.client.log.seam.quorum_change import QuorumChange
from octavo.client.log.writer.adds import AddFront, Run, copy_error
from octavo.client.log.writer.life import Life
from octavo.client.log.writer.lock import LogLock
from octavo.client.log.writer.losing import FINAL, LeadLoss, as_lost, not_leader, wait_lock_lost
from octavo.client.log.writer.statistics import Course, log_writer_statistics
from octavo.client.same_loop import check_loop
from octavo.client.statistics.writers import LogWriterStatistics
from octavo.client.supervisor import Supervisor
from octavo.client.write.core import DRAIN_SHARE
from octavo.metadata.own_tasks import result_of
from octavo.protocol.errors import (
    ClientClosedError,
    DuplicateEntryError,
    InternalError,
    InvalidArgumentError,
    LedgerFencedError,
    NoSuchLedgerError,
    NoSuchLogError,
    NotLeaderError,
    OctavoError,
    UnderReplicatedError,
)

log = logging.getLogger("octavo.client")

_HEAL_SECONDS_MAX: Final = 5.0
"""Longest pause between attempts to heal: what callers wait at most once the cluster is well again."""

_ROLL_RETRY_SECONDS: Final = 1.0
"""Pause after a roll that failed: a segment may grow beyond its size, and the metadata store must not be flooded."""


class LogWriter(AddFront, Closable):
    """Appends to one log. Made by ``log.lead()`` and ``log.take_over()``; use it as an async context manager.

    Leaving the block waits for pending adds, closes the segment and gives the lead back; leaving it on an exception
    never masks that exception. Used from one event loop.

    Examples:
        >>> await writer.add(b"payload")
        0
        >>> await writer.roll()
        >>> await writer.change(ensemble_size=3, write_quorum=2, ack_quorum=2)
        >>> await writer.close()
    """

    def __init__(
        self, access: LedgerAccess, lead: LogLead, *, lease: LogLock | None, on_close: Callable[["LogWriter"], object]
    ) -> None:
        """``lead``: as just taken over. ``lease``: the lock that is held, if any."""
        super().__init__(
            log_id=lead.log_id, term=lead.term, next_position=lead.active.first_position, options=access.options
        )
        self._access = access
        self._lead = lead
        self._name = lead.name
        self._lease = lease
        self._on_close = on_close
        self._life = Life.WRITING
        self._course = Course(self._loop.time)
        self._active = lead.active
        self._room_until_full = lead.requires_copies
        self._active_since = self._loop.time()
        self._failure: OctavoError | None = None
        self._closing: asyncio.Task[None] | None = None
        self._has_waited_for_copies = False
        """A closing has ended because copies were missing."""
        self._turns = asyncio.Lock()
        """Held while the metadata are being changed by this writer."""
        self._rolling: asyncio.Task[OctavoError | None] | None = None
        self._roll_not_before = 0.0
        self._drained: asyncio.Future[None] | None = None
        self._moved = asyncio.Event()
        """Set when the life moves on."""
        self._loss = LeadLoss(self._name, access.counts)
        self.lost = self._loss.event
        """Set once this client no longer leads: stop whatever else you do as the leader. :attr:`lost_reason` says
        why."""
        self._supervisor = Supervisor(f"octavo writer of log {self._name}", self._defect)
        for work in (self._roll_by_age(), self._keep_house(), lead.watch(self._end_unless_busy)):
            self._supervisor.start(work)
        if lease is not None:
            self._supervisor.start(self._keep_lock(lease))
        self._listen_to(lead.active)

    def __repr__(self) -> str:
        return (
            f"<octavo.LogWriter of log {self._name}, term {self.term}, {self._life.value}, next position "
            f"{self._next_position}>"
        )

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The log."""
        return self._name

    @property
    def term(self) -> int:
        """Higher than that of every leader before: the fencing number for anything else that a leader writes to."""
        return self._lead.term

    @property
    def end(self) -> int:
        """The position after the last acknowledged add."""
        return self._acknowledged_stop

    @property
    def lost_reason(self) -> str | None:
        """Why this client lost the lead, in words; None while it leads, and where the program has closed the writer."""
        return self._loss.reason

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` has ended."""
        return self._closing is not None and self._closing.done()

    def statistics(self) -> LogWriterStatistics:
        """Statistics for metrics and health checks: adds queued, under way and acknowledged; healing; rolls.

        Examples:
            >>> writer.statistics().state
            'writing'
        """
        return log_writer_statistics(
            self._name, self._life, self._course, self._active,
            self._add_statistics(segment_failed=self._life is Life.HEALING),
            term=self.term, next_position=self._next_position, end=self.end, failure=self._failure,
            is_rolling=self._rolling is not None, segment_seconds=self._loop.time() - self._active_since,
        )  # fmt: skip

    def check_usable(self) -> None:
        """Check that an add would not be refused now. Used only inside this package."""
        if self._failure is not None:
            raise copy_error(self._failure)
        if self._closing is not None or not self._accepting:
            raise ClientClosedError(f"log {self._name}: this writer is closed")

    def _refuse_for_ever(self, error: OctavoError) -> None:
        self._failure = error
        self.lost.set()

    # --- the active segment -------------------------------------------------------------------------------------------

    def _send(self, run: Run) -> None:
        active = self._active
        active.core.push(run.payloads)
        if self._rolling is None and active.core.length_pushed >= active.full_at:
            self._roll_when_due()

    def _listen_to(self, active: ActiveSegment) -> bool:
        """Make it the active segment; whether it can be written."""
        self._active, self._active_since = active, self._loop.time()
        active.listen(self)
        if active.failure is not None:
            self.segment_failed(active, active.failure)
        return active.failure is None

    def segment_acknowledged(self, segment: ActiveSegment, stop: int) -> None:
        """Everything in the segment below ``stop`` is acknowledged. Used only inside this package."""
        if segment is not self._active:
            return
        self._acknowledge(stop)
        if (drained := self._drained) is not None and not self._in_flight:
            self._drained = None
            if not drained.done():
                drained.set_result(None)

    def segment_full(self, segment: ActiveSegment, entries: int, payload_bytes: int) -> None:
        """``entries`` more entries of the segment have all of their copies. Used only inside this package."""
        if segment is self._active:
            self._have_copies(entries, payload_bytes)

    @property
    def _in_flight(self) -> bool:
        return any(run.in_flight for run in self._runs)

    def segment_failed(self, segment: ActiveSegment, error: OctavoError) -> None:
        """The ledger of a segment failed: heal, or end. Used only inside this package."""
        if segment is not self._active or self._life not in (Life.WRITING, Life.LOST):
            return
        if isinstance(error, DuplicateEntryError):
            # A recovery would find those entries, and take them for this log's.
            self._end(used_before(self._name, segment.ledger_id, error.message))
            return
        if self._life is Life.LOST or (self._closing is not None and not self._runs):
            self._end(self._failure or as_lost(self._name, error))
            return
        self._hold()
        self._move(Life.HEALING)
        self._supervisor.start(self._heal(error))

    # --- healing ------------------------------------------------------------------------------------------------------

    async def _heal(self, error: OctavoError) -> None:
        """Take the log over from itself until that succeeds, or another client leads (rule P5)."""
        await self._stop_rolling()
        pause = self._options.resend_delay_seconds
        began = self._loop.time()
        # Whether a leader that was fenced continues is known once it has a new segment.
        is_fenced = isinstance(error, LedgerFencedError)
        if not (is_fenced or isinstance(error, NoSuchLedgerError)) or not await self._is_lost():
            if is_fenced:
                # Another client may be taking the log over now. Without the pause the two would fence each other in
                # turn (rule L4).
                await asyncio.sleep(self._access.uniform(1, 8) * self._options.log_duel_pause_seconds)
            else:
                log.warning(
                    "log %s: its segment failed; the leader tries to continue in a new one: %s",
                    *(self._name, error.message),
                )
        async with self._turns:
            await self._active.core.abandon()
            while self._life is Life.HEALING:
                try:
                    active = await self._lead.heal()
                except FINAL as failure:
                    self._end(failure)
                    return
                except OctavoError as failure:
                    log.warning("log %s: not healed yet: %s", self._name, failure.message)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _HEAL_SECONDS_MAX)
                else:
                    await self._healed(active)
                    level, seconds = logging.WARNING if is_fenced else logging.INFO, self._loop.time() - began
                    log.log(level, "log %s: healed after %.3f s (%s)", self._name, seconds, error.message)
                    break

    async def _is_lost(self) -> bool:
        """Whether another client is known to lead, or the log is gone: then there is no duel."""
        try:
            await self._lead.check_lead()
        except (NotLeaderError, NoSuchLogError) as error:
            self._end(error)
            return True
        except OctavoError:
            pass  # healing meets it, too
        return False

    async def _healed(self, active: ActiveSegment) -> None:
        if self._life is not Life.HEALING:
            # Lost meanwhile. The new segment stays where it is; the next leader finds it empty.
            await active.core.abandon()
            return
        stop = active.first_position
        if not self._acknowledged_stop <= stop <= self._next_position:
            self._end(
                InternalError(
                    f"log {self._name}: its segment ended at {stop}, but positions below "
                    f"{self._acknowledged_stop} were acknowledged and none from {self._next_position} on was sent"
                )
            )
            await active.core.abandon()
            return
        self._lead.healed(active)
        self._move(Life.WRITING)
        self._forget_segment()
        self._acknowledge(stop)
        # What the segments before lack is recorded by the takeover, and no longer this writer's to copy (rule G5).
        self._have_copies(self._short_entries, self._short_bytes)
        if self._listen_to(active):
            self._release()

    # --- rolling ------------------------------------------------------------------------------------------------------

    async def roll(self) -> None:
        """Begin a new segment, if the active one holds anything; adds go on meanwhile.

        Returns once it has begun, be it by this call or because the writer healed meanwhile (rule P17). After a failure
        the present segment serves on, and the call may be repeated.

        Raises:
            MetadataUnavailableError: The metadata store does not answer.
            NotEnoughBookiesError: There are too few bookies for the quorums of the log.
            UnderReplicatedError: The log requires all copies, and entries lack some.
            NotLeaderError: The writer has failed; its failure may also be any other error of :meth:`add`.
        """
        check_loop(self._loop)
        self.check_usable()
        segment, rolling = self._active, self._rolling
        if rolling is None or rolling.done():
            rolling = self._begin_roll()
        if rolling is not None:
            await asyncio.wait([rolling])
        await self._wait_healed()
        self.check_usable()
        if rolling is None or rolling.cancelled() or segment is not self._active:
            return  # a writer that heals goes on in a new segment
        if (failure := rolling.result()) is not None:
            raise copy_error(failure)

    def _roll_when_due(self) -> None:
        """Begin a roll, unless one has failed a moment ago."""
        if self._loop.time() >= self._roll_not_before:
            self._begin_roll()

    def _begin_roll(self) -> "asyncio.Task[OctavoError | None] | None":
        if self._life is not Life.WRITING or self._closing is not None:
            return None
        self._rolling = rolling = self._loop.create_task(self._roll(), name=f"octavo roll of log {self._name}")
        rolling.add_done_callback(self._rolled)
        return rolling

    def _rolled(self, rolling: "asyncio.Task[OctavoError | None]") -> None:
        if self._rolling is rolling:
            self._rolling = None
        if not rolling.cancelled() and (error := rolling.exception()) is not None:
            self._defect(error)

    async def _stop_rolling(self) -> None:
        if self._rolling is not None:
            self._rolling.cancel()
            await asyncio.wait([self._rolling])
        self._drained = None

    async def _roll(self) -> OctavoError | None:
        """Why there is no new segment, although the present one holds something; None if there is one."""
        segment = self._active
        try:
            async with self._turns:
                if segment is not self._active or not segment.core.is_written:
                    return None
                await self._lead.roll(self)
                self._active_since = self._loop.time()
                self._course.rolls += 1
        except NotLeaderError as error:
            self._end(error)
        except OctavoError as error:
            if segment.failure is not None:
                return None  # the writer heals
            # The present segment serves on; a later add over the limit, or the next hour, tries again.
            self._roll_not_before = self._loop.time() + _ROLL_RETRY_SECONDS
            log.warning("log %s: not rolled: %s", self._name, error.message)
            return error
        return None

    async def change(
        self, *, ensemble_size: int | None = None, write_quorum: int | None = None, ack_quorum: int | None = None
    ) -> None:
        """Store what is added from now on with other quorums; None leaves one as it is.

        Later leaders keep to them. What has been added stays as it is. Adds wait meanwhile, and none fails. Only for
        logs with the layout stream. After a failure nothing has changed, and the call may be repeated with the same
        values.

        Raises:
            InvalidArgumentError: The log is a chain; or E >= Qw >= Qa would not hold.
            NotEnoughBookiesError: There are too few bookies for the new quorums.
            MetadataUnavailableError: The metadata store does not answer.
            UnderReplicatedError: The log requires all copies, and entries of the present term lack some.
            NotLeaderError: The writer has failed; its failure may also be any other error of :meth:`add`.
        """
        check_loop(self._loop)
        change = QuorumChange(ensemble_size, write_quorum, ack_quorum)
        while True:
            self.check_usable()
            async with self._turns:
                segment = self._active
                if self._life is Life.WRITING:
                    try:
                        await self._lead.change(change)
                    except OctavoError:
                        if segment.failure is None:
                            raise  # the segment serves on
                    else:
                        self._active_since = self._loop.time()
                        return
            # The segment has failed, and whether the change stands is known once it is healed.
            await self._wait_healed()

    async def _wait_healed(self) -> None:
        while self._life is Life.HEALING:
            self._moved.clear()
            await self._moved.wait()

    def begin_segment(self, following: ActiveSegment) -> None:
        """Send to this segment from now on. Used only inside this package."""
        assert not self._runs, "everything sent is acknowledged, and nothing was sent meanwhile"
        following.begin_at(self._next_position)
        if self._listen_to(following):
            self._release()

    async def drain_segment(self) -> None:
        """Send what was added this turn, and wait for all of it (rule P2). Used only inside this package."""
        self._send_turn()
        self._hold()
        try:
            if self._in_flight:
                self._drained = self._loop.create_future()
                await self._drained
        except asyncio.CancelledError:
            self._drained = None
            if self._life is Life.WRITING:
                # Not cut short by a failure of the segment, which holds on: the writer is closing.
                self._release()
            raise

    async def _roll_by_age(self) -> None:
        while True:
            left = self._active_since + self._options.log_segment_seconds - self._loop.time()
            if left > 0:
                await asyncio.sleep(left)
                continue
            if self._rolling is None and self._active.core.is_written:
                self._begin_roll()
            self._active_since = self._loop.time()

    # --- housekeeping -------------------------------------------------------------------------------------------------

    async def _keep_house(self) -> None:
        """Retention, pages and leftovers of dead leaders, once a minute while this writer leads."""
        while True:
            await self._lead.upkeep.wait(self._options.log_retention_seconds)
            if self._life is not Life.WRITING:
                continue
            try:
                async with self._turns:
                    await self._lead.look_after()
                    if self._lead.upkeep.may_be_due():
                        await self._lead.upkeep.tidy()
            except NoSuchLogError as error:
                self._end(error)
            except OctavoError as error:
                log.warning("log %s: housekeeping failed: %s", self._name, error.message)

    def _end_unless_busy(self, error: OctavoError) -> None:
        """End the writer, unless something is under way: that comes to the same end by itself, and learns what became
        of its adds."""
        if self._life is Life.WRITING and not self._runs and self._rolling is None and self._closing is None:
            self._end(error)

    # --- losing the lead ----------------------------------------------------------------------------------------------

    async def _keep_lock(self, lock: LogLock) -> None:
        error = await wait_lock_lost(
            lock, self._lead, self._access.counts, lease_seconds=self._options.lease_seconds,
            leads=lambda: self._life in (Life.WRITING, Life.HEALING),
        )  # fmt: skip
        if self._life is Life.ENDED:
            return
        self._failure = self._failure or error
        self._loss.note(self._failure, is_of_lock=True)
        if self._life is Life.HEALING:
            self._end(self._failure)
            return
        self._move(Life.LOST)
        self._refuse_unsent(self._failure)
        await self._stop_rolling()

    def _end(self, error: OctavoError, *, is_closing: bool = False) -> None:
        """Nothing is added any more: the lead is lost, or the program closes the writer."""
        if self._life is Life.ENDED:
            return
        self._failure = self._failure or error
        self._move(Life.ENDED)
        if is_closing:
            self.lost.set()
        else:
            self._loss.note(self._failure)
        if self._drained is not None:
            self._drained.cancel()
            self._drained = None
        self._refuse_all(self._failure)

    def _defect(self, error: BaseException) -> None:
        failure = error if isinstance(error, OctavoError) else InternalError(f"log {self._name}: {error!r}")
        if failure is not error:
            failure.__cause__ = error
        self._end(failure)

    def _move(self, life: Life) -> None:
        self._course.moved(self._life, life)
        self._life = life
        self._moved.set()

    # --- closing ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for pending adds, close the segment, give the lead back; within ``close_timeout_seconds``.

        Any task may call it, any number of times: all calls share one closing, and cancelling one leaves it going on.
        Closing the client gives the lead back all the same, and does not wait for copies after a call that has.

        Raises:
            UnderReplicatedError: The log requires all copies, and entries lack some (rule G4). Nothing is lost: the
                writer takes no adds, goes on copying and keeps the lead, and the next call tries again.
            OctavoError: The writer's failure, if an add was lost to it.
        """
        check_loop(self._loop)
        closing = self._closing
        if closing is None or closing.cancelled():
            self._stop_accepting()  # in this step: what is added in the same turn would not be waited for
            closing = self._loop.create_task(self._close(), name=f"octavo closing of log {self._name}")
            self._closing = closing
        await result_of(closing, f"closing log {self._name}")

    async def close_with_client(self) -> None:
        """As :meth:`close`, without waiting a second time for copies. Used only inside this package."""
        was_refused = self._has_waited_for_copies and self._closing is None and self._life is Life.WRITING
        if was_refused and (lacking := self._lead.lacking_copies()) is not None:
            raise lacking
        await self.close()

    async def _close(self) -> None:
        deadline = self._loop.time() + self._options.close_timeout_seconds
        failure: OctavoError | None = None
        short: OctavoError | None = None
        try:
            pending = bool(self._runs or self._payloads or self._queue)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.close_timeout_seconds * DRAIN_SHARE):
                    await self._wait_settled()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._stop_rolling()
                    await self._close_log(deadline)
            except TimeoutError:
                short = self._lead.lacking_copies()
            except UnderReplicatedError as error:
                short = error
            if self._life is not Life.WRITING:
                short = None  # what it lacks is no longer for this client to copy
            if pending and self._failure is not None:
                failure = copy_error(self._failure)
            elif self._runs or self._payloads or self._queue:
                failure = not_leader(self._name, "it was closed before the add was acknowledged")
        finally:
            if short is None:
                self._end(failure or ClientClosedError(f"log {self._name}: this writer is closed"), is_closing=True)
                await self._let_go()
        if short is not None:
            self._closing = None  # the next call tries again
            self._has_waited_for_copies = True
            raise short
        if failure is not None:
            raise failure

    async def _close_log(self, deadline: float) -> None:
        """Give the log an end, so that the next leader has nothing to recover."""
        if self._life is not Life.ENDED:
            async with self._turns:
                await self._lead.rest(deadline - self._loop.time())

    async def make_way(self) -> None:
        """Give the lock back for another lead of the handle, unless this one leads. Used only inside this package."""
        if self._lease is None or self._closing is not None:
            return  # it holds no lock, or gives it back by itself
        if not self.lost.is_set():
            raise InvalidArgumentError(
                f"log {self._name}: this handle leads already; use its writer, or close that first. Another handle on "
                "the log would wait until then"
            )
        if self._life is Life.ENDED:
            with contextlib.suppress(OctavoError):
                await self._lease.release()

    async def abandon(self) -> None:
        """Give the lead back, and leave the log as a crash would. Used only inside this package."""
        self._closing = self._loop.create_task(self._abandon(), name=f"octavo closing of log {self._name}")
        await result_of(self._closing, f"closing log {self._name}")

    async def _abandon(self) -> None:
        self._end(ClientClosedError(f"log {self._name}: this writer is closed"), is_closing=True)
        await self._let_go()

    async def _let_go(self) -> None:
        await self._supervisor.close()
        await self._lead.abandon()
        if self._lease is not None:
            with contextlib.suppress(OctavoError):
                await self._lease.release()
        self._on_close(self)
