"""Hundreds of consumers: their positions cost few writes, and consumers in many processes all get theirs stored."""

import asyncio
import random
from contextlib import aclosing

from octavo.client.log.cursors import CursorKeeper, read_cursors
from octavo.client.log.names import cursors_document
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.metadata.records import Kind
from support.reading import cluster_of
from support.waiting import eventually

import octavo

CONSUMERS = 300

PROCESSES = 120
"""More than a keeper makes attempts: without pauses some of them would not get through."""

NEVER_SECONDS = 3600.0


class Stored:
    """A metadata store that counts how often the cursors are written."""

    def __init__(self) -> None:
        self._rng = random.Random(1)
        self.server = MemoryServer("cursors", rng=self._rng)
        self.writes = 0
        self.server.add_listener(self._changed)

    def _changed(self, kind: Kind | None, key: str | None) -> None:
        self.writes += kind is Kind.DOCUMENT and key == cursors_document("id-1")

    def keeper(self, flush_seconds: float = NEVER_SECONDS) -> CursorKeeper:
        """That of a client of its own. Pauses after conflicts are a hundredth as long as usual."""
        store = open_memory_store(self.server, rng=self._rng)
        clock = iter(range(10_000, 1_000_000))
        return CursorKeeper(
            store,
            "id-1",
            lambda: next(clock),
            flush_seconds,
            uniform=lambda low, high: self._rng.uniform(low, high) / 100,
        )

    async def positions(self) -> dict[str, int]:
        async with open_memory_store(self.server, rng=self._rng) as store:
            return {name: cursor.position for name, cursor in (await read_cursors(store, "id-1")).items()}


async def test_the_cursors_of_a_client_are_stored_together() -> None:
    stored = Stored()
    keeper = stored.keeper()
    for number in range(CONSUMERS):
        await keeper.open(f"consumer-{number}", 0)
    made = stored.writes
    for position in range(1, 11):
        for number in range(CONSUMERS):
            keeper.move(f"consumer-{number}", number + position)
    await keeper.close()
    assert stored.writes == made + 1
    assert await stored.positions() == {f"consumer-{number}": number + 10 for number in range(CONSUMERS)}


async def test_consumers_in_many_processes_that_store_at_once_all_succeed() -> None:
    stored = Stored()
    keepers = [stored.keeper() for _ in range(PROCESSES)]
    await keepers[0].open("shared", 0)
    for number, keeper in enumerate(keepers):
        keeper.move(f"consumer-{number}", number)
        keeper.move("shared", number)
    await asyncio.gather(*(keeper.close() for keeper in keepers))
    expected = {f"consumer-{number}": number for number in range(PROCESSES)}
    assert await stored.positions() == expected | {"shared": PROCESSES - 1}


async def test_positions_that_could_not_be_stored_go_with_the_next_write() -> None:
    stored = Stored()
    keeper = stored.keeper()
    await keeper.open("billing", 0)
    keeper.move("billing", 7)
    storing = asyncio.ensure_future(keeper.flush())
    await asyncio.sleep(0)
    storing.cancel()
    await asyncio.wait([storing])
    keeper.move("mail", 3)
    await keeper.close()
    assert await stored.positions() == {"billing": 7, "mail": 3}


async def test_a_consumer_that_follows_is_not_idle_although_nothing_comes_and_it_does_not_advance() -> None:
    async with (
        cluster_of() as cluster,
        octavo.connect(cluster.uri, log_cursor_idle_seconds=0.2, cursor_flush_seconds=0.01) as client,
        client.create_log("orders") as log,
        log.lead() as writer,
    ):
        await writer.add(b"0")
        cursor = await log.cursor("billing")
        async with aclosing(cursor.follow()) as entries:
            await anext(entries)
            made = (await log.cursors())["billing"]

            async def touched_twice() -> bool:
                return (await log.cursors())["billing"].touched_at_ms >= made.touched_at_ms + 75

            waiting = asyncio.ensure_future(anext(entries))
            await eventually(touched_twice)
            assert (await log.cursors())["billing"].position == 0
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
