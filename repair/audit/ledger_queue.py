"""Ledgers that wait to be planned. Pure.

After the loss of a bookie, a million ledgers may wait. Their ids stay in one compact array, which is consumed from the
front; only ledgers that were added one by one are kept as objects, and come first.
"""

from array import array
from collections import deque
from collections.abc import Iterable

from octavo.protocol.ids import LedgerId


class LedgerQueue:
    """See the module."""

    def __init__(self) -> None:
        self._added: deque[LedgerId] = deque()
        self._added_ids: set[LedgerId] = set()
        self._rest = array("Q")
        self._at = 0

    def __len__(self) -> int:
        return len(self._added) + len(self._rest) - self._at

    def __contains__(self, ledger_id: LedgerId) -> bool:
        """Whether the ledger was added by itself."""
        return ledger_id in self._added_ids

    def replace(self, ledger_ids: "array[int]") -> None:
        """These ledgers wait, in this order, and no others."""
        self._added.clear()
        self._added_ids.clear()
        self._rest, self._at = ledger_ids, 0

    def add(self, ledger_id: LedgerId) -> None:
        """This ledger waits, too, if it was not added before."""
        if ledger_id not in self._added_ids:
            self._added_ids.add(ledger_id)
            self._added.append(ledger_id)

    def put_back(self, ledger_ids: Iterable[LedgerId]) -> None:
        """These ledgers, taken last, come first again."""
        some = [one for one in ledger_ids if one not in self._added_ids]
        self._added_ids.update(some)
        self._added.extendleft(reversed(some))

    def take(self, count: int) -> list[LedgerId]:
        """The next ``count`` ledgers, or all that are left. One that was added may be among the others once more."""
        taken = [self._added.popleft() for _ in range(min(count, len(self._added)))]
        self._added_ids.difference_update(taken)
        more = self._rest[self._at : self._at + count - len(taken)]
        self._at += len(more)
        if self._at == len(self._rest):
            self._rest, self._at = array("Q"), 0
        return list(dict.fromkeys([*taken, *map(LedgerId, more)]))
