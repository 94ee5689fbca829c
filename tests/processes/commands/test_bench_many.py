"""`octavo bench` with many ledgers and many logs, on a real cluster: small numbers of each."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands.processes import Up
from support.tree import ROOT
from support.waiting import WAIT_SECONDS


@pytest.fixture(scope="module")
def cluster(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "data") as up:
        yield up.wait_ready()


def test_many_ledgers_are_written_evenly_and_the_processor_time_of_every_process_is_told(cluster: Up) -> None:
    ledgers = 30
    arguments = ("--ledgers", ledgers, "--in-flight", 2 * ledgers, "--count", 600, "--entry-size", 10, "--warm-up", 0)
    written = cluster.run("bench", "write", *arguments, "--json").json
    ids = written["ledger_ids"]
    assert len(set(ids)) == ledgers
    assert (written["entries"], written["errors"]) == (600, 0)
    for ledger_id in (ids[0], ids[-1]):
        assert cluster.run("ledger", "show", ledger_id, "--json").json["last_entry_id"] == 600 // ledgers - 1
    processor = written["processor_us_per_entry"]
    assert set(processor) == {"client", "total", *cluster.pids}
    assert processor["total"] == pytest.approx(sum(processor.values()) / 2, abs=0.1)
    assert min(processor.values()) > 0
    table = cluster.run("bench", "write", *arguments, "--delete").stdout.decode()
    assert f"write of {ledgers} ledgers, {ids[-1] + 1} to " in table
    assert "processor time per entry: client " in table
    assert ", bookie-3 " in table


def test_more_ledgers_than_adds_under_way_take_turns(cluster: Up) -> None:
    arguments = ("--ledgers", 12, "--in-flight", 5, "--count", 120, "--entry-size", 10, "--warm-up", 0)
    written = cluster.run("bench", "write", *arguments, "--json").json
    assert (written["entries"], written["errors"]) == (120, 0)
    assert cluster.run("bench", "read", "--json", *written["ledger_ids"]).json["entries"] == 120, "none is empty"


def test_no_ledgers_is_one_line(cluster: Up) -> None:
    cluster.run("bench", "write", "--ledgers", 0).failed_with_one_line(2, "--ledgers", "0 is not in the range")


@pytest.mark.parametrize("layout", ["stream", "chain"])
def test_many_logs_are_led_and_followed_idle_and_busy(cluster: Up, layout: str) -> None:
    arguments = ("--logs", 6, "--entry-size", 10, "--duration", 0.3, "--idle", 0.2, "--layout", layout)
    measured = cluster.run("bench", "logs", *arguments, "--json").json
    assert (measured["logs"], measured["layout"], measured["errors"]) == (6, layout, 0)
    assert measured["entries"] >= 6, "each log has had an add under way"
    assert measured["entries_followed"] == measured["entries"]
    assert set(measured["idle_share"]) == {"client", *cluster.pids}
    assert set(measured["processor_us_per_entry"]) == {"client", "total", *cluster.pids}
    assert 0 < measured["latency_ms"]["p50"] <= measured["latency_ms"]["p99"] <= measured["latency_ms"]["max"]
    assert measured["catch_up_seconds"] >= 0
    steps = ("create", "lead", "first_add", "follow", "close_followers", "close_leaders")
    assert min(measured[f"{step}_seconds"] for step in steps) > 0
    assert b"octavo-bench" not in cluster.run("log", "list").stdout


def test_many_logs_as_a_table(cluster: Up) -> None:
    table = cluster.run("bench", "logs", "--logs", 2, "--duration", 0.1, "--idle", 0).stdout.decode()
    assert "entries/s" in table
    assert "processor time per entry: client " in table
    assert "create " in table
    assert "idle" not in table
    cluster.run("bench", "logs", "--logs", 0).failed_with_one_line(2, "--logs", "0 is not in the range")


def test_memory_of_ledgers_and_logs(cluster: Up) -> None:
    ledgers = cluster.run("ledger", "list", "--json").stdout
    measured = cluster.run("bench", "memory", "--count", 20, "--json").json
    each = measured["bytes_each"]
    assert set(each) == {"open_ledger", "led_log", "followed_log"}
    for figures in each.values():
        assert set(figures) == {"client", *cluster.pids}
        assert 1_000 < figures["client"] < 1_000_000
    table = cluster.run("bench", "memory", "--count", 2).stdout.decode()
    assert "bytes for one" in table
    assert "followed log" in table
    assert cluster.run("ledger", "list", "--json").stdout == ledgers
    assert b"octavo-bench" not in cluster.run("log", "list").stdout
    cluster.run("bench", "memory", "--count", 0).failed_with_one_line(2, "--count", "0 is not in the range")


@pytest.mark.parametrize("through", ["log", "ledger"])
def test_entries_reach_every_follower_in_every_process(cluster: Up, through: str) -> None:
    ledgers = cluster.run("ledger", "list", "--json").stdout
    arguments = ("--followers", 3, "--processes", 2, "--through", through, "--rate", 100, "--warm-up", 0.1)
    measured = cluster.run("bench", "followers", *arguments, "--duration", 0.5, "--entry-size", 10, "--json").json
    assert (measured["entries"], measured["errors"], measured["unsent"]) == (50, 0, 0)
    assert (measured["followers"], measured["processes"], measured["through"]) == (3, 2, through)
    known, seen = measured["acknowledged_ms"], measured["last_follower_ms"]
    for times in (known, seen):
        assert 0 < times["p50"] <= times["p99"] <= times["max"] < 1000 * WAIT_SECONDS
    assert measured["ratio_p50"] == pytest.approx(seen["p50"] / known["p50"], rel=0.01)
    assert set(measured["processor_us_per_entry"]) == {"client", "total", *cluster.pids}
    assert cluster.run("ledger", "list", "--json").stdout == ledgers
    assert b"octavo-bench" not in cluster.run("log", "list").stdout


def test_followers_as_a_table_and_bad_numbers_of_them(cluster: Up) -> None:
    table = cluster.run("bench", "followers", "--rate", 100, "--duration", 0.1, "--warm-up", 0).stdout.decode()
    assert "10 adds, until" in table
    assert "at the last of 1 followers" in table
    few = cluster.run("bench", "followers", "--followers", 3, "--processes", 4)
    few.failed_with_one_line(2, "--followers 3", "--processes 4")
    many = cluster.run("bench", "followers", "--rate", 1_000_000, "--duration", 2)
    many.failed_with_one_line(2, "1,000,000 entries")
    cluster.run("bench", "followers", "--followers", 0).failed_with_one_line(2, "--followers", "0 is not in the range")


def scan_beside_adds(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "scripts" / "measure" / "scan_beside_adds.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_adds_are_measured_with_a_scan_beside_them_and_without(tmp_path: Path) -> None:
    small = ("--megabytes", 0.2, "--rate", 100, "--seconds", 0.3, "--rounds", 1, "--data-dir", tmp_path)
    ended = scan_beside_adds(*small, "--json")
    assert ended.returncode == 0, ended.stderr
    measured = json.loads(ended.stdout)
    assert measured["scan_megabytes_per_second"] > 0
    (one,) = measured["rounds"]
    for name in ("p50", "p99", "p99.9"):
        assert one["ratios"][name] == pytest.approx(one["with"][name] / one["without"][name], abs=0.001)
        assert measured["with"][name] == one["with"][name] > 0
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_measure_nothing_are_refused() -> None:
    refused = scan_beside_adds("--rounds", 0)
    assert (refused.returncode, refused.stderr.count("--rounds must be above 0")) == (2, 1)
