"""How a client becomes leader (rules L1, L4 and P4): the machine against a list that rivals change at every step."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from octavo.client.log.chain.changes import AppendSegment, BeginSegment, LogChange
from octavo.client.log.chain.leader_steps import (
    Allocate,
    Change,
    Create,
    Delete,
    Lead,
    LeaderSteps,
    ReadList,
    Recover,
    Stage,
    Stop,
)
from octavo.client.log.documents.chain import LogDocument, SegmentEnd
from octavo.client.log.documents.effects import WriteDocument
from octavo.metadata.ledger.decisions import Refuse
from octavo.protocol.errors import (
    LogDamagedError,
    MetadataUnavailableError,
    NoSuchLogError,
    NotLeaderError,
    OctavoError,
)
from octavo.protocol.ids import LedgerId
from support.metadata.log_documents import ended, log_of


@dataclass
class World:
    """A list and its ledgers, and the outcomes of effects on them."""

    document: LogDocument
    ends: dict[int, SegmentEnd] = field(default_factory=dict)
    existing: set[int] = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(100))
    before: Callable[["World", LeaderSteps], None] | None = None
    """Called before each effect is carried out: what rivals do."""
    lose_answer_of: type[LogChange] | None = None

    def run(self, steps: LeaderSteps) -> Lead | Stop:
        for _ in range(200):
            if self.before is not None:
                self.before(self, steps)
            effect = steps.effect
            self.done.append(type(effect).__name__)
            match effect:
                case Lead() | Stop():
                    return effect
                case ReadList():
                    steps.on_list(self.document)
                case Allocate():
                    steps.on_allocated(LedgerId(next(self.ids)))
                case Change(change):
                    self._change(steps, change)
                case Recover(segments):
                    for segment in segments:
                        self.ends.setdefault(segment.ledger_id, ended(2))
                    steps.on_recovered({s.ledger_id: self.ends[s.ledger_id] for s in segments})
                case Create(ledger_id):
                    self.existing.add(ledger_id)
                    steps.on_done()
                case Delete(ledger_id):
                    self.existing.discard(ledger_id)
                    steps.on_done()
        raise AssertionError("the machine does not end")

    def _change(self, steps: LeaderSteps, change: LogChange) -> None:
        decision = change.decide(self.document)
        if isinstance(decision, Refuse):
            steps.on_failed(decision.error)
            return
        if isinstance(decision, WriteDocument):
            self.document = decision.document
        if isinstance(change, self.lose_answer_of or ()):
            self.lose_answer_of = None
            steps.on_failed(MetadataUnavailableError("no answer"))
            return
        steps.on_changed(self.document)


def test_the_steps_come_in_order() -> None:
    world = World(log_of(3, None, None, newest_known=False))
    outcome = world.run(LeaderSteps("me", 7000))
    assert world.done == ["ReadList", "Allocate", "Change", "Recover", "Create", "Change", "Lead"]
    assert isinstance(outcome, Lead)
    assert (outcome.segment.term, outcome.segment.owner, outcome.segment.first_position) == (4, "me", 7)
    assert outcome.document == world.document


def test_every_step_that_stops_a_leader_says_so() -> None:
    """Before each of them the candidate looks whether it still holds the lock (rule P3): it may have been paused."""
    disturbing: list[Stage] = []

    def note(_world: World, steps: LeaderSteps) -> None:
        disturbing.extend([steps.stage] * steps.disturbs_others)

    World(log_of(3, None), before=note).run(LeaderSteps("me", 0))
    assert disturbing == [Stage.BEGIN, Stage.RECOVER, Stage.CREATE, Stage.APPEND]


def test_a_candidate_that_was_overtaken_before_it_heard_of_its_success_does_not_lead() -> None:
    steps = LeaderSteps("me", 0, attempts_max=1)

    def overtake(world: World, machine: LeaderSteps) -> None:
        if machine.stage is Stage.WITHDRAW:
            world.before = None
            assert isinstance(world.run(LeaderSteps("rival", 0)), Lead)

    world = World(log_of(3, None), before=overtake, lose_answer_of=AppendSegment)
    outcome = world.run(steps)
    assert isinstance(outcome, Stop)
    assert isinstance(outcome.error, NotLeaderError)


def test_a_closed_or_empty_log_needs_no_recovery() -> None:
    world = World(log_of())
    assert isinstance(world.run(LeaderSteps("me", 0)), Lead)
    assert "Recover" not in world.done
    assert world.document.term == 1


@pytest.mark.parametrize("stage", [Stage.ALLOCATE, Stage.BEGIN, Stage.RECOVER, Stage.CREATE, Stage.APPEND])
def test_a_rival_at_any_step_costs_a_round_and_leaves_no_ledger(stage: Stage) -> None:
    def rival(world: World, steps: LeaderSteps) -> None:
        if steps.stage is stage and steps.attempts == 1:
            world.before = None
            assert isinstance(world.run(LeaderSteps("rival", 0)), Lead)
            world.before = rival

    world = World(log_of(3, None), before=rival)
    outcome = world.run(LeaderSteps("me", 0))
    assert isinstance(outcome, Lead)
    assert outcome.segment.owner == "me"
    owners = [segment.owner for segment in world.document.segments]
    assert owners[-1] == "me"
    listed = {segment.ledger_id for segment in world.document.segments}
    dropped = {dropped.ledger_id for dropped in world.document.dropped}
    assert world.existing <= listed | dropped, "a ledger that no list names"
    assert listed <= world.existing | {10, 11}


def test_a_candidate_gives_up_after_so_many_rounds() -> None:
    def rival(world: World, steps: LeaderSteps) -> None:
        if steps.stage is Stage.APPEND and steps.owner == "me":
            world.before = None
            world.run(LeaderSteps("rival", 0))
            world.before = rival

    world = World(log_of(3, None), before=rival)
    outcome = world.run(LeaderSteps("me", 0, attempts_max=3))
    assert isinstance(outcome, Stop)
    assert isinstance(outcome.error, NotLeaderError)


@pytest.mark.parametrize("lost", [BeginSegment, AppendSegment])
def test_a_lost_answer_is_settled_by_the_list(lost: type[LogChange]) -> None:
    world = World(log_of(3, None), lose_answer_of=lost)
    outcome = world.run(LeaderSteps("me", 0))
    if lost is AppendSegment:
        assert isinstance(outcome, Lead), "the append had succeeded: its ledger is not deleted"
        assert outcome.segment.ledger_id in world.existing
    else:
        assert isinstance(outcome, Stop)
        assert world.existing == set()
        assert world.document.making == ()


@pytest.mark.parametrize("stage", [Stage.READ, Stage.ALLOCATE, Stage.BEGIN, Stage.RECOVER, Stage.CREATE, Stage.APPEND])
def test_a_failure_cleans_up_and_is_told(stage: Stage) -> None:
    failure = OctavoError("it broke")
    world = World(log_of(3, None))
    steps = LeaderSteps("me", 0)

    def fail(_world: World, machine: LeaderSteps) -> None:
        if machine.stage is stage and failure not in told:
            told.append(failure)
            machine.on_failed(failure)

    told: list[OctavoError] = []
    world.before = fail
    outcome = world.run(steps)
    assert outcome == Stop(failure)
    assert world.document.making == ()
    assert world.existing == set()


def test_a_healing_writer_keeps_its_term_and_stops_at_a_rival() -> None:
    world = World(log_of(3, None))
    outcome = world.run(LeaderSteps("owner-2", 0, healing=True))
    assert isinstance(outcome, Lead)
    assert outcome.segment.term == 2
    stopped = World(log_of(3, None)).run(LeaderSteps("owner-1", 0, healing=True))
    assert isinstance(stopped, Stop)
    assert isinstance(stopped.error, NotLeaderError)


def test_a_last_segment_that_is_gone_stops_the_candidate() -> None:
    steps = LeaderSteps("me", 0)
    steps.on_list(log_of(3, None))
    steps.on_allocated(LedgerId(100))
    assert isinstance(steps.effect, Change)
    decision = steps.effect.change.decide(log_of(3, None))
    assert isinstance(decision, WriteDocument)
    steps.on_changed(decision.document)
    steps.on_recovered({LedgerId(11): None})
    assert steps.stage is Stage.WITHDRAW
    steps.on_changed(log_of(3, None))
    steps.on_done()
    assert isinstance(steps.effect, Stop)
    assert isinstance(steps.effect.error, LogDamagedError)


def test_a_ledger_made_for_a_log_that_is_deleted_meanwhile_is_deleted() -> None:
    """The client that deleted the log may have looked for the ledger before it existed (rule P13)."""
    steps = LeaderSteps("me", 0)
    steps.on_list(log_of(3))
    steps.on_allocated(LedgerId(100))
    steps.on_changed(log_of(3))
    steps.on_done()
    gone = NoSuchLogError("there is no log orders")
    steps.on_failed(gone)
    assert steps.stage is Stage.WITHDRAW
    steps.on_failed(gone)
    first: object = steps.effect
    assert first == Delete(LedgerId(100))
    steps.on_done()
    second: object = steps.effect
    assert second == Stop(gone)
