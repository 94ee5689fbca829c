"""`octavo.testing.cluster`: bookies of production in threads, and what a test can do to them."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from octavo.protocol.errors import InvalidArgumentError, NoSuchLogError, NotLeaderError
from octavo.testing import Clock, Cluster, cluster
from octavo.testing.bookie_thread import BookieServer, config_of
from octavo.testing.server_thread import ServerThread
from support.waiting import eventually

import octavo

pytestmark = pytest.mark.usefixtures("logged")

ENTRIES = [b"%d" % number for number in range(50)]


@pytest.fixture
def running() -> Iterator[Cluster]:
    with cluster() as started:
        yield started


async def payloads(log: octavo.Log) -> list[bytes]:
    return [entry.payload async for entry in log]


async def test_logs_work_and_nothing_is_left_behind() -> None:
    threads = threading.active_count()
    async with cluster() as started:
        folder = Path(started.uri.removeprefix("sqlite:///")).parent
        assert started.running == started.bookies == ("bookie-1", "bookie-2", "bookie-3")
        async with octavo.connect(started.uri) as client:
            assert sorted(bookie.bookie_id for bookie in await client.bookies()) == sorted(started.bookies)
            async with client.create_log("orders") as log, log.lead() as writer:
                await writer.add_many(ENTRIES)
                assert await payloads(log) == ENTRIES
        assert folder.is_dir()
    assert not folder.exists()
    assert not started.running
    await eventually(lambda: threading.active_count() <= threads)
    gc.collect()  # a warning of something that was not closed would fail this test


@pytest.mark.parametrize("way", ["kill", "stop"])
async def test_what_was_acknowledged_survives_the_end_of_every_bookie(running: Cluster, way: str) -> None:
    async with octavo.connect(running.uri) as client:
        async with client.create_log("orders") as log, log.lead() as writer:
            await writer.add_many(ENTRIES)
        addresses = sorted(bookie.address for bookie in await client.bookies())
    for bookie in running.bookies:
        getattr(running, way)(bookie)
        getattr(running, way)(bookie)  # does nothing
    assert running.running == ()
    for bookie in running.bookies:
        running.start(bookie)
        running.start(bookie)  # does nothing
    async with octavo.connect(running.uri) as client, client.open_log("orders") as log:
        assert await payloads(log) == ENTRIES
        assert sorted(bookie.address for bookie in await client.bookies()) == addresses, "a bookie keeps its port"


async def test_adds_under_way_at_a_kill_are_stored_once_or_fail(running: Cluster) -> None:
    """With two of three bookies gone no add can be acknowledged; those that were are there afterwards."""
    async with (
        octavo.connect(running.uri) as client,
        client.create_log("orders") as log,
        log.lead() as writer,
    ):
        adds = [asyncio.ensure_future(writer.add(payload)) for payload in ENTRIES]
        await adds[0]
        running.kill("bookie-1")
        running.kill("bookie-2")
        running.start("bookie-1")
        running.start("bookie-2")
        assert await asyncio.gather(*adds) == list(range(len(ENTRIES)))
        assert await payloads(log) == ENTRIES


async def test_a_paused_bookie_answers_nothing_until_it_is_resumed(running: Cluster) -> None:
    async with octavo.connect(running.uri) as client:
        ledger = await client.create_ledger(3, 3, 3, password=b"secret")
        async with ledger:
            await ledger.add(b"first")
            running.pause("bookie-2")
            running.pause("bookie-2")  # does nothing
            add = asyncio.ensure_future(ledger.add(b"second"))
            await eventually(lambda: ledger.statistics().replication.pending_entries == 1)
            assert not add.done()
            running.resume("bookie-2")
            running.resume("bookie-2")  # does nothing
            assert await add == 1
    assert running.running == running.bookies


async def test_the_lead_is_lost_and_can_be_taken_back(running: Cluster) -> None:
    async with octavo.connect(running.uri) as client, client.create_log("orders") as log:
        async with log.lead() as writer:
            await writer.add(b"first")
            running.lose_lead("orders")
            with pytest.raises(NotLeaderError):
                await writer.add(b"second")
        async with log.lead() as writer:
            assert await writer.add(b"third") == 1
    with pytest.raises(NoSuchLogError):
        running.lose_lead("no-such-log")


async def test_a_clock_that_is_moved_marks_entries(running: Cluster) -> None:
    clock = Clock()
    async with (
        octavo.connect(running.uri, wall_clock=clock) as client,
        client.create_log("times") as log,
        log.lead() as writer,
    ):
        await writer.add(b"today")
        clock.move(timedelta(days=1))
        tomorrow = clock()
        await writer.add(b"tomorrow")
        assert await log.position_at(tomorrow) == 1


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"bookies": 0}, "bookies is a whole number from 1 to 16, not 0"),
        ({"bookies": "3"}, "bookies is a whole number"),
        ({"lease_seconds": 0.5}, "lease_seconds is a number from 1 to 600, not 0.5"),
    ],
)
def test_wrong_numbers_are_refused(keywords: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        cluster(**keywords)


def test_wrong_names_are_refused(running: Cluster) -> None:
    with pytest.raises(InvalidArgumentError, match="no bookie 'bookie-9': there are bookie-1, bookie-2, bookie-3"):
        running.kill("bookie-9")
    with pytest.raises(InvalidArgumentError, match="started already"):
        running.__enter__()


def test_a_cluster_that_does_not_run_says_so() -> None:
    stopped = cluster()
    with pytest.raises(InvalidArgumentError, match="has not been started"):
        _ = stopped.uri
    with pytest.raises(InvalidArgumentError, match="the cluster does not run"):
        stopped.kill("bookie-1")


def test_a_bookie_that_cannot_start_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "metadata.db"
    broken.write_text("this is no database, and it is longer than a page header " * 20)
    thread = ServerThread(BookieServer(config_of("bookie-1", f"sqlite:///{broken}", lease_seconds=2.0)))
    with pytest.raises(octavo.OctavoError):
        thread.begin().result()
    thread.kill()
