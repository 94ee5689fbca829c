"""Giving a ledger or a term its end, whichever it is, on bookies in memory that speak the real wire."""

from collections.abc import AsyncIterator

import pytest
from octavo.metadata.stream.model import StreamState
from octavo.protocol.entries import derive_secrets
from octavo.protocol.errors import LedgerRecoveryError
from octavo.protocol.ids import LedgerId
from octavo.protocol.places import place
from octavo.protocol.quorums import Quorums
from support.clusters.streams import NOW, StreamCluster, stream_cluster
from support.clusters.writing import PASSWORD

THREE = Quorums(3, 3, 2)


@pytest.fixture
async def cluster() -> AsyncIterator[StreamCluster]:
    async with stream_cluster(5) as cluster:
        yield cluster


async def written(cluster: StreamCluster, kind: str) -> LedgerId:
    """A ledger or a stream with three entries, whose writer does nothing more."""
    if kind == "ledger":
        writer = await cluster.fake.writer()
    else:
        writer = await cluster.client("first").streams.create(THREE, password=PASSWORD)
    for number in range(3):
        await writer.add(b"%d" % number)
    return writer.id


@pytest.mark.parametrize("kind", ["ledger", "stream"])
async def test_what_an_absent_writer_has_left_gets_its_end_whatever_it_is(cluster: StreamCluster, kind: str) -> None:
    ledger_id = await written(cluster, kind)
    ender, store = cluster.client("repair").ender, cluster.fake.store
    ended = await ender.end(await store.read_either(ledger_id), derive_secrets(PASSWORD, ledger_id), may_owe=True)
    assert ended == await store.read_either(ledger_id)
    assert ended.value.has_end
    assert ended.value.is_closed is (kind == "ledger")
    assert ended.value.last_entry_id == (2 if kind == "ledger" else place(1, 2))
    assert (ended.value.fenced_by, ended.value.fenced_at) == ("repair", NOW)
    assert ended.value.state.value == ("closed" if kind == "ledger" else StreamState.AT_REST.value)


@pytest.mark.parametrize("kind", ["ledger", "stream"])
async def test_without_bookies_that_could_tell_there_is_an_end_only_if_they_are_given_up(
    cluster: StreamCluster, kind: str
) -> None:
    ledger_id = await written(cluster, kind)
    store, secrets = cluster.fake.store, derive_secrets(PASSWORD, ledger_id)
    members = (await store.read_either(ledger_id)).value.last_fragment.bookies
    gone = {name for name in members if name != members[0]}
    for bookie in cluster.fake.bookies:
        if bookie.bookie_id in gone:
            await bookie.stop()
    ender = cluster.client("repair", recovery_timeout_seconds=0.2).ender
    with pytest.raises(LedgerRecoveryError):
        await ender.end(await store.read_either(ledger_id), secrets)
    assert not (await store.read_either(ledger_id)).value.has_end
    ended = await ender.end(await store.read_either(ledger_id), secrets, without=gone)
    assert ended.value.has_end
