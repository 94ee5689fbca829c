"""Rounds of the auditor over streams whose older fragments lie in pages (rules U1, U2 and U8)."""

import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from octavo.client.options import ClientOptions
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata import MetadataStore
from octavo.metadata.cluster.repair_states import BookieCondition, Condition, RepairStates
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.metadata.stream.model import StreamMetadata
from octavo.metadata.stream.pages import PAGES_PREFIX, page_document
from octavo.metadata.updates.garbage_hold import DOCUMENT, GarbageHold, set_hold
from octavo.metadata.updates.page_out import page_out
from octavo.metadata.updates.paging import parts_of, truncate_stream
from octavo.protocol.ids import BookieId, LedgerId
from octavo.protocol.places import place
from octavo.repair.audit.rounds import Rounds
from octavo.repair.base.census import Seen
from octavo.repair.base.settings import RepairSettings
from octavo.repair.base.stream_parts import StreamParts
from support.clusters.local_bookie import MemoryBookie
from support.metadata.paged_streams import many_fragments, paged
from support.metadata.stream_metadata import open_stream

ASIDE = RepairStates({BookieId(name): BookieCondition(Condition.HELD, 0, 10**15) for name in "abcdxyz"})
"""No bookie is asked for what it holds: there is none."""


class Audit:
    """The rounds of an auditor, and its store."""

    def __init__(self, store: MetadataStore, rounds: Rounds) -> None:
        self.store = store
        self.rounds = rounds

    async def round(self) -> None:
        self.rounds.next_round_at = 0.0
        await self.rounds.take_round(ASIDE, ())

    async def stream(self, *counts: int) -> StreamMetadata:
        """A stream on a to d whose tail is on x, y and z, with pages of these numbers of fragments."""
        ledger_id = await self.store.allocate_ledger_id()
        fragments = list(many_fragments(20))
        tail = [replace(one, bookies=tuple(map(BookieId, "xyz"))) for one in fragments[sum(counts) :]]
        root, pages = paged(replace(open_stream(*fragments[: sum(counts)], *tail), ledger_id=ledger_id), *counts)
        for page in pages:
            await self.store.create_document(page_document(ledger_id, page.reference), page.value)
        await self.store.create_stream(root)
        return root

    async def documents(self) -> set[str]:
        return {name async for name in self.store.list_documents(PAGES_PREFIX)}


def documents_of(root: StreamMetadata) -> set[str]:
    return {page_document(root.ledger_id, page) for page in root.pages}


@pytest.fixture
async def audit() -> AsyncIterator[Audit]:
    async with open_memory_store(MemoryServer()) as store, contextlib.AsyncExitStack() as stack:
        bookie = MemoryBookie("z", store, await store.cluster_id())
        pool = ConnectionPool(store, cluster_id=bookie.cluster_id, options=ClientOptions(), rng=random.Random(5))
        stack.push_async_callback(pool.close)
        yield Audit(store, Rounds(bookie, pool, RepairSettings()))


async def test_the_census_knows_the_bookies_that_only_pages_name(audit: Audit) -> None:
    root = await audit.stream(4, 6)
    await audit.round()
    for name in "abcdxyz":
        assert list(audit.rounds.census.names(BookieId(name))) == [root.ledger_id], name
    await truncate_stream(audit.store, root.ledger_id, 30, writer_token="w")
    await audit.round()
    assert list(audit.rounds.census.names(BookieId("a"))) == []
    assert list(audit.rounds.census.names(BookieId("x"))) == [root.ledger_id]


async def test_a_page_is_read_once_however_often_its_stream_is_looked_at(audit: Audit) -> None:
    parts, root = StreamParts(audit.store), await audit.stream(4, 6)
    seen = await parts.seen(root)
    assert seen == Seen(frozenset(map(BookieId, "abcdxyz")), False, 1, is_stream=True)
    for name in documents_of(root):
        await audit.store.delete_document(name)
    assert await parts.seen(root) == seen
    assert [part.last_fragment async for part in parts.naming(root, [BookieId("x")])] == [root.last_fragment]


async def test_metadata_that_are_out_of_date_are_read_again(audit: Audit) -> None:
    parts, old = StreamParts(audit.store), await audit.stream(4, 6)
    await page_out(audit.store, old.ledger_id, writer_token="w")
    seen = await parts.seen(old)
    assert seen is not None
    assert seen.bookies == set("abcdxyz")
    await audit.store.delete_ledger(old.ledger_id)
    for name in await audit.documents():
        await audit.store.delete_document(name)
    assert await StreamParts(audit.store).seen(old) is None


async def test_a_page_that_cannot_be_understood_does_not_hide_the_others(audit: Audit) -> None:
    root = await audit.stream(1, 1, 8)
    damaged = page_document(root.ledger_id, root.pages[0])
    found = await audit.store.read_document(damaged)
    assert found is not None
    await audit.store.compare_and_set_document(damaged, b"{}", found.version)
    assert await StreamParts(audit.store).members(root) == set("abcdxyz")
    await audit.round()
    assert list(audit.rounds.census.names(BookieId("d"))) == [root.ledger_id]


async def test_the_ranges_of_a_page_begin_where_the_stream_was_truncated(audit: Audit) -> None:
    """Exactly there, within a fragment of a page: what lies below may be gone from bookies."""
    root = await audit.stream(4, 6)
    whole = [one.first async for part in parts_of(audit.store, root) for one in part.settled_ranges()]
    truncated = (await truncate_stream(audit.store, root.ledger_id, 7, writer_token="w")).value
    assert (truncated.start, truncated.start_place) == (7, place(1, 7))
    ranges = [one.first async for part in parts_of(audit.store, truncated) for one in part.settled_ranges()]
    assert ranges == [place(1, 7), *(first for first in whole if first > place(1, 7))]
    parts = StreamParts(audit.store)
    named = [one.first async for part in parts.naming(truncated, [BookieId("a")]) for one in part.settled_ranges()]
    assert named[0] == place(1, 7)


async def test_the_auditor_deletes_pages_that_no_metadata_name(audit: Audit) -> None:
    """Rules U2 and U8: those of revisions that are over, and those of deleted streams, and no other."""
    kept, gone = await audit.stream(4, 6), await audit.stream(5)
    old = page_document(kept.ledger_id, replace(kept.pages[0], token="ab"))
    new = page_document(kept.ledger_id, replace(kept.pages[0], revision=2, token="ab"))
    for name in (old, new):
        await audit.store.create_document(name, b"")
    await audit.store.delete_ledger(gone.ledger_id)
    await set_hold(audit.store, GarbageHold("a test", datetime.now(UTC)))
    await audit.round()
    everything = documents_of(kept) | documents_of(gone) | {old, new}
    assert await audit.documents() == everything, "the metadata may be incomplete"
    await audit.store.delete_document(DOCUMENT)
    await audit.round()
    assert await audit.documents() == documents_of(kept) | {new}
    assert LedgerId(gone.ledger_id) not in audit.rounds.census.names(BookieId("a"))
