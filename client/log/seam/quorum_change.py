"""A change of the quorums of a log that its leader is asked for. Pure."""

from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.quorums import Quorums, quorums_of


@dataclass(frozen=True, slots=True)
class QuorumChange:
    """The new values; None for what stays as it is. Raises :class:`InvalidArgumentError` where all stay."""

    ensemble_size: int | None = None
    write_quorum: int | None = None
    ack_quorum: int | None = None

    def __post_init__(self) -> None:
        if (self.ensemble_size, self.write_quorum, self.ack_quorum) == (None, None, None):
            raise InvalidArgumentError("give at least one of ensemble size, write quorum and ack quorum")

    def of(self, present: Quorums) -> Quorums:
        """The quorums after the change of ``present``. Raises :class:`InvalidArgumentError` if E >= Qw >= Qa would not
        hold."""
        return quorums_of(
            present.ensemble_size if self.ensemble_size is None else self.ensemble_size,
            present.write_quorum if self.write_quorum is None else self.write_quorum,
            present.ack_quorum if self.ack_quorum is None else self.ack_quorum,
        )
