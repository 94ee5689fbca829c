"""When a bookie reports its free space to the cluster again."""

import asyncio

from octavo.bookie.disk.filesystem import DiskSpace
from octavo.bookie.disk.free_space import FreeSpaceMonitor
from octavo.protocol.errors import MetadataUnavailableError
from support.waiting import WAIT_SECONDS


class Disk:
    """A disk whose free space the test sets, and what was reported of it."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes: int | None = free_bytes
        self.checks = 0
        self.reported: list[int | None] = []
        self.store_available = True
        self.monitor = FreeSpaceMonitor(self.read_space, self.changed, check_seconds=0.0)

    async def read_space(self) -> DiskSpace:
        self.checks += 1
        if self.free_bytes is None:
            raise OSError(5, "Input/output error")
        return DiskSpace(1000, self.free_bytes)

    async def changed(self) -> None:
        if not self.store_available:
            raise MetadataUnavailableError("the metadata store does not answer")
        self.reported.append(self.monitor.reported_bytes)

    async def next_check(self) -> None:
        before = self.checks
        async with asyncio.timeout(WAIT_SECONDS):
            while self.checks < before + 2:  # noqa: ASYNC110 - the second check starts after the first was reported
                await asyncio.sleep(0)


async def test_only_a_change_by_a_share_of_the_disk_is_reported() -> None:
    disk = Disk(600)
    await disk.monitor.start()
    assert (disk.monitor.reported_bytes, disk.reported) == (600, [])
    for free_bytes in (600, 560, 551, 640):
        disk.free_bytes = free_bytes
        await disk.next_check()
    assert disk.reported == []
    for free_bytes in (550, 590, 600):
        disk.free_bytes = free_bytes
        await disk.next_check()
    assert disk.reported == [550, 600]
    await disk.monitor.stop()


async def test_free_space_is_unknown_while_the_disk_cannot_be_read() -> None:
    disk = Disk(600)
    await disk.monitor.start()
    disk.free_bytes = None
    await disk.next_check()
    disk.free_bytes = 601
    await disk.next_check()
    assert disk.reported == [None, 601]
    await disk.monitor.stop()


async def test_change_that_could_not_be_reported_is_reported_later() -> None:
    disk = Disk(600)
    await disk.monitor.start()
    disk.store_available, disk.free_bytes = False, 100
    await disk.next_check()
    disk.store_available = True
    await disk.next_check()
    await disk.next_check()
    assert disk.reported == [100]
    await disk.monitor.stop()
