"""Servers that speak the protocol of S3 on this host: moto, SeaweedFS, rclone, and one that answers as it is told."""

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

from octavo.bookie.archive.remote_store import RemoteStore
from support.waiting import wait_until

BUCKET = "octavo-tests"
PROGRAMS = Path(sys.executable).parent


class StoreServer(NamedTuple):
    """A running server."""

    endpoint: str

    def store(self, prefix: str, *, bucket: str = BUCKET, request_timeout_seconds: float = 60.0) -> RemoteStore:
        """A driver that repeats nothing and sends small parts."""
        return RemoteStore(
            bucket,
            prefix,
            config={
                "endpoint": self.endpoint,
                "access_key_id": "octavo",
                "secret_access_key": "octavo-secret",
                "region": "us-east-1",
            },
            part_bytes=5 * 1024 * 1024,
            allow_http=True,
            request_timeout_seconds=request_timeout_seconds,
            retries=0,
        )


@contextmanager
def running(command: list[str], log: Path, announces: str) -> Generator[re.Match[str]]:
    """A program, once it has written what it announces; killed at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        found: list[re.Match[str]] = []

        def is_announced() -> bool:
            assert process.poll() is None, f"{command[0]} has ended: {log.read_text()}"
            found.extend(re.finditer(announces, log.read_text()))
            return bool(found)

        wait_until(is_announced, f"{command[0]} begins to listen")
        yield found[0]
    finally:
        process.kill()
        process.wait()


@contextmanager
def moto_server(folder: Path) -> Generator[StoreServer]:
    """moto: S3 in memory."""
    command = [str(PROGRAMS / "moto_server"), "-H", "127.0.0.1", "-p", "0"]
    with running(command, folder / "moto.log", r"Running on (http://127\.0\.0\.1:\d+)") as announced:
        yield StoreServer(announced[1])


@contextmanager
def rclone_server(folder: Path) -> Generator[StoreServer]:
    """rclone: files of a folder, by an implementation of its own."""
    (folder / "rclone" / BUCKET).mkdir(parents=True)
    command = [str(PROGRAMS / "rclone"), "serve", "s3", "--addr", "127.0.0.1:0"]
    command += ["--auth-key", "octavo,octavo-secret", str(folder / "rclone")]
    with running(command, folder / "rclone.log", r"server on \[(http://127\.0\.0\.1:\d+)/\]") as announced:
        yield StoreServer(announced[1])


@contextmanager
def seaweed_server(folder: Path) -> Generator[StoreServer]:
    """SeaweedFS: a store of its own, all parts of it in one process."""
    (folder / "seaweed").mkdir()
    master, volume, filer, s3 = free_ports(4)
    command = [str(PROGRAMS / "weed"), "server", f"-dir={folder / 'seaweed'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-s3.port={s3}"]
    command += ["-s3", "-master.volumeSizeLimitMB=64", "-volume.max=20"]
    for name, port in zip(("master", "volume", "filer", "s3"), free_ports(4), strict=True):
        command.append(f"-{name}.port.grpc={port}")
    with running(command, folder / "seaweed.log", r"Start Seaweed S3 API Server .* at http port \d+"):
        yield StoreServer(f"http://127.0.0.1:{s3}")


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Answer(NamedTuple):
    """What a server says."""

    status: str
    body: bytes = b""
    headers: tuple[str, ...] = ()


@asynccontextmanager
async def answering_server(answer: Callable[[str, str], Answer | None]) -> AsyncIterator[StoreServer]:
    """A server that answers each request (method and path) as it is told; None: it closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split(" ", 2)
            given = answer(method, path)
            if given is not None:
                lines = [f"HTTP/1.1 {given.status}", "Connection: close", *given.headers]
                if not any(line.startswith("Content-Length") for line in given.headers):
                    lines.append(f"Content-Length: {len(given.body)}")
                writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + (b"" if method == "HEAD" else given.body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield StoreServer(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
