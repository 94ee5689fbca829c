"""The rate of background work that gives way to the adds of applications. Pure."""


class AdaptiveRate:
    """A rate between two limits, which follows the delay of ordinary adds (rule A9).

    Once a second :meth:`adjust` is told the delay. While it is above the target, the rate is halved, down to the lower
    limit: adds of applications come first. Otherwise it rises by an eighth of the upper limit.
    """

    def __init__(self, *, per_second_min: int, per_second_max: int, add_delay_seconds: float) -> None:
        self._min, self._max = min(per_second_min, per_second_max), per_second_max
        self._target_seconds = add_delay_seconds
        self.per_second = per_second_max

    def adjust(self, add_delay_seconds: float) -> int:
        """The rate from now on, per second."""
        if add_delay_seconds > self._target_seconds:
            self.per_second = max(self.per_second // 2, self._min)
        else:
            self.per_second = min(self.per_second + self._max // 8, self._max)
        return self.per_second
