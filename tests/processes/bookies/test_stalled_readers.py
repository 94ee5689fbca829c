"""A hundred readers that ask for much and take nothing: the bookie's memory stays bounded, others go on."""

import asyncio
import contextlib
import socket
import time
from pathlib import Path

from octavo.protocol.frames import LENGTH, frame_of
from octavo.protocol.messages import MAGIC, PROTOCOL_VERSION, Added, Hello, Info, InfoAnswer, ReadAnswer, encode_hello
from support.commands.processes import BookieProcess
from support.raw_client import RawClient, add, read, seal

STALLED = 100
READS_EACH = 60
ENTRY_BYTES = 250_000
ENTRIES = 64
ANSWER_BYTES = 64 << 20
LONGEST_SECONDS = 30.0


def stalled_reader(port: int) -> socket.socket:
    """Asks for far more than its socket's small buffer takes, and reads nothing after the hello."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    peer.connect(("127.0.0.1", port))
    hello = encode_hello(Hello(MAGIC, PROTOCOL_VERSION, PROTOCOL_VERSION, "test", "", "", "boot", ()))
    peer.sendall(frame_of(hello))
    (size,) = LENGTH.unpack(peer.recv(LENGTH.size, socket.MSG_WAITALL))
    peer.recv(size, socket.MSG_WAITALL)
    for request_id in range(1, READS_EACH + 1):
        body = read(1, 0, ENTRIES - 1).encode(request_id)
        peer.sendall(frame_of(body))
    return peer


def anonymous_bytes(pid: int) -> int:
    """Resident memory that is no file's."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


async def ask_in_time(client: RawClient, request: object) -> object:
    began_at = time.perf_counter()
    answer = await client.ask(request)  # type: ignore[arg-type]
    assert time.perf_counter() - began_at < LONGEST_SECONDS
    return answer


async def test_a_hundred_readers_that_take_nothing_cost_bounded_memory_and_stop_no_other(tmp_path: Path) -> None:
    config = tmp_path / "bookie.toml"
    config.write_text(f"answer_bytes = {ANSWER_BYTES}\n")
    metadata = f"sqlite:///{tmp_path}/metadata.db"
    arguments = ("--port", 0, "--metadata", metadata, "--config", config)
    with contextlib.ExitStack() as stack, BookieProcess(tmp_path / "bookie", *arguments) as bookie:
        await asyncio.to_thread(bookie.wait_ready)
        port, pid = int(bookie.stderr.partition("address=127.0.0.1:")[2].split()[0]), bookie.process.pid
        async with RawClient("127.0.0.1", port) as writer, RawClient("127.0.0.1", port) as reader:
            await writer.greet()
            await reader.greet()
            for first in range(0, ENTRIES, 4):
                assert await writer.ask(add(1, seal(1, first, [bytes(ENTRY_BYTES)] * 4))) == Added()
            before = anonymous_bytes(pid)
            for _ in range(STALLED):
                stack.enter_context(await asyncio.to_thread(stalled_reader, port))
            most = 0
            for entry_id in range(200):
                assert await ask_in_time(writer, add(2, seal(2, entry_id, [b"goes on"]))) == Added()
                answer = await ask_in_time(reader, read(1, entry_id % ENTRIES, ENTRIES - 1))
                assert isinstance(answer, ReadAnswer)
                assert answer.entries
                most = max(most, anonymous_bytes(pid) - before)
            info = await reader.ask(Info())
        assert isinstance(info, InfoAnswer)
        assert ANSWER_BYTES / 2 < int(info.facts["answer_bytes"]) <= ANSWER_BYTES, "the stalled hold most of it"
        assert info.facts["connections_evicted"] == 0
        # Besides what is held: a connection's own memory, and the answers that are being put together.
        assert most < 1.5 * ANSWER_BYTES, f"{most >> 20} MiB more than before"
        assert STALLED * 8 << 20 > 5 * ANSWER_BYTES, "without a common bound they would hold far more"
