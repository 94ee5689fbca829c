"""The inside of `octavo log append`: what is counted, and what becomes of lines when the input or the lead ends."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from octavo.cli.ledger.lines import LineSplitter
from octavo.cli.log.append import INTERRUPTED_SECONDS, AppendReport, append_lines
from octavo.cli.log.standard_input import InterruptibleInput
from octavo.cli.session import CommandError, describe
from octavo.protocol.errors import EntryTooLargeError, NotLeaderError
from octavo.protocol.messages import Op
from support.clusters.leading import led_log
from support.clusters.log_cluster import collect
from support.waiting import WAIT_SECONDS

import octavo


class Input:
    """A source of chunks. After the last one it ends, fails, or stays silent for ever."""

    def __init__(self, chunks: Sequence[bytes], *, error: OSError | None = None, silent: bool = False) -> None:
        self._chunks = list(chunks)
        self._error = error
        self._silent = silent
        self.asked_in_vain = asyncio.Event()

    async def read(self) -> bytes:
        if self._chunks:
            return self._chunks.pop(0)
        self.asked_in_vain.set()
        if self._error is not None:
            raise self._error
        if self._silent:
            await asyncio.Event().wait()
        return b""


async def append(
    writer: octavo.LogWriter,
    source: Input,
    report: AppendReport,
    *,
    line_bytes_max: int = 100,
    interrupted_seconds: float = INTERRUPTED_SECONDS,
) -> None:
    await append_lines(
        writer,
        source,
        LineSplitter(line_bytes_max),
        report,
        progress=lambda _done, _text="": None,
        interrupted_seconds=interrupted_seconds,
    )


def quiet() -> AppendReport:
    return AppendReport("lines", as_json=False, each_position=False)


def test_a_report_in_words() -> None:
    report = quiet()
    assert str(report) == "no entries"
    report.acknowledge(range(7, 8), 3)
    assert str(report) == "1 entry at position 7"
    report.acknowledge(range(8, 10), 5)
    assert str(report) == "3 entries at positions 7 to 9"
    assert (report.payload_bytes, report.first_position, report.end) == (8, 7, 10)


def test_an_error_tells_what_was_added_and_where_to_go_on() -> None:
    report = quiet()
    with pytest.raises(NotLeaderError, match=r"^gone$"), report.completed():
        raise NotLeaderError("gone", may_have_happened=False)
    with (
        pytest.raises(CommandError, match=r"gone; acknowledged before: no entries; lines after.*--first 0"),
        report.completed(),
    ):
        raise NotLeaderError("gone", may_have_happened=True)
    report.acknowledge(range(7, 9), 3)
    with (
        pytest.raises(CommandError, match=r"gone; acknowledged before: 2 entries at positions 7 to 8$"),
        report.completed(),
    ):
        raise NotLeaderError("gone", may_have_happened=False)


async def test_lines_are_added_as_they_come_and_told_of_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    async with led_log() as (_, _, log, writer):
        report = AppendReport("lines", as_json=False, each_position=True)
        with report.completed():
            await append(writer, Input([b"a\nb", b"b\n", b"", b"never read"]), report)
        assert capsys.readouterr().out == "0\n1\nlog lines: 2 entries at positions 0 to 1\n"
        assert (report.entries, report.payload_bytes, report.end) == (2, 3, 2)
        assert await collect(log, 0, 2) == [b"a", b"bb"]


async def test_lines_before_one_that_is_too_long_are_acknowledged_first() -> None:
    async with led_log() as (_, _, log, writer):
        report = quiet()
        with pytest.raises(EntryTooLargeError, match="line 3 is longer"):
            await append(writer, Input([b"a\nb\n", b"x" * 101 + b"\n"]), report)
        assert str(report) == "2 entries at positions 0 to 1"
        assert await collect(log, 0, 2) == [b"a", b"b"]


async def test_an_input_that_fails_leaves_what_was_read() -> None:
    async with led_log() as (_, _, log, writer):
        report = quiet()
        with pytest.raises(OSError, match="gone"):
            await append(writer, Input([b"a\n"], error=OSError("gone")), report)
        assert report.entries == 1
        assert await collect(log, 0, 1) == [b"a"]


async def test_cancelling_waits_for_the_lines_that_were_read() -> None:
    async with led_log(close_timeout_seconds=30.0) as (cluster, _, _, writer):
        for bookie in cluster.bookies:
            bookie.hold(Op.ADD)
        report, source = quiet(), Input([b"a\nb\n"], silent=True)
        appending = asyncio.ensure_future(append(writer, source, report))
        await source.asked_in_vain.wait()
        await cluster.bookies[0].received(Op.ADD, 1)
        appending.cancel()
        await asyncio.sleep(0)
        assert not appending.done()
        for bookie in cluster.bookies:
            bookie.release(Op.ADD)
        with pytest.raises(asyncio.CancelledError):
            await appending
        assert str(report) == "2 entries at positions 0 to 1"


@pytest.mark.parametrize("acknowledged", [0, 1])
async def test_cancelling_does_not_wait_for_ever(acknowledged: int, capsys: pytest.CaptureFixture[str]) -> None:
    async with led_log(close_timeout_seconds=30.0) as (cluster, _, _, writer):
        report = quiet()
        for _ in range(acknowledged):
            await append(writer, Input([b"a\n"]), report)
        for bookie in cluster.bookies:
            bookie.hold(Op.ADD)
        source = Input([b"b\nc\n"], silent=True)
        appending = asyncio.ensure_future(append(writer, source, report, interrupted_seconds=0.05))
        await source.asked_in_vain.wait()
        await cluster.bookies[0].received(Op.ADD, acknowledged + 1)
        appending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(appending, WAIT_SECONDS)
        shown = f"log read {report.name} --first 1` shows them" if acknowledged else f"log show {report.name}` tells"
        assert (
            f"were not acknowledged within 0.05 s; some may have been added: `octavo {shown}" in capsys.readouterr().err
        )
        for bookie in cluster.bookies:
            bookie.release(Op.ADD)
        await writer.flush()


async def test_a_lost_lead_ends_a_silent_input_and_tells_of_the_add_in_doubt() -> None:
    async with led_log(log_duel_pause_seconds=0.001, close_timeout_seconds=30.0) as (cluster, _, log, writer):
        report, source = quiet(), Input([b"a\n"], silent=True)
        appending = asyncio.ensure_future(append(writer, source, report))
        await source.asked_in_vain.wait()
        await writer.flush()
        async with (
            octavo.connect(cluster.uri) as other,
            other.open_log(log.name) as theirs,
            theirs.take_over() as rival,
        ):
            await rival.add(b"rival")
            with pytest.raises(NotLeaderError):
                await asyncio.wait_for(appending, WAIT_SECONDS)
        assert str(report) == "1 entry at position 0"


async def test_standard_input_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with (
        (tmp_path / "written").open("wb") as only_written,
        pytest.raises(OSError, match="standard input") as caught,
    ):
        await InterruptibleInput(only_written.fileno()).read()
    assert describe(caught.value) == "standard input: Bad file descriptor"
