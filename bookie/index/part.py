"""Index parts on disk: written once, then only read."""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from octavo.bookie.disk.filesystem import File, FileSystem, sync_file, sync_names
from octavo.bookie.index.format import (
    BLOCK_BODY_BYTES_MAX,
    BLOCK_BODY_BYTES_TARGET,
    CHECKSUM_BYTES,
    HEADER_BYTES,
    KIND_RUNS,
    KIND_STATES,
    TAIL_BYTES,
    BlockEntry,
    IndexDamagedError,
    IndexUnreadableError,
    Key,
    checksum,
    decode_footer,
    decode_runs,
    decode_states,
    decode_tail,
    encode_footer,
    encode_header,
    encode_run,
    encode_state,
    verified_body,
)
from octavo.bookie.index.runs import Run, clip, first_id_in

_WRITE_BYTES = 1 << 20
"""Blocks are collected up to this size before they are written."""

_RUN_COST_BYTES = 400
"""Upper estimate of the memory of a decoded run without its arrays."""


def part_name(part_id: int) -> str:
    """File name of a part."""
    return f"{part_id:016x}.runs"


class DecodedBlock(NamedTuple):
    """The runs of one block, in order of (ledger, first)."""

    ledger_ids: list[int]
    runs: list[Run]
    cost_bytes: int


class BlockCache:
    """The recently used decoded blocks of all parts, up to ``bytes_max``."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._blocks: OrderedDict[tuple[int, int], DecodedBlock] = OrderedDict()
        self.bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, key: tuple[int, int]) -> DecodedBlock | None:
        block = self._blocks.get(key)
        if block is None:
            self.misses += 1
            return None
        self.hits += 1
        self._blocks.move_to_end(key)
        return block

    def put(self, key: tuple[int, int], block: DecodedBlock) -> None:
        if key in self._blocks:
            return
        self._blocks[key] = block
        self.bytes += block.cost_bytes
        while self.bytes > self._bytes_max and len(self._blocks) > 1:
            self.bytes -= self._blocks.popitem(last=False)[1].cost_bytes


class Part:
    """One immutable part. Its file is closed when the part is retired and its last reader has released it."""

    def __init__(self, part_id: int, size: int, file: File, blocks: list[BlockEntry]) -> None:
        self.part_id = part_id
        self.size = size
        self._file = file
        self._run_blocks = [block for block in blocks if block.kind == KIND_RUNS]
        self._state_blocks = [block for block in blocks if block.kind == KIND_STATES]
        self._readers = 0
        self._retired = False

    @property
    def path(self) -> Path:
        return self._file.path

    @classmethod
    async def open(cls, filesystem: FileSystem, path: Path, part_id: int) -> "Part":
        """Open a part and read only its footer. Raises :class:`IndexDamagedError` when it is damaged or missing."""
        try:
            file = await filesystem.open(path)
        except FileNotFoundError as error:
            raise IndexDamagedError(path, 0, "the file is missing") from error
        try:
            size = await file.size()
            start = max(0, size - TAIL_BYTES)
            found = decode_tail(await file.read(start, TAIL_BYTES), part_id, size)
            if found is None:
                raise IndexDamagedError(path, start, "the tail does not verify")  # noqa: TRY301
            offset, length = found
            body = verified_body(part_id, offset, await file.read(offset, length + CHECKSUM_BYTES), length)
            if body is None:
                raise IndexDamagedError(path, offset, "the footer does not verify")  # noqa: TRY301
        except BaseException:
            await file.close()
            raise
        return cls(part_id, size, file, decode_footer(body))

    def acquire(self) -> None:
        """Keep the file open until :meth:`release`."""
        self._readers += 1

    async def release(self) -> None:
        self._readers -= 1
        if self._retired and not self._readers:
            await self._file.close()

    async def retire(self) -> None:
        """Close the part's file once its last reader has released it."""
        self._retired = True
        if not self._readers:
            await self._file.close()

    async def _body(self, block: BlockEntry) -> bytes:
        size = min(block.length, BLOCK_BODY_BYTES_MAX) + CHECKSUM_BYTES
        try:
            stored = await self._file.read(block.offset, size)
        except OSError as error:
            raise IndexUnreadableError(
                self.path, block.offset, f"cannot be read: {error}", keys=_keys_of(block)
            ) from error
        body = verified_body(self.part_id, block.offset, stored, block.length)
        if body is None:
            what = "a block's checksum does not match its bytes"
            raise IndexDamagedError(self.path, block.offset, what, keys=_keys_of(block))
        return body

    def _candidates(self, low: Key, high: Key) -> list[BlockEntry]:
        blocks = self._run_blocks
        start = bisect_left(blocks, low, key=attrgetter("last_key"))
        stop = bisect_right(blocks, high, key=attrgetter("first_key"))
        return blocks[start:stop]

    async def lookup(
        self, ledger_id: int, first: int, last: int, cache: BlockCache
    ) -> tuple[list[Run], list[IndexDamagedError]]:
        """The runs with ids in ``first..last``, cut to that interval, and the damage that may hide others."""
        found: list[Run] = []
        damage: list[IndexDamagedError] = []
        for block in self._candidates((ledger_id, first), (ledger_id, last)):
            try:
                decoded = await self._decoded(block, cache)
            except IndexDamagedError as error:
                damage.append(_bounded(error, block, ledger_id, first, last))
                continue
            at, stop = _runs_from(decoded, ledger_id, first)
            while at < stop and decoded.runs[at].first <= last:
                piece = clip(decoded.runs[at], first, last)
                if piece is not None:
                    found.append(piece)
                at += 1
        return found, damage

    async def first_id(self, ledger_id: int, first: int, cache: BlockCache) -> int | None:
        """The lowest id from ``first`` on that the part names, or that a damaged block of it may name; None: there is
        none."""
        for block in self._candidates((ledger_id, first), (ledger_id, 2**64)):
            try:
                decoded = await self._decoded(block, cache)
            except IndexDamagedError:
                return max(first, block.first_key[1]) if block.first_key[0] == ledger_id else first
            at, stop = _runs_from(decoded, ledger_id, first)
            if at < stop:
                return first_id_in(decoded.runs[at], first)
        return None

    async def _decoded(self, block: BlockEntry, cache: BlockCache) -> DecodedBlock:
        """Raises :class:`IndexDamagedError`."""
        key = (self.part_id, block.offset)
        decoded = cache.get(key)
        if decoded is None:
            decoded = _decode(await self._body(block))
            cache.put(key, decoded)
        return decoded

    async def runs(self) -> AsyncIterator[tuple[int, Run]]:
        """All runs, in order, without filling the cache. Raises :class:`IndexDamagedError`."""
        for block in self._run_blocks:
            for item in decode_runs(await self._body(block)):
                yield item

    async def verify(self) -> AsyncIterator[tuple[int, IndexDamagedError | None]]:
        """Check the header and every block: the size of each, and its damage or None."""
        try:
            sound = await self._file.read(0, HEADER_BYTES) == encode_header(self.part_id)
        except OSError:
            sound = False
        damage = None if sound else IndexDamagedError(self.path, 0, "the header does not verify")
        yield HEADER_BYTES, damage
        for block in (*self._run_blocks, *self._state_blocks):
            try:
                await self._body(block)
            except IndexDamagedError as error:
                yield block.length, error
            else:
                yield block.length, None

    @property
    def run_blocks(self) -> Sequence[BlockEntry]:
        """The blocks with runs, for :meth:`runs_in`."""
        return self._run_blocks

    async def runs_in(self, block: BlockEntry) -> list[tuple[int, Run]]:
        """The runs of one block. Raises :class:`IndexDamagedError`."""
        return list(decode_runs(await self._body(block)))

    @property
    def state_blocks(self) -> Sequence[BlockEntry]:
        """The blocks with ledger states, for :meth:`states_in`."""
        return self._state_blocks

    async def states_in(self, block: BlockEntry) -> list[tuple[int, bytes]]:
        """The encoded states of one block. Raises :class:`IndexDamagedError`."""
        return list(decode_states(await self._body(block)))

    async def states(self) -> AsyncIterator[tuple[int, bytes]]:
        """Every ledger's encoded state, in order of ledger id. Raises :class:`IndexDamagedError`."""
        for block in self._state_blocks:
            for item in await self.states_in(block):
                yield item


def _keys_of(block: BlockEntry) -> tuple[Key, Key] | None:
    return (block.first_key, block.last_key) if block.kind == KIND_RUNS else None


def _decode(body: bytes) -> DecodedBlock:
    ledger_ids: list[int] = []
    runs: list[Run] = []
    cost = 0
    for ledger_id, run in decode_runs(body):
        ledger_ids.append(ledger_id)
        runs.append(run)
        cost += _RUN_COST_BYTES
        if not isinstance(run.ids, range):
            cost += 8 * len(run.ids)
        if not isinstance(run.sizes, int):
            cost += run.sizes.itemsize * len(run.sizes)
    return DecodedBlock(ledger_ids, runs, cost)


def _runs_from(decoded: DecodedBlock, ledger_id: int, first: int) -> tuple[int, int]:
    """Which of the block's runs are of the ledger and have an id from ``first`` on (half-open)."""
    start = bisect_left(decoded.ledger_ids, ledger_id)
    stop = bisect_right(decoded.ledger_ids, ledger_id, lo=start)
    return bisect_left(decoded.runs, first, lo=start, hi=stop, key=attrgetter("last")), stop


def _bounded(error: IndexDamagedError, block: BlockEntry, ledger_id: int, first: int, last: int) -> IndexDamagedError:
    """Narrow the hidden ids to those of the ledger that the block can contain."""
    error.first = max(first, block.first_key[1]) if block.first_key[0] == ledger_id else first
    error.last = min(last, block.last_key[1]) if block.last_key[0] == ledger_id else last
    return error


class PartWriter:
    """Writes one part: every run in order of (ledger, first), then every state in order of ledger, then
    :meth:`finish`."""

    def __init__(self, filesystem: FileSystem, file: File, part_id: int) -> None:
        self._filesystem = filesystem
        self._file = file
        self._part_id = part_id
        self._blocks: list[BlockEntry] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._kind = KIND_RUNS
        self._first_key: Key | None = None
        self._last_key: Key = (0, 0)
        header = encode_header(part_id)
        self._pending = [header]
        self._pending_bytes = self._offset = HEADER_BYTES
        self._written = 0

    @classmethod
    async def create(cls, filesystem: FileSystem, directory: Path, part_id: int) -> "PartWriter":
        return cls(filesystem, await filesystem.open(directory / part_name(part_id), create=True), part_id)

    async def add_run(self, ledger_id: int, run: Run) -> None:
        """Add a run; its key is above those of all runs added before."""
        assert self._kind == KIND_RUNS, "states follow the runs"
        assert self._first_key is None or self._last_key < (ledger_id, run.first), "out of order"
        await self._add(encode_run(ledger_id, run), (ledger_id, run.first), (ledger_id, run.last))

    async def add_state(self, ledger_id: int, state: bytes) -> None:
        if self._kind == KIND_RUNS:
            await self._close_block()
            self._kind = KIND_STATES
        await self._add(encode_state(ledger_id, state), (ledger_id, 0), (ledger_id, 0))

    async def _add(self, encoded: bytes, first_key: Key, last_key: Key) -> None:
        if self._first_key is None:
            self._first_key = first_key
        self._last_key = last_key
        self._body.append(encoded)
        self._body_bytes += len(encoded)
        if self._body_bytes >= BLOCK_BODY_BYTES_TARGET:
            await self._close_block()

    async def _close_block(self) -> None:
        if self._first_key is None:
            return
        body = b"".join(self._body)
        assert len(body) <= BLOCK_BODY_BYTES_MAX, len(body)
        self._blocks.append(BlockEntry(self._kind, self._offset, len(body), self._first_key, self._last_key))
        self._pending += (body, checksum(self._part_id, self._offset, body))
        self._offset += len(body) + CHECKSUM_BYTES
        self._body, self._body_bytes, self._first_key = [], 0, None
        if self._offset - self._written >= _WRITE_BYTES:
            await self._write()

    async def _write(self) -> None:
        pending, self._pending = self._pending, []
        offset, self._written = self._written, self._offset
        await self._file.write(offset, pending)

    async def finish(self) -> Part:
        """Write the footer, sync the file and its directory: a manifest may name the part when this returns."""
        await self._close_block()
        footer = encode_footer(self._part_id, self._offset, self._blocks)
        self._pending.append(footer)
        self._offset += len(footer)
        await self._write()
        await sync_file(self._file)
        await sync_names(self._filesystem, self._file.path.parent)
        return Part(self._part_id, self._offset, self._file, self._blocks)

    async def abandon(self) -> None:
        """Close and remove the unfinished file."""
        await self._file.close()
        await self._filesystem.remove(self._file.path)
