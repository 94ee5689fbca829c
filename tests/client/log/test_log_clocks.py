"""Retention by age where clocks are wrong (rules P8 and P19): leaders, stores and both layouts, with real documents."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from octavo.client.client import Client
from octavo.client.log.documents.chain import LogDocument
from octavo.client.log.documents.names import ages_document, list_document
from octavo.client.log.documents.stream import decode_any_log
from octavo.client.options import ClientOptions
from octavo.metadata.clocks.proven_time import BootTime
from octavo.metadata.ledger.model import LedgerState
from octavo.protocol.errors import NoSuchLogError
from support.clusters.log_cluster import QUICK, LogCluster, open_log_cluster
from support.metadata.interposed_store import InterposedStore
from support.metadata.metadata_clusters import MemoryCluster
from support.waiting import eventually

import octavo

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
UNSET = datetime(1970, 1, 1, tzinfo=UTC) - NOON
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
YEAR = timedelta(days=365)
RIGHT = timedelta()
OLDER_THAN_AN_HOUR = octavo.Retention(seconds=3600)

both_layouts = pytest.mark.parametrize("layout", ["chain", "stream"])


@dataclass
class World:
    """A cluster whose time is that of the test: ``passed`` since noon. Clocks are off by what the test says."""

    logs: LogCluster
    passed: timedelta = RIGHT
    store_off: timedelta = RIGHT
    _clients: int = 0

    async def client(self, host: str, off: list[timedelta], **options: Any) -> octavo.Client:
        """A client on a host whose clock is off by ``off[0]`` at present."""
        store = InterposedStore(await self.logs.metadata.open())

        async def time_ms() -> int:
            return int((NOON + self.passed + self.store_off).timestamp() * 1000)

        store.interpose("time_ms", time_ms)
        self._clients += 1
        client = Client(
            store.face,
            cluster_id=self.logs.cluster_id,
            options=ClientOptions(**(QUICK | options)),
            rng=random.Random(self._clients),
            wall_clock=lambda: NOON + self.passed + off[0],
            boot_clock=lambda: BootTime(host, int(self.passed.total_seconds() * 1000) + 1000),
        )
        return await self.logs.stack.enter_async_context(client)

    async def lead_for(self, log: octavo.Log, minutes: int, *, add: bool = True) -> None:
        """Lead the log for a while: entries in three segments first, and a round of retention each minute."""
        async with log.take_over() as writer:
            for _ in range(3 * add):
                await writer.add_many([b"x"] * 5)
                await writer.roll()
            for _ in range(minutes):
                await log.retain()
                self.passed += timedelta(minutes=1)
            await log.retain()


@asynccontextmanager
async def world_of(layout: str) -> AsyncIterator[World]:
    async with open_log_cluster(MemoryCluster(Path()), layout) as logs:
        yield World(logs)


async def create(world: World, off: list[timedelta], retention: octavo.Retention, **options: Any) -> octavo.Log:
    client = await world.client("a", off, **options)
    layout: Any = world.logs.layout
    return await client.create_log("orders", layout=layout, retention=retention)


async def another(world: World, off: list[timedelta], host: str = "b", **options: Any) -> octavo.Log:
    return await (await world.client(host, off, **options)).open_log("orders")


class Case(NamedTuple):
    """By how much clocks are off: the first leader's, and later, when it was set; the next leader's; the store's."""

    first: timedelta = RIGHT
    stepped: timedelta = RIGHT
    following: timedelta = RIGHT
    store: timedelta = RIGHT
    store_later: timedelta = RIGHT


CASES = {
    "right": Case(),
    "first in 1970": Case(first=UNSET, stepped=UNSET),
    "first in 1970, then set": Case(first=UNSET),
    "next in 1970": Case(following=UNSET),
    "first behind": Case(first=-DAY, stepped=-DAY),
    "first behind, then set": Case(first=-DAY),
    "first ahead": Case(first=YEAR, stepped=YEAR),
    "first ahead, then set": Case(first=YEAR),
    "first set ahead, next ahead": Case(stepped=YEAR, following=YEAR),
    "store set ahead": Case(store_later=YEAR),
    "store in 1970, then set": Case(store=UNSET),
    "store set back": Case(store_later=-DAY),
    "first and store in 1970, then set": Case(first=UNSET, stepped=UNSET, store=UNSET),
}


@both_layouts
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_entries_that_are_minutes_old_stay_and_go_when_they_are_an_hour_old(layout: str, case: Case) -> None:
    async with world_of(layout) as world:
        off = [case.first]
        world.store_off = case.store
        log = await create(world, off, OLDER_THAN_AN_HOUR)
        await world.lead_for(log, 5)
        off[0], world.store_off = case.stepped, case.store_later
        await world.lead_for(log, 5)
        later = await another(world, [case.following])
        await world.lead_for(later, 10)
        assert later.first_position == 0
        assert (await later.status()).drops_below == 0
        await world.lead_for(later, 62, add=False)
        assert later.first_position >= 30, "one wrong clock must not end retention"


@both_layouts
async def test_a_leader_that_leads_for_moments_leaves_nothing_by_which_its_entries_look_old(layout: str) -> None:
    """It never looked at the ages. Its clock is in 1970, as those of its entries are."""
    async with world_of(layout) as world:
        log = await create(world, [UNSET], OLDER_THAN_AN_HOUR)
        async with log.lead() as writer:
            for _ in range(4):
                await writer.add_many([b"x"] * 5)
                await writer.roll()
        later = await another(world, [RIGHT])
        await world.lead_for(later, 5, add=False)
        assert later.first_position == 0


@both_layouts
async def test_a_retention_that_is_set_later_knows_the_ages_of_what_was_rolled_before(layout: str) -> None:
    async with world_of(layout) as world:
        log = await create(world, [UNSET], octavo.Retention())
        await world.lead_for(log, 90)
        await world.lead_for(log, 5)
        await log.set_retention(OLDER_THAN_AN_HOUR)
        await log.retain()
        assert 10 <= log.first_position <= 15


@both_layouts
async def test_logs_of_older_versions_are_as_old_as_their_entries_tell(layout: str) -> None:
    async with world_of(layout) as world:
        client = await world.client("a", [RIGHT])
        stored_as: Any = layout
        log = await client.create_log("orders", layout=stored_as)
        async with log.lead() as writer:
            for _ in range(3):
                await writer.add_many([b"x"] * 5)
                await writer.roll()
                await eventually(partial(rolled_segments_are_closed, world), "what was rolled is closed")
                world.passed += HOUR
        await client.close()  # its upkeep may be about to store ages
        await forget_ages(world, log)
        later = await another(world, [RIGHT])
        await later.set_retention(octavo.Retention(seconds=2.5 * 3600))
        await later.retain()
        assert later.first_position == 5


async def rolled_segments_are_closed(world: World) -> bool:
    """A roll of a chain returns while the segment before is being closed, and its end bears the time of that."""
    store = world.logs.store
    found = await store.read_document(list_document("orders"))
    assert found is not None
    document = decode_any_log(found.value, "orders")
    rolled = document.segments[:-1] if isinstance(document, LogDocument) else ()
    ledgers = [(await store.read_ledger(segment.ledger_id)).value for segment in rolled]
    return all(ledger.state is LedgerState.CLOSED for ledger in ledgers)


async def forget_ages(world: World, log: octavo.Log) -> None:
    """What an older version would have left: no ages, and no word that they are counted."""
    store = world.logs.store
    await store.delete_document(ages_document(log.log_id))
    found = await store.read_document(list_document("orders"))
    assert found is not None
    document = decode_any_log(found.value, "orders")
    assert document.counts_ages
    older = type(document)(**{name: getattr(document, name) for name in document.__slots__} | {"counts_ages": False})
    await store.compare_and_set_document(list_document("orders"), older.encode(), found.version)


@both_layouts
async def test_damaged_ages_are_counted_anew(layout: str, caplog: pytest.LogCaptureFixture) -> None:
    async with world_of(layout) as world:
        log = await create(world, [RIGHT], OLDER_THAN_AN_HOUR)
        await world.lead_for(log, 5)
        await world.logs.store.put_document(ages_document(log.log_id), b"{}", (await stored_ages(world, log)).version)
        later = await another(world, [RIGHT])
        await world.lead_for(later, 57, add=False)
        assert later.first_position == 0
        assert "ages are counted anew" in caplog.text
        await world.lead_for(later, 5, add=False)
        assert later.first_position > 0


async def stored_ages(world: World, log: octavo.Log) -> Any:
    found = await world.logs.store.read_document(ages_document(log.log_id))
    assert found is not None
    return found


@both_layouts
async def test_a_consumer_whose_clock_is_behind_is_not_idle_and_one_that_died_is(layout: str) -> None:
    async with world_of(layout) as world:
        options: dict[str, Any] = {"log_cursor_idle_seconds": 7200.0}
        log = await create(world, [RIGHT], octavo.Retention(seconds=60, cursors=True), **options)
        async with log.lead() as writer:
            await writer.add_many([b"x"] * 5)
        consumer = await another(world, [UNSET], host="c", **options)
        cursor = await consumer.cursor("billing")
        await cursor.advance(2)
        await cursor.flush()
        for _ in range(6):
            await world.lead_for(log, 30)
            await cursor.advance(cursor.position)
            await cursor.flush()
        assert log.first_position <= 2, "the consumer is alive"
        assert (await log.status()).idle_cursors == frozenset()
        await world.lead_for(log, 122)
        assert (await log.status()).idle_cursors == {"billing"}
        assert log.first_position > 5


@both_layouts
async def test_clients_say_that_clocks_disagree(layout: str, caplog: pytest.LogCaptureFixture) -> None:
    async with world_of(layout) as world:
        off = [RIGHT]
        client = await world.client("a", off)
        kind: Any = layout
        log = await client.create_log("orders", layout=kind, retention=OLDER_THAN_AN_HOUR)
        await world.lead_for(log, 3)
        assert client.metrics()["octavo_client_clock_ahead_seconds"] == 0
        assert (await log.status()).clocks == ""
        assert "clock" not in caplog.text
        off[0] = -DAY
        await world.lead_for(log, 10)
        assert client.metrics()["octavo_client_clock_ahead_seconds"] == -86_400
        told = [record for record in caplog.records if "behind the clock of the metadata store" in record.message]
        assert 1 <= len(told) <= 2, "once by the leader and once by the handle, not each minute"
        asked = await another(world, [RIGHT])
        assert (await asked.status()).clocks == (
            "the clock of the client is 86,400 s behind the clock of the metadata store"
        )
        off[0] = RIGHT
        await world.lead_for(log, 3)
        assert client.metrics()["octavo_client_clock_ahead_seconds"] == 0
        assert (await asked.status()).clocks.startswith("a clock was set: ")
        await world.lead_for(log, 60 * 25, add=False)
        assert (await asked.status()).clocks == ""


@both_layouts
async def test_two_clients_that_count_at_once_do_not_take_each_others_time(layout: str) -> None:
    async with world_of(layout) as world:
        log = await create(world, [RIGHT], OLDER_THAN_AN_HOUR)
        other = await another(world, [YEAR])
        await world.lead_for(log, 0)
        for _ in range(60):
            await other.retain()
            await log.retain()
            assert log.first_position == 0
            world.passed += timedelta(minutes=1)
        world.passed += timedelta(minutes=1)
        await log.retain()
        assert log.first_position > 0


@both_layouts
@pytest.mark.parametrize("off", [timedelta(hours=2), YEAR])
async def test_a_client_that_looked_before_knows_how_long_another_ones_time_is_ago(layout: str, off: timedelta) -> None:
    """Its own clock is ahead of the other client's, and the store's is set forward: by both of them, hours have
    passed since the other client counted."""
    async with world_of(layout) as world:
        log = await create(world, [RIGHT], OLDER_THAN_AN_HOUR)
        other = await another(world, [off])
        await other.retain()
        await world.lead_for(log, 100, add=False)
        await world.lead_for(log, 1)
        world.store_off = YEAR
        world.passed += timedelta(minutes=1)
        await other.retain()
        assert log.first_position == other.first_position == 0
        for _ in range(62):
            world.passed += timedelta(minutes=1)
            await other.retain()
        assert other.first_position > 0


@both_layouts
async def test_a_deleted_log_leaves_no_ages_and_none_are_made_for_it(layout: str) -> None:
    async with world_of(layout) as world:
        log = await create(world, [RIGHT], OLDER_THAN_AN_HOUR)
        await world.lead_for(log, 1)
        await stored_ages(world, log)
        other = await world.client("b", [RIGHT])
        await other.delete_log("orders")
        with pytest.raises(NoSuchLogError):
            await log.retain()
        assert [name async for name in world.logs.store.list_documents()] == []


@both_layouts
async def test_what_another_retention_would_drop_is_proved_by_the_same_clocks(layout: str) -> None:
    async with world_of(layout) as world:
        log = await create(world, [RIGHT], octavo.Retention())
        async with log.take_over() as writer:
            for _ in range(3):
                await writer.add_many([b"x"] * 5)
                await writer.roll()
            for _ in range(60):
                assert await log.would_drop(OLDER_THAN_AN_HOUR) == 0
                world.passed += timedelta(minutes=1)
            world.passed += timedelta(minutes=10)
            dropped = await log.would_drop(OLDER_THAN_AN_HOUR)
            assert dropped > 0
            assert await log.would_drop(octavo.Retention()) == 0
            assert await log.would_drop(octavo.Retention(bytes=5)) > 0
            assert log.first_position == 0
            await log.set_retention(OLDER_THAN_AN_HOUR)
            assert await log.retain() == dropped
