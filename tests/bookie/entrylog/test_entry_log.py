"""Entry logs can be walked, scrubbed and totalled without an index."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.bookie.entrylog.format import (
    FILLER_BYTES_MAX,
    FILLER_BYTES_MIN,
    HEADER_BYTES,
    PAGE_BYTES,
    Total,
    decode_totals,
    encode_filler,
    encode_header,
    encode_totals,
    is_filler,
    is_header,
)
from octavo.bookie.entrylog.logs import EntryLogs, EntryLogWriter, log_totals, scan_log
from octavo.bookie.entrylog.walk import DamagedStretch, DoubtfulEntry, IntactEntry, walk_log
from octavo.protocol.entries import CHECKSUM, HEADER, SEALED_BYTES_MIN, Digest, Sealer, derive_secrets
from octavo.protocol.errors import BookieStorageError
from octavo.protocol.ids import EntryId, LedgerId
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from octavo.protocol.places import place
from support.clusters.ledgers import LedgerScript
from support.disks.faulty_filesystem import MemoryFileSystem

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
    expected = {1: Total(sum(map(len, first)), 49), 2: Total(sum(map(len, second)), 6)}
    assert await log_totals(filesystem, DIRECTORY, 5, writer.size) == expected
    writer.totals = {1: Total(10, 3)}
    await writer.finish()
    assert await log_totals(filesystem, DIRECTORY, 5, writer.size) == {1: Total(10, None)}
    filesystem.damage(DIRECTORY / "0000000000000005.totals", 30)
    assert await log_totals(filesystem, DIRECTORY, 5, writer.size) == expected
    assert decode_totals(6, encode_totals(5, expected)) is None


@pytest.mark.parametrize("highest", [place(1, 0) - 1, place(1, 0), place(7, 3), 2**63 - 1])
def test_totals_name_the_highest_ids_where_there_are_places(highest: int) -> None:
    totals = {4: Total(100, 6), 9: Total(2**40, highest)}
    encoded = encode_totals(5, totals)
    if highest < place(1, 0):  # as before there were streams
        assert encoded[8:12] == (1).to_bytes(4, "big")
        assert decode_totals(5, encoded) == {4: Total(100, None), 9: Total(2**40, None)}
    else:
        assert encoded[8:12] == (2).to_bytes(4, "big")
        assert decode_totals(5, encoded) == totals
    assert decode_totals(6, encoded) is None
    for at in range(len(encoded)):
        assert decode_totals(5, encoded[:at] + bytes([encoded[at] ^ 1]) + encoded[at + 1 :]) is None
        assert decode_totals(5, encoded[:at]) is None


@pytest.mark.parametrize(
    ("total", "first_kept", "live"),
    [
        (Total(1, 7), 0, True),
        (Total(1, 7), 7, True),
        (Total(1, 7), 8, False),
        (Total(1, None), 8, True),
    ],
)
def test_a_total_is_live_unless_all_its_ids_are_trimmed(total: Total, first_kept: int, live: bool) -> None:
    assert total.is_live(first_kept) == live


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
    assert sum(total.bytes for total in totals.values()) == sum(map(len, entries)), "fillers belong to no ledger"


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


# --- entries inside payloads -----------------------------------------------------------------------------------------

SEALER = Sealer(LedgerId(1), Digest.CRC32C, derive_secrets(b"", LedgerId(1)))
INNER = LedgerScript(2)


def carrier(payload: bytes, entry_id: int = 1) -> bytes:
    return SEALER.seal(EntryId(entry_id), [payload], last_add_confirmed=None, length=0, sealed_at_ms=0)[0]


def leads_on(payload: bytes, after: bytes = b"") -> bytes:
    """``payload``, followed by the header of an entry that would end where the carrier does."""
    model = INNER.entry(9)
    return payload + model[:4] + len(after).to_bytes(4, "big") + model[8 : HEADER.size] + after


def log_of(*entries: bytes) -> tuple[bytes, list[IntactEntry]]:
    """The bytes of a log, and its entries."""
    content, placed = bytes(HEADER_BYTES), []
    for sealed in entries:
        placed.append(IntactEntry(len(content), sealed))
        content += sealed
    return content, placed


async def walk(
    content: bytes, *, ends_with_entry: bool = True
) -> tuple[list[IntactEntry], list[DoubtfulEntry], list[DamagedStretch]]:
    async def read(offset: int, size: int) -> bytes:
        return content[offset : offset + size]

    found = [item async for item in walk_log(read, stop=len(content), ends_with_entry=ends_with_entry)]
    assert [item.offset for item in found] == sorted(item.offset for item in found)
    return (
        [item for item in found if isinstance(item, IntactEntry)],
        [item for item in found if isinstance(item, DoubtfulEntry)],
        [item for item in found if isinstance(item, DamagedStretch)],
    )


def destroyed(content: bytes, offset: int, size: int) -> bytes:
    return content[:offset] + bytes(size) + content[offset + size :]


@pytest.mark.parametrize(
    "payload",
    [
        b"".join(INNER.entries(range(5))),
        b"before" + b"".join(INNER.entries(range(5))) + b"after",
        encode_header(3) + b"".join(INNER.entries(range(5))) + encode_filler(700),
        leads_on(b"".join(INNER.entries(range(5))), b"after"),
    ],
    ids=["whole", "between", "a log", "leads on"],
)
async def test_entries_inside_the_payload_of_a_damaged_entry_are_doubtful(payload: bytes) -> None:
    own = LedgerScript(1)
    content, entries = log_of(own.entry(0), carrier(payload), own.entry(2), own.entry(3))
    for start, size in ((0, 4), (4, 4), (0, HEADER.size), (0, HEADER.size + 5)):
        intact, doubtful, stretches = await walk(destroyed(content, entries[1].offset + start, size))
        assert intact == [entries[0], *entries[2:]]
        assert {item.sealed for item in doubtful} <= set(INNER.entries(range(5)))
        assert doubtful
        assert stretches


async def test_entries_inside_the_payload_of_an_entry_that_a_crash_cut_off_are_doubtful() -> None:
    """Without a manifest the end of the file is not known to be the end of an entry."""
    own = LedgerScript(1)
    inner = INNER.entries(range(5))
    content, entries = log_of(own.entry(0), carrier(b"".join(inner) + bytes(100)))
    cut = content[: entries[1].offset + HEADER.size + sum(map(len, inner))]
    intact, doubtful, _ = await walk(cut, ends_with_entry=False)
    assert intact == entries[:1]
    assert [item.sealed for item in doubtful] == inner


async def test_entries_that_reach_farther_than_any_payload_are_known() -> None:
    """Damage before and after them does not make them doubtful."""
    large = [carrier(bytes([number]) * 1_500_000, number) for number in range(4)]
    content, entries = log_of(INNER.entry(0), *large, INNER.entry(1), INNER.entry(2), INNER.entry(3))
    for offset in (entries[0].offset, entries[6].offset):
        content = destroyed(content, offset, 8)
    intact, doubtful, stretches = await walk(content)
    assert intact == [*entries[1:6], entries[7]]
    assert (doubtful, len(stretches)) == ([], 2)


async def test_a_length_inside_a_payload_does_not_lead_into_the_payload_of_a_later_entry() -> None:
    """Otherwise entries in two payloads would together reach farther than one payload does."""
    inner = INNER.entries(range(3))
    model = INNER.entry(9)
    far = ENTRY_PAYLOAD_BYTES_MAX // 2 - 100
    # From the end of the first inner entry to the second payload's inner entries.
    claimed = HEADER.size + far + CHECKSUM.size + HEADER.size + far - SEALED_BYTES_MIN
    assert len(inner[0]) + claimed + len(inner[1] + inner[2]) > ENTRY_PAYLOAD_BYTES_MAX > claimed
    first = carrier(inner[0] + model[:4] + claimed.to_bytes(4, "big") + model[8 : HEADER.size] + bytes(far), 0)
    content, entries = log_of(first, carrier(bytes(far) + inner[1] + inner[2]))
    leads_to = entries[0].offset + HEADER.size + len(inner[0]) + claimed + SEALED_BYTES_MIN
    assert content.startswith(inner[1], leads_to)
    intact, doubtful, _ = await walk(destroyed(content, entries[0].offset, 4))
    assert (intact, [item.sealed for item in doubtful]) == (entries[1:], inner[:1])


@given(st.data())
def test_damage_never_makes_an_entry_of_what_lies_in_a_payload(data: st.DataObject) -> None:
    """Logs of plain entries and of entries that contain entries and logs, with damage anywhere."""
    plain = st.integers(0, 6).map(LedgerScript(1, payload_bytes=20).entry)
    inner = st.lists(st.integers(0, 3).map(INNER.entry), min_size=1, max_size=4).map(b"".join)
    carriers = st.builds(
        lambda before, content, after: carrier(before + content + after),
        st.sampled_from([b"", b"x", encode_header(1)]),
        inner,
        st.sampled_from([b"", b"x", encode_filler(4000), INNER.entry(5)[:30]]),
    )
    content, entries = log_of(*data.draw(st.lists(plain | carriers, min_size=1, max_size=8)))
    damaged = content
    for _ in range(data.draw(st.integers(1, 3))):
        offset = data.draw(st.integers(HEADER_BYTES, len(content) - 1))
        damaged = destroyed(damaged, offset, min(data.draw(st.integers(1, 60)), len(content) - offset))
    intact, doubtful, _ = asyncio.run(walk(damaged))
    assert set(intact) <= set(entries)
    found = {item[0] for item in (*intact, *doubtful)}
    untouched = {entry.offset for entry in entries if damaged[entry.offset :].startswith(entry.sealed)}
    assert untouched <= found
