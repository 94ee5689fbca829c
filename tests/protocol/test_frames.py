"""Frames: bytes cut anywhere become the same bodies, and what breaks the limits ends the stream."""

import tracemalloc

import msgpack
import pytest
from octavo.protocol.errors import ProtocolError
from octavo.protocol.frames import LENGTH, FrameDecoder, frame_of, pack_body, unpack_body
from octavo.protocol.limits import ENTRIES_PER_FRAME_MAX, FRAME_BYTES_MAX

MEBIBYTE = 1024 * 1024


def bodies(decoder: FrameDecoder, data: bytes) -> list[bytes]:
    return [bytes(body) for body in decoder.feed(data)]


# --- cutting ------------------------------------------------------------------------------------------------------


def test_frame_is_a_big_endian_length_and_its_body() -> None:
    assert frame_of(pack_body((1, 8))) == b"\0\0\0\3\x92\x01\x08"
    assert unpack_body(b"\x92\x01\x08") == [1, 8]


def test_stream_cut_in_two_anywhere_gives_the_same_bodies() -> None:
    stream = frame_of(pack_body((1, 8))) + frame_of(pack_body((2, 1, b"x" * 300))) + frame_of(pack_body(("third",)))
    whole = bodies(FrameDecoder(), stream)
    assert whole == [pack_body((1, 8)), pack_body((2, 1, b"x" * 300)), pack_body(("third",))]
    for cut in range(len(stream) + 1):
        decoder = FrameDecoder()
        assert bodies(decoder, stream[:cut]) + bodies(decoder, stream[cut:]) == whole
        assert decoder.buffered_bytes == 0


def test_frame_is_given_out_with_its_last_byte_and_not_before() -> None:
    decoder = FrameDecoder()
    frame = frame_of(pack_body((1, 8)))
    for count, byte in enumerate(frame[:-1], start=1):
        assert bodies(decoder, bytes([byte])) == []
        assert decoder.buffered_bytes == count
    assert bodies(decoder, frame[-1:]) == [frame[4:]]
    assert decoder.buffered_bytes == 0


def test_bodies_stay_intact_while_more_arrives() -> None:
    decoder = FrameDecoder()
    first, second = frame_of(pack_body((1, b"a" * 50))), frame_of(pack_body((2, b"b" * 50)))
    assert bodies(decoder, first[:20]) == []
    kept = list(decoder.feed(first[20:] + second[:30]))
    assert bodies(decoder, second[30:] + first[:10]) == [second[4:]]
    assert [bytes(body) for body in kept] == [first[4:]]


def test_nothing_arriving_changes_nothing() -> None:
    decoder = FrameDecoder()
    assert bodies(decoder, b"") == []
    assert bodies(decoder, b"\0\0\0\1") == []
    assert bodies(decoder, b"") == []
    assert bodies(decoder, b"\x90") == [b"\x90"]


# --- limits -------------------------------------------------------------------------------------------------------


def test_largest_frame_passes() -> None:
    body = bytes(FRAME_BYTES_MAX)
    decoder = FrameDecoder()
    assert bodies(decoder, LENGTH.pack(FRAME_BYTES_MAX) + body[:-1]) == []
    assert bodies(decoder, body[-1:] + frame_of(pack_body((1,)))) == [body, pack_body((1,))]


@pytest.mark.parametrize("size", [0, FRAME_BYTES_MAX + 1, 2**32 - 1])
def test_impossible_length_ends_the_stream_at_once_and_for_good(size: int) -> None:
    decoder = FrameDecoder()
    arrived = []
    with pytest.raises(ProtocolError, match=f"a frame of {size} bytes"):  # noqa: PT012 - bodies come before the failure
        for body in decoder.feed(frame_of(pack_body((1,))) + LENGTH.pack(size)):
            arrived.append(bytes(body))  # noqa: PERF401
    assert arrived == [pack_body((1,))]
    for _ in range(2):
        with pytest.raises(ProtocolError, match=f"a frame of {size} bytes"):
            bodies(decoder, frame_of(pack_body((1,))))
    assert decoder.buffered_bytes == 0


def test_announced_frame_costs_nothing_until_it_arrives_even_in_the_smallest_pieces() -> None:
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        assert bodies(decoder, LENGTH.pack(FRAME_BYTES_MAX)) == []
        assert tracemalloc.get_traced_memory()[0] < 10_000
        for _ in range(MEBIBYTE // 8 // 4):
            assert not list(decoder.feed(b"abcd"))
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert decoder.buffered_bytes == 4 + MEBIBYTE // 8
    assert held < decoder.buffered_bytes * 1.5


# --- bodies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x00", id="an integer"),
        pytest.param(b"\x80", id="a map"),
        pytest.param(b"\xa1x", id="a text"),
        pytest.param(b"\x92\x01", id="too short"),
        pytest.param(b"\x91\x01\x01", id="too long"),
        pytest.param(b"\x91\xc1", id="a byte that msgpack never uses"),
        pytest.param(b"\x91\xa1\xff", id="a text that is not UTF-8"),
        pytest.param(b"\x91\xc6\xff\xff\xff\xff", id="bytes that are not there"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="a huge array"),
        pytest.param(b"\x91\xdf\xff\xff\xff\xff", id="a huge map"),
        pytest.param(b"\x91\x81\x90\x00", id="a list as a map's key"),
        pytest.param(b"\x91\x81\x01\x00", id="an integer as a map's key"),
        pytest.param(b"\x91\xd6\xff\0\0\0\0", id="a timestamp"),
        pytest.param(b"\x91\xd4\x05\x00", id="an extension"),
        pytest.param(b"\x91" * 2000 + b"\xc0", id="deep nesting"),
        pytest.param(msgpack.packb([[0] * (ENTRIES_PER_FRAME_MAX + 1)]), id="too many entries"),
        pytest.param(msgpack.packb([{str(n): n for n in range(257)}]), id="too many facts"),
        pytest.param(msgpack.packb([[[0] * 4000] * 7]), id="too many items"),
        pytest.param(msgpack.packb([[{"x": 0}] * 4000] * 3), id="too many maps"),
    ],
)
def test_body_that_is_not_one_small_array_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack_body(body)


@pytest.mark.parametrize("item", [b"\x90", b"\x80", b"\xa2ab", b"\xcd\x01\x01", b"\xca\0\0\0\0", b"\xc4\2xx", b"\xc0"])
def test_memory_taken_by_a_hostile_body_is_bounded(item: bytes) -> None:
    row = b"\xdc\x10\x00" + item * ENTRIES_PER_FRAME_MAX
    rows = MEBIBYTE // 2 // len(row)
    assert _peak_bytes(b"\xdc" + rows.to_bytes(2, "big") + row * rows) < 4 * MEBIBYTE
    # Nothing is counted before it is complete, so as deep as it goes is the worst there is.
    deep = (b"\xdc\x10\x00" + item * 150) * 1000
    assert _peak_bytes(deep) < 32 * MEBIBYTE + len(deep) * 25 + 8 * MEBIBYTE


def _peak_bytes(body: bytes) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            unpack_body(body)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_sender_is_told_of_its_own_oversize_frame() -> None:
    with pytest.raises(ProtocolError, match="over the limit of 8388608"):
        frame_of(pack_body((bytes(FRAME_BYTES_MAX),)))
    with pytest.raises(ProtocolError, match="split it"):
        frame_of(pack_body(([0] * (ENTRIES_PER_FRAME_MAX + 1),)))
