"""Lookups of a stream with pages are those of the same stream without any (rules U1 to U4)."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.metadata.connect import open_metadata_store
from octavo.metadata.ledger.decisions import Write
from octavo.metadata.stream.changes import PageOut, ReplacePages, Truncate
from octavo.metadata.stream.encoding import decode_stream, encode_stream
from octavo.metadata.stream.model import StreamFragment, StreamMetadata, position_in
from octavo.metadata.stream.pages import make_page, page_document, repaired_page
from octavo.metadata.updates.page_out import read_page
from octavo.metadata.updates.paging import FragmentSpan, StreamPages
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.places import place
from support.metadata.memory_stores import memory_uri
from support.metadata.paged_streams import paged_stream
from support.metadata.stream_metadata import open_stream

SEVEN = LedgerId(7)


def written(decision: object) -> StreamMetadata:
    assert isinstance(decision, Write), decision
    assert isinstance(decision.metadata, StreamMetadata), decision
    return decision.metadata


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("roll"), st.integers(1, 4)),
        st.tuples(st.just("take over"), st.integers(0, 4)),
        st.tuples(st.just("page"), st.integers(1, 5)),
        st.tuples(st.just("merge"), st.integers(1, 5)),
        st.tuples(st.just("truncate"), st.integers(0, 9)),
        st.tuples(st.just("repair"), st.integers(0, 30)),
    ),
    min_size=4,
    max_size=40,
)


@settings(max_examples=120, deadline=None)
@given(STEPS)
async def test_lookups_in_pages_are_those_in_a_plain_list_of_fragments(steps: list[tuple[str, int]]) -> None:
    """The root with pages and the same stream without any go through the same changes."""
    async with await open_metadata_store(memory_uri("pages")) as store:
        pages = StreamPages(store, pages_max=2)
        root, plain = open_stream(), open_stream()
        names = iter("defghijklm" * 20)
        for step, number in steps:
            if step in ("page", "merge"):
                count = min(number, len(root.fragments) - 1)
                if count:
                    root = await _page(store, root, count, merge=step == "merge")
            elif step == "truncate":
                before = min(plain.start + number, plain.last_fragment.first_position)
                root = written_or(Truncate(before, plain.place_at(before)).decide(root), root)
                plain = written_or(Truncate(before).decide(plain), plain)
            elif step == "repair":
                fragment = plain.fragments[number % len(plain.fragments)]
                name = BookieId(next(names))
                if fragment is not plain.last_fragment and name not in fragment.bookies:
                    plain = plain.with_member(fragment.first_entry_id, number % 3, name)
                    root = await _repair(store, root, fragment.first_position, (number % 3, name))
            else:
                root, plain = _grow(root, step, number), _grow(plain, step, number)
            assert decode_stream(SEVEN, encode_stream(root)) == root
        await _same(pages, root, plain)


def written_or(decision: object, found: StreamMetadata) -> StreamMetadata:
    return decision.metadata if isinstance(decision, Write) else found


def _grow(stream: StreamMetadata, step: str, entries: int) -> StreamMetadata:
    last = stream.last_fragment
    position, length = last.first_position + entries, last.length_before + 10 * entries
    if step == "roll":
        first = EntryId(last.first_entry_id + entries)
        return stream.with_fragment(replace(last, first_entry_id=first, first_position=position, length_before=length))
    end = EntryId(last.first_entry_id + entries - 1)
    return stream.at_rest(end, length).with_next_term("x", last)


async def _page(store: Any, root: StreamMetadata, count: int, *, merge: bool) -> StreamMetadata:
    kept: tuple[StreamFragment, ...] = ()
    replaced = root.pages[-1] if merge and root.pages else None
    if replaced is not None:
        kept = (await read_page(store, root, replaced)).truncated(root.start).fragments
    moved = root.fragments[:count]
    page = make_page(root, (*kept, *moved), root.fragments[count])
    await store.create_document(page_document(root.ledger_id, page.reference), page.value)
    return written(PageOut(moved, replaced, page.reference).decide(root))


async def _repair(store: Any, root: StreamMetadata, position: int, new_member: tuple[int, BookieId]) -> StreamMetadata:
    member, name = new_member
    position = max(position, root.start)
    page = root.page_at(position)
    if page is None:
        return root.with_member(root.fragment_at(position).first_entry_id, member, name)
    part = await read_page(store, root, page)
    part = part.with_member(part.fragment_at(position).first_entry_id, member, name)
    new = repaired_page(root, page, part)
    await store.create_document(page_document(root.ledger_id, new.reference), new.value)
    return written(ReplacePages(((page, new.reference),)).decide(root))


async def _same(pages: StreamPages, root: StreamMetadata, plain: StreamMetadata) -> None:
    spans = [span async for span in pages.spans(root)]
    assert spans == [FragmentSpan(one, plain.last_id_of(one)) for one in plain.fragments]
    assert (root.start, root.start_place) == (plain.start, plain.start_place)
    for position in range(plain.start, plain.last_fragment.first_position + 2):
        assert await pages.place_at(root, position) == plain.place_at(position)
        span = await pages.span_at(root, position)
        assert span.fragment == plain.fragment_at(position)
        assert [one async for one in pages.spans(root, first=position)] == spans[spans.index(span) :]
        found = plain.place_at(position)
        if found is not None:
            held = await pages.span_of(root, found)
            assert held == span
            assert position_in(span.fragment, found) == position
    for fragment in plain.fragments[:-1]:
        last = plain.last_id_of(fragment)
        assert last is not None
        if plain.last_id_of(plain.fragment_of(last + 1)) == last:
            assert await pages.span_of(root, last + 1) is None, "between two terms"
    assert await pages.span_of(root, plain.start_place - 1) is None
    # Fragments that were truncated may still lie in a page, and tell more.
    for term in range(1, root.term + 2):
        known = plain.end_of_term(term)
        assert known is None or await pages.end_of_term(root, term) == known
        assert root.end_of_term(term) in (None, await pages.end_of_term(root, term))
    parts = [part async for part in pages.parts(root)]
    assert [one for part in parts for one in part.fragments] == list(plain.fragments)


async def test_a_seek_reads_one_page_and_a_page_is_read_once() -> None:
    async with await open_metadata_store(memory_uri("seek")) as store:
        root, made = paged_stream(60, 10, 10, 10, 10)
        for page in made:
            await store.create_document(page_document(SEVEN, page.reference), page.value)
        pages = StreamPages(store, pages_max=2)
        assert await pages.place_at(root, 40) == place(3, 10)
        assert await pages.place_at(root, 41) == place(3, 11)
        assert pages.pages_read == 1
        await pages.place_at(root, 130)
        assert pages.pages_read == 1, "the tail is in the root"
        await pages.place_at(root, 70)
        await pages.place_at(root, 41)
        assert pages.pages_read == 2
        await pages.place_at(root, 0)
        await pages.place_at(root, 70)
        assert pages.pages_read == 4, "the page used least recently went"
