"""An ensemble of three: reads that are not stale, a lost quorum, and a leader killed under load."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.zookeeper.cluster import open_zookeeper_store
from octavo.protocol.errors import MetadataUnavailableError, OctavoError
from support.commands.processes import Up, is_running, stop_process
from support.metadata.ledger_metadata import open_ledger
from support.metadata.metadata_clusters import new_ledger, registration, soon, until
from support.metadata.zookeeper import QUICK
from support.waiting import WAIT_SECONDS, eventually, pause
from zookeeper_server import HOST, ServerGroup, mode_of

import octavo

PATIENCE_SECONDS = WAIT_SECONDS
"""For what an ensemble does after a loss, on a busy machine."""

CLUSTER = "octavo"


@pytest.fixture(scope="module")
def servers(module_folder: Path) -> Iterator[ServerGroup]:
    settings = replace(QUICK, read_only_mode=True)
    with ServerGroup(module_folder / "zookeeper", size=3, settings=settings, outlives=False) as group:
        yield group


@pytest.fixture
def ensemble(servers: ServerGroup) -> Iterator[ServerGroup]:
    """All three are up, and will be again."""
    yield servers
    servers.start()


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def open_at(stack: AsyncExitStack, servers: str, *, operation_seconds: float = 30.0) -> MetadataStore:
    store = await open_zookeeper_store(
        f"zk://{servers}/{CLUSTER}",
        create=True,
        lease_seconds=10.0,
        operation_seconds=operation_seconds,
        rng=random.Random(servers),
    )
    stack.push_async_callback(store.close)
    return store


def where(ensemble: ServerGroup, number: int) -> str:
    return f"{HOST}:{ensemble.servers[number - 1].client_port}"


async def test_change_is_seen_by_a_client_that_asks_another_server_next(
    ensemble: ServerGroup, stack: AsyncExitStack
) -> None:
    leader = ensemble.leader()
    follower = leader % 3 + 1
    at_leader = await open_at(stack, where(ensemble, leader))
    at_follower = await open_at(stack, where(ensemble, follower))
    ledger_id, version = await new_ledger(at_leader)
    for number in range(100):
        version = await at_leader.compare_and_set_ledger(open_ledger(ledger_id, writer_token=str(number)), version)
        assert (await at_follower.read_ledger(ledger_id)).version == version
    await at_leader.register_bookie(registration("b1"))
    assert list(await at_follower.list_bookies()) == ["b1"]


async def test_server_without_the_others_is_not_asked(ensemble: ServerGroup, stack: AsyncExitStack) -> None:
    """In read-only mode it would answer reads with data that may be old (rule M3)."""
    store = await open_at(stack, ",".join(where(ensemble, number) for number in (1, 2, 3)), operation_seconds=2.0)
    ledger_id, version = await new_ledger(store)
    left, *others = (1, 2, 3)
    for number in others:
        ensemble.kill_server(number)
    port = ensemble.servers[left - 1].client_port

    async def is_read_only() -> bool:
        return await asyncio.to_thread(mode_of, port) == "read-only"

    await eventually(is_read_only, seconds=PATIENCE_SECONDS)
    with pytest.raises(MetadataUnavailableError, match="it did not accept a session"):
        await open_at(stack, where(ensemble, left), operation_seconds=2.0)
    with pytest.raises(MetadataUnavailableError) as e:
        await store.read_ledger(ledger_id)
    assert not e.value.may_have_happened
    with pytest.raises(MetadataUnavailableError):
        await store.compare_and_set_ledger(open_ledger(ledger_id), version)
    for number in others:
        ensemble.start_server(number)
    await asyncio.to_thread(ensemble.wait_serving)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                assert await store.compare_and_set_ledger(open_ledger(ledger_id), version) == version + 1
            except MetadataUnavailableError:
                continue
            break


async def test_absence_is_not_confirmed_by_a_leader_without_followers(
    ensemble: ServerGroup, stack: AsyncExitStack
) -> None:
    """For some moments such a leader answers ``sync`` and reads as ever, though the others may have elected another
    that has gone on (ZOOKEEPER-1675). What it reads then must not be taken for the truth."""
    leader = ensemble.leader()
    store = await open_at(stack, where(ensemble, leader), operation_seconds=2.0)
    (ledger_id, _), absent = await new_ledger(store), await store.allocate_ledger_id()
    assert await store.confirm_absent([ledger_id, absent]) == [absent]
    followers = [number for number in (1, 2, 3) if number != leader]
    for number in followers:
        await asyncio.to_thread(stop_process, ensemble.servers[number - 1].pid)
    try:
        await store.read_ledger(ledger_id)
        with pytest.raises(MetadataUnavailableError):
            await store.confirm_absent([ledger_id, absent])
    finally:
        for number in followers:
            ensemble.signal_server(number, signal.SIGCONT)
    await asyncio.to_thread(ensemble.wait_serving)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                assert await store.confirm_absent([ledger_id, absent]) == [absent]
            except MetadataUnavailableError:
                continue
            break


async def test_leader_that_hangs_costs_no_lease_and_no_change(ensemble: ServerGroup, stack: AsyncExitStack) -> None:
    store = await open_at(stack, ",".join(where(ensemble, number) for number in (1, 2, 3)))
    lease = await store.register_bookie(registration("b2"))
    ledger_id, version = await new_ledger(store)
    leader = ensemble.leader()
    async with store.watch_ledger(ledger_id) as watch:
        await asyncio.to_thread(stop_process, ensemble.servers[leader - 1].pid)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                version = await store.compare_and_set_ledger(open_ledger(ledger_id, writer_token="new"), version)
        finally:
            ensemble.signal_server(leader, signal.SIGCONT)
        await until(watch, lambda found: found is not None and found.version == version)
    await soon(store.renew_leases())
    assert not lease.lost


class Work:
    """A writer that adds without end, and what it was promised."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ledger_id = -1
        self.acknowledged = 0
        self.error: OctavoError | None = None
        self.stopping = False

    def payload(self, entry_id: int) -> bytes:
        return b"%d/%d" % (self.number, entry_id)

    async def run(self, client: octavo.Client) -> None:
        try:
            async with client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2) as writer:
                self.ledger_id = writer.id
                while not self.stopping:
                    ids = range(self.acknowledged, self.acknowledged + 20)
                    assert await writer.add_many([self.payload(entry_id) for entry_id in ids]) == ids
                    self.acknowledged = ids.stop
                    await pause()
        except OctavoError as error:
            self.error = error


@asynccontextmanager
async def at_work(client: octavo.Client, works: list[Work]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work.run(client))
        yield
        for work in works:
            work.stopping = True


async def all_add(works: list[Work], more: int) -> None:
    """Return when every writer that has not failed has had ``more`` entries acknowledged."""
    goals = [(work, work.acknowledged + more) for work in works]
    await eventually(lambda: all(work.acknowledged >= goal or work.error is not None for work, goal in goals))


async def make_ledgers(client: octavo.Client, made: list[int], stop: asyncio.Event) -> None:
    """Create and close ledgers for as long as told; each either is there afterwards, or its maker was told."""
    while not stop.is_set():
        try:
            async with client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2) as ledger:
                await ledger.add(b"one")
            made.append(ledger.id)
        except MetadataUnavailableError:
            await pause()


async def test_leader_killed_under_load_loses_nothing(ensemble: ServerGroup, tmp_path: Path) -> None:
    """Together with a bookie, so that writers need changes of metadata while no server can make them."""
    uri = f"{ensemble.uri}/load"
    with Up(tmp_path / "data", "--bookies", 4, "--metadata", uri) as up:
        await asyncio.to_thread(up.wait_ready)
        works = [Work(number) for number in range(4)]
        made: list[int] = []
        stop = asyncio.Event()
        async with octavo.connect(uri) as client:
            making = asyncio.ensure_future(make_ledgers(client, made, stop))
            async with at_work(client, works):
                await all_add(works, 200)
                leader = ensemble.leader()
                ensemble.kill_server(leader)
                await all_add(works, 200)  # none of the adds needs the metadata
                up.kill_bookie("bookie-1")
                await all_add(works, 200)
                before = len(made)
                await eventually(lambda: len(made) >= before + 5)
                ensemble.start_server(leader)
                await asyncio.to_thread(ensemble.wait_serving)
                await all_add(works, 200)
            stop.set()
            await making
        assert [work.error for work in works] == [None] * len(works)
        assert [name for name, pid in up.pids.items() if name != "bookie-1" and not is_running(pid)] == []
        async with octavo.connect(uri) as client:
            for work in works:
                metadata = await client.ledger_metadata(work.ledger_id)
                assert metadata.state is octavo.LedgerState.CLOSED
                assert metadata.last_entry_id == work.acknowledged - 1
                async with client.open_ledger(work.ledger_id) as reader:
                    found = [entry.payload async for entry in reader]
                assert found == [work.payload(entry_id) for entry_id in range(work.acknowledged)]
            assert {*made} <= {ledger_id async for ledger_id in client.list_ledgers()}
            for ledger_id in made:
                assert (await client.ledger_metadata(ledger_id)).last_entry_id == 0
