"""The metadata of one ledger, and how they may change. Pure.

A ledger is OPEN while its one writer adds to it, IN_RECOVERY once a client has started to recover it, and then CLOSED
for good:

===========  =================  =====================================  ==============================
from         ``in_recovery()``  ``with_ensemble_change()``             ``closed()``
===========  =================  =====================================  ==============================
OPEN         IN_RECOVERY        OPEN (the writer, rule W3)         CLOSED (the writer, W9)
IN_RECOVERY  unchanged (F1)     IN_RECOVERY (by recovery, F5)          CLOSED (by recovery, F6)
CLOSED       LedgerClosedError  LedgerClosedError                      LedgerClosedError
===========  =================  =====================================  ==============================

``with_member()`` and ``with_debt()`` are the transitions of a closed ledger: repair replaces a bookie in a fragment
whose range is settled, or notes what is owed of it, in any state (rules C2 and G6). The end never changes.

What a ledger has in common with a stream is :class:`octavo.metadata.ledger.stored.StoredLedger`.

Values are immutable; a transition returns a new one. :mod:`octavo.metadata.ledger.changes` decides which client may
make which transition after another client has changed the metadata in between. Every instance satisfies rule I6: the
constructor refuses anything else, so that damage and defects are caught wherever a value is made.
"""

import enum
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import field, replace
from datetime import datetime
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Never, Self

from octavo.metadata.encoding import (
    NO_FIELDS,
    FieldReader,
    decode_object,
    encode_bytes,
    encode_instant,
    encode_object,
    encode_text,
    with_checksum,
)
from octavo.metadata.ledger.checks import notes_problem, quorum_problem
from octavo.metadata.ledger.debts import Debt, FullCopies, debt_from, debt_in_range, stored_debt
from octavo.metadata.ledger.formats import LEDGER_FORMAT
from octavo.metadata.ledger.stored import SettledRange, StoredKind
from octavo.metadata.ledger.term import StoredFragment, Term, TermKey, TermState
from octavo.protocol.entries import Digest
from octavo.protocol.errors import InvalidArgumentError, LedgerClosedError
from octavo.protocol.ids import ID_MAX, TERM_MAX, BookieId, EntryId, LedgerId, is_bookie_id
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.quorums import Quorums, quorums_of

LOG_KEY = "octavo.log"
"""Key of the custom metadata in which a ledger or stream of a log has the log's name."""


class LedgerState(enum.Enum):
    """The state of a ledger. Only a CLOSED ledger has an end that is the same for all clients (rule I2).

    Examples:
        >>> reader.metadata.state
        <LedgerState.CLOSED: 'closed'>
    """

    OPEN = "open"
    IN_RECOVERY = "in-recovery"
    CLOSED = "closed"


_TERM_STATES = {
    LedgerState.OPEN: TermState.OPEN,
    LedgerState.IN_RECOVERY: TermState.IN_RECOVERY,
    LedgerState.CLOSED: TermState.ENDED,
}


class SyncMode(enum.Enum):
    """When the entries of a ledger are durable (rule W10)."""

    IMMEDIATE = "immediate"
    """When their add returns."""
    DEFERRED = "deferred"
    """When the writer has forced them."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A run of entries that share one ensemble. It ends before the next fragment's first entry, or at the ledger's end.

    ``length_before`` is the total of the payload bytes before ``first_entry_id``. With it, the length of a ledger whose
    last fragment is empty is known without asking a bookie (rule F6).

    Examples:
        >>> [(fragment.first_entry_id, len(fragment.bookies)) for fragment in reader.metadata.fragments]
        [(0, 3)]
    """

    first_entry_id: EntryId
    bookies: tuple[BookieId, ...]
    length_before: int = 0
    unknown_fields: Mapping[str, Any] = field(default_factory=lambda: NO_FIELDS, compare=False, repr=False)
    """Stored fields that this version does not know, as decoded JSON: kept as long as the fragment is kept."""
    debt: Debt | None = None
    """Which of its entries may have fewer than Qw copies; None where that is not recorded
    (:mod:`octavo.metadata.ledger.debts`)."""

    def holds_as(self, other: "Fragment") -> bool:
        """Whether both begin alike on the same bookies, whatever they owe: what a writer and a recovery compare."""
        return (self.first_entry_id, self.bookies, self.length_before) == (
            other.first_entry_id, other.bookies, other.length_before,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata:
    """One version of a ledger's metadata.

    Examples:
        >>> metadata = await client.ledger_metadata(reader.id)
        >>> metadata.write_quorum, metadata.last_entry_id, metadata.length
        (3, 2, 16)

    Raises:
        InvalidArgumentError: No ledger can have these values.
    """

    ledger_id: LedgerId
    state: LedgerState = LedgerState.OPEN
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    fragments: tuple[Fragment, ...]
    """In order of their first ids; at least one; the first starts at entry 0."""
    last_entry_id: EntryId | None = None
    """None until the ledger is closed, and for a ledger that was closed empty; the state tells which."""
    length: int = 0
    """Payload bytes of the whole ledger; 0 until closed."""
    digest: Digest
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict, hash=False)
    created_at: datetime
    """Aware. Informational only: no decision depends on it."""
    verifier: bytes
    """:func:`octavo.protocol.entries.make_verifier` of password and digest with :attr:`salt` (rule F0)."""
    salt: bytes
    private: bool = False
    """Bookies give its entries only to clients that have its key, and to repairs (rule S3). Never changes."""
    sync: SyncMode = SyncMode.IMMEDIATE
    """When its entries are durable. Never changes. Only its writer needs to know: readers and recoveries treat both
    alike."""
    full_copies: FullCopies | None = None
    """What is promised about all Qw copies of its entries (rule I9); None: nothing, and no debts are recorded. Never
    changes."""
    term: int = 0
    """0: it has one writer. Terms of streams are from 1 on."""
    writer_token: str = ""
    """Token of the handle that made the latest change, including creation (rule M1). By it a handle recognises its own
    write when the answer was lost."""
    fenced_at: datetime | None = None
    """Aware. When a client began to recover the ledger, by that client's clock. Informational only."""
    fenced_by: str = ""
    """The name of that client. Informational only."""
    format_version: int = LEDGER_FORMAT
    unknown_fields: Mapping[str, Any] = field(default_factory=lambda: NO_FIELDS, hash=False, repr=False)
    """Stored fields that this version does not know, as decoded JSON. Every change keeps them, so that a newer client's
    fields survive a change by this one."""

    def __post_init__(self) -> None:
        # A private copy behind a read-only view: the caller may change its dict, but this value must not change.
        object.__setattr__(self, "custom_metadata", MappingProxyType(dict(self.custom_metadata)))
        if self.unknown_fields is not NO_FIELDS:
            object.__setattr__(self, "unknown_fields", MappingProxyType(dict(self.unknown_fields)))
        self.check_invariants()

    def __reduce__(self) -> tuple[Any, ...]:
        return decode_ledger, (self.ledger_id, encode_ledger(self))

    def check_invariants(self) -> None:
        """Check that this can be a ledger: rule I6, and the rules of the end.

        Raises:
            InvalidArgumentError: It cannot; the message names the ledger.
        """
        self._check_scalars()
        self._check_fragments()
        self._check_end()

    # --- lookups -------------------------------------------------------------------------------------------------

    @property
    def last_fragment(self) -> Fragment:
        """The fragment that the writer adds to, and whose bookies recovery asks."""
        return self.fragments[-1]

    @property
    def members(self) -> frozenset[BookieId]:
        """Every bookie that a fragment names."""
        return frozenset(name for fragment in self.fragments for name in fragment.bookies)

    @property
    def is_closed(self) -> bool:
        """Whether the end is settled."""
        return self.state is LedgerState.CLOSED

    @property
    def has_end(self) -> bool:
        """Whether the last fragment has an end: that of a ledger has one only when the ledger is closed."""
        return self.is_closed

    @property
    def quorums(self) -> Quorums:
        """E, Qw and Qa."""
        return quorums_of(self.ensemble_size, self.write_quorum, self.ack_quorum)

    def fragment_of(self, entry_id: EntryId) -> Fragment:
        """The fragment whose ensemble holds ``entry_id``, written or not.

        Raises:
            InvalidArgumentError: The id is below 0.
        """
        if entry_id < 0:
            raise InvalidArgumentError(f"ledger {self.ledger_id}: entry id {entry_id} is negative")
        return self.fragments[bisect_right(self.fragments, entry_id, key=_first_entry_id) - 1]

    def last_id_of(self, fragment: StoredFragment) -> EntryId | None:
        """The last id that belongs to ``fragment`` (inclusive); None while the end of the ledger is not known.

        An empty last fragment of a closed ledger ends at its first id - 1.
        """
        index = bisect_right(self.fragments, fragment.first_entry_id, key=_first_entry_id)
        if index < len(self.fragments):
            return EntryId(self.fragments[index].first_entry_id - 1)
        if not self.is_closed:
            return None
        return EntryId(_end_of(self.last_entry_id))

    def settled_ranges(self) -> tuple[SettledRange, ...]:
        """Its settled ranges, in order (rule C2)."""
        ranges = [
            SettledRange(one.first_entry_id, following.first_entry_id - 1, one.bookies, following.length_before)
            for one, following in pairwise(self.fragments)
        ]
        if self.is_closed:
            last = self.last_fragment
            ranges.append(SettledRange(last.first_entry_id, _end_of(self.last_entry_id), last.bookies, self.length))
        return tuple(ranges)

    def debt_of(self, fragment: StoredFragment) -> Debt:
        """The debt of a fragment (rule I9): nothing while it is not settled."""
        last = self.last_id_of(fragment)
        return debt_in_range(self.full_copies, fragment.debt, fragment.first_entry_id, last)

    @property
    def debts(self) -> tuple[tuple[Fragment, Debt], ...]:
        """The fragments of which something is owed, with what it is."""
        if self.full_copies is None:
            return ()
        owed = ((fragment, self.debt_of(fragment)) for fragment in self.fragments)
        return tuple((fragment, debt) for fragment, debt in owed if not debt.is_empty)

    # --- what every ledger answers alike, and streams do not ------------------------------------------------------

    @property
    def kind(self) -> StoredKind:
        """A ledger."""
        return StoredKind.LEDGER

    @property
    def current_term(self) -> Term:
        """Its only one: all of it, as its writer, a recovery and a reader know it."""
        return Term(
            ledger_id=self.ledger_id,
            number=self.term,
            state=_TERM_STATES[self.state],
            quorums=self.quorums,
            fragments=self.fragments,
            last_entry_id=self.last_entry_id,
            length=self.length,
            key=TermKey(self.digest, self.verifier, self.salt),
            private=self.private,
            full_copies=self.full_copies,
        )

    @property
    def next_term(self) -> None:
        """None: there is no other writer to come."""

    @property
    def start_place(self) -> EntryId:
        """Entry 0: nothing of it is truncated."""
        return EntryId(0)

    @property
    def written_part(self) -> object:
        """All of it: few clients change a ledger."""
        return self

    @property
    def pages(self) -> tuple[Never, ...]:
        """It has none: all of its fragments are here."""
        return ()

    @property
    def tail(self) -> Self:
        """All of it."""
        return self

    @property
    def spare_copies(self) -> int:
        """Copies of an entry that may be lost without losing it."""
        return self.ack_quorum - 1

    @property
    def keys(self) -> tuple[Self]:
        """Its one key."""
        return (self,)

    def counts_lac(self, _lac: int) -> bool:
        """Every LAC is one of its only writer."""
        return True

    def quorums_at(self, _entry_id: int) -> Quorums:
        """Those of the ledger."""
        return self.quorums

    def key_at(self, _entry_id: int) -> Self:
        """That of the ledger."""
        return self

    # --- transitions ---------------------------------------------------------------------------------------------

    def closed(self, last_entry_id: EntryId | None, length: int) -> Self:
        """The same ledger closed with this end.

        The end is the last entry (None for an empty ledger) and the payload bytes up to it.

        Raises:
            LedgerClosedError: It is already closed.
            InvalidArgumentError: The end is below the last fragment.
        """
        self._check_not_closed()
        return replace(self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)

    def in_recovery(self, fenced_at: datetime | None = None, fenced_by: str = "") -> Self:
        """The same ledger marked as being recovered, by this client; itself when it already is (rule F1).

        Raises:
            LedgerClosedError: It is closed.
        """
        self._check_not_closed()
        if self.state is LedgerState.IN_RECOVERY:
            return self
        return replace(self, state=LedgerState.IN_RECOVERY, fenced_at=fenced_at, fenced_by=fenced_by)

    def with_ensemble_change(self, first_entry_id: EntryId, ensemble: tuple[BookieId, ...], length_before: int) -> Self:
        """The same ledger with a new last fragment.

        It replaces the current one when both start at the same id (rule W3).

        Raises:
            LedgerClosedError: The ledger is closed.
            InvalidArgumentError: The fragment would start before the current last one, or its ensemble is not E
                distinct bookies.
        """
        self._check_not_closed()
        kept = self.fragments
        if kept[-1].first_entry_id == first_entry_id:
            kept = kept[:-1]
        return replace(self, fragments=(*kept, Fragment(first_entry_id, tuple(ensemble), length_before)))

    def with_member(self, first_entry_id: EntryId, position: int, bookie_id: BookieId) -> Self:
        """The same ledger with another bookie in one slot of a fragment: a repair of that fragment (rule C2).

        ``first_entry_id`` is where the fragment begins. The last fragment of a ledger that is not closed belongs to its
        writer or its recovery, and is refused.

        Raises:
            InvalidArgumentError: The fragment is refused, it or the slot does not exist, or the ensemble would not be E
                distinct bookies.
        """
        at = bisect_right(self.fragments, first_entry_id, key=_first_entry_id) - 1
        fragment = self.fragments[at]
        if fragment.first_entry_id != first_entry_id or not 0 <= position < len(fragment.bookies):
            raise self._wrong(f"there is no slot {position} in a fragment from entry {first_entry_id}")
        if fragment is self.last_fragment and not self.is_closed:
            raise self._wrong("the members of its last fragment cannot be replaced before it is closed")
        members = (*fragment.bookies[:position], bookie_id, *fragment.bookies[position + 1 :])
        repaired = replace(fragment, bookies=members)
        return replace(self, fragments=(*self.fragments[:at], repaired, *self.fragments[at + 1 :]))

    def with_debt(self, first_entry_id: EntryId, debt: Debt | None) -> Self:
        """The same ledger with this debt recorded in the fragment that begins at ``first_entry_id``.

        Itself if there is no such fragment, or no debts are recorded in this ledger.
        """
        at = bisect_right(self.fragments, first_entry_id, key=_first_entry_id) - 1
        if self.full_copies is None or debt is None or self.fragments[at].first_entry_id != first_entry_id:
            return self
        owing = replace(self.fragments[at], debt=debt)
        return replace(self, fragments=(*self.fragments[:at], owing, *self.fragments[at + 1 :]))

    def restored(self, _terms_skipped: int) -> Self:
        """The same ledger, read from a dump: there are no terms to leave out."""
        return self

    def written_by(self, writer_token: str) -> Self:
        """The same metadata with the token of the handle that is about to write them."""
        return replace(self, writer_token=writer_token)

    # --- checks --------------------------------------------------------------------------------------------------

    def _check_not_closed(self) -> None:
        if self.is_closed:
            raise LedgerClosedError(f"ledger {self.ledger_id} is closed; only a repair still changes its metadata")

    def _check_scalars(self) -> None:
        if not 0 <= self.ledger_id <= ID_MAX:
            raise self._wrong(f"a ledger id must be between 0 and {ID_MAX}")
        problem = quorum_problem(self.ensemble_size, self.write_quorum, self.ack_quorum)
        if problem is not None:
            raise self._wrong(problem)
        if not 0 <= self.term <= TERM_MAX:
            raise self._wrong(f"a term must be between 0 and {TERM_MAX}")
        if self.format_version != LEDGER_FORMAT:
            raise self._wrong(f"format {self.format_version} is not {LEDGER_FORMAT}")
        problem = notes_problem(self)
        if problem is not None:
            raise self._wrong(problem)

    def _check_fragments(self) -> None:
        if not self.fragments or self.fragments[0].first_entry_id != 0 or self.fragments[0].length_before != 0:
            raise self._wrong("the first fragment must start at entry 0")
        previous: Fragment | None = None
        for fragment in self.fragments:
            first = fragment.first_entry_id
            if not 0 <= first <= ID_MAX:
                raise self._wrong(f"a fragment cannot start at entry {first}")
            if not len(fragment.bookies) == len(set(fragment.bookies)) == self.ensemble_size:
                raise self._wrong(
                    f"the ensemble from entry {first} must be {self.ensemble_size} distinct bookies, "
                    f"not {list(fragment.bookies)}"
                )
            for bookie_id in fragment.bookies:
                if not is_bookie_id(bookie_id):
                    raise self._wrong(f"{bookie_id!r} is not a bookie id")
            if previous is not None and not (
                first > previous.first_entry_id and fragment.length_before >= previous.length_before
            ):
                raise self._wrong(
                    f"the fragment from entry {first} must come after the one from entry {previous.first_entry_id}"
                )
            previous = fragment

    def _check_end(self) -> None:
        if not self.is_closed:
            if self.last_entry_id is not None or self.length != 0:
                raise self._wrong("only a closed ledger has an end and a length")
            return
        end = _end_of(self.last_entry_id)
        last = self.last_fragment
        if self.last_entry_id is not None and not 0 <= end <= ID_MAX:
            raise self._wrong(f"entry {end} cannot be the last")
        if end < last.first_entry_id - 1:
            raise self._wrong(
                f"its end, entry {end}, is before its last fragment, which starts at entry {last.first_entry_id}"
            )
        if self.length < last.length_before or (end < last.first_entry_id and self.length != last.length_before):
            raise self._wrong(
                f"its length {self.length} contradicts the length {last.length_before} before its last fragment"
            )

    def _wrong(self, reason: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"ledger {self.ledger_id}: {reason}")


def encode_ledger(metadata: LedgerMetadata) -> bytes:
    """The stored form (:mod:`octavo.metadata.encoding`). The same metadata give the same bytes.

    Written out by hand, in the order of the names, because encoding is half of a client's work in creating a ledger.
    """
    if metadata.unknown_fields or any(fragment.unknown_fields for fragment in metadata.fragments):
        return _encode_with_unknown_fields(metadata)
    last_entry_id = metadata.last_entry_id
    fenced = ""
    if metadata.fenced_at is not None:
        by = encode_text(metadata.fenced_by)
        fenced = f'"fenced_at":"{encode_instant(metadata.fenced_at)}","fenced_by":{by},'
    private = '"private":true,' if metadata.private else ""
    sync = f'"sync":{encode_text(metadata.sync.value)},' if metadata.sync is not SyncMode.IMMEDIATE else ""
    full_copies = f'"full_copies":{encode_text(metadata.full_copies.value)},' if metadata.full_copies else ""
    custom = ",".join(
        [f'{encode_text(key)}:"{encode_bytes(value)}"' for key, value in sorted(metadata.custom_metadata.items())]
    )
    return with_checksum(
        f'"ack_quorum":{metadata.ack_quorum}',
        f'"created_at":"{encode_instant(metadata.created_at)}",'
        f'"custom_metadata":{{{custom}}},'
        f'"digest":{encode_text(metadata.digest.value)},'
        f'"ensemble_size":{metadata.ensemble_size},{fenced}'
        f'"format":{metadata.format_version},'
        f'"fragments":[{",".join(map(_encode_fragment, metadata.fragments))}],{full_copies}'
        f'"last_entry_id":{"null" if last_entry_id is None else last_entry_id},'
        f'"ledger_id":{metadata.ledger_id},'
        f'"length":{metadata.length},{private}'
        f'"salt":"{encode_bytes(metadata.salt)}",'
        f'"state":{encode_text(metadata.state.value)},{sync}'
        f'"term":{metadata.term},'
        f'"verifier":"{encode_bytes(metadata.verifier)}",'
        f'"write_quorum":{metadata.write_quorum},'
        f'"writer_token":{encode_text(metadata.writer_token)}',
    )


def _encode_with_unknown_fields(metadata: LedgerMetadata) -> bytes:
    plain = replace(
        metadata,
        unknown_fields=NO_FIELDS,
        fragments=tuple(replace(fragment, unknown_fields=NO_FIELDS) for fragment in metadata.fragments),
    )
    known = decode_object(encode_ledger(plain), what=f"ledger {metadata.ledger_id}", format_max=LEDGER_FORMAT)
    for fields, fragment in zip(known["fragments"], metadata.fragments, strict=True):
        fields.update({**fragment.unknown_fields, **fields})
    return encode_object({**metadata.unknown_fields, **known}, format_number=metadata.format_version)


def _encode_fragment(fragment: Fragment) -> str:
    debt = "" if fragment.debt is None else f'"debt":[{",".join(map(str, stored_debt(fragment.debt)))}],'
    return (
        f'{{"bookies":[{",".join(map(encode_text, fragment.bookies))}],{debt}'
        f'"first_entry_id":{fragment.first_entry_id},"length_before":{fragment.length_before}}}'
    )


def decode_ledger(ledger_id: LedgerId, value: bytes) -> LedgerMetadata:
    """The metadata in ``value``, which is stored under ``ledger_id``.

    Raises :class:`MetadataError`, naming the ledger, when it is damaged, of another ledger, or of a newer format.
    """
    return ledger_from(ledger_id, decode_object(value, what=f"ledger {ledger_id}", format_max=LEDGER_FORMAT))


def ledger_from(ledger_id: LedgerId, fields: Mapping[str, Any]) -> LedgerMetadata:
    """The metadata in decoded fields of :data:`LEDGER_FORMAT`. Raises as :func:`decode_ledger`."""
    what = f"ledger {ledger_id}"
    reader = FieldReader(fields, what)
    if reader.get("ledger_id", int) != ledger_id:
        raise reader.damaged(f"they are those of ledger {reader.get('ledger_id', int)}")
    custom = reader.get("custom_metadata", dict)
    last_entry_id = reader.optional("last_entry_id", int)
    try:
        return LedgerMetadata(
            ledger_id=ledger_id,
            state=LedgerState(reader.get("state", str)),
            ensemble_size=reader.get("ensemble_size", int),
            write_quorum=reader.get("write_quorum", int),
            ack_quorum=reader.get("ack_quorum", int),
            fragments=tuple(_decode_fragment(entry, what) for entry in reader.get("fragments", list)),
            last_entry_id=None if last_entry_id is None else EntryId(last_entry_id),
            length=reader.get("length", int),
            digest=Digest(reader.get("digest", str)),
            custom_metadata={key: reader.decode_bytes(text, "custom_metadata") for key, text in custom.items()},
            created_at=reader.instant("created_at"),
            verifier=reader.bytes_of("verifier"),
            salt=reader.bytes_of("salt"),
            private=reader.added_later("private", bool, False),
            sync=SyncMode(reader.added_later("sync", str, SyncMode.IMMEDIATE.value)),
            full_copies=FullCopies(reader.get("full_copies", str)) if "full_copies" in reader else None,
            term=reader.get("term", int),
            writer_token=reader.get("writer_token", str),
            fenced_at=reader.instant("fenced_at") if "fenced_at" in reader else None,
            fenced_by=reader.added_later("fenced_by", str, ""),
            unknown_fields=reader.unknown_fields() or NO_FIELDS,
        )
    except ValueError as error:
        raise reader.damaged(str(error)) from error


def _decode_fragment(fields: object, what: str) -> Fragment:
    reader = FieldReader(fields if isinstance(fields, dict) else {}, what)
    bookies = reader.get("bookies", list)
    debt = debt_from(reader.get("debt", list)) if "debt" in reader else None
    return Fragment(
        EntryId(reader.get("first_entry_id", int)),
        tuple(BookieId(str(bookie_id)) for bookie_id in bookies),
        reader.get("length_before", int),
        MappingProxyType(unknown) if (unknown := reader.unknown_fields()) else NO_FIELDS,
        debt,
    )


def _first_entry_id(fragment: Fragment) -> EntryId:
    return fragment.first_entry_id


def _end_of(last_entry_id: EntryId | None) -> int:
    return -1 if last_entry_id is None else last_entry_id
