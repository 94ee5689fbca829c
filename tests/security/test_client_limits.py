"""What one client may take of a bookie: connections, bytes, requests, new ledgers, memory for unfinished frames."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.bookie.server.clients import Clients
from octavo.bookie.server.limits import ClientLimits
from octavo.protocol.errors import BookieOverloadedError, InvalidArgumentError, ProtocolError
from octavo.protocol.frames import LENGTH
from octavo.protocol.limits import FRAME_BYTES_MAX
from octavo.protocol.messages import Added, Info, InfoAnswer, LacAnswer, Ping, Pong, ReadFlag, ReadLac, decode_hello
from octavo.security.roles import Role
from octavo.security.token_bucket import TokenBucket
from support.clusters.principals import DOCUMENTS, GUARDED, raw
from support.clusters.tls_bookies import Cluster, cluster_of
from support.raw_client import RawClient, add, key_of, seal
from support.waiting import WAIT_SECONDS, eventually, pause

MIB = 1 << 20


@asynccontextmanager
async def limited(*, guarded: bool = False, **settings: object) -> AsyncIterator[Cluster]:
    """A bookie with these settings; ``guarded``: it requires authentication."""
    chosen = {**(GUARDED if guarded else {"repair": False}), **settings}
    async with cluster_of(chosen, documents=DOCUMENTS) as cluster:
        yield cluster


def connection_to(bookie: Bookie) -> RawClient:
    host, _, port = bookie.address.rpartition(":")
    return RawClient(host, int(port))


async def refusal_of(client: RawClient) -> object:
    """The error frame that ends the connection."""
    return decode_hello(await asyncio.wait_for(client.receive(), WAIT_SECONDS))


# --- buckets ----------------------------------------------------------------------------------------------------------


def test_a_bucket_lets_a_burst_through_and_then_its_rate() -> None:
    bucket = TokenBucket(10, burst=20)
    assert bucket.take(20, now=100.0) == 0
    assert bucket.take(5, now=100.0) == 0.5
    assert bucket.take(5, now=100.5) == 0.5, "half a second has paid for the five before"
    assert bucket.take(0, now=101.0) == 0
    assert bucket.take(20, now=1000.0) == 0, "no more than the burst is saved"
    assert bucket.take(1, now=1000.0) == 0.1


def test_a_bucket_says_whether_a_token_is_there() -> None:
    bucket = TokenBucket(1, burst=2)
    assert [bucket.take_if_there(at) for at in (50.0, 50.0, 50.0, 50.9, 51.0, 51.0)] == [
        True, True, False, False, True, False,
    ]  # fmt: skip


class _Connection:
    def __init__(self) -> None:
        self.regulated = 0

    def regulate(self) -> None:
        self.regulated += 1


async def test_a_client_that_connects_again_finds_its_debts() -> None:
    clients = Clients(ClientLimits(new_ledgers_per_second=1))
    connection = _Connection()
    client = clients.enter("address a", connection)
    for _ in range(10):
        client.charge_new_ledger()
    clients.leave(client, connection)
    assert clients.count == 0
    again = clients.enter("address a", connection)
    with pytest.raises(BookieOverloadedError, match="address a begins more than 1 new ledgers per second"):
        again.charge_new_ledger()
    clients.enter("address b", _Connection()).charge_new_ledger()
    assert clients.refused == {"new_ledgers": 1}
    clients.close()


async def test_clients_that_left_are_forgotten_when_there_are_very_many() -> None:
    clients = Clients(ClientLimits())
    connection = _Connection()
    for number in range(11_000):
        clients.leave(clients.enter(f"address {number}", connection), connection)
    assert clients.remembered == 10_000
    clients.close()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("client_bytes_per_second", 1000),
        ("client_requests_per_second", 9),
        ("connections_per_client_max", -1),
        ("client_new_ledgers_per_second", "many"),
    ],
)
def test_settings_that_would_stop_a_client_are_refused(setting: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError, match=setting.replace("_", "-")):
        load_config(None, {}, {"data_dir": "/b", setting: value})


# --- connections ------------------------------------------------------------------------------------------------------


async def test_one_address_may_have_so_many_connections_where_no_client_is_known() -> None:
    async with limited(connections_per_client_max=2) as cluster, AsyncExitStack() as stack:
        (bookie,) = cluster.bookies
        first, second = [await stack.enter_async_context(connection_to(bookie)) for _ in range(2)]
        await first.greet()
        await second.greet()
        async with connection_to(bookie) as third:
            refusal = await refusal_of(third)
        assert isinstance(refusal, BookieOverloadedError)
        assert "address 127.0.0.1 has 2 connections to this bookie" in refusal.message
        assert await first.ask(Ping()) == Pong()
        second.writer.close()
        await eventually(lambda: len(bookie.service.connections) == 1)
        async with connection_to(bookie) as fourth:
            await fourth.greet()
            assert await fourth.ask(Ping()) == Pong()
        assert bookie.service.clients.refused == {"connections": 1}


async def test_each_principal_has_its_own_connections_whatever_their_address() -> None:
    async with limited(guarded=True, connections_per_client_max=2) as cluster, AsyncExitStack() as stack:
        (bookie,) = cluster.bookies
        for role in (Role.READ, Role.APPEND):
            for _ in range(2):
                client = await stack.enter_async_context(raw(bookie, role))
                assert isinstance(await client.ask(Info()), InfoAnswer)
        with pytest.raises((AssertionError, asyncio.IncompleteReadError)):
            async with raw(bookie, Role.READ):
                pass
        assert bookie.service.clients.refused == {"connections": 1}
        assert isinstance(await client.ask(Info()), InfoAnswer)


# --- rates ------------------------------------------------------------------------------------------------------------


async def test_a_client_over_its_rate_of_bytes_is_read_later_and_loses_nothing() -> None:
    async with limited(guarded=True, client_bytes_per_second=MIB) as cluster:
        (bookie,) = cluster.bookies
        async with raw(bookie, Role.APPEND) as fast, raw(bookie, Role.APPEND) as same, raw(bookie, Role.ADMIN) as other:
            ids = [fast.send(add(7, seal(7, number, [bytes(64 * 1024)]))) for number in range(20)]
            clients = bookie.service.clients
            await eventually(lambda: clients.throttled > 0)
            same_id = same.send(Ping())
            assert await other.ask(Ping()) == Pong(), "another client is served at once"
            async with asyncio.timeout(WAIT_SECONDS):
                answers = [await fast.receive_reply() for _ in ids]
                assert await same.receive_reply() == (same_id, Pong())
        assert answers == [(request_id, Added()) for request_id in ids]
        assert clients.throttled_seconds > 0


async def test_requests_that_came_in_one_piece_wait_in_their_order() -> None:
    async with limited(client_requests_per_second=50) as cluster, connection_to(cluster.bookies[0]) as client:
        await client.greet()
        ids = [client.send(Ping()) for _ in range(60)]
        async with asyncio.timeout(WAIT_SECONDS):
            assert [(await client.receive_reply())[0] for _ in ids] == ids
        assert cluster.bookies[0].service.clients.throttled_seconds > 0


async def test_a_client_that_leaves_while_it_is_throttled_leaves_nothing_behind() -> None:
    async with limited(client_requests_per_second=10) as cluster:
        (bookie,) = cluster.bookies
        async with connection_to(bookie) as client:
            await client.greet()
            for _ in range(100):
                client.send(Ping())
            await eventually(lambda: bookie.service.clients.throttled > 0)
        await eventually(lambda: not bookie.service.connections)
        assert bookie.service.clients.count == 0


# --- new ledgers ------------------------------------------------------------------------------------------------------


async def test_new_ledgers_beyond_the_limit_are_refused_and_known_ones_go_on() -> None:
    async with limited(client_new_ledgers_per_second=1) as cluster, connection_to(cluster.bookies[0]) as client:
        await client.greet()
        outcomes = [await client.ask(add(number, seal(number, 0, [b"x"]))) for number in range(12)]
        refused = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, BookieOverloadedError)]
        assert refused
        assert min(refused) >= 10, "ten seconds' worth pass at once"
        assert not any(outcomes[number].may_have_happened for number in refused)  # type: ignore[union-attr]
        fence = ReadLac(99, key_of(99), ReadFlag.FENCE, 0, None, 0, 0, 0)
        assert isinstance(await client.ask(fence), BookieOverloadedError)
        known = cluster.bookies[0].service.storage.ledgers.known_ids()
        assert known == [number for number in range(12) if number not in refused]
        assert await client.ask(add(0, seal(0, 1, [b"y"]))) == Added()
        fence = ReadLac(0, key_of(0), ReadFlag.FENCE, 0, None, 0, 0, 0)
        assert isinstance(await client.ask(fence), LacAnswer)


async def test_writers_over_the_limit_of_new_ledgers_wait_and_every_add_is_acknowledged() -> None:
    async with limited(client_new_ledgers_per_second=2) as cluster, cluster.client() as client:
        ledgers = [await client.create_ledger(1, 1, 1) for _ in range(23)]
        async with asyncio.timeout(WAIT_SECONDS):
            assert await asyncio.gather(*(ledger.add(b"entry") for ledger in ledgers)) == [0] * 23
        assert cluster.bookies[0].service.clients.refused["new_ledgers"] > 0
        for ledger in ledgers:
            await ledger.close()


# --- unfinished frames ------------------------------------------------------------------------------------------------


async def send_half(client: RawClient) -> None:
    """Half of a frame of the largest size, then a byte at a time, so that it never stalls."""
    client.writer.write(LENGTH.pack(FRAME_BYTES_MAX) + bytes(FRAME_BYTES_MAX // 2))
    while True:
        await client.writer.drain()
        await pause(0.1)
        client.writer.write(b"x")


async def test_half_frames_of_one_principal_do_not_delay_large_frames_of_another() -> None:
    async with (
        limited(guarded=True, unfinished_frame_bytes=16 * MIB) as cluster,
        AsyncExitStack() as stack,
    ):
        (bookie,) = cluster.bookies
        sending = []
        try:
            for _ in range(24):
                attacker = await stack.enter_async_context(raw(bookie, Role.READ))
                sending.append(asyncio.ensure_future(send_half(attacker)))
            await eventually(lambda: bookie.service.frames.full)
            honest = await stack.enter_async_context(raw(bookie, Role.APPEND))
            payload = bytes(3 * MIB)  # less than the share of one of two clients
            # Less than the time after which an attacking frame would be dropped because it is not complete.
            async with asyncio.timeout(40):
                for number in range(5):
                    assert await honest.ask(add(7, seal(7, number, [payload]))) == Added()
                    assert bookie.service.frames.held < 2 * 16 * MIB + 8 * MIB
            assert bookie.service.frames.full, "the attack goes on"
        finally:
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)


async def test_a_client_that_is_not_authenticated_sends_no_large_frames() -> None:
    async with limited(guarded=True) as cluster, raw(cluster.bookies[0]) as stranger:
        stranger.writer.write(LENGTH.pack(FRAME_BYTES_MAX) + bytes(100 * 1024))
        refusal = await refusal_of(stranger)
        assert isinstance(refusal, ProtocolError)
        assert "before authentication" in refusal.message
