"""Tailing readers of real bookies: everything once and in order while bookies are killed; soon, and idle for free."""

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands.processes import OCTAVO, Up, environment
from support.waiting import WAIT_SECONDS, wait_until

import octavo as octavo_client
from octavo import LedgerReader, LedgerWriter

DELAY_SECONDS_MAX = 0.04
DELAY_ADDS_MAX = 10
"""What no median delay may reach, in seconds or in the time that an add takes, whichever is longer on this machine:
twenty times what an idle one shows, and less than the pauses that might stand in the way."""


@pytest.fixture(scope="module")
def up(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "data", "--bookies", 4) as cluster:
        yield cluster.wait_ready()


class Tail:
    """A follower in a task: what it got, and when."""

    def __init__(self, reader: LedgerReader, first: int = 0) -> None:
        self.payloads: list[bytes] = []
        self.times: list[float] = []
        self._more = asyncio.Event()
        self.task = asyncio.create_task(self._run(reader, first))

    async def _run(self, reader: LedgerReader, first: int) -> None:
        async for entry in reader.follow(first):
            assert entry.entry_id == first + len(self.payloads)
            self.payloads.append(entry.payload)
            self.times.append(time.monotonic())
            self._more.set()

    async def got(self, count: int) -> None:
        """Return once it has got ``count``."""
        async with asyncio.timeout(WAIT_SECONDS):
            while len(self.payloads) < count:
                self._more.clear()
                await self._more.wait()


async def add_some(ledger: LedgerWriter, payloads: list[bytes], count: int) -> None:
    """Add one after another, some in bursts."""
    for number in range(count):
        burst = [b"%d/%d" % (len(payloads) + at, count) for at in range(1 if number % 5 else 40)]
        await ledger.add_many(burst)
        payloads += burst


class Tailed:
    """A ledger being written, with followers from its beginning and from wherever they joined."""

    def __init__(self, ledger: LedgerWriter) -> None:
        self.ledger = ledger
        self.payloads: list[bytes] = []
        self.tails: list[Tail] = []
        self.readers: list[LedgerReader] = []

    async def join(self, client: octavo_client.Client) -> None:
        """One follower more."""
        reader = await client.open_ledger(self.ledger.id, recover=False)
        self.readers.append(reader)
        self.tails.append(Tail(reader))

    async def go_on(self) -> None:
        """Some entries more; all of them arrive."""
        await add_some(self.ledger, self.payloads, 20)
        for tail in self.tails:
            await tail.got(len(self.payloads))

    async def end(self) -> None:
        """Close it; the followers end with its last entry."""
        await self.ledger.close()
        for tail, reader in zip(self.tails, self.readers, strict=True):
            async with asyncio.timeout(WAIT_SECONDS):
                await tail.task
            assert tail.payloads == self.payloads
            assert reader.ledger_closed


async def test_followers_get_everything_while_every_bookie_is_killed_in_turn(up: Up) -> None:
    """The usual sizes, striped ones, Qw = Qa, Qa = 1: all at once."""
    sizes = [(3, 3, 2), (3, 2, 2), (2, 2, 2), (4, 2, 1)]
    hasty: dict[str, Any] = {"bookie_loss_seconds": 0.02, "reconnect_delay_seconds_max": 0.2}
    async with octavo_client.connect(up.uri, **hasty) as writing, octavo_client.connect(up.uri) as following:
        all_tailed = [Tailed(await writing.create_ledger(*each)) for each in sizes]
        for tailed in all_tailed:
            await tailed.join(following)
        for name in sorted(up.pids):
            await asyncio.gather(*(tailed.go_on() for tailed in all_tailed))
            up.kill_bookie(name)
            await asyncio.gather(*(tailed.join(following) for tailed in all_tailed))
            await asyncio.gather(*(tailed.go_on() for tailed in all_tailed))
            await asyncio.to_thread(up.wait_for, "started again", name)
        await asyncio.gather(*(tailed.go_on() for tailed in all_tailed))
        # Where there is a spare the ensemble changes under the followers (rule R5).
        for tailed in all_tailed[:3]:
            await up.make_ensemble_change(tailed.ledger, tailed.go_on)
        for tailed in all_tailed:
            await tailed.end()
        assert all(len(tailed.ledger.metadata.fragments) > 1 for tailed in all_tailed[:3])


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 2, 2), (3, 3, 1)], ids=str)
async def test_ledger_recovered_by_another_client_ends_its_followers_at_its_end(
    up: Up, sizes: tuple[int, int, int]
) -> None:
    payloads: list[bytes] = []
    async with octavo_client.connect(up.uri) as writing, octavo_client.connect(up.uri) as other:
        ledger = await writing.create_ledger(*sizes)
        reader = await other.open_ledger(ledger.id, recover=False)
        tail = Tail(reader)
        await add_some(ledger, payloads, 20)
        await tail.got(1)
        async with other.open_ledger(ledger.id) as recovered:
            assert recovered.ledger_closed
            async with asyncio.timeout(WAIT_SECONDS):
                await tail.task
            assert tail.payloads == payloads == [entry.payload async for entry in recovered]
            assert reader.last_add_confirmed == recovered.last_add_confirmed
        with pytest.raises(octavo_client.LedgerFencedError):
            await ledger.add(b"too late")
        with contextlib.suppress(octavo_client.LedgerFencedError):  # raised if that add was sent
            await ledger.close()


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 2, 2)], ids=str)
async def test_lone_adds_reach_a_follower_soon(up: Up, sizes: tuple[int, int, int]) -> None:
    """The best of three rounds counts: the machine has more to do than this."""
    medians = []
    async with octavo_client.connect(up.uri) as writing, octavo_client.connect(up.uri) as following:
        for _ in range(3):
            acknowledged, add_seconds = [], []
            async with writing.create_ledger(*sizes) as ledger:
                tail = Tail(await following.open_ledger(ledger.id, recover=False))
                for number in range(30):
                    began_at = time.monotonic()
                    await ledger.add(b"alone")
                    acknowledged.append(time.monotonic())
                    add_seconds.append(acknowledged[-1] - began_at)
                    await tail.got(number + 1)
            await tail.task
            medians.append(
                statistics.median(seen - known for seen, known in zip(tail.times, acknowledged, strict=True))
            )
            if medians[-1] < max(DELAY_SECONDS_MAX, DELAY_ADDS_MAX * statistics.median(add_seconds)):
                return
    pytest.fail(f"median delays of {medians} seconds")


async def test_idle_follower_costs_no_processor_time(up: Up, tmp_path: Path) -> None:
    """Another process tails a ledger that is left alone while this one follows a busy one for some seconds."""
    payloads: list[bytes] = []
    async with octavo_client.connect(up.uri) as client:
        idle = await client.create_ledger()
        await idle.add(b"the only one")
        output = tmp_path / "tailed"
        with output.open("wb") as stdout:
            process = await asyncio.create_subprocess_exec(
                *OCTAVO, "ledger", "tail", str(idle.id), stdout=stdout, env=environment(OCTAVO_METADATA=up.uri)
            )
        try:
            await asyncio.to_thread(wait_until, lambda: output.read_bytes() == b"the only one\n", "the entry is tailed")
            began_at, used_before = time.monotonic(), processor_seconds(process.pid)
            async with client.create_ledger() as busy:
                tail = Tail(await client.open_ledger(busy.id, recover=False))
                while time.monotonic() < began_at + 2:
                    await add_some(busy, payloads, 10)
            await tail.task
            share = (processor_seconds(process.pid) - used_before) / (time.monotonic() - began_at)
            assert share < 0.05
            await idle.close()
            async with asyncio.timeout(WAIT_SECONDS):
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def processor_seconds(pid: int) -> float:
    """What the process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
