"""Changes of the list of a chain, and how each is decided when another client has changed the list. Pure.

As in :mod:`octavo.metadata.ledger.changes`, a change is a value with one method, ``decide(current)``: *write* this
document, or it is *settled* (what was wanted stands there, written by any client; so one's own write whose answer was
lost is recognised, rule M1), or *refuse* with an error. "rival" means: the newest segment is not the one that the
change was computed from, and not what it wanted to write.

===============  =======================  =======================  ===================================================
change           list as it was read      newest is another        what is merged
===============  =======================  =======================  ===================================================
BeginSegment     write                    refuse, rival            the id is in ``making``: settled
AppendSegment    write, if its id is in   what it wanted: settled; truncation, retention, pages and ends noted by
                 ``making``, else refuse  rival: refuse            other clients stand as found
Withdraw         write                    write                    the id is a segment or gone: settled
NoteEnds         write                    write                    ends known already: settled
Truncate         write                    write                    not above what stands there: settled; decided by
                                                                   another list: refuse, by another retention: settled
GiveUp           write                    write                    the gap is noted: settled
SetRetention     write                    write                    the same: settled
FoldPage         write                    write                    the oldest segments are others: settled
MergePages       write                    write                    not all of the pages are there: settled
ForgetDropped    write                    write                    none of the ids is there: settled
MarkDeleted      write                    write                    DELETED: settled
DropPage         write                    write                    the page is not there: settled
===============  =======================  =======================  ===================================================

In a log that is DELETED every change but Withdraw, ForgetDropped, MarkDeleted and DropPage refuses with
:class:`NoSuchLogError`. :mod:`octavo.client.log.chain.bounds` tells why no part of the list grows without end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from octavo.client.log.chain.bounds import MAKING_MAX
from octavo.client.log.documents.chain import (
    Dropped,
    LogDocument,
    Making,
    PageReference,
    Retention,
    Segment,
    SegmentEnd,
)
from octavo.client.log.documents.effects import WriteDocument
from octavo.client.log.documents.states import LogState
from octavo.client.log.seam.end_moved import end_moved
from octavo.metadata.ledger.decisions import Refuse, Settled
from octavo.protocol.errors import InvalidArgumentError, NoSuchLogError, NotLeaderError
from octavo.protocol.ids import LedgerId
from octavo.protocol.light_dataclass import dataclass

type Decision = WriteDocument[LogDocument] | Settled | Refuse


class LogChange(Protocol):
    """Something a client wants of the list of a log."""

    def decide(self, current: LogDocument) -> Decision:
        """The decision, given the stored list. Has no effects and may be called any number of times."""


@dataclass(frozen=True, slots=True)
class BeginSegment:
    """A candidate notes the ledger that it is about to create, so that it is found if the candidate dies."""

    ledger_id: LedgerId
    owner: str
    base: LedgerId | None
    """The newest segment as the candidate read it; None of an empty list."""

    def decide(self, current: LogDocument) -> Decision:
        if current.state is LogState.DELETED:
            return _deleted(current)
        if _newest_id(current) != self.base:
            return _rival(current)
        if any(making.ledger_id == self.ledger_id for making in current.making):
            return Settled()
        making = (*current.making, Making(self.ledger_id, self.owner))
        # Clients that died before they led. One that lives loses its append, as to a rival, and starts again.
        oldest = [Dropped(one.ledger_id) for one in making[:-MAKING_MAX]]
        return WriteDocument(replace(current, making=making[-MAKING_MAX:], dropped=(*current.dropped, *oldest)))


@dataclass(frozen=True, slots=True)
class AppendSegment:
    """The compare-and-set by which a candidate becomes leader, and a leader rolls (rule L1).

    It is made only while the ledger is in ``making``: a client that found the ledger orphaned and is deleting it has
    taken it out first, and this change then loses.
    """

    ledger_id: LedgerId
    owner: str
    term: int
    created_at_ms: int
    base: LedgerId | None
    """The newest segment as it was read when the ledgers before were recovered; None of an empty list."""
    ends: Mapping[LedgerId, SegmentEnd]
    """Ends of the segments before, as far as this client knows them."""
    is_takeover: bool
    """The segments before are all closed; a roll leaves the one before open."""

    def decide(self, current: LogDocument) -> Decision:
        if current.state is LogState.DELETED:
            return _deleted(current)
        if current.is_listed(self.ledger_id):
            return Settled()
        if _newest_id(current) != self.base:
            return _rival(current)
        if not self.is_takeover and current.newest is not None and current.newest.owner != self.owner:
            # An operator gave the segment up: what this leader believes of its positions is not so any more.
            return _rival(current)
        if all(making.ledger_id != self.ledger_id for making in current.making):
            return Refuse(
                NotLeaderError(
                    f"log {current.name}: ledger {self.ledger_id}, which was to be its next segment, was taken for "
                    "abandoned and is being deleted",
                    may_have_happened=False,
                )
            )
        known = current.with_ends(self.ends)
        # The ledgers of other candidates were made for a list that is no more: their own appends would be refused.
        others = [Dropped(making.ledger_id) for making in current.making if making.ledger_id != self.ledger_id]
        known = replace(known, making=(), dropped=(*known.dropped, *others))
        if self.is_takeover:
            known = known.without_trailing_empty_segments()
        before = known.newest
        first = known.known_stop if before is None else before.stop_position
        if self.is_takeover and first is not None:
            # Above what is left of a log whose end was lost, and which was truncated higher up (rule P7).
            first = max(first, known.first_position)
        segment = Segment(self.ledger_id, self.term, self.owner, self.created_at_ms, first)
        return WriteDocument(known.with_segment(segment))


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take a ledger out of ``making`` so that it may be deleted. Settled where it has become a segment."""

    ledger_id: LedgerId

    def decide(self, current: LogDocument) -> Decision:
        if current.is_listed(self.ledger_id) or all(m.ledger_id != self.ledger_id for m in current.making):
            return Settled()
        return WriteDocument(
            replace(
                current,
                making=tuple(making for making in current.making if making.ledger_id != self.ledger_id),
                dropped=(*current.dropped, Dropped(self.ledger_id)),
            )
        )


@dataclass(frozen=True, slots=True)
class NoteEnds:
    """Note how closed segments ended."""

    ends: Mapping[LedgerId, SegmentEnd]

    def decide(self, current: LogDocument) -> Decision:
        if current.state is LogState.DELETED:
            return _deleted(current)
        known = current.with_ends(self.ends)
        return Settled() if known == current else WriteDocument(known)


@dataclass(frozen=True, slots=True)
class Truncate:
    """Readers get nothing below ``before`` from now on; whole segments below it are dropped (rules L3 and P7).

    The last two segments stay, whatever is asked: they are what a candidate fences. So does a segment whose successor's
    first position is not known. ``split`` replaces the page that holds ``before``: a page is dropped whole, so the
    caller makes a new one of the segments that stay.
    """

    before: int
    split: tuple[PageReference, PageReference | None, tuple[LedgerId, ...]] | None = None
    """A page that ``before`` falls into, the page that takes its place (None: nothing of it stays), and the ledgers
    that are dropped of it."""
    whole_pages: Mapping[str, tuple[LedgerId, ...]] | None = None
    """The ledgers of the pages that lie below ``before`` altogether, by document."""
    looked: LogDocument | None = None
    """The list by which ``before`` was found not to be above the end; None: it is not above the end for certain."""
    retention: Retention | None = None
    """That by which ``before`` was decided; None: a client has asked for it. Another one decides anew (rule P20)."""

    def decide(self, current: LogDocument) -> Decision:
        if current.state is LogState.DELETED:
            return _deleted(current)
        if self.looked is not None and current != self.looked and current.first_position < self.before:
            return end_moved(current.name)
        if self.retention not in (None, current.retention):
            return Settled()
        pages: list[PageReference] = []
        dropped = list(current.dropped)
        whole = self.whole_pages or {}
        for page in current.pages:
            if page.document in whole and page.stop_position <= self.before:
                dropped += map(Dropped, whole[page.document])
            elif self.split is not None and page == self.split[0]:
                pages += [self.split[1]] if self.split[1] is not None else []
                dropped += map(Dropped, self.split[2])
            else:
                pages.append(page)
        segments = list(current.segments)
        while not pages and len(segments) > 2 and _lies_below(segments[0], segments[1], self.before):
            dropped.append(Dropped(segments.pop(0).ledger_id))
        first = max(current.first_position, self.before)
        changed = replace(
            current,
            first_position=first,
            segments=tuple(segments),
            pages=tuple(pages),
            dropped=tuple(dropped),
            gaps=tuple(gap for gap in current.gaps if gap[1] >= first),
        )
        if changed.segments != current.segments or changed.pages != current.pages:
            # Those that stay may hold nothing, and readers may have got what is dropped (rule P10).
            changed = replace(changed, dropped_sealed_at_ms=current.sealed_at_ms)
        return Settled() if changed == current else WriteDocument(changed)


@dataclass(frozen=True, slots=True)
class GiveUp:
    """An operator gives the positions of a segment up, because its ledger does not exist any more. Readers get a gap.

    A segment whose end is not known ends at ``last``, and its writer, if there still is one, does not lead any more.
    """

    ledger_id: LedgerId
    first: int
    last: int
    """The positions that are given up, both inclusive; ``last`` is below ``first`` where the segment is empty."""

    def decide(self, current: LogDocument) -> Decision:
        if current.state is LogState.DELETED:
            return _deleted(current)
        segments = []
        for segment in current.segments:
            if segment.ledger_id == self.ledger_id and segment.end is None:
                if segment.first_position != self.first:
                    return Refuse(
                        InvalidArgumentError(f"log {current.name}: its list has changed; look at it again with show")
                    )
                end = SegmentEnd(self.last - self.first + 1, 0, 0)
                segments.append(replace(segment, end=end, owner=""))
            else:
                segments.append(segment)
        gaps = current.gaps
        if self.last >= max(self.first, current.first_position) and (self.first, self.last) not in gaps:
            gaps = tuple(sorted((*gaps, (self.first, self.last))))
        changed = replace(current, segments=tuple(segments), gaps=gaps)
        if changed == current:
            return Settled()
        # The next segment's first position may be known now.
        return WriteDocument(changed.with_ends({}))


@dataclass(frozen=True, slots=True)
class SetRetention:
    """Change what the leader drops."""

    retention: Retention

    def decide(self, current: LogDocument) -> Decision:
        if current.state is LogState.DELETED:
            return _deleted(current)
        if current.retention == self.retention:
            return Settled()
        return WriteDocument(replace(current, retention=self.retention))


@dataclass(frozen=True, slots=True)
class FoldPage:
    """Let a page, which exists already, take the place of the oldest segments (rule P9)."""

    page: PageReference
    segments: tuple[Segment, ...]
    """Those of the page; the list must begin with them and hold two more."""

    def decide(self, current: LogDocument) -> Decision:
        if current.state is LogState.DELETED:
            return _deleted(current)
        count = len(self.segments)
        if current.segments[:count] != self.segments or len(current.segments) < count + 2:
            return Settled()
        return WriteDocument(replace(current, pages=(*current.pages, self.page), segments=current.segments[count:]))


@dataclass(frozen=True, slots=True)
class MergePages:
    """Let one page, which exists already, take the place of neighbouring pages (rule P9)."""

    pages: tuple[PageReference, ...]
    """Oldest first."""
    merged: PageReference
    """Of all their segments."""

    def decide(self, current: LogDocument) -> Decision:
        if current.state is LogState.DELETED:
            return _deleted(current)
        first, count = self.pages[0], len(self.pages)
        at = current.pages.index(first) if first in current.pages else len(current.pages)
        if current.pages[at : at + count] != self.pages:
            return Settled()
        return WriteDocument(replace(current, pages=(*current.pages[:at], self.merged, *current.pages[at + count :])))


@dataclass(frozen=True, slots=True)
class ForgetDropped:
    """Dropped ledgers that have been deleted leave the list; those that did not exist are counted once more."""

    deleted: Sequence[LedgerId]
    missing: Sequence[LedgerId] = ()
    misses_max: int = 10

    def decide(self, current: LogDocument) -> Decision:
        kept = []
        for dropped in current.dropped:
            misses = dropped.misses + (dropped.ledger_id in self.missing)
            if dropped.ledger_id not in self.deleted and misses <= self.misses_max:
                kept.append(Dropped(dropped.ledger_id, misses))
        return Settled() if tuple(kept) == current.dropped else WriteDocument(replace(current, dropped=tuple(kept)))


@dataclass(frozen=True, slots=True)
class MarkDeleted:
    """No client can use the log any more. Its ledgers are then deleted one by one, then its pages, each with its
    ledgers (:class:`DropPage`), and the document last."""

    def decide(self, current: LogDocument) -> Decision:
        if current.state is LogState.DELETED:
            return Settled()
        ledgers = (
            *(segment.ledger_id for segment in current.segments),
            *(making.ledger_id for making in current.making),
        )
        return WriteDocument(
            replace(
                current,
                state=LogState.DELETED,
                segments=(),
                making=(),
                dropped=(*current.dropped, *map(Dropped, ledgers)),
            )
        )


@dataclass(frozen=True, slots=True)
class DropPage:
    """The ledgers of a page of a log that is DELETED are to be deleted."""

    page: PageReference
    ledgers: Sequence[LedgerId]
    """Those of the page."""

    def decide(self, current: LogDocument) -> Decision:
        if self.page not in current.pages:
            return Settled()
        pages = tuple(page for page in current.pages if page != self.page)
        return WriteDocument(replace(current, pages=pages, dropped=(*current.dropped, *map(Dropped, self.ledgers))))


def _lies_below(segment: Segment, successor: Segment, before: int) -> bool:
    """Whether every position of the segment is below ``before``, for certain."""
    return segment.end is not None and successor.first_position is not None and successor.first_position <= before


def _newest_id(document: LogDocument) -> LedgerId | None:
    return document.newest.ledger_id if document.newest is not None else None


def _rival(current: LogDocument) -> Refuse:
    newest = current.newest
    which = "" if newest is None else f": its newest segment is ledger {newest.ledger_id} of term {newest.term}"
    return Refuse(
        NotLeaderError(f"log {current.name} has been taken over by another client{which}", may_have_happened=False)
    )


def _deleted(current: LogDocument) -> Refuse:
    return Refuse(NoSuchLogError(f"log {current.name} has been deleted"))
