"""The pipeline's shell: sends runs to the bookies of the ensemble, takes in their answers, and replaces bookies.

Each slot is one bookie's :class:`~octavo.client.wire.connection.BookieConnection`. It is *held* in the pipeline
while the connection takes nothing (it is down, or over its bounds; its listener is called when that ends), and for
``resend_delay_seconds`` after the bookie refused an add or did not answer it in time. A slot that is held costs
nothing; afterwards the pipeline decides what to send.

:mod:`octavo.client.write.ensemble_changes` decides which bookies are replaced, and when. This module asks for spares
(:mod:`octavo.client.write.spares`) and changes the metadata, one change after another.
Bookies that were replaced, and spares that could not be reached, are put into quarantine: this client does not choose
them for a while.

Some refusals end the writer at once, whatever the other bookies answer (:data:`FATAL`). Everything else is left to the
quorum timeout: adds that have waited that long fail with an error that names each bookie and its answer (rules W6,
W8).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from octavo.client.choose.placer import Placer
from octavo.client.counts import ClientCounts, reason_of
from octavo.client.options import ClientOptions
from octavo.client.wire.connection import BookieConnection
from octavo.client.wire.pool import ConnectionPool
from octavo.client.wire.terms_known import for_term
from octavo.client.wire.wire import Outcome
from octavo.client.write.ensemble_changes import Commit, EnsembleChanges, FindSpares, Phase
from octavo.client.write.front.adds import fenced, internal_error
from octavo.client.write.part import Address, Part
from octavo.client.write.pipeline import Accept, Acknowledge, Effect, Pipeline, Send
from octavo.client.write.spares import Spares
from octavo.metadata.ledger.term import Term
from octavo.metrics.clock import precise_seconds
from octavo.protocol.errors import (
    BookieInDoubtError,
    BookieOverloadedError,
    BookieUnavailableError,
    DuplicateEntryError,
    InternalError,
    LedgerFencedError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    OctavoError,
    QuorumLostError,
    TermOverError,
    UnauthorizedError,
)
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import Added, AddFlag, Op
from octavo.protocol.packs import encode_tail

log = logging.getLogger("octavo.client")

FATAL: Final = (LedgerFencedError, UnauthorizedError, DuplicateEntryError, NoSuchLedgerError)
"""Answers of one bookie that hold for all of them: this writer may not go on."""

_BUSY: Final = (BookieUnavailableError, BookieOverloadedError)
"""Answers that are no reason to replace the bookie: after the first the connection's listener reports what follows, and
the second passes."""

_METADATA_GRACE: Final = 0.1
"""Share of the quorum timeout by which it is postponed, once, while the metadata store is being asked."""


def metadata_did_not_answer(asked_at: float | None, phase: Phase, grace_started_at: float) -> bool:
    """Whether the metadata store is why adds were not acknowledged in time: it left a question for a spare, asked at
    ``asked_at`` on the loop's clock (None: it is asked nothing), or the change itself without an answer for all of the
    grace. The writer asks again and again: a question asked after the grace began is one more of them, and the answer
    to the one before tells why there is no spare."""
    if asked_at is not None:
        return asked_at <= grace_started_at
    return phase is Phase.COMMITTING


class Replication:
    """See the module. Callbacks come from the event loop or from inside :meth:`push`, never after :meth:`close`.

    ``on_acknowledged(first, last, payload_bytes)`` in order; ``on_failure(error)`` when the writer cannot go on. The
    replication goes on until :meth:`stop`. ``commit`` writes a new last fragment into the metadata and returns whether
    it is there; ``start`` runs a coroutine that ends with the writer. A recovery writes back with ``flags`` of its
    own, from ``first_entry_id`` on, with the ``length`` before that entry. ``part``: what the kind of ledger adds.
    """

    def __init__(
        self,
        term: Term,
        ledger_key: bytes,
        *,
        pool: ConnectionPool,
        placer: Placer,
        options: ClientOptions,
        commit: Callable[[Commit], Awaitable[bool]],
        start: Callable[[Coroutine[Any, Any, None]], object],
        on_acknowledged: Callable[[int, int, int], None],
        on_failure: Callable[[OctavoError], None],
        first_entry_id: int = 0,
        length: int = 0,
        flags: AddFlag = AddFlag.NONE,
        part: Part | None = None,
    ) -> None:
        flags |= AddFlag.PRIVATE if term.private else AddFlag.NONE
        flags |= AddFlag.NONE if part is None else part.flags
        self._part = part
        self._ledger_id = term.ledger_id
        self._term = term.number
        self.address = Address(term.ledger_id, ledger_key, flags, term.number)
        self.options = options
        self._on_acknowledged = on_acknowledged
        self.fail = on_failure
        self.loop = asyncio.get_running_loop()
        self.pool = pool
        self._commit = commit
        self._start = start
        ensemble = term.bookies
        self._quorums = quorums = term.quorums
        self._members = quorums.ensemble_size
        self._shared_body = not quorums.striped
        times = {
            "now": self.loop.time(),
            "loss_seconds": options.bookie_loss_seconds,
            "delay_seconds": options.ensemble_change_delay_seconds,
            "retry_seconds": options.resend_delay_seconds,
        }
        if part is None:
            self.pipeline = Pipeline(
                quorums, retained_bytes_max=options.retained_bytes_max, first_entry_id=first_entry_id, length=length
            )
            self.changes = EnsembleChanges(self.pipeline, quorums, ensemble, **times)
        else:
            self.pipeline = part.begin(self, quorums, first_entry_id, length)
            self.changes = part.changes(quorums, ensemble, **times)
        self._change_timer: asyncio.TimerHandle | None = None
        self._change_settled: asyncio.Future[bool] | None = None
        self._spares = Spares(pool, placer, quorums, needs_terms=bool(term.number))
        self._grace_since: float | None = None
        """Push time of the oldest add for which the deadline was postponed; None: it never was."""
        self._grace_started_at = 0.0
        """When the deadline was postponed last, in the loop's seconds."""
        self.refusals: list[OctavoError | None] = [None] * quorums.ensemble_size
        self._pauses: list[asyncio.TimerHandle | None] = [None] * quorums.ensemble_size
        self._quorum_timer: asyncio.TimerHandle | None = None
        self._explicit_lac = b""
        self._lac_unsent = 0
        """Mask of the slots that have not been sent the explicit LAC."""
        self.stopped = False
        self._counts = pool.counts if not flags & AddFlag.RECOVERY else None
        """The counts of the client; None for write-backs, which are no adds of an application."""
        self._sent: deque[tuple[int, float]] = deque()
        """Of each frame that is not acknowledged as a whole: its last id, and when it was pushed."""
        self.connections = [for_term(pool.get(bookie_id), self._term) for bookie_id in ensemble]
        self._remove_listeners = [self._listen(position) for position in range(quorums.ensemble_size)]
        for position in range(quorums.ensemble_size):
            self._make_ready(position)

    def _listen(self, position: int) -> Callable[[], None]:
        listener = partial(self.guarded, self._connection_changed, position)
        return self.pool.get(self.connections[position].bookie_id).add_state_listener(listener)

    def guarded(self, step: Callable[..., None], *arguments: Any) -> None:
        """Perform a step that the event loop calls. If it breaks an invariant, nothing may be acknowledged any more."""
        try:
            step(*arguments)
        except Exception as error:
            self.fail(internal_error(self._ledger_id, error))
            raise

    def push(self, entries: Sequence[bytes], *, sealed_bytes: int, length_after: int) -> None:
        """Send the sealed entries of one frame to the bookies."""
        now = self.loop.time()
        self._lac_unsent = 0  # every entry carries a LAC that is at least as high
        if self._quorum_timer is None:
            self._arm_quorum_timer(now + self.options.add_quorum_timeout_seconds)
        effects = self.pipeline.push(entries, sealed_bytes=sealed_bytes, length_after=length_after, now=now)
        if self._counts is not None:
            self._counts.adds_pending += len(entries)
            self._sent.append((self.pipeline.next_entry_id - 1, precise_seconds()))
        self.perform(effects)
        if self.changes.troubled_since and self._change_timer is None:
            self._consider_change()
        if self._part is not None:
            self._part.pushed()

    def write_lac(self, sealed: bytes) -> None:
        """Send an explicit LAC to every bookie, now or when it can be reached again, unless an entry is pushed before
        that. Losing it is harmless (rule W2), but a follower may depend on this very bookie."""
        self._explicit_lac = sealed
        self._lac_unsent = (1 << len(self.connections)) - 1
        for position in range(len(self.connections)):
            self._send_lac(position)

    def _send_lac(self, position: int) -> None:
        sealed = self._explicit_lac
        ledger_id, ledger_key, _, term = self.address
        tail = encode_tail(Op.WRITE_LAC, ledger_id, ledger_key, term, sealed)
        on_outcome = partial(self._lac_outcome, position, sealed)
        timeout = self.options.request_timeout_seconds
        if self.connections[position].post(tail, on_outcome, timeout_seconds=timeout):
            self._lac_unsent &= ~(1 << position)

    def _lac_outcome(self, position: int, sealed: bytes, outcome: Outcome) -> None:
        if isinstance(outcome, BookieUnavailableError) and sealed is self._explicit_lac:
            self._lac_unsent |= 1 << position

    def describe(self) -> str:
        """Each bookie of the ensemble and its last answer, for an error message."""
        return "; ".join(
            f"bookie {connection.bookie_id}: {self.answer(position)}"
            for position, connection in enumerate(self.connections)
        )

    def stop(self) -> None:
        """Acknowledge and send nothing from now on."""
        if not self.stopped and self._counts is not None:
            self._counts.adds_pending -= self.pipeline.unacknowledged
            self._counts.adds_failed += self.pipeline.unacknowledged
        self.stopped = True
        self.pipeline.stop()
        self._lac_unsent = 0
        for timer in (self._quorum_timer, self._change_timer):
            if timer is not None:
                timer.cancel()
        self._quorum_timer = self._change_timer = None
        for position in range(len(self.connections)):
            self._end_pause(position)
        if self._part is not None:
            self._part.stop()

    def replace_departed(self, departed: Collection[BookieId]) -> None:
        """Replace these bookies, even if no add waits for them; and leave in place those that are not among them any
        more (rule O2)."""
        if self.stopped:
            return
        now = self.loop.time()
        for position, bookie_id in enumerate(self.changes.ensemble):
            if bookie_id in departed:
                self.changes.on_departed(position, now)
            else:
                self.changes.on_stays(position)
        self._consider_change()

    async def wait_change_settled(self) -> None:
        """Return when no change of the metadata is under way (a writer makes one change at a time: rule W5)."""
        while self._change_settled is not None:
            await asyncio.wait([self._change_settled])

    @property
    def is_refused_for_doubt(self) -> bool:
        """Whether a bookie refuses this writer's adds because it lost a disk during the term, or before it (rule
        T12)."""
        return any(isinstance(refusal, BookieInDoubtError) for refusal in self.refusals)

    def close(self) -> None:
        """Stop, and stop listening to the connections."""
        self.stop()
        for remove in self._remove_listeners:
            remove()
        self._remove_listeners.clear()

    # --- sending --------------------------------------------------------------------------------------------------

    def perform(self, effects: Sequence[Effect]) -> None:
        """Perform what the pipeline has decided."""
        tail, number, members = b"", -1, self._members
        for effect in effects:
            if type(effect) is not Send or effect.position >= members:
                self._perform_other(effect)
                continue
            run, position, tenure = effect.run, effect.position, effect.tenure
            if run.number != number or not self._shared_body:
                number = run.number
                tail = encode_tail(Op.ADD, *self.address, list(self.pipeline.share(run, position)))
            taken = self.connections[position].post(
                tail,
                partial(self._outcome, position, number, tenure),
                timeout_seconds=self.options.request_timeout_seconds,
            )
            if not taken:
                self.pipeline.on_unsent(position, number, tenure)

    def _perform_other(self, effect: Effect) -> None:
        """Perform an effect that sends no entries to a member of the ensemble."""
        if self._part is not None:
            self._part.perform(effect)
        else:
            assert isinstance(effect, Acknowledge), "nothing else is decided in an ordinary pipeline"
            self.tell(effect)

    def tell(self, effect: Acknowledge | Accept) -> None:
        """Tell the callers of adds."""
        if self._counts is not None:
            self._count_acknowledged(self._counts, effect)
        self._on_acknowledged(effect.first, effect.last, effect.payload_bytes)

    def _count_acknowledged(self, counts: ClientCounts, effect: Acknowledge | Accept) -> None:
        entries = effect.last + 1 - effect.first
        counts.adds_acknowledged += entries
        counts.adds_pending -= entries
        counts.added_bytes += effect.payload_bytes
        now, sent = precise_seconds(), self._sent
        while sent and sent[0][0] <= effect.last:
            counts.add_seconds.observe(now - sent.popleft()[1])

    def _outcome(self, position: int, number: int, tenure: int, outcome: Outcome) -> None:
        try:
            if type(outcome) is Added:
                if self.refusals[position] is not None or self.changes.troubled_since:
                    self.end_trouble(position, tenure)
                self.perform(self.pipeline.on_confirmed(position, number, tenure))
            else:
                self._not_confirmed(position, number, tenure, outcome)
            if self._part is not None:
                self._part.answered()
        except Exception as error:  # as in `guarded`, without its call for every answer
            self.fail(internal_error(self._ledger_id, error))
            raise

    def end_trouble(self, position: int, tenure: int) -> None:
        """The bookie in the slot has done what it was asked."""
        if tenure == self.pipeline.tenure(position):
            self.refusals[position] = None
            self.changes.on_confirmed(position)

    def _not_confirmed(self, position: int, number: int, tenure: int, outcome: Outcome) -> None:
        self.pipeline.on_failed(position, number, tenure)
        self.refused(position, tenure, outcome)

    def refused(self, position: int, tenure: int, outcome: Outcome) -> None:
        """A bookie has not done what the pipeline sent it."""
        error = outcome if isinstance(outcome, OctavoError) else InternalError(f"answered with {outcome!r}")
        if tenure != self.pipeline.tenure(position):
            return  # the bookie has been replaced: its answer does not matter
        bookie_id = self.connections[position].bookie_id
        self.refusals[position] = error
        if isinstance(error, FATAL):
            if isinstance(error, TermOverError):
                failure: OctavoError = TermOverError(
                    f"stream {self._ledger_id}: term {self._term}, which this writer has opened, is over: bookie "
                    f"{bookie_id}: {error.message}"
                )
            elif isinstance(error, LedgerFencedError):
                failure = fenced(self._ledger_id, f"bookie {bookie_id}: {error.message}")
            else:
                failure = type(error)(f"ledger {self._ledger_id}: bookie {bookie_id}: {error.message}")
            failure.__cause__ = error
            self.fail(failure)
            return
        if not isinstance(error, _BUSY):
            self.changes.on_refused(position, self.loop.time())
            self._consider_change()
        if not isinstance(error, BookieUnavailableError) and self._pauses[position] is None:
            # The connection is up, so no listener will be called when the bookie takes adds again.
            self._pauses[position] = self.loop.call_later(
                self.options.resend_delay_seconds, self.guarded, self._pause_over, position
            )

    # --- slots ----------------------------------------------------------------------------------------------------

    def _connection_changed(self, position: int, real: BookieConnection) -> None:
        self.connections[position] = connection = for_term(real, self._term)
        if connection.denied and self._fails_for_denials():
            return
        if not connection.connected:
            self._end_pause(position)
            self.changes.on_lost(position, self.loop.time())
            self._consider_change()
        self._make_ready(position)

    def _pause_over(self, position: int) -> None:
        self._pauses[position] = None
        self._make_ready(position)

    def _end_pause(self, position: int) -> None:
        pause, self._pauses[position] = self._pauses[position], None
        if pause is not None:
            pause.cancel()

    def _make_ready(self, position: int) -> None:
        if self._part is not None and not self._part.connecting(position):
            return
        if self.connections[position].connected:
            self.changes.on_connected(position)
        if self._pauses[position] is None and self.connections[position].writable:
            self.perform(self.pipeline.on_ready(position))
            if self._lac_unsent >> position & 1:
                self._send_lac(position)

    # --- replacing bookies ----------------------------------------------------------------------------------------

    def _consider_change(self) -> None:
        """Begin a change of the ensemble if one is due; otherwise set a timer for when one may be."""
        if self.stopped:
            return
        if self._change_timer is not None:
            self._change_timer.cancel()
            self._change_timer = None
        wanted = self.changes.poll(self.loop.time())
        if wanted is not None:
            self._start(self._change(wanted))
            return
        wake_at = self.changes.wake_at()
        if wake_at is not None:
            self._change_timer = self.loop.call_at(wake_at, self.guarded, self._change_timer_fired)

    def _change_timer_fired(self) -> None:
        self._change_timer = None
        self._consider_change()

    async def _change(self, wanted: FindSpares) -> None:
        self._change_settled = settled = self.loop.create_future()
        try:
            spares = await self._spares.find(wanted.positions, self.changes.ensemble, lambda: not self.stopped)
            if self.stopped:
                return
            now, changes = self.loop.time(), self.changes
            spares = self._spares.keep_spread(changes.ensemble, changes.still_due(spares, now))
            commit = changes.on_spares(spares, now)
            if self._part is not None:
                commit = await self._part.before_commit(commit)
            if commit is not None and await self._commit(commit):
                self._committed()
        except OctavoError as error:
            self.fail(error)
        finally:
            self._settle_change(settled)
        # Not after a cancellation or a defect: then the supervisor ends and runs nothing any more.
        self._consider_change()

    async def roll(self, place: Callable[[], Awaitable[Sequence[BookieId]]]) -> bool:
        """Begin a new fragment at LAC + 1 on the bookies that ``place`` gives (rule U6); whether there is one. Where
        all copies are required it begins at LAFR + 1, and new bookies get copies first (rule G3). Raises what ``place``
        raises; any other failure is the writer's. A change that has begun ends with the writer, not with the caller."""
        await self.wait_change_settled()
        while not self.stopped and not self.changes.begin_roll():
            await asyncio.sleep(0)  # a change that was decided in this turn begins in the next one
            await self.wait_change_settled()
        if self.stopped:
            return False
        self._change_settled = settled = self.loop.create_future()
        try:
            ensemble = await place()
        except BaseException:
            self.changes.on_placement(None)
            self._settle_change(settled)
            self._consider_change()
            raise
        return await self._roll_to(ensemble, settled)

    async def _roll_to(self, ensemble: Sequence[BookieId], settled: asyncio.Future[bool]) -> bool:
        commit = self.changes.on_placement(None if self.stopped else ensemble)
        if self.changes.phase is Phase.IDLE:
            self._settle_change(settled)
            return False
        self._start(self._commit_roll(commit, settled))
        await asyncio.wait([settled])
        return settled.result() and not self.stopped

    async def _commit_roll(self, chosen: Commit | None, settled: asyncio.Future[bool]) -> None:
        made = False
        try:
            commit = chosen if self._part is None else await self._part.before_commit(chosen)
            if commit is not None and await self._commit(commit):
                self._committed(rolling=True)
                made = True
        except OctavoError as error:
            self.fail(error)
        finally:
            self._settle_change(settled, made=made)
        self._consider_change()

    def _settle_change(self, settled: asyncio.Future[bool], *, made: bool = False) -> None:
        self._change_settled = None
        settled.set_result(made)

    def _committed(self, *, rolling: bool = False) -> None:
        """The metadata have the new ensemble: use it. ``rolling``: no bookie has failed."""
        before = self.changes.ensemble
        effects = self.changes.on_committed(self.loop.time())
        for position, (old, new) in enumerate(zip(before, self.changes.ensemble, strict=True)):
            if old != new:
                if not rolling:
                    log.info("ledger %d: %s replaced by %s: %s", self._ledger_id, old, new, self.answer(position))
                    self.pool.counts.ensemble_changes[reason_of(self.refusals[position])] += 1
                    self.pool.put_in_quarantine(old)
                self._end_pause(position)
                self.refusals[position] = None
                self._remove_listeners[position]()
                self.connections[position] = for_term(self.pool.get(new), self._term)
                self._remove_listeners[position] = self._listen(position)
        self._spares.none_because = None
        self.perform(effects)
        for position in range(self._quorums.ensemble_size):
            self._make_ready(position)

    # --- the quorum timeout -----------------------------------------------------------------------------------------

    def watch_quorum(self) -> None:
        """Let the quorum timeout run, if anything is pending."""
        if self._quorum_timer is None and self.pipeline.pending_since is not None:
            self._arm_quorum_timer(self.loop.time() + self.options.add_quorum_timeout_seconds)

    def _arm_quorum_timer(self, deadline: float) -> None:
        self._quorum_timer = self.loop.call_at(deadline, self.guarded, self._quorum_deadline_reached)

    def _quorum_deadline_reached(self) -> None:
        self._quorum_timer = None
        since = self.pipeline.pending_since
        if since is None:
            return
        deadline = since + self.options.add_quorum_timeout_seconds
        if deadline > self.loop.time():
            self._arm_quorum_timer(deadline)
            return
        if self._waits_for_metadata and self._grace_since != since:
            # The store may have been asked just now, and its answer may be waiting to be read in this turn of the loop.
            self._grace_since, self._grace_started_at = since, self.loop.time()
            self._arm_quorum_timer(self._grace_started_at + _METADATA_GRACE * self.options.add_quorum_timeout_seconds)
            return
        self.fail(self._too_late())

    @property
    def _waits_for_metadata(self) -> bool:
        return self._spares.asked_metadata_at is not None or self.changes.phase is Phase.COMMITTING

    def _too_late(self) -> OctavoError:
        """Why adds did not reach their ack quorum in time: for lack of bookies, or because the metadata store did not
        answer."""
        message = (
            f"ledger {self._ledger_id}: adds did not reach their ack quorum within "
            f"{self.options.add_quorum_timeout_seconds:g} s; {self.describe()}"
        )
        if metadata_did_not_answer(self._spares.asked_metadata_at, self.changes.phase, self._grace_started_at):
            return MetadataUnavailableError(f"{message}; the metadata store did not confirm the change of the ensemble")
        if isinstance(self._spares.none_because, MetadataUnavailableError):
            return MetadataUnavailableError(f"{message}; {self._spares.none_because.message}")
        if self._denied_everywhere:
            return UnauthorizedError(message)
        no_spare = self._spares.none_because
        return QuorumLostError(message if no_spare is None else f"{message}; {no_spare.message}")

    def _fails_for_denials(self) -> bool:
        """Fail at once if adds wait, and so many bookies deny this client that they cannot be acknowledged."""
        usable_mask = sum(1 << position for position, one in enumerate(self.connections) if not one.denied)
        stripes = range(self._quorums.ensemble_size)
        if self.pipeline.pending_since is not None and not all(
            self._quorums.can_be_acknowledged(entry_id, usable_mask) for entry_id in stripes
        ):
            self.fail(UnauthorizedError(f"ledger {self._ledger_id}: its bookies deny this client; {self.describe()}"))
            return True
        return False

    @property
    def _denied_everywhere(self) -> bool:
        """Every bookie that has not confirmed denies this client: another attempt cannot help."""
        open_positions = [
            position for position in range(len(self.connections)) if self.pipeline.unconfirmed_at(position)
        ]
        return bool(open_positions) and all(
            not self.connections[position].connected
            and isinstance(self.connections[position].last_error, UnauthorizedError)
            for position in open_positions
        )

    def answer(self, position: int) -> str:
        """The last answer of the bookie in the slot, for an error message."""
        connection, refusal = self.connections[position], self.refusals[position]
        if not connection.connected and connection.last_error is not None:
            return f"not connected ({connection.last_error.message})"
        if refusal is not None:
            return f"{type(refusal).__name__}: {refusal.message}"
        if not connection.connected:
            return "not connected"
        lacking = self.pipeline.unconfirmed_at(position) or (self._part is not None and self._part.lacks(position))
        return "no answer yet" if lacking else "has confirmed everything"
