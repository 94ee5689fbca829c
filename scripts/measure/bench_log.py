"""Measure adds through a log beside adds to a plain ledger, in turn; adds while the log is rolled; and failovers from a
leader that is killed.

bench_log.py [--layouts stream] [--entry-sizes 100 1024] [--seconds 3] [--rounds 5] [--rolls 50] [--failovers 5]
             [--lease-seconds 2] [--data-dir DIR]

Runs `octavo bench log` for each layout of a log and each size of an entry, on a fresh three-bookie cluster on this
machine with SQLite.
"""

import argparse
import itertools
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from local_cluster import add_data_dir, temporary_cluster


def main() -> int:
    """Measure each size. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", choices=("stream", "chain"), nargs="+", default=["stream"])
    parser.add_argument("--entry-sizes", type=int, nargs="+", default=[100, 1024])
    parser.add_argument("--seconds", type=float, default=3.0, help="time of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="log and ledger in turn, so often")
    parser.add_argument(
        "--rolls", type=int, default=50, help="rolls during which adds are timed, of each layout, after the last size"
    )
    parser.add_argument(
        "--failovers", type=int, default=5, help="leaders that are killed, of each layout, after the last size"
    )
    parser.add_argument("--lease-seconds", type=float, default=2.0, help="lease of the lock")
    add_data_dir(parser)
    arguments = parser.parse_args()
    with temporary_cluster(arguments.data_dir) as cluster:
        uri = cluster.wait_for("ready")["metadata"]
        for layout, size in itertools.product(arguments.layouts, arguments.entry_sizes):
            is_last = size == arguments.entry_sizes[-1]
            print(f"a {layout}, entries of {size} bytes", flush=True)
            command = [sys.executable, "-P", "-m", "octavo.cli.main", "bench", "log", "--metadata", uri]
            for name, value in {
                "layout": layout,
                "entry-size": size,
                "duration": arguments.seconds,
                "rounds": arguments.rounds,
                "rolls": arguments.rolls if is_last else 0,
                "failovers": arguments.failovers if is_last else 0,
                "lease-seconds": arguments.lease_seconds,
            }.items():
                command += [f"--{name}", str(value)]
            subprocess.run(command, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
