"""A bookie with its administration interface, and clients of it: one that speaks HTTP, one that sends any bytes."""

import asyncio
import json
import random
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import h11
from octavo.bookie.admin.process import ProcessStatistics
from octavo.bookie.admin.server import short_address
from octavo.bookie.administration import Attendant
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.bookie.disk.filesystem import RealFileSystem
from octavo.bookie.log_level import LogLevel
from octavo.metadata import MetadataStore
from octavo.security.audit import Audit
from support.waiting import WAIT_SECONDS


class Secure(NamedTuple):
    """A port of this host that speaks TLS, and the client's context."""

    port: int
    context: ssl.SSLContext


type Address = Path | tuple[str, int] | Secure


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json", self
        return json.loads(self.body)


@asynccontextmanager
async def administered_bookie(directory: Path, store: MetadataStore, **settings: Any) -> AsyncIterator[Bookie]:
    """A bookie in this process, administered as the daemon does it. Its socket is ``directory/admin.sock``."""
    async with attended_bookie(directory, store, **settings) as (bookie, _):
        yield bookie


@asynccontextmanager
async def attended_bookie(
    directory: Path, store: MetadataStore, *, audit: Audit | None = None, **settings: object
) -> AsyncIterator[tuple[Bookie, Attendant]]:
    """The same, with what administers it."""
    config = load_config(None, {}, {"data_dir": directory, "port": 0, "journal_segment_bytes": 16 << 20, **settings})
    filesystem = RealFileSystem()
    attendant = Attendant(config, filesystem, ProcessStatistics(), LogLevel(config.log_level, config.log_format), audit)
    try:
        bookie = await Bookie.start(
            config, filesystem=filesystem, store=store, rng=random.Random(1), software="0-test",
            wall_clock=time.time, clock=time.perf_counter, attend=attendant.attend, audit=audit,
        )  # fmt: skip
        try:
            yield bookie, attendant
        finally:
            await attendant.stop_jobs()
            await bookie.stop()
    finally:
        await filesystem.close()


async def connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(address, Path):
        with short_address(address) as path:
            return await asyncio.open_unix_connection(path)
    if isinstance(address, Secure):
        return await asyncio.open_connection(
            "127.0.0.1", address.port, ssl=address.context, server_hostname="localhost"
        )
    return await asyncio.open_connection(*address)


async def ask(
    address: Address, method: str, target: str, value: object = None, *, headers: dict[str, str] | None = None
) -> Answer:
    """One request on a connection of its own; ``value`` is sent as JSON."""
    sent = {"Host": "localhost", "Connection": "close"}
    body = b""
    if value is not None:
        body = json.dumps(value).encode()
        sent |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    head = "".join(f"{name}: {text}\r\n" for name, text in {**sent, **(headers or {})}.items())
    (answer,) = await exchange(address, f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body, [method])
    return answer


async def exchange(address: Address, data: bytes, methods: list[str]) -> list[Answer]:
    """Send these bytes; the answers up to the end of the connection, to requests with these methods."""
    reader, writer = await connect(address)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            sending = asyncio.ensure_future(_send(writer, data))
            received = await reader.read()
            await sending
    finally:
        writer.close()
    return parse(received, methods)


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    try:
        writer.write(data)
        await writer.drain()
    except ConnectionError:
        pass  # the bookie refused before it had read everything


def parse(received: bytes, methods: list[str]) -> list[Answer]:
    """The answers in what a server sent."""
    answers: list[Answer] = []
    http = h11.Connection(h11.CLIENT)
    http.receive_data(received)
    http.receive_data(b"")
    for method in methods:
        http.send(h11.Request(method=method, target="/", headers=[("Host", "localhost")]))
        http.send(h11.EndOfMessage())
        head, body = None, b""
        while True:
            event = http.next_event()
            if isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
            elif isinstance(event, h11.ConnectionClosed) or event is h11.NEED_DATA:
                return answers
        assert head is not None
        answers.append(Answer(head.status_code, {n.decode(): v.decode() for n, v in head.headers}, body))
        if http.our_state is h11.MUST_CLOSE or http.their_state is not h11.DONE:
            break
        http.start_next_cycle()
    return answers
