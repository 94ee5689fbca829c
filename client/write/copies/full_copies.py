"""The pipeline of a ledger created with ``full_copies`` (rules G1 to G4). Pure.

Theory of operation
-------------------

An entry is *full* when every slot of its write set has confirmed it. The runs of the row that are not full are kept
by the ordinary pipeline (:mod:`octavo.client.write.pipeline`) anyway, so the *last add fully replicated* (LAFR) lies
below the oldest run of the row, and is counted on from there, never from the LAC (rule G1)::

    full                     acknowledged           pending
    ... [ 5 ][ 6 ]           [ 7 ][ 8 ][ 9 ]        [ 10 ][ 11 ]
               LAFR ^                  LAC ^

*Recorded.* What is given up, or not full when its fragment ends, becomes the debt of the fragment
(:meth:`Pipeline.debt`). Nothing else differs from a ledger without books, except that the shell is told when nothing
waits for copies any more (:class:`Full`).

*Required.* No run is given up. The writer's window counts what is above the LAFR (rule G2), so that it bounds what is
kept. A change of the ensemble, and a roll of a stream, start at LAFR + 1, and copy first (rule G3)::

    SEEKING --bookies found--> COPYING --each entry up to the LAC is on Qa bookies of the new write set--> COMMITTING
                                \\--a joiner fails, or no bookie is to be replaced any more--> IDLE

A *joiner* is a bookie that is to take a slot. While the change is COPYING it is sent everything above the LAFR,
lowest first, and what it confirms is noted apart: acknowledgements count on the old write sets only, and nothing has
changed if the joiner fails. From :meth:`FullCopiesPipeline.begin_change` to :meth:`FullCopiesPipeline.commit_change`
nothing is acknowledged, and no run counts as full: one that the old members complete in that time may not be full with
the new ones.

Joiners that are slower than the old members would never reach a LAC that goes on rising. So once they have what was
acknowledged when copying began, acknowledgements are held (:meth:`FullCopiesPipeline.hold`) until they have the rest.

What a joiner confirms counts for one *attempt*: the shell ends the attempt when the joiner's connection breaks, because
a bookie that comes back may have lost everything, and would not know that it ought to be in doubt: no metadata name it.

What it never does, beside what the ordinary one never does: begin a fragment of a ledger with required copies above an
entry that is not full, or change to members of which fewer than Qa hold what is acknowledged.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import islice
from typing import Self

from octavo.client.write.ensemble_changes import Commit, EnsembleChanges, Phase
from octavo.client.write.pipeline import Effect, EnsembleChange, Full, Pipeline, Run, Send
from octavo.protocol.ids import BookieId, EntryId
from octavo.protocol.quorums import Quorums


@dataclass(slots=True)
class Joiner:
    """A bookie that is to take a slot of the ensemble."""

    cursor: int
    """The lowest run that it has not been sent, or must be sent again."""
    ready: bool = False
    confirmed: set[int] = field(default_factory=set)
    """Numbers of the runs whose share it has confirmed."""


class FullCopiesPipeline(Pipeline):
    """See the module. Sends to a joiner have the slot E + the one that it is to take, and the number of the attempt
    as tenure."""

    __slots__ = (
        "_attempt",
        "_copied_from",
        "_holding",
        "_joiners",
        "_kept_from",
        "_length_kept",
        "_required",
        "_told_from",
        "_told_length",
    )

    def __init__(
        self,
        quorums: Quorums,
        *,
        required: bool,
        retained_bytes_max: int,
        first_entry_id: int = 0,
        length: int = 0,
    ) -> None:
        super().__init__(quorums, retained_bytes_max=retained_bytes_max, first_entry_id=first_entry_id, length=length)
        self._required = required
        self._kept_from = self._told_from = first_entry_id
        """LAFR + 1: the first id of the oldest run that is kept, counting what was given up as done."""
        self._length_kept = self._told_length = length
        """Payload bytes before that id."""
        self._joiners: dict[int, Joiner] = {}
        self._attempt = 0
        self._copied_from = first_entry_id
        """What was not acknowledged when joiners came, begins here."""
        self._holding = False
        """Whether acknowledgements wait for the joiners."""

    # --- what is known --------------------------------------------------------------------------------------------

    @property
    def last_add_full(self) -> EntryId | None:
        """The highest id such that neither it nor any lower one waits for copies; None before the first."""
        return EntryId(self._kept_from - 1) if self._kept_from else None

    @property
    def first_not_full(self) -> int:
        """LAFR + 1."""
        return self._kept_from

    @property
    def is_full(self) -> bool:
        """Whether no acknowledged entry waits for copies."""
        return self._kept_from >= self._first_unacknowledged

    @property
    def attempt(self) -> int:
        """The number of the latest attempt to copy to joiners."""
        return self._attempt

    @property
    def joining(self) -> tuple[int, ...]:
        """The slots that joiners are to take."""
        return tuple(sorted(self._joiners))

    def is_waited_for(self, position: int) -> bool:
        """See the base class; where copies are required, also whether it has yet to confirm an acknowledged run."""
        bit = 1 << position
        runs = self._runs if self._required else self._pending_runs()
        return any(run.holders & ~run.confirmed & bit for run in runs)

    def short_at(self, position: int) -> int:
        """How many of the runs that are kept the slot has yet to confirm."""
        bit = 1 << position
        return sum(bool(run.holders & ~run.confirmed & bit) for run in self._runs)

    def acknowledged_lacking(self, position: int) -> list[Run]:
        """The runs, acknowledged as a whole, that the slot has yet to confirm."""
        bit = 1 << position
        return [run for run in islice(self._runs, self._head - self._oldest) if run.holders & ~run.confirmed & bit]

    @property
    def is_copied(self) -> bool:
        """Whether every acknowledged entry above the LAFR is on Qa bookies of the write set that is to come."""
        return self._is_copied_below(self._first_unacknowledged)

    @property
    def is_nearly_copied(self) -> bool:
        """Whether that is so of the entries that were acknowledged when the joiners came."""
        return self._is_copied_below(self._copied_from)

    def _is_copied_below(self, stop: int) -> bool:
        return all(
            self._quorums.first_unacknowledged(run.first, min(run.last, stop - 1), self._with_joiners(run))
            > min(run.last, stop - 1)
            for run in islice(self._runs, self._head - self._oldest + 1)
            if run.first < stop
        )

    # --- events ---------------------------------------------------------------------------------------------------

    def push(self, entries: Sequence[bytes], *, sealed_bytes: int, length_after: int, now: float) -> Sequence[Effect]:
        """See the base class; joiners that are ready are sent the run, too."""
        effects = super().push(entries, sealed_bytes=sealed_bytes, length_after=length_after, now=now)
        if not self._joiners:
            return effects
        to_joiners = [effect for position, one in self._joiners.items() if one.ready for effect in self._feed(position)]
        return [*effects, *to_joiners]

    def on_confirmed(self, position: int, number: int, tenure: int) -> Sequence[Effect]:
        """See the base class."""
        effects = super().on_confirmed(position, number, tenure)
        return effects if self._told_from == self._kept_from else (*effects, self._full())

    def begin_copy(self, positions: Sequence[int]) -> None:
        """Bookies are to join in these slots: all of them held."""
        assert self._required, "only where copies are required they are made before the change"
        assert self._change is None, "a writer makes one change at a time (rule W5)"
        assert not self._joiners, "one change at a time"
        assert not self._holding, "what was held for other joiners has been told"
        self._attempt += 1
        self._joiners = {position: Joiner(self._oldest) for position in positions}
        self._copied_from = self._first_unacknowledged

    def hold(self) -> None:
        """Acknowledge nothing until the joiners join, or do not: :meth:`resume`."""
        assert self._joiners, "there is no one to wait for"
        self._holding = True

    def end_copy(self) -> None:
        """The joiners do not join: nothing has changed. Call :meth:`resume`."""
        self._joiners = {}

    def resume(self) -> Sequence[Effect]:
        """Acknowledge what was held back; nothing while joiners are to join."""
        if self._joiners or not self._holding:
            return ()
        self._holding = False
        if self._stopped:
            return ()
        effects = self._acknowledge()
        self._release()
        return effects if self._told_from == self._kept_from else (*effects, self._full())

    def on_joiner_ready(self, position: int, attempt: int) -> Sequence[Effect]:
        """The joiner takes requests: send what it lacks, lowest first, and every new run from now on."""
        if not self._joins(position, attempt) or self._joiners[position].ready:
            return ()
        self._joiners[position].ready = True
        return self._feed(position)

    def on_joiner_unsent(self, position: int, number: int, attempt: int) -> None:
        """A send could not be sent, or is to be sent again: hold the joiner."""
        if self._joins(position, attempt):
            joiner = self._joiners[position]
            joiner.ready = False
            joiner.cursor = min(joiner.cursor, number)

    def on_joiner_confirmed(self, position: int, number: int, attempt: int) -> None:
        """The joiner has made its share of a run durable. Acknowledges nothing."""
        if self._joins(position, attempt):
            self._joiners[position].confirmed.add(number)

    def begin_change(self, replaced: int) -> EnsembleChange:
        """See the base class. Where copies are required the fragment begins at LAFR + 1, and nothing is owed."""
        if not self._required:
            return super().begin_change(replaced)
        assert replaced == sum(1 << position for position in self._joiners), "what was copied is what changes"
        assert self.is_copied, "copies come before the change (rule G3)"
        super().begin_change(replaced)
        self._change = EnsembleChange(replaced, EntryId(self._kept_from), self._length_kept)
        return self._change

    def commit_change(self) -> Sequence[Effect]:
        """See the base class."""
        if not self._required:
            effects = super().commit_change()
            return effects if self._told_from == self._kept_from else (*effects, self._full())
        change = self._change
        assert change is not None, "a change was begun"
        if not self._stopped:
            for run in self._runs:
                run.confirmed = self._with_joiners(run)
            for position in self._joiners:
                self._tenures[position] += 1
                self._starts[position] = change.first_entry_id
                self._cursors[position] = self._oldest
            self._fragment_first = change.first_entry_id
        self._joiners, self._change, self._holding = {}, None, False
        if self._stopped:
            return ()
        effects = self._acknowledge()
        self._release()
        return effects if self._told_from == self._kept_from else (*effects, self._full())

    def stop(self) -> None:
        """See the base class."""
        super().stop()
        for joiner in self._joiners.values():
            joiner.ready = False

    # --- inside ---------------------------------------------------------------------------------------------------

    def _joins(self, position: int, attempt: int) -> bool:
        return attempt == self._attempt and position in self._joiners and self._change is None and not self._stopped

    def _with_joiners(self, run: Run) -> int:
        """The slots that have confirmed the run once the joiners have joined."""
        confirmed = run.confirmed
        for position, joiner in self._joiners.items():
            bit = 1 << position
            confirmed = confirmed & ~bit | (bit if run.number in joiner.confirmed else 0)
        return confirmed

    def _feed(self, position: int) -> list[Effect]:
        """The entries that the joiner has not been sent. It is one that is ready."""
        joiner, bit, size = self._joiners[position], 1 << position, self._quorums.ensemble_size
        start = max(joiner.cursor, self._oldest) - self._oldest
        runs = [
            run
            for run in islice(self._runs, start, None)
            if run.holders & bit and run.number not in joiner.confirmed
        ]  # fmt: skip
        joiner.cursor = self._oldest + len(self._runs)
        if runs:
            self._highest_sent = max(self._highest_sent, runs[-1].last)
        return [Send(size + position, run, self._attempt) for run in runs]

    def _acknowledge(self) -> Sequence[Effect]:
        return () if self._holding else super()._acknowledge()

    def _release(self) -> None:
        """Drop acknowledged runs that no slot lacks and, unless copies are required, the oldest ones over the
        bound."""
        if self._required and self._change is not None:
            return
        runs = self._runs
        while self._oldest < self._head:
            run = runs[0]
            if run.confirmed != run.holders:
                if self._required or self._retained_bytes <= self._retained_bytes_max:
                    return
                self._give_up(run)
            runs.popleft()
            self._retained_bytes -= run.sealed_bytes
            self._oldest += 1
            self._kept_from, self._length_kept = run.last + 1, run.length_after

    def _full(self) -> Full:
        """Tell how far the LAFR has moved."""
        full = Full(
            self._kept_from - 1, self._kept_from - self._told_from, self._length_kept - self._told_length
        )  # fmt: skip
        self._told_from, self._told_length = self._kept_from, self._length_kept
        return full

    # --- for tests and model checkers -----------------------------------------------------------------------------

    def copy(self) -> Self:
        """An independent pipeline in the same state."""
        other = super().copy()
        other._joiners = {at: Joiner(one.cursor, one.ready, set(one.confirmed)) for at, one in self._joiners.items()}
        return other

    def state(self) -> tuple[object, ...]:
        """Everything that decides what happens next, as one comparable, hashable value."""
        joiners = tuple(
            (at, one.cursor, one.ready, tuple(sorted(one.confirmed))) for at, one in sorted(self._joiners.items())
        )
        copying = (self._holding, self._copied_from if joiners else 0)
        return (*super().state(), self._kept_from, self._length_kept, self._told_from, self._attempt, joiners, copying)

    def check_invariants(self) -> None:
        """Raise AssertionError unless the state is one that can be."""
        if self._required:
            self._check_required()
        else:
            super().check_invariants()
        assert self._told_from == self._kept_from, "what is full is told at once"
        assert self._kept_from <= self._next_unreleased()

    def _check_required(self) -> None:
        """As the ordinary check, where nothing is given up, changes begin at LAFR + 1, and acknowledgements may be
        held for joiners."""
        self._check_row()
        self._check_slots()
        self._check_head(waits=self._change is not None or self._holding)
        self._check_change(self._kept_from, self._length_kept)
        if self._change is not None:
            assert self._fragment_first <= self._kept_from <= self._first_unacknowledged
        assert self._given_up.is_empty
        assert self.debt().first >= self._kept_from or self.debt().is_empty

    def _next_unreleased(self) -> int:
        return self._runs[0].first if self._runs else self.next_entry_id


class RequiredChanges(EnsembleChanges):
    """Changes of an ensemble where copies are required: the joiners get copies first (rule G3). Answer a
    :class:`~octavo.client.write.ensemble_changes.FindSpares` as usual; then, while the phase is COPYING, call
    :meth:`on_copied` whenever a bookie has confirmed anything, and :meth:`on_joiner_failed` when a joiner fails. If
    the phase is IDLE after that, perform what :meth:`FullCopiesPipeline.resume` gives."""

    __slots__ = ("_joiners", "_required_pipeline", "_rolling")

    def __init__(self, pipeline: FullCopiesPipeline, *arguments: object, **keywords: float) -> None:
        super().__init__(pipeline, *arguments, **keywords)  # type: ignore[arg-type]
        self._required_pipeline = pipeline
        self._joiners: dict[int, BookieId] = {}
        self._rolling = False

    @property
    def joiners(self) -> Mapping[int, BookieId]:
        """The bookies that are to join, by the slots that they are to take."""
        return self._joiners

    def _replace(self, replaced: Mapping[int, BookieId]) -> Commit | None:
        return self._copy_to(replaced, rolling=False)

    def _roll(self, ensemble: tuple[BookieId, ...]) -> Commit | None:
        others = {at: name for at, name in enumerate(ensemble) if name != self._ensemble[at]}
        return self._copy_to(others, rolling=True)

    def _copy_to(self, joiners: Mapping[int, BookieId], *, rolling: bool) -> Commit | None:
        self._joiners, self._rolling = dict(joiners), rolling
        self._required_pipeline.begin_copy(tuple(joiners))
        self.phase = Phase.COPYING
        return self.on_copied()

    def on_copied(self) -> Commit | None:
        """Choose the new fragment if enough is copied; None: not yet, or not any more."""
        if self.phase is not Phase.COPYING:
            return None
        if not self._rolling and not all(position in self.troubled_since for position in self._joiners):
            self._end()  # a bookie is back, and stays
            return None
        pipeline = self._required_pipeline
        if pipeline.is_copied:
            return super()._replace(self._joiners)
        if pipeline.is_nearly_copied:
            pipeline.hold()
        return None

    def on_joiner_failed(self, now: float) -> None:
        """A joiner cannot join: nothing has changed, and others are looked for."""
        if self.phase is Phase.COPYING:
            self._end()
            self._retry_at = now

    def _end(self) -> None:
        self._required_pipeline.end_copy()
        self._joiners = {}
        self.phase = Phase.IDLE

    def on_committed(self, now: float) -> Sequence[Effect]:
        """See the base class."""
        self._joiners = {}
        return super().on_committed(now)

    def copy(self, pipeline: Pipeline) -> Self:
        """An independent one in the same state, on a copy of the pipeline."""
        assert isinstance(pipeline, FullCopiesPipeline)
        other = super().copy(pipeline)
        other._required_pipeline = pipeline
        other._joiners = copy(self._joiners)
        return other

    def state(self) -> tuple[object, ...]:
        """Everything but the pipeline that decides what happens next, as one comparable, hashable value."""
        return (*super().state(), tuple(sorted(self._joiners.items())), self._rolling and bool(self._joiners))
