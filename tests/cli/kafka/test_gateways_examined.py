"""`octavo doctor` on gateways: the way to each, its certificate, and who may use it."""

import asyncio
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from octavo.cli.doctor import Finding, gateways_of
from octavo.gateway.access.access import GatewayAccess
from octavo.gateway.leading.gateways import gateway_lock
from octavo.gateway.topics.document import Topic, topic_document
from octavo.gateway.wire.server import TlsListener
from octavo.security.contexts import server_context
from octavo.security.tls_port import ArrivalLimits
from support.clusters.certificates import Certificates, days_ago
from support.clusters.gateway_cluster import GatewayCluster, open_gateway_cluster

ELSEWHERE = "127.1"
"""Leads here, and is no address of which a command knows that."""


@pytest.fixture
async def cluster() -> AsyncIterator[GatewayCluster]:
    async with open_gateway_cluster() as made:
        yield made


def listener(folder: Path, *, days: float = 300, optional: bool = False) -> TlsListener:
    context = server_context(Certificates(folder).server(days=days))
    return TlsListener(lambda: context, optional, ArrivalLimits())


async def found(cluster: GatewayCluster) -> dict[str, Finding]:
    """The findings about gateway 1, but for the way to it, by what was checked."""
    way, *others = await gateways_of(cluster.logs.store)
    assert (way.check, way.result) == ("gateway 1", "ok")
    return {one.check: one for one in others}


async def test_doctor_connects_to_each_gateway(cluster: GatewayCluster) -> None:
    store = cluster.logs.store
    assert await gateways_of(store) == []
    await store.create_document(topic_document("orders"), Topic("orders", "0" * 32, 1, 1, 1).encode())
    (found,) = await gateways_of(store)
    assert (found.check, found.result) == ("gateways", "warning")
    await cluster.gateway()
    assert await store.try_lock(gateway_lock(7), "127.0.0.1:1 a gateway that listens nowhere") is not None
    first, seventh = await gateways_of(store)
    assert (first.check, first.result) == ("gateway 1", "ok")
    assert (seventh.check, seventh.result) == ("gateway 7", "failed")
    assert "127.0.0.1:1 cannot be reached from this host" in seventh.detail


async def test_a_gateway_of_this_host_needs_no_access_control(cluster: GatewayCluster) -> None:
    await cluster.gateway()
    assert await found(cluster) == {}


@pytest.mark.parametrize("speaks", ["plain", "tls", "either"])
async def test_a_gateway_of_other_hosts_without_access_control_is_a_warning(
    cluster: GatewayCluster, tmp_path: Path, speaks: str
) -> None:
    tls = None if speaks == "plain" else listener(tmp_path, optional=speaks == "either")
    await cluster.gateway(advertised_host=ELSEWHERE, tls=tls)
    access = (await found(cluster))["access to gateway 1"]
    assert access.result == "warning"
    assert "serves clients that do not say who they are" in access.detail
    assert "--auth none" in access.detail


@pytest.mark.parametrize("speaks", ["plain", "tls"])
async def test_a_gateway_that_serves_principals_only_is_fine(
    cluster: GatewayCluster, tmp_path: Path, speaks: str
) -> None:
    tls = None if speaks == "plain" else listener(tmp_path)
    await cluster.gateway(advertised_host=ELSEWHERE, access=GatewayAccess(required=True), tls=tls)
    access = (await found(cluster))["access to gateway 1"]
    assert (access.result, access.detail.endswith("serves principals only")) == ("ok", True)


@pytest.mark.parametrize(
    ("days", "result", "text"),
    [(300, "ok", "expires in 299 days"), (5, "warning", "expires in 4 days")],
)
async def test_the_certificate_of_a_gateway_is_looked_at(
    cluster: GatewayCluster, tmp_path: Path, days: float, result: str, text: str
) -> None:
    await cluster.gateway(tls=listener(tmp_path, days=days))
    certificate = (await found(cluster))["certificate of gateway 1"]
    assert certificate.result == result
    assert text in certificate.detail


async def test_a_certificate_that_has_expired_while_the_gateway_ran_is_named(
    cluster: GatewayCluster, tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Certificates(tmp_path).issue("server", now=days_ago(30), days=29))
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        assert await cluster.logs.store.try_lock(gateway_lock(1), f"127.0.0.1:{port} a gateway") is not None
        certificate = (await found(cluster))["certificate of gateway 1"]
    assert (certificate.result, certificate.detail) == ("failed", "has expired; write a new one over its file")


async def test_a_port_that_says_nothing_is_no_gateway(cluster: GatewayCluster) -> None:

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await cluster.logs.store.try_lock(gateway_lock(1), f"127.0.0.1:{port} a port") is not None
    _, access = await gateways_of(cluster.logs.store, seconds_max=0.05)
    assert (access.check, access.result) == ("access to gateway 1", "failed")
    assert "does not answer: no answer" in access.detail
    server.close()


def test_without_the_extra_of_gateways_the_check_says_so() -> None:
    program = """
import asyncio, sys
sys.modules["kio"] = None
from octavo.cli import doctor
from octavo.gateway.leading.gateways import GatewayAddress
async def main():
    async with await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0) as server:
        print(await doctor._gateway(GatewayAddress(1, "127.0.0.1", server.sockets[0].getsockname()[1]), 9.0))
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "install Octavo with its extra `kafka` here" in done.stdout
