"""A process that writes, forks in the midst of it, and goes on writing; and what its child finds.

``python forking_process.py URI LOOP WAY``. LOOP: ``asyncio`` or ``uvloop``. WAY, how the child goes on:

``fresh``       in an event loop of its own, from within a coroutine of the parent's;
``inherited``   in the event loop that it has inherited, which it runs again, and closes;
``unwound``     it raises SystemExit through the coroutine and the event loop, which clean up;
``pool``        as a worker of multiprocessing, started from another thread than the event loop's.

The child uses everything that its parent has made, collects garbage and ends as programs do. One line of JSON at the
end: what the uses raised in the child, the child's exit status, and whether the parent read back what it added.
"""

import asyncio
import contextlib
import gc
import inspect
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import uvloop
from octavo.metadata import MetadataStore, Watch, open_metadata_store
from support.forks import sockets_of_internet

import octavo

FORKS = 2
"""Children, one after another, while the parent writes."""

NEW_ELSEWHERE = "create a store elsewhere"
CONNECTIONS = "connections"
LEADS = "leads"
HOLDS_LOCK = "holds the lock"
"""What need not raise :class:`octavo.ForkedError`."""

PATIENCE_SECONDS = 60.0
"""For a use in the child that should raise at once."""


@dataclass
class Made:
    """What the parent has made, and the child inherits."""

    client: octavo.Client
    ledger: octavo.LedgerWriter
    explicit: octavo.ExplicitIdWriter
    deferred: octavo.LedgerWriter
    log: octavo.Log
    leader: octavo.LogWriter
    cursor: octavo.Cursor
    reader: octavo.LedgerReader
    follower: Any
    log_follower: Any
    entries: Any
    store: MetadataStore
    lock: Any
    uri: str


def uses(made: Made) -> dict[str, Callable[[], Any]]:
    """One call for each thing that a program can do with what it has made."""
    return {
        "create_ledger": lambda: made.client.create_ledger(1, 1, 1),
        "open_ledger": lambda: made.client.open_ledger(made.ledger.id),
        "list_ledgers": lambda: anext(made.client.list_ledgers()),
        "ledger_metadata": lambda: made.client.ledger_metadata(made.ledger.id),
        "delete_ledger": lambda: made.client.delete_ledger(made.ledger.id),
        "bookies": lambda: made.client.bookies(details=True),
        "open_log": lambda: made.client.open_log(made.log.name),
        "create_log": lambda: made.client.create_log("other"),
        "metrics": made.client.metrics,
        "add": lambda: made.ledger.add(b"child"),
        "add_nowait": lambda: made.ledger.add_nowait(b"child"),
        "add_many": lambda: made.ledger.add_many([b"child"] * 3),
        "flush": made.ledger.flush,
        "ledger.close": made.ledger.close,
        "explicit.add": lambda: made.explicit.add(b"child", entry_id=1),
        "explicit.add_nowait": lambda: made.explicit.add_nowait(b"child", entry_id=1),
        "explicit.flush": made.explicit.flush,
        "explicit.close": made.explicit.close,
        "deferred.add": lambda: made.deferred.add(b"child"),
        "force": made.deferred.force,
        "lead": made.log.lead,
        "refresh": made.log.refresh,
        "status": made.log.status,
        "log.read": lambda: made.log.read(0, 0),
        "truncate": lambda: made.log.truncate(1),
        "seal": made.log.seal,
        "log.close": made.log.close,
        "leader.add": lambda: made.leader.add(b"child"),
        "leader.add_nowait": lambda: made.leader.add_nowait(b"child"),
        "leader.add_many": lambda: made.leader.add_many([b"child"]),
        "leader.flush": made.leader.flush,
        "roll": made.leader.roll,
        "leader.close": made.leader.close,
        "advance": lambda: made.cursor.advance(1),
        "cursor.flush": made.cursor.flush,
        "reader.read": lambda: made.reader.read(0, 0),
        "read_unconfirmed": lambda: made.reader.read_unconfirmed(0, 0),
        "refresh_last_add_confirmed": made.reader.refresh_last_add_confirmed,
        "wait_last_add_confirmed": lambda: made.reader.wait_last_add_confirmed(10**6),
        "entries": lambda: anext(made.entries),
        "follow": lambda: anext(made.follower),
        "log.follow": lambda: anext(made.log_follower),
        "reader.close": made.reader.close,
        "store.read_ledger": lambda: made.store.read_ledger(made.ledger.id),
        "store.allocate": made.store.allocate_ledger_id,
        "store.watch": lambda: next_of(made.store.watch_bookies()),
        "store.lock": lambda: made.store.try_lock("other", "child"),
        "store.close": made.store.close,
        "client.close": made.client.close,
        "connect to a file that was open": lambda: octavo.connect(made.uri),
    }


async def next_of(watch: Watch[Any]) -> object:
    async with watch:
        return await anext(aiter(watch))


async def create_elsewhere() -> object:
    """Something that has nothing to do with what was inherited."""
    with tempfile.TemporaryDirectory() as directory:
        async with await open_metadata_store(f"sqlite:///{directory}/other.db", create=True) as store:
            return await store.allocate_ledger_id()


async def use_all(made: Made) -> dict[str, str]:
    """What each use raised, or gave."""
    raised = {CONNECTIONS: str(len(sockets_of_internet()))}
    for name, use in {**uses(made), NEW_ELSEWHERE: create_elsewhere}.items():
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                result = use()
                raised[name] = repr(await result if inspect.isawaitable(result) else result)
        except Exception as error:
            raised[name] = f"{type(error).__name__}: {error}"
    raised[LEADS] = str(not made.leader.lost.is_set())
    raised[HOLDS_LOCK] = str(not made.lock.lost)
    return raised


async def make(uri: str) -> Made:
    """Everything, with something in it."""
    client = await octavo.connect(uri)
    ledger = await client.create_ledger(3, 3, 2)
    await ledger.add_many([b"ledger %d" % number for number in range(50)])
    explicit = await client.create_ledger(3, 3, 2, ids="explicit")
    await explicit.add(b"explicit", entry_id=0)
    deferred = await client.create_ledger(3, 3, 2, sync="deferred")
    await deferred.add(b"deferred")
    log = await client.create_log(f"orders-{os.getpid()}", 3, 3, 2)
    leader = await log.lead()
    await leader.add_many([b"log %d" % number for number in range(50)])
    cursor = await log.cursor("consumer")
    reader = await client.open_ledger(ledger.id, recover=False)
    follower, log_follower = reader.follow(20), log.follow(0)
    await anext(follower)  # from now on the reader knows that the entries to 20 are acknowledged
    await anext(log_follower)
    entries = reader.entries(0, 20)
    await anext(entries)
    store = await open_metadata_store(uri)
    lock = await store.lock(f"parent-{os.getpid()}", "parent")
    return Made(
        client,
        ledger,
        explicit,
        deferred,
        log,
        leader,
        cursor,
        reader,
        follower,
        log_follower,
        entries,
        store,
        lock,
        uri,
    )


class Writing:
    """The parent's own adds, which never pause."""

    def __init__(self, made: Made) -> None:
        self.count = 0
        self._made = made
        self._stop = False
        self._more = asyncio.Event()
        self.task = asyncio.create_task(self._run())
        self.task.add_done_callback(lambda _: self._more.set())

    async def _run(self) -> None:
        while not self._stop:
            adding = [self._made.ledger.add(b"parent %d %d" % (self.count, at)) for at in range(8)]
            await asyncio.gather(*adding, self._made.leader.add(b"parent %d" % self.count))
            self.count += 1
            self._more.set()

    async def go_on(self, rounds: int) -> None:
        """Return once ``rounds`` more are acknowledged."""
        stop = self.count + rounds
        async with asyncio.timeout(60):
            while self.count < stop:
                if self.task.done():
                    self.task.result()
                self._more.clear()
                await self._more.wait()

    async def end(self) -> None:
        self._stop = True
        await self.task


async def read_back(uri: str, ledger_id: int, name: str, rounds: int) -> bool:
    """Whether ledger and log hold what the parent added, and nothing else."""
    ledger_wanted = [b"ledger %d" % number for number in range(50)]
    log_wanted = [b"log %d" % number for number in range(50)]
    for number in range(rounds):
        ledger_wanted += [b"parent %d %d" % (number, at) for at in range(8)]
        log_wanted.append(b"parent %d" % number)
    async with octavo.connect(uri) as client, await client.open_ledger(ledger_id) as reader:
        ledger = [entry.payload async for entry in reader.entries(0, len(ledger_wanted) - 1)]
        async with client.open_log(name) as log:
            end = await log.refresh()
            found = [entry.payload for entry in await log.read(0, end - 1)]
    return ledger == ledger_wanted and reader.last_add_confirmed == len(ledger) - 1 and found == log_wanted


def tell(pipe: int, raised: dict[str, str]) -> None:
    with os.fdopen(pipe, "w") as stream:
        json.dump(raised, stream)


def make_loop(name: str) -> asyncio.AbstractEventLoop:
    return uvloop.new_event_loop() if name == "uvloop" else asyncio.new_event_loop()


def in_fresh_loop(made: Made, kind: str, pipe: int) -> None:
    """What the child does in a loop of its own."""
    with asyncio.Runner(loop_factory=lambda: make_loop(kind)) as runner:
        tell(pipe, runner.run(use_all(made)))
    gc.collect()


async def child_raises_through(made: Made, kind: str, pipe: int) -> None:
    in_fresh_loop(made, kind, pipe)
    sys.exit(0)


async def wait_for_child(pid: int) -> int:
    """The exit status; the loop goes on meanwhile. A child that hangs is killed."""
    waiting = asyncio.ensure_future(asyncio.to_thread(os.waitpid, pid, 0))
    done, _ = await asyncio.wait([waiting], timeout=60)
    if not done:
        os.kill(pid, signal.SIGKILL)
    _, status = await waiting
    return os.waitstatus_to_exitcode(status)


async def read_pipe(pipe: int) -> dict[str, str]:
    data = await asyncio.to_thread(lambda: os.fdopen(pipe).read())
    told: dict[str, str] = json.loads(data or "{}")
    return told


async def fork_within(made: Made, writing: Writing, kind: str, way: str) -> list[tuple[dict[str, str], int]]:
    """Fork from a coroutine, several times."""
    found = []
    for _ in range(FORKS):
        await writing.go_on(3)
        come, go = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(come)
            if way == "unwound":
                await child_raises_through(made, kind, go)
            in_fresh_loop(made, kind, go)
            os._exit(0)
        os.close(go)
        raised = await read_pipe(come)
        found.append((raised, await wait_for_child(pid)))
        await writing.go_on(3)
    return found


def in_worker(made: Made, kind: str, pipe: int) -> None:
    in_fresh_loop(made, kind, pipe)


async def fork_from_thread(made: Made, writing: Writing, kind: str) -> list[tuple[dict[str, str], int]]:
    """Let another thread start workers."""
    found = []
    for _ in range(FORKS):
        await writing.go_on(3)
        come, go = os.pipe()
        worker = multiprocessing.get_context("fork").Process(target=in_worker, args=(made, kind, go))
        thread = threading.Thread(target=worker.start)
        thread.start()
        await asyncio.to_thread(thread.join)
        os.close(go)
        raised = await read_pipe(come)
        await asyncio.to_thread(worker.join)
        found.append((raised, worker.exitcode or 0))
        await writing.go_on(3)
    return found


def fork_between(loop: asyncio.AbstractEventLoop, made: Made, writing: Writing) -> list[tuple[dict[str, str], int]]:
    """Fork while the loop does not run; the child runs it again."""
    found = []
    for _ in range(FORKS):
        loop.run_until_complete(writing.go_on(3))
        # Requests are on their way when the loop stops.
        come, go = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(come)
            tell(go, loop.run_until_complete(use_all(made)))
            gc.collect()
            sys.exit(0)
        os.close(go)
        raised, status = loop.run_until_complete(_both(read_pipe(come), wait_for_child(pid)))
        found.append((raised, status))
        loop.run_until_complete(writing.go_on(3))
    return found


async def _both(raised: Awaitable[dict[str, str]], status: Coroutine[Any, Any, int]) -> tuple[dict[str, str], int]:
    return await raised, await status


async def end(uri: str, made: Made, writing: Writing) -> bool:
    """Close everything in the parent, and read back."""
    await writing.end()
    count = writing.count
    for iterator in (made.follower, made.log_follower, made.entries):
        await iterator.aclose()
    assert not made.lock.lost, "the child has ended the parent's lease"
    assert not made.leader.lost.is_set()
    await made.cursor.advance(2)
    await made.explicit.add(b"explicit", entry_id=1)
    await made.store.close()
    await made.client.close()
    return await read_back(uri, made.ledger.id, made.log.name, count)


def main(uri: str, kind: str, way: str) -> None:
    loop = make_loop(kind)
    made = loop.run_until_complete(make(uri))

    async def begin() -> Writing:
        return Writing(made)

    writing = loop.run_until_complete(begin())
    if way == "inherited":
        found = fork_between(loop, made, writing)
    elif way == "pool":
        found = loop.run_until_complete(fork_from_thread(made, writing, kind))
    else:
        found = loop.run_until_complete(fork_within(made, writing, kind, way))
    intact = loop.run_until_complete(end(uri, made, writing))
    loop.close()
    told = {"raised": [raised for raised, _ in found], "statuses": [status for _, status in found], "intact": intact}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main(*sys.argv[1:4])
