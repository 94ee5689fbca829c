"""The slots of a writer's ensemble: through which connection each bookie is reached, and what it answered last.

Each slot is one bookie's :class:`~octavo.client.wire.connection.BookieConnection`. It is *held* in the pipeline
while the connection takes nothing (it is down, or over its bounds; its listener is called when that ends), and for
``resend_delay_seconds`` after the bookie refused an add or did not answer it in time: that is a *pause*. A slot that is
held costs nothing; afterwards the pipeline decides what to send.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from octavo.client.wire.connection import BookieConnection
from octavo.client.wire.pool import ConnectionPool
from octavo.client.wire.terms_known import TermConnection, for_term
from octavo.client.write.guard import Guard
from octavo.client.write.refusals import last_answer
from octavo.metadata.ledger.term import Term
from octavo.protocol.errors import BookieInDoubtError, OctavoError, UnauthorizedError
from octavo.protocol.ids import BookieId


class _SlotListener:
    """Tells the slots of a writer of one of their connections."""

    __slots__ = ("_position", "_slots")

    def __init__(self, slots: "Slots", position: int) -> None:
        self._slots = slots
        self._position = position

    def __call__(self, real: BookieConnection) -> None:
        self._slots.heard(self._position, real)


class SlotsOwner(Protocol):
    """The side that sends through slots. Called from the event loop, never after :meth:`Slots.close`."""

    def slot_changed(self, position: int) -> None:
        """The connection was established, is lost, takes something again, or the bookie denies this client."""

    def pause_over(self, position: int) -> None:
        """The bookie may be sent again what it refused."""

    def lacks(self, position: int) -> bool:
        """Whether an entry waits for the bookie."""


class Slots:
    """See the module. ``term``: its last fragment has the bookies."""

    def __init__(
        self, term: Term, owner: SlotsOwner, guard: Guard, *, pool: ConnectionPool, pause_seconds: float
    ) -> None:
        self._term = term.number
        self._owner = owner
        self._guard = guard
        self._pool = pool
        self._pause_seconds = pause_seconds
        self._loop = asyncio.get_running_loop()
        size = len(term.bookies)
        self.connections: list[TermConnection] = [self._connection_to(bookie_id) for bookie_id in term.bookies]
        """By slot. A plain attribute, because every request is posted through it."""
        self.refusals: list[OctavoError | None] = [None] * size
        """By slot: the last refusal, while nothing was confirmed since."""
        self._pauses: list[asyncio.TimerHandle | None] = [None] * size
        self._remove_listeners = [self._listen(position) for position in range(size)]

    def _connection_to(self, bookie_id: BookieId) -> TermConnection:
        return for_term(self._pool.get(bookie_id), self._term)

    def _listen(self, position: int) -> Callable[[], None]:
        return self._pool.get(self.connections[position].bookie_id).add_state_listener(_SlotListener(self, position))

    def heard(self, position: int, real: BookieConnection) -> None:
        """The state of the connection of this slot has changed."""
        self._guard.run(self._connection_changed, position, real)

    # --- what is known ----------------------------------------------------------------------------------------------

    def takes(self, position: int) -> bool:
        """Whether the bookie may be sent something now: the connection takes it, and there is no pause."""
        return self._pauses[position] is None and self.connections[position].writable

    @property
    def are_in_doubt(self) -> bool:
        """Whether a bookie refuses this writer's adds because it lost a disk during the term, or before it (rule
        T12)."""
        return any(isinstance(refusal, BookieInDoubtError) for refusal in self.refusals)

    @property
    def usable_mask(self) -> int:
        """Mask of the slots whose bookies do not deny this client."""
        return sum(1 << position for position, connection in enumerate(self.connections) if not connection.denied)

    def are_denied(self, positions: Iterable[int]) -> bool:
        """Whether there is no connection to any of these bookies because it denies this client."""
        connections = [self.connections[position] for position in positions]
        return all(not one.connected and isinstance(one.last_error, UnauthorizedError) for one in connections)

    def describe(self) -> str:
        """Each bookie of the ensemble and its last answer, for an error message."""
        return "; ".join(
            f"bookie {connection.bookie_id}: {self.answer(position)}"
            for position, connection in enumerate(self.connections)
        )

    def answer(self, position: int) -> str:
        """The last answer of the bookie in the slot, for an error message."""
        connection = self.connections[position]
        return last_answer(
            self.refusals[position],
            connected=connection.connected,
            connection_error=connection.last_error,
            lacks=self._owner.lacks(position),
        )

    # --- what happens -----------------------------------------------------------------------------------------------

    def _connection_changed(self, position: int, real: BookieConnection) -> None:
        self.connections[position] = connection = for_term(real, self._term)
        if not connection.connected:
            self._end_pause(position)
        self._owner.slot_changed(position)

    def pause(self, position: int) -> None:
        """Send the bookie nothing for a while, unless there is a pause already."""
        if self._pauses[position] is None:
            self._pauses[position] = self._loop.call_later(
                self._pause_seconds, self._guard.run, self._pause_over, position
            )

    def _pause_over(self, position: int) -> None:
        self._pauses[position] = None
        self._owner.pause_over(position)

    def _end_pause(self, position: int) -> None:
        pause, self._pauses[position] = self._pauses[position], None
        if pause is not None:
            pause.cancel()

    def replace(self, position: int, bookie_id: BookieId) -> None:
        """Another bookie has the slot."""
        self._end_pause(position)
        self.refusals[position] = None
        self._remove_listeners[position]()
        self.connections[position] = self._connection_to(bookie_id)
        self._remove_listeners[position] = self._listen(position)

    def stop(self) -> None:
        """End every pause: nothing is sent any more."""
        for position in range(len(self.connections)):
            self._end_pause(position)

    def close(self) -> None:
        """Stop listening to the connections."""
        for remove in self._remove_listeners:
            remove()
        self._remove_listeners.clear()
