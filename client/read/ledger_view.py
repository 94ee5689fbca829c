"""A ledger as its reader knows it: metadata, last add confirmed, length. Pure; nothing ever goes back (rule I4).

Facts come from three sources, in any order, often late:

* the metadata: while the ledger is open the LAC is at least (first entry of the last fragment) - 1 (rule R3);
  once it is closed the metadata's end is the end, whatever any bookie says (rule R4);
* verified entries: each carries the LAC its writer had when it sealed it, and the length up to itself;
* verified explicit LACs, with the length up to there.

A fact that is older than what is known changes nothing. In a term of a stream, LACs and entries of other terms are no
facts (rule V1).
"""

from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter

from octavo.client.read.terms import confirmed_in, tells_of_later_term
from octavo.metadata.ledger.term import Term
from octavo.protocol.entries import Entry
from octavo.protocol.ids import EntryId

_entry_id = itemgetter(1)

_MARKS_MAX = 64
"""Most lengths kept for entries above the LAC: each answer brings one, and the LAC follows a few answers behind."""


class LedgerView:
    """See the module. Ids are -1 for "none" inside, None outside."""

    __slots__ = ("_confirmed", "_length", "_length_at", "_marks", "_term", "_version")

    def __init__(self, term: Term, version: int) -> None:
        self._term = term
        self._version = version
        self._confirmed = -1
        self._length_at = -1
        self._length = 0
        self._marks: dict[int, int] = {}
        self._adopt()

    # --- what is known -------------------------------------------------------------------------------------------

    @property
    def term(self) -> Term:
        """The term by the latest metadata seen."""
        return self._term

    @property
    def version(self) -> int:
        """That of these metadata."""
        return self._version

    @property
    def closed(self) -> bool:
        """Whether the term has its final end."""
        return self._term.has_end

    @property
    def readable_end(self) -> int:
        """Highest id that an ordinary read may ask for; -1 when there is none."""
        return self._confirmed

    @property
    def last_add_confirmed(self) -> EntryId | None:
        """:attr:`readable_end` as callers see it."""
        return None if self._confirmed < 0 else EntryId(self._confirmed)

    @property
    def length(self) -> int:
        """Payload bytes of the ledger up to the readable end, or up to the highest id below it whose length is
        known."""
        return self._length

    @property
    def length_known_exactly(self) -> bool:
        """Whether :attr:`length` is that at the readable end."""
        return self._length_at == self._confirmed

    def counts(self, last_add_confirmed: int | None) -> bool:
        """Whether this LAC says anything of what can be read here (rule V1)."""
        term = self._term.number
        return not term or (last_add_confirmed is not None and confirmed_in(term, last_add_confirmed) is not None)

    def is_of_later_term(self, last_add_confirmed: int | None) -> bool:
        """Whether this LAC tells that the term is over, or never counted (rule V1)."""
        term = self._term.number
        return bool(term) and last_add_confirmed is not None and tells_of_later_term(term, last_add_confirmed)

    # --- facts ---------------------------------------------------------------------------------------------------

    def on_metadata(self, term: Term, version: int) -> bool:
        """Metadata were read. Gives whether they are newer than those known; others are not looked at."""
        if version <= self._version:
            return False
        self._term, self._version = term, version
        self._adopt()
        return True

    def on_entries(self, entries: Sequence[Entry]) -> bool:
        """Verified entries arrived, ids ascending. Gives whether the LAC moved."""
        if self.closed or not entries or not self.counts(entries[-1].last_add_confirmed):
            return False
        last = entries[-1]
        self._mark(last.entry_id, last.length)
        before = self._confirmed
        # LACs do not decrease from entry to entry: a writer seals in order (rule W2).
        self._confirm(-1 if last.last_add_confirmed is None else last.last_add_confirmed)
        place = bisect_left(entries, self._confirmed, key=_entry_id)
        if place < len(entries) and entries[place].entry_id == self._confirmed:
            self._mark(self._confirmed, entries[place].length)
        self._settle_length()
        return self._confirmed > before

    def on_last_add_confirmed(self, last_add_confirmed: EntryId | None, length: int | None) -> bool:
        """A verified LAC arrived, with the length up to there if it is known. Gives whether the LAC moved."""
        if last_add_confirmed is None or not self.counts(last_add_confirmed):
            return False
        if length is not None:
            self._mark(last_add_confirmed, length)
        before = self._confirmed
        self._confirm(last_add_confirmed)
        self._settle_length()
        return self._confirmed > before

    # --- inside --------------------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        if self.closed:
            end = self._term.last_entry_id
            self._confirmed = self._length_at = -1 if end is None else end
            self._length = self._term.length
            self._marks.clear()
            return
        fragment = self._term.last_fragment
        self._mark(fragment.first_entry_id - 1, fragment.length_before)
        self._confirm(fragment.first_entry_id - 1)
        self._settle_length()

    def _confirm(self, entry_id: int) -> None:
        if not self.closed and entry_id > self._confirmed:
            self._confirmed = entry_id

    def _mark(self, entry_id: int, length: int) -> None:
        if self.closed or entry_id <= self._length_at:
            return
        self._marks[entry_id] = length
        if len(self._marks) > _MARKS_MAX:
            # The lowest are the first to be of use; those in between only make the length a little more exact.
            del self._marks[sorted(self._marks)[_MARKS_MAX // 2]]

    def _settle_length(self) -> None:
        """Take the highest mark at or below the LAC."""
        reached = [entry_id for entry_id in self._marks if entry_id <= self._confirmed]
        if not reached:
            return
        best = max(reached)
        if best > self._length_at:
            self._length_at, self._length = best, self._marks[best]
        for entry_id in reached:
            del self._marks[entry_id]

    def check_invariants(self) -> None:
        """Assert what must hold after every fact."""
        assert self._length_at <= self._confirmed
        assert all(entry_id > self._confirmed for entry_id in self._marks)
        assert len(self._marks) <= _MARKS_MAX
        if not self.closed:
            assert self._confirmed >= self._term.last_fragment.first_entry_id - 1
