"""What Spark carries from the driver to a task."""

from octavo.pipeline.planning import EntryRange
from pyspark.sql.datasource import InputPartition


class RangesPartition(InputPartition):
    """The entries that one task reads."""

    def __init__(self, ranges: tuple[EntryRange, ...]) -> None:
        super().__init__(ranges)


def ranges_of(partition: InputPartition) -> tuple[EntryRange, ...]:
    """What a task reads; nothing for the empty partition that Spark makes where there are none."""
    return partition.value or ()
