"""The ledgers of a cluster as a table, ``spark.read.format("octavo-ledgers")``, read from the metadata alone."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from octavo.metadata.model import LedgerMetadata
from octavo.pipeline.bridge import LoopThread
from octavo.pipeline.cluster import connected, existing_ledgers, metadata_of_each
from octavo.pipeline.errors import brief_errors
from octavo.pipeline.options import SourceOptions, parse_source_options
from octavo.pipeline.paths import settled
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

FORMAT_NAME = "octavo-ledgers"

LEDGERS_PER_PARTITION = 5000
"""Ledgers whose metadata one task reads, about a second of work."""

SCHEMA = (
    "ledger_id long, state string, created_at timestamp, entries long, length long, ensemble_size int, "
    "write_quorum int, ack_quorum int, digest string, "
    "fragments array<struct<first_entry: long, entries: long, length: long, bookies: array<string>>>, "
    "custom_metadata map<string, binary>"
)
"""``entries`` and ``length`` of a ledger that is not closed exclude its last fragment, which its metadata does not
cover; those of the last fragment are 0."""


class LedgerTable(DataSource):
    """The format ``octavo-ledgers``. Its options are those of the source that select the cluster and the ledgers."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT_NAME

    @brief_errors()
    def schema(self) -> str:
        """The columns."""
        parse_source_options(self.options)
        return SCHEMA

    @brief_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        options = parse_source_options(self.options)
        return _TableReader(replace(options, cluster=settled(options.cluster)))


class _LedgersPartition(InputPartition):
    def __init__(self, ledger_ids: tuple[int, ...]) -> None:
        super().__init__(ledger_ids)


class _TableReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @brief_errors()
    def partitions(self) -> Sequence[InputPartition]:
        with LoopThread("octavo planning") as loop:
            ids = loop.run(self._ids())
        starts = range(0, len(ids), LEDGERS_PER_PARTITION)
        return [_LedgersPartition(tuple(ids[start : start + LEDGERS_PER_PARTITION])) for start in starts]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        with LoopThread("octavo metadata") as loop:
            yield from loop.iterate(partial(self._rows, partition.value or ()), ahead=1000)

    async def _ids(self) -> list[int]:
        async with connected(self._options.cluster) as client:
            return [i for i in await existing_ledgers(client) if i in self._options.selection.scope]

    async def _rows(self, ledger_ids: Sequence[int]) -> AsyncGenerator[tuple[Any, ...]]:
        async with connected(self._options.cluster) as client:
            async for metadata in metadata_of_each(client, ledger_ids):
                if self._options.selection.matches(metadata.ledger_id, metadata.custom_metadata):
                    yield _row(metadata)


def _row(metadata: LedgerMetadata) -> tuple[Any, ...]:
    last = metadata.last_fragment
    if metadata.is_closed:
        entries = 0 if metadata.last_entry_id is None else metadata.last_entry_id + 1
        length = metadata.length
    else:
        entries, length = last.first_entry_id, last.length_before
    ends = [(following.first_entry_id, following.length_before) for following in metadata.fragments[1:]]
    fragments = [
        (
            fragment.first_entry_id,
            end - fragment.first_entry_id,
            length_after - fragment.length_before,
            list(fragment.bookies),
        )
        for fragment, (end, length_after) in zip(metadata.fragments, [*ends, (entries, length)], strict=True)
    ]
    return (
        metadata.ledger_id,
        metadata.state.value,
        metadata.created_at,
        entries,
        length,
        metadata.ensemble_size,
        metadata.write_quorum,
        metadata.ack_quorum,
        metadata.digest.value,
        fragments,
        dict(metadata.custom_metadata),
    )
