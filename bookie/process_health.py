"""The pulse of a bookie's process: how late its event loop is, how long Python's garbage collection stops it, and signs
of life for the supervisor.

systemd restarts a service that sends no ``WATCHDOG=1`` for ``WatchdogSec``. The pings come from a timer of the event
loop: a loop that hangs is what the watchdog is for. They go on while a sync of the disk hangs, because the loop does
not wait for it, and because killing the bookie would not mend the disk. While the bookie starts, which may take long if
there is much to replay, it asks for more time instead (``EXTEND_TIMEOUT_USEC``).
"""

import asyncio
import gc
import os
from collections.abc import Callable, Mapping

from octavo.bookie.admin.process import ProcessStatistics
from octavo.bookie.notify import notify_supervisor

BEAT_SECONDS = 0.25

START_EXTENSION_SECONDS = 60.0
"""Time that a starting bookie asks for, at every ``START_BEAT_SECONDS``."""
START_BEAT_SECONDS = 10.0
_EXTEND = f"EXTEND_TIMEOUT_USEC={round(START_EXTENSION_SECONDS * 1_000_000)}"


class Pulse:
    """Beats from :meth:`start` to :meth:`stop`. ``clock`` gives precise seconds."""

    def __init__(
        self, statistics: ProcessStatistics, environment: Mapping[str, str], clock: Callable[[], float]
    ) -> None:
        self._statistics = statistics
        self._environment = environment
        self._clock = clock
        self._watchdog_seconds = watchdog_seconds(environment)
        self._starting = True
        self._told_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._collection_began_at = 0.0

    def start(self) -> None:
        """Begin."""
        gc.callbacks.append(self._note_collection)
        self._due_at = self._clock()
        self._beat()

    def ready(self) -> None:
        """The bookie serves: the watchdog runs from now on."""
        self._starting = False
        self._told_at = None

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()
            gc.callbacks.remove(self._note_collection)
            self._timer = None

    def _beat(self) -> None:
        now = self._clock()
        if self._timer is not None:
            self._statistics.loop_lag_seconds.observe(now - self._due_at)
        self._tell(now)
        self._due_at = now + BEAT_SECONDS
        self._timer = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def _tell(self, now: float) -> None:
        interval = START_BEAT_SECONDS if self._starting else self._watchdog_seconds
        if interval is None or (self._told_at is not None and now - self._told_at < interval - BEAT_SECONDS):
            return
        self._told_at = now
        notify_supervisor(_EXTEND if self._starting else "WATCHDOG=1", self._environment, wait=False)

    def _note_collection(self, phase: str, _info: object) -> None:
        if phase == "start":
            self._collection_began_at = self._clock()
        else:
            self._statistics.gc_pause_seconds.observe(self._clock() - self._collection_began_at)


def watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    """How often the supervisor wants to hear ``WATCHDOG=1``: a third of its patience. None: it does not."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None  # inherited from a parent that the watchdog is for
    text = environment.get("WATCHDOG_USEC", "")
    return int(text) / 3e6 if text.isdecimal() and int(text) > 0 else None
