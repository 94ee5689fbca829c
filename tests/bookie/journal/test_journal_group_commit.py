"""The policy of group commit, without disks: places, groups, order."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.bookie.journal.format import (
    DATA_START,
    KIND_SEGMENT_END,
    PAGE_BYTES,
    SEGMENT_END_BYTES,
    JournalPosition,
    RecordKind,
    body_bytes_max,
    record_bytes,
)
from octavo.bookie.journal.group_commit import GroupCommit

SEGMENT_BYTES = 4 * DATA_START


def commit_with(**limits: Any) -> GroupCommit:
    return GroupCommit(JournalPosition(1, DATA_START), segment_bytes=SEGMENT_BYTES, **limits)


def append(commit: GroupCommit, size: int, token: object = None, *, deferred: bool = False) -> None:
    commit.append(RecordKind.ADD, [bytes(size)], size, token, deferred=deferred)
    commit.check_invariants()


def test_what_gathers_during_a_write_goes_together_next() -> None:
    commit = commit_with()
    append(commit, 10, "first")
    writing = commit.take()
    append(commit, 10, "second")
    append(commit, 10, "third")
    assert [record.token for record in writing.records] == ["first"]
    assert commit.synced_position == JournalPosition(1, DATA_START)
    assert commit.settle() is writing
    assert commit.synced_position == JournalPosition(1, DATA_START + PAGE_BYTES)
    assert [record.token for record in commit.take().records] == ["second", "third"]


def test_a_group_is_bounded_in_bytes_and_in_records() -> None:
    by_bytes = commit_with(group_bytes_max=3 * record_bytes(100))
    by_records = commit_with(group_records_max=2)
    for number in range(5):
        append(by_bytes, 100, number)
        append(by_records, 100, number)
    assert len(by_bytes.take().records) == 3
    assert len(by_records.take().records) == 2


def test_a_record_over_the_group_bound_goes_alone() -> None:
    commit = commit_with(group_bytes_max=100)
    append(commit, 5000, "large")
    append(commit, 1, "small")
    assert [record.token for record in commit.take().records] == ["large"]


def test_a_record_that_does_not_fit_ends_the_segment_and_opens_the_next() -> None:
    commit = commit_with()
    append(commit, 20000, "a")
    append(commit, 20000, "b")
    assert commit.position.segment == 2
    first = commit.take()
    assert [record.kind for record in first.records] == [RecordKind.ADD, KIND_SEGMENT_END]
    commit.settle()
    second = commit.take()
    assert (second.segment, second.offset) == (2, DATA_START)
    assert [record.token for record in second.records] == ["b"]


def test_the_largest_body_just_fits_in_an_empty_segment() -> None:
    commit = commit_with()
    append(commit, body_bytes_max(SEGMENT_BYTES))
    assert commit.position.segment == 1
    assert commit.position.offset == SEGMENT_BYTES - SEGMENT_END_BYTES
    append(commit, 0)
    assert commit.position.segment == 2


def test_each_group_starts_in_a_page_that_no_other_group_touches() -> None:
    commit = commit_with()
    append(commit, 100, "acknowledged")
    first = commit.take()
    append(commit, 100, "later")  # while the first one is being written
    commit.settle()
    second = commit.take()
    assert (first.offset, first.end.offset) == (DATA_START, DATA_START + PAGE_BYTES)
    assert (second.offset, second.end.offset) == (DATA_START + PAGE_BYTES, DATA_START + 2 * PAGE_BYTES)
    assert second.disk_bytes == PAGE_BYTES


def test_a_mark_separates_what_was_appended_before_it_from_what_comes_later() -> None:
    commit = commit_with()
    append(commit, 100, "before")
    mark = commit.mark()
    append(commit, 100, "after")
    assert mark == JournalPosition(1, DATA_START + PAGE_BYTES)
    assert [record.token for record in commit.take().records] == ["before"]
    commit.settle()
    assert commit.synced_position == mark
    group = commit.take()
    assert (group.offset, [record.token for record in group.records]) == (mark.offset, ["after"])


def test_a_segment_that_is_full_to_its_last_page_still_takes_the_record_that_ends_it() -> None:
    commit = commit_with(group_records_max=1)
    append(commit, SEGMENT_BYTES - DATA_START - SEGMENT_END_BYTES - PAGE_BYTES - 32, "large")
    append(commit, 8, "last page but one")
    append(commit, 8, "next segment")
    groups = []
    while commit.waiting:
        groups.append(commit.take())
        commit.settle()
    assert [(group.segment, group.records[0].kind) for group in groups] == [
        (1, RecordKind.ADD),
        (1, RecordKind.ADD),
        (1, KIND_SEGMENT_END),
        (2, RecordKind.ADD),
    ]
    assert groups[2].end.offset == SEGMENT_BYTES


def drained(commit: GroupCommit) -> list[object]:
    """Everything that is queued, and where it is to be written."""
    groups: list[object] = [commit.position, commit.pending_bytes, commit.pending_records, commit.disk_bytes]
    while commit.waiting:
        group = commit.take()
        records = [(one.offset, one.kind, one.body_bytes, one.buffers, one.token) for one in group.records]
        groups.append((group.segment, group.offset, group.size, group.disk_bytes, records))
        commit.settle()
    return groups


@given(
    before=st.lists(st.integers(0, 9000), max_size=3),
    sizes=st.lists(st.one_of(st.integers(0, 300), st.integers(0, 9000)), min_size=1, max_size=40),
    group_bytes_max=st.sampled_from([100, 2000, 20_000, 8 << 20]),
    group_records_max=st.sampled_from([1, 3, 4096]),
)
def test_records_that_are_queued_together_go_where_they_would_go_one_by_one(
    before: list[int], sizes: list[int], group_bytes_max: int, group_records_max: int
) -> None:
    found = []
    for together in (False, True):
        commit = commit_with(group_bytes_max=group_bytes_max, group_records_max=group_records_max)
        for size in before:
            append(commit, size)
        if together:
            commit.append_each(RecordKind.ADD, [[bytes(size)] for size in sizes], sizes)
            commit.check_invariants()
        else:
            for size in sizes:
                append(commit, size)
        commit.give_token("the last one")
        found.append(drained(commit))
    assert found[1] == found[0]


def test_failing_gives_all_tokens_back_in_order() -> None:
    commit = commit_with(group_records_max=1)
    for token in "abc":
        append(commit, 1, token)
    commit.take()
    assert commit.fail() == ["a", "b", "c"]
    assert (commit.pending_records, commit.pending_bytes) == (0, 0)


def test_a_finished_log_takes_no_more_and_keeps_its_position() -> None:
    commit = commit_with()
    append(commit, 8)
    position = commit.mark()
    commit.finish()
    commit.check_invariants()
    assert commit.position == position
    with pytest.raises(AssertionError):
        append(commit, 8)


def test_a_deferred_record_waits_for_others() -> None:
    commit = commit_with(group_records_max=3)
    append(commit, 1, "deferred", deferred=True)
    assert not commit.waiting
    append(commit, 1, "a")
    append(commit, 1, "b")
    for token in ("more", "still more"):
        append(commit, 1, token, deferred=True)
    assert commit.waiting
    assert [record.token for record in commit.take().records] == ["deferred", "a", "b"]
    commit.settle()
    assert not commit.waiting
    commit.finish()
    assert [record.token for record in commit.take().records] == ["more", "still more"]
    commit.settle()
    assert [record.kind for record in commit.take().records] == [KIND_SEGMENT_END]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.integers(-9000, 9000), st.just("take"), st.just("settle"), st.just("mark")), max_size=60),
    st.integers(1, 20000),
    st.integers(1, 5),
)
def test_any_course_of_events_keeps_order_bounds_and_places(
    events: list[int | str], group_bytes_max: int, group_records_max: int
) -> None:
    commit = commit_with(group_bytes_max=group_bytes_max, group_records_max=group_records_max)
    appended: list[int] = []
    synced: list[object] = []
    written: dict[int, set[int]] = {}
    writing = False
    for event in [*events, 0, *["settle", "take"] * (2 * len(events) + 3), "settle"]:
        if isinstance(event, int):  # negative: a deferred one
            append(commit, abs(event), len(appended), deferred=event < 0)
            appended.append(len(appended))
        elif event == "mark":
            mark = commit.mark()
            assert mark.offset % PAGE_BYTES == 0
            assert commit.position == mark
        elif event == "take" and not writing and commit.waiting:
            group = commit.take()
            writing = True
            assert len(group.records) == 1 or group.size <= group_bytes_max
            assert len(group.records) <= group_records_max
            assert group.offset % PAGE_BYTES == 0
            pages = set(range(group.offset // PAGE_BYTES, group.end.offset // PAGE_BYTES))
            assert written.setdefault(group.segment, set()).isdisjoint(pages), "a page is written once"
            written[group.segment] |= pages
            assert group.end.offset <= SEGMENT_BYTES
        elif event == "settle" and writing:
            writing = False
            synced += [record.token for record in commit.settle().records if record.token is not None]
        commit.check_invariants()
    assert synced == appended
    assert commit.synced_position == commit.position
    assert commit.pending_bytes == 0
