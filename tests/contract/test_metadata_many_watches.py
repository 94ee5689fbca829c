"""What every metadata driver must do when thousands of records are watched: idle ones cost memory only, and none of
their changes is missed."""

import asyncio
import random
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from octavo.metadata import MetadataStore, Versioned, Watch
from octavo.metadata.store.driver import Kind
from support.inside import handle_of
from support.metadata.metadata_clusters import LEASE_SECONDS, Cluster, soon, until

WATCHES = 2000
CHANGED = 50

type DocumentWatch = Watch[Versioned[bytes] | None]


def name_of(number: int) -> str:
    return f"watched/{number}"


@asynccontextmanager
async def watching(store: MetadataStore, count: int = WATCHES) -> AsyncIterator[Sequence[DocumentWatch]]:
    """Watches of as many documents, none of which exists; each has seen that."""
    async with AsyncExitStack() as stack:
        watches = [await stack.enter_async_context(store.watch_document(name_of(n))) for n in range(count)]
        for watch in watches:
            assert await soon(anext(watch)) is None
        yield watches


def requests(store: MetadataStore) -> dict[Hashable, int]:
    """How often each of the watched records was to be read."""
    return handle_of(store).hub.requests


async def test_idle_watches_have_no_tasks(store: MetadataStore) -> None:
    async with watching(store, 1):
        few = len(asyncio.all_tasks())
    async with watching(store):
        assert len(asyncio.all_tasks()) <= few


async def test_only_what_another_handle_changes_is_read_again(store: MetadataStore, other: MetadataStore) -> None:
    chosen = random.Random(1).sample(range(WATCHES), CHANGED)
    async with watching(store) as watches:
        before = requests(store)
        for number in chosen:
            await other.create_document(name_of(number), b"new")
        for number in chosen:
            assert await until(watches[number], lambda found: found is not None)
        changed = {key for key, count in requests(store).items() if count != before[key]}
        assert changed == {(Kind.DOCUMENT, name_of(number)) for number in chosen}


async def test_change_between_two_reads_of_it_is_not_missed(store: MetadataStore, other: MetadataStore) -> None:
    """Each of many records changes again and again while it is read."""
    count = 20
    async with watching(store, count) as watches:
        versions = [await other.create_document(name_of(n), b"0") for n in range(count)]
        for number in range(1, 11):
            versions = await asyncio.gather(
                *(
                    other.compare_and_set_document(name_of(n), b"%d" % number, version)
                    for n, version in enumerate(versions)
                )
            )
        for watch in watches:
            assert await until(watch, lambda found: found is not None and found.value == b"10")


async def test_deletion_of_each_is_noticed(store: MetadataStore, other: MetadataStore) -> None:
    async with watching(store, CHANGED) as watches:
        for number in range(CHANGED):
            await other.create_document(name_of(number), b"")
        for watch in watches:
            await until(watch, lambda found: found is not None)
        for number in range(CHANGED):
            await other.delete_document(name_of(number))
        for watch in watches:
            await until(watch, lambda found: found is None)


async def test_end_of_a_session_is_noticed_by_the_watches_of_its_locks_only(
    cluster: Cluster, store: MetadataStore, other: MetadataStore
) -> None:
    for number in range(3):
        await other.lock(f"dies/{number}", "dies")
    alive = await cluster.open()
    await alive.lock("lives", "lives")
    async with AsyncExitStack() as stack:
        locks = [await stack.enter_async_context(store.watch_lock(f"dies/{number}")) for number in range(3)]
        lives = await stack.enter_async_context(store.watch_lock("lives"))
        for lock in (*locks, lives):
            assert await soon(anext(lock)) is not None
        await cluster.advance(2 * LEASE_SECONDS, asleep=other)
        for lock in locks:
            assert await until(lock, lambda holder: holder is None) is None
        holder = await store.read_lock("lives")
        assert holder is not None
        assert holder.holder == "lives"


async def test_watches_cancelled_and_left_take_nothing_along(store: MetadataStore, other: MetadataStore) -> None:
    async with watching(store, 10) as watches:
        waiting = [asyncio.create_task(anext(watch)) for watch in watches]
        await asyncio.sleep(0)
        for task in waiting[:5]:
            task.cancel()
        async with watching(store, 10):
            pass  # others of the same documents come and go
        for number in range(10):
            await other.create_document(name_of(number), b"x")
        for task in waiting[5:]:
            assert await soon(task) is not None
        for watch in watches[:5]:
            assert await until(watch, lambda found: found is not None)
    assert not list(handle_of(store).hub.watched)


@pytest.mark.parametrize("kind", [Kind.LEDGER, Kind.DOCUMENT])
async def test_watches_that_are_left_leave_nothing_at_the_driver(store: MetadataStore, kind: Kind) -> None:
    before = asyncio.all_tasks()
    async with AsyncExitStack() as stack:
        for number in range(100):
            ids = await store.allocate_ledger_id()
            watch: Watch[object] = (
                store.watch_ledger(ids) if kind is Kind.LEDGER else store.watch_document(name_of(number))
            )
            await soon(anext(await stack.enter_async_context(watch)))
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
