"""How many requests a bookie has answered, with what result, and how long it took; counted once for each frame.

Durations are kept of successful requests only: a refusal is quick and would hide a slow disk. The number of successful
requests is the number of their durations, so that a request costs one count.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from octavo.metrics.histogram import Histogram
from octavo.protocol.errors import ERROR_CODES, OctavoError, code_of
from octavo.protocol.messages import Op

SERVED_OPS: Final[tuple[Op, ...]] = tuple(op for op in Op if op not in {Op.HELLO, Op.PACK, Op.PUSH, Op.ERROR})
"""The operations that clients can ask for. The requests of a pack are counted each for itself."""

CODE_OK = "ok"


class MeanOfLatest:
    """The mean of the durations that a histogram has counted since the last call, in seconds; 0.0 when there were
    none: an old figure must not hold anything back."""

    __slots__ = ("_count", "_histogram", "_sum_seconds")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._count, self._sum_seconds = histogram.count, histogram.sum_seconds

    def __call__(self) -> float:
        """See the class."""
        before, seconds = self._count, self._sum_seconds
        self._count, self._sum_seconds = self._histogram.count, self._histogram.sum_seconds
        return 0.0 if self._count == before else (self._sum_seconds - seconds) / (self._count - before)


class RequestCounts:
    """See the module. ``clock`` gives seconds, precisely enough for durations of microseconds."""

    __slots__ = ("add_seconds", "clock", "refused", "seconds", "untimed")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds: dict[Op, Histogram] = {op: Histogram() for op in SERVED_OPS}
        self.add_seconds = self.seconds[Op.ADD]
        self.untimed: Counter[Op] = Counter()
        """Answers to long polls, which wait for a ledger to grow, and to reads of repair, which wait for their rate:
        their time says nothing about the bookie."""
        self.refused: Counter[tuple[Op, int]] = Counter()
        """By operation and error code. ``Op.ERROR`` stands for operations that the bookie does not know."""

    def answered(self, op: Op, began_at: float | None) -> None:
        """A request that arrived at ``began_at`` has succeeded; None: its time does not count."""
        if began_at is None:
            self.untimed[op] += 1
        else:
            self.seconds[op].observe(self.clock() - began_at)

    def note_refused(self, op: Op, error: OctavoError) -> None:
        """A request has been answered with an error."""
        self.refused[op, code_of(error)] += 1

    def totals(self) -> Iterator[tuple[str, str, int]]:
        """Operation, result and number of requests, each successful operation also with 0."""
        for op, histogram in self.seconds.items():
            yield op.name.lower(), CODE_OK, histogram.count + self.untimed[op]
        for (op, code), count in sorted(self.refused.items()):
            name = "unknown" if op is Op.ERROR else op.name.lower()
            yield name, ERROR_CODES[code].__name__.removesuffix("Error"), count
