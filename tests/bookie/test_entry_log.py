"""Entry logs can be walked, scrubbed and totalled without an index."""

import asyncio
from pathlib import Path

import pytest
from octavo.bookie.entrylog.format import (
    FILLER_BYTES_MAX,
    FILLER_BYTES_MIN,
    HEADER_BYTES,
    PAGE_BYTES,
    decode_totals,
    encode_filler,
    encode_header,
    encode_totals,
    is_filler,
    is_header,
)
from octavo.bookie.entrylog.logs import EntryLogs, EntryLogWriter, log_totals, scan_log
from octavo.bookie.entrylog.walk import DamagedStretch, IntactEntry, walk_log
from octavo.protocol.errors import BookieStorageError
from support.faulty_filesystem import MemoryFileSystem
from support.ledgers import LedgerScript

DIRECTORY = Path("/entries")
PATH = DIRECTORY / "0000000000000005.log"


async def write_log(filesystem: MemoryFileSystem, entries: list[bytes]) -> EntryLogWriter:
    await filesystem.make_directory(DIRECTORY)
    writer = await EntryLogWriter.create(filesystem, DIRECTORY, 5)
    await writer.append(entries, sum(map(len, entries)))
    await writer.sync()
    return writer


async def test_read_that_opens_its_log_while_all_are_closed_leaves_no_file_open() -> None:
    filesystem = MemoryFileSystem()
    writer = await write_log(filesystem, LedgerScript(1).entries(range(3)))
    logs = EntryLogs(filesystem, [DIRECTORY])
    reading = asyncio.ensure_future(logs.read(5, 0, 10))
    await asyncio.sleep(0)
    await logs.close()
    with pytest.raises(OSError, match="closed"):
        await reading
    assert filesystem.open_files == {DIRECTORY / "0000000000000005.log": 2}, "the writer's handles"
    await writer.close()
    assert not filesystem.open_files


async def test_log_whose_totals_cannot_be_written_is_closed_all_the_same() -> None:
    filesystem = MemoryFileSystem()
    writer = await write_log(filesystem, LedgerScript(1).entries(range(3)))
    filesystem.fault = lambda operation, path: OSError(5, "worn out") if path.suffix == ".tmp" else None
    with pytest.raises(OSError, match="worn out"):
        await writer.finish()
    assert not filesystem.open_files


async def test_log_is_walked_entry_by_entry_and_read_at_any_place() -> None:
    filesystem = MemoryFileSystem()
    entries = LedgerScript(1).entries(range(50)) + LedgerScript(2).entries(range(7))
    writer = await write_log(filesystem, entries)
    path = DIRECTORY / "0000000000000005.log"
    assert filesystem.content(path)[:HEADER_BYTES] == encode_header(5)
    walked = [item async for item in scan_log(filesystem, path)]
    assert [sealed for _, sealed in walked] == entries
    logs = EntryLogs(filesystem, [DIRECTORY])
    for offset, sealed in walked:
        assert await logs.read(5, offset, len(sealed)) == sealed
    with pytest.raises(FileNotFoundError):
        await logs.read(6, 0, 1)
    await logs.close()
    await writer.close()


async def test_totals_come_from_the_side_file_or_else_from_a_scan() -> None:
    filesystem = MemoryFileSystem()
    first, second = LedgerScript(1).entries(range(50)), LedgerScript(2).entries(range(7))
    writer = await write_log(filesystem, first + second)
    expected = {1: sum(map(len, first)), 2: sum(map(len, second))}
    assert await log_totals(filesystem, DIRECTORY, 5, writer.size) == expected
    writer.totals = {1: 10}
    await writer.finish()
    assert await log_totals(filesystem, DIRECTORY, 5, writer.size) == {1: 10}
    filesystem.damage(DIRECTORY / "0000000000000005.totals", 30)
    assert await log_totals(filesystem, DIRECTORY, 5, writer.size) == expected
    assert decode_totals(6, encode_totals(5, expected)) is None


async def test_scan_names_the_place_where_entries_end() -> None:
    filesystem = MemoryFileSystem()
    entries = LedgerScript(1).entries(range(20))
    writer = await write_log(filesystem, entries)
    path = DIRECTORY / "0000000000000005.log"
    place = HEADER_BYTES + sum(map(len, entries[:12]))
    filesystem.damage(path, place + 60)
    with pytest.raises(BookieStorageError, match=f"offset {place}:"):
        assert [item async for item in scan_log(filesystem, path)]
    assert len([item async for item in scan_log(filesystem, path, stop=place)]) == 12
    with pytest.raises(BookieStorageError, match="no intact entry"):
        assert [item async for item in scan_log(filesystem, path, stop=place - 1)]
    await writer.close()


@pytest.mark.parametrize("offset", [1, 32, 4084, 4085, 4095, 4097, 8180, 8185, 12287])
def test_a_filler_ends_its_page_and_is_known_by_its_bytes(offset: int) -> None:
    filler = encode_filler(offset)
    assert (offset + len(filler)) % PAGE_BYTES == 0
    assert FILLER_BYTES_MIN <= len(filler) <= FILLER_BYTES_MAX
    assert int.from_bytes(filler[4:8]) == len(filler)
    assert is_filler(offset, filler + b"what follows")
    assert not is_filler(offset + 8, filler)
    for at in range(0, len(filler), 7):
        assert not is_filler(offset, filler[:at] + bytes([filler[at] ^ 1]) + filler[at + 1 :])


def test_a_log_that_ends_with_a_page_needs_no_filler() -> None:
    assert encode_filler(2 * PAGE_BYTES) == b""
    assert not is_filler(2 * PAGE_BYTES, b"")


async def filled_log(filesystem: MemoryFileSystem) -> tuple[list[bytes], list[int]]:
    """A log of three pages or more, each ended by a filler: its entries, and the offsets at which fillers begin."""
    await filesystem.make_directory(DIRECTORY)
    writer = await EntryLogWriter.create(filesystem, DIRECTORY, 5)
    # The second piece leaves too little of its page for a filler, which therefore takes the next page as well.
    script = LedgerScript(1, payload_bytes=100)
    size = len(script.entry(0))
    tight = LedgerScript(2, payload_bytes=PAGE_BYTES - 5 - (size - 100))
    pieces = [script.entries(range(4)), [tight.entry(0)], script.entries(range(4, 9))]
    fillers = []
    for piece in pieces:
        assert writer.size % PAGE_BYTES == 0 or piece is pieces[0]
        await writer.append(piece, sum(map(len, piece)))
        fillers.append(writer.size)
        await writer.fill_page()
        await writer.fill_page()  # at the end of a page: nothing more
    assert writer.size == len(filesystem.content(PATH))
    await writer.sync()
    await writer.close()
    return [sealed for piece in pieces for sealed in piece], fillers


async def test_fillers_are_no_entries_and_no_damage() -> None:
    filesystem = MemoryFileSystem()
    entries, fillers = await filled_log(filesystem)
    assert [sealed async for _, sealed in scan_log(filesystem, PATH)] == entries
    content = filesystem.content(PATH)
    assert all(is_filler(offset, content[offset:]) for offset in fillers)
    totals = await log_totals(filesystem, DIRECTORY, 5, len(content))
    assert sum(totals.values()) == sum(map(len, entries)), "fillers belong to no ledger"


async def test_damage_next_to_a_filler_hides_nothing_else() -> None:
    filesystem = MemoryFileSystem()
    entries, fillers = await filled_log(filesystem)
    content = filesystem.content(PATH)

    async def read(offset: int, size: int) -> bytes:
        return damaged[offset : offset + size]

    async def walked() -> tuple[list[bytes], list[DamagedStretch]]:
        found = [item async for item in walk_log(read, stop=len(damaged))]
        stretches = [item for item in found if isinstance(item, DamagedStretch)]
        return [item.sealed for item in found if isinstance(item, IntactEntry)], stretches

    def with_byte_changed(offset: int) -> bytes:
        return content[:offset] + bytes([content[offset] ^ 0xFF]) + content[offset + 1 :]

    # The last entry before a filler, in its payload and in its length.
    last = len(entries[3])
    for at in (fillers[0] - 10, fillers[0] - last + 5):
        damaged = with_byte_changed(at)
        assert await walked() == (entries[:3] + entries[4:], [DamagedStretch(fillers[0] - last, last)])
    # The filler itself.
    damaged = with_byte_changed(fillers[0] + 20)
    assert await walked() == (entries, [DamagedStretch(fillers[0], PAGE_BYTES - fillers[0])])


def test_headers_of_both_formats_are_read_and_no_other() -> None:
    assert encode_header(5) == encode_header(5, 2)
    assert is_header(5, encode_header(5, 1))
    assert is_header(5, encode_header(5, 2))
    for wrong in (encode_header(5, 3), encode_header(6), encode_header(5)[:-1], b""):
        assert not is_header(5, wrong)
