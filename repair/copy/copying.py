"""Where the copies of one range come from, and when it is whole. Pure.

Theory of operation
-------------------

A target lacks some ids of a settled range. Every one of them was written, so a sound copy of it should be on a member
of its write set. A :class:`CopyWindow` takes a few thousand of the ids and asks the members one after another, in an
order of preference: a member is asked for the ids that all members before it have denied or could not give. For each id
the verdict follows from what the members said (rules C3 and C4):

========================  ============================  =========================  =====================================
a member gave it          a member is still to be       a member gave no answer    verdict
soundly                   asked
========================  ============================  =========================  =====================================
yes                       -                             -                          COPY: store these bytes
no                        yes                           -                          ASK the next member
no                        no                            yes                        WAIT: that member may have it
no                        no                            no                         SHORT: no member has a sound copy
========================  ============================  =========================  =====================================

WAIT and SHORT both mean that the range is not whole, and that its members keep their names in the metadata: once a
bookie is no longer named, no client asks it, and its copy may be the last one. What one member denies is always asked
of the others; an id is never left out.

An answer covers ids up to its ``last_covered`` (rule R2); about the ids above it the member has said nothing and is
asked again.
"""

import enum
from collections.abc import Collection, Iterable, Sequence
from itertools import takewhile

from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.quorums import Quorums

WINDOW_ENTRIES = 4096
"""Ids of one window: bounds the memory of a window whatever the size of the range."""


class Told(enum.Enum):
    """The answer of a member about an id that it did not give."""

    ABSENT = "absent"
    UNKNOWN = "unknown"
    """It cannot tell: damaged, or in doubt."""
    FAILED = "failed"
    """It gave no answer."""


class Verdict(enum.Enum):
    """The next step for an id. See the module."""

    COPY = "copy"
    ASK = "ask"
    WAIT = "wait"
    SHORT = "short"


VERDICTS = {
    # given, member left to ask, member without an answer
    (True, True, True): Verdict.COPY,
    (True, True, False): Verdict.COPY,
    (True, False, True): Verdict.COPY,
    (True, False, False): Verdict.COPY,
    (False, True, True): Verdict.ASK,
    (False, True, False): Verdict.ASK,
    (False, False, True): Verdict.WAIT,
    (False, False, False): Verdict.SHORT,
}
"""The table of the module."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the member at ``position`` for the ids of ``first..last`` whose residue is among ``residues``."""

    position: int
    first: int
    last: int
    residues: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unsound:
    """Ids of a window that could not be copied, and what the members said of the first of them."""

    first: int
    last: int
    count: int
    told: tuple[tuple[int, Told], ...]
    """Slot of each member of the first id's write set but the target, and what it said."""

    @property
    def waits_for(self) -> tuple[int, ...]:
        """Slots of the members that gave no answer: they may have it."""
        return tuple(position for position, told in self.told if told is Told.FAILED)


class CopyWindow:
    """See the module. ``needed``: the ids that the target lacks and that the bookie at ``position`` should hold.
    ``preference``: slots of the members to ask, the first one at the front. That is every member but the target
    itself; a bookie whose place the target takes is one of them, because it may hold the last copy."""

    __slots__ = ("_first_members", "_needed", "_order", "_quorums", "_told", "copied")

    def __init__(self, quorums: Quorums, position: int, needed: Iterable[int], preference: Sequence[int]) -> None:
        self._quorums = quorums
        self._order = tuple(preference)
        self._needed = dict.fromkeys(sorted(needed))
        self._told: dict[int, dict[int, Told]] = {}
        """What members that did not give an id said of it; only ids of which one said anything."""
        masks = [quorums.write_mask(residue) for residue in range(quorums.ensemble_size)]
        self._first_members = [next((one for one in self._order if mask >> one & 1), None) for mask in masks]
        """The member to be asked first for an id, by residue: for most ids no other is ever asked."""
        size = quorums.ensemble_size
        held = [mask >> position & 1 for mask in masks]
        assert all(held[entry_id % size] for entry_id in self._needed), "a position holds ids of its residues only"
        self.copied = 0
        """Ids that a member gave soundly."""

    @property
    def done(self) -> bool:
        """Whether every id has its final verdict."""
        return self.next_ask() is None

    def verdict(self, entry_id: int) -> Verdict:
        """The next step for an id of the window."""
        told = self._told.get(entry_id, {})
        return VERDICTS[
            entry_id not in self._needed,
            self._next_member(entry_id) is not None,
            Told.FAILED in told.values(),
        ]

    def next_ask(self) -> Ask | None:
        """The next member to ask, for all ids for which it is the next; None when every id has its verdict."""
        asked: int | None = None
        first = last = 0
        residues: set[int] = set()
        told, first_members, size = self._told, self._first_members, self._quorums.ensemble_size
        for entry_id in self._needed:
            member = self._next_member(entry_id) if entry_id in told else first_members[entry_id % size]
            if member is None:
                continue
            if asked is None:
                asked, first = member, entry_id
            if member == asked:
                last = entry_id
                residues.add(entry_id % size)
        return None if asked is None else Ask(asked, first, last, tuple(sorted(residues)))

    def on_answer(
        self,
        ask: Ask,
        last_covered: int,
        given: Collection[int],
        unknown: Iterable[tuple[int, int]],
        *,
        absent_is_certain: bool = True,
    ) -> list[int]:
        """A member answered: ``given`` are the ids that came soundly. Returns those of them that are to be stored.

        ``absent_is_certain`` is false when some bytes of the answer were damaged: an id that is not among the sound
        ones may be one of those.
        """
        runs = list(unknown)
        wanted = [entry_id for entry_id in given if entry_id in self._needed]
        for entry_id in wanted:
            del self._needed[entry_id]
        self.copied += len(wanted)
        for entry_id in self._asked(ask, last_covered):
            hidden = not absent_is_certain or any(first <= entry_id <= last for first, last in runs)
            self._told.setdefault(entry_id, {})[ask.position] = Told.UNKNOWN if hidden else Told.ABSENT
        return wanted

    def on_failed(self, ask: Ask) -> None:
        """A member gave no answer: it is asked nothing more in this window."""
        for entry_id in self._needed:
            if self._quorums.write_mask(entry_id) >> ask.position & 1:
                self._told.setdefault(entry_id, {}).setdefault(ask.position, Told.FAILED)

    def unsound(self) -> Unsound | None:
        """When done: what could not be copied; None when the window is whole."""
        if not self._needed:
            return None
        ids = list(self._needed)
        waiting = [entry_id for entry_id in ids if self.verdict(entry_id) is Verdict.WAIT]
        first_told = self._told.get((waiting or ids)[0], {})
        return Unsound(ids[0], ids[-1], len(ids), tuple(sorted(first_told.items())))

    def _asked(self, ask: Ask, last_covered: int) -> list[int]:
        """The ids asked for, up to ``last_covered``, that were not given."""
        size, last = self._quorums.ensemble_size, min(ask.last, last_covered)
        return [
            entry_id
            for entry_id in takewhile(last.__ge__, self._needed)
            if entry_id >= ask.first
            and entry_id % size in ask.residues
            and self._quorums.write_mask(entry_id) >> ask.position & 1
        ]

    def _next_member(self, entry_id: int) -> int | None:
        mask, told = self._quorums.write_mask(entry_id), self._told.get(entry_id, {})
        return next((member for member in self._order if mask >> member & 1 and member not in told), None)

    def check_invariants(self) -> None:
        """Raise AssertionError unless the state is one that can be."""
        assert list(self._needed) == sorted(self._needed)
        for entry_id, told in self._told.items():
            mask = self._quorums.write_mask(entry_id)
            assert all(mask >> member & 1 and member in self._order for member in told)


def ids_of_runs(runs: Iterable[tuple[int, int]], modulus: int, residues: Collection[int]) -> Iterable[int]:
    """The ids of ascending runs (both ends included) that have one of the residues, ascending, each once."""
    after = -1
    has_all = len(residues) == modulus
    for first, last in runs:
        ids = range(max(first, after + 1), last + 1)
        yield from ids if has_all else (entry_id for entry_id in ids if entry_id % modulus in residues)
        after = max(after, last)


def preference(
    bookies: Sequence[str], *, reliable: Collection[str], reachable: Collection[str], turn: int
) -> tuple[int, ...]:
    """Slots in the order in which their bookies are asked: registered ones without a condition first, beginning at
    a different one for each ledger (``turn``); then other registered ones; then those that are not registered, which
    may serve nevertheless (rule M2)."""

    def rank(position: int) -> tuple[int, int]:
        name = bookies[position]
        kind = 0 if name in reliable and name in reachable else 1 if name in reachable else 2
        return kind, (position - turn) % len(bookies)

    return tuple(sorted(range(len(bookies)), key=rank))
