"""Planning on the driver: which ledgers are selected, and how far each can be read now."""

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from octavo.client.client import Client
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.pipeline.base.cluster import connected, existing_ledgers, metadata_of_each, open_reader
from octavo.pipeline.base.datasets import dataset_store
from octavo.pipeline.base.options import ClusterOptions, Position, SourceOptions
from octavo.pipeline.base.planning import EntryRange, Piece, pieces_of, plan_partitions
from octavo.pipeline.source.filters import IdBounds
from octavo.protocol.errors import NoSuchLedgerError

OPENED_AT_ONCE_MAX = 32
"""Open ledgers that are opened concurrently to find how far they can be read."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A ledger, and how far it can be read."""

    metadata: LedgerMetadata
    last_entry: int
    """Last readable entry id; -1: none."""
    length: int
    """Payload bytes up to and including that entry."""


async def plan_scan(options: SourceOptions, bounds: IdBounds) -> list[tuple[EntryRange, ...]]:
    """Plan the partitions of a scan. An open ledger ends at its last add confirmed now; no ledger is fenced.

    Raises :class:`NoSuchLedgerError` if a ledger that is selected by its id does not exist,
    :class:`LedgerKindError` if it is a stream, and :class:`UnauthorizedError` for an open ledger with another password.
    """
    members = await published_members(options)
    async with connected(options.cluster) as client:
        ids = options.selection.scope.intersection(bounds.ledgers)
        chosen = [
            metadata
            async for metadata in metadata_of_each(client, await candidates(client, options, members))
            if metadata.ledger_id in ids and options.selection.matches(metadata.ledger_id, metadata.custom_metadata)
        ]
        found = {metadata.ledger_id for metadata in chosen}
        wanted = members if members is not None else options.selection.required
        gone = sorted(ledger_id for ledger_id in wanted if ledger_id in ids and ledger_id not in found)
        if gone and options.fail_on_data_loss and (members is None or not options.selection.conditions):
            with contextlib.suppress(NoSuchLedgerError):
                await client.ledger_metadata(gone[0])  # raises for a stream, which is left out above
            raise NoSuchLedgerError(f"ledger {gone[0]} does not exist, or has been deleted")
        extents = await extents_of(client, options.cluster, chosen)
    pieces = [piece for extent in extents for piece in _pieces(extent, options, bounds)]
    return plan_partitions(pieces, target_bytes=options.target_partition_bytes, partitions_min=options.partitions_min)


async def published_members(options: SourceOptions) -> frozenset[int] | None:
    """The ledgers of the selected dataset; None if no dataset is selected."""
    if options.dataset is None:
        return None
    async with dataset_store(options.cluster) as datasets:
        return frozenset(ledger.ledger_id for ledger in await datasets.ledgers(options.dataset))


async def candidates(
    client: Client, options: SourceOptions, members: Collection[int] | None, first: int = 0
) -> Iterable[int]:
    """The ids of the ledgers that may be selected, from ``first`` on, ascending."""
    if members is not None:
        return sorted(ledger_id for ledger_id in members if ledger_id >= first)
    selection = options.selection
    if not selection.conditions and selection.ranges.count() == len(selection.required):
        return sorted(ledger_id for ledger_id in selection.required if ledger_id >= first)
    return [i for i in await existing_ledgers(client, first) if i in selection.scope]


async def extents_of(client: Client, cluster: ClusterOptions, ledgers: Iterable[LedgerMetadata]) -> list[Extent]:
    """How far each ledger can be read: to its end if it is closed, otherwise to its last add confirmed now."""
    permits = asyncio.Semaphore(OPENED_AT_ONCE_MAX)

    async def extent_of(metadata: LedgerMetadata) -> Extent:
        if metadata.is_closed:
            end = -1 if metadata.last_entry_id is None else metadata.last_entry_id
            return Extent(metadata, end, metadata.length)
        async with permits, await open_reader(client, metadata.ledger_id, cluster) as reader:
            end = -1 if reader.last_add_confirmed is None else reader.last_add_confirmed
            return Extent(reader.metadata, end, reader.length)

    return list(await asyncio.gather(*map(extent_of, ledgers)))


def _pieces(extent: Extent, options: SourceOptions, bounds: IdBounds) -> list[Piece]:
    ledger_id = extent.metadata.ledger_id
    first = _at(options.starting_entry, ledger_id, 0)
    last = min(extent.last_entry, _at(options.ending_entry, ledger_id, extent.last_entry))
    return [
        piece
        for low, high in bounds.entries.runs
        for piece in pieces_of(extent.metadata.current_term, max(first, low), min(last, high), extent.length)
    ]


def _at(position: Position, ledger_id: int, default: int) -> int:
    at = position.of(ledger_id)
    return default if at is None else at


def by_id(extents: Iterable[Extent]) -> Mapping[int, Extent]:
    """Extents by their ledger."""
    return {extent.metadata.ledger_id: extent for extent in extents}
