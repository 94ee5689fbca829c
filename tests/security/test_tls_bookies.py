"""Bookies that speak TLS, over real sockets: both kinds at one port, refusals, rotation, floods of connections."""

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator, MutableMapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.bookie.identity.errors import BookieStartError
from octavo.protocol.errors import InvalidArgumentError, OctavoError, UnauthorizedError
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import MAGIC, PROTOCOL_VERSION, Hello, Ping, Pong, decode_hello, encode_hello
from octavo.security.contexts import client_context
from octavo.security.tls_options import Tls
from octavo.security.tls_session import TlsSession
from support.clusters.certificates import STRANGER, Certificates, days_ago
from support.clusters.tls_bookies import Cluster, cluster_of, start_bookie, tls_settings
from support.disks.faulty_filesystem import MemoryFileSystem
from support.raw_client import RawClient, add, read, seal
from support.waiting import WAIT_SECONDS, eventually

import octavo

pytestmark = pytest.mark.usefixtures("logged")


@pytest.fixture
async def cluster(certificates: Certificates) -> AsyncIterator[Cluster]:
    async with cluster_of(*(tls_settings(certificates.server(f"b{number}")) for number in (1, 2, 3))) as cluster:
        yield cluster


async def test_a_copy_of_a_bookie_that_speaks_only_tls_does_not_start_beside_it(
    cluster: Cluster, certificates: Certificates
) -> None:
    """Rule B10: what asks for the original speaks no TLS, and the refusal shows that a bookie is there."""
    disk = MemoryFileSystem()
    settings = tls_settings(certificates.server("b9"))
    original = await start_bookie(cluster.store, 9, filesystem=disk, **settings)
    copy = MemoryFileSystem()
    for path in disk.files():
        copy.set_content(path, disk.content(path))
    with pytest.raises(BookieStartError, match=f"b9 may be running at {original.address}.*may be a copy") as refusal:
        await start_bookie(cluster.store, 9, filesystem=copy, **settings)
    assert refusal.value.retryable
    await original.stop()
    again = await start_bookie(cluster.store, 9, filesystem=copy, **settings)
    await again.stop()


def port_of(bookie: Bookie) -> int:
    return int(bookie.address.rpartition(":")[2])


def plain_client_of(bookie: Bookie) -> RawClient:
    return RawClient("127.0.0.1", port_of(bookie))


class TlsClient(RawClient):
    """A client of one TLS connection, by asyncio's own TLS and not ours."""

    def __init__(self, bookie: Bookie, tls: Tls) -> None:
        super().__init__("127.0.0.1", port_of(bookie))
        self._tls = client_context(tls)

    async def __aenter__(self) -> "TlsClient":
        self.reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", self._port, limit=1 << 24, ssl=self._tls, server_hostname="localhost"
        )
        return self


def outcomes(bookie: Bookie) -> dict[str, int]:
    assert bookie.tls_arrivals is not None
    return dict(bookie.tls_arrivals.outcomes)


async def write_and_read(cluster: Cluster, **options: object) -> None:
    payloads = [b"small", bytes(3 << 20), b"", *(b"%d" % number for number in range(300))]
    async with cluster.client(**options) as client:
        async with client.create_ledger(3, 3, 2) as ledger:
            acknowledged = [ledger.add(payload) for payload in payloads]
            await asyncio.gather(*acknowledged)
        async with client.open_ledger(ledger.id) as reader:
            assert [entry.payload async for entry in reader] == payloads


async def denied(cluster: Cluster, **options: object) -> OctavoError:
    """The error of a client that asks a bookie for something."""
    async with asyncio.timeout(WAIT_SECONDS), cluster.client(**options) as client:
        with pytest.raises(OctavoError) as caught:
            await client.read_replica("b1", 1, 0, 1)
        return caught.value


async def test_a_ledger_is_written_and_read_over_tls(cluster: Cluster, certificates: Certificates) -> None:
    await write_and_read(cluster, tls=certificates.client("writer"))
    assert all(outcomes(bookie).keys() == {"ok"} for bookie in cluster.bookies)


async def test_one_port_serves_both_kinds_while_tls_is_optional(certificates: Certificates) -> None:
    files = certificates.server("b1", uris=("octavo:bookie/b1",))
    async with cluster_of(tls_settings(files, "optional")) as cluster:
        (bookie,) = cluster.bookies
        async with plain_client_of(bookie) as plain, TlsClient(bookie, certificates.client()) as secret:
            for client in (plain, secret):
                await client.greet()
                assert await client.ask(Ping()) == Pong()
        for options in ({"tls": False}, {"tls": certificates.client(verify="bookie-id")}):
            async with cluster.client(**options) as writing, writing.create_ledger(1, 1, 1) as ledger:
                assert await ledger.add(b"entry") == 0


async def test_a_plain_client_is_told_in_words_that_the_bookie_requires_tls(cluster: Cluster) -> None:
    async with plain_client_of(cluster.bookies[0]) as plain:
        error = await plain.greet()
        assert isinstance(error, UnauthorizedError)
        assert "speaks TLS only" in error.message
        assert await plain.reader.read() == b""
    error = await denied(cluster, tls=False)
    assert isinstance(error, UnauthorizedError)
    assert "speaks TLS only" in error.message


async def test_a_client_with_tls_never_speaks_without_it_whatever_is_registered(certificates: Certificates) -> None:
    async with cluster_of({}) as cluster:
        assert (await cluster.store.list_bookies())[BookieId("b1")].tls == "off"
        error = await denied(cluster, tls=certificates.client())
        assert "does not speak TLS" in error.message
        # A bookie itself follows the registration while its cluster changes to TLS.
        tls = Tls(ca=certificates.ca, registered_only=True)
        async with cluster.client(tls=tls) as client, client.create_ledger(1, 1, 1) as ledger:
            assert await ledger.add(b"entry") == 0


@pytest.mark.parametrize(
    ("server", "client", "reason"),
    [
        ({}, {"authority": STRANGER}, "does not know the authority"),
        ({}, {"now": days_ago(30), "days": 1}, "has expired"),
        ({"hosts": ("elsewhere",)}, {}, "IP address mismatch"),
        ({"authority": STRANGER}, {}, "local issuer"),
        ({"uris": ("octavo:bookie/b9",)}, {"verify": "bookie-id"}, "must contain the URI octavo:bookie/b1"),
    ],
)
async def test_a_certificate_that_one_side_refuses_is_an_error_of_the_client_at_once(
    certificates: Certificates, server: dict[str, Any], client: dict[str, Any], reason: str
) -> None:
    async with cluster_of(tls_settings(certificates.server("b1", **server))) as cluster:
        error = await denied(cluster, tls=certificates.client("writer", **client))
        assert isinstance(error, UnauthorizedError)
        assert reason in error.message


async def test_a_certificate_is_replaced_under_load_without_losing_a_connection(
    certificates: Certificates, logged: list[MutableMapping[str, object]]
) -> None:
    files = certificates.server("rotating", days=10)
    async with cluster_of({**tls_settings(files), "tls_reload_seconds": 0.01}) as cluster:
        (bookie,) = cluster.bookies
        async with cluster.client(tls=certificates.client()) as client, client.create_ledger(1, 1, 1) as ledger:
            await ledger.add(b"before")
            for text, event in (
                (b"broken", "TLS files not reloaded: the certificate in use stays"),
                (None, "TLS files reloaded"),
            ):
                if text is None:
                    certificates.server("rotating", days=20)
                else:
                    Path(files.certificate).write_bytes(text)  # noqa: ASYNC240 - a small file
                while not any(entry["event"] == event for entry in logged):
                    await ledger.add(b"under load")
            assert bookie.certificate_expires_at is not None
            assert bookie.certificate_expires_at > days_ago(-15).timestamp()
            assert outcomes(bookie) == {"ok": 1}
            async with TlsClient(bookie, certificates.client()) as fresh:
                certificate = fresh.writer.get_extra_info("peercert")
                assert ssl.cert_time_to_seconds(certificate["notAfter"]) == bookie.certificate_expires_at
            bookie.reload_files()
            await ledger.add(b"after")


async def test_files_that_cannot_be_used_stop_the_start(certificates: Certificates) -> None:
    async with cluster_of({}) as cluster:
        with pytest.raises(InvalidArgumentError, match="certificate has expired"):
            await start_bookie(cluster.store, 2, **tls_settings(certificates.server("old", now=days_ago(9), days=1)))


def test_tls_needs_a_certificate_and_a_key() -> None:
    with pytest.raises(InvalidArgumentError, match="needs tls_certificate"):
        load_config(None, {}, {"data_dir": "/b", "tls": "required"})
    with pytest.raises(InvalidArgumentError, match="needs tls_key"):
        load_config(None, {}, {"data_dir": "/b", "tls": "optional", "tls_certificate": "/c"})


SILENT_SOCKETS = int(os.environ.get("OCTAVO_SILENT_SOCKETS", "500"))

SILENT = """
import socket, sys
opened = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(int(sys.argv[3]))]
sys.stdin.read()
"""
"""A program that opens connections and says nothing."""

# --- attacks ----------------------------------------------------------------------------------------------------------


async def test_silent_sockets_and_slow_handshakes_do_not_stop_adds(certificates: Certificates) -> None:
    settings = {**tls_settings(certificates.server("b1")), "handshakes_max": 8, "connections_max": 80}
    async with cluster_of(settings) as cluster, AsyncExitStack() as stack:
        (bookie,) = cluster.bookies
        for number in range(60):
            attacker = await stack.enter_async_context(plain_client_of(bookie))
            if number >= 40:  # a beginning of a handshake, and nothing more
                session = TlsSession(
                    client_context(certificates.client()), server_side=False, server_hostname="localhost"
                )
                session.handshake(b"")
                attacker.writer.write(session.outgoing()[: 1 + number])
        async with cluster.client(tls=certificates.client()) as client, client.create_ledger(1, 1, 1) as ledger:
            for number in range(20):
                assert await ledger.add(b"entry") == number
        assert outcomes(bookie)["timeout"] > 0


async def test_thousands_of_silent_sockets_do_not_stop_adds(certificates: Certificates) -> None:
    """Ten thousand in the long form. A process of its own opens them, because descriptors are limited."""
    settings = {
        **tls_settings(certificates.server("b1")), "connections_max": 4 * SILENT_SOCKETS + 400,
        "connections_per_client_max": 0, "handshake_seconds": 3600.0,
    }  # fmt: skip
    async with cluster_of(settings) as cluster:
        (bookie,) = cluster.bookies
        host, _, port = bookie.address.rpartition(":")
        attacker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SILENT, host, port, str(SILENT_SOCKETS)), stdin=asyncio.subprocess.PIPE
        )
        try:
            await eventually(lambda: bookie.tls_arrivals.waiting == SILENT_SOCKETS)  # type: ignore[union-attr]
            async with cluster.client(tls=certificates.client()) as client, client.create_ledger(1, 1, 1) as ledger:
                for number in range(50):
                    assert await ledger.add(b"entry") == number
            assert bookie.tls_arrivals.waiting == SILENT_SOCKETS  # type: ignore[union-attr]
        finally:
            attacker.kill()
            await attacker.wait()


async def test_one_address_delays_only_itself_with_connections_that_are_not_ready(certificates: Certificates) -> None:
    settings = {**tls_settings(certificates.server("b1")), "connections_per_client_max": 3}
    async with cluster_of(settings) as cluster, AsyncExitStack() as stack:
        (bookie,) = cluster.bookies
        for _ in range(3):
            await stack.enter_async_context(plain_client_of(bookie))
        await eventually(lambda: bookie.tls_arrivals.waiting == 3)  # type: ignore[union-attr]
        async with plain_client_of(bookie) as fourth:
            error = decode_hello(await asyncio.wait_for(fourth.receive(), WAIT_SECONDS))
            assert isinstance(error, octavo.BookieOverloadedError)


async def test_connections_that_never_tell_their_kind_are_closed(certificates: Certificates) -> None:
    settings = {**tls_settings(certificates.server("b1")), "handshake_seconds": 0.05, "connections_max": 3}
    async with cluster_of(settings) as cluster, AsyncExitStack() as stack:
        (bookie,) = cluster.bookies
        silent = [await stack.enter_async_context(plain_client_of(bookie)) for _ in range(3)]
        for client in silent:
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(client.receive(), WAIT_SECONDS)
        assert bookie.tls_arrivals is not None
        assert bookie.tls_arrivals.waiting == 0


async def test_the_oldest_connection_that_is_not_ready_makes_way_for_one_that_comes(certificates: Certificates) -> None:
    """Silent connections keep no client out (rule B12)."""
    settings = {**tls_settings(certificates.server("b1")), "connections_max": 4}
    async with cluster_of(settings) as cluster, plain_client_of(cluster.bookies[0]) as silent:
        (bookie,) = cluster.bookies
        await eventually(lambda: bookie.tls_arrivals.waiting == 1)  # type: ignore[union-attr]
        async with TlsClient(bookie, certificates.client()) as client:
            await client.greet()
            assert await client.ask(Ping()) == Pong()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await asyncio.wait_for(silent.receive(), WAIT_SECONDS)


async def test_handshakes_over_the_rate_wait_and_are_served(certificates: Certificates) -> None:
    settings = {**tls_settings(certificates.server("b1")), "handshakes_per_second": 50.0, "handshakes_max": 2}
    async with cluster_of(settings) as cluster:
        (bookie,) = cluster.bookies

        async def ping() -> object:
            async with TlsClient(bookie, certificates.client()) as client:
                await client.greet()
                return await client.ask(Ping())

        async with asyncio.timeout(WAIT_SECONDS):
            assert await asyncio.gather(*(ping() for _ in range(30))) == [Pong()] * 30
        assert outcomes(bookie) == {"ok": 30}


async def test_records_of_one_byte_carry_frames(cluster: Cluster, certificates: Certificates) -> None:
    (bookie, *_) = cluster.bookies
    async with plain_client_of(bookie) as raw:
        session = TlsSession(client_context(certificates.client()), server_side=False, server_hostname="localhost")
        session.handshake(b"")
        raw.writer.write(session.outgoing())
        while not session.established:
            session.handshake(await raw.reader.read(1 << 16))
        raw.writer.write(session.outgoing())
        sent: list[bytes] = []
        raw_write = raw.writer.write
        raw.writer.write = sent.append  # type: ignore[method-assign, assignment]
        raw.send_body(_hello())
        raw.send(Ping())
        for byte in b"".join(sent):
            session.send(bytes([byte]))
            raw_write(session.outgoing())
        received = b""
        async with asyncio.timeout(WAIT_SECONDS):
            while Pong().encode(1) not in received:
                received += session.receive(await raw.reader.read(1 << 16))


async def test_a_reader_that_stalls_keeps_no_more_than_the_memory_of_answers(certificates: Certificates) -> None:
    settings = {**tls_settings(certificates.server("b1")), "answer_bytes": 32 << 20, "stalled_client_seconds": 0.5}
    async with cluster_of(settings) as cluster, TlsClient(cluster.bookies[0], certificates.client()) as client:
        (bookie,) = cluster.bookies
        await client.greet()
        payload = bytes(1 << 20)
        for number in range(12):
            assert not isinstance(await client.ask(add(7, seal(7, number, [payload]))), OctavoError)
        client.pause_reading()
        for _ in range(60):
            client.send(read(7, 0, 11, bytes_max=8 << 20))
        held = []

        def evicted() -> bool:
            held.append(bookie.service.answers.budget.held)
            return not bookie.service.connections

        await eventually(evicted)
        assert 0 < max(held) <= 33 << 20
        assert bookie.service.answers.connections_evicted == 1


def _hello() -> bytes:
    return encode_hello(Hello(MAGIC, PROTOCOL_VERSION, PROTOCOL_VERSION, "test", "", "", "boot", ()))
