"""The clock that decides when leases of processes on this host expire."""

import time


def boot_time_seconds() -> float:
    """Seconds since the host started, including time spent suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
