"""One bookie as a child process of ``octavo up``: its start, its readiness, its end and the reason for it.

The child gets three things from its parent. On a notification socket, as from systemd, it says ``READY=1`` once it
serves. A pipe is its standard input; it treats the end of the pipe as SIGTERM, so that a parent that is killed leaves
no bookie behind. And it inherits the parent's lock on the data directory, so that the next ``octavo up`` waits for
bookies that are still stopping.
"""

import ast
import asyncio
import contextlib
import hashlib
import json
import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from octavo.protocol.light_dataclass import dataclass

LOG_BYTES_MAX = 16 * 1024 * 1024
"""Size from which a log is renamed when its process starts; one older log is kept."""

_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class BookieSpec:
    """The settings of a bookie, the same for every start."""

    name: str
    data_dir: Path
    log_file: Path
    port: int
    arguments: tuple[str, ...]
    """Further arguments of ``octavo bookie``."""


def pinned_id(data_dir: Path) -> str:
    """The id that the bookie of a data directory must have: that of its cookie, or one made of host and path. So a data
    directory that is emptied is noticed: the cluster knows the id."""
    try:
        return str(json.loads((data_dir / "cookie").read_bytes().splitlines()[0])["bookie_id"])
    except (OSError, ValueError, LookupError, TypeError):
        place = f"{socket.gethostname()}:{data_dir.resolve()}"
        return f"bookie-{hashlib.blake2b(place.encode(), digest_size=6).hexdigest()}"


class BookieProcess:
    """One run of a bookie. Made by :meth:`start`."""

    def __init__(self, spec: BookieSpec, process: asyncio.subprocess.Process, channel: socket.socket) -> None:
        self.spec = spec
        self._process = process
        self._channel = channel
        self._log_start = 0
        self.port = spec.port or None
        """The port that it listens on; None while that is not known, because it takes any free one."""
        self.ready_at: float | None = None
        """Loop time at which the bookie said that it serves."""

    @classmethod
    async def start(cls, spec: BookieSpec, *, lock_descriptor: int) -> "BookieProcess":
        """Start the bookie. Raises :class:`OSError` when its directory or log cannot be written."""
        spec.data_dir.mkdir(parents=True, exist_ok=True)
        log_start = set_log_aside(spec.log_file)
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
                    # Ctrl-C on the terminal goes to the parent only, which then stops its bookies cleanly.
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
        """Process id of the bookie."""
        return self._process.pid

    async def wait_ready(self) -> None:
        """Return once the bookie serves. Never returns if it ends before."""
        loop = asyncio.get_running_loop()
        while self.ready_at is None:
            told = (await _receive(loop, self._channel)).decode(errors="replace").split("\n")
            if "READY=1" in told:
                self.ready_at = loop.time()
                self.port = port_in(told) or self.port

    async def wait_ended(self) -> int:
        """Wait for the end; returns the exit status, or the negative number of the signal that killed it."""
        status = await self._process.wait()
        self._channel.close()
        return status

    def stop(self) -> None:
        """Ask the bookie to stop cleanly. Does nothing once it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the bookie. Does nothing once it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def reason(self) -> str:
        """Why the bookie ended: the reason in the last line of its log, or a hint where to look."""
        try:
            with self.spec.log_file.open("rb") as log:
                log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            lines = []
        reasons = [line.strip() for line in lines if line.strip()]
        return reason_in(reasons[-1]) if reasons else f"see {self.spec.log_file}"


def _command(spec: BookieSpec) -> list[str]:
    # -P: do not import from the working directory, which may hold modules with the same names.
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


def set_log_aside(log_file: Path) -> int:
    """Rename the log if it has grown too large; returns the offset at which new lines will start. Makes its directory.
    Raises :class:`OSError`."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    size = log_file.stat().st_size if log_file.exists() else 0
    if size <= LOG_BYTES_MAX:
        return size
    log_file.replace(log_file.with_suffix(".old.log"))
    return 0


def port_in(told: Sequence[str]) -> int | None:
    """The port in what a bookie told its supervisor; None if it did not tell."""
    from octavo.bookie.notify import ADDRESS_KEY  # noqa: PLC0415 - `octavo --help` needs no bookie

    for line in told:
        key, _, address = line.partition("=")
        port = address.rpartition(":")[2]
        if key == ADDRESS_KEY and port.isascii() and port.isdecimal():
            return int(port)
    return None


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
