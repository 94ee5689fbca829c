"""Planning reads of a log on the driver: which ledgers hold the positions, and how far the log can be read now."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from octavo.client.client import Client
from octavo.client.log.log import Log
from octavo.pipeline.base.cluster import connected, metadata_of_each, password_hint, read_password
from octavo.pipeline.base.errors import DataLossError
from octavo.pipeline.base.options import ClusterOptions, SourceOptions
from octavo.pipeline.base.planning import EntryRange, Piece, pieces_of, plan_partitions
from octavo.pipeline.source.discovery import Extent, extents_of
from octavo.pipeline.source.filters import IdBounds
from octavo.protocol.errors import NoSuchEntryError, TruncatedError, UnauthorizedError

SKIP_HINT = "(the option failOnDataLoss=false continues without them)"


class LogPlan(NamedTuple):
    """Partitions of ranges of entries."""

    partitions: list[tuple[EntryRange, ...]]
    through_log: bool
    """Whether tasks open the log, not its ledgers."""


class LogPieces(NamedTuple):
    """Ranges of entries in order of their positions, each within one fragment."""

    pieces: list[Piece]
    through_log: bool = False
    """Whether tasks open the log, not its ledgers."""


async def open_log(client: Client, name: str, options: ClusterOptions) -> Log:
    """Open a log with the password of the options.

    Raises :class:`NoSuchLogError`; :class:`UnauthorizedError`, which names the options, for a wrong password.
    """
    password = read_password(options)
    try:
        return await client.open_log(name, password=password)
    except UnauthorizedError as error:
        raise UnauthorizedError(f"log {name} needs its password, and {password_hint(options, password)}") from error


@asynccontextmanager
async def opened_log(options: SourceOptions) -> AsyncIterator[tuple[Client, Log]]:
    """A client and the log of the options, closed at the end of the block."""
    assert options.log is not None, "the options name a log"
    async with connected(options.cluster) as client, await open_log(client, options.log, options.cluster) as log:
        yield client, log


async def plan_log_scan(options: SourceOptions, bounds: IdBounds) -> LogPlan:
    """Plan the partitions of a scan of a log, from its first position to its end as it is now; no leader is disturbed.

    Raises :class:`DataLossError` if the option ``startingPosition`` is below the first position.
    """
    async with opened_log(options) as (client, log):
        end = await log.refresh()
        first = log.first_position
        if options.starting_position is not None:
            if options.starting_position < first and options.fail_on_data_loss:
                raise DataLossError(
                    f"log {log.name}: positions {options.starting_position} to {first - 1} have been truncated; the "
                    f"log begins at {first} {SKIP_HINT}"
                )
            first = max(first, options.starting_position)
        last = end - 1 if options.ending_position is None else min(end - 1, options.ending_position)
        pieces: list[Piece] = []
        for low, high in bounds.positions.runs:
            if max(first, low) <= min(last, high):
                part = await log_pieces(
                    client, log, options.cluster, first=max(first, low), last=min(last, high), bounds=bounds
                )
                pieces += part.pieces
    plan = plan_partitions(pieces, target_bytes=options.target_partition_bytes, partitions_min=options.partitions_min)
    return LogPlan(plan, through_log=log.layout == "stream")


async def log_pieces(
    client: Client, log: Log, cluster: ClusterOptions, *, first: int, last: int, bounds: IdBounds | None = None
) -> LogPieces:
    """The positions ``first..last``, both included and below the end, as ranges of entries.

    Raises :class:`TruncatedError` if the log is truncated above ``first``, :class:`LogDamagedError`.
    """
    passing = bounds or IdBounds()
    if log.layout == "stream":
        return LogPieces(await _stream_pieces(log, first, last, passing), through_log=True)
    wanted = [extent for extent in await log.extents(first, last) if extent.ledger_id in passing.ledgers]
    found = [metadata async for metadata in metadata_of_each(client, [extent.ledger_id for extent in wanted])]
    extents: dict[int, Extent] = {
        extent.metadata.ledger_id: extent for extent in await extents_of(client, cluster, found)
    }
    pieces: list[Piece] = []
    for place in wanted:
        extent = extents.get(place.ledger_id)
        if extent is None:
            # Truncated meanwhile, or damaged: reading there tells which.
            await log.read(place.first, place.first)
            raise TruncatedError(
                f"log {log.name}: position {place.first} has been truncated", first_position=log.first_position
            )
        for low, high in passing.entries.runs:
            begin, end = max(place.first - place.base, low), min(place.last - place.base, high)
            pieces += pieces_of(extent.metadata.current_term, begin, end, extent.length, base=place.base)
    return LogPieces(pieces)


async def _stream_pieces(log: Log, first: int, last: int, passing: IdBounds) -> list[Piece]:
    """As :func:`log_pieces`, for a stream: one ledger, of which only the log tells where each position is. Raises
    :class:`NoSuchEntryError` for a position that is not below the end: its place is not known (rule V1)."""
    if last >= log.end and last >= await log.refresh():
        raise NoSuchEntryError(f"log {log.name}: position {last} is not below its end, {log.end}")
    pieces: list[Piece] = []
    position = first
    while position <= last:
        async with log.reader_at(position, stored=True) as (extent, reader):
            stop = min(extent.last, last)
            for low, high in passing.entries.runs if extent.ledger_id in passing.ledgers else ():
                begin, end = max(position - extent.base, low), min(stop - extent.base, high)
                pieces += pieces_of(reader.current_term, begin, end, reader.length, base=extent.base)
        position = stop + 1
    return pieces
