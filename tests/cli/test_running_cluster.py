"""What other commands see of the cluster on a data directory: only the lock tells whether it runs."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from octavo.cli.running_cluster import (
    ClusterState,
    ProcessIdentity,
    observe,
    opened_lock,
    remove_state,
    take_lock,
    write_state,
)
from support.commands.processes import ENDS_BEFORE_ITS_THREAD
from support.waiting import wait_until

URI = "sqlite:////data/metadata.db"
BOOKIE = {"name": "bookie-1", "state": "ready", "pid": 4711, "port": 3181, "data_dir": "/d", "log": "/l"}


def own_identity() -> ProcessIdentity:
    identity = ProcessIdentity.of(os.getpid())
    assert identity is not None
    return identity


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with any cluster."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_a_process_runs_until_its_last_thread_has_ended() -> None:
    """Until then it holds its ports and its locks."""
    with subprocess.Popen([sys.executable, "-c", ENDS_BEFORE_ITS_THREAD], stdin=subprocess.PIPE) as process:
        identity = ProcessIdentity.of(process.pid)
        assert identity is not None
        stat = Path(f"/proc/{process.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", "the first thread to end")
        assert identity.is_running
        assert process.stdin is not None
        process.stdin.close()
        wait_until(lambda: not identity.is_running, "the process to end")


def test_directory_without_a_cluster_is_stopped(tmp_path: Path) -> None:
    assert observe(tmp_path).state is ClusterState.STOPPED


def test_cluster_is_seen_from_its_start_to_its_end(tmp_path: Path) -> None:
    with opened_lock(tmp_path) as descriptor:
        assert take_lock(descriptor) is None
        assert observe(tmp_path).state is ClusterState.STARTING  # nothing is known yet but that it runs
        for state in (ClusterState.STARTING, ClusterState.READY, ClusterState.STOPPING):
            write_state(tmp_path, state, URI, [BOOKIE])
            seen = observe(tmp_path)
            assert (seen.state, seen.holder, seen.metadata, seen.bookies) == (state, own_identity(), URI, (BOOKIE,))
        remove_state(tmp_path)
    assert observe(tmp_path).state is ClusterState.STOPPED


def test_second_holder_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    with opened_lock(tmp_path) as first, opened_lock(tmp_path) as second:
        assert take_lock(first) is None
        refused = take_lock(second)
        assert refused is not None
        assert refused.process == own_identity()


def test_files_left_by_a_killed_process_are_not_believed(tmp_path: Path) -> None:
    with opened_lock(tmp_path) as descriptor:
        take_lock(descriptor)
        write_state(tmp_path, ClusterState.READY, URI, [BOOKIE])
    assert observe(tmp_path).state is ClusterState.STOPPED


@pytest.mark.parametrize("text", ["", "nonsense", "12", "-1 5", "99999999 1", "1 2 3"])
def test_lock_held_by_bookies_of_a_killed_process_means_stopping(tmp_path: Path, text: str) -> None:
    with opened_lock(tmp_path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        (tmp_path / "up.lock").write_text(text)
        write_state(tmp_path, ClusterState.READY, URI, [BOOKIE])
        seen = observe(tmp_path)
        assert (seen.state, seen.holder) == (ClusterState.STOPPING, None)


def test_process_id_that_the_system_has_given_to_another_process_is_not_the_holder(
    tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    identity = ProcessIdentity.of(bystander.pid)
    assert identity is not None
    earlier = ProcessIdentity(identity.process_id, identity.started_ticks - 1)
    with opened_lock(tmp_path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        (tmp_path / "up.lock").write_text(f"{earlier}\n")
        assert observe(tmp_path).holder is None
    assert not earlier.send(signal.SIGKILL)
    assert bystander.poll() is None
    assert identity.send(signal.SIGKILL)
    assert bystander.wait() == -signal.SIGKILL
    assert not identity.send(signal.SIGKILL)


def test_damaged_state_file_counts_as_none(tmp_path: Path) -> None:
    with opened_lock(tmp_path) as descriptor:
        take_lock(descriptor)
        for text in ("", "{", "[]", '{"process": "1 2"}'):
            (tmp_path / "up.json").write_text(text)
            assert observe(tmp_path).state is ClusterState.STARTING
