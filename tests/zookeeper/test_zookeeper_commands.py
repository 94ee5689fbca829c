"""Octavo's processes on ZooKeeper: the commands on a cluster, `octavo up`, and the script that runs a server."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands.processes import ENDS_BEFORE_ITS_THREAD, OCTAVO, Up, octavo
from support.metadata.zookeeper import new_cluster_uri
from support.tree import ROOT
from support.waiting import WAIT_SECONDS, wait_until
from zookeeper_server import Server

SCRIPT = ROOT / "scripts" / "zookeeper.py"


@pytest.fixture
def uri() -> str:
    return new_cluster_uri()


@pytest.fixture
def up(tmp_path: Path, uri: str) -> Iterator[Up]:
    with Up(tmp_path / "data", "--metadata", uri) as cluster:
        yield cluster.wait_ready()


def test_cluster_is_made_shown_and_destroyed(uri: str) -> None:
    octavo("cluster", "show", "--metadata", uri).failed_with_one_line(1, "there is no cluster", "octavo cluster init")
    made = octavo("cluster", "init", "--json", "--metadata", uri).json
    assert made["created"]
    again = octavo("cluster", "init", "--json", "--metadata", uri).json
    assert (again["cluster_id"], again["created"]) == (made["cluster_id"], False)
    shown = octavo("cluster", "show", "--ledgers", "--json", "--metadata", uri).json
    assert shown["cluster_id"] == made["cluster_id"]
    assert shown["ledgers"] == 0
    octavo("cluster", "destroy", "--metadata", uri).failed_with_one_line(1, "loses all its ledgers", "--yes")
    assert octavo("cluster", "destroy", "--yes", "--metadata", uri).status == 0
    octavo("cluster", "destroy", "--yes", "--metadata", uri).failed_with_one_line(1, "there is no cluster")


def test_embedded_cluster_can_be_made_and_destroyed_too(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/metadata.db"
    assert octavo("cluster", "init", "--json", "--metadata", uri).json["created"]
    assert octavo("cluster", "destroy", "--yes", "--metadata", uri).status == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("answer", "status", "told"),
    [(b"n\n", 1, b"nothing has been destroyed"), (b"\x04", 1, b"nothing has been destroyed"), (b"y\n", 0, b"")],
)
def test_destroying_asks_at_a_terminal(tmp_path: Path, answer: bytes, status: int, told: bytes) -> None:
    uri = f"sqlite:///{tmp_path}/metadata.db"
    octavo("cluster", "init", "--metadata", uri)
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "r+b", buffering=0) as terminal, os.fdopen(theirs, "rb", buffering=0) as stdin:
        terminal.write(answer)
        done = subprocess.run(
            [*OCTAVO, "cluster", "destroy", "--metadata", uri],
            stdin=stdin,
            capture_output=True,
            timeout=WAIT_SECONDS,
            check=False,
        )
    assert (done.returncode, b"lose all its ledgers? [y/N]" in done.stderr) == (status, True)
    assert told in done.stderr
    assert b"internal error" not in done.stderr
    assert (tmp_path / "metadata.db").exists() == (status == 1)


def test_cluster_on_zookeeper_works_and_keeps_its_data(up: Up, uri: str, tmp_path: Path) -> None:
    assert up.uri == uri
    text = b"".join(b"line %d\n" % number for number in range(5000))
    ledger_id = up.run("ledger", "append", "--json", "-", stdin=text).json["ledger_id"]
    assert [bookie["state"] for bookie in up.run("bookies", "--json").json] == ["writable"] * 3
    up.run("cluster", "destroy", "--yes").failed_with_one_line(1, "bookies are running", "stop them first")
    up.kill_bookie("bookie-2")
    up.wait_for("started again", "bookie-2")
    assert up.run("ledger", "read", ledger_id).stdout == text
    assert up.stop() == 0
    with Up(up.directory, "--metadata", uri) as again:
        again.wait_ready()
        assert again.run("ledger", "read", ledger_id).stdout == text
        assert again.run("cluster", "show", "--ledgers", "--json").json["ledgers"] == 1
        created = again.run("bench", "create", "--count", 300, "--in-flight", 50, "--json").json
        assert created["ledgers"] == 300
        assert created["errors"] == 0
        assert created["clients"] == 2
        for rate, ratio in (
            ("raw_creates_per_second", "ratio_to_raw"),
            ("raw_in_transactions_per_second", "ratio_to_raw_in_transactions"),
        ):
            assert created[rate] > 0
            assert created[ratio] > 0
        again.run("bench", "create", "--count", 10, "--ensemble", 4).failed_with_one_line(1, "4 writable bookies")
        assert again.run("cluster", "show", "--ledgers", "--json").json["ledgers"] == 1


def run_script(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=2 * WAIT_SECONDS,
        check=False,
        # Spark's tests keep their workers from importing out of the working folder; a script lives beside its modules.
        env={name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"} | environment,
    )


def test_script_starts_a_server_that_keeps_its_port_and_data(tmp_path: Path) -> None:
    folder = ("--data-dir", tmp_path / "zookeeper")
    try:
        uri = run_script("start", *folder).stdout.strip()
        assert re.fullmatch(r"zk://127\.0\.0\.1:\d+", uri)
        cluster = octavo("cluster", "init", "--json", "--metadata", uri).json["cluster_id"]
        assert run_script("start", *folder).stdout.strip() == uri  # it runs already
        assert run_script("stop", *folder).returncode == 0
        assert run_script("status", *folder).stdout.strip().endswith("stopped")
        assert run_script("start", *folder).stdout.strip() == uri
        assert octavo("cluster", "show", "--json", "--metadata", uri).json["cluster_id"] == cluster
    finally:
        assert run_script("stop", *folder).returncode == 0
    assert run_script("stop", *folder).returncode == 0


def test_missing_java_is_named_with_the_remedy(tmp_path: Path) -> None:
    for command in (("check",), ("start", "--data-dir", tmp_path / "zookeeper")):
        run = run_script(*command, JAVA_HOME=str(tmp_path))
        assert run.returncode == 1
        assert "Java 17 or newer is needed for ZooKeeper and Spark" in run.stderr
        assert "apt install" in run.stderr
        assert len(run.stderr.splitlines()) == 1


def test_java_that_is_too_old_is_refused(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    run = run_script("check", JAVA_HOME=str(tmp_path))
    assert run.returncode == 1
    assert f"{java} is 11" in run.stderr


def test_tests_ask_for_java_before_they_begin() -> None:
    plan = subprocess.run(["make", "--dry-run", "test"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    lines = plan.splitlines()
    assert lines.index(".venv/bin/python scripts/zookeeper.py check") < len(lines) - 1


def test_a_process_has_ended_when_its_last_thread_has() -> None:
    """Until then its sockets listen, and a server in its place would find its port taken."""
    with subprocess.Popen([sys.executable, "-c", ENDS_BEFORE_ITS_THREAD], stdin=subprocess.PIPE) as process:
        server = Server(1, 0, 0, 0, pid=process.pid, started_ticks=started_ticks(process.pid))
        wait_until(lambda: state_of(process.pid) == "Z", "the first thread to end")
        assert server.is_running()
        assert process.stdin is not None
        process.stdin.close()
        wait_until(lambda: not server.is_running(), "the process to end")


def stat_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def state_of(pid: int) -> str:
    return stat_of(pid)[0]


def started_ticks(pid: int) -> int:
    return int(stat_of(pid)[19])
