"""What the pipeline deletes by age, where clocks are wrong (rule M5)."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from octavo.client.client import Client
from octavo.metadata import open_metadata_store
from octavo.pipeline.base.cluster import connected
from octavo.pipeline.base.datasets import SEGMENT_GRACE_SECONDS, DatasetStore, Tags, is_old
from octavo.pipeline.base.manifest import RECENT_MAX, Publication, PublishedLedger, encode_segment
from octavo.pipeline.base.options import parse_source_options
from octavo.protocol.ids import EntryId, LedgerId
from support.metadata.interposed_store import InterposedStore
from support.metadata.ledger_metadata import open_ledger
from support.metadata.memory_stores import memory_uri

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
UNSET = datetime(1970, 1, 1, 0, 5, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("created_at", "older_than_seconds", "old"),
    [
        (NOON - timedelta(hours=2), 3600.0, True),
        (NOON - timedelta(minutes=59), 3600.0, False),
        (NOON + timedelta(days=365), 3600.0, False),
        (UNSET, 3600.0, False),
        (UNSET, 0.0, True),
        (NOON + timedelta(days=365), 0.0, True),
    ],
)
def test_a_ledger_of_a_clock_that_was_never_set_is_not_old(
    created_at: datetime, older_than_seconds: float, old: bool
) -> None:
    assert is_old(created_at, NOON, older_than_seconds) is old


@dataclass
class Datasets:
    """Datasets in a store whose clock is off by ``store_off`` from this host's."""

    client: Client
    store: InterposedStore
    store_off: timedelta = timedelta()

    async def time_ms(self) -> int:
        return int((datetime.now(UTC) + self.store_off).timestamp() * 1000)

    @property
    def datasets(self) -> DatasetStore:
        return DatasetStore(self.client, self.store.face)

    async def ledger(self, age: timedelta, **tags: str) -> LedgerId:
        """A closed ledger of dataset ``d``, of this age by this host's clock."""
        ledger_id = await self.store.face.allocate_ledger_id()
        custom_metadata = {Tags.DATASET: b"d", **{getattr(Tags, key): value.encode() for key, value in tags.items()}}
        ledger = replace(
            open_ledger(ledger_id), created_at=datetime.now(UTC) - age, custom_metadata=custom_metadata
        ).closed(EntryId(0), 10)
        await self.store.face.create_ledger(ledger)
        return ledger_id

    async def cleaned(self, older_than_seconds: float = 3600.0) -> tuple[set[int], int]:
        """The ledgers and the number of segments that a clean-up deletes."""
        (cleaned,) = await self.datasets.clean("d", older_than_seconds=older_than_seconds)
        return set(cleaned.ledger_ids), cleaned.segments

    async def segment_without_a_head(self) -> None:
        """A job has written a segment, and has yet to write the head that names it."""

        async def stopped(*_arguments: object) -> object:
            raise asyncio.CancelledError

        self.store.interpose("put_document", stopped)
        ledgers = [PublishedLedger(1_000_000 + number, 1, 1) for number in range(RECENT_MAX + 1)]
        with pytest.raises(asyncio.CancelledError):
            await self.datasets.publish("d", Publication(ledgers, "job"))
        self.store.interpose("put_document", self.store.real.put_document)
        (_segment,) = [name async for name in self.store.face.list_documents("datasets/d/segments/")]


@pytest.fixture
async def world() -> AsyncIterator[Datasets]:
    uri = memory_uri("cleaning")
    async with await open_metadata_store(uri, create=True) as store:
        options = parse_source_options({"metadata": uri, "ledgers": "all"})
        async with connected(options.cluster) as client:
            made = Datasets(client, InterposedStore(store))
            made.store.interpose("time_ms", made.time_ms)
            yield made


@pytest.mark.parametrize("store_off", [DAY, -DAY, timedelta()])
async def test_a_ledger_is_deleted_only_if_it_is_old_by_this_hosts_clock_and_by_the_stores(
    world: Datasets, store_off: timedelta
) -> None:
    young, old, ancient = [await world.ledger(age) for age in (timedelta(), timedelta(hours=2), 2 * DAY)]
    world.store_off = store_off
    deleted, _ = await world.cleaned()
    assert deleted == ({ancient} if store_off < timedelta() else {old, ancient})
    assert young not in deleted


async def test_a_young_ledger_is_deleted_only_if_its_own_job_or_batch_was_published_without_it(
    world: Datasets,
) -> None:
    published, loser, running = [await world.ledger(timedelta(), JOB=job) for job in ("a", "a", "b")]
    query = {"QUERY": "q", "JOB": "q"}
    repeated, next_batch = [await world.ledger(timedelta(), BATCH=batch, **query) for batch in ("3", "4")]
    publish = world.datasets.publish
    await publish("d", Publication([PublishedLedger(published, 1, 10)], "a"))
    await publish("d", Publication([], "q", 3))
    deleted, _ = await world.cleaned()
    assert deleted == {loser, repeated}
    assert {published, running, next_batch}.isdisjoint(deleted)


@pytest.mark.parametrize("at_cleaning", [DAY, -DAY, timedelta()])
@pytest.mark.parametrize("at_writing", [DAY, -DAY, timedelta()])
async def test_a_segment_that_a_head_is_about_to_name_stays_whatever_the_stores_clock_says(
    world: Datasets, at_writing: timedelta, at_cleaning: timedelta
) -> None:
    await world.ledger(timedelta())
    world.store_off = at_writing
    await world.segment_without_a_head()
    world.store_off = at_cleaning
    assert await world.cleaned() == (set(), 0)


async def test_a_segment_that_no_head_names_is_deleted_once_it_is_old(world: Datasets) -> None:
    await world.ledger(timedelta())
    written_at = datetime.now(UTC).timestamp() - SEGMENT_GRACE_SECONDS - 60.0
    segment = encode_segment([PublishedLedger(1_000_000, 1, 1)], written_at=written_at)
    await world.store.face.create_document("datasets/d/segments/old", segment)
    assert await world.cleaned() == (set(), 1)
    assert await world.cleaned() == (set(), 0)
