"""Hundreds of consumers: their positions cost few writes, and consumers in many processes all get theirs stored, also
when the store fails for a while (rule P15)."""

import asyncio
import random
from contextlib import aclosing
from pathlib import Path

import pytest
from octavo.client.log.cursors.keeper import CursorKeeper
from octavo.client.log.cursors.reading import read_cursors
from octavo.client.log.cursors.states import CursorCell
from octavo.client.log.documents.cursors import CursorsDocument, CursorState, encode_cursors
from octavo.client.log.documents.names import cursors_document, list_document
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.metadata.store.documents import DOCUMENT_BYTES_MAX
from octavo.metadata.store.driver import Kind
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.errors import (
    CursorDeletedError,
    InvalidArgumentError,
    MetadataUnavailableError,
    NoSuchLogError,
)
from support.clusters.leading import led_log
from support.clusters.log_cluster import collect, open_log_cluster
from support.metadata.interposed_store import InterposedStore
from support.metadata.log_documents import empty_log
from support.metadata.metadata_clusters import MemoryCluster
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
        self.failures = 0
        """Of the keepers."""
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

    def _failed(self) -> None:
        self.failures += 1

    def _changed(self, kind: Kind | None, key: str | None) -> None:
        self.writes += kind is Kind.DOCUMENT and key == cursors_document("id-1")

    def store(self) -> MetadataStore:
        """A handle."""
        return open_memory_store(self.server, rng=self._rng)

    def keeper(self, flush_seconds: float = NEVER_SECONDS, *, store: MetadataStore | None = None) -> CursorKeeper:
        """That of a client of its own. Pauses after conflicts and failures are a hundredth as long as usual."""
        clock = iter(range(10_000, 1_000_000))
        return CursorKeeper(
            store or self.store(),
            "orders",
            "id-1",
            lambda: next(clock),
            flush_seconds,
            uniform=lambda low, high: self._rng.uniform(low, high) / 100,
            on_failure=self._failed,
        )

    async def positions(self) -> dict[str, int]:
        async with open_memory_store(self.server, rng=self._rng) as store:
            return {name: cursor.position for name, cursor in (await read_cursors(store, "id-1")).items()}


async def beginning() -> int:
    """Of the log: nothing of it is truncated."""
    return 0


async def opened(keeper: CursorKeeper, *names: str) -> list[CursorCell]:
    return [await keeper.open(name, beginning) for name in names]


async def close(keeper: CursorKeeper) -> None:
    await keeper.flush()
    await keeper.stop()


async def test_the_cursors_of_a_client_are_stored_together() -> None:
    stored = Stored()
    await stored.create_log()
    keeper = stored.keeper()
    cells = await opened(keeper, *(f"consumer-{number}" for number in range(CONSUMERS)))
    made = stored.writes
    for position in range(1, 11):
        for number, cell in enumerate(cells):
            keeper.advance(cell, number + position)
    await close(keeper)
    assert stored.writes == made + 1
    assert await stored.positions() == {f"consumer-{number}": number + 10 for number in range(CONSUMERS)}


async def test_a_deleted_log_gets_no_cursors_that_would_stay() -> None:
    stored = Stored()
    await stored.create_log()
    keeper = stored.keeper()
    (cell,) = await opened(keeper, "consumer")
    keeper.advance(cell, 7)
    await stored.delete_log()
    with pytest.raises(NoSuchLogError):
        await keeper.open("late", beginning)
    with pytest.raises(NoSuchLogError):
        await keeper.flush()
    with pytest.raises(NoSuchLogError):
        keeper.advance(cell, 8)
    await close(keeper)
    assert await stored.documents() == []


async def test_a_cursor_for_which_there_is_no_room_is_refused_and_the_others_go_on() -> None:
    """A document that is too large could not be written any more, and no cursor could advance."""
    stored = Stored()
    await stored.create_log()
    many = {f"{number:0255}": CursorState(0, 10_000) for number in range(DOCUMENT_BYTES_MAX // 310)}
    async with stored.store() as store:
        await store.create_document(cursors_document("id-1"), encode_cursors(CursorsDocument(many)))
    keeper = stored.keeper()

    async def open_until_refused() -> None:
        for number in range(len(many)):
            await keeper.open(f"another-{number}-{'x' * 240}", beginning)

    with pytest.raises(InvalidArgumentError, match="no room for another one"):
        await open_until_refused()
    some = list(many)[::100]
    for cell in await opened(keeper, *some):
        keeper.advance(cell, 2**62)
    await close(keeper)
    positions = await stored.positions()
    assert {positions[name] for name in some} == {2**62}
    assert (
        len(encode_cursors(CursorsDocument(dict.fromkeys(positions, CursorState(2**62, 2**42))))) < DOCUMENT_BYTES_MAX
    )


async def test_consumers_in_many_processes_that_store_at_once_all_succeed() -> None:
    stored = Stored()
    await stored.create_log()
    keepers = [stored.keeper() for _ in range(PROCESSES)]
    for number, keeper in enumerate(keepers):
        own, shared = await opened(keeper, f"consumer-{number}", "shared")
        keeper.advance(own, number)
        keeper.advance(shared, number)
    await asyncio.gather(*(close(keeper) for keeper in keepers))
    expected = {f"consumer-{number}": number for number in range(PROCESSES)}
    assert await stored.positions() == expected | {"shared": PROCESSES - 1}


async def test_positions_that_could_not_be_stored_go_with_the_next_write() -> None:
    stored = Stored()
    await stored.create_log()
    keeper = stored.keeper()
    billing, mail = await opened(keeper, "billing", "mail")
    keeper.advance(billing, 7)
    storing = asyncio.ensure_future(keeper.flush())
    await asyncio.sleep(0)
    storing.cancel()
    await asyncio.wait([storing])
    keeper.advance(mail, 3)
    await close(keeper)
    assert await stored.positions() == {"billing": 7, "mail": 3}


# --- a store that fails -----------------------------------------------------------------------------------------------


async def test_what_could_not_be_stored_in_the_background_is_stored_once_the_store_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stored = Stored()
    await stored.create_log()
    interposed = InterposedStore(stored.store())
    keeper = stored.keeper(0.0, store=interposed.face)
    (cell,) = await opened(keeper, "billing")
    interposed.make_unavailable("read_document")
    keeper.advance(cell, 7)
    await eventually(lambda: stored.failures >= 3)
    # A consumer is not stopped by it, and its touches count.
    keeper.advance(cell, 8)
    keeper.touch(cell)
    interposed.restore()
    await eventually(lambda: not keeper.is_moved)
    await keeper.flush()
    assert await stored.positions() == {"billing": 8}
    assert [record.levelname for record in caplog.records if "positions of cursors" in record.message] == ["WARNING"]
    # And so is what is touched afterwards, for as long as the client lives.
    before = stored.writes
    keeper.touch(cell)
    await eventually(lambda: stored.writes > before)
    await close(keeper)


async def test_a_flush_tells_that_it_fails_and_what_it_was_to_store_is_stored_later() -> None:
    stored = Stored()
    await stored.create_log()
    interposed = InterposedStore(stored.store())
    keeper = stored.keeper(0.0, store=interposed.face)
    (cell,) = await opened(keeper, "billing")
    interposed.make_unavailable("put_document")
    keeper.advance(cell, 7)
    for _ in range(2):
        with pytest.raises(MetadataUnavailableError):
            await keeper.flush()
    interposed.restore()

    async def is_stored() -> bool:
        return await stored.positions() == {"billing": 7}

    await eventually(is_stored)
    await close(keeper)


async def test_a_program_that_cancels_all_tasks_does_not_end_the_storing_of_cursors() -> None:
    stored = Stored()
    await stored.create_log()
    interposed = InterposedStore(stored.store())
    keeper = stored.keeper(0.0, store=interposed.face)
    (cell,) = await opened(keeper, "billing")
    begun = asyncio.Event()

    async def never_put(*_arguments: object) -> object:
        begun.set()
        return await asyncio.Event().wait()

    interposed.interpose("put_document", never_put)
    keeper.advance(cell, 7)
    await begun.wait()
    interposed.restore()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()

    async def is_stored() -> bool:
        return await stored.positions() == {"billing": 7}

    await eventually(is_stored)
    await close(keeper)


async def test_a_flush_returns_after_the_write_that_is_under_way() -> None:
    stored = Stored()
    await stored.create_log()
    interposed = InterposedStore(stored.store())
    keeper = stored.keeper(0.0, store=interposed.face)
    (cell,) = await opened(keeper, "billing")
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(*arguments: object) -> object:
        begun.set()
        await go_on.wait()
        return await interposed.real.put_document(*arguments)  # type: ignore[arg-type]

    interposed.interpose("put_document", slowly)
    keeper.advance(cell, 7)
    await begun.wait()
    flushing = asyncio.ensure_future(keeper.flush())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not flushing.done()
    go_on.set()
    await flushing
    assert await stored.positions() == {"billing": 7}
    await close(keeper)


# --- cursors that are deleted -----------------------------------------------------------------------------------------


async def test_a_write_that_is_under_way_does_not_undo_a_deletion() -> None:
    stored = Stored()
    await stored.create_log()
    interposed = InterposedStore(stored.store())
    keeper = stored.keeper(0.0, store=interposed.face)
    (cell,) = await opened(keeper, "billing")
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(*arguments: object) -> object:
        begun.set()
        await go_on.wait()
        return await interposed.real.put_document(*arguments)  # type: ignore[arg-type]

    interposed.interpose("put_document", slowly)
    keeper.advance(cell, 7)
    await begun.wait()
    deleting = asyncio.ensure_future(keeper.delete(cell))
    await asyncio.sleep(0)
    keeper.touch(cell)
    go_on.set()
    await deleting
    keeper.touch(cell)
    with pytest.raises(CursorDeletedError, match="billing of log orders has been deleted"):
        keeper.advance(cell, 8)
    await close(keeper)
    assert await stored.positions() == {}


async def test_a_cursor_that_another_client_has_deleted_is_not_made_again_by_what_moves() -> None:
    stored = Stored()
    await stored.create_log()
    keeper, another = stored.keeper(), stored.keeper()
    billing, mail = await opened(keeper, "billing", "mail")
    keeper.advance(billing, 7)
    keeper.advance(mail, 3)
    await another.delete((await opened(another, "billing"))[0])
    await keeper.flush()
    with pytest.raises(CursorDeletedError):
        billing.check()
    with pytest.raises(CursorDeletedError):
        keeper.advance(billing, 8)
    assert await stored.positions() == {"mail": 3}
    (again,) = await opened(keeper, "billing")
    assert again.position == 0
    keeper.advance(again, 2)
    await close(keeper)
    await close(another)
    assert await stored.positions() == {"mail": 3, "billing": 2}


async def test_a_cursor_that_was_deleted_elsewhere_and_is_opened_again_is_a_new_one() -> None:
    stored = Stored()
    await stored.create_log()
    keeper, another = stored.keeper(), stored.keeper()
    (old,) = await opened(keeper, "billing")
    keeper.advance(old, 7)
    await another.delete((await opened(another, "billing"))[0])
    (new,) = await opened(keeper, "billing")
    assert new.position == 0
    with pytest.raises(CursorDeletedError):
        keeper.advance(old, 8)
    await close(keeper)
    await close(another)
    assert await stored.positions() == {"billing": 0}


# --- consumers --------------------------------------------------------------------------------------------------------


async def test_consumers_of_one_client_that_share_a_cursor_take_nothing_back() -> None:
    async with led_log() as (_, client, log, writer):
        await writer.add_many([b"x"] * 20)
        first, second = await log.cursor("shared"), await log.cursor("shared")
        await first.advance(15)
        assert second.position == 15
        await second.advance(7)  # it was not told more than 0 before
        assert (await log.cursor("shared")).position == 15
        async with client.open_log("orders") as another:
            assert (await another.cursor("shared")).position == 15
        await first.flush()
        assert (await log.cursors())["shared"].position == 15


async def test_a_follower_that_is_alive_takes_nothing_back() -> None:
    async with led_log(log_cursor_idle_seconds=0.01, cursor_flush_seconds=0.0) as (_, _, log, writer):
        await writer.add_many([b"x"] * 20)
        follower, other = await log.cursor("shared"), await log.cursor("shared")
        async with aclosing(follower.follow()) as entries:
            await anext(entries)
            await other.advance(15)
            await other.flush()
            made = (await log.cursors())["shared"]

            async def is_touched() -> bool:
                return (await log.cursors())["shared"].touched_at_ms > made.touched_at_ms

            await eventually(is_touched)
            assert (await log.cursors())["shared"].position == 15


@pytest.mark.parametrize("layout", ["stream", "chain"])
async def test_what_moves_while_an_advance_asks_for_the_end_is_not_taken_back(layout: str) -> None:
    async with open_log_cluster(MemoryCluster(Path()), layout) as logs:
        writer = await (await logs.log()).lead()
        client, store = await logs.interposed_client()
        log = await client.open_log("orders")
        cursor = await log.cursor("billing")
        await writer.add_many([b"x"] * 20)
        await collect(await (await logs.client()).open_log("orders"), 0, 20)  # the bookies have heard of all
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(name: str) -> object:
            if name == list_document("orders"):
                asked.set()
                await go_on.wait()
            return await store.real.read_document(name)

        store.interpose("read_document", slowly)
        slow = asyncio.ensure_future(cursor.advance(10))  # has to ask: the handle knows of no entry
        await asked.wait()
        store.restore()
        await cursor.advance(15)
        go_on.set()
        with pytest.raises(InvalidArgumentError, match="stands at 15 and does not go back to 10"):
            await slow
        await cursor.flush()
        assert (await log.cursors())["billing"].position == cursor.position == 15


async def test_a_handle_that_is_closed_while_the_store_is_away_says_so_and_its_client_goes_on_trying() -> None:
    async with open_log_cluster(MemoryCluster(Path()), "stream") as logs:
        log = await logs.log()
        async with log.lead() as writer:
            await writer.add_many([b"x"] * 20)
        client, store = await logs.interposed_client()
        handle = await client.open_log("orders")
        cursor = await handle.cursor("billing")
        store.make_unavailable("put_document")
        await cursor.advance(10)
        with pytest.raises(MetadataUnavailableError):
            await handle.close()
        with pytest.raises(octavo.ClientClosedError):
            await cursor.advance(11)
        async with client.open_log("orders") as again:
            assert (await again.cursor("billing")).position == 10
            store.restore()

            async def is_stored() -> bool:
                return (await log.cursors())["billing"].position == 10

            await eventually(is_stored)
        assert client.metrics()["octavo_client_cursor_stores_failed_total"] >= 1


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
