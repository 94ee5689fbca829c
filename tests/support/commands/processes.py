"""Octavo's own processes, as users run them: commands, `octavo up`, single bookies. Every wait has a deadline."""

import asyncio
import contextlib
import json
import os
import queue
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from octavo.cli.local.bookie_process import pinned_id
from octavo.cli.running_cluster import ProcessIdentity
from support.commands.command_server import run_command
from support.commands.forked_processes import OctavoProcess
from support.waiting import WAIT_SECONDS as WAIT_SECONDS  # noqa: PLC0414 - exported
from support.waiting import wait_until as wait_until  # noqa: PLC0414 - exported

if TYPE_CHECKING:
    from octavo import LedgerWriter

OCTAVO = (sys.executable, "-P", "-m", "octavo.cli.main")


def environment(**more: str) -> dict[str, str]:
    """Ours without any setting of Octavo, and with ``more``."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")} | more


def octavo(*arguments: object, stdin: bytes = b"", cwd: Path | None = None, **settings: Any) -> "Finished":
    """Run one command to its end."""
    status, output, errors = run_command(
        [*map(str, arguments)],
        stdin=stdin,
        cwd=None if cwd is None else str(cwd),
        env=environment(**settings),
        timeout_seconds=WAIT_SECONDS,
    )
    return Finished(status, output, errors.decode())


class Finished:
    """How a command ended."""

    def __init__(self, status: int, stdout: bytes, stderr: str) -> None:
        self.status = status
        self.stdout = stdout
        self.stderr = stderr

    def __repr__(self) -> str:
        return f"Finished(status={self.status}, stdout={self.stdout[-500:]!r}, stderr={self.stderr[-2000:]!r})"

    @property
    def json(self) -> Any:
        """Its output as one JSON value, the command having succeeded."""
        assert self.status == 0, self
        return json.loads(self.stdout)

    def failed_with_one_line(self, status: int, *parts: str) -> None:
        """Check that it failed with ``status`` and one line on standard error that has all of ``parts`` in it."""
        assert self.status == status, self
        lines = self.stderr.splitlines()
        assert len(lines) == 1, self
        for part in parts:
            assert part in lines[0], self


class Up:
    """``octavo up`` in ``directory``, on free ports unless told otherwise. Leaving its block leaves nothing running."""

    def __init__(self, directory: Path, *arguments: object, base_port: int = 0, **settings: str) -> None:
        self.directory = directory
        self._stderr = directory.parent / f"{directory.name}.stderr"
        with self._stderr.open("ab") as stderr:
            self.process = OctavoProcess(
                ["up", "--json", "--data-dir", directory, "--base-port", base_port, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment(**settings),
            )
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.pids: dict[str, int] = {}
        self.uri = ""
        self.kafka = ""
        """Where Kafka's clients connect, if the cluster serves them."""
        self._reader = threading.Thread(target=self._read_events, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()

    @property
    def stderr(self) -> str:
        """What it wrote on standard error so far."""
        return self._stderr.read_text()

    def wait_for(self, event: str, name: str | None = None) -> dict[str, Any]:
        """The next such event, of the bookie ``name`` if given."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                got = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no event {event!r} {name or ''} came; {self.stderr}") from None
            assert got is not None, f"`octavo up` ended before {event!r}: {self.stderr}"
            if "pid" in got:
                self.pids[got["name"]] = got["pid"]
            if got["event"] == event and (name is None or got["name"] == name):
                return got

    def wait_ready(self) -> Self:
        """Return once the cluster is up."""
        ready = self.wait_for("ready")
        self.uri, self.kafka = ready["metadata"], ready.get("kafka", "")
        self.pids = {bookie["name"]: bookie["pid"] for bookie in ready["bookies"]}
        return self

    def kill_bookie(self, name: str) -> None:
        """SIGKILL one bookie."""
        os.kill(self.pids[name], signal.SIGKILL)

    @property
    def names(self) -> dict[str, str]:
        """Bookie id -> the name by which `octavo up` knows the bookie."""
        return {pinned_id(self.directory / name): name for name in self.pids}

    async def make_ensemble_change(self, ledger: "LedgerWriter", add: Callable[[], Awaitable[object]]) -> None:
        """Unless the ensemble has changed: kill a member and ``add``, again if the member was back before the writer
        replaced it."""
        while len(ledger.metadata.fragments) == 1:
            failed = self.names[ledger.metadata.last_fragment.bookies[-1]]
            self.kill_bookie(failed)
            await add()
            await asyncio.to_thread(self.wait_for, "started again", failed)

    @contextlib.contextmanager
    def hanging(self, *pids: int) -> Iterator[None]:
        """These processes stand still inside the block, none of them in the middle of a change of the metadata: there
        it would hold SQLite's lock, and no other process could change anything."""
        try:
            for pid in pids:
                wait_until(partial(self._stop_outside_change, pid), f"process {pid} to be outside a change")
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def _stop_outside_change(self, pid: int) -> bool:
        """Stop the process unless it is changing the metadata."""
        stop_process(pid)
        if self._metadata_can_be_changed():
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    def _metadata_can_be_changed(self) -> bool:
        scheme, _, path = self.uri.partition("://")
        if scheme != "sqlite":
            return True
        with contextlib.closing(sqlite3.connect(path, timeout=2.0, isolation_level=None)) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            database.execute("ROLLBACK")
            return True

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop it with SIGTERM and return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(WAIT_SECONDS)

    def run(self, *arguments: object, stdin: bytes = b"", **settings: Any) -> Finished:
        """Run a command on this cluster."""
        return octavo(*arguments, stdin=stdin, OCTAVO_METADATA=self.uri, **settings)

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)


class BookieProcess:
    """``octavo bookie`` in the foreground, with the supervisor's socket that it announces itself on."""

    def __init__(
        self, directory: Path, *arguments: object, command: Sequence[str] | None = None, **settings: str
    ) -> None:
        """``command`` runs the `octavo` of another release. ``settings`` are variables of its environment."""
        self.directory = directory
        self._stderr = directory.parent / f"{directory.name}.stderr"
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._channel.settimeout(WAIT_SECONDS)
        address = directory.parent / f"{directory.name}.notify"
        address.unlink(missing_ok=True)
        self._channel.bind(str(address))
        with self._stderr.open("ab") as stderr:
            words = ["bookie", "--data-dir", str(directory), *map(str, arguments)]
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": stderr}
            variables = environment(NOTIFY_SOCKET=str(address), **settings)
            self.process: OctavoProcess | subprocess.Popen[bytes] = (
                OctavoProcess(words, env=variables, **streams)
                if command is None
                else subprocess.Popen([*command, *words], env=variables, **streams)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()
        self._channel.close()

    @property
    def stderr(self) -> str:
        """Its log so far."""
        return self._stderr.read_text()

    def wait_ready(self) -> Self:
        """Return once it says that it serves."""
        self.wait_told("READY=1")
        return self

    def wait_told(self, state: str) -> list[str]:
        """What it tells its supervisor up to this message."""
        told: list[str] = []
        while state not in told:
            told += self._channel.recv(4096).decode().split("\n")
        return told

    def told_nothing_for(self, seconds: float) -> bool:
        """Whether its supervisor hears nothing for so long."""
        self._channel.settimeout(seconds)
        try:
            return not self._channel.recv(4096)
        except TimeoutError:
            return True
        finally:
            self._channel.settimeout(WAIT_SECONDS)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for its end; its exit status."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end; its exit status."""
        return self.process.wait(WAIT_SECONDS)


def is_running(pid: int) -> bool:
    """Whether there is such a process that has not ended. A zombie has, once its other threads have ended, too."""
    return ProcessIdentity.of(pid) is not None


ENDS_BEFORE_ITS_THREAD = """
import ctypes, sys, threading
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).pthread_exit(None)
"""
"""A program whose first thread ends at once, and the other one at the end of the input."""


def stop_process(pid: int) -> None:
    """SIGSTOP. Returns once all threads of the process stand still: on a busy machine they go on for a while."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(partial(_stands_still, pid), f"process {pid} to stand still")


def _stands_still(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path("/proc").glob(f"{pid}/task/*/stat")]
        return all(state in "TtZX" for state in states)
    return False  # one of its threads ended just now


@contextlib.contextmanager
def occupied_port(port: int = 0) -> Iterator[int]:
    """A port of this machine, any unless told which, on which this process listens."""
    with socket.create_server(("127.0.0.1", port)) as server:
        yield server.getsockname()[1]


def free_neighbours(number: int) -> int:
    """The first of so many neighbouring ports that are free now, from below those that the system hands out by itself:
    other processes of this machine are unlikely to take them meanwhile."""
    for base in range(20_000 + os.getpid() % 10_000, 32_768, number):
        with contextlib.ExitStack() as stack:
            probes = [stack.enter_context(socket.socket()) for _ in range(number)]
            with contextlib.suppress(OSError):
                for offset, probe in enumerate(probes):
                    probe.bind(("127.0.0.1", base + offset))
                return base
    raise AssertionError("no free ports")
