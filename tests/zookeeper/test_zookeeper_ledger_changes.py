"""Ledgers changed together in ZooKeeper: few transactions, and each ledger gets its own outcome (rule M1)."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from octavo.metadata import LedgerMetadata, MetadataStore, Version
from octavo.metadata.zookeeper.ledger_changes import TOGETHER_BYTES_MAX, TOGETHER_MAX
from octavo.protocol.errors import MetadataUnavailableError
from octavo.protocol.ids import LedgerId
from support.metadata.ledger_metadata import open_ledger
from support.metadata.metadata_clusters import new_ledger, soon
from support.metadata.zookeeper import Opener, expire_session, records_of
from support.metadata.zookeeper_proxy import MULTI, SET, ZooKeeperProxy

FEW = 5

type Change = tuple[LedgerMetadata, Version]


async def changes_of(store: MetadataStore, number: int, token: str = "mine") -> list[Change]:
    made = await asyncio.gather(*(new_ledger(store) for _ in range(number)))
    return [(open_ledger(ledger_id, writer_token=f"{token} {ledger_id}"), version) for ledger_id, version in made]


async def check(store: MetadataStore, changes: Sequence[Change], versions: Sequence[Version | None]) -> None:
    """Each change was made once, and the version given is the stored one."""
    for (wanted, expected), version in zip(changes, versions, strict=True):
        assert version == expected + 1
        assert await store.read_ledger(wanted.ledger_id) == (wanted, version)


async def test_transactions_are_bounded_in_number_and_bytes(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    changes = await changes_of(other, 2 * TOGETHER_MAX + 1)
    proxy.requests.clear()
    await check(other, changes, await soon(store.compare_and_set_ledgers(changes)))
    assert proxy.requests.count(MULTI) == 3
    assert SET not in proxy.requests
    half = {"large": bytes(TOGETHER_BYTES_MAX // 2 - 100)}  # more than half, once it is base64
    large = [(replace(wanted, custom_metadata=half), version) for wanted, version in await changes_of(other, 3)]
    proxy.requests.clear()
    await check(other, large, await soon(store.compare_and_set_ledgers(large)))
    assert proxy.requests.count(MULTI) == 3


@pytest.mark.parametrize("lose", ["lose_request", "lose_answer"])
async def test_each_is_made_once_whatever_is_lost(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy, lose: str
) -> None:
    changes = await changes_of(other, FEW)
    setattr(proxy, lose, MULTI)
    versions = await soon(store.compare_and_set_ledgers(changes))
    assert proxy.lost.is_set()
    await check(other, changes, versions)


async def test_made_and_changed_again_or_deleted_before_the_connection_is_back_is_made(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    changes = await changes_of(other, 4)
    proxy.lose_answer = MULTI
    changing = asyncio.ensure_future(store.compare_and_set_ledgers(changes))
    await soon(proxy.lost.wait())
    proxy.refusing = True
    later = await other.compare_and_set_ledger(changes[0][0].in_recovery(), Version(changes[0][1] + 1))
    await other.delete_ledger(changes[1][0].ledger_id)
    proxy.back()
    versions = await soon(changing)
    assert versions == [version + 1 for _, version in changes]
    assert await other.read_ledger(changes[0][0].ledger_id) == (changes[0][0].in_recovery(), later)
    await check(other, changes[2:], versions[2:])


async def test_not_made_and_changed_or_deleted_by_another_client_meanwhile_is_a_conflict(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    changes = await changes_of(other, 4)
    proxy.lose_request = MULTI
    changing = asyncio.ensure_future(store.compare_and_set_ledgers(changes))
    await soon(proxy.lost.wait())
    proxy.refusing = True
    theirs = open_ledger(changes[0][0].ledger_id, writer_token="theirs")
    stored = await other.compare_and_set_ledger(theirs, changes[0][1])
    await other.delete_ledger(changes[1][0].ledger_id)
    proxy.back()
    versions = await soon(changing)
    assert versions[:2] == [None, None]
    assert await other.read_ledger(theirs.ledger_id) == (theirs, stored)
    await check(other, changes[2:], versions[2:])


async def test_those_under_way_when_the_session_expires_are_made_once(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    changes = await changes_of(other, FEW)
    proxy.lose_answer = MULTI
    changing = asyncio.ensure_future(store.compare_and_set_ledgers(changes))
    await soon(proxy.lost.wait())
    await expire_session(records_of(store))
    await check(other, changes, await soon(changing))


async def test_no_answer_leaves_all_of_them_in_doubt(
    open_store: Opener, uri: str, proxy: ZooKeeperProxy, other: MetadataStore
) -> None:
    root = uri.rpartition("/")[2]
    store = await open_store(f"zk://127.0.0.1:{proxy.port}/{root}", operation_seconds=0.5)
    changes = await changes_of(other, TOGETHER_MAX + 1)
    proxy.hold = MULTI
    with pytest.raises(MetadataUnavailableError, match="and 31 more") as caught:
        await soon(store.compare_and_set_ledgers(changes))
    assert caught.value.may_have_happened


async def test_change_of_a_ledger_that_never_existed_is_a_conflict(store: MetadataStore) -> None:
    ((wanted, version),) = await changes_of(store, 1)
    never = open_ledger(LedgerId(10**12))
    versions = await store.compare_and_set_ledgers([(never, version), (wanted, version)])
    assert versions == [None, version + 1]
