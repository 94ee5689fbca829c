"""How the conditions of bookies change (rules A1 to A3)."""

import pytest
from octavo.metadata.clocks.proven_time import BootTime, Moment, ProvenTime
from octavo.metadata.cluster.repair_states import (
    BookieCondition,
    Condition,
    RepairStates,
    decode_states,
    encode_states,
)
from octavo.protocol.errors import InvalidArgumentError, MetadataError
from octavo.protocol.ids import BookieId
from octavo.repair.audit.bookie_states import Observed, Step, declare_lost, observe
from octavo.repair.base.waits import Waits

LOST_MS = 1000
A = BookieId("a")
KNOWN = frozenset(map(BookieId, "abcde"))


def observed(registered: str, *, in_doubt: str = "", silent: str = "", known: str = "abcde") -> Observed:
    return Observed(*(frozenset(map(BookieId, names)) for names in (registered, known, in_doubt, silent)))


def with_condition(condition: Condition | None, *, since_ms: int = 10) -> RepairStates:
    until_ms = 500 if condition is Condition.HELD else None
    entry = None if condition is None else BookieCondition(condition, since_ms, until_ms)
    return RepairStates().with_bookie(A, entry)


def after(states: RepairStates, elapsed_ms: int) -> Waits:
    """What was counted of these conditions since they were first seen."""
    waits = Waits(ProvenTime(Moment(0, 0, BootTime("a", 0)))).of(states)
    return waits.advanced(Moment(elapsed_ms, elapsed_ms, BootTime("a", elapsed_ms)))


def look(states: RepairStates, seen: Observed, *, elapsed_ms: int, now_ms: int = 100) -> Step:
    """``elapsed_ms`` after the conditions were first seen. ``now_ms``: by the auditor's clock."""
    return observe(states, seen, waits=after(states, elapsed_ms), now_ms=now_ms, lost_ms=LOST_MS)


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
    step = look(with_condition(before), seen, elapsed_ms=90)
    entry = step.states.bookies.get(A)
    assert (None if entry is None else entry.condition) is after
    assert (None if entry is None else entry.since_ms) == since_ms


@pytest.mark.parametrize("now_ms", [0, 700, 10**12])
def test_a_hold_lasts_for_its_time_whatever_the_auditors_clock_shows(now_ms: int) -> None:
    """It lasts for 490 ms."""
    held = with_condition(C.HELD)
    for seen in (observed("bcde"), observed("abcde")):
        assert look(held, seen, elapsed_ms=489, now_ms=now_ms).states == held
    away = look(held, observed("bcde"), elapsed_ms=490, now_ms=now_ms)
    assert away.states.bookies[A] == BookieCondition(C.MISSING, now_ms)
    assert away.to_probe == (), "the grace time begins"
    assert A not in look(held, observed("abcde"), elapsed_ms=490, now_ms=now_ms).states.bookies


@pytest.mark.parametrize("now_ms", [0, 10**12])
def test_since_outlives_auditors_and_the_grace_time_ends_once(now_ms: int) -> None:
    states = look(RepairStates(), observed("bcde"), elapsed_ms=0, now_ms=50).states
    for elapsed_ms in (400, 999):  # each a new auditor, which has the document only (rule A1)
        step = look(decode_states(encode_states(states)), observed("bcde"), elapsed_ms=elapsed_ms, now_ms=now_ms)
        assert step.to_probe == ()
        assert step.states == states
    assert look(states, observed("bcde"), elapsed_ms=1000, now_ms=now_ms).to_probe == (A,)


def test_a_bookie_that_was_missing_before_is_not_lost_when_it_is_missing_again() -> None:
    """An auditor that has seen it back did not live to note that."""
    counted = after(with_condition(C.MISSING), 5000)
    again = with_condition(C.MISSING, since_ms=4000)
    assert observe(again, observed("bcde"), waits=counted, now_ms=5000, lost_ms=LOST_MS).to_probe == ()
    assert observe(again, observed("bcde"), waits=counted.of(again), now_ms=5000, lost_ms=LOST_MS).to_probe == ()


def test_a_bookie_is_lost_only_if_it_answers_no_hello_and_has_not_registered() -> None:
    step = look(with_condition(C.MISSING), observed("bcde"), elapsed_ms=2000)
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
    step = look(RepairStates(), seen, elapsed_ms=0)
    later = look(step.states, seen, elapsed_ms=5000)
    missing = tuple(map(BookieId, sorted(set(known) - set(registered))))
    assert later.states.brake is brake
    assert later.to_probe == (() if brake else missing)
    if brake:
        assert declare_lost(later.states, missing, seen, now_ms=5000) == later.states


def test_an_override_of_the_brake_ends_with_the_emergency() -> None:
    states = look(RepairStates(), observed("a", known="abc"), elapsed_ms=0).states
    overridden = RepairStates(states.bookies, brake=True, brake_overridden=True)
    step = look(overridden, observed("a", known="abc"), elapsed_ms=5000)
    assert step.to_probe == ("b", "c")
    back = look(step.states, observed("abc", known="abc"), elapsed_ms=6000).states
    assert (back.brake, back.brake_overridden) == (False, False)


def test_lost_bookies_do_not_count_for_the_brake() -> None:
    states = RepairStates({BookieId(one): BookieCondition(C.LOST, 0) for one in "cde"})
    assert not look(states, observed("ab"), elapsed_ms=0).states.brake


def test_a_bookie_that_the_cluster_has_forgotten_leaves_the_document_unless_it_is_retired() -> None:
    for condition in (C.MISSING, C.LOST, C.DOUBTFUL):
        seen = observed("bcde", known="bcde")
        assert A not in look(with_condition(condition), seen, elapsed_ms=1).states.bookies
    kept = look(with_condition(C.RETIRED), observed("bcde", known="bcde"), elapsed_ms=1).states
    assert kept.condition_of(A) is C.RETIRED


def test_a_healthy_cluster_changes_nothing() -> None:
    assert look(RepairStates(), observed("abcde"), elapsed_ms=5).states == RepairStates()


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
