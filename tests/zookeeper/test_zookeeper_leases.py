"""Renewals of leases in ZooKeeper: one request for all records, and none that is gone counts as held."""

from octavo.metadata import MetadataStore
from octavo.metadata.store.driver import Kind
from support.metadata.metadata_clusters import registration, soon, until
from support.metadata.zookeeper import records_of
from support.metadata.zookeeper_proxy import ZooKeeperProxy

LOCKS = 100


async def delete_by_hand(store: MetadataStore, kind: Kind, key: str) -> None:
    """As an operator with ZooKeeper's own tools; through another handle than the holder's."""
    assert await records_of(store).delete(kind, key, None)


async def test_renewal_is_one_request_for_any_number_of_locks(store: MetadataStore, proxy: ZooKeeperProxy) -> None:
    leases = [await store.lock(f"lock/{number}", "me") for number in range(LOCKS)]
    await store.renew_leases()
    before = len(proxy.requests)
    await store.renew_leases()
    assert (
        len(proxy.requests) - before <= 4
    )  # a request and its sync; the renewal of the handle itself may come between
    assert not any(lease.lost for lease in leases)


async def test_lock_deleted_by_hand_is_lost_with_the_next_renewal(store: MetadataStore, other: MetadataStore) -> None:
    lease, kept = await store.lock("a", "me"), await store.lock("b", "me")
    for _ in range(2):
        await store.renew_leases()
    await delete_by_hand(other, Kind.LOCK, "a")
    await store.renew_leases()
    assert lease.lost
    assert not kept.lost
    assert await other.try_lock("b", "other") is None


async def test_lock_deleted_and_taken_by_another_is_lost(store: MetadataStore, other: MetadataStore) -> None:
    lease = await store.lock("a", "me")
    await store.renew_leases()
    await delete_by_hand(other, Kind.LOCK, "a")
    await soon(other.lock("a", "other"))
    await store.renew_leases()
    assert lease.lost


async def test_lock_deleted_while_the_connection_is_down_is_lost(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    lease, kept = await store.lock("a", "me"), await store.lock("b", "me")
    await store.renew_leases()
    proxy.away()
    await delete_by_hand(other, Kind.LOCK, "a")
    proxy.back()
    await store.read_document("any")  # it is connected again
    await store.renew_leases()
    assert lease.lost
    assert not kept.lost


async def test_watch_of_a_lock_that_is_left_does_not_take_along_that_of_the_lease(
    store: MetadataStore, other: MetadataStore
) -> None:
    lease = await store.lock("a", "me")
    async with store.watch_lock("a") as watch:
        assert await soon(anext(watch)) is not None
        await store.renew_leases()
    await store.renew_leases()
    await delete_by_hand(other, Kind.LOCK, "a")
    await store.renew_leases()
    assert lease.lost


async def test_watch_of_all_bookies_that_is_left_does_not_take_along_that_of_the_registration(
    store: MetadataStore, other: MetadataStore
) -> None:
    lease = await store.register_bookie(registration("b1"))
    async with store.watch_bookies() as watch:
        await until(watch, lambda bookies: "b1" in bookies)
        await store.renew_leases()
    await store.renew_leases()
    await other.register_bookie(registration("b1", boot="boot-2"))
    await store.renew_leases()
    assert lease.lost
