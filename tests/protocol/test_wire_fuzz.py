"""Invariant: bytes that arrive, cut anywhere, decode to the same messages or end in the same one ProtocolError.

Never another exception, never more held than one frame. ``OCTAVO_SOAK=1`` goes on a hundred times as long with a new
seed, which it prints; ``OCTAVO_SOAK_SEED`` sets the seed of a run to repeat.
"""

import os
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.protocol.entries import Digest
from octavo.protocol.errors import OctavoError, ProtocolError
from octavo.protocol.frames import LENGTH, FrameDecoder, frame_of, pack_body, unpack_body
from octavo.protocol.limits import FRAME_BYTES_MAX
from octavo.protocol.messages import Request, decode_hello, decode_reply, decode_request, encode_error, encode_hello
from octavo.protocol.packs import USUAL, decode_done, decode_pack, encode_done, is_pack, pack_head, tail_of
from octavo.protocol.pushes import are_pushes, decode_pushes, encode_pushes
from support import wire

SOAK = os.environ.get("OCTAVO_SOAK") == "1"
ROUNDS = 2_000_000 if SOAK else 20_000
SEED = int(os.environ.get("OCTAVO_SOAK_SEED", secrets.randbits(32) if SOAK else 20260101))

Outcome = tuple[list[object], str | None]
"""What came out of a stream: the messages, and the text of the error that ended it."""


def framed(body: bytes) -> bytes:
    return frame_of(body)


def framed_pack() -> bytes:
    """A pack of every kind of request that may be in one."""
    tails = [tail_of(one) for one in wire.EXAMPLES.values() if isinstance(one, Request) and one.op in USUAL]
    return b"".join((pack_head(250, tails), *tails))


def decode_any_pack(values: Sequence[Any]) -> object:
    """As a bookie decodes packs among other requests."""
    return decode_pack(values) if is_pack(values) else decode_request(values)


def decode_any_done(values: Sequence[Any]) -> object:
    """As a client decodes answers to packs, and pushes, among others."""
    if is_pack(values):
        return decode_done(values)
    return decode_pushes(values) if are_pushes(values) else decode_reply(values)


VALID = [
    framed(encode_hello(wire.HELLO)),
    *(framed(example.encode(number)) for number, example in enumerate(wire.EXAMPLES.values(), start=1)),
    framed_pack(),
    framed(encode_done([5, 6, 9])),
    framed(encode_pushes(wire.PUSHES)),
    *(framed(encode_error(refusal.request_id, refusal.op, refusal.error)) for refusal in wire.REFUSALS.values()),
]

Decode = Callable[[Sequence[Any]], object]
DECODERS: list[Decode] = [decode_request, decode_reply, decode_hello, decode_any_pack, decode_any_done]


def comparable(message: object) -> object:
    """Errors that arrive as refusals compare by what they say; other messages by their text, as NaN equals nothing."""
    if isinstance(message, OctavoError):
        return type(message), message.message, message.may_have_happened
    if isinstance(message, tuple):
        return tuple(map(comparable, message))
    return repr(message)


def outcome(pieces: Sequence[bytes], decode: Decode) -> Outcome:
    """Play ``pieces`` to a decoder as a connection does: the first ProtocolError is the last thing that happens."""
    decoder = FrameDecoder()
    arrived: list[object] = []
    try:
        for piece in pieces:
            for body in decoder.feed(piece):
                arrived.append(comparable(decode(unpack_body(body))))  # noqa: PERF401 - the last one may raise
            assert decoder.buffered_bytes < LENGTH.size + FRAME_BYTES_MAX
    except ProtocolError as error:
        return arrived, str(error)
    assert decoder.buffered_bytes <= sum(map(len, pieces))
    return arrived, None


def cut(stream: bytes, places: Sequence[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:stop] for start, stop in pairwise(bounds)]


def check(stream: bytes, places: Sequence[int]) -> None:
    for decode in DECODERS:
        whole = outcome([stream], decode)
        assert outcome([stream[at : at + 1] for at in range(len(stream))], decode) == whole
        assert outcome(cut(stream, places), decode) == whole


def mutated(rng: random.Random, stream: bytes) -> bytes:
    """``stream`` with a few small misfortunes; half of the time the lengths of its frames are mended afterwards."""
    frames = [bytearray(body) for body in FrameDecoder().feed(stream)]
    for _ in range(rng.randrange(1, 4)):
        body = rng.choice(frames)
        at = rng.randrange(len(body) + 1)
        match rng.randrange(6):
            case 0:
                body[at : at + 1] = bytes([rng.randrange(256)])
            case 1 if at < len(body):
                body[at] ^= 1 << rng.randrange(8)
            case 2:
                del body[at : at + rng.randrange(1, 9)]
            case 3:
                body[at:at] = rng.choice(
                    [b"\x90", b"\x80", b"\xc0", b"\xc3", b"\xa0", b"\xcb" + bytes(8), b"\xcf" + b"\xff" * 8]
                )
            case 4:
                body[at:at] = rng.randbytes(rng.randrange(1, 9))
            case _:
                donor = rng.choice(frames)
                start = rng.randrange(len(donor) + 1)
                body[at : at + 8] = donor[start : start + rng.randrange(1, 33)]
    mended = b"".join(framed(bytes(body)) for body in frames)
    if rng.random() < 0.5:
        return mended
    raw = bytearray(mended)
    raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw[: rng.randrange(1, len(raw) + 1)]) if rng.random() < 0.3 else bytes(raw)


def test_mutated_frames_decode_the_same_however_cut_or_end_in_one_protocol_error() -> None:
    rng = random.Random(SEED)
    if SOAK:
        print(f"OCTAVO_SOAK_SEED={SEED}")  # noqa: T201 - to repeat the run
    decoded = refused = 0
    for _ in range(ROUNDS):
        stream = b"".join(rng.choices(VALID, k=rng.randrange(1, 4)))
        stream = mutated(rng, stream)
        whole = {decode: outcome([stream], decode) for decode in DECODERS}
        places = [rng.randrange(len(stream) + 1) for _ in range(rng.randrange(1, 6))]
        decode = rng.choice(DECODERS)
        assert outcome(cut(stream, places), decode) == whole[decode], stream.hex()
        decoded += any(arrived for arrived, _ in whole.values())
        refused += any(error is not None for _, error in whole.values())
    # A fuzzer that only ever sees one side tests nothing.
    assert decoded > ROUNDS // 20
    assert refused > ROUNDS // 20


@given(stream=st.binary(max_size=200), places=st.lists(st.integers(0, 200), max_size=5))
def test_any_bytes_decode_the_same_however_cut(stream: bytes, places: list[int]) -> None:
    check(stream, places)


@given(bodies=st.lists(st.binary(max_size=60), max_size=4), places=st.lists(st.integers(0, 300), max_size=5))
def test_any_framed_bytes_decode_the_same_however_cut(bodies: list[bytes], places: list[int]) -> None:
    check(b"".join(map(framed, bodies)), places)


msgpack_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.integers(0, 20)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=60)
    | st.sampled_from(wire.sealed(Digest.CRC32C, 0, b"x")),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


@given(
    values=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), msgpack_values, msgpack_values, msgpack_values)),
    places=st.lists(st.integers(0, 300), max_size=5),
)
def test_any_arrays_decode_the_same_however_cut(values: list[tuple[Any, ...]], places: list[int]) -> None:
    check(b"".join(frame_of(pack_body(value)) for value in values), places)


@given(values=st.lists(msgpack_values, max_size=12))
def test_decoding_any_values_gives_a_message_or_a_protocol_error(values: list[Any]) -> None:
    for decode in DECODERS:
        try:
            decode(values)
        except ProtocolError:
            continue


def replaced_fields() -> Iterator[list[Any]]:
    """Every example with each of its items in turn, envelope included, replaced by each of many odd values."""
    odd: list[Any] = [
        None, True, False, -1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.5, float("nan"), float("inf"),
        "", "x", "\0", b"", b"x", bytes(48), [], [[]], [None], [[0, 0]], [[1, 0]], [b""], {}, {"": {}}, {"x": [1]},
    ]  # fmt: skip
    for frame in VALID:
        values = unpack_body(frame[LENGTH.size :])
        for index in range(len(values)):
            for value in odd:
                yield [*values[:index], value, *values[index + 1 :]]


def test_any_field_of_any_message_may_be_anything() -> None:
    for values in replaced_fields():
        for decode in DECODERS:
            try:
                decode(values)
            except ProtocolError:
                continue


@pytest.mark.parametrize("frame", VALID)
def test_every_message_is_understood_by_one_side_at_least_one_byte_at_a_time(frame: bytes) -> None:
    pieces = [frame[at : at + 1] for at in range(len(frame))]
    outcomes = [outcome(pieces, decode) for decode in DECODERS]
    assert any(len(arrived) == 1 and error is None for arrived, error in outcomes)
