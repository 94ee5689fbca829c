"""Pages of streams (rules U1 to U4): what can be one, what is paged out when, and lookups against a plain list."""

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.metadata.encoding import decode_object, encode_object
from octavo.metadata.ledger.changes import ReplaceMember
from octavo.metadata.ledger.decisions import Refuse, Settled, Write
from octavo.metadata.ledger.formats import STREAM_FORMAT
from octavo.metadata.stream.changes import ChangeFragment, PageFirst, PageOut, ReplacePages, Truncate
from octavo.metadata.stream.encoding import decode_stream, encode_stream, fragments_bytes
from octavo.metadata.stream.model import StreamFragment, StreamMetadata
from octavo.metadata.stream.page_reference import PageReference, pages_bytes, parse_page_name
from octavo.metadata.stream.pages import (
    FORMAT,
    PAGE_BYTES_MAX,
    PAGE_FRAGMENTS_MAX,
    TAIL_FRAGMENTS_MAX,
    Page,
    decode_page,
    is_left_over,
    make_page,
    page_document,
    page_part,
    paging_is_due,
    parse_document,
    plan_paging,
    repaired_page,
)
from octavo.protocol.errors import InvalidArgumentError, MetadataError
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.places import place
from support.metadata.paged_streams import many_fragments, paged, paged_stream, resting
from support.metadata.stream_metadata import open_stream

SEVEN = LedgerId(7)

WHOLE = open_stream(*many_fragments(20))
ROOT, PAGES = paged_stream(20, 4, 6)
"""Pages of the fragments 0 to 3 and 4 to 9, which end in the terms 1 and 2; the tail has 10 to 19."""


def written(decision: object) -> StreamMetadata:
    assert isinstance(decision, Write), decision
    assert isinstance(decision.metadata, StreamMetadata), decision
    return decision.metadata


# --- what the root says of pages -----------------------------------------------------------------------------------


def test_a_root_says_of_its_pages_what_must_be_known_without_reading_them() -> None:
    first, second = ROOT.pages
    assert (first.fragments, first.first_position, first.first_entry_id) == (4, 0, place(1, 0))
    assert (first.last_entry_id, first.length_before, first.length_after) == (place(1, 11), 0, 120)
    assert (second.fragments, second.first_position, second.first_entry_id) == (6, 12, place(1, 12))
    assert (second.last_entry_id, second.length_after, second.opened_at_ms) == (place(2, 14), 300, 4000)
    assert [page.revision for page in ROOT.pages] == [0, 1]
    assert (ROOT.revision, ROOT.start, ROOT.start_place, ROOT.tail_position) == (2, 0, place(1, 0), 30)
    assert ROOT.fragments == WHOLE.fragments[10:]


def test_the_place_of_the_start_is_right_wherever_it_lies() -> None:
    assert WHOLE.start_place == place(1, 0)
    assert WHOLE.truncated(17).start_place == place(2, 2)
    assert ROOT.truncated(17, place(2, 2)).start_place == place(2, 2)
    assert ROOT.truncated(30).start_place == place(3, 0)
    assert ROOT.truncated(32).start_place == place(3, 2)
    assert ROOT.truncated(10**6).start_place == ROOT.last_fragment.first_entry_id
    assert resting(ROOT).start_place == place(1, 0)


def test_truncation_removes_pages_and_fragments_that_lie_below() -> None:
    """Rule U4: by one change, exact to the entry."""
    within = ROOT.truncated(5, place(1, 5))
    assert (within.pages, within.start, within.fragments) == (ROOT.pages, 5, ROOT.fragments)
    edge = ROOT.truncated(12, place(1, 12))
    assert (edge.pages, edge.start) == (ROOT.pages[1:], 12)
    whole = ROOT.truncated(30)
    assert (whole.pages, whole.start, whole.fragments) == ((), 30, ROOT.fragments)
    assert whole.revision == ROOT.revision
    last = ROOT.truncated(10**6)
    assert (last.pages, last.start, last.fragments) == ((), 57, ROOT.fragments[-1:])
    assert within.truncated(4, place(1, 4)) is within
    with pytest.raises(InvalidArgumentError, match="needs the place"):
        ROOT.truncated(5)


@pytest.mark.parametrize("wrong", [place(1, 4), place(1, 6), place(2, 0), EntryId(0)])
def test_a_place_that_cannot_be_that_of_the_start_is_refused(wrong: EntryId) -> None:
    with pytest.raises(InvalidArgumentError, match="start 5"):
        ROOT.truncated(5, wrong)


def other(page: PageReference, **changes: Any) -> tuple[PageReference, ...]:
    return tuple(replace(one, **changes) if one == page else one for one in ROOT.pages)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"revision": 1}, "not of a revision below 1"),
        ({"revision": -1}, "a revision is a number"),
        ({"start": 12}, "not in the first page"),
        ({"start": -1}, "not in the first page"),
        ({"start_entry_id": None}, "place that is not in the first page"),
        ({"start_entry_id": place(1, 12)}, "place that is not in the first page"),
        ({"start_entry_id": place(1, 1)}, "another place"),
        ({"pages": ()}, "only while it has pages"),
        ({"pages": (), "start_entry_id": None}, "not in the first fragment"),
        ({"pages": ROOT.pages[:1]}, "length that the page"),
        ({"pages": ROOT.pages[::-1]}, "another term"),
        ({"pages": other(ROOT.pages[0], last_entry_id=place(1, 10))}, "next place"),
        ({"pages": other(ROOT.pages[0], last_entry_id=place(2, 0))}, "another term"),
        ({"pages": other(ROOT.pages[0], length_after=121)}, "does not have the length"),
        ({"pages": other(ROOT.pages[0], length_before=1)}, "before position 0"),
        ({"pages": other(ROOT.pages[0], fragments=13)}, "empty"),
        ({"pages": other(ROOT.pages[0], fragments=0)}, "no fragment"),
        ({"pages": other(ROOT.pages[0], token="../x")}, "no name"),
        ({"pages": other(ROOT.pages[0], opened_at_ms=9999)}, "begun before the one before"),
        ({"pages": other(ROOT.pages[1], first_position=11)}, "fit its place"),
        ({"pages": other(ROOT.pages[1], length_after=120, length_before=121)}, "length"),
        ({"pages": other(ROOT.pages[1], last_entry_id=place(3, 0))}, "next place of its term"),
    ],
)
def test_what_can_be_no_root_with_pages_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        replace(ROOT, **change)


def test_the_root_itself_looks_nothing_up_in_a_page() -> None:
    assert ROOT.page_at(11) == ROOT.pages[0]
    assert ROOT.page_at(12) == ROOT.pages[1]
    assert ROOT.page_at(30) is None
    for lookup in (ROOT.place_at, ROOT.fragment_at):
        with pytest.raises(InvalidArgumentError, match="lies in a page"):
            lookup(29)
    with pytest.raises(InvalidArgumentError, match="position 4 has been truncated"):
        ROOT.truncated(5, place(1, 5)).page_at(4)
    assert ROOT.place_at(30) == place(3, 0)
    assert [ROOT.page_of(one) for one in (0, place(1, 11), place(1, 12), place(2, 99), place(3, 0))] == [
        *(None, ROOT.pages[0], ROOT.pages[1], ROOT.pages[1], None)
    ]


# --- the stored form -----------------------------------------------------------------------------------------------


def test_a_root_with_pages_is_read_as_written_and_one_without_has_no_trace_of_them() -> None:
    for root in (ROOT, ROOT.truncated(5, place(1, 5)), ROOT.truncated(30), resting(ROOT)):
        again = decode_stream(SEVEN, encode_stream(root))
        assert again == root
        assert encode_stream(again) == encode_stream(root)
    for name in (b"page", b"revision", b"start_entry_id"):
        assert name not in encode_stream(WHOLE)


def test_what_a_newer_version_says_of_a_page_is_kept() -> None:
    newer = replace(ROOT, pages=(replace(ROOT.pages[0], unknown=("more", [1])), ROOT.pages[1]))
    again = decode_stream(SEVEN, encode_stream(newer))
    assert again == newer
    assert again.truncated(3, place(1, 3)).pages[0].unknown == ("more", [1])


def test_a_page_is_read_as_written_as_a_part_of_its_stream() -> None:
    for page, first, stop in zip(PAGES, (0, 4), (4, 10), strict=True):
        part = decode_page(ROOT, page.reference, page.value)
        assert part.fragments == WHOLE.fragments[first:stop]
        assert part.keys == ROOT.keys
        assert part.has_end
        for fragment in part.fragments:
            assert part.last_id_of(fragment) == WHOLE.last_id_of(fragment)


def test_the_same_page_of_the_same_revision_has_the_same_name() -> None:
    again = make_page(WHOLE, WHOLE.fragments[:4], WHOLE.fragments[4])
    assert again == PAGES[0]
    later = replace(WHOLE, revision=8)
    assert make_page(later, WHOLE.fragments[:4], WHOLE.fragments[4]).reference.name != again.reference.name
    repaired = repaired_page(ROOT, PAGES[0].reference, with_member(PAGES[0]))
    assert repaired.reference.revision == 2
    assert repaired.reference.token != PAGES[0].reference.token


def with_member(page: Page, bookie: str = "z") -> StreamMetadata:
    part = decode_page(ROOT, page.reference, page.value)
    return part.with_member(part.fragments[1].first_entry_id, 0, BookieId(bookie))


def test_a_page_that_is_not_what_the_root_says_is_damaged() -> None:
    first, second = PAGES
    with pytest.raises(MetadataError, match="another page than its name"):
        decode_page(ROOT, second.reference, first.value)
    renamed = replace(first.reference, first_position=3)
    with pytest.raises(MetadataError, match="first fragment is another"):
        decode_page(ROOT, renamed, first.value)
    with pytest.raises(MetadataError, match="4 fragments instead of 5"):
        decode_page(ROOT, replace(first.reference, fragments=5), first.value)
    elsewhere = make_page(replace(WHOLE, ledger_id=LedgerId(8)), WHOLE.fragments[:4], WHOLE.fragments[4])
    with pytest.raises(MetadataError, match="it is of ledger 8"):
        decode_page(ROOT, elsewhere.reference, elsewhere.value)
    empty = replace(first.reference, last_entry_id=EntryId(place(1, 9) - 1))
    with pytest.raises(InvalidArgumentError, match="contradicts"):
        page_part(ROOT, empty, WHOLE.fragments[:4])


def test_every_flipped_bit_of_a_page_is_noticed() -> None:
    value = bytearray(PAGES[0].value)
    for at in range(len(value)):
        value[at] ^= 1 << at % 7
        with pytest.raises(MetadataError):
            decode_page(ROOT, PAGES[0].reference, bytes(value))
        value[at] ^= 1 << at % 7


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["fragments", "ledger_id", "first_position", "bookies", "key", "write_quorum"]), JSON)
def test_a_page_is_taken_as_a_whole_or_refused_as_a_whole(field: str, value: Any) -> None:
    """With a checksum and a name that fit, whatever is in it: no error but one."""
    fields = decode_object(PAGES[0].value, what="page", format_max=FORMAT)
    (fields if field in fields else fields["fragments"][1])[field] = value
    stored = encode_object(fields, format_number=FORMAT)
    reference = replace(PAGES[0].reference, token=_token_of(stored))
    try:
        part = decode_page(ROOT, reference, stored)
    except MetadataError:
        return
    assert part.fragments[0].first_position == 0


def _token_of(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()[:24]


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 1), st.integers(0, 7), JSON | st.just(...))
def test_a_root_with_other_references_is_taken_as_a_whole_or_refused_as_a_whole(page: int, at: int, value: Any) -> None:
    fields = decode_object(encode_stream(ROOT), what="stream", format_max=STREAM_FORMAT)
    fields = json.loads(json.dumps(fields))
    reference = fields["stream"]["page_references"][page]
    if value is ...:
        del reference[at]
    else:
        reference[at] = value
    try:
        taken = decode_stream(SEVEN, encode_object(fields, format_number=STREAM_FORMAT))
    except MetadataError:
        return
    assert decode_stream(SEVEN, encode_stream(taken)) == taken


def test_names_of_documents() -> None:
    page = ROOT.pages[1]
    name = page_document(SEVEN, page)
    assert name == f"stream/7/1-{page.token}"
    assert parse_document(name) == (SEVEN, 1)
    assert parse_page_name(page.name) == (1, page.token)
    for wrong in ("stream/7", "stream/7/1", "stream/07/1-ab", "stream/7/01-ab", "stream/x/1-ab", "logs/7/1-ab",
                  "stream/7/1-ab/c", f"stream/{2**63}/1-ab", "stream/7/1-AB", "stream/7/1-"):  # fmt: skip
        assert parse_document(wrong) is None, wrong
    assert pages_bytes(ROOT.pages) >= len(json.dumps([one.to_fields() for one in ROOT.pages])) - 40


# --- what is paged out, and when -----------------------------------------------------------------------------------


def test_paging_is_due_when_the_tail_has_many_fragments_or_many_bytes() -> None:
    """Rule U3."""
    assert not paging_is_due(open_stream(*many_fragments(TAIL_FRAGMENTS_MAX)))
    assert paging_is_due(open_stream(*many_fragments(TAIL_FRAGMENTS_MAX + 1)))
    assert not paging_is_due(paged_stream(TAIL_FRAGMENTS_MAX + 9, 9)[0])
    names = [BookieId(f"{number:03}{'x' * 125}") for number in range(32)]

    def tail_of(bookies: int) -> StreamMetadata:
        return open_stream(
            *(replace(one, bookies=tuple(names[:bookies])) for one in many_fragments(TAIL_FRAGMENTS_MAX))
        )

    assert fragments_bytes(tail_of(20).fragments) < 98_304 < fragments_bytes(tail_of(32).fragments)
    assert not paging_is_due(tail_of(20))
    assert paging_is_due(tail_of(32))


def test_a_term_that_begins_above_what_is_left_leaves_nothing_of_it() -> None:
    last = ROOT.last_fragment
    rested = ROOT.at_rest(EntryId(last.first_entry_id + 2), last.length_before + 3)
    position = last.first_position + 3
    following = rested.with_next_term("x", last, first_position_min=position)
    assert following == rested.with_next_term("x", last)
    opened = rested.with_next_term("x", last, first_position_min=position + 4)
    assert (opened.start, opened.pages, opened.start_entry_id) == (position + 4, (), None)
    (fragment,) = opened.fragments
    assert fragment == replace(following.last_fragment, first_position=position + 4)
    assert opened.start_place == place(opened.term, 0)
    assert decode_stream(SEVEN, encode_stream(opened)) == opened


def grown(count: int, fragments: tuple[StreamFragment, ...] | None = None) -> tuple[StreamMetadata, dict[str, Page]]:
    """A stream that is paged out whenever that is due while it grows, and the pages by name."""
    fragments = many_fragments(count) if fragments is None else fragments
    stream, pages = open_stream(fragments[0]), dict[str, Page]()
    for fragment in fragments[1:]:
        if fragment.term == stream.term:
            stream = stream.with_fragment(fragment)
        else:
            end = EntryId(stream.last_fragment.first_entry_id + 2)
            stream = stream.at_rest(end, fragment.length_before).with_next_term("x", fragment)
        while paging_is_due(stream):
            last = stream.pages[-1] if stream.pages else None
            plan = plan_paging(stream, None if last is None else pages[last.name].value)
            assert plan is not None
            pages[plan.page.reference.name] = plan.page
            stream = written(PageOut(plan.moved, plan.replaced, plan.page.reference).decide(stream))
    return stream, pages


def test_a_stream_that_grows_keeps_a_small_root() -> None:
    stream, pages = grown(1500)
    assert TAIL_FRAGMENTS_MAX // 2 <= len(stream.fragments) <= TAIL_FRAGMENTS_MAX
    assert [page.fragments for page in stream.pages[:-1]] == [PAGE_FRAGMENTS_MAX] * (len(stream.pages) - 1)
    assert len(encode_stream(stream)) < 10_000
    everything = [
        fragment for page in stream.pages for fragment in decode_page(stream, page, pages[page.name].value).fragments
    ]
    assert (*everything, *stream.fragments) == many_fragments(1500)


def test_pages_and_tails_of_long_names_are_limited_by_bytes() -> None:
    names = tuple(BookieId(f"bookie-{number}-{'x' * 110}") for number in range(7))
    fragments = tuple(replace(one, bookies=names, write_quorum=3) for one in many_fragments(600))
    stream, pages = grown(0, fragments)
    assert len(stream.pages) > 2
    assert fragments_bytes(stream.fragments) <= 3 * 128 * 1024 // 4
    assert all(PAGE_BYTES_MAX // 2 < len(pages[page.name].value) <= PAGE_BYTES_MAX for page in stream.pages[:-1])


def test_a_tail_of_one_fragment_is_the_writers() -> None:
    assert plan_paging(open_stream(), None) is None
    plan = plan_paging(open_stream(*many_fragments(2)), None)
    assert plan is not None
    assert plan.moved == many_fragments(2)[:1]


@pytest.mark.parametrize(("size", "kept"), [(6, 6 - 3), (128, 128 - 3), (129, 129)])
def test_fragments_that_were_truncated_are_left_out_when_a_small_page_is_made_anew(size: int, kept: int) -> None:
    root, (page,) = paged_stream(size + 14, size)
    root = root.truncated(10, place(1, 10))
    plan = plan_paging(root, page.value)
    assert plan is not None
    assert plan.page.reference.fragments == kept + 13
    after = written(PageOut(plan.moved, plan.replaced, plan.page.reference).decide(root))
    assert (after.start, after.start_place) == (10, place(1, 10))
    assert after.pages[0].first_position == (9 if kept < size else 0)
    assert (
        decode_page(after, plan.page.reference, plan.page.value).end_position == root.fragments[13].first_position - 1
    )


@pytest.mark.parametrize("count", [20, 400])
def test_an_extended_page_is_the_page_that_would_be_made_of_all_its_fragments(count: int) -> None:
    fragments = many_fragments(count)
    root, (page,) = paged_stream(count, 6)
    plan = plan_paging(root, page.value)
    assert plan is not None
    stop = 6 + len(plan.moved)
    assert plan.page == make_page(root, fragments[:stop], fragments[stop])


def test_what_a_newer_version_says_of_fragments_stays_in_an_extended_page() -> None:
    newer = [replace(one, unknown_fields={"more": [1, "]"]}) for one in many_fragments(20)]
    stream = open_stream(*newer)
    page = make_page(stream, stream.fragments[:6], stream.fragments[6])
    root = stream.with_page(page.reference, moved=6, replaces_last=False)
    plan = plan_paging(root, page.value)
    assert plan is not None
    after = written(PageOut(plan.moved, plan.replaced, plan.page.reference).decide(root))
    assert decode_page(after, plan.page.reference, plan.page.value).fragments == tuple(newer[:19])


def test_a_page_of_another_form_is_left_as_it_is_and_a_new_one_begins() -> None:
    """Of a newer version, perhaps: what it says beside the fragments must not be lost."""
    root, (page,) = paged_stream(20, 6)
    fields = decode_object(page.value, what="page", format_max=FORMAT) | {"more": 1}
    value = encode_object(fields, format_number=FORMAT)
    plan = plan_paging(root, value)
    assert plan is not None
    assert (plan.replaced, plan.page.reference.fragments) == (None, 13)


# --- the changes -----------------------------------------------------------------------------------------------------

MOVED = ROOT.fragments[:3]
PAGE = make_page(ROOT, MOVED, ROOT.fragments[3]).reference
MERGED = make_page(ROOT, (*WHOLE.fragments[4:10], *MOVED), ROOT.fragments[3]).reference
PAGED = ROOT.with_page(PAGE, moved=3, replaces_last=False)
REPAIRED_TAIL = ROOT.with_member(MOVED[1].first_entry_id, 0, BookieId("z"))
OTHER_PAGE = make_page(ROOT, MOVED[:2], MOVED[2]).reference


@pytest.mark.parametrize(
    ("found", "moved", "replaced", "expected"),
    [
        (ROOT, MOVED, None, "write"),
        (ROOT, MOVED, ROOT.pages[1], "write"),
        (ROOT.in_recovery(), MOVED, None, "write"),
        (resting(ROOT), MOVED, None, "write"),
        (resting(ROOT).closed(), MOVED, ROOT.pages[1], "write"),
        (ROOT.truncated(17, place(2, 2)), MOVED, ROOT.pages[1], "write"),
        (ROOT.truncated(17, place(2, 2)), MOVED, None, "write"),
        (ROOT.truncated(31), MOVED, None, "write"),
        (PAGED, MOVED, None, "settled"),
        (PAGED.truncated(30, place(3, 0)), MOVED, None, "settled"),
        (PAGED, MOVED, ROOT.pages[1], "conflict"),
        (ROOT, MOVED, ROOT.pages[0], "conflict"),
        (ROOT.truncated(31), MOVED, ROOT.pages[1], "conflict"),
        (ROOT.truncated(33), MOVED, None, "conflict"),
        (ROOT.truncated(10**6), MOVED, None, "conflict"),
        (REPAIRED_TAIL, MOVED, None, "conflict"),
        (ROOT.with_page(OTHER_PAGE, moved=2, replaces_last=False), MOVED, None, "conflict"),
        (ROOT.with_pages({}), MOVED, None, "conflict"),
        (ROOT, ROOT.fragments, None, "conflict"),
    ],
)
def test_page_out_is_made_only_where_the_page_holds_what_is_moved(
    found: StreamMetadata, moved: tuple[StreamFragment, ...], replaced: PageReference | None, expected: str
) -> None:
    """Rules U2 and U3: whatever the state, from the revision for which the page was made."""
    page = PAGE if replaced is None else MERGED
    decision = PageOut(moved, replaced, page).decide(found)
    kinds = {Write: "write", Settled: "settled", Refuse: "conflict"}
    assert kinds[type(decision)] == expected
    if isinstance(decision, Write):
        after = decision.metadata
        assert after.revision == found.revision + 1
        assert after.pages[-1] == page
        assert (after.start, after.start_place, after.state) == (found.start, found.start_place, found.state)
        assert isinstance(PageOut(moved, replaced, page).decide(after), Settled)
    if isinstance(decision, Refuse):
        assert "stream 7" in decision.error.message


def test_repair_names_pages_in_which_only_bookies_differ() -> None:
    """Rules C2 and U2."""
    part = decode_page(ROOT, PAGES[0].reference, PAGES[0].value)
    fragment = part.fragments[1]
    change = ReplaceMember(fragment.first_entry_id, place(1, 5), 0, fragment.bookies[0], BookieId("z"))
    repaired = written(change.decide(part))
    page = repaired_page(ROOT, ROOT.pages[0], repaired)
    naming = ReplacePages(((ROOT.pages[0], page.reference),))
    after = written(naming.decide(ROOT))
    assert (after.revision, after.pages[1], after.fragments) == (3, ROOT.pages[1], ROOT.fragments)
    assert BookieId("z") in decode_page(after, after.pages[0], page.value).fragments[1].bookies
    assert isinstance(naming.decide(after), Settled)
    for late in (PAGED, ROOT.truncated(12, place(1, 12))):
        assert isinstance(naming.decide(late), Refuse)
    wrong = replace(page.reference, first_position=1)
    with pytest.raises(InvalidArgumentError, match="cannot take the place"):
        ROOT.with_pages({ROOT.pages[0]: wrong})


def test_truncate_of_a_position_in_a_page_takes_the_place_that_was_found_before() -> None:
    assert isinstance(Truncate(17).decide(ROOT), Refuse), "it has been paged out since"
    assert isinstance(Truncate(17).decide(ROOT.truncated(17, place(2, 2))), Settled)
    change = Truncate(17, place(2, 2))
    assert written(change.decide(ROOT)).start_place == place(2, 2)
    assert written(change.decide(PAGED)).start_place == place(2, 2)
    assert isinstance(change.decide(ROOT.truncated(18, place(2, 3))), Settled)
    assert written(Truncate(10**6).decide(ROOT)).start == 57


def test_only_pages_of_revisions_that_are_over_are_left_over() -> None:
    """Rule U2."""
    first, second = (page_document(SEVEN, page) for page in ROOT.pages)
    newer = page_document(SEVEN, PAGE)
    assert not is_left_over(ROOT, first)
    assert not is_left_over(ROOT, newer), "it may be about to be named"
    assert is_left_over(ROOT.truncated(30), first)
    assert is_left_over(ROOT.with_pages({}), newer)
    assert not is_left_over(PAGED, newer)
    assert is_left_over(ROOT.truncated(12, place(1, 12)), first)
    assert not is_left_over(ROOT.truncated(12, place(1, 12)), second)
    for foreign in ("logs/na", "stream/8/0-ab", "stream/7/0"):
        assert not is_left_over(ROOT, foreign)


def test_a_part_of_a_first_page_begins_where_the_stream_begins() -> None:
    root = ROOT.truncated(5, place(1, 5))
    part = decode_page(root, PAGES[0].reference, PAGES[0].value).truncated(root.start)
    assert (part.start, part.start_place, part.fragments) == (5, place(1, 5), WHOLE.fragments[1:4])
    assert (root.tail.start, root.tail.fragments, root.tail.pages) == (30, ROOT.fragments, ())
    assert WHOLE.tail is WHOLE


def test_a_change_that_finds_no_room_asks_for_paging_first() -> None:
    """Rule U3."""
    names = tuple(BookieId(f"bookie-{number}-{'x' * 110}") for number in range(7))
    full = open_stream(*(replace(one, bookies=names) for one in many_fragments(140)))
    last = full.last_fragment
    first, position = EntryId(last.first_entry_id + 1), last.first_position + 1
    change = ChangeFragment(last, replace(last, first_entry_id=first, first_position=position))
    decision = change.decide(full)
    assert type(decision) is PageFirst
    decision = change.decide(paged(full, 60)[0])
    assert type(decision) is Write
