"""What retention lets go of a stream (rules U7 and P8): by hand, and against a loop over all fragments."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.client.log.documents.chain import Retention
from octavo.client.log.stream.retention import StreamCut, stream_retention_cut
from octavo.metadata.stream.model import StreamMetadata
from octavo.metadata.stream.page_reference import PageReference
from octavo.metadata.stream.pages import decode_page
from octavo.protocol.places import place
from support.metadata.paged_streams import many_fragments, paged
from support.metadata.stream_metadata import open_stream

WHOLE = open_stream(*many_fragments(20))
"""Fragments of 3 entries and 30 bytes, each begun a second after the one before it."""
LENGTH = 600


def old_stop_of(retention: Retention, now_ms: int) -> int | None:
    """The place below which everything is too old, as the times of the fragments tell."""
    limit_ms = 10**12 if retention.seconds is None else retention.seconds * 1000
    return max((one.first_entry_id for one in WHOLE.fragments if now_ms - one.opened_at_ms > limit_ms), default=None)


def cut_of(
    stream: StreamMetadata,
    retention: Retention,
    now_ms: int = 0,
    cursors: dict[str, int] | None = None,
    part: StreamMetadata | None = None,
) -> StreamCut:
    old_stop = old_stop_of(retention, now_ms)
    return stream_retention_cut(stream, retention, old_stop=old_stop, length=LENGTH, cursors=cursors, part=part)


@pytest.mark.parametrize(
    ("retention", "now_ms", "cursors", "expected"),
    [
        (Retention(), 10**9, {}, 0),
        (Retention(seconds=5), 4_999, {}, 0),
        (Retention(seconds=5), 6_000, {}, 0),
        (Retention(seconds=5), 6_001, {}, 3),
        (Retention(seconds=5), 10_500, {}, 15),
        (Retention(seconds=5), 10**9, {}, 57),
        (Retention(bytes=600), 0, {}, 0),
        (Retention(bytes=599), 0, {}, 3),
        (Retention(bytes=570), 0, {}, 3),
        (Retention(bytes=569), 0, {}, 6),
        (Retention(bytes=1), 0, {}, 57),
        (Retention(seconds=5, bytes=569), 10_500, {}, 15),
        (Retention(seconds=5, bytes=100), 10_500, {}, 51),
        (Retention(cursors=True), 10**9, None, 0),
        (Retention(cursors=True), 10**9, {}, 0),
        (Retention(cursors=True), 0, {"a": 7, "b": 40}, 7),
        (Retention(cursors=True), 0, {"a": 1000}, 57),
        (Retention(seconds=5, cursors=True), 10_500, None, 0),
        (Retention(seconds=5, cursors=True), 10_500, {}, 15),
        (Retention(seconds=5, cursors=True), 10_500, {"a": 4, "b": 90}, 4),
        (Retention(seconds=5, cursors=True), 10_500, {"a": 40}, 15),
        (Retention(bytes=1, cursors=True), 0, {"a": 40}, 40),
        (Retention(seconds=5), 10_500, {"a": 4}, 15),
    ],
)
def test_what_may_go(retention: Retention, now_ms: int, cursors: dict[str, int] | None, expected: int) -> None:
    """The writer's fragment never goes; what is not known to be old stays."""
    assert cut_of(WHOLE, retention, now_ms, cursors) == StreamCut(expected)
    assert cut_of(WHOLE, retention, -(10**9), cursors).position <= expected


def test_what_is_gone_stays_gone() -> None:
    truncated = WHOLE.truncated(20)
    assert cut_of(truncated, Retention(seconds=5), 10_500) == StreamCut(20)
    assert cut_of(truncated, Retention(cursors=True), 0, {"a": 7}) == StreamCut(20)


def limits() -> st.SearchStrategy[Retention]:
    seconds = st.none() | st.floats(0.1, 25.0)
    return st.builds(Retention, seconds=seconds, bytes=st.none() | st.integers(1, 700), cursors=st.booleans())


def by_hand(retention: Retention, start: int, now_ms: int, cursors: dict[str, int] | None) -> int:
    """One fragment after the other, from the front."""
    kept = list(WHOLE.truncated(start).fragments)
    if retention.cursors and cursors is None:
        return start
    lowest = min(cursors.values()) if retention.cursors and cursors else None
    position = start
    if retention.seconds is None and retention.bytes is None:
        position = start if lowest is None else lowest
    while len(kept) > 1:
        following = kept[1]
        too_old = retention.seconds is not None and now_ms - following.opened_at_ms > retention.seconds * 1000
        too_many = retention.bytes is not None and LENGTH - kept[0].length_before > retention.bytes
        if not (too_old or too_many):
            break
        position = following.first_position
        kept.pop(0)
    if lowest is not None:
        position = min(position, lowest)
    return max(start, min(position, WHOLE.last_fragment.first_position))


@settings(max_examples=600, deadline=None)
@given(
    limits(),
    st.integers(0, 30_000),
    st.none() | st.dictionaries(st.sampled_from("ab"), st.integers(0, 70)),
    st.integers(0, 57),
    st.lists(st.integers(1, 6), max_size=3),
)
def test_at_most_one_page_is_read_for_the_exact_cut(
    retention: Retention, now_ms: int, cursors: dict[str, int] | None, start: int, counts: list[int]
) -> None:
    root, pages = paged(WHOLE, *counts)
    in_page = start < root.tail_position if root.pages else False
    root = root.truncated(start, place(start // 15 + 1, start % 15) if in_page else None)
    expected = by_hand(retention, start, now_ms, cursors)
    cut = cut_of(root, retention, now_ms, cursors)
    if cut.page is not None:
        (value,) = [page.value for page in pages if page.reference == cut.page]
        part = decode_page(root, cut.page, value).truncated(root.start)
        assert cut.position <= expected
        cut = cut_of(root, retention, now_ms, cursors, part)
    assert cut == StreamCut(expected)


def test_a_page_that_goes_as_a_whole_is_not_read() -> None:
    root, _ = paged(WHOLE, 4, 6)
    assert isinstance(root.pages[0], PageReference)
    assert cut_of(root, Retention(seconds=5), 10**9) == StreamCut(57)
    assert cut_of(root, Retention(seconds=5), 9_500) == StreamCut(12, root.pages[1])
    assert cut_of(root, Retention(seconds=5, cursors=True), 9_500, {"a": 12}) == StreamCut(12)
