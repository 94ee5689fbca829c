"""Run simulated universes: one seed, a range of them, or as many as fit into some minutes (docs/simulator.md).

python scripts/simulate.py 42                      one universe; its trace if it fails, or with --trace
python scripts/simulate.py 1-400 --jobs 2          a range
python scripts/simulate.py 1-20000 --record FILE   the same, kept in a file and gone on with when started again
python scripts/simulate.py --minutes 10            a campaign from a seed of the clock's choosing
python scripts/simulate.py 42 --shrink             look for less that fails in the same way
python scripts/simulate.py 1-200 --canary NAME     with a known defect put back
python scripts/simulate.py 1-200 --canary all      the first seed that finds each of them
python scripts/simulate.py 1-50 --siege takeover   no faults but sieges of one kind
"""

import argparse
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from simulation.campaign import Finding, Order, Report, find, processors, run_order, run_orders, smaller  # noqa: E402
from simulation.canaries import CANARIES  # noqa: E402
from simulation.plan import DISTURBANCES  # noqa: E402
from simulation.record import Record  # noqa: E402
from simulation.siege_moves import SIEGES  # noqa: E402
from simulation.universe import Outcome  # noqa: E402

PROGRESS_SECONDS = 30.0

TRACE_LINES = 400
"""Lines of a failure's trace that are printed, the last ones; ``--trace`` prints all."""


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", nargs="?", help="a seed, or a range FIRST-LAST")
    parser.add_argument("--minutes", type=float, help="go on from the first seed for so long")
    parser.add_argument("--jobs", type=int, default=0, help="processes; default: all processors, 1 for a single seed")
    parser.add_argument("--canary", choices=["all", *sorted(CANARIES)], help="put a known defect back")
    parser.add_argument("--siege", choices=sorted(SIEGES), help="no faults but sieges of this kind")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=NUMBER", help="a setting of the plan")
    parser.add_argument("--without", action="append", default=[], choices=DISTURBANCES, help="leave a fault out")
    parser.add_argument("--shrink", action="store_true", help="look for a smaller universe that fails alike")
    parser.add_argument("--trace", action="store_true", help="print the whole trace, of a success too")
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep what each seed gave; skip seeds kept there")
    parser.add_argument("--until-failure", action="store_true", help="stop at the first failure")
    arguments = parser.parse_args()
    if (arguments.seeds is None) == (arguments.minutes is None):
        parser.error("give a seed, a range of seeds, or --minutes")
    if arguments.canary == "all" and arguments.seeds is None:
        parser.error("--canary all needs a range of seeds")
    if arguments.record is not None and (arguments.canary or arguments.siege or arguments.set or arguments.without):
        parser.error("a record is of seeds as they are: no --canary, --siege, --set or --without")
    return arguments


def seed_range(text: str) -> range:
    """``FIRST-LAST`` or a single seed."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def orders(arguments: argparse.Namespace) -> Iterator[Order]:
    """What is to be run."""
    settings = {name: int(value) for name, _, value in (setting.partition("=") for setting in arguments.set)}
    if arguments.seeds is None:
        numbers: Iterator[int] = itertools.count(int(time.time()) * 1000)
        deadline = time.monotonic() + arguments.minutes * 60
        numbers = itertools.takewhile(lambda _: time.monotonic() < deadline, numbers)
    else:
        numbers = iter(seed_range(arguments.seeds))
    for number in numbers:
        yield Order(number, arguments.canary, arguments.siege, settings, tuple(arguments.without))


def tell_failure(order: Order, outcome: Outcome, *, lines_max: int) -> None:
    """What went wrong, how it came about, and how to see it again."""
    lines = outcome.lines[-lines_max:]
    print("\n".join(lines))
    print(outcome.explanation, end="")
    print(f"seed {order.seed} failed: {outcome.failure}")
    print(f"commit {commit()}; replay: {order.command()}", flush=True)


@cache
def commit() -> str:
    """The version of the code."""
    pipe = os.popen(f"git -C '{ROOT}' describe --always --dirty 2>/dev/null")
    return pipe.read().strip() or "unknown"


def run_one(arguments: argparse.Namespace, order: Order) -> int:
    """A single universe, with its trace."""
    outcome = run_order(order, lines=arguments.trace)
    if outcome.ok:
        print("\n".join([*outcome.lines, *(f"  {n:9d}  {name}" for name, n in sorted(outcome.counters.items()))]))
        print(
            f"seed {order.seed}: every promise kept; {outcome.virtual_seconds:.1f} virtual seconds, "
            f"{outcome.steps} steps, trace {outcome.hash:08x}"
        )
        return 0
    tell_failure(order, outcome, lines_max=1 << 60 if arguments.trace else TRACE_LINES)
    if arguments.shrink:
        least = smaller(order, tell=lambda command: print("smaller:", command, flush=True))
        tell_failure(least, run_order(least), lines_max=TRACE_LINES)
    return 1


def run_campaign(arguments: argparse.Namespace) -> int:
    """Many universes, summed up."""
    report = Report()
    record = Record(arguments.record, commit()) if arguments.record is not None else None
    done: Counter[str] = Counter()
    known = set()
    try:
        for ran_by, outcome in record.outcomes() if record is not None else ():
            report.add(Order(outcome.seed), outcome)
            known.add(outcome.seed)
            done[ran_by] += 1
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    report.seeds_before = len(known)
    told_at = time.monotonic()
    wanted = (order for order in orders(arguments) if order.seed not in known)
    for order, outcome in run_orders(wanted, jobs=arguments.jobs or processors()):
        report.add(order, outcome)
        if record is not None:
            record.add(outcome)
            done[commit()] += 1
        if not outcome.ok:
            print(f"FAILED {outcome.failure}\n       {order.command()}", flush=True)
            if arguments.until_failure:
                break
        if time.monotonic() - told_at > PROGRESS_SECONDS:
            told_at = time.monotonic()
            print(f"{report.seeds} seeds, {len(report.failures)} failed", flush=True)
    print(report.text())
    for name, number in done.items():
        print(f"  {number:9d} of the seeds were run by commit {name}")
    if report.failures:
        order, outcome = min(report.failures, key=lambda failure: len(failure[1].lines))
        tell_failure(order, outcome, lines_max=TRACE_LINES)
    return 1 if report.failures else 0


def run_canaries(seeds: range, jobs: int) -> int:
    """Every canary on the same seeds, each until it is found; 1 if one is not, or a seed fails without it."""
    blind = 0
    for finding in find(sorted(CANARIES), seeds, jobs=jobs):
        print(told(finding, seeds), flush=True)
        blind += not finding.sound
    return 1 if blind else 0


def told(finding: Finding, seeds: range) -> str:
    """One line about a canary."""
    if finding.seed is None:
        return f"{finding.canary:26} NOT FOUND in {len(seeds)} seeds"
    words = f"{finding.canary:26} {finding.tried:4d} seeds, {finding.seed} breaks {finding.rule}"
    return words if finding.passes_without else f"{words}; IT FAILS WITHOUT THE CANARY, TOO"


def main() -> int:
    """The exit status: 1 if a universe broke a promise."""
    arguments = parse()
    if arguments.canary == "all":
        return run_canaries(seed_range(arguments.seeds), arguments.jobs or processors())
    if arguments.seeds is not None and "-" not in arguments.seeds:
        (order,) = orders(arguments)
        return run_one(arguments, order)
    return run_campaign(arguments)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Texts must hash alike in every run, or sets of them would iterate differently.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    sys.exit(main())
