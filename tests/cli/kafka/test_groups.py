"""Consumer groups on the command line: places to go on at, partitions of members, errors in answers."""

import struct
from typing import Any

import pytest
from octavo.cli.kafka.asking import first_code
from octavo.cli.kafka.assignment import assigned_partitions
from octavo.cli.kafka.groups import BEGINNING, END, place
from octavo.gateway.codes import Code
from octavo.gateway.wire.apis import Api
from octavo.gateway.wire.entities import decode_answer, encode_answer
from octavo.protocol.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("beginning", (BEGINNING, 0)),
        ("end", (END, 0)),
        ("0", (None, 0)),
        ("12", (None, 12)),
        ("1970-01-01T00:00:01.500+00:00", (1500, 0)),
        ("2026-03-01T12:00:00+01:00", (1772362800000, 0)),
    ],
)
def test_a_place_is_an_end_an_offset_or_a_time(text: str, found: tuple[int | None, int]) -> None:
    assert place(text) == found


@pytest.mark.parametrize(
    "text", ["", "-1", "latest", "1.5", "2026-03-01T12:00:00", "1969-01-01T00:00:00+00:00", str(2**63), "\u0661"]
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="--to"):
        place(text)


def assignment(*topics: tuple[str, list[int]]) -> bytes:
    rows = [
        struct.pack(">h", len(name)) + name.encode() + struct.pack(f">{1 + len(numbers)}i", len(numbers), *numbers)
        for name, numbers in topics
    ]
    return struct.pack(">hi", 1, len(topics)) + b"".join(rows) + struct.pack(">i", -1)


def test_the_partitions_of_a_member_are_read_from_its_assignment() -> None:
    found = assigned_partitions(assignment(("orders", [2, 0]), ("bills", [1])))
    assert found == [("bills", 1), ("orders", 0), ("orders", 2)]
    assert assigned_partitions(assignment()) == []


@pytest.mark.parametrize(
    "other",
    [b"", b"{}", assignment(("orders", [1, 2]))[:18], struct.pack(">hi", 1, 2**31 - 1),
     struct.pack(">hihi", 1, 1, 1, -1),
     struct.pack(">hih", 1, 1, 0) + struct.pack(">i", -5), struct.pack(">hih", 1, 1, 2) + b"\xff\xff\0\0\0\0"],
)  # fmt: skip
def test_other_assignments_are_not_read(other: bytes) -> None:
    assert assigned_partitions(other) is None


@pytest.mark.parametrize(
    ("codes", "error", "found"),
    [
        ([Code.NONE, Code.NONE], Code.NONE, Code.NONE),
        ([Code.NONE, Code.UNKNOWN_MEMBER_ID], Code.NONE, Code.UNKNOWN_MEMBER_ID),
        ([Code.NONE], Code.NOT_COORDINATOR, Code.NOT_COORDINATOR),
        ([], Code.NONE, Code.NONE),
    ],
)
def test_the_first_error_of_an_answer_is_found_wherever_it_stands(codes: list[Code], error: Code, found: Code) -> None:
    partitions: list[dict[str, Any]] = [
        {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": 1, "metadata": "", "error_code": code}
        for code in codes
    ]
    topics = [{"name": "orders", "partitions": partitions}]
    fields = {"throttle_time": 0, "topics": topics, "error_code": error}
    answer = decode_answer(Api.OFFSET_FETCH, 5, encode_answer(Api.OFFSET_FETCH, 5, fields))
    assert first_code(answer) is found
