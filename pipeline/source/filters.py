"""Filters on ids and positions that Spark pushes down to the source, and the ids that pass them. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.pipeline.base.ranges import IdRanges
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
    """The ledgers, entries and positions that pass."""

    ledgers: IdRanges = field(default_factory=IdRanges.everything)
    entries: IdRanges = field(default_factory=IdRanges.everything)
    positions: IdRanges = field(default_factory=IdRanges.everything)
    """Of a log."""

    def narrowed(self, filter_: Filter) -> "IdBounds | None":
        """The bounds narrowed by one more filter; None if the filter is not about ids alone."""
        column, passing = _passing(filter_)
        if passing is None:
            return None
        if column == "ledger_id":
            return replace(self, ledgers=self.ledgers.intersection(passing))
        if column == "position":
            return replace(self, positions=self.positions.intersection(passing))
        return replace(self, entries=self.entries.intersection(passing))


def take_over(bounds: IdBounds, filters: Iterable[Filter]) -> tuple[IdBounds, list[Filter]]:
    """The bounds narrowed by the filters, and the filters that Spark must apply itself."""
    left = []
    for filter_ in filters:
        narrowed = bounds.narrowed(filter_)
        if narrowed is None:
            left.append(filter_)
        else:
            bounds = narrowed
    return bounds, left


def _passing(filter_: Any) -> tuple[str, IdRanges | None]:
    """The column of a filter, and the ids that pass it; None if the column is not an id."""
    column = ".".join(getattr(filter_, "attribute", ()))
    if column not in {"ledger_id", "entry_id", "position"}:
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
