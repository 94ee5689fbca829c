"""Ledgers created together: one transaction, and each caller gets the result of its own ledger."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from octavo.metadata import LedgerMetadata, MetadataStore, Version
from octavo.metadata.store.driver import Kind, ledger_key
from octavo.metadata.zookeeper.ledger_creation import TOGETHER_BYTES_MAX, TOGETHER_MAX
from octavo.metadata.zookeeper.messages import ANY_VERSION, OK, delete
from octavo.metadata.zookeeper.store import ZooKeeperRecordStore
from octavo.protocol.errors import (
    ClientClosedError,
    LedgerExistsError,
    MetadataUnavailableError,
    NoSuchLedgerError,
)
from octavo.protocol.ids import LedgerId
from support.metadata.ledger_metadata import open_ledger
from support.metadata.metadata_clusters import new_ledger, soon
from support.metadata.zookeeper import Opener, expire_session, records_of
from support.metadata.zookeeper_proxy import CREATE, CREATE_CONTAINER, MULTI, ZooKeeperProxy

FEW = 5


async def ids_of(store: MetadataStore, number: int) -> list[LedgerId]:
    return [await store.allocate_ledger_id() for _ in range(number)]


def ledgers(ids: Sequence[LedgerId], token: str = "mine") -> list[LedgerMetadata]:
    return [open_ledger(ledger_id, writer_token=f"{token} {ledger_id}") for ledger_id in ids]


async def made(store: MetadataStore, wanted: Sequence[LedgerMetadata]) -> list[Version | BaseException]:
    """Create them at the same time."""
    return await soon(asyncio.gather(*map(store.create_ledger, wanted), return_exceptions=True))


async def check(store: MetadataStore, wanted: Sequence[LedgerMetadata], versions: Sequence[object]) -> None:
    found = [await store.read_ledger(metadata.ledger_id) for metadata in wanted]
    assert [one.value for one in found] == list(wanted)
    assert [one.version for one in found] == list(versions)


async def test_those_asked_for_together_are_one_transaction(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    await new_ledger(store)
    wanted = ledgers(await ids_of(store, FEW))
    proxy.requests.clear()
    versions = await made(store, wanted)
    assert proxy.requests.count(MULTI) == 1
    assert CREATE not in proxy.requests
    assert CREATE_CONTAINER not in proxy.requests
    await check(other, wanted, versions)


async def test_transactions_are_bounded_in_number_and_bytes(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    await new_ledger(store)
    many = ledgers(await ids_of(store, 2 * TOGETHER_MAX + 1))
    proxy.requests.clear()
    await check(other, many, await made(store, many))
    assert proxy.requests.count(MULTI) == 3
    half = {"large": bytes(TOGETHER_BYTES_MAX // 2 - 100)}  # more than half, once it is base64
    large = [replace(metadata, custom_metadata=half) for metadata in ledgers(await ids_of(store, 3))]
    proxy.requests.clear()
    await check(other, large, await made(store, large))
    assert proxy.requests.count(MULTI) == 3


async def test_id_that_is_taken_spoils_no_other(store: MetadataStore, other: MetadataStore) -> None:
    ids = await ids_of(store, FEW)
    theirs = ledgers(ids[2:4], "theirs")
    await made(other, theirs)
    wanted = ledgers(ids)
    outcomes = await made(store, wanted)
    assert [type(outcome) for outcome in outcomes[2:4]] == [LedgerExistsError] * 2
    kept = [*wanted[:2], *wanted[4:]]
    await check(other, kept, [*outcomes[:2], *outcomes[4:]])
    assert [(await other.read_ledger(metadata.ledger_id)).value for metadata in theirs] == theirs


@pytest.mark.parametrize("lose", ["lose_request", "lose_answer"])
async def test_each_is_made_once_whatever_is_lost(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy, lose: str
) -> None:
    await new_ledger(store)
    wanted = ledgers(await ids_of(store, FEW))
    setattr(proxy, lose, MULTI)
    versions = await made(store, wanted)
    assert proxy.lost.is_set()
    await check(other, wanted, versions)


async def test_made_and_changed_or_deleted_before_the_connection_is_back_is_made(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    """What others did to some of them afterwards is no conflict, and brings none of them back."""
    await new_ledger(store)
    wanted = ledgers(await ids_of(store, 3))
    proxy.lose_answer = MULTI
    making = asyncio.ensure_future(made(store, wanted))
    await soon(proxy.lost.wait())
    proxy.refusing = True
    found = await other.read_ledger(wanted[0].ledger_id)
    await other.compare_and_set_ledger(found.value.in_recovery(), found.version)
    await other.delete_ledger(wanted[1].ledger_id)
    proxy.back()
    versions = await making
    assert versions[0] == found.version
    assert (await other.read_ledger(wanted[0].ledger_id)).value == wanted[0].in_recovery()
    with pytest.raises(NoSuchLedgerError):
        await other.read_ledger(wanted[1].ledger_id)
    await check(other, wanted[2:], versions[2:])


async def test_id_taken_by_another_before_the_connection_is_back_is_refused(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    await new_ledger(store)
    wanted = ledgers(await ids_of(store, 3))
    proxy.lose_request = MULTI
    making = asyncio.ensure_future(made(store, wanted))
    await soon(proxy.lost.wait())
    proxy.refusing = True
    theirs = ledgers([wanted[1].ledger_id], "theirs")
    await made(other, theirs)
    proxy.back()
    versions = await making
    assert isinstance(versions[1], LedgerExistsError)
    await check(other, [wanted[0], *theirs, wanted[2]][::2], versions[::2])


async def test_what_is_cancelled_before_it_is_sent_is_never_made(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    await new_ledger(store)
    wanted = ledgers(await ids_of(store, 3))
    proxy.away()
    await soon(_disconnected(store))
    making = [asyncio.ensure_future(store.create_ledger(metadata)) for metadata in wanted]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    making[1].cancel()
    proxy.back()
    versions = await soon(asyncio.gather(*making, return_exceptions=True))
    assert isinstance(versions[1], asyncio.CancelledError)
    with pytest.raises(NoSuchLedgerError):
        await other.read_ledger(wanted[1].ledger_id)
    await check(other, [wanted[0], wanted[2]], [versions[0], versions[2]])


async def test_what_is_cancelled_after_it_was_sent_goes_with_the_delete_that_follows(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    await new_ledger(store)
    (wanted,) = ledgers(await ids_of(store, 1))
    proxy.hold = MULTI
    making = asyncio.ensure_future(store.create_ledger(wanted))
    await soon(proxy.held.wait())
    making.cancel()
    deleting = asyncio.ensure_future(store.delete_ledger(wanted.ledger_id))
    await asyncio.sleep(0)
    proxy.resume()
    await soon(deleting)
    with pytest.raises(NoSuchLedgerError):
        await other.read_ledger(wanted.ledger_id)


async def test_folders_that_went_with_their_last_ledger_are_made_again(
    store: MetadataStore, other: MetadataStore
) -> None:
    ledger_id, _ = await new_ledger(store)
    wanted = ledgers(await ids_of(store, FEW))
    records = records_of(store)
    folder = records.paths.node(*_record(ledger_id)).rpartition("/")[0]
    await other.delete_ledger(ledger_id)
    await _delete_node(records_of(other), folder)  # as the servers do in time
    await check(other, wanted, await made(store, wanted))


def _record(ledger_id: LedgerId) -> tuple[Kind, str]:
    return Kind.LEDGER, ledger_key(ledger_id)


async def _delete_node(records: ZooKeeperRecordStore, path: str) -> None:
    assert (await records.session.call(delete(path, ANY_VERSION))).code == OK


async def test_those_under_way_when_the_session_expires_are_made_once(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    await new_ledger(store)
    wanted = ledgers(await ids_of(store, FEW))
    proxy.lose_answer = MULTI
    making = asyncio.ensure_future(made(store, wanted))
    await soon(proxy.lost.wait())
    await expire_session(records_of(store))
    await check(other, wanted, await making)


async def test_no_answer_is_said_with_the_doubt_there_is(
    open_store: Opener, uri: str, proxy: ZooKeeperProxy, other: MetadataStore
) -> None:
    root = uri.rpartition("/")[2]
    store = await open_store(f"zk://127.0.0.1:{proxy.port}/{root}", operation_seconds=0.5)
    await new_ledger(store)
    ids = await ids_of(store, 2)
    proxy.hold = MULTI
    in_doubt = await made(store, ledgers(ids))
    assert [type(outcome) for outcome in in_doubt] == [MetadataUnavailableError] * 2
    assert all(outcome.may_have_happened for outcome in in_doubt if isinstance(outcome, MetadataUnavailableError))
    assert "ledger" in str(in_doubt[0])
    proxy.away()
    proxy.resume()
    await soon(_disconnected(store))
    not_sent = await made(store, ledgers(ids))
    assert [type(outcome) for outcome in not_sent] == [MetadataUnavailableError] * 2
    assert not any(outcome.may_have_happened for outcome in not_sent if isinstance(outcome, MetadataUnavailableError))


async def _disconnected(store: MetadataStore) -> None:
    while records_of(store).session.connected:  # noqa: ASYNC110 - the session tells only its owner
        await asyncio.sleep(0)


async def test_closing_the_store_fails_those_that_wait(store: MetadataStore, proxy: ZooKeeperProxy) -> None:
    spare = await store.allocate_ledger_id()
    await new_ledger(store)
    wanted = ledgers(await ids_of(store, FEW))
    proxy.hold = MULTI
    making = asyncio.ensure_future(made(store, wanted))
    await soon(proxy.held.wait())
    later = asyncio.ensure_future(made(store, ledgers([spare])))
    await asyncio.sleep(0)
    await soon(store.close())
    for outcomes in (await making, await later):
        assert {type(outcome) for outcome in outcomes} == {ClientClosedError}
