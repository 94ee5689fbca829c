"""Measure the auditor's index of ledgers: its memory, and the time of its work, without a metadata store.

census_time.py [--ledgers 1000000] [--bookies 10]

Every ledger is closed and names three bookies. Work is done in steps, and between them the auditor's bookie serves its
clients: the longest step is the longest time for which they wait.
"""

import argparse
import json
import random
import resource
import sys
import time
from collections.abc import Iterable
from typing import Any

from octavo.protocol.ids import BookieId, LedgerId
from octavo.repair.census import Census, Round, Seen, Steps


def timed(name: str, steps: Steps[Any], figures: dict[str, Any]) -> None:
    """Do the work; note how long it and its longest step took."""
    longest, begun = 0.0, time.perf_counter()
    while True:
        step_begun = time.perf_counter()
        try:
            next(steps)
        except StopIteration:
            break
        finally:
            longest = max(longest, time.perf_counter() - step_begun)
    seconds = time.perf_counter() - begun
    figures[name] = {"seconds": round(seconds, 3), "longest_step_ms": round(1000 * longest, 1)}


def take_round(census: Census, ledger_ids: Iterable[int], members: list[frozenset[BookieId]]) -> Round:
    """List the ledgers, and read those that a round reads."""
    found = Round()
    for number in ledger_ids:
        ledger_id = LedgerId(number)
        found.list(ledger_id)
        if census.must_read(ledger_id):
            found.note(ledger_id, Seen(members[number % len(members)], closed=True, spare_copies=1))
    return found


def main() -> int:
    """Run the benchmark. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ledgers", type=int, default=1_000_000)
    parser.add_argument("--bookies", type=int, default=10)
    arguments = parser.parse_args()
    count, rng = arguments.ledgers, random.Random(1)
    names = [BookieId(f"bookie-{number}") for number in range(arguments.bookies)]
    members = [frozenset(rng.sample(names, 3)) for _ in range(1009)]
    figures: dict[str, Any] = {"ledgers": count, "resident_megabytes_before": _resident_megabytes()}
    census = Census()
    timed("first_round", census.apply(take_round(census, range(count), members)), figures)
    figures["index_megabytes"] = round(census.memory_bytes / 1e6, 1)
    timed("round_without_changes", census.apply(take_round(census, range(count), members)), figures)
    timed("round_with_100_new_and_100_deleted",
          census.apply(take_round(census, range(100, count + 100), members)), figures)  # fmt: skip
    timed("queue_after_the_loss_of_a_bookie", census.candidates({names[0]: 0}), figures)
    timed("figures_of_bookies", census.counts({names[0]}), figures)
    figures["resident_megabytes_max"] = _resident_megabytes()
    print(json.dumps(figures, indent=1))
    return 0


def _resident_megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    sys.exit(main())
