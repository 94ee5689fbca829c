"""Consumers that read on: the log is read ahead of them from one fetch to the next (rules K7 and K13).

A consumer that is behind asks for one range after the other, and each ends where the next one begins. A *scan* is an
iteration over the entries of a log that is kept between two fetches: what it has read ahead is what the consumer asks
for next. Entries do not change, so nothing of it grows old; whether its consumer may still have them is looked at in
each fetch.

A scan that is kept holds what an iterating reader reads ahead, whether its consumer comes again or not. So all
partitions of a gateway share a number of them: the one that was used longest ago gives way, and each ends after a time.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

from octavo.client.log.seam.entries import LogEntry
from octavo.gateway.records.batch import read_header
from octavo.protocol.errors import OctavoError

SCANS_MAX: Final = 16
"""Kept between fetches, over all partitions."""

IDLE_SECONDS: Final = 5.0
"""A consumer that works on what it has got comes again within this time; a later one waits for the bookies once."""


class _Batch(NamedTuple):
    payload: bytes
    next_offset: int


class Scan:
    """See the module. Whole batches of a log in order, for one consumer at a time."""

    def __init__(self, entries: AsyncGenerator[LogEntry], offset: int) -> None:
        """``entries``: those from the batch on that holds the offset, or from one before it."""
        self.offset = offset
        """Of the first record that it gives next."""
        self.is_over = False
        """Whether it has met its end."""
        self._entries = entries
        self._held: _Batch | None = None
        """The next batch, which had no room in an answer."""

    async def read(self, bytes_max: int) -> list[bytes]:
        """Whole batches from the one that holds :attr:`offset` on: at least one if there is one.

        Raises:
            OctavoError: The batch cannot be read from any bookie. The scan must be closed.
        """
        found: list[bytes] = []
        size = 0
        while size < bytes_max or not found:
            batch = await self._next()
            if batch is None:
                break
            size += len(batch.payload)
            if found and size > bytes_max:
                self._held = batch
                break
            found.append(batch.payload)
            self.offset = batch.next_offset
        return found

    async def _next(self) -> _Batch | None:
        held, self._held = self._held, None
        if held is not None:
            return held
        async for entry in self._entries:
            batch = read_header(entry.payload)
            if batch is not None and batch.next_offset > self.offset:
                return _Batch(entry.payload, batch.next_offset)
        self.is_over = True
        return None

    async def close(self) -> None:
        """Read nothing ahead any more."""
        with contextlib.suppress(OctavoError):
            await self._entries.aclose()


class _Kept(NamedTuple):
    scan: Scan
    end: asyncio.TimerHandle


class Scans:
    """See the module. The scans that wait for their consumers, by the log that they read and their next offset."""

    def __init__(self, kept_max: int = SCANS_MAX, idle_seconds: float = IDLE_SECONDS) -> None:
        self._kept_max = kept_max
        self._idle_seconds = idle_seconds
        self._loop = asyncio.get_running_loop()
        self._kept: dict[tuple[str, int], _Kept] = {}
        """The one that was used longest ago is the first."""
        self._closing: dict[asyncio.Task[None], str] = {}

    def __len__(self) -> int:
        """Those that are kept."""
        return len(self._kept)

    def take(self, log_id: str, offset: int) -> Scan | None:
        """The scan that gives this offset next; the caller keeps it again, or closes it."""
        kept = self._kept.pop((log_id, offset), None)
        if kept is None:
            return None
        kept.end.cancel()
        return kept.scan

    def keep(self, log_id: str, scan: Scan) -> None:
        """Keep a scan until its consumer comes again."""
        key = (log_id, scan.offset)
        if key in self._kept:  # of another consumer at the same place
            self._end(key)
        elif len(self._kept) >= self._kept_max:
            self._end(next(iter(self._kept)))
        self._kept[key] = _Kept(scan, self._loop.call_later(self._idle_seconds, self._end, key))

    def _end(self, key: tuple[str, int]) -> None:
        scan = self.take(*key)
        assert scan is not None, "it is kept"
        closing = self._loop.create_task(scan.close())
        self._closing[closing] = key[0]
        closing.add_done_callback(self._closing.pop)

    async def end_of(self, log_id: str) -> None:
        """End all scans of a log."""
        for key in [key for key in self._kept if key[0] == log_id]:
            self._end(key)
        closing = [task for task, of in self._closing.items() if of == log_id]
        if closing:
            await asyncio.wait(closing)
