"""Three gateways on ZooKeeper that are killed, stand still, are cut off and are rolled, under idempotent producers.

Nothing is lost, doubled or reordered (rules K2 to K5, K7, K9, K10), as a history from outside shows
(``tests/support/programs/kafka_history.py``). ``OCTAVO_GATEWAY_KILLS`` says how often something happens to a gateway.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from support.commands.gateways import GROUPS, PROGRAMS, Member, run_client
from support.commands.processes import WAIT_SECONDS, Up, environment, free_neighbours, wait_until
from support.metadata.zookeeper import new_cluster_uri

FAULTS = int(os.environ.get("OCTAVO_GATEWAY_KILLS", "5"))
SEED = int(os.environ.get("OCTAVO_GATEWAY_SEED", "1"))
GATEWAYS = 3
PARTITIONS = 6
TOPIC = "history"

STILL_SECONDS = (1.0, 4.0, 15.0)
"""How long a gateway stands still, or is cut off: shorter and longer than its lease of ten seconds."""

ACKNOWLEDGED_BETWEEN = 10
"""Messages of each partition that are acknowledged between two faults."""


class Program:
    """One of the programs of the history, and what it has said last."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, PROGRAMS / "kafka_history.py", name, address, TOPIC, str(PARTITIONS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self.said: dict[str, Any] = {}
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said |= json.loads(line)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors += self.process.stderr

    def __repr__(self) -> str:
        ended = self.process.poll()
        return f"{self.name}, {ended}: {self.said}\n{''.join(self._errors[-30:])}"

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self._wait()

    def end(self, line: str = "") -> None:
        """Let it come to its end."""
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.close()
        wait_until(lambda: self.process.poll() is not None, partial(repr, self))
        self._wait()
        assert self.process.returncode == 0, repr(self)

    def _wait(self) -> None:
        self.process.wait(WAIT_SECONDS)
        for reader in self._readers:
            reader.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


class Gateways:
    """Gateways by their ports. They are killed at the end."""

    def __init__(self, uri: str, stack: ExitStack) -> None:
        self._uri = uri
        first = free_neighbours(GATEWAYS)
        self.ports = range(first, first + GATEWAYS)
        self.address = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.running: dict[int, subprocess.Popen[str]] = {}
        self._beginning: set[int] = set()
        for port in self.ports:
            stack.callback(self.kill, port)
            self.start(port)
        self.wait_ready()

    def start(self, port: int) -> None:
        self.running[port] = subprocess.Popen(
            [sys.executable, PROGRAMS / "cut_gateway.py", self._uri, str(port)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self._beginning.add(port)

    def wait_ready(self) -> None:
        """Return once all serve."""
        while self._beginning:
            stdout = self.running[self._beginning.pop()].stdout
            assert stdout is not None
            assert json.loads(stdout.readline())["event"] == "ready"

    def kill(self, port: int) -> None:
        """Nothing happens if it has ended."""
        process = self.running[port]
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def signal(self, port: int, number: signal.Signals) -> None:
        self.running[port].send_signal(number)

    def start_those_that_have_ended(self) -> None:
        """A gateway begins to serve once the time of its registration is over."""
        for port in self.ports:
            if self.running[port].poll() is not None:
                self.kill(port)
                self.start(port)


class Faults:
    """What happens to gateways, one after another."""

    def __init__(self, gateways: Gateways, producer: Program, chance: random.Random) -> None:
        self._gateways = gateways
        self._producer = producer
        self._chance = chance

    def killed(self, port: int) -> None:
        self._gateways.kill(port)

    def stands_still(self, port: int) -> None:
        with self._between(port, signal.SIGSTOP, signal.SIGCONT):
            self._wait_a_while()

    def cut_off_from_metadata(self, port: int) -> None:
        with self._between(port, signal.SIGUSR2, signal.SIGHUP):
            self._wait_a_while()

    def cut_off_from_bookies(self, port: int) -> None:
        with self._between(port, signal.SIGUSR1, signal.SIGHUP):
            self._wait_a_while()

    def rolled(self, port: int) -> None:
        for one in [port, *(other for other in self._gateways.ports if other != port)]:
            self._gateways.signal(one, signal.SIGTERM)
            assert self._gateways.running[one].wait(WAIT_SECONDS) == 0
            self._gateways.start_those_that_have_ended()
            self._gateways.wait_ready()

    def _wait_a_while(self) -> None:
        threading.Event().wait(self._chance.choice(STILL_SECONDS))

    @contextmanager
    def _between(self, port: int, begin: signal.Signals, end: signal.Signals) -> Iterator[None]:
        """Between two signals. A gateway whose lease has ended meanwhile ends by itself."""
        self._gateways.signal(port, begin)
        yield
        self._gateways.signal(port, end)

    def wait_acknowledged(self) -> None:
        """Return once some more messages of each partition are acknowledged. A gateway that has ended begins again."""
        before = list(self._producer.said.get("acknowledged", [0] * PARTITIONS))

        def has_grown() -> bool:
            self._gateways.start_those_that_have_ended()
            assert self._producer.process.poll() is None, repr(self._producer)
            now = self._producer.said.get("acknowledged", before)
            return all(new >= old + ACKNOWLEDGED_BETWEEN for old, new in zip(before, now, strict=True))

        wait_until(has_grown, partial(repr, self._producer))

    def happen(self, count: int) -> dict[str, int]:
        """Let something happen this often; how often what happened."""
        kinds: list[Callable[[int], None]] = [
            self.killed, self.stands_still, self.cut_off_from_metadata, self.cut_off_from_bookies, self.rolled,
        ]  # fmt: skip
        happened = dict.fromkeys((kind.__name__ for kind in kinds), 0)
        for turn in range(count):
            kind = kinds[turn % len(kinds)]
            self._gateways.wait_ready()
            kind(self._chance.choice(self._gateways.ports))
            happened[kind.__name__] += 1
            self.wait_acknowledged()
            print(turn + 1, kind.__name__, self._producer.said["acknowledged"], flush=True)  # noqa: T201 - with -s
        return happened


def test_nothing_is_lost_doubled_or_reordered_whatever_happens_to_gateways(tmp_path: Path) -> None:
    with Up(tmp_path / "data", "--metadata", new_cluster_uri()).wait_ready() as up, ExitStack() as stack:
        gateways = Gateways(up.uri, stack)
        run_client(GROUPS, "topic", gateways.address, TOPIC, PARTITIONS)
        producer = stack.enter_context(Program("produce", gateways.address))
        follower = stack.enter_context(Program("follow", gateways.address))
        member = stack.enter_context(Member("confluent-kafka", gateways.address, "members", TOPIC))
        faults = Faults(gateways, producer, random.Random(SEED))
        faults.wait_acknowledged()
        happened = faults.happen(FAULTS)
        producer.end()
        produced = producer.said["produced"]
        shares = [len(range(partition, produced, PARTITIONS)) for partition in range(PARTITIONS)]
        assert producer.said["acknowledged"] == shares
        follower.end(f"{produced}\n")
        assert follower.said["followed"] == shares
        late = stack.enter_context(Program("follow", gateways.address))
        late.end(f"{produced}\n")
        assert late.said["followed"] == shares, "who reads it all afterwards sees the same"
        wait_until(partial(member.has_read_and_committed, produced), partial(repr, member))
        member.end()
    assert sum(happened.values()) == FAULTS
    print(f"{happened}, {produced} messages")  # noqa: T201 - a long run is shown with -s
