"""Waiting for what no event announces: the state of another process, or of tasks that report nothing.

All other tests wait for events. These helpers are the only places in which a test polls or pauses in real time.
"""

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable

WAIT_SECONDS = 150.0
"""The longest wait for something that must happen: far beyond what a healthy run takes on a slow and busy machine."""

_POLL_SECONDS = 0.01

_POLL_COSTS = 3.0
"""A look is followed by a pause of this many times what it took: looks that start a command must not use up the
processors that what they wait for needs."""

_TURNS_BEFORE_PAUSE = 1000
"""Turns of the loop without a pause: what needs no real time is seen as soon as it holds."""

_LOAD_PAUSE_SECONDS = 0.003
"""Between two adds of a load generator."""


async def eventually(
    holds: Callable[[], bool | Awaitable[bool]], what: str = "", *, seconds: float = WAIT_SECONDS
) -> None:
    """Return once ``holds`` is true. Fails, naming ``what``, when that takes longer than ``seconds``."""
    turns = 0
    try:
        async with asyncio.timeout(seconds) as deadline:
            while True:
                began_at = time.monotonic()
                held = holds()
                if await held if inspect.isawaitable(held) else held:
                    return
                turns += 1
                pause_seconds = max(_POLL_SECONDS, _POLL_COSTS * (time.monotonic() - began_at))
                is_cheap = turns <= _TURNS_BEFORE_PAUSE and pause_seconds == _POLL_SECONDS
                await asyncio.sleep(0 if is_cheap else pause_seconds)
    except TimeoutError:
        assert not deadline.expired(), f"this never happened: {what or holds}"
        raise


def wait_until(condition: Callable[[], bool], what: str | Callable[[], str]) -> None:
    """As :func:`eventually`, for tests without an event loop. A ``what`` that is called says more after a failure."""
    deadline = time.monotonic() + WAIT_SECONDS
    pause = threading.Event()
    began_at = time.monotonic()
    while not condition():
        assert time.monotonic() < deadline, f"this never happened: {what() if callable(what) else what}"
        pause.wait(max(_POLL_SECONDS, _POLL_COSTS * (time.monotonic() - began_at)))
        began_at = time.monotonic()


async def loop_turns(count: int = 500) -> None:
    """Let the event loop turn ``count`` times: for tests that something does *not* happen. Whatever follows from events
    without a timer has happened then, frames between connections of this process included."""
    for _ in range(count):
        await asyncio.sleep(0)


async def pause(seconds: float = _LOAD_PAUSE_SECONDS) -> None:
    """Let real time pass. A load generator pauses between two adds, to leave the processors to the processes under
    test; other tests are about something that takes so long, such as the end of a lease."""
    await asyncio.sleep(seconds)
