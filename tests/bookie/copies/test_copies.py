"""Entries copied in from other bookies, and what a bookie says it does not hold (rules C1, C3, C6 and C7)."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.bookie.copies.local_storage import Stripe
from octavo.bookie.storage.ledgers import LedgerLocks
from octavo.bookie.storage.storage import Storage
from octavo.metadata import open_metadata_store
from octavo.protocol.errors import (
    BookieReadOnlyError,
    BookieShuttingDownError,
    DigestMismatchError,
    DuplicateEntryError,
    LedgerFencedError,
    NoSuchLedgerError,
    ProtocolError,
    UnauthorizedError,
)
from octavo.protocol.held_entries import Holdings
from octavo.protocol.places import place
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.copies import DATA, JOURNAL, StorageHost
from support.disks.faulty_filesystem import MemoryFileSystem
from support.disks.held_disk import syncs_below
from support.metadata.ledger_metadata import open_ledger

pytestmark = pytest.mark.usefixtures("logged")

SCRIPT, OTHER = LedgerScript(7), LedgerScript(8)


async def held(storage: Storage, script: LedgerScript = SCRIPT, last: int = 500) -> list[bytes]:
    result = await storage.reader.read(script.ledger_id, 0, last, entries_max=1000, bytes_max=1 << 20)
    assert not result.unknown
    return result.entries


async def add(storage: Storage, script: LedgerScript, *ids: int, key: bytes | None = None) -> None:
    await storage.writer.add(script.ledger_id, key or script.key, script.entries(ids), recovery=False)


# --- copying in ------------------------------------------------------------------------------------------------------


async def test_copies_are_stored_as_they_are_and_durable_when_copy_in_returns(host: StorageHost) -> None:
    copied = SCRIPT.entries(range(5, 45), lac=30)
    await host.copies.copy_in(SCRIPT.ledger_id, copied)
    for _ in range(2):
        assert await held(host.storage) == copied
        assert host.copies.last_add_confirmed(SCRIPT.ledger_id) == 30
        await host.cut_power(seed=1)
    await host.storage.checkpoint()
    assert await held(host.storage) == copied
    assert (host.copies.entries_copied, host.copies.bytes_copied) == (0, 0), "counted since the start"


async def test_copies_pin_no_key_and_need_none(host: StorageHost) -> None:
    """The real key can be pinned later, and a key that is pinned stays."""
    await add(host.storage, OTHER, 0)
    await host.copies.copy_in(OTHER.ledger_id, OTHER.entries([1, 2]))
    await host.copies.copy_in(SCRIPT.ledger_id, SCRIPT.entries([0, 1]))
    await host.restart()
    assert host.storage.ledgers.get(SCRIPT.ledger_id).ledger_key is None
    with pytest.raises(UnauthorizedError):
        await add(host.storage, OTHER, 3, key=b"x" * 32)
    await add(host.storage, SCRIPT, 2)
    with pytest.raises(UnauthorizedError):
        await add(host.storage, SCRIPT, 3, key=b"x" * 32)


async def test_fenced_ledger_takes_copies_and_stays_fenced(host: StorageHost) -> None:
    await add(host.storage, SCRIPT, 0)
    await host.storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key)
    await host.copies.copy_in(SCRIPT.ledger_id, SCRIPT.entries([1, 2]))
    with pytest.raises(LedgerFencedError):
        await add(host.storage, SCRIPT, 3)
    assert await held(host.storage) == SCRIPT.entries(range(3))


async def test_copies_fill_gaps_below_what_is_held_and_the_same_again_is_a_success(host: StorageHost) -> None:
    await add(host.storage, SCRIPT, 3, 4, 9)
    for _ in range(2):
        await host.copies.copy_in(SCRIPT.ledger_id, SCRIPT.entries(range(12)))
        assert await held(host.storage) == SCRIPT.entries(range(12))
        await host.storage.checkpoint()


async def test_same_copy_again_is_a_success_only_once_the_first_is_durable(host: StorageHost) -> None:
    disk = syncs_below(JOURNAL)
    slow = await StorageHost(disk, host.store).start()
    disk.hold()
    first = asyncio.ensure_future(slow.copies.copy_in(SCRIPT.ledger_id, SCRIPT.entries([0])))
    for _ in range(20):
        await asyncio.sleep(0)
    again = asyncio.ensure_future(slow.copies.copy_in(SCRIPT.ledger_id, SCRIPT.entries([0])))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not first.done()
    assert not again.done()
    disk.release()
    await asyncio.gather(first, again)
    await slow.storage.close()


@pytest.mark.parametrize("ask", ["missing", "verified"])
async def test_what_is_held_counts_only_once_it_is_durable(host: StorageHost, ask: str) -> None:
    """Rules C3 and I9: an add that has been accepted and not synced is lost in a power cut, and is no copy yet."""

    disk = syncs_below(JOURNAL)
    slow = await StorageHost(disk, host.store).start()
    disk.hold()
    adding = asyncio.ensure_future(add(slow.storage, SCRIPT, 0, 1))
    for _ in range(20):
        await asyncio.sleep(0)
    looking = asyncio.ensure_future(getattr(slow.copies, ask)(SCRIPT.ledger_id, 0, 2))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not adding.done()
    assert not looking.done()
    disk.release()
    assert await looking == Holdings(2, ((2, 2),), ())
    assert adding.done()
    await slow.storage.close()


async def test_other_bytes_at_an_id_are_refused_and_nothing_is_overwritten(host: StorageHost) -> None:
    await add(host.storage, SCRIPT, 0, 1)
    with pytest.raises(DuplicateEntryError):
        await host.copies.copy_in(SCRIPT.ledger_id, SCRIPT.entries([1, 2], version=1))
    assert await held(host.storage) == SCRIPT.entries([0, 1])


async def test_entries_that_no_bookie_returns_are_refused_as_a_whole(host: StorageHost) -> None:
    first, second = SCRIPT.entries([0, 1])
    damaged = second[:60] + bytes([second[60] ^ 1]) + second[61:]
    refused: list[tuple[list[bytes], type[Exception]]] = [
        ([first, damaged], DigestMismatchError),
        ([first, OTHER.entry(1)], ProtocolError),
        ([second, first], ProtocolError),
        ([first, first], ProtocolError),
        ([], ProtocolError),
        ([first, b"short"], ProtocolError),
    ]
    for entries, error in refused:
        with pytest.raises(error):
            await host.copies.copy_in(SCRIPT.ledger_id, entries)
    assert await held(host.storage) == []
    assert not host.storage.holds_entries(SCRIPT.ledger_id)


async def test_copy_replaces_one_that_does_not_verify(host: StorageHost) -> None:
    await add(host.storage, SCRIPT, *range(20))
    await host.storage.checkpoint()
    await host.storage.close()
    (log_path,) = [path for path in host.filesystem.files(DATA / "entries") if path.suffix == ".log"]
    host.filesystem.damage(log_path, host.filesystem.content(log_path).index(SCRIPT.entry(7)) + 60)
    await host.start()
    assert await host.copies.missing(SCRIPT.ledger_id, 0, 19) == Holdings(19, (), ())
    assert await host.copies.verified(SCRIPT.ledger_id, 0, 25) == Holdings(25, ((20, 25),), ((7, 7),))
    assert await host.copies.read_entry(SCRIPT.ledger_id, 7) is None
    await host.copies.copy_in(SCRIPT.ledger_id, SCRIPT.entries([6, 7, 8]))
    for _ in range(2):
        assert await host.copies.verified(SCRIPT.ledger_id, 0, 19) == Holdings(19, (), ())
        assert await host.copies.read_entry(SCRIPT.ledger_id, 7) == SCRIPT.entry(7)
        await host.restart()


async def test_copy_replaces_one_that_was_damaged_since_it_left_memory_and_is_not_in_the_index(
    host: StorageHost,
) -> None:
    """A checkpoint has written the entry log, and waits for its sync: a part of the index follows that."""
    disk = syncs_below(DATA / "entries")
    slow = await StorageHost(disk, host.store).start()
    await add(slow.storage, SCRIPT, *range(20))
    disk.hold()
    checkpoint = asyncio.ensure_future(slow.storage.checkpoint())
    await disk.held.wait()
    assert slow.storage.statistics().index_parts == 0
    (log_path,) = [path for path in disk.files(DATA / "entries") if path.suffix == ".log"]
    disk.damage(log_path, disk.content(log_path).index(SCRIPT.entry(7)) + 60)
    assert await slow.copies.verified(SCRIPT.ledger_id, 0, 19) == Holdings(19, (), ((7, 7),))
    await slow.copies.copy_in(SCRIPT.ledger_id, SCRIPT.entries([6, 7, 8]))
    assert not checkpoint.done()
    for _ in range(2):
        assert await held(slow.storage) == SCRIPT.entries(range(20))
        assert await slow.copies.verified(SCRIPT.ledger_id, 0, 19) == Holdings(19, (), ())
        disk.release()
        await checkpoint
        await slow.storage.checkpoint()
    await slow.storage.close()


async def test_deleted_ledger_takes_copies_only_if_the_metadata_know_it(host: StorageHost) -> None:
    await add(host.storage, SCRIPT, 0)
    await host.storage.writer.delete(SCRIPT.ledger_id)
    assert not host.storage.holds_entries(SCRIPT.ledger_id)
    for ask in (
        host.copies.copy_in(SCRIPT.ledger_id, SCRIPT.entries([0])),
        host.copies.missing(SCRIPT.ledger_id, 0, 1),
        host.copies.verified(SCRIPT.ledger_id, 0, 1),
    ):
        with pytest.raises(NoSuchLedgerError):
            await ask
    while await host.store.allocate_ledger_id() < SCRIPT.ledger_id:
        pass
    await host.store.create_ledger(open_ledger(SCRIPT.ledger_id))
    await host.copies.copy_in(SCRIPT.ledger_id, SCRIPT.entries([0, 1]))
    assert ids_of((await host.storage.reader.read(SCRIPT.ledger_id, 0, 5, entries_max=9, bytes_max=9999)).entries) == [
        0,
        1,
    ]


async def test_full_disk_and_stopping_bookie_take_no_copies(host: StorageHost) -> None:
    host.full = True
    with pytest.raises(BookieReadOnlyError):
        await host.copies.copy_in(SCRIPT.ledger_id, SCRIPT.entries([0]))
    host.full = False
    await host.storage.close()
    with pytest.raises(BookieShuttingDownError):
        await host.copies.copy_in(SCRIPT.ledger_id, SCRIPT.entries([0]))
    await host.start()
    assert await held(host.storage) == []


async def test_copies_wait_for_memory_and_all_get_through(host: StorageHost) -> None:
    """Ten times what the cache holds, all at once."""
    scripts = [LedgerScript(number, payload_bytes=400) for number in range(20, 40)]

    async def copy(script: LedgerScript) -> None:
        for first in range(0, 20, 5):
            await host.copies.copy_in(script.ledger_id, script.entries(range(first, first + 5)))
            assert host.storage.memory_bytes < 120_000

    await asyncio.gather(*map(copy, scripts))
    for script in scripts:
        assert await held(host.storage, script) == script.entries(range(20))


# --- what is not held ------------------------------------------------------------------------------------------------


def asked(holdings: Holdings, first: int, stripe: Stripe) -> tuple[set[int], set[int]]:
    """The ids of the stripe that are missing, and those that are unknown; checks that the runs are apart."""
    modulus, residues = stripe
    found = []
    for runs in (holdings.missing, holdings.unknown):
        assert all(low <= high for low, high in runs)
        assert all(one[1] < other[0] for one, other in pairwise(runs))
        assert all(first <= low and high <= holdings.last_covered for low, high in runs)
        ids = [{i for i in range(low, high + 1) if i % modulus in residues} for low, high in runs]
        assert all(ids), "a run without an id asked for"
        found.append(set().union(*ids))
    missing, unknown = found
    assert not missing & unknown
    return missing, unknown


@given(
    groups=st.lists(st.sets(st.integers(0, 60), min_size=1), max_size=5),
    interval=st.tuples(st.integers(0, 70), st.integers(0, 70)).map(sorted),
    modulus=st.integers(1, 4),
    data=st.data(),
)
def test_missing_and_verified_agree_with_what_is_held(
    groups: list[set[int]], interval: list[int], modulus: int, data: st.DataObject
) -> None:
    """Entries lie in the cache, in logs and in both, in any order; ids are striped or not."""
    residues = tuple(sorted(data.draw(st.sets(st.integers(0, modulus - 1), min_size=1))))
    checkpoints = data.draw(st.sets(st.integers(0, len(groups))))
    asyncio.run(_compare(groups, checkpoints, interval, (modulus, residues)))


async def _compare(groups: list[set[int]], checkpoints: set[int], interval: list[int], stripe: Stripe) -> None:
    async with await open_metadata_store("memory://", create=True) as store:
        host = await StorageHost(MemoryFileSystem(), store).start()
        await _compare_with(host, groups, checkpoints, interval, stripe)
        await host.storage.close()


async def _compare_with(
    host: StorageHost, groups: list[set[int]], checkpoints: set[int], interval: list[int], stripe: Stripe
) -> None:
    for number, ids in enumerate(groups):
        await host.copies.copy_in(SCRIPT.ledger_id, SCRIPT.entries(sorted(ids)))
        if number in checkpoints:
            await host.storage.checkpoint()
    first, last = interval
    expected = {i for i in range(first, last + 1) if i % stripe[0] in stripe[1]} - set().union(*groups)
    for look in (host.copies.missing, host.copies.verified, host.storage.reader.missing):
        holdings = await look(SCRIPT.ledger_id, first, last, stripe=stripe)
        assert holdings.last_covered == last
        assert asked(holdings, first, stripe) == (expected, set())


async def test_everything_above_what_is_held_is_missing_in_one_answer(host: StorageHost) -> None:
    far = 2**62
    assert await host.copies.missing(SCRIPT.ledger_id, 0, far) == Holdings(far, ((0, far),), ())
    await add(host.storage, SCRIPT, 0, 1)
    assert await host.copies.missing(SCRIPT.ledger_id, 0, far) == Holdings(far, ((2, far),), ())
    assert await host.copies.verified(SCRIPT.ledger_id, 2, far) == Holdings(far, ((2, far),), ())


async def test_long_interval_is_answered_piece_by_piece(host: StorageHost) -> None:
    held_ids = range(0, 3_000_001, 200_000)
    await add(host.storage, SCRIPT, *held_ids)
    first = answers = 0
    pieces: list[tuple[int, int]] = []
    while first <= 3_000_000:
        holdings = await host.copies.missing(SCRIPT.ledger_id, first, 3_000_000, stripe=(1, (0,)))
        assert holdings.last_covered >= first
        pieces += holdings.missing
        first, answers = holdings.last_covered + 1, answers + 1
    assert 1 < answers < 5
    assert joined(pieces) == [(first + 1, first + 199_999) for first in held_ids[:-1]]


FAR = [place(term, 0) for term in (1, 2, 900)]


async def host_with_gaps(host: StorageHost, *, flushed: bool) -> None:
    for entry_id in FAR:
        await add(host.storage, SCRIPT, entry_id)
    if flushed:
        await host.storage.checkpoint()


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("ask", ["missing", "verified"])
async def test_what_is_missing_in_a_wide_gap_is_told_by_few_look_ups(
    host: StorageHost, ask: str, flushed: bool
) -> None:
    await host_with_gaps(host, flushed=flushed)
    before = host.storage.statistics().index_lookup_seconds.count
    missing: list[tuple[int, int]] = []
    first = 0
    while first <= FAR[-1]:
        holdings = await getattr(host.copies, ask)(SCRIPT.ledger_id, first, FAR[-1])
        missing += holdings.missing
        first = holdings.last_covered + 1
    assert joined(missing) == [(0, FAR[0] - 1), (FAR[0] + 1, FAR[1] - 1), (FAR[1] + 1, FAR[2] - 1)]
    assert host.storage.statistics().index_lookup_seconds.count - before < 10


@pytest.mark.parametrize("flushed", [False, True])
async def test_reads_and_lists_cross_a_wide_gap_by_few_look_ups(host: StorageHost, flushed: bool) -> None:
    await host_with_gaps(host, flushed=flushed)
    before = host.storage.statistics().index_lookup_seconds.count
    assert await host.storage.reader.list_entries(SCRIPT.ledger_id) == [(entry_id, entry_id) for entry_id in FAR]
    found: list[int] = []
    first = 0
    while first <= FAR[-1]:
        result = await host.storage.reader.read(SCRIPT.ledger_id, first, 2**62, entries_max=10, bytes_max=10**6)
        found += ids_of(result.entries)
        assert result.unknown == []
        first = result.last_covered + 1
    assert found == FAR
    assert host.storage.statistics().index_lookup_seconds.count - before < 15


def joined(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same, with neighbours as one."""
    found: list[tuple[int, int]] = []
    for first, last in intervals:
        if found and found[-1][1] + 1 == first:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


async def test_verified_reads_back_a_bounded_amount_at_a_time(host: StorageHost) -> None:
    for first in range(0, 6000, 500):
        await host.copies.copy_in(SCRIPT.ledger_id, SCRIPT.entries(range(first, first + 500)))
    holdings = await host.copies.verified(SCRIPT.ledger_id, 0, 5999)
    assert holdings == Holdings(4095, (), ())
    assert await host.copies.verified(SCRIPT.ledger_id, 4096, 5999) == Holdings(5999, (), ())


async def test_index_damage_is_unknown_until_the_entries_are_copied_in(host: StorageHost) -> None:
    for script in (SCRIPT, OTHER):
        await add(host.storage, script, *range(0, 40, 2))
    await host.storage.checkpoint()
    await host.storage.close()
    (part,) = [path for path in host.filesystem.files(DATA / "index") if path.suffix == ".runs"]
    host.filesystem.damage(part, 40)
    await host.start()
    damaged = await host.copies.missing(SCRIPT.ledger_id, 0, 50)
    missing, unknown = asked(damaged, 0, (1, (0,)))
    assert set(range(0, 40, 2)) <= unknown, "what it holds may be hidden, so nothing of that is missing"
    assert set(range(40, 51)) <= missing
    await host.copies.copy_in(SCRIPT.ledger_id, SCRIPT.entries(range(40)))
    assert await host.copies.verified(SCRIPT.ledger_id, 0, 39) == Holdings(39, (), ())


# --- locks -----------------------------------------------------------------------------------------------------------


async def test_lock_of_a_ledger_is_held_by_one_task_in_order_and_forgotten_when_free() -> None:
    locks, order = LedgerLocks(), list[str]()

    async def hold(name: str, ledger_id: int, until: asyncio.Event) -> None:
        async with locks.hold(ledger_id):
            order.append(f"{name} holds {ledger_id}")
            await until.wait()
        order.append(f"{name} leaves {ledger_id}")

    async def settle() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    first, second, other = asyncio.Event(), asyncio.Event(), asyncio.Event()
    tasks = [asyncio.ensure_future(hold("a", 1, first))]
    await settle()
    tasks.append(asyncio.ensure_future(hold("b", 1, second)))
    await settle()
    cancelled = asyncio.ensure_future(hold("c", 1, second))
    tasks.append(asyncio.ensure_future(hold("d", 2, other)))
    await settle()
    assert order == ["a holds 1", "d holds 2"]
    cancelled.cancel()
    await settle()
    first.set()
    await settle()
    assert order == ["a holds 1", "d holds 2", "a leaves 1", "b holds 1"]
    assert locks.count == 2
    second.set()
    other.set()
    await asyncio.gather(*tasks)
    assert locks.count == 0
