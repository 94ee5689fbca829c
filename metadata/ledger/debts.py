"""The promise of a ledger about all Qw copies of its entries, and its debts. Pure.

An add is acknowledged when Qa bookies have the entry. Of a ledger with full copies, every settled
fragment (an earlier one, or the last one once its end is written) says in its *debt* which of its entries may have
fewer than Qw copies (rule I9). Repair copies them and clears the debt.

A settled fragment without a debt of its own, in a ledger with full copies, owes all of its entries: the client that
ended it runs a version that knows no debts. Such a version keeps the debts that it finds, because it writes back the
fields that it does not know.
"""

import enum
from typing import Any, Final, NamedTuple


class FullCopies(enum.Enum):
    """The treatment of entries that are acknowledged and have fewer than Qw copies."""

    RECORDED = "recorded"
    """They are recorded as a debt, which repair pays."""
    REQUIRED = "required"
    """The writer keeps them until they have Qw copies, and does not go on without."""


class Debt(NamedTuple):
    """The entries of a fragment that may have fewer than Qw copies lie in ``first..last``, both inclusive; nothing is
    owed when ``last`` is below ``first``."""

    first: int
    last: int

    @property
    def is_empty(self) -> bool:
        """Whether every entry has Qw copies."""
        return self.last < self.first

    def within(self, first: int, last: int) -> "Debt":
        """The part of it in ``first..last``."""
        part = Debt(max(self.first, first), min(self.last, last))
        return NO_DEBT if part.is_empty else part

    def joined(self, other: "Debt") -> "Debt":
        """The smallest debt that contains both."""
        if self.is_empty or other.is_empty:
            return other if self.is_empty else self
        return Debt(min(self.first, other.first), max(self.last, other.last))


NO_DEBT: Final = Debt(0, -1)


def debt_in_range(kept: FullCopies | None, recorded: Debt | None, first: int, last: int | None) -> Debt:
    """The debt of the entries ``first..last`` of a fragment with this recorded debt. ``last``: None while the
    fragment is not settled: then it owes nothing yet."""
    if kept is None or last is None:
        return NO_DEBT
    return (Debt(first, last) if recorded is None else recorded).within(first, last)


def stored_debt(debt: Debt) -> list[int]:
    """The stored form of a debt."""
    return [] if debt.is_empty else [debt.first, debt.last]


def debt_from(stored: list[Any]) -> Debt:
    """The debt in its stored form. Raises :class:`ValueError`."""
    if not stored:
        return NO_DEBT
    if len(stored) != 2 or not all(type(one) is int for one in stored) or not 0 <= stored[0] <= stored[1]:
        raise ValueError(f"{stored} is not a debt")
    return Debt(*stored)
