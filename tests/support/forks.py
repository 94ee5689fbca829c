"""Forks this process in the midst of a test: what a child finds, which does one thing and ends at once."""

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import warnings
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

CHILD_SECONDS_MAX = 60.0


def in_child(act: Callable[[], Any]) -> Any:
    """What ``act`` returns in a forked child, as JSON carries it; what it raises, as text. It may run event loops."""
    come, go = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there are threads: that is the point
        pid = os.fork()
    if pid == 0:
        try:
            told = act()
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        with contextlib.suppress(BaseException):
            os.write(go, json.dumps(told).encode())
        os._exit(0)
    os.close(go)
    with os.fdopen(come, "rb") as stream:
        ready, _, _ = select.select([stream], [], [], CHILD_SECONDS_MAX)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        told = stream.read()
    os.waitpid(pid, 0)
    assert told, "the child hung, or ended without a word"
    return json.loads(told)


@contextlib.contextmanager
def living_child() -> Iterator[None]:
    """A forked child that lives while the block runs, and does nothing."""
    come, go = os.pipe()
    hear, tell = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os.close(go)
        os.write(tell, b"+")
        os.read(come, 1)
        os._exit(0)
    os.close(come)
    os.close(tell)
    try:
        assert os.read(hear, 1) == b"+", "the child runs: what is done after a fork is done"
        yield
    finally:
        os.close(hear)
        os.close(go)
        os.waitpid(pid, 0)


def run_in_child[T](work: Callable[[], Coroutine[Any, Any, T]]) -> Any:
    """As :func:`in_child`, for a coroutine, in an event loop of the child's own."""
    return in_child(lambda: asyncio.run(work()))


def sockets_of_internet() -> set[str]:
    """The sockets of TCP, connected or listening, of which this process has a descriptor. Compare sets, not counts: the
    garbage collector closes those of earlier tests at any time."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            sock = socket.socket(fileno=int(name))
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                found.add(os.readlink(f"/proc/self/fd/{name}"))
            sock.detach()
    return found


def shared_with_a_child(sockets: set[str]) -> set[str]:
    """Those of ``sockets`` of which a forked child has a descriptor."""
    return sockets & set(in_child(lambda: sorted(sockets_of_internet())))


def open_files_below(directory: Path) -> list[str]:
    """The files there that this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{name}")
            if path.startswith(f"{directory}/"):
                found.append(path)
    return found
