"""Repair meets streams among the ledgers: it counts them, harms none, and says what it does not do for them
(rules A5, A10, C2, D3 and
T12)."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from octavo.metadata import MetadataStore
from octavo.metadata.garbage_hold import DOCUMENT, GarbageHold, set_hold
from octavo.protocol.errors import BookieInDoubtError
from octavo.protocol.ids import BookieId, LedgerId
from octavo.protocol.places import place
from octavo.repair import operators
from octavo.repair.checks import OperatorChecks
from octavo.repair.documents import blocked_name, decode_blocked
from octavo.repair.operators import find_unfinished
from octavo.repair.planning import BlockedClass
from support.ledgers import LedgerScript
from support.repair_cluster import RepairCluster, repair_cluster
from support.stream_metadata import open_stream, stream_fragment
from support.waiting import eventually

pytestmark = pytest.mark.usefixtures("logged")


async def new_stream(store: MetadataStore, *members: str) -> LedgerId:
    """A stream in its second term, both of them on these bookies."""
    names = tuple(map(BookieId, members))
    fragments = (stream_fragment(1, 0, 0), stream_fragment(2, 0, 5, length_before=500))
    ledger_id = await store.allocate_ledger_id()
    named = tuple(replace(one, bookies=names, write_quorum=len(names), ack_quorum=1) for one in fragments)
    await store.create_stream(replace(open_stream(*named), ledger_id=ledger_id))
    return ledger_id


async def is_healed(cluster: RepairCluster, ledgers: list[int], gone: str) -> bool:
    return all([gone not in await cluster.names(one) and await cluster.is_whole(one) for one in ledgers])


async def test_ledgers_are_repaired_beside_a_stream_that_is_counted_and_left_as_it_is() -> None:
    async with repair_cluster("lost-beside-stream", 4) as cluster:
        client = await cluster.client()
        before = await new_stream(cluster.store, "b0", "b1", "b2")
        ledgers = [await cluster.ledger(client, 10) for _ in range(3)]
        behind = await new_stream(cluster.store, "b0", "b1", "b3")
        untouched = await new_stream(cluster.store, "b0", "b2", "b3")
        stored = [await cluster.store.read_stream(one) for one in (before, behind, untouched)]
        await cluster.stop("b1")
        await eventually(lambda: is_healed(cluster, ledgers, "b1"))

        async def said() -> bool:
            summary = await cluster.summary()
            blocked = [] if summary is None else [one for one in summary.blocked if one.ledger_id in {before, behind}]
            assert all((one.kind, one.bookies) == (BlockedClass.OPEN, ("b1",)) for one in blocked)
            assert all("does not make copies of streams yet" in one.reason for one in blocked)
            return len(blocked) == 2 and summary is not None and summary.ledgers == 6

        await eventually(said)
        assert [await cluster.store.read_stream(one) for one in (before, behind, untouched)] == stored
        assert await find_unfinished(cluster.store, await cluster.states()) == [before, behind]
        for ledger_id in ledgers:
            await cluster.check_entries(client, ledger_id, 10)


async def test_a_bookie_with_new_disks_stays_in_doubt_about_a_stream_and_becomes_sure_of_ledgers() -> None:
    async with repair_cluster("new-disks-stream", 3) as cluster:
        client = await cluster.client()
        first = await cluster.ledger(client, 10)
        stream = await new_stream(cluster.store, "b0", "b1", "b2")
        second = await cluster.ledger(client, 10)
        await cluster.stop("b2")
        await cluster.replace_disks("b2")
        bookie = cluster.bookie("b2")

        async def almost_sure() -> bool:
            doubt = bookie.service.storage.doubt
            assert doubt is not None
            return doubt.sure_below == doubt.stop and dict(doubt.exceptions) == {stream: 0}

        await eventually(almost_sure)
        doubt = bookie.service.storage.doubt
        assert doubt is not None
        assert doubt.term_floors == {stream: 2}
        assert await cluster.is_whole(first)
        assert await cluster.is_whole(second)

        async def said() -> bool:
            found = await cluster.store.read_document(blocked_name(BookieId("b2")))
            return found is not None and any(
                one.ledger_id == stream and "stream" in one.reason for one in decode_blocked(found.value, "blocked")
            )

        await eventually(said)
        await client.delete_ledger(stream)

        async def sure() -> bool:
            return bookie.service.storage.doubt is None

        await eventually(sure)


async def test_a_check_never_calls_a_stream_whole() -> None:
    async with repair_cluster("stream-checked", 1) as cluster:
        stream = await new_stream(cluster.store, "b0")
        await operators.ask_for_checks(cluster.store, [stream], now_ms=5)
        checks = OperatorChecks(cluster.store)
        assert await checks.new_ones([BookieId("b0")]) == []
        await checks.store_results()
        assert await operators.take_checked(cluster.store, [stream]) == {stream: True}


async def test_a_bookie_that_a_stream_names_is_not_forgotten() -> None:
    async with repair_cluster("stream-retired", 2) as cluster:
        stream = await new_stream(cluster.store, "b0", "b1")
        named = [one async for one in operators.ledgers_naming(cluster.store, BookieId("b1"), count=2)]
        assert named == [stream]


async def add_of_term(cluster: RepairCluster, name: str, stream: int, term: int) -> str:
    script = LedgerScript(stream)
    writer = cluster.bookie(name).service.storage.writer
    try:
        await writer.add(script.ledger_id, script.key, [script.entry(place(term, 0))], recovery=False, term=term)
    except BookieInDoubtError:
        return "doubt"
    return "taken"


@pytest.mark.parametrize("earlier_version", [False, True])
async def test_a_bookie_with_new_disks_serves_the_terms_that_are_opened_after_it_has_lost_them(
    earlier_version: bool,
) -> None:
    """Rule T12: as soon as its scan has read the term, and also once it is started again."""
    async with repair_cluster("new-disks-floor", 2) as cluster:
        stream = await new_stream(cluster.store, "b0", "b1")
        restored = await new_stream(cluster.store, "b0", "b1")
        known = await cluster.store.read_stream(restored)
        await cluster.store.compare_and_set_stream(known.value.restored(1000), known.version)
        await cluster.stop("b1")
        await set_hold(cluster.store, GarbageHold("restored", datetime(2026, 1, 1, tzinfo=UTC)))
        await cluster.replace_disks("b1")

        async def waits() -> bool:
            return cluster.members["b1"].agents[-1].waits_because is not None

        await eventually(waits)
        assert await add_of_term(cluster, "b1", stream, 3) == "doubt", "the metadata may be older than the data"
        storage = cluster.bookie("b1").service.storage
        assert storage.doubt is not None
        if earlier_version:  # it knows of which ledgers it is unsure, and no floors
            await storage.narrow_doubt(storage.doubt.stop, {stream: 0, restored: 0})
        await cluster.store.delete_document(DOCUMENT)

        async def known_floors() -> bool:
            doubt = cluster.bookie("b1").service.storage.doubt
            return doubt is not None and doubt.term_floors == {stream: 2, restored: 1002}

        await eventually(known_floors)
        for restart in (False, True):
            if restart:
                await cluster.stop("b1")
                await cluster.start("b1")
            assert [await add_of_term(cluster, "b1", stream, term) for term in (1, 2, 3)] == ["doubt", "doubt", "taken"]
            outcomes = [await add_of_term(cluster, "b1", restored, term) for term in (3, 1002, 1003)]
            assert outcomes == ["doubt", "doubt", "taken"]
            assert await known_floors()
