"""Logs with keys on bookies: an entry is added once, by one client or by several, and found by its key (rule P21)."""

# ruff: noqa: SIM117 - the log of a client, and who leads it, are two steps

import asyncio

import pytest
from octavo.client.log.documents.formats import STREAM_FORMAT, STREAM_FORMAT_WITH_KEYS
from octavo.client.log.documents.names import list_document
from octavo.client.log.documents.stream import decode_any_log
from octavo.metadata.encoding import open_object
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from octavo.protocol.messages import Op
from support.clusters.reading import cluster_of
from support.waiting import WAIT_SECONDS

import octavo

WINDOW = octavo.KeyWindow(entries=5)


async def test_an_add_with_a_known_key_gives_the_position_of_its_entry() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        async with client.create_log("orders", keys=WINDOW) as log, log.lead() as writer:
            assert await writer.add(b"first", key="a") == 0
            assert await writer.add(b"plain") == 1
            assert await writer.add(b"again", key="a") == 0
            assert await writer.add(b"other", key="b") == 2
            assert [(entry.payload, entry.key) for entry in await log.read(0, 2)] == [
                (b"first", "a"), (b"plain", None), (b"other", "b"),
            ]  # fmt: skip
            assert log.end == 3


async def test_every_way_of_adding_and_reading_keeps_payloads_as_they_are() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        async with client.create_log("orders", keys=WINDOW) as log, log.lead() as writer:
            assert await writer.add(b"\x01a") == 0
            assert await writer.add_nowait(bytearray(b"")) == 1
            assert await writer.add_many([b"x", memoryview(b"y")]) == range(2, 4)
            assert await writer.add(b"z", key="é", expected_position=4) == 4
            payloads = [b"\x01a", b"", b"x", b"y", b"z"]
            assert [entry.payload async for entry in log] == payloads
            followed = log.follow(0)
            assert [(await anext(followed)).payload for _ in payloads] == (payloads)
            await followed.aclose()
            with pytest.raises(octavo.InvalidArgumentError, match="iterable"):
                await writer.add_many(7)  # type: ignore[arg-type]


async def test_a_new_leader_in_another_client_knows_the_keys() -> None:
    async with cluster_of() as cluster:
        async with octavo.connect(cluster.uri) as client, client.create_log("orders", keys=WINDOW) as log:
            async with log.lead() as writer:
                await writer.add(b"0", key="a")
                await writer.roll()
                await writer.add(b"1", key="b")
        async with octavo.connect(cluster.uri) as client, client.open_log("orders") as log, log.lead() as writer:
            assert [await writer.add(b"new", key=key) for key in ("a", "b", "c")] == [0, 1, 2]


async def test_a_leader_that_takes_over_from_one_that_lives_knows_what_that_has_added() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as first, octavo.connect(cluster.uri) as second:
        log = await first.create_log("orders", keys=WINDOW)
        old = await log.lead()
        adds = [asyncio.create_task(old.add(b"%d" % number, key=str(number))) for number in range(4)]
        async with second.open_log("orders") as other, other.take_over() as writer:
            outcomes = await asyncio.gather(*adds, return_exceptions=True)
            positions = [await writer.add(b"%d" % number, key=str(number)) for number in range(4)]
            there = {entry.key: entry.position async for entry in other}
            assert [there[str(number)] for number in range(4)] == positions
            assert len([entry async for entry in other]) == 4
            for outcome, position in zip(outcomes, positions, strict=True):
                assert outcome == position or isinstance(outcome, octavo.OctavoError)


async def test_adds_of_one_key_at_the_same_time_are_one_entry() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        async with client.create_log("orders", keys=WINDOW) as log, log.lead() as writer:
            assert await asyncio.gather(*(writer.add(b"x", key="a") for _ in range(20))) == [0] * 20
            assert await log.refresh() == 1


async def test_a_call_that_is_cancelled_withdraws_nothing() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        async with client.create_log("orders", keys=WINDOW) as log, log.lead() as writer:
            one = asyncio.create_task(writer.add(b"x", key="a"))
            other = asyncio.create_task(writer.add(b"x", key="a"))
            await asyncio.sleep(0)
            one.cancel()
            assert await asyncio.wait_for(other, WAIT_SECONDS) == 0
            with pytest.raises(asyncio.CancelledError):
                await one
            assert await writer.add(b"x", key="a") == 0


async def test_an_add_that_timed_out_keeps_its_key_until_its_fate_is_known() -> None:
    """Its entry has its place in the log already: another one with the key would be the second."""
    async with cluster_of() as cluster, octavo.connect(cluster.uri, log_add_timeout_seconds=0.2) as client:
        async with client.create_log("orders", keys=WINDOW) as log, log.lead() as writer:
            for bookie in cluster.bookies:
                bookie.hold(Op.ADD)
            for _ in range(2):
                with pytest.raises(octavo.OctavoTimeoutError) as failed:
                    await writer.add(b"x", key="a")
                assert failed.value.may_have_happened
                assert await log.outcome(failed.value) is not False
            for bookie in cluster.bookies:
                bookie.release(Op.ADD)
            await writer.flush()
            assert await writer.add(b"x", key="a") == 0
            assert await writer.add(b"y", key="b") == 1
            assert await log.position_of("a") == 0


async def test_a_key_behind_the_window_is_added_again() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        async with client.create_log("orders", keys=WINDOW) as log, log.lead() as writer:
            assert [await writer.add(b"", key=key) for key in "abcdef"] == [*range(6)]
            assert await log.position_of("a") is None
            assert await log.position_of("b") == 1
            assert await writer.add(b"", key="a") == 6
            assert await log.position_of("a") == 6


async def test_a_position_is_found_by_any_handle_and_follows_the_log() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        async with (
            client.create_log("orders", keys=WINDOW) as log,
            log.lead() as writer,
            client.open_log("orders") as reader,
        ):
            assert await reader.position_of("a") is None
            await writer.add(b"x", key="a")
            await writer.flush()
            assert await log.position_of("a") == 0
            await writer.roll()
            assert await reader.position_of("a") == 0
            assert await reader.position_of("b") is None
            await writer.add(b"y", key="b")
            await writer.roll()
            assert await reader.position_of("b") == 1


async def test_a_truncated_entry_has_no_position_and_is_not_added_again_by_its_leader() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        async with client.create_log("orders", keys=WINDOW) as log, log.lead() as writer:
            await writer.add(b"x", key="a")
            await writer.add(b"y", key="b")
            await writer.roll()
            await log.truncate(1)
            assert await log.position_of("a") is None
            assert await log.position_of("b") == 1
            assert await writer.add(b"x", key="a") == 0


async def test_retention_leaves_the_window() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        kept = octavo.Retention(bytes=1)
        async with client.create_log("orders", keys=WINDOW, retention=kept) as log, log.lead() as writer:
            for number in range(12):
                await writer.add(b"payload", key=str(number))
                await writer.roll()
            assert await log.retain() == 7
            assert await log.position_of("7") == 7
        async with client.create_log("plain", retention=kept) as log, log.lead() as writer:
            for _ in range(12):
                await writer.add(b"payload")
                await writer.roll()
            assert await log.retain() == 12


async def test_keys_are_refused_where_there_are_none() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        async with client.create_log("orders") as log, log.lead() as writer:
            with pytest.raises(octavo.InvalidArgumentError, match="created without keys"):
                await writer.add(b"x", key="a")
            with pytest.raises(octavo.InvalidArgumentError, match="created without keys"):
                await log.position_of("a")
            assert await writer.add(b"x") == 0
        with pytest.raises(octavo.InvalidArgumentError, match="layout='stream': versions that know no keys"):
            client.create_log("chain", layout="chain", keys=WINDOW)
        with pytest.raises(octavo.InvalidArgumentError, match=r"octavo\.KeyWindow"):
            client.create_log("wrong", keys=10)  # type: ignore[arg-type]


async def test_a_key_that_can_be_none_and_a_payload_that_does_not_fit_are_refused_and_leave_no_trace() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        async with client.create_log("orders", keys=WINDOW) as log, log.lead() as writer:
            with pytest.raises(octavo.InvalidArgumentError, match="key"):
                await writer.add(b"x", key="")
            with pytest.raises(octavo.EntryTooLargeError):
                await writer.add(bytes(ENTRY_PAYLOAD_BYTES_MAX), key="a")
            with pytest.raises(octavo.PositionMismatchError):
                await writer.add(b"x", key="a", expected_position=7)
            assert await writer.add(b"x", key="a") == 0
            with pytest.raises(octavo.InvalidArgumentError, match="has keys"):
                log.reader_at(0)
            async with log.reader_at(0, stored=True) as (extent, reader):
                first = extent.first - extent.base
                (batch,) = [batch async for batch in reader.batches(first, first, confirmed=True)]
            assert octavo.keyed_of(batch.entries[0].payload) == ("a", b"x")
        with pytest.raises(octavo.ClientClosedError):
            await writer.add(b"x", key="a")


async def test_older_versions_refuse_the_document() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        await client.create_log("orders", keys=WINDOW)
        await client.create_log("plain")
        for name, number in (("orders", STREAM_FORMAT_WITH_KEYS), ("plain", STREAM_FORMAT)):
            found = await cluster.store.read_document(list_document(name))
            assert found is not None
            assert open_object(found.value, what=name, format_max=STREAM_FORMAT_WITH_KEYS)[0] == number
            assert decode_any_log(found.value, name).encode() == found.value
        found = await cluster.store.read_document(list_document("orders"))
        assert found is not None
        with pytest.raises(octavo.MetadataError, match="upgrade Octavo"):
            open_object(found.value, what="log orders", format_max=STREAM_FORMAT)
