"""The ledgers and streams of a cluster as a table, ``spark.read.format("octavo-ledgers")``: what the metadata say."""

import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from octavo.client.client import Client
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.stream.fragment import position_in
from octavo.metadata.stream.model import StreamMetadata
from octavo.metadata.updates.paging import walk_stream
from octavo.pipeline.base.bridge import LoopThread
from octavo.pipeline.base.cluster import connected, either_of_each, existing_ledgers
from octavo.pipeline.base.errors import brief_errors
from octavo.pipeline.base.options import SourceOptions, parse_source_options
from octavo.pipeline.base.paths import settled
from octavo.protocol.errors import NoSuchLedgerError
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

FORMAT_NAME = "octavo-ledgers"

LEDGERS_PER_PARTITION = 5000
"""Ledgers whose metadata one task reads, about a second of work."""

SCHEMA = (
    "ledger_id long, kind string, state string, created_at timestamp, entries long, length long, ensemble_size int, "
    "write_quorum int, ack_quorum int, digest string, fragments array<struct<first_entry: long, entries: long, "
    "length: long, bookies: array<string>, write_quorum: int, ends: boolean>>, custom_metadata map<string, binary>"
)
"""``kind`` is *ledger* or *stream*. ``entries`` and ``length`` exclude a last fragment that has no end, which the
metadata do not cover; its own are 0. Of a stream they are those that are not truncated, the quorums and the digest are
those of its last fragment, and ``first_entry`` is a position."""


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
            async for metadata in either_of_each(client, ledger_ids):
                if not self._options.selection.matches(metadata.ledger_id, metadata.custom_metadata):
                    continue
                if isinstance(metadata, LedgerMetadata):
                    yield _row(metadata)
                else:
                    with contextlib.suppress(NoSuchLedgerError):
                        yield await _stream_row(client, metadata)


async def _stream_row(client: Client, stream: StreamMetadata) -> tuple[Any, ...]:
    """Raises :class:`NoSuchLedgerError` for a stream that was deleted meanwhile."""
    fragments = []
    async for part in walk_stream(client._store, stream):
        for at, fragment in enumerate(part.fragments):
            last = part.last_id_of(fragment)
            first = max(fragment.first_position, part.start)
            entries = 0 if last is None else max(0, position_in(fragment, last) + 1 - first)
            is_last = at == len(part.fragments) - 1
            length_after = part.length if is_last else part.fragments[at + 1].length_before
            length = 0 if last is None else length_after - fragment.length_before
            names = list(map(str, fragment.bookies))
            fragments.append((first, entries, length, names, fragment.write_quorum, last is not None))
    last_fragment = stream.last_fragment
    return (
        stream.ledger_id,
        "stream",
        stream.state.value,
        stream.created_at,
        sum(fragment[1] for fragment in fragments),
        sum(fragment[2] for fragment in fragments),
        len(last_fragment.bookies),
        last_fragment.write_quorum,
        last_fragment.ack_quorum,
        stream.keys[last_fragment.key].digest.value,
        fragments,
        dict(stream.custom_metadata),
    )


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
            metadata.write_quorum,
            metadata.is_closed or fragment is not last,
        )
        for fragment, (end, length_after) in zip(metadata.fragments, [*ends, (entries, length)], strict=True)
    ]
    return (
        metadata.ledger_id,
        "ledger",
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
