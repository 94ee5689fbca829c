"""How old the entries of a log are for certain (rule P19): by table, over clocks that are wrong in every way."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.client.log.ages.ages import LogAges, LogFacts, Mark, Sealed, SeenCursor, decode_ages, first_look
from octavo.client.log.documents.cursors import CursorState
from octavo.metadata.clocks.proven_time import BootTime, Moment, ProvenTime
from octavo.metadata.encoding import encode_object
from octavo.protocol.errors import MetadataError

NOON_SECONDS = 1_767_268_800
HOUR = 3600.0
DAY = 24 * HOUR
YEAR = 365 * DAY
UNSET = -float(NOON_SECONDS)
"""Puts a clock back to 1970."""
LIMIT = HOUR
"""Retention by age."""


@dataclass
class World:
    """A log that is looked at now and then. ``seconds`` really pass; what clocks show is another matter."""

    seconds: float = 0.0
    ages: LogAges | None = None
    sealed: list[tuple[int, float]] = field(default_factory=list)
    """Where the log ended, and when that was so."""
    stop: int = 0

    def look(self, *, host: str = "a", wall: float = 0.0, store: float = 0.0) -> None:
        """A client looks at the log. Its clock, and that of the store, are off by these seconds."""
        now = Moment(
            int((NOON_SECONDS + self.seconds + wall) * 1000),
            int((NOON_SECONDS + self.seconds + store) * 1000),
            BootTime(host, int((1000 + self.seconds) * 1000)),
        )
        facts = LogFacts(stop=self.stop, start=0)
        # Another client than the last one knows what is stored; it is the same unless the test says otherwise.
        self.ages = first_look(now, facts, {}) if self.ages is None else self.ages.looked_at(now, facts, {})

    def add(self, entries: int = 10) -> None:
        """Add entries, and begin another segment."""
        self.stop += entries
        self.sealed.append((self.stop, self.seconds))

    def wait(self, seconds: float) -> None:
        self.seconds += seconds

    def dropped(self) -> int:
        """Everything below it may be dropped. Nothing of that is young, whatever the clocks say."""
        assert self.ages is not None
        stop = self.ages.stop_of_older_than(LIMIT) or 0
        young = [sealed for sealed, at in self.sealed if sealed <= stop and self.seconds - at <= LIMIT]
        assert not young, f"entries up to {young} are younger than the limit"
        return stop


class Case(NamedTuple):
    """By how much clocks are off: the first leader's at its first look and after its clock was set, the next one's, and
    the store's before and after."""

    first: float
    stepped: float
    following: float
    store: float = 0.0
    store_later: float = 0.0
    same_host: bool = False


CASES = {
    "all clocks are right": Case(0, 0, 0),
    "the first leader begins in 1970": Case(UNSET, UNSET, 0),
    "the first leader begins in 1970 and is set": Case(UNSET, 0, 0),
    "both leaders are in 1970": Case(UNSET, UNSET, UNSET),
    "the next leader is in 1970": Case(0, 0, UNSET),
    "the first leader is a day behind": Case(-DAY, -DAY, 0),
    "the first leader is a day behind and is set": Case(-DAY, 0, 0),
    "the next leader is a day behind": Case(0, 0, -DAY),
    "the first leader is a year ahead": Case(YEAR, YEAR, 0),
    "the first leader is a year ahead and is set": Case(YEAR, 0, 0),
    "the first leader is set a year ahead": Case(0, YEAR, 0),
    "the next leader is a year ahead": Case(0, 0, YEAR),
    "the store is a year ahead": Case(0, 0, 0, YEAR, YEAR),
    "the store is in 1970": Case(0, 0, 0, UNSET, UNSET),
    "the store is set a year ahead": Case(0, 0, 0, 0, YEAR),
    "the store is set back by a day": Case(0, 0, 0, 0, -DAY),
    "the store begins in 1970 and is set": Case(0, 0, 0, UNSET, 0),
    "a board: its only clock begins in 1970 and is set": Case(UNSET, UNSET, 0, UNSET, 0, same_host=True),
    "a board: its only clock is set while the leader runs": Case(UNSET, 0, 0, UNSET, 0, same_host=True),
    "a host: its only clock is set a day ahead": Case(0, DAY, DAY, 0, DAY, same_host=True),
    "a host: its only clock is set back by a day": Case(0, -DAY, -DAY, 0, -DAY, same_host=True),
    "a board that was started again: both clocks are set": Case(UNSET, UNSET, 0, UNSET, 0),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_nothing_young_is_dropped_and_everything_is_dropped_in_the_end(case: Case) -> None:
    """A leader adds, its clock is set, it adds more; another leads, and adds."""
    following = "a" if case.same_host else "b"
    world = World()
    world.look(wall=case.first, store=case.store)
    for _ in range(3):
        world.add()
        world.wait(60)
        world.look(wall=case.first, store=case.store)
        assert world.dropped() == 0
    for _ in range(3):
        world.add()
        world.wait(60)
        world.look(wall=case.stepped, store=case.store_later)
        assert world.dropped() == 0
    for _ in range(3):
        world.add()
        world.wait(60)
        world.look(host=following, wall=case.following, store=case.store_later)
        assert world.dropped() == 0
    last = world.stop
    for _ in range(65):
        world.wait(60)
        world.look(host=following, wall=case.following, store=case.store_later)
        world.dropped()
    assert world.dropped() == last, "one wrong clock must not end retention"


def test_two_clocks_that_are_wrong_in_the_same_way_cost_one_step() -> None:
    """The log of one leader that was a year ahead, with a store that was as well, goes on as soon as both are right."""
    world = World()
    world.look(wall=YEAR, store=YEAR)
    world.add()
    world.wait(60)
    world.look(wall=YEAR, store=YEAR)
    for _ in range(62):
        world.wait(60)
        world.look(host="b")
    assert world.dropped() == 10


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "wait", "look"]),
            st.floats(0, 2 * HOUR),
            st.sampled_from("ab"),
            st.sampled_from([0.0, UNSET, -DAY, DAY, YEAR]),
        ),
        max_size=40,
    ),
    st.sampled_from([0.0, UNSET, -DAY, YEAR]),
)
def test_nothing_young_is_dropped_while_the_stores_clock_is_not_set(
    steps: list[tuple[str, float, str, float]], store: float
) -> None:
    world = World()
    for what, seconds, host, wall in steps:
        if what == "add":
            world.add()
        elif what == "wait":
            world.wait(seconds)
        else:
            world.look(host=host, wall=wall, store=store)
            world.dropped()


# --- what older versions wrote ----------------------------------------------------------------------------------------


def at(seconds: float, *, ahead: float = 0.0) -> Moment:
    return Moment(
        int((NOON_SECONDS + seconds + ahead) * 1000), int((NOON_SECONDS + seconds) * 1000), BootTime("a", 1000)
    )


def told(*ends: tuple[int, float]) -> tuple[Sealed, ...]:
    return tuple(Sealed(stop, int((NOON_SECONDS + seconds) * 1000)) for stop, seconds in ends)


@pytest.mark.parametrize(
    ("now", "ends", "dropped"),
    [
        (at(0), told((10, -DAY), (20, -HOUR - 1), (30, -HOUR + 1), (40, -5)), 20),
        (at(0, ahead=YEAR), told((10, -DAY), (20, -5)), 10),
        (at(0), told((10, -DAY), (20, YEAR), (30, YEAR)), 10),
        (at(0), told((10, UNSET), (20, -DAY)), None),
        (at(0), told((10, -DAY), (20, -2 * DAY), (30, -DAY)), 10),
        (at(0), told((10, -DAY), (20, -DAY - 30)), 20),
        (at(0), (), None),
    ],
)
def test_documents_of_older_versions_tell_ages_once_up_to_the_first_clock_that_was_behind(
    now: Moment, ends: tuple[Sealed, ...], dropped: int | None
) -> None:
    facts = LogFacts(stop=100, start=0, is_counted=False, told=ends)
    ages = first_look(now, facts, {})
    assert ages.stop_of_older_than(LIMIT) == dropped
    assert first_look(now, facts._replace(is_counted=True), {}).stop_of_older_than(LIMIT) is None
    later = now._replace(wall_ms=now.wall_ms + 3_700_000, store_ms=now.store_ms + 3_700_000, boot=BootTime("b", 1))
    assert ages.looked_at(later, facts, {}).stop_of_older_than(LIMIT) == 100


# --- marks ------------------------------------------------------------------------------------------------------------


def test_positions_that_later_leaders_took_again_are_not_old() -> None:
    """Leader 1 was seen to have added 100 entries, of which an operator gave 60 up. Leader 2 adds from 40 on."""
    ages = LogAges.begun(at(0), term=1).marked(100, start=0)
    facts = LogFacts(stop=70, start=0, term=2, end_of_term={1: 40}.get)
    later = at(7200)._replace(boot=BootTime("a", 7_201_000))
    ages = ages.looked_at(later, facts, {})
    assert ages.stop_of_older_than(LIMIT) == 40
    assert ages.term == 2
    unknown = (
        LogAges.begun(at(0), term=1)
        .marked(100, start=0)
        .looked_at(later, facts._replace(end_of_term=lambda _: None), {})
    )
    assert unknown.stop_of_older_than(LIMIT) is None


def test_marks_are_few_and_exact_to_a_sixteenth() -> None:
    """One each minute at first, then one in 97 minutes, for a year."""
    ages = LogAges.begun(at(0))
    minutes = 365 * 24 * 60
    for minute in (*range(1, 1500), *range(1500, minutes, 97), minutes):
        ages = replace(ages, time=replace(ages.time, ms=minute * 60_000)).marked(minute, start=0)
    assert len(ages.marks) < 400
    assert len(ages.encode()) < 10_000
    for limit_minutes in (5, 60, 24 * 60, 30 * 24 * 60, 300 * 24 * 60):
        stop = ages.stop_of_older_than(limit_minutes * 60)
        assert stop is not None
        age = minutes - stop
        assert limit_minutes < age <= limit_minutes * (1 + 1 / 16) + 2 * 97


def test_marks_below_which_nothing_is_kept_are_forgotten() -> None:
    ages = LogAges.begun(at(0)).marked(10, start=0)
    ages = replace(ages, time=replace(ages.time, ms=10)).marked(20, start=0)
    assert [mark.stop for mark in ages.marked(20, start=10).marks] == [20]
    assert ages.marked(20, start=20).marks == ()
    assert [mark.stop for mark in ages.marked(5, start=0).marks] == [10, 20], "an older look tells nothing new"


def test_what_is_worth_a_write() -> None:
    stored = LogAges.begun(at(0)).marked(10, start=0)

    def later(ms: int) -> LogAges:
        return replace(stored, time=replace(stored.time, ms=ms))

    assert not later(10**9).is_worth_writing(stored, [])
    assert not later(224_999).is_worth_writing(stored, [3600, 10**6])
    assert later(225_000).is_worth_writing(stored, [10**6, 3600])
    assert not later(59_999).is_worth_writing(stored, [1])
    assert later(1).marked(11, start=0).is_worth_writing(stored, [])
    assert replace(stored, term=1).is_worth_writing(stored, [])


# --- cursors ----------------------------------------------------------------------------------------------------------


def test_a_cursor_is_idle_once_it_was_seen_unmoved_for_so_long_whatever_its_clock_says() -> None:
    """A consumer whose clock is in 1970 moves its cursor; one that died does not."""
    facts = LogFacts(stop=10, start=0)
    alive, dead = CursorState(3, 5000), CursorState(4, 6000)
    ages = first_look(at(0), facts, {"alive": alive, "dead": dead})
    assert not ages.is_unmoved("dead", dead, HOUR)
    for minute in range(1, 62):
        alive = CursorState(3, 5000 + minute)
        now = at(60.0 * minute)._replace(boot=BootTime("a", 1000 + 60_000 * minute))
        ages = ages.looked_at(now, facts, {"alive": alive, "dead": dead})
        assert not ages.is_unmoved("alive", alive, 60)
    assert ages.is_unmoved("dead", dead, HOUR)
    assert not ages.is_unmoved("dead", CursorState(4, 6001), HOUR), "it was touched just now"
    assert not ages.is_unmoved("never seen", dead, 0)


def test_cursors_of_older_versions_are_as_idle_as_they_tell() -> None:
    noon = NOON_SECONDS * 1000
    cursors = {"old": CursorState(3, noon - 7_200_000), "young": CursorState(3, noon), "1970": CursorState(3, 5000)}
    ages = first_look(at(0), LogFacts(stop=10, start=0, is_counted=False), cursors)
    idle = {name for name, cursor in cursors.items() if ages.is_unmoved(name, cursor, HOUR)}
    assert idle == {"old"}
    counted = first_look(at(0), LogFacts(stop=10, start=0), cursors)
    assert not any(counted.is_unmoved(name, cursor, HOUR) for name, cursor in cursors.items())


def test_of_more_cursors_than_there_is_room_for_those_that_hold_back_most_are_counted() -> None:
    cursors = {f"{number:0250d}": CursorState(10_000 - number, 1) for number in range(3000)}
    ages = first_look(at(0), LogFacts(stop=10, start=0), cursors)
    assert 1000 < len(ages.cursors) < 1100
    assert max(seen.position for seen in ages.cursors.values()) < 10_000 - 1900
    assert len(ages.encode()) < 400_000


# --- the stored form --------------------------------------------------------------------------------------------------


def test_the_stored_form_keeps_everything_also_of_a_newer_version() -> None:
    ages = LogAges(
        ProvenTime(at(5), 77), (Mark(3, -9), Mark(8, 70)), 4, {"a": SeenCursor(1, 2, 3)}, {"from_a_newer_one": [1]}
    )
    assert decode_ages(ages.encode(), "ages") == ages


@pytest.mark.parametrize(
    "fields",
    [
        {"marks": [[3, 5], [2, 6]]},
        {"marks": [[3, 5], [4, 4]]},
        {"marks": [[3]]},
        {"marks": [["3", 5]]},
        {"time": [1, 2]},
        {"term": "1"},
        {"cursors": {"a": [1, 2]}},
    ],
)
def test_damaged_ages_are_refused(fields: dict[str, object]) -> None:
    good = {"time": ProvenTime(at(0)).to_fields(), "marks": [], "term": 0, "cursors": {}}
    with pytest.raises(MetadataError, match="ages of a test"):
        decode_ages(encode_object({**good, **fields}, format_number=1), "ages of a test")
