"""Verifies everything that has been stored, slowly, so that damage is known before the last good copy is lost.

A round reads every entry log up to its length in the manifest and every block of the index. Damage is reported as reads
report it: once, with file and offset, and counted. Nothing is repaired here: an entry that does not verify is *unknown*
to readers anyway (rule R2)."""

import asyncio
from typing import NamedTuple

import structlog
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.entrylog.format import HEADER_BYTES, encode_header
from octavo.bookie.entrylog.logs import EntryLogs
from octavo.bookie.entrylog.walk import DamagedStretch, walk_log
from octavo.bookie.index.index import Index
from octavo.bookie.storage.manifest_keeper import ManifestKeeper
from octavo.bookie.storage.reads import EntryReader

log = structlog.get_logger("octavo.bookie")

PIECE_BYTES = 64 * 1024
"""Verified between two turns of the loop: a small part of a millisecond."""


class ScrubResult(NamedTuple):
    """The totals of a round."""

    bytes: int
    entries: int
    damaged_places: int


class Scrubber:
    """Verifies what a storage holds. One round at a time."""

    def __init__(self, logs: EntryLogs, index: Index, keeper: ManifestKeeper, reader: EntryReader) -> None:
        self._logs = logs
        self._index = index
        self._keeper = keeper
        self._reader = reader
        self.bytes_scrubbed = 0
        self.rounds = 0

    async def round(self, limiter: RateLimiter) -> ScrubResult:
        """Everything once, at that rate."""
        size = entries = damaged = 0
        for log_id in sorted(self._keeper.log_sizes):
            stop = self._keeper.log_sizes.get(log_id)
            if stop is not None:  # it has been compacted meanwhile
                found = await self._scrub_log(log_id, stop, limiter)
                size, entries, damaged = size + found.bytes, entries + found.entries, damaged + found.damaged_places
        for part in self._index.parts:
            if part not in self._index.parts:
                continue  # merged into another while those before it were verified: its file is closed
            part.acquire()
            try:
                async for length, damage in part.verify():
                    size += length
                    self.bytes_scrubbed += length
                    if damage is not None:
                        damaged += 1
                        self._index.report(damage)
                    await limiter.take(length)
            finally:
                await part.release()
        self.rounds += 1
        return ScrubResult(size, entries, damaged)

    async def _scrub_log(self, log_id: int, stop: int, limiter: RateLimiter) -> ScrubResult:
        entries = damaged = pending = 0

        async def read(offset: int, size: int) -> bytes:
            return await self._logs.read(log_id, offset, size)

        with self._reader.places_kept():
            try:
                if await read(0, HEADER_BYTES) != encode_header(log_id):
                    damaged += 1
                    self._reader.report(log_id, 0, 0, "the header of the entry log does not verify")
            except OSError as error:
                self._reader.report(log_id, 0, 1, f"cannot be read: {error}")
                return ScrubResult(0, 0, 1)
            async for found in walk_log(read, stop=stop):
                if isinstance(found, DamagedStretch):
                    damaged += 1
                    pending += found.size
                    self._reader.report(log_id, found.offset, 1, f"{found.size} bytes are no intact entry")
                else:
                    entries += 1
                    pending += len(found.sealed)
                if pending >= PIECE_BYTES:
                    self.bytes_scrubbed += pending
                    await limiter.take(pending)
                    pending = 0
        await asyncio.sleep(0)
        return ScrubResult(stop, entries, damaged)
