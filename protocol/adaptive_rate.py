"""The rate of background work that gives way to the adds of applications. Pure."""

from typing import Final

TOLERANCE: Final = 1.5
"""How many times as long as undisturbed adds may take, on average."""

SECONDS_MIN: Final = 0.002
"""Adds that take no longer than this are never slow: so short a delay doubles by chance."""

FIRST_PART: Final = 8
"""When adds come, the work goes on with this part of its upper limit."""

RISE: Final = 1.25
"""Factor by which the rate rises while adds are not slow."""

LEARNING: Final = 0.25
"""Weight of the newest delay in what adds take undisturbed."""


class AdaptiveRate:
    """A rate between two limits, which follows the delay of ordinary adds (rule A9).

    Once a second :meth:`adjust` is told the delay. Without adds the rate is the upper limit. Beside adds it is as high
    as they allow: it falls while they take more than :data:`TOLERANCE` times as long as undisturbed, the faster the
    slower they are, and otherwise rises slowly. What adds take undisturbed is what they took while the work rested. At
    the lower limit the work hardly disturbs them, so that what they take then counts, too: a load that has grown for
    another reason does not hold the work down for ever.
    """

    def __init__(self, *, per_second_min: int, per_second_max: int) -> None:
        self._min, self._max = min(per_second_min, per_second_max), per_second_max
        self._undisturbed_seconds: float | None = None
        self._beside_adds = False
        self.per_second = per_second_max

    def adjust(self, add_delay_seconds: float, *, rested: bool = False) -> int:
        """The rate from now on, per second. ``add_delay_seconds``: what adds have taken on average since the last call,
        0.0 if there were none. ``rested``: the work has done nothing since the last call."""
        was_beside_adds, self._beside_adds = self._beside_adds, add_delay_seconds > 0.0
        if not add_delay_seconds:
            self.per_second = self._max
            return self.per_second
        if rested:
            self._undisturbed_seconds = add_delay_seconds
            if not was_beside_adds:
                self.per_second = max(self._min, min(self.per_second, self._max // FIRST_PART))
            return self.per_second
        if self._undisturbed_seconds is None:
            if self.per_second > self._min:  # adds have begun beside the work
                self.per_second = self._min
                return self.per_second
            self._undisturbed_seconds = add_delay_seconds
        elif self.per_second == self._min:
            self._undisturbed_seconds += LEARNING * (add_delay_seconds - self._undisturbed_seconds)
        bearable = max(TOLERANCE * self._undisturbed_seconds, SECONDS_MIN)
        if add_delay_seconds > bearable:
            self.per_second = max(int(self.per_second * bearable / (2 * add_delay_seconds)), self._min)
        else:
            self.per_second = min(int(self.per_second * RISE), self._max)
        return self.per_second
