"""Readiness for a supervisor: systemd's notification protocol, one datagram to a socket named in the environment."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping

EXTENSION_SECONDS = 60
"""How long a start or stop may take after each extension: several times the interval, as the event loop may be late."""

EXTENSION_INTERVAL_SECONDS = 10.0


def notify_supervisor(state: str, environment: Mapping[str, str]) -> bool:
    """Send ``state`` (``READY=1``, ``STOPPING=1``, ``STATUS=...``) to the supervisor. Returns whether there is one.

    A supervisor that does not listen is no reason to fail: its own time-out reports it.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.connect(address)
            channel.sendall(state.encode())
    except OSError:
        return False
    return True


@contextlib.asynccontextmanager
async def timeout_extended(environment: Mapping[str, str]) -> AsyncIterator[None]:
    """Inside the block, the supervisor's time-out of a start or stop is extended as long as the event loop turns.

    A replay of a large journal, or a last checkpoint on a slow disk, may take any time; a process that hangs must not.
    """

    async def extend() -> None:
        extension = f"EXTEND_TIMEOUT_USEC={EXTENSION_SECONDS * 1_000_000}"
        while notify_supervisor(extension, environment):  # noqa: ASYNC110 - not a poll: time has to pass
            await asyncio.sleep(EXTENSION_INTERVAL_SECONDS)

    task = asyncio.get_running_loop().create_task(extend())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
