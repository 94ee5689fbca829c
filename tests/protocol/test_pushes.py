"""Pushes: what is malformed is refused, and a full frame is within the limits of the wire."""

from typing import Any

import pytest
from octavo.protocol.entries import Digest
from octavo.protocol.errors import ProtocolError
from octavo.protocol.frames import unpack_body
from octavo.protocol.ids import ID_MAX
from octavo.protocol.limits import ENTRIES_PER_FRAME_MAX, FRAME_PAYLOAD_BYTES_TARGET
from octavo.protocol.messages import Op
from octavo.protocol.packs import is_pack
from octavo.protocol.pushes import PUSHES_PER_FRAME_MAX, Push, are_pushes, decode_pushes, encode_pushes
from support import wire

GOOD = [7, 1, 5, b"lac", [b"entry"]]


WRONG: list[list[Any]] = [
    [None, -1, ID_MAX + 1, True, "1", 1.0],
    [None, -1, 4, True, "1"],
    [-1, ID_MAX + 1, True, "1", 1.0],
    ["lac", 1, []],
    [None, b"entry", ["entry"], [1], {}],
]
"""Of each item, what must not pass."""


def frame(*pushes: Any) -> list[Any]:
    return [0, int(Op.PUSH), 0, list(pushes)]


def test_pushes_arrive_as_they_were_sent() -> None:
    values = unpack_body(encode_pushes(wire.PUSHES))
    assert are_pushes(values)
    assert not is_pack(values)
    assert decode_pushes(values) == wire.PUSHES


@pytest.mark.parametrize("values", [[], [0], [0, 12, 0, []], [0, True, 0, []], [0, 13.0, 0, []]])
def test_other_frames_are_no_pushes(values: list[Any]) -> None:
    assert not are_pushes(values)


@pytest.mark.parametrize(
    "values",
    [
        [0, 13],
        [0, 13, 0],
        [0, 13, 0, [], 1],
        [1, 13, 0, [GOOD]],
        [False, 13, 0, [GOOD]],
        [0, 13, 1, [GOOD]],
        [0, 13, False, [GOOD]],
        [0, 13, 0, []],
        [0, 13, 0, None],
        [0, 13, 0, {}],
        frame(*([GOOD] * (PUSHES_PER_FRAME_MAX + 1))),
        frame(7),
        frame(GOOD[:4]),
        frame([*GOOD, 1]),
        frame(GOOD, None),
    ],
)
def test_malformed_frames_are_refused(values: list[Any]) -> None:
    with pytest.raises(ProtocolError, match="push"):
        decode_pushes(values)


@pytest.mark.parametrize(
    ("index", "wrong"),
    [(index, wrong) for index, values in enumerate(WRONG) for wrong in values],
)
def test_a_wrong_field_is_refused(index: int, wrong: object) -> None:
    values: list[object] = list(GOOD)
    decode_pushes(frame(list(values)))
    values[index] = wrong
    with pytest.raises(ProtocolError, match="a push"):
        decode_pushes(frame(values))


def test_a_full_frame_of_hints_and_one_of_entries_can_be_sent_and_read() -> None:
    lac = wire.sealed_lac(Digest.HMAC_SHA256, 5, 60)
    hints = [Push(number, 0, ID_MAX, lac, []) for number in range(PUSHES_PER_FRAME_MAX)]
    assert decode_pushes(unpack_body(encode_pushes(hints))) == hints
    entries = [b"x" * (FRAME_PAYLOAD_BYTES_TARGET // ENTRIES_PER_FRAME_MAX)] * (
        (ENTRIES_PER_FRAME_MAX - PUSHES_PER_FRAME_MAX) // PUSHES_PER_FRAME_MAX
    )
    full = [Push(number, 0, ID_MAX, lac, entries) for number in range(PUSHES_PER_FRAME_MAX)]
    assert decode_pushes(unpack_body(encode_pushes(full))) == full
