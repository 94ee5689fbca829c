"""The bookies of an ``octavo up`` that was forked are forked, too (:mod:`support.commands.forked_processes`).

A process that is forked before `up` does anything makes them, each through a process between them that ends at once.
`up` is their nearest ancestor that adopts, and waits for them as for children of its own: they have a process id, a
session, streams and an end as if it had started them. A fork of `up` itself would not do: it has threads.
"""

import asyncio
import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Final

COMMAND: Final = ("-P", "-m", "octavo.cli.main")
"""What an interpreter is called with for a command of ``octavo``."""

_PR_SET_CHILD_SUBREAPER: Final = 36
_REQUEST_BYTES_MAX: Final = 1 << 20
_DESCRIPTORS_MAX: Final = 16


class Child:
    """A process made by :func:`fork_children`, as ``asyncio.subprocess.Process`` as far as `up` needs it."""

    def __init__(self, pid: int, stdin: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._stdin = stdin
        self._ended = asyncio.get_running_loop().create_future()
        self._descriptor = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._end)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        os.close(self._stdin)
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        self._ended.set_result(self.returncode)

    async def wait(self) -> int:
        """Its exit status, once it has ended."""
        return int(await asyncio.shield(self._ended))

    def send_signal(self, number: int) -> None:
        """Send a signal. Raises :class:`ProcessLookupError` once it has ended."""
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL. Raises :class:`ProcessLookupError` once it has ended."""
        self.send_signal(9)


def fork_children(become: Callable[[dict[str, Any], Sequence[int]], int]) -> None:
    """Let this process, which has one thread, fork the commands of ``octavo`` that it starts later. ``become`` makes
    the calling process a command with these streams; its exit status."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        _serve(theirs, become)
    theirs.close()
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    start_program = asyncio.create_subprocess_exec

    async def start(program: str, *arguments: str, **options: Any) -> Any:
        if program != sys.executable or arguments[: len(COMMAND)] != COMMAND:
            return await start_program(program, *arguments, **options)
        return _start(ours, arguments[len(COMMAND) :], **options)

    asyncio.create_subprocess_exec = start  # type: ignore[assignment]


def _start(
    channel: socket.socket,
    arguments: Sequence[str],
    *,
    stdin: int,
    stdout: IO[bytes],
    stderr: IO[bytes],
    env: Mapping[str, str],
    pass_fds: Sequence[int],
    start_new_session: bool,
) -> Child:
    assert stdin == asyncio.subprocess.PIPE, "what a bookie gets from `up`"
    assert start_new_session, "what a bookie gets from `up`"
    read, write = os.pipe()
    request = {"arguments": [*arguments], "cwd": os.getcwd(), "env": {**env}}
    socket.send_fds(channel, [json.dumps(request).encode()], [read, stdout.fileno(), stderr.fileno(), *pass_fds])
    os.close(read)
    return Child(json.loads(channel.recv(64)), write)


def _serve(channel: socket.socket, become: Callable[[dict[str, Any], Sequence[int]], int]) -> None:
    """Fork a process for each request, until the process that asks has ended."""
    with open(os.devnull, "r+b", buffering=0) as nothing:
        for number in range(3):  # the end of `up`'s streams must not wait for this process
            os.dup2(nothing.fileno(), number)
    while True:
        data, files, _, _ = socket.recv_fds(channel, _REQUEST_BYTES_MAX, _DESCRIPTORS_MAX)
        if not data:
            os._exit(0)
        told, telling = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid:
                os.write(telling, json.dumps(pid).encode())
                os._exit(0)
            os.close(told)
            os.close(telling)
            channel.close()
            os.setsid()
            # The other descriptors are there to be held: a lock is held as long as one of its descriptors is open.
            sys.exit(become(json.loads(data), files[:3]))
        os.waitpid(between, 0)
        channel.send(os.read(told, 64))
        for file in (told, telling, *files):
            os.close(file)
