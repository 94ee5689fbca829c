"""The partition object that Spark sends from the driver to a task."""

from collections.abc import Mapping

from octavo.pipeline.planning import EntryRange
from pyspark.sql.datasource import InputPartition


class RangesPartition(InputPartition):
    """The entries that one task reads."""

    def __init__(self, ranges: tuple[EntryRange, ...], bases: Mapping[int, int] | None = None) -> None:
        """``bases``: of each of these ledgers, the position of its entry 0 in its log; None: they are of no log."""
        super().__init__(ranges)
        self.bases = bases if bases is None else {wanted.ledger_id: bases[wanted.ledger_id] for wanted in ranges}


def ranges_of(partition: InputPartition) -> tuple[EntryRange, ...]:
    """The ranges that a task reads; empty for the partition that Spark creates when a scan has none."""
    return partition.value or ()


def bases_of(partition: InputPartition) -> Mapping[int, int]:
    """The position of entry 0 of each ledger that a task reads, if these are of a log."""
    bases = partition.bases if isinstance(partition, RangesPartition) else None
    return bases or {}
