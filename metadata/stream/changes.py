"""How a client changes a stream's metadata when other clients may have changed them in the meantime. Pure.

As in :mod:`octavo.metadata.ledger.changes`, a change is a value whose ``decide(current)`` answers *write*, *settled* or
*refuse*; :func:`octavo.metadata.updates.compare_and_set.settle_change` runs it in a compare-and-set loop. T is the term
for which the change was computed. *Base* is the last fragment from which it was computed, wherever a change has one.

===================  ================  ===============  ===================  =============  ===========
change               OPEN(T)           IN_RECOVERY(T)   AT_REST(T)           term above T   CLOSED
===================  ================  ===============  ===================  =============  ===========
ChangeFragment (T9)  base: write;      term over        term over            term over      closed
                     wanted: settled
Rest (T8)            base: write       term over        that end: settled;   term over,     closed,
                                                        other: conflict      or settled     or settled
BeginTakeover (T2)   write             settled          settled              term over      closed
OpenTerm (T5)        conflict          base: write;     that end: write;     own: settled;  closed
                                       other: conflict  other: conflict      term over
RenewTerm (T11)      base: write       term over        term over            own: settled;  closed
                                                                             term over
LayToRest (T8)       conflict          base: write;     settled              term over      closed
                                       other: conflict
SealStream           conflict          conflict         write                term over      settled
Truncate, PageOut    write             write            write                write          write
===================  ================  ===============  ===================  =============  ===========

- In OPEN(T), another base means that T has a second writer: :class:`InternalError`, because rule T1 excludes it.
- A term below T means that the metadata are older than those which the client has seen: conflict.
- A term above T makes Rest settled if its metadata still tell that T ended where the writer wanted, in any later state.
- It makes OpenTerm and RenewTerm settled if it is still OPEN, and the owner is the client's own (rule T1).
- Truncate is settled when the start lies there or further on. It is a conflict if the position has been paged out
  since it was looked for.
- PageOut is settled when its page is named. It is a conflict if another client has named pages since, or has changed
  the fragments that it moves: then the page is made anew (rule U2).
- A change that adds a fragment asks for *paging first* instead of a write that would make the tail too large (rule U3).

Repair's changes of the tail are those of a ledger: :class:`octavo.metadata.ledger.changes.ReplaceMember` and
:class:`octavo.metadata.ledger.changes.PayDebt`. They depend on a settled fragment and on no column. In pages the same
is done with :class:`ReplacePages`.

Older fragments, the start and unknown fields are taken as found. A refused change has changed nothing, and each refusal
means that another client got ahead (rule T10).
"""

from dataclasses import replace
from datetime import datetime
from typing import Final, Protocol

from octavo.metadata.ledger.changes import who_fenced
from octavo.metadata.ledger.debts import Debt
from octavo.metadata.ledger.decisions import Refuse, Settled, Write
from octavo.metadata.stream.encoding import encoded_fragments_bytes
from octavo.metadata.stream.model import StreamFragment, StreamMetadata, StreamState
from octavo.metadata.stream.page_reference import PageReference
from octavo.protocol.errors import InternalError, LedgerClosedError, MetadataConflictError, TermOverError
from octavo.protocol.ids import EntryId
from octavo.protocol.light_dataclass import dataclass

FRAGMENTS_BYTES_MAX: Final = 128 * 1024
"""Largest stored size of a stream's tail that a new fragment may lead to (rule U3). A document of the metadata store
holds 512 KiB, which leaves room for the references to pages, and an end can always be written."""


@dataclass(frozen=True, slots=True)
class PageFirst:
    """The tail has no room: page its oldest fragments out, then decide again (rule U3)."""


type StreamDecision = Write[StreamMetadata] | PageFirst | Settled | Refuse


class StreamChange(Protocol):
    """A change that a client wants to make to a stream's metadata."""

    def decide(self, current: StreamMetadata) -> StreamDecision:
        """The decision, given the stored metadata. Has no effects and may be called any number of times."""


@dataclass(frozen=True, slots=True)
class TermEnd:
    """Where a term ends."""

    last_entry_id: EntryId
    """Its last place; one below the first place of its last fragment if that is empty."""
    length: int
    """Payload bytes of all positions of the stream up to it."""
    debts: tuple[tuple[EntryId, Debt], ...] = ()
    """The first places of the fragments that get their end with it, as far as their debts are known, and what is owed
    of them (rule I9). They are recorded by the change that writes the end, and compared by none."""


@dataclass(frozen=True, slots=True)
class ChangeFragment:
    """The writer goes on in a new fragment: it replaces bookies, or begins a fragment on the same ones (rule T9)."""

    base: StreamFragment
    """The last fragment that the writer knows."""
    fragment: StreamFragment
    """Of the same term. It replaces :attr:`base` when both start at the same place."""
    debt: Debt | None = None
    """What is owed of :attr:`base`, which this change ends; None: not recorded."""

    def decide(self, current: StreamMetadata) -> StreamDecision:
        if (lost := _lost(current, self.base.term)) is not None:
            return lost
        if current.state is StreamState.OPEN and _same(current.last_fragment, self.fragment):
            return Settled()
        if (refusal := _not_the_writers(current, self.base)) is not None:
            return refusal
        changed = current.with_fragment(self.fragment)
        replaces_base = self.fragment.first_entry_id == self.base.first_entry_id
        if self.debt is not None and not replaces_base:
            changed = changed.with_debt(self.base.first_entry_id, self.debt)
        return _grown(changed)


@dataclass(frozen=True, slots=True)
class Rest:
    """The writer ends its term, and leaves the stream without a writer (rule T8)."""

    base: StreamFragment
    """The last fragment that the writer knows."""
    end: TermEnd

    def decide(self, current: StreamMetadata) -> StreamDecision:
        term = self.base.term
        # An end that stands is what the writer wanted, whatever has come after it.
        if current.end_of_term(term) == self.end.last_entry_id:
            if current.term == term and current.length != self.end.length:
                return _conflict(current, f"its term {term} ends with another length than its writer counted")
            return Settled()
        if (lost := _lost(current, term)) is not None:
            return lost
        if current.state is StreamState.AT_REST:
            return _conflict(current, f"its term {term} ends at {current.last_entry_id}, not at its writer's end")
        return _not_the_writers(current, self.base) or Write(_ended(current, (), self.end))


@dataclass(frozen=True, slots=True)
class BeginTakeover:
    """A client starts to take the stream over (rule T2). Afterwards the term is IN_RECOVERY or AT_REST. Only then may
    the client fence the term, and it does so only in the first case."""

    term: int
    """The one that the client has read, and that it will fence."""
    fenced_at: datetime | None = None
    """The client's clock, which the errors of the old writer name."""
    fenced_by: str = ""
    """The client's name, likewise."""

    def decide(self, current: StreamMetadata) -> StreamDecision:
        if (lost := _lost(current, self.term)) is not None:
            return lost
        if current.state is not StreamState.OPEN:
            return Settled()
        return Write(current.in_recovery(self.fenced_at, self.fenced_by))


@dataclass(frozen=True, slots=True)
class OpenTerm:
    """The client that takes over gives the term its end and opens the next one, in one compare-and-set (rule T5).

    Nothing of the next term may be sent before the client knows that this stands (rule T1).
    """

    base: StreamFragment
    """The last fragment when the takeover began."""
    fragments: tuple[StreamFragment, ...]
    """What the recovery of the term made of the last fragment, in order. They stay local until now. At rest they are
    dropped: the end stands without them."""
    end: TermEnd
    """What the recovery found; at rest, what is stored."""
    owner: str
    """A random token of this takeover and of no other."""
    fragment: StreamFragment
    """The next term's first one; see :meth:`StreamMetadata.with_next_term` for what of it counts."""
    first_position_min: int = 0
    """The next term does not begin below; see there, too."""

    def decide(self, current: StreamMetadata) -> StreamDecision:
        term = self.base.term
        if _opened_by(current, term, self.owner):
            return Settled()
        if (lost := _lost(current, term)) is not None:
            return lost
        if current.state is not StreamState.AT_REST:
            refusal = _not_recovered(current, self.base)
            return refusal or self._opened(_ended(current, self.fragments, self.end))
        if (current.last_entry_id, current.length) != (self.end.last_entry_id, self.end.length):
            return _conflict(current, f"another client gave its term {term} the end {current.last_entry_id}")
        return self._opened(current)

    def _opened(self, ended: StreamMetadata) -> StreamDecision:
        return _grown(ended.with_next_term(self.owner, self.fragment, first_position_min=self.first_position_min))


@dataclass(frozen=True, slots=True)
class RenewTerm:
    """The writer, with nothing pending, ends its term and opens the next one itself (rule T11).

    It neither sends nor acknowledges anything between choosing the end and knowing that this stands or is refused.
    """

    base: StreamFragment
    """The last fragment that the writer knows."""
    end: TermEnd
    owner: str
    """A random token of this renewal and of no other."""
    fragment: StreamFragment
    """As in :class:`OpenTerm`."""

    def decide(self, current: StreamMetadata) -> StreamDecision:
        term = self.base.term
        if _opened_by(current, term, self.owner):
            return Settled()
        if (lost := _lost(current, term)) is not None:
            return lost
        refusal = _not_the_writers(current, self.base)
        return refusal or _grown(_ended(current, (), self.end).with_next_term(self.owner, self.fragment))


@dataclass(frozen=True, slots=True)
class LayToRest:
    """A client that recovered an abandoned stream gives its term the end, and opens no other one (rule T8).

    Afterwards the term is AT_REST, possibly with the end that another client found.
    """

    base: StreamFragment
    """The last fragment when the recovery began."""
    fragments: tuple[StreamFragment, ...]
    """As in :class:`OpenTerm`."""
    end: TermEnd

    def decide(self, current: StreamMetadata) -> StreamDecision:
        if (lost := _lost(current, self.base.term)) is not None:
            return lost
        if current.state is StreamState.AT_REST:
            return Settled()
        return _not_recovered(current, self.base) or Write(_ended(current, self.fragments, self.end))


@dataclass(frozen=True, slots=True)
class SealStream:
    """A client closes the stream at the end of its term, for good. There will be no other term."""

    term: int
    """The one at rest that the client has read."""

    def decide(self, current: StreamMetadata) -> StreamDecision:
        if current.state is StreamState.CLOSED and current.term == self.term:
            return Settled()
        if (lost := _lost(current, self.term)) is not None:
            return lost
        if current.state is not StreamState.AT_REST:
            return _conflict(current, f"its term {self.term} has no end yet")
        return Write(current.closed())


@dataclass(frozen=True, slots=True)
class Truncate:
    """Any client removes the positions below ``before``, but none of the last fragment."""

    before: int
    place: EntryId | None = None
    """Of the position :attr:`before`; needed if that lies in a page. A place never changes (rule T5), so it may have
    been found in older metadata."""

    def decide(self, current: StreamMetadata) -> Write[StreamMetadata] | Settled | Refuse:
        if self.place is None and current.start < self.before < current.tail_position:
            return _conflict(current, f"position {self.before} has been paged out; its place must be read in the page")
        truncated = current.truncated(self.before, self.place)
        return Settled() if truncated is current else Write(truncated)


@dataclass(frozen=True, slots=True)
class PageOut:
    """Any client moves the oldest fragments of the tail into a page that it has made (rules U2 and U3)."""

    moved: tuple[StreamFragment, ...]
    """The oldest fragments of the tail."""
    replaced: PageReference | None
    """The last page, if the new one takes its place and holds its fragments, too."""
    page: PageReference
    """The document exists."""

    def decide(self, current: StreamMetadata) -> Write[StreamMetadata] | Settled | Refuse:
        if self.page in current.pages:
            return Settled()
        if current.revision != self.page.revision:
            return _conflict(current, f"other pages have been named since page {self.page.name} was made")
        if self.replaced is not None and current.pages[-1:] != (self.replaced,):
            return _conflict(current, f"page {self.replaced.name} is no longer its last page")
        count = len(self.moved)
        if current.fragments[:count] != self.moved or count == len(current.fragments):
            return _conflict(current, "its oldest fragments are no longer those that were to be paged out")
        return Write(current.with_page(self.page, moved=count, replaces_last=self.replaced is not None))


@dataclass(frozen=True, slots=True)
class ReplacePages:
    """Repair names copies of pages in which it has replaced bookies of settled fragments, or cleared debts, any number
    at once (rules C2, G6 and U2)."""

    pages: tuple[tuple[PageReference, PageReference], ...]
    """The old ones and the new ones. The documents exist."""

    def decide(self, current: StreamMetadata) -> Write[StreamMetadata] | Settled | Refuse:
        if all(new in current.pages for _, new in self.pages):
            return Settled()
        if any(current.revision != new.revision for _, new in self.pages):
            return _conflict(current, "other pages have been named since these were made")
        if any(old not in current.pages for old, _ in self.pages):
            return _conflict(current, "truncation has removed a page that was repaired")
        return Write(current.with_pages(dict(self.pages)))


def _lost(current: StreamMetadata, term: int) -> Refuse | None:
    """The refusal of a change for ``term`` in every state but the three of that term."""
    if current.state is StreamState.CLOSED:
        return Refuse(
            LedgerClosedError(
                f"stream {current.ledger_id} is closed at the end of its term {current.term}", may_have_happened=False
            )
        )
    if current.term > term:
        return _term_over(current, term)
    if current.term < term:
        return _conflict(current, f"its term is {current.term}, which is older than the term {term} seen before")
    return None


def _not_the_writers(current: StreamMetadata, base: StreamFragment) -> Refuse | None:
    """The refusal of a writer's change unless its term is OPEN and its last fragment is the one it knows (rule T9)."""
    if current.state is not StreamState.OPEN:
        return _term_over(current, base.term)
    if not _same(current.last_fragment, base):
        return _second_writer(current)
    return None


def _not_recovered(current: StreamMetadata, base: StreamFragment) -> Refuse | None:
    """The refusal of an end that a recovery found unless the term is IN_RECOVERY with the fragment it began from."""
    if current.state is not StreamState.IN_RECOVERY:
        return _conflict(current, f"the recovery of its term {base.term} has not begun")
    if not _same(current.last_fragment, base):
        return _conflict(current, f"the last fragment of its term {base.term} is not the recovered one; recover again")
    return None


def _opened_by(current: StreamMetadata, after: int, owner: str) -> bool:
    """Whether the client has opened the current term, and that is above ``after``. Not every number is given to a
    term (:attr:`StreamMetadata.terms_skipped`), so only the owner shows it."""
    return current.state is StreamState.OPEN and current.term > after and current.owner == owner


def _ended(current: StreamMetadata, fragments: tuple[StreamFragment, ...], end: TermEnd) -> StreamMetadata:
    for fragment in fragments:
        current = current.with_fragment(fragment)
    ended = current.at_rest(end.last_entry_id, end.length)
    for first_entry_id, debt in end.debts:
        ended = ended.with_debt(first_entry_id, debt)
    return ended


def _same(one: StreamFragment, other: StreamFragment) -> bool:
    # The store may hold a later time than the one asked for, because times never fall; and repair pays debts.
    return one == replace(other, opened_at_ms=one.opened_at_ms, debt=one.debt)


def _grown(wanted: StreamMetadata) -> Write[StreamMetadata] | PageFirst:
    # A tail of one fragment cannot be paged out, and has room for it.
    if len(wanted.fragments) > 2 and encoded_fragments_bytes(wanted) > FRAGMENTS_BYTES_MAX:
        return PageFirst()
    return Write(wanted)


def _term_over(current: StreamMetadata, term: int) -> Refuse:
    if current.term > term:
        what = f"term {current.term} has been opened"
    elif current.state is StreamState.AT_REST:
        what = f"the stream was put at rest with the end {current.last_entry_id}"
    else:
        what = f"the stream is being taken over by {who_fenced(current).removesuffix(',')}"
    # The metadata change did not happen; whether adds did is for the writer to say (rule W6).
    message = f"stream {current.ledger_id}: term {term} is over: {what}"
    return Refuse(TermOverError(message, may_have_happened=False))


def _second_writer(current: StreamMetadata) -> Refuse:
    last = current.last_fragment
    return Refuse(
        InternalError(
            f"stream {current.ledger_id}: its last fragment, from position {last.first_position}, was not made by the "
            f"writer of term {current.term}: a second writer is active",
            may_have_happened=False,
        )
    )


def _conflict(current: StreamMetadata, reason: str) -> Refuse:
    return Refuse(MetadataConflictError(f"stream {current.ledger_id}: {reason}", may_have_happened=False))
