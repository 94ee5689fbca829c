"""The part of replication that a ledger with deferred sync adds: it sends forces, and asks for them in time (rule W10).

A force that a bookie refuses or does not answer is treated as an add that it refuses or does not answer.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from octavo.client.wire.connection import BookieConnection
from octavo.client.wire.outcome import Outcome
from octavo.client.write.deferred.pipeline import DeferredPipeline
from octavo.client.write.ensemble_changes import Commit, EnsembleChanges
from octavo.client.write.part import Shell
from octavo.client.write.pipeline import Accept, Acknowledge, Effect, Pipeline, SendForce
from octavo.protocol.errors import UnsupportedOperationError
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import CAPABILITY_DEFERRED_SYNC, AddFlag, Forced, Op
from octavo.protocol.packs import encode_tail
from octavo.protocol.quorums import Quorums


class Forces:
    """See the module, and :class:`octavo.client.write.part.Part`. ``on_forced(last)`` is called when the LAC has risen;
    ``on_acknowledged`` of the replication tells what is accepted.

    A force of what is not forced yet is requested after ``force_interval_seconds``, and whenever the pipeline wants it.
    """

    flags = AddFlag.DEFERRED_SYNC

    pipeline: DeferredPipeline
    _shell: Shell

    def __init__(self, on_forced: Callable[[int], None]) -> None:
        self._on_forced = on_forced
        self._force_timer: asyncio.TimerHandle | None = None

    def begin(self, shell: Shell, quorums: Quorums, first_entry_id: int, length: int) -> Pipeline:
        """As :meth:`Part.begin`."""
        assert first_entry_id == length == 0, "only a new ledger is written with deferred sync"
        self._shell = shell
        options = shell.options
        self.pipeline = DeferredPipeline(
            quorums, retained_bytes_max=options.retained_bytes_max, unforced_bytes_max=options.unforced_bytes_max
        )
        return self.pipeline

    def changes(self, quorums: Quorums, ensemble: Sequence[BookieId], **times: float) -> EnsembleChanges:
        """As :meth:`Part.changes`: nothing of its own."""
        return EnsembleChanges(self.pipeline, quorums, ensemble, **times)

    async def before_commit(self, chosen: Commit | None) -> Commit | None:
        """As :meth:`Part.before_commit`: nothing of its own."""
        return chosen

    def lacks(self, position: int) -> bool:
        """As :meth:`Part.lacks`: what is acknowledged is not waited for."""
        del position
        return False

    def answered(self) -> None:
        """As :meth:`Part.answered`: nothing."""

    def pushed(self) -> None:
        """As :meth:`Part.pushed`."""
        if self.pipeline.wants_force:
            self.force()
        elif self._force_timer is None:
            self._force_timer = self._shell.loop.call_later(
                self._shell.options.force_interval_seconds, self._shell.guard.run, self._force_interval_over
            )

    def force(self) -> None:
        """Have everything pushed so far forced."""
        self._shell.perform(self.pipeline.request_force(self._shell.loop.time()))
        self._shell.quorum_timer.watch()

    def _force_interval_over(self) -> None:
        self._force_timer = None
        self.force()

    def stop(self) -> None:
        """As :meth:`Part.stop`."""
        if self._force_timer is not None:
            self._force_timer.cancel()
            self._force_timer = None

    # --- sending --------------------------------------------------------------------------------------------------

    def perform(self, effect: Effect) -> None:
        """As :meth:`Part.perform`."""
        if isinstance(effect, SendForce):
            self._send_force(effect)
        elif isinstance(effect, Accept):
            self._shell.tell(effect)
        else:
            assert isinstance(effect, Acknowledge), "no books are kept here"
            self._on_forced(effect.last)

    def _send_force(self, effect: SendForce) -> None:
        position, number, tenure = effect.position, effect.number, effect.tenure
        address = self._shell.address
        tail = encode_tail(Op.FORCE, address.ledger_id, address.ledger_key, 0, ((effect.first, effect.last),))
        taken = self._shell.slots.connections[position].post(
            tail,
            partial(self._force_outcome, position, number, tenure),
            timeout_seconds=self._shell.options.request_timeout_seconds,
        )
        if not taken:
            self.pipeline.on_force_failed(position, number, tenure)

    def _force_outcome(self, position: int, number: int, tenure: int, outcome: Outcome) -> None:
        try:
            if type(outcome) is Forced:
                self._shell.end_trouble(position, tenure)
                self._shell.perform(self.pipeline.on_forced(position, number, tenure))
            else:
                self.pipeline.on_force_failed(position, number, tenure)
                self._shell.refused(position, tenure, outcome)
        except Exception as error:
            self._shell.guard.broken(error)
            raise

    # --- slots ----------------------------------------------------------------------------------------------------

    def connecting(self, position: int) -> bool:
        """As :meth:`Part.connecting`: a bookie that cannot defer takes no adds, and another process of one has lost
        what it had accepted."""
        connection = self._shell.slots.connections[position]
        if isinstance(connection, BookieConnection) and connection.connected:
            if CAPABILITY_DEFERRED_SYNC not in connection.capabilities:
                self._shell.loop.call_soon(self._shell.guard.run, self._cannot_defer, position)
                return False
            self.pipeline.on_connected(position, connection.boot_id)
        return True

    def _cannot_defer(self, position: int) -> None:
        if not self._shell.stopped:
            bookie_id = self._shell.slots.connections[position].bookie_id
            self._shell.guard.fail(
                UnsupportedOperationError(
                    f"ledger {self._shell.address.ledger_id}: bookie {bookie_id} "
                    'runs a version without deferred sync; upgrade it, or create the ledger with sync="immediate"'
                )
            )
