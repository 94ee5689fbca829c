"""The cluster that ``octavo up`` runs on a data directory, as other commands see it.

============  ======================================================================================================
file          holds
============  ======================================================================================================
``up.lock``   locked (``flock``) while the cluster runs: by ``octavo up``, and by its bookies, which inherit the lock.
              Contains the id of the process of ``octavo up`` and its start time in ticks of the kernel.
``up.json``   what runs: written by ``octavo up`` at every change, replaced in one step, removed at the end
============  ======================================================================================================

Only the lock tells whether the cluster runs. After ``kill -9`` or a power failure both files stay behind: a process id
without the lock is never believed, nor is one whose process began at another time, since the system has given the id to
another process then.
"""

import contextlib
import enum
import fcntl
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.protocol.light_dataclass import dataclass

LOCK_NAME = "up.lock"
STATE_NAME = "up.json"


class ClusterState(enum.Enum):
    """The state of a cluster on this machine."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process that the system cannot confuse with a later one of the same id."""

    process_id: int
    started_ticks: int
    """Start time in ticks of the kernel since boot."""

    @classmethod
    def of(cls, process_id: int) -> "ProcessIdentity | None":
        """The process with this id; None when there is none, or when it has ended and only its parent knows it.

        It has ended when its last thread has: until then it holds its ports and its locks.
        """
        try:
            fields = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            return None
        threads = int(fields[17])
        return None if fields[0] == "Z" and threads <= 1 else cls(process_id, int(fields[19]))

    @classmethod
    def parse(cls, text: str) -> "ProcessIdentity | None":
        """The process that ``text`` names, in the form of :meth:`__str__`; None for any other text."""
        parts = text.split()
        if len(parts) != 2 or not all(part.isascii() and part.isdecimal() for part in parts):
            return None
        return cls(int(parts[0]), int(parts[1]))

    def __str__(self) -> str:
        return f"{self.process_id} {self.started_ticks}"

    @property
    def is_running(self) -> bool:
        """Whether this very process runs."""
        return ProcessIdentity.of(self.process_id) == self

    def send(self, signal_number: signal.Signals) -> bool:
        """Send a signal to this very process; False when it no longer runs. Raises :class:`PermissionError`."""
        try:
            descriptor = os.pidfd_open(self.process_id)
        except ProcessLookupError:
            return False
        try:
            # The descriptor stands for one process: checked now, it cannot become another before the signal is sent.
            if not self.is_running:
                return False
            signal.pidfd_send_signal(descriptor, signal_number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """The traces of a cluster on this machine that other commands can see."""

    state: ClusterState
    holder: ProcessIdentity | None = None
    """The process of ``octavo up``; None when it does not run."""
    metadata: str | None = None
    """URI of the metadata store; None when it is not known (yet)."""
    bookies: tuple[Mapping[str, Any], ...] = ()
    """Facts about each bookie, as in ``up.json``: ``name, state, pid, port, data_dir, log``, and ``reason``: why it is
    not started again, or None."""


def observe(directory: Path) -> RunningCluster:
    """The cluster that runs on ``directory`` now. Raises :class:`OSError` when the directory cannot be read."""
    holder = holder_of_lock(directory)
    if holder is None:
        return RunningCluster(ClusterState.STOPPED)
    running = holder.process
    facts = read_state(directory)
    if running is None or facts is None or facts.get("process") != str(running):
        # Without `octavo up` its bookies stop by themselves; with it, it has not written its state yet.
        state = ClusterState.STOPPING if running is None else ClusterState.STARTING
        return RunningCluster(state, running)
    return RunningCluster(ClusterState(facts["state"]), running, facts["metadata"], tuple(facts["bookies"]))


# --- the lock --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Something holds the lock."""

    process: ProcessIdentity | None
    """The ``octavo up`` that holds it; None when it is gone and bookies that it left behind still hold the lock."""


def holder_of_lock(directory: Path) -> LockHolder | None:
    """The process that holds the lock of ``directory``; None when the lock is free or was never made."""
    try:
        descriptor = os.open(directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # Shared, and given back at once: two commands that look at the same time do not see each other's lock.
        if _try_lock(descriptor, fcntl.LOCK_SH):
            return None
        return LockHolder(_running_holder(descriptor))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def opened_lock(directory: Path) -> Iterator[int]:
    """A descriptor of the directory's lock file, which is made if need be. Raises :class:`OSError`."""
    descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def take_lock(descriptor: int) -> LockHolder | None:
    """Take the lock for this process; None when that succeeded, else what holds it."""
    if not _try_lock(descriptor, fcntl.LOCK_EX):
        return LockHolder(_running_holder(descriptor))
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{ProcessIdentity.of(os.getpid())}\n".encode(), 0)
    return None


def _try_lock(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _running_holder(descriptor: int) -> ProcessIdentity | None:
    identity = ProcessIdentity.parse(os.pread(descriptor, 64, 0).decode(errors="replace"))
    return identity if identity is not None and identity.is_running else None


# --- the state -------------------------------------------------------------------------------------------------------


def write_state(directory: Path, state: ClusterState, metadata: str, bookies: Sequence[Mapping[str, Any]]) -> None:
    """Say what runs; for the holder of the lock. Raises :class:`OSError`."""
    facts = {
        "process": str(ProcessIdentity.of(os.getpid())),
        "state": state.value,
        "metadata": metadata,
        "bookies": list(bookies),
    }
    new = directory / f"{STATE_NAME}.new"
    new.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    new.replace(directory / STATE_NAME)


def read_state(directory: Path) -> Mapping[str, Any] | None:
    """The state that ``octavo up`` last wrote; None when there is nothing, or something else."""
    try:
        facts = json.loads((directory / STATE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) and {"process", "state", "metadata", "bookies"} <= facts.keys() else None


def remove_state(directory: Path) -> None:
    """The cluster has stopped; for the holder of the lock. Raises :class:`OSError`."""
    (directory / STATE_NAME).unlink(missing_ok=True)
