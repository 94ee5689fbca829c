"""What every metadata driver must do. A driver joins with an entry in DRIVERS.

Time for leases stands still and is moved by hand (:meth:`Cluster.advance`); nothing here waits for a clock.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from octavo.metadata import (
    BookieRegistration,
    BookieState,
    ChangeEnsemble,
    CloseLedger,
    Cookie,
    MetadataStore,
    Version,
    Watch,
    update_ledger,
)
from octavo.metadata.handle import RecordMetadataStore
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.metadata.sqlite import open_sqlite_store
from octavo.metadata.store import DOCUMENT_BYTES_MAX
from octavo.protocol.errors import (
    ClientClosedError,
    InvalidArgumentError,
    LeaseLostError,
    LedgerExistsError,
    MetadataConflictError,
    NoSuchLedgerError,
)
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from support.ledger_metadata import bookie_ids, open_ledger

LEASE_SECONDS = 10.0
PATIENCE_SECONDS = 20.0
"""For what must come: far beyond what it takes, so that a slow machine does not fail, and a hang is named."""


class Cluster:
    """A store under test: opens handles on it and moves the time of their leases."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.stack = AsyncExitStack()
        self.handles: list[RecordMetadataStore] = []

    async def open(self) -> RecordMetadataStore:
        """A further handle, as another process would have."""
        handle = await self.open_handle()
        self.handles.append(handle)
        self.stack.push_async_callback(handle.close)
        return handle

    async def advance(self, seconds: float, *, asleep: RecordMetadataStore | None = None) -> None:
        """Let time pass in steps in which every handle renews its leases, but the one that is ``asleep``."""
        steps = max(1, round(seconds / 3))
        for _ in range(steps):
            self.now += seconds / steps
            await self.time_passed()
            for handle in self.handles:
                if handle is not asleep and "closed" not in repr(handle):
                    await handle.renew_leases()

    async def open_handle(self) -> RecordMetadataStore:
        raise NotImplementedError

    async def time_passed(self) -> None:
        """Let the store notice the time."""


class MemoryCluster(Cluster):
    def __init__(self, _directory: Path) -> None:
        super().__init__()
        self.server = MemoryServer("contract", clock=lambda: self.now, rng=random.Random(1))

    async def open_handle(self) -> RecordMetadataStore:
        return open_memory_store(self.server, lease_seconds=LEASE_SECONDS, rng=random.Random(len(self.handles)))

    async def time_passed(self) -> None:
        self.server.end_late_sessions()
        self.server.check_invariants()


class SqliteCluster(Cluster):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.path = directory / "made" / "for it" / "metadata.db"

    async def open_handle(self) -> RecordMetadataStore:
        return await open_sqlite_store(
            self.path,
            create=True,
            lease_seconds=LEASE_SECONDS,
            poll_seconds=0.005,
            clock=lambda: self.now,
            boot_id="this-boot",
            rng=random.Random(len(self.handles)),
        )


DRIVERS: dict[str, Callable[[Path], Cluster]] = {"memory": MemoryCluster, "sqlite": SqliteCluster}


@pytest.fixture(params=DRIVERS)
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    made = DRIVERS[request.param](tmp_path)
    async with made.stack:
        yield made


@pytest.fixture
async def store(cluster: Cluster) -> MetadataStore:
    return await cluster.open()


@pytest.fixture
async def other(cluster: Cluster, store: MetadataStore) -> MetadataStore:
    return await cluster.open()


async def soon[T](awaitable: Awaitable[T]) -> T:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await awaitable


async def until[T](watch: Watch[T], wanted: Callable[[T], bool]) -> T:
    """The first value of the watch that is wanted."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for value in watch:
            if wanted(value):
                return value
    raise AssertionError("a watch does not end by itself")


async def new_ledger(store: MetadataStore, *, token: str = "") -> tuple[LedgerId, Version]:
    ledger_id = await store.allocate_ledger_id()
    return ledger_id, await store.create_ledger(open_ledger(ledger_id, writer_token=token))


def registration(name: str, *, state: BookieState = BookieState.WRITABLE, boot: str = "boot-1") -> BookieRegistration:
    return BookieRegistration(
        bookie_id=BookieId(name), address=f"{name}.example:3181", state=state, version="0.1.0", boot_id=boot
    )


def cookie(name: str, generation: int = 1) -> Cookie:
    return Cookie(bookie_id=BookieId(name), generation=generation, address=f"{name}.example:3181", body=b"\x00disks")


# --- identity ------------------------------------------------------------------------------------------------------


async def test_cluster_has_one_identity(cluster: Cluster) -> None:
    handles = await asyncio.gather(*(cluster.open() for _ in range(4)))
    identities = {await handle.cluster_id() for handle in handles}
    assert len(identities) == 1
    assert len(identities.pop()) == 32


# --- ledgers -------------------------------------------------------------------------------------------------------


async def test_created_ledger_is_read_as_written(store: MetadataStore, other: MetadataStore) -> None:
    ledger_id, version = await new_ledger(store)
    found = await other.read_ledger(ledger_id)
    assert found == (open_ledger(ledger_id), version)


async def test_ledger_is_created_once(store: MetadataStore, other: MetadataStore) -> None:
    ledger_id, _ = await new_ledger(store, token="first")
    with pytest.raises(LedgerExistsError, match=f"ledger {ledger_id}"):
        await other.create_ledger(open_ledger(ledger_id, writer_token="second"))
    assert (await store.read_ledger(ledger_id)).value.writer_token == "first"


async def test_ledger_id_that_was_never_allocated_is_refused(store: MetadataStore) -> None:
    with pytest.raises(InvalidArgumentError, match="ledger id 3 was never allocated"):
        await store.create_ledger(open_ledger(3))


async def test_id_allocated_by_another_handle_may_be_used(store: MetadataStore, other: MetadataStore) -> None:
    ledger_id = await store.allocate_ledger_id()
    await other.create_ledger(open_ledger(ledger_id))


async def test_missing_ledger_is_named(store: MetadataStore) -> None:
    for missing in (0, 99, -1, 2**63, 10**30):
        with pytest.raises(NoSuchLedgerError, match=f"ledger {missing} "):
            await store.read_ledger(LedgerId(missing))
    with pytest.raises(NoSuchLedgerError):
        await store.delete_ledger(LedgerId(99))
    with pytest.raises(NoSuchLedgerError):
        await store.compare_and_set_ledger(open_ledger(99), Version(1))


async def test_compare_and_set_needs_the_present_version(store: MetadataStore, other: MetadataStore) -> None:
    ledger_id, first = await new_ledger(store)
    second = await store.compare_and_set_ledger(open_ledger(ledger_id, writer_token="a"), first)
    assert second != first
    with pytest.raises(MetadataConflictError, match=f"ledger {ledger_id}"):
        await other.compare_and_set_ledger(open_ledger(ledger_id, writer_token="b"), first)
    assert await other.read_ledger(ledger_id) == (open_ledger(ledger_id, writer_token="a"), second)


async def test_deleted_ledger_is_gone_and_its_id_is_not_used_again(store: MetadataStore, other: MetadataStore) -> None:
    ledger_id, version = await new_ledger(store)
    with pytest.raises(MetadataConflictError):
        await store.delete_ledger(ledger_id, Version(version + 1))
    await other.delete_ledger(ledger_id, version)
    with pytest.raises(NoSuchLedgerError):
        await store.read_ledger(ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await store.compare_and_set_ledger(open_ledger(ledger_id), version)
    assert await store.allocate_ledger_id() > ledger_id
    assert await other.allocate_ledger_id() > ledger_id + 1


async def test_ids_allocated_at_once_by_many_never_collide(cluster: Cluster) -> None:
    handles = [await cluster.open() for _ in range(3)]
    ids = await asyncio.gather(*(handle.allocate_ledger_id() for _ in range(20) for handle in handles))
    assert len(set(ids)) == 60
    assert min(ids) >= 0


async def test_one_of_many_writers_wins_each_version(cluster: Cluster) -> None:
    handles = [await cluster.open() for _ in range(2)]
    ledger_id, version = await new_ledger(handles[0])

    async def attempt(handle: MetadataStore, token: str, expected: Version) -> Version | None:
        try:
            return await handle.compare_and_set_ledger(open_ledger(ledger_id, writer_token=token), expected)
        except MetadataConflictError:
            return None

    for _ in range(5):
        outcomes = await asyncio.gather(*(attempt(handles[n % 2], f"writer {n}", version) for n in range(8)))
        (winner,) = [n for n, outcome in enumerate(outcomes) if outcome is not None]
        found = await handles[0].read_ledger(ledger_id)
        assert found.value.writer_token == f"writer {winner}"
        assert found.version == outcomes[winner]
        version = found.version


async def test_updates_by_many_handles_all_take_effect(cluster: Cluster) -> None:
    """Every round is an update from what was read: not one may be lost."""
    handles = [await cluster.open() for _ in range(2)]
    name = "counter"
    await handles[0].create_document(name, b"0")

    async def count(handle: MetadataStore) -> None:
        for _ in range(10):
            while True:
                found = await handle.read_document(name)
                assert found is not None
                try:
                    await handle.compare_and_set_document(name, b"%d" % (int(found.value) + 1), found.version)
                    break
                except MetadataConflictError:
                    continue

    await asyncio.gather(*(count(handles[n % 2]) for n in range(4)))
    final = await handles[0].read_document(name)
    assert final is not None
    assert final.value == b"40"


async def test_writer_and_recoverer_agree_on_one_end(store: MetadataStore, other: MetadataStore) -> None:
    ledger_id, _ = await new_ledger(store)
    base = open_ledger(ledger_id).last_fragment
    changes = [
        update_ledger(store, ledger_id, CloseLedger(base, EntryId(4), 40), writer_token="a"),
        update_ledger(other, ledger_id, CloseLedger(base, EntryId(5), 50), writer_token="b"),
        update_ledger(
            other, ledger_id, ChangeEnsemble(base, EntryId(6), bookie_ids("a", "b", "d"), 60), writer_token="c"
        ),
    ]
    outcomes = await asyncio.gather(*changes, return_exceptions=True)
    assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) == 1


async def test_ledgers_are_listed_in_order_of_their_ids(store: MetadataStore, other: MetadataStore) -> None:
    ids = [await store.allocate_ledger_id() for _ in range(12)]
    for ledger_id in reversed(ids):
        await store.create_ledger(open_ledger(ledger_id))
    await store.delete_ledger(ids[5])
    assert [ledger_id async for ledger_id in other.list_ledgers()] == [*ids[:5], *ids[6:]]


async def test_long_list_comes_page_by_page_while_ledgers_come_and_go(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.metadata.handle.LIST_PAGE_RECORDS", 4)
    ids = [(await new_ledger(store))[0] for _ in range(13)]
    seen = []
    async for ledger_id in store.list_ledgers():
        seen.append(ledger_id)
        if ledger_id == ids[3]:
            await store.delete_ledger(ids[0])
            await store.delete_ledger(ids[4])
            late, _ = await new_ledger(store)
    assert seen == [*ids[:4], *ids[5:], late]


async def test_empty_store_lists_nothing(store: MetadataStore) -> None:
    assert [ledger_id async for ledger_id in store.list_ledgers()] == []
    assert [name async for name in store.list_documents()] == []
    assert await store.list_known_bookies() == []
    assert await store.list_cookies() == []


# --- watches -------------------------------------------------------------------------------------------------------


async def test_watch_gives_the_present_then_every_latest_value_then_none(
    store: MetadataStore, other: MetadataStore
) -> None:
    ledger_id, version = await new_ledger(store)
    async with other.watch_ledger(ledger_id) as watch:
        assert await soon(anext(watch)) == (open_ledger(ledger_id), version)
        for token in ("a", "b"):
            version = await store.compare_and_set_ledger(open_ledger(ledger_id, writer_token=token), version)
            found = await soon(anext(watch))
            assert found == (open_ledger(ledger_id, writer_token=token), version)
        await store.delete_ledger(ledger_id)
        assert await soon(anext(watch)) is None


async def test_watch_never_misses_the_last_change(store: MetadataStore, other: MetadataStore) -> None:
    await store.create_document("doc", b"0")
    async with other.watch_document("doc") as watch:
        await soon(anext(watch))
        for number in range(1, 21):
            present = await store.read_document("doc")
            assert present is not None
            await store.compare_and_set_document("doc", b"%d" % number, present.version)
        last = await until(watch, lambda found: found is not None and found.value == b"20")
        assert last is not None


async def test_watcher_that_joins_later_never_sees_what_it_has_itself_replaced(store: MetadataStore) -> None:
    await store.create_document("doc", b"old")
    async with store.watch_document("doc") as early:
        found = await soon(anext(early))
        assert found is not None
        await store.compare_and_set_document("doc", b"new", found.version)
        async with store.watch_document("doc") as late:
            found = await soon(anext(late))
            assert found is not None
            assert found.value == b"new"


async def test_many_watchers_cost_one_and_each_sees_the_change(store: MetadataStore) -> None:
    ledger_id, version = await new_ledger(store)
    async with AsyncExitStack() as stack:
        watches = [await stack.enter_async_context(store.watch_ledger(ledger_id)) for _ in range(10)]
        tasks_before = len(asyncio.all_tasks())
        watches += [await stack.enter_async_context(store.watch_ledger(ledger_id)) for _ in range(10)]
        assert len(asyncio.all_tasks()) == tasks_before
        for watch in watches:
            assert await soon(anext(watch)) is not None
        changed = open_ledger(ledger_id, writer_token="new")
        version = await store.compare_and_set_ledger(changed, version)
        assert await soon(asyncio.gather(*(anext(watch) for watch in watches))) == [(changed, version)] * 20


async def test_cancelled_watcher_disturbs_no_other(store: MetadataStore) -> None:
    async with store.watch_document("doc") as first, store.watch_document("doc") as second:
        assert await soon(anext(first)) is None
        assert await soon(anext(second)) is None
        waiting = [asyncio.create_task(anext(watch)) for watch in (first, second)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        version = await store.create_document("doc", b"x")
        assert await soon(waiting[1]) == (b"x", version)
        assert await soon(anext(first)) == (b"x", version)


async def test_document_can_be_watched_before_it_exists(store: MetadataStore, other: MetadataStore) -> None:
    async with store.watch_document("a/b") as watch:
        assert await soon(anext(watch)) is None
        version = await other.create_document("a/b", b"x")
        assert await soon(anext(watch)) == (b"x", version)
        await other.delete_document("a/b")
        assert await soon(anext(watch)) is None
        version = await other.create_document("a/b", b"y")
        assert await soon(anext(watch)) == (b"y", version)


async def test_watching_leaves_no_task_behind(store: MetadataStore) -> None:
    before = asyncio.all_tasks()
    async with store.watch_document("doc") as watch, store.watch_bookies() as bookies:
        await soon(anext(watch))
        await soon(anext(bookies))
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


# --- bookies -------------------------------------------------------------------------------------------------------


async def test_registered_bookies_are_listed_until_they_leave(store: MetadataStore, other: MetadataStore) -> None:
    lease = await store.register_bookie(registration("b2"))
    await other.register_bookie(registration("b1", state=BookieState.READ_ONLY))
    assert list((await other.list_bookies()).values()) == [
        registration("b1", state=BookieState.READ_ONLY),
        registration("b2"),
    ]
    await lease.update(registration("b2", state=BookieState.READ_ONLY))
    assert (await other.list_bookies())[BookieId("b2")].state is BookieState.READ_ONLY
    await lease.release()
    await lease.release()
    assert lease.lost
    assert list(await other.list_bookies()) == ["b1"]


async def test_watch_of_bookies_sees_them_come_change_and_go(store: MetadataStore, other: MetadataStore) -> None:
    async with other.watch_bookies() as watch:
        assert await soon(anext(watch)) == {}
        lease = await store.register_bookie(registration("b1"))
        assert await soon(anext(watch)) == {"b1": registration("b1")}
        await lease.update(registration("b1", state=BookieState.READ_ONLY))
        assert await soon(anext(watch)) == {"b1": registration("b1", state=BookieState.READ_ONLY)}
        await store.close()
        assert await soon(anext(watch)) == {}


async def test_registration_lives_while_it_is_renewed(
    cluster: Cluster, store: MetadataStore, other: MetadataStore
) -> None:
    lease = await store.register_bookie(registration("b1"))
    await cluster.advance(5 * LEASE_SECONDS)
    assert not lease.lost
    assert list(await other.list_bookies()) == ["b1"]


async def test_registration_of_a_dead_process_ends_with_its_lease(cluster: Cluster) -> None:
    dead, alive = await cluster.open(), await cluster.open()
    lease = await dead.register_bookie(registration("b1"))
    async with alive.watch_bookies() as watch:
        assert list(await soon(anext(watch))) == ["b1"]
        await cluster.advance(LEASE_SECONDS - 0.01, asleep=dead)
        assert list(await alive.list_bookies()) == ["b1"]
        await cluster.advance(0.02, asleep=dead)
        assert await alive.list_bookies() == {}
        assert await soon(anext(watch)) == {}
    assert lease.lost  # it can tell from its own clock, before it has asked anybody


async def test_process_that_slept_too_long_learns_it_and_registers_again(cluster: Cluster) -> None:
    sleeper, other = await cluster.open(), await cluster.open()
    lease = await sleeper.register_bookie(registration("b1"))
    lock = await sleeper.try_lock("leader", "sleeper")
    assert lock is not None
    waiting = asyncio.create_task(lease.wait_lost())
    await cluster.advance(LEASE_SECONDS + 1, asleep=sleeper)
    await sleeper.renew_leases()
    await soon(waiting)
    await soon(lock.wait_lost())
    with pytest.raises(LeaseLostError, match="b1"):
        await lease.update(registration("b1", state=BookieState.READ_ONLY))
    assert await other.list_bookies() == {}
    again = await sleeper.register_bookie(registration("b1"))
    assert not again.lost
    assert list(await other.list_bookies()) == ["b1"]
    await lease.release()  # of the lost one: must not touch the new one
    assert list(await other.list_bookies()) == ["b1"]


async def test_lease_found_out_of_time_is_not_revived_by_registering(cluster: Cluster, store: MetadataStore) -> None:
    lease = await store.register_bookie(registration("b1"))
    cluster.now += LEASE_SECONDS
    second = await store.register_bookie(registration("b2"))
    assert lease.lost
    assert not second.lost
    assert list(await store.list_bookies()) == ["b2"]


async def test_restarted_bookie_registers_at_once_and_its_old_self_is_told(
    cluster: Cluster, store: MetadataStore, other: MetadataStore
) -> None:
    old = await store.register_bookie(registration("b1", boot="boot-1"))
    new = await other.register_bookie(registration("b1", boot="boot-2"))
    assert (await store.list_bookies())[BookieId("b1")].boot_id == "boot-2"
    assert new.fencing_number > old.fencing_number
    with pytest.raises(LeaseLostError):
        await old.update(registration("b1", boot="boot-1"))
    await cluster.advance(1)
    await soon(old.wait_lost())
    await old.release()
    assert (await store.list_bookies())[BookieId("b1")].boot_id == "boot-2"


async def test_old_self_learns_of_the_take_over_when_it_renews(
    cluster: Cluster, store: MetadataStore, other: MetadataStore
) -> None:
    old = await store.register_bookie(registration("b1", boot="boot-1"))
    kept = await store.register_bookie(registration("b2"))
    await other.register_bookie(registration("b1", boot="boot-2"))
    waiting = asyncio.create_task(old.wait_lost())
    await cluster.advance(1)
    await soon(waiting)
    assert not kept.lost


async def test_registering_again_in_the_same_process_replaces_the_lease(store: MetadataStore) -> None:
    first = await store.register_bookie(registration("b1"))
    second = await store.register_bookie(registration("b1", state=BookieState.READ_ONLY))
    assert first.lost
    await first.release()
    assert not second.lost
    assert (await store.list_bookies())[BookieId("b1")].state is BookieState.READ_ONLY


async def test_known_bookies_are_those_with_a_cookie_or_a_registration(
    store: MetadataStore, other: MetadataStore
) -> None:
    await store.create_cookie(cookie("b1"))
    await store.create_cookie(cookie("b2"))
    await other.register_bookie(replace(registration("b2"), address="[::1]:3182"))
    await other.register_bookie(registration("b3", state=BookieState.READ_ONLY))
    known = [(bookie.bookie_id, bookie.address, bookie.state.value) for bookie in await store.list_known_bookies()]
    assert known == [
        ("b1", "b1.example:3181", "unavailable"),
        ("b2", "[::1]:3182", "writable"),
        ("b3", "b3.example:3181", "read-only"),
    ]


async def test_cookie_changes_by_compare_and_set(store: MetadataStore, other: MetadataStore) -> None:
    b1 = BookieId("b1")
    assert await store.read_cookie(b1) is None
    first = await store.create_cookie(cookie("b1"))
    with pytest.raises(MetadataConflictError, match="b1"):
        await other.create_cookie(cookie("b1", 9))
    second = await other.compare_and_set_cookie(cookie("b1", 2), first)
    with pytest.raises(MetadataConflictError, match="b1"):
        await store.compare_and_set_cookie(cookie("b1", 3), first)
    assert await store.read_cookie(b1) == (cookie("b1", 2), second)
    assert await store.list_cookies() == [(cookie("b1", 2), second)]
    with pytest.raises(MetadataConflictError):
        await store.delete_cookie(b1, first)
    await store.delete_cookie(b1, second)
    with pytest.raises(MetadataConflictError):
        await store.delete_cookie(b1, second)
    assert await other.read_cookie(b1) is None


async def test_cookie_outlives_its_bookie(cluster: Cluster, store: MetadataStore, other: MetadataStore) -> None:
    await store.create_cookie(cookie("b1"))
    await store.register_bookie(registration("b1"))
    await store.close()
    await cluster.advance(2 * LEASE_SECONDS)
    assert [bookie.state for bookie in await other.list_known_bookies()] == [BookieState.UNAVAILABLE]


# --- documents -----------------------------------------------------------------------------------------------------


async def test_document_changes_by_compare_and_set(store: MetadataStore, other: MetadataStore) -> None:
    assert await store.read_document("logs/orders") is None
    first = await store.create_document("logs/orders", b"\x00\xff")
    with pytest.raises(MetadataConflictError, match="logs/orders"):
        await other.create_document("logs/orders", b"")
    second = await other.compare_and_set_document("logs/orders", b"", first)
    assert await store.read_document("logs/orders") == (b"", second)
    with pytest.raises(MetadataConflictError):
        await store.compare_and_set_document("logs/orders", b"x", first)
    with pytest.raises(MetadataConflictError):
        await store.delete_document("logs/orders", first)
    await store.delete_document("logs/orders", second)
    await store.delete_document("logs/orders")
    with pytest.raises(MetadataConflictError):
        await store.delete_document("logs/orders", second)
    with pytest.raises(MetadataConflictError):
        await store.compare_and_set_document("logs/orders", b"x", second)


async def test_documents_are_listed_by_prefix(store: MetadataStore, other: MetadataStore) -> None:
    for name in ("logs/b", "logs/a", "log", "logs-x", "logs/a/deep", "sets/a"):
        await store.create_document(name, b"")
    assert [name async for name in other.list_documents("logs/")] == ["logs/a", "logs/a/deep", "logs/b"]
    assert [name async for name in other.list_documents("log")] == [
        "log", "logs-x", "logs/a", "logs/a/deep", "logs/b",
    ]  # fmt: skip
    assert [name async for name in other.list_documents("nothing")] == []
    assert len([name async for name in other.list_documents()]) == 6


@pytest.mark.parametrize("name", ["", "/", "a/", "/a", "a//b", "../a", "a b", "ä", "a\n", "x" * 513, "a/./b", "-a"])
async def test_bad_name_is_refused(store: MetadataStore, name: str) -> None:
    for attempt in (
        store.create_document(name, b""),
        store.read_document(name),
        store.delete_document(name),
        store.try_lock(name, "me"),
    ):
        with pytest.raises(InvalidArgumentError, match="not a name"):
            await attempt


async def test_document_has_a_largest_size(store: MetadataStore) -> None:
    version = await store.create_document("big", bytes(DOCUMENT_BYTES_MAX))
    with pytest.raises(InvalidArgumentError, match="over the limit"):
        await store.compare_and_set_document("big", bytes(DOCUMENT_BYTES_MAX + 1), version)
    found = await store.read_document("big")
    assert found is not None
    assert len(found.value) == DOCUMENT_BYTES_MAX


# --- locks ---------------------------------------------------------------------------------------------------------


async def test_lock_has_one_holder(store: MetadataStore, other: MetadataStore) -> None:
    held = await store.try_lock("auditor", "one")
    assert held is not None
    assert await other.try_lock("auditor", "two") is None
    assert await store.try_lock("auditor", "one again") is None
    assert await other.read_lock("auditor") == ("one", held.fencing_number)
    assert await other.try_lock("another", "two") is not None
    await held.release()
    assert held.lost
    assert await other.read_lock("auditor") is None
    taken = await other.try_lock("auditor", "two")
    assert taken is not None
    assert taken.fencing_number > held.fencing_number


async def test_lock_goes_to_who_waits_and_is_held_by_one_at_a_time(cluster: Cluster) -> None:
    handles = [await cluster.open() for _ in range(2)]
    holders: list[int] = []
    order: list[int] = []

    async def work(number: int) -> None:
        lease = await handles[number % 2].lock("leader", str(number))
        holders.append(number)
        order.append(lease.fencing_number)
        assert holders == [number]
        await asyncio.sleep(0)
        assert not lease.lost
        holders.remove(number)
        await lease.release()

    await soon(asyncio.gather(*(work(number) for number in range(6))))
    assert order == sorted(set(order))
    assert len(order) == 6


async def test_lock_of_a_dead_process_falls_to_who_waits(cluster: Cluster) -> None:
    dead, alive = await cluster.open(), await cluster.open()
    first = await dead.lock("leader", "dead")
    async with alive.watch_lock("leader") as watch:
        assert await soon(anext(watch)) == ("dead", first.fencing_number)
        waiting = asyncio.create_task(alive.lock("leader", "alive"))
        await cluster.advance(LEASE_SECONDS + 1, asleep=dead)
        await until(watch, lambda present: present is None or present.holder == "alive")
        second = await soon(waiting)
    assert first.lost
    assert second.fencing_number > first.fencing_number
    assert await alive.read_lock("leader") == ("alive", second.fencing_number)


async def test_cancelled_wait_for_a_lock_leaves_none_behind(store: MetadataStore, other: MetadataStore) -> None:
    """Cancelled at every point that the way to the lock has."""
    for turns in range(12):
        waiting = asyncio.create_task(store.lock("leader", "cancelled"))
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
        if not isinstance(outcome, BaseException):
            await outcome.release()
        lease = await soon(other.lock("leader", "next"))
        await lease.release()


async def test_leader_can_be_watched(store: MetadataStore, other: MetadataStore) -> None:
    async with other.watch_lock("leader") as watch:
        assert await soon(anext(watch)) is None
        lease = await store.lock("leader", "one")
        assert await soon(anext(watch)) == ("one", lease.fencing_number)
        await lease.release()
        assert await soon(anext(watch)) is None


# --- closing -------------------------------------------------------------------------------------------------------


async def test_closed_store_refuses_everything(store: MetadataStore) -> None:
    ledger_id, version = await new_ledger(store)
    await store.close()
    await store.close()
    for attempt in (
        store.cluster_id(),
        store.allocate_ledger_id(),
        store.create_ledger(open_ledger(ledger_id)),
        store.read_ledger(ledger_id),
        store.compare_and_set_ledger(open_ledger(ledger_id), version),
        store.delete_ledger(ledger_id),
        anext(store.list_ledgers()),
        store.register_bookie(registration("b1")),
        store.list_bookies(),
        store.list_known_bookies(),
        store.create_cookie(cookie("b1")),
        store.read_cookie(BookieId("b1")),
        store.compare_and_set_cookie(cookie("b1"), version),
        store.delete_cookie(BookieId("b1"), version),
        store.list_cookies(),
        store.create_document("d", b""),
        store.read_document("d"),
        store.compare_and_set_document("d", b"", version),
        store.delete_document("d"),
        anext(store.list_documents()),
        store.try_lock("l", "me"),
        store.lock("l", "me"),
        store.read_lock("l"),
    ):
        with pytest.raises(ClientClosedError):
            await attempt
    for watch in (
        lambda: store.watch_ledger(ledger_id),
        lambda: store.watch_document("d"),
        lambda: store.watch_lock("l"),
        store.watch_bookies,
    ):
        with pytest.raises(ClientClosedError):
            watch()


async def test_closing_ends_waiting_watches_and_locks(store: MetadataStore, other: MetadataStore) -> None:
    assert await other.try_lock("leader", "other") is not None
    async with store.watch_document("doc") as watch:
        await soon(anext(watch))
        waiting = [asyncio.create_task(anext(watch)), asyncio.create_task(store.lock("leader", "me"))]
        for _ in range(5):
            await asyncio.sleep(0)
        await store.close()
        for outcome in await soon(asyncio.gather(*waiting, return_exceptions=True)):
            assert isinstance(outcome, ClientClosedError)


async def test_closing_gives_up_leases_at_once_and_tells_their_holders(
    store: MetadataStore, other: MetadataStore
) -> None:
    bookie = await store.register_bookie(registration("b1"))
    lock = await store.lock("leader", "me")
    await store.close()
    await soon(bookie.wait_lost())
    await soon(lock.wait_lost())
    assert await other.list_bookies() == {}
    assert await other.read_lock("leader") is None


async def test_closing_leaves_other_handles_alone_and_no_task_behind(cluster: Cluster) -> None:
    before = asyncio.all_tasks()
    first, second = await cluster.open(), await cluster.open()
    await first.register_bookie(registration("b1"))
    await second.register_bookie(registration("b2"))
    await first.close()
    assert list(await second.list_bookies()) == ["b2"]
    await second.close()
    assert asyncio.all_tasks() == before


async def test_what_was_stored_is_there_for_the_next(cluster: Cluster) -> None:
    keeper = await cluster.open()  # memory:// lives as long as somebody has it open
    first = await cluster.open()
    ledger_id, version = await new_ledger(first)
    identity = await first.cluster_id()
    await first.close()
    second = await cluster.open()
    assert await second.read_ledger(ledger_id) == (open_ledger(ledger_id), version)
    assert await second.cluster_id() == identity
    assert await second.allocate_ledger_id() == ledger_id + 1
    await keeper.close()
