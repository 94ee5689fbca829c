"""Messages: every one comes back as it was sent, and a field that is not what it must be never passes."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from octavo.protocol import messages
from octavo.protocol.errors import (
    InternalError,
    InvalidArgumentError,
    OctavoError,
    ProtocolError,
    UnsupportedOperationError,
    UnsupportedVersionError,
    code_of,
)
from octavo.protocol.frames import unpack_body
from octavo.protocol.ids import ID_MAX, TERM_MAX
from octavo.protocol.limits import E_MAX, ENTRIES_PER_FRAME_MAX, ERROR_MESSAGE_CHARACTERS_MAX, FRAME_BYTES_MAX
from octavo.protocol.messages import (
    REPLIES,
    REQUEST_ID_MAX,
    REQUESTS,
    Hello,
    Message,
    Op,
    Reply,
    Request,
    UnknownOperationError,
    common_version,
    decode_hello,
    decode_reply,
    decode_request,
    encode_error,
    encode_hello,
)
from support import wire

# --- round trips --------------------------------------------------------------------------------------------------


@given(request_id=wire.request_ids, request=wire.requests)
def test_requests_arrive_as_they_were_sent(request_id: int, request: Request) -> None:
    assert decode_request(unpack_body(request.encode(request_id))) == (request_id, request)


@given(request_id=wire.request_ids, reply=wire.replies)
def test_replies_arrive_as_they_were_sent(request_id: int, reply: Reply) -> None:
    assert decode_reply(unpack_body(reply.encode(request_id))) == (request_id, reply)


@given(hello=wire.hellos)
def test_hellos_arrive_as_they_were_sent(hello: Hello) -> None:
    assert decode_hello(unpack_body(encode_hello(hello))) == hello


@given(request_id=wire.request_ids, error=wire.refusals)
def test_refusals_arrive_as_they_were_sent(request_id: int, error: OctavoError) -> None:
    arrived_id, arrived = decode_reply(unpack_body(encode_error(request_id, Op.ADD, error)))
    assert isinstance(arrived, OctavoError)
    assert (arrived_id, type(arrived)) == (request_id, type(error))
    assert (arrived.message, arrived.may_have_happened) == (error.message, error.may_have_happened)


@pytest.mark.parametrize("name", wire.EXAMPLES)
def test_decoded_messages_have_the_types_they_declare(name: str) -> None:
    example = wire.EXAMPLES[name]
    decoded = type(example).from_fields(wire.fields_of(example))
    assert decoded == example
    for field in example.names:
        assert type(getattr(decoded, field)) is type(getattr(example, field))


def test_examples_and_op_table_name_the_same_messages() -> None:
    assert {type(example) for example in wire.EXAMPLES.values()} == {*REQUESTS.values(), *REPLIES.values()}
    assert {int(op) for op in Op} == {*REQUESTS, int(Op.HELLO), int(Op.PACK), int(Op.PUSH), int(Op.ERROR)}
    assert set(REQUESTS) == set(REPLIES)


# --- checks of fields ---------------------------------------------------------------------------------------------

NOT_INTEGERS: list[Any] = [None, True, False, 1.0, "1", b"1", [1], {}]
NOT_BYTES: list[Any] = ["text", 1, True, [b"x"], {}]
NOT_TEXTS: list[Any] = [None, b"bytes", 1, ["x"]]
NOT_BOOLEANS: list[Any] = [None, 0, 1, "true", b""]
NOT_ENTRY_LISTS: list[Any] = [None, b"x", "x", {}, [1], ["x"], [b"x", None], [[b"x"]], [b"x", "y"]]
NOT_RUNS: list[Any] = [
    None, 1, {}, "x", [1], [[1]], [[1, 2, 3]], [[2, 1]], [[0, 1], [1, 2]], [[5, 6], [0, 1]], [[-1, 0]],
    [[0, ID_MAX + 1]], [[0, True]], [[False, 1]], [["0", 1]], [[0, None]], [{0: 1}], [b"ab"],
]  # fmt: skip

ID: list[Any] = [*NOT_INTEGERS, -1, ID_MAX + 1]
TERM: list[Any] = [*NOT_INTEGERS, -1, TERM_MAX + 1]
KEY: list[Any] = [*NOT_BYTES, None, bytes(65)]
OPTIONAL_ID: list[Any] = [wrong for wrong in ID if wrong is not None]
SEALED: list[Any] = [*NOT_BYTES, bytes(FRAME_BYTES_MAX + 1)]
READ_FLAGS: list[Any] = [*NOT_INTEGERS, -1, 4, 5, 2**32]
RESIDUES_OF_5: list[Any] = [
    None, 0, {}, b"\0", [], [0, 0], [3, 0], [-1], [E_MAX], [5], [True], [0.0], ["0"], [None],
]  # fmt: skip
ENTRIES_MAX: list[Any] = [*NOT_INTEGERS, -1, ENTRIES_PER_FRAME_MAX + 1]
BYTES_MAX: list[Any] = [*NOT_INTEGERS, -1, FRAME_BYTES_MAX + 1]

WRONG: dict[str, list[list[Any]]] = {
    "add": [ID, KEY, [*NOT_INTEGERS, -1, 8, 9, 2**32], TERM, NOT_ENTRY_LISTS],
    "read": [
        ID, KEY, READ_FLAGS, TERM, [*ID, 100], [*ID], [*NOT_INTEGERS, 0, 4, E_MAX + 1],
        RESIDUES_OF_5,
        [*ENTRIES_MAX, 0], BYTES_MAX,
    ],
    "read_answer": [ID, NOT_ENTRY_LISTS, NOT_RUNS, OPTIONAL_ID],
    "read_lac": [
        ID, KEY, READ_FLAGS, TERM, OPTIONAL_ID, [*NOT_INTEGERS, -1, 60001], ENTRIES_MAX, BYTES_MAX,
    ],
    "lac_answer": [NOT_BOOLEANS, NOT_BOOLEANS, NOT_BOOLEANS, SEALED, SEALED, NOT_ENTRY_LISTS],
    "write_lac": [ID, KEY, TERM, [*NOT_BYTES, None, bytes(85)]],
    "force": [ID, KEY, TERM, NOT_RUNS],
    "subscribe": [ID, ID, KEY, TERM, ID, OPTIONAL_ID],
    "list_entries": [ID, ID, ID],
    "entry_list": [ID, NOT_RUNS],
    "missing": [ID, ID, ID, [*NOT_INTEGERS, 0, 2, E_MAX + 1], RESIDUES_OF_5],
    "missing_answer": [ID, NOT_RUNS, NOT_RUNS],
    "authenticate": [[*NOT_TEXTS, "x" * 33], [*NOT_TEXTS, "x" * 65], [*NOT_BYTES, None, bytes(1025)]],
    "authenticate_answer": [
        NOT_BOOLEANS, [None, "x", [1], ["x" * 65], ["x"] * 65], [*NOT_BYTES, None, bytes(1025)],
    ],
    "info_answer": [
        [None, [], "x", 1, {1: "x"}, {b"x": "x"}, {"x": None}, {"x": b"x"}, {"x": []}, {"x": {}}, {"x": 1, 2: 1}],
    ],
}  # fmt: skip
"""Message -> for each of its fields in order, values that must not pass there."""


def decode(kind: type[Message], values: list[Any]) -> object:
    """Decode the fields the way they arrive, as a request or a reply."""
    if issubclass(kind, Request):
        return decode_request([1, int(kind.op), *values])
    return decode_reply([1, int(kind.op), 0, *values])


def test_every_field_of_every_message_has_values_it_refuses() -> None:
    checked = {type(wire.EXAMPLES[name]) for name in WRONG}
    without_fields = {kind for kind in (*REQUESTS.values(), *REPLIES.values()) if not kind.names}
    assert checked | without_fields == {*REQUESTS.values(), *REPLIES.values()}
    for name, fields in WRONG.items():
        assert len(fields) == len(wire.EXAMPLES[name].names)


@pytest.mark.parametrize(
    ("name", "index"), [(name, index) for name, fields in WRONG.items() for index in range(len(fields))]
)
def test_field_of_wrong_type_or_range_is_refused_naming_the_message(name: str, index: int) -> None:
    example = wire.EXAMPLES[name]
    kind = type(example)
    right = wire.fields_of(example)
    decode(kind, list(right))
    for wrong in WRONG[name][index]:
        values = list(right)
        values[index] = wrong
        with pytest.raises(ProtocolError, match=kind.__name__) as raised:
            decode(kind, values)
        assert type(raised.value) is ProtocolError, wrong


def test_refused_field_is_named() -> None:
    with pytest.raises(ProtocolError, match=r"^Add\.ledger_key: not at most 64 bytes$"):
        decode(messages.Add, [7, bytes(65), 0, 0, []])


@pytest.mark.parametrize("kind", [messages.Read, messages.ListEntries, messages.Missing])
def test_range_that_ends_before_it_begins_is_refused(kind: type[Message]) -> None:
    values = wire.fields_of(next(example for example in wire.EXAMPLES.values() if type(example) is kind))
    first, last = kind.names.index("first"), kind.names.index("last")
    values[first], values[last] = 5, 4
    with pytest.raises(ProtocolError, match=f"^{kind.__name__}: first 5 is above last 4$"):
        decode(kind, values)


@pytest.mark.parametrize("name", wire.EXAMPLES)
def test_missing_and_additional_fields_are_refused(name: str) -> None:
    example = wire.EXAMPLES[name]
    right = wire.fields_of(example)
    for values in ([right[:-1]] if right else []) + [[*right, None], [*right, 0, 0]]:
        with pytest.raises(ProtocolError, match="fields instead of"):
            decode(type(example), values)


def test_a_hello_of_a_later_version_may_have_more_fields() -> None:
    assert decode_hello([0, 0, *wire.fields_of(wire.HELLO), {"a later": "field"}, 5]) == wire.HELLO
    with pytest.raises(ProtocolError, match="8 fields instead of 9"):
        decode_hello([0, 0, *wire.fields_of(wire.HELLO)[:-1]])


@pytest.mark.parametrize("index", range(9))
def test_field_of_wrong_type_or_range_is_refused_in_a_hello(index: int) -> None:
    wrong: list[list[Any]] = [
        [*NOT_TEXTS, "", "Octavo", "x" * 17],
        [*NOT_INTEGERS, 0, -1, 2, 2**16 + 1],
        [*NOT_INTEGERS, 0, -1, 2**16 + 1],
        [*NOT_TEXTS, "x" * 65],
        [*NOT_TEXTS, "x" * 129],
        [*NOT_TEXTS, "x" * 129],
        [*NOT_TEXTS, "x" * 65],
        [None, "x", {}, [1], [b"x"], ["x" * 65], ["x"] * 65],
        [None, "x", [], {"x": "y"}, {1: b"x"}, {"x": bytes(4097)}],
    ]
    right = wire.fields_of(wire.HELLO)
    assert decode_hello([0, 0, *right]) == wire.HELLO
    for value in wrong[index]:
        values = list(right)
        values[index] = value
        with pytest.raises(ProtocolError):
            decode_hello([0, 0, *values])


# --- envelopes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        [], [1], [0, 8], [-1, 8], [REQUEST_ID_MAX + 1, 8], [True, 8], [1.0, 8], ["1", 8], [None, 8], [b"1", 8],
        [1, -1], [1, 128], [1, True], [1, 8.0], [1, "PING"], [1, None], [1, [8]], [1, {}],
    ],
)  # fmt: skip
def test_what_has_no_request_id_and_operation_is_no_request(values: list[Any]) -> None:
    with pytest.raises(ProtocolError) as raised:
        decode_request(values)
    assert type(raised.value) is ProtocolError


@pytest.mark.parametrize("op", [0, 11, 126, 127])
def test_unknown_operation_is_refused_by_itself_with_a_code_of_its_own(op: int) -> None:
    with pytest.raises(UnknownOperationError) as raised:
        decode_request([5, op, "whatever", "it", "has"])
    assert raised.value.request_id == 5
    assert f"operation {op} " in raised.value.message
    assert code_of(raised.value) == code_of(UnsupportedOperationError("x"))
    assert isinstance(raised.value, ProtocolError)


@pytest.mark.parametrize(
    "values",
    [
        [], [1], [1, 8], [-1, 8, 0], [REQUEST_ID_MAX + 1, 8, 0], [True, 8, 0], [1.0, 8, 0], [None, 8, 0],
        [1, 0, 0], [1, 9, 0], [1, 127, 0], [1, -1, 0], [1, True, 0], [1, "8", 0], [1, [8], 0], [1, None, 0],
        [0, 8, 0], [1, 8, -1], [1, 8, False], [1, 8, None], [1, 8, 0.0], [1, 8, 0, "more"],
        [1, 8, 1], [1, 8, 1, "text"], [1, 8, 1, "text", True, 0], [1, 8, 1, b"text", True], [1, 8, 1, None, True],
        [1, 8, 1, "text", 1], [1, 8, 1, "text", None], [1, 8, 1, "x" * (ERROR_MESSAGE_CHARACTERS_MAX + 1), True],
    ],
)  # fmt: skip
def test_what_is_neither_answer_nor_refusal_is_no_reply(values: list[Any]) -> None:
    with pytest.raises(ProtocolError):
        decode_reply(values)


def test_refusal_with_the_code_of_a_newer_bookie_is_an_internal_error_naming_it() -> None:
    request_id, error = decode_reply([3, 1, 2**40, "disk on fire", True])
    assert request_id == 3
    assert type(error) is InternalError
    assert error.message == f"unknown error code {2**40}: disk on fire"
    assert error.may_have_happened is True


def test_refusal_belongs_to_its_request_whatever_the_operation() -> None:
    assert decode_reply([3, 99, 4, "not here", False])[0] == 3


@pytest.mark.parametrize("text", ["x" * 5000, "\udcff" * 500, "a\udcff" * 700, "\U0001f40d" * 2000, ""])
def test_refusal_can_carry_any_text(text: str) -> None:
    _, error = decode_reply(unpack_body(encode_error(1, Op.ADD, InvalidArgumentError(text))))
    assert isinstance(error, InvalidArgumentError)
    assert len(error.message) <= ERROR_MESSAGE_CHARACTERS_MAX
    assert error.message[:1] == text[:1].encode(errors="backslashreplace").decode()[:1]


# --- hello --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start",
    [
        [], [0], [1, 0], [0, 1], [False, 0], [0, False], [0.0, 0], [0, 0.0], [None, 0], ["0", 0], [[0], 0], [0, 8],
        [0, 2**63],
    ],
)  # fmt: skip
def test_first_frame_that_is_no_hello_is_refused(start: list[Any]) -> None:
    with pytest.raises(ProtocolError):
        decode_hello([*start, *wire.fields_of(wire.HELLO)])


def test_first_frame_may_be_the_error_that_refuses_our_hello() -> None:
    refusal = encode_error(0, Op.ERROR, UnsupportedVersionError("speak version 9"))
    error = decode_hello(unpack_body(refusal))
    assert isinstance(error, UnsupportedVersionError)
    assert error.message == "speak version 9"


@pytest.mark.parametrize("values", [[0, 127], [0, 127, 0], [0, 127, 1, "text"], [0, 127, 1, "text", 1]])
def test_first_frame_that_is_a_broken_error_is_refused(values: list[Any]) -> None:
    with pytest.raises(ProtocolError):
        decode_hello(values)


@pytest.mark.parametrize(
    ("ours", "theirs", "common"),
    [((1, 1), (1, 1), 1), ((1, 3), (2, 5), 3), ((2, 5), (1, 3), 3), ((1, 9), (4, 4), 4), ((1, 1), (2, 3), None)],
)
def test_highest_common_version_is_used(ours: tuple[int, int], theirs: tuple[int, int], common: int | None) -> None:
    def hello(lowest: int, highest: int) -> Hello:
        return Hello(messages.MAGIC, lowest, highest, "", "", "", "", ())

    assert common_version(hello(*ours), hello(*theirs)) == common
    assert common_version(hello(*theirs), hello(*ours)) == common


# --- limits on the sender's side ----------------------------------------------------------------------------------


def test_sender_refuses_to_send_what_the_receiver_would_refuse() -> None:
    with pytest.raises(ProtocolError, match="4097 items"):
        messages.Add(7, b"", messages.AddFlag.NONE, 0, [b"x"] * (ENTRIES_PER_FRAME_MAX + 1)).encode(1)
    with pytest.raises(ProtocolError, match="over the limit"):
        messages.EntryList(9, tuple((2 * n, 2 * n) for n in range(ENTRIES_PER_FRAME_MAX + 1))).encode(1)
    with pytest.raises(ProtocolError, match="over the limit of 8388608"):
        messages.Add(7, b"", messages.AddFlag.NONE, 0, [bytes(FRAME_BYTES_MAX // 2)] * 2).encode(1)


def test_fullest_frames_that_may_be_sent_are_understood() -> None:
    every_other = tuple((2 * n, 2 * n) for n in range(ENTRIES_PER_FRAME_MAX))
    fullest: list[Request | Reply] = [
        messages.Add(7, b"k", messages.AddFlag.NONE, 0, [b"x" * 2040] * ENTRIES_PER_FRAME_MAX),
        messages.ReadAnswer(9, [b"x"] * ENTRIES_PER_FRAME_MAX, every_other, None),
        messages.EntryList(9, every_other),
        messages.InfoAnswer({f"fact {n}": n for n in range(256)}),
    ]
    for message in fullest:
        values = unpack_body(message.encode(1))
        arrived = decode_request(values) if isinstance(message, Request) else decode_reply(values)
        assert arrived == (1, message)


def test_frames_are_plain_msgpack_arrays() -> None:
    for example in wire.EXAMPLES.values():
        envelope = [9, int(example.op)] if isinstance(example, Request) else [9, int(example.op), 0]
        assert msgpack.unpackb(example.encode(9)) == envelope + wire.fields_of(example)
