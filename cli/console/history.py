"""The last hour of a cluster, for plots: fine for minutes, then coarse. Pure."""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

FINE_SECONDS: Final = 300.0
"""Points that are not older are kept as they are."""

COARSE_SECONDS: Final = 20.0
"""Older points are joined: one for each so long time."""

HISTORY_SECONDS: Final = 3600.0


class Point(NamedTuple):
    """One look at a cluster. ``at``: seconds since 1970."""

    at: float
    rates: tuple[float | None, ...]
    """Joined by their mean."""
    times: tuple[float | None, ...]
    """Of the slowest; joined by the largest, so that no plot hides a slow minute."""


class History:
    """See the module. Points come in order of time; after a step of the clock backwards it begins anew."""

    def __init__(self) -> None:
        self._fine: deque[Point] = deque()
        self._coarse: deque[Point] = deque()
        self._joining: list[Point] = []
        """Points too old to be kept alone, of one coarse step."""

    def add(self, point: Point) -> None:
        """The latest point."""
        if self._fine and point.at < self._fine[-1].at:
            self._fine.clear()
            self._coarse.clear()
            self._joining.clear()
        self._fine.append(point)
        while self._fine[0].at < point.at - FINE_SECONDS:
            self._make_coarse(self._fine.popleft())
        while self._coarse and self._coarse[0].at < point.at - HISTORY_SECONDS:
            self._coarse.popleft()

    def points(self) -> list[Point]:
        """The points, oldest first."""
        return [*self._coarse, *([_joined(self._joining)] if self._joining else []), *self._fine]

    def _make_coarse(self, point: Point) -> None:
        if self._joining and point.at // COARSE_SECONDS != self._joining[0].at // COARSE_SECONDS:
            self._coarse.append(_joined(self._joining))
            self._joining.clear()
        self._joining.append(point)


def _joined(points: Sequence[Point]) -> Point:
    rates = zip(*(point.rates for point in points), strict=True)
    times = zip(*(point.times for point in points), strict=True)
    return Point(points[-1].at, tuple(map(_mean, rates)), tuple(map(_largest, times)))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 1) if known else None


def _largest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
