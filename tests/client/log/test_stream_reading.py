"""A log that is a stream, read while it is written: which entries readers and followers get (rules V1 to V5).

The streams are written by the writers of terms, on bookies in memory that speak the real wire.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from octavo.client.arguments import Protection
from octavo.client.log.document import NO_RETENTION
from octavo.client.stream.streams import Streams
from octavo.metadata.stream_changes import SealStream
from octavo.metadata.stream_model import StreamMetadata
from octavo.metadata.update import update_stream
from octavo.protocol.entries import Digest
from octavo.protocol.errors import LogDamagedError, NoSuchEntryError, NoSuchLogError, TruncatedError, UnauthorizedError
from octavo.protocol.quorums import Quorums
from support.log_cluster import LogCluster, open_log_cluster
from support.metadata_clusters import DRIVERS
from support.waiting import WAIT_SECONDS, eventually

import octavo

THREE = Quorums(3, 3, 2)
PASSWORD = b"secret"


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[LogCluster]:
    async with open_log_cluster(DRIVERS["memory"](tmp_path), "stream") as made:
        yield made


class StreamLog:
    """A log that is a stream: a handle of a client that reads, and another client that writes terms."""

    def __init__(self, logs: LogCluster, reader: octavo.Log, streams: Streams) -> None:
        self.logs = logs
        self.reader = reader
        self.streams = streams
        self.ledger_id = reader._layout.view.document.ledger_id  # type: ignore[attr-defined]

    async def write(self, *payloads: bytes) -> int:
        """In a term of its own, which is laid to rest; gives its term."""
        writer = await self.streams.take_over(self.ledger_id, password=PASSWORD)
        await writer.add_many(payloads)
        await writer.close()
        return writer.term

    async def stored(self) -> StreamMetadata:
        """The metadata of the stream."""
        return (await self.logs.store.read_stream(self.ledger_id)).value


async def stream_log(logs: LogCluster, quorums: Quorums = THREE, **options: float) -> StreamLog:
    client = await logs.client(**options)
    protection = Protection(PASSWORD, Digest.CRC32C)
    log = await client._logs.create("orders", quorums, protection, NO_RETENTION, "stream")
    return StreamLog(logs, log, (await logs.client())._logs._access.streams)


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
                assert isinstance(entry, octavo.LogEntry)
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
    assert [entry.payload async for entry in made.reader.follow() if isinstance(entry, octavo.LogEntry)] == [b"a"]


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
