"""The time of an event loop, in more than whole milliseconds."""

import asyncio
import time
from collections.abc import Callable


def precise_time_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """A clock that goes with the loop's time, in seconds. uvloop's time has whole milliseconds, as of when its turn
    began; it takes them from the monotonic clock, which has more. Any other loop, a simulator's too, has its own."""
    return time.monotonic if type(loop).__module__.partition(".")[0] == "uvloop" else loop.time
