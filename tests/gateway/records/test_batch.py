"""The check of a record batch before it is stored, and the place that it gets (rule K1)."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.records.batch import (
    HEADER_BYTES,
    RECORD_BYTES_MIN,
    BatchHeader,
    BatchLimits,
    checked_batch,
    read_header,
    read_number,
    stamped,
)
from support.kafka.batches import batch_of, number, record

LIMITS = BatchLimits(bytes_max=1024 * 1024, ahead_ms_max=3_600_000)
NOW_MS = 2_000


def check(batch: bytes, *, limits: BatchLimits = LIMITS, now_ms: int = NOW_MS) -> BatchHeader:
    return checked_batch(memoryview(batch), limits, now_ms)


def refusal(batch: bytes, *, limits: BatchLimits = LIMITS, now_ms: int = NOW_MS) -> Code:
    with pytest.raises(RefusedError) as refused:
        check(batch, limits=limits, now_ms=now_ms)
    return refused.value.code


def is_accepted(batch: bytes) -> bool:
    try:
        check(batch)
    except RefusedError:
        return False
    return True


def test_a_sound_batch_is_accepted_with_the_fields_that_it_has() -> None:
    header = check(batch_of(b"one", b"two", producer_id=7, producer_epoch=1, base_sequence=40))
    assert (header.record_count, header.last_offset_delta, header.max_timestamp_ms) == (2, 1, 1_000)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 40)
    assert header.is_idempotent
    assert not header.is_compressed
    assert not check(batch_of(b"one")).is_idempotent


def test_a_batch_is_stored_as_it_came_but_for_its_place() -> None:
    batch = batch_of(b"one", b"two")
    entry = stamped(memoryview(batch), 2**40, 9)
    header = read_header(entry)
    assert header is not None
    assert (header.base_offset, header.leader_epoch, header.next_offset) == (2**40, 9, 2**40 + 2)
    assert (entry[8:12], entry[16:]) == (batch[8:12], batch[16:])
    # What the checksum covers is the same, so consumers find it sound.
    assert check(entry).checksum == check(batch).checksum


def test_a_compressed_batch_is_not_looked_into() -> None:
    for compression in (1, 2, 3, 4):
        assert check(batch_of(records=b"\xff" * 50, count=10, attributes=compression)).is_compressed


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (b"", Code.CORRUPT_MESSAGE),
        (batch_of(b"one")[:60], Code.CORRUPT_MESSAGE),
        (batch_of(b"one")[:-1], Code.CORRUPT_MESSAGE),
        (batch_of(b"one", length=8), Code.CORRUPT_MESSAGE),
        (batch_of(b"one", length=-1), Code.CORRUPT_MESSAGE),
        (batch_of(b"one", length=2**31 - 1), Code.CORRUPT_MESSAGE),
        (batch_of(b"one", crc=1), Code.CORRUPT_MESSAGE),
        (batch_of(b"one") + batch_of(b"two"), Code.INVALID_RECORD),
        (batch_of(b"one", magic=1), Code.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (bytes(12 + 4) + b"\x00" + bytes(9), Code.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (batch_of(b"one", magic=3), Code.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (batch_of(b"one", attributes=5), Code.UNSUPPORTED_COMPRESSION_TYPE),
        (batch_of(b"one", attributes=0x08), Code.INVALID_RECORD),
        (batch_of(b"one", attributes=0x10), Code.INVALID_RECORD),
        (batch_of(b"one", attributes=0x20), Code.INVALID_RECORD),
        (batch_of(b"one", attributes=0x40), Code.INVALID_RECORD),
        (batch_of(b"one", attributes=-0x8000), Code.INVALID_RECORD),
        (batch_of(), Code.INVALID_RECORD),
        (batch_of(records=b"x" * 50, count=0, attributes=1), Code.INVALID_RECORD),
        (batch_of(records=b"x" * 50, count=-3, attributes=1), Code.INVALID_RECORD),
        (batch_of(b"one", b"two", last_offset_delta=2), Code.INVALID_RECORD),
        (batch_of(b"one", b"two", last_offset_delta=0), Code.INVALID_RECORD),
        (batch_of(b"one", producer_id=-2), Code.INVALID_RECORD),
        (batch_of(b"one", producer_id=1, producer_epoch=-1, base_sequence=0), Code.INVALID_RECORD),
        (batch_of(b"one", producer_id=1, producer_epoch=0, base_sequence=-1), Code.INVALID_RECORD),
    ],
)
def test_a_batch_that_is_not_sound_is_refused(batch: bytes, code: Code) -> None:
    assert refusal(batch) is code


def test_what_a_refused_batch_means_is_said() -> None:
    with pytest.raises(RefusedError, match=r"^INVALID_RECORD: transactions are not supported$"):
        check(batch_of(b"one", attributes=0x10))


def test_sizes_are_compared_with_the_header_included() -> None:
    batch = batch_of(b"x" * 100)
    assert check(batch, limits=LIMITS._replace(bytes_max=len(batch)))
    assert refusal(batch, limits=LIMITS._replace(bytes_max=len(batch) - 1)) is Code.MESSAGE_TOO_LARGE


def test_a_time_far_ahead_of_the_leader_is_refused() -> None:
    latest = NOW_MS + LIMITS.ahead_ms_max
    assert check(batch_of(b"x", max_timestamp=latest))
    assert refusal(batch_of(b"x", max_timestamp=latest + 1)) is Code.INVALID_TIMESTAMP


@pytest.mark.parametrize(
    ("records", "count"),
    [
        (record(1, b"one"), 1),
        (record(0, b"one") + record(2, b"two"), 2),
        (record(0, b"one") + record(0, b"two"), 2),
        (record(0, b"one") + record(-1, b"two"), 2),
        (record(0, b"one") + record(1, b"two"), 1),
        (record(0, b"one"), 2),
        (record(0, b"one") + b"\0", 1),
        (number(-1) + b"\0" * 10, 1),
        (number(5) + b"\0" * 5, 1),
        (number(200) + record(0, b"one")[1:], 1),
        (record(0, b"one")[:-3] + b"\xff" * 3, 2),
        (b"\xff" * 20, 1),
        (number(12) + b"\0" + b"\xff" * 11, 1),
        (number(6) + b"\0" + number(2**40) + b"\0" * 6 + record(1, b"1"), 2),
    ],
)
def test_offsets_inside_a_batch_are_checked(records: bytes, count: int) -> None:
    assert refusal(batch_of(records=records, count=count)) is Code.INVALID_RECORD


def test_the_offset_of_a_record_lies_within_the_record() -> None:
    """Its time takes all of record 6. What is read as its offset is the length of record 7, and would be right."""
    before = b"".join(record(offset, b"x") for offset in range(6))
    sixth = number(6) + b"\0" + b"\x80\x80\x80\x80\x01"
    seventh = number(6) + b"\0" + number(0) + number(7) + number(-1) + number(0) + number(0)
    assert refusal(batch_of(records=before + sixth + seventh, count=8)) is Code.INVALID_RECORD


def test_a_count_that_the_records_cannot_have_is_refused_before_they_are_walked_over() -> None:
    assert refusal(batch_of(b"one", count=2**31 - 1)) is Code.INVALID_RECORD
    assert refusal(batch_of(records=b"x" * 50, count=2**31 - 1, attributes=2)) is Code.INVALID_RECORD
    largest = 50 * 1000 // RECORD_BYTES_MIN
    assert check(batch_of(records=b"x" * 50, count=largest, attributes=2)).record_count == largest
    assert refusal(batch_of(records=b"x" * 50, count=largest + 1, attributes=2)) is Code.INVALID_RECORD


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20), st.data())
def test_no_flipped_bit_behind_the_magic_is_accepted(values: list[bytes], data: st.DataObject) -> None:
    batch = bytearray(batch_of(*values))
    at = data.draw(st.integers(16, len(batch) - 1))
    batch[at] ^= 1 << data.draw(st.integers(0, 7))
    assert refusal(bytes(batch)) in (Code.CORRUPT_MESSAGE, Code.UNSUPPORTED_FOR_MESSAGE_FORMAT)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_are_a_batch(junk: bytes) -> None:
    assert not is_accepted(junk) or read_header(junk) == check(junk)


@given(st.binary(min_size=1, max_size=200), st.integers(1, 30))
def test_any_records_under_a_right_checksum_are_refused_or_have_consecutive_offsets(body: bytes, count: int) -> None:
    batch = batch_of(records=body, count=count)
    if not is_accepted(batch):
        assert refusal(batch) is Code.INVALID_RECORD
        return
    at, offsets = 0, []
    while at < len(body):
        length, start = read_number(body, at)
        offsets.append(read_number(body, read_number(body, start + 1)[1])[0])
        at = start + length
    assert offsets == list(range(count))


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3))
def test_numbers_of_records_are_read_as_they_were_written(value: int, behind: bytes) -> None:
    written = number(value)
    assert read_number(written + behind, 0) == (value, len(written))


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"x" * 200,
        batch_of(b"one")[:HEADER_BYTES],
        batch_of(b"one") + b"x",
        batch_of(b"one", magic=1),
        batch_of(b"one", base_offset=-1),
        batch_of(b"one", last_offset_delta=7),
        struct.pack(">qiib", 0, 5, 0, 2),
    ],
)
def test_an_entry_of_another_program_is_no_batch(entry: bytes) -> None:
    assert read_header(entry) is None
