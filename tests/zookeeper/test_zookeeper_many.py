"""Ten thousand ledgers: made, listed in pages, deleted."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from octavo.metadata.store.driver import LIST_PAGE_RECORDS, Kind
from octavo.protocol.ids import LedgerId
from support.metadata.metadata_clusters import new_ledger
from support.metadata.zookeeper import Opener, records_of

LEDGERS = 10_000
AT_ONCE = 200


async def all_of[T](items: Iterable[T], work: Callable[[T], Awaitable[Any]]) -> None:
    remaining = iter(items)

    async def worker() -> None:
        for item in remaining:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())


async def test_ten_thousand_ledgers_are_created_listed_and_deleted(open_store: Opener, uri: str) -> None:
    one, two = await open_store(uri, lease_seconds=10.0), await open_store(uri, lease_seconds=10.0)
    made: list[LedgerId] = []

    async def create(number: int) -> None:
        store = one if number % 2 else two
        made.append((await new_ledger(store, token=f"{number:032x}"))[0])

    await all_of(range(LEDGERS), create)
    assert len(set(made)) == LEDGERS
    assert [ledger_id async for ledger_id in one.list_ledgers()] == sorted(made)
    records = records_of(one)
    middle = f"{sorted(made)[LEDGERS // 2]:019d}"
    page = await records.list_keys(Kind.LEDGER, prefix="", after=middle, limit=LIST_PAGE_RECORDS)
    assert [int(key) for key in page] == sorted(made)[LEDGERS // 2 + 1 :][:LIST_PAGE_RECORDS]

    kept = set(made[::1000])
    await all_of([ledger_id for ledger_id in made if ledger_id not in kept], one.delete_ledger)
    assert [ledger_id async for ledger_id in two.list_ledgers()] == sorted(kept)
    await all_of(kept, two.delete_ledger)
    assert [ledger_id async for ledger_id in one.list_ledgers()] == []
    assert await one.allocate_ledger_id() not in made
