"""The connection of a command to a gateway: TLS, the key, and gateways that have neither."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from octavo.cli.kafka.connection import ClosedError, GatewayConnection
from octavo.cli.kafka.protection import Protection
from octavo.gateway.access.access import GatewayAccess
from octavo.gateway.gateway import Gateway
from octavo.gateway.wire.apis import Api
from octavo.gateway.wire.server import TlsListener
from octavo.protocol.errors import UnauthorizedError
from octavo.security.contexts import server_context
from octavo.security.roles import Role
from octavo.security.scram import Key
from octavo.security.tls_port import ArrivalLimits
from support.clusters.certificates import STRANGER, Certificates
from support.clusters.gateway_cluster import GatewayCluster, open_gateway_cluster
from support.kafka.sasl import key_of, principal, principals

HERE = "127.0.0.1"
ELSEWHERE = "127.1"
"""Leads here, and is no address of which a command knows that."""


@pytest.fixture
async def cluster() -> AsyncIterator[GatewayCluster]:
    async with open_gateway_cluster() as made:
        yield made


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def access() -> GatewayAccess:
    made = GatewayAccess(required=True)
    made.update(principals(principal("boss", roles=frozenset({Role.ADMIN}))))
    return made


def key_file(folder: Path, key: Key) -> str:
    path = folder / "used.key"
    path.touch(0o600)
    path.write_text(key.to_text())
    return str(path)


async def secure_gateway(cluster: GatewayCluster, certificates: Certificates, **what: object) -> Gateway:
    context = server_context(certificates.server(**what))  # type: ignore[arg-type]
    return await cluster.gateway(access=access(), tls=TlsListener(lambda: context, False, ArrivalLimits()))


async def groups_at(gateway: Gateway, protection: Protection, host: str = HERE) -> bool:
    """Whether the gateway was asked over TLS; raises what the connection raises."""
    connection = await GatewayConnection.open(host, gateway.port, protection)
    try:
        answer = await connection.ask(Api.LIST_GROUPS, {})
        assert answer.error_code.value == 0
        return connection.over_tls
    finally:
        connection.close()


async def test_a_key_over_tls(cluster: GatewayCluster, certificates: Certificates, tmp_path: Path) -> None:
    gateway = await secure_gateway(cluster, certificates)
    boss = key_file(tmp_path, key_of("boss"))
    assert await groups_at(gateway, Protection(certificates.client(), boss))
    with pytest.raises(ClosedError):
        await groups_at(gateway, Protection(certificates.client()))
    with pytest.raises(UnauthorizedError, match="the name or the key is wrong"):
        await groups_at(gateway, Protection(certificates.client(), key_file(tmp_path, Key("boss", key_of("x").secret))))


async def test_a_certificate_is_enough_also_beside_a_key(
    cluster: GatewayCluster, certificates: Certificates, tmp_path: Path
) -> None:
    gateway = await secure_gateway(cluster, certificates)
    assert await groups_at(gateway, Protection(certificates.client("boss")))
    assert await groups_at(gateway, Protection(certificates.client("boss"), key_file(tmp_path, key_of("boss"))))


@pytest.mark.parametrize("what", [{"authority": STRANGER}, {"hosts": ("elsewhere",)}])
@pytest.mark.parametrize("verify", ["host", "bookie-id"])
async def test_a_gateway_must_have_a_certificate_for_its_host(
    cluster: GatewayCluster, certificates: Certificates, what: dict[str, object], verify: str
) -> None:
    gateway = await secure_gateway(cluster, certificates, **what)
    with pytest.raises(OSError, match="certificate verify failed"):
        await groups_at(gateway, Protection(certificates.client(verify=verify)))


async def test_a_key_within_one_host_without_tls(cluster: GatewayCluster, tmp_path: Path) -> None:
    gateway = await cluster.gateway(access=access())
    assert not await groups_at(gateway, Protection(None, key_file(tmp_path, key_of("boss"))))


async def test_a_gateway_of_this_host_without_tls_and_principals_serves_also_who_has_both(
    cluster: GatewayCluster, certificates: Certificates, tmp_path: Path
) -> None:
    gateway = await cluster.gateway()
    assert not await groups_at(gateway, Protection(certificates.client(), key_file(tmp_path, key_of("boss"))))


async def test_nothing_is_said_without_tls_to_another_host_that_does_not_speak_it(
    cluster: GatewayCluster, certificates: Certificates, tmp_path: Path
) -> None:
    gateway = await cluster.gateway(access=access())
    boss = key_file(tmp_path, key_of("boss"))
    with pytest.raises(ConnectionError, match="it may not speak TLS"):
        await groups_at(gateway, Protection(certificates.client(), boss), ELSEWHERE)
    with pytest.raises(ClosedError):  # the key is not used
        await groups_at(gateway, Protection(None, boss), ELSEWHERE)
