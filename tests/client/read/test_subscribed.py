"""Following by subscriptions: what readers are given of what bookies push (rule R6), and what becomes of pushes that
are lost, doubled, false or too many."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from octavo.client.options import ClientOptions
from octavo.client.read.feeds import Feeds
from octavo.metadata.store.values import Versioned
from octavo.protocol.entries import Entry, derive_secrets
from octavo.protocol.errors import (
    BookieOverloadedError,
    ClientClosedError,
    NoSuchLedgerError,
    OctavoError,
    OctavoTimeoutError,
)
from octavo.protocol.frames import frame_of
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import Op, Ping, ReadLac
from octavo.protocol.pushes import Push, PushFlag, encode_pushes
from support.clusters.pushing import Pusher
from support.clusters.reading import QUICK, Cluster, HandmadeLedger, TroubledStore, cluster_of
from support.waiting import WAIT_SECONDS, eventually, loop_turns


class Following:
    """A follower in a task of its own, and what it has got so far."""

    def __init__(self, entries: AsyncIterator[Entry]) -> None:
        self.payloads: list[bytes] = []
        self.may_take = asyncio.Event()
        self.may_take.set()
        self.task = asyncio.create_task(self._run(entries))
        self._got = asyncio.Event()

    async def _run(self, entries: AsyncIterator[Entry]) -> None:
        async for entry in entries:
            self.payloads.append(entry.payload)
            self._got.set()
            await self.may_take.wait()

    async def got(self, count: int) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while len(self.payloads) < count:
                self._got.clear()
                await self._got.wait()


class World:
    """Bookies that know subscriptions, and one ledger."""

    def __init__(self, cluster: Cluster, ledger: HandmadeLedger) -> None:
        self.cluster, self.ledger = cluster, ledger
        self.pushers = [Pusher(bookie) for bookie in cluster.bookies]

    @property
    def subscribed(self) -> list[Pusher]:
        """The bookies at which something is subscribed to."""
        return [pusher for pusher in self.pushers if pusher.subscriptions]

    async def subscribers(self, count: int = 2) -> tuple[Pusher, list[Pusher]]:
        """Wait until there are subscriptions at this many bookies: the one that brings entries, and the others."""
        await eventually(lambda: len(self.subscribed) == count)
        (bringing,) = [pusher for pusher in self.subscribed if pusher.one.credit_bytes]
        return bringing, [pusher for pusher in self.subscribed if pusher is not bringing]

    def count(self, op: Op) -> int:
        """Requests of this kind at all bookies."""
        return sum(bookie.count(op) for bookie in self.cluster.bookies)


@asynccontextmanager
async def world_of(
    count: int = 3, sizes: tuple[int, int, int] = (3, 3, 2), options: ClientOptions = QUICK
) -> AsyncIterator[World]:
    async with cluster_of(count, options) as cluster:
        yield World(cluster, await cluster.ledger(sizes))


async def test_a_follower_subscribes_at_two_of_three_bookies_and_only_one_brings_entries() -> None:
    async with world_of() as world:
        world.ledger.add_numbered(3)
        following = Following((await world.cluster.open(world.ledger)).follow(first=2))
        bringing, (other,) = await world.subscribers()
        assert bringing.one.credit_bytes
        assert other.one.credit_bytes == 0
        assert bringing.one.first == other.one.first == 2
        await loop_turns()
        assert world.count(Op.SUBSCRIBE) == 2
        assert not any(isinstance(request, ReadLac) and request.wait_milliseconds for request in _all(world))
        following.task.cancel()


def _all(world: World) -> list[object]:
    return [request for bookie in world.cluster.bookies for request in bookie.requests]


async def test_a_reader_without_a_follower_subscribes_to_nothing() -> None:
    async with world_of() as world:
        world.ledger.add_numbered(3)
        await world.cluster.open(world.ledger)
        await loop_turns()
        assert world.count(Op.SUBSCRIBE) == 0


# --- what is given (rule R6) --------------------------------------------------------------------------------------


async def test_pushed_entries_are_given_only_up_to_the_lac_that_the_writer_sealed() -> None:
    async with world_of() as world:
        reader = await world.cluster.open(world.ledger)
        following = Following(reader.follow())
        bringing, _ = await world.subscribers()
        world.ledger.add(b"a", b"b", b"c")
        bringing.push(world.ledger.sealed[:1], lac=2)
        await loop_turns()
        assert following.payloads == []
        bringing.push(world.ledger.sealed[1:], lac=2)
        await following.got(2)
        await loop_turns()
        assert following.payloads == [b"a", b"b"]
        world.ledger.say_lac()
        bringing.push(explicit=world.ledger.cluster.bookies[0].ledger(world.ledger.id).explicit, lac=2)
        await following.got(3)
        assert world.count(Op.READ) == 0
        following.task.cancel()


async def test_a_lac_told_as_a_number_is_not_believed_but_asked_about() -> None:
    async with world_of() as world:
        world.ledger.add(b"a", b"b")  # evidence of 0
        reader = await world.cluster.open(world.ledger)
        following = Following(reader.follow(first=1))
        bringing, (other,) = await world.subscribers()
        before = world.count(Op.READ_LAC)
        bringing.push(lac=1_000)
        other.push(lac=1_000)
        await eventually(lambda: world.count(Op.READ_LAC) == before + 2)
        await loop_turns()
        assert following.payloads == []
        assert reader.last_add_confirmed == 0
        following.task.cancel()


async def test_what_one_bookie_does_not_push_is_learnt_through_the_other() -> None:
    """The bookie that brings entries has lost its pushes, or hears nothing of the writer."""
    async with world_of() as world:
        following = Following((await world.cluster.open(world.ledger)).follow())
        _, (other,) = await world.subscribers()
        world.ledger.add(b"a", b"b")
        other.push(lac=0)
        await following.got(1)
        assert following.payloads == [b"a"]
        following.task.cancel()


async def test_entries_pushed_twice_or_out_of_order_are_given_once_and_in_order() -> None:
    async with world_of() as world:
        following = Following((await world.cluster.open(world.ledger)).follow())
        bringing, _ = await world.subscribers()
        world.ledger.add_numbered(6)
        sealed = world.ledger.sealed
        for part in (sealed[2:4], sealed[:3], sealed[:3], sealed[3:], sealed[1:], sealed[:2]):
            bringing.push(part)
        await following.got(5)
        await loop_turns()
        assert following.payloads == world.ledger.payloads[:5]
        following.task.cancel()


async def test_entries_of_a_gap_and_damaged_ones_are_read_from_the_bookies() -> None:
    async with world_of() as world:
        following = Following((await world.cluster.open(world.ledger)).follow())
        bringing, _ = await world.subscribers()
        world.ledger.add_numbered(6)
        sealed = world.ledger.sealed
        damaged = sealed[2][:-1] + bytes([sealed[2][-1] ^ 1])
        bringing.push([sealed[0], damaged, *sealed[3:]])
        await following.got(5)
        assert following.payloads == world.ledger.payloads[:5]
        assert world.count(Op.READ) > 0
        following.task.cancel()


@pytest.mark.parametrize("sizes", [(3, 2, 2), (4, 1, 1), (5, 3, 2)])
async def test_of_a_striped_ledger_each_bookie_brings_what_it_has(sizes: tuple[int, int, int]) -> None:
    size, write_quorum, _ = sizes
    async with world_of(size, sizes) as world:
        reader = await world.cluster.open(world.ledger, entry_wait_seconds=60.0)
        following = Following(reader.follow())
        count = min(size, size - write_quorum + 2)
        await eventually(lambda: len(world.subscribed) == count)
        assert sum(bool(pusher.one.credit_bytes) for pusher in world.subscribed) == size - write_quorum + 1
        world.ledger.add_numbered(9)
        for pusher in world.subscribed:
            held = pusher.bookie.ledger(world.ledger.id).entries
            pusher.push([held[entry_id] for entry_id in sorted(held)])
        await following.got(7)
        assert following.payloads == world.ledger.payloads[: len(following.payloads)]
        following.task.cancel()


# --- connections --------------------------------------------------------------------------------------------------


async def test_a_subscription_is_set_anew_on_a_new_connection_from_what_is_known_on() -> None:
    """Whatever was pushed on the old one and lost: the bookie says first what it knows."""
    async with world_of(1, (1, 1, 1)) as world:
        following = Following((await world.cluster.open(world.ledger)).follow())
        bringing, _ = await world.subscribers(1)
        world.ledger.add_numbered(4)
        bringing.push(world.ledger.sealed[:3])
        await following.got(2)
        await eventually(lambda: following.payloads == world.ledger.payloads[:2])
        before = len(bringing.requests)
        world.cluster.bookies[0].disconnect()
        await eventually(lambda: any(request.first == 2 for request in bringing.requests[before:]))
        bringing.push(world.ledger.sealed[2:])
        await following.got(3)
        assert following.payloads == world.ledger.payloads[:3]
        following.task.cancel()


async def test_a_bookie_that_is_gone_is_replaced_by_another_one() -> None:
    async with world_of() as world:
        following = Following((await world.cluster.open(world.ledger)).follow())
        bringing, _ = await world.subscribers()
        (third,) = [pusher for pusher in world.pushers if not pusher.subscriptions]
        await bringing.bookie.stop()
        await eventually(lambda: bool(third.subscriptions))
        assert third.one.credit_bytes
        world.ledger.add(b"a", b"b")
        third.push(world.ledger.sealed)
        await following.got(1)
        following.task.cancel()


async def test_followers_are_heard_again_whichever_bookie_comes_back_first() -> None:
    async with world_of() as world:
        following = Following((await world.cluster.open(world.ledger)).follow())
        await world.subscribers()
        (third,) = [pusher for pusher in world.pushers if not pusher.subscriptions]
        for pusher in world.pushers:
            await pusher.bookie.stop()
        world.ledger.add(b"a", b"b")
        await third.bookie.start()
        await eventually(lambda: bool(third.subscriptions))
        third.push(world.ledger.sealed, lac=0)
        await following.got(1)
        following.task.cancel()


async def test_a_bookie_that_refuses_a_subscription_is_polled_and_asked_again() -> None:
    async with world_of(1, (1, 1, 1)) as world:
        (bookie,) = world.cluster.bookies
        bookie.refuse(Op.SUBSCRIBE, BookieOverloadedError("too many", may_have_happened=False), times=1)
        following = Following((await world.cluster.open(world.ledger)).follow())
        await eventually(lambda: bookie.long_polls == 1)
        polls = bookie.count(Op.READ_LAC)
        world.ledger.add(b"a", b"b")
        await following.got(1)
        await eventually(lambda: bookie.count(Op.SUBSCRIBE) == 2)
        assert bookie.count(Op.READ_LAC) == polls, "the subscription is tried again before there is another poll"
        world.ledger.add(b"c")
        world.pushers[0].push(world.ledger.sealed[1:])
        await following.got(2)
        assert following.payloads == [b"a", b"b"]
        following.task.cancel()


async def test_a_subscription_that_the_bookie_has_ended_is_followed_by_a_poll() -> None:
    async with world_of(1, (1, 1, 1)) as world:
        following = Following((await world.cluster.open(world.ledger)).follow())
        bringing, _ = await world.subscribers(1)
        bringing.push(flags=PushFlag.ENDED)
        await eventually(lambda: bringing.bookie.long_polls == 1)
        world.ledger.add(b"a", b"b")
        await following.got(1)
        following.task.cancel()


async def test_pushes_of_unknown_numbers_are_ignored() -> None:
    async with world_of(1, (1, 1, 1)) as world:
        following = Following((await world.cluster.open(world.ledger)).follow())
        bringing, _ = await world.subscribers(1)
        world.ledger.add(b"a", b"b")
        stray = [Push(bringing.one.subscription + 1, flags, 5, None, world.ledger.sealed) for flags in range(4)]
        bringing.bookie.say(frame_of(encode_pushes(stray)))
        await loop_turns()
        assert following.payloads == []
        assert bringing.bookie.connections == 1
        following.task.cancel()


# --- the metadata -------------------------------------------------------------------------------------------------


async def test_a_term_that_is_over_makes_the_follower_read_the_metadata_until_they_tell_the_end() -> None:
    """The watch of the metadata says nothing."""
    async with world_of() as world:
        store = TroubledStore(world.cluster.store)
        world.ledger.add_numbered(3)
        following = Following((await world.cluster.open(world.ledger, store=store)).follow())
        bringing, _ = await world.subscribers()
        await following.got(2)
        before = store.reads
        bringing.push(flags=PushFlag.OVER)
        await eventually(lambda: store.reads >= before + 3)
        assert not following.task.done()
        await world.ledger.close()
        await following.task
        assert following.payloads == world.ledger.payloads


async def test_a_lost_bookie_makes_followers_read_the_metadata_which_may_name_others() -> None:
    """The watch of the metadata says nothing."""
    async with world_of(6) as world:
        store = TroubledStore(world.cluster.store)
        world.ledger.add_numbered(2)
        following = Following((await world.cluster.open(world.ledger, store=store)).follow(first=1))
        bringing, _ = await world.subscribers()
        await world.ledger.change_ensemble("b3", "b4", "b5")
        bringing.bookie.disconnect()
        await eventually(lambda: {"b3", "b4"} <= {pusher.bookie.bookie_id for pusher in world.subscribed})
        following.task.cancel()


async def test_an_ended_ledger_has_no_subscriptions_left() -> None:
    async with world_of() as world:
        world.ledger.add_numbered(3)
        following = Following((await world.cluster.open(world.ledger)).follow())
        await world.subscribers()
        await world.ledger.close()
        await following.task
        assert following.payloads == world.ledger.payloads
        await eventually(lambda: not world.subscribed)


async def test_subscriptions_move_to_the_bookies_of_a_new_ensemble() -> None:
    async with world_of(6) as world:
        world.ledger.add_numbered(2)
        following = Following((await world.cluster.open(world.ledger)).follow(first=1))
        await world.subscribers()
        await world.ledger.change_ensemble("b3", "b4", "b5")
        await eventually(lambda: [pusher.bookie.bookie_id for pusher in world.subscribed] == ["b3", "b4"])
        assert {pusher.one.first for pusher in world.subscribed} == {2}
        following.task.cancel()


async def test_a_deleted_ledger_ends_its_followers() -> None:
    async with world_of() as world:
        world.ledger.add_numbered(2)
        following = Following((await world.cluster.open(world.ledger)).follow(first=1))
        await world.subscribers()
        await world.cluster.store.delete_ledger(world.ledger.id)
        with pytest.raises(NoSuchLedgerError):
            await following.task
        await eventually(lambda: not world.subscribed)


async def test_followers_that_hear_nothing_read_the_metadata_now_and_then_and_ping_the_bookies() -> None:
    async with world_of(options=replace(QUICK, long_poll_seconds=0.05)) as world:
        store = TroubledStore(world.cluster.store)
        world.ledger.add_numbered(3)
        following = Following((await world.cluster.open(world.ledger, store=store)).follow(first=2))
        await world.subscribers()
        before = store.reads
        await eventually(lambda: store.reads >= before + 2)
        assert world.count(Op.PING) >= 2
        await world.ledger.close()
        await following.task


async def test_a_bookie_that_hangs_is_found_out_and_left() -> None:
    """Its connection stands, and nothing would ever come over it."""
    async with world_of(options=replace(QUICK, long_poll_seconds=0.05, request_timeout_seconds=0.2)) as world:
        following = Following((await world.cluster.open(world.ledger)).follow())
        bringing, _ = await world.subscribers()
        (third,) = [pusher for pusher in world.pushers if not pusher.subscriptions]
        bringing.bookie.drop(Op.PING)
        await eventually(lambda: bool(third.subscriptions))
        assert any(isinstance(request, Ping) for request in bringing.bookie.requests)
        following.task.cancel()


# --- many readers -------------------------------------------------------------------------------------------------


async def feeds_of(world: World) -> Feeds:
    cluster = world.cluster
    return Feeds(cluster.pool, cluster.options, cluster.blame, lambda: 0.5)


async def test_all_readers_of_a_client_share_the_subscriptions_of_a_ledger() -> None:
    async with world_of() as world:
        feeds = await feeds_of(world)
        readers = [await world.cluster.open(world.ledger, feeds=feeds) for _ in range(20)]
        followers = [Following(reader.follow()) for reader in readers]
        bringing, _ = await world.subscribers()
        world.ledger.add_numbered(5)
        bringing.push(world.ledger.sealed)
        for following in followers:
            await following.got(4)
            assert following.payloads == world.ledger.payloads[:4]
        assert (world.count(Op.SUBSCRIBE), world.count(Op.READ)) == (2, 0)
        for reader in readers[1:]:
            await reader.close()
        world.ledger.add_numbered(1)
        bringing.push(world.ledger.sealed[5:])
        await followers[0].got(5)
        assert len(world.subscribed) == 2
        await readers[0].close()
        await eventually(lambda: not world.subscribed)
        for following in followers:
            with pytest.raises(ClientClosedError):
                await following.task


async def test_a_reader_that_comes_later_knows_what_the_others_have_heard() -> None:
    async with world_of() as world:
        feeds = await feeds_of(world)
        late = await world.cluster.open(world.ledger, feeds=feeds)
        first = Following((await world.cluster.open(world.ledger, feeds=feeds)).follow())
        bringing, _ = await world.subscribers()
        world.ledger.add_numbered(5)
        bringing.push(world.ledger.sealed)
        await first.got(4)
        later = Following(late.follow())
        await later.got(4)
        assert later.payloads == world.ledger.payloads[:4]
        for following in (first, later):
            following.task.cancel()


async def test_a_slow_reader_uses_up_the_credit_and_delays_no_other_ledger() -> None:
    async with world_of() as world:
        feeds = await feeds_of(world)
        slow = Following((await world.cluster.open(world.ledger, feeds=feeds)).follow())
        bringing, _ = await world.subscribers()
        granted = bringing.one.credit_bytes or 0
        slow.may_take.clear()
        payload = b"x" * 50_000
        while sum(map(len, world.ledger.sealed)) <= granted:
            world.ledger.add(payload)
        bringing.push(world.ledger.sealed)
        await slow.got(1)
        await loop_turns()
        assert bringing.one.credit_bytes == granted
        slow.may_take.set()
        await slow.got(len(world.ledger.sealed) - 1)
        await eventually(lambda: (bringing.one.credit_bytes or 0) > granted)
        assert slow.payloads == world.ledger.payloads[:-1]
        slow.task.cancel()


async def test_listening_ends_while_no_reader_waits_and_begins_again() -> None:
    async with world_of(options=replace(QUICK, long_poll_seconds=0.05)) as world:
        reader = await world.cluster.open(world.ledger)
        waiting = asyncio.create_task(reader.wait_last_add_confirmed(0))
        bringing, _ = await world.subscribers()
        world.ledger.add(b"a", b"b")
        bringing.push(world.ledger.sealed)
        assert await waiting == 0
        await eventually(lambda: not world.subscribed)
        waiting = asyncio.create_task(reader.wait_last_add_confirmed(1))
        bringing, _ = await world.subscribers()
        world.ledger.say_lac()
        bringing.push(explicit=bringing.bookie.ledger(world.ledger.id).explicit)
        assert await waiting == 1


async def test_readers_with_another_password_share_nothing() -> None:
    async with world_of() as world:
        feeds = await feeds_of(world)
        term = world.ledger.versioned.value.current_term
        version = world.ledger.versioned.version
        secrets = world.ledger.secrets
        other = secrets._replace(mac_key=b"x" * 32)
        versioned = Versioned(term, version)
        assert feeds.feed(versioned, secrets) is feeds.feed(versioned, secrets)
        assert feeds.feed(versioned, secrets) is not feeds.feed(versioned, other)


class Listener:
    """A reader, as its feed sees it, that counts how often it is to read the metadata."""

    def __init__(self) -> None:
        self.metadata_wanted = 0

    def heard(self, *_: object) -> None: ...

    def brought(self, *_: object) -> None: ...

    def feed_failed(self, error: OctavoError) -> None: ...

    def read_metadata_again(self) -> None:
        self.metadata_wanted += 1


async def test_each_poll_that_brings_nothing_asks_for_the_metadata_at_once() -> None:
    """Rule V4. Nothing else would, until nothing has been heard for the time of a poll."""
    async with world_of() as world:
        stored = await world.cluster.store.read_ledger(world.ledger.id)
        feed = (await feeds_of(world)).feed(
            Versioned(stored.value.current_term, stored.version), derive_secrets(b"", world.ledger.id)
        )
        listener = Listener()
        feed.join(listener)
        for times in (1, 2, 3):
            feed.nothing_heard(BookieId("b0"), None)
            assert listener.metadata_wanted == times
        feed.nothing_heard(BookieId("b0"), OctavoTimeoutError("no answer", may_have_happened=False))
        assert listener.metadata_wanted == 4
        feed.leave(listener)
