"""Looks at a gateway from outside, as any client could: its certificate, and whether it serves strangers.

Nothing secret is said, so certificates need not be trusted here.
"""

import asyncio
import ssl
from contextlib import suppress
from typing import Final, NamedTuple

from octavo.cli.kafka.connection import GatewayConnection
from octavo.gateway.wire.apis import Api
from octavo.gateway.wire.fields import MalformedError

_EXPIRED: Final = 10
"""The number of this reason in OpenSSL."""


class Examined(NamedTuple):
    """The facts about a gateway that any client can find out."""

    expires_at: float | None
    """When its certificate expires, in seconds since 1970; 0: it has expired; None: the gateway speaks no TLS."""
    serves_strangers: bool
    """Whether it answers requests of a client that has not been authenticated."""


async def examine_gateway(host: str, port: int, *, seconds_max: float) -> Examined:
    """Connect to a gateway, with TLS and without, and ask it for its groups. ``seconds_max``: for all of it.

    Raises:
        OSError: It cannot be reached; TimeoutError is one.
    """
    async with asyncio.timeout(seconds_max):
        certificate = await _certificate(host, port)
        expires_at = None if certificate is None else await _expiry(host, port, certificate)
        return Examined(expires_at, await _serves_strangers(host, port, over_tls=certificate is not None))


def _trusting_all() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _certificate(host: str, port: int) -> bytes | None:
    """None: the gateway speaks no TLS."""
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=_trusting_all())
    except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError):
        return None
    found: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return found


async def _expiry(host: str, port: int, certificate: bytes) -> float:
    """The facts of a certificate are told to who trusts it: so trust this one, and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate)
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _EXPIRED:
            return 0.0
        raise
    facts = writer.get_extra_info("ssl_object").getpeercert()
    writer.close()
    return float(ssl.cert_time_to_seconds(facts["notAfter"]))


async def _serves_strangers(host: str, port: int, *, over_tls: bool) -> bool:
    reader, writer = await asyncio.open_connection(host, port, ssl=_trusting_all() if over_tls else None)
    connection = GatewayConnection(reader, writer)
    try:
        with suppress(ConnectionError, MalformedError):  # it closes the connection of a stranger
            await connection.ask(Api.LIST_GROUPS, {})
            return True
    finally:
        connection.close()
    return False
