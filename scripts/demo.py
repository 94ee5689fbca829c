"""The demo: a log under load loses its leader, then a bookie, and no entry (`make demo`).

Starts three bookies with `octavo up` in a temporary folder and two processes that want to lead one log. The leader adds
a real log file over and over and is killed with SIGKILL; the standby takes over and goes on. Then a bookie is killed;
it comes back and takes part again. A follower checks every byte of every position as it comes, across all of this, and
at the end a fresh client reads the whole log and compares it again. With ``--secure`` the bookies require TLS and keys,
the log is private, and the bookies write an audit log. Exit status 0 only if all checks succeed.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvloop
from demo_leader import LEASE_SECONDS, SAMPLE
from demo_security import Security
from local_cluster import TIME_SECONDS_MAX, Cluster, ClusterError, temporary_folder
from zookeeper import make_certificates, secure_uri
from zookeeper_server import ServerGroup, Settings, ZooKeeperError

import octavo

SAMPLE_NAME = f"{SAMPLE.parent.name}/{SAMPLE.name}"

LOG = "demo/dpkg"

ENTRIES_BEFORE_KILL = 50_000
"""Acknowledged before the leader is killed, and by the standby before a bookie is: adds are then in full progress."""

ENTRIES_AFTER_RETURN = 50_000
"""Acknowledged after the killed bookie is back."""


class DemoError(Exception):
    """A check of the demo failed."""


class Story:
    """Prints what happens, with the time since the start."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._colours = sys.stdout.isatty()

    def tell(self, text: str, *, sign: str = "·", colour: int = 36) -> None:
        """Print one line."""
        mark = f"\x1b[{colour};1m{sign}\x1b[0m" if self._colours else sign
        print(f"{time.perf_counter() - self._begun:6.2f} s  {mark} {text}", flush=True)

    def fine(self, text: str) -> None:
        """Print that a check succeeded."""
        self.tell(text, sign="✓", colour=32)

    def bad(self, text: str) -> None:
        """Print a fault that the demo causes, or a failed check."""
        self.tell(text, sign="✗", colour=31)


class Leader:
    """A process of ``demo_leader.py``."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.end = 0
        """Everything below is acknowledged."""
        self._process = process
        self._ended = False
        self._changed = asyncio.Condition()
        self._leading: asyncio.Future[dict[str, int]] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def start(cls, uri: str, name: str) -> "Leader":
        """Start it."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(Path(__file__).with_name("demo_leader.py")), uri, LOG, name),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return cls(name, process)

    async def leads(self) -> dict[str, int]:
        """Its report, once it leads."""
        return await self._leading

    async def acknowledged(self, end: int) -> None:
        """Return once everything below ``end`` is. Raises :class:`DemoError` when the process ends before."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.end >= end or self._ended)
        if self.end < end:
            raise DemoError(f"the {self.name} ended early, with everything below {self.end:,} acknowledged")

    async def kill(self) -> None:
        """SIGKILL, if it still runs; returns once all its reports have been read."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        await self._reading

    async def stop(self) -> None:
        """Let it finish and give the lead back."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        status = await self._process.wait()
        await self._reading
        if status != 0:
            raise DemoError(f"the {self.name} ended with status {status}")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            facts = json.loads(line)
            if "leading" in facts:
                self._leading.set_result(facts)
            async with self._changed:
                self.end = max(self.end, facts.get("end", 0))
                self._changed.notify_all()
        if not self._leading.done():
            self._leading.set_exception(DemoError(f"the {self.name} ended before it led"))
            self._leading.exception()  # retrieved: it may have been killed while it waited
        self._ended = True
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def leaders(uri: str) -> AsyncIterator[tuple[Leader, Leader]]:
    """A leader and a standby, killed at the end of the block."""
    started: list[Leader] = []
    try:
        started.append(await Leader.start(uri, "leader"))
        await started[0].leads()
        started.append(await Leader.start(uri, "standby"))
        yield started[0], started[1]
    finally:
        for one in started:
            await one.kill()


class Follower:
    """Checks position after position, as they come."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines
        self.position = 0
        """The next that it expects."""
        self.terms: list[int] = []
        """In the order seen."""
        self._wanted = 0
        self._reached = asyncio.Event()

    async def follow(self, log: octavo.Log) -> None:
        """Follow for ever. Raises :class:`DemoError` for a position out of turn or with other content."""
        async for entry in log.follow(first=0):
            check_entry(entry, self.position, self._lines)
            if entry.term not in self.terms[-1:]:
                self.terms.append(entry.term)
            self.position += 1
            if self.position >= self._wanted:
                self._reached.set()

    async def reached(self, end: int) -> None:
        """Return once everything below ``end`` has been seen."""
        self._wanted = end
        self._reached.clear()
        if self.position < end:
            await self._reached.wait()


def log_password() -> bytes:
    """The password of the log; empty for a log without one."""
    return os.environb.get(b"OCTAVO_PASSWORD", b"")


def check_entry(entry: octavo.LogEntry, position: int, lines: list[bytes]) -> None:
    """Raise :class:`DemoError` unless the entry has this position and the line that belongs there."""
    if entry.position != position or entry.payload != lines[position % len(lines)]:
        raise DemoError(f"position {position:,} was expected, and {entry.position:,} came with {entry.payload!r}")


async def lead_through_crashes(
    uri: str, lines: list[bytes], cluster: Cluster, ready: dict[str, Any], story: Story
) -> int:
    """A log under load while its leader and a bookie are killed; the log's end."""
    password = log_password()
    async with (
        octavo.connect(uri) as client,
        client.create_log(LOG, password=password, private=bool(password)) as log,
    ):
        follower = Follower(lines)
        following = asyncio.create_task(follower.follow(log))
        async with leaders(uri) as (leader, standby):
            working = asyncio.create_task(through_crashes(leader, standby, cluster, ready, story))
            await asyncio.wait([following, working], return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                working.cancel()
                following.result()
            acknowledged = await working
        end = await log.refresh()
        if end < acknowledged:
            raise DemoError(f"positions below {acknowledged:,} were acknowledged, but the log ends at {end:,}")
        reached = asyncio.create_task(follower.reached(end))
        await asyncio.wait([following, reached], return_when=asyncio.FIRST_COMPLETED)
        for task in (following, reached):
            task.cancel()
        await asyncio.gather(following, reached, return_exceptions=True)
        if follower.position != end or follower.terms != [1, 2]:
            raise DemoError(f"the follower saw {follower.position:,} positions of {end:,}, terms {follower.terms}")
        story.fine(f"the follower saw every position once and in order: {end:,}, across both leaders")
        return end


async def through_crashes(
    leader: Leader, standby: Leader, cluster: Cluster, ready: dict[str, Any], story: Story
) -> int:
    """Kill the leader, then a bookie; the position below which everything is acknowledged at the end."""
    begun = time.perf_counter()
    story.tell(f"a leader adds {SAMPLE_NAME} repeatedly to the log {LOG}: 3 copies, acknowledged when 2 are synced")
    await leader.acknowledged(ENTRIES_BEFORE_KILL)
    await leader.kill()
    killed = time.perf_counter()
    story.bad(f"killed the leader (SIGKILL): everything below {leader.end:,} is acknowledged, adds are in flight")
    leading = await standby.leads()
    if leading["first_position"] < leader.end:
        raise DemoError(f"the standby begins at {leading['first_position']:,}, below what was acknowledged")
    await standby.acknowledged(leading["first_position"] + 1)
    story.fine(
        f"the standby leads in term {leading['leading']} from position {leading['first_position']:,}; its first add is"
        f" acknowledged {time.perf_counter() - killed:.2f} s after the kill, with a lease of {LEASE_SECONDS:g} s"
    )
    await standby.acknowledged(leading["first_position"] + ENTRIES_BEFORE_KILL)
    victim = ready["bookies"][1]
    os.kill(victim["pid"], signal.SIGKILL)
    story.bad(f"killed {victim['name']} (SIGKILL) at position {standby.end:,}")
    await asyncio.to_thread(cluster.wait_for, "started again")
    story.fine(f"{victim['name']} is back; meanwhile the leader went on, to position {standby.end:,}")
    await standby.acknowledged(standby.end + ENTRIES_AFTER_RETURN)
    await standby.stop()
    seconds = time.perf_counter() - begun
    story.fine(
        f"the leader gave the lead back: {standby.end:,} entries in {seconds:.1f} s, both crashes included"
        f" ({standby.end / seconds:,.0f} entries/s)"
    )
    return standby.end


async def read_and_compare(uri: str, end: int, lines: list[bytes], story: Story) -> None:
    """Read the whole log with a fresh client and compare it with what was added."""
    async with octavo.connect(uri) as client, client.open_log(LOG, password=log_password()) as log:
        begun = time.perf_counter()
        position = size = 0
        async for entry in log.entries():
            check_entry(entry, position, lines)
            position += 1
            size += len(entry.payload)
        seconds = time.perf_counter() - begun
        if position != end:
            raise DemoError(f"{position:,} entries came back of {end:,}")
        story.fine(
            f"a fresh client read all {position:,} entries back, every byte as added, in {seconds:.1f} s"
            f" ({position / seconds:,.0f} entries/s, {size / seconds / 1e6:,.0f} MB/s)"
        )


@contextmanager
def metadata_store(wanted: str, folder: Path, story: Story, *, secure: bool) -> Iterator[str | None]:
    """The URI of the metadata store: ``wanted`` itself, or for ``zk`` that of a ZooKeeper started here, over TLS if it
    is to be ``secure``. None: the embedded store, which `octavo up` creates."""
    if wanted != "zk":
        yield wanted or None
        return
    files = make_certificates(folder / "zookeeper-tls") if secure else {}
    with ServerGroup(folder / "zookeeper", settings=Settings(**files), outlives=False) as group:
        uri = secure_uri(group, folder / "zookeeper-tls") if secure else group.uri
        story.fine(f"a ZooKeeper server (from PySpark's jars) is running at {uri.partition('?')[0]}")
        yield uri


async def crash_and_compare(
    uri: str, lines: list[bytes], cluster: Cluster, ready: dict[str, Any], story: Story
) -> None:
    """The whole demo on a running cluster."""
    try:
        async with asyncio.timeout(2 * TIME_SECONDS_MAX):
            end = await lead_through_crashes(uri, lines, cluster, ready, story)
            await read_and_compare(uri, end, lines, story)
    except TimeoutError as error:
        raise DemoError(f"the demo did not end within {2 * TIME_SECONDS_MAX:g} s") from error


async def is_refused(uri: str, tls: octavo.Tls) -> bool:
    """Whether a bookie refuses the first entry of a ledger to a client that does not know its password."""
    async with octavo.connect(uri, tls=tls) as client:
        (ledger_id, *_) = [one async for one in client.list_ledgers()]
        bookie = (await client.ledger_metadata(ledger_id)).fragments[0].bookies[0]
        try:
            await client.read_replica(bookie, ledger_id, 0, 0)
        except octavo.UnauthorizedError:
            return True
        return False


def check_refusals(uri: str, security: Security, story: Story) -> None:
    """Raise :class:`DemoError` unless the bookies refuse clients without the password or without a key, and the audit
    log tells who came."""
    tls = octavo.Tls(ca=str(security.folder / "tls" / "ca.crt"))
    if not asyncio.run(is_refused(uri, tls), loop_factory=uvloop.new_event_loop):
        raise DemoError("a client without the log's password has read an entry")
    story.fine("a client with a key and without the log's password was refused: the log is private")
    del os.environ["OCTAVO_KEY_FILE"]
    if not asyncio.run(is_refused(uri, tls), loop_factory=uvloop.new_event_loop):
        raise DemoError("a client without a key has read an entry")
    lines = security.audited()
    if "demo" not in {line.get("principal") for line in lines if line["event"] == "authenticate"}:
        raise DemoError("the audit log does not tell of the principal demo")
    if not any(line["event"] == "read" and line["outcome"] == "refused" for line in lines):
        raise DemoError("the audit log does not tell of the refused read")
    story.fine(f"a client without a key was refused; the audit log has {len(lines)} lines, which tell of both")


def run(story: Story, metadata: str, *, secure: bool) -> None:
    """Run the demo. Raises :class:`DemoError`, :class:`ClusterError` or an Octavo error if a check fails."""
    lines = SAMPLE.read_bytes().splitlines(keepends=True)
    with temporary_folder() as folder, metadata_store(metadata, folder, story, secure=secure) as metadata_uri:
        security = Security.prepare(folder) if secure else None
        variables = security.bookie_variables() if security is not None else None
        with Cluster(folder, metadata_uri, variables=variables) as cluster:
            run_on(cluster, security, lines, story)


def run_on(cluster: Cluster, security: Security | None, lines: list[bytes], story: Story) -> None:
    """The demo on a cluster that is being started; stops it at the end."""
    ready = cluster.wait_for("ready")
    if security is not None:
        security.add_principal(ready["metadata"], "demo", "append")
        story.fine("the bookies require TLS and keys, and look new ledgers up; principal demo has a key, role append")
    story.fine(f"three bookies are running, processes {', '.join(str(bookie['pid']) for bookie in ready['bookies'])}")
    work = crash_and_compare(ready["metadata"], lines, cluster, ready, story)
    asyncio.run(work, loop_factory=uvloop.new_event_loop)
    if security is not None:
        check_refusals(ready["metadata"], security, story)
    cluster.stop()
    story.fine("everything stopped")


def main() -> int:
    """Run the demo; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--metadata", default="", help="zk for a ZooKeeper of its own, or a URI (the embedded store)")
    parser.add_argument("--secure", action="store_true", help="with TLS, keys, a private log and the audit log")
    arguments = parser.parse_args()
    story = Story()
    try:
        run(story, arguments.metadata, secure=arguments.secure)
    except (DemoError, ClusterError, ZooKeeperError, octavo.OctavoError) as error:
        story.bad(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
