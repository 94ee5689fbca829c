"""The processes of a benchmark: which they are, what they have used, and what is said of it."""

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from octavo.cli.bench.processes import CLIENT, Processes, grown, in_words, processor_per_entry, share_of_a_core
from octavo.cli.session import CommandError, LogFormat, LogLevel, Session


def session_of(uri: str) -> Session:
    return Session(metadata=uri, log_level=LogLevel.ERROR, log_format=LogFormat.CONSOLE, as_json=False)


def test_processor_time_is_that_of_the_process_to_the_microsecond() -> None:
    processes = Processes({"again": os.getpid()})
    least, before = time.process_time(), processes.processor_seconds()
    while time.process_time() - least < 0.003:
        pass
    after, most = processes.processor_seconds(), time.process_time()
    for name, seconds in grown(before, after).items():
        assert 0.003 - 0.0005 <= seconds <= most - least, name


def test_anonymous_memory_grows_with_what_the_process_keeps() -> None:
    processes = Processes({})
    before = processes.anonymous_bytes()[CLIENT]
    size = 64 * 1024 * 1024
    # Not of the heap, which has room where earlier tests have freed some.
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as kept:
        kept.write(os.urandom(size))
        assert processes.anonymous_bytes()[CLIENT] - before >= 0.9 * size


def test_without_bookies_on_this_machine_there_is_only_the_client(tmp_path: Path) -> None:
    for uri in ("zk://elsewhere:2181/octavo", f"sqlite:///{tmp_path}/metadata.db", "sqlite:////none/metadata.db"):
        processes = Processes.of(session_of(uri))
        assert not processes.sees_bookies
        assert list(processes.processor_seconds()) == [CLIENT]


@pytest.mark.parametrize("measure", [Processes.processor_seconds, Processes.anonymous_bytes])
def test_a_bookie_that_has_ended_is_named(measure: object) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert callable(measure)
    with pytest.raises(CommandError, match=f"bookie-2, process {ended.pid}, ended while it was measured"):
        measure(Processes({"bookie-2": ended.pid}))


def test_figures_per_entry_and_their_total_that_needs_the_bookies() -> None:
    spent = {CLIENT: 0.002, "bookie-1": 0.001}
    assert processor_per_entry(spent, 10) == {CLIENT: 200.0, "bookie-1": 100.0, "total": 300.0}
    assert processor_per_entry({CLIENT: 0.002}, 10) == {CLIENT: 200.0, "total": None}
    assert processor_per_entry({CLIENT: 0.0}, 0) == {CLIENT: 0.0, "total": None}
    assert share_of_a_core(spent, 2) == {CLIENT: 0.001, "bookie-1": 0.0005}


def test_words_leave_out_what_is_not_known() -> None:
    assert in_words({CLIENT: 1234.56, "total": None}, "us") == "client 1,234.6 us"
    assert in_words({CLIENT: 0.0123, "bookie-1": 0.5}, "%", scale=100, digits=2) == "client 1.23 %, bookie-1 50.00 %"
