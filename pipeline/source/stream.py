"""The streaming source: inspects the cluster and tells Spark where the next batch ends.

The object lives in a Python process of the driver while the query runs. It holds a client and the readers of open
ledgers. Its state does not matter for correctness: the two offsets of a batch determine what the batch reads
(:mod:`octavo.pipeline.source.offsets`). Committing a batch deletes nothing.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.client.client import Client
from octavo.client.read.reader import LedgerReader
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.pipeline.base.cluster import connected, metadata_of_each, open_reader
from octavo.pipeline.base.errors import DataLossError, brief_errors
from octavo.pipeline.base.options import EARLIEST, LATEST, Position, SourceOptions
from octavo.pipeline.base.partitions import RangesPartition
from octavo.pipeline.base.planning import Piece, plan_partitions
from octavo.pipeline.source.discovery import candidates, published_members
from octavo.pipeline.source.offsets import Limits, Offsets, Sighting, Tail, advance, batch_ranges, initial_offsets
from octavo.pipeline.source.read_limits import limits_of
from octavo.pipeline.source.streaming import Watch, WatchingStreamReader
from octavo.protocol.errors import NoSuchLedgerError
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

FROM_THE_END = -1
FROM_THE_BEGINNING = -2
"""Positions in ``startingOffsets`` besides entry ids."""

ENTRY_BYTES_GUESS = 1024.0
"""Assumed payload size of an entry of a ledger without statistics."""


class StreamReader(WatchingStreamReader["_LedgerWatch"]):
    """The streaming reader of ledgers."""

    _target: Mapping[int, Tail] | None = None
    """With Trigger.AvailableNow: the ledgers that existed at the start of the query, and their ends then."""

    def _make_watch(self) -> "_LedgerWatch":
        return _LedgerWatch(self._options)

    # --- offsets, on the driver --------------------------------------------------------------------------------------

    @brief_errors()
    def initialOffset(self) -> dict[str, Any]:
        """The offset at which a new query begins. A restarted query uses its checkpoint instead."""
        starting = self._options.starting_offsets
        if starting == EARLIEST:
            return Offsets().to_json()
        seen = self._look(Offsets())
        begin = {ledger_id: _starting(starting, ledger_id, tail) for ledger_id, tail in seen.tails.items()}
        return initial_offsets(seen.tails, begin, seen.below, self._options.selection.scope).to_json()

    @brief_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the batch that begins at ``start``.

        Raises :class:`DataLossError` if a ledger was deleted before it was read to its end; with
        ``failOnDataLoss=false`` the batch gets a row without a value instead.
        """
        offsets = Offsets.from_json(start)
        seen = self._look(offsets)
        if self._target is not None:
            seen = _up_to(seen, self._target)
        if seen.lost and self._options.fail_on_data_loss:
            raise DataLossError(
                f"ledger {seen.lost[0]} was deleted before the query read entry {offsets.next_entry(seen.lost[0])} and "
                "those after it (the option failOnDataLoss=false continues without them)"
            )
        scope = self._options.selection.scope
        self._latest = advance(offsets, seen, scope, Limits()).to_json()
        return advance(offsets, seen, scope, limits_of(self._options, limit)).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the present end of every ledger."""
        self._target = self._look(Offsets()).tails

    # --- batches -----------------------------------------------------------------------------------------------------

    @brief_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch; the same for the same offsets."""
        pieces = [
            Piece(wanted, ENTRY_BYTES_GUESS)
            for wanted in batch_ranges(Offsets.from_json(start), Offsets.from_json(end))
        ]
        plan = plan_partitions(
            pieces,
            target_bytes=self._options.target_partition_bytes,
            partitions_min=self._options.partitions_min,
        )
        return [RangesPartition(ranges) for ranges in plan]

    # --- inside ------------------------------------------------------------------------------------------------------

    def _look(self, start: Offsets) -> Sighting:
        return self._with_watch(lambda watch: watch.run(watch.look(start)))


def _starting(starting: str | Position, ledger_id: int, tail: Tail) -> int:
    if starting == LATEST:
        return tail.next_entry
    assert isinstance(starting, Position)
    at = starting.of(ledger_id)
    if at is None or at == FROM_THE_BEGINNING:
        return 0
    return tail.next_entry if at == FROM_THE_END else at


def _up_to(seen: Sighting, target: Mapping[int, Tail]) -> Sighting:
    """The sighting, limited to the ledgers and entries that existed when the target was recorded."""
    tails = {
        ledger_id: Tail(
            min(tail.next_entry, target[ledger_id].next_entry),
            closed=tail.closed and tail.next_entry <= target[ledger_id].next_entry,
            entry_bytes=tail.entry_bytes,
        )
        for ledger_id, tail in seen.tails.items()
        if ledger_id in target
    }
    return Sighting(max(target, default=-1) + 1, tails, seen.rejected, seen.lost)


class _LedgerWatch(Watch):
    """A client, and the readers of open ledgers."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._client: Client | None = None
        self._readers: dict[int, LedgerReader] = {}

    async def look(self, start: Offsets) -> Sighting:
        """The ledgers that have entries to read after ``start``."""
        if self._client is None:
            self._client = await self._stack.enter_async_context(connected(self._options.cluster))
        client, options = self._client, self._options
        members = await published_members(options)
        existing = list(await candidates(client, options, members))
        open_to_us = [ledger_id for ledger_id in existing if start.next_entry(ledger_id) is not None]
        found = [metadata async for metadata in metadata_of_each(client, open_to_us)]
        chosen, rejected = [], []
        for metadata in found:
            if options.selection.matches(metadata.ledger_id, metadata.custom_metadata):
                chosen.append(metadata)
            elif metadata.is_closed:
                rejected.append(metadata.ledger_id)
        tails = await asyncio.gather(*map(self._tail_of, chosen))
        seen: dict[int, Tail] = {
            metadata.ledger_id: tail for metadata, tail in zip(chosen, tails, strict=True) if tail is not None
        }
        await self._close_readers(set(seen))
        reading = {ledger_id for ledger_id in start.ledgers if start.next_entry(ledger_id) is not None}
        there = _ids(found) - (_ids(chosen) - set(seen))
        lost = sorted(reading - there)
        below = max(existing, default=-1) + 1
        return Sighting(below, seen, rejected, lost)

    async def _tail_of(self, metadata: LedgerMetadata) -> Tail | None:
        """How far the ledger can be read now; None if it has been deleted."""
        if metadata.is_closed:
            end = -1 if metadata.last_entry_id is None else metadata.last_entry_id
            return _tail(end, metadata.length, closed=True)
        assert self._client is not None
        try:
            reader = self._readers.get(metadata.ledger_id)
            if reader is None:
                reader = await open_reader(self._client, metadata.ledger_id, self._options.cluster)
                self._readers[metadata.ledger_id] = reader
            else:
                await reader.refresh_last_add_confirmed()
        except NoSuchLedgerError:
            return None
        end = -1 if reader.last_add_confirmed is None else reader.last_add_confirmed
        return _tail(end, reader.length, closed=reader.ledger_closed)

    async def _close_readers(self, kept: set[int]) -> None:
        for ledger_id in [i for i, reader in self._readers.items() if i not in kept or reader.ledger_closed]:
            await self._readers.pop(ledger_id).close()


def _ids(ledgers: Sequence[LedgerMetadata]) -> set[int]:
    return {metadata.ledger_id for metadata in ledgers}


def _tail(last_entry: int, length: int, *, closed: bool) -> Tail:
    entries = last_entry + 1
    return Tail(entries, closed, length / entries if entries else ENTRY_BYTES_GUESS)
