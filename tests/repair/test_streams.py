"""Repair of streams in whole bookies: their settled fragments as those of ledgers, their last one not (rules A5, A10,
C1 to C5, D3 and T12)."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from octavo.metadata import MetadataStore, update_stream
from octavo.metadata.stream.changes import BeginTakeover, Truncate
from octavo.metadata.stream.model import StreamFragment, StreamMetadata, StreamState
from octavo.metadata.stream.pages import PAGES_PREFIX, page_document
from octavo.metadata.updates.garbage_hold import DOCUMENT, GarbageHold, set_hold
from octavo.metadata.updates.paging import walk_stream
from octavo.protocol.errors import BookieInDoubtError
from octavo.protocol.held_entries import Doubt
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.places import place
from octavo.repair.base.documents import blocked_name, decode_blocked
from octavo.repair.base.planning import BlockedClass
from octavo.repair.operate import operators
from octavo.repair.operate.operators import find_unfinished
from support.clusters.ledgers import LedgerScript, ids_of
from support.clusters.repair_cluster import RepairCluster, repair_cluster
from support.metadata.stream_metadata import open_stream, stream_fragment
from support.metadata.whole_streams import length_up_to, on, written
from support.waiting import eventually

pytestmark = pytest.mark.usefixtures("logged")


async def new_stream(store: MetadataStore, *members: str) -> LedgerId:
    """A stream in its second term, both of them on these bookies, and none of its entries."""
    names = tuple(map(BookieId, members))
    fragments = (stream_fragment(1, 0, 0), stream_fragment(2, 0, 5, length_before=500))
    ledger_id = await store.allocate_ledger_id()
    named = tuple(replace(one, bookies=names, write_quorum=len(names), ack_quorum=1) for one in fragments)
    await store.create_stream(replace(open_stream(*named), ledger_id=ledger_id))
    return ledger_id


async def all_fragments(store: MetadataStore, ledger_id: LedgerId) -> list[StreamFragment]:
    return [
        one async for part in walk_stream(store, (await store.read_stream(ledger_id)).value) for one in part.fragments
    ]


TERMS = (
    on(1, 0, 0, "012", None),
    on(1, 5, 5, "013", place(1, 4)),
    on(3, 0, 9, "0124", place(1, 8), quorum=2),
    on(4, 0, 30, "023", place(3, 20)),
)
"""Two fragments of one term, an empty term, a term that is striped, and a last fragment."""
LAST = place(4, 2)


async def without(cluster: RepairCluster, stream: int, gone: str) -> bool:
    return gone not in await cluster.names(stream) and await cluster.is_whole(stream)


def with_names_of(known: StreamMetadata, now: StreamMetadata) -> StreamMetadata:
    """The first, with the bookies and the token of the second: repair changes nothing else."""
    named = zip(known.fragments, now.fragments, strict=True)
    fragments = tuple(replace(one, bookies=two.bookies) for one, two in named)
    return replace(known, fragments=fragments, writer_token=now.writer_token)


async def test_copies_of_a_stream_come_back_on_other_bookies_and_nothing_else_changes() -> None:
    """Rules C1 to C5: in settled fragments of all terms, each with its own quorums, of an open stream and of one at
    rest; truncated positions are not copied."""
    async with repair_cluster("stream-healed", 5) as cluster:
        opened = await written(cluster, *TERMS, last=LAST)
        resting = await written(cluster, *TERMS[:2], on(3, 0, 9, "103", place(1, 8)), last=place(3, 7), rest=True)
        empty = await written(
            cluster, *TERMS[:2], on(3, 0, 9, "013", place(1, 8)), last=place(3, 0) - 1, start=7, rest=True
        )
        streams = (opened, resting, empty)
        before = {one: (await cluster.store.read_stream(one)).value for one in streams}
        for one in streams:
            assert await cluster.is_whole(one)
        await cluster.stop("b1")
        for one in streams:
            await eventually(partial(without, cluster, one, "b1"))
            now = (await cluster.store.read_stream(one)).value
            assert now == with_names_of(before[one], now)
            for was, fragment in zip(before[one].fragments, now.fragments, strict=True):
                pairs = [pair for pair in zip(was.bookies, fragment.bookies, strict=True) if pair[0] != pair[1]]
                assert [old for old, _ in pairs] == ["b1"] * ("b1" in was.bookies)
        assert before[empty].fragments[0].first_entry_id == place(1, 5)
        (name,) = await cluster.names(empty) - {str(one) for one in before[empty].members}
        reader = cluster.bookie(name).service.storage.reader
        held = await reader.read(empty, place(1, 5), place(1, 9), entries_max=9, bytes_max=99_999)
        assert ids_of(held.entries) == [place(1, 7), place(1, 8)]

        async def quiet() -> bool:
            summary = await cluster.summary()
            return summary is not None and summary.is_quiet and summary.ledgers == 3

        await eventually(quiet)
        assert await find_unfinished(cluster.store, await cluster.states()) == []


async def test_copies_of_fragments_in_pages_come_back_and_other_pages_are_named() -> None:
    """Rules C1 to C5 and U2: page by page, also where the stream begins within a page."""
    async with repair_cluster("stream-paged", 5) as cluster:
        opened = await written(cluster, *TERMS, last=LAST, pages=(2, 1))
        truncated = await written(cluster, *TERMS, last=LAST, start=2, pages=(3,))
        closed = await written(cluster, *TERMS[:2], on(3, 0, 9, "023", place(1, 8)), last=place(3, 7), rest=True,
                               pages=(1, 1))  # fmt: skip
        streams = (opened, truncated, closed)
        before = {one: await all_fragments(cluster.store, one) for one in streams}
        roots = {one: (await cluster.store.read_stream(one)).value for one in streams}
        for one in streams:
            assert await cluster.is_whole(one)
        assert "b1" not in roots[closed].members, "only pages name it"
        await cluster.stop("b1")
        for one in streams:
            await eventually(partial(without, cluster, one, "b1"))
            now = await all_fragments(cluster.store, one)
            assert [replace(two, bookies=was.bookies) for was, two in zip(before[one], now, strict=True)] == before[one]
            root = (await cluster.store.read_stream(one)).value
            assert root.revision > roots[one].revision
            assert (root.start_place, root.state) == (roots[one].start_place, roots[one].state)
            assert [page.first_position for page in root.pages] == [page.first_position for page in roots[one].pages]

        async def swept() -> bool:
            left = {name async for name in cluster.store.list_documents(PAGES_PREFIX)}
            now = [(await cluster.store.read_stream(one)).value for one in streams]
            return left == {page_document(root.ledger_id, page) for root in now for page in root.pages}

        await eventually(swept)

        async def quiet() -> bool:
            summary = await cluster.summary()
            return summary is not None and summary.is_quiet and summary.ledgers == 3

        await eventually(quiet)
        assert await find_unfinished(cluster.store, await cluster.states()) == []


async def test_a_bookie_with_new_disks_gets_what_pages_say_it_should_hold() -> None:
    """Rule D3: and is not sure of anything before."""
    async with repair_cluster("stream-paged-refilled", 4) as cluster:
        resting = await written(cluster, *TERMS[:2], on(3, 0, 9, "023", place(1, 8)), last=place(3, 7), rest=True,
                                pages=(2,))  # fmt: skip
        await cluster.stop("b1")
        await cluster.replace_disks("b1")

        async def sure() -> bool:
            return cluster.bookie("b1").service.storage.doubt is None

        await eventually(sure)
        assert await cluster.is_whole(resting)
        assert "b1" in await cluster.names(resting)


async def test_repair_keeps_what_others_change_meanwhile_and_misses_nothing_that_is_truncated() -> None:
    """Rule C5."""
    async with repair_cluster("stream-truncated", 5) as cluster:
        stream = await written(cluster, *TERMS, last=LAST)
        await cluster.stop("b1")
        for before in range(1, 9):
            await update_stream(cluster.store, stream, Truncate(before), writer_token="writer")
            if before == 4:
                await update_stream(cluster.store, stream, BeginTakeover(4), writer_token="next")
            await asyncio.sleep(0)
        await eventually(partial(without, cluster, stream, "b1"))
        found = (await cluster.store.read_stream(stream)).value
        assert (found.start, found.state, len(found.fragments)) == (8, StreamState.IN_RECOVERY, 3)


async def test_the_last_fragment_of_an_open_stream_is_left_to_its_writer() -> None:
    """Rule C2: what lies before it is repaired at once; then the reason is shown, until the stream is at rest."""
    async with repair_cluster("stream-open", 4, open_seconds=0.0) as cluster:
        stream = await written(cluster, TERMS[0], on(2, 0, 5, "123", place(1, 4)), last=place(2, 3))
        ledger = await cluster.ledger(await cluster.client(), 10)
        await cluster.stop("b1")

        async def said() -> bool:
            summary = await cluster.summary()
            blocked = [] if summary is None else [one for one in summary.blocked if one.ledger_id == stream]
            first = (await cluster.store.read_stream(stream)).value.fragments[0]
            return "b1" not in first.bookies and any(
                one.kind is BlockedClass.OPEN and one.first == place(2, 0) and "the next takeover" in one.reason
                for one in blocked
            )

        await eventually(said)
        known = await cluster.store.read_stream(stream)
        assert known.value.last_fragment.bookies == ("b1", "b2", "b3")
        await cluster.store.compare_and_set_stream(
            known.value.at_rest(EntryId(place(2, 3)), length_up_to(place(2, 3))), known.version
        )
        await eventually(lambda: without(cluster, stream, "b1"))
        await eventually(lambda: without(cluster, ledger, "b1"))


async def test_an_abandoned_stream_is_laid_to_rest_and_then_repaired() -> None:
    """Rule O3: before one more loss would make its end unknowable; its older fragments may lie in pages."""
    async with repair_cluster("stream-abandoned", 4, open_seconds=0.3) as cluster:
        fragments = (TERMS[0], on(2, 0, 5, "123", place(1, 4)))
        stream = await written(cluster, *fragments, last=place(2, 3), pages=(1,), password=b"")
        locked = await written(cluster, *fragments, last=place(2, 3), password=b"not known to repair")
        await cluster.stop("b1")

        async def rests() -> bool:
            return (await cluster.store.read_stream(stream)).value.state is StreamState.AT_REST

        await eventually(rests)
        found = (await cluster.store.read_stream(stream)).value
        assert (found.term, found.last_entry_id, found.length) == (2, place(2, 3), length_up_to(place(2, 3)))
        assert found.fenced_by.startswith("octavo repair, bookie b")
        await eventually(partial(without, cluster, stream, "b1"))
        assert (await cluster.store.read_stream(locked)).value.state is StreamState.OPEN


async def test_a_bookie_with_new_disks_gets_its_copies_of_streams_and_is_sure_of_settled_terms() -> None:
    """Rules D3 and T12: of an open stream only below its last fragment, until a later term is opened."""
    async with repair_cluster("stream-refilled", 4) as cluster:
        opened = await written(cluster, TERMS[0], on(2, 0, 5, "123", place(1, 4)), last=place(2, 3))
        elsewhere = await written(cluster, TERMS[0], on(2, 0, 5, "023", place(1, 4)), last=place(2, 3))
        resting = await written(cluster, *TERMS[:2], last=place(1, 9), rest=True)
        script = LedgerScript(opened)
        later = script.entry(place(3, 9), lac=place(3, 8))
        late = cluster.bookie("b2").service.storage.writer
        await late.add(opened, script.key, [later], recovery=True, term=3)  # of a term that was never opened
        await cluster.stop("b1")
        await cluster.replace_disks("b1")

        def doubt() -> Doubt | None:
            return cluster.bookie("b1").service.storage.doubt

        async def almost_sure() -> bool:
            now = doubt()
            return now is not None and now.exceptions == {opened: place(2, 0), elsewhere: place(2, 0)}

        await eventually(almost_sure)
        for one in (opened, elsewhere, resting):
            assert await cluster.is_whole(one)
        now = doubt()
        assert now is not None
        assert now.term_floors == {opened: 2, elsewhere: 2, resting: 1}
        reader = cluster.bookie("b1").service.storage.reader
        copied = await reader.read(opened, place(2, 0), place(3, 99), entries_max=99, bytes_max=99_999)
        assert ids_of(copied.entries) == [place(2, 0), place(2, 1), place(2, 2)], "up to the LAC of its term (rule O1)"
        found = await cluster.store.read_document(blocked_name(BookieId("b1")))
        assert found is not None
        assert all("stream" in one.reason for one in decode_blocked(found.value, "blocked"))
        for stream in (opened, elsewhere):
            known = await cluster.store.read_stream(stream)
            ended = known.value.at_rest(EntryId(place(2, 3)), length_up_to(place(2, 3)))
            await cluster.store.compare_and_set_stream(
                ended.with_next_term("next", known.value.last_fragment), known.version
            )

        async def sure() -> bool:
            return doubt() is None

        await eventually(sure)
        assert await cluster.is_whole(opened)
        assert await add_of_term(cluster, "b1", opened, 2) == "doubt"
        assert await add_of_term(cluster, "b1", opened, 3) == "taken"


async def test_a_check_of_a_stream_finds_what_a_member_lacks_and_damage_is_mended() -> None:
    async with repair_cluster("stream-checked", 4) as cluster:
        stream = await written(cluster, *TERMS[:2], last=place(1, 9), rest=True)
        (position,) = [at for at, name in enumerate(TERMS[0].bookies) if name == "b0"]
        assert position == 0
        await cluster.bookie("b0").service.storage.checkpoint()
        filesystem = cluster.members["b0"].filesystem
        wanted = LedgerScript(stream).payload_of(place(1, 3))
        places = [(path, filesystem.content(path).find(wanted)) for path in filesystem.files(Path("/b0/entries"))]
        (path, offset), *_ = [one for one in places if one[1] >= 0]
        filesystem.damage(path, offset)
        await operators.ask_for_checks(cluster.store, [stream], now_ms=5)

        async def checked() -> bool:
            return await operators.take_checked(cluster.store, [stream]) == {stream: False}

        await eventually(checked)
        assert await cluster.is_whole(stream)


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
