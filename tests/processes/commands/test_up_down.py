"""`octavo up --detach`, `status` and `down` with real processes, killed, stale and interrupted ones among them."""

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from octavo.cli.running_cluster import ClusterState, observe
from support.commands.processes import (
    OCTAVO,
    Finished,
    Up,
    environment,
    free_neighbours,
    is_running,
    occupied_port,
    octavo,
    stop_process,
)
from support.waiting import WAIT_SECONDS, wait_until

ONE = ("-E", 1, "-W", 1, "-A", 1)
NO_SERVER = "zk://127.0.0.1:1/octavo"
"""A store that no process serves: bookies wait for it, and do not become ready."""


def up_detached(directory: Path, *arguments: object) -> Finished:
    return octavo("up", "--detach", "--bookies", 1, "--base-port", 0, "--data-dir", directory, *arguments)


def status_of(directory: Path) -> dict[str, Any]:
    shown = octavo("status", "--json", "--data-dir", directory)
    facts: dict[str, Any] = Finished(0, shown.stdout, shown.stderr).json
    assert shown.status == (0 if facts["state"] == "ready" else 1), shown
    return facts


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A data directory on which nothing runs any more at the end."""
    path = tmp_path / "data"
    path.mkdir()
    yield path
    assert octavo("down", "--data-dir", path).status == 0


def test_cluster_in_the_background_is_used_shown_and_stopped(directory: Path) -> None:
    started = up_detached(directory)
    assert started.status == 0, started
    uri = f"sqlite:///{directory}/metadata.db"
    assert f"export OCTAVO_METADATA={uri}" in started.stdout.decode()
    assert "`octavo down` stops it" in started.stdout.decode()
    shown = status_of(directory)
    assert (shown["state"], shown["metadata"]) == ("ready", uri)
    (bookie,) = shown["bookies"]
    assert bookie["state"] == "ready"
    # Asked for any free port; what it took is shown.
    (registered,) = octavo("bookies", "--json", "--metadata", uri).json
    assert bookie["port"] == int(registered["address"].rpartition(":")[2]) > 0
    pids = [shown["pid"], bookie["pid"]]
    assert all(map(is_running, pids))
    appended = octavo("ledger", "append", *ONE, "--json", "--metadata", uri, stdin=b"kept\n").json
    stopped = octavo("down", "--json", "--data-dir", directory)
    assert stopped.json == {"data_dir": str(directory), "was_running": True}
    assert not any(map(is_running, pids))
    assert status_of(directory)["state"] == "stopped"
    assert octavo("down", "--json", "--data-dir", directory).json["was_running"] is False
    ready = up_detached(directory, "--json").json
    assert ready["metadata"] == uri
    assert octavo("ledger", "read", appended["ledger_id"], "--metadata", uri).stdout == b"kept\n"


def test_emptied_bookie_is_reported_and_the_printed_command_brings_it_back(directory: Path) -> None:
    assert up_detached(directory, "--bookies", 2).status == 0
    octavo("down", "--data-dir", directory)
    shutil.rmtree(directory / "bookie-2")
    started = up_detached(directory, "--bookies", 2)
    message = started.stderr
    assert (started.status, "1 of 2 bookies" in started.stdout.decode()) == (0, True), started
    assert "bookie-2 will not be started again: the directories are empty" in message
    shown = octavo("status", "--data-dir", directory)
    assert (shown.status, shown.stderr) == (1, message)
    remedy = re.search(r"`octavo (bookie reset-identity .*)`", message)
    assert remedy is not None
    octavo("down", "--data-dir", directory)
    assert octavo(*shlex.split(remedy[1]), "--metadata", f"sqlite:///{directory}/metadata.db").status == 0
    again = up_detached(directory, "--bookies", 2)
    assert (again.status, again.stderr) == (0, "")
    assert status_of(directory)["state"] == "ready"


def test_second_up_on_the_same_directory_is_refused_and_disturbs_nothing(directory: Path) -> None:
    pid = up_detached(directory, "--json").json["pid"]
    for detach in ((), ("--detach",)):
        second = octavo("up", *detach, "--bookies", 1, "--base-port", 0, "--data-dir", directory)
        second.failed_with_one_line(1, str(directory), "in use", f"process {pid}", "octavo down")
    assert status_of(directory)["pid"] == pid


def test_start_that_fails_says_why_and_leaves_nothing_running(directory: Path) -> None:
    with occupied_port(free_neighbours(1)) as port:
        refused = up_detached(directory, "--base-port", port)
    refused.failed_with_one_line(1, f"port {port} (bookie-1) is in use", "--base-port")
    assert status_of(directory)["state"] == "stopped"


def test_a_log_that_cannot_be_opened_is_named(directory: Path) -> None:
    log = directory / "logs" / "up.log"
    log.mkdir(parents=True)
    up_detached(directory).failed_with_one_line(1, f"cannot write {log}: Is a directory")


def test_next_start_takes_the_same_ports_again(directory: Path) -> None:
    assert up_detached(directory).status == 0
    (before,) = status_of(directory)["bookies"]
    octavo("down", "--data-dir", directory)
    assert octavo("up", "--detach", "--bookies", 1, "--data-dir", directory).status == 0
    (after,) = status_of(directory)["bookies"]
    assert after["port"] == before["port"]


def test_killed_up_leaves_nothing_that_is_taken_for_a_cluster(directory: Path) -> None:
    ready = up_detached(directory, "--json").json
    bookie = ready["bookies"][0]["pid"]
    os.kill(ready["pid"], signal.SIGKILL)
    assert octavo("down", "--data-dir", directory).status == 0  # waits for the bookies, which stop by themselves
    assert not is_running(bookie)
    assert status_of(directory) == {
        "state": "stopped",
        "pid": None,
        "metadata": None,
        "data_dir": str(directory),
        "bookies": [],
    }
    assert up_detached(directory).status == 0
    assert status_of(directory)["state"] == "ready"


def test_down_never_ends_a_process_that_only_has_the_same_id(directory: Path) -> None:
    ready = up_detached(directory, "--json").json
    os.kill(ready["pid"], signal.SIGKILL)
    wait_until(lambda: observe(directory).state is ClusterState.STOPPED, "the bookies stop")
    with subprocess.Popen(["sleep", "1000"]) as bystander:
        (directory / "up.lock").write_text(f"{bystander.pid} 1\n")
        assert octavo("down", "--data-dir", directory).status == 0
        assert bystander.poll() is None
        bystander.kill()


def test_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    for command in ("down", "status"):
        missing = octavo(command, "--data-dir", tmp_path / "elsewhere")
        missing.failed_with_one_line(1, str(tmp_path / "elsewhere"), "octavo up")


@contextmanager
def started(*arguments: object, stderr: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (
        stderr.open("wb") as errors,
        subprocess.Popen(
            [*OCTAVO, *map(str, arguments)], stdin=subprocess.PIPE, stderr=errors, env=environment()
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def test_ctrl_c_while_a_cluster_starts_in_the_background_stops_it(directory: Path, tmp_path: Path) -> None:
    up = ("up", "--detach", "--bookies", 1, "--base-port", 0, "--data-dir", directory, "--metadata", NO_SERVER)
    with started(*up, stderr=tmp_path / "stderr") as process:
        wait_until(lambda: any(bookie["pid"] for bookie in observe(directory).bookies), "the bookie is started")
        running = observe(directory)
        assert running.state is ClusterState.STARTING
        assert running.holder is not None
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_SECONDS) == 130
    assert not running.holder.is_running
    assert not any(is_running(bookie["pid"]) for bookie in running.bookies)


def test_command_waits_for_a_cluster_that_is_being_started(directory: Path, tmp_path: Path) -> None:
    errors = tmp_path / "append.stderr"
    with Up(directory, "--bookies", 1) as up:
        wait_until(lambda: any(bookie["pid"] for bookie in observe(directory).bookies), "the bookie is started")
        stop_process(up.process.pid)  # it cannot say that it is ready
        if observe(directory).state is not ClusterState.STARTING:
            pytest.fail("the cluster was ready before it could be stopped")
        uri = f"sqlite:///{directory}/metadata.db"
        with started("ledger", "append", *ONE, "--metadata", uri, stderr=errors) as append:
            assert append.stdin is not None
            append.stdin.close()
            wait_until(lambda: "waiting for the cluster" in errors.read_text(), "the command says what it waits for")
            assert append.poll() is None
            up.process.send_signal(signal.SIGCONT)
            assert append.wait(WAIT_SECONDS) == 0
