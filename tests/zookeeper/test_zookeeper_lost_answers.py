"""A change whose answer was lost is never reported as a conflict with oneself, nor done twice (rule M1).

Each change is made three times over a network that breaks: before the server has the request, after it has done it, and
after it has done it while another client makes a change before the connection is back.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from octavo.metadata import MetadataStore, Version
from octavo.protocol.errors import (
    LedgerExistsError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLedgerError,
)
from octavo.protocol.ids import BookieId
from support.metadata.ledger_metadata import open_ledger
from support.metadata.metadata_clusters import cookie, new_ledger, registration, soon
from support.metadata.zookeeper import Opener
from support.metadata.zookeeper_proxy import CREATE, MULTI, SET, ZooKeeperProxy

type Lose = Callable[[ZooKeeperProxy, int], None]


def lose_request(proxy: ZooKeeperProxy, kind: int) -> None:
    proxy.lose_request = kind


def lose_answer(proxy: ZooKeeperProxy, kind: int) -> None:
    proxy.lose_answer = kind


either_way = pytest.mark.parametrize("lose", [lose_request, lose_answer])


async def meanwhile(
    proxy: ZooKeeperProxy, kind: int, change: Awaitable[Any], others: Callable[[], Awaitable[Any]]
) -> Any:
    """Make a change whose answer is lost; another client makes a change before the connection is back."""
    proxy.lose_answer = kind
    changing = asyncio.ensure_future(change)
    await soon(proxy.lost.wait())
    proxy.refusing = True
    await others()
    proxy.back()
    return await soon(changing)


# --- ledgers -------------------------------------------------------------------------------------------------------


@either_way
async def test_ledger_is_created_once(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy, lose: Lose
) -> None:
    await new_ledger(store)  # the folders are there now
    ledger_id = await store.allocate_ledger_id()
    lose(proxy, MULTI)
    version = await soon(store.create_ledger(open_ledger(ledger_id, writer_token="mine")))
    assert proxy.lost.is_set()
    found = await other.read_ledger(ledger_id)
    assert (found.value.writer_token, found.version) == ("mine", version)
    with pytest.raises(LedgerExistsError):
        await store.create_ledger(open_ledger(ledger_id, writer_token="another"))


@either_way
async def test_ledger_changes_once(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy, lose: Lose
) -> None:
    ledger_id, version = await new_ledger(store)
    lose(proxy, SET)
    second = await soon(store.compare_and_set_ledger(open_ledger(ledger_id, writer_token="mine"), version))
    assert proxy.lost.is_set()
    assert second == version + 1
    assert (await other.read_ledger(ledger_id)).version == second
    third = await store.compare_and_set_ledger(open_ledger(ledger_id), second)
    assert third == second + 1


async def test_conflict_with_another_client_is_one_also_after_a_break(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    ledger_id, version = await new_ledger(store)
    proxy.lose_request = SET
    changing = asyncio.ensure_future(store.compare_and_set_ledger(open_ledger(ledger_id, writer_token="mine"), version))
    await soon(proxy.lost.wait())
    proxy.refusing = True
    await other.compare_and_set_ledger(open_ledger(ledger_id, writer_token="other"), version)
    proxy.back()
    with pytest.raises(MetadataConflictError):
        await soon(changing)
    assert (await other.read_ledger(ledger_id)).value.writer_token == "other"


async def test_ledger_deleted_by_another_before_the_connection_is_back_is_missed(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    ledger_id, version = await new_ledger(store)
    change = store.compare_and_set_ledger(open_ledger(ledger_id, writer_token="mine"), version)
    with pytest.raises(NoSuchLedgerError):
        await meanwhile(proxy, SET, change, lambda: other.delete_ledger(ledger_id))


@either_way
async def test_ledger_is_deleted_once(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy, lose: Lose
) -> None:
    ledger_id, version = await new_ledger(store)
    lose(proxy, MULTI)
    await soon(store.delete_ledger(ledger_id, version))
    assert proxy.lost.is_set()
    with pytest.raises(NoSuchLedgerError):
        await other.read_ledger(ledger_id)


@either_way
async def test_ids_are_never_given_twice(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy, lose: Lose
) -> None:
    given = [await store.allocate_ledger_id() for _ in range(3)]
    for _ in range(4):
        proxy.lost.clear()
        lose(proxy, SET)
        while not proxy.lost.is_set():
            given.append(await soon(store.allocate_ledger_id()))
        given.append(await other.allocate_ledger_id())
    assert len(set(given)) == len(given)


# --- documents and cookies -------------------------------------------------------------------------------------------


@either_way
async def test_document_is_created_changed_and_deleted_once(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy, lose: Lose
) -> None:
    lose(proxy, MULTI)
    version = await soon(store.create_document("logs/a", b"1"))
    assert await other.read_document("logs/a") == (b"1", version)
    lose(proxy, MULTI)
    # The same bytes as before: only the token of the change tells it.
    second = await soon(store.compare_and_set_document("logs/a", b"1", version))
    assert second == version + 1
    assert await other.read_document("logs/a") == (b"1", second)
    lose(proxy, MULTI)
    await soon(store.delete_document("logs/a", second))
    assert await other.read_document("logs/a") is None


async def test_own_document_changed_by_another_since_is_still_created(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    async def change() -> Version:
        found = await other.read_document("logs/a")
        assert found is not None
        return await other.compare_and_set_document("logs/a", b"2", found.version)

    version = await meanwhile(proxy, MULTI, store.create_document("logs/a", b"1"), change)
    with pytest.raises(MetadataConflictError):
        await store.compare_and_set_document("logs/a", b"3", version)


async def test_change_that_was_changed_again_before_it_could_be_seen_is_in_doubt(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    version = await store.create_document("logs/a", b"1")

    async def change() -> Version:
        return await other.compare_and_set_document("logs/a", b"3", Version(version + 1))

    with pytest.raises(MetadataUnavailableError) as failed:
        await meanwhile(proxy, MULTI, store.compare_and_set_document("logs/a", b"2", version), change)
    assert failed.value.may_have_happened


async def test_document_made_anew_while_the_change_is_under_way_is_not_changed(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    """It has the very version that the change demands."""
    version = await store.create_document("logs/a", b"1")
    proxy.hold = MULTI
    changing = asyncio.ensure_future(store.compare_and_set_document("logs/a", b"2", version))
    await soon(proxy.held.wait())
    await other.delete_document("logs/a")
    await other.create_document("logs/a", b"new")
    proxy.resume()
    with pytest.raises(MetadataConflictError):
        await soon(changing)
    found = await other.read_document("logs/a")
    assert found is not None
    assert found.value == b"new"


async def test_document_made_anew_is_another(store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy) -> None:
    """ZooKeeper's versions begin again with a new node: the old version must not fit it, break or no break."""
    version = await store.create_document("logs/a", b"1")
    proxy.lose_request = MULTI
    changing = asyncio.ensure_future(store.compare_and_set_document("logs/a", b"2", version))
    await soon(proxy.lost.wait())
    proxy.refusing = True
    await other.delete_document("logs/a")
    again = await other.create_document("logs/a", b"new")
    assert again > version
    proxy.back()
    with pytest.raises((MetadataConflictError, MetadataUnavailableError)):
        await soon(changing)
    with pytest.raises(MetadataConflictError):
        await store.delete_document("logs/a", version)
    assert await other.read_document("logs/a") == (b"new", again)


@either_way
async def test_cookie_changes_once(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy, lose: Lose
) -> None:
    lose(proxy, MULTI)
    version = await soon(store.create_cookie(cookie("b1")))
    lose(proxy, MULTI)
    second = await soon(store.compare_and_set_cookie(cookie("b1", 2), version))
    assert await other.read_cookie(BookieId("b1")) == (cookie("b1", 2), second)


# --- what lives with the session -------------------------------------------------------------------------------------


@either_way
async def test_bookie_is_registered_once_and_keeps_its_lease(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy, lose: Lose
) -> None:
    lose(proxy, MULTI)
    lease = await soon(store.register_bookie(registration("b1")))
    assert list(await other.list_bookies()) == ["b1"]
    lose(proxy, MULTI)
    await soon(lease.update(registration("b1", boot="boot-2")))
    assert (await other.list_bookies())[BookieId("b1")].boot_id == "boot-2"
    lose(proxy, MULTI)
    await soon(lease.release())
    assert await other.list_bookies() == {}


@either_way
async def test_lock_is_taken_once_and_released(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy, lose: Lose
) -> None:
    await (await store.lock("warm-up", "mine")).release()
    lose(proxy, CREATE)
    lease = await soon(store.try_lock("leader", "mine"))
    assert lease is not None
    assert await other.try_lock("leader", "other") is None
    lose(proxy, MULTI)
    await soon(lease.release())
    taken = await other.try_lock("leader", "other")
    assert taken is not None
    assert taken.fencing_number > lease.fencing_number


async def test_lock_of_a_call_that_had_no_answer_is_not_held_for_ever(
    open_store: Opener, uri: str, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    """The handle and its session are alive, but no handle knows of the lock."""
    store = await open_store(f"zk://127.0.0.1:{proxy.port}/{uri.rpartition('/')[2]}", operation_seconds=0.5)
    kept = await store.lock("kept", "mine")
    proxy.hold = CREATE
    with pytest.raises(MetadataUnavailableError) as failed:
        await store.try_lock("leader", "mine")
    assert failed.value.may_have_happened
    proxy.resume()
    taken = await soon(other.lock("leader", "other"))
    assert not taken.lost
    assert not kept.lost


async def test_lock_of_a_call_that_had_no_answer_can_be_taken_by_its_handle(
    open_store: Opener, uri: str, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    store = await open_store(f"zk://127.0.0.1:{proxy.port}/{uri.rpartition('/')[2]}", operation_seconds=0.5)
    await store.lock("kept", "mine")
    proxy.hold = CREATE
    with pytest.raises(MetadataUnavailableError):
        await store.try_lock("leader", "mine")
    proxy.resume()
    lease = await soon(store.lock("leader", "mine"))
    assert await other.read_lock("leader") == ("mine", lease.fencing_number)
