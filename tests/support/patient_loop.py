"""The event loop of tests: its time stands still while the machine does not let the process run.

A test process shares its processors with others and may stand still for seconds, longer than leases, time-outs and
grace times of a test last. To the programs of that test the pause looks as if everything else had been silent: a lease
ends, a bookie is given up, and the test fails although nothing is wrong. What a paused process does is tested in
virtual time, by the simulator; a test in real time is about something else.

So the loop's time goes on only while the loop does: during one turn by at most ``TURN_SECONDS_MAX``, during one look
for events by little more than the loop wanted to wait, and it wants to wait in short slices. Between two events a
second of this time is a second of real time, on a machine that keeps up.

Only the loop's time is patient. A test with threads, other processes, a ZooKeeper server or the clock of the host waits
long enough instead (``support/waiting.py``).
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Mapping
from typing import Any

TURN_SECONDS_MAX = 0.02
"""What one turn of the loop counts at most, however long it took."""

SLICE_SECONDS = 0.05
"""The longest single wait for events."""

SLACK_SECONDS = 0.01
"""What a wait may take beyond what was asked for and still count."""


class PatientClock:
    """Seconds that go on by at most what the loop allows from one of its steps to the next."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._behind = 0.0
        """Seconds that the process lost to pauses: real time is ahead by them."""
        self._latest = now() + TURN_SECONDS_MAX

    def time(self) -> float:
        return min(self._now() - self._behind, self._latest)

    def begin(self, seconds_max: float) -> None:
        """A step begins, which counts for at most so long."""
        now = self.time()
        self._behind = self._now() - now
        self._latest = now + seconds_max


class PatientSelector(selectors.BaseSelector):
    """The selector of the platform, which waits in slices and tells the clock."""

    def __init__(self, clock: PatientClock) -> None:
        self._clock = clock
        self._inner = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As the platform's; ``timeout`` is time of the clock."""
        if timeout is not None and timeout <= 0:  # handles wait: no time passes here
            events = self._inner.select(0)
            self._clock.begin(TURN_SECONDS_MAX)
            return events
        ends_at = float("inf") if timeout is None else self._clock.time() + timeout
        while True:
            wait_seconds = max(0.0, min(ends_at - self._clock.time(), SLICE_SECONDS))
            self._clock.begin(wait_seconds + SLACK_SECONDS)
            events = self._inner.select(wait_seconds)
            self._clock.begin(TURN_SECONDS_MAX)
            if events or self._clock.time() >= ends_at:
                return events

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.modify(fileobj, events, data)

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.get_key(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._inner.get_map()

    def close(self) -> None:
        self._inner.close()


class PatientLoop(asyncio.SelectorEventLoop):
    """See the module. It runs on this host, whose boot time and time of day stay what they are: to
    ``boot_clock_of`` it is one of asyncio's own loops."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.clock = PatientClock(now)
        super().__init__(PatientSelector(self.clock))

    def time(self) -> float:
        return self.clock.time()


PatientLoop.__module__ = asyncio.SelectorEventLoop.__module__
