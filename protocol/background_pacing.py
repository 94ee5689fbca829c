"""When background work rests and looks at the adds of applications, to which it gives way. Pure."""

import enum
from collections.abc import Callable
from typing import Final

from octavo.protocol.adaptive_rate import AdaptiveRate

LOOK_SECONDS: Final = 1.0
"""Time between two looks at what adds take."""

REST_SECONDS: Final = 3.0
"""After so long without work, what adds took meanwhile is what they take undisturbed."""

LISTEN_EVERY_SECONDS: Final = 30.0
"""What adds take undisturbed is learned again when it is so old: loads change."""

CALM_SECONDS: Final = 0.25
"""What the work had begun ends within this time, before listening begins."""

LISTEN_SECONDS: Final = 1.0
"""For so long the work rests to learn what adds take undisturbed."""


class _Phase(enum.Enum):
    WORK = enum.auto()
    CALM = enum.auto()
    LISTEN = enum.auto()


class GivingWay:
    """Adjusts the rate of background work once a second, and makes the work rest when it must be learned what adds take
    without it (rule A9).

    What adds have taken on average since the process began would say nothing: a busy hour in the past would let the
    work disturb the adds of a quiet one. So the work begins with a second of listening if there are adds, and repeats
    that twice a minute.
    """

    def __init__(self, rate: AdaptiveRate, add_delay_seconds: Callable[[], float]) -> None:
        """``add_delay_seconds`` tells how long adds have taken on average since it was last called, 0.0 if there were
        none."""
        self._rate = rate
        self._add_delay_seconds = add_delay_seconds
        self._phase = _Phase.WORK
        self._look_at = 0.0
        self._listen_at = 0.0

    def look(self, now: float) -> float:
        """To be called before each piece of work, with the time in seconds. Returns how long the work must rest before
        the next call; 0.0: it may go on at the rate."""
        if now < self._look_at:
            return 0.0 if self._phase is _Phase.WORK else self._look_at - now
        delay = self._add_delay_seconds()
        if self._phase is _Phase.CALM:
            return self._rest(_Phase.LISTEN, now, LISTEN_SECONDS)
        if self._phase is _Phase.WORK and delay and now >= self._listen_at:
            return self._rest(_Phase.CALM, now, CALM_SECONDS)
        rested = self._phase is _Phase.LISTEN or now >= self._look_at + REST_SECONDS
        self._rate.adjust(delay, rested=rested)
        if rested:
            self._listen_at = now + LISTEN_EVERY_SECONDS
        self._phase, self._look_at = _Phase.WORK, now + LOOK_SECONDS
        return 0.0

    def _rest(self, phase: _Phase, now: float, seconds: float) -> float:
        self._phase, self._look_at = phase, now + seconds
        return seconds
