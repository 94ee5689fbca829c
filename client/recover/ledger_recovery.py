"""Finding the end of a ledger whose writer is gone: what is asked, what is believed, when it is decided. Pure.

Theory of operation
-------------------

Recovery looks at the last fragment only, and at its ensemble as it was when recovery began (rule F4).

*Fencing.* Every bookie is sent a fence. When the answers cover every write set (every possible ack quorum contains a
bookie that has answered and takes no ordinary add any more), nothing new can be acknowledged, and a bookie that hangs
does not matter (rule F2). The recovery starts at the highest LAC among those answers, and at the end of the fragment
before at least (rule F3).

*Reading.* From there on every bookie is read forward, with reads that fence too. An answer covers an interval; of
each id that the bookie should hold it says found, absent or unknown; a bookie that is given up counts as unknown for
everything it has not answered. The lowest undecided id is decided by :data:`VERDICTS`::

    found at any bookie                 -> recoverable: it is written back
    absent at enough of its write set   -> the ledger ends before it
    neither, and a bookie may answer    -> wait
    neither, and no answer is to come   -> blocked: no end can be claimed (the error names the bookies)

Ids are decided in order, so it is as if they were read one at a time, though reads run ahead. What lies above the end
is dropped. Ids above the undecided one are read up to a window; found entries are held once. While too many bytes are
held only the undecided entry itself is read, and only when nothing is left to be written back: so that memory is
bounded, and reading ahead never delays the one entry that the recovery waits for.

*The anchor.* The length of the ledger at its end must be known. An entry carries it, and so may an explicit LAC; when
recovery starts at a LAC of unknown length, the entry there is read first, for its length only. It is acknowledged, so
it cannot be absent: were it, recovery would be blocked, too. A takeover also asks when the last entry was sealed
(rule P10): with ``wants_time`` the entry at the LAC is read in any case, with the first ids above it, so that the
answer takes no round of its own (:attr:`~LedgerRecovery.last_sealed_at_ms`).

*Terms.* A ledger with several writers (:mod:`octavo.metadata.stream.model`) is recovered term by term. Then the ids
are places of one term T, the fences and the reads name T, and the end is that of T (rule T3). A LAC says something of T
only if it is one of T. One of an earlier term lies below the last fragment. One of a later term means that another
client has opened that, so T has an end already: nothing more is asked or decided
(:attr:`~LedgerRecovery.later_term`). Terms that a restore of the metadata leaves out are no such terms: bookies may
know of them, but these metadata do not have them, and T has no end here. Their LACs say nothing of T.

Writing back is not done here: recovered entries are taken in order (:meth:`~LedgerRecovery.take_recovered`), given to a
write pipeline, and reported when they are on their quorum (:meth:`~LedgerRecovery.on_written_back`).

*How a harness drives it.* ``on_fenced`` or ``on_gave_up`` for every slot, at any time; whenever
:meth:`~LedgerRecovery.wanted_read` gives an interval for a slot, read it there and call ``on_read``, or
``on_gave_up``. It is over when :attr:`~LedgerRecovery.end` is known and everything taken was written back, or when
:attr:`~LedgerRecovery.blocked_by` or :attr:`~LedgerRecovery.later_term` is not None.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from octavo.protocol.entries import header_of
from octavo.protocol.ids import EntryId
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.places import last_place, term_of_lac
from octavo.protocol.quorums import Quorums


class Verdict(enum.Enum):
    """The verdict on one id."""

    RECOVERABLE = "recoverable"
    END = "end"
    WAIT = "wait"
    BLOCKED = "blocked"


class Evidence(NamedTuple):
    """The answers about one id."""

    found: bool
    """Some bookie of its write set has it."""
    negatives_cover: bool
    """So many bookies do not have it that no ack quorum can have it."""
    answer_to_come: bool
    """A bookie of its write set has neither answered nor been given up."""


VERDICTS: Final[Mapping[Evidence, Verdict]] = {
    Evidence(found=True, negatives_cover=True, answer_to_come=True): Verdict.RECOVERABLE,
    Evidence(found=True, negatives_cover=True, answer_to_come=False): Verdict.RECOVERABLE,
    Evidence(found=True, negatives_cover=False, answer_to_come=True): Verdict.RECOVERABLE,
    Evidence(found=True, negatives_cover=False, answer_to_come=False): Verdict.RECOVERABLE,
    Evidence(found=False, negatives_cover=True, answer_to_come=True): Verdict.END,
    Evidence(found=False, negatives_cover=True, answer_to_come=False): Verdict.END,
    Evidence(found=False, negatives_cover=False, answer_to_come=True): Verdict.WAIT,
    Evidence(found=False, negatives_cover=False, answer_to_come=False): Verdict.BLOCKED,
}
"""Rule F4, literally. A positive answer wins; unknown answers do not keep the others from covering."""

WINDOW_ENTRIES: Final = 4096
"""Ids read ahead of the last one written back: enough for full frames, bounded memory."""

WINDOW_BYTES: Final = 32 * 1024 * 1024
"""Sealed bytes held or not written back above which nothing is read ahead."""


@dataclass(frozen=True, slots=True)
class End:
    """Where the ledger ends: its last entry (None: it is empty) and its length in payload bytes. A term without entries
    ends one below its first place."""

    last_entry_id: EntryId | None
    length: int


class LedgerRecovery:
    """See the module. ``first_entry_id`` and ``length_before`` are those of the last fragment. ``term``: that of its
    entries; 0 for a ledger with one writer, whose ids are plain numbers of any size. ``terms_skipped``: how many terms
    after it a restore of the metadata leaves out. ``wants_time``: the time of the last entry is wanted, if
    the fragment has one."""

    __slots__ = (
        "_anchor",
        "_answered",
        "_end",
        "_fence_over",
        "_fenced",
        "_first",
        "_found",
        "_gave_up",
        "_held_bytes",
        "_highest",
        "_lac",
        "_lac_lengths",
        "_last_sealed_at_ms",
        "_later_term",
        "_length",
        "_next",
        "_next_term",
        "_not_denied",
        "_quorums",
        "_recovered",
        "_start_length",
        "_stuck_at",
        "_term",
        "_wants_time",
        "_window_bytes",
        "_window_entries",
        "_written_back",
    )

    def __init__(
        self,
        quorums: Quorums,
        *,
        first_entry_id: int,
        length_before: int,
        term: int = 0,
        terms_skipped: int = 0,
        wants_time: bool = False,
        window_entries: int = WINDOW_ENTRIES,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._quorums = quorums
        self._wants_time = wants_time
        self._last_sealed_at_ms: int | None = None
        self._window_entries = window_entries
        self._window_bytes = window_bytes
        self._term = term
        self._next_term = term + 1 + terms_skipped
        self._highest = last_place(term) if term else None
        """No entry can have an id above this one; None: any can."""
        self._later_term: int | None = None
        self._first = first_entry_id
        self._fenced = 0
        self._gave_up = 0
        self._fence_over = False
        self._lac = first_entry_id - 1
        self._lac_lengths: dict[int, int] = {first_entry_id - 1: length_before}
        self._anchor: int | None = None
        self._next = first_entry_id
        self._length = self._start_length = length_before
        self._answered = [first_entry_id] * quorums.ensemble_size
        """Per slot, the lowest id it has not answered for."""
        self._found: dict[int, bytes] = {}
        self._not_denied: list[set[int]] = [set() for _ in range(quorums.ensemble_size)]
        """Per slot, the ids that it has answered for and has, or cannot tell of. All others below
        :attr:`_answered` it denies: an answer of a bookie that has nothing says so of thousands of ids."""
        self._recovered: list[bytes] = []
        self._held_bytes = 0
        self._written_back = first_entry_id - 1
        self._end: End | None = None
        self._stuck_at: int | None = None

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def fence_over(self) -> bool:
        """Whether no ordinary add can reach its ack quorum any more."""
        return self._fence_over

    @property
    def start(self) -> int | None:
        """The highest id that was acknowledged beyond doubt when recovery began to read (-1: none); None before."""
        return self._lac if self._fence_over else None

    @property
    def start_length(self) -> int:
        """Payload bytes up to :attr:`start`, known before anything is recovered."""
        return self._start_length

    @property
    def end(self) -> End | None:
        """Where the ledger ends; None while that is not decided."""
        return self._end

    @property
    def last_recovered(self) -> int:
        """The highest id decided to be part of the ledger."""
        return self._next - 1

    @property
    def last_sealed_at_ms(self) -> int | None:
        """When the last of the entries read here was sealed, in milliseconds since 1970; None while there is none. If
        the time is wanted, and the end is decided, it is that of the last entry; None if the fragment is empty."""
        return self._last_sealed_at_ms

    @property
    def later_term(self) -> int | None:
        """The term that another client has opened after this one, if a bookie knows of it (rule T3)."""
        return self._later_term

    @property
    def blocked_at(self) -> int | None:
        """The id that nothing can be said about; None also while only the fence is blocked."""
        return self._stuck_at

    @property
    def blocked_by(self) -> tuple[int, ...] | None:
        """Slots without whose answer no end can be claimed; None while there is hope, or once the end is known."""
        if self._end is not None:
            return None
        if self._stuck_at is not None:
            members = self._quorums.write_mask(self._stuck_at) & ~self._answers_about(self._stuck_at)[0]
            return _positions(members or self._quorums.write_mask(self._stuck_at))
        if not self._fence_over and self._fenced | self._gave_up == self._quorums.full_mask:
            return _positions(self._gave_up)
        return None

    @property
    def finished(self) -> bool:
        """Whether the end is known and everything up to it is on its quorum."""
        return self._end is not None and not self._recovered and self._written_back >= self._next - 1

    def wanted_read(self, position: int) -> tuple[int, int] | None:
        """The next ids (inclusive) to read from a bookie, fencing, if any are wanted of it now."""
        if not self._fence_over or self._end is not None or self._stuck_at is not None or self._gave_up >> position & 1:
            return None
        first = max(self._answered[position], self._next)
        last = self._window_last
        if first > last:
            return None
        if self._held_bytes > self._window_bytes:
            decides = first == self._next and self._quorums.write_mask(first) >> position & 1
            return (first, first) if decides and self._written_back >= self._next - 1 else None
        return first, last

    @property
    def _window_last(self) -> int:
        """No id above this one has been asked for. Never falls."""
        last = max(self._written_back, self._lac) + self._window_entries
        return last if self._highest is None else min(last, self._highest)

    @property
    def held_bytes(self) -> int:
        """Sealed bytes read and not written back."""
        return self._held_bytes

    def residues_at(self, position: int) -> tuple[int, ...]:
        """Of which ids, modulo E, a bookie is asked."""
        return self._quorums.residues_at(position)

    def take_recovered(self) -> list[bytes]:
        """Sealed entries to be written back, ids ascending, following those taken before."""
        taken, self._recovered = self._recovered, []
        return taken

    # --- events -----------------------------------------------------------------------------------------------------

    def on_fenced(
        self, position: int, last_add_confirmed: int | None, lengths: Mapping[int, int] | None = None
    ) -> None:
        """The bookie is fenced, durably, and knows this LAC, verified. ``lengths``: LAC -> length there, as far as
        explicit LACs vouch for it. Once the fence is over, further answers change nothing (rule F2)."""
        if self._fence_over or self._later_term is not None:
            return
        if self._term and last_add_confirmed is not None:
            told = term_of_lac(last_add_confirmed + 1)
            if told >= self._next_term:
                self._later_term = told
                return
            if told != self._term:
                last_add_confirmed = None
        self._fenced |= 1 << position
        if last_add_confirmed is not None and last_add_confirmed > self._lac:
            self._lac = last_add_confirmed
        self._lac_lengths.update(lengths or {})
        if self._quorums.covers_every_write_set(self._fenced):
            self._begin_reading()

    def on_gave_up(self, position: int) -> None:
        """Nothing more will come from this bookie: it could not be reached, or does not answer in time."""
        self._gave_up |= 1 << position
        self._decide()

    def on_read(
        self, position: int, first: int, last_covered: int, found: Mapping[int, bytes], unknown: Iterable[int] = ()
    ) -> None:
        """The bookie has answered for ``first..last_covered``: it has ``found`` (verified), cannot tell about
        ``unknown``, and has none of the other ids. The shell cuts off what the bookie was not asked for."""
        assert last_covered <= self._window_last, "a bookie answers for nothing that it was not asked for"
        # Ids that have been decided meanwhile need no answer of this bookie, so they leave no gap.
        answered = max(self._answered[position], self._next)
        if first > answered:
            return
        residues, size = set(self._quorums.residues_at(position)), self._quorums.ensemble_size
        asked = range(answered, last_covered + 1)
        cannot_tell = {entry_id for entry_id in unknown if entry_id in asked and entry_id % size in residues}
        has = {entry_id for entry_id in found if entry_id in asked and entry_id % size in residues} - cannot_tell
        for entry_id in has - self._found.keys():
            self._found[entry_id] = found[entry_id]
            self._held_bytes += len(found[entry_id])
        self._not_denied[position] |= has | cannot_tell
        self._answered[position] = max(answered, last_covered + 1)
        self._decide()

    def on_written_back(self, last: int, sealed_bytes: int) -> None:
        """Everything taken up to ``last`` is on its quorum."""
        assert last < self._next, "only what was recovered is written back"
        self._written_back = last
        self._held_bytes -= sealed_bytes

    # --- inside -----------------------------------------------------------------------------------------------------

    def _begin_reading(self) -> None:
        self._fence_over = True
        self._written_back = self._lac
        length = self._lac_lengths.get(self._lac)
        if length is None or (self._wants_time and self._lac >= self._first):
            self._anchor = self._next = self._lac
        else:
            self._length = self._start_length = length
            self._next = self._lac + 1
        self._answered = [self._next] * self._quorums.ensemble_size
        self._decide()

    def evidence(self, entry_id: int) -> Evidence:
        """The answers about an id so far."""
        members = self._quorums.write_mask(entry_id)
        denying, waited_for = self._answers_about(entry_id)
        return Evidence(entry_id in self._found, self._quorums.covers(members, denying), bool(members & waited_for))

    def _answers_about(self, entry_id: int) -> tuple[int, int]:
        """Masks of the slots that do not have an id and say so, and of those whose answer is to come. Of use for
        the id's write set only."""
        denying = waited_for = 0
        for position, answered in enumerate(self._answered):
            if answered > entry_id:
                denying |= (entry_id not in self._not_denied[position]) << position
            elif not self._gave_up >> position & 1:
                waited_for |= 1 << position
        return denying, waited_for

    def _verdict(self, entry_id: int) -> Verdict:
        if self._highest is not None and entry_id > self._highest:
            return Verdict.END
        evidence = self.evidence(entry_id)
        if entry_id == self._anchor:
            # It was acknowledged. A bookie that does not have it has lost it, so no number of absences makes an end.
            evidence = evidence._replace(negatives_cover=False)
        return VERDICTS[evidence]

    def _decide(self) -> None:
        """Decide ids in order, as far as can be."""
        while self._fence_over and self._end is None and self._stuck_at is None:
            entry_id = self._next
            verdict = self._verdict(entry_id)
            if verdict is Verdict.WAIT:
                return
            if verdict is Verdict.BLOCKED:
                self._stuck_at = entry_id
            elif verdict is Verdict.END:
                last = entry_id - 1
                self._end = End(EntryId(last) if last >= 0 else None, self._length)
                self._forget_rest()
            else:
                self._keep(entry_id)

    def _keep(self, entry_id: int) -> None:
        sealed = self._found.pop(entry_id)
        for ids in self._not_denied:
            ids.discard(entry_id)
        header = header_of(sealed)
        self._length, self._last_sealed_at_ms = header.length, header.sealed_at_ms
        self._next = entry_id + 1
        if entry_id == self._anchor:
            self._anchor = None
            self._start_length = self._length
            self._held_bytes -= len(sealed)
        else:
            self._recovered.append(sealed)

    def _forget_rest(self) -> None:
        """Whatever lies after the first end is dropped (rule F4)."""
        self._held_bytes -= sum(map(len, self._found.values()))
        self._found.clear()
        for ids in self._not_denied:
            ids.clear()

    # --- for tests and model checkers -------------------------------------------------------------------------------

    def copy(self) -> "LedgerRecovery":
        """An independent copy."""
        other = object.__new__(type(self))
        for name in LedgerRecovery.__slots__:
            value = getattr(self, name)
            setattr(other, name, value.copy() if isinstance(value, dict | list) else value)
        other._not_denied = [ids.copy() for ids in self._not_denied]
        return other

    def state(self) -> tuple[object, ...]:
        """Everything that decides what happens next, as one comparable, hashable value."""
        return (
            self._fenced,
            self._gave_up,
            self._fence_over,
            self._lac,
            tuple(sorted(self._lac_lengths.items())),
            self._anchor,
            self._next,
            self._length,
            tuple(self._answered),
            tuple(sorted(self._found.items())),
            tuple(map(frozenset, self._not_denied)),
            tuple(self._recovered),
            self._written_back,
            self._end,
            self._stuck_at,
            self._later_term,
            self._last_sealed_at_ms,
        )

    def check_invariants(self) -> None:
        """Raise AssertionError unless the state is one that can be."""
        assert self._next >= self._first - 1
        assert self._fence_over == self._quorums.covers_every_write_set(self._fenced)
        assert not (self._fence_over and self._later_term is not None), (
            "nothing is asked of a term known to have an end"
        )
        if not self._fence_over:
            assert not self._found
            assert not any(self._not_denied)
            assert self._end is None
            return
        assert self._lac >= self._first - 1, "recovery never starts below the last fragment (#2615)"
        assert self._next > self._lac or self._anchor == self._next
        assert self._written_back < max(self._next, self._lac + 1)
        kept = self._found.keys() | set[int]().union(*self._not_denied)
        assert min(kept, default=self._next) >= self._next, "nothing decided is kept"
        held = sum(map(len, self._found.values())) + sum(map(len, self._recovered))
        assert self._held_bytes >= held
        if self._end is None and self._stuck_at is None:
            assert self._verdict(self._next) is Verdict.WAIT, "what can be decided is decided"
        if self._end is not None:
            last = -1 if self._end.last_entry_id is None else self._end.last_entry_id
            assert last == self._next - 1
            assert last >= self._lac, "an end covers everything acknowledged"
            if self._wants_time:
                assert (self._last_sealed_at_ms is None) == (last < self._first), "the last entry was read"


def _positions(mask: int) -> tuple[int, ...]:
    return tuple(position for position in range(mask.bit_length()) if mask >> position & 1)
