"""The order in which entries are moved (rule J6): every outcome of every step, and every path."""

import random

import pytest
from octavo.bookie.archive.mover import GIVE_UP_SECONDS, NEXT, Move, Outcome, Step

IMPOSSIBLE = {(Step.WRITE_WORD, Outcome.DAMAGED), (Step.TAKE_BACK, Outcome.DAMAGED)}
"""Metadata have no damaged objects."""


def moved(*outcomes: Outcome) -> Move:
    move = Move(began_at_seconds=0.0)
    for outcome in outcomes:
        move.taken(outcome)
    return move


def test_every_outcome_of_every_step_has_a_next_step() -> None:
    steps = {step for step in Step if not step.is_end}
    assert {(step, outcome) for step in steps for outcome in Outcome} - NEXT.keys() == IMPOSSIBLE
    assert {step for step, _ in NEXT} == steps


def test_a_move_without_faults_takes_each_step_once() -> None:
    move, steps = moved(), [Step.UPLOAD]
    while not move.step.is_end:
        steps.append(move.taken(Outcome.OK))
    assert steps == [Step.UPLOAD, Step.READ_BACK, Step.WRITE_WORD, Step.LOOK_AGAIN, Step.DONE]


@pytest.mark.parametrize("seed", range(200))
def test_on_every_path_the_word_follows_an_object_that_was_read_back(seed: int) -> None:
    rng = random.Random(seed)
    move, now = moved(), 0.0
    read_back = word_may_exist = taken_back = False
    while not move.step.is_end:
        now += rng.choice([1.0, 1.0, 1.0, GIVE_UP_SECONDS])
        step = move.look_at_clock(now)
        if step.is_end:
            break
        outcome = rng.choice([one for one in Outcome if (step, one) not in IMPOSSIBLE])
        if step is Step.WRITE_WORD:
            assert read_back
            assert now <= GIVE_UP_SECONDS
            word_may_exist |= outcome in {Outcome.OK, Outcome.UNKNOWN}
        read_back |= step is Step.READ_BACK and outcome is Outcome.OK
        taken_back |= step in {Step.TAKE_BACK, Step.WRITE_WORD} and outcome is Outcome.MISSING
        taken_back |= step is Step.TAKE_BACK and outcome is Outcome.OK
        move.taken(outcome)
    if move.step is Step.GARBAGE:
        assert taken_back or not word_may_exist, "no word names garbage"
    if move.step is Step.DONE:
        assert read_back
        assert word_may_exist


@pytest.mark.parametrize(
    ("outcomes", "late"),
    [
        ((), Step.GARBAGE),
        ((Outcome.OK,), Step.GARBAGE),
        ((Outcome.OK, Outcome.OK), Step.GARBAGE),
        ((Outcome.OK, Outcome.OK, Outcome.UNKNOWN), Step.LOOK_AGAIN),
        ((Outcome.OK, Outcome.OK, Outcome.OK), Step.LOOK_AGAIN),
        ((Outcome.OK, Outcome.OK, Outcome.OK, Outcome.MISSING), Step.TAKE_BACK),
    ],
)
def test_a_late_move_writes_no_word_and_looks_at_one_that_may_exist(outcomes: tuple[Outcome, ...], late: Step) -> None:
    in_time = moved(*outcomes).step
    assert moved(*outcomes).look_at_clock(GIVE_UP_SECONDS) is in_time
    assert moved(*outcomes).look_at_clock(GIVE_UP_SECONDS + 1) is late


def test_a_word_that_is_refused_after_an_attempt_without_answer_may_be_its_own() -> None:
    assert moved(Outcome.OK, Outcome.OK, Outcome.REFUSED).step is Step.GARBAGE
    assert moved(Outcome.OK, Outcome.OK, Outcome.UNKNOWN, Outcome.REFUSED).step is Step.LOOK_AGAIN


def test_a_move_that_has_ended_takes_no_step() -> None:
    with pytest.raises(AssertionError):
        moved(Outcome.UNKNOWN).taken(Outcome.OK)
