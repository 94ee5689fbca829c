"""The model's bookie, rule by rule. The model check is only as good as this bookie."""

from dataclasses import replace

import pytest
from model.engine.exchange import (
    DUPLICATE,
    FENCED,
    IN_DOUBT,
    Add,
    Answer,
    Done,
    Fence,
    Found,
    Lac,
    Message,
    Read,
    ReadLac,
    Refused,
    WriteLac,
)
from model.engine.sealing import sealed, sealed_lac
from model.ledgers.bookie import Bookie, BookieState

PLAIN, SYNCING = Bookie(syncs=False), Bookie(syncs=True)
FIRST, SECOND = sealed(0, -1), sealed(1, -1)
ADD = Add((FIRST,), recovery=False)


def answer_of(state: BookieState, request: Add | Read | ReadLac) -> Answer | None:
    return PLAIN.accept(state, request)[1]


def test_add_is_held_and_the_same_bytes_are_a_success_again() -> None:
    state, answer = PLAIN.accept(BookieState(), ADD)
    assert (state.held, answer) == ((FIRST,), Done())
    assert PLAIN.accept(state, ADD) == (state, Done())


def test_other_bytes_for_a_held_entry_store_nothing() -> None:
    state = BookieState(held=(SECOND,))
    assert PLAIN.accept(state, Add((sealed(0, -1), sealed(1, 0)), recovery=True)) == (state, Refused(DUPLICATE))


def test_bytes_replace_a_damaged_copy() -> None:
    state = BookieState(held=(FIRST,), damaged=frozenset({0}))
    after, answer = PLAIN.accept(state, Add((FIRST,), recovery=True))
    assert (after.damaged, answer) == (frozenset(), Done())


@pytest.mark.parametrize(
    ("state", "reason"), [(BookieState(fenced=True), FENCED), (BookieState(in_doubt=True), IN_DOUBT)]
)
def test_fenced_and_doubtful_bookies_take_recovery_adds_only(state: BookieState, reason: str) -> None:
    assert PLAIN.accept(state, ADD) == (state, Refused(reason))
    assert answer_of(state, replace(ADD, recovery=True)) == Done()


@pytest.mark.parametrize("request_", [Read(0, 0, fence=True), ReadLac(fence=True), Fence()])
def test_fence_holds_from_the_step_that_takes_it(request_: Read | ReadLac | Fence) -> None:
    assert PLAIN.accept(BookieState(), request_)[0].fenced
    assert PLAIN.accept(BookieState(in_doubt=True), request_)[0].fenced


def test_plain_reads_do_not_fence() -> None:
    assert not PLAIN.accept(BookieState(), Read(0, 0, fence=False))[0].fenced


def test_negatives_come_from_no_doubt() -> None:
    state = BookieState(held=(FIRST, SECOND), damaged=frozenset({1}))
    assert answer_of(state, Read(0, 2, fence=False)) == Found(2, (FIRST,), (1,))
    assert answer_of(BookieState(in_doubt=True), Read(0, 1, fence=False)) == Found(1, (), (0, 1))


def test_lac_read_returns_the_newest_intact_entry() -> None:
    state = BookieState(held=(FIRST, SECOND), damaged=frozenset({1}), explicit_lac=sealed_lac(0))
    assert answer_of(state, ReadLac(fence=False)) == Lac(FIRST, sealed_lac(0), in_doubt=False)


def test_explicit_lac_never_goes_back() -> None:
    state = PLAIN.write_lac(BookieState(), WriteLac(sealed_lac(1)))
    assert PLAIN.write_lac(state, WriteLac(sealed_lac(0))) == state


def test_answers_leave_after_the_sync_that_they_promise() -> None:
    added = Message(0, 0, None, ADD)
    state, sent = SYNCING.receive(BookieState(), added)
    assert sent == ()
    assert SYNCING.receive(state, added)[1] == (), "held, and not durable yet"
    read = Message(1, 0, None, Read(0, 0, fence=True))
    state, sent = SYNCING.receive(state, read)
    assert sent == ()
    state, sent = SYNCING.sync(state)
    assert set(sent) == {added.answered(Done()), read.answered(Found(0, (FIRST,), ()))}
    assert SYNCING.receive(state, added)[1] == (added.answered(Refused(FENCED)),)


def test_power_cut_takes_what_was_not_synced_and_a_kill_does_not() -> None:
    synced, _ = SYNCING.sync(SYNCING.accept(BookieState(), ADD)[0])
    state = SYNCING.fence(SYNCING.accept(synced, Add((SECOND,), recovery=True))[0])
    assert SYNCING.cut_power(state) == synced
    assert SYNCING.kill(state) == replace(synced, held=(FIRST, SECOND), fenced=True)
