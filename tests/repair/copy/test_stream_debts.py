"""Repair pays the debts of streams with full copies, in the tail and in pages (rules I9 and G6)."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from octavo.metadata.ledger.debts import Debt, FullCopies
from octavo.metadata.stream.model import StreamFragment, StreamMetadata
from octavo.metadata.stream.pages import page_document
from octavo.metadata.updates.paging import walk_stream
from octavo.protocol.ids import LedgerId
from octavo.protocol.places import place
from octavo.repair.base.census import Seen
from octavo.repair.base.stream_parts import StreamParts
from support.clusters.repair_cluster import RepairCluster, repair_cluster
from support.metadata.paged_streams import paged
from support.metadata.stream_metadata import open_stream, stream_fragment
from support.metadata.whole_streams import on, written
from support.waiting import eventually

pytestmark = pytest.mark.usefixtures("logged")

FRAGMENTS = (
    on(1, 0, 0, "012", None),
    on(1, 5, 5, "013", place(1, 4)),
    on(3, 0, 9, "012", place(1, 8)),
    on(4, 0, 30, "023", place(3, 20)),
)
LAST = place(4, 2)


@pytest.fixture
async def cluster() -> AsyncIterator[RepairCluster]:
    async with repair_cluster("streamdebts", 4, audit_seconds=0.05, lost_seconds=600.0) as cluster:
        yield cluster


async def keep_books(cluster: RepairCluster, ledger_id: LedgerId) -> None:
    """From now on: of what is settled nothing was recorded, so all is owed."""
    current = await cluster.store.read_stream(ledger_id)
    await cluster.store.compare_and_set_stream(replace(current.value, full_copies=FullCopies.RECORDED), current.version)


async def debts(cluster: RepairCluster, ledger_id: LedgerId) -> dict[int, Debt]:
    root = (await cluster.store.read_stream(ledger_id)).value
    return {
        fragment.first_position: debt
        async for part in walk_stream(cluster.store, root)
        for fragment, debt in part.debts
    }


@pytest.mark.parametrize("pages", [(), (1, 2)])
@pytest.mark.parametrize("rest", [True, False])
async def test_debts_of_which_nothing_is_missing_are_cleared(
    cluster: RepairCluster, pages: tuple[int, ...], rest: bool
) -> None:
    stream = await written(cluster, *FRAGMENTS, last=LAST, rest=rest, pages=pages)
    await keep_books(cluster, stream)

    async def is_paid() -> bool:
        return not await debts(cluster, stream)

    await eventually(is_paid)
    recorded = {
        fragment.first_position: fragment.debt
        async for part in walk_stream(cluster.store, (await cluster.store.read_stream(stream)).value)
        for fragment in part.fragments
    }
    assert recorded.pop(30) == (None if not rest else Debt(0, -1)), "nothing is owed of a fragment that goes on"
    assert set(recorded.values()) == {Debt(0, -1)}


@pytest.mark.parametrize("pages", [(), (1, 2)])
async def test_a_debt_stays_until_the_bookie_that_was_down_has_its_copies(
    cluster: RepairCluster, pages: tuple[int, ...]
) -> None:
    """``b3`` is a member of the second fragment and of the last one."""
    stream = await written(cluster, *FRAGMENTS, last=LAST, rest=True, pages=pages)
    await cluster.stop("b3")
    await keep_books(cluster, stream)

    async def owes_what_it_cannot_say() -> bool:
        return set(await debts(cluster, stream)) == {5, 30}

    await eventually(owes_what_it_cannot_say)
    await cluster.start("b3")

    async def is_paid() -> bool:
        return not await debts(cluster, stream)

    await eventually(is_paid)


async def test_the_census_counts_debts_in_pages_until_they_are_truncated(cluster: RepairCluster) -> None:
    for name in list(cluster.members):
        await cluster.stop(name)
    stream = await paged_stream_of_which_only_a_page_owes(cluster)
    parts = StreamParts(cluster.store)
    root = (await cluster.store.read_stream(stream)).value
    assert not Seen.of(root).owes
    seen = await parts.seen(root)
    assert seen is not None
    assert seen.owes
    truncated = await parts.seen(root.truncated(5, place(1, 5)))
    assert truncated is not None
    assert not truncated.owes


async def paged_stream_of_which_only_a_page_owes(cluster: RepairCluster) -> LedgerId:
    """The first fragment owes two entries."""
    fragments: tuple[StreamFragment, ...] = (
        replace(stream_fragment(1, 0, 0), debt=Debt(place(1, 3), place(1, 4))),
        replace(stream_fragment(1, 5, 5, length_before=50), debt=Debt(0, -1)),
        stream_fragment(2, 0, 9, length_before=90),
    )
    ledger_id = await cluster.store.allocate_ledger_id()
    full: StreamMetadata = replace(open_stream(*fragments), ledger_id=ledger_id, full_copies=FullCopies.RECORDED)
    root, made = paged(full, 2)
    await cluster.store.create_document(page_document(ledger_id, made[0].reference), made[0].value)
    await cluster.store.create_stream(root)
    return ledger_id
