"""What every metadata driver must do: bookies, cookies and locks, and what becomes of them when a process dies."""

import asyncio
from dataclasses import replace

import pytest
from octavo.metadata import BookieState, MetadataStore
from octavo.protocol.errors import LeaseLostError, MetadataConflictError
from octavo.protocol.ids import BookieId
from support.inside import line_of
from support.metadata.metadata_clusters import LEASE_SECONDS, Cluster, cookie, registration, soon, until
from support.waiting import eventually

# --- bookies -------------------------------------------------------------------------------------------------------


async def test_registered_bookies_are_listed_until_they_leave(store: MetadataStore, other: MetadataStore) -> None:
    lease = await store.register_bookie(registration("b2"))
    await other.register_bookie(registration("b1", state=BookieState.READ_ONLY))
    assert list((await other.list_bookies()).values()) == [
        registration("b1", state=BookieState.READ_ONLY),
        registration("b2"),
    ]
    await lease.update(registration("b2", state=BookieState.READ_ONLY))
    assert (await other.list_bookies())[BookieId("b2")].state is BookieState.READ_ONLY
    await lease.release()
    await lease.release()
    assert lease.lost
    assert list(await other.list_bookies()) == ["b1"]


async def test_watch_of_bookies_sees_them_come_change_and_go(store: MetadataStore, other: MetadataStore) -> None:
    async with other.watch_bookies() as watch:
        assert await soon(anext(watch)) == {}
        lease = await store.register_bookie(registration("b1"))
        assert await soon(anext(watch)) == {"b1": registration("b1")}
        await lease.update(registration("b1", state=BookieState.READ_ONLY))
        assert await soon(anext(watch)) == {"b1": registration("b1", state=BookieState.READ_ONLY)}
        await store.close()
        assert await soon(anext(watch)) == {}


async def test_registration_lives_while_it_is_renewed(
    cluster: Cluster, store: MetadataStore, other: MetadataStore
) -> None:
    lease = await store.register_bookie(registration("b1"))
    await cluster.advance(5 * LEASE_SECONDS)
    assert not lease.lost
    assert list(await other.list_bookies()) == ["b1"]


async def test_registration_of_a_dead_process_ends_with_its_lease(cluster: Cluster) -> None:
    dead, alive = await cluster.open(), await cluster.open()
    lease = await dead.register_bookie(registration("b1"))
    async with alive.watch_bookies() as watch:
        assert list(await soon(anext(watch))) == ["b1"]
        await cluster.advance(LEASE_SECONDS - 0.01, asleep=dead)
        assert list(await alive.list_bookies()) == ["b1"]
        await cluster.advance(0.02, asleep=dead)
        assert await alive.list_bookies() == {}
        assert await soon(anext(watch)) == {}
    assert lease.lost  # it can tell from its own clock, before it has asked the store


async def test_process_that_slept_too_long_learns_it_and_registers_again(cluster: Cluster) -> None:
    sleeper, other = await cluster.open(), await cluster.open()
    lease = await sleeper.register_bookie(registration("b1"))
    lock = await sleeper.try_lock("leader", "sleeper")
    assert lock is not None
    waiting = asyncio.create_task(lease.wait_lost())
    await cluster.advance(LEASE_SECONDS + 1, asleep=sleeper)
    await sleeper.renew_leases()
    await soon(waiting)
    await soon(lock.wait_lost())
    with pytest.raises(LeaseLostError, match="b1"):
        await lease.update(registration("b1", state=BookieState.READ_ONLY))
    assert await other.list_bookies() == {}
    again = await sleeper.register_bookie(registration("b1"))
    assert not again.lost
    assert list(await other.list_bookies()) == ["b1"]
    await lease.release()  # of the lost one: must not touch the new one
    assert list(await other.list_bookies()) == ["b1"]


async def test_lease_found_out_of_time_is_not_revived_by_registering(cluster: Cluster, store: MetadataStore) -> None:
    lease = await store.register_bookie(registration("b1"))
    cluster.now += LEASE_SECONDS
    second = await store.register_bookie(registration("b2"))
    assert lease.lost
    assert not second.lost
    assert list(await store.list_bookies()) == ["b2"]


async def test_restarted_bookie_registers_at_once_and_its_old_self_is_told(
    cluster: Cluster, store: MetadataStore, other: MetadataStore
) -> None:
    old = await store.register_bookie(registration("b1", boot="boot-1"))
    new = await other.register_bookie(registration("b1", boot="boot-2"))
    assert (await store.list_bookies())[BookieId("b1")].boot_id == "boot-2"
    assert new.fencing_number > old.fencing_number
    with pytest.raises(LeaseLostError):
        await old.update(registration("b1", boot="boot-1"))
    await cluster.advance(1)
    await soon(old.wait_lost())
    await old.release()
    assert (await store.list_bookies())[BookieId("b1")].boot_id == "boot-2"


async def test_process_of_before_learns_of_the_take_over_when_it_renews(
    cluster: Cluster, store: MetadataStore, other: MetadataStore
) -> None:
    old = await store.register_bookie(registration("b1", boot="boot-1"))
    kept = await store.register_bookie(registration("b2"))
    await other.register_bookie(registration("b1", boot="boot-2"))
    waiting = asyncio.create_task(old.wait_lost())
    await cluster.advance(1)
    await soon(waiting)
    assert not kept.lost


# --- registering only as long as the cookie is as it was read (rule B10)


async def test_bookie_registers_only_while_its_cookie_is_as_it_was_read(
    store: MetadataStore, other: MetadataStore
) -> None:
    b1 = BookieId("b1")
    first = await store.create_cookie(cookie("b1"))
    lease = await store.register_bookie(registration("b1", boot="boot-1"), cookie=first)
    second = await other.compare_and_set_cookie(cookie("b1", 2), first)
    with pytest.raises(MetadataConflictError, match="b1: its cookie has been changed or deleted"):
        await store.register_bookie(registration("b1", boot="boot-2"), cookie=first)
    assert (await store.list_bookies())[b1].boot_id == "boot-1"
    assert not lease.lost, "what was refused changes nothing"
    await store.register_bookie(registration("b1", boot="boot-3"), cookie=second)
    assert (await other.list_bookies())[b1].boot_id == "boot-3"


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made anew"])
async def test_bookie_whose_cookie_was_deleted_does_not_register(
    store: MetadataStore, other: MetadataStore, again: bool
) -> None:
    first = await store.create_cookie(cookie("b1"))
    await other.delete_cookie(BookieId("b1"), first)
    if again:
        await other.create_cookie(cookie("b1"))
    with pytest.raises(MetadataConflictError):
        await store.register_bookie(registration("b1"), cookie=first)
    assert not await store.list_bookies()


async def test_bookie_does_not_take_a_registration_over_that_was_made_by_a_later_cookie(
    store: MetadataStore, other: MetadataStore
) -> None:
    first = await store.create_cookie(cookie("b1"))
    await store.register_bookie(registration("b1", boot="old"), cookie=first)
    second = await other.compare_and_set_cookie(cookie("b1", 2), first)
    new = await other.register_bookie(registration("b1", boot="new"), cookie=second)
    for _ in range(3):
        with pytest.raises(MetadataConflictError):
            await store.register_bookie(registration("b1", boot="old"), cookie=first)
    assert not new.lost
    assert (await store.list_bookies())[BookieId("b1")].boot_id == "new"


async def test_registration_tells_how_long_it_lasts_and_whether_its_process_slept(cluster: Cluster) -> None:
    store = await cluster.open()
    lease = await store.register_bookie(registration("b1"))
    assert LEASE_SECONDS / 2 < lease.remaining_seconds <= LEASE_SECONDS
    assert not lease.slept
    await cluster.advance(LEASE_SECONDS * 3)
    assert lease.remaining_seconds > 0
    assert not lease.slept
    await cluster.advance(LEASE_SECONDS + 1, asleep=store)
    assert lease.remaining_seconds <= 0
    assert lease.slept, "nothing has run yet since it woke up"
    await store.renew_leases()
    assert lease.slept
    assert lease.remaining_seconds <= 0
    again = await store.register_bookie(registration("b1"))
    assert not again.slept


async def test_registering_again_in_the_same_process_replaces_the_lease(store: MetadataStore) -> None:
    first = await store.register_bookie(registration("b1"))
    second = await store.register_bookie(registration("b1", state=BookieState.READ_ONLY))
    assert first.lost
    await first.release()
    assert not second.lost
    assert (await store.list_bookies())[BookieId("b1")].state is BookieState.READ_ONLY


async def test_known_bookies_are_those_with_a_cookie_or_a_registration(
    store: MetadataStore, other: MetadataStore
) -> None:
    await store.create_cookie(cookie("b1"))
    await store.create_cookie(cookie("b2"))
    await other.register_bookie(replace(registration("b2"), address="[::1]:3182"))
    await other.register_bookie(registration("b3", state=BookieState.READ_ONLY))
    known = [(bookie.bookie_id, bookie.address, bookie.state.value) for bookie in await store.list_known_bookies()]
    assert known == [
        ("b1", "b1.example:3181", "unavailable"),
        ("b2", "[::1]:3182", "writable"),
        ("b3", "b3.example:3181", "read-only"),
    ]


async def test_cookie_changes_by_compare_and_set(store: MetadataStore, other: MetadataStore) -> None:
    b1 = BookieId("b1")
    assert await store.read_cookie(b1) is None
    first = await store.create_cookie(cookie("b1"))
    with pytest.raises(MetadataConflictError, match="b1"):
        await other.create_cookie(cookie("b1", 9))
    second = await other.compare_and_set_cookie(cookie("b1", 2), first)
    with pytest.raises(MetadataConflictError, match="b1"):
        await store.compare_and_set_cookie(cookie("b1", 3), first)
    assert await store.read_cookie(b1) == (cookie("b1", 2), second)
    assert await store.list_cookies() == [(cookie("b1", 2), second)]
    with pytest.raises(MetadataConflictError):
        await store.delete_cookie(b1, first)
    await store.delete_cookie(b1, second)
    with pytest.raises(MetadataConflictError):
        await store.delete_cookie(b1, second)
    assert await other.read_cookie(b1) is None


async def test_cookie_outlives_its_bookie(cluster: Cluster, store: MetadataStore, other: MetadataStore) -> None:
    await store.create_cookie(cookie("b1"))
    await store.register_bookie(registration("b1"))
    await store.close()
    await cluster.advance(2 * LEASE_SECONDS)
    assert [bookie.state for bookie in await other.list_known_bookies()] == [BookieState.UNAVAILABLE]


# --- locks ---------------------------------------------------------------------------------------------------------


async def test_lock_has_one_holder(store: MetadataStore, other: MetadataStore) -> None:
    held = await store.try_lock("auditor", "one")
    assert held is not None
    assert await other.try_lock("auditor", "two") is None
    assert await store.try_lock("auditor", "one again") is None
    assert await other.read_lock("auditor") == ("one", held.fencing_number)
    assert await other.try_lock("another", "two") is not None
    await held.release()
    assert held.lost
    assert await other.read_lock("auditor") is None
    taken = await other.try_lock("auditor", "two")
    assert taken is not None
    assert taken.fencing_number > held.fencing_number


async def test_many_locks_are_read_together(store: MetadataStore, other: MetadataStore) -> None:
    held = {name: await store.try_lock(name, f"holder of {name}") for name in ("locks/b", "locks/a")}
    found = await other.read_locks(["locks/a", "locks/free", "locks/b"])
    assert [None if one is None else one.holder for one in found] == ["holder of locks/a", None, "holder of locks/b"]
    assert held["locks/a"] is not None
    await held["locks/a"].release()
    assert (await other.read_locks(["locks/a"])) == [None]


async def test_lock_goes_to_a_waiting_client_and_is_held_by_one_at_a_time(cluster: Cluster) -> None:
    handles = [await cluster.open() for _ in range(2)]
    holders: list[int] = []
    order: list[int] = []

    async def work(number: int) -> None:
        lease = await handles[number % 2].lock("leader", str(number))
        holders.append(number)
        order.append(lease.fencing_number)
        assert holders == [number]
        await asyncio.sleep(0)
        assert not lease.lost
        holders.remove(number)
        await lease.release()

    await soon(asyncio.gather(*(work(number) for number in range(6))))
    assert order == sorted(set(order))
    assert len(order) == 6


async def _wait_in_line(handle: MetadataStore, count: int) -> None:
    async def are_there() -> bool:
        return await line_of(handle).waiting("leader") == count

    await eventually(are_there)


async def test_a_lock_goes_to_waiting_clients_in_the_order_in_which_they_came(cluster: Cluster) -> None:
    """Also where its holder gives it back and wants it again at once (rule M4)."""
    handles = [await cluster.open() for _ in range(3)]
    got: list[str] = []

    async def wait(name: str, handle: MetadataStore) -> None:
        lease = await handle.lock("leader", name)
        got.append(name)
        await lease.release()

    held = await handles[0].lock("leader", "first")
    waiting = []
    for number, handle in enumerate((handles[1], handles[2], handles[1], handles[0]), 1):
        waiting.append(asyncio.create_task(wait(f"waiter {number}", handle)))
        await _wait_in_line(handles[0], number)
    assert await handles[2].try_lock("leader", "hasty") is None
    await held.release()
    waiting.append(asyncio.create_task(wait("first again", handles[0])))
    await soon(asyncio.gather(*waiting))
    assert got == ["waiter 1", "waiter 2", "waiter 3", "waiter 4", "first again"]
    await _wait_in_line(handles[0], 0)


async def test_a_free_lock_that_others_wait_for_is_not_taken_by_a_client_that_comes_late(cluster: Cluster) -> None:
    """The one that waits first is slow."""
    slow, hasty = await cluster.open(), await cluster.open()
    place = await line_of(slow).wait_turn("leader", "slow")
    assert await hasty.try_lock("leader", "hasty") is None
    late = asyncio.create_task(hasty.lock("leader", "hasty"))
    await _wait_in_line(slow, 2)
    assert await slow.read_lock("leader") is None
    assert not late.done()
    await place.release()
    lease = await soon(late)
    await lease.release()


async def test_clients_that_stop_waiting_or_die_leave_the_line(cluster: Cluster) -> None:
    holder, dead, patient = [await cluster.open() for _ in range(3)]
    held = await holder.lock("leader", "holder")
    first = asyncio.create_task(dead.lock("leader", "dead"))
    await _wait_in_line(holder, 1)
    cancelled = asyncio.create_task(holder.lock("leader", "cancelled"))
    await _wait_in_line(holder, 2)
    last = asyncio.create_task(patient.lock("leader", "patient"))
    await _wait_in_line(holder, 3)
    cancelled.cancel()
    await _wait_in_line(holder, 2)
    await cluster.advance(LEASE_SECONDS + 1, asleep=dead)
    await held.release()
    lease = await soon(last)
    await lease.release()
    first.cancel()
    await asyncio.wait([first, cancelled])


async def test_lock_of_a_dead_process_goes_to_a_waiting_client(cluster: Cluster) -> None:
    dead, alive = await cluster.open(), await cluster.open()
    first = await dead.lock("leader", "dead")
    async with alive.watch_lock("leader") as watch:
        assert await soon(anext(watch)) == ("dead", first.fencing_number)
        waiting = asyncio.create_task(alive.lock("leader", "alive"))
        await cluster.advance(LEASE_SECONDS + 1, asleep=dead)
        await until(watch, lambda present: present is None or present.holder == "alive")
        second = await soon(waiting)
    assert first.lost
    assert second.fencing_number > first.fencing_number
    assert await alive.read_lock("leader") == ("alive", second.fencing_number)


async def test_cancelled_wait_for_a_lock_leaves_none_behind(store: MetadataStore, other: MetadataStore) -> None:
    """Cancelled at every point that the way to the lock has."""
    for turns in range(12):
        waiting = asyncio.create_task(store.lock("leader", "cancelled"))
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
        if not isinstance(outcome, BaseException):
            await outcome.release()
        lease = await soon(other.lock("leader", "next"))
        await lease.release()


async def test_leader_can_be_watched(store: MetadataStore, other: MetadataStore) -> None:
    async with other.watch_lock("leader") as watch:
        assert await soon(anext(watch)) is None
        lease = await store.lock("leader", "one")
        assert await soon(anext(watch)) == ("one", lease.fencing_number)
        await lease.release()
        assert await soon(anext(watch)) is None
