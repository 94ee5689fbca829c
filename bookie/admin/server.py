"""The sockets of the administration interface: one in the file system, always; one over TCP if the operator wants it,
with TLS where other hosts reach it.

The socket's permissions (0600) are its access control. It is given them before it has a name, so that there is no
moment in which another user could connect.
"""

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog
from octavo.bookie.admin.http import Answerer, HttpLimits, HttpListener, refusal_without_tls
from octavo.security import forks
from octavo.security.contexts import ServerContext
from octavo.security.tls_port import ArrivalLimits, Arrivals

log = structlog.get_logger("octavo.bookie")

SOCKET_NAME = "admin.sock"
"""In the data directory."""

_PATH_BYTES_MAX = 107
"""Longest path that the kernel takes as the address of a socket."""

_BACKLOG = 32

_HANDSHAKES_PER_SECOND = 20.0
"""Each costs the event loop a millisecond, and programs that observe a bookie keep their connections."""


class AdminServer:
    """Listens on one or two sockets. :meth:`start` once, :meth:`stop` at the end."""

    def __init__(self, answer: Answerer, limits: HttpLimits | None = None) -> None:
        self._answer = answer
        self._limits = limits
        self._listeners: list[HttpListener] = []
        self._servers: list[asyncio.Server] = []
        self._arrivals: list[Arrivals] = []
        self._path: Path | None = None
        forks.hold(self)

    async def listen_at(self, path: Path) -> None:
        """Listen on a socket in the file system. A socket that no process listens on any more is replaced. Raises
        OSError, FileExistsError when a process does, or when the path is no socket."""
        listener = HttpListener(self._answer, trusted=True, limits=self._limits)
        sock = _bound_socket(path)
        self._servers.append(
            await asyncio.get_running_loop().create_unix_server(listener.connection, sock=sock, backlog=_BACKLOG)
        )
        self._path = path
        self._listeners.append(listener)

    async def listen_on(self, host: str, port: int) -> int:
        """Listen over TCP; returns the port. Raises OSError."""
        listener = HttpListener(self._answer, trusted=False, limits=self._limits)
        server = await asyncio.get_running_loop().create_server(listener.connection, host, port, backlog=_BACKLOG)
        self._servers.append(server)
        self._listeners.append(listener)
        return int(server.sockets[0].getsockname()[1])

    async def listen_with_tls(self, host: str, port: int, context: Callable[[], ServerContext]) -> int:
        """Listen over TCP with TLS, and with nothing else; returns the port. ``context``: that of new connections.
        Raises OSError."""
        limits = self._limits or HttpLimits()
        listener = HttpListener(self._answer, trusted=False, limits=limits)
        arrivals = Arrivals(
            context,
            plain_too=False,
            limits=ArrivalLimits(
                connections_max=limits.connections_max,
                connections_per_address_max=limits.connections_max // 2,
                handshakes_max=limits.connections_max,
                handshakes_per_second=_HANDSHAKES_PER_SECOND,
                handshake_seconds=limits.request_seconds,
            ),
            serve=listener.connection,
            refusal=refusal_without_tls,
        )
        server = await asyncio.get_running_loop().create_server(arrivals.connection, host, port, backlog=_BACKLOG)
        self._servers.append(server)
        self._listeners.append(listener)
        self._arrivals.append(arrivals)
        return int(server.sockets[0].getsockname()[1])

    def on_forked(self) -> None:
        """In a forked child (rule H1): the bookie is the parent's."""
        for server in self._servers:
            for sock in server.sockets:
                forks.lead_nowhere(sock.fileno())

    async def stop(self) -> None:
        """Close everything, and remove the socket."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
        for server in self._servers:
            server.close()
        for arrivals in self._arrivals:
            arrivals.close()
        for listener in self._listeners:
            listener.close()


def _bound_socket(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        _remove_stale(path)
        os.fchmod(sock.fileno(), 0o600)
        with short_address(path) as address:
            sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _remove_stale(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(17, "exists and is not a socket", str(path))
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, short_address(path) as address:
        probe.settimeout(1.0)
        try:
            probe.connect(address)
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise FileExistsError(17, "another process listens here", str(path))


@contextlib.contextmanager
def short_address(path: Path) -> Iterator[str]:
    """A name of the socket that is short enough for the kernel, however long the path is."""
    if len(os.fsencode(path)) <= _PATH_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
