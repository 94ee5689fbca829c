"""TLS to ZooKeeper: from a ``zk+tls://`` URI and the environment to a protected connection."""

import asyncio
import os
from collections.abc import Callable, Mapping

from octavo.metadata.zookeeper.connection import AnswerLostError, Connection
from octavo.metadata.zookeeper.layout import Address
from octavo.protocol.errors import OctavoError, UnauthorizedError
from octavo.security.contexts import ClientFiles
from octavo.security.tls_options import Tls
from octavo.security.tls_session import TlsSession
from octavo.security.tls_transport import TlsProtocol

VARIABLES = {part: f"OCTAVO_ZOOKEEPER_TLS_{part.upper()}" for part in ("ca", "certificate", "key")}
"""Environment variables with the files that the URI does not name."""


def tls_files(address: Address, environment: Mapping[str, str] = os.environ) -> ClientFiles | None:
    """The files for a cluster's servers, read; None for a URI without TLS. Raises :class:`InvalidArgumentError` for
    files that cannot be used."""
    if address.tls is None:
        return None
    given = {part: address.tls.get(part) or environment.get(name) or None for part, name in VARIABLES.items()}
    return ClientFiles(Tls(ca=given["ca"], certificate=given["certificate"], key=given["key"]))


async def connect(connection: Connection, host: str, port: int, files: ClientFiles | None) -> None:
    """Connect, and complete the TLS handshake if there are files. The server's certificate must be for the host.

    Raises OSError, :class:`AnswerLostError`, and :class:`UnauthorizedError` for a certificate that one side refuses.
    """
    loop = asyncio.get_running_loop()
    if files is None:
        await loop.create_connection(lambda: connection, host, port)
        return
    ready: asyncio.Future[None] = loop.create_future()
    protocol = TlsProtocol(
        TlsSession(files.context(), server_side=False, server_hostname=host),
        connection,
        established=lambda _session: _settle(ready),
        failed=_failed(ready),
    )
    transport, _ = await loop.create_connection(lambda: protocol, host, port)
    try:
        await ready
    except BaseException:
        transport.abort()
        raise


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _failed(ready: asyncio.Future[None]) -> Callable[[OctavoError], None]:
    def failed(error: OctavoError) -> None:
        if not ready.done():
            # A server that does not speak TLS may be a wrong one among right ones; a refused certificate is final.
            lost = error if isinstance(error, UnauthorizedError) else AnswerLostError(error.message)
            ready.set_exception(lost)

    return failed
