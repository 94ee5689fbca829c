"""The clock of durations in metrics. Nothing is decided by it: what Octavo does depends on the event loop's time only,
which a simulator replaces, and which is too coarse for microseconds."""

from time import perf_counter as precise_seconds

__all__ = ["precise_seconds"]
