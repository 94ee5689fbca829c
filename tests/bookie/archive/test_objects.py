"""Objects: what is written is read again, and whatever is not as it was written is noticed (rules J1 and J2)."""

import hashlib
import struct
import zlib
from itertools import pairwise

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.bookie.archive.errors import Damage, ObjectDamagedError, ObjectTooLargeError, WrongEntryError
from octavo.bookie.archive.format import (
    HEAD_BYTES_MAX,
    INDEX_BYTES,
    OBJECT_BYTES_MAX,
    RANGES_MAX,
    TAIL_BYTES,
    Head,
    IdRange,
    ObjectName,
    Point,
    Tail,
    check_tail,
    decode_head,
    decode_index,
    decode_tail,
    encode_head,
    encode_index,
    encode_tail,
    index_bytes,
    make_head,
)
from octavo.bookie.archive.opening import OBJECT_RESIDUE, WholeCheck
from octavo.bookie.archive.writing import PART_BYTES, ObjectWriter, Written
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.ids import ID_MAX, LedgerId
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from octavo.protocol.places import place
from octavo.protocol.quorums import Quorums
from support.archive.objects import (
    INDEX_EVERY_BYTES,
    TOKEN,
    head_of,
    ids_in,
    open_object,
    slice_of,
    write_object,
)
from support.clusters.ledgers import LedgerScript, ids_of

HEAD = head_of((10, 25), (place(2, 0), place(2, 13)))
PARTS, WRITTEN = write_object(HEAD)
DATA = b"".join(PARTS)
ENTRIES = LedgerScript(9).entries(ids_in(HEAD))


def check_whole(data: bytes, *, name: ObjectName = HEAD.name, piece_bytes: int = 100) -> Written:
    check = WholeCheck(name, len(DATA), sha256=WRITTEN.sha256, index_every_bytes=INDEX_EVERY_BYTES)
    for start in range(0, len(data), piece_bytes):
        check.feed(data[start : start + piece_bytes])
    return check.finish()


def with_checksum(data: bytes) -> bytes:
    return data + struct.pack("<I", google_crc32c.value(data))


# --- writing (rule J1) ----------------------------------------------------------------------------------------------


def test_parts_have_one_size_and_the_facts_are_those_of_the_bytes() -> None:
    assert {len(part) for part in PARTS[:-1]} == {1000}
    assert 0 < len(PARTS[-1]) <= 1000
    assert len(DATA) == WRITTEN.object_bytes
    assert hashlib.sha256(DATA).digest() == WRITTEN.sha256
    assert zlib.crc32(DATA[:-4]) == WRITTEN.crc32
    assert zlib.crc32(DATA) == OBJECT_RESIDUE
    assert WRITTEN.entry_count == len(ENTRIES) == HEAD.entry_count == 30
    script = LedgerScript(9)
    assert WRITTEN.payload_bytes == sum(len(script.payload_of(entry_id)) for entry_id in ids_in(HEAD))
    assert b"".join(ENTRIES) in DATA


@pytest.mark.parametrize("batch", [1, 3, 30])
@pytest.mark.parametrize("part_bytes", [1, 999, 10**6])
def test_batches_and_parts_do_not_change_the_object(batch: int, part_bytes: int) -> None:
    entries = [entry for entry in ENTRIES if ids_of([entry])[0] < place(1, 0)]
    head = head_of((10, 25))
    parts, written = write_object(head, entries=entries, batch=min(batch, 16), part_bytes=part_bytes)
    again, _ = write_object(head, entries=entries, batch=2)
    assert b"".join(parts) == b"".join(again)
    assert {len(part) for part in parts[:-1]} <= {part_bytes}
    assert written.object_bytes == sum(map(len, parts))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (LedgerScript(9).entries([11]), "entry 11 came, entry 10 was due"),
        (LedgerScript(9).entries([10, 12]), "entry 12 came, entry 11 was due"),
        (LedgerScript(9).entries([10, 10]), "must increase"),
        (LedgerScript(9).entries([11, 10]), "must increase"),
        (LedgerScript(9).entries([*range(10, 27)]), f"entry 26 came, entry {place(2, 0)} was due"),
        (LedgerScript(8).entries([10]), "another ledger"),
        ([LedgerScript(9).explicit_lac(10)], "format"),
        ([], "without entries"),
        ([ENTRIES[0][:-1] + bytes([ENTRIES[0][-1] ^ 1])], "damaged"),
        ([b"short"], "shorter than its header"),
        ([bytes(ENTRY_PAYLOAD_BYTES_MAX + 1000)], "over the limit"),
    ],
)
def test_a_writer_refuses_what_is_not_the_next_entry(entries: list[bytes], message: str) -> None:
    with pytest.raises(WrongEntryError, match=message):
        ObjectWriter(HEAD).add(entries)


def test_a_writer_refuses_more_entries_than_its_ranges_have_and_less() -> None:
    writer = ObjectWriter(head_of((10, 11)))
    writer.add(LedgerScript(9).entries([10]))
    with pytest.raises(WrongEntryError, match="entry 11 is missing"):
        writer.finish()
    writer.add(LedgerScript(9).entries([11]))
    with pytest.raises(WrongEntryError, match="entry 12 came, no more was due"):
        writer.add(LedgerScript(9).entries([12]))


def test_a_writer_that_failed_is_not_continued() -> None:
    writer = ObjectWriter(HEAD)
    with pytest.raises(WrongEntryError):
        writer.add(ENTRIES[1:2])
    with pytest.raises(AssertionError):
        writer.add(ENTRIES[:1])
    with pytest.raises(AssertionError):
        writer.finish()


def test_an_object_has_at_most_the_bytes_that_it_may_have() -> None:
    head = head_of((10, 25))
    parts, written = write_object(head, index_every_bytes=INDEX_BYTES)
    size = written.object_bytes
    ObjectWriter(head, bytes_max=size).add(LedgerScript(9).entries(range(10, 26)))
    with pytest.raises(ObjectTooLargeError, match=f"at most {size - 1} bytes"):
        ObjectWriter(head, bytes_max=size - 1).add(LedgerScript(9).entries(range(10, 26)))
    assert OBJECT_BYTES_MAX == 4 * 1024**3
    assert OBJECT_BYTES_MAX // PART_BYTES <= 1000, "S3 takes 10,000 parts, other stores 1,000"
    assert len(parts) >= 1


# --- heads and names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "ledger_id", "ranges"),
    [
        (bytes(15), 9, [(0, 1)]),
        (TOKEN, 9, []),
        (TOKEN, 9, [(5, 4)]),
        (TOKEN, 9, [(0, 1), (1, 2)]),
        (TOKEN, 9, [(5, 6), (1, 2)]),
        (TOKEN, 9, [(0, ID_MAX + 1)]),
        (TOKEN, ID_MAX + 1, [(0, 1)]),
        (TOKEN, 9, [(2 * i, 2 * i) for i in range(RANGES_MAX + 1)]),
    ],
)
def test_an_impossible_head_is_refused(token: bytes, ledger_id: int, ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(InvalidArgumentError):
        make_head(token, LedgerId(ledger_id), Quorums(3, 3, 2), [IdRange(*ids) for ids in ranges])


def test_the_longest_head_is_as_long_as_stated() -> None:
    head = head_of(*((2 * i, 2 * i) for i in range(RANGES_MAX)))
    assert len(encode_head(head)) == head.size == HEAD_BYTES_MAX
    assert decode_head(encode_head(head) + b"entries") == head


def test_the_ids_of_a_head_follow_each_other_over_its_ranges() -> None:
    following, found = HEAD.following(9), []
    while following is not None:
        found.append(following)
        following = HEAD.following(following)
    assert found == ids_in(HEAD)
    assert [HEAD.has(entry_id) for entry_id in (9, 10, 25, 26, place(2, 0), place(2, 14))] == [
        *(False, True, True, False, True, False)
    ]


def test_names_are_read_again_and_sort_as_ids_do() -> None:
    names = [ObjectName(*ids, TOKEN) for ids in ((9, 0, 5), (9, 6, 2**40), (10, 0, 1), (ID_MAX, 0, ID_MAX))]
    assert [ObjectName.parse(name.key) for name in names] == names
    assert sorted(name.key for name in names) == [name.key for name in names]
    for key in ("OWNER", "", names[0].key[1:], names[0].key.upper(), names[0].key + "0", "/" + names[0].key):
        assert ObjectName.parse(key) is None


# --- reading (rule J2) ----------------------------------------------------------------------------------------------


@given(st.data())
def test_any_ids_are_found_in_their_range_and_little_more_is_fetched(data: st.DataObject) -> None:
    ids = ids_in(HEAD)
    first, last = sorted(data.draw(st.tuples(st.sampled_from(ids), st.sampled_from(ids))))
    opened = open_object(DATA, HEAD)
    where = opened.range_of(first, last)
    wanted = [entry for entry in ENTRIES if first <= ids_of([entry])[0] <= last]
    assert opened.entries_in(first, last, slice_of(DATA, where)) == wanted
    largest = max(map(len, ENTRIES))
    assert where.size <= sum(map(len, wanted)) + 2 * (INDEX_EVERY_BYTES + largest)


def test_the_index_has_a_point_for_each_stretch() -> None:
    points = open_object(DATA, HEAD).points
    assert points[0] == Point(10, HEAD.size)
    distances = [behind.offset - ahead.offset for ahead, behind in pairwise(points)]
    assert len(distances) > 5
    assert all(INDEX_EVERY_BYTES <= distance < INDEX_EVERY_BYTES + max(map(len, ENTRIES)) for distance in distances)


@pytest.mark.parametrize("piece_bytes", [1, 7, 100, 10**6])
def test_a_whole_object_is_verified_in_pieces_of_any_size(piece_bytes: int) -> None:
    check = WholeCheck(HEAD.name, len(DATA), sha256=WRITTEN.sha256, index_every_bytes=INDEX_EVERY_BYTES)
    pieces = [DATA[start : start + piece_bytes] for start in range(0, len(DATA), piece_bytes)]
    entries = [entry for piece in pieces for entry in check.feed(piece)]
    assert entries == ENTRIES
    assert check.finish() == WRITTEN


@given(st.integers(0, len(DATA) - 1), st.integers(0, 7))
def test_any_bit_that_changes_is_noticed(at: int, bit: int) -> None:
    damaged = DATA[:at] + bytes([DATA[at] ^ 1 << bit]) + DATA[at + 1 :]
    with pytest.raises(ObjectDamagedError):
        check_whole(damaged)


@given(st.integers(0, len(DATA) - 1))
def test_an_object_that_was_cut_off_is_noticed(size: int) -> None:
    with pytest.raises(ObjectDamagedError):
        check_whole(DATA[:size])
    with pytest.raises(ObjectDamagedError):
        open_object(DATA[:size], HEAD)


@given(st.binary(max_size=4096), st.integers(0, 3))
def test_whatever_bytes_come_they_are_an_object_or_damaged(noise: bytes, keep: int) -> None:
    """Fuzz: no other error, and no endless loop, comes from bytes of any kind, behind a head that is intact or not."""
    data = DATA[: keep * 200] + noise
    for read in (lambda: check_whole(data), lambda: open_object(data, HEAD)):
        try:
            read()
        except ObjectDamagedError:
            continue
        assert data[: len(DATA)] == DATA


@given(st.binary(max_size=2000))
def test_bytes_in_the_place_of_entries_are_noticed(noise: bytes) -> None:
    opened = open_object(DATA, HEAD)
    where = opened.range_of(12, 20)
    kinds: set[Damage] = set()
    data = (noise + slice_of(DATA, where)[len(noise) :])[: where.size]
    try:
        found = opened.entries_in(12, 20, data)
    except ObjectDamagedError as error:
        kinds.add(error.damage)
    else:
        assert found == LedgerScript(9).entries(range(12, 21))
    assert kinds <= {Damage.ENTRY}


def swapped(one: int, other: int) -> bytes:
    """The object with two entries of one size in each other's place."""
    first, second = ENTRIES[one], ENTRIES[other]
    assert len(first) == len(second)
    return DATA.replace(first, b"\0" * len(first)).replace(second, first).replace(b"\0" * len(first), second)


def with_head(**fields: object) -> bytes:
    return encode_head(HEAD._replace(**fields)) + DATA[HEAD.size :]  # type: ignore[arg-type]


def replaced(at: int, data: bytes) -> bytes:
    """A head with other bytes at a place, and the right checksum."""
    head = encode_head(HEAD)[:-4]
    return with_checksum(head[:at] + data + head[at + len(data) :]) + DATA[HEAD.size :]


TAIL = decode_tail(DATA, len(DATA))


@pytest.mark.parametrize(
    ("data", "damage"),
    [
        (DATA[:-1], Damage.LENGTH),
        (DATA + b"x", Damage.LENGTH),
        (b"x" + DATA[1:], Damage.HEAD),
        (DATA[:60] + b"x" + DATA[61:], Damage.HEAD),
        (replaced(8, b"\0\0\0\2"), Damage.VERSION),
        (replaced(12, b"\0\0\0\1"), Damage.VERSION),
        (replaced(48, b"\0\0\0\0\0\0\0\1"), Damage.VERSION),
        (replaced(40, b"\0\0"), Damage.HEAD),
        (replaced(46, b"\0\0"), Damage.HEAD),
        (replaced(46, b"\xff\xff"), Damage.HEAD),
        (with_head(token=bytes(16)), Damage.NAME),
        (with_head(ledger_id=8), Damage.NAME),
        (with_head(ranges=(IdRange(10, 24), HEAD.ranges[1])), Damage.ENTRY),
        (swapped(0, 3), Damage.ENTRY),
        (DATA.replace(ENTRIES[2], LedgerScript(8).entry(12)), Damage.ENTRY),
        (DATA.replace(ENTRIES[2], bytes(len(ENTRIES[2]))), Damage.ENTRY),
        (DATA.replace(ENTRIES[2], LedgerScript(9).entry(12, version=1)), Damage.CHECKSUM),
        (DATA[: TAIL.index_offset] + b"x" + DATA[TAIL.index_offset + 1 :], Damage.INDEX),
        (DATA[:-60] + b"x" + DATA[-59:], Damage.TAIL),
        (DATA[:-4] + bytes(4), Damage.CHECKSUM),
        (DATA[:-TAIL_BYTES] + encode_tail(TAIL._replace(payload_bytes=1)), Damage.TAIL),
        (DATA[:-TAIL_BYTES] + encode_tail(TAIL._replace(token=bytes(16))), Damage.TAIL),
        (DATA[:-TAIL_BYTES] + encode_tail(TAIL._replace(entry_count=31)), Damage.TAIL),
        (DATA[:-TAIL_BYTES] + encode_tail(TAIL._replace(index_offset=TAIL.index_offset - 1)), Damage.LENGTH),
    ],
)
def test_each_kind_of_damage_has_its_name(data: bytes, damage: Damage) -> None:
    with pytest.raises(ObjectDamagedError) as caught:
        check_whole(data)
    assert caught.value.damage is damage


def test_an_entry_that_is_damaged_in_a_range_is_noticed() -> None:
    opened = open_object(DATA, HEAD)
    data = slice_of(DATA, opened.range_of(12, 20))
    at = data.index(LedgerScript(9).payload_of(15))
    with pytest.raises(ObjectDamagedError) as caught:
        opened.entries_in(12, 20, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert caught.value.damage is Damage.ENTRY


def test_checksum_and_index_of_a_whole_object_are_compared_without_a_sha_256_too() -> None:
    index = encode_index([*POINTS[:3], POINTS[3]._replace(entry_id=POINTS[3].entry_id + 1), *POINTS[4:]])
    body = DATA[: TAIL.index_offset] + index + encode_tail(TAIL)[:-4]
    for data, damage in (
        (DATA[:-4] + bytes(4), Damage.CHECKSUM),
        (body + struct.pack("<I", zlib.crc32(body)), Damage.INDEX),
    ):
        check = WholeCheck(HEAD.name, len(data), sha256=None, index_every_bytes=INDEX_EVERY_BYTES)
        check.feed(data)
        with pytest.raises(ObjectDamagedError) as caught:
            check.finish()
        assert caught.value.damage is damage


def test_another_object_of_the_same_name_is_noticed_by_its_sha_256_only() -> None:
    """An attacker who writes the bucket can make all checksums right."""
    parts, other = write_object(HEAD, entries=[*ENTRIES[:2], LedgerScript(9).entry(12, version=1), *ENTRIES[3:]])
    data = b"".join(parts)
    assert len(data) == len(DATA)
    for sha256, found in ((None, other), (other.sha256, other)):
        check = WholeCheck(HEAD.name, len(data), sha256=sha256, index_every_bytes=INDEX_EVERY_BYTES)
        check.feed(data)
        assert check.finish() == found
    with pytest.raises(ObjectDamagedError, match="SHA-256") as caught:
        check_whole(data)
    assert caught.value.damage is Damage.CHECKSUM


def test_the_object_of_another_name_is_not_read() -> None:
    other = head_of((10, 25), token=bytes(16))
    with pytest.raises(ObjectDamagedError) as caught:
        open_object(DATA, other)
    assert caught.value.damage is Damage.NAME
    assert other.name.key in str(caught.value)


def test_an_answer_of_another_length_is_noticed() -> None:
    opened = open_object(DATA, HEAD)
    data = slice_of(DATA, opened.range_of(12, 20))
    for wrong in (data[:-1], data + b"x", b""):
        with pytest.raises(ObjectDamagedError) as caught:
            opened.entries_in(12, 20, wrong)
        assert caught.value.damage is Damage.LENGTH


def test_an_index_that_leads_into_other_entries_is_noticed() -> None:
    opened = open_object(DATA, HEAD)
    points = list(opened.points)
    points[3] = Point(points[3].entry_id + 1, points[3].offset)
    lying = opened._replace(points=tuple(points))
    before = points[2].entry_id
    with pytest.raises(ObjectDamagedError) as caught:
        lying.entries_in(before, before, slice_of(DATA, lying.range_of(before, before)))
    assert caught.value.damage is Damage.ENTRY


POINTS = open_object(DATA, HEAD).points


@pytest.mark.parametrize(
    "points",
    [
        POINTS[1:] + POINTS[:1],
        (Point(10, HEAD.size + 1), *POINTS[1:]),
        (Point(11, HEAD.size), *POINTS[1:]),
        (*POINTS[:-1], POINTS[-1]._replace(offset=TAIL.index_offset)),
        (*POINTS[:-1], POINTS[-1]._replace(entry_id=place(2, 14))),
        (*POINTS[:-1], POINTS[-1]._replace(offset=POINTS[-2].offset)),
        (*POINTS[:-1], POINTS[-1]._replace(entry_id=POINTS[-2].entry_id)),
        POINTS[:-1],
    ],
)
def test_an_index_that_cannot_be_is_refused(points: tuple[Point, ...]) -> None:
    with pytest.raises(ObjectDamagedError) as caught:
        decode_index(encode_index(points), HEAD, TAIL)
    assert caught.value.damage is Damage.INDEX


@pytest.mark.parametrize("fields", [{"points": 0}, {"points": 31}, {"entry_count": 29}, {"token": bytes(16)}])
def test_a_tail_of_another_object_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ObjectDamagedError) as caught:
        check_tail(HEAD, TAIL._replace(**fields))  # type: ignore[arg-type]
    assert caught.value.damage is Damage.TAIL


def test_a_tail_of_another_format_is_refused() -> None:
    tail = Tail(TOKEN, 1, 1, 100, 1, 0)
    data = bytearray(encode_tail(tail))
    data[11] = 2
    changed = with_checksum(bytes(data[:-8])) + bytes(4)
    with pytest.raises(ObjectDamagedError) as caught:
        decode_tail(changed, 100 + index_bytes(1) + TAIL_BYTES)
    assert caught.value.damage is Damage.VERSION


def test_an_object_of_one_entry_is_whole() -> None:
    head: Head = head_of((0, 0))
    parts, written = write_object(head)
    data = b"".join(parts)
    assert open_object(data, head).entries_in(0, 0, slice_of(data, open_object(data, head).range_of(0, 0))) == [
        LedgerScript(9).entry(0)
    ]
    check = WholeCheck(head.name, len(data), sha256=None)
    assert check.feed(data) == [LedgerScript(9).entry(0)]
    assert check.finish() == written
