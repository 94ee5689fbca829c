"""What the log of a coordinator says of its groups, entry by entry (rule K10)."""

from collections.abc import Callable

import pytest
from octavo.gateway.codes import Code, RefusedError, WrongPositionError
from octavo.gateway.groups.commits import Commits, GroupRecord, bytes_of
from octavo.gateway.groups.entries import (
    Committed,
    EpochStored,
    GenerationStored,
    GroupDeleted,
    GroupEntry,
    MemberLeft,
    MemberStored,
    OffsetsCommitted,
    OffsetsDeleted,
)
from octavo.gateway.groups.epoch_member import EpochMember
from octavo.gateway.groups.places import Place

FIRST, SECOND = Place("aa", 0), Place("bb", 1)
SIZE = 100


def at(offset: int, metadata: str = "", at_ms: int = 5) -> Committed:
    return Committed(offset, -1, metadata, at_ms)


def commit(offset: int, place: Place = FIRST, group: str = "billing", at_ms: int = 5) -> OffsetsCommitted:
    return OffsetsCommitted(group, {place: at(offset, at_ms=at_ms)})


BOTH = {FIRST: at(5), SECOND: at(6)}
MEMBER = EpochMember("m1", epoch=5, assigned=frozenset({FIRST}))
ONE = {"m0": EpochMember("m0")}


class Log:
    """A machine, and the log that its entries form; the next coordinator begins with that."""

    def __init__(self, **settings: int) -> None:
        self.settings = settings
        self.commits = Commits(**settings)
        self.entries: dict[int, GroupEntry] = {}
        self.handed_over: list[int] = []

    def add(self, *entries: GroupEntry) -> None:
        for entry in entries:
            position = self.commits.hand_over(entry, SIZE)
            self.entries[position] = entry
            self.handed_over.append(position)
            self.commits.check_invariants()

    def acknowledge(self, count: int | None = None) -> None:
        now, self.handed_over = self.handed_over[:count], self.handed_over[len(self.handed_over[:count]) :]
        for position in now:
            assert self.commits.acknowledge(position) == self.entries[position]
            self.commits.check_invariants()

    def stored(self, *entries: GroupEntry) -> None:
        self.add(*entries)
        self.acknowledge()

    def restate(self, is_live: Callable[[str], bool] = lambda _topic_id: True) -> None:
        """Restate all groups, and truncate the log."""
        restating = self.commits.begin_restating()
        for group_id in restating.group_ids:
            entries = self.commits.restated(group_id, is_live)
            self.add(*entries)
            self.commits.note_restated(SIZE * len(entries))
        self.acknowledge()
        self.entries = {position: entry for position, entry in self.entries.items() if position >= restating.before}

    def next_coordinator(self, is_live: Callable[[str], bool] = lambda _topic_id: True) -> Commits:
        """It finds what was acknowledged, and what was handed over."""
        found = Commits(**self.settings)
        for position, entry in self.entries.items():
            found.load(position, entry, SIZE)
        found.loaded(self.commits.next_position, is_live)
        found.check_invariants()
        return found


def test_an_offset_can_be_seen_once_it_is_acknowledged() -> None:
    log = Log()
    log.add(commit(5))
    assert log.commits.find("billing") is None
    assert log.commits.knows("billing")
    assert log.commits.is_under_way("billing")
    log.acknowledge()
    record = log.commits.find("billing")
    assert record == GroupRecord(offsets={FIRST: at(5)}, at_ms=5)
    assert not log.commits.is_under_way("billing")
    log.add(commit(9))
    assert log.commits.find("billing") == record


@pytest.mark.parametrize(
    ("entry", "left"),
    [
        (commit(3), GroupRecord(4, 45_000, 7, {FIRST: at(3), SECOND: at(6)}, ONE)),
        (commit(3, at_ms=9), GroupRecord(4, 45_000, 9, {FIRST: at(3, at_ms=9), SECOND: at(6)}, ONE)),
        (GenerationStored("billing", 5, 0, 9), GroupRecord(5, 0, 9, BOTH, ONE)),
        (OffsetsDeleted("billing", (FIRST, Place("zz", 9))), GroupRecord(4, 45_000, 7, {SECOND: at(6)}, ONE)),
        (
            EpochStored("billing", 5, 9),
            GroupRecord(5, 0, 9, BOTH, ONE, has_epochs=True),
        ),
        (MemberStored("billing", MEMBER), GroupRecord(4, 45_000, 7, BOTH, {**ONE, "m1": MEMBER})),
        (MemberLeft("billing", "m0"), GroupRecord(4, 45_000, 7, BOTH)),
        (GroupDeleted("billing"), None),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_an_entry_changes(entry: GroupEntry, left: GroupRecord | None) -> None:
    log = Log()
    log.stored(GenerationStored("billing", 4, 45_000, 7), commit(5), commit(6, SECOND))
    log.stored(MemberStored("billing", EpochMember("m0")))
    log.stored(entry)
    assert log.commits.find("billing") == left
    assert log.next_coordinator().find("billing") == left


def test_members_and_epochs_are_restated() -> None:
    log = Log()
    log.stored(EpochStored("billing", 4, 7), MemberStored("billing", EpochMember("m0")), commit(5))
    log.add(MemberStored("billing", MEMBER))
    log.restate()
    log.stored(EpochStored("audit", 2, 7), EpochStored("audit", 3, 8))
    assert log.next_coordinator().find("billing") == GroupRecord(
        4, 0, 7, {FIRST: at(5)}, {**ONE, "m1": MEMBER}, has_epochs=True
    )
    log.restate()
    assert log.next_coordinator().find("audit") == GroupRecord(3, 0, 8, has_epochs=True)


def test_an_entry_of_another_program_changes_nothing() -> None:
    commits = Commits()
    commits.load(3, None, SIZE)
    commits.load(5, commit(5), SIZE)
    commits.loaded(8, lambda _topic_id: True)
    assert list(commits.records) == ["billing"]
    assert commits.hand_over(commit(6), SIZE) == 8


def test_an_entry_at_another_position_is_noticed() -> None:
    log = Log()
    log.add(commit(5), commit(6))
    with pytest.raises(WrongPositionError, match="position 1 was acknowledged; expected 0"):
        log.commits.acknowledge(1)
    log.acknowledge()
    with pytest.raises(WrongPositionError, match="expected None"):
        log.commits.acknowledge(2)


def test_offsets_of_a_topic_that_is_gone_are_forgotten() -> None:
    log = Log()
    log.stored(commit(5), commit(6, SECOND))
    found = log.next_coordinator(lambda topic_id: topic_id == "bb").find("billing")
    assert found is not None
    assert found.offsets == {SECOND: at(6)}
    log.restate(lambda topic_id: topic_id == "bb")
    assert [entry for entry in log.entries.values() if isinstance(entry, OffsetsCommitted)] == [commit(6, SECOND)]


def test_groups_that_are_restated_are_all_there_behind_the_truncation() -> None:
    log = Log()
    log.stored(commit(5), GenerationStored("billing", 4, 45_000, 7), commit(1, group="audit"), commit(2, group="old"))
    log.stored(GroupDeleted("old"), OffsetsDeleted("audit", (FIRST,)))
    before = dict(log.commits.records)
    log.restate()
    assert min(log.entries) == 6
    assert log.commits.records == before
    assert log.next_coordinator().records == before


def test_what_is_restated_holds_what_is_under_way() -> None:
    """Else the older offset would stand behind the newer one, and the commit would go back."""
    log = Log()
    log.stored(commit(5), commit(1, group="gone"))
    log.add(commit(9), commit(3, group="new"), GroupDeleted("gone"), OffsetsDeleted("new", (SECOND,)))
    log.restate()
    assert log.commits.records == {
        "billing": GroupRecord(at_ms=5, offsets={FIRST: at(9)}), "new": GroupRecord(at_ms=5, offsets={FIRST: at(3)})
    }  # fmt: skip
    assert log.next_coordinator().records == log.commits.records


def test_a_coordinator_that_ends_while_it_restates_leaves_all_as_it_was() -> None:
    log = Log()
    log.stored(commit(5), GenerationStored("audit", 3, 10_000, 1), commit(1, group="audit"))
    before = dict(log.commits.records)
    for group_id in log.commits.begin_restating().group_ids:
        for entry in log.commits.restated(group_id, lambda _topic_id: True):
            log.add(entry)
            assert log.next_coordinator().records == before


def test_a_restatement_is_due_after_a_number_of_bytes_and_after_as_many_as_it_has_itself() -> None:
    log = Log(restate_bytes=10 * SIZE)
    for number in range(9):
        log.stored(commit(number, group=f"group {number}"))
    assert not log.commits.is_restating_due
    log.stored(commit(9, group="group 9"))
    assert log.commits.is_restating_due
    assert log.next_coordinator().is_restating_due, "what was read counts"
    log.restate()
    for _ in range(9):
        assert not log.commits.is_restating_due, "10 entries were restated"
        log.stored(commit(10))
    log.stored(commit(10))
    assert log.commits.is_restating_due


def test_offsets_have_a_bound_in_memory() -> None:
    one = bytes_of({FIRST: at(5)})
    log = Log(bytes_max=2 * one)
    log.add(commit(5))
    log.commits.check_room("billing", {SECOND: at(1)})
    log.stored(commit(6, SECOND))
    assert log.commits.bytes_held == 2 * one
    log.commits.check_room("billing", {SECOND: at(9)})
    for group, offsets in (
        ("billing", {Place("cc", 0): at(1)}),
        ("audit", {FIRST: at(1)}),
        ("billing", {FIRST: at(5, "x")}),
    ):
        with pytest.raises(RefusedError) as refused:
            log.commits.check_room(group, offsets)
        assert refused.value.code is Code.INVALID_COMMIT_OFFSET_SIZE
    log.stored(OffsetsDeleted("billing", (SECOND, SECOND)))
    assert log.commits.bytes_held == one
    log.stored(GroupDeleted("billing"))
    assert log.commits.bytes_held == 0
