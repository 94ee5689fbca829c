"""Counts over time in the bins of a bar chart, with a suitable bin width and without long empty stretches. Pure."""

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

BINS_MAX = 240
"""Largest number of bins in one timeline; more would be too thin to see."""

EMPTY_BINS_MAX = 12
"""Largest number of consecutive empty bins that are shown; a longer stretch is replaced by a gap."""

OTHERS = "others"


class Step(enum.StrEnum):
    """Width of a bin, as Spark's date_trunc names it."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"
    YEAR = "year"

    def of(self, time: datetime) -> datetime:
        """The beginning of the bin that holds the time."""
        begin = time.replace(second=0, microsecond=0)
        if self is not Step.MINUTE:
            begin = begin.replace(minute=0)
        if self not in {Step.MINUTE, Step.HOUR}:
            begin = begin.replace(hour=0)
        if self in {Step.MONTH, Step.YEAR}:
            begin = begin.replace(day=1)
        return begin.replace(month=1) if self is Step.YEAR else begin

    def after(self, begin: datetime) -> datetime:
        """The beginning of the next bin."""
        return self.of(begin + _AT_LEAST[self])


_AT_LEAST = {
    Step.MINUTE: timedelta(minutes=1),
    Step.HOUR: timedelta(hours=1),
    Step.DAY: timedelta(days=1),
    Step.MONTH: timedelta(days=31),
    Step.YEAR: timedelta(days=366),
}
"""A time that, added to the beginning of any bin, lies in the next bin."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Counts over time. ``series`` has one value for each bin."""

    step: Step
    bins: tuple[datetime | None, ...]
    """Beginnings of the bins, ascending; None for a gap."""
    series: Mapping[str, tuple[int, ...]]
    """The largest first."""


def timeline(counts: Mapping[tuple[str, datetime], int], step: Step, *, series_max: int) -> Timeline:
    """A timeline of ``counts`` (by series and time) in bins of ``step``, or of a wider step if there were too many
    bins. The smallest series beyond ``series_max`` are added up as others."""
    bins = _bins({time for _, time in counts}, step)
    for wider in list(Step)[list(Step).index(step) + 1 :]:
        if len(bins) <= BINS_MAX:
            break
        step = wider
        bins = _bins({step.of(time) for _, time in counts}, step)
    totals = Counter[str]()
    for (name, _), number in counts.items():
        totals[name] += number
    named = [name for name, _ in sorted(totals.items(), key=lambda item: (-item[1], item[0]))]
    kept = named if len(named) <= series_max else named[: series_max - 1]
    sums = Counter[tuple[str, datetime | None]]()
    for (name, time), number in counts.items():
        sums[name if name in kept else OTHERS, step.of(time)] += number
    shown = kept if len(kept) == len(named) else [*kept, OTHERS]
    return Timeline(step, tuple(bins), {name: tuple(sums[name, begin] for begin in bins) for name in shown})


def _bins(begins: Iterable[datetime], step: Step) -> list[datetime | None]:
    """The bins given, ascending, with the empty bins between them, or None for a long empty stretch."""
    bins: list[datetime | None] = []
    previous: datetime | None = None
    for begin in sorted(begins):
        if previous is not None:
            empty: list[datetime | None] = []
            at = step.after(previous)
            while at < begin and len(empty) <= EMPTY_BINS_MAX:
                empty.append(at)
                at = step.after(at)
            bins += empty if len(empty) <= EMPTY_BINS_MAX else [None]
        bins.append(begin)
        previous = begin
    return bins
