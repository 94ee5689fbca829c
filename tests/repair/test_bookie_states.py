"""How the conditions of bookies change (rules A1 to A3)."""

import pytest
from octavo.metadata.repair_states import (
    BookieCondition,
    Condition,
    RepairStates,
    decode_states,
    encode_states,
)
from octavo.protocol.errors import InvalidArgumentError, MetadataError
from octavo.protocol.ids import BookieId
from octavo.repair.bookie_states import Observed, declare_lost, observe

LOST_MS = 1000
A = BookieId("a")
KNOWN = frozenset(map(BookieId, "abcde"))


def observed(registered: str, *, in_doubt: str = "", silent: str = "", known: str = "abcde") -> Observed:
    return Observed(*(frozenset(map(BookieId, names)) for names in (registered, known, in_doubt, silent)))


def with_condition(condition: Condition | None, *, since_ms: int = 10) -> RepairStates:
    until_ms = 500 if condition is Condition.HELD else None
    entry = None if condition is None else BookieCondition(condition, since_ms, until_ms)
    return RepairStates().with_bookie(A, entry)


C = Condition
TABLE = [
    # condition, registered, in doubt, silent -> condition, since
    (None, True, False, False, None, None),
    (None, True, True, False, C.DOUBTFUL, 100),
    (None, True, False, True, None, None),
    (None, False, False, False, C.MISSING, 100),
    (C.MISSING, True, False, False, None, None),
    (C.MISSING, True, True, False, C.DOUBTFUL, 100),
    (C.MISSING, False, False, False, C.MISSING, 10),
    (C.HELD, True, False, False, C.HELD, 10),
    (C.HELD, True, True, False, C.HELD, 10),
    (C.HELD, False, False, False, C.HELD, 10),
    (C.LOST, True, False, False, None, None),
    (C.LOST, True, True, False, C.DOUBTFUL, 100),
    (C.LOST, False, False, False, C.LOST, 10),
    (C.DRAINING, True, True, False, C.DRAINING, 10),
    (C.DRAINING, False, False, False, C.DRAINING, 10),
    (C.DOUBTFUL, True, True, False, C.DOUBTFUL, 10),
    (C.DOUBTFUL, True, False, True, C.DOUBTFUL, 10),
    (C.DOUBTFUL, True, False, False, None, None),
    (C.DOUBTFUL, False, False, False, C.MISSING, 100),
    (C.RETIRED, True, False, False, C.RETIRED, 10),
    (C.RETIRED, False, False, False, C.RETIRED, 10),
]


@pytest.mark.parametrize("row", TABLE)
def test_every_condition_meets_every_observation(
    row: tuple[Condition | None, bool, bool, bool, Condition | None, int | None],
) -> None:
    before, registered, in_doubt, silent, after, since_ms = row
    seen = observed("bcde" + "a" * registered, in_doubt="a" * in_doubt, silent="a" * silent)
    step = observe(with_condition(before), seen, now_ms=100, lost_ms=LOST_MS)
    entry = step.states.bookies.get(A)
    assert (None if entry is None else entry.condition) is after
    assert (None if entry is None else entry.since_ms) == since_ms


def test_a_hold_that_ends_counts_as_missing_from_its_end() -> None:
    away = observe(with_condition(C.HELD), observed("bcde"), now_ms=700, lost_ms=LOST_MS).states
    assert away.bookies[A] == BookieCondition(C.MISSING, 500)
    there = observe(with_condition(C.HELD), observed("abcde"), now_ms=700, lost_ms=LOST_MS).states
    assert A not in there.bookies


def test_since_outlives_auditors_and_the_grace_time_ends_once() -> None:
    states = observe(RepairStates(), observed("bcde"), now_ms=0, lost_ms=LOST_MS).states
    for now_ms in (400, 999):  # each a new auditor, which has the document only (rule A1)
        step = observe(decode_states(encode_states(states)), observed("bcde"), now_ms=now_ms, lost_ms=LOST_MS)
        assert step.to_probe == ()
        states = step.states
    assert observe(states, observed("bcde"), now_ms=1000, lost_ms=LOST_MS).to_probe == (A,)


def test_a_condition_that_begins_in_the_future_begins_now() -> None:
    ahead = with_condition(C.MISSING, since_ms=999_999)  # written by an auditor whose clock was wrong
    states = observe(ahead, observed("bcde"), now_ms=100, lost_ms=LOST_MS).states
    assert states.bookies[A].since_ms == 100
    assert observe(states, observed("bcde"), now_ms=1100, lost_ms=LOST_MS).to_probe == (A,)


def test_a_bookie_is_lost_only_if_it_answers_no_hello_and_has_not_registered() -> None:
    step = observe(with_condition(C.MISSING), observed("bcde"), now_ms=2000, lost_ms=LOST_MS)
    assert declare_lost(step.states, (), observed("bcde"), now_ms=2000).condition_of(A) is C.MISSING
    assert declare_lost(step.states, (A,), observed("abcde"), now_ms=2000).condition_of(A) is C.MISSING
    lost = declare_lost(step.states, (A,), observed("bcde"), now_ms=2000)
    assert lost.bookies[A].condition is C.LOST
    assert lost.bookies[A].since_ms == 2000


@pytest.mark.parametrize(
    ("registered", "known", "brake"),
    [
        ("abc", "abc", False), ("ab", "abc", False), ("a", "abc", True), ("", "abc", True), ("abc", "abcdef", True),
        ("abcd", "abcdef", False),
    ],
)  # fmt: skip
def test_the_brake_is_on_while_half_of_the_bookies_are_missing(registered: str, known: str, brake: bool) -> None:
    seen = observed(registered, known=known)
    step = observe(RepairStates(), seen, now_ms=0, lost_ms=LOST_MS)
    later = observe(step.states, seen, now_ms=5000, lost_ms=LOST_MS)
    missing = tuple(map(BookieId, sorted(set(known) - set(registered))))
    assert later.states.brake is brake
    assert later.to_probe == (() if brake else missing)
    if brake:
        assert declare_lost(later.states, missing, seen, now_ms=5000) == later.states


def test_an_override_of_the_brake_ends_with_the_emergency() -> None:
    states = observe(RepairStates(), observed("a", known="abc"), now_ms=0, lost_ms=LOST_MS).states
    overridden = RepairStates(states.bookies, brake=True, brake_overridden=True)
    step = observe(overridden, observed("a", known="abc"), now_ms=5000, lost_ms=LOST_MS)
    assert step.to_probe == ("b", "c")
    back = observe(step.states, observed("abc", known="abc"), now_ms=6000, lost_ms=LOST_MS).states
    assert (back.brake, back.brake_overridden) == (False, False)


def test_lost_bookies_do_not_count_for_the_brake() -> None:
    states = RepairStates({BookieId(one): BookieCondition(C.LOST, 0) for one in "cde"})
    assert not observe(states, observed("ab"), now_ms=0, lost_ms=LOST_MS).states.brake


def test_a_bookie_that_the_cluster_has_forgotten_leaves_the_document_unless_it_is_retired() -> None:
    for condition in (C.MISSING, C.LOST, C.DOUBTFUL):
        seen = observed("bcde", known="bcde")
        assert A not in observe(with_condition(condition), seen, now_ms=1, lost_ms=1).states.bookies
    kept = observe(with_condition(C.RETIRED), observed("bcde", known="bcde"), now_ms=1, lost_ms=1).states
    assert kept.condition_of(A) is C.RETIRED


def test_a_healthy_cluster_changes_nothing() -> None:
    assert observe(RepairStates(), observed("abcde"), now_ms=5, lost_ms=LOST_MS).states == RepairStates()


def test_the_document_is_read_as_it_was_written() -> None:
    states = RepairStates(
        {A: BookieCondition(C.HELD, 5, 900, "memory is replaced"), BookieId("h:3181"): BookieCondition(C.LOST, 7)},
        paused=True, brake=True, brake_overridden=True,
    )  # fmt: skip
    assert decode_states(encode_states(states)) == states
    assert decode_states(None) == RepairStates()
    assert states.leaving == {"h:3181"}
    assert states.departed == {"h:3181"}


def test_what_is_no_such_document_is_refused() -> None:
    good = encode_states(with_condition(C.LOST))
    with pytest.raises(MetadataError):
        decode_states(good.replace(b"lost", b"list"))
    with pytest.raises(InvalidArgumentError):
        BookieCondition(C.HELD, 5)
    with pytest.raises(InvalidArgumentError):
        BookieCondition(C.LOST, 5, 6)
    with pytest.raises(InvalidArgumentError):
        BookieCondition(C.LOST, 5, reason="x" * 201)
