"""The writer's pipeline: which adds are pending, which bookies confirmed them, what is acknowledged. Pure.

Theory of operation
-------------------

The shell seals the adds of one loop turn and pushes them as *runs*: consecutive entries that travel in one frame,
tracked together. So the cost is per frame, not per entry. A run knows the *slots* of the ensemble that have
confirmed its frame, as a bit mask; in a striped ledger (E > Qw) a slot is sent, and confirms, only its share of
the run. Everything else is computed from those masks (rules W1 and W4): an entry is complete when Qa slots of its
write set have confirmed its run, and is acknowledged when all lower ones are too. So runs are acknowledged in order,
and in a striped ledger a prefix of a run may be.

Runs stand in one row, numbered without gaps::

    acknowledged, retained      pending
    [ 7 ][ 8 ][ 9 ]             [ 10 ][ 11 ][ 12 ]
      ^ oldest                    ^ head            ^ next run

Each slot has a *cursor*: the lowest run that it has not been sent, or must be sent again. A slot is either
*ready*, and is sent every run as it is pushed (its cursor stands behind the newest run), or it is *held*: not
connected, not taking more bytes, or pausing after a refusal. Nothing is sent to a held slot; when the shell
reports it ready again it is sent every run from its cursor on that it has not confirmed, lowest first, the same bytes
(rules W2 and W8). A send that failed, or that the connection did not take, moves the cursor back. A slow bookie thus
costs a number, not a queue of its own.

A run leaves the row once it is acknowledged and every slot that holds part of it has confirmed it. Acknowledged
runs that some slot still lacks are *retained*, oldest given up first, within a bound on their bytes: enough that
a short break leaves no hole in a replica, bounded however long a bookie stays away. Pending runs are bounded by the
writer's window. What the fragment owes of its copies (:meth:`Pipeline.debt`) is what was given up and what is retained.

The length of the ledger (its cumulative payload bytes) is kept here and nowhere else in the writer: at the last add
confirmed, and behind every run.

*Ensemble changes* (rule W3). Bookies are replaced in two steps. :meth:`Pipeline.begin_change` chooses the new
fragment's first id, LAC + 1, and from then on nothing is acknowledged, whatever is confirmed (rule W1): the fragment
may be in the metadata already. Confirmations are still noted. Once the compare-and-set has succeeded,
:meth:`Pipeline.commit_change` clears the bits of the replaced slots, puts their cursors on the first pending run
and acknowledges what is complete now (rule W4). Each bookie in a slot has a *tenure*: sends carry it, and the
outcome of a send of an earlier tenure is ignored, so what a replaced bookie confirms does not count. Runs below the
new fragment stay with the old ensemble, and the replaced bookies' copies of them are not waited for.

What it never does: acknowledge out of order, or before Qa confirmations of the current ensemble, or anything after
:meth:`Pipeline.stop`; seal, or change the bytes of an entry; decide that a bookie has failed or a quorum is lost. The
shell keeps the time: it reads :attr:`Pipeline.pending_since` and stops the pipeline at the quorum timeout (rules W6
and W8). There are no flags for what is complete: it is computed from the masks.

*How a harness drives it.* ``push`` what was sealed with :attr:`~Pipeline.next_entry_id` on; perform every
:class:`Send`, and answer it with ``on_confirmed``, ``on_failed`` or ``on_unsent`` and the send's slot, run number
and tenure, at any time, any number of times, in any order; ``on_ready`` when a slot that was held takes requests.
"""

from collections import deque
from collections.abc import Sequence
from copy import copy
from itertools import compress, cycle, islice
from typing import Self, final

from octavo.metadata.ledger.debts import NO_DEBT, Debt
from octavo.protocol.entries import header_of
from octavo.protocol.ids import EntryId
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.quorums import Quorums


@dataclass(slots=True)
class Run:
    """Consecutive entries that travel and are confirmed together. Only the masks ever change."""

    number: int
    first: int
    last: int
    entries: Sequence[bytes]
    """Sealed, in order."""
    sealed_bytes: int
    length_after: int
    """The ledger's cumulative payload bytes up to the last entry."""
    pushed_at: float
    """The shell's clock, in seconds."""
    holders: int
    """Mask of the slots whose bookies are to hold an entry of the run."""
    confirmed: int = 0
    """Mask of the slots that have confirmed their share."""
    accepted: int = 0
    """Mask of the slots that have accepted their share; only where sync is deferred (rule W10)."""


@final
@dataclass(frozen=True, slots=True)
class Send:
    """Send the share of ``position`` in ``run``, now; report what becomes of it by ``run.number`` and ``tenure``.

    If it cannot be sent now, report :meth:`Pipeline.on_unsent` before the next effect for this slot is performed.
    """

    position: int
    run: Run
    tenure: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Tell the callers of ``first..last`` that their entries are acknowledged. The ids follow those of the
    :class:`Acknowledge` before.
    """

    first: int
    last: int
    payload_bytes: int
    """Payload bytes of these entries."""


@dataclass(frozen=True, slots=True)
class Accept:
    """Tell the callers of ``first..last`` that Qa bookies have accepted their entries. Only where sync is deferred
    (rule W10)."""

    first: int
    last: int
    payload_bytes: int
    """Payload bytes of these entries."""


@dataclass(frozen=True, slots=True)
class SendForce:
    """Have the bookie at ``position`` make durable what it has accepted of ``first..last``, now; report what becomes of
    it by ``number`` and ``tenure``. Only where sync is deferred (rule W10)."""

    position: int
    number: int
    first: int
    last: int
    tenure: int


@dataclass(frozen=True, slots=True)
class Full:
    """Nothing up to ``last`` waits for further copies. Only of a ledger with full copies (rule G2)."""

    last: int
    entries: int
    """Entries since the :class:`Full` before."""
    payload_bytes: int
    """Payload bytes of these entries."""


type Effect = Send | Acknowledge | Accept | SendForce | Full


@dataclass(frozen=True, slots=True)
class EnsembleChange:
    """A change of the ensemble that has begun and is not committed: what to write into the metadata (rule W3)."""

    replaced: int
    """Mask of the slots that get another bookie."""
    first_entry_id: EntryId
    """First id of the new fragment."""
    length_before: int
    """Payload bytes of the ledger before it."""
    debt: Debt = NO_DEBT
    """Which entries of the fragment that ends may have fewer than Qw copies (rule G3)."""


_NOTHING: tuple[Effect, ...] = ()


class Pipeline:
    """See the module. Events return the effects to be performed, in order, before the next event."""

    __slots__ = (
        "_change",
        "_cursors",
        "_first_unacknowledged",
        "_fragment_first",
        "_given_up",
        "_head",
        "_highest_sent",
        "_length",
        "_oldest",
        "_quorums",
        "_ready",
        "_retained_bytes",
        "_retained_bytes_max",
        "_runs",
        "_starts",
        "_stopped",
        "_tenures",
        "next_entry_id",
    )

    def __init__(self, quorums: Quorums, *, retained_bytes_max: int, first_entry_id: int = 0, length: int = 0) -> None:
        self._quorums = quorums
        self._retained_bytes_max = retained_bytes_max
        self._runs: deque[Run] = deque()
        self._oldest = 0
        self._head = 0
        self._cursors = [0] * quorums.ensemble_size
        self._ready = 0
        self._first_unacknowledged = first_entry_id
        self.next_entry_id = first_entry_id
        """The id that the next entry pushed gets."""
        self._length = length
        self._retained_bytes = 0
        self._highest_sent = first_entry_id - 1
        self._stopped = False
        self._change: EnsembleChange | None = None
        self._tenures = [0] * quorums.ensemble_size
        self._starts = [first_entry_id] * quorums.ensemble_size
        """First id that the bookie in each slot is to hold."""
        self._fragment_first = first_entry_id
        """First id of the last fragment."""
        self._given_up = NO_DEBT
        """Entries of that fragment that some slot lacks, and that are kept for it no more."""

    # --- what is known --------------------------------------------------------------------------------------------

    @property
    def last_add_confirmed(self) -> EntryId | None:
        """The highest id such that it and all lower ones are acknowledged; None before the first."""
        return EntryId(self._first_unacknowledged - 1) if self._first_unacknowledged else None

    @property
    def length(self) -> int:
        """Payload bytes up to the last add confirmed."""
        return self._length

    @property
    def length_pushed(self) -> int:
        """Payload bytes up to the last entry pushed."""
        return self._runs[-1].length_after if self._runs else self._length

    @property
    def pending(self) -> int:
        """Entries pushed and not acknowledged."""
        return self.next_entry_id - self._first_unacknowledged

    @property
    def unacknowledged(self) -> int:
        """Entries whose callers wait."""
        return self.pending

    @property
    def unacknowledged_bytes(self) -> int:
        """Payload bytes of these entries."""
        return self.length_pushed - self._length

    @property
    def pending_frames(self) -> int:
        """Runs that are not acknowledged as a whole."""
        return len(self._runs) - (self._head - self._oldest)

    @property
    def retained_bytes(self) -> int:
        """Sealed bytes of acknowledged runs kept for slots that lack them."""
        return self._retained_bytes

    @property
    def pending_since(self) -> float | None:
        """When the oldest pending run was pushed; None when nothing is pending."""
        return self._runs[self._head - self._oldest].pushed_at if self.pending else None

    @property
    def highest_sent(self) -> int:
        """No entry above this id was ever sent to any bookie, so none of them can have happened (rule W6)."""
        return self._highest_sent

    def is_ready(self, position: int) -> bool:
        """Whether runs are sent to the slot as they are pushed."""
        return bool(self._ready >> position & 1)

    def debt(self) -> Debt:
        """Which acknowledged entries of the last fragment may have fewer than Qw copies, as far as is known now."""
        owed = self._given_up
        for run in islice(self._runs, self._head - self._oldest + 1):
            if run.confirmed != run.holders:
                owed = owed.joined(Debt(run.first, run.last))
        return owed.within(self._fragment_first, self._first_unacknowledged - 1)

    @property
    def change(self) -> EnsembleChange | None:
        """The change of the ensemble that is under way."""
        return self._change

    def tenure(self, position: int) -> int:
        """How many bookies were in the slot before the current one."""
        return self._tenures[position]

    def is_waited_for(self, position: int) -> bool:
        """Whether the slot has yet to confirm a pending run."""
        bit = 1 << position
        return any(run.holders & ~run.confirmed & bit for run in self._pending_runs())

    def unconfirmed_at(self, position: int) -> int:
        """How many pending runs the slot has yet to confirm."""
        bit = 1 << position
        return sum(bool(run.holders & ~run.confirmed & bit) for run in self._pending_runs())

    def can_be_acknowledged(self, usable_mask: int) -> bool:
        """Whether every pending entry could reach Qa if, besides what is confirmed, only these slots confirm
        (rule W8).
        """
        quorums = self._quorums
        return all(
            quorums.first_unacknowledged(max(run.first, self._first_unacknowledged), run.last, run.confirmed |
            usable_mask) > run.last for run in self._pending_runs() )  # fmt: skip

    def share(self, run: Run, position: int) -> Sequence[bytes]:
        """The entries of ``run`` that the bookie at ``position`` is to hold, in order."""
        if not self._quorums.striped:
            return run.entries
        size, start = self._quorums.ensemble_size, self._starts[position]
        residues = self._quorums.residues_at(position)
        pattern = [(run.first + offset) % size in residues for offset in range(size)]
        if start <= run.first:
            return list(compress(run.entries, cycle(pattern)))
        # Part of the run lies in the fragment before this bookie's.
        return list(
            compress(islice(run.entries, start - run.first, None), islice(cycle(pattern), start - run.first, None))
        )

    # --- events ---------------------------------------------------------------------------------------------------

    def push(self, entries: Sequence[bytes], *, sealed_bytes: int, length_after: int, now: float) -> Sequence[Effect]:
        """New sealed entries, from :attr:`next_entry_id` on, at least one. They become one run."""
        assert entries, "a run has entries"
        assert not self._stopped, "nothing is pushed after the stop"
        first, count = self.next_entry_id, len(entries)
        last = first + count - 1
        number = self._oldest + len(self._runs)
        run = Run(number, first, last, entries, sealed_bytes, length_after, now, self._holders(first, count))
        self._runs.append(run)
        self.next_entry_id = first + count
        effects: list[Effect] = []
        for position, cursor in enumerate(self._cursors):
            if self._ready >> position & 1:
                assert cursor == number, "a ready position has been sent everything before"
                self._cursors[position] = number + 1
                if run.holders >> position & 1:
                    effects.append(Send(position, run, self._tenures[position]))
        if effects:
            self._highest_sent = last
        return effects

    def on_confirmed(self, position: int, number: int, tenure: int) -> Sequence[Effect]:
        """The bookie at ``position`` has made its share of run ``number`` durable. May come late or repeatedly; from a
        bookie that has been replaced it has no effect (rule W3).
        """
        index = number - self._oldest
        if index < 0 or self._stopped or tenure != self._tenures[position]:
            return _NOTHING
        run = self._runs[index]
        bit = 1 << position
        assert run.holders & bit, f"position {position} was never sent run {number}"
        if run.confirmed & bit:
            return _NOTHING
        run.confirmed |= bit
        if number == self._head:
            if run.confirmed.bit_count() < self._quorums.ack_quorum:
                return _NOTHING  # of fewer bookies than Qa no write set has Qa
            effects = self._acknowledge()
            self._release()
            return effects
        self._release()
        return _NOTHING

    def on_unsent(self, position: int, number: int, tenure: int) -> None:
        """A :class:`Send` could not be sent, or its outcome was a failure: hold the slot, send the run again
        later.
        """
        if tenure == self._tenures[position]:
            self._ready &= ~(1 << position)
            self._cursors[position] = min(self._cursors[position], number)

    on_failed = on_unsent

    def on_ready(self, position: int) -> Sequence[Effect]:
        """The slot takes requests: send what it lacks, lowest first, and every new run from now on (rule
        W8).
        """
        bit = 1 << position
        leaving = self._change is not None and self._change.replaced & bit
        if self._ready & bit or self._stopped or leaving:
            return _NOTHING
        self._ready |= bit
        start = max(self._cursors[position], self._oldest) - self._oldest
        effects = [
            Send(position, run, self._tenures[position])
            for run in islice(self._runs, start, None)
            if run.holders & bit and not run.confirmed & bit
        ]
        self._cursors[position] = self._oldest + len(self._runs)
        if effects:
            self._highest_sent = max(self._highest_sent, effects[-1].run.last)
        return list(effects)

    def begin_change(self, replaced: int) -> EnsembleChange:
        """Replace the bookies in these slots (a mask) from LAC + 1 on: what to write into the metadata. A new
        fragment on the same bookies replaces none (rule U6).

        Until :meth:`commit_change` nothing is acknowledged, and nothing is sent to these slots (rules W1 and W3).
        """
        assert replaced & ~self._quorums.full_mask == 0, "positions are those of the ensemble"
        assert self._change is None, "a writer makes one change at a time (rule W5)"
        assert not self._stopped, "nothing is changed after the stop"
        self._ready &= ~replaced
        self._change = EnsembleChange(replaced, EntryId(self._first_unacknowledged), self._length, self.debt())
        return self._change

    def commit_change(self) -> Sequence[Effect]:
        """The change stands in the metadata: other bookies are in its slots now, all of them held."""
        change = self._change
        assert change is not None, "a change was begun"
        self._change = None
        if self._stopped:
            return _NOTHING
        self._fragment_first, self._given_up = change.first_entry_id, NO_DEBT
        for position in range(self._quorums.ensemble_size):
            if change.replaced >> position & 1:
                self._tenures[position] += 1
                self._starts[position] = change.first_entry_id
                self._cursors[position] = self._head
        for run in self._runs:
            if run.number < self._head:
                run.holders &= run.confirmed | ~change.replaced
            else:
                run.confirmed &= ~change.replaced
        head = self._head - self._oldest
        if head < len(self._runs):
            # Of a run that lies in both fragments a new bookie may hold nothing.
            run = self._runs[head]
            run.holders = self._holders(run.first, len(run.entries))
            for position in range(self._quorums.ensemble_size):
                if run.holders >> position & 1 and not self.share(run, position):
                    run.holders &= ~(1 << position)
        effects = self._acknowledge()
        self._release()
        return effects

    def stop(self) -> None:
        """Acknowledge and send nothing from now on: the writer has failed, or its end is being settled (rules
        W7 and W9).
        """
        self._stopped = True
        self._ready = 0

    # --- inside ---------------------------------------------------------------------------------------------------

    def _pending_runs(self) -> "islice[Run]":
        return islice(self._runs, self._head - self._oldest, None)

    def _holders(self, first: int, count: int) -> int:
        quorums = self._quorums
        if not quorums.striped or count >= quorums.ensemble_size:
            return quorums.full_mask
        mask = 0
        for entry_id in range(first, first + count):
            mask |= quorums.write_mask(entry_id)
        return mask

    def _acknowledge(self) -> Sequence[Effect]:
        """Acknowledge every complete entry from the head on, up to the first that is not."""
        if self._change is not None:
            return _NOTHING
        quorums, runs = self._quorums, self._runs
        first = at = self._first_unacknowledged
        length_before = self._length
        while self._head - self._oldest < len(runs):
            run = runs[self._head - self._oldest]
            at = quorums.first_unacknowledged(at, run.last, run.confirmed)
            if at <= run.last:
                if at > max(first, run.first):
                    self._length = header_of(run.entries[at - 1 - run.first]).length
                break
            self._length = run.length_after
            self._retained_bytes += run.sealed_bytes
            self._head += 1
        self._first_unacknowledged = at
        return (Acknowledge(first, at - 1, self._length - length_before),) if at > first else _NOTHING

    def _release(self) -> None:
        """Drop acknowledged runs that no slot lacks, and the oldest ones over the bound."""
        runs = self._runs
        while self._oldest < self._head:
            if runs[0].confirmed != runs[0].holders:
                if self._retained_bytes <= self._retained_bytes_max:
                    return
                self._give_up(runs[0])
            self._retained_bytes -= runs.popleft().sealed_bytes
            self._oldest += 1

    def _give_up(self, run: Run) -> None:
        self._given_up = self._given_up.joined(Debt(max(run.first, self._fragment_first), run.last))

    # --- for tests and model checkers -----------------------------------------------------------------------------

    @property
    def sealed_entries(self) -> tuple[tuple[bytes, ...], ...]:
        """The sealed entries of each run that is kept."""
        return tuple(tuple(run.entries) for run in self._runs)

    def copy(self) -> Self:
        """An independent pipeline in the same state."""
        other = copy(self)
        other._runs = deque(map(copy, self._runs))
        other._cursors, other._tenures, other._starts = self._cursors.copy(), self._tenures.copy(), self._starts.copy()
        return other

    def state(self) -> tuple[object, ...]:
        """Everything that decides what happens next, as one comparable, hashable value."""
        return (
            self._oldest,
            self._head,
            self._first_unacknowledged,
            self.next_entry_id,
            self._length,
            tuple((run.first, run.last, run.holders, run.confirmed) for run in self._runs),
            tuple(self._cursors),
            tuple(self._tenures),
            tuple(self._starts),
            self._fragment_first,
            self._given_up,
            self._change,
            self._ready,
            self._highest_sent,
            self._stopped,
        )

    def check_invariants(self) -> None:
        """Raise AssertionError unless the state is one that can be."""
        self._check_row()
        self._check_slots()
        self._check_bound()
        self._check_head(waits=self._change is not None)
        self._check_change(self._first_unacknowledged, self._length)

    def _check_row(self) -> None:
        """The runs of the row follow one another, and are held and confirmed by slots that may."""
        runs = list(self._runs)
        next_number = self._oldest + len(runs)
        assert self._oldest <= self._head <= next_number
        assert [run.number for run in runs] == list(range(self._oldest, next_number))
        following = runs[0].first if runs else self.next_entry_id
        for run in runs:
            assert run.first == following
            assert run.entries
            assert run.last == run.first + len(run.entries) - 1
            following = run.last + 1
            assert run.confirmed & ~run.holders == 0
            whole = self._holders(run.first, len(run.entries))
            assert run.holders & ~whole == 0
            assert run.holders == whole or run.number <= self._head, "only replaced bookies need not hold a run"
        assert following == self.next_entry_id
        assert sum(run.sealed_bytes for run in islice(runs, self._head - self._oldest)) == self._retained_bytes

    def _check_slots(self) -> None:
        """A slot that is ready has been sent everything; none is once the pipeline has stopped."""
        next_number = self._oldest + len(self._runs)
        for position, cursor in enumerate(self._cursors):
            assert cursor <= next_number
            assert not self.is_ready(position) or cursor == next_number
            assert not self._quorums.striped or self._starts[position] <= self.next_entry_id
        assert not (self._stopped and self._ready)

    def _check_bound(self) -> None:
        """Acknowledged runs that some slot lacks are within their bound."""
        assert self._retained_bytes <= self._retained_bytes_max or self._oldest == self._head

    def _check_head(self, *, waits: bool) -> None:
        """Everything that is complete is acknowledged; ``waits``: unless nothing is acknowledged now."""
        head = next(self._pending_runs(), None)
        if head is None:
            assert self._first_unacknowledged == self.next_entry_id
            return
        assert head.first <= self._first_unacknowledged <= head.last
        first = self._first_unacknowledged
        if not self._stopped and not waits:
            complete_below = self._quorums.first_unacknowledged(first, head.last, head.confirmed)
            assert complete_below == first, "completion is always drawn at once"

    def _check_change(self, first_entry_id: int, length_before: int) -> None:
        """A change that is under way begins at this id, behind this many bytes, and nothing is sent to the slots that
        get another bookie."""
        if self._change is not None:
            assert self._change.first_entry_id == first_entry_id, "the fragment's first id stays as it was chosen"
            assert self._change.length_before == length_before
            assert not self._ready & self._change.replaced
