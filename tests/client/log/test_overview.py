"""All logs at a glance: what the metadata alone tell, and how few requests it takes to read them."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from octavo.client.log.documents.names import list_document
from octavo.client.log.overview import LOGS_AT_A_TIME, LogOverview, UnreadableLog, log_overviews, overview_of
from octavo.metadata import MetadataStore
from octavo.protocol.ids import LedgerId
from support.clusters.reading import cluster_of

import octavo


async def overviews(store: MetadataStore, prefix: str = "") -> dict[str, LogOverview]:
    found = [log async for log in log_overviews(store, prefix)]
    assert all(isinstance(log, LogOverview) for log in found)
    return {log.name: log for log in found if isinstance(log, LogOverview)}


@pytest.mark.parametrize("layout", ["chain", "stream"])
async def test_a_log_is_told_with_what_its_leader_has_made_durable(layout: str) -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        store = cluster.store
        async with client.create_log("orders", layout="chain" if layout == "chain" else "stream") as log:
            empty = (await overviews(store))["orders"]
            assert (empty.layout, empty.end, empty.end_is_known, empty.leader) == (layout, 0, True, None)
            async with log.lead("node-1") as writer:
                await writer.add_many([b"one", b"two"])
                led = (await overviews(store))["orders"]
                assert (led.leader, led.end, led.end_is_known, led.term) == ("node-1", 0, False, 1)
                await writer.roll()
                if layout == "stream":  # a chain notes where a segment ended with the roll after that
                    assert (await overviews(store))["orders"].end == 2
            if layout == "stream":
                await log.seal()
                sealed = (await overviews(store))["orders"]
                assert (sealed.end, sealed.end_is_known, sealed.bytes, sealed.sealed) == (2, True, 6, True)
            await log.truncate(1)
            assert (await overviews(store))["orders"].first_position == 1
            assert (await overview_of(store, "orders")) == (await overviews(store))["orders"]


async def test_logs_are_told_in_order_whatever_their_number() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        store = cluster.store
        names = [f"many/{number:03}" for number in range(LOGS_AT_A_TIME + 1)]
        for name in names:
            await client.create_log(name)
        await client.create_log("other")
        assert list(await overviews(store, "many/")) == names
        assert [name async for name in client.list_logs("many/")] == names
        assert await overviews(store, "few/") == {}


class Interposed:
    """A store that notes the requests, of which each glance at streams goes through ``before`` first."""

    def __init__(self, store: MetadataStore, before: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._before = before
        self.requests: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.requests.append(name)
        return getattr(self._store, name)

    async def glance_streams(self, ledger_ids: Sequence[LedgerId]) -> object:
        self.requests.append("glance_streams")
        await self._before()
        return await self._store.glance_streams(ledger_ids)


async def nothing() -> None:
    """Do nothing."""


@pytest.mark.parametrize("layout", ["chain", "stream"])
async def test_many_logs_take_as_few_requests_as_one(layout: Any) -> None:
    """One after another, ten thousand logs would take as many round trips."""
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        for number in range(20):
            await client.create_log(f"many/{number:02}", layout=layout)
        store: Any = Interposed(cluster.store, nothing)
        assert len(await overviews(store)) == 20
        assert store.requests == ["list_documents", "read_documents", "glance_streams", "read_locks"]


async def test_a_log_that_cannot_be_understood_hides_no_other() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        store = cluster.store
        for name in ("a", "b", "c"):
            await client.create_log(name)
        found = await store.read_document(list_document("a"))
        assert found is not None
        await store.compare_and_set_document(list_document("a"), b"{}", found.version)
        ledger_ids = [ledger_id async for ledger_id in client.list_ledgers()]
        await store.delete_ledger(ledger_ids[1])
        told = [log async for log in log_overviews(store, "")]
        assert [(type(log), log.name) for log in told] == [
            (UnreadableLog, "a"),
            (UnreadableLog, "b"),
            (LogOverview, "c"),
        ]
        assert isinstance(told[1], UnreadableLog)
        assert told[1].reason == "log b: its metadata are gone"


async def test_a_log_that_is_deleted_while_it_is_read_is_left_out() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        for name in ("a", "b"):
            await client.create_log(name)

        async def delete_a() -> None:
            if "a" in [name async for name in client.list_logs()]:
                await client.delete_log("a")

        store: Any = Interposed(cluster.store, delete_a)
        assert list(await overviews(store)) == ["b"]
        assert await overview_of(store, "a") is None
