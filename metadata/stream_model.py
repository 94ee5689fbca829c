"""The metadata of one stream, a ledger that several writers write one after another, and how they may change. Pure.

Each writer has a *term*. An entry's id is a *place* (:mod:`octavo.protocol.places`), and users count entries in
*positions*: 0, 1, 2, ... without a gap, whatever the terms are. A fragment names both for its first entry, so the
fragments are the table that maps one to the other.

===========  =====================  =====================  =====================  =====================
from         ``in_recovery()``      ``at_rest()``          ``with_next_term()``   ``closed()``
===========  =====================  =====================  =====================  =====================
OPEN         IN_RECOVERY (rule T2)  AT_REST (rule T8)      refused                refused
IN_RECOVERY  unchanged              AT_REST (rule T8)      refused                refused
AT_REST      refused                refused                OPEN (rule T5)         CLOSED
CLOSED       LedgerClosedError      LedgerClosedError      LedgerClosedError      LedgerClosedError
===========  =====================  =====================  =====================  =====================

The next term follows from the end of the one before. A takeover and a renewal, which give a term its end and open the
next one in a single compare-and-set, go through AT_REST in memory only (rules T5 and T11). The one way back to OPEN
raises the term, so no state of a term comes twice (rule T1). ``with_fragment()`` is possible before a term has its end,
``truncated()`` and, for settled fragments, ``with_member()`` in any state; none of them changes state or term.

Values are immutable; a transition returns a new one. The constructor refuses what no stream can be. Which client may
make which transition is decided by :mod:`octavo.metadata.stream_changes`; :mod:`octavo.metadata.stream_encoding` has
the stored form.
"""

import enum
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Self

from octavo.metadata.encoding import NO_FIELDS
from octavo.metadata.model import (
    CLIENT_NAME_CHARACTERS_MAX,
    CUSTOM_METADATA_BYTES_MAX,
    WRITER_TOKEN_CHARACTERS_MAX,
    is_bookie_id,
    quorum_problem,
)
from octavo.protocol.entries import Digest
from octavo.protocol.errors import InvalidArgumentError, LedgerClosedError
from octavo.protocol.ids import ID_MAX, TERM_MAX, BookieId, EntryId, LedgerId
from octavo.protocol.places import OFFSET_MAX, last_place, offset_of, place, term_of

FIRST_TERM = 1
"""Of every stream. Term 0 stands for ledgers with one writer."""


class StreamState(enum.Enum):
    """What becomes of the current term, that is, of the highest one."""

    OPEN = "open"
    """Its writer adds to it."""
    IN_RECOVERY = "in-recovery"
    """A client takes the stream over, and finds the end of the term."""
    AT_REST = "at-rest"
    """It has an end, and there is no writer. Any client may open the next term."""
    CLOSED = "closed"
    """It has an end, and there will be no other term."""


@dataclass(frozen=True, slots=True)
class StreamKey:
    """How the entries of some fragments are sealed. A stream has more than one key once its password was changed."""

    digest: Digest
    verifier: bytes
    """:func:`octavo.protocol.entries.make_verifier` of password and digest with :attr:`salt` (rule F0)."""
    salt: bytes
    unknown_fields: Mapping[str, Any] = field(default_factory=lambda: NO_FIELDS, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFragment:
    """A run of entries of one term that share one ensemble, quorums and key."""

    first_entry_id: EntryId
    """A place. Its term is that of the fragment."""
    first_position: int
    """Of the entry at that place."""
    bookies: tuple[BookieId, ...]
    """The ensemble; E is their number."""
    write_quorum: int
    ack_quorum: int
    key: int = 0
    """Index in the keys of the stream. Never falls from one fragment to the next."""
    length_before: int = 0
    """Total of the payload bytes at all positions before the first one, also of those that were truncated."""
    opened_at_ms: int
    """When it was begun, in milliseconds of the metadata store's clock. Never falls from one fragment to the next."""
    leader_term: int = 0
    """The first of the terms that one client opened one after another: it has renewed its term, or has taken the stream
    over from itself, and goes on with the same adds (rule T11). 0 stands for the fragment's own term."""
    unknown_fields: Mapping[str, Any] = field(default_factory=lambda: NO_FIELDS, compare=False, repr=False)
    """Stored fields that this version does not know, as decoded JSON: kept as long as the fragment is kept."""

    @property
    def term(self) -> int:
        """The term of its entries."""
        return term_of(self.first_entry_id)

    @property
    def first_term(self) -> int:
        """The first term of the client that wrote it (:attr:`leader_term`)."""
        return self.leader_term or self.term


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMetadata:
    """One version of a stream's metadata. Raises :class:`InvalidArgumentError` for values that no stream can have."""

    ledger_id: LedgerId
    state: StreamState = StreamState.OPEN
    term: int = FIRST_TERM
    """The current term: the highest that was opened."""
    owner: str
    """A random token of the client that opened the current term. Only opening a term writes it, so that a client whose
    answer was lost recognises its own term whatever else has been changed since (rule T1)."""
    terms_skipped: int = 0
    """Terms that the next one leaves out, because writers that these metadata do not know may have had them: the
    metadata were restored from a dump (rule T1)."""
    fragments: tuple[StreamFragment, ...]
    """In order; at least one. The last one belongs to the current term, and no other one is empty."""
    keys: tuple[StreamKey, ...]
    """At least one."""
    start: int = 0
    """The first position that was not truncated; in the first fragment. Never falls."""
    last_entry_id: EntryId | None = None
    """The place at which the current term ends, at rest and when closed; None otherwise. It lies one below the first
    place of the last fragment when that fragment is empty."""
    length: int = 0
    """Payload bytes of all positions ever, at rest and when closed; 0 otherwise."""
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict, hash=False)
    created_at: datetime
    """Aware. Informational only: no decision depends on it."""
    private: bool = False
    """Bookies give its entries only to clients that have its key, and to repairs (rule S3). Never changes."""
    writer_token: str = ""
    """Token of the handle that made the latest change, including creation (rule M1)."""
    fenced_at: datetime | None = None
    """Aware. When a client began to take over the current term, by that client's clock. Informational only."""
    fenced_by: str = ""
    """The name of that client. Informational only."""
    unknown_fields: Mapping[str, Any] = field(default_factory=lambda: NO_FIELDS, hash=False, repr=False)
    """Stored fields that this version does not know, as decoded JSON. Every change keeps them."""
    unknown_stream_fields: Mapping[str, Any] = field(default_factory=lambda: NO_FIELDS, hash=False, repr=False)
    """Likewise, those of the part that only streams have."""

    def __post_init__(self) -> None:
        # A private copy behind a read-only view: the caller may change its dict, but this value must not change.
        object.__setattr__(self, "custom_metadata", MappingProxyType(dict(self.custom_metadata)))
        self._check_scalars()
        self._check_fragments()
        self._check_end()

    # --- lookups -------------------------------------------------------------------------------------------------

    @property
    def last_fragment(self) -> StreamFragment:
        """The fragment that the writer adds to, and whose bookies a takeover asks."""
        return self.fragments[-1]

    @property
    def next_term(self) -> int:
        """The term that the next takeover or renewal opens."""
        return self.term + 1 + self.terms_skipped

    @property
    def members(self) -> frozenset[BookieId]:
        """Every bookie that a fragment names."""
        return frozenset(name for fragment in self.fragments for name in fragment.bookies)

    @property
    def has_end(self) -> bool:
        """Whether the current term has an end: at rest, or closed."""
        return self.state in (StreamState.AT_REST, StreamState.CLOSED)

    @property
    def end_position(self) -> int | None:
        """The last position of the stream; -1 for an empty one; None while the current term has no end."""
        if self.last_entry_id is None:
            return None
        return position_in(self.last_fragment, self.last_entry_id)

    def last_place_of(self, fragment: StreamFragment) -> EntryId | None:
        """The last place of ``fragment`` that holds an entry; None while the current term has no end, for its last
        fragment. An empty last fragment ends one below its first place.

        At the end of a term this is not one below the next fragment's first place: between two terms lie places that
        hold no entry.
        """
        at = self.fragments.index(fragment) + 1
        if at == len(self.fragments):
            return self.last_entry_id
        return EntryId(fragment.first_entry_id + self.fragments[at].first_position - fragment.first_position - 1)

    def place_at(self, position: int) -> EntryId | None:
        """The place of a position; None if it is not known yet: above the end, or in the last fragment while the
        current term has no end. Raises :class:`InvalidArgumentError` for a position that was truncated."""
        if position < self.start:
            raise self._wrong(f"position {position} has been truncated; the first one is {self.start}")
        fragment = self.fragments[bisect_right(self.fragments, position, key=_first_position) - 1]
        found = EntryId(fragment.first_entry_id + position - fragment.first_position)
        last = self.last_place_of(fragment)
        return None if last is None or found > last else found

    def end_of_term(self, term: int) -> EntryId | None:
        """The last place of ``term``, one below its first place if the term is empty; None while it has no end, and
        when truncation has left nothing that tells."""
        if term >= self.term:
            return self.last_entry_id if term == self.term else None
        last = next((fragment for fragment in reversed(self.fragments) if fragment.term == term), None)
        if last is not None:
            return self.last_place_of(last)
        first = self.fragments[0]
        if first.term > term and first.first_position > 0:
            return None
        return EntryId(place(term, 0) - 1)

    def stop_of_leader(self, first_term: int) -> int | None:
        """The position after the last one of the client whose first term was ``first_term``: nothing that it adds can
        come there any more. None while no other client has opened a term after it, and when truncation has left nothing
        that tells."""
        for at, fragment in enumerate(self.fragments):
            if fragment.first_term > first_term:
                is_known = at > 0 or fragment.first_position == 0
                return fragment.first_position if is_known else None
        return None

    # --- transitions ---------------------------------------------------------------------------------------------

    def in_recovery(self, fenced_at: datetime | None = None, fenced_by: str = "") -> Self:
        """The same stream marked as being taken over, by this client; itself when it already is (rule T2). Raises
        :class:`LedgerClosedError`, and :class:`InvalidArgumentError` at rest, where there is no writer to fence."""
        self._check_unfinished()
        if self.state is StreamState.IN_RECOVERY:
            return self
        return replace(self, state=StreamState.IN_RECOVERY, fenced_at=fenced_at, fenced_by=fenced_by)

    def with_fragment(self, fragment: StreamFragment) -> Self:
        """The same stream with a new last fragment of the current term; it replaces the current one when both start at
        the same place (rule W3). It is never noted as older than the one before it.

        Raises :class:`LedgerClosedError`, and :class:`InvalidArgumentError` at rest and when it does not follow.
        """
        self._check_unfinished()
        kept = self.fragments
        opened_at_ms = max(fragment.opened_at_ms, kept[-1].opened_at_ms)
        if kept[-1].first_entry_id == fragment.first_entry_id:
            kept = kept[:-1]
        return replace(self, fragments=(*kept, replace(fragment, opened_at_ms=opened_at_ms)))

    def at_rest(self, last_entry_id: EntryId, length: int) -> Self:
        """The same stream with this end of the current term and no writer (rule T8): the last place (one below the
        last fragment's first place, if that fragment is empty) and the payload bytes up to it.

        Raises :class:`LedgerClosedError`, and :class:`InvalidArgumentError` at rest and for an end that does not fit.
        """
        self._check_unfinished()
        return replace(self, state=StreamState.AT_REST, last_entry_id=last_entry_id, length=length)

    def with_next_term(self, owner: str, fragment: StreamFragment) -> Self:
        """The stream at rest, with the next term opened by ``owner`` (rule T5). Of ``fragment`` the ensemble, quorums,
        key, time and :attr:`~StreamFragment.leader_term` are taken; its first place, first position and length follow
        from the end. A last fragment that is empty goes.

        Raises :class:`LedgerClosedError`, and :class:`InvalidArgumentError` in a state without an end.
        """
        if self.state is StreamState.CLOSED:
            raise self._closed()
        end = self.end_position
        if end is None or self.last_entry_id is None:
            raise self._wrong("its next term cannot be opened before the current one has an end")
        last = self.last_fragment
        kept = self.fragments if self.last_entry_id >= last.first_entry_id else self.fragments[:-1]
        first = replace(
            fragment,
            first_entry_id=place(self.next_term, 0),
            first_position=end + 1,
            length_before=self.length,
            opened_at_ms=max(fragment.opened_at_ms, last.opened_at_ms),
        )
        return replace(
            self,
            state=StreamState.OPEN,
            term=self.next_term,
            terms_skipped=0,
            owner=owner,
            fragments=(*kept, first),
            last_entry_id=None,
            length=0,
            fenced_at=None,
            fenced_by="",
        )

    def closed(self) -> Self:
        """The same stream at rest with no other term to come, and with the end that it has. Raises
        :class:`LedgerClosedError`, and :class:`InvalidArgumentError` in a state without an end."""
        if self.state is StreamState.CLOSED:
            raise self._closed()
        if self.state is not StreamState.AT_REST:
            raise self._wrong("it cannot be closed before its current term has an end")
        return replace(self, state=StreamState.CLOSED)

    def truncated(self, before: int) -> Self:
        """The same stream without the positions below ``before``, or below its last fragment, if that is lower; itself
        when they are gone already. Fragments that have no position left go."""
        start = min(before, self.last_fragment.first_position)
        if start <= self.start:
            return self
        gone = bisect_right(self.fragments, start, key=_first_position) - 1
        return replace(self, start=start, fragments=self.fragments[gone:])

    def with_member(self, first_entry_id: EntryId, position: int, bookie_id: BookieId) -> Self:
        """The same stream with another bookie at one position of the fragment that begins at ``first_entry_id``: a
        repair of that fragment (rule C2).

        The last fragment of a term without an end belongs to its writer or its takeover, and is refused. Raises
        :class:`InvalidArgumentError` then, for a fragment or position that does not exist, and for an ensemble that
        would not be of distinct bookies.
        """
        at = next((at for at, one in enumerate(self.fragments) if one.first_entry_id == first_entry_id), None)
        if at is None or not 0 <= position < len(self.fragments[at].bookies):
            raise self._wrong(f"there is no position {position} in a fragment from entry {first_entry_id}")
        fragment = self.fragments[at]
        if fragment is self.last_fragment and not self.has_end:
            raise self._wrong("the members of its last fragment cannot be replaced before its term has an end")
        members = (*fragment.bookies[:position], bookie_id, *fragment.bookies[position + 1 :])
        repaired = replace(fragment, bookies=members)
        return replace(self, fragments=(*self.fragments[:at], repaired, *self.fragments[at + 1 :]))

    def restored(self, terms_skipped: int) -> Self:
        """The same stream, read from a dump: its next term leaves out at least so many terms, which may have been
        opened after the dump (rule T1). Without that, a bookie could hold the entries of two writers at one place."""
        skipped = min(self.terms_skipped + terms_skipped, TERM_MAX - self.term)
        return replace(self, terms_skipped=skipped)

    def written_by(self, writer_token: str) -> Self:
        """The same metadata with the token of the handle that is about to write them."""
        return replace(self, writer_token=writer_token)

    # --- checks --------------------------------------------------------------------------------------------------

    def _check_unfinished(self) -> None:
        if self.state is StreamState.CLOSED:
            raise self._closed()
        if self.state is StreamState.AT_REST:
            raise self._wrong("it is at rest: the end of its term is settled")

    def _closed(self) -> LedgerClosedError:
        return LedgerClosedError(f"stream {self.ledger_id} is closed: it will have no other term")

    def _check_scalars(self) -> None:
        if not 0 <= self.ledger_id <= ID_MAX:
            raise self._wrong(f"a ledger id must be between 0 and {ID_MAX}")
        if not FIRST_TERM <= self.term <= TERM_MAX:
            raise self._wrong(f"the term of a stream must be between {FIRST_TERM} and {TERM_MAX}")
        if not 0 <= self.terms_skipped <= TERM_MAX - self.term:
            raise self._wrong(f"it cannot leave out {self.terms_skipped} terms")
        if not self.keys:
            raise self._wrong("it needs a key")
        if self.created_at.tzinfo is None:
            raise self._wrong("created_at needs a time zone")
        if self.fenced_at is not None and self.fenced_at.tzinfo is None:
            raise self._wrong("fenced_at needs a time zone")
        if self.fenced_by and self.fenced_at is None:
            raise self._wrong("fenced_by needs fenced_at")
        if len(self.fenced_by) > CLIENT_NAME_CHARACTERS_MAX:
            raise self._wrong(f"the name of a client has at most {CLIENT_NAME_CHARACTERS_MAX} characters")
        if not 1 <= len(self.owner) <= WRITER_TOKEN_CHARACTERS_MAX:
            raise self._wrong(f"an owner's token has 1 to {WRITER_TOKEN_CHARACTERS_MAX} characters")
        if len(self.writer_token) > WRITER_TOKEN_CHARACTERS_MAX:
            raise self._wrong(f"a writer's token has at most {WRITER_TOKEN_CHARACTERS_MAX} characters")
        custom_bytes = sum(
            len(key.encode("utf-8", "surrogatepass")) + len(value) for key, value in self.custom_metadata.items()
        )
        if custom_bytes > CUSTOM_METADATA_BYTES_MAX:
            raise self._wrong(
                f"custom metadata of {custom_bytes} bytes exceed the limit of {CUSTOM_METADATA_BYTES_MAX}"
            )

    def _check_fragments(self) -> None:
        if not self.fragments:
            raise self._wrong("it needs a fragment")
        for fragment in self.fragments:
            self._check_fragment(fragment)
        for one, following in pairwise(self.fragments):
            problem = _following_problem(one, following)
            if problem is not None:
                raise self._wrong(f"the fragment from position {following.first_position} {problem}")
        if self.last_fragment.term != self.term:
            raise self._wrong(f"its last fragment is of term {self.last_fragment.term}, not of the term {self.term}")
        first = self.fragments[0]
        if first.first_position == 0 and (offset_of(first.first_entry_id), first.length_before) != (0, 0):
            raise self._wrong("position 0 must be the first one of a term, with nothing before it")
        stop = self.fragments[1].first_position if len(self.fragments) > 1 else first.first_position + 1
        if not first.first_position <= self.start < stop:
            raise self._wrong(f"its start {self.start} is not in the first fragment")

    def _check_fragment(self, fragment: StreamFragment) -> None:
        where = f"from position {fragment.first_position}"
        if fragment.term < FIRST_TERM or offset_of(fragment.first_entry_id) > OFFSET_MAX:
            raise self._wrong(f"the fragment {where} starts at {fragment.first_entry_id}, which is no place")
        if not 0 <= fragment.first_position <= ID_MAX or min(fragment.length_before, fragment.opened_at_ms) < 0:
            raise self._wrong(f"the fragment {where} has a number that is out of range")
        if fragment.leader_term and not FIRST_TERM <= fragment.leader_term < fragment.term:
            raise self._wrong(f"the fragment {where} continues term {fragment.leader_term}, which is no earlier one")
        problem = quorum_problem(len(fragment.bookies), fragment.write_quorum, fragment.ack_quorum)
        if problem is not None:
            raise self._wrong(f"the fragment {where}: {problem}")
        if len(set(fragment.bookies)) != len(fragment.bookies):
            raise self._wrong(f"the ensemble {where} must be distinct bookies, not {list(fragment.bookies)}")
        for bookie_id in fragment.bookies:
            if not is_bookie_id(bookie_id):
                raise self._wrong(f"{bookie_id!r} is not a bookie id")
        if not 0 <= fragment.key < len(self.keys):
            raise self._wrong(f"the fragment {where} has no key")

    def _check_end(self) -> None:
        if not self.has_end:
            if self.last_entry_id is not None or self.length != 0:
                raise self._wrong("only at rest and when closed it has an end and a length")
            return
        last, end = self.last_fragment, self.last_entry_id
        if end is None or not last.first_entry_id - 1 <= end <= last_place(self.term):
            raise self._wrong(f"{end} is not an end of its last fragment, which starts at {last.first_entry_id}")
        if self.length < last.length_before or (end < last.first_entry_id and self.length != last.length_before):
            raise self._wrong(
                f"its length {self.length} contradicts the length {last.length_before} before its last fragment"
            )

    def _wrong(self, reason: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"stream {self.ledger_id}: {reason}")


def position_in(fragment: StreamFragment, entry_id: int) -> int:
    """The position of a place of ``fragment``; one below its first position for the place below its first one."""
    return fragment.first_position + entry_id - fragment.first_entry_id


def _following_problem(one: StreamFragment, following: StreamFragment) -> str | None:
    """Why ``following`` cannot follow ``one``; None when it can."""
    positions = following.first_position - one.first_position
    places = following.first_entry_id - one.first_entry_id
    begins_term = following.term > one.term and offset_of(following.first_entry_id) == 0
    problems = (
        (positions < 1, "must come after the one before it, which cannot be empty"),
        (
            one.first_entry_id + positions - 1 > last_place(one.term),
            "leaves more positions to the one before it than its term has places",
        ),
        (following.term == one.term and places != positions, "does not start at the place that follows in its term"),
        (following.term != one.term and not begins_term, "is of another term, and does not begin a later one"),
        (following.length_before < one.length_before, "has less before it than the one before it"),
        (following.key < one.key, "has an older key than the one before it"),
        (following.first_term < one.first_term, "continues a term of another client than the one before it"),
        (following.opened_at_ms < one.opened_at_ms, "was begun before the one before it"),
    )
    return next((problem for applies, problem in problems if applies), None)


def _first_position(fragment: StreamFragment) -> int:
    return fragment.first_position
