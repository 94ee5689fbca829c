"""Measure which share of the processor time of an add goes into counting it, exactly enough on a busy machine.

metrics_share.py [--seconds 90]

A client and three bookies run in one process. Slices of the same adds alternate: in half of them everything that
counts a frame (looks at the clock, histograms, the client's queue) is done 41 times instead of once, so that a cost
far below the noise of one slice becomes visible. Of each pair of neighbours the script takes the ratio of the
processor time for an entry; a fortieth of what is above 1 is the share of counting. It prints the median and the 95 %
interval of the median, and the time for an add that this is. The repetitions find a warm cache, and their loop is
counted as part of the cost. Not repeated are additions to integers, a few for each frame at 30 ns each.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
from octavo.bookie.bookie import Bookie
from octavo.bookie.logs import configure_logging
from octavo.client import counts as client_counts
from octavo.client.write.writer import LedgerWriter
from octavo.metrics.clock import precise_seconds
from octavo.metrics.histogram import Histogram

import octavo

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bookies_here import start_bookies

REPEATED = 40
"""How often a slice counts again what it has counted."""


class Load(NamedTuple):
    """``add`` makes ``entries`` adds, which are one slice: some tens of milliseconds."""

    entries: int
    add: Callable[[LedgerWriter], Awaitable[None]]


def at_once(size: int, entries: int) -> Load:
    """Adds of payloads of ``size`` bytes, 1,000 in flight."""
    payloads = [bytes(size)] * 1000

    async def add(ledger: LedgerWriter) -> None:
        for _ in range(entries // 1000):
            await ledger.add_many(payloads)

    return Load(entries, add)


def alone(entries: int) -> Load:
    """Adds of 100 bytes, each after the acknowledgement of the one before."""

    async def add(ledger: LedgerWriter) -> None:
        for _ in range(entries):
            await ledger.add(bytes(100))

    return Load(entries, add)


LOADS = {"100 B": at_once(100, 3000), "1 KiB": at_once(1024, 2000), "lone": alone(60)}


class Repetition:
    """Lets this process count once, or again and again."""

    def __init__(self, bookies: list[Bookie]) -> None:
        self._counts = [bookie.service.requests for bookie in bookies]
        self._observe = Histogram.observe
        self.counted = 0

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Inside, what counts is repeated."""
        observe = self._observe

        def observe_again(histogram: Histogram, seconds: float) -> None:
            for _ in range(REPEATED + 1):
                observe(histogram, seconds)
            self.counted += 1

        def look_again() -> float:
            for _ in range(REPEATED):
                precise_seconds()
            return precise_seconds()

        self._set(observe_again, look_again)
        try:
            yield
        finally:
            self._set(observe, precise_seconds)

    def _set(self, observe: Any, look: Callable[[], float]) -> None:
        Histogram.observe = observe  # type: ignore[method-assign]
        client_counts.precise_seconds = look  # type: ignore[attr-defined]
        for counts in self._counts:
            counts.clock = look


async def slice_seconds(load: Load, ledger: LedgerWriter) -> float:
    """Processor time of one slice, for each entry."""
    began = time.process_time()
    await load.add(ledger)
    return (time.process_time() - began) / load.entries


class Pair(NamedTuple):
    """The comparison of two neighbouring slices."""

    share: float
    """Of counting, in the processor time of an add."""
    seconds: float
    """Processor time of an add, without repetitions."""


async def measure(seconds: float) -> dict[str, list[Pair]]:
    """For each load, its pairs of slices; at least one."""
    found: dict[str, list[Pair]] = {name: [] for name in LOADS}
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="octavo-metrics-share-")))
        uri, bookies = await start_bookies(stack, folder, clock=precise_seconds)
        repetition = Repetition(bookies)
        client = await stack.enter_async_context(octavo.connect(uri))
        ledger = await stack.enter_async_context(client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2))
        for load in LOADS.values():
            await slice_seconds(load, ledger)
        deadline, round_number = time.monotonic() + seconds, 0
        while not round_number or time.monotonic() < deadline:
            round_number += 1
            for name, load in LOADS.items():
                spent: dict[bool, float] = {}
                for again in (False, True) if round_number % 2 else (True, False):
                    with repetition.on() if again else contextlib.nullcontext():
                        spent[again] = await slice_seconds(load, ledger)
                found[name].append(Pair((spent[True] / spent[False] - 1) / REPEATED, spent[False]))
        assert repetition.counted, "nothing was repeated"
    return found


def median_interval(values: list[float]) -> tuple[float, float, float]:
    """The median, and the two values between which it lies with 95 % certainty, whatever the distribution."""
    ranked = sorted(values)
    reach = 0.98 * len(ranked) ** 0.5
    middle = len(ranked) / 2
    low, high = max(round(middle - reach), 0), min(round(middle + reach), len(ranked) - 1)
    return ranked[low], statistics.median(ranked), ranked[high]


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the share of counting in the processor time of an add.")
    parser.add_argument("--seconds", type=float, default=90.0, help="no round begins after this time")
    arguments = parser.parse_args()
    configure_logging("warning", "console")
    for name, pairs in uvloop.run(measure(arguments.seconds)).items():
        low, middle, high = median_interval([pair.share for pair in pairs])
        microseconds = statistics.median(pair.seconds for pair in pairs) * 1e6
        print(
            f"{name:>6}  {middle:.3%} ({low:.3%} to {high:.3%}) of {microseconds:.1f} us: "
            f"{middle * microseconds:.3f} us for each add; {len(pairs)} pairs"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
