"""Clocks that no operator and no time server sets.

They tell how much time has passed between two looks of one host, and nothing else. The clock of the host decides when
leases of its processes expire, and bounds how old something can be (:mod:`octavo.metadata.clocks.proven_time`).
"""

import asyncio
import os
import random
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

from octavo.metadata.clocks.proven_time import BootTime

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_REAL_LOOPS: Final = frozenset({"asyncio", "uvloop"})
"""Modules of event loops that wait in real time."""

type BootClock = Callable[[], BootTime]


def boot_time_seconds() -> float:
    """Seconds since the host started, including time spent suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_clock_of(loop: asyncio.AbstractEventLoop, rng: random.Random) -> BootClock:
    """The clock of the host on which this loop runs. A loop with a time of its own, such as a simulator's, is a host of
    its own; its name is what ``rng`` gives next, and gives again."""
    if type(loop).__module__.partition(".")[0] in _REAL_LOOPS:
        return lambda: BootTime(_boot_id(), int(boot_time_seconds() * 1000))
    ahead = random.Random()
    ahead.setstate(rng.getstate())
    name = f"{ahead.getrandbits(128):032x}"
    return lambda: BootTime(name, int(loop.time() * 1000))


def boot_id_of_kernel() -> str | None:
    """The id of this start of the kernel: the same for all processes of a host, whatever containers they are in, and
    another one on every other host. None where it cannot be read."""
    try:
        return _BOOT_ID.read_text("ascii").strip() or None
    except OSError:
        return None


@cache
def _boot_id() -> str:
    # Without one, what this process sees cannot be compared with what any other one sees.
    return boot_id_of_kernel() or f"{os.getpid()}-{os.urandom(8).hex()}"
