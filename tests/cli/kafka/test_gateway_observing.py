"""Health and metrics of a gateway over HTTP: what is answered to whom; and what `octavo doctor` says of gateways."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from octavo.bookie.admin.http_messages import HttpError, HttpRequest
from octavo.bookie.admin.process import ProcessStatistics
from octavo.cli.kafka.observing import Observed, observing_address
from octavo.cli.own_host import Address
from octavo.metrics import table
from octavo.metrics.table import GATEWAY_METRICS
from octavo.protocol.errors import InvalidArgumentError
from support.clusters.gateway_cluster import GatewayCluster, open_gateway_cluster

HERE = Address("127.0.0.1", 9180)


def request(target: str, method: str = "GET", **headers: str) -> HttpRequest:
    return HttpRequest(method=method, target=target, headers={"host": "127.0.0.1:9180"} | headers, trusted=False)


@pytest.fixture
async def cluster() -> AsyncIterator[GatewayCluster]:
    async with open_gateway_cluster() as made:
        yield made


async def asked(observed: Observed, target: str) -> tuple[int, Any]:
    answer = await observed.answer(request(target))
    return answer.status, json.loads(answer.body)


async def test_a_gateway_is_ready_while_it_serves(cluster: GatewayCluster) -> None:
    observed = Observed(HERE, ProcessStatistics())
    assert await asked(observed, "/healthz") == (200, {"healthy": True, "reasons": []})
    assert await asked(observed, "/readyz") == (503, {"ready": False, "reasons": ["the gateway is starting"]})
    observed.gateway = gateway = await cluster.gateway()
    assert await asked(observed, "/readyz?verbose") == (200, {"ready": True, "reasons": []})
    await cluster.lose_leases_of(gateway)
    status, said = await asked(observed, "/readyz")
    assert (status, said["reasons"]) == (503, ["the gateway is stopping, or its lease has ended"])


async def test_all_metrics_of_the_gateway_and_its_process_are_exposed(cluster: GatewayCluster) -> None:
    observed = Observed(HERE, ProcessStatistics())
    before = (await observed.answer(request("/metrics"))).body.decode()
    assert f"# TYPE {table.PROCESS_OPEN_FDS.name} gauge" in before
    assert table.GATEWAY_SERVES.name not in before
    observed.gateway = await cluster.gateway()
    text = (await observed.answer(request("/metrics", "HEAD"))).body.decode()
    absent = {table.GATEWAY_REQUESTS, table.GATEWAY_REQUEST_SECONDS}  # there were none
    absent |= {table.GATEWAY_GROUP_LAG, table.GATEWAY_GROUP_BEHIND_SECONDS}  # there are no groups
    names = {metric.name for metrics in GATEWAY_METRICS.values() for metric in metrics if metric not in absent}
    assert [name for name in names | {table.PROCESS_CPU_SECONDS.name} if f"# TYPE {name} " not in text] == []


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (request("/metrics", host="evil.example"), 403),
        (request("/"), 404),
        (request("/metrics/"), 404),
        (request("/metrics", "POST"), 405),
        (request("/metrics", host="localhost"), 200),
    ],
)
async def test_what_is_no_probe_is_refused(asked: HttpRequest, status: int) -> None:
    observed = Observed(HERE, ProcessStatistics())
    try:
        found = (await observed.answer(asked)).status
    except HttpError as error:
        found = error.status
    assert found == status


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9180", HERE), ("localhost:0", Address("127.0.0.1", 0)), ("[::1]:9180", Address("::1", 9180))],
)
def test_loopback_addresses_are_taken(text: str, address: Address) -> None:
    assert observing_address(text) == address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0.0.0.0:9180", "on a loopback address only"), ("example.org:9180", "on a loopback address only"),
        ("9180", "HOST:PORT"), ("127.0.0.1:99999", "HOST:PORT"), ("127.0.0.1:", "HOST:PORT"),
    ],
)  # fmt: skip
def test_other_addresses_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        observing_address(text)
