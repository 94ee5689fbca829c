"""Leaders of a log that are killed, stand still, and are cut off: one writes at a time, followers see every position
once, and nothing of an old leader comes late. ``OCTAVO_TAKEOVERS`` (`make soak`: 200) says how often in a row."""

import asyncio
import os
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from octavo.client.log.logs import Layout
from support.commands.processes import Up, environment
from support.metadata.zookeeper import new_cluster_uri
from support.waiting import WAIT_SECONDS

import octavo

LEADER = Path(__file__).parents[2] / "support" / "programs" / "leading_process.py"
LEASE_SECONDS = 1.0
LAYOUTS: tuple[Layout, ...] = ("chain", "stream")
TAKEOVERS = int(os.environ.get("OCTAVO_TAKEOVERS", "4"))
ENTRIES_BETWEEN = 30
"""Acknowledged adds of a leader before anything happens to it."""


class Candidate:
    """A process of ``leading_process.py``, and what it said."""

    def __init__(self, process: asyncio.subprocess.Process, contest: "Contest") -> None:
        self.process = process
        self.contest = contest
        self.leads = False
        self.term = 0
        self.reading = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def kill(self) -> None:
        """SIGKILL; then take in what it said until then."""
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        await self.reading

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if line.endswith(b"\n"):
                self._take(*line.decode().split())
        self.leads = False
        self.contest.changed.set()

    def _take(self, what: str, *words: str) -> None:
        contest = self.contest
        if what == "leads":
            self.leads, self.term = True, int(words[0])
            contest.terms.append(self.term)
        elif what == "acked":
            contest.acknowledged[int(words[0])] = f"{self.pid}:{words[1]}"
            contest.acked_by[self.pid] += 1
        elif what == "lost":
            self.leads = False
        elif what == "refused":
            contest.absent.add(f"{self.pid}:{words[0]}")
        elif what == "outcome":
            (contest.present if words[1] == "yes" else contest.absent).add(f"{self.pid}:{words[0]}")
        contest.changed.set()


class Contest:
    """Candidates for one log, a follower of it, and everything that was said."""

    def __init__(self, uri: str, name: str, stack: AsyncExitStack) -> None:
        self.uri = uri
        self.name = name
        self.stack = stack
        self.changed = asyncio.Event()
        self.candidates: list[Candidate] = []
        self.terms: list[int] = []
        self.acknowledged: dict[int, str] = {}
        self.acked_by: defaultdict[int, int] = defaultdict(int)
        self.present: set[str] = set()
        self.absent: set[str] = set()
        self.followed: list[octavo.LogEntry] = []

    async def start(self) -> Candidate:
        """One candidate more."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", LEADER, self.uri, self.name, str(LEASE_SECONDS)),
            stdout=asyncio.subprocess.PIPE,
            env=environment(),
        )
        candidate = Candidate(process, self)
        self.stack.push_async_callback(candidate.kill)
        self.candidates.append(candidate)
        return candidate

    async def follow(self, log: octavo.Log) -> None:
        """Take in every position, in order."""
        async with aclosing(log.follow()) as entries:
            async for entry in entries:
                assert entry.position == len(self.followed)
                self.followed.append(entry)
                self.changed.set()

    async def leader(self, *, after: int = 0) -> Candidate:
        """The process that leads in a term above ``after``, once it has added something."""
        while True:
            for candidate in self.candidates:
                if candidate.leads and candidate.term > after:
                    before = self.acked_by[candidate.pid]
                    await self.until(
                        lambda one=candidate, n=before: not one.leads or self.acked_by[one.pid] >= n + ENTRIES_BETWEEN
                    )
                    if candidate.leads:
                        return candidate
            await self.until(lambda: any(one.leads and one.term > after for one in self.candidates))

    async def until(self, condition) -> None:  # type: ignore[no-untyped-def]
        """Return once the condition holds, which what the processes say decides."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def end(self) -> None:
        """Stop everything, read the log to its end, and check all of it."""
        for candidate in self.candidates:
            await candidate.kill()
        async with octavo.connect(self.uri, lease_seconds=LEASE_SECONDS) as client, client.open_log(self.name) as log:
            async with log.lead() as writer:
                end = writer.end
            await self.until(lambda: len(self.followed) >= end)
            read = [entry async for entry in log.entries()]
        assert read == self.followed
        payloads = [entry.payload.decode() for entry in read]
        assert len(set(payloads)) == len(payloads), "an entry is there twice"
        for position, payload in self.acknowledged.items():
            assert payloads[position] == payload, f"position {position} was acknowledged"
        assert self.present <= set(payloads)
        assert not self.absent & set(payloads), "an add that did not happen came late"
        assert len(set(self.terms)) == len(self.terms), "a term was given twice"
        for before, after in pairwise(read):
            assert before.term <= after.term, "an old leader's entry came late"
            mine, theirs = before.payload.split(b":"), after.payload.split(b":")
            if before.term == after.term:
                assert mine[0] == theirs[0], "two processes wrote in one term"
                assert int(theirs[1]) == int(mine[1]) + 1, "not a prefix of what was sent"


@asynccontextmanager
async def contest(uri: str, name: str, candidates: int, layout: Layout = "chain") -> AsyncIterator[Contest]:
    """Candidates that lead, one of them, and a follower. At the end everything is checked."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(octavo.connect(uri, lease_seconds=LEASE_SECONDS))
        log = await stack.enter_async_context(client.create_log(f"{layout}/{name}", layout=layout))
        made = Contest(uri, log.name, stack)
        following = asyncio.create_task(made.follow(log))
        for _ in range(candidates):
            await made.start()
        yield made
        await made.end()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def kill(made: Contest, leader: Candidate) -> None:
    """SIGKILL, and a new process in its place."""
    await leader.kill()
    await made.start()


async def stand_still(made: Contest, leader: Candidate, up: Up) -> None:
    """SIGSTOP until another process leads; then it goes on, and notices."""
    with up.hanging(leader.pid):
        await made.leader(after=leader.term)
    await made.until(lambda: not leader.leads)


async def cut_from_metadata(made: Contest, leader: Candidate) -> None:
    """Without its lock a leader stops; another takes over."""
    leader.signal(signal.SIGUSR2)
    await made.leader(after=leader.term)
    leader.signal(signal.SIGHUP)
    await made.until(lambda: not leader.leads)


async def cut_from_bookies(made: Contest, leader: Candidate, *, paused: Up | None = None) -> None:
    """Its adds wait; while it keeps the lead, it heals itself and goes on. On a machine that is so busy that the lease
    ends meanwhile (``paused`` stops the leader for so long), another process leads."""
    term = leader.term
    leader.signal(signal.SIGUSR1)
    before = made.acked_by[leader.pid]
    await asyncio.to_thread(threading.Event().wait, 1.5)
    assert made.acked_by[leader.pid] < before + ENTRIES_BETWEEN
    if paused is not None:
        with paused.hanging(leader.pid):
            await made.leader(after=term)
    leader.signal(signal.SIGHUP)
    before = made.acked_by[leader.pid]
    await made.until(lambda: made.acked_by[leader.pid] >= before + ENTRIES_BETWEEN or not leads_in(leader, term))
    if not leads_in(leader, term):
        await made.leader(after=term)


def leads_in(candidate: Candidate, term: int) -> bool:
    """Whether it leads still, and did not lose the lead in between."""
    return candidate.leads and candidate.term == term


@pytest.fixture(scope="module")
def on_sqlite(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "sqlite") as up:
        yield up.wait_ready()


@pytest.fixture(scope="module")
def on_zookeeper(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "zookeeper", "--metadata", new_cluster_uri()) as up:
        yield up.wait_ready()


@pytest.mark.parametrize(("candidates", "layout"), [(2, "chain"), (2, "stream"), (10, "chain")])
async def test_leaders_are_killed_one_after_another(on_sqlite: Up, candidates: int, layout: Layout) -> None:
    takeovers = TAKEOVERS if candidates == 2 else 2
    async with contest(on_sqlite.uri, f"killed-{candidates}", candidates, layout) as made:
        term = 0
        for _ in range(takeovers):
            leader = await made.leader(after=term)
            term = leader.term
            await kill(made, leader)
        await made.leader(after=term)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_leaders_stand_still_while_another_takes_over(on_sqlite: Up, layout: Layout) -> None:
    async with contest(on_sqlite.uri, "stopped", 3, layout) as made:
        term = 0
        for _ in range(max(2, TAKEOVERS // 10)):
            leader = await made.leader(after=term)
            term = leader.term
            await stand_still(made, leader, on_sqlite)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_on_sqlite_a_leader_is_cut_off_from_bookies_and_metadata(on_sqlite: Up, layout: Layout) -> None:
    async with contest(on_sqlite.uri, "cut", 2, layout) as made:
        leader = await made.leader()
        await cut_from_bookies(made, leader)
        await cut_from_metadata(made, leader)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_on_zookeeper_leaders_are_killed_stopped_and_cut_off(on_zookeeper: Up, layout: Layout) -> None:
    async with contest(on_zookeeper.uri, "contest", 3, layout) as made:
        term = 0
        for turn in range(max(4, TAKEOVERS // 2)):
            leader = await made.leader(after=term)
            if turn % 4 == 0:
                await cut_from_bookies(made, leader)
                if turn == 4:
                    await cut_from_bookies(made, await made.leader(after=term), paused=on_zookeeper)
                continue
            term = leader.term
            if turn % 4 == 1:
                await kill(made, leader)
            elif turn % 4 == 2:
                await stand_still(made, leader, on_zookeeper)
            else:
                await cut_from_metadata(made, leader)
        await made.leader(after=term)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_leader_and_a_bookie_are_killed_at_once(on_sqlite: Up, layout: Layout) -> None:
    async with contest(on_sqlite.uri, "both", 2, layout) as made:
        leader = await made.leader()
        on_sqlite.kill_bookie("bookie-1")
        await kill(made, leader)
        await made.leader(after=leader.term)
        await asyncio.to_thread(on_sqlite.wait_for, "started again", "bookie-1")
