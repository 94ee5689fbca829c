"""Every version of the metadata of one stream, its pages included, checked from outside: N2, N3, N5 and N6 of
docs/simulator.md as far as metadata tell.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from octavo.metadata.ledger.debts import FullCopies
from octavo.metadata.stream.model import StreamFragment, StreamMetadata, StreamState
from octavo.metadata.stream.pages import decode_page, page_document
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from simulation.judges.history import Violation
from simulation.judges.log_store import LogStore

_ORDER = (StreamState.OPEN, StreamState.IN_RECOVERY, StreamState.AT_REST, StreamState.CLOSED)


class Extent(NamedTuple):
    """A fragment, and where it ends."""

    fragment: StreamFragment
    stop: int | None
    """The position after its last one; None while it grows."""

    @property
    def shift(self) -> int:
        """What a position lacks of its place."""
        return self.fragment.first_entry_id - self.fragment.first_position

    def places(self, start: int) -> range:
        """The places of its entries at positions from ``start`` on."""
        first = max(self.fragment.first_position, start)
        return range(first + self.shift, max(first, self.stop or 0) + self.shift)


class NamedMember(NamedTuple):
    """A bookie has taken a slot in a settled fragment."""

    bookie_id: BookieId
    places: list[int]
    """The places whose entries it should hold."""


class StreamRoots:
    """See the module. Of one stream."""

    def __init__(self, store: LogStore, ledger_id: LedgerId) -> None:
        self.ledger_id = ledger_id
        self.deleted = False
        self.current: StreamMetadata
        """The latest version; there is none before the first one."""
        self.extents: tuple[Extent, ...] = ()
        """All fragments of the latest version, also those of pages."""
        self.stops: dict[int, int] = {}
        """Term that is over, or at rest -> the position after its last one."""
        self.recovered: set[int] = set()
        """Terms of which a takeover has begun: clients may have fenced them, and may do so at any later time."""
        self.leaders: dict[int, int] = {}
        """Term -> the first term of its leader."""
        self._store = store
        self._owners: dict[int, str] = {}
        self._shifts: dict[int, int] = {}
        self._begins: dict[int, int] = {}
        self._first_kept = 0
        """Positions below were truncated."""

    @property
    def known_stop(self) -> int:
        """The position after the last one that the latest version tells to be settled."""
        last = self.extents[-1]
        return last.fragment.first_position if last.stop is None else last.stop

    @property
    def length(self) -> int:
        """Payload bytes of all positions ever, as far as the latest version shows."""
        return self.current.length if self.current.has_end else self.current.last_fragment.length_before

    def begin_of(self, term: int) -> int:
        """The first position of a term."""
        return self._begins[term]

    def last_place_of(self, term: int) -> EntryId:
        """The last place of a term that is over; one below its first place if it is empty."""
        return EntryId(self.stops.get(term, self._begins[term]) + self._shifts[term] - 1)

    def stop_of_leader(self, first_term: int) -> int | None:
        """The position after the last one of the leader whose first term was ``first_term``; None while no other one
        follows it."""
        later = [self._begins[term] for term, leader in self.leaders.items() if leader > first_term]
        return min(later, default=None)

    def truncated_places(self) -> Iterator[range]:
        """The places of positions below the start, term by term."""
        for term, begin in self._begins.items():
            stop = min(self.stops.get(term, begin), self.current.start)
            if begin < stop:
                yield range(begin + self._shifts[term], stop + self._shifts[term])

    def changed(self, after: StreamMetadata, held_stop: int, count: Callable[[str], None]) -> list[NamedMember]:
        """Record and check a new version. ``held_stop``: the position after the last one that is known to hold an
        entry, because it was acknowledged or read. ``count`` is told what happened. Returns the bookies that have taken
        a place (rule N1)."""
        where = f"stream {after.ledger_id}"
        extents = tuple(self._all(after))
        self._check_fragments(where, extents)
        named: list[NamedMember] = []
        if self.extents:
            before = self.current
            self._check_step(where, before, after)
            self._check_new_fragment(where, before, after, held_stop)
            named = list(self._named(before, extents))
            for event in _events(before, after):
                count(event)
        elif after.state is not StreamState.AT_REST or after.start or after.end_position != -1:
            raise Violation("T1", f"{where}: created as {after.state} with the end {after.end_position}")
        if self._owners.setdefault(after.term, after.owner) != after.owner:
            raise Violation("N2", f"{where}: term {after.term} was opened by two clients")
        self.current, self.extents, self._first_kept = after, extents, after.start
        if after.state is StreamState.IN_RECOVERY:
            self.recovered.add(after.term)
        self._check_places(where, held_stop)
        return named

    def names(self, document: str) -> bool:
        """Whether the latest version names this page."""
        return not self.deleted and any(page_document(self.ledger_id, page) == document for page in self.current.pages)

    # --- one version ------------------------------------------------------------------------------------------------

    def _all(self, root: StreamMetadata) -> Iterator[Extent]:
        parts = [self._page(root, at) for at in range(len(root.pages))]
        parts.append(root.tail)
        fragments = [fragment for part in parts for fragment in part.fragments]
        stops = [fragment.first_position for fragment in fragments[1:]]
        last = None if root.end_position is None else root.end_position + 1
        return map(Extent, fragments, [*stops, last])

    def _page(self, root: StreamMetadata, at: int) -> StreamMetadata:
        page = root.pages[at]
        document = page_document(root.ledger_id, page)
        if not self._store.has_document(document):
            raise Violation("N6", f"stream {root.ledger_id}: page {page.name} is named and does not exist")
        if page.revision >= root.revision:
            raise Violation("N6", f"stream {root.ledger_id}: page {page.name} is named at revision {root.revision}")
        return decode_page(root, page, self._store.stream_pages[document])

    def _check_fragments(self, where: str, extents: tuple[Extent, ...]) -> None:
        for fragment, _ in extents:
            if len(set(fragment.bookies)) != len(fragment.bookies) or len(fragment.bookies) < fragment.write_quorum:
                raise Violation("I6", f"{where}: ensemble {fragment.bookies}")
        for (one, _), (following, _) in pairwise(extents):
            rises = one.first_entry_id < following.first_entry_id and one.first_position < following.first_position
            if not rises or one.opened_at_ms > following.opened_at_ms or one.first_term > following.first_term:
                raise Violation("I6", f"{where}: {following} follows {one}")

    # --- two versions -----------------------------------------------------------------------------------------------

    def _check_step(self, where: str, before: StreamMetadata, after: StreamMetadata) -> None:
        one = f"{before.state.value} in term {before.term}"
        step = f"{where}: {one} became {after.state.value} in term {after.term}"
        if after.term < before.term or after.start < before.start or after.revision < before.revision:
            raise Violation("N5", f"{step}, start {before.start} {after.start}, revision {before.revision} "
                            f"{after.revision}")  # fmt: skip
        if after.term == before.term:
            if _ORDER.index(after.state) < _ORDER.index(before.state):
                raise Violation("N5", step)
            if before.has_end and (before.last_entry_id, before.length) != (after.last_entry_id, after.length):
                raise Violation("I2", f"{step}: its end {before.last_entry_id} became {after.last_entry_id}")
        elif before.state is StreamState.CLOSED or after.state is not StreamState.OPEN:
            raise Violation("T1", step)
        elif before.state is StreamState.OPEN and after.last_fragment.first_term != before.last_fragment.first_term:
            raise Violation("T2", f"{step}, and was not taken over")
        elif before.state is not StreamState.OPEN and after.last_fragment.quorums != before.last_fragment.quorums:
            raise Violation("T13", f"{step}: {before.last_fragment.quorums} became {after.last_fragment.quorums}")
        if after.start > max(before.start, before.last_fragment.first_position):
            raise Violation("U4", f"{step}: begins at {after.start}, in its last fragment")

    def _check_new_fragment(self, where: str, before: StreamMetadata, after: StreamMetadata, held_stop: int) -> None:
        """What the writer of an open term has had acknowledged lies below the fragment that it begins: the bookies of
        the new one need not have it (rules W1 and U6)."""
        writes = before.state is after.state is StreamState.OPEN and before.term == after.term
        if after.full_copies is FullCopies.REQUIRED:
            return  # the fragment begins above what all bookies have, and the new ones have the rest (rule G3)
        first = after.last_fragment.first_position
        if writes and first > before.last_fragment.first_position and held_stop > first:
            raise Violation("W1", f"{where}: a fragment begins at {first}, {held_stop - 1} was acknowledged")

    def _named(self, before: StreamMetadata, extents: tuple[Extent, ...]) -> Iterator[NamedMember]:
        known = {one.fragment.first_entry_id: one for one in self.extents}
        for one in extents:
            earlier = known.get(one.fragment.first_entry_id)
            if earlier is None or earlier.stop is None:
                continue
            fragment, size = one.fragment, len(one.fragment.bookies)
            for position, (old, new) in enumerate(zip(earlier.fragment.bookies, fragment.bookies, strict=True)):
                if old != new:
                    residues = {(position - step) % size for step in range(fragment.write_quorum)}
                    yield NamedMember(new, [at for at in one.places(before.start) if at % size in residues])

    # --- all versions -----------------------------------------------------------------------------------------------

    def _check_places(self, where: str, held_stop: int) -> None:
        """A position has the same place for ever: the first position of a term, the shift of its places, and its end
        never change (N3). An entry that was acknowledged or read lies below the end of its term."""
        term_before = 0
        for at, one in enumerate(self.extents):
            fragment, term = one.fragment, one.fragment.term
            if self._shifts.setdefault(term, one.shift) != one.shift:
                raise Violation("N3", f"{where}: the places of term {term} have moved")
            self.leaders[term] = fragment.first_term
            is_first = at == 0 or term != term_before
            if is_first and (at > 0 or term not in self._begins):
                first = fragment.first_position
                if self._begins.setdefault(term, first) != first:
                    raise Violation("N3", f"{where}: term {term} begins at {first}, and began at {self._begins[term]}")
            if one.stop is not None and (at + 1 == len(self.extents) or self.extents[at + 1].fragment.term != term):
                self._check_stop(where, term, one.stop, held_stop)
            term_before = term

    def _check_stop(self, where: str, term: int, stop: int, held_stop: int) -> None:
        if term not in self.stops:
            # No later term has an entry yet: what is known to be there is of this term, or of an earlier one.
            if held_stop > stop:
                raise Violation("N3", f"{where}: term {term} ends at {stop - 1}, and position {held_stop - 1} was told "
                                "to hold an entry")  # fmt: skip
            self.stops[term] = stop
        elif self.stops[term] != stop:
            raise Violation("N3", f"{where}: term {term} ended at {self.stops[term] - 1}, and ends at {stop - 1}")


def _events(before: StreamMetadata, after: StreamMetadata) -> Iterator[str]:
    """What a change was, for the counters."""
    last, following = before.last_fragment, after.last_fragment
    if after.term > before.term:
        how = {StreamState.OPEN: "renewed", StreamState.AT_REST: "opened from rest"}.get(before.state, "taken over")
        yield f"stream: term {how}" + (" by its leader" if last.first_term == following.first_term else "")
    elif following.first_entry_id > last.first_entry_id:
        yield "stream: fragment begun"
    elif before.state is StreamState.IN_RECOVERY and after.state is StreamState.AT_REST:
        yield "stream: put at rest by recovery"
    if after.revision > before.revision:
        moved = after.tail_position > before.tail_position
        yield "stream: fragments paged out" if moved else "stream: pages repaired"
    elif before.pages and before.pages[0] != (after.pages or (None,))[0]:
        yield "stream: pages truncated"
