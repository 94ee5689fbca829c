"""A ledger that is dropped while it is read (rule C8): no entry of it is denied."""

import asyncio
from pathlib import Path

import pytest
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.protocol.errors import BookieInDoubtError
from octavo.protocol.held_entries import Holdings
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.held_disk import HeldDisk

pytestmark = pytest.mark.usefixtures("logged")

SCRIPT = LedgerScript(7)
SETTINGS = StorageSettings(
    entry_log_bytes=8_000,
    checkpoint_seconds=86_400,
    journal=JournalSettings(segment_bytes=64 * 1024, first_fill_bytes=0),
)
HELD = 5_000
"""The only entry: a read from 0 on finds nothing in its first window, and looks for the next entry behind it."""


def never(error: BaseException) -> None:
    raise AssertionError("the storage failed") from error


class FirstReadOfTheIndex:
    """Says of the first read of an index part that it waits."""

    def __init__(self) -> None:
        self.met = False

    def __call__(self, name: str, path: Path) -> bool:
        first = name == "read" and path.suffix == ".runs" and not self.met
        self.met |= first
        return first


async def stopped_look_up() -> tuple[HeldDisk, Storage]:
    """A storage with one entry in its index; the next look-up stops in the middle."""
    disk = HeldDisk(FirstReadOfTheIndex())
    storage = await Storage.open(
        disk, directory=Path("/d"), journal_directory=Path("/j"), settings=SETTINGS, on_fatal=never
    )
    for script, entry_id in (
        (LedgerScript(3), 0),
        (SCRIPT, HELD),
    ):  # in one block of the index, which each look-up reads
        await storage.writer.add(script.ledger_id, script.key, [script.entry(entry_id)], recovery=False)
    await storage.checkpoint()
    disk.hold()
    return disk, storage


async def dropped(disk: HeldDisk, storage: Storage) -> None:
    """Drop the ledger while the look-up is stopped, with everything that is left of it."""
    await disk.held.wait()
    await storage.writer.drop(SCRIPT.ledger_id)
    await storage.checkpoint()
    assert await storage._merger.purge_ledger(SCRIPT.ledger_id)  # as any merge does
    disk.release()


async def test_what_is_dropped_during_a_read_is_not_denied() -> None:
    disk, storage = await stopped_look_up()
    reading = asyncio.ensure_future(
        storage.reader.read(SCRIPT.ledger_id, 0, 2 * HELD, entries_max=10, bytes_max=10_000)
    )
    await dropped(disk, storage)
    read = await reading
    hidden = [one for low, high in read.unknown for one in (HELD,) if low <= one <= high]
    assert HELD in (*ids_of(read.entries), *hidden) or read.last_covered < HELD, "a dropped entry is denied"
    await storage.close()


async def test_what_is_dropped_during_a_list_is_not_left_out() -> None:
    disk, storage = await stopped_look_up()
    listing = asyncio.ensure_future(storage.reader.list_entries(SCRIPT.ledger_id, 0, 2 * HELD))
    await dropped(disk, storage)
    with pytest.raises(BookieInDoubtError):
        await listing
    await storage.close()


async def test_what_is_dropped_while_the_missing_ids_are_looked_for_is_not_among_them() -> None:
    disk, storage = await stopped_look_up()
    looking = asyncio.ensure_future(storage.reader.missing(SCRIPT.ledger_id, 0, 2 * HELD))
    await dropped(disk, storage)
    found = await looking
    assert not any(low <= HELD <= high for low, high in found.missing)
    assert found == Holdings(2 * HELD, ((HELD + 1, 2 * HELD),), ((0, HELD),))
    await storage.close()
