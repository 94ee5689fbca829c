"""Octavo beside Apache BookKeeper and Apache Kafka, in alternating runs on the same machine.

    compare_peers.py [--rounds 3] [--systems 'NAME;...'] [--cases 'NAME;...'] [--ledgers N/M ...] [--entry-size 1024]
                     [--seconds 10] [--json] [--list]

Each round starts every system on empty folders, runs the cases one after another, and stops it. Only one system runs
at a time, and they alternate, so that a noisy machine is equally unfair to all. A system is three storage servers and
one client. Every add goes to three servers and is acknowledged when two have it (Kafka: when all that keep up have it).

* ``octavo``: ``octavo up`` and ``octavo bench write``, metadata in SQLite. Two servers sync every add.
* ``octavo-deferred``: the same with ``--sync deferred``: an add is acknowledged before it is synced.
* ``bookkeeper``: its default journal, which waits up to 2 ms for a group; ZooKeeper; a Java client. Two servers sync
  every add.
* ``bookkeeper-tuned``: the same, but the journal syncs as soon as nothing waits (journalFlushWhenQueueEmpty).
* ``kafka``: one partition, ``acks=all``, one request of up to 256 KiB at a time; a Java producer. Nothing is synced
  before it is acknowledged.
* ``kafka-synced``: the same on a topic whose brokers sync before they answer (flush.messages=1).

The Java clients (scripts/peers/) run the same load for some seconds before it is measured. The jars come from a Maven
repository the first time. Needs Java 17 with javac, and mvn. ``octavo bench disk`` is run before each system: without
a quiet disk the latencies mean nothing. The medians over all rounds are printed, and the ratios of the first system to
each other one: the median of the rounds, with the least and the most. Unless ``--systems`` says otherwise, ``octavo``,
``bookkeeper`` and ``bookkeeper-tuned`` are compared.

``--ledgers 100/1000 1000/1000 10000/2000`` runs such cases instead: a number of ledgers, and a number of adds of
``--entry-size`` bytes in flight, which are dealt out evenly over the ledgers; these take turns where they are more. Of
Kafka they are partitions of one topic. ``us`` is the processor time of an add over the client and the three servers.
"""

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from compare_yardstick import SETTLE_SECONDS
from local_cluster import Cluster, add_data_dir, temporary_folder
from peer_systems import CLIENTS, Case, PeerError, Result, Run, Times, bookkeeper, kafka, output_of, prepare
from zookeeper_server import ZooKeeperError

CASES = (
    Case("100 B, 1,000 in flight", 100, 1000),
    Case("1 KiB, 1,000 in flight", 1024, 1000),
    Case("100 B, one at a time", 100, 1),
    Case("1 KiB, 5,000/s", 1024, 50_000, 5_000),
    Case("1 KiB, 20,000/s", 1024, 50_000, 20_000),
    Case("1 KiB, 50,000/s", 1024, 50_000, 50_000),
)


@contextmanager
def octavo(folder: Path, times: Times, *, sync: str = "immediate") -> Iterator[Run]:
    """A cluster of Octavo."""

    def run(case: Case) -> Result:
        command = [
            *(sys.executable, "-P", "-m", "octavo.cli.main", "bench", "write", "--json", "--warm-up", "2"),
            *("--duration", f"{times.seconds:g}", "--entry-size", str(case.entry_bytes)),
            *("--in-flight", str(case.in_flight), "--ledgers", str(case.ledgers), "--delete", "--sync", sync),
            *(("--rate", str(case.rate)) if case.rate else ()),
        ]
        got = json.loads(output_of(command, {"OCTAVO_METADATA": uri}))
        latencies = got["latency_ms"]
        percentiles = {"p50": latencies["p50"], "p99": latencies["p99"], "p99.9": latencies["p99_9"]}
        return {"rate": got["entries_per_second"], **percentiles, "us": got["processor_us_per_entry"]["total"]}

    with Cluster(folder) as cluster:
        uri = cluster.wait_for("ready")["metadata"]
        time.sleep(SETTLE_SECONDS)
        yield run
        cluster.stop()


# --- the comparison ------------------------------------------------------------------------------------------------


def disk(folder: Path) -> str:
    """The disk's synced writes, in words."""
    command = [sys.executable, "-P", "-m", "octavo.cli.main", "bench", "disk", str(folder), "--duration", "1", "--json"]
    (smallest, *_) = json.loads(output_of(command))["writes"]
    names = {"p50": "p50_seconds", "p99": "p99_seconds", "p99.9": "p999_seconds"}
    return ", ".join(f"{told} {1000 * smallest[name]:.2f} ms" for told, name in names.items())


SYSTEMS: dict[str, Callable[[Path, Times], AbstractContextManager[Run]]] = {
    "octavo": octavo,
    "octavo-deferred": lambda folder, times: octavo(folder, times, sync="deferred"),
    "bookkeeper": bookkeeper,
    "bookkeeper-tuned": lambda folder, times: bookkeeper(folder, times, tuned=True),
    "kafka": lambda folder, times: kafka(folder, times, synced=False),
    "kafka-synced": lambda folder, times: kafka(folder, times, synced=True),
}
COMPARED = "octavo; bookkeeper; bookkeeper-tuned"


type Measured = dict[str, dict[str, list[Result]]]
"""The results of each round, by case, by system."""

COLUMNS = {"rate": "adds/s", "p50": "p50 ms", "p99": "p99 ms", "p99.9": "p99.9 ms", "us": "processor us"}


def medians(measured: Measured, case: Case) -> dict[str, Result]:
    """The median over the rounds of each figure of a case, by system."""
    return {
        system: {name: statistics.median(one[name] for one in results[case.name]) for name in COLUMNS}
        for system, results in measured.items()
    }


def table(measured: Measured, cases: Sequence[Case]) -> str:
    """The medians of each case and system."""
    lines = [f"| case | system | {' | '.join(COLUMNS.values())} |", f"|---|---|{'---|' * len(COLUMNS)}"]
    for case in cases:
        for system, result in medians(measured, case).items():
            rate, *others = (result[name] for name in COLUMNS)
            cells = " | ".join(f"{value:,.2f}" for value in others)
            lines.append(f"| {case.name} | {system} | {rate:,.0f} | {cells} |")
    return "\n".join(lines)


def ratios(measured: Measured, case: Case, name: str) -> dict[str, list[float]]:
    """One figure of the first system to that of each other one, round by round."""
    (_, first), *others = measured.items()
    return {
        system: [one[name] / other[name] for one, other in zip(first[case.name], results[case.name], strict=True)]
        for system, results in others
    }


def ratio_table(measured: Measured, cases: Sequence[Case]) -> str:
    """The ratios of the first system to the others: the median of the rounds, the least and the most."""
    lines = [f"| case | {next(iter(measured))} to | {' | '.join(COLUMNS)} |", f"|---|---|{'---|' * len(COLUMNS)}"]
    for case in cases:
        by_name = {name: ratios(measured, case, name) for name in COLUMNS}
        for system in by_name["rate"]:
            several = [by_name[name][system] for name in COLUMNS]
            cells = " | ".join(f"{statistics.median(one):.2f} ({min(one):.2f} to {max(one):.2f})" for one in several)
            lines.append(f"| {case.name} | {system} | {cells} |")
    return "\n".join(lines)


def ledger_case(text: str, entry_bytes: int) -> Case:
    """The case that LEDGERS/IN-FLIGHT asks for. Raises :class:`PeerError` for another text."""
    ledgers, separator, in_flight = text.partition("/")
    if not (separator and ledgers.isdecimal() and in_flight.isdecimal() and int(ledgers) and int(in_flight)):
        raise PeerError(f"--ledgers takes LEDGERS/IN-FLIGHT, as 1000/1000, both above 0, not {text!r}")
    name = f"{entry_bytes:,} B, {int(ledgers):,} ledgers, {int(in_flight):,} in flight"
    return Case(name, entry_bytes, int(in_flight), ledgers=int(ledgers))


def chosen[T](text: str, known: dict[str, T], what: str) -> dict[str, T]:
    """Those of ``known`` that ``text`` names, separated by semicolons. Raises :class:`PeerError` for another name."""
    names = [name.strip() for name in text.split(";")]
    for name in names:
        if name not in known:
            raise PeerError(f"there is no {what} {name!r}; there are: {'; '.join(known)}")
    return {name: known[name] for name in names}


def main() -> int:
    """Measure and print; the exit status."""
    by_name = {case.name: case for case in CASES}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--systems", default=COMPARED, metavar="'NAME;NAME'")
    parser.add_argument("--cases", default=";".join(by_name), metavar="'NAME;NAME'")
    parser.add_argument("--ledgers", nargs="+", metavar="N/M", help="instead of --cases: N ledgers, M adds in flight")
    parser.add_argument("--entry-size", type=int, default=1024, help="bytes of an entry with --ledgers (default: 1024)")
    parser.add_argument("--json", action="store_true", help="print all results as one line of JSON at the end")
    parser.add_argument("--seconds", type=float, default=10.0, help="time of each measurement (default: 10)")
    parser.add_argument("--java-warm-up", type=float, default=8.0, help="load before it, for Java (default: 8)")
    add_data_dir(parser)
    parser.add_argument("--list", action="store_true", help="list systems and cases, and measure nothing")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join([*SYSTEMS, *by_name]))
        return 0
    times = Times(arguments.seconds, arguments.java_warm_up)
    measured: Measured = {}
    try:
        systems = chosen(arguments.systems, SYSTEMS, "system")
        if arguments.ledgers:
            cases = {case.name: case for case in (ledger_case(it, arguments.entry_size) for it in arguments.ledgers)}
        else:
            cases = chosen(arguments.cases, by_name, "case")
        for peer in CLIENTS:
            if any(name.startswith(peer) for name in systems):
                prepare(peer)
        for round_number in range(1, arguments.rounds + 1):
            for name, start in systems.items():
                results = measured.setdefault(name, defaultdict(list))
                with temporary_folder(arguments.data_dir) as folder:
                    print(f"round {round_number}, {name}; a synced write of 4 KiB: {disk(folder)}", flush=True)
                    with start(folder / "data", times) as run:
                        for case in cases.values():
                            results[case.name].append(run(case))
                            told = ", ".join(f"{key} {value:,.2f}" for key, value in results[case.name][-1].items())
                            print(f"  {case.name}: {told}", flush=True)
    except (PeerError, ZooKeeperError) as error:
        print(f"compare_peers.py: {error}", file=sys.stderr)
        return 1
    print(f"\nMedians of {arguments.rounds} alternating rounds:\n\n{table(measured, tuple(cases.values()))}")
    if len(measured) > 1:
        print(f"\nRatios, median (least to most) of the rounds:\n\n{ratio_table(measured, tuple(cases.values()))}")
    if arguments.json:
        print(json.dumps({"rounds": arguments.rounds, "systems": measured}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
