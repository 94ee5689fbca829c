"""A bookie whose disk fills turns read-only in time, loses nothing, makes room by itself, and comes back."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from octavo.bookie.disk.filesystem import DiskSpace
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.bookie.upkeep.disk_watch import DiskLimits, DiskRoles, DiskState
from octavo.bookie.upkeep.garbage import GarbageCollector
from octavo.bookie.upkeep.hours import Hours
from octavo.bookie.upkeep.metadata_check import KnownStart, MetadataCheck
from octavo.bookie.upkeep.upkeep import Upkeep, UpkeepSettings
from octavo.metadata import Cookie, MetadataStore, open_metadata_store
from octavo.protocol.errors import MetadataUnavailableError
from octavo.protocol.ids import BookieId, LedgerId
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.faulty_filesystem import MemoryFileSystem
from support.metadata.ledger_metadata import open_ledger
from support.waiting import eventually

pytestmark = pytest.mark.usefixtures("logged")

DATA, MORE, JOURNAL = Path("/bookie/data"), Path("/bookie/more"), Path("/bookie/journal")
SETTINGS = StorageSettings(
    cache_bytes_max=20_000,
    entry_log_bytes=30_000,
    checkpoint_journal_bytes=60_000,
    checkpoint_seconds=3600,
    full_disk_retry_seconds=0.005,
    journal=JournalSettings(segment_bytes=64 * 1024, first_fill_bytes=0, spare_segments_max=1, fill_pause_seconds=0),
)
NO_LIMITS = DiskLimits(0, 0, 0)
KEPT = LedgerScript(1_000)


def never(error: BaseException) -> None:
    raise AssertionError("the bookie failed") from error


class WatchedDisk(MemoryFileSystem):
    """Counts the looks at its free space."""

    looks = 0

    async def disk_space(self, directory: Path) -> DiskSpace:
        self.looks += 1
        return await super().disk_space(directory)


class Rig:
    """A storage with its upkeep on a memory disk, and metadata."""

    def __init__(self, filesystem: MemoryFileSystem, storage: Storage, store: MetadataStore) -> None:
        self.filesystem = filesystem
        self.storage = storage
        self.store = store
        self.states: list[bool] = []
        """Each turn that was announced: True to read-only, False back."""
        self.refused = 0
        self.store_down = False
        """The metadata store does not answer."""
        self.upkeep: Upkeep

    async def note(self, state: DiskState) -> None:
        if self.store_down:
            self.refused += 1
            raise MetadataUnavailableError("the metadata store does not answer")
        if state.read_only != (self.states[-1] if self.states else False):
            self.states.append(state.read_only)

    @property
    def read_only(self) -> bool:
        return self.upkeep.disks.read_only

    async def new_ledger(self) -> LedgerScript:
        ledger_id = await self.store.allocate_ledger_id()
        await self.store.create_ledger(open_ledger(ledger_id))
        return LedgerScript(ledger_id, payload_bytes=400)

    async def add(self, script: LedgerScript, ids: range) -> None:
        await self.storage.writer.add(script.ledger_id, script.key, script.entries(ids), recovery=False)
        await self.storage.admission.wait_for_room()


@asynccontextmanager
async def rig(
    filesystem: MemoryFileSystem,
    settings: UpkeepSettings,
    store: MetadataStore,
    *,
    wall_clock: Callable[[], float] | None = None,
    storage_settings: StorageSettings = SETTINGS,
    entry_directories: tuple[Path, ...] = (),
) -> AsyncIterator[Rig]:
    storage = await Storage.open(
        filesystem,
        directory=DATA,
        journal_directory=JOURNAL,
        entry_directories=entry_directories,
        settings=storage_settings,
        on_fatal=never,
    )
    made = Rig(filesystem, storage, store)
    made.upkeep = Upkeep(
        storage,
        GarbageCollector(storage, store, MetadataCheck(store, KnownStart(BookieId("b1"), await store.cluster_id(), 1))),
        filesystem,
        DiskRoles((DATA, JOURNAL), (DATA, *entry_directories)),
        settings,
        rng=random.Random(1),
        wall_clock=wall_clock,
        on_disk_state=made.note,
        on_failure=never,
    )
    await made.upkeep.start()
    try:
        yield made
    finally:
        await made.upkeep.stop()
        await storage.close()


def quick(limits: DiskLimits = NO_LIMITS, **others: object) -> UpkeepSettings:
    chosen: dict[str, object] = {
        "limits": limits, "disk_check_seconds": 0.002, "garbage_seconds": 0.01, "scrub_bytes_per_second": 0.0,
        "reserve_bytes": 60_000,
    }  # fmt: skip
    return UpkeepSettings(**(chosen | others))  # type: ignore[arg-type]


@pytest.fixture
async def store() -> AsyncIterator[MetadataStore]:
    async with await open_metadata_store("memory://", create=True) as opened:
        await opened.create_cookie(Cookie(bookie_id=BookieId("b1"), generation=1, address="h:1", body=b""))
        yield opened


async def check(storage: Storage, script: LedgerScript, count: int) -> None:
    """Exactly the first ``count`` entries are there."""
    found: list[bytes] = []
    while len(found) < count:
        result = await storage.reader.read(script.ledger_id, len(found), count - 1, entries_max=500, bytes_max=10**6)
        assert not result.unknown
        assert result.entries
        found += result.entries
    assert found == script.entries(range(count))


async def test_filling_disk_turns_read_only_collects_compacts_and_comes_back(store: MetadataStore) -> None:
    filesystem = WatchedDisk()
    filesystem.capacity_bytes = 940_000
    limits = DiskLimits(warn_bytes=450_000, writable_bytes=400_000, read_only_bytes=300_000)
    async with rig(filesystem, quick(limits, garbage_seconds=0.05), store) as bookie:
        doomed, kept = await bookie.new_ledger(), await bookie.new_ledger()
        count = 0
        while not bookie.read_only:  # its writers move away now; here they stop
            await bookie.add(doomed, range(count, count + 20))
            await bookie.add(kept, range(count // 4, count // 4 + 5))
            count += 20
            looks = filesystem.looks
            await eventually(lambda: filesystem.looks > looks)  # noqa: B023
        assert count > 100
        await check(bookie.storage, kept, count // 4)
        await check(bookie.storage, doomed, count)
        assert bookie.storage.statistics().disk_full_met == 0, "in time"
        await store.delete_ledger(doomed.ledger_id)
        await eventually(lambda: not bookie.read_only)
        assert bookie.states == [True, False]
        await bookie.add(kept, range(count // 4, count // 4 + 5))
        await check(bookie.storage, kept, count // 4 + 5)
        assert bookie.storage.statistics().logs_compacted > 1


@pytest.mark.parametrize("capacity_bytes", [480_000, 600_000])
async def test_full_disk_comes_back_by_itself_again_and_again_and_nothing_acknowledged_is_lost(
    store: MetadataStore, capacity_bytes: int
) -> None:
    # The writers do not stop for a read-only bookie here, and no operator frees anything: the space comes from
    # compaction, which has the reserve to itself each time. However the writers take turns, what is kept is less than
    # the disk holds beside journal and reserve, and both halves of the cache are less than a journal segment, which
    # tombstones thus find free (docs/decisions/012): a disk without that room would stay full.
    filesystem = MemoryFileSystem()
    filesystem.capacity_bytes = capacity_bytes
    small_cache = replace(SETTINGS, cache_bytes_max=8_000)
    async with rig(filesystem, quick(), store, storage_settings=small_cache) as bookie:
        kept = await bookie.new_ledger()
        added: dict[LedgerScript, int] = {}
        turns = asyncio.Semaphore(0)
        wanted = 0

        async def write(script: LedgerScript, step: int) -> None:
            added[script] = 0
            while True:
                if script == kept:
                    await turns.acquire()
                await bookie.add(script, range(added[script], added[script] + step))
                added[script] += step

        def keep_more(adds: int) -> int:
            for _ in range(adds):
                turns.release()
            return 3 * adds

        keeping = asyncio.ensure_future(write(kept, 3))
        for _ in range(2):
            wanted += keep_more(10)
            doomed = await bookie.new_ledger()
            filling = asyncio.ensure_future(write(doomed, 10))
            met = bookie.storage.statistics().disk_full_met

            def is_full() -> bool:
                flushes_wait = bookie.storage.statistics().disk_full_met > met + 3  # noqa: B023
                return bookie.read_only and (flushes_wait or JOURNAL in bookie.upkeep.disks.short)

            await eventually(is_full)
            await check(bookie.storage, kept, added[kept])
            filling.cancel()
            await store.delete_ledger(doomed.ledger_id)
            wanted += keep_more(6)
            await eventually(lambda: added[kept] == wanted)  # noqa: B023
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        count = added[kept]
        filesystem.capacity_bytes = None
    survivor = filesystem.after_crash(seed=1)
    async with rig(survivor, quick(), store) as bookie:
        result = await bookie.storage.reader.read(kept.ledger_id, 0, 10**6, entries_max=10**5, bytes_max=10**8)
        assert ids_of(result.entries)[:count] == list(range(count))
        assert not result.unknown


async def test_entries_and_journal_do_not_get_the_reserve(store: MetadataStore) -> None:
    filesystem = MemoryFileSystem()
    filesystem.capacity_bytes = 500_000
    taken: list[str] = []

    def watch(name: str, path: Path) -> None:
        if name in ("write", "allocate") and DATA / "reserve" not in filesystem.files():
            taken.append(path.name)

    async with rig(filesystem, quick(), store) as bookie:
        kept = await bookie.new_ledger()
        filesystem.fault = watch
        ids = iter(range(0, 10**6, 10))
        while bookie.storage.statistics().disk_full_met < 8:
            first = next(ids)
            adding = asyncio.ensure_future(bookie.add(kept, range(first, first + 10)))
            await eventually(lambda: adding.done() or bookie.storage.statistics().disk_full_met >= 8)  # noqa: B023
        await eventually(lambda: DATA / "reserve" in filesystem.files())
        adding.cancel()
        filesystem.capacity_bytes = None
    assert [name for name in taken if name.endswith(".log") or name == "fresh.segment"] == []


async def test_closing_on_a_full_disk_leaves_everything_to_the_journal(store: MetadataStore) -> None:
    filesystem = MemoryFileSystem()
    filesystem.capacity_bytes = 400_000
    full_disk = contextlib.suppress(OSError)  # raised by close() unless the background met the full disk before
    with full_disk:
        async with rig(filesystem, quick(), store) as bookie:
            kept = await bookie.new_ledger()
            count = 0
            while not bookie.storage.statistics().disk_full_met:
                adding = asyncio.ensure_future(bookie.add(kept, range(count, count + 10)))
                await eventually(lambda: adding.done() or bookie.storage.statistics().disk_full_met > 0)  # noqa: B023
                count += 10 * adding.done()
    filesystem.capacity_bytes = None
    async with rig(filesystem, quick(), store) as bookie:
        await check(bookie.storage, kept, count)


async def test_a_full_directory_of_several_sends_logs_to_the_others(store: MetadataStore) -> None:
    filesystem = MemoryFileSystem()

    def first_disk_is_full(name: str, path: Path) -> OSError | None:
        return OSError(28, "No space left on device") if name == "write" and path.parent == DATA / "entries" else None

    async with rig(filesystem, quick(), store, entry_directories=(MORE,)) as bookie:
        kept = await bookie.new_ledger()
        for first in range(0, 200, 20):
            await bookie.add(kept, range(first, first + 20))
        filesystem.fault = first_disk_is_full
        for first in range(200, 600, 20):
            await bookie.add(kept, range(first, first + 20))
        await bookie.storage.checkpoint()
        assert not bookie.read_only
        await check(bookie.storage, kept, 600)
    logs = [path for path in filesystem.files() if path.suffix == ".log"]
    assert {path.parent for path in logs} == {DATA / "entries", MORE / "entries"}
    filesystem.fault = None
    async with rig(filesystem, quick(), store, entry_directories=(MORE,)) as bookie:
        await check(bookie.storage, kept, 600)


async def test_major_compaction_waits_for_its_hours(store: MetadataStore) -> None:
    filesystem = MemoryFileSystem()
    hour = [12.0]
    settings = quick(
        minor_live_share=0.0, major_live_share=0.9, major_seconds=0.001, major_hours=Hours.parse("01:00-02:00")
    )
    async with rig(filesystem, settings, store, wall_clock=lambda: hour[0] * 3600) as bookie:
        doomed, kept = await bookie.new_ledger(), await bookie.new_ledger()
        for first in range(0, 200, 20):
            await bookie.add(doomed, range(first, first + 20))
            await bookie.add(kept, range(first, first + 20))
        await store.delete_ledger(doomed.ledger_id)
        await eventually(lambda: bookie.upkeep.garbage_rounds > 5)
        assert bookie.storage.ledgers.live_ids() == [kept.ledger_id]
        assert bookie.storage.statistics().logs_compacted == 0
        hour[0] = 1.5
        await eventually(lambda: bookie.storage.statistics().logs_compacted > 2)
        await check(bookie.storage, kept, 200)


async def test_metadata_that_do_not_answer_change_nothing_and_end_nothing(
    store: MetadataStore, logged: list[MutableMapping[str, object]]
) -> None:
    async with rig(MemoryFileSystem(), quick(), store) as bookie:
        kept = await bookie.new_ledger()
        await bookie.add(kept, range(5))
        cookie = await store.read_cookie(BookieId("b1"))
        assert cookie is not None
        await store.delete_cookie(BookieId("b1"), cookie.version)
        await store.delete_ledger(LedgerId(kept.ledger_id))
        failed = bookie.upkeep.garbage_rounds_failed
        await eventually(lambda: bookie.upkeep.garbage_rounds_failed > failed + 3)
        assert bookie.storage.ledgers.live_ids() == [kept.ledger_id]
        await check(bookie.storage, kept, 5)
    assert any("cannot be relied upon" in str(event["event"]) for event in logged)


async def test_disk_that_fills_up_while_the_metadata_are_away_ends_no_bookie_and_is_told_later(
    store: MetadataStore,
) -> None:
    filesystem = MemoryFileSystem()
    filesystem.capacity_bytes = 900_000
    limits = DiskLimits(warn_bytes=450_000, writable_bytes=400_000, read_only_bytes=300_000)
    async with rig(filesystem, quick(limits), store) as bookie:
        bookie.store_down = True
        filesystem.set_content(DATA / "others", bytes(700_000))
        await eventually(lambda: bookie.refused > 3)
        assert bookie.read_only
        bookie.store_down = False
        await eventually(lambda: bookie.states == [True])
        filesystem.set_content(DATA / "others", b"")
        await eventually(lambda: bookie.states == [True, False])


async def test_a_bookie_that_turns_read_only_says_how_much_is_free_and_how_much_is_wanted(
    store: MetadataStore, logged: list[MutableMapping[str, object]]
) -> None:
    filesystem = MemoryFileSystem()
    filesystem.capacity_bytes = 9_000_000
    limits = DiskLimits(warn_bytes=4_500_000, writable_bytes=4_000_000, read_only_bytes=3_000_000)
    async with rig(filesystem, quick(limits), store) as bookie:
        assert bookie.upkeep.shortage == (0, 0)
        filesystem.set_content(DATA / "others", bytes(7_000_000))
        await eventually(lambda: bookie.read_only)
        free = bookie.upkeep.spaces[DATA].free_bytes
        assert 0 < free < 2_000_000
        assert bookie.upkeep.shortage == (free, 4_000_000)
        (event,) = [event for event in logged if event["event"] == "read-only: a disk is short of space"]
        assert event["paths"] == [str(DATA), str(JOURNAL)], "of one disk"
        assert event["free_bytes"] == [free, free]
        assert (event["wanted_bytes"], event["writes_refused"]) == (4_000_000, [])


async def test_scrubber_finds_rot_that_no_client_has_read(
    store: MetadataStore, logged: list[MutableMapping[str, object]]
) -> None:
    filesystem = MemoryFileSystem()
    settings = quick(scrub_bytes_per_second=1e9, scrub_pause_seconds=0.005)
    one_checkpoint = replace(SETTINGS, checkpoint_journal_bytes=1 << 40)
    async with rig(filesystem, settings, store, storage_settings=one_checkpoint) as bookie:
        kept = await bookie.new_ledger()
        for first in range(0, 200, 20):
            await bookie.add(kept, range(first, first + 20))
        await bookie.storage.checkpoint()
        for entry_id in (3, 150):
            path = next(
                path for path in filesystem.files(DATA / "entries")
                if path.suffix == ".log" and kept.entry(entry_id) in filesystem.content(path)
            )  # fmt: skip
            filesystem.damage(path, filesystem.content(path).index(kept.entry(entry_id)) + 60)
        part = filesystem.files(DATA / "index")[0]
        filesystem.damage(part, 50)
        rounds = bookie.storage.statistics().scrub_rounds
        await eventually(lambda: bookie.storage.statistics().scrub_rounds > rounds + 3)
        statistics = bookie.storage.statistics()
        assert (statistics.entries_damaged, statistics.index_damage_seen) == (2, 1)
        result = await bookie.storage.reader.read(kept.ledger_id, 0, 0, entries_max=1, bytes_max=1_000)
        assert (result.entries, result.unknown) == ([], [(0, 0)]), "what the index hides is unknown"
    unreadable = [event for event in logged if event["event"] == "entry unreadable"]
    assert len(unreadable) == 2, "reported once each"
    assert all(isinstance(event["offset"], int) and event["path"] for event in unreadable)
