"""The state of a ledger in a bookie: its encoding, and a compact table of very many of them. Pure.

A state is one byte of flags (1 fenced, 2 has a key, 4 deleted, 8 in doubt, 16 dropped,
32 private, 64 trimmed, 128 known to be public), the term up to which it is fenced u32, highest held entry
id plus one u64, highest LAC known plus one u64, length of the key u8, key, length of the sealed explicit LAC u8, that
LAC; if entries were given up, the id below which they lay u64; if trimmed, the first id kept u64. No flag says that
entries were given up: what follows the LAC is eight bytes longer. The same bytes are in index parts; the journal's
records about ledgers are at the end of this module.

``highest`` and ``last_add_confirmed`` could be found by reading; they are kept so that an add or a fence of a ledger
not touched since the start is decided without a disk read. A crash or a trim may leave ``highest`` above the highest
entry held (adds are then decided the slow way), never below.
"""

import struct
from array import array
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, Protocol

from octavo.bookie.index.runs import Run, make_run
from octavo.protocol.entries import SEALED_BYTES_MIN, header_of, sealed_bytes
from octavo.protocol.limits import ENTRIES_PER_FRAME_MAX
from octavo.protocol.places import place

_FIRST_PLACE = place(1, 0)
"""Of any stream."""

_FIXED = struct.Struct(">BIQQ")
_FIRST_KEPT = struct.Struct(">Q")
_RELIEVED = struct.Struct(">Q")
_FENCED, _HAS_KEY, _DELETED, _IN_DOUBT, _DROPPED, _PRIVATE, _TRIMMED, _PUBLIC = 1, 2, 4, 8, 16, 32, 64, 128


class Follower(Protocol):
    """Follows a ledger: a subscription."""

    def moved(self) -> None:
        """An entry or a LAC has come, a term is over, or the ledger is deleted. May be called in the middle of a
        change: the state is looked at later."""


class LedgerState:
    """One ledger in memory. Mutable; its owner marks it dirty when it changes."""

    __slots__ = (
        "deleted",
        "dropped",
        "explicit_lac",
        "fenced",
        "fenced_term",
        "first_kept",
        "followers",
        "highest_plus_one",
        "in_doubt",
        "lac_plus_one",
        "ledger_id",
        "ledger_key",
        "private",
        "public",
        "relieved_below",
        "slow_adds",
        "waiters",
    )

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.ledger_key: bytes | None = None
        """None until the first add pins it (a fence pins none, rule F0)."""
        self.fenced = False
        self.fenced_term = 0
        """If the ledger is fenced: the terms up to this one are over (rule T7). 0 for a ledger with one writer."""
        self.deleted = False
        """A tombstone: a late add must not bring a deleted ledger back (rule B5)."""
        self.in_doubt = False
        """Entries of the ledger may have been removed here: it was deleted and then found alive (rule B5), or dropped
        and then written again (rule C8)."""
        self.dropped = False
        """The entries have been given up because other bookies are named in this one's place (rule C8). Key and fence
        are kept. The next add ends it; see :meth:`bring_back`."""
        self.private = False
        """Reads need the ledger key, or come from a repair (rule S3). Never taken back."""
        self.public = False
        """The metadata have said that the ledger is not private. Kept where this bookie may have lost that it is (rule
        S3); a version that does not know it asks the metadata again, or not at all."""
        self.first_kept = 0
        """What was held below this id has been trimmed, because the stream begins there or later (rule U5). Never
        falls; 0: nothing has been trimmed."""
        self.relieved_below = 0
        """What is not held below this id may have been given up here, because other bookies hold it: it is not denied
        (rule C11). Never falls; 0: nothing has been given up."""
        self.highest_plus_one = 0
        self.lac_plus_one = 0
        self.explicit_lac: bytes | None = None
        """The sealed explicit LAC with the highest LAC (rule W2)."""
        self.waiters: Any = None
        """Futures of requests that wait until the LAC rises. Not part of the state."""
        self.followers: dict[Follower, None] | None = None
        """They are told of each change. Not part of the state."""
        self.slow_adds: Any = None
        """Adds that wait for a look-up, in order. Not part of the state."""

    @property
    def is_waited_on(self) -> bool:
        """Whether something relies on this very object."""
        return bool(self.waiters) or self.slow_adds is not None or self.followers is not None

    def tell_followers(self) -> None:
        """Something of the ledger has changed."""
        for follower in self.followers or ():
            follower.moved()

    @property
    def last_add_confirmed(self) -> int | None:
        """The highest LAC known; None before any."""
        return self.lac_plus_one - 1 if self.lac_plus_one else None

    @property
    def highest(self) -> int | None:
        """No entry kept anywhere has a higher id; None when there is none. Entries that have been dropped count until
        they are removed."""
        return self.highest_plus_one - 1 if self.highest_plus_one else None

    @property
    def may_be_stream(self) -> bool:
        """Whether a term was fenced, or an id is as high as that of every place. A ledger with one writer may have such
        ids, too, if its writer chooses them."""
        return self.fenced_term > 0 or self.highest_plus_one > _FIRST_PLACE

    def fence(self, term: int) -> bool:
        """The terms up to this one are over. A fence that comes late takes nothing back (rule T7). Whether it changed
        anything."""
        if self.fenced and term <= self.fenced_term:
            return False
        self.fenced, self.fenced_term = True, term
        return True

    def trim(self, first_kept: int) -> bool:
        """Entries below this id are no longer kept (rule U5). A trim that comes late takes nothing back. Whether it
        changed anything.

        An add below the trim must be met by the slow path, which knows that it has nothing to store: so no id below
        counts as one above the highest."""
        if first_kept <= self.first_kept:
            return False
        self.first_kept = first_kept
        self.highest_plus_one = max(self.highest_plus_one, first_kept)
        return True

    def relieve(self, below: int) -> bool:
        """Entries below this id may be given up (rule C11). A mark that comes late takes nothing back. Whether it
        changed anything."""
        if below <= self.relieved_below:
            return False
        self.relieved_below = below
        return True

    def mark_deleted(self) -> None:
        """Make it the tombstone of a deleted ledger. Key, fence and highest id are kept: the deletion may have been a
        mistake of the metadata, and a fence that is forgotten lets a writer acknowledge entries that no reader sees."""
        self.deleted = True
        self.explicit_lac = None

    def revive(self) -> None:
        """The ledger was found alive: reverse the tombstone. What was held may have been removed meanwhile."""
        self.deleted = False
        self.in_doubt = True

    def bring_back(self) -> None:
        """End that the ledger is dropped, because entries of it are held again. Those that were removed are still
        missing: metadata that are restored from an older state may name this bookie, and a recovering client ask it."""
        if self.dropped:
            self.dropped = False
            self.in_doubt = True

    def absorb(self, other: "LedgerState") -> None:
        """Take over what another stored state of the same ledger says, where it is not known which of the two is newer:
        fence, key, doubt, privacy, trim and relief of either count, and the entries are gone only if both say so."""
        if other.fenced:
            self.fence(other.fenced_term)
        self.trim(other.first_kept)
        self.relieve(other.relieved_below)
        self.private |= other.private
        self.public |= other.public
        self.in_doubt |= other.in_doubt
        self.deleted &= other.deleted
        self.dropped &= other.dropped
        self.ledger_key = self.ledger_key if self.ledger_key is not None else other.ledger_key
        self.highest_plus_one = max(self.highest_plus_one, other.highest_plus_one)
        self.lac_plus_one = max(self.lac_plus_one, other.lac_plus_one)
        ours, theirs = self.explicit_lac, other.explicit_lac
        if theirs is not None and (ours is None or header_of(theirs).entry_id > header_of(ours).entry_id):
            self.explicit_lac = theirs

    def encode(self) -> bytes:
        flags = (
            (_FENCED if self.fenced else 0)
            | (_HAS_KEY if self.ledger_key is not None else 0)
            | (_DELETED if self.deleted else 0)
            | (_IN_DOUBT if self.in_doubt else 0)
            | (_DROPPED if self.dropped else 0)
            | (_PRIVATE if self.private else 0)
            | (_TRIMMED if self.first_kept else 0)
            | (_PUBLIC if self.public else 0)
        )
        key, explicit = self.ledger_key or b"", self.explicit_lac or b""
        return b"%b%c%b%c%b%b%b" % (
            _FIXED.pack(flags, self.fenced_term, self.highest_plus_one, self.lac_plus_one),
            len(key),
            key,
            len(explicit),
            explicit,
            _RELIEVED.pack(self.relieved_below) if self.relieved_below else b"",
            _FIRST_KEPT.pack(self.first_kept) if self.first_kept else b"",
        )

    @classmethod
    def decode(cls, ledger_id: int, data: bytes) -> "LedgerState":
        """The inverse of :meth:`encode`, for bytes that have been verified."""
        state = cls(ledger_id)
        flags, state.fenced_term, state.highest_plus_one, state.lac_plus_one = _FIXED.unpack_from(data)
        at = _FIXED.size + 1
        key = data[at : at + data[at - 1]]
        at += len(key) + 1
        explicit = data[at : at + data[at - 1]]
        state.fenced, state.deleted = bool(flags & _FENCED), bool(flags & _DELETED)
        state.in_doubt, state.dropped = bool(flags & _IN_DOUBT), bool(flags & _DROPPED)
        state.private, state.public = bool(flags & _PRIVATE), bool(flags & _PUBLIC)
        state.ledger_key = key if flags & _HAS_KEY else None
        state.explicit_lac = explicit or None
        state.first_kept = first_kept_in(data)
        state.relieved_below = _relieved_at(data, at + len(explicit))
        return state


def is_tombstone(encoded: bytes) -> bool:
    """Whether an encoded state is that of a deleted ledger."""
    return bool(encoded[0] & _DELETED)


def is_without_entries(encoded: bytes) -> bool:
    """Whether an encoded state is that of a ledger whose entries are garbage: deleted, or dropped."""
    return bool(encoded[0] & (_DELETED | _DROPPED))


def first_kept_in(encoded: bytes) -> int:
    """The first id that an encoded state keeps; 0 if nothing has been trimmed."""
    if not encoded[0] & _TRIMMED:
        return 0
    first_kept: int = _FIRST_KEPT.unpack_from(encoded, len(encoded) - _FIRST_KEPT.size)[0]
    return first_kept


def relieved_below_in(encoded: bytes) -> int:
    """The id below which an encoded state says that entries may have been given up; 0 if none were."""
    at = _FIXED.size + 1 + encoded[_FIXED.size]
    return _relieved_at(encoded, at + 1 + encoded[at])


def _relieved_at(encoded: bytes, at: int) -> int:
    """The same, of a state whose explicit LAC ends there."""
    rest = len(encoded) - at - (_FIRST_KEPT.size if encoded[0] & _TRIMMED else 0)
    if rest < _RELIEVED.size:
        return 0
    below: int = _RELIEVED.unpack_from(encoded, at)[0]
    return below


def may_be_stream(encoded: bytes) -> bool:
    """As :attr:`LedgerState.may_be_stream`, of an encoded state."""
    _, fenced_term, highest_plus_one, _ = _FIXED.unpack_from(encoded)
    return bool(fenced_term > 0 or highest_plus_one > _FIRST_PLACE)


class PackedStates:
    """Encoded states by ledger id, some 70 bytes each where ids are dense: 64 neighbours share one bytes object."""

    _SHIFT = 6
    _RECORD = struct.Struct(">BH")

    def __init__(self) -> None:
        self._chunks: dict[int, bytes] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        """Ledger ids, ascending."""
        for chunk_id in sorted(self._chunks):
            for low, _ in self._records(self._chunks[chunk_id]):
                yield chunk_id << self._SHIFT | low

    def _records(self, chunk: bytes) -> Iterator[tuple[int, bytes]]:
        at = 0
        while at < len(chunk):
            low, length = self._RECORD.unpack_from(chunk, at)
            at += self._RECORD.size
            yield low, chunk[at : at + length]
            at += length

    def get(self, ledger_id: int) -> bytes | None:
        """The encoded state of a ledger; None for an unknown ledger."""
        chunk = self._chunks.get(ledger_id >> self._SHIFT)
        if chunk is None:
            return None
        wanted = ledger_id & (1 << self._SHIFT) - 1
        return next((state for low, state in self._records(chunk) if low == wanted), None)

    def put(self, ledger_id: int, state: bytes) -> None:
        chunk_id, wanted = ledger_id >> self._SHIFT, ledger_id & (1 << self._SHIFT) - 1
        records = dict(self._records(self._chunks.get(chunk_id, b"")))
        self._count += wanted not in records
        records[wanted] = state
        self._chunks[chunk_id] = b"".join(
            self._RECORD.pack(low, len(records[low])) + records[low] for low in sorted(records)
        )


# --- journal bodies -------------------------------------------------------------------------------------------------
#
# ADD           ledger id u64, first id u64, count u32, size u32 of each entry (0: they differ, or ids have gaps),
# entries
# LEDGER_KEY    ledger id u64, key (without a key the record is a barrier, see BARRIER)
# FENCE         ledger id u64 (of term 0)
# TERM_FENCE    ledger id u64, term u32 (above 0)
# TRIM          ledger id u64, first id kept u64 (above 0)
# RELIEF        ledger id u64, id u64 below which entries may be given up (above 0)
# EXPLICIT_LAC  ledger id u64, sealed explicit LAC
# TOMBSTONE     ledger id u64
# REVIVAL       ledger id u64 (reverses a TOMBSTONE, and puts the ledger in doubt)
# DROP          ledger id u64 (an ADD after it reverses it)
# PRIVATE       ledger id u64

_ADD_HEAD = struct.Struct(">QQII")
_LEDGER = struct.Struct(">Q")
_TERM = struct.Struct(">I")


def encode_add_head(ledger_id: int, run: Run) -> bytes:
    """The head before the run's entries in an ADD body. Regular runs are replayed without being walked."""
    sizes, ids = run.sizes, run.ids
    size = sizes if type(sizes) is int and type(ids) is range and ids.step == 1 else 0
    return _ADD_HEAD.pack(ledger_id, run.first, len(ids), size)


def encode_lone_add_heads(ledger_ids: Iterable[int], entry_ids: Iterable[int], sizes: Iterable[int]) -> list[bytes]:
    """As :func:`encode_add_head` for runs of one entry each."""
    return list(map(_ADD_HEAD.pack, ledger_ids, entry_ids, repeat(1), sizes))


def decode_add(body: bytes) -> tuple[int, Run, int]:
    """Ledger id, run (its place is ``body``) and highest LAC plus one of an ADD body that the journal has verified.

    Raises :class:`ValueError` or :class:`ProtocolError` for a body that no version of ours has written.
    """
    ledger_id, first, count, size = _ADD_HEAD.unpack_from(body)
    start = _ADD_HEAD.size
    if not 0 < count <= ENTRIES_PER_FRAME_MAX:
        raise ValueError(f"an ADD record of {count} entries")
    if size:
        if len(body) != start + count * size:
            raise ValueError("an ADD record's length does not match its entries")
        run = make_run(range(first, first + count), (size,) * count, body, start)
        last = header_of(body[len(body) - size :])
        return ledger_id, run, last.last_add_confirmed_plus_one
    ids, sizes, lac_plus_one, at = array("Q"), array("I"), 0, start
    while at < len(body):
        header = header_of(body[at : at + SEALED_BYTES_MIN])
        length = sealed_bytes(header)
        if header.ledger_id != ledger_id or (ids and header.entry_id <= ids[-1]):
            raise ValueError(f"entry {header.entry_id} of ledger {header.ledger_id} is out of its place")
        ids.append(header.entry_id)
        sizes.append(length)
        lac_plus_one = max(lac_plus_one, header.last_add_confirmed_plus_one)
        at += length
    if at != len(body) or len(ids) != count or ids[0] != first:
        raise ValueError("an ADD record's entries do not fill it")
    return ledger_id, make_run(ids, sizes, body, start), lac_plus_one


def encode_ledger_record(ledger_id: int, rest: bytes = b"") -> bytes:
    """The body of every other record: the ledger id and what the kind says."""
    return _LEDGER.pack(ledger_id) + rest


BARRIER = encode_ledger_record(0)
"""The body of a LEDGER_KEY record that says nothing. It is appended to learn when everything before it is durable."""


def encode_term_fence(ledger_id: int, term: int) -> bytes:
    """The body of a TERM_FENCE record."""
    return encode_ledger_record(ledger_id, _TERM.pack(term))


def decode_fenced_term(rest: bytes) -> int:
    """The term of a TERM_FENCE record, from what follows the ledger id. Raises :class:`ValueError` for a body that no
    version of ours has written."""
    if len(rest) != _TERM.size:
        raise ValueError(f"a TERM_FENCE record with a term of {len(rest)} bytes")
    term: int = _TERM.unpack(rest)[0]
    return term


def encode_trim(ledger_id: int, first_kept: int) -> bytes:
    """The body of a TRIM record."""
    return encode_ledger_record(ledger_id, _FIRST_KEPT.pack(first_kept))


def decode_first_kept(rest: bytes) -> int:
    """The first id kept of a TRIM record, from what follows the ledger id. Raises :class:`ValueError` for a body that
    no version of ours has written."""
    if len(rest) != _FIRST_KEPT.size:
        raise ValueError(f"a TRIM record with an id of {len(rest)} bytes")
    first_kept: int = _FIRST_KEPT.unpack(rest)[0]
    if not first_kept:
        raise ValueError("a TRIM record that keeps everything")
    return first_kept


def encode_relief(ledger_id: int, below: int) -> bytes:
    """The body of a RELIEF record."""
    return encode_ledger_record(ledger_id, _RELIEVED.pack(below))


def decode_relieved_below(rest: bytes) -> int:
    """The id of a RELIEF record, from what follows the ledger id. Raises :class:`ValueError` for a body that no version
    of ours has written."""
    if len(rest) != _RELIEVED.size:
        raise ValueError(f"a RELIEF record with an id of {len(rest)} bytes")
    below: int = _RELIEVED.unpack(rest)[0]
    if not below:
        raise ValueError("a RELIEF record that gives up nothing")
    return below


def decode_ledger_record(body: bytes) -> tuple[int, bytes]:
    return _LEDGER.unpack_from(body)[0], body[_LEDGER.size :]
