"""Opening many entries at once gives what opening each gives, and refuses whatever one of them is refused for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.protocol.entries import Digest, Entry, Opener, Sealer, derive_secrets
from octavo.protocol.errors import DigestMismatchError
from octavo.protocol.ids import EntryId, LedgerId

LEDGER = LedgerId(7)
SECRETS = derive_secrets(b"secret", LEDGER)


def sealed(
    digest: Digest, first: int, *payloads: bytes, ledger: LedgerId = LEDGER, lac: int | None = None
) -> list[bytes]:
    sealer = Sealer(ledger, digest, derive_secrets(b"secret", ledger))
    return sealer.seal(
        EntryId(first),
        payloads,
        last_add_confirmed=None if lac is None else EntryId(lac),
        length=10 * first,
        sealed_at_ms=0,
    )


@settings(max_examples=50, deadline=None)
@given(
    digest=st.sampled_from(Digest),
    payloads=st.lists(st.binary(max_size=50), max_size=8),
    first=st.integers(0, 1000),
    confirmed=st.booleans(),
)
def test_batch_opens_like_its_entries(digest: Digest, payloads: list[bytes], first: int, confirmed: bool) -> None:
    batch = sealed(digest, first, *payloads, lac=first - 1 if confirmed and first else None)
    opener = Opener(LEDGER, digest, SECRETS)
    opened = opener.open_batch(batch)
    assert opened == [opener.open(one) for one in batch]
    assert all(type(entry) is Entry for entry in opened)
    assert [entry.payload for entry in opened] == payloads


@pytest.mark.parametrize("digest", list(Digest))
@pytest.mark.parametrize("position", range(3))
def test_one_flipped_bit_anywhere_refuses_the_batch(digest: Digest, position: int) -> None:
    batch = sealed(digest, 4, b"a", b"bb", b"ccc")
    opener = Opener(LEDGER, digest, SECRETS)
    for place in range(len(batch[position])):
        damaged = bytearray(batch[position])
        damaged[place] ^= 0x10
        with pytest.raises(DigestMismatchError):
            opener.open_batch([*batch[:position], bytes(damaged), *batch[position + 1 :]])


@pytest.mark.parametrize(
    "intruder",
    [
        b"",
        b"short",
        sealed(Digest.CRC32C, 5, b"x", ledger=LedgerId(8))[0],
        sealed(Digest.HMAC_SHA256, 5, b"x")[0],
        Sealer(LEDGER, Digest.CRC32C, SECRETS).seal_explicit_lac(EntryId(4), length=5, sealed_at_ms=0),
    ],
    ids=["empty", "short", "other ledger", "other digest", "explicit LAC"],
)
def test_one_intruder_refuses_the_batch(intruder: bytes) -> None:
    batch = sealed(Digest.CRC32C, 4, b"a", b"bb")
    with pytest.raises(DigestMismatchError):
        Opener(LEDGER, Digest.CRC32C, SECRETS).open_batch([batch[0], intruder, batch[1]])
