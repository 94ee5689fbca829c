"""Three gateways of a cluster, with clients of other makers; those that lead are killed (rules K2 to K5, K9, K10)."""

import json
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO

from support.commands.gateways import CLIENTS, GROUPS, Member, gateway, run_client
from support.commands.processes import WAIT_SECONDS, Up, environment, free_neighbours, wait_until

GATEWAYS = 3
KILLS = 2
ACKNOWLEDGED_BETWEEN = 500
"""Messages that are acknowledged between two kills."""

MEMBERS = ["aiokafka", "kafka-python", "confluent-kafka"]
PARTITIONS = 6
COUNT = 300


class Gateways:
    """Gateways by their ports. They are killed at the end."""

    def __init__(self, uri: str, stack: ExitStack) -> None:
        self._uri = uri
        first = free_neighbours(GATEWAYS)
        self.ports = range(first, first + GATEWAYS)
        self.addresses = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self._running = {port: stack.enter_context(ExitStack()) for port in self.ports}
        for port in self.ports:
            self.start(port)

    def start(self, port: int) -> None:
        self._running[port].enter_context(gateway(self._uri, port))

    def kill(self, port: int) -> None:
        self._running[port].close()


def wait_acknowledged(lines: IO[str], count: int) -> None:
    """Return once `count` more messages are acknowledged."""
    first = None
    for line in lines:
        acknowledged = json.loads(line)["acknowledged"]
        first = acknowledged if first is None else first
        if acknowledged >= first + count:
            return
    raise AssertionError("the producer has ended")


def test_no_message_is_lost_doubled_or_reordered_when_leaders_are_killed(tmp_path: Path) -> None:
    """The other gateways take over, and the one that was killed comes back: the producer goes on by itself."""
    with Up(tmp_path / "data").wait_ready() as up, ExitStack() as stack:
        gateways = Gateways(up.uri, stack)
        producer = stack.enter_context(
            subprocess.Popen(
                [sys.executable, CLIENTS, "numbers", gateways.addresses],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment(),
            )
        )
        stack.callback(producer.kill)
        assert producer.stdin is not None
        assert producer.stdout is not None
        leaders = []
        for _ in range(KILLS):
            wait_acknowledged(producer.stdout, ACKNOWLEDGED_BETWEEN)
            (leader,) = run_client(CLIENTS, "leader", gateways.addresses)
            leaders.append(leader["port"])
            gateways.kill(leader["port"])
            wait_acknowledged(producer.stdout, ACKNOWLEDGED_BETWEEN)
            gateways.start(leader["port"])
        wait_acknowledged(producer.stdout, ACKNOWLEDGED_BETWEEN)
        producer.stdin.close()
        produced = next(said["produced"] for line in producer.stdout if "produced" in (said := json.loads(line)))
        assert producer.wait(WAIT_SECONDS) == 0
        got, end = run_client(CLIENTS, "read", gateways.addresses, produced)
    assert {*leaders} <= {*gateways.ports}
    assert got == {"numbers": list(range(produced)), "offsets": list(range(produced))}
    assert end == {"end": produced}


def test_groups_go_on_at_the_other_gateways_and_no_commit_goes_back(tmp_path: Path) -> None:
    with Up(tmp_path / "data").wait_ready() as up, ExitStack() as stack:
        gateways = Gateways(up.uri, stack)
        at = gateways.addresses
        run_client(GROUPS, "topic", at, "work", PARTITIONS)
        members = {client: stack.enter_context(Member(client, at, client, "work")) for client in MEMBERS}
        run_client(GROUPS, "produce", at, "work", PARTITIONS, 0, COUNT)
        for member in members.values():
            wait_until(partial(member.has_read_and_committed, COUNT), partial(repr, member))
        for number, port in enumerate(gateways.ports, start=1):
            answered = {client: dict(one.committed) for client, one in members.items()}
            gateways.kill(port)
            for client, offsets in answered.items():
                (found,) = run_client(GROUPS, "committed", at, client, "work", PARTITIONS)
                assert all(found[partition] >= offset for partition, offset in offsets.items()), (found, offsets)
            run_client(GROUPS, "produce", at, "work", PARTITIONS, number * COUNT, (number + 1) * COUNT)
            for member in members.values():
                wait_until(partial(member.has_read_and_committed, (number + 1) * COUNT), partial(repr, member))
            gateways.start(port)
        for member in members.values():
            member.end()
