"""How fast a flush of the write cache goes on. Pure.

Theory of operation
-------------------

A flush writes a whole half of the cache, tens of megabytes. At full speed it would take the processor and the
disk from the journal for as long, and every add would wait. Nothing needs it soon: the entries are durable in the
journal, and are read from the cache. So a flush is spread over most of the time that the half took to fill, in
slices, between which it pauses.

It may not fall behind: when the half being filled is full, the other one must have been written, otherwise adds
are held back for lack of memory. A flush therefore stays ahead of the filling by :data:`_LEAD`, whatever the time says:
if the load rises meanwhile, the flush goes faster.

What it never does: pause while it is behind the filling; pause longer than :data:`PAUSE_SECONDS_MAX` at once, so that
a caller that comes to wait for the flush ends its pauses.
"""

from typing import Final

SPAN_SECONDS_MAX: Final = 10.0
"""Longest time over which a flush is spread: after it the memory of an idle bookie is free again."""

PAUSE_SECONDS_MAX: Final = 0.05
"""Longest single pause, after which the flush looks again at how full the cache is."""

_SPAN_SHARE: Final = 0.75
"""Share of a half's filling time over which its flush is spread. The rest is for a load that varies."""

_LEAD: Final = 1.25
"""A flush does not pause unless the share that it has written is so many times the share that has been filled."""


class FlushPace:
    """The pace of one flush, of ``total_bytes``. ``filled_seconds``: how long the half took to fill. Times are
    those of one clock."""

    def __init__(self, begun_at: float, total_bytes: int, filled_seconds: float) -> None:
        self._begun_at = begun_at
        self._total_bytes = max(1, total_bytes)
        self._span_seconds = min(_SPAN_SHARE * filled_seconds, SPAN_SECONDS_MAX)

    def pause_seconds(self, written_bytes: int, filled_share: float, now: float) -> float:
        """How long to wait before the next slice, after ``written_bytes`` of the flush; 0: not at all.

        ``filled_share``: of the half that is being filled meanwhile, from 0 to 1 or a little more.
        """
        written_share = written_bytes / self._total_bytes
        if written_share < _LEAD * filled_share:
            return 0.0
        due_at = self._begun_at + written_share * self._span_seconds
        return min(max(0.0, due_at - now), PAUSE_SECONDS_MAX)
