"""The journal over a file system: group commit, failure, rolling, trimming, and crashes at every operation."""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from octavo.bookie.disk.filesystem import RealFileSystem
from octavo.bookie.journal.format import DATA_START, PAGE_BYTES, decode_header, encode_record, segment_name
from octavo.bookie.journal.journal import (
    Journal,
    JournalFailedError,
    JournalPosition,
    JournalSettings,
    RecordKind,
    UnsupportedJournalError,
)
from octavo.protocol.errors import EntryTooLargeError
from support.disks.faulty_filesystem import MemoryFile, MemoryFileSystem, run_until_crash
from support.disks.journals import DIRECTORY, TINY, fill, settle, started


class HeldFile:
    """A segment's file whose writes wait until the test lets them happen, or fail."""

    def __init__(self, file: MemoryFile, filesystem: "HeldFileSystem") -> None:
        self._file = file
        self._filesystem = filesystem

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    async def write_and_sync(self, offset: int, buffers: Sequence[bytes]) -> None:
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._filesystem.writes.append((self._file.path.name, b"".join(buffers)))
        self._filesystem.gates.append(gate)
        self._filesystem.arrived.set()
        await gate
        await self._file.write_and_sync(offset, buffers)


class HeldFileSystem(MemoryFileSystem):
    """Holds every group of the journal. ``writes`` lists what was to be written, ``gates`` the futures it waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[str, bytes]] = []
        self.gates: list[asyncio.Future[None]] = []
        self.arrived = asyncio.Event()

    async def open(
        self, path: Path, *, create: bool = False, dedicated_thread: bool = False, direct: bool = False
    ) -> Any:
        file = await super().open(path, create=create)
        return HeldFile(file, self) if dedicated_thread else file

    async def written(self, count: int) -> None:
        """Until the ``count``-th group has reached the disk's door."""
        while len(self.gates) < count:
            self.arrived.clear()
            await self.arrived.wait()

    def release(self, error: OSError | None = None) -> None:
        """Let the latest group happen, or fail."""
        if error is None:
            self.gates[-1].set_result(None)
        else:
            self.gates[-1].set_exception(error)


# --- group commit --------------------------------------------------------------------------------------------------


async def test_adds_of_one_turn_go_together_and_adds_during_a_sync_go_in_the_next_group() -> None:
    filesystem = HeldFileSystem()
    journal, _ = await started(filesystem)
    first = [journal.append(RecordKind.ADD, [b"one"]), journal.append(RecordKind.FENCE, [b"t", b"wo"])]
    await filesystem.written(1)
    assert b"one" in filesystem.writes[0][1]
    assert b"two" in filesystem.writes[0][1]
    second = [journal.append(RecordKind.ADD, [b"three"]), journal.append(RecordKind.ADD, [b"four"])]
    await settle()
    assert len(filesystem.writes) == 1, "nothing is written while a sync runs"
    assert not any(future.done() for future in first + second)
    filesystem.release()
    await filesystem.written(2)
    assert all(future.done() for future in first)
    assert not any(future.done() for future in second)
    assert b"three" in filesystem.writes[1][1]
    assert b"four" in filesystem.writes[1][1]
    filesystem.release()
    await asyncio.gather(*second)
    assert journal.statistics().groups_synced == 2
    await asyncio.gather(journal.close(), _release_when_written(filesystem, 3))


async def _release_when_written(filesystem: HeldFileSystem, count: int) -> None:
    await filesystem.written(count)
    filesystem.release()


async def test_position_moves_with_append_and_synced_position_with_the_sync() -> None:
    filesystem = HeldFileSystem()
    journal, _ = await started(filesystem)
    before = journal.position
    assert before == journal.synced_position == JournalPosition(1, DATA_START)
    future = journal.append(RecordKind.ADD, [b"x" * 8])
    assert journal.position == JournalPosition(1, DATA_START + 40)
    assert journal.pending_bytes == 40
    await filesystem.written(1)
    assert journal.synced_position == before
    filesystem.release()
    await future
    assert journal.synced_position == journal.position
    assert journal.pending_bytes == 0
    await asyncio.gather(journal.close(), _release_when_written(filesystem, 2))


async def test_a_failed_sync_fails_everything_pending_and_later_and_is_never_retried() -> None:
    filesystem = HeldFileSystem()
    failures: list[BaseException] = []
    journal, _ = await started(filesystem, on_failure=failures.append)
    synced = journal.append(RecordKind.ADD, [b"synced"])
    await filesystem.written(1)
    filesystem.release()
    await synced
    writing = journal.append(RecordKind.ADD, [b"writing"])
    await filesystem.written(2)
    waiting = journal.append(RecordKind.ADD, [b"waiting"])
    cause = OSError(5, "Input/output error")
    filesystem.release(cause)
    for future in (writing, waiting):
        with pytest.raises(JournalFailedError) as raised:
            await future
        assert raised.value.may_have_happened
        assert raised.value.__cause__ is cause
    later = journal.append(RecordKind.ADD, [b"later"])
    with pytest.raises(JournalFailedError):
        await later
    await settle()
    assert len(filesystem.writes) == 2
    assert failures == [cause]
    assert journal.statistics().failed
    await journal.close()
    assert len(filesystem.writes) == 2, "closing a failed journal writes nothing"


async def test_a_cancelled_waiter_withdraws_nothing_and_disturbs_no_other() -> None:
    filesystem = HeldFileSystem()
    journal, _ = await started(filesystem)
    cancelled = journal.append(RecordKind.ADD, [b"cancelled"])
    other = journal.append(RecordKind.ADD, [b"other"])
    await filesystem.written(1)
    cancelled.cancel()
    filesystem.release()
    await other
    await asyncio.gather(journal.close(), _release_when_written(filesystem, 2))
    _, bodies = await started(MemoryFileSystem.after_crash(filesystem, 0))
    assert bodies == [b"cancelled", b"other"]


async def test_futures_are_done_in_the_order_of_the_appends() -> None:
    journal, _ = await started(MemoryFileSystem())
    order: list[int] = []
    futures = []
    for number in range(200):
        future = journal.append(RecordKind.ADD, [bytes(number)])
        future.add_done_callback(lambda _, number=number: order.append(number))  # type: ignore[misc]
        futures.append(future)
        if number % 13 == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*futures)
    await settle()
    assert order == list(range(200))
    await journal.close()


async def test_a_body_over_the_limit_is_refused_and_the_largest_is_taken() -> None:
    journal, _ = await started(MemoryFileSystem())
    with pytest.raises(EntryTooLargeError):
        journal.append(RecordKind.ADD, [bytes(TINY.body_bytes_max + 1)])
    await journal.append(RecordKind.ADD, [bytes(TINY.body_bytes_max)])
    await journal.close()


async def test_of_bodies_that_are_queued_together_none_is_if_one_is_over_the_limit() -> None:
    journal, _ = await started(MemoryFileSystem())
    with pytest.raises(EntryTooLargeError):
        journal.append_each(RecordKind.ADD, [[b"small"], [b"head", bytes(TINY.body_bytes_max - 3)]])
    assert journal.pending_bytes == 0
    journal.append_each(RecordKind.ADD, [[b"small"], [b"head", bytes(TINY.body_bytes_max - 4)]])
    assert journal.pending_bytes > TINY.body_bytes_max
    await journal.close()


async def test_close_flushes_what_is_pending_and_refuses_what_comes_later() -> None:
    filesystem = MemoryFileSystem()
    journal, _ = await started(filesystem)
    pending = journal.append(RecordKind.ADD, [b"pending"])
    position = journal.mark()
    await journal.close()
    assert pending.done()
    assert pending.exception() is None
    assert journal.position == position
    with pytest.raises(JournalFailedError) as raised:
        await journal.append(RecordKind.ADD, [b"late"])
    assert not raised.value.may_have_happened
    again, bodies = await started(filesystem.after_crash(1))
    assert bodies == [b"pending"]
    await again.close()


async def test_a_closed_journal_needs_no_search_behind_its_end_at_the_next_start() -> None:
    filesystem = MemoryFileSystem()
    journal, _ = await started(filesystem)
    await journal.append(RecordKind.ADD, [b"x"])
    mark = journal.mark()
    await journal.close()
    survivor = filesystem.after_crash(1)
    reads: list[Path] = []

    def note(name: str, path: Path) -> None:
        if name == "read":
            reads.append(path)

    survivor.fault = note
    journal = await Journal.open(survivor, DIRECTORY, settings=TINY, start=mark)
    assert [body async for _, body, _ in journal.replay()] == []
    assert len(reads) == 2, "the header and the place at the mark"
    await journal.close()


# --- segments ------------------------------------------------------------------------------------------------------


async def test_segments_roll_and_everything_is_replayed_in_order_with_its_positions() -> None:
    filesystem = MemoryFileSystem()
    journal, _ = await started(filesystem)
    written = await fill(journal, 40)
    assert journal.statistics().segments > 4
    await journal.close()
    again = await Journal.open(filesystem, DIRECTORY, settings=TINY, start=None)
    assert [(body, position) async for _, body, position in again.replay()] == written
    assert again.corruption == []
    await again.close()


async def test_a_recycled_segment_is_not_used_while_its_old_name_could_come_back() -> None:
    """A power cut before the directory is synced would show it under both names."""

    class SlowDirectory(MemoryFileSystem):
        synced: asyncio.Event | None = None

        async def step(self, name: str, path: Path) -> None:
            if name == "sync_directory" and self.synced is not None:
                synced, self.synced = self.synced, None
                await synced.wait()
            await super().step(name, path)

    filesystem = SlowDirectory()
    journal, _ = await started(filesystem)
    await fill(journal, 60)
    await settle()
    before = set(filesystem.files(DIRECTORY))
    filesystem.synced = synced = asyncio.Event()
    trimming = asyncio.ensure_future(journal.trim(journal.position))
    await settle()
    recycled = {path for path in set(filesystem.files(DIRECTORY)) - before if path.name.startswith("spare-")}
    assert recycled
    await fill(journal, 40)
    assert recycled <= set(filesystem.files(DIRECTORY)), "used too early"
    synced.set()
    await trimming
    await fill(journal, 40)
    assert not recycled <= set(filesystem.files(DIRECTORY))
    await journal.close()


async def test_every_segment_has_a_seed_of_its_own() -> None:
    filesystem = MemoryFileSystem()
    journal, _ = await started(filesystem)
    await fill(journal, 60)
    await journal.close()
    seeds = []
    for number in range(1, 6):
        header = decode_header(filesystem.content(DIRECTORY / segment_name(number))[:DATA_START], number)
        assert header is not None
        seeds.append(header.seed)
    assert len(set(seeds)) == 5


async def test_stale_records_of_recycled_segments_never_come_back() -> None:
    filesystem = MemoryFileSystem()
    journal, _ = await started(filesystem)
    for life in range(6):
        for number in range(30):
            await journal.append(RecordKind.ADD, [b"life %d record %d " % (life, number) * 20])
        await journal.trim(journal.position)
    mark = JournalPosition(journal.position.segment, DATA_START)
    live = journal.statistics().records_appended
    await journal.append(RecordKind.ADD, [b"last"])
    filesystem.crash()
    survivor = filesystem.after_crash(0)
    again = await Journal.open(survivor, DIRECTORY, settings=TINY, start=mark)
    bodies = [body async for _, body, _ in again.replay()]
    assert bodies[-1] == b"last"
    expected = [b"life 5 record %d " % number * 20 for number in range(30)]
    assert bodies[:-1] == expected[len(expected) - len(bodies) + 1 :]
    assert (again.corruption, live) == ([], 180)
    await again.close()


def no_room(name: str, _path: Path) -> OSError | None:
    return OSError(28, "No space left on device") if name in {"create", "allocate"} else None


async def starvation(journal: Journal) -> None:
    for _ in range(10_000):
        if journal.out_of_space:
            return
        await asyncio.sleep(0)
    raise AssertionError("the disk never fills")


async def test_on_a_full_disk_a_journal_waits_for_its_next_segment_and_loses_nothing() -> None:
    filesystem = MemoryFileSystem()
    failures: list[BaseException] = []
    journal, _ = await started(filesystem, on_failure=failures.append)
    told = asyncio.Event()
    journal.on_out_of_space(told.set)
    filesystem.fault = no_room
    written = await fill(journal, 3)
    filling = asyncio.ensure_future(fill(journal, 100))
    await starvation(journal)
    assert told.is_set(), "the bookie turns read-only before the last segment is full"
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert not filling.done()
    filesystem.fault = None
    written += await filling
    assert not journal.out_of_space
    assert failures == []
    await journal.close()
    again, bodies = await started(filesystem)
    assert bodies == [body for body, _ in written]
    await again.close()


async def test_closing_a_journal_that_waits_for_room_fails_what_is_pending_and_keeps_the_rest() -> None:
    filesystem = MemoryFileSystem()
    journal, _ = await started(filesystem, on_failure=lambda _error: None)
    filesystem.fault = no_room
    written = await fill(journal, 3)
    filling = asyncio.ensure_future(fill(journal, 100))
    await starvation(journal)
    await journal.close()
    with pytest.raises(JournalFailedError):
        await filling
    filesystem.fault = None
    again, bodies = await started(filesystem)
    assert bodies[:3] == [body for body, _ in written]
    await again.close()


async def test_a_journal_goes_on_with_another_segment_size(tmp_path: Path) -> None:
    filesystem = RealFileSystem()
    journal, _ = await started(filesystem, directory=tmp_path)
    written = await fill(journal, 20)
    await journal.close()
    larger = JournalSettings(segment_bytes=8 * DATA_START, first_fill_bytes=0, fill_pause_seconds=0)
    journal, bodies = await started(filesystem, settings=larger, directory=tmp_path)
    assert bodies == [body for body, _ in written]
    more = await fill(journal, 100)
    await journal.close()
    journal, bodies = await started(filesystem, directory=tmp_path)
    assert bodies == [body for body, _ in written + more]
    await journal.close()
    await filesystem.close()


# --- damage --------------------------------------------------------------------------------------------------------


async def test_corruption_is_reported_with_its_file_and_replay_goes_on() -> None:
    filesystem = MemoryFileSystem()
    journal, _ = await started(filesystem)
    await fill(journal, 5, size=100)
    await journal.close()
    path = DIRECTORY / segment_name(1)
    filesystem.damage(path, DATA_START + 50)
    again, bodies = await started(filesystem)
    assert bodies == [bytes([number]) * 100 for number in range(1, 5)]
    assert [(found.path, found.offset, found.size) for found in again.corruption] == [(path, DATA_START, PAGE_BYTES)]
    await again.close()


async def test_a_read_error_is_reported_and_never_raised() -> None:
    filesystem = MemoryFileSystem()
    journal, _ = await started(filesystem)
    await fill(journal, 30)
    await journal.close()
    broken = DIRECTORY / segment_name(2)
    filesystem.fault = lambda name, path: OSError(5, "EIO") if name == "read" and path == broken else None
    again = await Journal.open(filesystem, DIRECTORY, settings=TINY, start=None)
    bodies = [body async for _, body, _ in again.replay()]
    assert bodies[0] == bytes(1000)
    assert bodies[-1] == bytes([29]) * 1000
    assert 0 < len(bodies) < 30
    assert {found.path for found in again.corruption} == {broken}
    await again.close()


async def test_a_record_of_a_kind_from_the_future_is_refused() -> None:
    filesystem = MemoryFileSystem()
    journal, _ = await started(filesystem)
    await journal.close()
    path = DIRECTORY / segment_name(1)
    content = bytearray(filesystem.content(path))
    header = decode_header(bytes(content[:DATA_START]), 1)
    assert header is not None
    head, _ = encode_record(header, DATA_START, 99, [b""], body_bytes=0, synced=JournalPosition(1, DATA_START))
    content[DATA_START : DATA_START + len(head)] = head
    filesystem.set_content(path, bytes(content))
    again = await Journal.open(filesystem, DIRECTORY, settings=TINY, start=None)
    with pytest.raises(UnsupportedJournalError, match="kind 99"):
        _ = [body async for _, body, _ in again.replay()]
    await again.close()


# --- crashes -------------------------------------------------------------------------------------------------------


class Life:
    """What one run of the workload has been promised, over several crashes."""

    def __init__(self) -> None:
        self.acknowledged: list[bytes] = []
        self.appended: list[bytes] = []
        self.found: list[list[bytes]] = []
        self.mark: JournalPosition | None = None
        """As storage keeps it: durable elsewhere, never ahead of what is synced."""
        self.below_mark = 0
        """How many of ``appended`` lie before the mark."""

    async def run(self, filesystem: MemoryFileSystem, number: int) -> None:
        journal = await Journal.open(filesystem, DIRECTORY, settings=TINY, start=self.mark, rng=random.Random(number))
        found = [body async for _, body, _ in journal.replay()]
        assert journal.corruption == [], journal.corruption
        wanted = iter(found)
        missing = [body for body in self.acknowledged[self.below_mark :] if body not in wanted]
        assert not missing, "acknowledged records are replayed, in order"
        order = iter(self.appended)
        assert all(body in order for body in found), "nothing is invented or reordered"
        await journal.start()
        # Only what was found is still part of the log.
        self.appended = self.acknowledged[: self.below_mark] + found
        self.acknowledged = list(self.appended)
        for step in range(7):
            bodies = [b"%d-%d-%d" % (number, step, part) + bytes(900) for part in range(3)]
            self.appended += bodies
            futures = [journal.append(RecordKind.ADD, [body]) for body in bodies]
            await asyncio.gather(*futures)
            self.acknowledged += bodies
            if step == 4:
                self.mark, self.below_mark = journal.position, len(self.acknowledged)
                await journal.trim(self.mark)
        await journal.close()


async def operations_of_one_life() -> int:
    filesystem = MemoryFileSystem()
    await Life().run(filesystem, 0)
    return filesystem.operations


@pytest.mark.parametrize("seed", range(6))
async def test_a_crash_at_any_operation_loses_nothing_acknowledged_and_is_never_called_corruption(seed: int) -> None:
    chance = random.Random(seed)
    total = await operations_of_one_life()
    assert total > 30
    for crash_at in range(1, total + 1):
        life = Life()
        filesystem = MemoryFileSystem(crash_at=crash_at, seed=seed)
        await run_until_crash(filesystem, lambda life=life, disk=filesystem: life.run(disk, 1))  # type: ignore[misc]
        # The second life crashes too, often while it begins; the third must find everything all the same.
        for number in (2, 3):
            filesystem = filesystem.after_crash(seed * 1000 + crash_at)
            filesystem.crash_at = chance.randrange(1, total) if number == 2 else None
            await run_until_crash(filesystem, lambda life=life, disk=filesystem, n=number: life.run(disk, n))  # type: ignore[misc]


async def test_whatever_an_interrupted_write_leaves_in_its_blocks_nothing_acknowledged_is_lost() -> None:
    """Lone adds, each with a sync of its own: most would fit in one block together."""
    acknowledged = [b"add %d" % number for number in range(18)]
    wide = replace(TINY, segment_bytes=12 * DATA_START)
    torn = 0
    for seed in range(40):
        filesystem = MemoryFileSystem(seed=seed)

        async def life(disk: MemoryFileSystem = filesystem) -> None:
            journal, _ = await started(disk, settings=wide)
            for body in acknowledged:
                await journal.append(RecordKind.ADD, [body])
            disk.crash_at = disk.operations + 1  # in the write of the next group, before its sync
            await journal.append(RecordKind.ADD, [b"interrupted" * 500])

        await run_until_crash(filesystem, life)
        again, bodies = await started(filesystem.after_crash(seed), settings=wide)
        assert bodies[:18] == acknowledged
        assert again.corruption == []
        torn += again.torn_tail is not None
        await again.close()
    assert torn > 3


async def test_a_crash_after_a_failed_sync_loses_nothing_acknowledged() -> None:
    for fails_at in range(1, 40):
        filesystem = MemoryFileSystem(seed=fails_at)
        count = 0

        def fault(name: str, path: Path, at: int = fails_at) -> OSError | None:
            nonlocal count
            count += name == "sync"
            return OSError(5, "EIO") if count == at and name == "sync" else None

        filesystem.fault = fault
        life = Life()
        with contextlib.suppress(OSError, JournalFailedError):
            await run_until_crash(filesystem, lambda life=life, disk=filesystem: life.run(disk, 1))  # type: ignore[misc]
        survivor = filesystem.after_crash(fails_at)
        await asyncio.sleep(0)
        await life.run(survivor, 2)
