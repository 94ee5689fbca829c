"""Spare segments of the journal: recycled by trimming, used again, given up when the disk is full."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from octavo.bookie.journal.format import segment_name
from octavo.bookie.journal.journal import Journal
from support.disks.faulty_filesystem import MemoryFileSystem
from support.disks.journals import DIRECTORY, TINY, fill, settle, started


async def test_trim_recycles_a_bounded_number_of_whole_segments_and_keeps_the_rest() -> None:
    filesystem = MemoryFileSystem()
    journal, _ = await started(filesystem)
    written = await fill(journal, 60)
    mark = written[50][1]
    await journal.trim(mark)
    await settle()
    assert journal.statistics().spare_segments <= TINY.spare_segments_max
    names = [path.name for path in filesystem.files(DIRECTORY)]
    assert min(name for name in names if name.startswith("journal-")) == segment_name(mark.segment)
    await journal.close()
    _, bodies = await started(filesystem.after_crash(3), start=mark)
    assert bodies == [body for body, _ in written[51:]]


async def test_trimmed_segments_are_used_again_once_their_new_names_are_durable() -> None:
    filesystem = MemoryFileSystem()
    journal, _ = await started(filesystem)
    await fill(journal, 60)
    await settle()
    before = len(filesystem.history)
    await journal.trim(journal.position)
    assert journal.statistics().spare_segments == TINY.spare_segments_max
    trimming = [name for name, _ in filesystem.history[before:]]
    assert trimming[-1] == "sync_directory"
    assert "rename" in trimming
    before = len(filesystem.history)
    await fill(journal, 20)
    made = [name for name, _ in filesystem.history[before:]]
    assert made.index("rename") < (made.index("create") if "create" in made else len(made))
    await journal.close()


async def test_spares_are_given_up_but_those_to_keep() -> None:
    filesystem = MemoryFileSystem()
    journal, _ = await started(filesystem)
    await fill(journal, 60)
    await settle()
    await journal.trim(journal.position)
    assert journal.statistics().spare_segments > 1
    await journal.release_spares(keep=1)
    assert journal.statistics().spare_segments == 1
    assert len([path for path in filesystem.files(DIRECTORY) if path.name.startswith("spare-")]) == 1
    await journal.release_spares()
    assert journal.statistics().spare_segments == 0
    await journal.close()


async def test_journal_that_is_kept_from_growing_uses_what_it_has_and_goes_on_later() -> None:
    filesystem = MemoryFileSystem()
    journal, _ = await started(filesystem)
    await settle()
    async with journal.kept_from_growing():
        before = len(filesystem.history)
        filling = asyncio.ensure_future(fill(journal, 100))
        for _ in range(5_000):
            await asyncio.sleep(0)
        assert not filling.done()
        assert len(journal.segments) > 1, "it has gone on to the segment that was prepared"
        assert "allocate" not in [name for name, _ in filesystem.history[before:]]
    assert len(await filling) == 100
    await journal.close()


class RacingFileSystem(MemoryFileSystem):
    """While a spare segment is made, lets ``during`` run after its space has been allocated, and ``at_removal`` before
    its file is removed because it is not needed any more."""

    def __init__(self) -> None:
        super().__init__()
        self.during: Callable[[], Awaitable[None]] | None = None
        self.at_removal: Callable[[], Awaitable[None]] | None = None
        self.raced = False

    async def step(self, name: str, path: Path) -> None:
        await super().step(name, path)
        if path.name == "fresh.segment" and name == "allocate" and self.during is not None:
            during, self.during = self.during, None
            await during()
            self.raced = True
        elif path.name == "fresh.segment" and name == "remove" and self.raced and self.at_removal is not None:
            at_removal, self.at_removal = self.at_removal, None
            await at_removal()


async def test_spares_that_are_given_up_while_another_is_made_are_not_counted_on() -> None:
    # A disk that fills up: trimming recycles a segment, so the new file is not needed; then the spares are given up.
    filesystem = RacingFileSystem()
    journal, _ = await started(filesystem)
    written = await fill(journal, 30)
    await settle()
    await journal.release_spares()
    filesystem.during = lambda: journal.trim(journal.position)
    filesystem.at_removal = journal.release_spares
    written += await fill(journal, 30)
    await settle()
    assert filesystem.raced
    assert filesystem.at_removal is None
    await journal.close()
    again = await Journal.open(filesystem, DIRECTORY, settings=TINY, start=None)
    found = [(body, position) async for _, body, position in again.replay()]
    assert found == written[-len(found) :]
    await again.close()
