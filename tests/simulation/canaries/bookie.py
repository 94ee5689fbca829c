"""Canaries in bookies: durability, fencing, doubt, garbage."""

import asyncio
from dataclasses import replace
from typing import Any

from octavo.bookie.disk.direct_io import DIRECT_BLOCK_BYTES
from octavo.bookie.index.runs import RunMap
from octavo.bookie.journal.journal import Journal, RecordKind
from octavo.bookie.server.connection import Connection
from octavo.bookie.server.lookups import Lookups
from octavo.bookie.storage.checkpoint import Checkpointer
from octavo.bookie.storage.compaction import Compactor
from octavo.bookie.storage.ledger_state import BARRIER, LedgerState
from octavo.bookie.storage.ledgers import LedgerTable
from octavo.bookie.storage.log_stream import LogStream
from octavo.bookie.storage.reads import EntryReader
from octavo.bookie.storage.writes import EntryWriter
from octavo.bookie.upkeep.garbage import Collection, GarbageCollector
from octavo.bookie.upkeep.metadata_check import MetadataCheck
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import ID_MAX, LedgerId
from simulation.engine.disk import SimulatedFile, SimulatedFileSystem
from simulation.engine.patches import Patch, patch


def ack_before_sync() -> list[Patch]:
    @patch(Journal, "append_then")
    def append_then(original: Any, self: Any, kind: Any, buffers: Any, done: Any) -> None:
        if self._failure is None and not self._closing:
            # In the next step of the loop: the caller has not put the entry into the cache yet.
            asyncio.get_running_loop().call_soon(done, None)
            original(self, kind, buffers, lambda _failure: None)
        else:
            original(self, kind, buffers, done)

    return [append_then]


def journal_rewrites_pages() -> list[Patch]:
    @patch(SimulatedFile, "write_and_sync")
    def write_and_sync(original: Any, self: Any, offset: int, buffers: Any) -> Any:
        if not self.path.name.startswith("journal-") or offset < DIRECT_BLOCK_BYTES:
            return original(self, offset, buffers)
        # The group also writes the page before it again, with the records that are there.
        start = offset - DIRECT_BLOCK_BYTES
        return original(self, start, [bytes(self._inode.volatile[start:offset]), *buffers])

    return [write_and_sync]


def entry_log_rewrites_pages() -> list[Patch]:
    @patch(LogStream, "fill_page")
    async def fill_page(_original: Any, _self: Any) -> None:
        """The next flush begins in the page that the manifest is about to count."""

    return [fill_page]


def garbage_believes_old_metadata() -> list[Patch]:
    @patch(MetadataCheck, "check")
    async def check(_original: Any, _self: Any, *, allocated: int | None = None) -> LedgerId:
        return LedgerId(ID_MAX)

    return [check]


def checkpoint_forgets_fence() -> list[Patch]:
    @patch(LedgerState, "encode")
    def encode(original: Any, self: Any) -> bytes:
        encoded: bytes = original(self)
        return bytes([encoded[0] & ~1]) + encoded[1:]

    return [encode]


def retry_failed_sync() -> list[Patch]:
    @patch(SimulatedFile, "write_and_sync")
    def write_and_sync(original: Any, self: Any, offset: int, buffers: Any) -> Any:
        async def insist() -> None:
            try:
                await original(self, offset, buffers)
            except OSError:
                await self.sync()

        return insist()

    return [write_and_sync]


def trust_replay() -> list[Patch]:
    # Only the first checkpoint, which makes durable what replay found, is skipped.
    @patch(Checkpointer, "checkpoint")
    async def checkpoint(original: Any, self: Any) -> None:
        if self.checkpoints or not self._ledgers.dirty:
            await original(self)
        else:
            self.checkpoints = 1

    return [checkpoint]


def trim_early() -> list[Patch]:
    @patch(Checkpointer, "_write_part")
    async def write_part(original: Any, self: Any, states: Any) -> Any:
        await self._journal.trim(self._journal.position)
        return await original(self, states)

    return [write_part]


def directory_not_synced() -> list[Patch]:
    @patch(SimulatedFileSystem, "sync_directory")
    async def sync_directory(original: Any, self: Any, path: Any) -> None:
        if path.name == "data":
            await original(self, path)

    return [sync_directory]


def fence_not_durable() -> list[Patch]:
    @patch(EntryWriter, "fence")
    def fence(_original: Any, self: Any, ledger_id: int, _ledger_key: bytes, term: int = 0) -> Any:
        self._health.check_usable()
        self._ledgers.get(ledger_id).fence(term)
        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    return [fence]


def private_is_forgotten() -> list[Patch]:
    @patch(LedgerState, "encode")
    def encode(original: Any, self: Any) -> bytes:
        encoded: bytes = original(self)
        return bytes([encoded[0] & ~32]) + encoded[1:]

    return [encode]


def private_is_not_journaled() -> list[Patch]:
    @patch(EntryWriter, "_mark_private")
    def mark_private(_original: Any, _self: Any, ledger: Any) -> None:
        ledger.private = True

    return [mark_private]


def lost_privacy_is_public() -> list[Patch]:
    return [Patch(LedgerTable, "privacy_is_lost", lambda _self, _ledger: False)]


def fence_after_lookup() -> list[Patch]:
    @patch(Lookups, "_fence")
    def fence(original: Any, self: Any, request: Any) -> Any:
        if not request.ledger_key:
            return original(self, request)

        async def once_caught_up() -> None:
            # The lookup is done at once; the fence takes effect only when the journal has caught up.
            await self._storage._journal.append(RecordKind.LEDGER_KEY, [BARRIER])
            await original(self, request)

        late = asyncio.ensure_future(once_caught_up())
        late.add_done_callback(lambda done: done.cancelled() or done.exception())
        return late

    return [fence]


def fence_ignored() -> list[Patch]:
    @patch(Connection, "_add")
    def add(original: Any, self: Any, request_id: int, request: Any) -> None:
        # The add waits, as behind a full journal, and is accepted without checking the fence again.
        if self._storage.ledgers.get(request.ledger_id).fenced:
            original(self, request_id, request)
            return

        def late() -> None:
            ledger = self._storage.ledgers.get(request.ledger_id)
            fenced, ledger.fenced = ledger.fenced, False
            try:
                if not self._closing:
                    original(self, request_id, request)
            except OctavoError as error:
                self._replies.refuse(request_id, request.op, error)
            finally:
                ledger.fenced = fenced

        asyncio.get_running_loop().call_later(0.2, late)

    return [add]


def no_doubt() -> list[Patch]:
    @patch(LedgerTable, "is_below_floor")
    def is_below_floor(_original: Any, _self: Any, _ledger: Any, _term: int) -> bool:
        return False

    @patch(LedgerTable, "unsure_from")
    def unsure_from(_original: Any, _self: Any, _ledger: Any) -> int | None:
        return None

    return [is_below_floor, unsure_from]


def corruption_is_absence() -> list[Patch]:
    @patch(EntryReader, "read")
    async def read(original: Any, self: Any, *arguments: Any, **keywords: Any) -> Any:
        result = await original(self, *arguments, **keywords)
        return replace(result, unknown=[])

    return [read]


def index_put_hides() -> list[Patch]:
    @patch(RunMap, "put")
    def put(original: Any, self: Any, run: Any) -> None:
        # An overlapping run is replaced, not merged; a run that ends right before counts as overlapping.
        self.runs[:] = [old for old in self.runs if old.last < run.first - 1 or old.first > run.last]
        original(self, run)

    return [put]


def compaction_removes_early() -> list[Patch]:
    @patch(Compactor, "_remove")
    async def remove(original: Any, self: Any, shares: Any, added: Any, *parts: Any) -> None:
        try:
            for share in shares:
                await self._logs.remove(share.log_id)
            await asyncio.sleep(0.05)
        except BaseException:  # as in the original: nothing is left open when a stop interrupts this
            if parts[0] is not None:
                await parts[0].retire()
            raise
        await original(self, shares, added, *parts)

    return [remove]


def garbage_by_listing() -> list[Patch]:
    @patch(GarbageCollector, "collect")
    async def collect(_original: Any, self: Any) -> Any:
        held = self._storage.ledgers.live_ids()
        listed = [ledger_id async for ledger_id in self._store.list_ledgers()]
        return await _delete(self, held, listed)

    return [collect]


def garbage_lists_first() -> list[Patch]:
    @patch(GarbageCollector, "collect")
    async def collect(_original: Any, self: Any) -> Any:
        listed = [ledger_id async for ledger_id in self._store.list_ledgers()]
        if not listed:
            return Collection(0, 0)
        await self._store.cluster_id()
        return await _delete(self, self._storage.ledgers.live_ids(), listed)

    return [collect]


async def _delete(collector: Any, held: list[int], listed: list[LedgerId]) -> Collection:
    gone = sorted(set(held) - set(listed))
    for ledger_id in gone:
        await collector._storage.writer.delete(ledger_id)
    return Collection(len(held), len(gone))
