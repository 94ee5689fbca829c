"""Filters on ids that the source takes over from Spark: what they leave of the ledgers and their entries. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.pipeline.ranges import IdRanges
from octavo.protocol.ids import ID_MAX
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)


@dataclass(frozen=True, slots=True)
class IdBounds:
    """The ledgers and entries that pass."""

    ledgers: IdRanges = field(default_factory=IdRanges.everything)
    entries: IdRanges = field(default_factory=IdRanges.everything)

    def narrowed(self, filter_: Filter) -> "IdBounds | None":
        """What passes this filter, too; None for a filter that says nothing of ids alone."""
        column, passing = _passing(filter_)
        if passing is None:
            return None
        if column == "ledger_id":
            return replace(self, ledgers=self.ledgers.intersection(passing))
        return replace(self, entries=self.entries.intersection(passing))


def take_over(bounds: IdBounds, filters: Iterable[Filter]) -> tuple[IdBounds, list[Filter]]:
    """Bounds narrowed by the filters, and those that are left to Spark."""
    left = []
    for filter_ in filters:
        narrowed = bounds.narrowed(filter_)
        if narrowed is None:
            left.append(filter_)
        else:
            bounds = narrowed
    return bounds, left


def _passing(filter_: Any) -> tuple[str, IdRanges | None]:
    """The id column a filter is about, and the ids that pass; None if it is about something else."""
    column = ".".join(getattr(filter_, "attribute", ()))
    if column not in {"ledger_id", "entry_id"}:
        return column, None
    runs: list[tuple[int, int]] | None = None
    match filter_:
        case IsNotNull():
            runs = [(0, ID_MAX)]
        case In(value=values):
            runs = _single(values)
        case EqualTo(value=value) | EqualNullSafe(value=value):
            runs = _single([value])
        case GreaterThan(value=int(value)):
            runs = [(max(value + 1, 0), ID_MAX)]
        case GreaterThanOrEqual(value=int(value)):
            runs = [(max(value, 0), ID_MAX)]
        case LessThan(value=int(value)):
            runs = [(0, min(value - 1, ID_MAX))]
        case LessThanOrEqual(value=int(value)):
            runs = [(0, min(value, ID_MAX))]
    return column, None if runs is None else IdRanges.of(runs)


def _single(values: Iterable[Any]) -> list[tuple[int, int]]:
    # NULL equals nothing, and ids are not negative.
    return [(value, value) for value in values if type(value) is int and value >= 0]
