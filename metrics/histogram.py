"""Durations in buckets whose bounds double. Pure.

The bucket of a duration is the number of bits of its length in units of the first bound, so that counting is one
multiplication and one list access: no comparison with bounds.
"""

BOUND_FIRST_SECONDS = 50e-6
"""Faster than a sync of the fastest disk; 2^18 times as much is longer than any request may take."""

BOUNDS_SECONDS = tuple(BOUND_FIRST_SECONDS * 2**power for power in range(19))
"""Upper bounds of all buckets but the last: 50 us to 13.1 s."""

_UNITS_PER_SECOND = round(1 / BOUND_FIRST_SECONDS)
_LAST = len(BOUNDS_SECONDS)


class Histogram:
    """Counts durations. A duration of exactly a bound counts in the next bucket."""

    __slots__ = ("counts", "sum_seconds")

    def __init__(self) -> None:
        self.counts = [0] * (_LAST + 1)
        """For each bucket, not cumulative; the last one has no upper bound."""
        self.sum_seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration. A negative one, of a clock that was set back, counts as 0."""
        if seconds > 0.0:
            bucket = int(seconds * _UNITS_PER_SECOND).bit_length()
            self.counts[bucket if bucket < _LAST else _LAST] += 1
            self.sum_seconds += seconds
        else:
            self.counts[0] += 1

    def observe_alike(self, seconds: float, count: int) -> None:
        """Count as many durations of the same length."""
        self.counts[min(int(max(seconds, 0.0) * _UNITS_PER_SECOND).bit_length(), _LAST)] += count
        self.sum_seconds += max(seconds, 0.0) * count

    @property
    def count(self) -> int:
        """Durations counted."""
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """The upper bound of the bucket in which this share of the durations is reached, in seconds; ``inf`` for the
        last bucket, None while nothing has been counted. Raises ValueError unless ``0 <= share <= 1``."""
        return quantile_of(self.counts, share)


def counts_as_text(counts: list[int]) -> str:
    """The counts of a histogram's buckets in a message: numbers separated by spaces, without the zeros at the end."""
    last = max((bucket for bucket, count in enumerate(counts) if count), default=-1)
    return " ".join(map(str, counts[: last + 1]))


def counts_from_text(text: str) -> list[int]:
    """The counts that :func:`counts_as_text` has written, one for each bucket. Raises ValueError for other texts."""
    counts = [int(word) for word in text.split(" ")] if text else []
    if len(counts) > _LAST + 1 or any(count < 0 for count in counts):
        raise ValueError(f"{text[:100]!r} are not the counts of a histogram")
    return counts + [0] * (_LAST + 1 - len(counts))


def quantile_of(counts: list[int], share: float) -> float | None:
    """As :meth:`Histogram.quantile`, of the counts of its buckets or of their increase between two moments."""
    if not 0 <= share <= 1:
        raise ValueError(f"a quantile lies between 0 and 1, not at {share}")
    wanted, reached = share * sum(counts), 0
    for bucket, count in enumerate(counts):
        reached += count
        if count and reached >= wanted:
            return BOUNDS_SECONDS[bucket] if bucket < _LAST else float("inf")
    return None
