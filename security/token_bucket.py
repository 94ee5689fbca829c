"""A rate that may be exceeded for a moment: tokens that come evenly, and are taken as needed. Pure."""


class TokenBucket:
    """Fills with ``per_second`` tokens a second, up to ``burst``; may be overdrawn. Pure: the time is an argument."""

    __slots__ = ("_at", "_burst", "_per_second", "_tokens")

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = self._tokens = burst
        self._at = 0.0

    def take(self, amount: float, now: float) -> float:
        """Take tokens, whether they are there or not; the seconds until the bucket is out of debt."""
        self._fill(now)
        self._tokens -= amount
        return max(0.0, -self._tokens / self._per_second)

    def take_if_there(self, now: float) -> bool:
        """Take one token if there is one."""
        self._fill(now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
        self._at = now
