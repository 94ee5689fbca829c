"""Measure what security costs: adds without TLS, with TLS, and with TLS and authentication, in turn.

security_cost.py [--seconds 115] [--before PYTHON]

Each kind has a cluster of its own; all run the whole time, and only one is under load. Every round measures every kind
once, in an order that is drawn, so that what else the machine does hits all of them. Of each round the script takes the
ratio to the rate without TLS (of the lone add: the difference of the medians), and prints the median of these and the
bound that docs/security.md names. ``--before``: the interpreter of an environment with an older Octavo, whose rate is
compared with that of this one without TLS.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo_security import Security
from local_cluster import Cluster, temporary_folder


class Load(NamedTuple):
    """A load of `octavo bench write`, and what TLS may cost there."""

    name: str
    options: tuple[str, ...]
    share_min: float | None
    """The least share of the rate without TLS; None: the lone add, whose delay counts."""


LOADS = (
    Load("1 KiB, 1,000 in flight", ("--entry-size", "1024", "--in-flight", "1000", "--count", "100000"), 0.65),
    Load("100 B, 1,000 in flight", ("--entry-size", "100", "--in-flight", "1000", "--count", "300000"), 0.80),
    Load("100 B, one at a time", ("--entry-size", "100", "--in-flight", "1", "--duration", "1.5"), None),
)

LONE_SECONDS_MORE_MAX = 0.0002

PLAIN_SHARE_MIN = 0.99
"""Least rate without TLS, compared with ``--before``."""


class Kind(NamedTuple):
    """One of the compared clusters, and how its client connects."""

    name: str
    python: str
    variables: Mapping[str, str]

    def measure(self, load: Load) -> float:
        """Adds per second, or for the lone add the median in seconds."""
        done = subprocess.run(
            [self.python, "-P", "-m", "octavo.cli.main", "bench", "write", "--json", "--warm-up", "0.3", "--delete",
             *load.options],
            env=clean_environment() | dict(self.variables), check=True, capture_output=True, text=True,
        )  # fmt: skip
        found = json.loads(done.stdout.splitlines()[-1])
        return float(found["latency_ms"]["p50"] / 1000 if load.share_min is None else found["entries_per_second"])


def clean_environment() -> dict[str, str]:
    """The environment without the settings of Octavo."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}


def start(stack: ExitStack, folder: Path, before: str | None) -> list[Kind]:
    """Start a cluster of each kind: without TLS first."""
    security = Security.prepare(folder)
    with_authentication = security.bookie_variables()
    tls_only = {name: value for name, value in with_authentication.items() if "_TLS" in name or name.endswith("_HOST")}
    ca = {"OCTAVO_TLS_CA": with_authentication["OCTAVO_BOOKIE_TLS_CA"]}

    def cluster(name: str, variables: Mapping[str, str], python: str = sys.executable) -> str:
        running = Cluster(folder / name, variables=variables, python=python)
        stack.enter_context(running)
        return str(running.wait_for("ready")["metadata"])

    kinds = [Kind("plain", sys.executable, {"OCTAVO_METADATA": cluster("plain", {})})]
    uri = cluster("tls", {**tls_only, "OCTAVO_BOOKIE_AUTH": "none"})
    kinds.append(Kind("TLS", sys.executable, {"OCTAVO_METADATA": uri, **ca}))
    uri = cluster("authentication", with_authentication)
    security.add_principal(uri, "bench", "append")
    key = {"OCTAVO_KEY_FILE": os.environ["OCTAVO_KEY_FILE"]}
    kinds.append(Kind("TLS, authentication", sys.executable, {"OCTAVO_METADATA": uri, **ca, **key}))
    if before is not None:
        kinds.append(Kind("plain, before", before, {"OCTAVO_METADATA": cluster("before", {}, before)}))
    return kinds


def run(kinds: list[Kind], seconds: float) -> dict[tuple[str, str], list[float]]:
    """Measure until the time is over, but one round at least: (load, kind) -> results, one for each round."""
    found: dict[tuple[str, str], list[float]] = {(load.name, kind.name): [] for load in LOADS for kind in kinds}
    rng = random.Random(1)
    until = time.monotonic() + seconds
    while True:
        for load in LOADS:
            for kind in rng.sample(kinds, len(kinds)):
                found[load.name, kind.name].append(kind.measure(load))
        if time.monotonic() >= until:
            return found


def report(kinds: list[Kind], found: dict[tuple[str, str], list[float]]) -> bool:
    """Print a table; whether every bound is kept."""
    kept = True
    for load in LOADS:
        plain = found[load.name, "plain"]
        for kind in kinds:
            results = found[load.name, kind.name]
            value = statistics.median(results)
            shown = f"{value * 1000:8.3f} ms" if load.share_min is None else f"{value:10,.0f} adds/s"
            print(f"{load.name:24} {kind.name:20} {shown}  ", end="")
            if kind.name == "plain":
                print(f"{len(results)} rounds")
                continue
            if load.share_min is None and kind.name != "plain, before":
                more = statistics.median(one - other for one, other in zip(results, plain, strict=True))
                good = more <= LONE_SECONDS_MORE_MAX
                print(f"{more * 1000:+.3f} ms (at most {LONE_SECONDS_MORE_MAX * 1000:+.1f})", end="")
            elif kind.name == "plain, before":
                # Of delays, less is better.
                pairs = zip(results, plain, strict=True)
                shares = [was / now if load.share_min is None else now / was for was, now in pairs]
                good = statistics.median(shares) >= PLAIN_SHARE_MIN
                print(f"plain reaches {statistics.median(shares):.3f} of it (at least {PLAIN_SHARE_MIN})", end="")
            else:
                share = statistics.median(one / other for one, other in zip(results, plain, strict=True))
                good = load.share_min is not None and share >= load.share_min
                print(f"{share:.2f} of plain (at least {load.share_min})", end="")
            print("" if good else "  MISSED")
            kept &= good
    return kept


def main() -> int:
    """Measure and report; exit status 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=115.0, help="no round begins after this time")
    parser.add_argument("--before", metavar="PYTHON", help="interpreter of an environment with an older Octavo")
    arguments = parser.parse_args()
    with temporary_folder() as folder, ExitStack() as stack:
        kinds = start(stack, folder, arguments.before)
        return 0 if report(kinds, run(kinds, arguments.seconds)) else 1


if __name__ == "__main__":
    sys.exit(main())
