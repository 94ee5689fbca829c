"""The log of a process that goes on whatever becomes of its log (rule B11)."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, TextIO, cast

import pytest
import structlog
from octavo.bookie.log_output import PATIENCE_SECONDS, LogOutput
from octavo.bookie.logs import configure_logging
from octavo.bookie.storage.admission import Health

LINE = "x" * 1000 + "\n"


@contextlib.contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    try:
        yield reading, writing
    finally:
        for descriptor in (reading, writing):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def read_all(descriptor: int) -> str:
    os.set_blocking(descriptor, False)
    parts = []
    with contextlib.suppress(BlockingIOError):
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
    os.set_blocking(descriptor, True)
    return b"".join(parts).decode()


def test_lines_arrive_as_they_are_written(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        output = LogOutput(file.fileno())
        print("one", "two", file=output)
        print("bad \udcff", file=output)
        assert output.dropped_lines == 0
    assert (tmp_path / "log").read_text() == "one two\nbad \\udcff\n"


def test_a_full_disk_drops_and_counts_lines_and_raises_nothing() -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        output = LogOutput(full.fileno())
        for number in range(5):
            assert output.write(f"{number}\n") == 2
        output.flush()
    assert output.dropped_lines == 5
    output.write("closed\n")
    assert output.dropped_lines == 6


def test_the_next_line_that_can_be_written_tells_how_many_are_missing(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file, open("/dev/full", "wb") as full:
        output = LogOutput(file.fileno())
        good = os.dup(file.fileno())
        output.write("before\n")
        os.dup2(full.fileno(), file.fileno())
        output.write("lost\n")
        output.write("lost, too\n")
        os.dup2(good, file.fileno())
        os.close(good)
        output.write("after\n")
        output.write("last\n")
    told = (tmp_path / "log").read_text()
    assert told == "before\noctavo: 2 lines of this log could not be written\nafter\nlast\n"


def test_a_pipe_whose_reader_has_gone_drops_lines() -> None:
    with pipe() as (reading, writing):
        output = LogOutput(writing)
        os.close(reading)
        output.write("to no reader\n")
        assert output.dropped_lines == 1


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_reader_that_does_not_read_costs_one_short_wait_and_whole_lines(kind: str) -> None:
    with contextlib.ExitStack() as stack:
        if kind == "pipe":
            reading, writing = stack.enter_context(pipe())
        else:
            ends = [stack.enter_context(end) for end in socket.socketpair()]
            reading, writing = ends[0].fileno(), ends[1].fileno()
        output = LogOutput(writing)
        began = time.monotonic()
        while not output.dropped_lines:
            output.write(LINE)
        for _ in range(1000):
            output.write(LINE)
        assert output.dropped_lines == 1001
        assert time.monotonic() - began < 500 * PATIENCE_SECONDS, "1,001 lines wait once, not each"
        first = read_all(reading)
        output.write("after\n")
        told = (first + read_all(reading)).splitlines()
    assert told[-2:] == ["octavo: 1001 lines of this log could not be written", "after"]
    # The line that was being written when the reader stopped may be there in part.
    assert {len(line) for line in told[:-3]} == {len(LINE) - 1}


@pytest.mark.usefixtures("_structlog_as_before")
@pytest.mark.parametrize("log_format", ["console", "json"])
def test_structlog_writes_a_line_at_once_and_survives_a_full_disk(log_format: str) -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        output = LogOutput(full.fileno())
        configure_logging("info", log_format, stream=cast(TextIO, output))
        log = structlog.get_logger("octavo.test")
        log.info("one", ledger=1)
        log.error("two", reason="a reason")
        assert output.dropped_lines == 2


@pytest.fixture
def _structlog_as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_a_storage_that_fails_says_so_to_the_bookie_before_it_says_so_to_the_log() -> None:
    """Rule B1: a line that fails must not leave a bookie that lives on and refuses everything."""

    def unwritable(_logger: Any, _method: str, _line: MutableMapping[str, Any]) -> Any:
        raise OSError("no space left")

    told: list[BaseException] = []
    health = Health(told.append)
    before = structlog.get_config()
    structlog.configure(processors=[unwritable])
    try:
        with contextlib.suppress(OSError):
            health.fail(OSError("sync failed"))
    finally:
        structlog.configure(**before)
    assert [str(error) for error in told] == ["sync failed"]
