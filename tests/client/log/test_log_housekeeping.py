"""Pages, truncation into pages, deletion (rule P9), with a real store and the ledgers' metadata alone."""

import random
from dataclasses import replace
from typing import cast

import pytest
from octavo.client.log.changes import AppendSegment, BeginSegment, SetRetention
from octavo.client.log.document import LogDocument, Retention, Segment, SegmentEnd
from octavo.client.log.housekeeping import Housekeeper, segments_max
from octavo.client.log.ledgers import LedgerAccess
from octavo.client.log.names import list_document
from octavo.client.log.pacing import TakeoverPacing
from octavo.client.log.update import read_log, update_log
from octavo.client.log.view import LogView
from octavo.client.options import ClientOptions
from octavo.metadata import MetadataStore, open_metadata_store
from octavo.metadata.store import DOCUMENT_BYTES_MAX
from octavo.protocol.errors import NoSuchLogError
from octavo.protocol.ids import LedgerId
from support.ledger_metadata import open_ledger
from support.log_documents import empty_log, ended


async def no_ledger(*_arguments: object) -> object:
    raise AssertionError("no ledger is opened or written here")


async def made(name: str, segments: int) -> tuple[MetadataStore, LedgerAccess, Housekeeper]:
    """A log of closed segments of three entries each, and one that is open; pages of two segments."""
    store = await open_metadata_store(f"memory://housekeeping-{name}", create=True, rng=random.Random(1))
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
    view = LogView(access, document, b"")
    for position in (0, 2, 3, 50, 100, 146):
        place = await view.locate(position)
        assert place is not None
        assert place.first <= position < (place.stop or 0)
        assert place.first == position // 3 * 3


async def test_a_handle_does_not_end_below_the_first_position() -> None:
    # A truncation may have passed all that the list tells of the last segment.
    store, access, _ = await made("inside-the-open-segment", 1)
    document = (await read_log(store, "orders")).value
    view = LogView(access, document, b"")
    assert (view.end, document.known_stop) == (0, 0)
    truncated = replace(document, first_position=2)
    view.take(truncated)
    assert view.end == LogView(access, truncated, b"").end == 2


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


async def aged(store_ms: int) -> tuple[int, int]:
    """What retention by age drops of a log whose entries are five seconds old by this client's clock, where the store's
    clock shows ``store_ms``; and how often the store was asked."""
    store, access, _ = await made(f"aged-{store_ms}", 6)
    asked = 0

    class Clock:
        """The store, with a clock of its own."""

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def time_ms(self) -> int:
            nonlocal asked
            asked += 1
            return store_ms

    known = await update_log(store, "orders", SetRetention(Retention(seconds=2)), log_id="id-1")
    keeper = Housekeeper(replace(access, store=cast(MetadataStore, Clock())), "orders", "id-1")
    return await keeper.retention_cut(known.value), asked


async def test_nothing_is_dropped_that_is_young_by_the_clock_of_the_store() -> None:
    assert await aged(store_ms=10_000) == (12, 1)
    assert await aged(store_ms=6_000) == (0, 1), "this client's clock is ahead"
    assert await aged(store_ms=900_000) == (12, 1), "the store's clock is ahead: this client's counts"


@pytest.mark.parametrize(
    ("retention", "later_ms", "due"),
    [
        (Retention(), 10**9, False),
        (Retention(bytes=10**9), 10**9, False),
        (Retention(seconds=100), 90_000, False),
        (Retention(seconds=100), 106_000, True),
        (Retention(cursors=True), 10_000, True),
    ],
)
async def test_a_round_is_due_only_where_there_may_be_something_to_do(
    retention: Retention, later_ms: int, due: bool
) -> None:
    store, access, _ = await made(f"due-{later_ms}-{retention.seconds}-{retention.bytes}-{retention.cursors}", 6)
    now_ms = 10_000
    keeper = Housekeeper(replace(access, clock_ms=lambda: now_ms), "orders", "id-1")
    await update_log(store, "orders", SetRetention(retention), log_id="id-1")
    assert keeper.may_be_due(), "nothing is known yet"
    tidied = (await keeper.tidy()).value
    keeper.list_changed(tidied)
    now_ms = later_ms
    assert keeper.may_be_due() is due
    keeper.list_changed(replace(tidied, first_position=1))
    assert keeper.may_be_due(), "another client has changed the list"


@pytest.mark.parametrize("page_segments", [1, 100, 1000])
def test_a_list_fits_into_a_document_whatever_the_size_of_a_page(page_segments: int) -> None:
    """A list that did not fit could not be changed any more: the log could not be led."""
    count = segments_max(page_segments) + 1
    assert count > page_segments + 2, "the last two segments never move into a page"
    large = SegmentEnd(2**31, 2**53, 2**42)
    first = 2**60
    segments = []
    for number in range(count):
        segments.append(Segment(LedgerId(2**60 + number), 2**31, "f" * 32, 2**42, first, large))
        first += large.entries
    document = replace(empty_log(), term=2**31, segments=tuple(segments), first_position=2**60)
    assert len(document.encode()) < DOCUMENT_BYTES_MAX * 0.75
