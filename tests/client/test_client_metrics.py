"""What a client counts, and how it is handed to prometheus_client and OpenTelemetry."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.bookie.disk.filesystem import RealFileSystem
from octavo.client.client import Client
from octavo.metadata import MetadataStore, open_metadata_store
from octavo.metrics.export import client_metrics
from octavo.protocol.errors import OctavoError, QuorumLostError
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.forks import in_child

import octavo


@asynccontextmanager
async def running_bookie(directory: Path, store: MetadataStore, seed: int) -> AsyncIterator[Bookie]:
    config = load_config(None, {}, {"data_dir": directory, "port": 0, "journal_segment_bytes": 16 << 20})
    filesystem = RealFileSystem()
    bookie = await Bookie.start(config, filesystem=filesystem, store=store, rng=random.Random(seed), software="0-test")
    try:
        yield bookie
    finally:
        await bookie.stop()
        await filesystem.close()


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}"


@pytest.fixture
async def bookies(tmp_path: Path, uri: str) -> AsyncIterator[list[Bookie]]:
    """Four bookies of one cluster."""
    async with await open_metadata_store(uri, create=True) as store:
        started = [running_bookie(tmp_path / str(seed), store, seed) for seed in range(4)]
        bookies = [await bookie.__aenter__() for bookie in started]
        yield bookies
        for bookie in started:
            await bookie.__aexit__(None, None, None)


@pytest.fixture
async def client(bookies: list[Bookie], uri: str) -> AsyncIterator[Client]:
    async with octavo.connect(uri, request_timeout_seconds=5.0) as connected:
        yield connected


async def test_a_snapshot_has_every_metric_of_the_table(client: Client) -> None:
    assert list(client.metrics()) == [metric.name for metric in client_metrics()]


async def test_adds_are_counted_when_they_are_acknowledged(client: Client) -> None:
    async with client.create_ledger(3, 3, 2) as ledger:
        await ledger.add_many([b"12345"] * 100)
        found = client.metrics()
        assert found["octavo_client_adds_total"] == {"acknowledged": 100, "failed": 0}
        assert found["octavo_client_added_bytes_total"] == 500
        assert found["octavo_client_window_entries"] == 0
        seconds = found["octavo_client_add_seconds"]
        assert seconds["count"] == sum(seconds["buckets"]) >= 1
        assert 0 < seconds["sum"] < 60
    assert client.metrics()["octavo_client_metadata_seconds"]["create_ledger"]["count"] == 1


async def test_adds_that_do_not_reach_their_quorum_fail_with_their_writer(bookies: list[Bookie], uri: str) -> None:
    async with octavo.connect(uri, add_quorum_timeout_seconds=2.0) as client:
        writer = await client.create_ledger(3, 3, 3)
        await writer.add(b"a")
        for bookie in bookies[:2]:
            await bookie.stop()
        adding = [writer.add_nowait(b"b") for _ in range(3)]
        await asyncio.gather(*adding, return_exceptions=True)
        found = client.metrics()
        assert found["octavo_client_adds_total"] == {"acknowledged": 1, "failed": 3}
        assert found["octavo_client_window_entries"] == 0
        with pytest.raises(QuorumLostError):
            await writer.close()


async def test_recoveries_are_counted_and_what_they_write_back_is_no_add(client: Client, uri: str) -> None:
    writer = await client.create_ledger(3, 3, 2)
    await writer.add_many([b"a"] * 10)
    async with octavo.connect(uri) as other:
        await other.open_ledger(writer.id)  # fences and closes it
        found = other.metrics()
        assert found["octavo_client_recoveries_total"] == {"closed": 1, "failed": 0}
        assert found["octavo_client_adds_total"] == {"acknowledged": 0, "failed": 0}
        assert found["octavo_client_window_entries"] == 0
    with contextlib.suppress(OctavoError):
        await writer.close()


async def test_entries_read_are_counted(client: Client) -> None:
    async with client.create_ledger(3, 3, 2) as ledger:
        await ledger.add_many([b"a"] * 50)
    async with client.open_ledger(ledger.id) as reader:
        assert len(await reader.read(0, 49)) == 50
    assert client.metrics()["octavo_client_entries_read_total"] == 50


async def test_a_bookie_that_goes_is_replaced_and_its_connection_counted(client: Client, bookies: list[Bookie]) -> None:
    writer = await client.create_ledger(3, 3, 3)
    await writer.add(b"a")
    gone = next(bookie for bookie in bookies if bookie.bookie_id in writer.metadata.last_fragment.bookies)
    await gone.stop()
    await writer.add(b"b")
    found = client.metrics()
    assert sum(found["octavo_client_ensemble_changes_total"].values()) == 1
    assert sum(found["octavo_client_reconnects_total"].values()) >= 1
    assert "BookieUnavailable" in found["octavo_client_reconnects_total"]
    await writer.close()


async def test_prometheus_exposes_what_the_client_counts(client: Client) -> None:
    registry = CollectorRegistry()
    unregister = octavo.metrics.register(client, registry)
    async with client.create_ledger(3, 3, 2) as ledger:
        await ledger.add_many([b"a"] * 10)
        text = generate_latest(registry).decode()
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["octavo_client_adds_total", "acknowledged"] == 10
    assert samples["octavo_client_add_seconds_bucket", "+Inf"] == samples["octavo_client_add_seconds_count",] >= 1
    assert samples["octavo_client_metadata_seconds_count", "create_ledger"] == 1
    with pytest.raises(ValueError, match="uplicated"):
        octavo.metrics.register(client, registry)
    assert in_child(lambda: generate_latest(registry).decode()) == "", "the counts are the parent's"
    unregister()
    assert b"octavo_client" not in generate_latest(registry)


async def test_opentelemetry_observes_what_the_client_counts(client: Client) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    octavo.metrics.instrument_otel(client, provider.get_meter("octavo"))
    async with client.create_ledger(3, 3, 2) as ledger:
        await ledger.add_many([b"a"] * 10)
        found = _otel_values(cast(Any, reader.get_metrics_data()))
    assert found["octavo_client_adds_total"] == {"acknowledged": 10, "failed": 0}
    assert found["octavo_client_add_seconds_count"][""] >= 1
    assert found["octavo_client_metadata_seconds_sum"]["create_ledger"] > 0
    assert found["octavo_client_window_entries"] == {"": 0}
    assert in_child(lambda: type(client.metrics())).startswith("ForkedError: ")
    provider.shutdown()


def _otel_values(data: Any) -> Mapping[str, Mapping[str, float]]:
    return {
        metric.name: {"".join(map(str, point.attributes.values())): point.value for point in metric.data.data_points}
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


async def test_a_client_without_work_has_zeros(client: Client) -> None:
    found = client.metrics()
    assert found["octavo_client_adds_total"] == {"acknowledged": 0, "failed": 0}
    assert found["octavo_client_ensemble_changes_total"] == {}
