"""What a state of the model is, and what may go wrong in it."""

from collections.abc import Iterable
from typing import Final

type State = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Metadata, bookies, clients, messages in flight (sorted), budget left in the order of :data:`FAULTS`: the numbers of
the world's interners, but for the budget."""

type Action = tuple[str, int, int]
"""What happens, and to whom: the numbers mean what the kind says."""

FAULTS: Final = ("breaks", "cuts", "wipes", "damages", "power cuts", "kills", "lost settlements")
"""What a setting's budget may allow:

* *break*: a client's connection to a bookie breaks, or the time of its requests there is over: all of them fail, and
  may arrive nevertheless;
* *cut*: a read is answered only in part (truncated);
* *wipe*: a bookie loses its disk; *damage*: a copy rots;
* *power cut*, *kill*: a bookie ends and starts again, without or with what it had written and not synced;
* *lost settlement*: a client does not learn what became of its change of the metadata, and tries it again.
"""
BREAK, CUT, WIPE, DAMAGE, POWER_CUT, KILL, LOST_SETTLEMENT = range(len(FAULTS))


def with_messages(messages: tuple[int, ...], more: Iterable[int]) -> tuple[int, ...]:
    """More in flight."""
    return tuple(sorted((*messages, *more)))


def replaced(numbers: tuple[int, ...], at: int, number: int) -> tuple[int, ...]:
    """The same with another number at one place."""
    return (*numbers[:at], number, *numbers[at + 1 :])


def spent(budget: tuple[int, ...], fault: int | None) -> tuple[int, ...]:
    """The budget after a fault; None: after something that is none."""
    return budget if fault is None else replaced(budget, fault, budget[fault] - 1)
