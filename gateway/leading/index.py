"""Where the batches of a partition are: offsets with their positions, a few of them. Pure.

Each entry of a partition's log holds a batch or, if another program has added it, none. So positions and offsets rise
together, and the batch of an offset is found by halving: between two known batches, look at the one in the middle. The
index remembers a batch for each :data:`POINT_BYTES`, and the batches that were looked at.
"""

from bisect import bisect_right
from typing import Final, NamedTuple

POINT_BYTES: Final = 1024 * 1024
"""Bytes of batches between two that are remembered: reading on from one of them is cheap."""

POINTS_MAX: Final = 20_000
"""Batches that are remembered of a partition; then every second one is forgotten."""


class Point(NamedTuple):
    """A batch."""

    offset: int
    """Its base offset."""
    position: int


class OffsetIndex:
    """See the module."""

    def __init__(self, first: Point) -> None:
        """``first``: no batch of the log has a lower offset."""
        self._points = [first]
        self._bytes_since = 0

    def note(self, point: Point, size: int) -> None:
        """The next batch of the log, behind all that were noted."""
        self._bytes_since += size
        if self._bytes_since >= POINT_BYTES and point.offset > self._points[-1].offset:
            self._points.append(point)
            self._bytes_since = 0
            self._bound()

    def learn(self, point: Point) -> None:
        """A batch that was looked at."""
        at = bisect_right(self._points, point.offset, key=lambda one: one.offset)
        if self._points[at - 1].offset < point.offset:
            self._points.insert(at, point)
            self._bound()

    def cut(self, first: Point) -> None:
        """No batch of the log lies below this place any more; nothing changes if that is so for a higher one."""
        if first.position > self._points[0].position:
            self._points = [first, *(point for point in self._points if point.position > first.position)]

    def around(self, offset: int, stop: int) -> tuple[int, int]:
        """The position of a batch that begins at or below the offset, and one that begins above it, or ``stop``."""
        at = bisect_right(self._points, offset, key=lambda one: one.offset)
        return self._points[max(0, at - 1)].position, self._points[at].position if at < len(self._points) else stop

    def _bound(self) -> None:
        if len(self._points) > POINTS_MAX:
            self._points = self._points[::2]
