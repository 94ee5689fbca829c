"""Counts latencies in log-linear buckets: bounded memory, a bounded relative error, no Python code per value.

A bucket is the upper half of a value's 32-bit float: its sign (never set), 8 bits of exponent, 7 bits of mantissa. Each
power of two therefore has 128 buckets of equal width, a bucket is narrower than 1/128 of its values, and its middle is
within :data:`RELATIVE_ERROR_MAX` of every value in it. Buckets sort as their values do. Buckets are defined this way
because taking the upper halves of an array of floats is one slice, and counting them is one call of
:class:`collections.Counter`.
"""

import math
import struct
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

RELATIVE_ERROR_MAX = 2.0**-8
"""Largest relative error of a reported value (0.39 %)."""

VALUE_MAX = 2.0**100
"""Largest value accepted: well below the largest 32-bit float, and far above any latency in seconds."""

_UPPER_HALVES = slice(1, None, 2) if sys.byteorder == "little" else slice(0, None, 2)
_FLOAT = struct.Struct("=f")
_BITS = struct.Struct("=I")


class Histogram:
    """Counts of non-negative values in any one unit, from which percentiles are read."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._count = 0
        self._max = 0.0
        self._sum = 0.0

    def record(self, value: float, count: int = 1) -> None:
        """Count ``value`` ``count`` times. Raises :class:`ValueError` for a value outside 0 to :data:`VALUE_MAX`."""
        if not 0.0 <= value <= VALUE_MAX:
            raise ValueError(f"a histogram takes values from 0 to {VALUE_MAX:g}, not {value!r}")
        if count < 0:
            raise ValueError(f"a count is not negative: {count}")
        if count == 0:
            return
        self._counts[_BITS.unpack(_FLOAT.pack(value))[0] >> 16] += count
        self._count += count
        self._max = max(self._max, value)
        self._sum += value * count

    def record_all(self, values: "array[float]") -> None:
        """Count each of ``values``, an array of 32-bit floats (type code ``f``), at C speed."""
        if values.typecode != "f":
            raise ValueError(f"an array of 32-bit floats (type code 'f') is needed, not {values.typecode!r}")
        if not values:
            return
        largest = max(values)
        if not (min(values) >= 0.0 and largest <= VALUE_MAX):
            raise ValueError(f"a histogram takes values from 0 to {VALUE_MAX:g}; there is one outside")
        total = math.fsum(values)
        if math.isnan(total):
            raise ValueError("a histogram takes no NaN")
        self._counts.update(memoryview(values).cast("B").cast("H")[_UPPER_HALVES].tolist())
        self._count += len(values)
        self._max = max(self._max, largest)
        self._sum += total

    def merge(self, others: "Iterable[Histogram]") -> None:
        """Add the counts of other histograms."""
        for other in others:
            self._counts.update(other._counts)
            self._count += other._count
            self._max = max(self._max, other._max)
            self._sum += other._sum

    def as_fields(self) -> dict[str, Any]:
        """The counts in a form that JSON can hold, for another process."""
        return {"counts": sorted(self._counts.items()), "max": self._max, "sum": self._sum}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "Histogram":
        """The histogram from what :meth:`as_fields` returned."""
        histogram = cls()
        histogram._counts.update(dict(fields["counts"]))
        histogram._count = histogram._counts.total()
        histogram._max, histogram._sum = fields["max"], fields["sum"]
        return histogram

    @property
    def count(self) -> int:
        """Number of values counted."""
        return self._count

    @property
    def max(self) -> float | None:
        """The largest value, not rounded to a bucket; None when empty."""
        return self._max if self._count else None

    @property
    def mean(self) -> float | None:
        """The average, not rounded to buckets; None when empty."""
        return self._sum / self._count if self._count else None

    def percentile(self, percent: float) -> float | None:
        """The least value that ``percent`` of all values do not exceed (nearest rank).

        Within :data:`RELATIVE_ERROR_MAX`. None when empty. ``percentile(100)`` is :attr:`max`. Raises
        :class:`ValueError` unless 0 <= percent <= 100.
        """
        if not 0.0 <= percent <= 100.0:
            raise ValueError(f"a percentile is from 0 to 100, not {percent!r}")
        if not self._count:
            return None
        rank = max(1, math.ceil(self._count * percent / 100.0))
        if rank >= self._count:
            return self._max
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= rank:
                return min(_middle(bucket), self._max)
        raise AssertionError("the buckets hold fewer values than were counted")


def _middle(bucket: int) -> float:
    if bucket == 0:
        return 0.0
    middle: float = _FLOAT.unpack(_BITS.pack(bucket << 16 | 0x8000))[0]
    return middle
