"""A program cancels all tasks of the event loop, the client's own among them: everything that waits ends, with an error
that says so, and closing ends (rule H2)."""

import asyncio
import random
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from typing import Any

import pytest
from octavo.client.client import Client
from octavo.client.options import ClientOptions
from octavo.metadata import Lease, MetadataStore, Watch
from octavo.metadata.store.driver import Kind
from octavo.protocol.errors import MetadataError, OctavoError, TasksCancelledError
from octavo.protocol.messages import Op
from support.clusters.log_cluster import QUICK, LogCluster
from support.inside import handle_of, view_of
from support.metadata.interposed_store import FailingWatch
from support.waiting import WAIT_SECONDS, eventually, loop_turns

import octavo


async def drain(iterator: AsyncGenerator[Any]) -> None:
    async for _ in iterator:
        pass


async def drain_watch(watch: Watch[Any]) -> None:
    async with watch:
        async for _ in watch:
            pass


async def wait_lost(lease: Lease) -> None:
    await lease.wait_lost()
    raise TasksCancelledError("lost")


def is_in_line(store: MetadataStore) -> bool:
    """Whether the standby waits for the lock, or in its line."""
    return (Kind.LOCK, "lock") in handle_of(store).hub.watched


async def create(client: Client) -> None:
    ledger = await client.create_ledger(3, 3, 2)
    await ledger.add(b"cannot be sent")


class Program:
    """What a program has under way in its own tasks, which it does not cancel."""

    def __init__(self, logs: LogCluster) -> None:
        self.logs = logs
        self._before = asyncio.all_tasks()
        self.waiting: dict[str, asyncio.Task[Any]] = {}

    def begin(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        self.waiting[name] = asyncio.create_task(work)

    def cancel_all_others(self) -> None:
        """What Tornado's tests, aiorun and many shutdown handlers do."""
        for task in asyncio.all_tasks() - self._before - {*self.waiting.values()}:
            task.cancel()

    async def outcomes(self) -> dict[str, str]:
        """How each of them ended: the class of its error."""
        await asyncio.wait(self.waiting.values(), timeout=WAIT_SECONDS)
        return {name: outcome_of(task) for name, task in self.waiting.items()}


def outcome_of(task: asyncio.Task[Any]) -> str:
    if not task.done():
        return "hangs"
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return "returned" if error is None else type(error).__name__


async def ends(work: Coroutine[Any, Any, object]) -> str:
    """How it ends: the class of its error."""
    task = asyncio.create_task(work)
    await asyncio.wait([task], timeout=WAIT_SECONDS)
    return outcome_of(task)


async def test_everything_that_waits_ends_and_so_does_closing(logs: LogCluster) -> None:
    program = Program(logs)
    client = Client(
        await logs.metadata.open(), cluster_id=logs.cluster_id, options=ClientOptions(**QUICK), rng=random.Random(3)
    )
    kind: Any = {"layout": logs.layout, "full_copies": logs.full_copies}
    log = await client.create_log("orders", **kind)
    store = await logs.metadata.open()
    leader = await log.lead()
    await leader.add(b"first")
    ledger = await client.create_ledger(3, 3, 2)
    await ledger.add(b"first")
    reader = await client.open_ledger(ledger.id, recover=False)
    cursor = await log.cursor("consumer")
    lock = await store.lock("lock", "holder")
    begin = program.begin
    begin("follow ledger", drain(reader.follow(0)))
    begin("follow log", drain(log.follow(0)))
    begin("follow with cursor", drain(cursor.follow()))
    begin("wait_last_add_confirmed", reader.wait_last_add_confirmed(10))
    begin("watch", drain_watch(store.watch_bookies()))
    begin("lease", wait_lost(lock))
    begin("standby for lock", store.lock("lock", "standby"))
    await eventually(lambda: is_in_line(store))  # before that, only its own task is at work
    await loop_turns(20)
    for bookie in logs.bookies:
        bookie.hold(Op.ADD)
        bookie.hold(Op.READ)
    begin("add", ledger.add(b"second"))
    begin("add_many", ledger.add_many([b"third"] * 10))
    begin("flush", ledger.flush())
    begin("leader's add", leader.add(b"second"))
    begin("leader's add_many", leader.add_many([b"third"] * 10))
    begin("leader's flush", leader.flush())
    begin("read", reader.read_unconfirmed(0, 0))
    begin("lost", leader.lost.wait())
    await loop_turns(20)
    await cursor.advance(1)

    program.cancel_all_others()
    outcomes = await program.outcomes()

    assert outcomes.pop("lost") == "returned"
    assert outcomes == dict.fromkeys(outcomes, "TasksCancelledError")
    for later in (ledger.add(b"later"), leader.add(b"later"), ledger.flush(), create(client)):
        assert await ends(later) == "TasksCancelledError"
    assert await ends(client.close()) == "TasksCancelledError"
    assert client.closed
    assert await ends(client.close()) == "TasksCancelledError"


async def wait_as_a_follower(log: octavo.Log) -> asyncio.Task[None]:
    """Waits as a follower does that has seen everything that its handle knows; ends with an error only."""
    view = view_of(log)

    async def wait() -> None:
        view.watch()
        while True:
            await view.wait_change(view.changes)

    waiting = asyncio.create_task(wait())
    await loop_turns(10)
    return waiting


async def test_handle_whose_watch_has_ended_follows_again(logs: LogCluster) -> None:
    leading = await logs.log()
    client, store = await logs.interposed_client()
    log = await client.open_log("orders")

    failing = FailingWatch(MetadataError("what is stored cannot be understood"))
    for _ in range(2):
        if logs.layout == "chain":  # a stream's handle has no task that could be cancelled
            waiting = await wait_as_a_follower(log)
            for task in asyncio.all_tasks():
                if task.get_name() == "octavo log watch":
                    task.cancel()
            with pytest.raises(TasksCancelledError, match="watching log orders"):
                await asyncio.wait_for(waiting, WAIT_SECONDS)
        store.interpose("watch_document", lambda *_arguments: failing)
        waiting = await wait_as_a_follower(log)
        with pytest.raises(MetadataError, match="cannot be understood"):
            await asyncio.wait_for(waiting, WAIT_SECONDS)
        store.restore()

    async with aclosing(log.follow(0)) as entries:
        following = asyncio.create_task(anext(entries))
        await loop_turns(10)
        async with leading.lead() as leader:
            await leader.add(b"first")
            entry = await asyncio.wait_for(following, WAIT_SECONDS)
    assert entry.payload == b"first"


async def test_closing_that_the_program_cancels_is_begun_again_by_the_next_call(logs: LogCluster) -> None:
    client = Client(
        await logs.metadata.open(), cluster_id=logs.cluster_id, options=ClientOptions(**QUICK), rng=random.Random(3)
    )
    ledger = await client.create_ledger(3, 3, 2)
    await ledger.add(b"payload")
    closing = asyncio.create_task(client.close())
    await loop_turns(1)
    for task in asyncio.all_tasks():
        if task.get_name().startswith(("octavo client closing", "octavo closing of ledger")):
            task.cancel()
    with pytest.raises(TasksCancelledError):
        await asyncio.wait_for(closing, WAIT_SECONDS)
    with suppress(TasksCancelledError):
        await asyncio.wait_for(client.close(), WAIT_SECONDS)
    with pytest.raises(OctavoError):
        await logs.metadata.handles[-1].cluster_id()
    assert ledger.closed
