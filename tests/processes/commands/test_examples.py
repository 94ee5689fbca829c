"""The programs of examples/, run as their readers would run them, on a cluster of real processes."""

import asyncio
import contextlib
import json
import runpy
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands.processes import Up, environment
from support.tree import ROOT
from support.waiting import WAIT_SECONDS, eventually, wait_until

import octavo

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def cluster(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "data") as up:
        yield up.wait_ready()


class Program:
    """A program of examples/. Leaving its block leaves nothing running."""

    def __init__(self, name: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", EXAMPLES / name, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, command: str) -> str:
        """The answer to a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.line()

    def line(self) -> str:
        """The next line that it prints; pytest's timeout ends a test in which none comes."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")


def test_a_key_value_store_survives_kill_9_of_its_leader(cluster: Up) -> None:
    with Program("key_value_store.py", cluster.uri, "store") as first:
        assert first.line() == "leading in term 1"
        with Program("key_value_store.py", cluster.uri, "store") as second:
            for number in range(50):
                assert first.ask(f"set key-{number % 10} value {number}") == "ok"
            assert first.ask("get key-3") == "value 43"
            first.process.kill()
            assert second.line() == "leading in term 2"
            assert [second.ask(f"get key-{number}") for number in range(10)] == [
                f"value {number}" for number in range(40, 50)
            ]
            assert second.ask("set key-3 after the failover") == "ok"
            assert second.ask("get key-3") == "after the failover"
            assert second.ask("get key-10") == ""
            _, _ = second.process.communicate(timeout=WAIT_SECONDS)
            assert second.process.returncode == 0


async def entries_of(uri: str, name: str) -> list[bytes]:
    async with octavo.connect(uri) as client, client.open_log(name) as log:
        return [entry.payload async for entry in log.entries()]


async def wait_for_end(uri: str, name: str, end: int) -> None:
    async with asyncio.timeout(WAIT_SECONDS), octavo.connect(uri) as client:

        async def exists() -> bool:
            return name in [name async for name in client.list_logs()]

        await eventually(exists)
        async with client.open_log(name) as log:
            async for entry in log.follow():
                if entry.position + 1 >= end:
                    return


def test_an_outbox_is_published_exactly_once_although_the_relay_is_killed(cluster: Up, tmp_path: Path) -> None:
    database, ordered, orders = tmp_path / "service.db", 20, 3000
    with Program("outbox.py", "order", database, *range(ordered)) as ordering:
        assert ordering.process.wait(WAIT_SECONDS) == 0
    place_order = runpy.run_path(str(EXAMPLES / "outbox.py"))["place_order"]
    with contextlib.closing(sqlite3.connect(database)) as service:
        service.execute("PRAGMA synchronous = OFF")  # thousands of orders, without a wait for the disk for each
        for number in range(ordered, orders):
            place_order(service, str(number))
    with Program("outbox.py", "relay", database, cluster.uri, "events") as relay:
        asyncio.run(wait_for_end(cluster.uri, "events", 100))
        relay.process.send_signal(signal.SIGKILL)
        assert relay.process.wait(WAIT_SECONDS) == -signal.SIGKILL
    before = len(asyncio.run(entries_of(cluster.uri, "events")))
    with Program("outbox.py", "relay", database, cluster.uri, "events") as relay:
        published = int(relay.line().split()[1])
        assert relay.process.wait(WAIT_SECONDS) == 0
    events = [json.loads(payload) for payload in asyncio.run(entries_of(cluster.uri, "events"))]
    assert [event["id"] for event in events] == list(range(1, orders + 1))
    assert [event["item"] for event in events] == list(map(str, range(orders)))
    # The second relay began where the log ended, not where the outbox did.
    assert 0 < published <= orders - before


def test_a_change_feed_goes_on_where_it_was(cluster: Up) -> None:
    assert cluster.run("log", "create", "changes").status == 0
    assert cluster.run("log", "append", "changes", stdin=b"a\nb\nc\n").status == 0

    def stored() -> list[int]:
        lines = cluster.run("log", "cursors", "changes", "--json").stdout.splitlines()
        return [json.loads(line)["position"] for line in lines]

    with Program("change_feed.py", cluster.uri, "changes", "search-index") as consumer:
        assert [consumer.line() for _ in range(3)] == ["0 a", "1 b", "2 c"]
        wait_until(lambda: stored() == [3], "the cursor is stored")
    assert cluster.run("log", "append", "changes", stdin=b"d\n").status == 0
    with Program("change_feed.py", cluster.uri, "changes", "search-index") as consumer:
        assert consumer.line() == "3 d"
