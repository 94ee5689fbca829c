"""The partition object that Spark sends from the driver to a task."""

from octavo.pipeline.planning import EntryRange
from pyspark.sql.datasource import InputPartition


class RangesPartition(InputPartition):
    """The entries that one task reads."""

    def __init__(self, ranges: tuple[EntryRange, ...]) -> None:
        super().__init__(ranges)


def ranges_of(partition: InputPartition) -> tuple[EntryRange, ...]:
    """The ranges that a task reads; empty for the partition that Spark creates when a scan has none."""
    return partition.value or ()
