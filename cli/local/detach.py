"""``octavo up --detach``: starts an ``octavo up`` in the background and waits until its cluster is ready.

The background process has a session of its own, so that neither Ctrl-C on the terminal nor closing it ends the process.
Its output goes to ``logs/up.log``. It inherits one end of a pipe: it writes a line there when the cluster is ready, and
the end of the pipe without a line means that it has ended.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from octavo.cli.event_loop import finish
from octavo.cli.local.bookie_process import set_log_aside
from octavo.cli.local.common import observe_directory, print_ready, tell_left_stopped
from octavo.cli.output import print_json, print_line, progress_bar
from octavo.cli.session import CommandError, Session


async def start_detached(session: Session, directory: Path, arguments: Sequence[str]) -> None:
    """Start ``octavo up`` on ``directory`` with these further arguments; return when its cluster is ready.

    Raises :class:`CommandError` with its own reason when it ends before. A Ctrl-C stops it again.
    """
    log_file = directory / "logs" / "up.log"
    try:
        log_start = set_log_aside(log_file)
    except OSError as error:
        raise CommandError(f"cannot write {log_file}: {error.strerror}") from error
    try:
        log = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise CommandError(f"cannot write {log_file}: {error.strerror}") from error
    reading, writing = os.pipe()
    try:
        child = _spawn(session, directory, arguments, log, writing)
    finally:
        os.close(writing)
        os.close(log)
    try:
        with progress_bar("starting", None):
            ready = await _read_line(reading)
    except asyncio.CancelledError:
        os.kill(child, signal.SIGTERM)
        await finish(_wait_ended(child))
        raise
    if not ready:
        await _wait_ended(child)
        raise CommandError(_last_line(log_file, log_start) or f"`octavo up` has failed; see {log_file}")
    cluster = observe_directory(directory)
    serving = [bookie for bookie in cluster.bookies if bookie["state"] == "ready"]
    if session.as_json:
        print_json(
            {
                "event": "ready",
                "pid": child,
                "metadata": cluster.metadata,
                "data_dir": str(directory),
                "bookies": [
                    {key: value for key, value in bookie.items() if key not in {"state", "reason"}}
                    for bookie in serving
                ],
            }
        )
        return
    tell_left_stopped(cluster)
    print_ready(len(serving), len(cluster.bookies), cluster.metadata or "", directory)
    print_line("It runs in the background: `octavo status` shows it, `octavo down` stops it.")


def _spawn(session: Session, directory: Path, arguments: Sequence[str], log: int, ready_descriptor: int) -> int:
    """The process id of the new ``octavo up``. ``log`` is the descriptor of its log.

    The log is opened here and not by the child: a file that cannot be opened there is told as a program that cannot be
    started.
    """
    command = [
        *(sys.executable, "-P", "-m", "octavo.cli.main", "up", "--data-dir", str(directory), *arguments),
        *("--log-level", session.log_level.value, "--log-format", session.log_format.value),
        *(() if session.metadata is None else ("--metadata", session.metadata)),
        *("--ready-descriptor", str(ready_descriptor)),
    ]
    os.set_inheritable(ready_descriptor, True)
    return os.posix_spawn(
        sys.executable,
        command,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, log, 1),
            (os.POSIX_SPAWN_DUP2, log, 2),
        ],
        setsid=True,
    )


async def _wait_ended(child: int) -> None:
    """Return when the child process has ended. Not in a thread, which this process would have to wait for."""
    loop = asyncio.get_running_loop()
    descriptor = os.pidfd_open(child)
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    os.waitpid(child, os.WNOHANG)  # noqa: ASYNC222 - the child has ended, so that this does not block


async def _read_line(descriptor: int) -> bytes:
    """The line that arrives on the pipe; empty at its end. Closes the descriptor."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    try:
        return await reader.readline()
    finally:
        transport.close()


def _last_line(log_file: Path, start: int) -> str:
    """The last line that was written to the log from ``start`` on, without the mark of our error messages."""
    with log_file.open("rb") as log:
        log.seek(start)
        lines = log.read().decode(errors="replace").splitlines()
    return next((line.strip().removeprefix("octavo: ") for line in reversed(lines) if line.strip()), "")
