"""`octavo gateway` and programs with clients that others have written, as processes of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, Self

from debian_tools import library_path, program
from support.commands.forked_processes import OctavoProcess
from support.commands.processes import WAIT_SECONDS, environment, free_neighbours
from support.kafka.recorder import Recorder
from support.tree import ROOT

PROGRAMS = ROOT / "tests" / "support" / "programs"
CLIENTS = PROGRAMS / "kafka_clients.py"
"""Producers, and consumers of partitions."""

GROUPS = PROGRAMS / "kafka_groups.py"
"""Members of consumer groups."""


@contextmanager
def gateway(uri: str, port: int, *options: object) -> Iterator[OctavoProcess]:
    """`octavo gateway`, once it serves. It is killed at the end."""
    command = ["gateway", "--metadata", uri, "--listen", f"127.0.0.1:{port}", "--json", *map(str, options)]
    with OctavoProcess(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == {"event": "ready", "address": f"127.0.0.1:{port}"}
            yield process
        finally:
            process.kill()


@contextmanager
def recorded(uri: str) -> Iterator[Recorder]:
    """A gateway that its clients reach through a recorder."""
    with Recorder() as recorder:
        recorder.gateway_port = free_neighbours(1)
        with gateway(uri, recorder.gateway_port, "--advertise", recorder.address):
            yield recorder


def kcat(code: str) -> str:
    """What shell commands print, with `kcat` as Debian has it; each of them has succeeded."""
    path = os.pathsep.join([str(program("kcat").parent), os.environ["PATH"]])
    libraries = library_path("kcat")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        env=environment(PATH=path, **({"LD_LIBRARY_PATH": libraries} if libraries else {})),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_client(path: Path, *arguments: object) -> list[Any]:
    """What a program has printed."""
    done = subprocess.run(
        [sys.executable, path, *map(str, arguments)],
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
            [sys.executable, GROUPS, client, address, group, topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self.numbers: list[int] = []
        self.assigned: list[int] = []
        self.committed: dict[str, int] = {}
        """The latest offsets whose commit was answered."""
        self.refused: list[str] = []
        self._errors: list[str] = []
        self._readers = [Thread(target=self._read), Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            self.numbers += said.get("got", [])
            self.assigned = said.get("assigned", self.assigned)
            self.committed |= said.get("committed", {})
            if "refused" in said:
                self.refused.append(said["refused"])

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors += self.process.stderr

    def __repr__(self) -> str:
        ended = self.process.poll()
        return (
            f"{self.client} ({'runs' if ended is None else f'ended with {ended}'}): assigned {self.assigned}, "
            f"{len(self.numbers)} numbers, committed {self.committed}; refused: {self.refused[-5:]}\n"
            f"{''.join(self._errors[-30:])}"
        )

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
        for reader in self._readers:
            reader.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def end(self) -> None:
        """Let it leave the group."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(WAIT_SECONDS) == 0, repr(self)
