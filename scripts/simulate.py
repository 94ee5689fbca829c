"""Run simulated universes: one seed, a range of seeds, or new seeds for some minutes (docs/simulator.md).

python scripts/simulate.py 42                      run one universe; print its trace if it fails, or with --trace
python scripts/simulate.py 1-400 --jobs 2          run a range of seeds
python scripts/simulate.py 1-20000 --record FILE   run a range, and resume it when started again; also with --set
python scripts/simulate.py --minutes 10            run new seeds, starting at one derived from the clock
python scripts/simulate.py 42 --shrink             look for a smaller universe that fails the same way
python scripts/simulate.py 1-200 --canary NAME     run with a known defect
python scripts/simulate.py 1-200 --canary all      report the first seed that finds each known defect
python scripts/simulate.py 1-50 --siege takeover   inject only sieges of one kind
python scripts/simulate.py 1-6 --theseus           replace one machine after another, until none is left
python scripts/simulate.py 42 --only 'kill client'  inject only this fault (docs/simulator.md lists all)
"""

import argparse
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from simulation.campaign import Finding, Order, Report, find, processors, run_order, run_orders, smaller  # noqa: E402
from simulation.canaries.catalogue import CANARIES  # noqa: E402
from simulation.faults.names import known_fault  # noqa: E402
from simulation.faults.siege_moves import SIEGES  # noqa: E402
from simulation.plan import SIZES  # noqa: E402
from simulation.record import Record  # noqa: E402
from simulation.universe import Outcome  # noqa: E402

PROGRESS_SECONDS = 30.0

TRACE_LINES = 400
"""Number of trace lines that are printed for a failure, the last ones; ``--trace`` prints all."""


def fault(text: str) -> str:
    """The name of a fault."""
    try:
        return known_fault(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def setting(text: str) -> tuple[str, int]:
    """A field of the plan and its value."""
    name, _, value = text.partition("=")
    try:
        return name, int(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=NUMBER, for example logs=1") from None


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="simulate.py SEED | FIRST-LAST | --minutes MINUTES [option ...]; --help lists the options",
    )  # fmt: skip
    parser.add_argument("seeds", nargs="?", help="a seed, or a range FIRST-LAST")
    parser.add_argument("--minutes", type=float, help="run new seeds for this time")
    parser.add_argument("--jobs", type=int, default=0, help="number of processes (default: number of processors)")
    parser.add_argument("--canary", choices=["all", *sorted(CANARIES)], help="put a known defect into the code")
    parser.add_argument("--size", choices=SIZES, help="run only universes of this size (default: most are quick)")
    parser.add_argument("--theseus", action="store_true", help="replace one machine after another, until none is left")
    parser.add_argument("--siege", choices=sorted(SIEGES), help="inject only sieges of this kind")
    parser.add_argument(
        "--set", action="append", default=[], type=setting, metavar="NAME=NUMBER", help="change a field of the plan"
    )
    parser.add_argument(
        "--only", action="append", default=[], type=fault, metavar="FAULT", help="inject this fault only (repeatable)"
    )
    parser.add_argument(
        "--without", action="append", default=[], type=fault, metavar="FAULT", help="leave a fault out (repeatable)"
    )
    parser.add_argument("--shrink", action="store_true", help="look for a smaller universe that fails the same way")
    parser.add_argument("--trace", action="store_true", help="print the whole trace, also of a universe that passes")
    parser.add_argument("--record", type=Path, metavar="FILE", help="append results to FILE; skip seeds found in it")
    parser.add_argument("--until-failure", action="store_true", help="stop at the first failure")
    arguments = parser.parse_args()
    if (arguments.seeds is None) == (arguments.minutes is None):
        parser.error("give a seed, a range of seeds, or --minutes")
    if arguments.canary == "all" and arguments.seeds is None:
        parser.error("--canary all needs a range of seeds")
    if arguments.record is not None and arguments.canary:
        parser.error("--record cannot be combined with --canary")
    if arguments.theseus and (arguments.size or arguments.siege):
        parser.error("--theseus has a size and faults of its own")
    if both := [name for name in arguments.only if name in arguments.without]:
        parser.error(f"--only and --without both name {both[0]!r}")
    if arguments.canary == "all":
        if any((arguments.siege, arguments.set, arguments.only, arguments.without, arguments.theseus)):
            parser.error("--canary all can be combined with --size only")
        return arguments
    try:
        template(arguments).plan()
    except ValueError as error:
        parser.error(str(error))
    return arguments


def seed_range(text: str) -> range:
    """``FIRST-LAST`` or a single seed."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def template(arguments: argparse.Namespace) -> Order:
    """The common part of all universes to run."""
    return Order(
        1, arguments.canary, arguments.size, arguments.siege, dict(arguments.set), tuple(arguments.without),
        arguments.theseus, tuple(dict.fromkeys(arguments.only)),
    )  # fmt: skip


def orders(arguments: argparse.Namespace) -> Iterator[Order]:
    """The universes to run."""
    common = template(arguments)
    if arguments.seeds is None:
        numbers: Iterator[int] = itertools.count(int(time.time()) * 1000)
        deadline = time.monotonic() + arguments.minutes * 60
        numbers = itertools.takewhile(lambda _: time.monotonic() < deadline, numbers)
    else:
        numbers = iter(seed_range(arguments.seeds))
    for number in numbers:
        yield replace(common, seed=number)


def tell_failure(order: Order, outcome: Outcome, *, lines_max: int) -> None:
    """Print the end of the trace, the failure, and the command that reproduces it."""
    lines = outcome.lines[-lines_max:]
    print("\n".join(lines))
    print(outcome.explanation, end="")
    print(f"seed {order.seed} failed: {outcome.failure}")
    print(f"commit {commit()}; replay: {order.command()}", flush=True)


@cache
def commit() -> str:
    """The commit of the code."""
    pipe = os.popen(f"git -C '{ROOT}' describe --always --dirty 2>/dev/null")
    return pipe.read().strip() or "unknown"


def run_one(arguments: argparse.Namespace, order: Order) -> int:
    """Run a single universe. Returns the exit status."""
    outcome = run_order(order, lines=arguments.trace)
    if outcome.ok:
        print("\n".join([*outcome.lines, *(f"  {n:9d}  {name}" for name, n in sorted(outcome.counters.items()))]))
        print(
            f"seed {order.seed}: passed; {outcome.virtual_seconds:.1f} virtual seconds, "
            f"{outcome.steps} steps, trace {outcome.hash:08x}"
        )
        return 0
    tell_failure(order, outcome, lines_max=1 << 60 if arguments.trace else TRACE_LINES)
    if arguments.shrink:
        shrink(order)
    return 1


def shrink(order: Order) -> None:
    """Look for a smaller universe that fails the same way, and print its failure."""
    least = smaller(order, tell=lambda command: print("smaller:", command, flush=True))
    tell_failure(least, run_order(least), lines_max=TRACE_LINES)


def run_campaign(arguments: argparse.Namespace) -> int:
    """Run many universes and print a report. Returns the exit status."""
    report = Report()
    common = template(arguments)
    record = None
    if arguments.record is not None:
        record = Record(arguments.record, commit(), common.settings, common.other_options())
    done: Counter[str] = Counter()
    known = set()
    try:
        for ran_by, outcome in record.outcomes() if record is not None else ():
            report.add(replace(common, seed=outcome.seed), outcome)
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
        if arguments.shrink:
            shrink(order)
    return 1 if report.failures else 0


def run_canaries(seeds: range, size: str | None, jobs: int) -> int:
    """Search the seeds for each canary. Returns 1 if one is not found or its seed fails without it, too."""
    blind = 0
    for finding in find(sorted(CANARIES), seeds, size=size, jobs=jobs):
        print(describe(finding, seeds), flush=True)
        blind += not finding.sound
    return 1 if blind else 0


def describe(finding: Finding, seeds: range) -> str:
    """One line about a finding."""
    if finding.seed is None:
        return f"{finding.canary:26} NOT FOUND in {len(seeds)} seeds"
    words = f"{finding.canary:26} {finding.tried:4d} seeds, {finding.seed} breaks {finding.rule}"
    return words if finding.passes_without else f"{words}; THE SEED ALSO FAILS WITHOUT THE CANARY"


def main() -> int:
    """Run the command. Returns 1 if a universe failed."""
    arguments = parse()
    if arguments.canary == "all":
        return run_canaries(seed_range(arguments.seeds), arguments.size, arguments.jobs or processors())
    if arguments.seeds is not None and "-" not in arguments.seeds and arguments.record is None:
        (order,) = orders(arguments)
        return run_one(arguments, order)
    return run_campaign(arguments)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Strings must hash the same in every run; otherwise sets of strings would iterate differently.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    sys.exit(main())
