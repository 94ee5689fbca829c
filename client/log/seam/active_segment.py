"""The segment of a log that its leader writes."""

from typing import Protocol

from octavo.client.write.segment_writer import SegmentWriter
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import LedgerId


class ActiveSegment:
    """A segment that this client writes. What happens to its ledger is told to :attr:`listener`, once there is one."""

    def __init__(self, ledger_id: LedgerId) -> None:
        self.ledger_id = ledger_id
        self.first_position = 0
        self.writer: SegmentWriter
        """Set once the ledger is created."""
        self.full_at = 0
        """The length of the ledger, acknowledged or not, from which on the log is to roll."""
        self.failure: OctavoError | None = None
        """Why it failed; None while it has not."""
        self._listener: SegmentListener | None = None

    def listen(self, listener: "SegmentListener") -> None:
        """Tell ``listener`` what happens from now on."""
        self._listener = listener

    def acknowledged(self, last: int) -> None:
        """The ledger's entries up to the id ``last`` are acknowledged."""
        assert self._listener is not None, "nothing was sent before the listener came"
        self._listener.segment_acknowledged(self, self.first_position + last + 1)

    def full(self, entries: int, payload_bytes: int) -> None:
        """``entries`` more entries of the ledger have all of the copies that they require."""
        assert self._listener is not None, "nothing was sent before the listener came"
        self._listener.segment_full(self, entries, payload_bytes)

    def failed(self, error: OctavoError) -> None:
        """The ledger's writer failed."""
        self.failure = error
        if self._listener is not None:
            self._listener.segment_failed(self, error)


class SegmentListener(Protocol):
    """The writer of the log that a segment belongs to."""

    def segment_acknowledged(self, segment: ActiveSegment, stop: int) -> None:
        """Everything in the segment below the position ``stop`` is acknowledged."""

    def segment_full(self, segment: ActiveSegment, entries: int, payload_bytes: int) -> None:
        """``entries`` more entries have all of their copies; only of a segment that requires them (rule G2)."""

    def segment_failed(self, segment: ActiveSegment, error: OctavoError) -> None:
        """The segment takes no more adds."""
