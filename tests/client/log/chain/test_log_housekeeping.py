"""Pages, truncation into pages, deletion (rule P9), with a real store and the ledgers' metadata alone."""

import asyncio
import itertools
import random
from collections.abc import Awaitable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.client.log.chain.bounds import (
    DROPPED_AT_ONCE_MAX,
    DROPPED_MAX,
    MAKING_MAX,
    PAGE_SEGMENTS_MAX,
    pages_max,
    pages_to_merge,
    segments_max,
    segments_to_fold,
)
from octavo.client.log.chain.changes import AppendSegment, BeginSegment, SetRetention, Truncate, Withdraw
from octavo.client.log.chain.housekeeping import Housekeeper, read_page
from octavo.client.log.chain.update import update_log
from octavo.client.log.chain.view import ChainView
from octavo.client.log.documents.chain import (
    TERMS_MAX,
    Dropped,
    LogDocument,
    Making,
    PageReference,
    Retention,
    Segment,
    SegmentEnd,
    decode_log,
    encode_page,
    page_reference,
)
from octavo.client.log.documents.names import list_document, page_document
from octavo.client.log.documents.reading import read_log
from octavo.client.log.seam.access import LedgerAccess
from octavo.client.log.seam.pacing import TakeoverPacing
from octavo.client.options import ClientOptions
from octavo.metadata import MetadataStore, open_metadata_store
from octavo.metadata.clocks.proven_time import BootTime
from octavo.metadata.store.documents import DOCUMENT_BYTES_MAX
from octavo.metadata.store.values import Versioned
from octavo.protocol.errors import NoSuchLogError
from octavo.protocol.ids import LedgerId
from support.metadata.ledger_metadata import open_ledger
from support.metadata.log_documents import empty_log, ended
from support.metadata.memory_stores import memory_uri


async def no_ledger(*_arguments: object) -> object:
    raise AssertionError("no ledger is opened or written here")


async def made(name: str, segments: int) -> tuple[MetadataStore, LedgerAccess, Housekeeper]:
    """A log of closed segments of three entries each, and one that is open; pages of two segments."""
    store = await open_metadata_store(memory_uri(f"housekeeping-{name}"), create=True, rng=random.Random(1))
    rng = random.Random(2)
    access = LedgerAccess(
        store,
        ClientOptions(log_page_segments=2),
        clock_ms=lambda: 10_000,
        random_token=lambda: f"{rng.getrandbits(64):016x}",
        uniform=rng.uniform,
        pacing=TakeoverPacing(rng.uniform),
        create=no_ledger,  # type: ignore[arg-type]
        open=no_ledger,  # type: ignore[arg-type]
        read=no_ledger,  # type: ignore[arg-type]
        load_streams=lambda: None,  # type: ignore[arg-type,return-value]
        boot_clock=lambda: BootTime("a host", 10_000),
    )
    await store.create_document(list_document("orders"), empty_log().encode())
    known = await read_log(store, "orders")
    keeper = Housekeeper(access, "orders", "id-1")
    for _ in range(segments):
        base = known.value.newest.ledger_id if known.value.newest is not None else None
        ledger_id = await store.allocate_ledger_id()
        await store.create_ledger(open_ledger(ledger_id))
        known = await update_log(store, "orders", BeginSegment(ledger_id, "me", base), log_id="id-1", known=known)
        ends: dict[LedgerId, SegmentEnd] = {} if base is None else {base: ended(3, sealed_at_ms=5000)}
        append = AppendSegment(ledger_id, "me", 1, 5000, base, ends, is_takeover=True)
        known = await update_log(store, "orders", append, log_id="id-1", known=known)
        known = await keeper.tidy()
    return store, access, keeper


def shape(document: LogDocument) -> tuple[int, int]:
    return sum(page.segments for page in document.pages), len(document.segments)


async def test_a_long_list_moves_into_pages_and_every_position_is_found() -> None:
    store, access, _ = await made("pages", 50)
    document = (await read_log(store, "orders")).value
    assert shape(document)[0] + shape(document)[1] == 50
    assert len(document.segments) <= 20
    view = ChainView(access, document, b"")
    for position in (0, 2, 3, 50, 100, 146):
        place = await view.locate(position)
        assert place is not None
        assert place.first <= position < (place.stop or 0)
        assert place.first == position // 3 * 3


async def test_a_handle_does_not_end_below_the_first_position() -> None:
    # A truncation may have passed all that the list says about the last segment.
    store, access, _ = await made("inside-the-open-segment", 1)
    document = (await read_log(store, "orders")).value
    view = ChainView(access, document, b"")
    assert (view.end, document.known_stop) == (0, 0)
    truncated = replace(document, first_position=2)
    view.take(truncated)
    assert view.end == ChainView(access, truncated, b"").end == 2


@pytest.mark.parametrize("before", [1, 3, 7, 9, 60, 140])
async def test_truncation_into_pages_deletes_just_what_lies_below(before: int) -> None:
    store, _, keeper = await made(f"truncate-{before}", 50)
    await keeper.truncate(before)
    known = await keeper.delete_dropped(await read_log(store, "orders"))
    document = known.value
    assert document.first_position == before
    kept = 50 - min(before // 3, 48)
    assert sum(shape(document)) == kept
    assert len([ledger async for ledger in store.list_ledgers()]) == kept
    assert document.dropped == ()
    pages = [name async for name in store.list_documents("log-pages/")]
    assert sorted(pages) == sorted(page.document for page in document.pages), "pages that no list names"


async def test_a_deleted_log_leaves_nothing() -> None:
    store, _, keeper = await made("delete", 50)
    await keeper.delete_log()
    assert [name async for name in store.list_documents()] == []
    assert [ledger async for ledger in store.list_ledgers()] == []
    with pytest.raises(NoSuchLogError):
        await read_log(store, "orders")
    assert not await store.read_document(list_document("orders"))


async def test_pages_that_no_list_names_are_deleted_with_the_log() -> None:
    """A client that died after it made a page and before it listed it leaves such a page."""
    store, _, keeper = await made("stray", 5)
    await store.create_document("log-pages/id-1/stray", b"{}")
    await store.create_document("log-pages/id-10/other", b"{}")
    await keeper.delete_log()
    assert [name async for name in store.list_documents()] == ["log-pages/id-10/other"]


@pytest.mark.parametrize(
    ("retention", "later_ms", "due"),
    [
        (Retention(), 10**9, False),
        (Retention(bytes=10**9), 10**9, False),
        (Retention(seconds=100), 69_000, False),
        (Retention(seconds=100), 70_000, True),
        (Retention(seconds=100_000), 6_000_000, False),
        (Retention(seconds=100_000), 6_300_000, True),
        (Retention(seconds=10), 20_000, False),
        (Retention(seconds=10), 20_001, True),
        (Retention(cursors=True), 10_000, True),
    ],
)
async def test_a_round_is_due_only_where_there_may_be_something_to_do(
    retention: Retention, later_ms: int, due: bool
) -> None:
    store, access, _ = await made(f"due-{later_ms}-{retention.seconds}-{retention.bytes}-{retention.cursors}", 6)
    now_ms = 10_000
    boot_clock = lambda: BootTime("a host", now_ms)  # noqa: E731
    keeper = Housekeeper(replace(access, boot_clock=boot_clock), "orders", "id-1")
    await update_log(store, "orders", SetRetention(retention), log_id="id-1")
    assert keeper.may_be_due(), "nothing is known yet"
    tidied = (await keeper.tidy()).value
    keeper.list_changed(tidied)
    now_ms = later_ms
    assert keeper.may_be_due() is due
    keeper.list_changed(replace(tidied, first_position=1))
    assert keeper.may_be_due(), "another client has changed the list"


async def test_many_pages_are_merged_and_every_position_is_found() -> None:
    store, access, keeper = await made("merged", 75)
    document = (await read_log(store, "orders")).value
    assert sum(shape(document)) == 75
    assert len(document.pages) <= pages_max(2)
    assert max(page.segments for page in document.pages) > 2
    view = ChainView(access, document, b"")
    for position in range(75 * 3 - 3):
        place = await view.locate(position)
        assert place is not None
        assert (place.first, place.stop) == (position // 3 * 3, position // 3 * 3 + 3)
    pages = [name async for name in store.list_documents("log-pages/")]
    assert sorted(pages) == sorted(page.document for page in document.pages), "pages that no list names"
    await keeper.truncate(100)
    await keeper.delete_dropped(await read_log(store, "orders"))
    assert len([ledger async for ledger in store.list_ledgers()]) == 75 - 33


async def test_a_truncation_of_pages_that_was_interrupted_is_finished() -> None:
    store, _, keeper = await made("interrupted", 50)
    document = (await read_log(store, "orders")).value
    before = document.pages[3].stop_position
    first = document.pages[0]
    ledgers = tuple(segment.ledger_id for segment in await read_page(store, "orders", first) or ())
    await update_log(store, "orders", Truncate(before, whole_pages={first.document: ledgers}), log_id="id-1")
    document = (await keeper.tidy()).value
    assert (document.first_position, document.dropped) == (before, ())
    assert document.pages[0].first_position == before
    assert len([ledger async for ledger in store.list_ledgers()]) == 50 - before // 3


async def with_large_pages(name: str, *segments: int) -> tuple[MetadataStore, LedgerAccess, Housekeeper]:
    """A log with pages of these numbers of segments, which have ledgers."""
    store, access, keeper = await made(name, 3)
    known = await read_log(store, "orders")
    first, pages = 0, []
    for number, count in enumerate(segments):
        listed = []
        for _ in range(count):
            ledger_id = await store.allocate_ledger_id()
            await store.create_ledger(open_ledger(ledger_id))
            listed.append(Segment(ledger_id, 1, "me", 5000, first, ended(1)))
            first += 1
        document = page_document("id-1", f"large-{number}")
        await store.create_document(document, encode_page(listed))
        pages.append(page_reference(document, listed))
    moved = tuple(
        replace(one, first_position=None if one.first_position is None else one.first_position + first)
        for one in known.value.segments
    )
    document_with_pages = replace(known.value, pages=tuple(pages), segments=moved)
    await store.compare_and_set_document(list_document("orders"), document_with_pages.encode(), known.version)
    return store, access, keeper


async def most_dropped(store: MetadataStore, work: Awaitable[object]) -> int:
    """The most ledgers that the list named as dropped while ``work`` was done."""
    most, working = 0, asyncio.ensure_future(work)
    async with store.watch_document(list_document("orders")) as watch:
        async for found in watch:
            if found is None or working.done():
                break
            most = max(most, len(decode_log(found.value, "orders").dropped))
            if working.done():
                break
    await working
    return most


async def test_a_deletion_of_many_segments_names_those_of_one_page_at_a_time() -> None:
    """All at once would not fit into the list."""
    store, _, keeper = await with_large_pages("large-delete", 100, 100, 100)
    most = await most_dropped(store, keeper.delete_log())
    assert 40 < most <= 100
    assert [ledger async for ledger in store.list_ledgers()] == []
    assert [name async for name in store.list_documents()] == []


async def test_a_truncation_of_many_segments_drops_some_at_a_time() -> None:
    store, access, _ = await with_large_pages("large-truncate", 40, 40, 40, 40)
    keeper = Housekeeper(access, "orders", "id-1", dropped_at_once_max=100)
    most = await most_dropped(store, keeper.truncate(150))
    assert 40 < most <= 100
    known = await keeper.delete_dropped(await read_log(store, "orders"))
    assert (known.value.first_position, len(known.value.pages)) == (150, 1)
    assert len([ledger async for ledger in store.list_ledgers()]) == 10 + 3


async def test_a_candidate_bounds_what_failed_candidates_left() -> None:
    store, _, keeper = await made("left", 3)
    known = await read_log(store, "orders")
    left = tuple(Dropped(LedgerId(10_000 + number)) for number in range(DROPPED_MAX))
    full = replace(known.value, dropped=left)
    version = await store.compare_and_set_document(list_document("orders"), full.encode(), known.version)
    known = Versioned(full, version)
    assert await keeper.make_room(known) == known
    for _ in range(200):  # none of these ledgers exists: each is looked for a few times
        base = known.value.newest.ledger_id if known.value.newest is not None else None
        ledger_id = await store.allocate_ledger_id()
        known = await update_log(store, "orders", BeginSegment(ledger_id, "me", base), log_id="id-1", known=known)
        known = await update_log(store, "orders", Withdraw(ledger_id), log_id="id-1", known=known)
        known = await keeper.make_room(known)
    assert len(known.value.dropped) <= DROPPED_MAX


async def test_leaders_that_lead_for_moments_leave_a_short_list() -> None:
    store, _, keeper = await made("moments", 15)
    known = await read_log(store, "orders")
    assert len(known.value.segments) <= 20
    for _ in range(30):
        known = await keeper.make_room(known)
        assert known.value.newest is not None
        base, ledger_id = known.value.newest.ledger_id, await store.allocate_ledger_id()
        known = await update_log(store, "orders", BeginSegment(ledger_id, "me", base), log_id="id-1", known=known)
        append = AppendSegment(ledger_id, "me", 1, 5000, base, {base: ended(3)}, is_takeover=True)
        known = await update_log(store, "orders", append, log_id="id-1", known=known)
    assert len(known.value.segments) <= 21
    assert sum(shape(known.value)) == 45


LARGE_END = SegmentEnd(2**31, 2**53, 2**42)


def large_segments(count: int) -> tuple[Segment, ...]:
    """Closed segments with the longest numbers and tokens that there are."""
    first = 2**60
    segments = []
    for number in range(count):
        segments.append(Segment(LedgerId(2**60 + number), 2**31, "f" * 32, 2**42, first, LARGE_END))
        first += LARGE_END.entries
    return tuple(segments)


def full_list(segments: int, pages: int) -> LogDocument:
    """A list with as much of everything as it may have, and this number of segments and pages."""
    page = PageReference(page_document("f" * 32, "f" * 32), 2000, 2**60, 2**60, 2**60, 2**42, 2**42)
    return replace(
        empty_log(),
        term=2**31,
        segments=large_segments(segments),
        pages=(replace(page, stop_position=2**60),) * pages,
        making=tuple(Making(LedgerId(2**60), "f" * 32) for _ in range(MAKING_MAX)),
        dropped=tuple(Dropped(LedgerId(2**60), 10) for _ in range(DROPPED_AT_ONCE_MAX)),
        terms=tuple((2**31, 2**60) for _ in range(TERMS_MAX)),
        first_position=2**60,
    )


@pytest.mark.parametrize("page_segments", [1, 100, 1000])
def test_a_list_fits_into_a_document_whatever_the_size_of_a_page(page_segments: int) -> None:
    """A list that did not fit could not be changed any more: the log could not be led."""
    count = segments_max(page_segments) + 1
    assert count > page_segments + 2, "the last two segments never move into a page"
    pages = pages_max(page_segments) + 1
    document = full_list(count, pages)
    while folded := segments_to_fold(document, page_segments):
        assert folded <= len(document.segments) - 2
        assert folded <= PAGE_SEGMENTS_MAX
        document = full_list(len(document.segments) - folded, pages)
    assert len(document.segments) >= min(count - 1, 200), "a list is not emptied"
    assert len(document.encode()) < DOCUMENT_BYTES_MAX * 0.95


def test_a_page_fits_into_a_document() -> None:
    assert len(encode_page(large_segments(PAGE_SEGMENTS_MAX))) < DOCUMENT_BYTES_MAX * 0.75


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(2, 30), st.integers(1, 100))
def test_neighbouring_pages_are_merged_until_they_are_few_or_full(sizes: list[int], most: int, full: int) -> None:
    page = PageReference("p", 1, 0, 0, 0, 0, 0)
    pages = [replace(page, document=f"{number}", segments=size) for number, size in enumerate(sizes)]
    while merged := list(pages_to_merge(pages, most, segments_most=full)):
        assert len(merged) >= 2
        total = sum(one.segments for one in merged)
        assert total <= full
        at = pages.index(merged[0])
        assert pages[at : at + len(merged)] == merged
        pages[at : at + len(merged)] = [replace(page, document=f"m{total}-{at}-{len(pages)}", segments=total)]
    assert len(pages) <= most or all(one.segments + other.segments > full for one, other in itertools.pairwise(pages))
    assert sum(one.segments for one in pages) == sum(sizes)
