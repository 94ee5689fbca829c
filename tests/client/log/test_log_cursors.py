"""Hundreds of consumers: their positions cost few writes, and consumers in many processes all get theirs stored."""

import asyncio
import random
from contextlib import aclosing

import pytest
from octavo.client.log.cursors import CursorKeeper, CursorState, encode_cursors, read_cursors
from octavo.client.log.names import cursors_document, list_document
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.metadata.records import Kind
from octavo.metadata.store import DOCUMENT_BYTES_MAX
from octavo.protocol.errors import InvalidArgumentError, NoSuchLogError
from support.leading import led_log
from support.log_documents import empty_log
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

    async def create_log(self) -> None:
        """The log whose cursors are stored."""
        async with open_memory_store(self.server, rng=self._rng) as store:
            await store.create_document(list_document("orders"), empty_log().encode())

    async def delete_log(self) -> None:
        """As the last steps of a deletion."""
        async with open_memory_store(self.server, rng=self._rng) as store:
            await store.delete_document(cursors_document("id-1"))
            await store.delete_document(list_document("orders"))

    async def documents(self) -> list[str]:
        async with open_memory_store(self.server, rng=self._rng) as store:
            return [name async for name in store.list_documents("")]

    def _changed(self, kind: Kind | None, key: str | None) -> None:
        self.writes += kind is Kind.DOCUMENT and key == cursors_document("id-1")

    def keeper(self, flush_seconds: float = NEVER_SECONDS) -> CursorKeeper:
        """That of a client of its own. Pauses after conflicts are a hundredth as long as usual."""
        store = open_memory_store(self.server, rng=self._rng)
        clock = iter(range(10_000, 1_000_000))
        return CursorKeeper(
            store,
            "orders",
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
    await stored.create_log()
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


async def test_a_deleted_log_gets_no_cursors_that_would_stay() -> None:
    stored = Stored()
    await stored.create_log()
    keeper = stored.keeper()
    await keeper.open("consumer", 0)
    keeper.move("consumer", 7)
    await stored.delete_log()
    with pytest.raises(NoSuchLogError):
        await keeper.open("late", 0)
    with pytest.raises(NoSuchLogError):
        await keeper.flush()
    await keeper.close()
    assert await stored.documents() == []


async def test_a_cursor_for_which_there_is_no_room_is_refused_and_the_others_go_on() -> None:
    """A document that is too large could not be written any more, and no cursor could advance."""
    stored = Stored()
    await stored.create_log()
    async with open_memory_store(stored.server, rng=random.Random(2)) as store:
        many = {f"{number:0255}": CursorState(0, 10_000) for number in range(DOCUMENT_BYTES_MAX // 310)}
        await store.create_document(cursors_document("id-1"), encode_cursors(many))
    keeper = stored.keeper()

    async def open_until_refused() -> None:
        for number in range(len(many)):
            await keeper.open(f"another-{number}-{'x' * 240}", 0)

    with pytest.raises(InvalidArgumentError, match="no room for another one"):
        await open_until_refused()
    await keeper.open("0" * 255, 0)
    for name in many:
        keeper.move(name, 2**62)
    await keeper.close()
    positions = await stored.positions()
    assert {positions[name] for name in many} == {2**62}


async def test_consumers_in_many_processes_that_store_at_once_all_succeed() -> None:
    stored = Stored()
    await stored.create_log()
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
    await stored.create_log()
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
    async with led_log(log_cursor_idle_seconds=0.2, cursor_flush_seconds=0.01) as (_, _, log, writer):
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


async def test_cursors_behind_the_end_that_do_not_move_are_idle() -> None:
    async with led_log(log_cursor_idle_seconds=0.05, cursor_flush_seconds=0.0) as (cluster, _, log, writer):
        behind, at_end = await log.cursor("behind"), await log.cursor("at-end")
        await writer.add_many([b"0", b"1"])
        await writer.roll()
        await writer.add_many([b"2", b"3"])
        await writer.roll()
        await behind.advance(1)
        await at_end.advance(4)

        async def one_is_idle() -> bool:
            return (await log.status()).idle_cursors == {"behind"}

        await eventually(one_is_idle)
        async with octavo.connect(cluster.uri) as another, another.open_log("orders") as by_default:
            assert (await by_default.status()).idle_cursors == frozenset()
