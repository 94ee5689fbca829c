"""The shell of a deferred pipeline: sends forces beside entries, and asks for them in time (rule W10).

Everything about connections, refusals and ensemble changes is that of
:class:`~octavo.client.write.replication.Replication`. A force that a bookie refuses or does not answer is treated as an
add that it refuses or does not answer.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from octavo.client.wire.connection import BookieConnection
from octavo.client.wire.wire import Outcome
from octavo.client.write.deferred.pipeline import DeferredPipeline
from octavo.client.write.front.adds import internal_error
from octavo.client.write.pipeline import Accept, Acknowledge, Full, Pipeline, SendForce
from octavo.client.write.replication import Replication
from octavo.protocol.errors import UnsupportedOperationError
from octavo.protocol.messages import CAPABILITY_DEFERRED_SYNC, AddFlag, Force, Forced
from octavo.protocol.quorums import Quorums


class DeferredReplication(Replication):
    """See the module. ``on_acknowledged`` tells what is accepted, ``on_forced(last)`` that the LAC has risen.

    A force of what is not forced yet is requested after ``force_interval_seconds``, and whenever the pipeline wants it.
    """

    pipeline: DeferredPipeline

    def __init__(self, *arguments: Any, on_forced: Callable[[int], None], **keywords: Any) -> None:
        self._on_forced = on_forced
        self._force_timer: asyncio.TimerHandle | None = None
        super().__init__(*arguments, flags=AddFlag.DEFERRED_SYNC, **keywords)

    def _make_pipeline(self, quorums: Quorums, first_entry_id: int, length: int) -> Pipeline:
        assert first_entry_id == length == 0, "only a new ledger is written with deferred sync"
        options = self._options
        return DeferredPipeline(
            quorums, retained_bytes_max=options.retained_bytes_max, unforced_bytes_max=options.unforced_bytes_max
        )

    def push(self, *arguments: Any, **keywords: Any) -> None:
        """See the base class."""
        super().push(*arguments, **keywords)
        if self.pipeline.wants_force:
            self.force()
        elif self._force_timer is None:
            self._force_timer = self._loop.call_later(
                self._options.force_interval_seconds, self._guarded, self._force_interval_over
            )

    def force(self) -> None:
        """Have everything pushed so far forced."""
        self._perform(self.pipeline.request_force(self._loop.time()))
        if self._quorum_timer is None and self.pipeline.pending_since is not None:
            self._arm_quorum_timer(self._loop.time() + self._options.add_quorum_timeout_seconds)

    def _force_interval_over(self) -> None:
        self._force_timer = None
        self.force()

    def stop(self) -> None:
        """See the base class."""
        super().stop()
        if self._force_timer is not None:
            self._force_timer.cancel()
            self._force_timer = None

    # --- sending --------------------------------------------------------------------------------------------------

    def _perform_other(self, effect: Acknowledge | Accept | SendForce | Full) -> None:
        if isinstance(effect, SendForce):
            self._send_force(effect)
        elif isinstance(effect, Accept):
            self._tell(effect)
        else:
            assert isinstance(effect, Acknowledge), "no books are kept here"
            self._on_forced(effect.last)

    def _send_force(self, effect: SendForce) -> None:
        position, number, tenure = effect.position, effect.number, effect.tenure
        request_id = self._next_request_id()
        force = Force(self._ledger_id, self._ledger_key, 0, ((effect.first, effect.last),))
        taken = self._connections[position].send(
            force.encode(request_id),
            request_id,
            partial(self._force_outcome, position, number, tenure),
            timeout_seconds=self._options.request_timeout_seconds,
        )
        if not taken:
            self.pipeline.on_force_failed(position, number, tenure)

    def _force_outcome(self, position: int, number: int, tenure: int, outcome: Outcome) -> None:
        try:
            if type(outcome) is Forced:
                self._end_trouble(position, tenure)
                self._perform(self.pipeline.on_forced(position, number, tenure))
            else:
                self.pipeline.on_force_failed(position, number, tenure)
                self._refused(position, tenure, outcome)
        except Exception as error:
            self._on_failure(internal_error(self._ledger_id, error))
            raise

    # --- slots ------------------------------------------------------------------------------------------------

    def _make_ready(self, position: int) -> None:
        connection = self._connections[position]
        if isinstance(connection, BookieConnection) and connection.connected:
            if CAPABILITY_DEFERRED_SYNC not in connection.capabilities:
                self._loop.call_soon(self._guarded, self._cannot_defer, position)
                return
            self.pipeline.on_connected(position, connection.boot_id)
        super()._make_ready(position)

    def _cannot_defer(self, position: int) -> None:
        if not self._stopped:
            self._on_failure(
                UnsupportedOperationError(
                    f"ledger {self._ledger_id}: bookie {self._connections[position].bookie_id} runs a version without "
                    'deferred sync; upgrade it, or create the ledger with sync="immediate"'
                )
            )
