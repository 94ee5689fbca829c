"""Repair with real bookies: killed for good, stopped and continued, drained under load, with new disks. No add fails,
and everything that was acknowledged can be read."""

import asyncio
import contextlib
import functools
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from octavo.metadata import open_metadata_store
from octavo.repair.base.documents import WORK_PREFIX, target_of_work
from support.commands.processes import BookieProcess, Finished, octavo
from support.metadata.zookeeper import new_cluster_uri
from support.waiting import WAIT_SECONDS, eventually, pause, wait_until

import octavo as octavo_client

BOOKIES = 5

SETTINGS = """
repair_lost_seconds = {lost_seconds}
repair_audit_seconds = 1.0
repair_open_seconds = 5.0
lease_seconds = 3.0
journal_segment_bytes = 16777216
repair_bytes_per_second = 262144
"""

type MakeCluster = Callable[..., Cluster]

SQLITE, ZOOKEEPER = "sqlite", "zookeeper"
BOTH = bool(os.environ.get("OCTAVO_BOTH_DRIVERS"))
"""Set by `make soak`. In the suite each test runs on one driver, because each takes half a minute: together they run
the agents on both."""


class Cluster:
    """Bookies ``b0``, ``b1``, ... in processes of their own, on a store of their own."""

    def __init__(self, folder: Path, driver: str, lost_seconds: float) -> None:
        self.folder = folder
        self.uri = new_cluster_uri() if driver == ZOOKEEPER else f"sqlite:///{folder}/metadata.db"
        (folder / "bookie.toml").write_text(SETTINGS.format(lost_seconds=lost_seconds))
        self.running: dict[str, BookieProcess] = {}
        self._stack = contextlib.ExitStack()

    def start(self, *names: str) -> None:
        for name in names:
            self.running[name] = self._stack.enter_context(
                BookieProcess(
                    self.folder / name, "--config", self.folder / "bookie.toml", "--bookie-id", name, "--port", 0,
                    "--metadata", self.uri,
                )
            )  # fmt: skip
        for name in names:
            self.running[name].wait_ready()

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        self.running.pop(name).stop(number)

    def close(self) -> None:
        self._stack.close()

    def run(self, *arguments: object) -> Finished:
        return octavo(*arguments, "--metadata", self.uri)

    def known(self) -> set[str]:
        return {bookie["bookie_id"] for bookie in self.run("bookies", "--json").json}

    def status(self) -> dict[str, Any]:
        return dict(self.run("repair", "status", "--json").json)

    def wait_whole(self) -> None:
        whole = self.run("repair", "wait", "--timeout", WAIT_SECONDS)
        assert whole.status == 0, (whole, self.status())

    def condition(self, name: str) -> str:
        return next((one["state"] for one in self.status()["bookies"] if one["bookie_id"] == name), "unknown")

    def copied(self) -> dict[str, int]:
        """Entries that each bookie has copied since it was started."""
        return {one["bookie_id"]: one.get("repair_entries_copied", 0) for one in self.run("bookies", "--json").json}


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    with contextlib.ExitStack() as stack:

        def make(driver: str, *, lost_seconds: float) -> Cluster:
            made = Cluster(tmp_path, driver, lost_seconds)
            stack.callback(made.close)
            assert octavo("cluster", "init", "--metadata", made.uri).status == 0
            made.start(*(f"b{number}" for number in range(BOOKIES)))
            return made

        yield make
    shutil.rmtree(tmp_path, ignore_errors=True)


class Load:
    """One producer that adds to one ledger until told to stop; its failure fails the test."""

    def __init__(self, writer: octavo_client.LedgerWriter) -> None:
        self.writer = writer
        self.acknowledged = 0
        self._stopping = False
        self._task = asyncio.ensure_future(self._produce())

    async def _produce(self) -> None:
        while not self._stopping:
            assert await self.writer.add(b"%d" % self.acknowledged) == self.acknowledged
            self.acknowledged += 1
            await pause()

    async def end(self) -> None:
        self._stopping = True
        await self._task
        await self.writer.close()


@contextlib.asynccontextmanager
async def loaded(client: octavo_client.Client) -> AsyncIterator[Load]:
    load = Load(await client.create_ledger())
    try:
        yield load
    finally:
        await load.end()


async def named_in(client: octavo_client.Client, ledger_id: int) -> frozenset[str]:
    return (await client.ledger_metadata(ledger_id)).members


async def is_free_of(client: octavo_client.Client, ledger_id: int, name: str) -> bool:
    return name not in await named_in(client, ledger_id)


async def check(client: octavo_client.Client, ledgers: dict[int, int]) -> None:
    for ledger_id, entries in ledgers.items():
        async with client.open_ledger(ledger_id) as reader:
            read = await reader.read(0, entries - 1)
            assert [entry.payload for entry in read] == [b"%d" % number for number in range(entries)]


async def write(client: octavo_client.Client, count: int, *sizes: int) -> dict[int, int]:
    """Closed ledgers, each with its number of entries."""
    ledgers: dict[int, int] = {}
    for _ in range(count):
        async with client.create_ledger(*sizes) as writer:
            await writer.add_many([b"%d" % number for number in range(20)])
        ledgers[writer.id] = 20
    return ledgers


async def stop_a_target_for_a_moment(cluster: Cluster) -> None:
    """Stop a process that has a plan for longer than its lease lasts, and continue it: it may name itself late."""
    async with await open_metadata_store(cluster.uri) as store:
        targets: list[str] = []

        async def a_target_has_work() -> bool:
            targets[:] = [str(target_of_work(name)) async for name in store.list_documents(WORK_PREFIX)]
            return bool(targets)

        await eventually(a_target_has_work, "a plan for a target")
        process = cluster.running[targets[0]].process
        process.send_signal(signal.SIGSTOP)
        try:
            await pause(4.0)
        finally:
            process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("driver", [SQLITE, ZOOKEEPER] if BOTH else [ZOOKEEPER])
async def test_a_drained_bookie_is_retired_and_a_killed_one_is_repaired_under_load(
    make_cluster: MakeCluster, driver: str
) -> None:
    cluster = make_cluster(driver, lost_seconds=1.0)
    async with octavo_client.connect(
        cluster.uri, bookie_loss_seconds=0.1, add_quorum_timeout_seconds=WAIT_SECONDS
    ) as client:
        ledgers, large = await write(client, 12), list[int]()
        async with loaded(client) as load:
            drained = await asyncio.to_thread(cluster.run, "repair", "drain", "b0", "--wait", "--timeout", WAIT_SECONDS)
            assert drained.status == 0, drained
            assert not [one for one in (*ledgers, load.writer.id) if "b0" in await named_in(client, one)]
            await asyncio.to_thread(cluster.stop, "b0")
            assert (await asyncio.to_thread(cluster.run, "repair", "retire", "b0")).status == 0
            assert cluster.known() == {"b1", "b2", "b3", "b4"}
            ledgers |= await write(client, 1, 4, 4, 3)
            all_members = max(ledgers)
            for _ in range(3):  # enough to copy for some seconds, so that a target is found at work
                async with client.create_ledger() as writer:
                    await writer.add_many([bytes(4096)] * 200)
                large.append(writer.id)
            # A bookie dies for good, and one that is to take its place stands still for a while.
            await asyncio.to_thread(cluster.stop, "b1", signal.SIGKILL)
            await stop_a_target_for_a_moment(cluster)
            await asyncio.to_thread(wait_until, lambda: cluster.condition("b1") == "lost", "b1 to be lost")
        ledgers[load.writer.id] = load.acknowledged
        assert load.acknowledged
        for ledger_id in {*ledgers, *large} - {all_members}:
            await eventually(functools.partial(is_free_of, client, ledger_id, "b1"), "b1 to be replaced")
        await check(client, ledgers)
    # Four members, and three bookies are left: nothing is blocked silently.
    (blocked,) = [one for one in cluster.status()["blocked"] if one["ledger_id"] == all_members]
    assert (blocked["class"], blocked["bookies"]) == ("no_target", ["b1"])
    cluster.run("repair", "wait", "--timeout", 1).failed_with_one_line(1, "not everything is whole after 1 s")
    cluster.start("b5")
    cluster.wait_whole()
    cluster.run("repair", "retire", "b1", "--lost").failed_with_one_line(1, "give --yes")
    assert cluster.run("repair", "retire", "b1").status == 0
    assert cluster.known() == {"b2", "b3", "b4", "b5"}
    refused = BookieProcess(cluster.folder / "b1", "--bookie-id", "b1", "--port", 0, "--metadata", cluster.uri)
    with refused:
        assert refused.wait() == 78


@pytest.mark.parametrize("driver", [SQLITE, ZOOKEEPER] if BOTH else [SQLITE])
async def test_an_emptied_bookie_ends_whole_or_named_and_a_rolling_restart_copies_nothing(
    make_cluster: MakeCluster, driver: str
) -> None:
    cluster = make_cluster(driver, lost_seconds=600.0)
    async with octavo_client.connect(cluster.uri) as client:
        ledgers = await write(client, 6, 2, 2, 2)
    async with octavo_client.connect(cluster.uri) as client:
        while True:  # one that stays open, with b4 in its last fragment
            writer = await client.create_ledger(2, 2, 2)
            await writer.add_many([b"%d" % number for number in range(20)])
            ledgers[writer.id] = 20
            if "b4" in writer.metadata.last_fragment.bookies:
                break
            await writer.close()
        cluster.stop("b4")
        shutil.rmtree(cluster.folder / "b4")
        (cluster.folder / "b4").mkdir()
        reset = cluster.run("bookie", "reset-identity", cluster.folder / "b4", "--bookie-id", "b4")
        assert reset.status == 0, reset
        cluster.start("b4")
        wait_until(
            lambda: [one["ledger_id"] for one in cluster.status()["blocked"]] == [writer.id], "one ledger to block"
        )
        (blocked,) = cluster.status()["blocked"]
        assert (blocked["class"], blocked["bookies"]) == ("open", ["b4"])
        assert "in doubt" in blocked["reason"]
        assert cluster.run("ledger", "recover", writer.id).status == 0
    cluster.stop("b0")
    cluster.start("b0")  # what is blocked is tried again when a bookie registers
    wait_until(lambda: cluster.condition("b4") == "ordinary", "the doubt of b4 to end")
    cluster.wait_whole()
    before = cluster.copied()
    for name in ("b1", "b2", "b3", "b4"):
        cluster.stop(name)
        cluster.start(name)
        cluster.wait_whole()
    assert cluster.copied() == dict.fromkeys(cluster.running, 0) | {"b0": before["b0"]}
    async with octavo_client.connect(cluster.uri) as client:
        checked = cluster.run("repair", "check", *ledgers, "--timeout", WAIT_SECONDS)
        assert checked.status == 0, (checked, cluster.status())
        (held, *_) = [one for one in ledgers if "b4" in await named_in(client, one)]
        for name in await named_in(client, held) - {"b4"}:
            cluster.stop(name, signal.SIGKILL)  # what b4 has is the only copy now
        await check(client, {held: ledgers[held]})
        assert cluster.run("repair", "hold", "b4", "--for", "10m", "--reason", "memory").status == 0
        assert cluster.condition("b4") == "held"
        assert cluster.run("repair", "release", "b4").status == 0


async def test_a_bookie_that_is_held_while_it_is_away_is_not_copied(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(SQLITE, lost_seconds=3.0)
    async with octavo_client.connect(cluster.uri) as client:
        await write(client, 6, 2, 2, 2)
    assert cluster.run("repair", "hold", "b3", "--for", "10m", "--reason", "restart").status == 0
    cluster.stop("b3")
    wait_until(lambda: cluster.condition("b3") == "held", "b3 to be held")
    await pause(5.0)  # longer than a bookie may be missing
    cluster.start("b3")
    assert cluster.run("repair", "release", "b3").status == 0
    cluster.wait_whole()
    assert set(cluster.copied().values()) == {0}
