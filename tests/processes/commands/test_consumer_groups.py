"""Consumer groups of clients that others have written, at a gateway; members and gateways are killed (rule K10)."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Self

import pytest
from support.commands.processes import OCTAVO, WAIT_SECONDS, Up, environment, free_neighbours, wait_until
from support.tree import ROOT

PROGRAM = ROOT / "tests" / "support" / "programs" / "kafka_groups.py"
CLIENTS = ["aiokafka", "kafka-python", "confluent-kafka"]
PARTITIONS = 4
COUNT = 200


def run(*arguments: object) -> list[Any]:
    """What a program has printed."""
    done = subprocess.run(
        [sys.executable, PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


class Member:
    """A member of a group in a process of its own, and what it has said. It is killed at the end."""

    def __init__(self, client: str, address: str, group: str, topic: str) -> None:
        self.client = client
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM, client, address, group, topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(),
        )
        self.numbers: list[int] = []
        self.assigned: list[int] = []
        self.committed: dict[str, int] = {}
        """The latest offsets whose commit was answered."""
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            self.numbers += said.get("got", [])
            self.assigned = said.get("assigned", self.assigned)
            self.committed |= said.get("committed", {})

    def __repr__(self) -> str:
        return f"{self.client}: assigned {self.assigned}, {len(self.numbers)} numbers, committed {self.committed}"

    def has_read_and_committed(self, count: int) -> bool:
        """Whether it has all numbers below ``count``."""
        return {*self.numbers} == set(range(count)) and sum(self.committed.values()) == count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()

    def end(self) -> None:
        """Let it leave the group."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(WAIT_SECONDS) == 0
        self._reader.join()


@pytest.fixture(scope="module")
def up(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "data", "--kafka", 0) as running:
        yield running.wait_ready()


@pytest.mark.parametrize("client", CLIENTS)
def test_members_share_a_topic_and_one_takes_over_from_one_that_was_killed(up: Up, client: str) -> None:
    topic = group = f"work-{client}"
    run("topic", up.kafka, topic, PARTITIONS)
    with Member(client, up.kafka, group, topic) as killed, Member(client, up.kafka, group, topic) as left:
        wait_until(lambda: len(killed.assigned) == len(left.assigned) == PARTITIONS // 2, "both have partitions")
        assert sorted(killed.assigned + left.assigned) == list(range(PARTITIONS))
        run("produce", up.kafka, topic, PARTITIONS, 0, COUNT)
        wait_until(lambda: {*killed.numbers, *left.numbers} == set(range(COUNT)), "all numbers are read")
        assert killed.numbers
        assert left.numbers
        killed.kill()
        run("produce", up.kafka, topic, PARTITIONS, COUNT, 2 * COUNT)
        wait_until(lambda: {*left.numbers} >= set(range(COUNT, 2 * COUNT)), "the one that is left reads all numbers")
        assert left.assigned == list(range(PARTITIONS))
        left.end()
    (found,) = run("committed", up.kafka, group, topic, PARTITIONS)
    assert found == {str(partition): 2 * COUNT // PARTITIONS for partition in range(PARTITIONS)}


@contextmanager
def gateway(uri: str, port: int) -> Iterator[subprocess.Popen[str]]:
    """`octavo gateway`, once it serves. It is killed at the end."""
    with subprocess.Popen(
        [*OCTAVO, "gateway", "--metadata", uri, "--listen", f"127.0.0.1:{port}", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == {"event": "ready", "address": f"127.0.0.1:{port}"}
            yield process
        finally:
            process.kill()


def test_no_commit_that_was_answered_goes_back_when_the_gateway_is_killed(tmp_path: Path) -> None:
    """A member of each client goes on by itself at the next gateway, and reads everything."""
    port = free_neighbours(1)
    address = f"127.0.0.1:{port}"
    with Up(tmp_path / "data").wait_ready() as up, ExitStack() as stack:
        serving = ExitStack()
        stack.callback(serving.close)
        serving.enter_context(gateway(up.uri, port))
        run("topic", address, "work", PARTITIONS)
        members = {client: stack.enter_context(Member(client, address, client, "work")) for client in CLIENTS}
        run("produce", address, "work", PARTITIONS, 0, COUNT)
        wait_until(lambda: all(len(one.committed) == PARTITIONS for one in members.values()), "all commit")
        serving.close()  # kills it
        answered = {client: dict(one.committed) for client, one in members.items()}
        serving.enter_context(gateway(up.uri, port))
        for client, offsets in answered.items():
            (found,) = run("committed", address, client, "work", PARTITIONS)
            assert all(found[partition] >= offset for partition, offset in offsets.items()), (found, offsets)
        run("produce", address, "work", PARTITIONS, COUNT, 2 * COUNT)
        for member in members.values():
            wait_until(partial(member.has_read_and_committed, 2 * COUNT), partial(repr, member))
            member.end()
