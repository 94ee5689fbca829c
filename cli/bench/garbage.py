"""Makes Python look for reference cycles seldom, as docs/performance.md recommends to clients with many ledgers."""

import gc

THRESHOLD = 20_000
"""Number of new objects after which Python looks for reference cycles, as in a bookie: there are many open ledgers, and
they form no cycles."""


def collect_seldom() -> None:
    """The objects that exist now stay: the garbage collector need not look at them during the measurement."""
    gc.freeze()
    gc.set_threshold(THRESHOLD)
