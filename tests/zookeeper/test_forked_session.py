"""A process with a ZooKeeper session forks: the child neither uses the session nor takes it away (rule H1)."""

import asyncio

from octavo.metadata import MetadataStore
from octavo.metadata.zookeeper.cluster import open_zookeeper_store
from support.forks import in_child, run_in_child, shared_with_a_child, sockets_of_internet
from support.metadata.metadata_clusters import registration, soon
from support.metadata.zookeeper import Opener, records_of


async def test_child_is_refused_and_the_session_and_its_leases_stay_with_the_parent(
    open_store: Opener, uri: str, other: MetadataStore
) -> None:
    before = sockets_of_internet()
    store = await soon(open_store(uri))
    lease = await store.register_bookie(registration("b1"))
    session = records_of(store).session
    session_id = session.session_id

    opened = sockets_of_internet() - before
    assert opened
    assert not shared_with_a_child(opened)
    assert run_in_child(store.list_bookies).startswith("ForkedError: ")
    assert run_in_child(store.close).startswith("ForkedError: ")
    assert run_in_child(lease.wait_lost) is None, "the child holds no lease"

    await store.renew_leases()
    assert not lease.lost
    assert session.session_id == session_id
    assert list(await soon(other.list_bookies())) == ["b1"]


async def test_child_connects_anew(open_store: Opener, uri: str) -> None:
    store = await soon(open_store(uri))
    lease = await store.register_bookie(registration("b1"))

    async def list_in_child() -> list[str]:
        async with await open_zookeeper_store(uri) as anew:
            return list(await anew.list_bookies())

    assert run_in_child(list_in_child) == ["b1"]
    assert not lease.lost


def test_session_is_not_taken_over_by_the_event_loop_that_a_child_goes_on_running(uri: str) -> None:
    loop = asyncio.new_event_loop()
    before = sockets_of_internet()
    store = loop.run_until_complete(open_zookeeper_store(uri, create=True, lease_seconds=2.0))
    lease = loop.run_until_complete(store.register_bookie(registration("b1")))
    connection = sockets_of_internet() - before
    assert connection
    # Below the handle, which would refuse by itself.
    assert in_child(lambda: loop.run_until_complete(records_of(store).ledger_ids_stop())).startswith("ForkedError: ")

    loop.run_until_complete(store.renew_leases())
    assert not lease.lost
    assert sockets_of_internet() - before == connection, "it is the same one"
    loop.run_until_complete(store.close())
    loop.close()
