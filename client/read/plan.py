"""Which replica is asked for which entries, and what to do with each answer. Pure.

Theory of operation
===================

A :class:`ReadPlan` gets the entries ``first..last`` of one fragment. It decides whom to ask (:class:`Ask`, its only
effect) and is told what became of each ask. It never waits, and it never looks at a clock: that asks are *slow* is an
event.

What it knows is a set of *open segments*: ids not found yet, each with the verdicts that replicas gave on exactly these
ids. Everything else is derived:

* An open segment is *served* while an ask that covers it is under way, is not slow, and goes to a bookie without a
  verdict on it. After every event each segment that is not served goes to the first bookie in order of preference that
  is in its write set, has given no verdict on it and is not being asked for it. So each replica gives at most one
  verdict per id, and the plan ends.
* Segments for the same bookie travel as one ask over their hull: a bookie that lost every other entry costs one more
  request, not a thousand. An answer is applied to whatever is open by ids, so asks may overlap.
* Ids above the answer's ``last_covered`` were not answered (rule R2): they stay open without a verdict, and the
  same bookie is asked on.
* One positive answer decides: an entry that its opener verified is the entry. *Absent* is a verdict only for ids
  that the answer covers, names not unknown, and came without damaged entries: one of those may be the missing one.
* When every replica has given a verdict on a segment, it is *missing*. That is not yet an error: the caller reads the
  metadata again first (rule R5), and decides by the LAC what a missing entry means.

A plan has a budget of bytes. Once it holds as much and still has ids open, it gives up what lies above the lowest open
id: :attr:`ReadPlan.last` shrinks. It gives at least one entry, or says that its first one is missing.

Invariants: found ids, open ids and nothing else make up ``first..last``; an open segment is served, waits for a slow
ask, or has a verdict of every member of its write set.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from operator import itemgetter

from octavo.protocol.entries import Entry
from octavo.protocol.entry_columns import EntryColumns
from octavo.protocol.ids import BookieId, EntryId
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.quorums import Quorums

_entry_id = itemgetter(1)
_ID_FIELD = 1
assert Entry._fields[_ID_FIELD] == "entry_id"


class VerdictKind(enum.Enum):
    """The answer of a replica about an entry that it did not give."""

    ABSENT = "absent"
    """It would know, and has no such entry."""
    UNKNOWN = "unknown"
    """It cannot tell: damaged, in doubt, an I/O error (rule R2)."""
    FAILED = "failed"
    """It did not answer, or refused."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One replica's verdict; ``detail`` is for people."""

    kind: VerdictKind
    detail: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Effect: ask the bookie at ``position`` for the ids of ``first..last`` with ``id % modulus`` among ``residues``.

    ``number`` tells the asks of one plan apart.
    """

    number: int
    position: int
    bookie_id: BookieId
    first: int
    last: int
    modulus: int
    residues: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """Ids ``first..last`` with these residues that are not found yet, and what replicas said of them, by slot."""

    first: int
    last: int
    residues: tuple[int, ...]
    verdicts: tuple[tuple[int, Verdict], ...] = ()

    @property
    def judged_mask(self) -> int:
        """Slots that gave a verdict."""
        return sum(1 << position for position, _ in self.verdicts)

    def with_verdict(self, position: int, verdict: Verdict) -> "Segment":
        """The same ids with one more verdict. A second verdict of one slot changes nothing."""
        if self.judged_mask >> position & 1:
            return self
        return replace(self, verdicts=(*self.verdicts, (position, verdict)))


class ReadPlan:
    """See the module. ``preference`` holds every slot of the ensemble, the one to ask first at the front."""

    __slots__ = (
        "_asks", "_bookies", "_budget_bytes", "_first", "_found", "_held_bytes", "_last", "_modulus", "_next_number",
        "_open", "_preference", "_quorums", "_slow",
    )  # fmt: skip

    def __init__(
        self,
        quorums: Quorums,
        bookies: Sequence[BookieId],
        preference: Sequence[int],
        first: int,
        last: int,
        *,
        budget_bytes: int,
    ) -> None:
        if len(bookies) != quorums.ensemble_size or sorted(preference) != list(range(quorums.ensemble_size)):
            raise ValueError("bookies and preference must name every position of the ensemble")
        if not 0 <= first <= last:
            raise ValueError(f"no ids in {first}..{last}")
        self._quorums = quorums
        self._bookies = tuple(bookies)
        self._preference = tuple(preference)
        self._first = first
        self._last = last
        self._budget_bytes = budget_bytes
        # Not striped: every bookie holds every entry, so residues need not be told apart.
        self._modulus = quorums.ensemble_size if quorums.striped else 1
        residues = tuple(range(self._modulus))
        self._open: list[Segment] = self._with_residues(Segment(first, last, residues), residues)
        self._asks: dict[int, Ask] = {}
        self._slow: frozenset[int] = frozenset()
        self._found: list[Sequence[Entry]] = []
        self._held_bytes = 0
        self._next_number = 0

    # --- what can be asked of it ---------------------------------------------------------------------------------

    @property
    def first(self) -> int:
        """First id of the plan."""
        return self._first

    @property
    def last(self) -> int:
        """Last id that the plan still sets out to get (inclusive); shrinks when the budget is spent."""
        return self._last

    @property
    def bookies(self) -> tuple[BookieId, ...]:
        """The ensemble, by slot."""
        return self._bookies

    @property
    def done(self) -> bool:
        """Whether nothing more will come: everything is found, or missing."""
        return not any(self._awaited(segment) for segment in self._open)

    @property
    def awaited_bookies(self) -> frozenset[BookieId]:
        """Those that are being asked."""
        return frozenset(ask.bookie_id for ask in self._asks.values())

    @property
    def missing(self) -> tuple[Segment, ...]:
        """When done: the ids on which every replica has given a verdict, lowest first."""
        return tuple(sorted(self._open, key=lambda segment: segment.first))

    def missing_run(self) -> range:
        """When done: the lowest missing id and those behind it that are missing too, up to one that is not."""
        missing = {
            entry_id
            for segment in self._open
            for entry_id in range(segment.first, segment.last + 1)
            if entry_id % self._modulus in segment.residues
        }
        first = stop = min(missing, default=self._first)
        while stop in missing:
            stop += 1
        return range(first, stop)

    def found_prefix(self) -> Sequence[Entry]:
        """The entries from ``first`` up to the lowest open id, in order."""
        if len(self._found) == 1 and not self._open:
            return self._found[0]
        stop = min((segment.first for segment in self._open), default=self._last + 1)
        entries = sorted(chain.from_iterable(self._found), key=_entry_id)
        return entries[: stop - self._first]

    # --- events: each returns the asks to send now ---------------------------------------------------------------

    def start(self) -> list[Ask]:
        """The first asks. Call it once, before any other event."""
        assert not self._next_number, "a plan starts once"
        return self._assign()

    def on_answer(
        self,
        ask: Ask,
        *,
        last_covered: int,
        entries: Sequence[Entry],
        unknown: Iterable[tuple[int, int]] = (),
        damaged: bool = False,
    ) -> list[Ask]:
        """The bookie answered. ``entries`` are those that were verified; ``damaged``: others were not."""
        if not self._end(ask):
            return []
        if last_covered < ask.first:
            return self._judge(ask, Verdict(VerdictKind.FAILED, "answered without any of the entries asked for"))
        covered = min(last_covered, ask.last)
        if not self._take_whole(ask, covered, entries):
            self._take_parts(ask, covered, entries, tuple(unknown), damaged)
        if self._open and self._held_bytes >= self._budget_bytes:
            self._shrink()
        return self._assign()

    def on_failure(self, ask: Ask, detail: str) -> list[Ask]:
        """The bookie refused, did not answer in time, or cannot be reached."""
        if not self._end(ask):
            return []
        return self._judge(ask, Verdict(VerdictKind.FAILED, detail))

    def on_slow(self) -> list[Ask]:
        """The requests in flight take long: ask other bookies too. The first answer counts."""
        self._slow = frozenset(self._asks)
        return self._assign()

    # --- transitions ---------------------------------------------------------------------------------------------

    def _end(self, ask: Ask) -> bool:
        self._slow -= {ask.number}
        return self._asks.pop(ask.number, None) is not None

    def _judge(self, ask: Ask, verdict: Verdict) -> list[Ask]:
        kept: list[Segment] = []
        for segment in self._open:
            inside, outside = self._cut(segment, ask, ask.last)
            kept.extend(part.with_verdict(ask.position, verdict) for part in inside)
            kept.extend(outside)
        self._open = kept
        return self._assign()

    def _take_whole(self, ask: Ask, covered: int, entries: Sequence[Entry]) -> bool:
        """The ordinary case at C speed: the only open segment is answered without a hole, from its beginning."""
        if len(self._open) != 1 or self._modulus != 1 or not entries:
            return False
        (segment,) = self._open
        ids = range(segment.first, covered + 1)
        if ask.first != segment.first or ask.last != segment.last or len(entries) != len(ids):
            return False
        if isinstance(entries, EntryColumns):
            if entries.entry_ids != ids:
                return False
        elif list(map(_entry_id, entries)) != list(ids):
            return False
        self._keep(entries)
        self._open = [] if covered == segment.last else [replace(segment, first=covered + 1)]
        return True

    def _take_parts(
        self, ask: Ask, covered: int, entries: Sequence[Entry], unknown: tuple[tuple[int, int], ...], damaged: bool
    ) -> None:
        by_id = {entry.entry_id: entry for entry in entries}
        unknown_ids = {i for low, high in unknown for i in range(max(low, ask.first), min(high, covered) + 1)}
        absent = Verdict(VerdictKind.ABSENT, "has no such entry")
        if damaged:
            absent = Verdict(VerdictKind.UNKNOWN, "sent bytes that do not match their digest")
        cannot_tell = Verdict(VerdictKind.UNKNOWN, "cannot tell (damaged or in doubt)")
        kept: list[Segment] = []
        taken: list[Entry] = []
        for segment in self._open:
            inside, outside = self._cut(segment, ask, covered)
            kept.extend(outside)
            for part in inside:
                ids = self._ids(part)
                taken.extend(by_id[EntryId(i)] for i in ids if i in by_id)
                missed = [i for i in ids if i not in by_id]
                for ids_missed, verdict in (
                    ([i for i in missed if i not in unknown_ids], absent),
                    ([i for i in missed if i in unknown_ids], cannot_tell),
                ):
                    judged = part.with_verdict(ask.position, verdict)
                    kept.extend(
                        replace(judged, first=low, last=high, residues=residues)
                        for low, high, residues in self._runs(ids, ids_missed, part.residues)
                    )
        self._open = kept
        if taken:
            # Segments come in no particular order: those after one answer are grouped by their verdicts.
            self._keep(sorted(taken, key=_entry_id))

    def _keep(self, entries: Sequence[Entry]) -> None:
        self._found.append(entries)
        if isinstance(entries, EntryColumns):
            self._held_bytes += entries.payload_bytes
        else:
            self._held_bytes += sum(map(len, map(itemgetter(2), entries)))

    def _shrink(self) -> None:
        """Give up everything above the lowest open id; if that is the very first one, go on getting it."""
        lowest = min(segment.first for segment in self._open)
        if lowest == self._first:
            return
        self._last = lowest - 1
        self._open = []
        self._asks.clear()
        self._slow = frozenset()
        kept = [[entry for entry in piece if entry.entry_id <= self._last] for piece in self._found]
        self._found = [piece for piece in kept if piece]

    def _assign(self) -> list[Ask]:
        """Give every open segment that is not served to its next replica."""
        wanted: dict[int, list[Segment]] = {}
        kept: list[Segment] = []
        for segment in self._open:
            if self._serving_mask(segment, slow=False):
                kept.append(segment)
                continue
            busy = segment.judged_mask | self._serving_mask(segment, slow=True)
            for position, residues in self._next_positions(segment.residues, busy).items():
                parts = self._with_residues(segment, residues)
                kept.extend(parts)
                if position is not None:
                    wanted.setdefault(position, []).extend(parts)
        self._open = kept
        asks = [self._ask(position, segments) for position, segments in wanted.items()]
        self._asks.update((ask.number, ask) for ask in asks)
        return asks

    def _ask(self, position: int, segments: list[Segment]) -> Ask:
        number = self._next_number
        self._next_number += 1
        residues = sorted(set(chain.from_iterable(segment.residues for segment in segments)))
        return Ask(
            number=number,
            position=position,
            bookie_id=self._bookies[position],
            first=min(segment.first for segment in segments),
            last=max(segment.last for segment in segments),
            modulus=self._modulus,
            residues=tuple(residues),
        )

    # --- derived -------------------------------------------------------------------------------------------------

    def _write_mask(self, residue: int) -> int:
        return self._quorums.full_mask if self._modulus == 1 else self._quorums.write_mask(residue)

    def _next_positions(self, residues: Iterable[int], busy_mask: int) -> dict[int | None, tuple[int, ...]]:
        """The next slot to ask for each residue; None where no bookie is left."""
        chosen: dict[int | None, list[int]] = {}
        for residue in residues:
            usable = self._write_mask(residue) & ~busy_mask
            position = next((position for position in self._preference if usable >> position & 1), None)
            chosen.setdefault(position, []).append(residue)
        return {position: tuple(group) for position, group in chosen.items()}

    def _serving_mask(self, segment: Segment, *, slow: bool) -> int:
        """Slots asked for the whole segment, without a verdict on it; without ``slow``, slow asks do not count."""
        mask = 0
        for ask in self._asks.values():
            if (
                ask.first <= segment.first
                and segment.last <= ask.last
                and (slow or ask.number not in self._slow)
                and set(segment.residues) <= set(ask.residues)
            ):
                mask |= 1 << ask.position
        return mask & ~segment.judged_mask

    def _awaited(self, segment: Segment) -> bool:
        return self._serving_mask(segment, slow=True) != 0

    def _ids(self, segment: Segment) -> Sequence[int]:
        if self._modulus == 1:
            return range(segment.first, segment.last + 1)
        residues = frozenset(segment.residues)
        return [i for i in range(segment.first, segment.last + 1) if i % self._modulus in residues]

    def _with_residues(self, segment: Segment, residues: tuple[int, ...]) -> list[Segment]:
        """The part of the segment with these residues, its bounds drawn in to ids that it has; none if it has none."""
        low, high, modulus = segment.first, segment.last, self._modulus
        wanted = frozenset(residues)
        while low <= high and low % modulus not in wanted:
            low += 1
        while low <= high and high % modulus not in wanted:
            high -= 1
        if low > high:
            return []
        if high - low + 1 < modulus:
            present = {i % modulus for i in range(low, high + 1)}
            residues = tuple(residue for residue in residues if residue in present)
        return [replace(segment, first=low, last=high, residues=residues)]

    def _cut(self, segment: Segment, ask: Ask, covered: int) -> tuple[list[Segment], list[Segment]]:
        """The parts of a segment inside and outside of what an answer up to ``covered`` speaks of."""
        both = tuple(residue for residue in segment.residues if residue in ask.residues)
        low, high = max(segment.first, ask.first), min(segment.last, covered)
        if not both or low > high:
            return [], [segment]
        outside: list[Segment] = []
        if segment.first < low:
            outside += self._with_residues(replace(segment, last=low - 1), segment.residues)
        if high < segment.last:
            outside += self._with_residues(replace(segment, first=high + 1), segment.residues)
        middle = replace(segment, first=low, last=high)
        others = tuple(residue for residue in segment.residues if residue not in both)
        if others:
            outside += self._with_residues(middle, others)
        return self._with_residues(middle, both), outside

    def _runs(
        self, ids: Sequence[int], chosen: Sequence[int], residues: tuple[int, ...]
    ) -> list[tuple[int, int, tuple[int, ...]]]:
        """``chosen``, ascending among ``ids``, as runs without a gap in ``ids``: first, last, residues present."""
        if not chosen:
            return []
        if len(chosen) == len(ids):
            return [(ids[0], ids[-1], residues)]
        place = {entry_id: index for index, entry_id in enumerate(ids)}
        runs: list[list[int]] = []
        for entry_id in chosen:
            if runs and place[runs[-1][-1]] + 1 == place[entry_id]:
                runs[-1].append(entry_id)
            else:
                runs.append([entry_id])
        return [(run[0], run[-1], tuple(sorted({i % self._modulus for i in run}))) for run in runs]

    # --- tests ---------------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Assert what the module's head promises. Costs a step per id."""
        open_ids = [i for segment in self._open for i in self._ids(segment)]
        found_ids = [entry.entry_id for piece in self._found for entry in piece]
        assert sorted([*open_ids, *found_ids]) == list(range(self._first, self._last + 1))
        for segment in self._open:
            ids = self._ids(segment)
            assert ids[0] == segment.first, "a segment begins at an id that it has"
            assert ids[-1] == segment.last, "a segment ends at an id that it has"
            assert {i % self._modulus for i in ids} == set(segment.residues)
            for residue in segment.residues:
                assert not segment.judged_mask & ~self._write_mask(residue), "a verdict from outside the write set"
                if not self._awaited(segment):
                    assert segment.judged_mask == self._write_mask(residue), "a bookie is left to be asked"
        for ask in self._asks.values():
            for residue in ask.residues:
                assert self._write_mask(residue) >> ask.position & 1, "asked for an entry it cannot hold"
        assert self._slow <= self._asks.keys()


def preference_order(bookies: Sequence[BookieId], lots: Sequence[float], blamed: Iterable[BookieId]) -> list[int]:
    """Slots in the order in which to ask them: the blamed last, by lot among equals (rule R1).

    A reader draws its lots once and keeps them: it stays with one replica, whose disk then reads ahead, while readers
    spread over the replicas.
    """
    last = frozenset(blamed)
    return sorted(range(len(bookies)), key=lambda position: (bookies[position] in last, lots[position], position))
