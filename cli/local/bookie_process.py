"""One bookie as a child process of ``octavo up``: its start, its readiness, its end and the reason for it.

The child gets three things from its parent. A notification socket, as from systemd, on which it says ``READY=1`` once
it serves. A pipe as standard input, whose end it takes for SIGTERM: a parent that is killed outright leaves no bookie
behind. And the parent's lock on the data directory, inherited: the next ``octavo up`` waits for what is still
stopping.
"""

import ast
import asyncio
import contextlib
import json
import os
import re
import secrets
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

LOG_BYTES_MAX = 16 * 1024 * 1024
"""Size at which a log is set aside when its bookie starts; one older log is kept."""

_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class BookieSpec:
    """What is the same each time this bookie is started."""

    name: str
    data_dir: Path
    log_file: Path
    port: int
    arguments: tuple[str, ...]
    """Further arguments of ``octavo bookie``."""


class BookieProcess:
    """One run of a bookie. Made by :meth:`start`."""

    def __init__(self, spec: BookieSpec, process: asyncio.subprocess.Process, channel: socket.socket) -> None:
        self.spec = spec
        self._process = process
        self._channel = channel
        self._log_start = 0
        self.ready_at: float | None = None
        """Loop time at which it said that it serves."""

    @classmethod
    async def start(cls, spec: BookieSpec, *, lock_descriptor: int) -> "BookieProcess":
        """Start it. Raises :class:`OSError` when its folder or log cannot be written."""
        spec.data_dir.mkdir(parents=True, exist_ok=True)
        log_start = _set_log_aside(spec.log_file)
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        address = f"octavo-up-{secrets.token_hex(16)}"
        channel.bind("\0" + address)
        try:
            with spec.log_file.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *_command(spec),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "NOTIFY_SOCKET": "@" + address},
                    pass_fds=(lock_descriptor,),
                    # A Ctrl-C on the terminal is for the parent, which then stops its bookies in good order.
                    start_new_session=True,
                )
        except BaseException:
            channel.close()
            raise
        bookie = cls(spec, process, channel)
        bookie._log_start = log_start
        return bookie

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def wait_ready(self) -> None:
        """Return once it serves. Never returns if it ends before."""
        loop = asyncio.get_running_loop()
        while self.ready_at is None:
            message = await _receive(loop, self._channel)
            if b"READY=1" in message.split(b"\n"):
                self.ready_at = loop.time()

    async def wait_ended(self) -> int:
        """Its exit status once it has ended; minus the signal's number if one ended it."""
        status = await self._process.wait()
        self._channel.close()
        return status

    def stop(self) -> None:
        """Ask it to stop in good order. Does nothing once it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once. Does nothing once it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def last_words(self) -> str:
        """Why it ended, from its log: the reason of the last line it wrote, or a hint where to look."""
        try:
            with self.spec.log_file.open("rb") as log:
                log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            lines = []
        reasons = [line.strip() for line in lines if line.strip()]
        return reason_in(reasons[-1]) if reasons else f"see {self.spec.log_file}"


def _command(spec: BookieSpec) -> list[str]:
    # -P: the working directory may hold modules with the names of ours or of the standard library.
    return [
        sys.executable,
        "-P",
        "-m",
        "octavo.cli.main",
        "bookie",
        "--data-dir",
        str(spec.data_dir),
        "--port",
        str(spec.port),
        "--stop-with-standard-input",
        *spec.arguments,
    ]


def _set_log_aside(log_file: Path) -> int:
    """The size at which new lines will start, after setting an overlong log aside."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    size = log_file.stat().st_size if log_file.exists() else 0
    if size <= LOG_BYTES_MAX:
        return size
    log_file.replace(log_file.with_suffix(".old.log"))
    return 0


async def _receive(loop: asyncio.AbstractEventLoop, channel: socket.socket) -> bytes:
    arrived: asyncio.Future[None] = loop.create_future()

    def on_readable() -> None:
        if not arrived.done():
            arrived.set_result(None)

    loop.add_reader(channel, on_readable)
    try:
        await arrived
    finally:
        loop.remove_reader(channel)
    with contextlib.suppress(BlockingIOError):
        return channel.recv(4096)
    return b""


_REASON = re.compile(r"""reason=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\S+)""")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def reason_in(log_line: str) -> str:
    """The ``reason`` in a line of a bookie's log, in either format; the whole line if it has none."""
    line = _COLOUR.sub("", log_line)
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(line)["reason"])
    match = _REASON.search(line)
    if match is None:
        return line.removeprefix("octavo: ")
    text = match.group(1)
    with contextlib.suppress(ValueError, SyntaxError):
        return str(ast.literal_eval(text))
    return text
