"""Tasks whose metadata lag behind the plan do not take for lost what exists (``pipeline/source/reading.py``)."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from octavo.client.client import Client
from octavo.metadata.store.values import Versioned
from octavo.pipeline.base.errors import DataLossError
from octavo.pipeline.base.options import ClusterOptions
from octavo.pipeline.base.planning import EntryRange
from octavo.pipeline.source.log_scan import log_pieces
from octavo.pipeline.source.reading import ReadTask, read_with
from octavo.protocol.errors import MetadataUnavailableError, NoSuchLedgerError
from octavo.protocol.ids import BookieId, LedgerId
from support.clusters.log_cluster import LogCluster, collect, open_log_cluster
from support.metadata.interposed_store import InterposedStore
from support.metadata.metadata_clusters import MemoryCluster

OPTIONS = ClusterOptions("memory://unused")


@pytest.fixture
async def logs() -> AsyncIterator[LogCluster]:
    async with open_log_cluster(MemoryCluster(Path()), "stream") as made:
        yield made


class Lag:
    """Single reads of a store answer from the past, until the store must be current."""

    def __init__(self, store: InterposedStore, **answers: Any) -> None:
        """``answers``: by method, a value of the past or an error."""
        self.catch_ups = 0
        self._store = store
        for method, answer in answers.items():
            self._lag(method, answer)
        store.interpose("confirm_absent", self._confirm_absent)

    def _lag(self, method: str, answer: Any) -> None:
        async def old(*_arguments: object) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        self._store.interpose(method, old)

    async def _confirm_absent(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerId]:
        self.catch_ups += 1
        self._store.restore()
        self._store.interpose("confirm_absent", self._confirm_absent)
        return await self._store.real.confirm_absent(ledger_ids)


async def values(client: Client, task: ReadTask) -> list[bytes | None]:
    return [value async for batch in read_with(client, task) for value in batch.column("value").to_pylist()]


def task_of(*ranges: EntryRange, fail_on_data_loss: bool, log: str | None = None) -> ReadTask:
    return ReadTask(OPTIONS, ranges, ("value",), fail_on_data_loss, log, through_log=log is not None)


@pytest.mark.parametrize("fail_on_data_loss", [False, True])
async def test_entries_of_a_leader_that_lagging_metadata_do_not_tell_of(
    logs: LogCluster, *, fail_on_data_loss: bool
) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add_many([b"0", b"1"])
    before = await logs.stored_root()
    async with log.lead() as writer:
        await writer.add_many([b"2", b"3"])
    await collect(log, 0, 4)
    planned = await log_pieces(await logs.client(), log, OPTIONS, first=0, last=3)
    client, store = await logs.interposed_client()
    lag = Lag(store, read_stream=before)
    ranges = [piece.range for piece in planned.pieces]
    task = task_of(*ranges, fail_on_data_loss=fail_on_data_loss, log="orders")
    assert await values(client, task) == [b"0", b"1", b"2", b"3"]
    assert lag.catch_ups == 1


@pytest.mark.parametrize("fail_on_data_loss", [False, True])
async def test_a_log_that_lagging_metadata_do_not_tell_of(logs: LogCluster, *, fail_on_data_loss: bool) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add_many([b"0", b"1"])
    planned = await log_pieces(await logs.client(), log, OPTIONS, first=0, last=1)
    client, store = await logs.interposed_client()
    Lag(store, read_document=None)
    ranges = [piece.range for piece in planned.pieces]
    task = task_of(*ranges, fail_on_data_loss=fail_on_data_loss, log="orders")
    assert await values(client, task) == [b"0", b"1"]


@pytest.mark.parametrize("fail_on_data_loss", [False, True])
async def test_a_ledger_that_lagging_metadata_do_not_tell_of(logs: LogCluster, *, fail_on_data_loss: bool) -> None:
    async with (await logs.client()).create_ledger() as writer:
        for payload in (b"0", b"1"):
            await writer.add(payload)
    client, store = await logs.interposed_client()
    lag = Lag(store, read_ledger=NoSuchLedgerError(f"ledger {writer.id} does not exist"))
    task = task_of(EntryRange(writer.id, 0, 1), fail_on_data_loss=fail_on_data_loss)
    assert await values(client, task) == [b"0", b"1"]
    assert lag.catch_ups == 1


@pytest.mark.parametrize("fail_on_data_loss", [False, True])
async def test_entries_on_bookies_that_lagging_metadata_do_not_name(*, fail_on_data_loss: bool) -> None:
    async with open_log_cluster(MemoryCluster(Path()), "stream", 6) as logs:
        client, store = await logs.interposed_client()
        async with client.create_ledger() as writer:
            await writer.add(b"0")
        now = await store.real.read_ledger(writer.id)
        (fragment,) = now.value.fragments
        others = tuple(BookieId(one.bookie_id) for one in logs.bookies if one.bookie_id not in fragment.bookies)
        elsewhere = replace(now.value, fragments=(replace(fragment, bookies=others),))
        lag = Lag(store, read_ledger=Versioned(elsewhere, now.version))
        task = task_of(EntryRange(writer.id, 0, 0), fail_on_data_loss=fail_on_data_loss)
        assert await values(client, task) == [b"0"]
        assert lag.catch_ups == 1


async def test_what_is_lost_is_believed_after_one_more_try_for_the_whole_task(logs: LogCluster) -> None:
    client, store = await logs.interposed_client()
    async with client.create_ledger() as writer:
        await writer.add(b"0")
    await client.delete_ledger(writer.id)
    lag = Lag(store)
    lost = [EntryRange(writer.id, 0, 1), EntryRange(writer.id, 2, 3)]
    assert await values(client, task_of(*lost, fail_on_data_loss=False)) == [None] * 4
    assert lag.catch_ups == 1
    with pytest.raises(DataLossError, match=f"ledger {writer.id} entry 0 cannot be read"):
        await values(client, task_of(*lost, fail_on_data_loss=True))


async def test_nothing_is_believed_while_the_metadata_cannot_be_caught_up_with(logs: LogCluster) -> None:
    client, store = await logs.interposed_client()
    async with client.create_ledger() as writer:
        await writer.add(b"0")
    Lag(store, read_ledger=NoSuchLedgerError(f"ledger {writer.id} does not exist"))
    store.make_unavailable("confirm_absent")
    with pytest.raises(MetadataUnavailableError):
        await values(client, task_of(EntryRange(writer.id, 0, 0), fail_on_data_loss=False))
