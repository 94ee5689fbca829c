"""When a bookie tells the cluster anew how much room it has."""

import asyncio

import pytest
from octavo.bookie.disk import free_space
from octavo.bookie.disk.filesystem import DiskSpace
from octavo.bookie.disk.free_space import FreeSpace
from octavo.protocol.errors import MetadataUnavailableError


class Disk:
    """A disk whose room the test sets, and what was told of it."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes: int | None = free_bytes
        self.looks = 0
        self.told: list[int | None] = []
        self.deaf = False
        self.space = FreeSpace(self.look, self.moved)

    async def look(self) -> DiskSpace:
        self.looks += 1
        if self.free_bytes is None:
            raise OSError(5, "Input/output error")
        return DiskSpace(1000, self.free_bytes)

    async def moved(self) -> None:
        if self.deaf:
            raise MetadataUnavailableError("the metadata store does not answer")
        self.told.append(self.space.told_bytes)

    async def next_look(self) -> None:
        before = self.looks
        async with asyncio.timeout(10):
            while self.looks < before + 2:  # noqa: ASYNC110 - the second look begins after the first was told
                await asyncio.sleep(0)


async def test_only_what_moves_by_a_share_of_the_disk_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_space, "LOOK_SECONDS", 0.0)
    disk = Disk(600)
    await disk.space.start()
    assert (disk.space.told_bytes, disk.told) == (600, [])
    for free_bytes in (600, 560, 551, 640):
        disk.free_bytes = free_bytes
        await disk.next_look()
    assert disk.told == []
    for free_bytes in (550, 590, 600):
        disk.free_bytes = free_bytes
        await disk.next_look()
    assert disk.told == [550, 600]
    await disk.space.stop()


async def test_disk_that_cannot_be_asked_has_unknown_room_until_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_space, "LOOK_SECONDS", 0.0)
    disk = Disk(600)
    await disk.space.start()
    disk.free_bytes = None
    await disk.next_look()
    disk.free_bytes = 601
    await disk.next_look()
    assert disk.told == [None, 601]
    await disk.space.stop()


async def test_what_the_cluster_could_not_be_told_is_told_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_space, "LOOK_SECONDS", 0.0)
    disk = Disk(600)
    await disk.space.start()
    disk.deaf, disk.free_bytes = True, 100
    await disk.next_look()
    disk.deaf = False
    await disk.next_look()
    await disk.next_look()
    assert disk.told == [100]
    await disk.space.stop()
