"""The clock by which leases of this host's processes are judged."""

import time


def boot_time_seconds() -> float:
    """Seconds since the host started, suspends included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
