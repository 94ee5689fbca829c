"""Cuts a forked child off from what its parent has open (rule H1).

``fork()`` copies a client with everything that it knows, but its sockets, its event loop's poll and its database's
files are shared with the parent, and its threads are missing. A child that used any of these would write into the
parent's connections. So at a fork, before any other code runs in the child:

* every socket and file that is *held* here is replaced, in the child alone, by one that leads nowhere. The parent's
  connection is not closed by that, and nothing is sent. The number stays taken, so that what the child opens later is
  never written to by something inherited;
* every object that is held here is told (:meth:`Inheritable.on_forked`), and refuses everything from then on;
* every event loop in which something of Octavo was made is known as inherited (:func:`is_inherited`).

All of that costs nothing before a fork: an object is noted once, when it is made or connected, and nothing on the path
of an add asks whether there was a fork.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

from octavo.protocol.errors import ForkedError


class Inheritable(Protocol):
    """An object that must not be used in a forked child."""

    def on_forked(self) -> None:
        """Called in the child, right after the fork, in the thread that forked. Replace sockets with
        :func:`lead_nowhere`, refuse what is asked from now on. Wait for nothing, send nothing, close nothing."""


_held: WeakSet[Inheritable] = WeakSet()
_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
"""The event loops of this process in which something was made."""
_inherited: list[asyncio.AbstractEventLoop] = []
"""Those of the processes before it. Kept alive: a loop that is collected warns, and touches what it shares."""

running_loop: Callable[[], asyncio.AbstractEventLoop | None] = asyncio.get_running_loop
"""The event loop of the caller. In a forked child: None in a loop that was inherited."""

forked = False
"""Whether this process was forked from one that had something open. Checked once for each entry that an iterator has
buffered; everything else learns of a fork without asking."""


def hold(thing: Inheritable) -> None:
    """Tell this object after a fork, for as long as it exists."""
    _held.add(thing)


def hold_connection(thing: Inheritable) -> None:
    """As :func:`hold`, for what has just been connected: the parent was connecting when it forked if this process has
    inherited the caller's event loop."""
    hold(thing)
    if forked and running_loop() is None:
        thing.on_forked()


def let_go(thing: Inheritable) -> None:
    """The object is closed: it has nothing that a child could harm."""
    _held.discard(thing)


def note_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Something of Octavo lives in this event loop. Raises :class:`ForkedError` where the loop was inherited: it shares
    its poll with the parent's."""
    check_process(loop)
    _loops.add(loop)


def is_inherited(loop: asyncio.AbstractEventLoop | None) -> bool:
    """Whether what lives in this event loop belongs to a process that this one was forked from."""
    return any(loop is inherited for inherited in _inherited)


def check_process(loop: asyncio.AbstractEventLoop) -> None:
    """Raise :class:`ForkedError` unless what lives in this event loop belongs to this process."""
    if _inherited and is_inherited(loop):
        raise forked_error()


def check_running_loop() -> None:
    """Raise :class:`ForkedError` if the caller runs in an event loop that was inherited: nothing new begins there."""
    if forked and running_loop() is None:
        raise forked_error()


def forked_error() -> ForkedError:
    """The error that every use of something inherited raises."""
    return ForkedError(
        f"this process ({os.getpid()}) was forked while Octavo was in use, and this belongs to the process before the "
        "fork; nothing was sent. Connect after the fork, in the child and in an event loop of its own (asyncio.run), "
        "or start processes without forking (multiprocessing's 'spawn' or 'forkserver')"
    )


def lead_nowhere(descriptor: int) -> None:
    """In a forked child: let this descriptor, a socket's or a file's, lead to a connection that has ended. Reading
    gives its end, writing fails. The parent, which shares the open file, notices nothing."""
    if descriptor < 0:
        return
    try:
        ours, theirs = socket.socketpair()
    except OSError:  # no descriptors left
        with contextlib.suppress(OSError):
            os.close(descriptor)
        return
    theirs.close()
    with ours, contextlib.suppress(OSError):
        os.dup2(ours.fileno(), descriptor, inheritable=False)


def socket_leads_nowhere(transport: asyncio.BaseTransport | None) -> None:
    """As :func:`lead_nowhere`, for the socket of a transport."""
    sock = None if transport is None else transport.get_extra_info("socket")
    if sock is not None:
        lead_nowhere(sock.fileno())


def later_in_child(loop: asyncio.AbstractEventLoop, act: Callable[[], object]) -> None:
    """Call ``act`` if the child goes on running an event loop that it inherited."""
    with contextlib.suppress(Exception):  # the loop is closed, or belongs to another thread and is in debug mode
        loop.call_soon(act)


def _running_loop_in_child() -> asyncio.AbstractEventLoop | None:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # also in a coroutine that has forked: asyncio forgets its loop in the child
        return None
    return None if is_inherited(loop) else loop


def _in_child() -> None:
    global forked, running_loop  # noqa: PLW0603 - the state of a process
    if not _held and not _loops:
        return
    forked = True
    running_loop = _running_loop_in_child
    _inherited.extend(_loops)
    _loops.clear()
    for thing in list(_held):
        # One that fails must not keep the others from being cut off. No caller waits for it.
        with contextlib.suppress(Exception):
            thing.on_forked()
    _held.clear()


os.register_at_fork(after_in_child=_in_child)
