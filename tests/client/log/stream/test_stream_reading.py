"""A log that is a stream, read while it is written: which entries readers and followers get (rules V1 to V5).

The streams are written by the writers of terms, on bookies in memory that speak the real wire.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
from octavo.client.client import Client
from octavo.client.log.seam.access import LedgerAccess
from octavo.client.log.stream.view import StreamView
from octavo.client.options import ClientOptions
from octavo.client.read.terms import PieceMovedError
from octavo.metadata.ledger.changes import ReplaceMember
from octavo.metadata.stream.changes import SealStream
from octavo.metadata.stream.model import StreamMetadata
from octavo.metadata.updates.page_out import page_out
from octavo.metadata.updates.update import update_stream
from octavo.protocol.entries import Digest, Sealer, derive_secrets
from octavo.protocol.errors import (
    LogDamagedError,
    NoSuchEntryError,
    NoSuchLogError,
    QuorumLostError,
    TruncatedError,
    UnauthorizedError,
)
from octavo.protocol.ids import ID_MAX, BookieId, EntryId, LedgerId
from octavo.protocol.messages import Op, ReadLac
from octavo.protocol.places import place
from octavo.protocol.quorums import Quorums
from support.clusters.fake_bookie import FakeBookie
from support.clusters.log_cluster import QUICK, LogCluster, open_log_cluster
from support.inside import access_of, view_of
from support.metadata.interposed_store import InterposedStore
from support.metadata.metadata_clusters import DRIVERS
from support.waiting import WAIT_SECONDS, eventually, loop_turns

import octavo

THREE = Quorums(3, 3, 2)
PASSWORD = b"secret"
NOW_MS = 2_000_000_000_000
"""Later than the creation of every stream of these tests."""


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[LogCluster]:
    async with open_log_cluster(DRIVERS["memory"](tmp_path), "stream") as made:
        yield made


class StreamLog:
    """A log that is a stream: a handle of a client that reads, and another client that writes terms."""

    def __init__(self, logs: LogCluster, reader: octavo.Log, access: LedgerAccess) -> None:
        self.logs = logs
        self.reader = reader
        self.access = access
        """Of the client that writes."""
        self.streams = access.streams
        self.ledger_id = view_of(reader).document.ledger_id  # type: ignore[attr-defined]

    async def write(self, *payloads: bytes) -> int:
        """In a term of its own, at rest afterwards; gives its term."""
        writer = await self.streams.take_over(self.ledger_id, password=PASSWORD)
        await writer.add_many(payloads)
        await writer.close()
        return writer.term

    def seal(self, entry_id: int, payload: bytes, lac: int) -> bytes:
        """An entry as the writer of its term would seal it."""
        sealer = Sealer(self.ledger_id, Digest.CRC32C, derive_secrets(PASSWORD, self.ledger_id))
        (sealed,) = sealer.seal(
            EntryId(entry_id), [payload], last_add_confirmed=EntryId(lac), length=99, sealed_at_ms=NOW_MS
        )
        return sealed

    async def unwatching(self, **options: float) -> tuple[octavo.Log, InterposedStore]:
        """A handle of a client of its own, which is told of no change of the metadata, and its store, in which the test
        can meddle."""
        store = InterposedStore(await self.logs.metadata.open())
        store.silence("watch_stream")
        store.silence("watch_document")
        client = Client(store.face, cluster_id=self.logs.cluster_id, options=ClientOptions(**{**QUICK, **options}))
        await self.logs.stack.enter_async_context(client)
        return await client.open_log("orders", password=PASSWORD), store

    async def stored(self) -> StreamMetadata:
        """The metadata of the stream."""
        return (await self.logs.store.read_stream(self.ledger_id)).value


async def stream_log(logs: LogCluster, quorums: Quorums = THREE, **options: float) -> StreamLog:
    client = await logs.client(**options)
    sizes = quorums.ensemble_size, quorums.write_quorum, quorums.ack_quorum
    log = await client.create_log("orders", *sizes, password=PASSWORD)
    return StreamLog(logs, log, access_of(await logs.client()))


async def test_positions_are_dense_over_terms(logs: LogCluster) -> None:
    made = await stream_log(logs)
    log = made.reader
    assert (log.first_position, log.end, await log.refresh()) == (0, 0, 0)
    assert await made.write(b"a", b"b") == 2
    await made.write()
    assert await made.write(b"c") == 4
    entries = await log.read(0, 2)
    assert [(one.position, one.payload, one.term) for one in entries] == [(0, b"a", 1), (1, b"b", 1), (2, b"c", 3)]
    assert [entry.payload async for entry in log.entries(1)] == [b"b", b"c"]
    with pytest.raises(NoSuchEntryError):
        await log.read(0, 3)


async def test_an_open_term_is_read_up_to_what_is_acknowledged(logs: LogCluster) -> None:
    made = await stream_log(logs)
    await made.write(b"a")
    writer = await made.streams.take_over(made.ledger_id, password=PASSWORD)
    await writer.add_many([b"b", b"c"])
    await eventually(lambda: _reaches(made.reader, 3))
    assert [entry.payload for entry in await made.reader.read(0, 2)] == [b"a", b"b", b"c"]


async def _reaches(log: octavo.Log, stop: int) -> bool:
    return await log.refresh() >= stop


async def test_a_follower_goes_on_across_terms_and_rests(logs: LogCluster) -> None:
    made = await stream_log(logs, long_poll_seconds=0.2)
    async with aclosing(made.reader.follow()) as entries:
        seen: list[bytes] = []

        async def follow(stop: int) -> None:
            while len(seen) < stop:
                entry = await anext(entries)
                assert entry.position == len(seen)
                seen.append(entry.payload)

        await made.write(b"0", b"1")
        await asyncio.wait_for(follow(2), WAIT_SECONDS)
        following = asyncio.create_task(follow(5))
        await made.write(b"2")
        writer = await made.streams.take_over(made.ledger_id, password=PASSWORD)
        await writer.add(b"3")
        # Taken over from an open term, while the follower waits in it.
        await made.write(b"4")
        await asyncio.wait_for(following, WAIT_SECONDS)
        assert seen == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_follower_ends_when_the_stream_is_sealed(logs: LogCluster) -> None:
    made = await stream_log(logs)
    term = await made.write(b"a")
    await update_stream(logs.store, made.ledger_id, SealStream(term), writer_token="test")
    assert [entry.payload async for entry in made.reader.follow()] == [b"a"]
    assert [entry async for entry in made.reader.follow(1)] == []
    with pytest.raises(octavo.NoSuchEntryError, match="is sealed and ends at 1: there will never be a position 2"):
        await anext(made.reader.follow(2))


async def test_a_sealed_log_is_not_led_and_says_so_with_an_error_of_its_own(logs: LogCluster) -> None:
    made = await stream_log(logs)
    await made.write(b"a")
    assert await made.reader.seal() == 1
    for lead in (made.reader.lead, made.reader.take_over):
        with pytest.raises(octavo.LogSealedError, match="log orders is sealed and takes no adds any more") as refused:
            await lead()
        assert isinstance(refused.value, octavo.LedgerClosedError)
        assert not refused.value.retryable
    assert await made.reader.seal() == 1, "sealed once more"
    assert [entry.payload for entry in await made.reader.read(0, 0)] == [b"a"]


async def test_a_wrong_password_is_found_before_anything_is_asked(logs: LogCluster) -> None:
    made = await stream_log(logs)
    client = await logs.client()
    with pytest.raises(UnauthorizedError):
        await client.open_log("orders")
    assert made.reader.end == 0


async def test_truncation_is_exact_within_the_last_fragment(logs: LogCluster) -> None:
    made = await stream_log(logs)
    await made.write(b"a", b"b")
    await made.write(b"c", b"d")
    log = made.reader
    await log.refresh()
    await log.truncate(3)
    assert log.first_position == 3
    assert (await made.stored()).start == 2
    other = await (await logs.client()).open_log("orders", password=PASSWORD)
    assert (other.first_position, other.end) == (3, 4)
    assert [entry.payload async for entry in other.entries()] == [b"d"]
    for handle in (log, other):
        with pytest.raises(TruncatedError) as refused:
            await handle.read(2, 3)
        assert refused.value.first_position == 3


async def test_a_follower_below_a_truncation_by_another_client_is_told(logs: LogCluster) -> None:
    made = await stream_log(logs)
    for payload in (b"a", b"b", b"c"):
        await made.write(payload)
    await made.reader.refresh()
    other = await (await logs.client()).open_log("orders", password=PASSWORD)
    async with aclosing(other.follow()) as entries:
        assert (await anext(entries)) is not None
        await made.reader.truncate(2)
        await eventually(lambda: other.first_position == 2)
        with pytest.raises(TruncatedError):
            await anext(entries)


async def test_a_deleted_log_ends_its_followers(logs: LogCluster) -> None:
    made = await stream_log(logs)
    await made.write(b"a")
    async with aclosing(made.reader.follow()) as entries:
        await anext(entries)
        waiting = asyncio.ensure_future(anext(entries))
        await (await logs.client()).delete_log("orders")
        with pytest.raises(NoSuchLogError):
            await asyncio.wait_for(waiting, WAIT_SECONDS)
    assert not await logs.ledgers()


async def test_a_stream_deleted_by_hand_is_damage(logs: LogCluster) -> None:
    made = await stream_log(logs)
    await made.write(b"a")
    await logs.store.delete_ledger(made.ledger_id)
    with pytest.raises(LogDamagedError):
        await made.reader.refresh()
    with pytest.raises(LogDamagedError):
        await (await logs.client()).open_log("orders", password=PASSWORD)


# --- what lies above the end of a term --------------------------------------------------------------------------------


def ledger_of(bookie: FakeBookie, made: StreamLog) -> dict[int, bytes]:
    return bookie.ledger(made.ledger_id).entries


async def test_an_entry_left_on_a_bookie_is_not_shown_when_the_next_term_begins(logs: LogCluster) -> None:
    """The first writer sends A to one bookie and is taken over: its term ends empty. A reader whose metadata are older
    hears the LAC that the next term has before its first acknowledgement. As a place that would be one of the old term,
    above A."""
    made = await stream_log(logs)
    first = await made.streams.take_over(made.ledger_id, password=PASSWORD)
    reader, store = await made.unwatching()
    left = logs.bookies[0]
    left.put(made.ledger_id, [made.seal(place(first.term, 0), b"A", place(first.term, 0) - 1)])
    old = await logs.store.read_stream(made.ledger_id)

    async def stale(_ledger_id: int) -> object:
        return old

    store.interpose("read_stream", stale)
    second = place(first.term + 1, 0)
    for bookie in logs.bookies:
        bookie.put(made.ledger_id, [made.seal(second, b"B", second - 1)])
    assert await reader.refresh() == 0
    with pytest.raises(NoSuchEntryError):
        await reader.read(0, 0)
    # And neither does one of the next term that acknowledges something.
    for bookie in logs.bookies:
        bookie.put(made.ledger_id, [made.seal(second + 1, b"C", second)])
    assert await reader.refresh() == 0


async def test_what_was_left_above_the_end_of_a_term_is_never_shown(logs: LogCluster) -> None:
    made = await stream_log(logs)
    writer = await made.streams.take_over(made.ledger_id, password=PASSWORD)
    await writer.add(b"a")
    await writer.close()
    dirty = [made.seal(place(writer.term, n), b"dirty", place(writer.term, n) - 1) for n in (1, 2)]
    for bookie in logs.bookies:
        bookie.put(made.ledger_id, dirty)
    assert await made.write(b"b", b"c") == writer.term + 1
    assert await made.reader.refresh() == 3
    assert [entry.payload for entry in await made.reader.read(0, 2)] == [b"a", b"b", b"c"]
    followed = [await anext(entries) for entries in [made.reader.follow(1)] for _ in range(2)]
    assert [entry.payload for entry in followed] == [b"b", b"c"]


async def test_a_follower_gets_nothing_that_a_bookie_sends_along_from_another_term(logs: LogCluster) -> None:
    """Bookies send no entries of other terms along with a LAC. A follower does not depend on it."""
    made = await stream_log(logs)
    writer = await made.streams.take_over(made.ledger_id, password=PASSWORD)
    await writer.add(b"a")
    reader, store = await made.unwatching(long_poll_seconds=0.2, request_timeout_seconds=0.2)
    old = await logs.store.read_stream(made.ledger_id)
    reads = 0

    async def stale(_ledger_id: int) -> object:
        nonlocal reads
        reads += 1
        return old

    store.interpose("read_stream", stale)
    later = place(writer.term + 1, 0)
    evidence = made.seal(later, b"later", later - 1)
    dirty = made.seal(place(writer.term, 1), b"dirty", place(writer.term, 0))
    async with aclosing(reader.follow()) as entries:
        first = await asyncio.wait_for(anext(entries), WAIT_SECONDS)
        assert isinstance(first, octavo.LogEntry)
        assert first.payload == b"a"
        for bookie in logs.bookies:
            bookie.alter(
                Op.READ_LAC,
                lambda reply: replace(reply, explicit=None, entry=evidence, entries=[dirty, evidence], fenced=False),
            )
        waiting = asyncio.ensure_future(anext(entries))
        await eventually(lambda: any(bookie.long_polls for bookie in logs.bookies))
        before = reads
        for bookie in logs.bookies:
            bookie.put(made.ledger_id, [])  # ends its long polls
        await eventually(lambda: reads > before)
        assert not waiting.done()
        # The metadata of now tell where the term ends, and what follows.
        for bookie in logs.bookies:
            bookie.alter(Op.READ_LAC, lambda reply: reply)
        store.interpose("read_stream", store.real.read_stream)
        await made.write(b"b")
        second = await asyncio.wait_for(waiting, WAIT_SECONDS)
        assert isinstance(second, octavo.LogEntry)
        assert second.payload == b"b"


async def test_a_lac_of_a_later_term_makes_a_reader_read_the_metadata(logs: LogCluster) -> None:
    """A reader begins in a term that was taken over. What a bookie tells sends it to the metadata of now."""
    made = await stream_log(logs)
    first = await made.streams.take_over(made.ledger_id, password=PASSWORD)
    await first.add(b"a")
    handle, _store = await made.unwatching()
    view = stream_view(handle)
    place_in_first = await view.locate(1)
    assert place_in_first is not None
    second = await made.streams.take_over(made.ledger_id, password=PASSWORD)
    await second.add_many([b"b", b"c"])
    fresh = StreamView(made.access, view.document, view.root, PASSWORD)
    async with fresh.reading(place_in_first) as reader:
        assert reader.ledger_closed
        assert reader.last_add_confirmed == place(first.term, 0)
    assert fresh.root.value.term == second.term
    await fresh.close()


async def test_a_reader_that_lags_behind_its_fragments_is_told_that_they_have_moved(logs: LogCluster) -> None:
    made = await stream_log(logs)
    writer = await made.streams.take_over(made.ledger_id, password=PASSWORD)
    await writer.add(b"0")
    reader, _store = await made.unwatching()
    view = stream_view(reader)
    growing = await view.locate(0)
    assert growing is not None
    for n in range(1, 6):
        await writer.roll()
        await writer.add(b"%d" % n)
    await page_out(logs.store, made.ledger_id, writer_token="test")
    assert (await made.stored()).fragments[0].first_position > 0
    async with view.reading(growing) as behind:
        await behind.refresh_last_add_confirmed()
        with pytest.raises(PieceMovedError):
            await behind.read(place(writer.term, 0), place(writer.term, 2))
    await reader.refresh()
    assert [entry.payload for entry in await reader.read(0, 4)] == [b"0", b"1", b"2", b"3", b"4"]


def stream_view(log: octavo.Log) -> StreamView:
    view = view_of(log)
    assert isinstance(view, StreamView)
    return view


async def test_long_polls_name_the_term_that_is_followed(logs: LogCluster) -> None:
    made = await stream_log(logs)
    writer = await made.streams.take_over(made.ledger_id, password=PASSWORD)
    await writer.add(b"a")
    async with aclosing(made.reader.follow()) as entries:
        await asyncio.wait_for(anext(entries), WAIT_SECONDS)
        waiting = asyncio.ensure_future(anext(entries))
        await eventually(lambda: any(bookie.long_polls for bookie in logs.bookies))
        asked = [one for bookie in logs.bookies for one in bookie.requests if isinstance(one, ReadLac)]
        assert {one.term for one in asked if one.wait_milliseconds} == {writer.term}
        waiting.cancel()
        await asyncio.wait([waiting])


@pytest.mark.parametrize("deaf", [False, True])
async def test_a_follower_without_a_watch_is_told_by_fences_and_silence(logs: LogCluster, *, deaf: bool) -> None:
    """A watch may be late. The bookies that a takeover fences answer long polls; if they do not, a follower reads the
    metadata, too."""
    made = await stream_log(logs)
    writer = await made.streams.take_over(made.ledger_id, password=PASSWORD)
    await writer.add(b"a")
    reader, store = await made.unwatching(long_poll_seconds=0.1, request_timeout_seconds=0.1)
    async with aclosing(reader.follow()) as entries:
        await asyncio.wait_for(anext(entries), WAIT_SECONDS)
        waiting = asyncio.ensure_future(anext(entries))
        if deaf:
            store.make_unavailable("read_stream")
        await made.write(b"b")
        if deaf:
            for bookie in logs.bookies:
                bookie.drop(Op.READ_LAC)
            store.interpose("read_stream", store.real.read_stream)
        entry = await asyncio.wait_for(waiting, WAIT_SECONDS)
        assert (entry.position, entry.payload) == (1, b"b")


# --- what is missing --------------------------------------------------------------------------------------------------


async def test_an_absent_entry_is_looked_for_where_repair_has_put_it(logs: LogCluster) -> None:
    made = await stream_log(logs)
    term = await made.write(b"a")
    reader, _ = await made.unwatching()
    assert await reader.refresh() == 1
    spare = FakeBookie("spare", cluster_id=logs.cluster_id)
    await logs.stack.enter_async_context(spare)
    lease = await logs.store.register_bookie(spare.registration())
    first = place(term, 0)
    (sealed,) = {ledger_of(bookie, made)[first] for bookie in logs.bookies}
    spare.put(made.ledger_id, [sealed])
    for bookie in logs.bookies:
        bookie.forget(made.ledger_id, first)
    stream = await made.stored()
    repair = ReplaceMember(first, first, 0, stream.fragments[0].bookies[0], BookieId("spare"))
    await update_stream(logs.store, made.ledger_id, repair, writer_token="repair")
    assert [entry.payload for entry in await reader.read(0, 0)] == [b"a"]
    await lease.release()


async def test_an_entry_that_no_bookie_has_is_named_after_the_metadata_were_read_again(logs: LogCluster) -> None:
    made = await stream_log(logs)
    term = await made.write(b"a")
    reader, store = await made.unwatching(read_quorum_timeout_seconds=0.1)
    await reader.refresh()
    for bookie in logs.bookies:
        bookie.forget(made.ledger_id, place(term, 0))
    reads = []
    real = store.real.read_stream

    async def counted(ledger_id: LedgerId) -> object:
        reads.append(ledger_id)
        return await real(ledger_id)

    store.interpose("read_stream", counted)
    with pytest.raises(QuorumLostError):
        await reader.read(0, 0)
    assert reads


async def test_a_reader_with_older_metadata_is_told_of_a_truncation(logs: LogCluster) -> None:
    made = await stream_log(logs)
    for payload in (b"a", b"b", b"c"):
        term = await made.write(payload)
    reader, _store = await made.unwatching()
    await reader.refresh()
    await made.reader.refresh()
    await made.reader.truncate(2)
    for bookie in logs.bookies:
        for below in (term - 2, term - 1):
            bookie.forget(made.ledger_id, place(below, 0))
    with pytest.raises(TruncatedError) as refused:
        await reader.read(0, 2)
    assert refused.value.first_position == 2


# --- pages ------------------------------------------------------------------------------------------------------------


async def test_positions_in_pages_are_read_followed_and_truncated(logs: LogCluster) -> None:
    made = await stream_log(logs)
    payloads = [b"%d" % n for n in range(12)]
    for payload in payloads[:8]:
        await made.write(payload)
    await page_out(logs.store, made.ledger_id, writer_token="test")
    for payload in payloads[8:]:
        await made.write(payload)
    await page_out(logs.store, made.ledger_id, writer_token="test")
    stream = await made.stored()
    assert len(stream.pages) >= 1
    assert len(stream.fragments) < 12
    log = await (await logs.client()).open_log("orders", password=PASSWORD)
    assert (log.first_position, log.end) == (0, 12)
    assert [entry.payload async for entry in log.entries()] == payloads
    assert [entry.payload for entry in await log.read(3, 3)] == [b"3"]
    async with aclosing(log.follow()) as entries:
        assert [(await anext(entries)).payload for _ in range(12)] == payloads
    status = await log.status()
    assert status.paged_segments + len(status.segments) == 12
    await log.truncate(5)
    assert [entry.payload async for entry in log.entries()] == payloads[5:]
    with pytest.raises(TruncatedError):
        await log.read(4, 6)


async def test_a_reader_goes_on_when_its_fragments_move_into_a_page(logs: LogCluster) -> None:
    made = await stream_log(logs)
    payloads = [b"%d" % n for n in range(8)]
    for payload in payloads:
        await made.write(payload)
    reader, _store = await made.unwatching(read_ahead_requests=1)
    await reader.refresh()
    async with aclosing(reader.entries()) as entries:
        seen = [(await anext(entries)).payload]
        await page_out(logs.store, made.ledger_id, writer_token="test")
        stream = await made.stored()
        paged = stream.fragments[0].first_position
        assert paged > 2
        # What is left in the old page's place must be read through the metadata of now.
        seen += [entry.payload async for entry in entries]
    assert seen == payloads


async def test_a_page_that_was_replaced_is_looked_for_in_newer_metadata(logs: LogCluster) -> None:
    made = await stream_log(logs)
    payloads = [b"%d" % n for n in range(9)]
    for payload in payloads[:6]:
        await made.write(payload)
    await page_out(logs.store, made.ledger_id, writer_token="test")
    reader, _store = await made.unwatching()
    for payload in payloads[6:]:
        await made.write(payload)
    # The new page takes the place of the one that the reader's metadata name.
    await page_out(logs.store, made.ledger_id, writer_token="test")
    assert reader.end == 6
    assert [entry.payload for entry in await reader.read(0, 5)] == payloads[:6]


async def test_what_became_of_a_leader_is_told_from_pages(logs: LogCluster) -> None:
    made = await stream_log(logs)
    for payload in (b"a", b"b", b"c", b"d"):
        await made.write(payload)
    await page_out(logs.store, made.ledger_id, writer_token="test")
    await made.reader.refresh()
    view = view_of(made.reader)
    assert [await view.end_of_term(term) for term in range(5)] == [0, 1, 2, 3, None]
    await made.reader.truncate(3)
    assert [await view.end_of_term(term) for term in range(5)] == [None, None, None, None, None]


@pytest.mark.parametrize("above", [0, 2**35 - 2, 2**62])
async def test_a_follower_of_a_position_far_above_the_end_waits_and_is_told_when_the_log_is_sealed(
    logs: LogCluster, above: int
) -> None:
    """Its entry would have an id that no entry can have, if the present term had it."""
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add(b"0")
        position = ID_MAX - above
        async with aclosing(log.follow(position)) as entries:
            waiting = asyncio.ensure_future(anext(entries))
            await loop_turns(50)
            assert not waiting.done()
            with pytest.raises(octavo.NoSuchEntryError):
                await log.read(position, position)
            other = await (await logs.client()).open_log("orders")
            await other.seal()
            with pytest.raises(octavo.NoSuchEntryError, match="is sealed and ends at 1"):
                await asyncio.wait_for(waiting, WAIT_SECONDS)


async def test_a_bulk_reader_is_told_no_position_whose_entry_has_no_id(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add(b"0")
        async with log.reader_at(0) as (extent, reader):
            assert extent.last - extent.base == ID_MAX
            batches = reader.batches(extent.first - extent.base, extent.last - extent.base, confirmed=True)
            await batches.aclose()
