"""Following a ledger while it is written: which bookies are polled, what ends it, what it costs."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from octavo.protocol.entries import Entry
from octavo.protocol.errors import BookieStorageError, ClientClosedError, NoSuchLedgerError
from octavo.protocol.limits import LONG_POLL_SECONDS_MAX
from octavo.protocol.messages import Op, ReadLac
from support.clusters.reading import QUICK, Cluster, TroubledStore, cluster_of
from support.waiting import WAIT_SECONDS, eventually, loop_turns, pause


class Following:
    """A follower in a task of its own, and what it has got so far."""

    def __init__(self, entries: AsyncIterator[Entry]) -> None:
        self.payloads: list[bytes] = []
        self.task = asyncio.create_task(self._run(entries))
        self._got = asyncio.Event()

    async def _run(self, entries: AsyncIterator[Entry]) -> None:
        async for entry in entries:
            self.payloads.append(entry.payload)
            self._got.set()

    async def got(self, count: int) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while len(self.payloads) < count:
                self._got.clear()
                await self._got.wait()


async def polls(cluster: Cluster, count: int) -> None:
    """Wait until that many long polls wait at the bookies."""
    await eventually(lambda: sum(bookie.long_polls for bookie in cluster.bookies) >= count)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 3, 2), (3, 2, 2), (5, 2, 1)])
async def test_follower_gets_every_entry_once_confirmed_and_ends_when_the_ledger_is_closed(
    sizes: tuple[int, int, int],
) -> None:
    async with cluster_of(sizes[0]) as cluster:
        ledger = await cluster.ledger(sizes)
        ledger.add_numbered(10)
        reader = await cluster.open(ledger)
        following = Following(reader.follow())
        for _ in range(5):
            ledger.add_numbered(7)
            ledger.say_lac()
            await following.got(len(ledger.payloads))
        ledger.add_numbered(3)
        await ledger.close()
        await following.task
        assert following.payloads == ledger.payloads
        assert reader.ledger_closed


async def test_unconfirmed_entries_are_not_given() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        reader = await cluster.open(ledger)
        following = Following(reader.follow())
        await polls(cluster, 2)
        ledger.add(b"a", b"b", b"c")
        await following.got(2)
        assert following.payloads == [b"a", b"b"]


async def test_following_can_begin_above_the_end() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(2)
        reader = await cluster.open(ledger)
        following = Following(reader.follow(first=4))
        await polls(cluster, 2)
        ledger.add_numbered(4)
        await ledger.close()
        await following.task
        assert following.payloads == ledger.payloads[4:]


async def test_new_entries_come_along_with_the_answer_to_the_poll() -> None:
    async with cluster_of(1) as cluster:
        ledger = await cluster.ledger((1, 1, 1))
        reader = await cluster.open(ledger)
        following = Following(reader.follow())
        for _ in range(5):
            await polls(cluster, 1)
            ledger.add_numbered(4)
            ledger.say_lac()
            await following.got(len(ledger.payloads))
        assert following.payloads == ledger.payloads
        assert cluster.bookies[0].count(Op.READ) == 0
        following.task.cancel()


@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 2, 2), (5, 3, 1), (4, 1, 1)])
async def test_adds_that_come_one_by_one_need_no_read(
    sizes: tuple[int, int, int],
) -> None:
    """Also in a striped ledger: the bookie with the next entry sends it, whatever the other bookies answered before."""
    async with cluster_of(sizes[0]) as cluster:
        ledger = await cluster.ledger(sizes)
        ledger.add_numbered(1)
        ledger.say_lac()
        reader = await cluster.open(ledger, entry_wait_seconds=60.0)
        following = Following(reader.follow(first=1))
        before = sum(bookie.count(Op.READ) for bookie in cluster.bookies)
        for _ in range(2 * sizes[0]):
            await polls(cluster, min(sizes[0], sizes[0] - sizes[1] + 2))
            ledger.add_numbered(1)
            for bookie in reversed(cluster.bookies):
                ledger.say_lac(bookie.bookie_id)
                await loop_turns(20)
            await following.got(len(ledger.payloads) - 1)
        assert following.payloads == ledger.payloads[1:]
        assert sum(bookie.count(Op.READ) for bookie in cluster.bookies) == before
        following.task.cancel()


async def test_a_higher_lac_without_the_entry_is_followed_by_a_read_of_it() -> None:
    """The bookie that would bring the entry has not heard of it."""
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        reader = await cluster.open(ledger)
        following = Following(reader.follow())
        await polls(cluster, 2)
        (bringer,) = [
            bookie
            for bookie in cluster.bookies
            if any(isinstance(request, ReadLac) and request.entries_max for request in bookie.requests)
        ]
        (other,) = [bookie for bookie in cluster.bookies if bookie.long_polls and bookie is not bringer]
        ledger.add_numbered(1)
        ledger.say_lac(other.bookie_id)
        await following.got(1)
        assert bringer.long_polls == 1
        following.task.cancel()


async def test_two_of_three_replicas_are_polled_and_only_one_sends_entries() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(3)
        reader = await cluster.open(ledger)
        following = Following(reader.follow(first=2))
        await polls(cluster, 2)
        asked = [
            request
            for bookie in cluster.bookies
            for request in bookie.requests
            if isinstance(request, ReadLac) and request.wait_milliseconds
        ]
        assert len(asked) == 2
        assert sorted(bool(request.entries_max) for request in asked) == [False, True]
        assert {request.above for request in asked} == {1}
        following.task.cancel()


async def test_idle_follower_asks_nothing_while_its_polls_wait() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        reader = await cluster.open(ledger)
        following = Following(reader.follow())
        await polls(cluster, 2)
        before = [len(bookie.requests) for bookie in cluster.bookies]
        await loop_turns()
        assert [len(bookie.requests) for bookie in cluster.bookies] == before
        following.task.cancel()


async def test_no_bookie_is_polled_while_no_caller_waits() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(5)
        reader = await cluster.open(ledger)
        await reader.read(0, 3)
        await loop_turns()
        assert not any(bookie.long_polls for bookie in cluster.bookies)


async def test_poll_whose_time_is_over_is_asked_again() -> None:
    async with cluster_of(1, replace(QUICK, long_poll_seconds=0.001)) as cluster:
        ledger = await cluster.ledger((1, 1, 1))
        reader = await cluster.open(ledger)
        following = Following(reader.follow())
        await polls(cluster, 1)
        await pause(0.002)  # so that the poll counts as held to its end
        cluster.bookies[0].end_long_polls()
        await polls(cluster, 1)
        ledger.add(b"a", b"b")
        await following.got(1)
        following.task.cancel()


async def test_dead_or_silent_bookies_delay_no_reader() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(3)
        reader = await cluster.open(ledger)
        cluster.bookies[0].drop(Op.READ_LAC)
        following = Following(reader.follow())
        await polls(cluster, 1)
        await cluster.bookies[2].stop()
        ledger.add_numbered(3)
        await following.got(5)
        assert following.payloads == ledger.payloads[:5]
        following.task.cancel()


async def test_bookie_that_refuses_polls_is_replaced_by_another() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(3)
        reader = await cluster.open(ledger)
        cluster.bookies[0].refuse(Op.READ_LAC, BookieStorageError("disk on fire"))
        following = Following(reader.follow())
        await cluster.bookies[2].until(lambda: cluster.bookies[2].long_polls == 1)
        assert cluster.bookies[1].long_polls == 1
        following.task.cancel()


async def test_fenced_ledger_is_not_polled_in_a_hot_loop() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(3)
        reader = await cluster.open(ledger)
        for bookie in cluster.bookies:
            bookie.fence(ledger.id)
        following = Following(reader.follow())
        await loop_turns()  # a hot loop polls a hundred times in these turns
        assert sum(bookie.count(Op.READ_LAC) for bookie in cluster.bookies) < 20
        await ledger.close()
        await following.task
        assert following.payloads == ledger.payloads


async def test_follower_moves_on_to_a_new_ensemble() -> None:
    """Rule R5: at once, not when the polls at the old bookies have had their time."""
    async with cluster_of(6, replace(QUICK, long_poll_seconds=LONG_POLL_SECONDS_MAX)) as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(3)
        reader = await cluster.open(ledger)
        following = Following(reader.follow())
        await polls(cluster, 2)
        await ledger.change_ensemble("b3", "b4", "b5")
        await following.got(3)
        at_new = lambda: sum(bookie.long_polls for bookie in cluster.bookies[3:]) == 2  # noqa: E731
        await eventually(at_new, seconds=LONG_POLL_SECONDS_MAX / 3)
        ledger.add_numbered(3)
        await following.got(5)
        await ledger.close()
        await following.task
        assert following.payloads == ledger.payloads


@pytest.mark.parametrize("hint", ["fenced", "refusing", "silent"])
async def test_metadata_are_read_again_when_a_watch_says_nothing(hint: str) -> None:
    """Rule R5: the ensemble was replaced, then the ledger recovered; only the old bookies' answers hint at it."""
    options = replace(QUICK, long_poll_seconds=0.01)
    async with cluster_of(6, options) as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(3)
        reader = await cluster.open(ledger, store=TroubledStore(cluster.store))
        following = Following(reader.follow())
        await polls(cluster, 2)
        await ledger.change_ensemble("b3", "b4", "b5")
        for bookie in cluster.bookies[:3]:
            match hint:
                case "fenced":
                    bookie.fence(ledger.id)
                case "refusing":
                    bookie.refuse(Op.READ_LAC, BookieStorageError("disk on fire"))
                    bookie.disconnect()
                case "silent":
                    bookie.end_long_polls()
        await eventually(lambda: sum(bookie.long_polls for bookie in cluster.bookies[3:]) == 2)
        ledger.add_numbered(3)
        await following.got(5)
        await ledger.close()
        for bookie in cluster.bookies[3:]:
            bookie.fence(ledger.id)
        await following.task
        assert following.payloads == ledger.payloads


async def test_metadata_out_of_reach_end_no_follower() -> None:
    async with cluster_of(3, replace(QUICK, long_poll_seconds=0.01)) as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(3)
        store = TroubledStore(cluster.store)
        reader = await cluster.open(ledger, store=store)
        store.down = True
        following = Following(reader.follow())
        await polls(cluster, 2)
        for bookie in cluster.bookies:
            bookie.end_long_polls()
        await eventually(lambda: store.reads >= 1)
        ledger.add_numbered(3)
        await following.got(5)
        store.down = False
        await ledger.close()
        for bookie in cluster.bookies:
            bookie.fence(ledger.id)
        await following.task
        assert following.payloads == ledger.payloads


async def test_polls_move_on_with_metadata_that_another_task_has_read() -> None:
    async with cluster_of(6) as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(3)
        reader = await cluster.open(ledger, store=TroubledStore(cluster.store))
        following = Following(reader.follow())
        await polls(cluster, 2)
        await ledger.change_ensemble("b3", "b4", "b5")
        assert await reader.refresh_last_add_confirmed() == 2
        await eventually(lambda: sum(bookie.long_polls for bookie in cluster.bookies[3:]) == 2)
        await ledger.close()
        await reader.refresh_last_add_confirmed()
        await following.task
        assert following.payloads == ledger.payloads


async def test_several_followers_of_one_reader_all_get_everything() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        reader = await cluster.open(ledger)
        followings = [Following(reader.follow(first)) for first in (0, 0, 3)]
        for _ in range(10):
            ledger.add_numbered(1)
            ledger.say_lac()
            await followings[0].got(len(ledger.payloads))
        await ledger.close()
        for following, first in zip(followings, (0, 0, 3), strict=True):
            await following.task
            assert following.payloads == ledger.payloads[first:]


async def test_deleting_the_ledger_ends_its_followers_with_the_reason() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(3)
        reader = await cluster.open(ledger)
        following = Following(reader.follow())
        await polls(cluster, 2)
        await cluster.store.delete_ledger(ledger.id)
        with pytest.raises(NoSuchLedgerError, match="has been deleted"):
            await following.task
        assert following.payloads == ledger.payloads[:2]


async def test_closing_the_reader_ends_its_followers() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        reader = await cluster.open(ledger)
        following = Following(reader.follow())
        await polls(cluster, 2)
        await reader.close()
        with pytest.raises(ClientClosedError):
            await following.task


async def test_cancelled_follower_leaves_the_others_following() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        reader = await cluster.open(ledger)
        doomed, other = Following(reader.follow()), Following(reader.follow())
        await polls(cluster, 2)
        doomed.task.cancel()
        await asyncio.wait([doomed.task])
        ledger.add(b"a", b"b")
        await other.got(1)
        assert other.payloads == [b"a"]
        other.task.cancel()
