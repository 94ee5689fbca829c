"""docs/wire-protocol.md says what the code does: its tables and its worked examples are computed again."""

import hashlib
import hmac
import re
from itertools import takewhile
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from octavo.protocol import frames, limits, messages
from octavo.protocol.entries import HEADER, MAC_BYTES, RESIDUE, Digest, Sealer, derive_secrets, header_of, make_verifier
from octavo.protocol.errors import ERROR_CODES, ProtocolError
from octavo.protocol.frames import LENGTH, unpack_body
from octavo.protocol.ids import ID_MAX, TERM_MAX, EntryId, LedgerId
from octavo.protocol.messages import REPLIES, REQUESTS, AddFlag, Hello, Message, Op, ReadFlag, decode_request
from support import wire

DOCS = Path(__file__).parent.parent.parent / "docs"
TEXT = (DOCS / "wire-protocol.md").read_text()
MESSAGES: list[type[Message]] = [Hello, *REQUESTS.values(), *REPLIES.values()]


def rows_below(start: str) -> list[list[str]]:
    """The cells of the first table below ``start``, without its head."""
    lines = TEXT.partition(f"\n{start}")[2].splitlines()
    table_at = next(index for index, line in enumerate(lines) if line.startswith("|"))
    table = list(takewhile(lambda line: line.startswith("|"), lines[table_at:]))
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in table[2:]]


def documented_fields(kind: type[Message]) -> list[list[str]]:
    """The rows of the table of a message."""
    word = "Reply" if issubclass(kind, messages.Reply) else "Request"
    (line,) = re.findall(rf"^{word} `{kind.__name__}`.*$", TEXT, re.MULTILINE)
    return [] if line.endswith(": no fields.") else rows_below(line)


def hex_block(number: int) -> bytes:
    """The bytes of a worked example: the first word of each of its lines."""
    block = re.findall(r"```hex\n(.*?)```", TEXT, re.DOTALL)[number]
    return bytes.fromhex("".join(line.split()[0] for line in block.splitlines()))


# --- messages -----------------------------------------------------------------------------------------------------

TYPES: dict[str, tuple[list[Any], list[Any]]] = {
    "id": ([0, 2**63 - 1], [-1, 2**63, None, True, 1.0]),
    "id or nil": ([None, 0, 2**63 - 1], [-1, 2**63, False]),
    "term": ([0, 2**28 - 1], [-1, 2**28, None]),
    "key": ([b"", bytes(64)], [bytes(65), None, "x"]),
    "entries": ([[], [b"x"]], [None, ["x"], b"x"]),
    "sealed LAC": ([b"", bytes(84)], [bytes(85), None, "x"]),
    "sealed or nil": ([None, b"x"], ["x", 1]),
    "runs": ([[], [[0, 0], [1, 5]]], [[[1, 0]], [[0, 1], [1, 2]], [0, 1], None]),
    "residues": ([[0], [0, 1, 63]], [[], [1, 0], [64], [0, 0], None]),
    "boolean": ([True, False], [0, 1, None]),
    "facts": ([{}, {"x": 1, "y": "z", "b": True, "f": 0.5}], [None, {"x": None}, {1: 1}, []]),
    "extensions": (
        [{}, {"x" * 64: bytes(4096)}, {str(number): b"" for number in range(16)}],
        [None, [], {"x": "y"}, {"x" * 65: b""}, {"x": bytes(4097)}, {str(number): b"" for number in range(17)}],
    ),
    "proof": ([b"", bytes(1024)], [bytes(1025), None, "x"]),
    "texts": ([[], ["x" * 64] * 64], [["x"] * 65, ["x" * 65], None, [b"x"]]),
}
"""Type as documented -> values it takes, values it refuses."""


def samples(kind: type[Message], type_name: str) -> tuple[list[Any], list[Any]]:
    if bounds := re.fullmatch(r"integer (\d+)\.\.(\d+)", type_name):
        low, high = map(int, bounds.groups())
        return [low, high], [low - 1, high + 1, None, True]
    if bound := re.fullmatch(r"text (\d+)", type_name):
        characters_max = int(bound[1])
        return ["", "\U0001f40d" * characters_max], ["x" * (characters_max + 1), None, b"x"]
    if type_name == "flags":
        known = sum(AddFlag) if kind is messages.Add else sum(ReadFlag)
        return list(range(known + 1)), [known + 1, -1, None, True]
    return TYPES[type_name]


@pytest.mark.parametrize("kind", MESSAGES)
def test_fields_of_every_message_are_documented_in_their_order(kind: type[Message]) -> None:
    assert tuple(row[0] for row in documented_fields(kind)) == kind.names


@pytest.mark.parametrize("kind", MESSAGES)
def test_fields_take_what_their_documented_type_says_and_nothing_else(kind: type[Message]) -> None:
    example = wire.HELLO if kind is Hello else next(e for e in wire.EXAMPLES.values() if type(e) is kind)
    right = wire.fields_of(example)
    for index, (name, type_name, _) in enumerate(documented_fields(kind)):
        taken, refused = samples(kind, type_name)
        for value in taken:
            kind.from_fields([*right[:index], value, *right[index + 1 :]])
        for value in refused:
            with pytest.raises(ProtocolError, match=name):
                kind.from_fields([*right[:index], value, *right[index + 1 :]])


def test_every_type_used_is_explained() -> None:
    explained = {row[0] for row in rows_below("### Types of fields")}
    used = {re.sub(r"integer .*", "integer A..B", row[1]) for kind in MESSAGES for row in documented_fields(kind)}
    assert {re.sub(r"text \d+", "text N", name) for name in used} == explained


def test_operations_flags_and_errors_are_those_of_the_code() -> None:
    assert {row[0]: int(row[1]) for row in rows_below("## Operations")} == {op.name: int(op) for op in Op}
    assert {row[0]: int(row[1]) for row in rows_below("### ADD")} == {flag.name: flag.value for flag in AddFlag}
    assert {row[0]: int(row[1]) for row in rows_below("### READ")} == {flag.name: flag.value for flag in ReadFlag}
    yes = {True: "yes", False: "no"}
    assert rows_below("## Errors") == [
        [str(code), kind.__name__, yes[kind.retryable], yes[kind.may_have_happened_default]]
        for code, kind in ERROR_CODES.items()
    ]


def test_documented_need_of_a_ledger_key_is_that_of_the_fields() -> None:
    documented = {row[0]: row[3] for row in rows_below("## Operations")}
    needs = {
        messages.Read: "only to fence",
        messages.ReadLac: "only to fence",
        messages.Subscribe: "only if the ledger is private",
    }
    for kind in REQUESTS.values():
        if "ledger_key" not in kind.names:
            assert documented[kind.op.name] == "no"
        else:
            assert documented[kind.op.name] == needs.get(kind, "yes")


def test_limits_and_numbers_are_those_of_the_code() -> None:
    documented = {row[0]: row[1] for row in rows_below("### Limits")}
    in_code = {name: str(value) for name, value in vars(limits).items() if name.isupper()}
    assert documented == in_code
    assert f"at most {6 * limits.ENTRIES_PER_FRAME_MAX} items" in TEXT
    frames.unpack_body(frames.pack_body(([[0] * 4000] * 6,)))
    assert f"protocol version {messages.PROTOCOL_VERSION}.\n" in TEXT
    assert next(row[2] for row in documented_fields(Hello) if row[0] == "magic").strip("`") == messages.MAGIC
    assert (ID_MAX, TERM_MAX, messages.KEY_BYTES_MAX) == (2**63 - 1, 2**28 - 1, 64)


# --- entries and keys ---------------------------------------------------------------------------------------------


def test_entry_table_tells_where_the_fields_are() -> None:
    rows = rows_below("## Entries")
    sizes = [int(row[1]) for row in rows[:9]]
    offsets = [int(row[0]) for row in rows[:9]]
    assert offsets == [sum(sizes[:index]) for index in range(9)]
    assert sum(sizes) == HEADER.size == int(rows[9][0])
    assert int(rows[9][1]) == MAC_BYTES
    assert rows[10][0] == f"{HEADER.size} or {HEADER.size + MAC_BYTES}"
    (sealed,) = Sealer(LedgerId(7), Digest.CRC32C, derive_secrets(b"", LedgerId(7))).seal(
        EntryId(9), [b"payload"], last_add_confirmed=EntryId(8), length=100, sealed_at_ms=1_766_000_000_123
    )
    by_table = [int.from_bytes(sealed[at : at + size], "big") for at, size in zip(offsets, sizes, strict=True)]
    assert tuple(by_table) == header_of(sealed) == (1, 1, 0, 7, 7, 9, 9, 107, 1_766_000_000_123)
    assert int.from_bytes(sealed[-4:], "little") == google_crc32c.value(sealed[:-4])
    assert f"0x{google_crc32c.value(sealed):08X}" == f"0x{RESIDUE:08X}"
    assert f"0x{RESIDUE:08X}" in TEXT


def test_example_keys_follow_from_the_derivation_and_are_those_of_the_code() -> None:
    values = {row[0]: bytes.fromhex(row[1]) for row in rows_below("For password `secret` and ledger 7")}
    ledger, salt = (7).to_bytes(8, "big"), bytes(range(16))
    root = hashlib.sha256(b"secret").digest()
    key_label, mac_label = re.findall(r'HMAC\(root, "(.*?)"', TEXT)
    assert values == {
        "root": root,
        "ledger key": hmac.digest(root, key_label.encode() + ledger, "sha256"),
        "MAC key": hmac.digest(root, mac_label.encode() + ledger, "sha256"),
        "verifier, CRC32C": hashlib.sha256(salt + b"crc32c" + values["ledger key"]).digest(),
    }
    secrets = derive_secrets(b"secret", LedgerId(7))
    assert secrets == (values["ledger key"], values["MAC key"])
    assert make_verifier(secrets, Digest.CRC32C, salt) == values["verifier, CRC32C"]
    for digest in Digest:
        assert f"`{digest.value}`" in TEXT


# --- the worked example -------------------------------------------------------------------------------------------


def test_worked_example_is_the_frame_that_the_code_makes() -> None:
    secrets = derive_secrets(b"secret", LedgerId(7))
    entries = Sealer(LedgerId(7), Digest.CRC32C, secrets).seal(
        EntryId(4), [b"hello"], last_add_confirmed=EntryId(3), length=40, sealed_at_ms=1_766_000_000_123
    )
    add = messages.Add(7, secrets.ledger_key, AddFlag.NONE, 0, entries)
    frame = hex_block(0)
    assert frame == LENGTH.pack(len(add.encode(17))) + add.encode(17)
    assert decode_request(unpack_body(frame[LENGTH.size :])) == (17, add)
    reply = messages.Added().encode(17)
    assert hex_block(1) == LENGTH.pack(len(reply)) + reply


def test_worked_example_can_be_checked_with_nothing_but_the_text() -> None:
    frame = hex_block(0)
    block = re.findall(r"```hex\n(.*?)```", TEXT, re.DOTALL)[0]
    (size,) = re.findall(r"length of the body: (\d+) bytes", block)
    assert int.from_bytes(frame[:4], "big") == int(size) == len(frame) - 4
    (entry_size,) = re.findall(r"(\d+) bytes: the sealed entry", block)
    sealed = frame[-int(entry_size) :]
    (checksum,) = re.findall(r"CRC32C (0x[0-9a-f]{8})", block)
    assert google_crc32c.value(sealed[:-4]) == int(checksum, 16) == int.from_bytes(sealed[-4:], "little")
    assert google_crc32c.value(sealed) == RESIDUE


def test_glossary_explains_each_word_once_and_agrees_with_the_wire() -> None:
    rows = [line for line in (DOCS / "glossary.md").read_text().splitlines() if line.startswith("| ")]
    words = [row.split("|")[1].strip() for row in rows if not row.startswith("| word |")]
    assert len(words) == len(set(words))
    for word in ("entry", "ledger", "fragment", "write set", "fencing", "bookie", "LAC, last add confirmed", "frame"):
        assert word in words
