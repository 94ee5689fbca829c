"""Quorum arithmetic: which bookies hold an entry, when it is acknowledged, when answers cover every possible ack
quorum.

Bookies of an ensemble are named by their slot, 0 to E - 1; sets of slots are bit masks (bit ``p`` for slot
``p``), cheap to copy, compare and hash. All of it follows from three numbers:

* E, the ensemble size; Qw, the copies of each entry; Qa, the copies that make it acknowledged; E >= Qw >= Qa >= 1.
* The *write set* of entry ``i`` is the Qw slots ``i % E, i % E + 1, ...`` (mod E). It depends on ``i % E`` only, so
  there are at most E different ones.
* *Coverage* (docs/glossary.md): answers from a cohort cover it when ``answers >= |cohort| - Qa + 1``: then every
  possible ack quorum inside the cohort contains one that answered.
"""

from dataclasses import field
from functools import lru_cache

from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.limits import E_MAX


def quorums_of(ensemble_size: int, write_quorum: int, ack_quorum: int) -> "Quorums":
    """As :class:`Quorums`; the same object for the same numbers, of which a program uses few."""
    if type(ensemble_size) is int and type(write_quorum) is int and type(ack_quorum) is int:
        return _quorums_of(ensemble_size, write_quorum, ack_quorum)
    return Quorums(ensemble_size, write_quorum, ack_quorum)  # raises


@dataclass(frozen=True, slots=True)
class Quorums:
    """E, Qw and Qa of a ledger, checked, with the questions that depend on them alone.

    Examples:
        >>> octavo.Quorums(5, 3, 2).write_quorum
        3

    Raises:
        InvalidArgumentError: ``E_MAX >= E >= Qw >= Qa >= 1`` does not hold.
    """

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    striped: bool = field(init=False, repr=False, compare=False)
    """Whether a bookie holds only part of a ledger's entries."""
    full_mask: int = field(init=False, repr=False, compare=False)
    """Every slot of the ensemble."""
    _masks: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, value in (("E", self.ensemble_size), ("Qw", self.write_quorum), ("Qa", self.ack_quorum)):
            if type(value) is not int:
                raise InvalidArgumentError(f"{name} must be an integer, not {value!r}")
        if not E_MAX >= self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            raise InvalidArgumentError(
                f"{E_MAX} >= E >= Qw >= Qa >= 1 must hold; got E={self.ensemble_size}, Qw={self.write_quorum}, "
                f"Qa={self.ack_quorum}"
            )
        masks = tuple(
            sum(1 << position for position in self.write_set(residue)) for residue in range(self.ensemble_size)
        )
        object.__setattr__(self, "striped", self.ensemble_size != self.write_quorum)
        object.__setattr__(self, "full_mask", (1 << self.ensemble_size) - 1)
        object.__setattr__(self, "_masks", masks)

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """Slots that hold ``entry_id``, the preferred one first (rule W1)."""
        size = self.ensemble_size
        return tuple((entry_id + offset) % size for offset in range(self.write_quorum))

    def write_mask(self, entry_id: int) -> int:
        """The write set of ``entry_id`` as a mask."""
        return self._masks[entry_id % self.ensemble_size]

    def residues_at(self, position: int) -> tuple[int, ...]:
        """The residues ``entry_id % E`` of the entries that ``position`` holds, ascending."""
        return tuple(residue for residue, mask in enumerate(self._masks) if mask >> position & 1)

    def first_unacknowledged(self, first: int, last: int, confirmed_mask: int) -> int:
        """The lowest id in ``first..last`` that is not on Qa bookies of its write set, or ``last + 1`` (rule W1).

        All ids of the range must have been confirmed by the same slots, each for the entries it holds.
        """
        size = self.ensemble_size
        for entry_id in range(first, min(first + size, last + 1)):
            if (confirmed_mask & self._masks[entry_id % size]).bit_count() < self.ack_quorum:
                return entry_id
        return last + 1

    def covers(self, cohort_mask: int, answered_mask: int) -> bool:
        """Whether the answers cover the cohort: every Qa of its members include one that answered (rule F4)."""
        return (answered_mask & cohort_mask).bit_count() >= cohort_mask.bit_count() - self.ack_quorum + 1

    def covers_every_write_set(self, answered_mask: int) -> bool:
        """Coverage of every write set of the ensemble (rule F2)."""
        return all(self.covers(mask, answered_mask) for mask in self._masks)

    def can_be_acknowledged(self, entry_id: int, usable_mask: int) -> bool:
        """Whether enough of the entry's write set is usable for it to reach Qa (rule W8)."""
        return (usable_mask & self.write_mask(entry_id)).bit_count() >= self.ack_quorum


@lru_cache(maxsize=64)
def _quorums_of(ensemble_size: int, write_quorum: int, ack_quorum: int) -> Quorums:
    return Quorums(ensemble_size, write_quorum, ack_quorum)
