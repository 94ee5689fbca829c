"""Sends explicit LACs to the bookies of a writer, and again to those that could not be reached.

:mod:`octavo.client.write.lac_sender` decides when there is one. Losing it is harmless (rule W2), but a follower may
depend on this very bookie.
"""

from functools import partial

from octavo.client.wire.outcome import Outcome
from octavo.client.write.part import Address
from octavo.client.write.slots import Slots
from octavo.protocol.errors import BookieUnavailableError
from octavo.protocol.messages import Op
from octavo.protocol.packs import encode_tail


class ExplicitLacs:
    """See the module."""

    __slots__ = ("_address", "_sealed", "_slots", "_timeout_seconds", "unsent")

    def __init__(self, address: Address, slots: Slots, *, timeout_seconds: float) -> None:
        self._address = address
        self._slots = slots
        self._timeout_seconds = timeout_seconds
        self._sealed = b""
        self.unsent = 0
        """Mask of the slots that have not been sent the explicit LAC. A plain attribute, because each push sets it to
        0: every entry carries a LAC that is at least as high."""

    def write(self, sealed: bytes) -> None:
        """Send this explicit LAC to every bookie, now or when it can be reached again, unless an entry is pushed before
        that."""
        slots = range(len(self._slots.connections))
        self._sealed = sealed
        self.unsent = (1 << len(slots)) - 1
        for position in slots:
            self.send_to(position)

    def send_to(self, position: int) -> None:
        """Send it to the bookie, if that lacks it. The slot takes requests."""
        if not self.unsent >> position & 1:
            return
        ledger_id, ledger_key, _, term = self._address
        tail = encode_tail(Op.WRITE_LAC, ledger_id, ledger_key, term, self._sealed)
        on_outcome = partial(self._outcome, position, self._sealed)
        if self._slots.connections[position].post(tail, on_outcome, timeout_seconds=self._timeout_seconds):
            self.unsent &= ~(1 << position)

    def _outcome(self, position: int, sealed: bytes, outcome: Outcome) -> None:
        if isinstance(outcome, BookieUnavailableError) and sealed is self._sealed:
            self.unsent |= 1 << position
