"""A writer whose callers choose the ids, on bookies in memory that speak the real wire."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from octavo.metadata import BeginRecovery, update_ledger
from octavo.protocol.messages import Op
from support.clusters.reading import Cluster, cluster_of
from support.waiting import WAIT_SECONDS

import octavo

QUICK: dict[str, Any] = {
    "reconnect_delay_seconds_min": 0.001,
    "reconnect_delay_seconds_max": 0.005,
    "close_timeout_seconds": 20.0,
    "explicit_lac_delay_seconds": 0.001,
}


@contextlib.asynccontextmanager
async def connected(**options: Any) -> AsyncIterator[tuple[Cluster, octavo.Client]]:
    async with cluster_of(3) as cluster, octavo.connect(cluster.uri, **(QUICK | options)) as client:
        yield cluster, client


async def contents(client: octavo.Client, ledger_id: int) -> list[bytes]:
    async with client.open_ledger(ledger_id) as reader:
        return [entry.payload async for entry in reader]


@pytest.mark.parametrize("window", [1, 7, 10_000])
async def test_many_tasks_in_any_order_make_one_ordinary_ledger(window: int) -> None:
    async with connected(window_entries=window) as (_, client):
        async with client.create_ledger(ids="explicit") as ledger:
            assert isinstance(ledger, octavo.ExplicitIdWriter)

            async def add(entry_id: int) -> None:
                while True:
                    try:
                        assert await ledger.add(b"%d" % entry_id, entry_id=entry_id) == entry_id
                    except octavo.WouldBlock:
                        await asyncio.sleep(0)
                    else:
                        return

            ids = list(range(100))
            random.Random(window).shuffle(ids)
            async with asyncio.timeout(WAIT_SECONDS):
                await asyncio.gather(*map(add, ids))
            assert (ledger.first_missing, ledger.last_add_confirmed, ledger.length) == (100, 99, 190)
        assert await contents(client, ledger.id) == [b"%d" % number for number in range(100)]


async def test_nothing_above_a_gap_reaches_a_bookie_before_the_gap_is_filled() -> None:
    """Rule W12."""
    async with connected() as (cluster, client), client.create_ledger(ids="explicit") as ledger:
        early = ledger.add_nowait(b"two", entry_id=2)
        assert await ledger.add(b"zero", entry_id=0) == 0
        await ledger.flush()
        assert all(set(bookie.ledger(ledger.id).entries) <= {0} for bookie in cluster.bookies)
        assert (ledger.first_missing, ledger.last_add_pushed, early.done()) == (1, 0, False)
        assert await ledger.add(b"one", entry_id=1) == 1
        assert await early == 2
        assert ledger.last_add_pushed == 2


async def test_an_id_is_added_once_and_the_first_one_stands() -> None:
    async with connected() as (_, client):
        async with client.create_ledger(ids="explicit") as ledger:
            held = ledger.add_nowait(b"held", entry_id=1)
            await ledger.add(b"first", entry_id=0)
            await held
            for entry_id in (0, 1):
                with pytest.raises(octavo.DuplicateEntryError, match=f"entry {entry_id} has been added") as raised:
                    await ledger.add(b"second", entry_id=entry_id)
                assert not raised.value.may_have_happened
        assert await contents(client, ledger.id) == [b"first", b"held"]


async def test_an_id_too_far_ahead_is_refused_naming_the_missing_one() -> None:
    async with connected(window_entries=10) as (_, client), client.create_ledger(ids="explicit") as ledger:
        await ledger.add(b"x", entry_id=0)
        with pytest.raises(octavo.WouldBlock, match="entry 11 is too far above the lowest missing entry 1"):
            await ledger.add(b"x", entry_id=11)


async def test_the_missing_id_waits_for_room_or_says_that_there_is_none() -> None:
    async with connected(window_entries=2) as (cluster, client), client.create_ledger(ids="explicit") as ledger:
        for bookie in cluster.bookies:
            bookie.hold(Op.ADD)
        adds = [asyncio.ensure_future(ledger.add(b"x", entry_id=entry_id)) for entry_id in range(5)]
        await asyncio.sleep(0)
        with pytest.raises(octavo.WouldBlock, match="window"):
            ledger.add_nowait(b"x", entry_id=5)
        assert ledger.first_missing == 5, "a refused add has not been taken"
        for bookie in cluster.bookies:
            bookie.release(Op.ADD)
        assert await asyncio.gather(*adds) == list(range(5))


@pytest.mark.parametrize("entry_id", [-1, 2**63, 1.0, True, "1", None])
async def test_what_is_no_id_is_refused(entry_id: Any) -> None:
    async with connected() as (_, client), client.create_ledger(ids="explicit") as ledger:
        with pytest.raises(octavo.InvalidArgumentError, match="an entry id is an integer"):
            await ledger.add(b"x", entry_id=entry_id)


async def test_how_ids_are_made_is_one_of_two_ways() -> None:
    async with connected() as (_, client):
        wrong: Any = "random"
        with pytest.raises(octavo.InvalidArgumentError, match="'sequential' or 'explicit', not 'random'"):
            client.create_ledger(ids=wrong)


async def test_closing_with_a_gap_fails_what_was_held_as_not_happened_and_keeps_the_rest() -> None:
    async with connected() as (_, client):
        ledger = await client.create_ledger(ids="explicit")
        await ledger.add(b"kept", entry_id=0)
        held = [ledger.add_nowait(b"x", entry_id=entry_id) for entry_id in range(9, 2, -1)]
        with pytest.raises(
            octavo.LedgerClosedError, match="before entry 1 was added; entries 3, 4, 5, 6, 7 and 2 more above it"
        ):
            await ledger.close()
        for add in held:
            with pytest.raises(octavo.LedgerClosedError) as raised:
                await add
            assert not raised.value.may_have_happened
        assert ledger.closed
        with pytest.raises(octavo.LedgerClosedError):
            await ledger.add(b"x", entry_id=1)
        assert await contents(client, ledger.id) == [b"kept"]


async def test_leaving_the_block_on_an_exception_does_not_mask_it() -> None:
    async def write(client: octavo.Client) -> None:
        async with client.create_ledger(ids="explicit") as ledger:
            ledger.add_nowait(b"x", entry_id=7)
            raise ZeroDivisionError

    async with connected() as (_, client):
        with pytest.raises(ZeroDivisionError):
            await write(client)
        (ledger_id,) = [ledger_id async for ledger_id in client.list_ledgers()]
        assert await contents(client, ledger_id) == []


async def test_closing_the_client_closes_the_ledger_and_tells_of_the_gap() -> None:
    async with cluster_of(3) as cluster:
        client = await octavo.connect(cluster.uri, **QUICK)
        ledger = await client.create_ledger(ids="explicit")
        await ledger.add(b"kept", entry_id=0)
        held = ledger.add_nowait(b"x", entry_id=2)
        with pytest.raises(octavo.LedgerClosedError, match="entry 2 above it did not happen"):
            await client.close()
        with pytest.raises(octavo.LedgerClosedError):
            await held
        async with octavo.connect(cluster.uri) as other:
            assert (await other.ledger_metadata(ledger.id)).last_entry_id == 0


async def test_when_the_writer_is_fenced_what_is_held_did_not_happen() -> None:
    async with connected() as (cluster, client):
        ledger = await client.create_ledger(ids="explicit")
        await ledger.add(b"kept", entry_id=0)
        held = ledger.add_nowait(b"x", entry_id=2)
        await update_ledger(cluster.store, ledger.id, BeginRecovery(), writer_token="other")
        with pytest.raises(octavo.LedgerFencedError) as raised:
            async with asyncio.timeout(WAIT_SECONDS):
                await held
        assert not raised.value.may_have_happened
        with pytest.raises(octavo.LedgerFencedError):
            await ledger.add(b"x", entry_id=1)
        with pytest.raises(octavo.LedgerFencedError):
            await ledger.close()


async def test_a_cancelled_add_is_added_all_the_same() -> None:
    async with connected() as (_, client):
        async with client.create_ledger(ids="explicit") as ledger:
            waiting = asyncio.ensure_future(ledger.add(b"one", entry_id=1))
            await asyncio.sleep(0)
            waiting.cancel()
            assert await ledger.add(b"zero", entry_id=0) == 0
        assert await contents(client, ledger.id) == [b"zero", b"one"]
