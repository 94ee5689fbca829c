"""What every metadata driver must do: watches give the present, then every latest value, and miss no last change."""

import asyncio
from contextlib import AsyncExitStack

from octavo.metadata import MetadataStore
from support.metadata.ledger_metadata import open_ledger
from support.metadata.metadata_clusters import new_ledger, soon, until


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
