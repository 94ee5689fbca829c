"""Commands, of ``octavo`` or of the simulator, as processes of their own, forked from one that has imported everything.

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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import cache, partial
from pathlib import Path
from typing import IO, Any, Final, cast

OCTAVO: Final = "octavo.cli.main"
"""The module with the entry point of ``octavo``."""

SIMULATOR: Final = "simulation.entry"
"""The module with the entry point of the simulator. Strings hash the same in every process of it."""

MODULES = (
    "octavo.bookie.daemon",
    "octavo.bookie.logs",
    "octavo.cli.bookie.companion",
    "octavo.cli.event_loop",
    "octavo.cli.kafka.serving",
    "octavo.client.client",
    "octavo.metadata.ledger.model",
    "octavo.metadata.memory",
    "octavo.metadata.sqlite.store",
    "octavo.metadata.stream.encoding",
    "octavo.metadata.zookeeper",
    "octavo.metrics.export",
)
"""What commands of ``octavo`` import while they run, besides the modules of the commands themselves."""

_FOLDERS: Final = [str(Path(__file__).parents[2]), str(Path(__file__).parents[3] / "scripts")]
"""Where the modules of the simulator are."""

_CHILDREN: Final = "support.commands.forked_children"
"""The module by which bookies of `octavo up` are forked, too."""

_REQUEST_BYTES_MAX = 1 << 20


def run_command(
    arguments: list[str],
    *,
    stdin: bytes,
    cwd: str | None,
    env: dict[str, str],
    timeout_seconds: float,
    program: str = OCTAVO,
) -> tuple[int, bytes, bytes]:
    """Run a program with ``arguments``: its exit status (negative: the signal that ended it), output and errors.

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
        channel.connect(server_address(program))
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
                raise subprocess.TimeoutExpired([program, *arguments], timeout_seconds, output, errors) from None
            writing.result()
            output, errors = (each.result() for each in reading)
        return status, output, errors


def _write_all(file: IO[bytes], data: bytes) -> None:
    """Write ``data`` and close the file; a command that ends earlier reads as much as it wants."""
    with suppress(BrokenPipeError), file:
        file.write(data)


@cache
def server_address(program: str = OCTAVO) -> str:
    """The address of this process's server for a program, which ends with this process."""
    folder = tempfile.TemporaryDirectory(prefix="octavo-commands-")
    address = f"{folder.name}/socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(64)
        lifeline, ours = os.pipe()
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
        server = subprocess.Popen(
            [sys.executable, "-P", __file__, str(listener.fileno()), program],
            stdin=lifeline,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            env=clean | ({"PYTHONHASHSEED": "0"} if program == SIMULATOR else {}),
        )
        os.close(lifeline)

    def end() -> None:
        os.close(ours)
        server.wait()
        folder.cleanup()

    atexit.register(end)
    return address


def _serve(listener: socket.socket, program: str) -> int:
    """Fork a process for each command; the exit status of the command, in that process, or 0 at the server's end."""
    if program == OCTAVO:
        sys.path.insert(0, _FOLDERS[0])
        importlib.import_module(_CHILDREN)
        del sys.path[0]
        parts = importlib.import_module("octavo.cli.commands").PARTS
        for module in (*MODULES, *(part.module for part in parts.values())):
            importlib.import_module(module)
    else:
        sys.path[:0] = _FOLDERS
        importlib.import_module(program)
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
            return _watch_command(channel, program)
        channel.close()


def _watch_command(channel: socket.socket, program: str) -> int:
    """Run one command in a child process and report its end."""
    data, files, _, _ = socket.recv_fds(channel, _REQUEST_BYTES_MAX, 3)
    pid = os.fork()
    if pid == 0:
        channel.close()
        return _become_command(program, json.loads(data), files)
    channel.send(json.dumps(pid).encode())
    _, wait_status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):  # the test waits no longer
        channel.send(json.dumps(os.waitstatus_to_exitcode(wait_status)).encode())
    os._exit(0)


def _become_command(program: str, request: dict[str, Any], files: Sequence[int]) -> int:
    for number, (file, name, mode) in enumerate(zip(files, ("stdin", "stdout", "stderr"), "rww", strict=True)):
        os.dup2(file, number)
        os.close(file)
        # The server's own objects believe that they can seek, or cannot, as its own files did.
        buffering = 1 if name == "stderr" else -1
        setattr(sys, name, open(number, mode, buffering, encoding="utf-8", closefd=False))  # noqa: SIM115 - for good
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = [program, *request["arguments"]]
    if program == OCTAVO and sys.argv[1:2] == ["up"]:
        importlib.import_module(_CHILDREN).fork_children(partial(_become_command, program))
    return cast("int", importlib.import_module(program).main())


if __name__ == "__main__":
    sys.exit(_serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]))
