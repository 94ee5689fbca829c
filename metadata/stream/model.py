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

A stream may have any number of fragments. The newest, its *tail*, are here; older ones lie in *pages*, documents that
these metadata name (:mod:`octavo.metadata.stream.pages`, rules U1 to U3). ``with_page()`` and ``with_pages()`` name
them, in any state. What needs a fragment in a page is refused here, or says so:
:class:`octavo.metadata.updates.paging.StreamPages` reads pages.

Values are immutable; a transition returns a new one. The constructor refuses what no stream can be. Which client may
make which transition is decided by :mod:`octavo.metadata.stream.changes`; :mod:`octavo.metadata.stream.encoding` has
the stored form. What a stream has in common with a ledger is :class:`octavo.metadata.ledger.stored.StoredLedger`.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Self

from octavo.metadata.encoding import NO_FIELDS
from octavo.metadata.ledger.checks import WRITER_TOKEN_CHARACTERS_MAX, notes_problem
from octavo.metadata.ledger.debts import Debt, FullCopies, debt_in_range
from octavo.metadata.ledger.stored import SettledRange, StoredKind
from octavo.metadata.ledger.term import StoredFragment, Term
from octavo.metadata.stream.fragment import Fragments, StreamFragment, StreamKey, check_archived, followed, position_in
from octavo.metadata.stream.page_reference import PageReference, Pages, check_after_page
from octavo.metadata.stream.states import StreamState
from octavo.metadata.stream.terms import TERM_STATES, term_from
from octavo.protocol.errors import InvalidArgumentError, LedgerClosedError
from octavo.protocol.ids import ID_MAX, TERM_MAX, BookieId, EntryId, LedgerId
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.places import FIRST_TERM, last_place, offset_of, place, term_of, term_of_lac
from octavo.protocol.quorums import Quorums

__all__ = ["FIRST_TERM", "StreamFragment", "StreamKey", "StreamMetadata", "StreamState", "position_in"]


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
    """In order; at least one; without those that lie in pages. The last one belongs to the current term, and no other
    one is empty."""
    keys: tuple[StreamKey, ...]
    """At least one."""
    start: int = 0
    """The first position that was not truncated; in the first fragment, or in the first page. Never falls."""
    pages: tuple[PageReference, ...] = ()
    """Where the fragments before these lie, in order (rule U2)."""
    revision: int = 0
    """How often pages have been named. Each change that names one raises it (rule U2)."""
    start_entry_id: EntryId | None = None
    """The place of :attr:`start` while there are pages; None otherwise, when the fragments tell."""
    archived_before: EntryId | None = None
    """The end of the archived front (rule J4): a fragment that begins there or above has no words. None: nothing was
    ever archived. Truncation does not change it."""
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
    full_copies: FullCopies | None = None
    """What is promised about all Qw copies of its entries (rule I9); None: nothing, and no debts are recorded. Never
    changes."""
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
    def current_term(self) -> Term:
        """The latest one, as its writer, a takeover and a reader know it. All of its fragments have the quorums and the
        key of the last one (rule T13)."""
        fragments = tuple(fragment for fragment in self.fragments if fragment.term == self.term)
        return term_from(self, fragments, TERM_STATES[self.state], self.last_entry_id, self.length)

    @property
    def next_term(self) -> int:
        """The term that the next takeover or renewal opens."""
        return self.term + 1 + self.terms_skipped

    @property
    def start_place(self) -> EntryId:
        """The first place that is kept: that of :attr:`start`, also when it lies in a page. What lies below it was
        truncated. In an empty stream it is the place of the first entry to come."""
        if self.start_entry_id is not None:
            return self.start_entry_id
        first = self.fragments[0]
        return EntryId(first.first_entry_id + self.start - first.first_position)

    @property
    def tail_position(self) -> int:
        """The first position that does not lie in a page."""
        return self.fragments[0].first_position if self.pages else self.start

    @property
    def tail(self) -> Self:
        """The part of the stream that lies in no page, as a stream that was truncated up to there; the stream itself
        when it has no pages."""
        if not self.pages:
            return self
        return replace(self, pages=(), start_entry_id=None, start=self.tail_position)

    @property
    def members(self) -> frozenset[BookieId]:
        """Every bookie that a fragment of the tail names. Those of pages are not known here."""
        return frozenset(name for fragment in self.fragments for name in fragment.bookies)

    @property
    def spare_copies(self) -> int:
        """Copies of an entry that may be lost without losing it: the least Qa - 1 of the tail."""
        return min(fragment.ack_quorum for fragment in self.fragments) - 1

    @property
    def has_end(self) -> bool:
        """Whether the current term has an end: at rest, or closed."""
        return self.state in (StreamState.AT_REST, StreamState.CLOSED)

    @property
    def is_closed(self) -> bool:
        """Whether no other term will come."""
        return self.state is StreamState.CLOSED

    @property
    def kind(self) -> StoredKind:
        """A stream."""
        return StoredKind.STREAM

    @property
    def written_part(self) -> object:
        """The part that writers and takeovers change; repair, paging and truncation change others, at any time."""
        return self.term, self.state, self.last_fragment

    @property
    def end_position(self) -> int | None:
        """The last position of the stream; -1 for an empty one; None while the current term has no end."""
        if self.last_entry_id is None:
            return None
        return position_in(self.last_fragment, self.last_entry_id)

    @property
    def settled_bytes(self) -> int:
        """Payload of the fragments that have an end and were not truncated, also of those in pages."""
        before = (self.pages or self.fragments)[0].length_before
        return max(self.length, self.last_fragment.length_before) - before

    def last_id_of(self, fragment: StoredFragment) -> EntryId | None:
        """The last place of ``fragment``, one of the tail, that holds an entry; None for the last one while the current
        term has no end. An empty last fragment ends one below its first place.

        At the end of a term this is not one below the next fragment's first place: between two terms lie places that
        hold no entry.
        """
        first: int = fragment.first_entry_id
        at = bisect_right(self.fragments, first, key=_first_entry_id)
        if at == len(self.fragments):
            return self.last_entry_id
        return EntryId(first + self.fragments[at].first_position - self.fragments[at - 1].first_position - 1)

    def settled_ranges(self) -> tuple[SettledRange, ...]:
        """The settled ranges of the tail, in order (rule C2). The last fragment is settled at rest, too: what comes
        later is of another term. A range ends where the positions of its fragment end, because between two terms lie
        ids that no bookie holds; the first begins where the stream begins."""
        # The last fragment is followed by the end of the stream.
        lengths_after = (*(one.length_before for one in self.fragments[1:]), self.length)
        truncated = self.tail_position - self.fragments[0].first_position
        ranges: list[SettledRange] = []
        for fragment, length_after in zip(self.fragments, lengths_after, strict=True):
            last = self.last_id_of(fragment)
            if last is not None:
                ranges.append(SettledRange(fragment.first_entry_id + truncated, last, fragment.bookies, length_after))
            truncated = 0
        return tuple(ranges)

    def quorums_at(self, entry_id: int) -> Quorums:
        """E, Qw and Qa of the fragment of the tail to which an id belongs."""
        return self.fragment_of(entry_id).quorums

    def key_at(self, entry_id: int) -> StreamKey:
        """The key of the fragment of the tail to which an id belongs."""
        return self.keys[self.fragment_of(entry_id).key]

    def counts_lac(self, lac: int) -> bool:
        """Whether this LAC is of the current term: one of a later term says that the term has an end, and not
        where."""
        return term_of_lac(lac + 1) == self.term

    def debt_of(self, fragment: StoredFragment) -> Debt:
        """The debt of a fragment of the tail (rule I9): nothing while it is not settled, and nothing of what was
        truncated."""
        first = max(fragment.first_entry_id, self.start_place)
        return debt_in_range(self.full_copies, fragment.debt, first, self.last_id_of(fragment))

    @property
    def debts(self) -> tuple[tuple[StreamFragment, Debt], ...]:
        """The fragments of the tail of which something is owed, with what it is."""
        if self.full_copies is None:
            return ()
        owed = ((fragment, self.debt_of(fragment)) for fragment in self.fragments)
        return tuple((fragment, debt) for fragment, debt in owed if not debt.is_empty)

    def fragment_at(self, position: int) -> StreamFragment:
        """The fragment of the tail that holds a position, or would be the one to hold it. Raises
        :class:`InvalidArgumentError` for a position that was truncated, or that lies in a page (:meth:`page_at`)."""
        self._check_kept(position)
        if position < self.tail_position:
            raise self._wrong(f"position {position} lies in a page, which must be read")
        return self.fragments[bisect_right(self.fragments, position, key=_first_position) - 1]

    def fragment_of(self, entry_id: int) -> StreamFragment:
        """The last fragment of the tail that does not begin above a place. Raises :class:`InvalidArgumentError` if all
        do: the place lies in a page (:meth:`page_of`), or was truncated."""
        at = bisect_right(self.fragments, entry_id, key=_first_entry_id)
        if at == 0:
            raise self._wrong(f"id {entry_id} lies in a page, or was truncated")
        return self.fragments[at - 1]

    def page_at(self, position: int) -> PageReference | None:
        """The page that holds a position; None for one that lies in the tail, or above the end. Raises
        :class:`InvalidArgumentError` for a position that was truncated."""
        self._check_kept(position)
        if position >= self.tail_position:
            return None
        return self.pages[bisect_right(self.pages, position, key=_first_position) - 1]

    def page_of(self, entry_id: int) -> PageReference | None:
        """The page in which a place lies, or would lie if it held an entry; None for one of the tail, and for one below
        the first page."""
        if entry_id >= self.fragments[0].first_entry_id:
            return None
        at = bisect_right(self.pages, entry_id, key=_first_entry_id)
        return self.pages[at - 1] if at else None

    def place_at(self, position: int) -> EntryId | None:
        """The place of a position of the tail; None if it is not known yet: above the end, or in the last fragment
        while the current term has no end. Raises :class:`InvalidArgumentError` for a position that was truncated, or
        that lies in a page (:meth:`page_at`)."""
        fragment = self.fragment_at(position)
        found = EntryId(fragment.first_entry_id + position - fragment.first_position)
        last = self.last_id_of(fragment)
        return None if last is None or found > last else found

    def end_of_term(self, term: int) -> EntryId | None:
        """The last place of ``term``, one below its first place if the term is empty; None while it has no end, and
        when these metadata do not tell: truncation has left nothing that does, or its last fragment lies within a page
        (:meth:`page_of_term`)."""
        if term >= self.term:
            return self.last_entry_id if term == self.term else None
        last = next((fragment for fragment in reversed(self.fragments) if fragment.term == term), None)
        if last is not None:
            return self.last_id_of(last)
        # The first page from the end that does not lie above the term altogether has the answer, or names what has it.
        before = next((page for page in reversed(self.pages) if page.lowest_term <= term), None)
        if before is not None and before.highest_term >= term:
            return before.last_entry_id if before.highest_term == term else None
        first = self.pages[0] if self.pages else self.fragments[0]
        if before is None and first.first_position > 0 and term_of(first.first_entry_id) > term:
            return None
        return EntryId(place(term, 0) - 1)

    def stop_of_leader(self, first_term: int) -> int | None:
        """The position after the last one of the client whose first term was ``first_term``: nothing that it adds can
        come there any more. None while no other client has opened a term after it, and when truncation has left nothing
        that has it."""
        for at, fragment in enumerate(self.fragments):
            if fragment.first_term > first_term:
                is_known = at > 0 or fragment.first_position == 0
                return fragment.first_position if is_known else None
        return None

    def page_of_term(self, term: int) -> PageReference | None:
        """The page that must be read to tell where ``term`` ends; None if none would tell, or none is needed."""
        if any(fragment.term == term for fragment in self.fragments):
            return None
        before = next((page for page in reversed(self.pages) if page.lowest_term <= term), None)
        return before if before is not None and before.highest_term > term else None

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
        the same place (rule W3). It is never noted as older than the one before it, and owes nothing yet.

        Raises :class:`LedgerClosedError`, and :class:`InvalidArgumentError` at rest and when it does not follow.
        """
        self._check_unfinished()
        kept = self.fragments
        opened_at_ms = max(fragment.opened_at_ms, kept[-1].opened_at_ms)
        if kept[-1].first_entry_id == fragment.first_entry_id:
            kept = kept[:-1]
        return replace(self, fragments=followed(kept, replace(fragment, opened_at_ms=opened_at_ms, debt=None)))

    def at_rest(self, last_entry_id: EntryId, length: int) -> Self:
        """The same stream with this end of the current term and no writer (rule T8): the last place (one below the
        last fragment's first place, if that fragment is empty) and the payload bytes up to it.

        Raises :class:`LedgerClosedError`, and :class:`InvalidArgumentError` at rest and for an end that does not fit.
        """
        self._check_unfinished()
        return replace(self, state=StreamState.AT_REST, last_entry_id=last_entry_id, length=length)

    def with_next_term(self, owner: str, fragment: StreamFragment, *, first_position_min: int = 0) -> Self:
        """The stream at rest, with the next term opened by ``owner`` (rule T5). Of ``fragment`` the ensemble, quorums,
        key, time and :attr:`~StreamFragment.leader_term` are taken; its first place, first position and length follow
        from the end. A last fragment that is empty goes.

        ``first_position_min``: the term does not begin below. If it is above the position that follows from the end,
        what lies below was truncated and the end was lost: all other fragments go (rule P7).

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
            first_position=max(end + 1, first_position_min),
            length_before=self.length,
            opened_at_ms=max(fragment.opened_at_ms, last.opened_at_ms),
            debt=None,
        )
        start, pages, start_entry_id = self.start, self.pages, self.start_entry_id
        if first.first_position > end + 1:
            kept, start, pages, start_entry_id = (), first.first_position, (), None
        return replace(
            self,
            state=StreamState.OPEN,
            term=self.next_term,
            terms_skipped=0,
            owner=owner,
            fragments=followed(kept, first),
            start=start,
            pages=pages,
            start_entry_id=start_entry_id,
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

    def truncated(self, before: int, before_place: EntryId | None = None) -> Self:
        """The same stream without the positions below ``before``, or below its last fragment, if that is lower; itself
        when they are gone already. Fragments that have no position left go, and so do pages (rule U4).

        ``before_place`` is the place of ``before``, and needed if that lies in a page. Raises
        :class:`InvalidArgumentError` without it, or if it cannot be that of the position.
        """
        start = min(before, self.last_fragment.first_position)
        if start <= self.start:
            return self
        if start >= self.tail_position:
            gone = bisect_right(self.fragments, start, key=_first_position) - 1
            return replace(self, start=start, fragments=self.fragments[gone:], pages=(), start_entry_id=None)
        if before_place is None:
            raise self._wrong(f"its truncation at position {start}, which lies in a page, needs the place")
        gone = bisect_right(self.pages, start, key=_first_position) - 1
        return replace(self, start=start, start_entry_id=before_place, pages=self.pages[gone:])

    def with_page(self, page: PageReference, *, moved: int, replaces_last: bool) -> Self:
        """The same stream with its ``moved`` oldest fragments of the tail in a new page, which also has what the last
        page had if it takes that one's place (rule U3). Raises :class:`InvalidArgumentError`."""
        if not 0 < moved < len(self.fragments):
            raise self._wrong(f"of its {len(self.fragments)} fragments it cannot move {moved} into a page")
        kept = self.pages[:-1] if replaces_last else self.pages
        return replace(
            self,
            pages=(*kept, page),
            revision=self.revision + 1,
            fragments=self.fragments[moved:],
            start_entry_id=self.start_place,
        )

    def with_pages(self, replacements: Mapping[PageReference, PageReference]) -> Self:
        """The same stream with other pages in the place of some: copies in which repair has replaced bookies (rules C2
        and U2). Raises :class:`InvalidArgumentError` if one is not named, or tells anything else of its fragments."""
        for old, new in replacements.items():
            if old not in self.pages or replace(new, revision=old.revision, token=old.token) != old:
                raise self._wrong(f"page {new.name} cannot take the place of page {old.name}")
        pages = tuple(replacements.get(page, page) for page in self.pages)
        return replace(self, pages=pages, revision=self.revision + 1)

    def with_member(self, first_entry_id: EntryId, position: int, bookie_id: BookieId) -> Self:
        """The same stream with another bookie in one slot of the fragment that begins at ``first_entry_id``: a
        repair of that fragment (rule C2).

        The last fragment of a term without an end belongs to its writer or its takeover, and is refused. Raises
        :class:`InvalidArgumentError` then, for a fragment or slot that does not exist, and for an ensemble that
        would not be of distinct bookies.
        """
        at = next((at for at, one in enumerate(self.fragments) if one.first_entry_id == first_entry_id), None)
        if at is None or not 0 <= position < len(self.fragments[at].bookies):
            raise self._wrong(f"there is no slot {position} in a fragment from entry {first_entry_id}")
        fragment = self.fragments[at]
        if fragment is self.last_fragment and not self.has_end:
            raise self._wrong("the members of its last fragment cannot be replaced before its term has an end")
        members = (*fragment.bookies[:position], bookie_id, *fragment.bookies[position + 1 :])
        repaired = replace(fragment, bookies=members)
        return replace(self, fragments=(*self.fragments[:at], repaired, *self.fragments[at + 1 :]))

    def restored(self, terms_skipped: int) -> Self:
        """The same stream, read from a dump: its next term leaves out at least this number of terms, which may have
        been opened after the dump (rule T1). Without that, a bookie could hold the entries of two writers at one
        place."""
        skipped = min(self.terms_skipped + terms_skipped, TERM_MAX - self.term)
        return replace(self, terms_skipped=skipped)

    def with_debt(self, first_entry_id: EntryId, debt: Debt) -> Self:
        """The same stream with this debt recorded in the fragment of the tail that begins at ``first_entry_id``; itself
        if there is no such fragment, or no debts are recorded in this stream."""
        at = bisect_right(self.fragments, int(first_entry_id), key=_first_entry_id) - 1
        if self.full_copies is None or at < 0 or self.fragments[at].first_entry_id != first_entry_id:
            return self
        owing = replace(self.fragments[at], debt=debt)
        return replace(self, fragments=(*self.fragments[:at], owing, *self.fragments[at + 1 :]))

    def written_by(self, writer_token: str) -> Self:
        """The same metadata with the token of the handle that is about to write them."""
        return replace(self, writer_token=writer_token)

    # --- checks --------------------------------------------------------------------------------------------------

    def _check_kept(self, position: int) -> None:
        if position < self.start:
            raise self._wrong(f"position {position} has been truncated; the first one is {self.start}")

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
        if self.revision < 0:
            raise self._wrong("a revision is a number from 0 on")
        if not 0 <= self.terms_skipped <= TERM_MAX - self.term:
            raise self._wrong(f"it cannot leave out {self.terms_skipped} terms")
        if not self.keys:
            raise self._wrong("it needs a key")
        if not 1 <= len(self.owner) <= WRITER_TOKEN_CHARACTERS_MAX:
            raise self._wrong(f"an owner's token has 1 to {WRITER_TOKEN_CHARACTERS_MAX} characters")
        problem = notes_problem(self)
        if problem is not None:
            raise self._wrong(problem)

    def _check_fragments(self) -> None:
        if not self.fragments:
            raise self._wrong("it needs a fragment")
        try:
            fragments = self.fragments if isinstance(self.fragments, Fragments) else Fragments(self.fragments)
            check_archived(fragments, self.archived_before)
        except ValueError as error:
            raise self._wrong(str(error)) from None
        object.__setattr__(self, "fragments", fragments)
        if fragments[-1].key >= len(self.keys):
            raise self._wrong(f"the fragment from position {fragments[-1].first_position} has no key")
        if self.last_fragment.term != self.term:
            raise self._wrong(f"its last fragment is of term {self.last_fragment.term}, not of the term {self.term}")
        first = self.fragments[0]
        if first.first_position == 0 and (offset_of(first.first_entry_id), first.length_before) != (0, 0):
            raise self._wrong("position 0 must be the first one of a term, with nothing before it")
        if self.pages:
            self._check_pages()
            return
        if self.start_entry_id is not None:
            raise self._wrong("only while it has pages it notes the place at which it starts")
        stop = self.fragments[1].first_position if len(self.fragments) > 1 else first.first_position + 1
        if not first.first_position <= self.start < stop:
            raise self._wrong(f"its start {self.start} is not in the first fragment")

    def _check_pages(self) -> None:
        try:
            pages = self.pages if isinstance(self.pages, Pages) else Pages(self.pages)
            check_after_page(pages[-1], self.fragments[0])
        except ValueError as error:
            raise self._wrong(str(error)) from None
        object.__setattr__(self, "pages", pages)
        if self.revision < pages.revision_min:
            raise self._wrong(
                f"it names a page of revision {pages.revision_min - 1}, not of a revision below {self.revision}"
            )
        second = pages[1] if len(pages) > 1 else self.fragments[0]
        first, place_of_start = self.pages[0], self.start_entry_id
        if not first.first_position <= self.start < second.first_position:
            raise self._wrong(f"its start {self.start} is not in the first page")
        if place_of_start is None or not first.first_entry_id <= place_of_start <= first.last_entry_id:
            raise self._wrong(f"its start {self.start} has a place that is not in the first page")
        same_term = term_of(place_of_start) == first.lowest_term
        if same_term and place_of_start - first.first_entry_id != self.start - first.first_position:
            raise self._wrong(f"its start {self.start} has another place than {place_of_start}")

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


def _first_position(part: StreamFragment | PageReference) -> int:
    return part.first_position


def _first_entry_id(part: StreamFragment | PageReference) -> int:
    return part.first_entry_id
