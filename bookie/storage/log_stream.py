"""One stream of entries into entry logs: begins a log when there is none, and the next when one is full.

Flushes of the write cache are one stream, compaction is another: entries of one age are deleted together.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from octavo.bookie.disk.filesystem import is_disk_full
from octavo.bookie.entrylog.format import Totals, add_to_totals
from octavo.bookie.entrylog.logs import EntryLogs, EntryLogWriter
from octavo.bookie.storage.manifest_keeper import ManifestKeeper


class Place(NamedTuple):
    """Where bytes have been written."""

    log_id: int
    offset: int


class LogStream:
    """The logs of one stream that are not finished. One user at a time."""

    def __init__(self, logs: EntryLogs, keeper: ManifestKeeper, entry_log_bytes: int) -> None:
        self._logs = logs
        self._keeper = keeper
        self._entry_log_bytes = entry_log_bytes
        self._writer: EntryLogWriter | None = None
        self._rolled: list[EntryLogWriter] = []

    @property
    def directory(self) -> Path:
        """Where this stream's logs stand, or the first such place."""
        return self._logs.directories[0]

    @property
    def unfinished(self) -> list[EntryLogWriter]:
        """Every log that may hold bytes that no manifest counts yet; the one being written is the last."""
        return [*self._rolled, *([self._writer] if self._writer is not None else [])]

    @property
    def totals(self) -> Totals:
        """The amount that each ledger has in the log that is being written."""
        return self._writer.totals if self._writer is not None else {}

    async def append(self, buffers: Sequence[bytes], totals: Totals) -> Place:
        """Write whole sealed entries back to back; ``totals`` are what each ledger has among them.

        Raises OSError; then nothing has been written, and the next call begins a new log.
        """
        while True:
            try:
                return await self._append(buffers, totals)
            except OSError as error:
                if not is_disk_full(error) or not self._logs.has_other_disks:
                    raise

    async def _append(self, buffers: Sequence[bytes], totals: Totals) -> Place:
        size = sum(total.bytes for total in totals.values())
        writer = self._writer
        if writer is not None and writer.size + size > self._entry_log_bytes and writer.totals:
            self.roll()
            writer = None
        if writer is None:
            self._writer = writer = await self._logs.create(self._keeper.new_log_id())
        offset = writer.size
        try:
            await writer.append(buffers, size)
        except OSError:
            self._logs.note_full(writer.log_id)
            self.roll()
            if not writer.totals:
                # Nothing is in it, and each attempt on a full disk would leave another.
                self._rolled.remove(writer)
                await writer.close()
                with contextlib.suppress(OSError):
                    await self._logs.remove(writer.log_id)
            raise
        for ledger_id, total in totals.items():
            add_to_totals(writer.totals, ledger_id, total.bytes, total.highest)
        return Place(writer.log_id, offset)

    async def fill_page(self) -> None:
        """End the page of the log that is being written, before the manifest counts what it holds: an interrupted write
        may leave anything in the pages it touches, and later entries must not share one with these (rule B3). If the
        disk has no space for that, nothing more is written to this log. Raises any other OSError."""
        if self._writer is None:
            return
        if self._logs.is_full(self._writer.log_id):
            self.roll()  # the manifest needs what is left more
            return
        try:
            await self._writer.fill_page()
        except OSError as error:
            if not is_disk_full(error):
                raise
            self._logs.note_full(self._writer.log_id)
            self.roll()

    def roll(self) -> None:
        """Write no more to the active log."""
        if self._writer is not None:
            self._rolled.append(self._writer)
            self._writer = None

    async def finish(self, writers: Sequence[EntryLogWriter]) -> None:
        """Of these, close the rolled ones, which must be synced and counted by the manifest."""
        for writer in [writer for writer in writers if writer in self._rolled]:
            await writer.finish()
            self._rolled.remove(writer)

    async def close(self) -> None:
        """Close all of them. Totals are kept of the logs that the manifest counts whole."""
        writers = self.unfinished
        self._rolled, self._writer = [], None
        for writer in writers:
            complete = self._keeper.log_sizes.get(writer.log_id) == writer.size
            await (writer.finish() if complete else writer.close())
