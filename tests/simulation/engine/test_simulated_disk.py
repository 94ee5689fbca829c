"""The simulated disk takes time, and at a power cut loses unsynced data and nothing else."""

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from simulation.engine.disk import Disk, DiskSettings, SimulatedFileSystem
from simulation.engine.inode import PAGE_BYTES, SECTORS_WRITTEN, Inode
from simulation.engine.loop import Process, SimulationLoop
from simulation.engine.trace import Trace

FILE = Path("/data/file")


class Host:
    """A process with a disk."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = SimulationLoop()
        self.disk = Disk(self.loop, "host", random.Random(seed), DiskSettings(sync_seconds=0.01), Trace())
        self.process: Process
        self.filesystem: SimulatedFileSystem
        self.boot()

    def boot(self) -> None:
        self.process = Process(self.loop, "host")
        self.filesystem = SimulatedFileSystem(self.process, self.disk)

    def cut_power(self) -> None:
        self.process.kill()
        self.disk.power_cut()
        self.boot()

    def run(self, work: Callable[[SimulatedFileSystem], Coroutine[Any, Any, Any]], seconds: float = 10.0) -> Any:
        """Run ``work`` in the process for at most ``seconds``. Returns its result, or None if it has not ended."""

        async def main() -> Any:
            task = self.process.spawn(work(self.filesystem), "work")
            await asyncio.sleep(seconds)
            return task.result() if task.done() else None

        return self.loop.run_until_complete(main())


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.loop.close()


async def make(filesystem: SimulatedFileSystem, *, durable: bool = True) -> Any:
    await filesystem.make_directory(FILE.parent)
    file = await filesystem.open(FILE, create=True)
    if durable:
        await filesystem.sync_directory(FILE.parent)
    return file


def test_synced_bytes_and_names_survive_a_power_cut() -> None:
    for seed in range(50):
        host = Host(seed)

        async def write(filesystem: SimulatedFileSystem) -> None:
            file = await make(filesystem)
            await file.write(0, [b"a" * 3000])
            await file.sync()
            await file.write(3000, [b"b" * 3000])

        host.run(write)
        host.cut_power()
        assert host.disk.names[FILE].volatile[:3000] == b"a" * 3000
        host.loop.close()


def test_unsynced_bytes_are_kept_lost_and_torn() -> None:
    seen = set()
    for seed in range(100):
        inode = Inode(b"o" * 4 * PAGE_BYTES)
        inode.write(0, b"n" * 4 * PAGE_BYTES)
        content = inode.survivors(random.Random(seed))
        for page in range(4):
            piece = content[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]
            seen.add("kept" if piece == b"n" * PAGE_BYTES else "lost" if piece == b"o" * PAGE_BYTES else "torn")
    assert seen == {"kept", "lost", "torn"}


def test_unsynced_names_may_be_lost() -> None:
    survived = set()
    for seed in range(40):
        host = Host(seed)

        async def write(filesystem: SimulatedFileSystem) -> None:
            await make(filesystem, durable=False)

        host.run(write)
        host.cut_power()
        survived.add(FILE in host.disk.names)
        host.loop.close()
    assert survived == {True, False}


def test_kill_keeps_the_page_cache(host: Host) -> None:
    async def write(filesystem: SimulatedFileSystem) -> None:
        file = await make(filesystem, durable=False)
        await file.write(0, [b"cached"])

    host.run(write)
    host.process.kill()
    assert host.disk.names[FILE].volatile == b"cached"


def test_loop_continues_while_a_sync_is_under_way(host: Host) -> None:
    async def work(filesystem: SimulatedFileSystem) -> int:
        file = await make(filesystem)
        syncing = asyncio.ensure_future(file.write_and_sync(0, [b"x"]))
        turns = 0
        while not syncing.done():
            await asyncio.sleep(0.001)
            turns += 1
        return turns

    assert host.run(work) > 3


def test_failed_sync_makes_some_pages_durable_and_a_later_sync_does_not_write_the_rest() -> None:
    durable = set()
    for seed in range(40):
        host = Host(seed)

        async def work(filesystem: SimulatedFileSystem, host: Host = host) -> None:
            file = await make(filesystem)
            await file.write(0, [b"n" * 2 * PAGE_BYTES])
            host.disk.faults.sync_failures_due = 1
            with pytest.raises(OSError, match="input/output") as caught:
                await file.sync()
            assert caught.value.errno == errno.EIO
            await file.sync()

        host.run(work)
        host.cut_power()
        durable.add(bytes(host.disk.names[FILE].volatile) == b"n" * 2 * PAGE_BYTES)
        host.loop.close()
    assert durable == {True, False}


def test_power_is_cut_at_the_planned_operation_and_its_caller_is_not_told(host: Host) -> None:
    cuts: list[float] = []
    host.disk.on_crash = lambda: cuts.append(host.loop.now)
    host.disk.faults.crash_at = 3

    async def work(filesystem: SimulatedFileSystem) -> str:
        file = await make(filesystem)
        await file.write_and_sync(0, [b"never acknowledged"])
        return "went on"

    assert host.run(work) is None
    assert len(cuts) == 1


def test_power_cut_loses_a_lying_sync_if_a_later_sync_was_honoured() -> None:
    inode = Inode(bytes(4 * PAGE_BYTES))
    inode.lie(0, b"a" * PAGE_BYTES)
    inode.write_and_sync(PAGE_BYTES, b"b" * PAGE_BYTES)
    assert inode.volatile[: 2 * PAGE_BYTES] == b"a" * PAGE_BYTES + b"b" * PAGE_BYTES
    assert inode.power_cut(random.Random(0)) == 1
    assert inode.volatile[: 2 * PAGE_BYTES] == bytes(PAGE_BYTES) + b"b" * PAGE_BYTES


def test_lie_about_the_very_last_sync_is_honoured() -> None:
    inode = Inode(bytes(2 * PAGE_BYTES))
    inode.lie(0, b"a" * PAGE_BYTES)
    assert inode.power_cut(random.Random(0)) == 0
    assert inode.volatile[:PAGE_BYTES] == b"a" * PAGE_BYTES


def test_full_disk_refuses_growth_and_not_what_fits(host: Host) -> None:
    async def work(filesystem: SimulatedFileSystem) -> None:
        file = await make(filesystem)
        await file.write(0, [b"x" * 1000])
        host.disk.settings.capacity_bytes = 1000
        await file.write(0, [b"y" * 1000])
        with pytest.raises(OSError, match="no space left"):
            await file.write(1000, [b"z"])

    host.run(work)


def test_cancelled_open_leaves_nothing_open(host: Host) -> None:
    async def work(filesystem: SimulatedFileSystem) -> int:
        await (await make(filesystem)).close()
        opening = asyncio.ensure_future(filesystem.open(FILE))
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.sleep(1)
        return len(filesystem.open_files)

    assert host.run(work) == 0


JOURNAL_FILE = Path("/journal/journal-0000000000000001.segment")


async def make_journal(filesystem: SimulatedFileSystem) -> Any:
    await filesystem.make_directory(JOURNAL_FILE.parent)
    return await filesystem.open(JOURNAL_FILE, create=True)


def test_sync_failure_meant_for_the_journal_waits_for_it(host: Host) -> None:
    async def work(filesystem: SimulatedFileSystem) -> None:
        file, journal = await make(filesystem), await make_journal(filesystem)
        host.disk.faults.sync_failures_due, host.disk.faults.sync_fails_in_journal = 1, True
        await file.write_and_sync(0, [b"kept"])
        with pytest.raises(OSError, match="input/output"):
            await journal.write_and_sync(0, [b"lost"])

    host.run(work)


@pytest.mark.parametrize(("kind", "reached"), [("journal", ["removed"]), ("remove", ["journaled"])])
def test_planned_crash_counts_the_named_operations_only(host: Host, kind: str, reached: list[str]) -> None:
    done: list[str] = []
    host.disk.on_crash = lambda: None

    async def work(filesystem: SimulatedFileSystem) -> None:
        file, journal = await make(filesystem), await make_journal(filesystem)
        await file.close()
        host.disk.faults.crash_of, host.disk.faults.crash_at = kind, 1
        if kind == "journal":
            await filesystem.remove(FILE)
            done.append("removed")
        await journal.write_and_sync(0, [b"entry"])
        done.append("journaled")
        await filesystem.remove(FILE)
        done.append("removed")

    host.run(work)
    assert done == reached


def test_open_that_is_cancelled_as_it_succeeds_leaves_nothing_open(host: Host) -> None:
    async def work(filesystem: SimulatedFileSystem) -> int:
        await (await make(filesystem)).close()
        host.disk.settings.read_seconds = 0.0
        same_moment = filesystem.run(None, "exists", FILE, lambda: None)
        opening = asyncio.ensure_future(filesystem.open(FILE))
        await asyncio.sleep(0)
        await same_moment
        opening.cancel()
        await asyncio.wait([opening])
        assert opening.cancelled()
        return len(filesystem.open_files)

    assert host.run(work) == 0


def test_power_cut_garbles_synced_bytes_in_a_page_that_the_cache_had_not_written_again() -> None:
    """But no other page."""
    garbled = set()
    for seed in range(40):
        host = Host(seed)
        host.disk.settings.garble_chance = 1.0
        page = PAGE_BYTES * SECTORS_WRITTEN

        async def work(filesystem: SimulatedFileSystem, page: int = page) -> None:
            file = await make(filesystem)
            await file.write_and_sync(0, [b"a" * (page + PAGE_BYTES)])
            await file.write(page + PAGE_BYTES, [b"b"])

        host.run(work)
        host.disk.power_cut()
        content = host.disk.names[FILE].volatile
        assert content[:page] == b"a" * page, "the write did not touch this page"
        garbled.add(content[page : page + PAGE_BYTES] != b"a" * PAGE_BYTES)
        host.loop.close()
    assert garbled == {True, False}


@pytest.mark.parametrize("power_fails_at_once", [True, False])
def test_power_cut_during_a_synced_write_garbles_rewritten_pages_but_not_after_a_mere_kill(
    power_fails_at_once: bool,
) -> None:
    garbled = set()
    for seed in range(40):
        host = Host(seed)
        host.disk.settings.garble_chance = 1.0

        async def work(filesystem: SimulatedFileSystem, host: Host) -> None:
            file = await make(filesystem)
            await file.write_and_sync(0, [b"a" * PAGE_BYTES, b"b" * PAGE_BYTES])
            host.disk.settings.sync_seconds = 100.0
            await file.write_and_sync(PAGE_BYTES, [b"b" * PAGE_BYTES])  # interrupted: the same bytes once more

        host.run(partial(work, host=host), seconds=1.0)
        host.process.kill()
        if not power_fails_at_once:
            host.disk.finish_writes()
        host.disk.power_cut()
        content = host.disk.names[FILE].volatile
        assert content[:PAGE_BYTES] == b"a" * PAGE_BYTES, "the write did not touch this page"
        garbled.add(content[PAGE_BYTES:] != b"b" * PAGE_BYTES)
        host.loop.close()
    assert garbled == ({True, False} if power_fails_at_once else {False})
