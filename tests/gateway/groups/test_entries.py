"""The entries of a coordinator's log (rule K10)."""

import json

import pytest
from octavo.gateway.groups.entries import (
    ENTRY_OFFSETS_MAX,
    MARK,
    METADATA_BYTES_MAX,
    Committed,
    EpochStored,
    GenerationStored,
    GroupDeleted,
    GroupEntry,
    MemberLeft,
    MemberStored,
    OffsetsCommitted,
    OffsetsDeleted,
    commits_of,
    decode_entry,
    encode_entry,
)
from octavo.gateway.groups.epoch_member import EpochMember
from octavo.gateway.groups.member_form import member_fields
from octavo.gateway.groups.places import Place
from octavo.metadata.encoding import encode_object
from octavo.protocol.errors import MetadataError
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

ORDERS = Place("5f" * 16, 3)
MEMBER = EpochMember(
    "m1",
    "one",
    5,
    4,
    frozenset({ORDERS, Place("aa", 2), Place("aa", 0)}),
    frozenset({Place("aa", 1)}),
    True,
    ("orders", "payments"),
    "o.*",
    ("office",),
    "range",
    30_000,
    "rack a",
    "worker",
    "10.0.0.1",
)
ENTRIES: list[GroupEntry] = [
    OffsetsCommitted(
        "billing",
        {
            ORDERS: Committed(7, 2, "from host a", 1000),
            Place("aa", 0): Committed(0, -1, "", 0),
            Place("aa", 1): Committed(-2, -1, "", 0),
        },
    ),
    GenerationStored("billing", 4, 45_000, 2000),
    EpochStored("billing", 5, 2000),
    MemberStored("billing", MEMBER),
    MemberStored("billing", EpochMember("m2")),
    MemberLeft("billing", "m1"),
    OffsetsDeleted("billing", (ORDERS, Place("aa", 0))),
    GroupDeleted("ü/ /x"),
]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_an_entry_is_what_it_was(entry: GroupEntry) -> None:
    assert decode_entry(encode_entry(entry), "entry 5") == entry


def test_an_entry_is_a_mark_and_a_line_of_json() -> None:
    payload = encode_entry(OffsetsCommitted("billing", {ORDERS: Committed(7, 2, "x", 1000)}))
    assert payload.startswith(MARK)
    fields = json.loads(payload.removeprefix(MARK))
    del fields["crc32c"]
    assert fields == {
        "format": 1, "group": "billing", "kind": "committed", "offsets": [["5f" * 16, 3, 7, 2, "x", 1000]],
    }  # fmt: skip


def test_a_member_with_everything_is_an_entry_that_is_small_enough() -> None:
    names = tuple(f"{'\x01' * 250}{number:5}" for number in range(1000))
    places = frozenset(Place(f"{topic:032x}", number) for topic in range(1000) for number in range(10))
    member = MEMBER._replace(topics=names, matched=names, assigned=places, client="\x01" * 255)
    assert len(encode_entry(MemberStored("g" * 255, member))) <= ENTRY_PAYLOAD_BYTES_MAX


def test_an_entry_of_another_program_is_none() -> None:
    assert decode_entry(b"of another program", "entry 5") is None
    assert decode_entry(b"", "entry 5") is None


def stored(fields: dict[str, object], format_number: int = 1) -> bytes:
    return MARK + encode_object({"group": "billing", **fields}, format_number=format_number)


@pytest.mark.parametrize(
    "payload",
    [
        MARK + b"{",
        encode_entry(ENTRIES[0])[:-1] + b" ",
        encode_entry(ENTRIES[0]).replace(b"from host a", b"from host b"),
        stored({"kind": "deleted"}, format_number=2),
        stored({"kind": "other"}),
        stored({}),
        stored({"kind": "committed", "offsets": [["aa", 0, 7]]}),
        stored({"kind": "committed", "offsets": [["aa", -1, 7, 0, "", 0]]}),
        stored({"kind": "committed", "offsets": [["aa", 0, "7", 0, "", 0]]}),
        stored({"kind": "committed", "offsets": [["aa", 0, -3, 0, "", 0]]}),
        stored({"kind": "committed", "offsets": [["aa", 0, 7, -2, "", 0]]}),
        stored({"kind": "committed", "offsets": [["aa", 0, 7, 0, 5, 0]]}),
        stored({"kind": "committed", "offsets": [[5, 0, 7, 0, "", 0]]}),
        stored({"kind": "committed", "offsets": [5]}),
        stored({"kind": "generation", "generation": -1, "session_ms": 0, "at_ms": 0}),
        stored({"kind": "generation", "generation": 1, "session_ms": 0}),
        stored({"kind": "uncommitted", "places": [["aa"]]}),
        stored({"kind": "epoch", "epoch": -1, "at_ms": 0}),
        stored({"kind": "left"}),
        stored({"kind": "member", "member": "m1"}),
        stored({"kind": "member", **member_fields(MEMBER), "assigned": [["aa", -1]]}),
        stored({"kind": "member", **member_fields(MEMBER), "revoking": [[]]}),
        stored({"kind": "member", **member_fields(MEMBER), "topics": [7]}),
        stored({"kind": "member", **member_fields(MEMBER), "epoch": -1}),
    ],
)
def test_an_entry_that_is_damaged_or_newer_is_refused(payload: bytes) -> None:
    """To skip it would let a commit go back."""
    with pytest.raises(MetadataError, match="entry 5"):
        decode_entry(payload, "entry 5")


def test_a_commit_of_many_partitions_is_several_entries_that_are_small_enough() -> None:
    longest = "\x01" * METADATA_BYTES_MAX
    offsets = {
        Place("f" * 32, partition): Committed((1 << 63) - 1, (1 << 31) - 1, longest, 1 << 50)
        for partition in range(2 * ENTRY_OFFSETS_MAX + 1)
    }
    entries = list(commits_of("g" * 255, offsets))
    assert [len(entry.offsets) for entry in entries] == [ENTRY_OFFSETS_MAX, ENTRY_OFFSETS_MAX, 1]
    assert {place: one for entry in entries for place, one in entry.offsets.items()} == offsets
    assert all(len(encode_entry(entry)) <= ENTRY_PAYLOAD_BYTES_MAX for entry in entries)
    assert list(commits_of("billing", {})) == []
