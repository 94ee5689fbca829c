"""Answers decoded in bulk are those that decoding gives entry by entry; every other frame is left to that."""

import google_crc32c
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.protocol.bulk_answers import BULK_BYTES_MIN, EvenEntries, decode_bulk_answer
from octavo.protocol.entries import Digest, Opener, Sealer, derive_secrets
from octavo.protocol.entry_columns import EntryColumns, open_columns
from octavo.protocol.errors import ProtocolError
from octavo.protocol.frames import unpack_body
from octavo.protocol.ids import ID_MAX, EntryId, LedgerId
from octavo.protocol.limits import ENTRIES_PER_FRAME_MAX
from octavo.protocol.messages import REQUEST_ID_MAX, Added, LacAnswer, ReadAnswer, decode_reply

LEDGER = LedgerId(7)
SECRETS = derive_secrets(b"", LEDGER)
OPENER = Opener(LEDGER, Digest.CRC32C, SECRETS)
SEALER = Sealer(LEDGER, Digest.CRC32C, SECRETS)


def sealed(payload_bytes: int, count: int, first: int = 4) -> list[bytes]:
    payloads = [b"%d|" % number * payload_bytes for number in range(count)]
    payloads = [payload[:payload_bytes] for payload in payloads]
    return SEALER.seal(EntryId(first), payloads, last_add_confirmed=EntryId(first - 1), length=100, sealed_at_ms=0)


def decoded(body: bytes) -> tuple[int, ReadAnswer] | None:
    return decode_bulk_answer(memoryview(body))


@given(
    payload_bytes=st.sampled_from([0, 1, 100, 207, 208, 1024, 70_000]),
    more=st.integers(0, 20),
    request_id=st.integers(1, REQUEST_ID_MAX),
    last_covered=st.integers(0, ID_MAX),
    lac=st.none() | st.integers(0, ID_MAX),
)
def test_an_answer_of_entries_of_one_size_is_the_same_either_way(
    payload_bytes: int, more: int, request_id: int, last_covered: int, lac: int | None
) -> None:
    entries = sealed(payload_bytes, BULK_BYTES_MIN // (payload_bytes + 48) + 1 + more)
    body = ReadAnswer(last_covered, entries, (), lac).encode(request_id)
    answer = decoded(body)
    assert answer is not None
    plain_id, plain = decode_reply(unpack_body(body))
    assert isinstance(plain, ReadAnswer)
    assert (answer[0], answer[1].last_covered, answer[1].unknown) == (plain_id, plain.last_covered, plain.unknown)
    assert answer[1].last_add_confirmed == plain.last_add_confirmed == lac
    got = answer[1].entries
    assert isinstance(got, EvenEntries)
    assert list(got) == entries
    assert (len(got), got[0], got[-1], got[1:3]) == (len(entries), entries[0], entries[-1], entries[1:3])
    with pytest.raises(IndexError):
        got[len(got)]
    columns, others = open_columns(OPENER, got), open_columns(OPENER, entries)
    assert isinstance(columns, EntryColumns)
    assert others is not None
    assert list(columns) == list(others) == OPENER.open_batch(entries)
    assert (columns.heads, columns.payload_bytes) == (others.heads, others.payload_bytes)


ENTRIES = sealed(1024, 100)
OTHER_SIZE = sealed(1025, 1, first=104)


@pytest.mark.parametrize(
    "body",
    [
        ReadAnswer(103, ENTRIES[:10], (), 103).encode(5),
        ReadAnswer(104, ENTRIES + OTHER_SIZE, (), 104).encode(5),
        ReadAnswer(104, OTHER_SIZE + ENTRIES, (), 104).encode(5),
        ReadAnswer(110, ENTRIES, ((105, 110),), 103).encode(5),
        Added().encode(5) + bytes(BULK_BYTES_MIN),
        LacAnswer(True, False, False, None, None, ENTRIES).encode(5),
        bytes(BULK_BYTES_MIN),
        b"\xc1" * BULK_BYTES_MIN,
        msgpack.packb((5, 2, 0, 7, bytes(BULK_BYTES_MIN), [], None)),
        msgpack.packb((5, 2, 0, 7, [], [], bytes(BULK_BYTES_MIN))),
        msgpack.packb((5, 2, 0, 7, [bytes(BULK_BYTES_MIN)], [])),
        msgpack.packb((5, 2, 0, 7, ["x" * BULK_BYTES_MIN], [], 7)),
    ],
    ids=[
        "small", "another size at the end", "another size in front", "unknown", "added", "lac", "zeros", "reserved",
        "no list", "no entries", "too few fields", "texts",
    ],
)  # fmt: skip
def test_any_other_frame_is_left_alone(body: bytes) -> None:
    assert decoded(body) is None


@pytest.mark.parametrize("values", [
    (0, 2, 0, 103, ENTRIES, [], 103), (True, 2, 0, 103, ENTRIES, [], 103), (-1, 2, 0, 103, ENTRIES, [], 103),
    (5, 1, 0, 103, ENTRIES, [], 103), (5, 2, 1, 103, ENTRIES, [], 103), (5, 2, 0, -1, ENTRIES, [], 103),
    (5, 2, 0, True, ENTRIES, [], 103), (5, 2, 0, None, ENTRIES, [], 103), (5, 2, 0, 103, ENTRIES, None, 103),
    (5, 2, 0, 103, ENTRIES, [], -1), (5, 2, 0, 103, ENTRIES, [], True), (5, 2, 0, 103, ENTRIES, [], 1.5),
    (5, 2, 0, 103, ENTRIES, [], 103, 1), (5, 2, 0, 2**63, ENTRIES, [], 103),
    (5, 2, 0, 103, [bytes(16)] * (ENTRIES_PER_FRAME_MAX + 1), [], 103),
])  # fmt: skip
def test_what_breaks_the_protocol_is_told_by_the_ordinary_way(values: tuple[object, ...]) -> None:
    body = msgpack.packb(values)
    assert decoded(body) is None
    with pytest.raises(ProtocolError):
        decode_reply(unpack_body(body))


@given(at=st.integers(0, 2**32), bit=st.integers(0, 7))
def test_a_flipped_bit_anywhere_is_noticed_or_not_in_what_was_sealed(at: int, bit: int) -> None:
    body = bytearray(ReadAnswer(103, ENTRIES, (), 103).encode(5))
    body[at % len(body)] ^= 1 << bit
    answer = decoded(bytes(body))
    if answer is None:
        return
    columns = open_columns(OPENER, answer[1].entries)
    if columns is not None:  # then a field in front of the entries or behind them has another value
        assert list(columns) == OPENER.open_batch(ENTRIES)


def test_entries_too_short_for_a_header_are_no_columns() -> None:
    body = ReadAnswer(4095, [bytes(40)] * 4096, (), 103).encode(5)
    answer = decoded(body)
    assert answer is not None
    assert open_columns(OPENER, answer[1].entries) is None


def test_a_damaged_entry_among_intact_ones_is_found_when_they_are_opened_one_by_one() -> None:
    damaged = bytearray(ENTRIES[50])
    damaged[500] ^= 1
    entries = [*ENTRIES[:50], bytes(damaged), *ENTRIES[51:]]
    answer = decoded(ReadAnswer(103, entries, (), 103).encode(5))
    assert answer is not None
    assert open_columns(OPENER, answer[1].entries) is None
    assert [google_crc32c.value(one) == google_crc32c.value(ENTRIES[0]) for one in answer[1].entries].count(False) == 1
