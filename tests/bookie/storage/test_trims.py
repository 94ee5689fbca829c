"""Trims at a bookie's storage (rule U5): what they take, what they leave, and when."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.entrylog.logs import scan_log
from octavo.bookie.index.index import Index
from octavo.bookie.journal.format import RecordKind
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.offline.check import OfflineCheck
from octavo.bookie.offline.inspect_file import inspect_file
from octavo.bookie.offline.layout import Layout
from octavo.bookie.offline.rebuild_index import IndexRebuild
from octavo.bookie.storage.cache import WriteCache
from octavo.bookie.storage.ledger_state import (
    LedgerState,
    PackedStates,
    decode_first_kept,
    decode_ledger_record,
    encode_trim,
)
from octavo.bookie.storage.ledgers import LedgerTable
from octavo.bookie.storage.manifest_keeper import MANIFEST_NAME, read_manifest
from octavo.bookie.storage.replay import _replay_record
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.protocol.entries import header_of
from octavo.protocol.errors import (
    BookieStorageError,
    DuplicateEntryError,
    NoSuchLedgerError,
    OctavoError,
    TermOverError,
)
from octavo.protocol.held_entries import Holdings
from octavo.protocol.ids import LedgerId
from octavo.protocol.places import place
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.faulty_filesystem import MemoryFileSystem
from support.disks.held_disk import syncs_below

pytestmark = pytest.mark.usefixtures("logged")

DATA, JOURNAL = Path("/d"), Path("/j")
SETTINGS = StorageSettings(
    cache_bytes_max=20_000,
    entry_log_bytes=8_000,
    checkpoint_journal_bytes=1 << 30,
    checkpoint_seconds=86_400,
    journal=JournalSettings(segment_bytes=64 * 1024, first_fill_bytes=0),
)
SCRIPT, OTHER = LedgerScript(7), LedgerScript(8)
FIRST = place(1, 0)
UNLIMITED = RateLimiter(1e12)


def never(error: BaseException) -> None:
    raise AssertionError("the storage failed") from error


async def opened(filesystem: MemoryFileSystem) -> Storage:
    return await Storage.open(filesystem, directory=DATA, journal_directory=JOURNAL, settings=SETTINGS, on_fatal=never)


@pytest.fixture
async def storage() -> AsyncIterator[Storage]:
    made = await opened(MemoryFileSystem())
    yield made
    await made.close()


def sent(storage: Storage, *offsets: int, term: int = 1, version: int = 0) -> asyncio.Future[None]:
    entries = [SCRIPT.entry(place(term, one), version=version) for one in offsets]
    return storage.writer.add(SCRIPT.ledger_id, SCRIPT.key, entries, recovery=False, term=term)


async def found(storage: Storage, first: int, last: int) -> tuple[list[int], list[tuple[int, int]]]:
    """The offsets in term 1 that are held, and the intervals of those unknown."""
    result = await storage.reader.read(
        SCRIPT.ledger_id, place(1, first), place(1, last), entries_max=100, bytes_max=1 << 20
    )
    assert result.last_covered == place(1, last)
    return [one - FIRST for one in ids_of(result.entries)], [
        (low - FIRST, high - FIRST) for low, high in result.unknown
    ]


def trim(storage: Storage, offset: int) -> asyncio.Future[None]:
    return storage.writer.trim(SCRIPT.ledger_id, place(1, offset))


# --- adds -----------------------------------------------------------------------------------------------------------


async def test_adds_below_a_trim_succeed_and_store_nothing(storage: Storage) -> None:
    await sent(storage, 0, 1)
    await trim(storage, 10)
    cached = storage.statistics().cache_bytes
    await sent(storage, 5)
    await sent(storage, 0, version=1)  # other bytes than were held
    await storage.writer.copy_in(SCRIPT.ledger_id, [SCRIPT.entry(place(1, 6))])
    assert storage.statistics().cache_bytes == cached
    assert storage.statistics().duplicates_refused == 0
    assert await found(storage, 0, 20) == ([], [(0, 9)])
    await sent(storage, 10)
    assert await found(storage, 0, 20) == ([10], [(0, 9)])


async def test_of_a_frame_that_straddles_a_trim_the_part_above_is_stored(storage: Storage) -> None:
    await sent(storage, 0)
    await trim(storage, 3)
    await sent(storage, 1, 2, 3, 4)
    assert await found(storage, 0, 5) == ([3, 4], [(0, 2)])
    with pytest.raises(DuplicateEntryError):
        await sent(storage, 2, 3, version=1)
    await sent(storage, 2, 5)
    assert (await found(storage, 0, 5))[0] == [3, 4, 5]


async def test_deferred_adds_below_a_trim_are_answered_at_once(storage: Storage) -> None:
    await sent(storage, 0)
    await trim(storage, 3)
    entries = [SCRIPT.entry(place(1, 1))]
    await storage.writer.add(SCRIPT.ledger_id, SCRIPT.key, entries, recovery=False, deferred=True, term=1)
    await storage.writer.force(SCRIPT.ledger_id, SCRIPT.key, 1)
    assert await found(storage, 0, 3) == ([], [(0, 2)])


async def test_a_fence_refuses_adds_below_a_trim_as_above(storage: Storage) -> None:
    await sent(storage, 0)
    await trim(storage, 3)
    await storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key, 1)
    with pytest.raises(TermOverError):
        sent(storage, 1)


async def test_an_add_that_waits_for_a_look_up_meets_the_trim_that_comes_meanwhile(storage: Storage) -> None:
    other = await opened(MemoryFileSystem())
    for one in (storage, other):
        await sent(one, 5)
        await one.checkpoint()
    slow = sent(storage, 1, 2, 5, 6)
    await asyncio.sleep(0)  # it looks entry 5 up in the entry log
    trimmed = trim(storage, 2)
    await asyncio.gather(slow, trimmed)
    await sent(other, 2, 6)
    assert await found(storage, 0, 7) == ([2, 5, 6], [(0, 1)])
    assert storage.statistics().cache_bytes == other.statistics().cache_bytes, "nothing is stored below the trim"
    await other.close()


# --- trims ----------------------------------------------------------------------------------------------------------


async def test_a_trim_takes_nothing_back_and_is_not_journaled_twice(storage: Storage) -> None:
    await sent(storage, *range(10))
    await trim(storage, 5)
    journaled = storage.statistics().journal_bytes
    for offset in (5, 4, 0):
        await trim(storage, offset)
    assert storage.statistics().journal_bytes == journaled
    assert await found(storage, 0, 9) == ([5, 6, 7, 8, 9], [(0, 4)])
    await storage.writer.delete(SCRIPT.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        trim(storage, 8)
    await storage.writer.revive(SCRIPT.ledger_id)
    assert storage.reader.first_kept(SCRIPT.ledger_id) == place(1, 5)


async def test_nothing_may_be_removed_before_a_trim_is_durable() -> None:
    disk = syncs_below(JOURNAL)
    storage = await opened(disk)
    await sent(storage, *range(10))
    await trim(storage, 2)
    disk.hold()
    first, second, again = trim(storage, 4), trim(storage, 6), trim(storage, 5)
    await disk.held.wait()
    assert storage.ledgers.first_kept(SCRIPT.ledger_id) == place(1, 2), "what is durable"
    assert await found(storage, 0, 9) == ([6, 7, 8, 9], [(0, 5)]), "what is answered"
    assert not any(one.done() for one in (first, second, again))
    disk.release()
    await asyncio.gather(first, second, again)
    assert storage.ledgers.first_kept(SCRIPT.ledger_id) == place(1, 6)
    assert not storage.ledgers.trimming
    await storage.close()


async def test_what_repair_asks_for_below_a_trim_is_not_missing(storage: Storage) -> None:
    await sent(storage, *range(10))
    await trim(storage, 5)
    last = place(1, 12)
    above = ((place(1, 10), last),)
    for look in (storage.reader.missing, storage.reader.not_held, storage.reader.verified):
        assert await look(SCRIPT.ledger_id, FIRST, last) == Holdings(last, above, ())
        assert await look(SCRIPT.ledger_id, FIRST, place(1, 4)) == Holdings(place(1, 4), (), ())
    with pytest.raises(BookieStorageError, match="has trimmed the entries below"):
        await storage.reader.list_entries(SCRIPT.ledger_id)
    listed = await storage.reader.list_entries(SCRIPT.ledger_id, place(1, 5), last)
    assert listed == [(place(1, 5), place(1, 9))]
    assert await storage.reader.list_entries(SCRIPT.ledger_id, place(1, 5), place(1, 7)) == [(place(1, 5), place(1, 7))]


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_trim_during_a_look_up_makes_nothing_of_it_absent(storage: Storage, flushed: bool) -> None:
    await sent(storage, *range(10))
    if flushed:
        await storage.checkpoint()
    reader, ledger_id, last = storage.reader, SCRIPT.ledger_id, place(1, 9)
    reading = asyncio.ensure_future(reader.read(ledger_id, FIRST, last, entries_max=99, bytes_max=1 << 20))
    looking = asyncio.ensure_future(reader.missing(ledger_id, FIRST, last))
    await asyncio.sleep(0)
    await trim(storage, 8)
    await storage.compact(1.1, UNLIMITED)
    read, missing = await reading, await looking
    assert ids_of(read.entries)[-2:] == [place(1, 8), last]
    assert {*read.unknown} <= {(FIRST, place(1, 7))}
    assert bool(read.unknown) or len(read.entries) == 10
    assert missing == Holdings(last, (), ())


async def test_an_explicit_lac_and_the_lac_of_a_trimmed_stream_stay(storage: Storage) -> None:
    await sent(storage, *range(10))
    lac = storage.reader.last_add_confirmed(SCRIPT.ledger_id, 1).last_add_confirmed
    await storage.writer.trim(SCRIPT.ledger_id, place(2, 0))
    assert storage.reader.last_add_confirmed(SCRIPT.ledger_id, 1).last_add_confirmed == lac
    assert await storage.reader.last_add_confirmed_entry(SCRIPT.ledger_id) is None
    await sent(storage, 0, term=2)
    assert await storage.reader.last_add_confirmed_entry(SCRIPT.ledger_id) == SCRIPT.entry(place(2, 0))


# --- space ----------------------------------------------------------------------------------------------------------


def logs_of(filesystem: MemoryFileSystem) -> list[Path]:
    return [path for path in filesystem.files() if path.suffix == ".log"]


async def indexed(filesystem: MemoryFileSystem) -> list[tuple[int, int]]:
    """The first and the last id of each run in the index of a storage that was closed."""
    manifest = await read_manifest(filesystem, DATA, must_exist=True)
    index = await Index.open(filesystem, DATA / "index", manifest.part_ids, cache_bytes=0)
    runs = [(run.first, run.last) for part in index.parts async for _, run in part.runs()]
    await index.close()
    return runs


async def filled(filesystem: MemoryFileSystem, entries: int) -> Storage:
    """A storage with this number of entries of the stream in several finished logs."""
    storage = await opened(filesystem)
    for first in range(0, entries, 10):
        await sent(storage, *range(first, first + 10))
        if first % 50 == 0:
            await storage.checkpoint()
    await storage.checkpoint()
    return storage


async def test_logs_that_hold_only_what_was_trimmed_go_in_one_round_without_copying() -> None:
    filesystem = MemoryFileSystem()
    storage = await filled(filesystem, 500)
    before = logs_of(filesystem)
    assert len(before) > 5
    await storage.writer.trim(SCRIPT.ledger_id, place(2, 0))
    result = await storage.compact(0.2, UNLIMITED)
    assert result.bytes_copied == 0
    assert result.logs_removed >= len(before) - 1, "all but the one that was being written"
    await storage.checkpoint()
    await storage.compact(0.2, UNLIMITED)
    assert logs_of(filesystem) == []
    await storage.compact(0.2, UNLIMITED)
    await storage.close()
    assert await indexed(filesystem) == [], "the index is free of it, too"


async def test_a_log_goes_as_soon_as_its_last_entry_is_trimmed() -> None:
    filesystem = MemoryFileSystem()
    storage = await filled(filesystem, 500)
    for number, path in enumerate(sorted(logs_of(filesystem))[:-1]):
        last = max([header_of(sealed).entry_id async for _, sealed in scan_log(filesystem, path)])
        await storage.writer.trim(SCRIPT.ledger_id, last)
        assert (await storage.compact(0.2, UNLIMITED)).logs_removed == 0
        await storage.writer.trim(SCRIPT.ledger_id, last + 1)
        assert (await storage.compact(0.2, UNLIMITED)).logs_removed == 1, f"log {number}"
        result = await storage.reader.read(SCRIPT.ledger_id, last + 1, place(1, 499), entries_max=5, bytes_max=1 << 20)
        assert ids_of(result.entries) == list(range(last + 1, last + 6))
        assert not result.unknown
    await storage.close()


async def test_compaction_copies_what_lies_above_a_trim_and_what_others_hold() -> None:
    filesystem = MemoryFileSystem()
    storage = await opened(filesystem)
    await storage.writer.add(OTHER.ledger_id, OTHER.key, OTHER.entries(range(5)), recovery=False)
    await sent(storage, *range(20))
    await storage.checkpoint()
    await trim(storage, 15)
    await storage.compact(1.1, UNLIMITED)
    await storage.checkpoint()
    result = await storage.compact(1.1, UNLIMITED)
    copied = [*OTHER.entries(range(5)), *SCRIPT.entries([place(1, one) for one in range(15, 20)])]
    assert result.bytes_copied == sum(map(len, copied))
    assert await found(storage, 0, 19) == ([15, 16, 17, 18, 19], [(0, 14)])
    held = await storage.reader.read(OTHER.ledger_id, 0, 9, entries_max=9, bytes_max=1 << 20)
    assert ids_of(held.entries) == list(range(5))
    await storage.close()


async def test_trimmed_entries_of_the_cache_are_not_flushed() -> None:
    filesystem = MemoryFileSystem()
    storage = await opened(filesystem)
    await sent(storage, *range(20))
    await trim(storage, 18)
    await storage.checkpoint()
    assert storage.statistics().log_bytes < 6_000, "two entries and a filler"
    await storage.close()
    assert await indexed(filesystem) == [(FIRST + 18, FIRST + 19)]


# --- on disk --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_a_trim_outlives_restarts_and_power_cuts(checkpointed: bool) -> None:
    filesystem = MemoryFileSystem()
    storage = await opened(filesystem)
    await sent(storage, *range(10))
    await trim(storage, 5)
    if checkpointed:
        await storage.checkpoint()
    survivor = filesystem.after_crash(seed=3)
    filesystem.crashed.clear()
    await storage.close()
    for disk in (survivor, filesystem):
        for _ in range(2):
            storage = await opened(disk)
            assert await found(storage, 0, 9) == ([5, 6, 7, 8, 9], [(0, 4)])
            await sent(storage, 3)
            assert (await found(storage, 0, 9))[1] == [(0, 4)]
            await storage.close()


def test_replay_and_joins_take_the_highest_trim() -> None:
    for trims in ([3, 9], [9, 3], [9, 9]):
        ledgers = LedgerTable(PackedStates(), 8)
        for one in trims:
            _replay_record(RecordKind.TRIM, encode_trim(7, one), WriteCache(1000), ledgers)
        assert ledgers.get(7).first_kept == 9
        assert ledgers.get(7).highest_plus_one == 9
        states = [LedgerState(7), LedgerState(7)]
        for state, one in zip(states, trims, strict=True):
            state.trim(one)
        states[0].absorb(states[1])
        assert states[0].first_kept == 9


def test_a_replayed_trim_does_not_bring_a_deleted_ledger_back() -> None:
    ledgers = LedgerTable(PackedStates(), 8)
    ledgers.get(7).mark_deleted()
    assert _replay_record(RecordKind.TRIM, encode_trim(7, 5), WriteCache(1000), ledgers) is None
    assert ledgers.get(7).first_kept == 0


@given(st.integers(0, 2**63), st.integers(1, 2**63), st.integers(0, 2**63), st.one_of(st.none(), st.binary(min_size=1)))
@settings(max_examples=60, deadline=None)
def test_trimmed_states_round_trip(highest: int, first_kept: int, lac: int, key: bytes | None) -> None:
    state = LedgerState(7)
    state.highest_plus_one, state.lac_plus_one, state.ledger_key = highest, lac, key and key[:64]
    untrimmed = state.encode()
    state.trim(first_kept)
    encoded = state.encode()
    assert len(encoded) == len(untrimmed) + 8
    again = LedgerState.decode(7, encoded)
    assert (again.first_kept, again.highest_plus_one) == (first_kept, max(highest, first_kept))
    assert (again.lac_plus_one, again.ledger_key) == (lac, state.ledger_key)


@given(st.binary(max_size=24))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_a_trim_or_refused(rest: bytes) -> None:
    try:
        first_kept = decode_first_kept(rest)
    except (ValueError, OctavoError):
        assert len(rest) != 8 or not any(rest)
        return
    assert decode_ledger_record(encode_trim(7, first_kept)) == (7, rest)


async def test_offline_tools_know_trims() -> None:
    filesystem = MemoryFileSystem()
    storage = await filled(filesystem, 300)
    await trim(storage, 5)
    lines = [
        line
        for path in filesystem.files()
        if path.suffix == ".segment" and path.name.startswith("journal-")
        for line in [line async for line in inspect_file(filesystem, path)]
    ]
    assert any(f"TRIM ledger 7 below entry {place(1, 5)}" in line for line in lines)
    await trim(storage, 195)
    await storage.compact(0.2, UNLIMITED)
    await storage.close()
    layout = Layout(DATA, JOURNAL, (DATA,))
    shown = [
        line
        for path in filesystem.files()
        if path.suffix in {".runs", ".totals"}
        for line in [line async for line in inspect_file(filesystem, path)]
    ]
    assert any(f"trimmed below entry {place(1, 195)}" in line for line in shown)
    assert any(", highest entry 34359738" in line for line in shown)
    findings = [finding async for finding in OfflineCheck(filesystem, layout).findings()]
    assert [finding for finding in findings if finding.path.name != "cookie"] == []


async def test_a_rebuilt_index_leaves_out_what_was_trimmed() -> None:
    filesystem = MemoryFileSystem()
    storage = await opened(filesystem)
    await sent(storage, *range(20))
    await storage.checkpoint()
    await trim(storage, 15)
    await storage.close()
    rebuilt = await IndexRebuild(filesystem, Layout(DATA, JOURNAL, (DATA,))).run()
    assert (rebuilt.entries, rebuilt.in_doubt_because) == (5, ())
    storage = await opened(filesystem)
    assert await found(storage, 0, 19) == ([15, 16, 17, 18, 19], [(0, 14)])
    await storage.close()
    await filesystem.remove(DATA / MANIFEST_NAME)  # the states are read from all parts, in no order
    rebuilt = await IndexRebuild(filesystem, Layout(DATA, JOURNAL, (DATA,))).run()
    assert rebuilt.entries == 5
    assert rebuilt.in_doubt_because


async def test_a_standard_ledger_leaves_the_bytes_that_it_left_before() -> None:
    state = LedgerState(7)
    state.highest_plus_one = 9
    assert state.encode()[0] == 0
    assert not state.may_be_stream
    table = LedgerTable(PackedStates(), 8)
    for ledger_id, change in ((1, {"fenced": True}), (2, {"fenced_term": 1}), (3, {"highest_plus_one": FIRST + 1})):
        for name, value in change.items():
            setattr(table.get(ledger_id), name, value)
    assert [one for one in range(1, 5) if table.may_be_stream(one)] == [2, 3]
    table.get(3).deleted = True
    assert not table.may_be_stream(3)


async def test_random_trims_and_adds_agree_with_a_dictionary() -> None:
    """Beside the exhaustive model: many entries, logs and parts."""
    rng, filesystem = random.Random(11), MemoryFileSystem()
    storage = await opened(filesystem)
    held: set[int] = set()
    first_kept = 0
    for step in range(120):
        at = rng.randrange(first_kept, first_kept + 40) if rng.random() < 0.8 else rng.randrange(first_kept + 40)
        offsets = range(max(0, at - rng.randrange(5)), at + rng.randrange(1, 8))
        await storage.writer.copy_in(LedgerId(7), SCRIPT.entries([place(1, one) for one in offsets]))
        held.update(one for one in offsets if one >= first_kept)
        if rng.random() < 0.2:
            first_kept += rng.randrange(12)
            await trim(storage, first_kept)
            held = {one for one in held if one >= first_kept}
        if rng.random() < 0.2:
            await storage.checkpoint()
        if rng.random() < 0.1:
            await storage.compact(rng.choice((0.3, 1.1)), UNLIMITED)
        if rng.random() < 0.05:
            await storage.close()
            storage = await opened(filesystem)
        assert await found(storage, 0, first_kept + 60) == (
            sorted(held), [(0, first_kept - 1)] if first_kept else []
        ), f"step {step}"  # fmt: skip
    await storage.close()
