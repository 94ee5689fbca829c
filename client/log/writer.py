"""The writer of a log: it leads, adds, rolls from segment to segment, and heals itself.

A writer has one *active* segment, a ledger that only it writes. Three things end a segment (rules L2, P2, P5):

* It *rolls*: the next ledger is created and listed while adds go on; then nothing is sent until everything sent is
  acknowledged, the next segment becomes the active one, and the one before is closed in the background. So what a log
  holds of a leader's adds is a prefix of what the leader sent.
* It *heals*: the segment failed, and the newest segment of the list is still this writer's. The writer takes over from
  itself as any candidate would. The recovered end tells which adds in doubt happened; the others are sent again, in
  order, at the positions they had.
* It is *lost*: another client has appended its own segment, or the lock's lease ended. Nothing is added any more.

One change of the list is made at a time: rolling, healing and retention take turns.

=========  =========================  ================================  ===========================
life       adds                       the segment fails                 next
=========  =========================  ================================  ===========================
WRITING    sent                       HEALING                           HEALING, LOST, ENDED
HEALING    wait                       (has failed)                      WRITING, LOST, ENDED
LOST       refused; those sent may    all that was sent is in doubt     ENDED
           still be acknowledged
ENDED      refused                    ignored                           -
=========  =========================  ================================  ===========================
"""

import asyncio
import contextlib
import enum
import logging
from collections.abc import Callable
from typing import Final

from octavo.client.closable import Closable
from octavo.client.log.adds import AddFront, Run, copy_error
from octavo.client.log.candidate import ActiveSegment, Candidate
from octavo.client.log.changes import AppendSegment, BeginSegment, NoteEnds
from octavo.client.log.document import LogDocument, LogState, SegmentEnd, decode_log
from octavo.client.log.housekeeping import Housekeeper
from octavo.client.log.leader_steps import LeaderSteps
from octavo.client.log.ledgers import LedgerAccess, used_before
from octavo.client.log.names import list_document
from octavo.client.log.update import update_log
from octavo.client.log.view import Reach
from octavo.client.same_loop import check_loop
from octavo.client.supervisor import Supervisor
from octavo.metadata.store import Lease, Versioned
from octavo.protocol.errors import (
    ClientClosedError,
    DuplicateEntryError,
    InternalError,
    LedgerFencedError,
    LogDamagedError,
    MetadataUnavailableError,
    NoSuchLogError,
    NotLeaderError,
    OctavoError,
    UnauthorizedError,
)
from octavo.protocol.ids import LedgerId

log = logging.getLogger("octavo.client")

_DRAIN_SHARE: Final = 0.75
"""Share of the time to close that pending adds may take; the rest is for the metadata."""

_FINAL: Final = (NotLeaderError, NoSuchLogError, LogDamagedError, UnauthorizedError, ClientClosedError, InternalError)
"""Failures of a takeover after which trying again is no use."""

_HEAL_SECONDS_MAX: Final = 5.0
"""Longest pause between attempts to heal: what callers wait at most once the cluster is well again."""


_ROLL_RETRY_SECONDS: Final = 1.0
"""Pause after a roll that failed: a segment may grow beyond its size, and the metadata store must not be flooded."""


class Life(enum.Enum):
    """Where a writer stands; see the module."""

    WRITING = "writing"
    HEALING = "healing"
    LOST = "lost"
    ENDED = "ended"


_NEXT: Final = {
    Life.WRITING: {Life.HEALING, Life.LOST, Life.ENDED},
    Life.HEALING: {Life.WRITING, Life.LOST, Life.ENDED},
    Life.LOST: {Life.ENDED},
    Life.ENDED: {Life.ENDED},
}


class LogWriter(AddFront, Closable):
    """Appends to one log. Made by ``log.lead()`` and ``log.take_over()``; use it as an async context manager.

    Leaving the block waits for pending adds, closes the segment and gives the lead back; leaving it on an exception
    never masks that exception. Used from one event loop.
    """

    def __init__(
        self,
        access: LedgerAccess,
        candidate: Candidate,
        document: LogDocument,
        active: ActiveSegment,
        *,
        owner: str,
        lease: Lease | None,
        on_close: Callable[["LogWriter"], object],
    ) -> None:
        """``document``: the list, in which ``active`` is the newest segment, of ``owner``. ``lease``: the lock that is
        held, if any."""
        term = document.term
        super().__init__(log_id=document.log_id, term=term, next_position=active.first_position, options=access.options)
        self._access = access
        self._candidate = candidate
        self._name = document.name
        self._log_id = document.log_id
        self._term = term
        self._owner = owner
        self._lease = lease
        self._on_close = on_close
        self._life = Life.WRITING
        self._active = active
        self._active_since = self._loop.time()
        self._previous: tuple[ActiveSegment, asyncio.Task[SegmentEnd | None]] | None = None
        """The segment before, while its end is not noted in the list."""
        self._failure: OctavoError | None = None
        self._closing: asyncio.Task[None] | None = None
        self._turns = asyncio.Lock()
        """Held while the list is being changed by this writer."""
        self._rolling: asyncio.Task[None] | None = None
        self._roll_not_before = 0.0
        self._drained: asyncio.Future[None] | None = None
        self.lost = asyncio.Event()
        """Set once this client no longer leads: stop whatever else you do as the leader."""
        self._supervisor = Supervisor(f"octavo writer of log {self._name}", self._defect)
        self._housekeeper = Housekeeper(access, self._name, self._log_id)
        self._supervisor.start(self._roll_by_age())
        self._supervisor.start(self._keep_house())
        self._supervisor.start(self._watch_list())
        if lease is not None:
            self._supervisor.start(self._watch_lease(lease))
        self._listen_to(active, document)

    def __repr__(self) -> str:
        return (
            f"<octavo.LogWriter of log {self._name}, term {self._term}, {self._life.value}, next position "
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
        return self._term

    @property
    def end(self) -> int:
        """The position after the last acknowledged add."""
        return self._acknowledged_stop

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` has ended."""
        return self._closing is not None and self._closing.done()

    def _reach_of(self, ledger_id: LedgerId) -> Reach | None:
        """How far this writer has got in one of the last two segments; None of any other ledger."""
        active = self._active
        if active.ledger_id == ledger_id:
            return Reach(max(0, self._acknowledged_stop - active.first_position), is_final=False)
        if self._previous is not None and self._previous[0].ledger_id == ledger_id:
            # A roll waits until everything sent is acknowledged.
            return Reach(active.first_position - self._previous[0].first_position, is_final=True)
        return None

    def check_usable(self) -> None:
        """Raise what an add would be refused with now."""
        if self._failure is not None:
            raise copy_error(self._failure)
        if self._closing is not None:
            raise ClientClosedError(f"log {self._name}: this writer is closed")

    # --- the active segment -------------------------------------------------------------------------------------------

    def _send(self, run: Run) -> None:
        self._active.writer.push(run.payloads)
        if self._rolling is None and self._active.writer.length_pushed >= self._options.log_segment_bytes:
            self._roll_when_due()

    def _listen_to(self, active: ActiveSegment, document: LogDocument) -> bool:
        """Make it the active segment; whether it can be written. ``document`` names it."""
        self._active, self._active_since = active, self._loop.time()
        made_at_ms = next((s.created_at_ms for s in document.segments if s.ledger_id == active.ledger_id), 0)
        active.writer.seal_not_before(made_at_ms)  # rule P10: readers take entries sealed before for another ledger's
        active.listen(self)
        if active.failure is not None:
            self.segment_failed(active, active.failure)
        return active.failure is None

    def segment_acknowledged(self, segment: ActiveSegment, last: int) -> None:
        """The ledger of a segment has acknowledged its entries up to ``last``."""
        if segment is not self._active:
            return
        self._acknowledge(segment.first_position + last + 1)
        drained = self._drained
        if drained is not None and not self._in_flight:
            self._drained = None
            if not drained.done():
                drained.set_result(None)

    @property
    def _in_flight(self) -> bool:
        return any(run.in_flight for run in self._runs)

    def segment_failed(self, segment: ActiveSegment, error: OctavoError) -> None:
        """The ledger of a segment failed: heal, or end."""
        if segment is not self._active or self._life not in (Life.WRITING, Life.LOST):
            return
        if isinstance(error, DuplicateEntryError):
            # A recovery would find those entries, and take them for this log's.
            self._end(used_before(self._name, segment.ledger_id, error.message))
            return
        if self._life is Life.LOST or (self._closing is not None and not self._runs):
            self._end(self._failure or _as_lost(self._name, error))
            return
        self._hold()
        self._move(Life.HEALING)
        log.warning("log %s: its segment failed; the leader continues in a new one: %s", self._name, error.message)
        self._supervisor.start(self._heal(error))

    # --- healing ------------------------------------------------------------------------------------------------------

    async def _heal(self, error: OctavoError) -> None:
        """Take the log over with a new segment until that succeeds, or another client leads (rule P5)."""
        await self._stop_rolling()
        pause = self._options.resend_delay_seconds
        began = self._loop.time()
        if isinstance(error, LedgerFencedError):
            # Another client may be taking the log over now. Without the pause the two would fence each other in turn
            # (rule L4).
            await asyncio.sleep(self._access.uniform(1, 8) * self._options.log_duel_pause_seconds)
        async with self._turns:
            await self._active.writer.abandon()
            while self._life is Life.HEALING:
                steps = LeaderSteps(self._owner, self._access.clock_ms(), healing=True)
                try:
                    active, document = await self._candidate.run(steps)
                except _FINAL as failure:
                    self._end(failure)
                    return
                except OctavoError as failure:
                    log.warning("log %s: not healed yet: %s", self._name, failure.message)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _HEAL_SECONDS_MAX)
                else:
                    await self._healed(active, document)
                    break
        log.info("log %s: healed after %.3f s", self._name, self._loop.time() - began)

    async def _healed(self, active: ActiveSegment, document: LogDocument) -> None:
        if self._life is not Life.HEALING:
            # Lost meanwhile. The new segment stays in the list; the next leader finds it empty.
            await active.writer.abandon()
            return
        stop = active.first_position
        if not self._acknowledged_stop <= stop <= self._next_position:
            self._end(
                InternalError(
                    f"log {self._name}: its segment ended at {stop}, but positions below "
                    f"{self._acknowledged_stop} were acknowledged and none from {self._next_position} on was sent"
                )
            )
            await active.writer.abandon()
            return
        self._previous = None
        self._move(Life.WRITING)
        self._forget_segment()
        self._acknowledge(stop)
        self._housekeeper.tidy_soon(document)
        if self._listen_to(active, document):
            self._release()

    # --- rolling ------------------------------------------------------------------------------------------------------

    async def roll(self) -> None:
        """Begin a new segment now, if the active one holds anything; adds go on meanwhile. Raises as :meth:`add` when
        the writer fails."""
        check_loop(self._loop)
        self.check_usable()
        if self._rolling is None:
            self._begin_roll()
        rolling = self._rolling
        if rolling is not None:
            await asyncio.wait([rolling])
        self.check_usable()

    def _roll_when_due(self) -> None:
        """Begin a roll, unless one has failed a moment ago."""
        if self._loop.time() >= self._roll_not_before:
            self._begin_roll()

    def _begin_roll(self) -> None:
        if self._life is Life.WRITING and self._closing is None:
            rolling = self._loop.create_task(self._roll(), name=f"octavo roll of log {self._name}")
            self._rolling = rolling
            rolling.add_done_callback(self._rolled)

    def _rolled(self, rolling: asyncio.Task[None]) -> None:
        self._rolling = None
        if not rolling.cancelled() and (error := rolling.exception()) is not None:
            self._defect(error)

    async def _stop_rolling(self) -> None:
        if self._rolling is not None:
            self._rolling.cancel()
            await asyncio.wait([self._rolling])
        self._drained = None

    async def _roll(self) -> None:
        try:
            async with self._turns:
                if not self._unacknowledged and not self._active.writer.length_pushed:
                    return
                await self._roll_to_new_segment()
        except NotLeaderError as error:
            self._end(error)
        except OctavoError as error:
            # The present segment serves on; a later add over the limit, or the next hour, tries again.
            self._roll_not_before = self._loop.time() + _ROLL_RETRY_SECONDS
            log.warning("log %s: not rolled: %s", self._name, error.message)

    async def _roll_to_new_segment(self) -> None:
        ends = await self._previous_end()
        store, base = self._access.store, self._active.ledger_id
        ledger_id = await store.allocate_ledger_id()
        known = await update_log(store, self._name, BeginSegment(ledger_id, self._owner, base), log_id=self._log_id)
        following = await self._candidate.create(known.value.with_ends(ends), ledger_id)
        try:
            append = AppendSegment(
                ledger_id, self._owner, self._term, self._access.clock_ms(), base, ends, is_takeover=False
            )
            known = await self._append(append, known)
            self._previous = None
            await self._drain_active()
        except BaseException as error:
            # Listed or not, the ledger is found by the next leader, or by this one when it heals.
            await following.writer.abandon()
            if isinstance(error, NoSuchLogError):
                # The client that deleted the log may have looked for the ledger before it was created.
                with contextlib.suppress(OctavoError):
                    await self._access.delete(ledger_id)
            raise
        before = self._active
        assert not self._runs, "everything sent is acknowledged, and nothing was sent meanwhile"
        following.first_position = self._next_position
        following.writer.seal_not_before(before.writer.sealed_at_ms)  # rule P10: the list does not tell it yet
        closing = self._loop.create_task(self._close_segment(before), name=f"octavo closing of ledger {base}")
        self._previous = (before, closing)
        if self._listen_to(following, known.value):
            self._release()
        self._housekeeper.tidy_soon(known.value)

    async def _append(self, append: AppendSegment, known: Versioned[LogDocument]) -> Versioned[LogDocument]:
        """List the segment. While the store does not answer it may be listed: the writer cannot go on to anything else
        before that is known, and asks again. Adds go on in the present segment meanwhile."""
        while True:
            try:
                return await update_log(self._access.store, self._name, append, log_id=self._log_id, known=known)
            except MetadataUnavailableError:
                await asyncio.sleep(self._options.resend_delay_seconds)

    async def _drain_active(self) -> None:
        """Send what was added this turn, then nothing more until everything sent is acknowledged (rule P2)."""
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

    async def _close_segment(self, segment: ActiveSegment) -> SegmentEnd | None:
        """Close a segment that everything is acknowledged of; its end, or None where it is not known."""
        writer = segment.writer
        try:
            await writer.close()
        except OctavoError as error:
            log.warning("log %s: ledger %d was not closed: %s", self._name, writer.id, error.message)
            return None
        last = writer.last_add_confirmed
        return SegmentEnd(0 if last is None else last + 1, writer.length, writer.sealed_at_ms)

    async def _previous_end(self) -> dict[LedgerId, SegmentEnd]:
        """The end of the segment before, which is closed first: at most one segment is not closed besides the active
        one (rule L2)."""
        if self._previous is None:
            return {}
        segment, closing = self._previous
        await asyncio.wait([closing])
        end = closing.result() or await self._access.end_of(segment.ledger_id, self._candidate.password)
        if end is None:
            raise LogDamagedError(
                f"log {self._name}: ledger {segment.ledger_id} does not exist any more; it was deleted by hand"
            )
        return {segment.ledger_id: end}

    async def _roll_by_age(self) -> None:
        while True:
            left = self._active_since + self._options.log_segment_seconds - self._loop.time()
            if left > 0:
                await asyncio.sleep(left)
                continue
            if self._rolling is None and self._active.writer.length_pushed:
                self._begin_roll()
            self._active_since = self._loop.time()

    # --- housekeeping -------------------------------------------------------------------------------------------------

    async def _keep_house(self) -> None:
        """Retention, pages and leftovers of dead leaders, once a minute while this writer leads."""
        while True:
            await self._housekeeper.wait(self._options.log_retention_seconds)
            if self._life is not Life.WRITING or not self._housekeeper.may_be_due():
                continue
            try:
                async with self._turns:
                    await self._housekeeper.tidy()
            except NoSuchLogError as error:
                self._end(error)
            except OctavoError as error:
                log.warning("log %s: housekeeping failed: %s", self._name, error.message)

    async def _watch_list(self) -> None:
        """See changes of the list by other clients: what is to be tidied; and that this client does not lead any more,
        although it adds nothing and so meets no fence."""
        async with self._access.store.watch_document(list_document(self._name)) as watch:
            async for found in watch:
                document = None if found is None else decode_log(found.value, self._name)
                if document is None or document.log_id != self._log_id or document.state is LogState.DELETED:
                    self._end_unless_busy(NoSuchLogError(f"log {self._name} has been deleted", may_have_happened=False))
                    continue
                self._housekeeper.list_changed(document)
                if document.newest is not None and document.newest.owner != self._owner:
                    self._end_unless_busy(_not_leader(self._name, "another client has taken it over"))

    def _end_unless_busy(self, error: OctavoError) -> None:
        """What is under way comes to the same end by itself, and learns what became of its adds."""
        if self._life is Life.WRITING and not self._runs and self._rolling is None and self._closing is None:
            self._end(error)

    # --- losing the lead ----------------------------------------------------------------------------------------------

    async def _watch_lease(self, lease: Lease) -> None:
        await lease.wait_lost()
        if self._life is Life.ENDED:
            return
        self._failure = self._failure or _not_leader(self._name, "its lock was lost")
        if self._life is Life.HEALING:
            self._end(self._failure)
            return
        self._move(Life.LOST)
        self.lost.set()
        self._refuse_unsent(self._failure)
        await self._stop_rolling()

    def _end(self, error: OctavoError) -> None:
        """Nothing is added any more."""
        if self._life is Life.ENDED:
            return
        self._failure = self._failure or error
        self._move(Life.ENDED)
        self.lost.set()
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
        assert life in _NEXT[self._life], f"{self._life} -> {life}"
        self._life = life

    # --- closing ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for pending adds, close the segment, give the lead back; within ``close_timeout_seconds``.

        Any task may call it, any number of times: all calls share one closing, and cancelling one leaves it going on.
        Raises the writer's failure if an add was lost to it.
        """
        check_loop(self._loop)
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(), name=f"octavo closing of log {self._name}")
        await asyncio.wait([self._closing])
        self._closing.result()

    async def _close(self) -> None:
        deadline = self._loop.time() + self._options.close_timeout_seconds
        failure: OctavoError | None = None
        try:
            self._stop_accepting()
            pending = bool(self._runs or self._payloads or self._queue)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.close_timeout_seconds * _DRAIN_SHARE):
                    await self._wait_settled()
            if pending and self._failure is not None:
                failure = copy_error(self._failure)
            elif self._runs or self._payloads or self._queue:
                failure = _not_leader(self._name, "it was closed before the add was acknowledged")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._stop_rolling()
                    await self._close_log()
        finally:
            self._end(failure or ClientClosedError(f"log {self._name}: this writer is closed"))
            await self._let_go()
        if failure is not None:
            raise failure

    async def _close_log(self) -> None:
        """Close the segments and note their ends, so that the next leader has nothing to recover."""
        if self._life not in (Life.WRITING, Life.LOST):
            return
        async with self._turns:
            ends: dict[LedgerId, SegmentEnd] = {}
            with contextlib.suppress(OctavoError):
                ends |= await self._previous_end()
            end = await self._close_segment(self._active)
            if end is not None:
                ends[self._active.ledger_id] = end
            with contextlib.suppress(OctavoError):
                await update_log(self._access.store, self._name, NoteEnds(ends), log_id=self._log_id)

    async def _let_go(self) -> None:
        await self._supervisor.close()
        if self._previous is not None:
            self._previous[1].cancel()
            await self._previous[0].writer.abandon()
        await self._active.writer.abandon()
        if self._lease is not None:
            with contextlib.suppress(OctavoError):
                await self._lease.release()
        self._on_close(self)


def _not_leader(name: str, why: str = "") -> NotLeaderError:
    reason = f" ({why})" if why else ""
    return NotLeaderError(f"log {name}: this client no longer leads{reason}", may_have_happened=False)


def _as_lost(name: str, error: OctavoError) -> OctavoError:
    return error if isinstance(error, _FINAL) else _not_leader(name, error.message)
