"""The segment of a log that its leader writes."""

from typing import Protocol

from octavo.client.write.core import Core, CoreFront
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import LedgerId


class ActiveSegment:
    """A segment that this client writes. What happens to it is told to :meth:`listen`'s listener, once there is one.

    The log's writer keeps payloads and futures, and sends adds again to another segment when this one fails."""

    def __init__(self, ledger_id: LedgerId) -> None:
        self.ledger_id = ledger_id
        self.first_position = 0
        self.core: Core
        """Set once the ledger is created."""
        self.front = CoreFront(acknowledged=self._acknowledged, freed=self._freed, failed=self._failed)
        """What its core is to tell."""
        self.full_at = 0
        """The length of the ledger, acknowledged or not, from which on the log is to roll."""
        self.failure: OctavoError | None = None
        """Why it failed; None while it has not."""
        self._listener: SegmentListener | None = None

    def listen(self, listener: "SegmentListener") -> None:
        """Tell ``listener`` what happens from now on."""
        self._listener = listener

    def begin_at(self, position: int) -> None:
        """The first entry of the ledger gets this position."""
        self.first_position = self.core.position_shift = position

    def _acknowledged(self, stop: int, payload_bytes: int) -> None:
        assert self._listener is not None, "nothing was sent before the listener came"
        self._listener.segment_acknowledged(self, stop, payload_bytes)

    def _freed(self, entries: int, payload_bytes: int) -> None:
        assert self._listener is not None, "nothing was sent before the listener came"
        self._listener.segment_full(self, entries, payload_bytes)

    def _failed(self, error: OctavoError) -> None:
        self.failure = error
        if self._listener is not None:
            self._listener.segment_failed(self, error)


class SegmentListener(Protocol):
    """The writer of the log that a segment belongs to."""

    def segment_acknowledged(self, segment: ActiveSegment, stop: int, payload_bytes: int) -> None:
        """Everything in the segment below the position ``stop`` is acknowledged, ``payload_bytes`` more than before."""

    def segment_full(self, segment: ActiveSegment, entries: int, payload_bytes: int) -> None:
        """``entries`` more entries have all of their copies; only of a segment that requires them (rule G2)."""

    def segment_failed(self, segment: ActiveSegment, error: OctavoError) -> None:
        """The segment takes no more adds."""
