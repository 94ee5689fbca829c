"""Decides which bookies of a writer's ensemble are replaced, and when. Pure.

Theory of operation
-------------------

A slot is *troubled* while its bookie is not confirming what it is sent:

* *lost*: the connection broke, or is not established yet. The slot is due for replacement when that has lasted
  ``loss_seconds``: to wait for a bookie that restarts, or for a connection that flaps, costs less than to replace it.
* *refusing*: the bookie answered that it does not take adds, or did not answer in time. The slot is due at once,
  and stays so until the bookie confirms a run; a new connection alone proves nothing.
* *departed*: the cluster has declared the bookie lost, or it is drained or in doubt (rule O2). The slot is due at
  once, whatever the bookie answers, until the cluster says otherwise.

A change begins only if a pending run waits for a troubled slot, or if a slot has departed: otherwise an idle
writer changes no metadata. While every pending entry can still reach Qa without the troubled slots,
``delay_seconds`` are added to the times of lost and refusing ones (rule W8 requires no change at all then).

::

    IDLE --a slot is due--> SEEKING --spares found--> COMMITTING --metadata changed--> IDLE
                                   \\--no spare, or no slot is due any more--> IDLE, again after ``retry_seconds``

A *roll* begins a new fragment although no bookie is in trouble, on other bookies or on the same ones (rule U6). It goes
through the same phases, from :meth:`~EnsembleChanges.begin_roll` on.

There is one change at a time (rule W5). A slot that gets into trouble meanwhile waits for the next change; one
change replaces all slots that are due. The first id of the new fragment is chosen when the spares are known, in the
step that leads to COMMITTING (rule W1), so the search for spares delays no acknowledgement.

*How a harness drives it.* Call :meth:`~EnsembleChanges.on_lost`, :meth:`~EnsembleChanges.on_refused`,
:meth:`~EnsembleChanges.on_connected`, :meth:`~EnsembleChanges.on_confirmed`, :meth:`~EnsembleChanges.on_departed`,
:meth:`~EnsembleChanges.on_stays`; call :meth:`~EnsembleChanges.poll` after those, after pushes while
:attr:`~EnsembleChanges.troubled_since`, and at :meth:`~EnsembleChanges.wake_at`; answer a :class:`FindSpares` with
:meth:`~EnsembleChanges.on_spares` and a :class:`Commit`, once the metadata say so, with
:meth:`~EnsembleChanges.on_committed`. To roll, call :meth:`~EnsembleChanges.begin_roll` and then
:meth:`~EnsembleChanges.on_placement`.
"""

import enum
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Self

from octavo.client.write.pipeline import Effect, Pipeline
from octavo.metadata.ledger.debts import NO_DEBT, Debt
from octavo.protocol.ids import BookieId, EntryId
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.quorums import Quorums

DEPARTED_RETRY_FACTOR = 10
"""How many times as long a writer waits before it looks again for a spare for a bookie that has departed and is not in
its way."""


class Phase(enum.Enum):
    """Where a change of the ensemble is."""

    IDLE = "idle"
    SEEKING = "seeking"
    COPYING = "copying"
    """Only where all copies are required (:mod:`octavo.client.write.copies.full_copies`)."""
    COMMITTING = "committing"


@dataclass(frozen=True, slots=True)
class FindSpares:
    """Find other bookies for these slots and call :meth:`EnsembleChanges.on_spares` with them."""

    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """Write this as the last fragment by compare-and-set; when that is done call
    :meth:`EnsembleChanges.on_committed`."""

    first_entry_id: EntryId
    ensemble: tuple[BookieId, ...]
    length_before: int
    debt: Debt = NO_DEBT
    """What is owed of the fragment that ends (rule G3)."""


class EnsembleChanges:
    """See the module. Times are the shell's clock, in seconds. ``pipeline`` is the writer's own."""

    __slots__ = (
        "_connected",
        "_delay_seconds",
        "_departed",
        "_ensemble",
        "_loss_seconds",
        "_next_ensemble",
        "_pipeline",
        "_quorums",
        "_refusing",
        "_retry_at",
        "_retry_seconds",
        "phase",
        "troubled_since",
    )

    def __init__(
        self,
        pipeline: Pipeline,
        quorums: Quorums,
        ensemble: Sequence[BookieId],
        *,
        now: float,
        loss_seconds: float,
        delay_seconds: float,
        retry_seconds: float,
    ) -> None:
        self._pipeline = pipeline
        self._quorums = quorums
        self._ensemble = tuple(ensemble)
        self._next_ensemble = self._ensemble
        self._loss_seconds = loss_seconds
        self._delay_seconds = delay_seconds
        self._retry_seconds = retry_seconds
        self._connected = 0
        self._refusing = 0
        self._departed = 0
        self.troubled_since: dict[int, float] = dict.fromkeys(range(len(self._ensemble)), now)
        """Since when each troubled slot has been in trouble; empty while none is. Changed only here."""
        self._retry_at = now
        self.phase = Phase.IDLE

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        """The ensemble of the last fragment."""
        return self._ensemble

    def wake_at(self) -> float | None:
        """When :meth:`poll` may have a result although no other event happens; None: not before another event."""
        if self.phase is not Phase.IDLE:
            return None
        waited_for = [position for position in self.troubled_since if self._is_waited_for(position)]
        if not waited_for:
            return None
        return max(min(map(self._due_at, waited_for)), self._retry_at)

    def _is_waited_for(self, position: int) -> bool:
        """Whether trouble in the slot is a reason for a change."""
        return bool(self._departed >> position & 1) or self._pipeline.is_waited_for(position)

    def _due_at(self, position: int) -> float:
        if self._departed >> position & 1:
            return self.troubled_since[position]
        patience = 0.0 if self._refusing >> position & 1 else self._loss_seconds
        healthy = self._quorums.full_mask
        for troubled in self.troubled_since:
            healthy &= ~(1 << troubled)
        if self._delay_seconds and self._pipeline.can_be_acknowledged(healthy):
            patience += self._delay_seconds
        return self.troubled_since[position] + patience

    # --- events -----------------------------------------------------------------------------------------------------

    def on_lost(self, position: int, now: float) -> None:
        """The connection to the bookie is lost."""
        self._connected &= ~(1 << position)
        self.troubled_since.setdefault(position, now)

    def on_refused(self, position: int, now: float) -> None:
        """The bookie does not take an add, and not because it is busy; or did not answer in time."""
        self._refusing |= 1 << position
        self.troubled_since.setdefault(position, now)

    def on_connected(self, position: int) -> None:
        """The connection to the bookie is established."""
        self._connected |= 1 << position
        if not (self._refusing | self._departed) >> position & 1:
            self.troubled_since.pop(position, None)

    def on_confirmed(self, position: int) -> None:
        """The bookie in this slot (in its current tenure) has confirmed a run."""
        self._refusing &= ~(1 << position)
        if (self._connected & ~self._departed) >> position & 1:
            self.troubled_since.pop(position, None)

    def on_departed(self, position: int, now: float) -> None:
        """The cluster says that the bookie is to be replaced (rule O2)."""
        self._departed |= 1 << position
        self.troubled_since.setdefault(position, now)

    def on_stays(self, position: int) -> None:
        """The cluster does not say so, or not any more."""
        if not self._departed >> position & 1:
            return
        self._departed &= ~(1 << position)
        if self._connected >> position & 1 and not self._refusing >> position & 1:
            self.troubled_since.pop(position, None)

    def poll(self, now: float) -> FindSpares | None:
        """Begin a change if one is due."""
        if self.phase is not Phase.IDLE or now < self._retry_at or not self.troubled_since:
            return None
        due = self._due(now)
        if not due:
            return None
        self.phase = Phase.SEEKING
        return FindSpares(due)

    def _due(self, now: float) -> tuple[int, ...]:
        return tuple(
            position
            for position in sorted(self.troubled_since)
            if self._is_waited_for(position) and self._due_at(position) <= now
        )

    def still_due(self, spares: Mapping[int, BookieId], now: float) -> dict[int, BookieId]:
        """Those of the spare bookies whose slots are to be given to them even now."""
        return {
            position: bookie_id
            for position, bookie_id in spares.items()
            if position in self.troubled_since and self._due_at(position) <= now
        }

    def on_spares(self, spares: Mapping[int, BookieId], now: float) -> Commit | None:
        """Spare bookies, none of them in the ensemble, for the slots of :class:`FindSpares`, as far as there are
        any.

        Returns None if nothing is replaced now: there is no spare, or the bookies that were due have recovered. A
        slot is replaced even if no pending run waits for it any more: adds that come one by one are acknowledged
        by the other bookies before a spare is found, and would otherwise stay one copy short for ever.
        """
        assert self.phase is Phase.SEEKING, "spares come as an answer to FindSpares"
        replaced = self.still_due(spares, now)
        if not replaced:
            self.phase = Phase.IDLE
            # A departed bookie without a spare is not urgent: it may serve, and spares are looked for again and again.
            urgent = any(not self._departed >> position & 1 for position in self._due(now))
            self._retry_at = now + self._retry_seconds * (1 if urgent else DEPARTED_RETRY_FACTOR)
            return None
        return self._replace(replaced)

    def _replace(self, replaced: Mapping[int, BookieId]) -> Commit | None:
        """Replace the bookies in these slots."""
        return self._begin(
            tuple(replaced.get(position, bookie_id) for position, bookie_id in enumerate(self._ensemble))
        )

    def begin_roll(self) -> bool:
        """Begin to roll: find bookies for the next fragment and call :meth:`on_placement`. False while another change
        is under way."""
        if self.phase is not Phase.IDLE:
            return False
        self.phase = Phase.SEEKING
        return True

    def on_placement(self, ensemble: Sequence[BookieId] | None) -> Commit | None:
        """The bookies of the next fragment, which may be those of the present one; None to go on without a roll."""
        assert self.phase is Phase.SEEKING, "a roll has begun"
        if ensemble is None:
            self.phase = Phase.IDLE
            return None
        if not self._quorums.striped:
            # A bookie that stays keeps its slot, so that what it has confirmed counts on. Striped, the order is
            # that of the racks.
            others = iter([one for one in ensemble if one not in self._ensemble])
            ensemble = [one if one in ensemble else next(others) for one in self._ensemble]
        return self._roll(tuple(ensemble))

    def _roll(self, ensemble: tuple[BookieId, ...]) -> Commit | None:
        """Go on in a new fragment on these bookies."""
        return self._begin(ensemble)

    def _begin(self, ensemble: tuple[BookieId, ...]) -> Commit:
        replaced = sum(
            1 << position
            for position, (ours, theirs) in enumerate(zip(self._ensemble, ensemble, strict=True))
            if ours != theirs
        )
        change = self._pipeline.begin_change(replaced)
        self._next_ensemble = ensemble
        self.phase = Phase.COMMITTING
        return Commit(change.first_entry_id, ensemble, change.length_before, change.debt)

    def on_committed(self, now: float) -> Sequence[Effect]:
        """The metadata have the new ensemble. Returns the pipeline's effects. The new bookies count as lost until they
        are connected."""
        assert self.phase is Phase.COMMITTING, "a change was to be committed"
        self.phase = Phase.IDLE
        for position, (before, after) in enumerate(zip(self._ensemble, self._next_ensemble, strict=True)):
            if before != after:
                self._connected &= ~(1 << position)
                self._refusing &= ~(1 << position)
                self._departed &= ~(1 << position)
                self.troubled_since[position] = now
        self._ensemble = self._next_ensemble
        return self._pipeline.commit_change()

    # --- for tests and model checkers -------------------------------------------------------------------------------

    def copy(self, pipeline: Pipeline) -> Self:
        """An independent one in the same state, on a copy of the pipeline."""
        other = copy(self)
        other._pipeline = pipeline
        other.troubled_since = self.troubled_since.copy()
        return other

    def state(self) -> tuple[object, ...]:
        """Everything but the pipeline that decides what happens next, as one comparable, hashable value."""
        return (
            self.phase,
            self._ensemble,
            self._next_ensemble,
            self._connected,
            self._refusing,
            self._departed,
            tuple(sorted(self.troubled_since.items())),
            self._retry_at,
        )

    def check_invariants(self) -> None:
        """Raise AssertionError unless the state is one that can be."""
        assert len(set(self._ensemble)) == len(self._ensemble) == self._quorums.ensemble_size
        assert len(set(self._next_ensemble)) == len(self._next_ensemble), "never one bookie twice (rule W8)"
        change = self._pipeline.change
        assert (change is not None) == (self.phase is Phase.COMMITTING)
        differs = sum(
            1 << position
            for position, (ours, theirs) in enumerate(zip(self._ensemble, self._next_ensemble, strict=True))
            if ours != theirs
        )
        assert differs == (change.replaced if change is not None else 0)
        untroubled = self._quorums.full_mask
        for position in self.troubled_since:
            untroubled &= ~(1 << position)
        assert untroubled & ~self._connected == 0, "a position that is not connected is troubled"
        assert untroubled & (self._refusing | self._departed) == 0
