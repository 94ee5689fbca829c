"""Watches on ZooKeeper: soon, none lost over breaks, one at the server for any number of watchers."""

import asyncio
import statistics
from contextlib import AsyncExitStack
from itertools import pairwise

from octavo.metadata import MetadataStore
from support.metadata.ledger_metadata import open_ledger
from support.metadata.metadata_clusters import new_ledger, registration, soon, until
from support.metadata.zookeeper import records_of, shared_server
from support.metadata.zookeeper_proxy import FORGET_WATCHES, ZooKeeperProxy

ARRIVAL_SECONDS_MAX = 0.1
ARRIVAL_CHANGES_MAX = 10
"""Limit of the median delay of a watch, in seconds or in the time that a change takes, whichever is longer on this
machine."""


async def test_changes_arrive_within_100_ms(store: MetadataStore, other: MetadataStore) -> None:
    loop = asyncio.get_running_loop()
    ledger_id, version = await new_ledger(store)
    delays: list[float] = []
    change_seconds: list[float] = []
    async with store.watch_ledger(ledger_id) as watch, store.watch_bookies() as bookies:
        await soon(anext(watch))
        await soon(anext(bookies))
        for number in range(10):
            change_begun = loop.time()
            version = await other.compare_and_set_ledger(open_ledger(ledger_id, writer_token=str(number)), version)
            begun = loop.time()
            change_seconds.append(begun - change_begun)
            await until(watch, lambda found: found is not None and found.version == version)  # noqa: B023
            delays.append(loop.time() - begun)
        for number in range(10):
            await other.register_bookie(registration(f"b{number}"))
            begun = loop.time()
            await until(bookies, lambda found: f"b{number}" in found)  # noqa: B023
            delays.append(loop.time() - begun)
    limit = max(ARRIVAL_SECONDS_MAX, ARRIVAL_CHANGES_MAX * statistics.median(change_seconds))
    assert statistics.median(delays) < limit


async def test_bookie_that_changes_is_noticed_by_watches_of_the_set(store: MetadataStore, other: MetadataStore) -> None:
    lease = await other.register_bookie(registration("b1"))
    async with store.watch_bookies() as watch:
        await until(watch, lambda found: "b1" in found)
        for number in range(3):
            changed = registration("b1", boot=f"boot-{number + 7}")
            await lease.update(changed)
            await until(watch, lambda found: list(found.values()) == [changed])  # noqa: B023
        await lease.release()
        await until(watch, lambda found: not found)


async def test_no_change_is_lost_over_breaks(store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy) -> None:
    """Changes while the connection is up, while it breaks, and while it is down."""
    ledger_id, version = await new_ledger(store)
    missing, _ = await new_ledger(other)
    async with store.watch_ledger(ledger_id) as watch, store.watch_ledger(missing) as watch_of_missing:
        await soon(anext(watch))
        await soon(anext(watch_of_missing))
        for number in range(12):
            if number % 3 == 1:
                proxy.cut()
            if number % 3 == 2:
                proxy.away()
            version = await other.compare_and_set_ledger(open_ledger(ledger_id, writer_token=str(number)), version)
            proxy.back()
            await until(watch, lambda found: found is not None and found.version == version)  # noqa: B023
        proxy.away()
        await other.delete_ledger(missing)
        proxy.back()
        assert await until(watch_of_missing, lambda found: found is None) is None


async def test_any_number_of_watchers_costs_one_watch(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    ledger_id, version = await new_ledger(store)
    path = records_of(store).paths.root
    async with AsyncExitStack() as stack:
        watches = [await stack.enter_async_context(store.watch_ledger(ledger_id)) for _ in range(50)]
        for watch in watches:
            await soon(anext(watch))
        armed = [watched for watched in proxy.watched if watched.startswith(path)]
        assert len(armed) == 1
        before = proxy.watched[armed[0]]
        assert before <= 3  # a load, and another because more joined meanwhile
        changed = open_ledger(ledger_id, writer_token="other")
        version = await other.compare_and_set_ledger(changed, version)
        for watch in watches:
            await until(watch, lambda found: found is not None and found.version == version)
        assert proxy.watched[armed[0]] == before + 1
    await store.read_ledger(ledger_id)  # sent after what leaving sent
    assert proxy.requests.count(FORGET_WATCHES) == 1


async def test_reads_without_a_watch_leave_none(store: MetadataStore, proxy: ZooKeeperProxy) -> None:
    ledger_id, _ = await new_ledger(store)
    await store.read_ledger(ledger_id)
    await store.list_bookies()
    assert not proxy.watched


async def test_watch_left_and_entered_again_works(store: MetadataStore, other: MetadataStore) -> None:
    ledger_id, version = await new_ledger(store)
    versions = [version]
    for number in range(5):
        async with store.watch_ledger(ledger_id) as watch:
            found = await soon(anext(watch))
            assert found is not None
            assert found.version == versions[-1]
            changed = open_ledger(ledger_id, writer_token=str(number))
            versions.append(await other.compare_and_set_ledger(changed, versions[-1]))
            await until(watch, lambda found: found is not None and found.version == versions[-1])
    assert all(later > earlier for earlier, later in pairwise(versions))


def test_the_server_under_test_is_a_real_one() -> None:
    assert shared_server().leader() == 1
