"""What every metadata driver must do with streams: they live under ledger ids, and are never taken for ledgers."""

import asyncio
import contextlib
from dataclasses import replace

import pytest
from octavo.metadata import BeginRecovery, MetadataStore, Version, update_ledger, update_stream
from octavo.metadata.stream.changes import (
    FRAGMENTS_BYTES_MAX,
    BeginTakeover,
    ChangeFragment,
    OpenTerm,
    RenewTerm,
    Rest,
    TermEnd,
    Truncate,
)
from octavo.metadata.stream.encoding import encoded_fragments_bytes
from octavo.metadata.stream.glance import StreamGlance
from octavo.metadata.stream.model import StreamFragment, StreamMetadata, StreamState
from octavo.metadata.stream.pages import PageMissingError, is_left_over, make_page, page_document, pages_prefix
from octavo.metadata.updates.page_out import page_out
from octavo.metadata.updates.paging import (
    StreamPages,
    delete_stream,
    sweep_all,
    sweep_stream,
    tidy_stream,
    truncate_stream,
    walk_stream,
)
from octavo.protocol.errors import (
    InvalidArgumentError,
    LedgerExistsError,
    LedgerKindError,
    MetadataConflictError,
    MetadataError,
    NoSuchLedgerError,
    TermOverError,
)
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.places import place
from support.metadata.ledger_metadata import open_ledger
from support.metadata.metadata_clusters import Cluster, new_ledger, soon
from support.metadata.paged_streams import many_fragments
from support.metadata.stream_metadata import open_stream, stream_fragment

PLANS = [stream_fragment(1, 0, 0), stream_fragment(1, 5, 5, "abd", 50)]


def a_stream(ledger_id: int, token: str = "") -> StreamMetadata:
    return replace(open_stream(*PLANS), ledger_id=LedgerId(ledger_id), writer_token=token)


async def new_stream(store: MetadataStore) -> tuple[LedgerId, Version]:
    ledger_id = await store.allocate_ledger_id()
    return ledger_id, await store.create_stream(a_stream(ledger_id))


async def test_many_streams_are_seen_at_a_glance(store: MetadataStore, other: MetadataStore) -> None:
    streams = [await new_stream(store) for _ in range(3)]
    plain, _ = await new_ledger(store)
    ids = [ledger_id for ledger_id, _ in streams]
    missing = await store.allocate_ledger_id()
    outside = LedgerId(-1)
    first, second, third, *others = await other.glance_streams([ids[2], ids[0], ids[1], plain, missing, outside])
    stop = PLANS[-1].first_position
    for glance in (first, second, third):
        assert isinstance(glance, StreamGlance)
        assert (glance.start, glance.known_stop, glance.stop_is_known, glance.has_writer) == (0, stop, False, True)
    assert [type(one) for one in others] == [LedgerKindError, NoSuchLedgerError, NoSuchLedgerError]
    assert await other.glance_streams([]) == []


async def test_stream_is_read_as_written_and_changes_by_compare_and_set(
    store: MetadataStore, other: MetadataStore
) -> None:
    ledger_id, first = await new_stream(store)
    assert await other.read_stream(ledger_id) == (a_stream(ledger_id), first)
    assert await other.read_either(ledger_id) == (a_stream(ledger_id), first)
    second = await other.compare_and_set_stream(a_stream(ledger_id, "a"), first)
    assert second != first
    with pytest.raises(MetadataConflictError, match=f"ledger {ledger_id}"):
        await store.compare_and_set_stream(a_stream(ledger_id, "b"), first)
    assert await store.read_stream(ledger_id) == (a_stream(ledger_id, "a"), second)


async def test_streams_and_ledgers_share_ids_and_neither_is_taken_for_the_other(
    store: MetadataStore, other: MetadataStore
) -> None:
    ledger_id, ledger_version = await new_ledger(store)
    stream_id, stream_version = await new_stream(store)
    with pytest.raises(LedgerExistsError):
        await other.create_ledger(open_ledger(stream_id))
    with pytest.raises(LedgerExistsError):
        await other.create_stream(a_stream(ledger_id))
    with pytest.raises(LedgerKindError, match=f"ledger {stream_id} is a stream"):
        await store.read_ledger(stream_id)
    with pytest.raises(LedgerKindError, match=f"ledger {stream_id} is a stream"):
        await update_ledger(store, stream_id, BeginRecovery(), writer_token="w")
    with pytest.raises(LedgerKindError, match=f"ledger {ledger_id} is no stream"):
        await store.read_stream(ledger_id)
    with pytest.raises(LedgerKindError):
        async with store.watch_ledger(stream_id) as watch:
            await soon(anext(watch))
    with pytest.raises(LedgerKindError):
        async with store.watch_stream(ledger_id) as stream_watch:
            await soon(anext(stream_watch))
    assert await store.read_either(ledger_id) == (open_ledger(ledger_id), ledger_version)
    assert (await store.read_stream(stream_id)).version == stream_version
    assert [one async for one in other.list_ledgers()] == [ledger_id, stream_id]


async def test_stream_needs_an_allocated_id(store: MetadataStore) -> None:
    with pytest.raises(InvalidArgumentError, match="ledger id 3 was never allocated"):
        await store.create_stream(a_stream(3))
    for missing in (0, -1, 2**63):
        with pytest.raises(NoSuchLedgerError, match=f"ledger {missing} "):
            await store.read_stream(LedgerId(missing))
        with pytest.raises(NoSuchLedgerError, match=f"ledger {missing} "):
            await store.read_either(LedgerId(missing))
    with pytest.raises(NoSuchLedgerError):
        await store.compare_and_set_stream(a_stream(9), Version(1))


async def test_deleted_stream_is_gone_and_only_then_confirmed_absent(
    store: MetadataStore, other: MetadataStore
) -> None:
    ledger_id, version = await new_stream(store)
    assert await other.confirm_absent([ledger_id]) == []
    with pytest.raises(MetadataConflictError):
        await store.delete_ledger(ledger_id, Version(version + 1))
    await other.delete_ledger(ledger_id, version)
    assert await store.confirm_absent([ledger_id]) == [ledger_id]
    with pytest.raises(NoSuchLedgerError):
        await store.read_stream(ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await store.compare_and_set_stream(a_stream(ledger_id), version)


async def test_watch_gives_the_present_then_every_latest_stream_then_none(
    store: MetadataStore, other: MetadataStore
) -> None:
    ledger_id, version = await new_stream(store)
    async with other.watch_stream(ledger_id) as watch, other.watch_ledger(ledger_id) as wrong:
        assert await soon(anext(watch)) == (a_stream(ledger_id), version)
        with pytest.raises(LedgerKindError):
            await soon(anext(wrong))
        version = await store.compare_and_set_stream(a_stream(ledger_id, "a"), version)
        assert await soon(anext(watch)) == (a_stream(ledger_id, "a"), version)
        await store.delete_ledger(ledger_id)
        assert await soon(anext(watch)) is None
        assert await soon(anext(wrong)) is None


async def test_streams_and_ledgers_change_together(store: MetadataStore, other: MetadataStore) -> None:
    (ledger_id, first), (stream_id, second) = await new_ledger(store), await new_stream(store)
    stale_id, stale = await new_stream(store)
    await other.compare_and_set_stream(a_stream(stale_id, "theirs"), stale)
    ledger, stream = open_ledger(ledger_id, writer_token="mine"), a_stream(stream_id, "mine")
    versions = await store.compare_and_set_ledgers(
        [(ledger, first), (a_stream(stale_id, "mine"), stale), (stream, second)]
    )
    assert versions[1] is None
    assert await other.read_ledger(ledger_id) == (ledger, versions[0])
    assert await other.read_stream(stream_id) == (stream, versions[2])
    assert (await other.read_stream(stale_id)).value.writer_token == "theirs"


async def test_of_many_takeovers_each_term_has_one(cluster: Cluster) -> None:
    """Every client that takes over knows of the term it opened, and no two know of the same one (rule T1)."""
    handles = [await cluster.open() for _ in range(2)]
    ledger_id, _ = await new_stream(handles[0])
    opened: list[tuple[int, str]] = []

    async def take_over(store: MetadataStore, owner: str) -> None:
        for attempt in range(3):
            mine = f"{owner}, attempt {attempt}"
            with contextlib.suppress(TermOverError, MetadataConflictError):
                read = (await store.read_stream(ledger_id)).value
                began = await update_stream(store, ledger_id, BeginTakeover(read.term), writer_token=mine)
                base = began.value.last_fragment
                change = OpenTerm(
                    base=base,
                    fragments=(),
                    end=TermEnd(EntryId(base.first_entry_id + attempt), base.length_before + 10),
                    owner=mine,
                    fragment=base,
                )
                after = await update_stream(store, ledger_id, change, writer_token=mine, known=began)
                assert after.value.owner == mine
                opened.append((after.value.term, mine))

    await asyncio.gather(*(take_over(handles[n % 2], f"client {n}") for n in range(6)))
    found = (await handles[0].read_stream(ledger_id)).value
    assert sorted(term for term, _ in opened) == list(range(2, found.term + 1))
    assert dict(opened)[found.term] == found.owner
    assert found.term >= 3


async def test_old_writer_changes_nothing_after_a_takeover(store: MetadataStore, other: MetadataStore) -> None:
    ledger_id, _ = await new_stream(store)
    known = await store.read_stream(ledger_id)
    base = known.value.last_fragment
    await update_stream(other, ledger_id, BeginTakeover(1), writer_token="new")
    open_term = OpenTerm(base, (), TermEnd(EntryId(place(1, 6)), 70), "new", stream_fragment(2, 0, 7, "cde", 70))
    await update_stream(other, ledger_id, open_term, writer_token="new")
    late = ChangeFragment(base, stream_fragment(1, 9, 9, "abe", 90))
    for change in (late, Rest(base, TermEnd(EntryId(place(1, 8)), 90))):
        with pytest.raises(TermOverError):
            await update_stream(store, ledger_id, change, writer_token="old", known=known)
    found = (await store.read_stream(ledger_id)).value
    assert (found.state, found.term, found.owner) == (StreamState.OPEN, 2, "new")
    assert found.end_of_term(1) == place(1, 6)


async def test_update_whose_answer_was_lost_is_settled(store: MetadataStore, other: MetadataStore) -> None:
    ledger_id, _ = await new_stream(store)
    known = await store.read_stream(ledger_id)
    rest = Rest(known.value.last_fragment, TermEnd(EntryId(place(1, 6)), 70))
    made = await update_stream(store, ledger_id, rest, writer_token="w", known=known)
    truncated = await update_stream(other, ledger_id, Truncate(3), writer_token="someone")
    assert await update_stream(store, ledger_id, rest, writer_token="w", known=known) == truncated
    assert (made.value.state, truncated.value.start) == (StreamState.AT_REST, 3)


async def test_stream_with_as_many_fragments_as_it_may_have_is_stored(
    store: MetadataStore, other: MetadataStore
) -> None:
    fragments: list[StreamFragment] = []
    while not fragments or encoded_fragments_bytes(open_stream(*fragments)) < FRAGMENTS_BYTES_MAX:
        fragments += [
            replace(stream_fragment(1, at, at, "abc"), bookies=tuple(BookieId(f"{name * 20}:{at}") for name in "abc"))
            for at in range(len(fragments), len(fragments) + 20)
        ]
    ledger_id = await store.allocate_ledger_id()
    full = replace(open_stream(*fragments), ledger_id=ledger_id)
    version = await store.create_stream(full)
    full = full.at_rest(EntryId(full.last_fragment.first_entry_id), 1)
    await other.compare_and_set_stream(full, version)
    assert (await store.read_stream(ledger_id)).value == full


# --- pages (rules U1 to U4 and U8) ------------------------------------------------------------------------------------

MANY = many_fragments(300)


async def new_long_stream(store: MetadataStore, count: int = 300) -> LedgerId:
    ledger_id = await store.allocate_ledger_id()
    await store.create_stream(replace(open_stream(*MANY[:count]), ledger_id=ledger_id))
    return ledger_id


async def documents(store: MetadataStore, ledger_id: LedgerId) -> set[str]:
    return {name async for name in store.list_documents(pages_prefix(ledger_id))}


async def named(store: MetadataStore, ledger_id: LedgerId) -> set[str]:
    root = (await store.read_stream(ledger_id)).value
    return {page_document(ledger_id, page) for page in root.pages}


async def test_paged_out_stream_holds_the_same_fragments(store: MetadataStore, other: MetadataStore) -> None:
    ledger_id = await new_long_stream(store)
    tidied = await tidy_stream(store, ledger_id, writer_token="w")
    root = (await other.read_stream(ledger_id)).value
    assert root == tidied.value
    assert (len(root.fragments), [page.fragments for page in root.pages]) == (12, [288])
    parts = [part async for part in walk_stream(other, root)]
    assert [one for part in parts for one in part.fragments] == list(MANY)
    assert await documents(store, ledger_id) == await named(store, ledger_id)
    assert await tidy_stream(store, ledger_id, writer_token="w") == tidied


async def test_of_many_pagers_all_find_the_same_stream(cluster: Cluster) -> None:
    """Rule U2: a client that is late undoes nothing, and leaves only what a sweep finds."""
    handles = [await cluster.open() for _ in range(3)]
    ledger_id = await new_long_stream(handles[0])
    await asyncio.gather(*(tidy_stream(handle, ledger_id, writer_token="w") for handle in handles))
    root = (await handles[0].read_stream(ledger_id)).value
    assert len(root.fragments) <= 128
    parts = [part async for part in walk_stream(handles[1], root)]
    assert [one for part in parts for one in part.fragments] == list(MANY)
    await sweep_stream(handles[2], root)
    left = await documents(handles[0], ledger_id) - await named(handles[0], ledger_id)
    assert all(not is_left_over(root, name) for name in left)


async def test_writer_that_finds_no_room_pages_out_first(store: MetadataStore, other: MetadataStore) -> None:
    """Rule U3: however long no client has paged out."""
    names = tuple(BookieId(f"bookie-{number}-{'x' * 100}") for number in range(5))
    ledger_id = await store.allocate_ledger_id()
    fragments = [replace(one, bookies=names) for one in many_fragments(150, term_every=1000)]
    await store.create_stream(replace(open_stream(*fragments), ledger_id=ledger_id))
    for at in range(40):
        known = await other.read_stream(ledger_id)
        last = known.value.last_fragment
        place_after, position = EntryId(last.first_entry_id + 1), last.first_position + 1
        new = replace(last, first_entry_id=place_after, first_position=position)
        after = await update_stream(store, ledger_id, ChangeFragment(last, new), writer_token="w", known=known)
        assert after.value.last_fragment == new
        assert encoded_fragments_bytes(after.value) <= FRAGMENTS_BYTES_MAX
        fragments.append(new)
        if after.value.pages and at > 3:
            break
    assert after.value.pages
    parts = [part async for part in walk_stream(store, after.value)]
    assert [one for part in parts for one in part.fragments] == fragments


@pytest.mark.parametrize("before", [1, 3, 100, 287 * 3 + 1, 288 * 3, 288 * 3 + 1, 295 * 3, 10**6])
async def test_truncation_is_exact_wherever_it_ends(store: MetadataStore, other: MetadataStore, before: int) -> None:
    """Rule U4: one change of the root, and the pages that have left it are deleted."""
    ledger_id = await new_long_stream(store)
    known = await tidy_stream(store, ledger_id, writer_token="w")
    after = await truncate_stream(other, ledger_id, before, writer_token="me", known=known)
    plain = replace(open_stream(*MANY), ledger_id=ledger_id).truncated(before)
    assert (after.value.start, after.value.start_place) == (plain.start, plain.start_place)
    parts = [part async for part in walk_stream(store, after.value)]
    assert tuple(one for part in parts for one in part.fragments) == plain.fragments
    assert await documents(store, ledger_id) == await named(store, ledger_id)
    again = await truncate_stream(store, ledger_id, before - 1, writer_token="you")
    assert again.value.start == plain.start, "the start never falls"


async def test_truncation_whose_position_is_paged_out_meanwhile_is_made(
    store: MetadataStore, other: MetadataStore
) -> None:
    """Rule U4: also if its place was not known when it was looked for, because the fragment had no end."""
    ledger_id = await new_long_stream(store, 101)
    tail = await store.read_stream(ledger_id)
    await other.compare_and_set_stream(replace(open_stream(*MANY), ledger_id=ledger_id), tail.version)
    await tidy_stream(other, ledger_id, writer_token="w")
    await page_out(other, ledger_id, writer_token="w")
    after = await truncate_stream(store, ledger_id, 301, writer_token="me", known=tail)
    assert (after.value.start, after.value.start_place) == (301, place(21, 1))
    again = await truncate_stream(store, ledger_id, 400, writer_token="me", known=after)
    assert again.value.start_place == open_stream(*MANY).truncated(400).start_place


async def test_reader_with_old_metadata_reads_them_again_and_goes_on(
    store: MetadataStore, other: MetadataStore
) -> None:
    """Rule U2: its page is gone, and its position is not."""
    ledger_id = await new_long_stream(store, 260)
    old = (await tidy_stream(store, ledger_id, writer_token="w")).value
    assert [page.fragments for page in old.pages] == [240]
    pages = StreamPages(other)
    walk = walk_stream(other, old)
    merged = (await page_out(store, ledger_id, writer_token="w")).value
    assert [page.fragments for page in merged.pages] == [256]
    with pytest.raises(PageMissingError, match="out of date"):
        await pages.place_at(old, 5)
    assert await pages.place_at(merged, 5) == place(1, 5)
    parts = [part async for part in walk]
    assert [one for part in parts for one in part.fragments] == list(MANY[:260])


async def test_page_that_is_lost_is_damage(store: MetadataStore, other: MetadataStore) -> None:
    ledger_id = await new_long_stream(store)
    root = (await tidy_stream(store, ledger_id, writer_token="w")).value
    (name,) = await named(store, ledger_id)
    await other.delete_document(name)
    with pytest.raises(MetadataError, match="the page is lost"):
        [part async for part in walk_stream(store, root)]
    with pytest.raises(MetadataError, match="the page is lost"):
        await truncate_stream(store, ledger_id, 7, writer_token="w")
    with pytest.raises(MetadataError, match="the page is lost"):
        await page_out(store, ledger_id, writer_token="w")
    above = await truncate_stream(store, ledger_id, 288 * 3 + 1, writer_token="w")
    assert above.value.start == 288 * 3 + 1, "what is whole can be kept"


async def test_deleted_stream_leaves_no_page(store: MetadataStore, other: MetadataStore) -> None:
    """Rule U8: also one whose deletion was interrupted, and one in which a client was just paging out."""
    first, second, third = [await new_long_stream(store) for _ in range(3)]
    for ledger_id in (first, second, third):
        await tidy_stream(store, ledger_id, writer_token="w")
    await delete_stream(other, first)
    assert not await documents(store, first)
    with pytest.raises(NoSuchLedgerError):
        await delete_stream(store, first)
    await store.delete_ledger(second)
    assert await documents(store, second)
    late = (await store.read_stream(third)).value
    new = make_page(late, late.fragments[:3], late.fragments[3])
    await store.create_document(page_document(third, new.reference), new.value)
    assert await sweep_all(other) == 1
    assert not await documents(store, second)
    assert await documents(store, third) - await named(store, third) == {page_document(third, new.reference)}
    await tidy_stream(store, third, writer_token="w")
    await page_out(store, third, writer_token="w")
    await sweep_all(other)
    assert await documents(store, third) == await named(store, third), "the revision of the new page is over"
    with pytest.raises(NoSuchLedgerError):
        await delete_stream(store, second)


async def test_pages_of_many_clients_at_once_end_in_one_history(cluster: Cluster) -> None:
    """Pagers, truncation and rolls at the same time: the fragments that are left are those of a plain list."""
    handles = [await cluster.open() for _ in range(2)]
    ledger_id = await new_long_stream(handles[0], 200)

    async def roll(store: MetadataStore) -> None:
        for at in range(200, 240):
            known = await store.read_stream(ledger_id)
            last = known.value.last_fragment
            if MANY[at].term == last.term:
                change: ChangeFragment | RenewTerm = ChangeFragment(last, MANY[at])
            else:
                end = TermEnd(EntryId(last.first_entry_id + 2), MANY[at].length_before)
                change = RenewTerm(last, end, f"owner {at}", MANY[at])
            await update_stream(store, ledger_id, change, writer_token="w", known=known)

    async def page(store: MetadataStore) -> None:
        for _ in range(4):
            await page_out(store, ledger_id, writer_token="p")

    async def truncate(store: MetadataStore) -> None:
        for before in (5, 40, 200, 301):
            await truncate_stream(store, ledger_id, before, writer_token="t")

    await asyncio.gather(roll(handles[0]), page(handles[1]), truncate(handles[0]), truncate(handles[1]))
    root = (await handles[0].read_stream(ledger_id)).value
    parts = [part async for part in walk_stream(handles[1], root)]
    plain = open_stream(*MANY[:240]).truncated(301)
    assert (root.start, root.start_place) == (301, plain.start_place)
    assert tuple(one for part in parts for one in part.fragments) == plain.fragments
