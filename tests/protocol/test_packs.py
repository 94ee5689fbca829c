"""Packs: their bytes are those of the single requests in them, and what is malformed is refused."""

from collections.abc import Sequence
from typing import Any

import msgpack
import pytest
from octavo.protocol.entries import Digest
from octavo.protocol.errors import ProtocolError
from octavo.protocol.frames import LENGTH, FrameDecoder, frame_of, pack_body, unpack_body
from octavo.protocol.limits import (
    ENTRIES_PER_FRAME_MAX,
    FRAME_BYTES_MAX,
    FRAME_PAYLOAD_BYTES_TARGET,
    REQUESTS_PER_CONNECTION_MAX,
)
from octavo.protocol.messages import REPLIES, REQUEST_ID_MAX, AddFlag, Op, Ping, Request, WriteLac, encode_error
from octavo.protocol.packs import (
    PACK_REQUESTS_MAX,
    USUAL,
    decode_done,
    decode_pack,
    encode_done,
    encode_tail,
    frame_head,
    is_pack,
    pack_head,
    tail_of,
)
from support import wire

BOUNDARIES = [
    edge + step
    for edge in (0x80, 0x100, 0x1_0000, 0x1_0000_0000, REQUEST_ID_MAX)
    for step in (-1, 0, 1)
    if edge + step <= REQUEST_ID_MAX
]
"""Ids on both sides of each change of msgpack's form of an integer."""

PACKABLE: list[Request] = [
    example for example in wire.EXAMPLES.values() if isinstance(example, Request) and example.op in USUAL
]

LAC = WriteLac(7, b"key", 0, b"sealed")


def frame_of_pack(first_id: int, requests: Sequence[Request]) -> bytes:
    tails = [tail_of(request) for request in requests]
    return b"".join((pack_head(first_id, tails), *tails))


def values_of(frame: bytes) -> list[Any]:
    (body,) = FrameDecoder().feed(frame)
    return unpack_body(body)


@pytest.mark.parametrize("request_id", [1, *BOUNDARIES])
def test_a_request_that_travels_alone_is_its_message_with_an_id_of_eight_bytes(request_id: int) -> None:
    for request in PACKABLE:
        tail = tail_of(request)
        frame = frame_head(request_id, tail) + tail[1:]
        assert values_of(frame) == unpack_body(request.encode(request_id))
        encoded, short_id = request.encode(request_id), msgpack.packb(request_id)
        assert encoded[1:].startswith(short_id)
        long_id = b"\xcf" + request_id.to_bytes(8, "big")
        assert frame == frame_of(encoded[:1] + long_id + encoded[1 + len(short_id) :])


@pytest.mark.parametrize("first_id", [1, *BOUNDARIES])
@pytest.mark.parametrize("requests", [1, 2, 15, 16, PACK_REQUESTS_MAX, REQUESTS_PER_CONNECTION_MAX])
def test_a_pack_is_read_as_the_requests_it_was_made_of(first_id: int, requests: int) -> None:
    sent = [PACKABLE[index % len(PACKABLE)] for index in range(requests)]
    if first_id + requests - 1 > REQUEST_ID_MAX:
        first_id = REQUEST_ID_MAX + 1 - requests
    values = values_of(frame_of_pack(first_id, sent))
    assert is_pack(values)
    pack = decode_pack(values)
    assert (pack.first_id, pack.size, pack.requests) == (first_id, len(sent), sent)


def test_a_tail_of_fields_is_that_of_the_request() -> None:
    for request in PACKABLE:
        assert encode_tail(request.op, *request.to_fields()) == tail_of(request)
        assert tail_of(request)[1] == request.op


def test_a_pack_holds_exactly_the_requests_of_ledgers_whose_answers_have_no_fields() -> None:
    assert set(USUAL) == {Op.ADD, Op.WRITE_LAC, Op.FORCE, Op.SUBSCRIBE}
    assert {op: type(reply) for op, reply in USUAL.items()} == {op: REPLIES[op] for op in USUAL}
    assert not any(type(reply).names for reply in USUAL.values())


def test_the_pack_with_the_most_items_that_a_client_makes_is_within_the_limits() -> None:
    (smallest,) = wire.sealed(Digest.CRC32C, 0, b"")
    entries = FRAME_PAYLOAD_BYTES_TARGET // len(smallest) // PACK_REQUESTS_MAX + 1
    tail = encode_tail(Op.ADD, 2**63 - 1, bytes(64), AddFlag.NONE, 2**28 - 1, [smallest] * entries)
    tails = [tail] * PACK_REQUESTS_MAX
    frame = b"".join((pack_head(REQUEST_ID_MAX - len(tails), tails), *tails))
    assert sum(map(len, tails)) > FRAME_PAYLOAD_BYTES_TARGET
    assert LENGTH.size < len(frame) <= FRAME_BYTES_MAX
    assert len(decode_pack(values_of(frame)).requests) == PACK_REQUESTS_MAX


GOOD = [int(LAC.op), *LAC.to_fields()]

MALFORMED_PACKS: dict[str, list[Any]] = {
    "no requests": [1, 11],
    "empty": [1, 11, []],
    "no list": [1, 11, {}],
    "more fields": [1, 11, [GOOD], 0],
    "id of the connection": [0, 11, [GOOD]],
    "negative id": [-1, 11, [GOOD]],
    "boolean id": [True, 11, [GOOD]],
    "id that is a float": [1.0, 11, [GOOD]],
    "last id over the largest": [REQUEST_ID_MAX, 11, [GOOD, GOOD]],
    "a request that is no list": [1, 11, [b"x"]],
    "a request without an operation": [1, 11, [[]]],
    "a boolean for an operation": [1, 11, [[True, *GOOD[1:]]]],
    "an operation whose answer has fields": [1, 11, [[int(Op.INFO)]]],
    "an operation whose answer is not usual": [1, 11, [[int(Op.PING)]]],
    "an unknown operation": [1, 11, [[99]]],
    "a pack in a pack": [1, 11, [[11, [GOOD]]]],
    "an authentication": [1, 11, [[10, "x", "y", b""]]],
    "a missing field": [1, 11, [GOOD[:-1]]],
    "a field too many": [1, 11, [[*GOOD, 0]]],
    "a field of another type": [1, 11, [[*GOOD[:-1], "sealed"]]],
    "a malformed one behind a good one": [1, 11, [GOOD, GOOD[:-1]]],
    "too many requests": [1, 11, [GOOD] * (REQUESTS_PER_CONNECTION_MAX + 1)],
}


@pytest.mark.parametrize("name", MALFORMED_PACKS)
def test_a_malformed_pack_is_refused(name: str) -> None:
    values = unpack_body(pack_body(tuple(MALFORMED_PACKS[name])))
    assert is_pack(values)
    with pytest.raises(ProtocolError):
        decode_pack(values)


@pytest.mark.parametrize("values", [[], [11], [1, 1, 11], [1, True], [1, "11"], [1, 11.0]])
def test_what_has_not_the_operation_of_packs_is_none(values: list[Any]) -> None:
    assert not is_pack(values)


@pytest.mark.parametrize(
    ("request_ids", "runs"),
    [
        ([5], [(5, 5)]),
        ([5, 6, 7], [(5, 7)]),
        ([7, 5, 6], [(5, 7)]),
        ([1, 3, 5], [(1, 1), (3, 3), (5, 5)]),
        ([9, 1, 2, 8], [(1, 2), (8, 9)]),
        (range(1, ENTRIES_PER_FRAME_MAX + 1), [(1, ENTRIES_PER_FRAME_MAX)]),
        (range(1, 2 * ENTRIES_PER_FRAME_MAX, 2), [(one, one) for one in range(1, 2 * ENTRIES_PER_FRAME_MAX, 2)]),
    ],
)
def test_an_answer_names_the_runs_of_the_requests_that_have_succeeded(
    request_ids: Sequence[int], runs: list[tuple[int, int]]
) -> None:
    values = unpack_body(encode_done(request_ids))
    assert is_pack(values)
    assert values[0] == min(request_ids)
    assert list(decode_done(values)) == runs


@pytest.mark.parametrize(
    "values",
    [
        [1, 11],
        [1, 11, 0],
        [1, 11, 1, [[1, 1]]],
        [1, 11, False, [[1, 1]]],
        [1, 11, 0, [[1, 1]], 0],
        [1, 11, 0, [[2, 1]]],
        [1, 11, 0, [[1, 2], [2, 3]]],
        [1, 11, 0, [[4, 4], [1, 1]]],
        [1, 11, 0, [1]],
        [1, 11, 0, [[1]]],
        [1, 11, 0, [[True, True]]],
        [1, 11, 0, [[-1, 1]]],
        [1, 11, 0, [[1, 2**63]]],
        [1, 11, 0, {}],
    ],
)
def test_a_malformed_answer_is_refused(values: list[Any]) -> None:
    assert is_pack(values)
    with pytest.raises(ProtocolError):
        decode_done(values)


def test_neither_a_single_request_nor_a_refusal_is_taken_for_a_pack() -> None:
    assert not is_pack(unpack_body(Ping().encode(11)))
    assert not is_pack(unpack_body(encode_error(11, Op.ADD, ProtocolError("no"))))
