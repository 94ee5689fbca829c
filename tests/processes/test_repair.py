"""Repair with real bookies: killed for good, stopped and continued, drained under load, with new disks. No add fails,
and everything that was acknowledged can be read."""

import asyncio
import contextlib
import json
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support.processes import BookieProcess, Finished, octavo
from support.waiting import pause, wait_until

import octavo as octavo_client

BOOKIES = 5

SETTINGS = """
repair_lost_seconds = 1.0
repair_audit_seconds = 1.0
repair_open_seconds = 5.0
lease_seconds = 1.0
journal_segment_bytes = 16777216
"""


class Cluster:
    """Bookies ``b0``, ``b1``, ... in processes of their own, on a SQLite store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = f"sqlite:///{folder}/metadata.db"
        (folder / "bookie.toml").write_text(SETTINGS)
        self.running: dict[str, BookieProcess] = {}
        self._stack = contextlib.ExitStack()

    def start(self, name: str) -> None:
        process = BookieProcess(
            self.folder / name, "--config", self.folder / "bookie.toml", "--bookie-id", name, "--port", 0,
            "--metadata", self.uri,
        )  # fmt: skip
        self._stack.enter_context(process)
        self.running[name] = process.wait_ready()

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        self.running.pop(name).stop(number)

    def close(self) -> None:
        self._stack.close()

    def run(self, *arguments: object) -> Finished:
        return octavo(*arguments, "--metadata", self.uri)

    def known(self) -> set[str]:
        return {bookie["bookie_id"] for bookie in self.run("bookies", "--json").json}

    def status(self) -> dict[str, object]:
        return dict(self.run("repair", "status", "--json").json)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        octavo("cluster", "init", "--metadata", made.uri)
        for number in range(BOOKIES):
            made.start(f"b{number}")
        yield made
    finally:
        made.close()
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


async def check(client: octavo_client.Client, ledgers: dict[int, int]) -> None:
    for ledger_id, entries in ledgers.items():
        async with client.open_ledger(ledger_id) as reader:
            read = await reader.read(0, entries - 1)
            assert [entry.payload for entry in read] == [b"%d" % number for number in range(entries)]


async def test_a_drained_bookie_is_retired_and_a_killed_one_is_repaired_under_load(cluster: Cluster) -> None:
    async with octavo_client.connect(cluster.uri, bookie_loss_seconds=0.1) as client:
        ledgers: dict[int, int] = {}
        for _ in range(12):
            async with client.create_ledger() as writer:
                await writer.add_many([b"%d" % number for number in range(20)])
            ledgers[writer.id] = 20
        async with loaded(client) as load:
            drained = await asyncio.to_thread(cluster.run, "repair", "drain", "b0", "--wait", "--timeout", 50)
            assert drained.status == 0, drained
            assert not [one for one in (*ledgers, load.writer.id) if "b0" in await named_in(client, one)]
            await asyncio.to_thread(cluster.stop, "b0")
            assert (await asyncio.to_thread(cluster.run, "repair", "retire", "b0")).status == 0
            assert cluster.known() == {"b1", "b2", "b3", "b4"}
            # A bookie dies for good, and another one, perhaps a target or the auditor, is stopped for a moment.
            await asyncio.to_thread(cluster.stop, "b1", signal.SIGKILL)
            cluster.running["b2"].process.send_signal(signal.SIGSTOP)
            await pause(2.0)  # longer than a lease
            cluster.running["b2"].process.send_signal(signal.SIGCONT)
            await asyncio.to_thread(wait_until, lambda: _condition(cluster, "b1") == "lost", "b1 to be lost")
            whole = await asyncio.to_thread(cluster.run, "repair", "wait", "--timeout", 50)
            assert whole.status == 0, (whole, cluster.status())
        ledgers[load.writer.id] = load.acknowledged
        assert load.acknowledged
        whole = await asyncio.to_thread(cluster.run, "repair", "wait", "--timeout", 50)
        assert whole.status == 0, (whole, cluster.status())
        for ledger_id in ledgers:
            assert not await named_in(client, ledger_id) & {"b0", "b1"}, ledger_id
        await check(client, ledgers)
    cluster.run("repair", "retire", "b1", "--lost").failed_with_one_line(1, "give --yes")
    assert cluster.run("repair", "retire", "b1").status == 0
    assert cluster.known() == {"b2", "b3", "b4"}
    refused = BookieProcess(cluster.folder / "b1", "--bookie-id", "b1", "--port", 0, "--metadata", cluster.uri)
    with refused:
        assert refused.wait() == 78


async def test_a_held_bookie_is_restarted_without_a_copy_and_one_with_new_disks_is_filled_again(
    cluster: Cluster,
) -> None:
    async with octavo_client.connect(cluster.uri) as client:
        ledgers: dict[int, int] = {}
        for _ in range(6):
            async with client.create_ledger(2, 2, 2) as writer:
                await writer.add_many([b"%d" % number for number in range(20)])
            ledgers[writer.id] = 20
        assert cluster.run("repair", "hold", "b3", "--for", "10m", "--reason", "restart").status == 0
        cluster.stop("b3")
        wait_until(lambda: _condition(cluster, "b3") == "held", "b3 to be held")
        await pause(2.5)  # longer than a bookie may be missing
        cluster.start("b3")
        assert cluster.run("repair", "release", "b3").status == 0
        assert cluster.run("repair", "wait", "--timeout", 50).status == 0
        assert _copied(cluster) == 0
        assert cluster.run("repair", "hold", "b4", "--for", "10m").status == 0
        cluster.stop("b4")
        shutil.rmtree(cluster.folder / "b4")
        (cluster.folder / "b4").mkdir()
        reset = cluster.run("bookie", "reset-identity", cluster.folder / "b4", "--bookie-id", "b4")
        assert reset.status == 0, reset
        cluster.start("b4")
        assert cluster.run("repair", "release", "b4").status == 0
        wait_until(lambda: not _in_doubt(cluster, "b4"), "the doubt of b4 to end")
        whole = cluster.run("repair", "wait", "--timeout", 50)
        assert whole.status == 0, (whole, cluster.status())
        checked = cluster.run("repair", "check", *ledgers, "--timeout", 50)
        assert checked.status == 0, (checked, cluster.status())
        for name in ("b0", "b1", "b2", "b3"):
            held = [one for one in ledgers if await named_in(client, one) == {name, "b4"}]
            if held:
                cluster.stop(name, signal.SIGKILL)  # what b4 has is the only copy now
                await check(client, {one: ledgers[one] for one in held})
                break


def _condition(cluster: Cluster, name: str) -> str:
    bookies = json.loads(json.dumps(cluster.status()["bookies"]))
    return next((str(one["state"]) for one in bookies if one["bookie_id"] == name), "unknown")


def _in_doubt(cluster: Cluster, name: str) -> bool:
    return any(one["in_doubt"] for one in cluster.run("bookies", "--json").json if one["bookie_id"] == name)


def _copied(cluster: Cluster) -> int:
    return sum(one.get("repair_entries_copied", 0) for one in cluster.run("bookies", "--json").json)
