"""Subscriptions at a bookie: what is pushed, when, to whom, and what a client can take of the bookie with them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from octavo.bookie.bookie import Bookie
from octavo.bookie.server import clients as clients_module
from octavo.bookie.server.clients import Client, Clients
from octavo.bookie.server.connection import WRITE_BUFFER_BYTES_HIGH, Connection
from octavo.protocol.errors import BookieOverloadedError, NoSuchLedgerError, OctavoError, UnauthorizedError
from octavo.protocol.ids import LedgerId
from octavo.protocol.messages import (
    Add,
    Added,
    AddFlag,
    LacWritten,
    Ping,
    Pong,
    ReadFlag,
    ReadLac,
    Reply,
    Request,
    Subscribe,
    Subscribed,
    WriteLac,
    decode_reply,
)
from octavo.protocol.packs import decode_done, is_pack
from octavo.protocol.places import place
from octavo.protocol.pushes import (
    CAPABILITY_SUBSCRIPTIONS,
    PUSHES_PER_FRAME_MAX,
    Push,
    PushFlag,
    are_pushes,
    decode_pushes,
)
from support.clusters.memory_bookies import bookie_on, connected
from support.disks.faulty_filesystem import MemoryFileSystem
from support.raw_client import RawClient, add, key_of, seal, seal_lac
from support.waiting import eventually

MUCH = 1 << 20


@pytest.fixture
async def bookie() -> AsyncIterator[Bookie]:
    async with bookie_on(MemoryFileSystem()) as running:
        yield running


@pytest.fixture
async def client(bookie: Bookie) -> AsyncIterator[RawClient]:
    async with connected(bookie) as client:
        yield client


def client_of(bookie: Bookie) -> Client:
    """The one client of the bookie, to which all connections of this host belong."""
    (client,) = {one.client for one in bookie.service.connections if isinstance(one, Connection)}
    assert client is not None
    return client


class Subscriber:
    """A client that tells pushes from answers."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.frames: list[list[Push]] = []
        """Frames of pushes that have arrived and were not looked at."""

    async def ask(self, request: Request) -> Reply | OctavoError:
        """A request and its answer; pushes that arrive meanwhile are kept."""
        request_id = self.client.send(request)
        while True:
            values = await self.client.receive()
            if are_pushes(values):
                self.frames.append(decode_pushes(values))
                continue
            answered, outcome = decode_reply(values)
            assert answered == request_id
            return outcome

    async def subscribe(self, ledger_id: int, *, number: int = 1, first: int = 0, credit: int | None = MUCH) -> None:
        assert await self.ask(Subscribe(number, ledger_id, b"", 0, first, credit)) == Subscribed()

    async def frame(self) -> list[Push]:
        """The next frame of pushes."""
        if not self.frames:
            values = await self.client.receive()
            assert are_pushes(values), values
            self.frames.append(decode_pushes(values))
        return self.frames.pop(0)

    async def push(self) -> Push:
        """The next push, alone in its frame."""
        (push,) = await self.frame()
        return push

    async def nothing(self) -> None:
        """Nothing is pushed for what has happened so far."""
        assert await self.ask(Ping()) == Pong()
        await asyncio.sleep(0)
        assert await self.ask(Ping()) == Pong()
        assert not self.frames


@pytest.fixture
async def follower(bookie: Bookie) -> AsyncIterator[Subscriber]:
    async with connected(bookie) as client:
        yield Subscriber(client)


async def test_a_bookie_says_that_it_knows_subscriptions(bookie: Bookie) -> None:
    host, _, port = bookie.address.rpartition(":")
    async with RawClient(host, int(port)) as client:
        assert CAPABILITY_SUBSCRIPTIONS in (await client.greet()).capabilities


async def test_entries_are_pushed_once_as_soon_as_they_are_held(client: RawClient, follower: Subscriber) -> None:
    await follower.subscribe(7, number=31)
    await follower.nothing()
    first, second = seal(7, 0, [b"a"]), seal(7, 1, [b"b", b"c"], lac=0)
    await client.ask(add(7, first))
    assert await follower.push() == Push(31, PushFlag.NONE, None, None, first)
    await client.ask(add(7, second))
    assert await follower.push() == Push(31, PushFlag.NONE, 0, None, second)
    await follower.nothing()


async def test_what_the_bookie_knows_already_is_pushed_first_from_the_entry_that_is_wanted_on(
    client: RawClient, follower: Subscriber
) -> None:
    entries = seal(7, 0, [b"a", b"b", b"c"], lac=None)
    await client.ask(add(7, entries))
    await client.ask(WriteLac(7, key_of(7), 0, seal_lac(7, 2)))
    await follower.subscribe(7, first=2)
    assert await follower.push() == Push(1, PushFlag.NONE, 2, seal_lac(7, 2), entries[2:])
    await follower.subscribe(8, number=2)
    await follower.nothing()


async def test_an_explicit_lac_is_pushed_once(client: RawClient, follower: Subscriber) -> None:
    entries = seal(7, 0, [b"a"])
    await client.ask(add(7, entries))
    await follower.subscribe(7, first=1)
    await follower.nothing()
    assert await client.ask(WriteLac(7, key_of(7), 0, seal_lac(7, 0))) == LacWritten()
    assert await follower.push() == Push(1, PushFlag.NONE, 0, seal_lac(7, 0), [])
    await client.ask(WriteLac(7, key_of(7), 0, seal_lac(7, 0)))
    await follower.nothing()


async def test_entries_that_are_no_longer_in_memory_are_pushed_from_disk(bookie: Bookie, client: RawClient) -> None:
    entries = seal(7, 0, [b"a", b"b", b"c"])
    await client.ask(add(7, entries))
    await bookie.service.storage.checkpoint()
    async with connected(bookie) as another:
        follower = Subscriber(another)
        await follower.subscribe(7, first=1)
        assert await follower.push() == Push(1, PushFlag.NONE, None, None, entries[1:])


async def test_a_fence_of_the_term_that_is_followed_is_pushed_and_no_entry_of_a_later_one(
    client: RawClient, follower: Subscriber
) -> None:
    await follower.ask(Subscribe(1, 7, b"", 2, place(2, 0), MUCH))
    await client.ask(ReadLac(7, key_of(7), ReadFlag.FENCE, 1, None, 0, 0, 0))
    await follower.nothing()
    later = seal(7, place(3, 0), [b"later"])
    await client.ask(Add(7, key_of(7), AddFlag.NONE, 3, later))
    await follower.nothing()
    await client.ask(ReadLac(7, key_of(7), ReadFlag.FENCE, 2, None, 0, 0, 0))
    assert await follower.push() == Push(1, PushFlag.OVER, None, None, [])


async def test_all_ledgers_that_move_in_a_turn_share_a_frame(client: RawClient, follower: Subscriber) -> None:
    for number in range(1, 11):
        await follower.subscribe(100 + number, number=number)
    await client.ask_pack(*(add(100 + number, seal(100 + number, 0, [b"x"])) for number in range(1, 11)))
    assert [push.subscription for push in await follower.frame()] == list(range(1, 11))


# --- credit -------------------------------------------------------------------------------------------------------


async def test_entries_beyond_the_credit_wait_for_more_and_the_lac_is_told_meanwhile(
    client: RawClient, follower: Subscriber
) -> None:
    entries = [*seal(7, 0, [b"x" * 100]), *seal(7, 1, [b"x" * 100], lac=0), *seal(7, 2, [b"x" * 100], lac=1)]
    await follower.subscribe(7, credit=len(entries[0]) + 1)
    await client.ask(add(7, entries[:1]))
    assert await follower.push() == Push(1, PushFlag.NONE, None, None, entries[:1])
    await client.ask(add(7, entries[1:2]))
    assert await follower.push() == Push(1, PushFlag.NONE, 0, None, entries[1:2])  # the last one may exceed it
    await client.ask(add(7, entries[2:]))
    assert await follower.push() == Push(1, PushFlag.NONE, 1, None, [])
    await follower.subscribe(7, credit=MUCH)
    assert await follower.push() == Push(1, PushFlag.NONE, 1, None, entries[2:])


async def test_a_subscription_without_credit_gets_hints_a_little_later_however_much_happens(
    client: RawClient, follower: Subscriber
) -> None:
    await follower.subscribe(7, credit=0)
    await client.ask(add(7, seal(7, 0, [b"a"])))
    for entry_id in range(1, 30):
        assert await client.ask(add(7, seal(7, entry_id, [b"a"], lac=entry_id - 1))) == Added()
    lacs = [(await follower.push()).lac]
    while lacs[-1] != 28:
        lacs.append((await follower.push()).lac)
    assert len(lacs) < 15
    await follower.nothing()


async def test_a_client_that_does_not_read_holds_no_more_than_its_socket_and_gets_everything_later(
    bookie: Bookie, client: RawClient
) -> None:
    async with connected(bookie) as slow:
        follower = Subscriber(slow)
        await follower.subscribe(7, credit=1 << 40)
        slow.pause_reading()
        payload, count = b"x" * (1 << 20), 60
        (connection,) = [
            one
            for one in bookie.service.connections
            if one.peer.endswith(f":{slow.writer.get_extra_info('sockname')[1]}")
        ]
        held = 0
        for entry_id in range(count):
            assert await client.ask(add(7, seal(7, entry_id, [payload]))) == Added()
            held = max(held, connection.unsent_bytes)
        assert held <= 2 * WRITE_BUFFER_BYTES_HIGH
        assert bookie.service.answers.budget.held <= 4 * WRITE_BUFFER_BYTES_HIGH
        slow.resume_reading()
        got = 0
        while got < count:
            got += len((await follower.push()).entries)
        assert got == count


# --- the end ------------------------------------------------------------------------------------------------------


async def test_an_ended_subscription_and_one_of_a_lost_connection_leave_nothing_behind(
    bookie: Bookie, client: RawClient
) -> None:
    ledger = bookie.service.storage.ledgers.get(7)
    async with connected(bookie) as another:
        follower = Subscriber(another)
        await follower.subscribe(7, number=1)
        await follower.subscribe(7, number=2)
        assert len(ledger.followers or ()) == 2
        await follower.subscribe(7, number=1, credit=None)
        await follower.subscribe(7, number=99, credit=None)
        await client.ask(add(7, seal(7, 0, [b"a"])))
        assert (await follower.push()).subscription == 2
    await eventually(lambda: ledger.followers is None)
    assert client_of(bookie).subscriptions == 0


async def test_the_number_of_a_subscription_can_be_used_for_another_ledger(
    client: RawClient, follower: Subscriber
) -> None:
    await follower.subscribe(7)
    await follower.subscribe(8)
    await client.ask(add(7, seal(7, 0, [b"a"])))
    await follower.nothing()
    eight = seal(8, 0, [b"a"])
    await client.ask(add(8, eight))
    assert (await follower.push()).entries == eight


async def test_a_deleted_ledger_ends_its_subscriptions_and_refuses_new_ones(
    bookie: Bookie, client: RawClient, follower: Subscriber
) -> None:
    await client.ask(add(7, seal(7, 0, [b"a"])))
    await follower.subscribe(7, first=1)
    await bookie.service.storage.writer.delete(LedgerId(7))
    assert await follower.push() == Push(1, PushFlag.ENDED, None, None, [])
    assert isinstance(await follower.ask(Subscribe(2, 7, b"", 0, 0, MUCH)), NoSuchLedgerError)


async def test_a_ledger_that_becomes_private_is_pushed_only_to_those_with_its_key(
    client: RawClient, follower: Subscriber
) -> None:
    await follower.subscribe(7, number=1)
    assert await follower.ask(Subscribe(2, 7, key_of(7), 0, 0, MUCH)) == Subscribed()
    entries = seal(7, 0, [b"secret"])
    assert await client.ask(Add(7, key_of(7), AddFlag.PRIVATE, 0, entries)) == Added()
    pushes = {push.subscription: push for push in await follower.frame()}
    assert pushes == {
        1: Push(1, PushFlag.ENDED, None, None, []),
        2: Push(2, PushFlag.NONE, None, None, entries),
    }
    assert isinstance(await follower.ask(Subscribe(3, 7, b"", 0, 0, MUCH)), UnauthorizedError)


# --- limits -------------------------------------------------------------------------------------------------------


class _Connection:
    def regulate(self) -> None:
        """Nothing to read."""


async def test_a_client_may_have_so_many_subscriptions_over_all_its_connections() -> None:
    clients = Clients()
    client = clients.enter("principal p", _Connection())
    for _ in range(clients_module.SUBSCRIPTIONS_MAX):
        client.begin_subscription()
    with pytest.raises(BookieOverloadedError, match="principal p has 65536 subscriptions"):
        client.begin_subscription()
    assert clients.refused["subscriptions"] == 1
    client.end_subscriptions(1)
    client.begin_subscription()
    clients.close()


async def test_a_hostile_client_with_too_many_subscriptions_is_refused_and_others_are_served(
    bookie: Bookie, client: RawClient
) -> None:
    """Subscriptions of invented ledgers, all in packs. Of the first ones only the count is taken: that saves the test
    half a minute."""
    refused, counted = 0, 60_000
    async with connected(bookie) as hostile:
        one = client_of(bookie)
        for _ in range(counted):
            one.begin_subscription()
        for first in range(counted, 70_000, 1000):
            numbers = range(first, first + 1000)
            outcomes = await hostile.ask_pack(*(Subscribe(n, 1_000_000 + n, b"", 0, 0, MUCH) for n in numbers))
            refused += sum(isinstance(outcome, BookieOverloadedError) for outcome in outcomes)
            assert await client.ask(Ping()) == Pong()
        assert refused == 70_000 - clients_module.SUBSCRIPTIONS_MAX
        one.end_subscriptions(counted)
        assert await client.ask(add(7, seal(7, 0, [b"a"]))) == Added()
    await eventually(lambda: one.subscriptions == 0)


async def test_a_frame_of_hints_holds_so_many(client: RawClient, follower: Subscriber) -> None:
    count = PUSHES_PER_FRAME_MAX + 100
    for first in range(0, count, 500):
        numbers = range(first, min(first + 500, count))
        follower.client.send_pack(*(Subscribe(n, 1000 + n, b"", 0, 0, 0) for n in numbers))
    await _until_answered(follower, count)
    for first in range(0, count, 500):
        numbers = range(first, min(first + 500, count))
        assert not any(await client.ask_pack(*(add(1000 + n, seal(1000 + n, 0, [b"x"])) for n in numbers)))
        assert not any(
            await client.ask_pack(*(WriteLac(1000 + n, key_of(1000 + n), 0, seal_lac(1000 + n, 0)) for n in numbers))
        )
    told: dict[int, int | None] = {}
    while len(told) < count or None in told.values():
        frame = await follower.frame()
        assert len(frame) <= PUSHES_PER_FRAME_MAX
        told.update({push.subscription: push.lac for push in frame})
    assert set(told.values()) == {0}


async def _until_answered(follower: Subscriber, count: int) -> None:
    answered = 0
    while answered < count:
        values: list[Any] = await follower.client.receive()
        if is_pack(values):
            answered += sum(last - first + 1 for first, last in decode_done(values))
        else:
            follower.frames.append(decode_pushes(values))
