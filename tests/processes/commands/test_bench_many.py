"""`octavo bench` with many ledgers and many logs, on a real cluster: small numbers of each."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands.processes import Up


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


def test_more_ledgers_than_adds_under_way_is_one_line_and_makes_none(cluster: Up) -> None:
    before = cluster.run("ledger", "list", "--json").stdout
    few = cluster.run("bench", "write", "--ledgers", 20, "--in-flight", 19)
    few.failed_with_one_line(2, "--ledgers 20", "--in-flight 19")
    batched = cluster.run("bench", "write", "--ledgers", 20, "--in-flight", 1000, "--batch", 100)
    batched.failed_with_one_line(2, "--ledgers 20", "--in-flight 1000 with --batch 100 has 10")
    cluster.run("bench", "write", "--ledgers", 0).failed_with_one_line(2, "--ledgers", "0 is below 1")
    assert cluster.run("ledger", "list", "--json").stdout == before
