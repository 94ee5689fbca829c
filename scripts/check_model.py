"""Check the replication protocol by visiting its states: first the settings, then the canaries (docs/model.md).

Run by `make model`. The exit status is 0 only if no setting breaks a promise and every canary is found.
"""

import argparse
import gc
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from model.engine.explorer import Exploration, explore
from model.engine.world import World
from model.gateway.settings import GATEWAY_CANARIES, GATEWAY_JOBS
from model.ledgers.canaries import CANARIES
from model.ledgers.repair_settings import REPAIR_CANARIES, REPAIR_JOBS
from model.ledgers.settings import JOBS
from model.logs.settings import LOG_CANARIES, LOG_JOBS
from model.published.settings import DEFECTS, PUBLISHED_JOBS
from model.streams.settings import STREAM_CANARIES, STREAM_JOBS
from model.streams.term_books_settings import BOOKS_CANARIES, BOOKS_JOBS

ALL_JOBS = (*JOBS, *REPAIR_JOBS, *STREAM_JOBS, *BOOKS_JOBS)
ALL_CANARIES = (*CANARIES, *REPAIR_CANARIES, *STREAM_CANARIES, *BOOKS_CANARIES)

type Report = tuple[bool, str]
"""Whether the check passed, and the lines to print."""


def run_job(name: str, seed: int) -> Report:
    """Explore one setting."""
    job = next(job for job in ALL_JOBS if job.name == name)
    started = time.perf_counter()
    found = job.run(seed)
    lines = [f"{_figures(found, started)}  {job.extent(found):<22}  {name}"]
    if found.violation is not None:
        lines.append(str(found.violation))
    return found.violation is None, "\n".join(lines)


def run_canary(name: str, show_trace: bool) -> Report:
    """Break one rule, then explore the same setting with the rule kept."""
    canary = next(canary for canary in ALL_CANARIES if canary.name == name)
    started = time.perf_counter()
    broken = explore(World(canary.broken))
    violation = broken.violation
    outcome = "not found" if violation is None else f"found in {violation.steps} steps"
    lines = [f"{_figures(broken, started)}  {outcome:<22}  {name}"]
    if violation is not None and show_trace:
        lines += [f"    {line}" for line in str(violation).splitlines()]
    started = time.perf_counter()
    healthy = explore(World(canary.healthy))
    if healthy.violation is not None or not healthy.exhausted:
        lines.append(f"{_figures(healthy, started)}  {'violation without it':<22}  {name}")
        lines += [str(healthy.violation or "")]
    good = violation is not None and violation.what.startswith(canary.promise) and healthy.exhausted
    return good, "\n".join(lines)


def run_log_job(name: str) -> Report:
    """Explore one setting of the model of a log."""
    job = next(job for job in LOG_JOBS if job.name == name)
    started = time.perf_counter()
    found = job.run()
    extent = "exhausted" if found.exhausted else "bounded by states"
    lines = [f"{_figures(found, started)}  {extent:<22}  {name}"]
    if found.violation is not None:
        lines.append(str(found.violation))
    return found.violation is None, "\n".join(lines)


def run_published_job(name: str) -> Report:
    """Explore one setting of unbounded ledgers as they were published, with every mend."""
    job = next(job for job in PUBLISHED_JOBS if job.name == name)
    started = time.perf_counter()
    found = job.run()
    extent = "exhausted" if found.exhausted else f"all up to depth {found.depth}"
    lines = [f"{_figures(found, started)}  {extent:<22}  {name}"]
    if found.violation is not None:
        lines.append(str(found.violation))
    return found.violation is None, "\n".join(lines)


def run_defect(name: str, show_trace: bool) -> Report:
    """Take away one mend, then explore the same setting with it, unless it is one of the settings."""
    defect = next(defect for defect in DEFECTS if defect.name == name)
    started = time.perf_counter()
    found = defect.find()
    violation = found.violation
    outcome = "not found" if violation is None else f"found in {violation.steps} steps"
    lines = [f"{_figures(found, started)}  {outcome:<22}  published: {name}"]
    if violation is not None and show_trace:
        lines += [f"    {line}" for line in str(violation).splitlines()]
    good = violation is not None and violation.what.startswith(defect.promise)
    if defect.mend is not None and defect.quick:
        started = time.perf_counter()
        mended = explore(defect.mend)
        if mended.violation is not None or not mended.exhausted:
            good = False
            lines.append(f"{_figures(mended, started)}  {'violation without it':<22}  published: {name}")
            lines.append(str(mended.violation or ""))
    return good, "\n".join(lines)


def run_log_canary(name: str, show_trace: bool) -> Report:
    """Break one rule of logs; the settings show that nothing is found without that."""
    canary = next(canary for canary in LOG_CANARIES if canary.name == name)
    started = time.perf_counter()
    found = explore(canary.broken)
    violation = found.violation
    outcome = "not found" if violation is None else f"found in {violation.steps} steps"
    lines = [f"{_figures(found, started)}  {outcome:<22}  log: {name}"]
    if violation is not None and show_trace:
        lines += [f"    {line}" for line in str(violation).splitlines()]
    return violation is not None and violation.what.startswith(canary.promise), "\n".join(lines)


def run_gateway_job(name: str, seed: int) -> Report:
    """Explore one setting of the machines of the gateway."""
    job = next(job for job in GATEWAY_JOBS if job.name == name)
    started = time.perf_counter()
    found = job.run(seed)
    bounded = "bounded by states" if job.walks is None else f"{found.walks} walks"
    extent = "exhausted" if found.exhausted else bounded
    lines = [f"{_figures(found, started)}  {extent:<22}  {name}"]
    if found.violation is not None:
        lines.append(str(found.violation))
    return found.violation is None, "\n".join(lines)


def run_gateway_canary(name: str, show_trace: bool) -> Report:
    """Break one rule of the gateway; the settings show that nothing is found without that."""
    canary = next(canary for canary in GATEWAY_CANARIES if canary.name == name)
    started = time.perf_counter()
    found = canary.run()
    violation = found.violation
    outcome = "not found" if violation is None else f"found in {violation.steps} steps"
    lines = [f"{_figures(found, started)}  {outcome:<22}  gateway: {name}"]
    if violation is not None and show_trace:
        lines += [f"    {line}" for line in str(violation).splitlines()]
    return violation is not None and violation.what.startswith(canary.promise), "\n".join(lines)


def _begin_process() -> None:
    """Turn garbage collection off: a setting keeps everything it makes to its end."""
    gc.freeze()
    gc.disable()


def _figures(found: Exploration, started: float) -> str:
    seconds = time.perf_counter() - started
    return f"{found.states:>9,} {found.transitions:>11,} {found.depth:>6} {seconds:>8.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Explicit-state check of the replication protocol.")
    parser.add_argument("--quick", action="store_true", help="only the settings that `make test` runs")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only settings and canaries whose names contain TEXT"
    )
    parser.add_argument("--list", action="store_true", help="list the names and run nothing; * marks --quick ones")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random walks (default: 0)")
    parser.add_argument("--traces", action="store_true", help="print the shortest trace to each canary's violation")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: 2)")
    chosen = parser.parse_args()
    jobs = [job.name for job in ALL_JOBS if chosen.only in job.name and (job.quick or not chosen.quick)]
    canaries = [canary.name for canary in ALL_CANARIES if chosen.only in canary.name]
    log_jobs = [job.name for job in LOG_JOBS if chosen.only in job.name and (job.quick or not chosen.quick)]
    log_canaries = [canary.name for canary in LOG_CANARIES if chosen.only in f"log: {canary.name}"]
    published = [job.name for job in PUBLISHED_JOBS if chosen.only in job.name and (job.quick or not chosen.quick)]
    defects = [
        defect.name
        for defect in DEFECTS
        if chosen.only in f"published: {defect.name}" and (defect.quick or not chosen.quick)
    ]
    gateway_jobs = [job.name for job in GATEWAY_JOBS if chosen.only in job.name and (job.quick or not chosen.quick)]
    gateway_canaries = [one.name for one in GATEWAY_CANARIES if chosen.only in f"gateway: {one.name}"]
    if not any((jobs, canaries, log_jobs, log_canaries, published, defects, gateway_jobs, gateway_canaries)):
        print(f"model: no setting and no canary has {chosen.only!r} in its name; see --list", file=sys.stderr)
        return 2
    if chosen.list:
        quick = {job.name for job in ALL_JOBS if job.quick} | {job.name for job in LOG_JOBS if job.quick}
        quick |= {job.name for job in PUBLISHED_JOBS if job.quick} | {one.name for one in DEFECTS if one.quick}
        quick |= {job.name for job in GATEWAY_JOBS if job.quick}
        for name in (*jobs, *log_jobs, *published, *gateway_jobs):
            print(f"setting {'*' if name in quick else ' '} {name}")
        for name in (*canaries, *(f"log: {name}" for name in log_canaries)):
            print(f"canary  * {name}")
        for name in defects:
            print(f"canary  {'*' if name in quick else ' '} published: {name}")
        for name in gateway_canaries:
            print(f"canary  * gateway: {name}")
        return 0
    good, started = True, time.perf_counter()
    with ProcessPoolExecutor(chosen.jobs, initializer=_begin_process, max_tasks_per_child=1) as pool:
        longest_first = sorted(jobs, key=lambda name: not next(job for job in ALL_JOBS if job.name == name).longest)
        submitted = {name: pool.submit(run_job, name, chosen.seed) for name in longest_first}
        reports = [submitted[name] for name in jobs]
        reports += [pool.submit(run_log_job, name) for name in log_jobs]
        reports += [pool.submit(run_published_job, name) for name in published]
        reports += [pool.submit(run_gateway_job, name, chosen.seed) for name in gateway_jobs]
        broken = [pool.submit(run_canary, name, chosen.traces) for name in canaries]
        broken += [pool.submit(run_log_canary, name, chosen.traces) for name in log_canaries]
        broken += [pool.submit(run_defect, name, chosen.traces) for name in defects]
        broken += [pool.submit(run_gateway_canary, name, chosen.traces) for name in gateway_canaries]
        for title, pending in (("setting", reports), ("canary", broken)):
            if pending:
                print(f"{'states':>9} {'transitions':>11} {'depth':>6} {'seconds':>8}  {'':<22}  {title}", flush=True)
            for report in pending:
                well, text = report.result()
                good = good and well
                print(text, flush=True)
    minutes = (time.perf_counter() - started) / 60
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{len(reports)} settings and {len(broken)} canaries in {minutes:.1f} minutes, "
        f"{(used.ru_utime + used.ru_stime) / 60:.1f} minutes of processor time",
        flush=True,
    )
    print("no promise is broken and every canary is found" if good else "model: failed, see above", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
