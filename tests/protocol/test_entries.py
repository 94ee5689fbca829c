"""Sealed entries: what goes in comes out, and whatever was changed on the way is noticed."""

import contextlib
import hmac
import random
import struct
from itertools import pairwise
from typing import Any

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.protocol.entries import (
    HEADER,
    MAC_BYTES,
    OVERHEAD_BYTES_MAX,
    SEALED_BYTES_MAX,
    SEALED_BYTES_MIN,
    Digest,
    Opener,
    Sealer,
    _verify_each,
    derive_secrets,
    header_of,
    is_intact,
    make_verifier,
    sealed_bytes,
    verifier_matches,
    verify_batch,
    verify_explicit_lac,
)
from octavo.protocol.errors import DigestMismatchError, EntryTooLargeError, OctavoError, ProtocolError
from octavo.protocol.ids import ID_MAX, EntryId, LedgerId
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

LEDGER = LedgerId(7)
SECRETS = derive_secrets(b"secret", LEDGER)
DIGESTS = list(Digest)

ids = st.integers(0, ID_MAX).map(EntryId) | st.integers(0, 300).map(EntryId)
ledger_ids = st.integers(0, ID_MAX).map(LedgerId)


def with_checksum(body: bytes) -> bytes:
    """``body`` made into something whose checksum is right: what an adversary, not an accident, would send."""
    return body + struct.pack("<I", google_crc32c.value(body))


def entry(number: int = 5, payload: bytes = b"payload", digest: Digest = Digest.CRC32C, **changes: Any) -> bytes:
    """A sealed entry of LEDGER with that entry id; ``changes`` are header fields set otherwise, the checksum right."""
    (sealed,) = Sealer(LEDGER, digest, SECRETS).seal(
        EntryId(number), [payload], last_add_confirmed=None, length=0, sealed_at_ms=0
    )
    if not changes:
        return sealed
    return with_checksum(HEADER.pack(*header_of(sealed)._replace(**changes)) + sealed[HEADER.size : -4])


# --- sealing and opening ------------------------------------------------------------------------------------------


@given(
    digest=st.sampled_from(DIGESTS),
    password=st.binary(max_size=100),
    ledger_id=ledger_ids,
    first=st.integers(0, ID_MAX - 20),
    payloads=st.lists(st.binary(max_size=300), max_size=8),
    last_add_confirmed=st.none() | ids,
    length=st.integers(0, 2**62),
    sealed_at_ms=st.integers(0, 2**63),
)
def test_what_is_sealed_opens_to_the_same(
    *,
    digest: Digest,
    password: bytes,
    ledger_id: LedgerId,
    first: int,
    payloads: list[bytes],
    last_add_confirmed: EntryId | None,
    length: int,
    sealed_at_ms: int,
) -> None:
    secrets = derive_secrets(password, ledger_id)
    sealed = Sealer(ledger_id, digest, secrets).seal(
        EntryId(first), payloads, last_add_confirmed=last_add_confirmed, length=length, sealed_at_ms=sealed_at_ms
    )
    opener = Opener(ledger_id, digest, secrets)
    for offset, (payload, one) in enumerate(zip(payloads, sealed, strict=True)):
        length += len(payload)
        opened = opener.open(one)
        assert opened == (ledger_id, first + offset, payload, last_add_confirmed, length, sealed_at_ms)
        assert is_intact(one)
        assert sealed_bytes(header_of(one)) == len(one)
        assert opener.open_last_add_confirmed(one) == (last_add_confirmed, None)
    assert opener.open_batch(sealed) == [opener.open(one) for one in sealed]


@pytest.mark.parametrize("digest", DIGESTS)
def test_header_stands_where_its_table_says(digest: Digest) -> None:
    (sealed,) = Sealer(LEDGER, digest, SECRETS).seal(
        EntryId(0x0102), [b"abc"], last_add_confirmed=EntryId(0x0100), length=0x10, sealed_at_ms=0x0203
    )
    assert sealed[0] == 1
    assert sealed[1] == {Digest.CRC32C: 1, Digest.HMAC_SHA256: 2}[digest]
    assert sealed[2:4] == bytes(2)
    assert sealed[4:8] == (3).to_bytes(4, "big")
    assert sealed[8:16] == (7).to_bytes(8, "big")
    assert sealed[16:24] == (0x0102).to_bytes(8, "big")
    assert sealed[24:32] == (0x0101).to_bytes(8, "big")
    assert sealed[32:40] == (0x13).to_bytes(8, "big")
    assert sealed[40:48] == (0x0203).to_bytes(8, "big")
    payload_at = 48 if digest is Digest.CRC32C else 80
    assert sealed[payload_at:-4] == b"abc"
    assert sealed[-4:] == google_crc32c.value(sealed[:-4]).to_bytes(4, "little")
    if digest is Digest.HMAC_SHA256:
        assert sealed[48:80] == hmac.digest(SECRETS.mac_key, sealed[:48] + b"abc", "sha256")


@pytest.mark.parametrize("digest", DIGESTS)
def test_largest_payload_is_sealed_and_one_byte_more_seals_none(digest: Digest) -> None:
    sealer = Sealer(LEDGER, digest, SECRETS)
    largest = bytes(ENTRY_PAYLOAD_BYTES_MAX)
    (sealed,) = sealer.seal(EntryId(0), [largest], last_add_confirmed=None, length=0, sealed_at_ms=0)
    assert len(sealed) <= SEALED_BYTES_MAX
    assert verify_batch(LEDGER, [sealed]).entry_ids == range(1)
    with pytest.raises(EntryTooLargeError, match="4194305 bytes"):
        sealer.seal(EntryId(0), [b"a", largest + b"x"], last_add_confirmed=None, length=0, sealed_at_ms=0)


# --- damage -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digest", DIGESTS)
def test_every_flipped_bit_is_noticed_by_reader_bookie_and_scrubber(digest: Digest) -> None:
    sealed = entry(digest=digest)
    opener = Opener(LEDGER, digest, SECRETS)
    for bit in range(len(sealed) * 8):
        damaged = bytearray(sealed)
        damaged[bit // 8] ^= 1 << bit % 8
        one = bytes(damaged)
        with pytest.raises(DigestMismatchError):
            opener.open(one)
        with pytest.raises(DigestMismatchError):
            opener.open_batch([sealed, one])
        with pytest.raises(DigestMismatchError):
            opener.open_last_add_confirmed(one)
        with pytest.raises(DigestMismatchError):
            verify_batch(LEDGER, [one])
        assert not is_intact(one)


def test_every_bit_flipped_by_a_forger_who_mends_the_checksum_is_noticed_by_the_mac() -> None:
    sealed = entry(digest=Digest.HMAC_SHA256)
    opener = Opener(LEDGER, Digest.HMAC_SHA256, SECRETS)
    for bit in range((len(sealed) - 4) * 8):
        forged = bytearray(sealed[:-4])
        forged[bit // 8] ^= 1 << bit % 8
        one = with_checksum(bytes(forged))
        assert is_intact(one)
        with pytest.raises(DigestMismatchError):
            opener.open(one)
        with pytest.raises(DigestMismatchError):
            opener.open_batch([sealed, one])
        with pytest.raises(DigestMismatchError):
            opener.open_last_add_confirmed(one)


@pytest.mark.parametrize("digest", DIGESTS)
def test_cut_or_lengthened_entries_are_noticed(digest: Digest) -> None:
    sealed = entry(digest=digest)
    opener = Opener(LEDGER, digest, SECRETS)
    for one in [sealed[:size] for size in range(len(sealed))] + [sealed + bytes(n) for n in (1, 4, 48)]:
        with pytest.raises(DigestMismatchError):
            opener.open(one)
        with pytest.raises(DigestMismatchError):
            opener.open_batch([one])
        with pytest.raises(OctavoError):
            verify_batch(LEDGER, [one])
        assert not is_intact(one)


def test_bytes_with_a_right_checksum_and_a_wrong_length_are_no_entry() -> None:
    opener = Opener(LEDGER, Digest.CRC32C, SECRETS)
    for claimed in (0, 6, 8, 2**32 - 1):
        with pytest.raises(DigestMismatchError):
            opener.open(entry(payload_bytes=claimed))
        with pytest.raises(DigestMismatchError):
            opener.open_batch([entry(payload_bytes=claimed)])


@pytest.mark.parametrize(
    "changes", [{"ledger_id": 8}, {"format": 2}, {"digest_code": 2}, {"digest_code": 3}, {"flags": 1}, {"flags": 2}]
)
def test_reader_refuses_entries_of_another_ledger_format_digest_or_kind(changes: dict[str, Any]) -> None:
    opener = Opener(LEDGER, Digest.CRC32C, SECRETS)
    with pytest.raises(DigestMismatchError):
        opener.open(entry(**changes))
    with pytest.raises(DigestMismatchError):
        opener.open_batch([entry(), entry(6, **changes)])


# --- passwords ----------------------------------------------------------------------------------------------------


def test_reader_with_another_password_opens_nothing_of_an_hmac_ledger() -> None:
    sealed = entry(digest=Digest.HMAC_SHA256)
    for password in (b"", b"Secret", b"secret\0", b"secret "):
        with pytest.raises(DigestMismatchError, match="MAC"):
            Opener(LEDGER, Digest.HMAC_SHA256, derive_secrets(password, LEDGER)).open(sealed)


def test_reader_of_an_hmac_ledger_does_not_settle_for_a_checksum() -> None:
    with pytest.raises(DigestMismatchError):
        Opener(LEDGER, Digest.HMAC_SHA256, SECRETS).open(entry(digest=Digest.CRC32C))


def test_secrets_differ_per_ledger_password_and_purpose() -> None:
    passwords = [b"", b"\0", b"\0\0", b"a", b"a\0", b"A", b"a" * 64, b"a" * 65, b"a" * 200]
    seen = [
        key for password in passwords for ledger in (0, 1, ID_MAX) for key in derive_secrets(password, LedgerId(ledger))
    ]
    assert len(set(seen)) == len(seen)
    assert {len(key) for key in seen} == {32}


def test_secrets_are_those_of_the_documented_derivation() -> None:
    root = bytes.fromhex("2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b")  # sha256sum of "secret"
    assert SECRETS.ledger_key == hmac.digest(root, b"octavo ledger key 1 \0\0\0\0\0\0\0\7", "sha256")
    assert SECRETS.mac_key == hmac.digest(root, b"octavo mac key 1 \0\0\0\0\0\0\0\7", "sha256")


def test_verifier_accepts_the_password_and_digest_of_creation_only() -> None:
    salt = bytes(range(16))
    verifier = make_verifier(SECRETS, Digest.CRC32C, salt)
    assert verifier_matches(verifier, SECRETS, Digest.CRC32C, salt)
    assert not verifier_matches(verifier, SECRETS, Digest.HMAC_SHA256, salt)
    assert not verifier_matches(verifier, derive_secrets(b"Secret", LEDGER), Digest.CRC32C, salt)
    assert not verifier_matches(verifier, derive_secrets(b"secret", LedgerId(8)), Digest.CRC32C, salt)
    assert not verifier_matches(verifier, SECRETS, Digest.CRC32C, bytes(16))
    assert SECRETS.ledger_key not in verifier


# --- explicit LACs ------------------------------------------------------------------------------------------------


@given(digest=st.sampled_from(DIGESTS), lac=ids, length=st.integers(0, 2**62))
def test_explicit_lac_opens_to_what_was_sealed(digest: Digest, lac: EntryId, length: int) -> None:
    sealed = Sealer(LEDGER, digest, SECRETS).seal_explicit_lac(lac, length=length, sealed_at_ms=0)
    opener = Opener(LEDGER, digest, SECRETS)
    assert opener.open_last_add_confirmed(sealed) == (lac, length)
    assert verify_explicit_lac(LEDGER, sealed) == lac
    with pytest.raises(DigestMismatchError, match="not an ordinary entry"):
        opener.open(sealed)
    with pytest.raises(ProtocolError):
        verify_batch(LEDGER, [sealed])


@pytest.mark.parametrize("digest", DIGESTS)
def test_damaged_and_forged_explicit_lacs_are_noticed(digest: Digest) -> None:
    sealed = Sealer(LEDGER, digest, SECRETS).seal_explicit_lac(EntryId(9), length=90, sealed_at_ms=0)
    opener = Opener(LEDGER, digest, SECRETS)
    for bit in range(len(sealed) * 8):
        damaged = bytearray(sealed)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DigestMismatchError):
            opener.open_last_add_confirmed(bytes(damaged))
        with pytest.raises(DigestMismatchError):
            verify_explicit_lac(LEDGER, bytes(damaged))
    if digest is Digest.HMAC_SHA256:
        raised = with_checksum(HEADER.pack(*header_of(sealed)._replace(last_add_confirmed_plus_one=11)) + sealed[48:-4])
        with pytest.raises(DigestMismatchError, match="MAC"):
            opener.open_last_add_confirmed(raised)


@pytest.mark.parametrize(
    "changes",
    [
        {"ledger_id": 8},
        {"format": 2},
        {"flags": 0},
        {"flags": 3},
        {"payload_bytes": 1},
        {"digest_code": 2},
        {"digest_code": 9},
        {"entry_id": 8},
        {"last_add_confirmed_plus_one": 0},
        {"entry_id": 2**63, "last_add_confirmed_plus_one": 2**63 + 1},
    ],
)
def test_bookie_refuses_what_is_no_explicit_lac_of_the_ledger(changes: dict[str, Any]) -> None:
    sealed = Sealer(LEDGER, Digest.CRC32C, SECRETS).seal_explicit_lac(EntryId(9), length=90, sealed_at_ms=0)
    assert verify_explicit_lac(LEDGER, sealed) == 9
    wrong = with_checksum(HEADER.pack(*header_of(sealed)._replace(**changes)))
    with pytest.raises(ProtocolError):
        verify_explicit_lac(LEDGER, wrong)


@pytest.mark.parametrize("size", [0, SEALED_BYTES_MIN - 1, OVERHEAD_BYTES_MAX + 1])
def test_bookie_refuses_explicit_lacs_of_impossible_size(size: int) -> None:
    with pytest.raises(ProtocolError, match="size"):
        verify_explicit_lac(LEDGER, bytes(size))


# --- a bookie's gate ----------------------------------------------------------------------------------------------


@given(
    digest=st.sampled_from(DIGESTS),
    entry_ids=st.lists(st.integers(0, 1000), min_size=1, max_size=12, unique=True).map(sorted),
    lacs=st.lists(st.integers(0, 1000), min_size=12, max_size=12),
)
def test_batch_of_increasing_ids_passes_and_its_highest_lac_is_told(
    digest: Digest, entry_ids: list[int], lacs: list[int]
) -> None:
    sealer = Sealer(LEDGER, digest, SECRETS)
    batch = []
    confirmed = []
    for entry_id, lac in zip(entry_ids, lacs, strict=False):
        last_add_confirmed = EntryId(lac % entry_id) if entry_id else None
        confirmed.append(-1 if last_add_confirmed is None else last_add_confirmed)
        batch += sealer.seal(EntryId(entry_id), [b"x"], last_add_confirmed=last_add_confirmed, length=0, sealed_at_ms=0)
    verified = verify_batch(LEDGER, batch)
    assert list(verified.entry_ids) == entry_ids
    assert verified.last_add_confirmed_plus_one == max(confirmed) + 1
    is_run = all(above - below == 1 for below, above in pairwise(entry_ids))
    assert isinstance(verified.entry_ids, range) is is_run


@pytest.mark.parametrize(
    ("batch", "refusal"),
    [
        pytest.param([], ProtocolError, id="empty"),
        pytest.param([b""], ProtocolError, id="entry without bytes"),
        pytest.param([entry()[: SEALED_BYTES_MIN - 1]], ProtocolError, id="shorter than a header"),
        pytest.param([entry(1), entry(2, ledger_id=8)], ProtocolError, id="mixed ledgers"),
        pytest.param([entry(1, ledger_id=8)], ProtocolError, id="another ledger"),
        pytest.param([entry(2), entry(1)], ProtocolError, id="decreasing ids"),
        pytest.param([entry(1), entry(1)], ProtocolError, id="one id twice"),
        # First and last alone would look like a run of three.
        pytest.param([entry(1), entry(1), entry(3)], ProtocolError, id="one id twice inside"),
        pytest.param([entry(1), entry(7), entry(3)], ProtocolError, id="an id out of order inside"),
        pytest.param([entry(1, format=2)], ProtocolError, id="another format"),
        pytest.param([entry(1, digest_code=0)], ProtocolError, id="no such digest"),
        pytest.param([entry(1), entry(2, digest=Digest.HMAC_SHA256)], ProtocolError, id="mixed digests"),
        pytest.param([entry(1, digest_code=2)], ProtocolError, id="too short for its digest"),
        pytest.param([entry(1, flags=1)], ProtocolError, id="explicit LAC"),
        pytest.param([entry(1), entry(2, flags=4)], ProtocolError, id="unknown flag"),
        pytest.param([entry(1, payload_bytes=6)], ProtocolError, id="payload longer than it says"),
        pytest.param([entry(1, payload_bytes=8)], ProtocolError, id="payload shorter than it says"),
        pytest.param(
            [entry(1, payload_bytes=6), entry(2, payload_bytes=8)], ProtocolError, id="wrong lengths that add up"
        ),
        pytest.param([entry(1, entry_id=ID_MAX + 1)], ProtocolError, id="id over the largest"),
        pytest.param([entry(5, last_add_confirmed_plus_one=6)], ProtocolError, id="LAC at its own id"),
        pytest.param([entry(5), entry(6, last_add_confirmed_plus_one=2**64 - 1)], ProtocolError, id="LAC far above"),
        pytest.param([entry(5, last_add_confirmed_plus_one=7), entry(9)], ProtocolError, id="LAC above the first id"),
        pytest.param([entry(1), entry(2)[:-1] + b"\0"], DigestMismatchError, id="damaged"),
        pytest.param([bytes(SEALED_BYTES_MAX + 1)], EntryTooLargeError, id="oversize"),
    ],
)
def test_bookie_refuses_batches_that_no_honest_writer_sends(batch: list[bytes], refusal: type[OctavoError]) -> None:
    with pytest.raises(refusal) as raised:
        verify_batch(LEDGER, batch)
    assert type(raised.value) is refusal


@given(
    digest=st.sampled_from(DIGESTS),
    size=st.integers(0, 40),
    count=st.integers(16, 20),
    first=st.sampled_from((9, 250, 65_530, 65_536, 2**32 - 5, 2**48 + 65_500)),
    change=st.none() | st.tuples(st.integers(0, 19), st.integers(0, 200), st.integers(0, 7), st.booleans()),
)
def test_regular_batch_gets_the_verdict_of_one_looked_at_entry_by_entry(
    digest: Digest, size: int, count: int, first: int, change: tuple[int, int, int, bool] | None
) -> None:
    batch = Sealer(LEDGER, digest, SECRETS).seal(
        EntryId(first), [bytes(size)] * count, last_add_confirmed=EntryId(3), length=5, sealed_at_ms=0
    )
    if change is not None:
        which, place, bit, seal_again = change
        damaged = bytearray(batch[which % count])
        damaged[place % (len(damaged) - 4)] ^= 1 << bit
        if seal_again:
            damaged[-4:] = struct.pack("<I", google_crc32c.value(bytes(damaged[:-4])))
        batch[which % count] = bytes(damaged)

    def verdict(entries: list[bytes], regular: bool) -> object:
        try:
            sizes, data = list(map(len, entries)), b"".join(entries)
            return verify_batch(LEDGER, entries) if regular else _verify_each(LEDGER, entries, sizes, data)
        except OctavoError as error:
            return type(error)

    assert verdict(batch, regular=True) == verdict(batch, regular=False)
    if change is None:
        assert verdict(batch, regular=True) == (range(first, first + count), 4, list(map(len, batch)), b"".join(batch))


def test_batch_whose_later_entries_confirm_its_first_passes() -> None:
    # A writer of one entry at a time: each vouches for the one before it.
    assert verify_batch(LEDGER, [entry(5), entry(6, last_add_confirmed_plus_one=6)])[:2] == (range(5, 7), 6)
    assert verify_batch(LEDGER, [entry(ID_MAX)])[:2] == (range(ID_MAX, ID_MAX + 1), 0)


def test_readers_and_gate_raise_nothing_but_errors_of_ours_on_any_bytes() -> None:
    rng = random.Random(20260101)
    opener = Opener(LEDGER, Digest.HMAC_SHA256, SECRETS)
    for _ in range(2000):
        body = bytearray(entry(digest=rng.choice(DIGESTS))[:-4])
        for _ in range(rng.randrange(4)):
            body[rng.randrange(min(len(body), 48))] = rng.choice((0, 1, 2, 127, 128, 255, rng.randrange(256)))
        one = with_checksum(bytes(body[: rng.randrange(len(body) + 1)] if rng.random() < 0.2 else body))
        for act in (
            lambda one=one: verify_batch(LEDGER, [one]),
            lambda one=one: verify_explicit_lac(LEDGER, one),
            lambda one=one: opener.open(one),
            lambda one=one: sealed_bytes(header_of(one)),
        ):
            with contextlib.suppress(ProtocolError, DigestMismatchError):
                act()


# --- walking a run of entries -------------------------------------------------------------------------------------


def test_run_of_sealed_entries_can_be_walked_by_their_headers() -> None:
    sealed = [entry(1, b"a"), entry(2, b"", Digest.HMAC_SHA256), entry(3, b"abc")]
    run, at, found = b"".join(sealed), 0, []
    while at < len(run):
        size = sealed_bytes(header_of(run[at:]))
        found.append(run[at : at + size])
        at += size
    assert found == sealed


@pytest.mark.parametrize("changes", [{"format": 0}, {"format": 2}, {"digest_code": 0}, {"digest_code": 3}])
def test_size_of_what_is_no_entry_is_not_guessed(changes: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="no entry begins here"):
        sealed_bytes(header_of(entry(**changes)))


def test_header_of_too_few_bytes_is_refused() -> None:
    with pytest.raises(ProtocolError, match="too few"):
        header_of(bytes(SEALED_BYTES_MIN - 1))


def test_overhead_constants_are_those_of_the_layout() -> None:
    assert HEADER.size == 48
    assert SEALED_BYTES_MIN == 52
    assert OVERHEAD_BYTES_MAX == 52 + MAC_BYTES == 84
