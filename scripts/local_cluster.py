"""A cluster on this machine for scripts: runs `octavo up` as a child process and reads the events that it prints."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self

TIME_SECONDS_MAX = 60.0
"""Time-out of an event or of the end of the process."""


class ClusterError(Exception):
    """The cluster did not start, stop or report an event as expected."""


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """A folder in ``parent`` (default: the system's temporary folder), removed at the end, also after an error."""
    folder = Path(tempfile.mkdtemp(prefix="octavo-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def temporary_cluster(parent: Path | None = None, *, bookies: int = 3) -> "Iterator[Cluster]":
    """A cluster on SQLite in a temporary folder. It is stopped at the end of the block, and killed after an error.
    Raises :class:`ClusterError` if it does not start or stop as it should."""
    with temporary_folder(parent) as folder, Cluster(folder / "data", bookies=bookies) as cluster:
        yield cluster
        cluster.stop()


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    """The option of a benchmark that says where its cluster keeps its data."""
    parser.add_argument("--data-dir", type=Path, help="folder for the cluster's data (default: the temporary folder)")


class Cluster:
    """`octavo up` with its data in ``folder``, on free ports. ``metadata``: URI of a metadata store (default: SQLite in
    the folder). A context manager that kills the cluster at the end of the block."""

    def __init__(
        self,
        folder: Path,
        metadata: str | None = None,
        *,
        bookies: int = 3,
        variables: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        """``variables`` of the environment of the bookies; of this process' own they get none of Octavo's. ``python``:
        the interpreter, whose environment has the Octavo to run."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
        environment |= variables or {}
        self._process = subprocess.Popen(
            [
                *(python, "-P", "-m", "octavo.cli.main", "up", "--json"),
                *("--base-port", "0", "--data-dir", folder, "--bookies", str(bookies)),
                *(("--metadata", metadata) if metadata else ()),
            ],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._events: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        threading.Thread(target=self._read_events, daemon=True).start()

    @property
    def pid(self) -> int:
        """The process of ``octavo up``. The bookies are its children."""
        return self._process.pid

    def wait_for(self, event: str) -> dict[str, Any]:
        """Wait for the next event of this kind. Raises :class:`ClusterError` on time-out or exit."""
        deadline = time.monotonic() + TIME_SECONDS_MAX
        while True:
            try:
                got = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise ClusterError(f"`octavo up` did not report {event!r} within {TIME_SECONDS_MAX:g} s") from None
            if got is None:
                raise ClusterError(f"`octavo up` ended with exit status {self._process.wait()}")
            if got["event"] == event:
                return got

    def stop(self) -> None:
        """Stop the cluster cleanly. Raises :class:`ClusterError` if that fails."""
        self._process.send_signal(signal.SIGINT)
        status = self._process.wait(TIME_SECONDS_MAX)
        if status != 0:
            raise ClusterError(f"`octavo up` ended with exit status {status} after Ctrl-C")

    def kill(self) -> None:
        """Kill the cluster if it is running. The bookies stop when their parent process is gone."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)
