"""A balance with real bookies: a fourth one joins three that are full, gets its share, is killed in the middle, and
everything can be read; and what `octavo repair balance` says."""

import contextlib
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands.processes import OCTAVO, BookieProcess, Finished, environment, octavo
from support.waiting import WAIT_SECONDS, wait_until

import octavo as octavo_client

SETTINGS = """
repair_lost_seconds = 600.0
repair_audit_seconds = 1.0
lease_seconds = 3.0
journal_segment_bytes = 16777216
entry_log_bytes = 1048576
checkpoint_seconds = 1.0
garbage_seconds = 1.0
compaction_major_seconds = 1.0
replaced_copies_seconds = 2.0
repair_bytes_per_second = {rate}
"""

LEDGERS, ENTRIES, PAYLOAD_BYTES = 24, 40, 10_000


class Cluster:
    """Bookies ``b0``, ``b1``, ... in processes of their own, on a store of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = f"sqlite:///{folder}/metadata.db"
        self.running: dict[str, BookieProcess] = {}
        self._stack = contextlib.ExitStack()
        assert octavo("cluster", "init", "--metadata", self.uri).status == 0

    def start(self, *names: str, rate: int = 64 << 20) -> None:
        for name in names:
            config = self.folder / f"{name}.toml"
            config.write_text(SETTINGS.format(rate=rate))
            self.running[name] = self._stack.enter_context(
                BookieProcess(
                    self.folder / name, "--config", config, "--bookie-id", name, "--port", 0, "--metadata", self.uri
                )
            )
        for name in names:
            self.running[name].wait_ready()

    def kill(self, name: str) -> None:
        self.running.pop(name).stop(signal.SIGKILL)

    def close(self) -> None:
        self._stack.close()

    def run(self, *arguments: object) -> Finished:
        return octavo(*arguments, "--metadata", self.uri)

    def balance(self) -> dict[str, Any]:
        return dict(self.run("repair", "status", "--json").json["balance"] or {})

    def log_bytes(self) -> dict[str, int]:
        """Bytes of the entry logs of each bookie."""
        return {name: sum(map(size_of, (self.folder / name / "entries").rglob("*"))) for name in self.running}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(tmp_path, ignore_errors=True)


def size_of(path: Path) -> int:
    """The size of a file; 0 if it has been removed just now."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0


def payload(ledger_id: int, number: int) -> bytes:
    return f"{ledger_id}/{number}/".encode().ljust(PAYLOAD_BYTES, b".")


async def fill(uri: str) -> list[int]:
    async with await octavo_client.connect(uri) as client:
        ledgers: list[int] = []
        for _ in range(LEDGERS):
            async with client.create_ledger(3, 3, 2) as writer:
                await writer.add_many([payload(writer.id, number) for number in range(ENTRIES)])
            ledgers.append(writer.id)
        return ledgers


async def read_back(uri: str, ledgers: list[int]) -> dict[str, int]:
    """Every entry of every ledger, and how many ledgers name each bookie."""
    counts: dict[str, int] = {}
    async with await octavo_client.connect(uri) as client:
        for ledger_id in ledgers:
            async with client.open_ledger(ledger_id, recover=False) as reader:
                read = await reader.read(0, ENTRIES - 1)
                assert [entry.payload for entry in read] == [payload(ledger_id, one) for one in range(ENTRIES)]
            metadata = await client.ledger_metadata(ledger_id)
            (fragment,) = metadata.fragments
            assert len(set(fragment.bookies)) == 3
            for name in fragment.bookies:
                counts[name] = counts.get(name, 0) + 1
    return counts


async def test_a_fourth_bookie_gets_its_share_also_when_it_is_killed_in_the_middle(cluster: Cluster) -> None:
    cluster.start("b0", "b1", "b2")
    ledgers = await fill(cluster.uri)
    share = LEDGERS * 3 // 4
    wait_until(lambda: min(cluster.log_bytes().values()) >= LEDGERS * ENTRIES * PAYLOAD_BYTES, "all is checkpointed")
    before = cluster.log_bytes()

    cluster.start("b3", rate=600_000)
    plan = cluster.run("repair", "balance", "--dry-run", "--json")
    assert plan.status == 0, plan
    assert len(plan.json["moves"]) == share
    assert {move["to"] for move in plan.json["moves"]} == {"b3"}
    assert plan.json["even"] is True
    assert cluster.balance() == {}, "nothing was asked for"
    assert (await read_back(cluster.uri, ledgers)).get("b3", 0) == 0

    asked = cluster.run("repair", "balance", "--wait", "--timeout", 0)
    assert asked.status == 1
    assert "the balance goes on" in asked.stderr
    wait_until(lambda: cluster.balance()["moved"] > 0, "a ledger is moved")
    cluster.kill("b3")
    assert cluster.balance()["moved"] < share, "it was killed in the middle"
    await read_back(cluster.uri, ledgers)

    cluster.start("b3")
    ended = cluster.run("repair", "balance", "--wait", "--timeout", WAIT_SECONDS)
    assert ended.status == 0, (ended, cluster.balance())
    assert b"every bookie holds its share, within 5%" in ended.stdout
    counts = await read_back(cluster.uri, ledgers)
    assert counts == dict.fromkeys(("b0", "b1", "b2", "b3"), share)

    # The others drop what they gave up, and compaction gives the space back.
    def is_smaller() -> bool:
        now = cluster.log_bytes()
        return all(now[name] < 0.9 * before[name] for name in before)

    wait_until(is_smaller, "space comes back")
    after = cluster.log_bytes()
    (cluster.folder / "bytes.json").write_text(json.dumps({"before": before, "after": after}))
    assert after["b3"] >= share * ENTRIES * PAYLOAD_BYTES
    assert await read_back(cluster.uri, ledgers) == counts
    checked = cluster.run("repair", "check", *ledgers, "--timeout", WAIT_SECONDS)
    assert checked.status == 0, checked


def test_ctrl_c_only_ends_the_waiting_and_stop_ends_the_balance(cluster: Cluster) -> None:
    cluster.start("b0", "b1", "b2")
    assert cluster.run("repair", "pause").status == 0
    said = cluster.folder / "said.txt"
    with said.open("wb") as stderr:
        waiting = subprocess.Popen(
            [*OCTAVO, "repair", "balance", "--wait", "--metadata", cluster.uri], env=environment(), stderr=stderr
        )
    # The metadata show that it waits before the command has read them again and said so.
    wait_until(lambda: "the balance waits: repair is paused\n" in said.read_text(), "the command says why it waits")
    assert cluster.balance()["phase"] == "waiting"
    assert cluster.balance()["reason"] == "repair is paused"
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(WAIT_SECONDS) == 130, said.read_text()
    assert "the balance goes on; `octavo repair balance --stop` ends it" in said.read_text()
    assert cluster.balance()["phase"] == "waiting"
    assert b"balance   waiting, 0 ledgers moved" in cluster.run("repair", "status").stdout
    assert cluster.run("repair", "balance", "--stop").status == 0
    assert cluster.balance()["phase"] == "stopped"
    again = cluster.run("repair", "balance", "--stop")
    assert (again.status, again.stderr) == (1, "octavo: no balance is under way\n")
    for wrong in (("--stop", "--wait"), ("--dry-run", "--wait"), ("--timeout", 3)):
        assert cluster.run("repair", "balance", *wrong).status == 2
