"""The leader of a log, behind its writer: it rolls from segment to segment, heals itself, keeps the lead, and ends.

A leader has one *active* segment, a ledger or a term of a stream, that only it writes. What becomes of a segment
depends on the layout of the log; that part is its *lead* (:mod:`octavo.client.log.seam.lead`). Three things end or
change it (rules L2, U6, P2, P5):

* It *rolls* (:mod:`octavo.client.log.writer.rolls`): the log goes on in a new ledger, or in a new fragment of the
  stream, and adds go on meanwhile.
* It *heals*: the segment failed, and no other client leads. The leader takes over from itself as any candidate would.
  The recovered end tells which adds in doubt happened; the others are sent again, in order, at the positions they had.
* It is *lost*: another client has taken the log over, or the lock's lease ended. Nothing is added any more.

One change of the metadata is made at a time: rolling, healing and retention take turns.
:mod:`octavo.client.log.writer.life` tells what a leader does in each state of its life.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from octavo.client.log.seam.access import LedgerAccess, used_before
from octavo.client.log.seam.active_segment import ActiveSegment
from octavo.client.log.seam.lead import LogLead
from octavo.client.log.seam.quorum_change import QuorumChange
from octavo.client.log.writer.adds import LogAdds, copy_error
from octavo.client.log.writer.life import Life
from octavo.client.log.writer.lock import LogLock
from octavo.client.log.writer.losing import FINAL, LeadLoss, as_lost, not_leader, wait_lock_lost
from octavo.client.log.writer.rolls import Rolls, RollsSide
from octavo.client.log.writer.rounds import Rounds
from octavo.client.log.writer.statistics import Course, log_writer_statistics
from octavo.client.statistics.writers import LogWriterStatistics
from octavo.client.supervisor import Supervisor
from octavo.client.write.core import DRAIN_SHARE
from octavo.client.write.statistics import add_statistics
from octavo.metadata.own_tasks import result_of
from octavo.metadata.store.signal import Signal
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


class Leader:
    """See the module. It is the listener of the active segment
    (:class:`~octavo.client.log.seam.active_segment.SegmentListener`)."""

    def __init__(
        self, access: LedgerAccess, lead: LogLead, *, lease: LogLock | None, on_close: Callable[[], object]
    ) -> None:
        """``lead``: as just taken over. ``lease``: the lock that is held, if any."""
        self._loop = asyncio.get_running_loop()
        self._options = access.options
        self.adds = adds = LogAdds(
            lead.active, log_id=lead.log_id, term=lead.term, options=access.options, check_usable=self.check_usable,
            refuse_for_ever=self._refuse_for_ever,
        )  # fmt: skip
        self._front = adds.front
        self._front.room_is_held = lead.requires_copies
        self._access = access
        self._lead = lead
        self.name = lead.name
        self._lease = lease
        self._on_close = on_close
        self.life = Life.WRITING
        self._course = Course(self._loop.time)
        self._failure: OctavoError | None = None
        self._closing: asyncio.Task[None] | None = None
        self._has_waited_for_copies = False
        """A closing has ended because copies were missing."""
        self._turns = asyncio.Lock()
        """Held while the metadata are being changed by this writer."""
        self._rolls = Rolls(
            lead, adds, access.options, self._turns,
            RollsSide(
                is_writing=lambda: self.life is Life.WRITING, is_closing=lambda: self._closing is not None,
                listen_to=self._listen_to, end=self._end, defect=self._defect,
            ),
        )  # fmt: skip
        self._moved = Signal()
        """Set when the life moves on."""
        self.loss = LeadLoss(self.name, access.counts)
        self._supervisor = Supervisor(f"octavo writer of log {self.name}", self._defect)
        self._rolls.begin_by_age()
        self._rounds = Rounds(
            lead.upkeep, access.options.log_retention_seconds, start=self._supervisor.start, work=self._keep_house
        )
        self._watching = lead.begin_watching(self._end_unless_busy, self._defect)
        if lease is not None:
            lease.when_lost(lambda: self._supervisor.start(self._keep_lock(lease)))
        self._listen_to(lead.active)

    @property
    def term(self) -> int:
        """Higher than that of every leader before: the fencing number for anything else that a leader writes to."""
        return self._lead.term

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` has ended."""
        return self._closing is not None and self._closing.done()

    def statistics(self) -> LogWriterStatistics:
        """As :meth:`LogWriter.statistics`."""
        front, rolls = self._front, self._rolls
        return log_writer_statistics(
            self.name, self.life, self._course, self.adds.segment,
            add_statistics(front, are_in_doubt=self.life is Life.HEALING),
            term=self.term, next_position=front.next_position, end=front.acknowledged_stop, failure=self._failure,
            rolls=rolls.made, is_rolling=rolls.rolling is not None,
            segment_seconds=self._loop.time() - rolls.active_since,
        )  # fmt: skip

    def check_usable(self) -> None:
        """Raise what an add would be refused with now."""
        if self._failure is not None:
            raise copy_error(self._failure)
        if self._closing is not None or not self._front.accepting:
            raise ClientClosedError(f"log {self.name}: this writer is closed")

    def _refuse_for_ever(self, error: OctavoError) -> None:
        self._failure = error
        self.loss.end()

    # --- the active segment -------------------------------------------------------------------------------------------

    def _listen_to(self, active: ActiveSegment) -> bool:
        """Make it the active segment; whether it can be written."""
        self.adds.segment, self._rolls.active_since = active, self._loop.time()
        active.listen(self)
        if active.failure is not None:
            self.segment_failed(active, active.failure)
        return active.failure is None

    def segment_acknowledged(self, segment: ActiveSegment, stop: int, payload_bytes: int) -> None:
        """As :meth:`SegmentListener.segment_acknowledged`."""
        if segment is not self.adds.segment:
            return
        self._front.acknowledge(stop, payload_bytes)
        if self._rolls.drained is not None and not self.adds.in_flight:
            self._rolls.has_drained()

    def segment_full(self, segment: ActiveSegment, entries: int, payload_bytes: int) -> None:
        """As :meth:`SegmentListener.segment_full`."""
        if segment is self.adds.segment:
            self._front.free_room(entries, payload_bytes)

    def segment_failed(self, segment: ActiveSegment, error: OctavoError) -> None:
        """As :meth:`SegmentListener.segment_failed`: heal, or end."""
        if segment is not self.adds.segment or self.life not in (Life.WRITING, Life.LOST):
            return
        if isinstance(error, DuplicateEntryError):
            # A recovery would find those entries, and take them for this log's.
            self._end(used_before(self.name, segment.ledger_id, error.message))
            return
        if self.life is Life.LOST or (self._closing is not None and not self._front.batches):
            self._end(self._failure or as_lost(self.name, error))
            return
        self._front.hold()
        self._move(Life.HEALING)
        self._supervisor.start(self._heal(error))

    # --- healing ------------------------------------------------------------------------------------------------------

    async def _heal(self, error: OctavoError) -> None:
        """Take the log over from itself until that succeeds, or another client leads (rule P5)."""
        await self._rolls.stop()
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
                    *(self.name, error.message),
                )
        async with self._turns:
            await self.adds.segment.core.abandon()
            while self.life is Life.HEALING:
                try:
                    active = await self._lead.heal()
                except FINAL as failure:
                    self._end(failure)
                    return
                except OctavoError as failure:
                    log.warning("log %s: not healed yet: %s", self.name, failure.message)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _HEAL_SECONDS_MAX)
                else:
                    await self._healed(active)
                    level = logging.WARNING if is_fenced else logging.INFO
                    seconds = self._loop.time() - began
                    log.log(level, "log %s: healed after %.3f s (%s)", self.name, seconds, error.message)
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
        if self.life is not Life.HEALING:
            # Lost meanwhile. The new segment stays where it is; the next leader finds it empty.
            await active.core.abandon()
            return
        stop = active.first_position
        acknowledged_stop, next_position = self._front.acknowledged_stop, self._front.next_position
        if not acknowledged_stop <= stop <= next_position:
            self._end(
                InternalError(
                    f"log {self.name}: its segment ended at {stop}, but positions below {acknowledged_stop} were "
                    f"acknowledged and none from {next_position} on was sent"
                )
            )
            await active.core.abandon()
            return
        self._lead.healed(active)
        self._move(Life.WRITING)
        self.adds.forget_segment()
        self._front.acknowledge(stop, self._front.bytes_below(stop))
        # What the segments before lack is recorded by the takeover, and no longer this writer's to copy (rule G5).
        self._front.free_room(self._front.short_entries, self._front.short_bytes)
        if self._listen_to(active):
            self.adds.release()

    # --- rolling and changing -----------------------------------------------------------------------------------------

    async def roll(self) -> None:
        """As :meth:`LogWriter.roll`."""
        self.check_usable()
        segment, rolling = self.adds.segment, self._rolls.rolling
        if rolling is None or rolling.done():
            rolling = self._rolls.begin()
        if rolling is not None:
            await asyncio.wait([rolling])
        await self._wait_healed()
        self.check_usable()
        if rolling is None or rolling.cancelled() or segment is not self.adds.segment:
            return  # a writer that heals goes on in a new segment
        if (failure := rolling.result()) is not None:
            raise copy_error(failure)

    async def change(self, change: QuorumChange) -> None:
        """As :meth:`LogWriter.change`."""
        while True:
            self.check_usable()
            async with self._turns:
                segment = self.adds.segment
                if self.life is Life.WRITING:
                    try:
                        await self._lead.change(change)
                    except OctavoError:
                        if segment.failure is None:
                            raise  # the segment serves on
                    else:
                        self._rolls.active_since = self._loop.time()
                        return
            # The segment has failed, and whether the change stands is known once it is healed.
            await self._wait_healed()

    async def _wait_healed(self) -> None:
        while self.life is Life.HEALING:
            self._moved.clear()
            await self._moved.wait()

    # --- housekeeping -------------------------------------------------------------------------------------------------

    async def _keep_house(self) -> None:
        """Retention, pages and leftovers of dead leaders: once a minute while this writer leads."""
        if self.life is not Life.WRITING:
            return
        try:
            async with self._turns:
                await self._lead.look_after()
                if self._lead.upkeep.may_be_due():
                    await self._lead.upkeep.tidy()
        except NoSuchLogError as error:
            self._end(error)
        except OctavoError as error:
            log.warning("log %s: housekeeping failed: %s", self.name, error.message)

    def _end_unless_busy(self, error: OctavoError) -> None:
        """End the writer, unless something is under way: that comes to the same end by itself, and learns what became
        of its adds."""
        is_busy = self._front.batches or self._rolls.rolling is not None or self._closing is not None
        if self.life is Life.WRITING and not is_busy:
            self._end(error)

    # --- losing the lead ----------------------------------------------------------------------------------------------

    async def _keep_lock(self, lock: LogLock) -> None:
        error = await wait_lock_lost(
            lock, self._lead, self._access.counts, lease_seconds=self._options.lease_seconds,
            leads=lambda: self.life in (Life.WRITING, Life.HEALING),
        )  # fmt: skip
        if self.life is Life.ENDED:
            return
        self._failure = self._failure or error
        self.loss.note(self._failure, is_of_lock=True)
        if self.life is Life.HEALING:
            self._end(self._failure)
            return
        self._move(Life.LOST)
        self.adds.refuse_unsent(self._failure)
        await self._rolls.stop()

    def _end(self, error: OctavoError, *, is_closing: bool = False) -> None:
        """Nothing is added any more: the lead is lost, or the program closes the writer."""
        if self.life is Life.ENDED:
            return
        self._failure = self._failure or error
        self._move(Life.ENDED)
        if is_closing:
            self.loss.end()
        else:
            self.loss.note(self._failure)
        self._rolls.give_up_draining()
        self.adds.refuse_all(self._failure)

    def _defect(self, error: BaseException) -> None:
        failure = error if isinstance(error, OctavoError) else InternalError(f"log {self.name}: {error!r}")
        if failure is not error:
            failure.__cause__ = error
        self._end(failure)

    def _move(self, life: Life) -> None:
        self._course.moved(self.life, life)
        self.life = life
        self._moved.set()

    # --- closing ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """As :meth:`LogWriter.close`."""
        closing = self._closing
        if closing is None or closing.cancelled():
            self._front.stop_accepting()  # in this step: what is added in the same turn would not be waited for
            closing = self._loop.create_task(self._close(), name=f"octavo closing of log {self.name}")
            self._closing = closing
        await result_of(closing, f"closing log {self.name}")

    async def close_with_client(self) -> None:
        """As :meth:`LogWriter._close_with_client`."""
        if self._has_waited_for_copies and self._closing is None and self.life is Life.WRITING:
            lacking = self._lead.lacking_copies()
            if lacking is not None:
                raise lacking
        await self.close()

    async def _close(self) -> None:
        deadline = self._loop.time() + self._options.close_timeout_seconds
        failure: OctavoError | None = None
        short: OctavoError | None = None
        try:
            pending = self.adds.pending
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.close_timeout_seconds * DRAIN_SHARE):
                    await self.adds.wait_settled()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._rolls.stop()
                    await self._close_log(deadline)
            except TimeoutError:
                short = self._lead.lacking_copies()
            except UnderReplicatedError as error:
                short = error
            if self.life is not Life.WRITING:
                short = None  # what it lacks is no longer for this client to copy
            if pending and self._failure is not None:
                failure = copy_error(self._failure)
            elif self.adds.pending:
                failure = not_leader(self.name, "it was closed before the add was acknowledged")
        finally:
            if short is None:
                self._end(failure or ClientClosedError(f"log {self.name}: this writer is closed"), is_closing=True)
                await self._let_go()
        if short is not None:
            self._closing = None  # the next call tries again
            self._has_waited_for_copies = True
            raise short
        if failure is not None:
            raise failure

    async def _close_log(self, deadline: float) -> None:
        """Give the log an end, so that the next leader has nothing to recover."""
        if self.life is not Life.ENDED:
            async with self._turns:
                await self._lead.rest(deadline - self._loop.time())

    async def make_way(self) -> None:
        """As :meth:`LogWriter._make_way`."""
        if self._lease is None or self._closing is not None:
            return  # it holds no lock, or gives it back by itself
        if not self.loss.is_over:
            raise InvalidArgumentError(
                f"log {self.name}: this handle leads already; use its writer, or close that first. Another handle on "
                "the log would wait until then"
            )
        if self.life is Life.ENDED:
            with contextlib.suppress(OctavoError):
                await self._lease.release()

    async def abandon(self) -> None:
        """As :meth:`LogWriter._abandon`."""
        self._closing = self._loop.create_task(self._abandon(), name=f"octavo closing of log {self.name}")
        await result_of(self._closing, f"closing log {self.name}")

    async def _abandon(self) -> None:
        self._end(ClientClosedError(f"log {self.name}: this writer is closed"), is_closing=True)
        await self._let_go()

    async def _let_go(self) -> None:
        self._rolls.stop_by_age()
        self._rounds.stop()
        self._watching.stop()
        await self._supervisor.close()
        await self._lead.abandon()
        if self._lease is not None:
            with contextlib.suppress(OctavoError):
                await self._lease.release()
        self._on_close()
