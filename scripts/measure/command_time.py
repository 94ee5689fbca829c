"""Measure what commands take to answer, on a small cluster of their own with its metadata in SQLite.

command_time.py [--rounds 15] [--only TEXT] [--before PYTHON] [--logs 0]

Every command runs as a user runs it: a process that starts, answers and ends. A round runs every command once, with
this Octavo and with an older one in turn (``--before``: the interpreter of its environment). The table has the least
processor time (user and system) of each command, which other programs on the machine change little, and the least time
that passed. Most of both is spent before a command asks the cluster anything. ``--logs``: create this number of logs
first, for ``log list``.
"""

import argparse
import asyncio
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import octavo

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from compare_yardstick import free_ports
from local_cluster import TIME_SECONDS_MAX, Cluster, temporary_folder

COMMANDS = (
    "--version",
    "--help",
    "log list",
    "log create fresh-{run}",
    "log show orders",
    "log read orders",
    "log cursors orders",
    "bookies",
    "ledger list",
    "ledger create",
    "ledger show {ledger}",
    "ledger read {ledger}",
    "topic list",
    "topic show clicks",
    "group list",
    "cluster show",
    "cluster status",
    "repair status",
)
"""Commands whose users wait for an answer."""

LOGS_AT_A_TIME = 50
"""Logs created together."""


class Times(NamedTuple):
    """The times of one run of a command, or the least of several runs."""

    processor_seconds: float
    seconds: float

    def least(self, other: "Times") -> "Times":
        """The lower value of each."""
        return Times(min(self.processor_seconds, other.processor_seconds), min(self.seconds, other.seconds))


class Installed(NamedTuple):
    """An Octavo whose commands are run."""

    python: str
    metadata: str

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """A process that runs the command. Its bytecode is on disk, as that of an installed package."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("OCTAVO_", "PYTHON"))}
        return subprocess.Popen(
            [self.python, "-P", "-m", "octavo.cli.main", *shlex.split(command)],
            env=variables | {"OCTAVO_METADATA": self.metadata},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, command: str) -> tuple[Times, str]:
        """Run the command to its end: what it took, and its output. Raises :class:`SystemExit` if it fails."""
        begun = time.perf_counter()
        process = self.start(command)
        assert process.stdout is not None
        with process.stdout:
            output = process.stdout.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        times = Times(usage.ru_utime + usage.ru_stime, time.perf_counter() - begun)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"octavo {command}: {output.strip()}")
        return times, output


@contextmanager
def cluster() -> Iterator[str]:
    """Three bookies and a gateway; the URI of their metadata."""
    with temporary_folder() as folder, Cluster(folder / "data") as bookies:
        metadata: str = bookies.wait_for("ready")["metadata"]
        (port,) = free_ports(1)
        gateway = Installed(sys.executable, metadata).start(f"gateway --listen 127.0.0.1:{port}")
        try:
            wait_for_gateway(metadata)
            yield metadata
        finally:
            gateway.terminate()
            gateway.communicate()
        bookies.stop()


def wait_for_gateway(metadata: str) -> None:
    """Wait until the gateway answers a command. Raises :class:`SystemExit` if it does not."""
    deadline = time.monotonic() + TIME_SECONDS_MAX
    while True:
        asking = Installed(sys.executable, metadata).start("group list")
        output, _ = asking.communicate()
        if asking.returncode == 0:
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"the gateway does not answer: {output.decode().strip()}")
        time.sleep(0.2)


async def fill(metadata: str, logs: int) -> None:
    """A log with some entries, and ``logs`` empty ones."""
    async with octavo.connect(metadata) as client:
        async with client.create_log("orders") as log, log.lead() as writer:
            for number in range(20):
                await writer.add(b"%d" % number)
        for start in range(0, logs, LOGS_AT_A_TIME):
            stop = min(start + LOGS_AT_A_TIME, logs)
            await asyncio.gather(*(create(client, f"one-of-many-{number:06}") for number in range(start, stop)))


async def create(client: octavo.Client, name: str) -> None:
    """Create an empty log."""
    async with client.create_log(name):
        pass


def measure(installed: dict[str, Installed], rounds: int, only: str) -> dict[str, dict[str, Times]]:
    """The least times of each command, by the name of each Octavo."""
    here = installed["now"]
    ledger = here.run("ledger create")[1].split()[-1]
    here.run("topic create clicks")
    least: dict[str, dict[str, Times]] = {command: {} for command in COMMANDS if only in command}
    for turn in range(rounds):
        for command, times in least.items():
            for name, one in installed.items():
                taken, _ = one.run(command.format(ledger=ledger, run=f"{name}-{turn}"))
                times[name] = taken.least(times.get(name, taken))
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description="What commands take to answer")
    parser.add_argument("--rounds", type=int, default=15, help="runs of every command")
    parser.add_argument("--only", default="", metavar="TEXT", help="only commands with this in them")
    parser.add_argument("--before", metavar="PYTHON", help="interpreter of an environment with an older Octavo")
    parser.add_argument("--logs", type=int, default=0, help="logs that the cluster has besides")
    arguments = parser.parse_args()
    with cluster() as metadata:
        asyncio.run(fill(metadata, arguments.logs))
        installed = {"now": Installed(sys.executable, metadata)}
        if arguments.before:
            installed = {"before": Installed(arguments.before, metadata), **installed}
        least = measure(installed, arguments.rounds, arguments.only)
    print("command".ljust(24), *(f"{name + ' ' + what:>18}" for name in installed for what in ("processor s", "s")))
    for command, times in least.items():
        print(command.ljust(24), *(f"{value:18.3f}" for name in installed for value in times[name]))


if __name__ == "__main__":
    main()
