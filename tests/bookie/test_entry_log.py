"""Entry logs can be walked, scrubbed and totalled without an index."""

import asyncio
from pathlib import Path

import pytest
from octavo.bookie.entrylog.format import HEADER_BYTES, decode_totals, encode_header, encode_totals
from octavo.bookie.entrylog.logs import EntryLogs, EntryLogWriter, log_totals, scan_log
from octavo.protocol.errors import BookieStorageError
from support.faulty_filesystem import MemoryFileSystem
from support.ledgers import LedgerScript

DIRECTORY = Path("/entries")


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
