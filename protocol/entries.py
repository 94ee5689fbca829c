"""The one home of an entry's bytes: how a payload is sealed, verified and opened again.

A *sealed entry* is what travels, what every replica stores and what never changes (rules W2 and I3):

=======  =====  ======================================================================================
offset   bytes  field (integers big-endian, unsigned, except the last)
=======  =====  ======================================================================================
0        1      format, 1
1        1      digest: 1 CRC32C, 2 HMAC-SHA256
2        2      flags: 0 an entry, 1 an explicit LAC
4        4      payload length in bytes
8        8      ledger id
16       8      entry id
24       8      last add confirmed of the writer when it sealed, plus one; 0 when it had none
32       8      cumulative length: payload bytes of the ledger up to and including this entry
40       8      time of sealing: milliseconds since 1970-01-01T00:00Z by the writer's clock
48       32     HMAC-SHA256 over bytes 0 to 47 and the payload; only with digest 2
48|80    n      payload
end - 4  4      CRC32C over everything before it, *little*-endian
=======  =====  ======================================================================================

The checksum is last and little-endian because then the CRC32C over a whole intact entry is the constant
:data:`RESIDUE`: a batch is verified by mapping one C function over it, without slicing. Every entry carries it,
whatever its digest, so that bookies and their scrubbers can verify without a password; a reader of an HMAC ledger
checks the MAC as well, which cannot be forged without the password.

The time of sealing never falls within a ledger: a writer whose clock goes back repeats its last time. Bookies do not
check it.

An *explicit LAC* (rule W2) is sealed in the same format: flag :data:`FLAG_EXPLICIT_LAC`, no payload, the entry id
that of the last add confirmed.
"""

import enum
import hashlib
import hmac
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from itertools import repeat
from operator import itemgetter
from typing import NamedTuple, cast

import google_crc32c
from octavo.protocol.errors import DigestMismatchError, EntryTooLargeError, ProtocolError
from octavo.protocol.ids import ID_MAX, EntryId, LedgerId
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

if google_crc32c.implementation != "c":
    raise ImportError(
        "google-crc32c runs in its pure Python form, hundreds of times slower; install a wheel built for this platform"
    )

FORMAT = 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HEADER = struct.Struct(">BBHIQQQQQ")
CHECKSUM = struct.Struct("<I")
MAC_BYTES = 32
RESIDUE = 0x48674BC7
"""CRC32C of any bytes followed by their own little-endian CRC32C."""

FLAG_EXPLICIT_LAC = 1

OVERHEAD_BYTES_MAX = HEADER.size + MAC_BYTES + CHECKSUM.size
SEALED_BYTES_MIN = HEADER.size + CHECKSUM.size
SEALED_BYTES_MAX = ENTRY_PAYLOAD_BYTES_MAX + OVERHEAD_BYTES_MAX

_HMAC_PADDING = bytes(32)
_INNER_PAD = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD = bytes(byte ^ 0x5C for byte in range(256))
"""RFC 2104: what the padded key is combined with, as tables for ``bytes.translate``."""

_crc32c: Callable[[bytes], int] = google_crc32c.value


class Digest(enum.Enum):
    """The protection of an entry.

    A checksum (CRC32C) against accidents, or a MAC keyed from the password (HMAC_SHA256) against forgery too.

    Examples:
        >>> async with client.create_ledger(digest=octavo.Digest.HMAC_SHA256, password=b"secret") as sealed:
        ...     await sealed.add(b"payload")
        0
    """

    CRC32C = "crc32c"
    HMAC_SHA256 = "hmac-sha256"


_DIGEST_CODES = {Digest.CRC32C: 1, Digest.HMAC_SHA256: 2}
_OVERHEAD_BYTES = {1: SEALED_BYTES_MIN, 2: OVERHEAD_BYTES_MAX}
"""Digest code -> bytes of a sealed entry that are not payload."""


def digest_code_of(digest: Digest) -> int:
    """The digest's code in a header."""
    return _DIGEST_CODES[digest]


class Header(NamedTuple):
    """The fields of a sealed entry's header, as they stand in the bytes."""

    format: int
    digest_code: int
    flags: int
    payload_bytes: int
    ledger_id: LedgerId
    entry_id: EntryId
    last_add_confirmed_plus_one: int
    length: int
    sealed_at_ms: int

    @property
    def last_add_confirmed(self) -> EntryId | None:
        """The writer's LAC when it sealed; None before its first acknowledged add."""
        return EntryId(self.last_add_confirmed_plus_one - 1) if self.last_add_confirmed_plus_one else None


class Entry(NamedTuple):
    """One entry as a reader gets it.

    ``length`` counts the ledger's payload bytes up to and including this entry; ``sealed_at_ms`` is the writer's clock
    when it sealed the entry, in milliseconds since 1970 (UTC).

    Examples:
        >>> entry, *_ = await reader.read(1, 2)
        >>> entry.entry_id, entry.payload, entry.length
        (1, b'second', 11)
    """

    ledger_id: LedgerId
    entry_id: EntryId
    payload: bytes
    last_add_confirmed: EntryId | None
    length: int
    sealed_at_ms: int

    @property
    def sealed_at(self) -> datetime:
        """When the writer sealed the entry, by its own clock. It never falls within a ledger."""
        return EPOCH + timedelta(milliseconds=self.sealed_at_ms)


class LedgerSecrets(NamedTuple):
    """The keys derived from a password for one ledger: the key shown to bookies, and the MAC key, which no bookie ever
    sees."""

    ledger_key: bytes
    mac_key: bytes


def derive_secrets(password: bytes, ledger_id: LedgerId) -> LedgerSecrets:
    """The secrets of one ledger. Both differ from ledger to ledger, so a bookie of one learns nothing about another.

    Derivation is two HMACs: cheap enough for thousands of ledgers a second; choose passwords that cannot be guessed.
    """
    # HMAC pads its key with zeros: unhashed, a password and the same one with a zero byte appended would be equal.
    root = hashlib.sha256(password).digest()
    suffix = ledger_id.to_bytes(8, "big")
    return LedgerSecrets(
        _short_hmac(root, b"octavo ledger key 1 " + suffix),
        _short_hmac(root, b"octavo mac key 1 " + suffix),
    )


def _short_hmac(key: bytes, message: bytes) -> bytes:
    """HMAC-SHA256 (RFC 2104) with a key of 32 bytes: the same as ``hmac.digest``, whose setting up takes longer than
    both hashes of a short message."""
    padded = key + _HMAC_PADDING
    inner = hashlib.sha256(padded.translate(_INNER_PAD) + message).digest()
    return hashlib.sha256(padded.translate(_OUTER_PAD) + inner).digest()


def make_verifier(secrets: LedgerSecrets, digest: Digest, salt: bytes) -> bytes:
    """The verifier in the metadata that checks a password and digest type (rule F0): a salted hash, from which no key
    can be derived.

    ``salt`` is random and of one size for all ledgers, 16 bytes or more.
    """
    return hashlib.sha256(salt + digest.value.encode() + secrets.ledger_key).digest()


def verifier_matches(verifier: bytes, secrets: LedgerSecrets, digest: Digest, salt: bytes) -> bool:
    """Whether password and digest type are those the ledger was created with. Takes the same time either way."""
    return hmac.compare_digest(verifier, make_verifier(secrets, digest, salt))


class Sealer:
    """Seals the entries of one ledger. Holds the keys, not the ledger's state: what goes into a header is passed in."""

    __slots__ = ("_digest_code", "_ledger_id", "_mac_key")

    def __init__(self, ledger_id: LedgerId, digest: Digest, secrets: LedgerSecrets) -> None:
        self._ledger_id = ledger_id
        self._digest_code = _DIGEST_CODES[digest]
        self._mac_key = secrets.mac_key if digest is Digest.HMAC_SHA256 else None

    def seal(
        self,
        first_entry_id: EntryId,
        payloads: Iterable[bytes],
        *,
        last_add_confirmed: EntryId | None,
        length: int,
        sealed_at_ms: int,
    ) -> list[bytes]:
        """Seal ``payloads`` as consecutive entries. ``length`` is the cumulative length *before* the first of them,
        ``sealed_at_ms`` the time in milliseconds since 1970, which must not fall from call to call.

        Raises :class:`EntryTooLargeError` when a payload is over the limit; then none is sealed.
        """
        sealed: list[bytes] = []
        append = sealed.append
        pack_header, pack_checksum, crc32c = HEADER.pack, CHECKSUM.pack, _crc32c
        digest_code, ledger_id, mac_key = self._digest_code, self._ledger_id, self._mac_key
        lac_plus_one = 0 if last_add_confirmed is None else last_add_confirmed + 1
        entry_id: int = first_entry_id
        for payload in payloads:
            size = len(payload)
            if size > ENTRY_PAYLOAD_BYTES_MAX:
                raise EntryTooLargeError(f"a payload of {size} bytes is over the limit of {ENTRY_PAYLOAD_BYTES_MAX}")
            length += size
            header = pack_header(FORMAT, digest_code, 0, size, ledger_id, entry_id, lac_plus_one, length, sealed_at_ms)
            if mac_key is None:
                body = header + payload
            else:
                body = header + hmac.digest(mac_key, header + payload, "sha256") + payload
            append(body + pack_checksum(crc32c(body)))
            entry_id += 1
        return sealed

    def seal_explicit_lac(self, last_add_confirmed: EntryId, *, length: int, sealed_at_ms: int) -> bytes:
        """The sealed form of "everything up to ``last_add_confirmed`` is acknowledged"; ``length`` is the length
        there."""
        lac, flags = last_add_confirmed, FLAG_EXPLICIT_LAC
        header = HEADER.pack(FORMAT, self._digest_code, flags, 0, self._ledger_id, lac, lac + 1, length, sealed_at_ms)
        body = header if self._mac_key is None else header + hmac.digest(self._mac_key, header, "sha256")
        return body + CHECKSUM.pack(_crc32c(body))


_PAYLOAD_SLICE = slice(HEADER.size, -CHECKSUM.size)
"""Where the payload stands in an entry without a MAC."""


class Opener:
    """Verifies and opens sealed entries of one ledger. The reader's side of :class:`Sealer`."""

    __slots__ = ("_digest_code", "_ledger_id", "_mac_key", "digest")

    def __init__(self, ledger_id: LedgerId, digest: Digest, secrets: LedgerSecrets) -> None:
        self.digest = digest
        self._ledger_id = ledger_id
        self._digest_code = _DIGEST_CODES[digest]
        self._mac_key = secrets.mac_key if digest is Digest.HMAC_SHA256 else None

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger whose entries it opens."""
        return self._ledger_id

    def open(self, sealed: bytes) -> Entry:
        """The entry in ``sealed``. Raises :class:`DigestMismatchError` when its bytes or its ledger are not what was
        sealed."""
        header = self._verified_header(sealed)
        if header.flags:
            raise DigestMismatchError(f"ledger {self._ledger_id}: not an ordinary entry (flags {header.flags})")
        return Entry(
            header.ledger_id,
            header.entry_id,
            sealed[len(sealed) - CHECKSUM.size - header.payload_bytes : -CHECKSUM.size],
            header.last_add_confirmed,
            header.length,
            header.sealed_at_ms,
        )

    def open_batch(self, batch: Sequence[bytes]) -> list[Entry]:
        """The entries of ``batch``, in its order; runs at C speed per entry except for MACs.

        Raises :class:`DigestMismatchError` when one of them is not what was sealed; :meth:`open` finds out which.
        """
        if not batch:
            return []
        if self._mac_key is not None:
            return list(map(self.open, batch))
        sizes = list(map(len, batch))
        if min(sizes) < SEALED_BYTES_MIN or set(map(_crc32c, batch)) != {RESIDUE}:
            raise DigestMismatchError(f"ledger {self._ledger_id}: an entry's checksum does not match its bytes")
        formats, digests, flags, payload_bytes, ledger_ids, entry_ids, lacs, lengths, times = zip(
            *map(HEADER.unpack_from, batch), strict=True
        )
        if (
            set(formats) != {FORMAT}
            or set(digests) != {self._digest_code}
            or set(flags) != {0}
            or set(ledger_ids) != {self._ledger_id}
            or set(map(int.__sub__, sizes, payload_bytes)) != {SEALED_BYTES_MIN}
        ):
            raise DigestMismatchError(f"ledger {self._ledger_id}: an entry is of another ledger, format or digest")
        # By the constructor of tuple: the strict zip makes the fields complete, and _make costs twice as much.
        fields = zip(
            ledger_ids,
            entry_ids,
            [sealed[_PAYLOAD_SLICE] for sealed in batch],
            [lac - 1 if lac else None for lac in lacs],
            lengths,
            times,
            strict=True,
        )
        return list(map(cast("Callable[..., Entry]", tuple.__new__), repeat(Entry), fields))

    def open_last_add_confirmed(self, sealed: bytes) -> tuple[EntryId | None, int | None]:
        """The LAC sealed into an entry or explicit LAC, and the length there if it is known (explicit LACs only).

        Raises :class:`DigestMismatchError`.
        """
        header = self._verified_header(sealed)
        return header.last_add_confirmed, header.length if header.flags & FLAG_EXPLICIT_LAC else None

    def _verified_header(self, sealed: bytes) -> Header:
        if len(sealed) < SEALED_BYTES_MIN or _crc32c(sealed) != RESIDUE:
            raise DigestMismatchError(f"ledger {self._ledger_id}: an entry's checksum does not match its bytes")
        header = Header._make(HEADER.unpack_from(sealed))
        if (
            header.format != FORMAT
            or header.ledger_id != self._ledger_id
            or header.digest_code != self._digest_code
            or len(sealed) != header.payload_bytes + _OVERHEAD_BYTES[header.digest_code]
        ):
            raise DigestMismatchError(
                f"ledger {self._ledger_id}: the entry is of ledger {header.ledger_id}, format {header.format}, "
                f"digest {header.digest_code}"
            )
        if self._mac_key is not None:
            payload = sealed[HEADER.size + MAC_BYTES : -CHECKSUM.size]
            mac = hmac.digest(self._mac_key, sealed[: HEADER.size] + payload, "sha256")
            if not hmac.compare_digest(mac, sealed[HEADER.size : HEADER.size + MAC_BYTES]):
                raise DigestMismatchError(
                    f"ledger {self._ledger_id} entry {header.entry_id}: the MAC does not match "
                    "(another password, or forged)"
                )
        return header


class SealedBatch(NamedTuple):
    """The facts that a bookie needs about a batch of sealed entries that it has verified. Ids strictly increase."""

    entry_ids: Sequence[int]
    last_add_confirmed_plus_one: int
    """The highest in the batch."""
    sizes: Sequence[int]
    """Bytes of each sealed entry."""
    data: bytes
    """The entries back to back."""


_BATCH_HEAD_BYTES = 40
"""The header up to the cumulative length: five 64-bit words, the first of format, digest, flags, payload length."""

_REGULAR_ENTRIES_MIN = 16
"""Batches of fewer entries (but for a lone one) are quicker verified entry by entry."""

_WORD_CODES = ("Q", "B", "H", "B", "I", "B", "H", "B")
"""Size of an entry modulo 8 -> code of the widest array items that every entry of a batch of that size begins on."""

_ENTRY_ID_COLUMN = 16
_batch_head = itemgetter(slice(0, _BATCH_HEAD_BYTES))


def verify_batch(ledger_id: LedgerId, entries: Sequence[bytes]) -> SealedBatch:
    """Check everything that can be checked without a password: checksums, lengths, ledger, ids strictly increasing.

    This is a bookie's gate: what passes is an entry that any reader can tell apart from damage. Headers are checked
    column by column, so that nothing per entry runs slower than C. Raises :class:`ProtocolError` for what no honest
    writer sends, :class:`DigestMismatchError` for damaged bytes.
    """
    if not entries:
        raise ProtocolError("a batch without entries")
    sizes = list(map(len, entries))
    count, size = len(sizes), sizes[0]
    equal = sizes.count(size) == count
    smallest, largest = (size, size) if equal else (min(sizes), max(sizes))
    if smallest < SEALED_BYTES_MIN:
        raise ProtocolError(f"a sealed entry of {smallest} bytes is shorter than its header")
    if largest > SEALED_BYTES_MAX:
        raise EntryTooLargeError(f"a sealed entry of {largest} bytes is over the limit of {SEALED_BYTES_MAX}")
    data = b"".join(entries)
    if equal and (count == 1 or count >= _REGULAR_ENTRIES_MIN):
        regular = _verify_regular(ledger_id, sizes, data)
        if regular is not None:
            return regular
    return _verify_each(ledger_id, entries, sizes, data)


def _verify_each(ledger_id: LedgerId, entries: Sequence[bytes], sizes: list[int], data: bytes) -> SealedBatch:
    """The verdict on any batch whose sizes are within the limits, entry by entry."""
    if set(map(_crc32c, entries)) != {RESIDUE}:
        raise DigestMismatchError(f"ledger {ledger_id}: an entry arrived damaged; send it again")
    heads = b"".join(map(_batch_head, entries))
    halves, words = array("I", heads), array("Q", heads)
    if sys.byteorder == "little":
        halves.byteswap()
        words.byteswap()
    count = len(entries)
    kinds, payload_bytes = halves[0::10], halves[1::10]
    ledger_ids, entry_ids, lacs = words[1::5], words[2::5], words[3::5]
    overhead = _OVERHEAD_BYTES.get(kinds[0] >> 16 & 0xFF)
    if overhead is None or kinds[0] != FORMAT << 24 | (kinds[0] >> 16 & 0xFF) << 16 or kinds != kinds[:1] * count:
        raise ProtocolError(f"ledger {ledger_id}: entries of an unknown format, with flags, or of mixed digests")
    if ledger_ids != array("Q", (ledger_id,)) * count:
        raise ProtocolError(f"ledger {ledger_id}: entries of another ledger")
    if list(map(overhead.__add__, payload_bytes)) != sizes:
        raise ProtocolError(f"ledger {ledger_id}: an entry's payload length does not match its bytes")
    first, last = entry_ids[0], entry_ids[-1]
    ids: Sequence[int] = entry_ids
    if last - first == count - 1 and entry_ids == array("Q", range(first, last + 1)):
        ids = range(first, last + 1)
    elif any(map(int.__ge__, entry_ids, entry_ids[1:])):
        raise ProtocolError(f"ledger {ledger_id}: entry ids of a batch must increase")
    if last > ID_MAX:
        raise ProtocolError(f"ledger {ledger_id}: entry id {last} is over {ID_MAX}")
    lac_plus_one = max(lacs)
    # A writer acknowledges in order, so an entry's LAC is below its own id. Ids increase, so mostly the first
    # one shows it.
    if lac_plus_one > first and any(map(int.__gt__, lacs, entry_ids)):
        raise ProtocolError(f"ledger {ledger_id}: an entry whose last add confirmed is not below its own id")
    return SealedBatch(ids, lac_plus_one, sizes, data)


class LoneEntries(NamedTuple):
    """Facts about intact entries of different ledgers. A column for each fact."""

    entry_ids: Sequence[int]
    lacs_plus_one: Sequence[int]
    sizes: Sequence[int]

    def only(self, indexes: Sequence[int]) -> "LoneEntries":
        """Those of the entries at these indexes."""
        return LoneEntries._make([column[index] for index in indexes] for column in self)


def verify_lone_entries(ledger_ids: Sequence[int], entries: Sequence[bytes]) -> LoneEntries | None:
    """As :func:`verify_batch` for each of these entries by itself; ``ledger_ids``: of each. None if any of them would
    be refused: which one, and why, only that function says."""
    sizes = list(map(len, entries))
    if min(sizes) < SEALED_BYTES_MIN or max(sizes) > SEALED_BYTES_MAX or set(map(_crc32c, entries)) != {RESIDUE}:
        return None
    formats, digests, flags, payload_bytes, of_ledgers, entry_ids, lacs, _, _ = zip(
        *map(HEADER.unpack_from, entries), strict=True
    )
    if (
        set(formats) != {FORMAT}
        or any(flags)
        or not set(digests) <= _OVERHEAD_BYTES.keys()
        or of_ledgers != tuple(ledger_ids)
        or list(map(int.__add__, payload_bytes, map(_OVERHEAD_BYTES.__getitem__, digests))) != sizes
        or max(entry_ids) > ID_MAX
        or any(map(int.__gt__, lacs, entry_ids))
    ):
        return None
    return LoneEntries(entry_ids, lacs, sizes)


@lru_cache(maxsize=4096)
def _checksum_of_intact(size: int, count: int, prefix: bytes = b"") -> int:
    """The CRC32C of ``count`` intact entries of ``size`` bytes each, back to back, ``prefix`` in front of each; that of
    made-up ones serves."""
    made_up = bytes(size - CHECKSUM.size)
    return _crc32c((prefix + made_up + CHECKSUM.pack(_crc32c(made_up))) * count)


def all_intact_evenly(data: bytes, prefix: bytes, size: int, count: int) -> bool:
    """As :func:`all_intact` for ``count`` entries of ``size`` bytes, each with ``prefix`` in front of it."""
    return _crc32c(data) == _checksum_of_intact(size, count, prefix)


def all_intact(entries: Sequence[bytes], sizes: Sequence[int], data: bytes) -> bool:
    """Whether the checksum of each entry matches its bytes. ``sizes``: of each, at least a header and checksum;
    ``data``: all of them back to back, for one checksum tells where all have one size."""
    size, count = sizes[0], len(sizes)
    if sizes.count(size) == count:
        return _crc32c(data) == _checksum_of_intact(size, count)
    return set(map(_crc32c, entries)) == {RESIDUE}


def _verify_regular(ledger_id: LedgerId, sizes: list[int], data: bytes) -> SealedBatch | None:
    """The verdict on the most common batches by far: one entry, or many of one size with consecutive ids and one LAC.
    None when it is neither, or not beyond doubt; nothing passes here that :func:`verify_batch` would refuse.

    The CRC32C of intact entries back to back depends on their sizes only, so one checksum over ``data`` is compared
    with that of as many made-up entries. Equal sizes put each byte of the headers into a column with a fixed stride.
    """
    size, count = sizes[0], len(sizes)
    entry_format, digest_code, flags, payload_bytes, of_ledger, first, lac_plus_one, _, _ = HEADER.unpack_from(data)
    if (
        entry_format != FORMAT
        or flags
        or of_ledger != ledger_id
        or size - payload_bytes != _OVERHEAD_BYTES.get(digest_code)
        or first + count - 1 > ID_MAX
        or lac_plus_one > first
    ):
        return None
    batch = SealedBatch(range(first, first + count), lac_plus_one, sizes, data)
    if count == 1:
        return batch if _crc32c(data) == RESIDUE else None
    if _crc32c(data) != _checksum_of_intact(size, count):
        return None
    # In the widest words that every entry begins on: a pass over the batch costs about the same for any width.
    words = array(_WORD_CODES[size % 8], data)
    stride, per_field = size // words.itemsize, 8 // words.itemsize
    for column in (*range(2 * per_field), *range(3 * per_field, 4 * per_field)):
        if words[column::stride] != array(words.typecode, (words[column],)) * count:
            return None
    return batch if _ids_follow(data, size, first, count) else None


@cache
def _numbers() -> bytes:
    """The lowest 16 bits of every id, in order. They are made for the first batch that is verified: few clients do."""
    return struct.pack(">65536H", *range(65536))


def _ids_follow(data: bytes, size: int, first: int, count: int) -> bool:
    """Whether the ids of entries of ``size`` bytes are ``first`` and those after it. Not seen where the lowest 16 bits
    begin again: in one batch of a hundred."""
    for column in range(_ENTRY_ID_COLUMN, _ENTRY_ID_COLUMN + 6):
        if data[column::size].count(data[column]) != count:
            return False
    low, stop = 2 * (first & 0xFFFF), 2 * ((first & 0xFFFF) + count)
    at, numbers = _ENTRY_ID_COLUMN + 6, _numbers()
    return data[at::size] == numbers[low:stop:2] and data[at + 1 :: size] == numbers[low + 1 : stop : 2]


def verify_explicit_lac(ledger_id: LedgerId, sealed: bytes) -> EntryId:
    """The LAC in a sealed explicit LAC, checked as :func:`verify_batch` does. Raises as it does."""
    if not SEALED_BYTES_MIN <= len(sealed) <= OVERHEAD_BYTES_MAX:
        raise ProtocolError("a sealed explicit LAC has the wrong size")
    if _crc32c(sealed) != RESIDUE:
        raise DigestMismatchError(f"ledger {ledger_id}: an explicit LAC arrived damaged; send it again")
    header = Header._make(HEADER.unpack_from(sealed))
    if (
        header.format != FORMAT
        or header.ledger_id != ledger_id
        or header.flags != FLAG_EXPLICIT_LAC
        or header.payload_bytes != 0
        or _OVERHEAD_BYTES.get(header.digest_code) != len(sealed)
        or header.last_add_confirmed != header.entry_id
        or header.entry_id > ID_MAX
    ):
        raise ProtocolError(f"ledger {ledger_id}: not a sealed explicit LAC of this ledger")
    return header.entry_id


def is_intact(sealed: bytes) -> bool:
    """Whether the bytes are those that were sealed, as far as can be told without a password (scrubbing, rule
    W11)."""
    return len(sealed) >= SEALED_BYTES_MIN and _crc32c(sealed) == RESIDUE


def header_of(sealed: bytes) -> Header:
    """The header of a sealed entry, unverified. Raises :class:`ProtocolError` when it is too short to have one."""
    if len(sealed) < SEALED_BYTES_MIN:
        raise ProtocolError(f"{len(sealed)} bytes are too few for a sealed entry")
    return Header._make(HEADER.unpack_from(sealed))


def sealed_bytes(header: Header) -> int:
    """Size in bytes of the whole sealed entry that starts with ``header``: a run of entries can be walked with it.

    Raises :class:`ProtocolError` for a format or digest that does not exist.
    """
    overhead = _OVERHEAD_BYTES.get(header.digest_code)
    if header.format != FORMAT or overhead is None:
        raise ProtocolError(f"no entry begins here (format {header.format}, digest {header.digest_code})")
    return header.payload_bytes + overhead
