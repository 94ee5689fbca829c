"""What happens in a forked child, by itself (rule H1)."""

import asyncio
import os
import resource
import socket
from collections.abc import Callable

import pytest
from octavo.protocol.errors import ForkedError
from octavo.security import forks
from support.forks import in_child


class Thing:
    """Something that is open."""

    def __init__(self, on_told: Callable[[], None] = lambda: None) -> None:
        self.told = False
        self._on_told = on_told

    def on_forked(self) -> None:
        self._on_told()
        self.told = True


def fail() -> None:
    raise RuntimeError("for a test")


@pytest.fixture
async def noted() -> asyncio.AbstractEventLoop:
    """The event loop of this test, in which something was made."""
    loop = asyncio.get_running_loop()
    forks.note_loop(loop)
    return loop


def refused(act: Callable[[], object]) -> str:
    try:
        act()
    except ForkedError:
        return "refused"
    return "done"


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


async def test_every_object_is_told_although_others_fail(noted: asyncio.AbstractEventLoop) -> None:
    failing, things = [Thing(fail) for _ in range(8)], [Thing() for _ in range(8)]
    for thing in (*failing, *things):
        forks.hold(thing)
    closed = things.pop()
    forks.let_go(closed)
    assert in_child(lambda: [thing.told for thing in things]) == [True] * 7
    assert in_child(lambda: closed.told) is False
    assert not any(thing.told for thing in things), "nothing has happened to the parent's"
    for thing in (*failing, *things):
        forks.let_go(thing)


async def test_what_was_being_connected_at_the_fork_is_told(noted: asyncio.AbstractEventLoop) -> None:
    def connected() -> bool:
        thing = Thing()
        forks.hold_connection(thing)
        return thing.told

    assert in_child(connected) is True
    assert connected() is False


async def test_an_inherited_event_loop_is_none_and_takes_nothing_new(noted: asyncio.AbstractEventLoop) -> None:
    assert in_child(lambda: forks.running_loop() is None) is True
    assert in_child(lambda: refused(lambda: forks.note_loop(noted))) == "refused"
    assert in_child(lambda: refused(forks.check_running_loop)) == "refused"
    assert forks.running_loop() is noted
    assert refused(forks.check_running_loop) == "done"


async def test_a_child_runs_an_event_loop_of_its_own(noted: asyncio.AbstractEventLoop) -> None:
    async def check() -> bool:
        forks.check_running_loop()
        forks.note_loop(asyncio.get_running_loop())
        return True

    assert in_child(lambda: asyncio.run(check())) is True


def test_a_socket_of_the_parent_leads_nowhere_and_its_number_stays_taken() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)

        def led() -> list[object]:
            forks.lead_nowhere(ours.fileno())
            return [is_open(ours.fileno()), len(os.read(ours.fileno(), 1)), refused_write(ours.fileno())]

        assert in_child(led) == [True, 0, True]
        theirs.send(b"to the parent")
        assert ours.recv(100) == b"to the parent"


def refused_write(descriptor: int) -> bool:
    try:
        os.write(descriptor, b"x")
    except BrokenPipeError:
        return True
    return False


def test_without_descriptors_the_parents_socket_is_closed() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def led() -> bool:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            forks.lead_nowhere(ours.fileno())
            return is_open(ours.fileno())

        assert in_child(led) is False
        assert is_open(ours.fileno())
