"""The commands that administer a running bookie, and a bookie's relation to its supervisor, with real processes."""

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands.processes import BookieProcess, Up, octavo, stop_process
from support.waiting import wait_until


@pytest.fixture(scope="module")
def cluster(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "cluster", "--bookies", "3").wait_ready() as up:
        yield up


# --- commands --------------------------------------------------------------------------------------------------------


def test_a_bookie_is_shown_by_its_name_its_id_its_directory_and_its_socket(cluster: Up) -> None:
    shown = cluster.run("bookie", "show", "bookie-1", "--json").json
    assert shown["state"] == "writable"
    assert shown["ready"] is True
    directory = Path(shown["settings"]["data_dir"])
    for name in (shown["bookie_id"], directory, directory / "admin.sock"):
        assert cluster.run("bookie", "show", name, "--json").json["bookie_id"] == shown["bookie_id"]
    assert cluster.run("ledger", "append", "-", stdin=b"x").status == 0
    text = cluster.run("bookie", "show", "bookie-1").stdout.decode()
    assert re.search(r"^state +writable$", text, re.MULTILINE)
    assert re.search(r"^journal ", text, re.MULTILINE)
    assert re.search(r"^journal sync seconds +half within [0-9.]+ m?s, 99 % within [0-9.]+ m?s$", text, re.MULTILINE)
    assert re.search(r"^certificate expires at +no certificate$", text, re.MULTILINE)


def test_the_files_of_a_bookie_are_listed(cluster: Up) -> None:
    files = cluster.run("bookie", "show", "bookie-1", "--files", "--json").json["files"]
    names = {Path(found["path"]).name for found in files}
    assert "cookie" in names
    assert any(name.startswith("journal-") for name in names)
    assert all(found["bytes"] >= 0 for found in files)


def test_a_bookie_that_is_not_known_or_does_not_run_is_named(cluster: Up, tmp_path: Path) -> None:
    cluster.run("bookie", "show", "bookie-9").failed_with_one_line(1, "no bookie bookie-9 is known on this host")
    cluster.run("bookie", "show", tmp_path).failed_with_one_line(1, "no bookie listens at", "is it running?")


def test_garbage_compaction_and_scrubbing_run_on_request(cluster: Up) -> None:
    cluster.run("ledger", "append", "-", stdin=b"payload\n" * 1000)
    assert cluster.run("bookie", "gc", "bookie-1", "--json").json["state"] == "done"
    assert cluster.run("bookie", "compact", "bookie-1", "--major", "--json").json["state"] == "done"
    scrubbed = cluster.run("bookie", "scrub", "bookie-1", "--rate", "1000000000").stdout.decode()
    assert re.search(r"^scrub done in .* damaged places 0$", scrubbed)
    job = cluster.run("bookie", "gc", "bookie-1", "--no-wait", "--json").json["job"]
    assert job >= 4


def test_garbage_collection_tells_what_it_has_trimmed_of_streams(cluster: Up) -> None:
    assert cluster.run("log", "create", "trimmed").status == 0
    assert cluster.run("log", "create", "whole").status == 0
    assert cluster.run("log", "append", "whole", stdin=b"x\n").status == 0
    assert cluster.run("log", "append", "trimmed", stdin=b"12345678\n" * 1000).status == 0
    assert cluster.run("log", "append", "trimmed", stdin=b"x\n").status == 0, "what is truncated lies before it"
    assert cluster.run("log", "truncate", "trimmed", "--before", 900).status == 0
    result = cluster.run("bookie", "gc", "bookie-1", "--json").json["result"]
    assert (result["streams_trimmed"], result["entries_trimmed"]) == (1, 900)
    assert result["bytes_trimmed"] > 900 * 8
    as_text = cluster.run("bookie", "gc", "bookie-2").stdout.decode()
    assert re.search(r", streams trimmed 1, entries trimmed 900, bytes trimmed \d+$", as_text)
    again = cluster.run("bookie", "gc", "bookie-1").stdout.decode()
    assert re.search(r", streams trimmed 0, entries trimmed 0, bytes trimmed 0$", again)


def test_compaction_is_paused_and_goes_on(cluster: Up) -> None:
    assert cluster.run("bookie", "compact", "bookie-2", "--pause", "60").stdout == b"compaction is paused for 60 s\n"
    cluster.run("bookie", "compact", "bookie-2").failed_with_one_line(1, "compaction is paused")
    assert cluster.run("bookie", "compact", "bookie-2", "--pause", "0").stdout == b"compaction is no longer paused\n"
    assert cluster.run("bookie", "compact", "bookie-2").status == 0


def test_a_read_only_bookie_takes_no_new_entries_until_it_is_switched_back(cluster: Up) -> None:
    def states() -> list[str]:
        return sorted(bookie["state"] for bookie in cluster.run("bookies", "--json").json)

    on = cluster.run("bookie", "read-only", "bookie-3", "on", "--reason", "new disks")
    assert on.stdout == b"bookie bookie-3 is read-only: new disks\n"
    assert states() == ["read-only", "writable", "writable"]
    cluster.run("ledger", "append", "-", stdin=b"x").failed_with_one_line(1, "bookies")
    assert cluster.run("bookie", "show", "bookie-3", "--json").json["read_only"]["operator"] == "new disks"
    assert cluster.run("bookie", "read-only", "bookie-3", "off").stdout == b"bookie bookie-3 is writable\n"
    assert states() == ["writable"] * 3
    assert cluster.run("ledger", "append", "-", stdin=b"x").status == 0


def test_the_log_level_of_a_running_bookie_changes(cluster: Up) -> None:
    answer = cluster.run("bookie", "log-level", "bookie-1", "debug", "--seconds", "5")
    assert answer.stdout == b"bookie bookie-1 logs at level debug for 5 s\n"
    shown = cluster.run("bookie", "show", "bookie-1", "--json").json
    assert shown["log_level"] in {"debug", "info"}
    assert octavo("bookie", "log-level", "bookie-1", "loud").status == 2


def test_top_shows_the_rates_of_every_bookie_once(cluster: Up) -> None:
    done = threading.Event()

    def write_on() -> None:
        while not done.is_set():
            cluster.run("ledger", "append", "-", stdin=b"payload\n" * 2000)

    writing = threading.Thread(target=write_on)
    writing.start()
    try:
        for _ in range(20):
            rows = cluster.run("top", "--once", "--json", "--interval", "1").json
            if any((row["entries_added_per_second"] or 0) > 0 for row in rows):
                break
    finally:
        done.set()
        writing.join()
    assert len(rows) == 3
    assert all(row["state"] == "writable" and row["adds_per_second"] is not None for row in rows)
    assert sum(row["bytes_added_per_second"] for row in rows) > 0
    table = cluster.run("top", "--once", "--interval", "0.2").stdout.decode().splitlines()
    assert table[0].startswith("bookie")
    assert len(table) == 4


def test_top_tells_a_bookie_that_does_not_answer(cluster: Up) -> None:
    pid = cluster.pids["bookie-2"]
    with cluster.hanging(pid):
        rows = cluster.run("top", "--once", "--json", "--interval", "0.2").json
    assert [row["adds_per_second"] is None for row in rows].count(True) == 1


# --- the supervisor --------------------------------------------------------------------------------------------------


def test_a_bookie_pings_its_watchdog_until_its_loop_hangs(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/metadata.db"
    with BookieProcess(tmp_path / "b", "--port", 0, "--metadata", uri, WATCHDOG_USEC="900000") as bookie:
        before = bookie.wait_told("READY=1")
        assert any(state.startswith("EXTEND_TIMEOUT_USEC=") for state in before), "a start asks for the time it needs"
        assert "WATCHDOG=1" not in before
        bookie.wait_told("WATCHDOG=1")
        bookie.wait_told("WATCHDOG=1")
        stop_process(bookie.process.pid)
        while not bookie.told_nothing_for(1.0):
            pass  # what was on its way
        os.kill(bookie.process.pid, signal.SIGCONT)
        bookie.wait_told("WATCHDOG=1")
        assert bookie.stop() == 0


def test_a_bookie_whose_supervisor_has_no_watchdog_sends_no_pings(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/metadata.db"
    other = str(os.getpid())
    settings = {"WATCHDOG_USEC": "300000", "WATCHDOG_PID": other}  # the watchdog of its parent
    with BookieProcess(tmp_path / "b", "--port", 0, "--metadata", uri, **settings) as bookie:
        bookie.wait_ready()
        assert bookie.told_nothing_for(1.0)


def test_sighup_reloads_the_log_level_and_names_what_needs_a_restart(tmp_path: Path) -> None:
    settings = tmp_path / "bookie.toml"

    def write(level: str, checkpoint_seconds: float) -> None:
        settings.write_text(
            f'data_dir = "{tmp_path}/b"\nport = 0\nmetadata = "sqlite:///{tmp_path}/metadata.db"\n'
            f'log_level = "{level}"\ncheckpoint_seconds = {checkpoint_seconds}\n'
        )

    write("info", 60.0)
    with BookieProcess(tmp_path / "b", "--config", settings, "--log-format", "json") as bookie:
        bookie.wait_ready()
        write("debug", 30.0)
        bookie.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "configuration reloaded" in bookie.stderr, "the reload")
        (line,) = [json.loads(line) for line in bookie.stderr.splitlines() if "configuration reloaded" in line]
        assert line["restart_needed_for"] == ["checkpoint_seconds"]
        assert octavo("bookie", "show", tmp_path / "b", "--json").json["log_level"] == "debug"
        settings.write_text("port = 'many'\n")
        bookie.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "configuration not reloaded" in bookie.stderr, "the refused reload")
        assert octavo("bookie", "show", tmp_path / "b", "--json").json["log_level"] == "debug"
        assert bookie.stop() == 0


def test_admin_listen_beyond_loopback_without_tls_is_refused_before_anything_starts(tmp_path: Path) -> None:
    for address in ("0.0.0.0:3180", "[::]:3180", "192.0.2.1:3180", "example.org:3180"):
        refused = octavo("bookie", "--data-dir", tmp_path / "b", OCTAVO_BOOKIE_ADMIN_LISTEN=address)
        refused.failed_with_one_line(2, "admin_listen", "set tls and auth", address)
    assert not (tmp_path / "b").exists()
