"""Who makes copies again, and what cannot be planned (rules A5, A10 and O3)."""

import random
from dataclasses import replace

import pytest
from octavo.client.choose.locations import Location
from octavo.metadata import BookieRegistration, BookieState
from octavo.metadata.cluster.repair_states import BookieCondition, Condition, RepairStates
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.protocol.ids import BookieId, EntryId
from octavo.protocol.places import place
from octavo.repair.base.planning import (
    Blocked,
    BlockedClass,
    Planned,
    TargetsFullError,
    Why,
    is_at_margin,
    plan_ledger,
)
from support.metadata.ledger_metadata import fragment, open_ledger
from support.metadata.stream_metadata import open_stream, stream_fragment

OPEN = open_ledger(7, fragment(0, "abc"), fragment(10, "abd", 100))
CLOSED = OPEN.closed(EntryId(14), 150)


def states(**of: Condition) -> RepairStates:
    return RepairStates({BookieId(name): BookieCondition(condition, 0) for name, condition in of.items()})


def registered(
    names: str, *, read_only: str = "", racks: dict[str, str] | None = None, hosts: dict[str, str] | None = None
) -> dict[BookieId, BookieRegistration]:
    return {
        BookieId(name): BookieRegistration(
            bookie_id=BookieId(name), address=f"{name}:1", version="0", boot_id="1",
            state=BookieState.READ_ONLY if name in read_only else BookieState.WRITABLE,
            rack=(racks or {}).get(name, "/unnamed"), host_id=(hosts or {}).get(name),
        )
        for name in names
    }  # fmt: skip


def plan(
    metadata: EitherMetadata, of: RepairStates, there: dict[BookieId, BookieRegistration], *, full: str = "",
    locations: dict[BookieId, Location] | None = None,
) -> Planned | Blocked | None:  # fmt: skip
    return plan_ledger(
        metadata, of, there, full=set(map(BookieId, full)), locations=locations or {}, rng=random.Random(1)
    )


def test_a_bookie_that_is_no_member_takes_the_place_of_a_lost_one() -> None:
    result = plan(CLOSED, states(a=Condition.LOST), registered("bcde"))
    assert isinstance(result, Planned)
    assert result.target == "e"  # c and d are members of one of the ranges
    assert (result.job.ledger_id, result.job.old, result.job.why) == (7, "a", Why.LOST)


def test_a_member_of_another_fragment_is_taken_where_no_other_bookie_is_left() -> None:
    result = plan(CLOSED, states(c=Condition.LOST), registered("abd"))
    assert isinstance(result, Planned)
    assert result.target == "d"


def test_lost_members_come_before_draining_ones_and_a_ledger_gets_one_job() -> None:
    result = plan(CLOSED, states(a=Condition.DRAINING, b=Condition.LOST), registered("acdef"))
    assert isinstance(result, Planned)
    assert (result.job.old, result.job.why) == ("b", Why.LOST)
    result = plan(CLOSED, states(a=Condition.DRAINING), registered("abcdef"))
    assert isinstance(result, Planned)
    assert result.job.why is Why.DRAINING


@pytest.mark.parametrize("condition", [Condition.DOUBTFUL, Condition.DRAINING, Condition.HELD, Condition.RETIRED])
def test_a_bookie_with_a_condition_is_no_target(condition: Condition) -> None:
    entry = BookieCondition(condition, 0, 9 if condition is Condition.HELD else None)
    of = states(a=Condition.LOST).with_bookie(BookieId("e"), entry)
    result = plan(CLOSED, of, registered("bcde"))
    assert not isinstance(result, Planned) or result.target != "e"


def test_without_a_writable_bookie_the_ledger_is_blocked_with_a_reason() -> None:
    result = plan(CLOSED, states(a=Condition.LOST), registered("bcde", read_only="e"))
    assert isinstance(result, Planned)  # c takes the larger range, where it is... no member of the other one
    closed = replace(OPEN, fragments=OPEN.fragments[:1]).closed(EntryId(9), 100)
    result = plan(closed, states(a=Condition.LOST), registered("bcd", read_only="d"))
    assert isinstance(result, Blocked)
    assert (result.kind, result.bookies) == (BlockedClass.NO_TARGET, ("a",))
    assert "start more bookies" in result.reason


def test_a_full_target_is_waited_for() -> None:
    closed = replace(OPEN, fragments=OPEN.fragments[:1]).closed(EntryId(9), 100)
    with pytest.raises(TargetsFullError):
        plan(closed, states(a=Condition.LOST), registered("bcd"), full="d")
    result = plan(closed, states(a=Condition.LOST), registered("bcde"), full="d")
    assert isinstance(result, Planned)
    assert result.target == "e"


def test_a_lost_member_of_an_open_last_fragment_is_blocked_and_earlier_fragments_are_planned() -> None:
    result = plan(OPEN, states(d=Condition.LOST), registered("abce"))
    assert isinstance(result, Blocked)
    assert (result.kind, result.first, result.last) == (BlockedClass.OPEN, 10, None)
    assert isinstance(plan(OPEN, states(c=Condition.LOST), registered("abde")), Planned)
    assert isinstance(plan(OPEN, states(a=Condition.LOST), registered("bcde")), Planned)


def test_a_ledger_without_leaving_members_needs_nothing() -> None:
    assert plan(CLOSED, states(e=Condition.LOST, a=Condition.MISSING, b=Condition.DOUBTFUL), registered("abcd")) is None


def test_host_without_a_copy_is_preferred_also_where_the_member_on_it_is_away() -> None:
    """c keeps a copy on host x, and b, which is not registered, one on host y, where it was seen last."""
    closed = replace(OPEN, fragments=OPEN.fragments[:1]).closed(EntryId(9), 100)
    there = registered("cdef", hosts={"c": "x", "d": "x", "e": "y", "f": "z"})
    b_seen = {BookieId("b"): Location("/unnamed", "y")}
    for lost_host in "xyz":
        where = b_seen | {BookieId("a"): Location("/unnamed", lost_host)}
        result = plan(closed, states(a=Condition.LOST), there, locations=where)
        assert isinstance(result, Planned)
        assert result.target == "f"


def test_another_rack_is_preferred() -> None:
    closed = replace(OPEN, fragments=OPEN.fragments[:1]).closed(EntryId(9), 100)
    there = registered("bcde", racks={"b": "/1", "c": "/2", "d": "/2", "e": "/3"})
    result = plan(closed, states(a=Condition.LOST), there, locations={BookieId("a"): Location("/1", "~a")})
    assert isinstance(result, Planned)
    assert result.target == "e"


@pytest.mark.parametrize(("unavailable", "at_margin"), [("", False), ("a", True), ("ab", True), ("x", False)])
def test_a_ledger_is_at_its_margin_when_one_more_loss_would_block_its_recovery(
    unavailable: str, at_margin: bool
) -> None:
    assert is_at_margin(open_ledger(), set(map(BookieId, unavailable))) is at_margin


STREAM = open_stream(stream_fragment(1, 0, 0, "abc"), replace(stream_fragment(2, 0, 10, "abcd"), write_quorum=2))


def test_a_stream_is_planned_as_a_ledger_and_its_last_fragment_is_left_to_its_writer() -> None:
    """Rules A5, A10 and C2."""
    result = plan(STREAM, states(a=Condition.LOST), registered("bcde"))
    assert isinstance(result, Planned)
    assert (result.target, result.job.ledger_id, result.job.old) == ("d", 7, "a") or result.target == "e"
    blocked = plan(STREAM, states(d=Condition.LOST), registered("abce"))
    assert isinstance(blocked, Blocked)
    assert (blocked.kind, blocked.first, blocked.last) == (BlockedClass.OPEN, place(2, 0), None)
    assert "the stream is open" in blocked.reason
    resting = STREAM.at_rest(place(2, 5), 900)
    result = plan(resting, states(d=Condition.LOST), registered("abce"))
    assert isinstance(result, Planned)
    assert result.target == "e"
    assert plan(resting, states(x=Condition.LOST), registered("abcde")) is None
