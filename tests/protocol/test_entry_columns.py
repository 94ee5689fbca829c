"""Entries opened as columns are those that opening each gives; whatever is not ordinary and intact is left alone."""

from collections.abc import Sequence

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.protocol.entries import CHECKSUM, HEADER, Digest, Entry, Opener, Sealer, derive_secrets
from octavo.protocol.entry_columns import HEAD_WORDS, EntryColumns, open_columns
from octavo.protocol.ids import ID_MAX, EntryId, LedgerId

LEDGER = LedgerId(7)
SECRETS = derive_secrets(b"secret", LEDGER)
OPENER = Opener(LEDGER, Digest.CRC32C, SECRETS)


def sealed(first: int, payloads: Sequence[bytes], *, ledger: LedgerId = LEDGER, lac: int | None = None) -> list[bytes]:
    sealer = Sealer(ledger, Digest.CRC32C, derive_secrets(b"secret", ledger))
    return sealer.seal(
        EntryId(first),
        payloads,
        last_add_confirmed=None if lac is None else EntryId(lac),
        length=10 * first,
        sealed_at_ms=0,
    )


@given(
    frames=st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=6), min_size=1, max_size=4),
    equal=st.integers(0, 40) | st.none(),
    first=st.integers(0, 1000),
    confirmed=st.booleans(),
)
def test_columns_are_the_entries(frames: list[list[bytes]], equal: int | None, first: int, confirmed: bool) -> None:
    batch: list[bytes] = []
    for frame in frames:
        payloads = frame if equal is None else [payload.ljust(equal, b".")[:equal] for payload in frame]
        at = first + len(batch)
        batch += sealed(at, payloads, lac=at - 1 if confirmed and at else None)
    entries = OPENER.open_batch(batch)
    columns = open_columns(OPENER, batch)
    assert columns is not None
    assert list(columns) == entries
    assert (len(columns), columns[-1], columns[0:2]) == (len(entries), entries[-1], entries[0:2])
    assert all(type(entry) is Entry for entry in columns)
    assert columns.entry_ids == range(first, first + len(entries))
    assert columns.payload_bytes == sum(len(entry.payload) for entry in entries)
    assert [columns.data[slice(*columns.place(at))] for at in range(len(columns))] == [one.payload for one in entries]
    assert list(columns.heads[2::HEAD_WORDS]) == [entry.entry_id for entry in entries]
    assert list(columns.heads[4::HEAD_WORDS]) == [entry.length for entry in entries]
    assert (columns.stride is None) == (len({len(one) for one in batch}) > 1)
    with pytest.raises(IndexError):
        columns[len(columns)]


@pytest.mark.parametrize("payloads", [[b"aa", b"bb", b"cc"], [b"a", b"bb", b"ccc"]], ids=["one size", "sizes"])
def test_one_flipped_bit_anywhere_makes_no_columns(payloads: list[bytes]) -> None:
    batch = sealed(4, payloads)
    for position, one in enumerate(batch):
        for place in range(len(one)):
            damaged = bytearray(one)
            damaged[place] ^= 0x10
            assert open_columns(OPENER, [*batch[:position], bytes(damaged), *batch[position + 1 :]]) is None


def with_header(one: bytes, *, flags: int = 0, ledger: int = LEDGER, entry_id: int = 5, digest: int = 1) -> bytes:
    """The entry with other fields, sealed again."""
    fields = list(HEADER.unpack_from(one))
    fields[1], fields[2], fields[4], fields[5] = digest, flags, ledger, entry_id
    return checked(HEADER.pack(*fields) + one[HEADER.size : -CHECKSUM.size])


def checked(body: bytes) -> bytes:
    """With its checksum behind it."""
    return body + CHECKSUM.pack(google_crc32c.value(body))


@pytest.mark.parametrize(
    "batch",
    [
        [],
        [b"short"],
        [sealed(4, [b"a"])[0], sealed(6, [b"a"])[0]],
        [sealed(5, [b"a"])[0], sealed(4, [b"a"])[0]],
        [sealed(4, [b"a"])[0], sealed(5, [b"a"], ledger=LedgerId(8))[0]],
        [sealed(4, [b"a"])[0], with_header(sealed(5, [b"a"])[0], flags=1)],
        [sealed(4, [b"a"])[0], with_header(sealed(5, [b"a"])[0], digest=2)],
        [with_header(sealed(4, [b"a"])[0], entry_id=ID_MAX + 1)],
        [with_header(sealed(4, [b"a"])[0], entry_id=2**64 - 1)] * 2,
        [checked(sealed(4, [b"a"])[0][: -CHECKSUM.size] + b"b")],
    ],
    ids=["none", "short", "a gap", "not in order", "other ledger", "flags", "digest", "id", "id at the end", "length"],
)
def test_what_is_not_ordinary_is_left_to_open_batch(batch: list[bytes]) -> None:
    assert open_columns(OPENER, batch) is None


def test_without_the_mac_checked_nothing_of_a_ledger_with_macs_becomes_columns() -> None:
    forged = sealed(4, [b"a"])
    assert open_columns(Opener(LEDGER, Digest.HMAC_SHA256, SECRETS), forged) is None
    assert type(open_columns(OPENER, forged)) is EntryColumns
