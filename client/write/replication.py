"""The pipeline's shell: sends runs to the bookies of the ensemble, and takes in their answers.

It has the other parts of replication around it, each with one subject:

* :mod:`octavo.client.write.slots`: through which connection each bookie is reached, and what it answered last;
* :mod:`octavo.client.write.refusals`: what it means that a bookie has not done what it was sent;
* :mod:`octavo.client.write.replacing`: replaces bookies and begins new fragments;
* :mod:`octavo.client.write.quorum_timer`: ends the writer when adds have waited too long;
* :mod:`octavo.client.write.explicit_lacs`: explicit LACs;
* :mod:`octavo.client.write.part`: what a kind of ledger adds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from octavo.client.choose.placer import Placer
from octavo.client.counts import AddCounts
from octavo.client.options import ClientOptions
from octavo.client.wire.outcome import Outcome
from octavo.client.wire.pool import ConnectionPool
from octavo.client.write.ensemble_changes import Commit, EnsembleChanges
from octavo.client.write.explicit_lacs import ExplicitLacs
from octavo.client.write.guard import Guard
from octavo.client.write.part import Address, Part
from octavo.client.write.pipeline import Accept, Acknowledge, Effect, Pipeline, Send
from octavo.client.write.quorum_timer import QuorumTimer
from octavo.client.write.refusals import ends_unnoticed, failure_of, is_reason_to_replace
from octavo.client.write.replacing import Replacing
from octavo.client.write.slots import Slots
from octavo.client.write.spares import Spares
from octavo.metadata.ledger.term import Term
from octavo.protocol.errors import InternalError, OctavoError
from octavo.protocol.messages import Added, AddFlag, Op
from octavo.protocol.packs import encode_tail


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
        self.address = Address(term.ledger_id, ledger_key, flags, term.number)
        self.options = options
        self._on_acknowledged = on_acknowledged
        self.loop = asyncio.get_running_loop()
        self.pool = pool
        self.guard = Guard(term.ledger_id, on_failure)
        self.stopped = False
        quorums = term.quorums
        self._members = quorums.ensemble_size
        self._shared_body = not quorums.striped
        self._counts = AddCounts(pool.counts) if not flags & AddFlag.RECOVERY else None
        """None for write-backs, which are no adds of an application."""
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
            self.changes = EnsembleChanges(self.pipeline, quorums, term.bookies, **times)
        else:
            self.pipeline = part.begin(self, quorums, first_entry_id, length)
            self.changes = part.changes(quorums, term.bookies, **times)
        self.slots = Slots(term, self, self.guard, pool=pool, pause_seconds=options.resend_delay_seconds)
        self.explicit_lacs = ExplicitLacs(self.address, self.slots, timeout_seconds=options.request_timeout_seconds)
        self.replacing = Replacing(
            self.changes,
            self.slots,
            Spares(pool, placer, quorums, needs_terms=bool(term.number)),
            self.guard,
            part,
            commit=commit,
            start=start,
            on_committed=self._go_on,
        )
        self.quorum_timer = QuorumTimer(
            self.pipeline,
            quorums,
            self.slots,
            self.guard,
            self.replacing.progress,
            timeout_seconds=options.add_quorum_timeout_seconds,
        )
        self._make_all_ready()

    def push(self, entries: Sequence[bytes], *, sealed_bytes: int, length_after: int) -> None:
        """Send the sealed entries of one frame to the bookies."""
        now = self.loop.time()
        self.explicit_lacs.unsent = 0
        if not self.quorum_timer.armed:
            self.quorum_timer.begin(now)
        effects = self.pipeline.push(entries, sealed_bytes=sealed_bytes, length_after=length_after, now=now)
        if self._counts is not None:
            self._counts.pushed(len(entries), self.pipeline.next_entry_id - 1)
        self.perform(effects)
        if self.changes.troubled_since:
            self.replacing.consider_unless_timed()
        if self._part is not None:
            self._part.pushed()

    def stop(self) -> None:
        """Acknowledge and send nothing from now on."""
        if not self.stopped and self._counts is not None:
            self._counts.failed(self.pipeline.unacknowledged)
        self.stopped = True
        self.pipeline.stop()
        self.explicit_lacs.unsent = 0
        self.quorum_timer.stop()
        self.replacing.stop()
        self.slots.stop()
        if self._part is not None:
            self._part.stop()

    def close(self) -> None:
        """Stop, and stop listening to the connections."""
        self.stop()
        self.slots.close()

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
            taken = self.slots.connections[position].post(
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
            self._counts.acknowledged(effect.first, effect.last, effect.payload_bytes)
        self._on_acknowledged(effect.first, effect.last, effect.payload_bytes)

    # --- answers --------------------------------------------------------------------------------------------------

    def _outcome(self, position: int, number: int, tenure: int, outcome: Outcome) -> None:
        try:
            if type(outcome) is Added:
                if self.slots.refusals[position] is not None or self.changes.troubled_since:
                    self.end_trouble(position, tenure)
                effects = self.pipeline.on_confirmed(position, number, tenure)
                if effects:
                    self.perform(effects)
            else:
                self._not_confirmed(position, number, tenure, outcome)
            if self._part is not None:
                self._part.answered()
        except Exception as error:  # as `Guard.run` does, without its call for every answer
            self.guard.broken(error)
            raise

    def end_trouble(self, position: int, tenure: int) -> None:
        """The bookie in the slot has done what it was asked."""
        if tenure == self.pipeline.tenure(position):
            self.slots.refusals[position] = None
            self.changes.on_confirmed(position)

    def _not_confirmed(self, position: int, number: int, tenure: int, outcome: Outcome) -> None:
        self.pipeline.on_failed(position, number, tenure)
        self.refused(position, tenure, outcome)

    def refused(self, position: int, tenure: int, outcome: Outcome) -> None:
        """A bookie has not done what the pipeline sent it."""
        error = outcome if isinstance(outcome, OctavoError) else InternalError(f"answered with {outcome!r}")
        if tenure != self.pipeline.tenure(position):
            return  # the bookie has been replaced: its answer does not matter
        self.slots.refusals[position] = error
        bookie_id = self.slots.connections[position].bookie_id
        failure = failure_of(error, bookie_id, ledger_id=self.address.ledger_id, term=self.address.term)
        if failure is not None:
            self.guard.fail(failure)
            return
        if is_reason_to_replace(error):
            self.changes.on_refused(position, self.loop.time())
            self.replacing.consider()
        if ends_unnoticed(error):
            self.slots.pause(position)

    # --- slots ----------------------------------------------------------------------------------------------------

    def lacks(self, position: int) -> bool:
        """Whether an entry waits for the bookie in the slot."""
        if self.pipeline.unconfirmed_at(position):
            return True
        return self._part is not None and self._part.lacks(position)

    def slot_changed(self, position: int) -> None:
        """The state of the connection to the bookie in the slot has changed."""
        connection = self.slots.connections[position]
        if connection.denied and self.quorum_timer.fails_for_denials():
            return
        if not connection.connected:
            self.changes.on_lost(position, self.loop.time())
            self.replacing.consider()
        self._make_ready(position)

    def pause_over(self, position: int) -> None:
        """The bookie in the slot may be sent again what it refused."""
        self._make_ready(position)

    def _make_ready(self, position: int) -> None:
        if self._part is not None and not self._part.connecting(position):
            return
        if self.slots.connections[position].connected:
            self.changes.on_connected(position)
        if self.slots.takes(position):
            self.perform(self.pipeline.on_ready(position))
            self.explicit_lacs.send_to(position)

    def _make_all_ready(self) -> None:
        for position in range(self._members):
            self._make_ready(position)

    def _go_on(self, effects: Sequence[Effect]) -> None:
        """The slots have other bookies."""
        self.perform(effects)
        self._make_all_ready()
