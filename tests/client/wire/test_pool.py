import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from octavo.client.options import ClientOptions
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata import Cookie, MetadataStore
from octavo.protocol.errors import BookieUnavailableError, ClientClosedError, MetadataUnavailableError
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import Ping, Pong
from support.clusters.fake_bookie import FakeBookie
from support.metadata.interposed_store import InterposedStore
from support.waiting import WAIT_SECONDS


@pytest.fixture
async def bookie(store: MetadataStore) -> AsyncIterator[FakeBookie]:
    async with FakeBookie("b1", cluster_id=await store.cluster_id()) as bookie:
        yield bookie


@pytest.fixture
async def pool(store: MetadataStore) -> AsyncIterator[ConnectionPool]:
    pool = await pool_on(store)
    yield pool
    await pool.close()


async def pool_on(store: MetadataStore) -> ConnectionPool:
    # Back-off so long that only a report of the metadata can end it.
    options = ClientOptions(reconnect_delay_seconds_min=1000, reconnect_delay_seconds_max=1000)
    return ConnectionPool(store, cluster_id=await store.cluster_id(), options=options, rng=random.Random(0))


async def test_a_bookie_is_reached_where_it_is_registered_over_one_connection(
    store: MetadataStore, bookie: FakeBookie, pool: ConnectionPool
) -> None:
    await store.register_bookie(bookie.registration())
    asks = [pool.get(BookieId("b1")).request(Ping(), timeout_seconds=10) for _ in range(5)]
    assert await asyncio.gather(*asks) == [Pong()] * 5
    assert bookie.connections_made == 1


async def test_a_bookie_that_lost_its_registration_is_tried_at_its_cookies_address(
    store: MetadataStore, bookie: FakeBookie, pool: ConnectionPool
) -> None:
    await store.create_cookie(Cookie(bookie_id=BookieId("b1"), generation=1, address=bookie.address))
    assert await pool.get(BookieId("b1")).request(Ping(), timeout_seconds=10) == Pong()


async def test_a_bookie_that_the_cluster_does_not_know_is_named(pool: ConnectionPool) -> None:
    with pytest.raises(BookieUnavailableError, match="stranger is not known") as caught:
        await pool.get(BookieId("stranger")).request(Ping(), timeout_seconds=10)
    assert not caught.value.may_have_happened


async def test_a_bookie_that_registers_is_connected_to_without_waiting_for_the_back_off(
    store: MetadataStore, bookie: FakeBookie, pool: ConnectionPool
) -> None:
    connection = pool.get(BookieId("b1"))
    up = asyncio.Event()
    connection.add_state_listener(lambda it: up.set() if it.connected else None)
    with pytest.raises(BookieUnavailableError):
        await connection.wait_writable(timeout_seconds=10)
    await store.register_bookie(bookie.registration())
    await asyncio.wait_for(up.wait(), WAIT_SECONDS)


async def test_while_the_metadata_do_not_answer_the_last_known_address_is_used(
    store: MetadataStore, bookie: FakeBookie
) -> None:
    options = ClientOptions(reconnect_delay_seconds_min=0.001, reconnect_delay_seconds_max=0.01)
    interposed = InterposedStore(store)
    pool = ConnectionPool(interposed.face, cluster_id=await store.cluster_id(), options=options, rng=random.Random(0))
    await store.register_bookie(bookie.registration())
    connection = pool.get(BookieId("b1"))
    await connection.request(Ping(), timeout_seconds=10)
    async with asyncio.timeout(WAIT_SECONDS):
        while pool.registrations() is None:  # noqa: ASYNC110 - the watch tells only the pool
            await asyncio.sleep(0)
    asked, up = asyncio.Event(), asyncio.Event()

    async def unavailable() -> Any:
        asked.set()
        raise MetadataUnavailableError("no answer")

    interposed.interpose("list_bookies", unavailable)
    connection.add_state_listener(lambda it: up.set() if it.connected else None)
    bookie.disconnect()
    await asyncio.wait_for(up.wait(), WAIT_SECONDS)
    assert asked.is_set()
    await pool.close()


async def test_request_ids_are_never_given_twice(pool: ConnectionPool) -> None:
    ids = [pool.next_request_id() for _ in range(100)]
    assert len(set(ids)) == 100
    assert min(ids) == 1


async def test_closing_ends_every_connection_and_fails_later_requests(
    store: MetadataStore, bookie: FakeBookie, pool: ConnectionPool
) -> None:
    await store.register_bookie(bookie.registration())
    connection = pool.get(BookieId("b1"))
    await connection.request(Ping(), timeout_seconds=10)
    await asyncio.gather(pool.close(), pool.close())
    await bookie.until(lambda: bookie.connections == 0)
    with pytest.raises(ClientClosedError):
        await connection.request(Ping(), timeout_seconds=10)
    with pytest.raises(ClientClosedError):
        pool.get(BookieId("b2"))


async def test_the_pool_outlives_its_store(store: MetadataStore, bookie: FakeBookie, pool: ConnectionPool) -> None:
    await store.register_bookie(bookie.registration())
    connection = pool.get(BookieId("b1"))
    await connection.request(Ping(), timeout_seconds=10)
    await store.close()
    assert await connection.request(Ping(), timeout_seconds=10) == Pong()


async def test_bookies_that_failed_together_are_not_all_chosen_again_at_the_same_moment(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, seconds = asyncio.get_running_loop(), ClientOptions().bookie_quarantine_seconds
    began = loop.time()
    left = []
    for share in (0.0, 0.99, 1.25, 1.51):
        now = began + share * seconds
        # Nothing is awaited while the clock is another one.
        with monkeypatch.context() as clock:
            clock.setattr(loop, "time", lambda now=now: now)
            if not share:
                for number in range(30):
                    pool.put_in_quarantine(BookieId(f"b{number}"))
            left.append(len(pool.quarantined()))
    assert left[:2] == [30, 30]
    assert 0 < left[2] < 30
    assert left[3] == 0
