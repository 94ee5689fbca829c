"""Clients of the administration interface that are wrong, slow or hostile: refused, and nothing else suffers."""

import asyncio
import socket as sockets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from octavo.bookie.admin.http import HttpLimits
from octavo.bookie.admin.http_messages import HttpAnswer, HttpRequest
from octavo.bookie.admin.server import AdminServer
from octavo.bookie.bookie import Bookie
from octavo.metadata import open_metadata_store
from octavo.protocol.messages import Added
from support.admin import Address, administered_bookie, ask, connect, exchange, parse
from support.raw_client import RawClient, add, seal
from support.waiting import WAIT_SECONDS, eventually, pause

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUICK = HttpLimits(request_seconds=0.2, idle_seconds=0.3)


class Endless:
    """Answers every request with what it was asked, or with a body of the size that the path names."""

    def __init__(self) -> None:
        self.requests: list[HttpRequest] = []

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        self.requests.append(request)
        size = request.target.removeprefix("/")
        return HttpAnswer(200, b"x" * int(size or 1))


@pytest.fixture
def endless() -> Endless:
    return Endless()


@asynccontextmanager
async def serving(endless: Endless, limits: HttpLimits, socket: Path) -> AsyncIterator[Path]:
    server = AdminServer(endless.answer, limits)
    await server.listen_at(socket)
    try:
        yield socket
    finally:
        await server.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def quick(endless: Endless, tmp_path: Path) -> AsyncIterator[Path]:
    """A server whose time limits are short."""
    async with serving(endless, QUICK, tmp_path / "admin.sock") as socket:
        yield socket


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bookie(module_folder: Path) -> AsyncIterator[Bookie]:
    """One bookie for all: none of these requests may change it. It listens over TCP, too."""
    async with (
        await open_metadata_store("memory://", create=True) as store,
        administered_bookie(module_folder / "b", store, admin_listen=f"localhost:{free_port()}") as running,
    ):
        yield running


@pytest.fixture
def socket(bookie: Bookie, module_folder: Path) -> Path:
    return module_folder / "b" / "admin.sock"


@pytest.fixture
def tcp(bookie: Bookie) -> Address:
    host, _, port = str(bookie.subject.settings["admin_listen"]).rpartition(":")
    return host, int(port)


def free_port() -> int:
    with sockets.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def closed_after(address: Address, data: bytes) -> bytes:
    """What comes until the server closes the connection, after these bytes and without an end of ours."""
    reader, writer = await connect(address)
    try:
        writer.write(data)
        async with asyncio.timeout(WAIT_SECONDS):
            return await reader.read()
    finally:
        writer.close()


# --- size and time -----------------------------------------------------------------------------------------------


async def test_a_header_of_a_megabyte_is_refused(socket: Path) -> None:
    (answer,) = await exchange(socket, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * (1 << 20), ["GET"])
    assert (answer.status, answer.json["error"]) == (431, "TooLarge")
    assert (await ask(socket, "GET", "/healthz")).status == 200


async def test_a_target_of_16_kilobytes_is_refused(socket: Path) -> None:
    assert (await ask(socket, "GET", "/" + "a" * 9000)).status == 400


@pytest.mark.parametrize("framing", [b"Content-Length: 65537\r\n", b"Transfer-Encoding: chunked\r\n"])
async def test_a_body_that_is_too_large_is_refused(socket: Path, framing: bytes) -> None:
    body = b"a" * 65_537 if b"Length" in framing else b"10001\r\n" + b"a" * 65_537 + b"\r\n0\r\n\r\n"
    head = b"POST /api/v1/bookie/scrub HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + framing + b"\r\n"
    (answer,) = await exchange(socket, head + body, ["POST"])
    assert answer.status == 413


async def test_a_body_that_is_announced_too_large_is_refused_before_it_is_sent(socket: Path) -> None:
    head = b"POST /api/v1/bookie/scrub HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"
    assert b" 413 " in await closed_after(socket, head)


async def test_a_head_that_does_not_end_is_refused_in_time(quick: Path) -> None:
    received = await closed_after(quick, b"GET / HTTP/1.1\r\nHost: x\r\n")
    assert parse(received, ["GET"])[0].status == 408


async def test_a_body_that_comes_byte_by_byte_is_refused_in_time(quick: Path, endless: Endless) -> None:
    reader, writer = await connect(quick)
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")

    async def drip() -> None:
        while True:
            writer.write(b" ")
            await pause()

    dripping = asyncio.ensure_future(drip())
    async with asyncio.timeout(WAIT_SECONDS):
        received = await reader.read()
    dripping.cancel()
    writer.close()
    assert parse(received, ["POST"])[0].status == 408
    assert endless.requests == []


async def test_a_silent_connection_is_closed(quick: Path) -> None:
    assert await closed_after(quick, b"") == b""


async def test_an_idle_connection_is_closed_after_its_last_answer(quick: Path) -> None:
    received = await closed_after(quick, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert [answer.status for answer in parse(received, ["GET"])] == [200]


async def test_a_client_that_reads_nothing_loses_its_connection(quick: Path, endless: Endless) -> None:
    reader, writer = await connect(quick)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(b"GET /50000000 HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(WAIT_SECONDS):
        while not endless.requests:
            await closed_after(quick, b"")
        for _ in range(2):
            await closed_after(quick, b"")  # as long as the server waits for a client each time
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(50_000_000)
    writer.close()


ASK = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def test_connections_that_ask_nothing_make_way_and_those_that_are_answered_stay(
    endless: Endless, tmp_path: Path
) -> None:
    """Strangers could hold every place of administration with connections that only wait (rule B12)."""
    answered = asyncio.Event()

    async def answer(request: HttpRequest) -> HttpAnswer:
        if request.target == "/wait":
            endless.requests.append(request)
            await answered.wait()
        return HttpAnswer(200, b"x")

    server = AdminServer(answer, HttpLimits(connections_max=4))
    socket = tmp_path / "admin.sock"
    await server.listen_at(socket)
    held = []
    try:
        for number in range(20):
            held.append(await connect(socket))
            held[-1][1].write(b"GET / HTTP/1.1\r\n" if number % 2 else b"")
        assert b" 200 " in await closed_after(socket, ASK)
        assert await held[0][0].read() == b"", "the oldest has made way"
        waiting = [await connect(socket) for _ in range(4)]
        held += waiting
        for _, writer in waiting:
            writer.write(ASK.replace(b"/ HTTP", b"/wait HTTP"))
        await eventually(lambda: len(endless.requests) == 4)
        received = await closed_after(socket, b"")
        assert parse(received, ["GET"])[0].status == 503
        answered.set()
        for reader, _ in waiting:
            async with asyncio.timeout(WAIT_SECONDS):
                assert b" 200 " in await reader.read()
    finally:
        for _, writer in held:
            writer.close()
        await server.stop()


async def test_requests_sent_ahead_wait_in_the_socket_and_not_in_the_bookie(quick: Path, endless: Endless) -> None:
    one = b"GET /100000 HTTP/1.1\r\nHost: x\r\n\r\n"
    _, writer = await connect(quick)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(one * 10_000)
    while not endless.requests:
        await closed_after(quick, b"")
    await closed_after(quick, b"")  # a turn of the server's clock
    assert len(endless.requests) < 100, "it answers no further than the client reads"
    writer.close()


# --- requests that two readers would understand differently --------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5, 6\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: 0x5\r\n",
        b"Content-Length: -1\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: identity, chunked\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b" Transfer-Encoding: chunked\r\n",
        b"Host: y\r\n",
        b"X: a\x00b\r\n",
        b"X\x0b: a\r\n",
    ],
)
async def test_an_ambiguous_head_is_refused_and_nothing_after_it_is_a_request(socket: Path, head: bytes) -> None:
    smuggled = b"0\r\n\r\nPOST /api/v1/bookie/read-only HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    smuggled += b'Content-Length: 18\r\n\r\n{"read_only":true}'
    data = b"POST /api/v1/bookie/garbage HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + head + b"\r\n"
    answers = await exchange(socket, data + smuggled, ["POST"] * 3)
    # A folded header is part of the value before it, as in the first of these; that request has no body then.
    assert [answer.status for answer in answers] in ([400], [501], [415, 400])
    assert (await ask(socket, "GET", "/api/v1/bookie")).json["read_only"]["operator"] is None


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,  # a TLS hello
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",  # no Host
        b"GET /healthz HTTP/1.1\nHost: x\n\nGET / HTTP/9.9\r\n\r\n",
        b"GET http://evil/healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(range(256)) * 100,
    ],
)
async def test_what_is_not_a_request_ends_its_connection_and_nothing_else(socket: Path, data: bytes) -> None:
    reader, writer = await connect(socket)
    writer.write(data)
    writer.write_eof()
    async with asyncio.timeout(WAIT_SECONDS):
        received = await reader.read()
    writer.close()
    assert received == b"" or received.startswith(b"HTTP/1.1 "), received
    assert (await ask(socket, "GET", "/healthz")).status == 200


# --- who may ask -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:3180", "127.0.0.1.evil.example", "localhost.evil", ""])
async def test_a_web_page_that_rebinds_its_name_reads_nothing(tcp: Address, host: str) -> None:
    answer = await ask(tcp, "GET", "/api/v1/bookie", headers={"Host": host})
    assert (answer.status, answer.json["error"]) == (403, "Forbidden")
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:3180", "127.0.0.1:3180", "[::1]:3180", "10.0.0.7"])
async def test_known_hosts_and_addresses_are_answered(tcp: Address, host: str) -> None:
    assert (await ask(tcp, "GET", "/readyz", headers={"Host": host})).status == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/v1/bookie/read-only", {"read_only": True}),
        ("POST", "/api/v1/bookie/garbage", {}),
        ("DELETE", "/api/v1/jobs/1", None),
        ("GET", "/api/v1/stacks", None),
        ("GET", "/api/v1/profile", None),
    ],
)
async def test_over_tcp_nothing_can_be_changed(tcp: Address, method: str, path: str, body: object) -> None:
    answer = await ask(tcp, method, path, body)
    assert (answer.status, answer.json["error"]) == (403, "Forbidden")
    assert "admin.sock" in answer.json["message"]


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a_form_of_a_web_page_is_refused(socket: Path, content_type: str) -> None:
    answer = await ask(
        socket, "POST", "/api/v1/bookie/read-only", {"read_only": True}, headers={"Content-Type": content_type}
    )
    assert (answer.status, answer.json["error"]) == (415, "UnsupportedMediaType")


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("read-only", {}),
        ("read-only", {"read_only": 1}),
        ("read-only", {"read_only": "true"}),
        ("read-only", {"read_only": True, "reason": ""}),
        ("read-only", {"read_only": True, "reason": "x" * 201}),
        ("read-only", {"read_only": True, "unknown": 1}),
        ("read-only", [True]),
        ("compaction", {"level": "full"}),
        ("compaction/pause", {"seconds": -1}),
        ("compaction/pause", {"seconds": 1e300}),
        ("log-level", {"level": "trace"}),
        ("log-level", {"level": "debug", "seconds": 0}),
        ("scrub", {"bytes_per_second": 1.5}),
    ],
)
async def test_a_value_that_is_not_accepted_is_named(bookie: Bookie, socket: Path, path: str, body: object) -> None:
    answer = await ask(socket, "POST", f"/api/v1/bookie/{path}", body)
    assert (answer.status, answer.json["error"]) == (400, "InvalidArgument")
    assert not bookie.service.read_only


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nul", b'{"read_only":true', b'{"read_only":NaN}', b'{"read_only":true,"read_only":false}', b"\xff{}",
     b'{"a":' + b"[" * 20_000, b"[]", b'"x"', b'{"read_only":true}{}'],
)  # fmt: skip
async def test_a_body_that_is_no_json_object_is_refused(bookie: Bookie, socket: Path, body: bytes) -> None:
    head = (
        "POST /api/v1/bookie/read-only HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    )
    (answer,) = await exchange(socket, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body, ["POST"])
    assert (answer.status, answer.json["error"]) == (400, "InvalidArgument")
    assert not bookie.service.read_only


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/", 404),
        ("/healthz/", 404),
        ("/HEALTHZ", 404),
        ("/../healthz", 404),
        ("/%2e%2e/healthz", 404),
        ("/api/v1/ledgers/abc", 400),
        ("/api/v1/ledgers/-1", 400),
        ("/api/v1/ledgers/1e3", 400),
        ("/api/v1/ledgers/%00", 400),
        ("/api/v1/ledgers/%ff", 404),
        ("/api/v1/ledgers/99999999999999999999999", 400),
        ("/api/v1/ledgers?limit=0", 400),
        ("/api/v1/ledgers?limit=1001", 400),
        ("/api/v1/ledgers?limit=1&limit=2", 400),
        ("/api/v1/ledgers?limit", 400),
        ("/api/v1/ledgers?nothing=1", 400),
        ("/api/v1/ledgers?state=%ff", 400),
        ("/api/v1/profile?seconds=3600", 400),
        ("/healthz?verbose=1", 400),
    ],
)
async def test_a_target_that_is_not_understood_is_refused(socket: Path, target: str, status: int) -> None:
    assert (await ask(socket, "GET", target)).status == status


async def test_a_method_that_does_not_apply_is_refused_with_those_that_do(socket: Path) -> None:
    for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"):
        answer = await ask(socket, method, "/healthz")
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD"), method
    assert (await ask(socket, "GET", "/api/v1/bookie/scrub")).headers["allow"] == "POST"


# --- load ------------------------------------------------------------------------------------------------------------


async def test_adds_are_acknowledged_while_the_metrics_are_scraped_in_a_loop(bookie: Bookie, socket: Path) -> None:
    host, _, port = bookie.address.rpartition(":")
    done = False
    scrapes = 0

    async def scrape_on() -> None:
        nonlocal scrapes
        while not done:
            assert (await ask(socket, "GET", "/metrics")).status == 200
            scrapes += 1

    scraping = [asyncio.ensure_future(scrape_on()) for _ in range(2)]
    async with RawClient(host, int(port)) as client:
        await client.greet()
        for entry_id in range(0, 500, 10):
            assert await client.ask(add(7, seal(7, entry_id, [b"a" * 100] * 10))) == Added()
    done = True
    await asyncio.gather(*scraping)
    assert scrapes >= 2
    assert b"octavo_bookie_entries_added_total 500" in (await ask(socket, "GET", "/metrics")).body
