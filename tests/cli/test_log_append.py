"""The inside of `octavo log append`: what is counted, and what becomes of lines when the input or the lead ends."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from octavo.cli.ledger.lines import LineSplitter
from octavo.cli.log.append import Tally, append_lines
from octavo.protocol.errors import EntryTooLargeError, NotLeaderError
from octavo.protocol.messages import Op
from support.reading import Cluster, cluster_of

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


@asynccontextmanager
async def leading() -> AsyncIterator[tuple[Cluster, octavo.Log, octavo.LogWriter]]:
    async with (
        cluster_of() as cluster,
        octavo.connect(cluster.uri, log_duel_pause_seconds=0.001, close_timeout_seconds=4.0) as client,
        client.create_log("lines") as log,
        log.take_over() as writer,
    ):
        yield cluster, log, writer


async def append(writer: octavo.LogWriter, source: Input, tally: Tally, *, line_bytes_max: int = 100) -> list[range]:
    """The acknowledged positions, as they were told."""
    told: list[range] = []
    await append_lines(
        writer, source, LineSplitter(line_bytes_max), tally, progress=lambda _done, _text="": None,
        on_acknowledged=told.append,
    )  # fmt: skip
    return told


def test_a_tally_in_words() -> None:
    tally = Tally()
    assert str(tally) == "no entries"
    tally.acknowledge(range(7, 8), 3)
    assert str(tally) == "1 entry at position 7"
    tally.acknowledge(range(8, 10), 5)
    assert str(tally) == "3 entries at positions 7 to 9"
    assert (tally.payload_bytes, tally.first_position, tally.end) == (8, 7, 10)


async def test_lines_are_added_as_they_come_and_told_of_in_order() -> None:
    async with leading() as (_, log, writer):
        tally = Tally()
        told = await append(writer, Input([b"a\nb", b"b\n", b"", b"never read"]), tally)
        assert [position for positions in told for position in positions] == [0, 1]
        assert (tally.entries, tally.payload_bytes, tally.end) == (2, 3, 2)
        await log.refresh()
        assert [entry.payload for entry in await log.read(0, 1)] == [b"a", b"bb"]


async def test_lines_before_one_that_is_too_long_are_acknowledged_first() -> None:
    async with leading() as (_, log, writer):
        tally = Tally()
        with pytest.raises(EntryTooLargeError, match="line 3 is longer"):
            await append(writer, Input([b"a\nb\n", b"x" * 101 + b"\n"]), tally)
        assert str(tally) == "2 entries at positions 0 to 1"
        assert await log.refresh() == 2


async def test_an_input_that_fails_leaves_what_was_read() -> None:
    async with leading() as (_, log, writer):
        tally = Tally()
        with pytest.raises(OSError, match="gone"):
            await append(writer, Input([b"a\n"], error=OSError("gone")), tally)
        assert tally.entries == 1
        assert await log.refresh() == 1


async def test_cancelling_waits_for_the_lines_that_were_read() -> None:
    async with leading() as (cluster, _, writer):
        for bookie in cluster.bookies:
            bookie.hold(Op.ADD)
        tally, source = Tally(), Input([b"a\nb\n"], silent=True)
        appending = asyncio.ensure_future(append(writer, source, tally))
        await source.asked_in_vain.wait()
        await cluster.bookies[0].received(Op.ADD, 1)
        appending.cancel()
        await asyncio.sleep(0)
        assert not appending.done()
        for bookie in cluster.bookies:
            bookie.release(Op.ADD)
        with pytest.raises(asyncio.CancelledError):
            await appending
        assert str(tally) == "2 entries at positions 0 to 1"


async def test_a_lost_lead_ends_a_silent_input_and_tells_of_the_add_in_doubt() -> None:
    async with leading() as (cluster, log, writer):
        tally, source = Tally(), Input([b"a\n"], silent=True)
        appending = asyncio.ensure_future(append(writer, source, tally))
        await source.asked_in_vain.wait()
        await writer.flush()
        async with (
            octavo.connect(cluster.uri) as other,
            other.open_log(log.name) as theirs,
            theirs.take_over() as rival,
        ):
            await rival.add(b"rival")
            with pytest.raises(NotLeaderError):
                await asyncio.wait_for(appending, 20)
        assert str(tally) == "1 entry at position 0"
