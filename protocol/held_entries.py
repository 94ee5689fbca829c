"""The entries of a ledger that a bookie holds, as repair asks for them, and the ledgers of which its denials count.
Pure."""

from collections.abc import Mapping
from dataclasses import field
from typing import Final, NamedTuple, Self

from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.places import place

UNSURE_EXCEPTIONS_MAX: Final = 4096
"""Most exceptions of a :class:`Doubt`: they are written with every manifest of the bookie."""

TERM_FLOORS_MAX: Final = 4096
"""Most term floors of a :class:`Doubt`, for the same reason."""


class Holdings(NamedTuple):
    """The ids asked for that a bookie lacks, up to ``last_covered``.

    Every id asked for up to there is held, or in a run of ``missing`` (it is not held), or in a run of ``unknown``
    (damage or doubt hides whether it is), or has been trimmed and need not be held (rule U5). Runs are
    ``(first, last)``, both inclusive, ascending and apart; they may span ids that were not asked for (other residues).
    Nothing is said of ids above ``last_covered``.
    """

    last_covered: int
    missing: tuple[tuple[int, int], ...]
    unknown: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Doubt:
    """The doubt of a bookie that may have lost acknowledged entries, keys and fences (rules B4, D1 and D2).

    It has two halves. The *floor* is :attr:`stop`: ordinary adds to ledgers with lower ids are refused for ever. Of the
    same ledgers the bookie was *unsure* at first, that is, it denied no entry; it becomes sure of one after another.

    Of a stream, both halves end at a term, once the bookie has learnt it (rule T12). What it may have lost was of terms
    that had been opened when the doubt began. It takes ordinary adds of later terms, and may deny their entries.
    """

    stop: int
    """Ledgers with this id or a higher one were created after the doubt began."""
    sure_below: int = 0
    """The bookie is sure of ledgers with lower ids, except for those in :attr:`exceptions`."""
    exceptions: Mapping[int, int] = field(default_factory=dict)
    """Ledger id, below :attr:`sure_below` -> the first entry id of which the bookie is unsure."""
    term_floors: Mapping[int, int] = field(default_factory=dict)
    """Id of a stream, below :attr:`stop` -> a term, not below any that was open when the doubt began."""

    def unsure_from(self, ledger_id: int) -> int | None:
        """The first entry id of the ledger that the bookie must not deny; None: it may deny every entry."""
        if ledger_id < self.sure_below:
            return self.exceptions.get(ledger_id)
        return 0 if ledger_id < self.stop else None

    def last_unsure(self, ledger_id: int) -> int | None:
        """The last place of the stream that the bookie must not deny, if it must not deny all from
        :meth:`unsure_from` on; None: there is no last one."""
        floor = self.term_floors.get(ledger_id)
        return None if floor is None else place(floor + 1, 0) - 1

    def takes_adds(self, ledger_id: int, term: int) -> bool:
        """Whether the bookie takes ordinary adds of the term, which is 0 for a ledger with one writer."""
        if ledger_id >= self.stop:
            return True
        floor = self.term_floors.get(ledger_id)
        return floor is not None and term > floor

    @property
    def is_over(self) -> bool:
        """Whether the bookie is sure of every ledger. The floor stays."""
        return self.sure_below == self.stop and not self.exceptions

    @property
    def unsure_ledgers(self) -> int:
        """How many ledger ids the bookie is unsure of; many of them may not exist."""
        return self.stop - self.sure_below + len(self.exceptions)

    def narrowed(self, sure_below: int, exceptions: Mapping[int, int]) -> Self:
        """The same doubt with other bounds of what is unsure. Raises :class:`ValueError` for bounds that would make
        anything unsure again, and for more than :data:`UNSURE_EXCEPTIONS_MAX` exceptions."""
        if not self.sure_below <= sure_below <= self.stop:
            raise ValueError(f"sure_below must be between {self.sure_below} and {self.stop}, not {sure_below}")
        if len(exceptions) > UNSURE_EXCEPTIONS_MAX:
            raise ValueError(f"{len(exceptions)} exceptions are more than {UNSURE_EXCEPTIONS_MAX}")
        for ledger_id, first in exceptions.items():
            before = self.unsure_from(ledger_id)
            if not 0 <= ledger_id < sure_below or before is None or first < before:
                raise ValueError(f"ledger {ledger_id} cannot be unsure from entry {first} on: it was from {before} on")
        return type(self)(self.stop, sure_below, dict(sorted(exceptions.items())), self.term_floors)

    def with_term_floors(self, floors: Mapping[int, int]) -> Self:
        """The same doubt with these floors, too. A floor that is known stays: the bookie may have taken adds above it.
        Raises :class:`ValueError` for more than :data:`TERM_FLOORS_MAX`, and for what can be no floor."""
        if not all(0 <= ledger_id < self.stop and term > 0 for ledger_id, term in floors.items()):
            raise ValueError(f"a term floor is above 0, of a ledger below {self.stop}")
        known = {**floors, **self.term_floors}
        if len(known) > TERM_FLOORS_MAX:
            raise ValueError(f"{len(known)} term floors are more than {TERM_FLOORS_MAX}")
        return type(self)(self.stop, self.sure_below, self.exceptions, dict(sorted(known.items())))
