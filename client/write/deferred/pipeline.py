"""The pipeline of a ledger with deferred sync (rule W10): what bookies have accepted, what they have forced. Pure.

Theory of operation
-------------------

A bookie answers a deferred add when the entries are in its memory and on their way to its disk: it has *accepted* them.
A force, which it answers when everything that it has accepted is durable, makes them *forced* there. The ordinary
pipeline (:mod:`octavo.client.write.pipeline`) works on unchanged with forced in the place of confirmed: an entry that
is forced on Qa bookies of its write set, with all lower ones, is acknowledged, and only that moves the LAC. Until then
it is pending, keeps its bytes here, begins the fragment of an ensemble change, and is sent again to whatever bookie
lacks it. Acceptance is a second mask beside that one. It moves no LAC; it decides when the callers of adds are told::

    forced on Qa         accepted by Qa       pushed
    [ 7 ][ 8 ][ 9 ]      [ 10 ][ 11 ]         [ 12 ][ 13 ]
                LAC ^          callers told ^

*Forces.* :meth:`DeferredPipeline.request_force` asks that everything pushed so far be forced. Each ready slot with
an accepted run below that gets a force, one at a time. A force covers the runs that the bookie had accepted when the
force was sent, and no others: the list is taken in that moment, and a serial number tells its outcome from those of
other forces.

*Restarts.* What a bookie has only in memory is gone when its process ends, and the next process would answer a force
all the same. So acceptance and force count only if they come from one process: the shell reports the boot id in the
bookie's hello before anything is sent on a connection (:meth:`DeferredPipeline.on_connected`). Another boot id begins a
new tenure of the slot: what was accepted there and not forced is not accepted any more, a force under way covers
nothing, and the slot is sent again, lowest first, every run that is not forced there. Forced runs stay forced. A
bookie that is replaced leaves nothing behind in its slot, as in the ordinary pipeline.

*How far callers have been told* never goes back: an add that has returned stays returned, although its bookies may lose
it before it is forced.

The number of bytes that are not forced is known here (:attr:`~DeferredPipeline.unforced_bytes`); the writer above takes
no further adds while it is over its bound. Half of the bound after the last request the pipeline
:attr:`~DeferredPipeline.wants_force` of its own accord; the shell asks for a force after an interval besides. So a
caller that never asks for one has a bounded number of bytes unforced, for a bounded time.

What it never does, beside what the ordinary one never does: move the LAC for what is only accepted; count a force for a
run that was accepted after the force was sent, by another process, or by a bookie that has been replaced.
"""

from collections import deque
from collections.abc import Sequence
from typing import Self

from octavo.client.write.pipeline import Accept, Effect, Pipeline, Run, SendForce
from octavo.protocol.entries import header_of
from octavo.protocol.quorums import Quorums

_NOTHING: tuple[Effect, ...] = ()


class DeferredPipeline(Pipeline):
    """See the module. ``unforced_bytes_max``: sealed bytes that may be unforced before the writer takes no more."""

    __slots__ = (
        "_accept_head",
        "_boots",
        "_first_unaccepted",
        "_force_numbers",
        "_force_stop",
        "_forces",
        "_forcing",
        "_held",
        "_held_first",
        "_length_accepted",
        "_unforced_bytes",
        "_unforced_bytes_max",
        "_unrequested_bytes",
    )

    def __init__(self, quorums: Quorums, *, retained_bytes_max: int, unforced_bytes_max: int) -> None:
        super().__init__(quorums, retained_bytes_max=retained_bytes_max)
        size = quorums.ensemble_size
        self._unforced_bytes_max = unforced_bytes_max
        self._unforced_bytes = 0
        self._unrequested_bytes = 0
        """Sealed bytes pushed since the last request of a force."""
        self._first_unaccepted = 0
        self._accept_head = 0
        """Number of the run that holds the first unaccepted entry."""
        self._length_accepted = 0
        self._boots: list[str | None] = [None] * size
        """The process that each slot's bookie was last connected as."""
        self._held: list[list[int]] = [[] for _ in range(size)]
        """Numbers of the runs that each slot has accepted, and that no force covers yet."""
        self._held_first: list[int | None] = [None] * size
        """The lowest id in these runs."""
        self._forcing: list[list[int] | None] = [None] * size
        """Numbers of the runs that the force under way in each slot covers; None: none is under way."""
        self._force_numbers = [0] * size
        self._force_stop = 0
        """Ids below this one are to be forced."""
        self._forces: deque[tuple[int, float]] = deque()
        """The requests that are not fulfilled: up to which id (exclusive), and when."""

    # --- what is known --------------------------------------------------------------------------------------------

    @property
    def unacknowledged(self) -> int:
        """Entries whose callers have not been told that they are accepted."""
        return self.next_entry_id - self._first_unaccepted

    @property
    def unacknowledged_bytes(self) -> int:
        """Payload bytes of these entries."""
        return self.length_pushed - self._length_accepted

    @property
    def unforced_bytes(self) -> int:
        """Sealed bytes of the runs that are not acknowledged."""
        return self._unforced_bytes

    @property
    def is_full(self) -> bool:
        """Whether so much is unforced that the writer takes no more."""
        return self._unforced_bytes > self._unforced_bytes_max

    @property
    def wants_force(self) -> bool:
        """Whether a force should be requested, because of the bytes pushed since the last request."""
        return 2 * self._unrequested_bytes > self._unforced_bytes_max

    @property
    def is_force_requested(self) -> bool:
        """Whether a force of everything pushed so far has been requested."""
        return self._force_stop == self.next_entry_id

    @property
    def pending_since(self) -> float | None:
        """When the oldest entry was pushed that is not accepted, or the oldest request of a force was made that is not
        fulfilled; None if there is neither. What no caller has asked to force is not late."""
        since = [self._forces[0][1]] if self._forces else []
        if self.unacknowledged:
            since.append(self._runs[self._accept_head - self._oldest].pushed_at)
        return min(since, default=None)

    # --- events ---------------------------------------------------------------------------------------------------

    def push(self, entries: Sequence[bytes], *, sealed_bytes: int, length_after: int, now: float) -> Sequence[Effect]:
        """See the base class."""
        self._unforced_bytes += sealed_bytes
        self._unrequested_bytes += sealed_bytes
        return super().push(entries, sealed_bytes=sealed_bytes, length_after=length_after, now=now)

    def on_connected(self, position: int, boot_id: str | None) -> None:
        """The bookie in the slot is connected, and is this process. Called before anything is sent on the
        connection, any number of times."""
        known, self._boots[position] = self._boots[position], boot_id
        if known is None or known == boot_id:
            return
        self._tenures[position] += 1
        self._ready &= ~(1 << position)
        self._forget(position)
        self._cursors[position] = self._oldest

    def on_confirmed(self, position: int, number: int, tenure: int) -> Sequence[Effect]:
        """The bookie in the slot has accepted its share of a run. May come late or repeatedly; from an earlier
        tenure it has no effect."""
        index = number - self._oldest
        if index < 0 or self._stopped or tenure != self._tenures[position]:
            return _NOTHING
        run, bit = self._runs[index], 1 << position
        assert run.holders & bit, f"position {position} was never sent run {number}"
        if (run.accepted | run.confirmed) & bit:
            return _NOTHING
        run.accepted |= bit
        self._hold(position, (run,))
        return (*self._accept(), *self._force(position))

    def request_force(self, now: float) -> Sequence[Effect]:
        """Have everything pushed so far forced."""
        if self._stopped or self._force_stop == self.next_entry_id:
            return _NOTHING
        self._force_stop = self.next_entry_id
        self._unrequested_bytes = 0
        if self.pending:
            self._forces.append((self._force_stop, now))
        return [effect for position in range(self._quorums.ensemble_size) for effect in self._force(position)]

    def on_forced(self, position: int, number: int, tenure: int) -> Sequence[Effect]:
        """The bookie in the slot has made durable what force ``number`` covers."""
        covered = self._covered_by(position, number, tenure)
        if covered is None or self._stopped:
            return _NOTHING
        self._forcing[position] = None
        bit = 1 << position
        for run_number in covered:
            if run_number >= self._oldest:
                self._runs[run_number - self._oldest].confirmed |= bit
        effects = self._acknowledge()
        self._release()
        return (*effects, *self._force(position))

    def on_force_failed(self, position: int, number: int, tenure: int) -> None:
        """A :class:`SendForce` could not be sent, or its outcome was a failure: hold the slot, and force again once
        it is ready."""
        covered = self._covered_by(position, number, tenure)
        if covered is not None:
            self._forcing[position] = None
            self._hold(position, [self._runs[at - self._oldest] for at in covered if at >= self._oldest])
            self._ready &= ~(1 << position)

    def on_ready(self, position: int) -> Sequence[Effect]:
        """See the base class; what is to be forced is forced."""
        return [*super().on_ready(position), *self._force(position)]

    def commit_change(self) -> Sequence[Effect]:
        """See the base class; what the replaced bookies have accepted is not accepted any more."""
        assert self._change is not None, "a change was begun"
        for position in range(self._quorums.ensemble_size):
            if self._change.replaced >> position & 1:
                self._boots[position] = None
                self._forget(position)
        return super().commit_change()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _hold(self, position: int, runs: Sequence[Run]) -> None:
        """The slot has accepted these runs, and no force covers them."""
        self._held[position] += [run.number for run in runs]
        known = self._held_first[position]
        self._held_first[position] = min([run.first for run in runs] + ([] if known is None else [known]), default=None)

    def _forget(self, position: int) -> None:
        """Forget the entries that the slot has accepted and not forced: they are lost."""
        self._held[position], self._held_first[position] = [], None
        self._forcing[position] = None
        for run in self._runs:
            run.accepted &= ~(1 << position)

    def _covered_by(self, position: int, number: int, tenure: int) -> list[int] | None:
        """The runs of the force under way; None if this is another one."""
        current = tenure == self._tenures[position] and number == self._force_numbers[position]
        return self._forcing[position] if current else None

    def _force(self, position: int) -> Sequence[Effect]:
        """Force what the slot has accepted, if any of it is to be forced and no force is under way there."""
        held_first = self._held_first[position]
        if held_first is None or held_first >= self._force_stop:
            return _NOTHING
        if self._forcing[position] is not None or not self._ready >> position & 1:
            return _NOTHING
        held, self._held[position], self._held_first[position] = self._held[position], [], None
        runs = [self._runs[number - self._oldest] for number in held if number >= self._oldest]
        if not runs:
            return _NOTHING  # all of them have been given up
        self._forcing[position] = [run.number for run in runs]
        self._force_numbers[position] += 1
        first, last = min(run.first for run in runs), max(run.last for run in runs)
        return (SendForce(position, self._force_numbers[position], first, last, self._tenures[position]),)

    def _accept(self) -> Sequence[Effect]:
        """Tell of every entry that Qa bookies have accepted, up to the first that is not."""
        if self._change is not None:
            return _NOTHING
        quorums, runs = self._quorums, self._runs
        first = at = self._first_unaccepted
        length_before = self._length_accepted
        while self._accept_head - self._oldest < len(runs):
            run = runs[self._accept_head - self._oldest]
            at = quorums.first_unacknowledged(at, run.last, run.accepted | run.confirmed)
            if at <= run.last:
                if at > max(first, run.first):
                    self._length_accepted = header_of(run.entries[at - 1 - run.first]).length
                break
            self._length_accepted = run.length_after
            self._accept_head += 1
        self._first_unaccepted = at
        return (Accept(first, at - 1, self._length_accepted - length_before),) if at > first else _NOTHING

    def _acknowledge(self) -> Sequence[Effect]:
        """Accept, and then acknowledge: what is acknowledged has been accepted before."""
        accepted = self._accept()
        head = self._head
        acknowledged = super()._acknowledge()
        for at in range(head - self._oldest, self._head - self._oldest):
            self._unforced_bytes -= self._runs[at].sealed_bytes
        while self._forces and self._forces[0][0] <= self._first_unacknowledged:
            self._forces.popleft()
        return (*accepted, *acknowledged)

    # --- for tests and model checkers -----------------------------------------------------------------------------

    def copy(self) -> Self:
        """An independent pipeline in the same state."""
        other = super().copy()
        other._boots, other._force_numbers = self._boots.copy(), self._force_numbers.copy()
        other._held = [held.copy() for held in self._held]
        other._held_first = self._held_first.copy()
        other._forcing = [None if covered is None else covered.copy() for covered in self._forcing]
        other._forces = self._forces.copy()
        return other

    def state(self) -> tuple[object, ...]:
        """Everything that decides what happens next, as one comparable, hashable value."""
        return (
            super().state(),
            tuple(run.accepted for run in self._runs),
            self._first_unaccepted,
            self._accept_head,
            self._length_accepted,
            tuple(self._boots),
            tuple(map(tuple, self._held)),
            tuple(None if covered is None else tuple(covered) for covered in self._forcing),
            tuple(self._force_numbers),
            self._force_stop,
            tuple(self._forces),
            self._unforced_bytes,
            self._unrequested_bytes,
        )

    def check_invariants(self) -> None:
        """Raise AssertionError unless the state is one that can be."""
        super().check_invariants()
        assert self._first_unacknowledged <= self._first_unaccepted <= self.next_entry_id, "accepted before forced"
        assert self._accept_head >= self._head
        assert self._force_stop <= self.next_entry_id
        pending = [run for run in self._runs if run.number >= self._head]
        assert sum(run.sealed_bytes for run in pending) == self._unforced_bytes
        assert self._length <= self._length_accepted <= self.length_pushed
        assert all(stop > self._first_unacknowledged for stop, _ in self._forces)
        for position in range(self._quorums.ensemble_size):
            bit = 1 << position
            listed = [*self._held[position], *(self._forcing[position] or ())]
            assert len(set(listed)) == len(listed), "a run is listed once"
            kept = {number for number in listed if number >= self._oldest}
            assert kept == {run.number for run in self._runs if run.accepted & ~run.confirmed & bit}, "held is accepted"
            waits = self._forcing[position] is None and self.is_ready(position) and not self._stopped
            firsts = [run.first for run in self._runs if run.number in kept]
            assert not (waits and firsts) or min(firsts) >= self._force_stop, "what is to be forced is being forced"
        if self._change is None and not self._stopped and self._accept_head - self._oldest < len(self._runs):
            run = self._runs[self._accept_head - self._oldest]
            at = max(self._first_unaccepted, run.first)
            complete = self._quorums.first_unacknowledged(at, run.last, run.accepted | run.confirmed) > at
            assert not complete, "acceptance is always drawn at once"
