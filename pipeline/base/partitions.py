"""The partition object that Spark sends from the driver to a task."""

from octavo.pipeline.base.planning import EntryRange
from pyspark.sql.datasource import InputPartition


class RangesPartition(InputPartition):
    """The entries that one task reads."""

    def __init__(self, ranges: tuple[EntryRange, ...], *, through_log: bool = False) -> None:
        """``through_log``: the entries are of a log that must be opened to read them."""
        super().__init__(ranges)
        self.through_log = through_log


def ranges_of(partition: InputPartition) -> tuple[EntryRange, ...]:
    """The ranges that a task reads; empty for the partition that Spark creates when a scan has none."""
    return partition.value or ()


def goes_through_log(partition: InputPartition) -> bool:
    """Whether the task opens the log, not its ledgers."""
    return isinstance(partition, RangesPartition) and partition.through_log
