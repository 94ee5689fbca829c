"""When things happened, as the bins of a bar chart: in steps that suit what there is, without long empty stretches.
Pure."""

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

BINS_MAX = 240
"""Bins of one timeline: more are thinner than a line."""

EMPTY_BINS_MAX = 12
"""Empty bins in a row that are shown; a longer stretch is left out, and a gap stands for it."""

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
"""Reaches from the beginning of a bin into the next one, whatever its length, and never beyond that."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Counts over time; ``series`` has one value for each bin."""

    step: Step
    bins: tuple[datetime | None, ...]
    """In order; None where a long time without anything was left out."""
    series: Mapping[str, tuple[int, ...]]
    """The largest first."""


def timeline(counts: Mapping[tuple[str, datetime], int], step: Step, *, series_max: int) -> Timeline:
    """``counts`` by series and time in bins of ``step``, or wider ones if those are too many; the smallest series
    beyond ``series_max`` are summed up as others."""
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
    """Those given, ascending, with the empty ones between them, or a None for many of those."""
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
