"""Where damage of entries and index is reported to, so that what was lost can be copied from other bookies."""

from collections.abc import Callable
from typing import Final

ID_LAST: Final = 2**63 - 1

_KEPT_MAX: Final = 10_000
"""Reports kept until there is a listener; scrubbing finds again what is beyond."""

type DamageListener = Callable[[int, int, int], None]
"""Told a ledger and an interval of entry ids, both inclusive, in which something does not verify. Called from the event
loop; it must be quick and must not raise."""


class DamageReports:
    """Hands every report to the listener, including those made before there was one."""

    def __init__(self) -> None:
        self._listener: DamageListener | None = None
        self._kept: dict[tuple[int, int, int], None] = {}

    def report(self, ledger_id: int, first: int, last: int) -> None:
        """Entries among ``first..last`` of the ledger, or places of the index that name them, are damaged."""
        if self._listener is not None:
            self._listener(ledger_id, first, last)
        elif len(self._kept) < _KEPT_MAX:
            self._kept[ledger_id, first, last] = None

    def listen(self, listener: DamageListener) -> None:
        """Tell this listener, in place of any other."""
        self._listener = listener
        kept, self._kept = self._kept, {}
        for ledger_id, first, last in kept:
            listener(ledger_id, first, last)
