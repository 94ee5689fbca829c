"""Commands of ``octavo`` as processes of their own, forked from one that has imported everything already.

A command starts in a tenth of the time and does the same otherwise: it has its own arguments, variables, folder and
standard streams, runs the same entry point and ends like any Python process. Tests that are about starting a process
(signals during the imports, closed streams) start ``python -m octavo.cli.main`` instead.
"""

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import cache
from typing import IO, Any, cast

MODULES = (
    "octavo.bookie.logs",
    "octavo.cli.commands",
    "octavo.client.client",
    "octavo.metadata.sqlite",
    "octavo.metadata.zookeeper",
    "typer._adapters",
    "uvloop",
)
"""What commands import while they start or run."""

_REQUEST_BYTES_MAX = 1 << 20


def run_command(
    arguments: list[str], *, stdin: bytes, cwd: str | None, env: dict[str, str], timeout_seconds: float
) -> tuple[int, bytes, bytes]:
    """Run ``octavo`` with ``arguments``: its exit status (negative: the signal that ended it), output and errors.

    Raises:
        subprocess.TimeoutExpired: it did not end in time, and was killed.
    """
    with ExitStack() as stack:
        ends = []  # of pipes: ours, the command's
        for ours_is_written in (True, False, False):
            read, write = os.pipe()
            ours, theirs = (write, read) if ours_is_written else (read, write)
            ends.append((stack.enter_context(open(ours, "wb" if ours_is_written else "rb")), theirs))
        channel = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        channel.settimeout(timeout_seconds)
        channel.connect(server_address())
        request = json.dumps({"arguments": arguments, "cwd": cwd or os.getcwd(), "env": env}).encode()
        socket.send_fds(channel, [request], [theirs for _, theirs in ends])
        for _, theirs in ends:
            os.close(theirs)
        pid = json.loads(channel.recv(64))
        (standard_input, _), *outputs = ends
        with ThreadPoolExecutor(3) as threads:
            writing = threads.submit(_write_all, standard_input, stdin)
            reading = [threads.submit(output.read) for output, _ in outputs]
            try:
                status = json.loads(channel.recv(64))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                output, errors = (each.result() for each in reading)
                raise subprocess.TimeoutExpired(["octavo", *arguments], timeout_seconds, output, errors) from None
            writing.result()
            output, errors = (each.result() for each in reading)
        return status, output, errors


def _write_all(file: IO[bytes], data: bytes) -> None:
    """Write ``data`` and close the file; a command that ends earlier reads as much as it wants."""
    with suppress(BrokenPipeError), file:
        file.write(data)


@cache
def server_address() -> str:
    """The address of this process's server, which ends with this process."""
    folder = tempfile.TemporaryDirectory(prefix="octavo-commands-")
    address = f"{folder.name}/socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(64)
        lifeline, ours = os.pipe()
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
        server = subprocess.Popen(
            [sys.executable, "-P", __file__, str(listener.fileno())],
            stdin=lifeline,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            env=clean,
        )
        os.close(lifeline)

    def end() -> None:
        os.close(ours)
        server.wait()
        folder.cleanup()

    atexit.register(end)
    return address


def _serve(listener: socket.socket) -> int:
    """Fork a process for each command; the exit status of the command, in that process, or 0 at the server's end."""
    for module in MODULES:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    while True:
        ready, _, _ = select.select([listener.fileno(), 0], [], [])
        if 0 in ready:
            return 0
        channel, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _watch_command(channel)
        channel.close()


def _watch_command(channel: socket.socket) -> int:
    """Run one command in a child process and report its end."""
    data, files, _, _ = socket.recv_fds(channel, _REQUEST_BYTES_MAX, 3)
    pid = os.fork()
    if pid == 0:
        channel.close()
        return _become_command(json.loads(data), files)
    channel.send(json.dumps(pid).encode())
    _, wait_status = os.waitpid(pid, 0)
    channel.send(json.dumps(os.waitstatus_to_exitcode(wait_status)).encode())
    os._exit(0)


def _become_command(request: dict[str, Any], files: list[int]) -> int:
    # The server has used none of its standard streams: their objects serve for the command's files.
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = ["octavo", *request["arguments"]]
    return cast("int", importlib.import_module("octavo.cli.main").main())


if __name__ == "__main__":
    sys.exit(_serve(socket.socket(fileno=int(sys.argv[1]))))
