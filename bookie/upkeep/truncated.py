"""Trims streams to where they begin after truncation (rule U5).

Truncation changes the metadata alone. In each round a bookie reads the metadata of the streams that it holds, and keeps
nothing below the place at which each begins. That place only rises, so metadata that lag behind make the bookie keep
more, and never less: no read has to be synced.

Metadata that were restored are another matter. From an older copy a stream can go on in another way than it went
before, and what is truncated in that way may be live in the newest metadata, which an operator may still put back. So
nothing is trimmed while garbage collection is on hold, or while the metadata are older than the bookie's directories
(rule B5). That is asked before the streams are read and again afterwards, before the first trim.
"""

import asyncio
from itertools import batched
from typing import Final, NamedTuple

import structlog
from octavo.bookie.storage.storage import Storage
from octavo.bookie.upkeep.metadata_check import MetadataCheck
from octavo.metadata import MetadataStore
from octavo.protocol.errors import MetadataError, NoSuchLedgerError
from octavo.protocol.ids import LedgerId

log = structlog.get_logger("octavo.bookie")

STREAMS_PER_ROUND: Final = 10_000
"""Streams whose metadata a round reads, in turn: a bounded load for the metadata store. Most bookies hold fewer."""

READS_AT_ONCE: Final = 32
"""Reads of the metadata outstanding at a time."""

_LEDGERS_BETWEEN_YIELDS: Final = 1_000


class Trimmed(NamedTuple):
    """The result of a round. Compaction frees the space."""

    streams: int
    """Of which this bookie held something below where they begin. A trim of others drops nothing."""
    entries: int
    """That this bookie held of them below where they begin."""
    bytes: int
    """Of these entries."""


_NOTHING: Final = Trimmed(0, 0, 0)


class TruncatedStreams:
    """Compares a storage with the metadata. One round at a time."""

    def __init__(
        self,
        storage: Storage,
        store: MetadataStore,
        metadata: MetadataCheck,
        *,
        streams_per_round: int = STREAMS_PER_ROUND,
    ) -> None:
        self._storage = storage
        self._store = store
        self._metadata = metadata
        self._streams_per_round = streams_per_round
        self._cursor = -1
        """The last ledger that a round has looked at."""
        self.trims = 0

    async def round(self) -> Trimmed:
        """One round. Raises :class:`MetadataError`, :class:`MetadataUnavailableError` and the storage's errors; streams
        trimmed before the error stay so."""
        looked_at = await self._next_streams()
        if not looked_at:
            return _NOTHING
        await self._check_metadata()
        wanted: dict[LedgerId, int] = {}
        for page in batched(looked_at, READS_AT_ONCE):
            found = await asyncio.gather(*map(self._start_of, page))
            wanted.update(zip(page, found, strict=True))
        kept = self._storage.ledgers.first_kept
        wanted = {ledger_id: start for ledger_id, start in wanted.items() if start > kept(ledger_id)}
        if not wanted:
            return _NOTHING
        amounts = {one: await self._storage.reader.amount_below(one, start) for one, start in wanted.items()}
        await self._check_metadata()
        trimmed = _NOTHING
        for page in batched(wanted, READS_AT_ONCE):
            # Deleted meanwhile: nothing of it is kept anyway.
            live = [ledger_id for ledger_id in page if not self._storage.ledgers.is_deleted(ledger_id)]
            for durable in [self._storage.writer.trim(ledger_id, wanted[ledger_id]) for ledger_id in live]:
                await durable
            trimmed = Trimmed(
                trimmed.streams + sum(amounts[ledger_id].entries > 0 for ledger_id in live),
                trimmed.entries + sum(amounts[ledger_id].entries for ledger_id in live),
                trimmed.bytes + sum(amounts[ledger_id].bytes for ledger_id in live),
            )
            self.trims += len(live)
        if trimmed.streams:
            log.info("streams trimmed to where they begin", **trimmed._asdict())
        return trimmed

    async def _next_streams(self) -> list[LedgerId]:
        """The next streams in turn; ledgers with one writer whose ids are as high as places may be among them."""
        ledgers = self._storage.ledgers
        later: list[LedgerId] = []
        for at, ledger_id in enumerate(ledgers.known_ids()):
            if at % _LEDGERS_BETWEEN_YIELDS == 0:
                await asyncio.sleep(0)
            if ledger_id > self._cursor and ledgers.may_be_stream(ledger_id):
                later.append(LedgerId(ledger_id))
                if len(later) == self._streams_per_round:
                    break
        self._cursor = later[-1] if len(later) == self._streams_per_round else -1
        return later

    async def _check_metadata(self) -> None:
        storage = self._storage
        await self._metadata.check(allocated=None if storage.doubts_every_ledger else storage.doubted_ids_stop)

    async def _start_of(self, ledger_id: LedgerId) -> int:
        """The place at which a stream begins; 0 where nothing is to be trimmed."""
        try:
            found = (await self._store.read_either(ledger_id)).value
        except NoSuchLedgerError:
            return 0  # the garbage collector's
        except MetadataError as error:
            # Damaged, or of a newer version: that of one stream must not keep the space of all others.
            log.warning("stream not trimmed: its metadata cannot be read", ledger=ledger_id, reason=error.message)
            return 0
        return found.start_place
