"""A gateway of Octavo beside Apache Kafka, in alternating runs on the same machine, with clients that are Kafka's.

    compare_gateway.py [--rounds 3] [--systems 'NAME;...'] [--loads 'NAME;...'] [--seconds 10] [--data-dir DIR] [--list]

Each round starts every system on empty folders, runs the loads one after another, and stops it. Only one system runs at
a time, and they alternate, so that a noisy machine is equally unfair to both.

* ``gateway``: one ``octavo gateway`` and three bookies, metadata in SQLite. Two bookies sync a batch before its answer.
* ``kafka-synced``: three brokers, ``acks=all``; they sync before they answer (flush.messages=1).

The loads are kcat (librdkafka), the ``kafka-producer-perf-test`` of Kafka, and, where percentiles of single adds are
asked for, the Java producer of scripts/peers/. All of them produce to one partition with three copies, but the one that
says otherwise. ``memory`` is what the gateway, or one broker, holds before the loads and at the most (VmHWM).
Processor time is that of the gateway or one broker, and of all servers; it depends less on what else the machine does
than rates do.

The jars come from a Maven repository the first time, kcat from Debian unless it is on the PATH. Needs Java 17 with
javac, and mvn.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from compare_peers import chosen, disk
from compare_yardstick import SETTLE_SECONDS, free_ports, wait_listening
from debian_tools import ToolsError, library_path, program
from local_cluster import Cluster, add_data_dir, temporary_folder
from peer_systems import CLIENT_MEMORY, Case, PeerError, Times, brokers_of_kafka, java, load, output_of, prepare

KCAT_BYTES = 400_000_000
PERF_TEST_BYTES = 300_000_000
PARTITIONS = 1000

type Figures = dict[str, float]
"""Name with its unit -> what was measured."""


@dataclass(frozen=True, slots=True)
class Served:
    """A system that serves clients of Kafka."""

    kind: str
    """The word of KafkaLoad.java for it."""
    servers: str
    processes: tuple[int, ...]
    """All its processes."""
    broker: int
    """The process whose memory is told: the gateway, or one broker."""


@contextmanager
def gateway(folder: Path) -> Iterator[Served]:
    """Three bookies and a gateway."""
    with Cluster(folder) as cluster:
        ready = cluster.wait_for("ready")
        (port,) = free_ports(1)
        command = [sys.executable, "-P", "-m", "octavo.cli.main", "gateway", "--listen", f"127.0.0.1:{port}"]
        with (folder / "gateway.log").open("wb") as log:
            process = subprocess.Popen([*command, "--metadata", ready["metadata"]], stdout=log, stderr=log)
        try:
            wait_listening(port)
            time.sleep(SETTLE_SECONDS)
            bookies = children(cluster.pid)
            yield Served("gateway", f"127.0.0.1:{port}", (process.pid, *bookies), process.pid)
        finally:
            process.terminate()
            process.wait()
        cluster.stop()


@contextmanager
def kafka_synced(folder: Path) -> Iterator[Served]:
    """Three brokers that sync before they answer."""
    with brokers_of_kafka(folder) as (servers, brokers):
        yield Served("synced", servers, tuple(brokers), brokers[0])


def children(process: int) -> tuple[int, ...]:
    """The child processes of a process."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return tuple(int(child) for task in tasks for child in (task / "children").read_text().split())


def memory_megabytes(process: int, field: str) -> float:
    """The memory of a process by a field of its status: VmRSS, held now, or VmHWM, the most it ever held."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found is not None, f"the kernel tells no {field}"
    return int(found[1]) / 1000


@dataclass(slots=True)
class Spent:
    """The time of a block, and the processor time that servers used meanwhile."""

    seconds: float = 0.0
    broker_seconds: float = 0.0
    servers_seconds: float = 0.0


@contextmanager
def spent(served: Served) -> Iterator[Spent]:
    """Measure the time of a block, which is known at its end."""
    measured = Spent()
    broker, servers = processor_seconds(served.broker), sum(map(processor_seconds, served.processes))
    began = time.monotonic()
    yield measured
    measured.seconds = time.monotonic() - began
    measured.broker_seconds = processor_seconds(served.broker) - broker
    measured.servers_seconds = sum(map(processor_seconds, served.processes)) - servers


def processor_seconds(process: int) -> float:
    """The processor time of a process, in the kernel included."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- the loads -----------------------------------------------------------------------------------------------------


def topic(served: Served) -> str:
    """Make a topic of one partition; its name."""
    name = f"load-{time.monotonic_ns()}"
    synced = ("--config", "flush.messages=1") if served.kind == "synced" else ()
    output_of([*java("kafka", "-Xmx256m"), "org.apache.kafka.tools.TopicCommand", "--create", "--topic", name,
               "--bootstrap-server", served.servers, "--partitions", "1", "--replication-factor", "3",
               "--config", "min.insync.replicas=2", *synced])  # fmt: skip
    return name


def kcat(served: Served, times: Times, folder: Path, *, size: int) -> Figures:
    """Produce a file of lines with kcat, then consume what it produced."""
    del times
    count = KCAT_BYTES // size
    lines = folder / f"lines-{size}"
    if not lines.exists():
        with lines.open("wb") as file:
            for number in range(count):
                file.write(b"%0*d\n" % (size, number))
    name, tool = topic(served), program("kcat")
    client = [str(tool), "-b", served.servers, "-t", name, "-p", "0"]
    libraries = library_path("kcat")
    environment = {"LD_LIBRARY_PATH": libraries} if libraries else {}
    produce = [*client, "-P", "-X", "acks=all", "-l", str(lines)]
    with spent(served) as producing:
        output_of(produce, environment)
    # It ends with the last message: with `-e` it would wait for an answer without one, which takes half a second.
    consume = [*client, "-C", "-o", "beginning", "-c", str(count), "-q"]
    with spent(served) as consuming:
        got = subprocess.run(
            consume, stdout=subprocess.PIPE, check=True, env={**os.environ, **environment}
        ).stdout.count(b"\n")
    if got != count:
        raise PeerError(f"kcat consumed {got} messages of {count}")
    megabytes = count * size / 1e6
    return {
        "messages/s": count / producing.seconds,
        "produced, gateway us": 1e6 * producing.broker_seconds / count,
        "produced, all servers us": 1e6 * producing.servers_seconds / count,
        "consumed MB/s": megabytes / consuming.seconds,
        "consumed, gateway us/MB": 1e6 * consuming.broker_seconds / megabytes,
        "consumed, all servers us/MB": 1e6 * consuming.servers_seconds / megabytes,
    }


def perf_test(served: Served, times: Times, folder: Path, *, size: int) -> Figures:
    """``kafka-producer-perf-test`` as fast as it can."""
    del times, folder
    told = output_of([*java("kafka", *CLIENT_MEMORY), "org.apache.kafka.tools.ProducerPerformance",
                      "--topic", topic(served), "--num-records", str(PERF_TEST_BYTES // size),
                      "--record-size", str(size), "--throughput", "-1", "--producer-props",
                      f"bootstrap.servers={served.servers}", "acks=all", "batch.size=262144"])  # fmt: skip
    found = re.search(r"([\d.]+) records/sec .* ([\d.]+) ms 99th", told.splitlines()[-1])
    if found is None:
        raise PeerError(f"kafka-producer-perf-test has printed no result: {told[-800:]}")
    return {"messages/s": float(found[1]), "p99 ms": float(found[2])}


def adds(served: Served, times: Times, folder: Path, *, case: Case) -> Figures:
    """The Java producer, with the percentiles of its sends."""
    del folder
    told = load("kafka", (served.servers, served.kind), case, times, served.processes)
    return {"messages/s": told["rate"], "p50 ms": told["p50"], "p99 ms": told["p99"], "processor us": told["us"]}


type Load = Callable[[Served, Times, Path], Figures]

LOADS: dict[str, Load] = {
    "kcat, 100 B": partial(kcat, size=100),
    "kcat, 1 KiB": partial(kcat, size=1024),
    "perf-test, 100 B": partial(perf_test, size=100),
    "perf-test, 1 KiB": partial(perf_test, size=1024),
    "one at a time, 100 B": partial(adds, case=Case("100 B, one at a time", 100, 1)),
    "5,000/s, 1 KiB": partial(adds, case=Case("1 KiB, 5,000/s", 1024, 50_000, 5_000)),
    f"{PARTITIONS:,} partitions, 100 B": partial(
        adds, case=Case("100 B, many partitions", 100, 10_000, ledgers=PARTITIONS)
    ),
}

SYSTEMS: dict[str, Callable[[Path], AbstractContextManager[Served]]] = {
    "gateway": gateway,
    "kafka-synced": kafka_synced,
}


# --- the comparison ------------------------------------------------------------------------------------------------


type Measured = dict[tuple[str, str], dict[str, list[float]]]
"""What was measured in each round, by (load, figure), by system."""


def table(measured: Measured, systems: list[str]) -> str:
    """The medians of all rounds, and the ratio of the first system to the second: the median of the rounds."""
    ratio = len(systems) > 1
    lines = [f"| load | figure | {' | '.join(systems)} |{' ratio |' if ratio else ''}"]
    lines.append(f"|---|---|{'---|' * (len(systems) + ratio)}")
    for (name, figure), found in measured.items():
        cells = [f"{statistics.median(found[system]):,.2f}" for system in systems]
        if ratio:
            first, second = (found[system] for system in systems[:2])
            cells.append(f"{statistics.median(one / other for one, other in zip(first, second, strict=True)):.2f}")
        lines.append(f"| {name} | {figure} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Measure and print; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--systems", default=";".join(SYSTEMS), metavar="'NAME;NAME'")
    parser.add_argument("--loads", default=";".join(LOADS), metavar="'NAME;NAME'")
    parser.add_argument("--seconds", type=float, default=10.0, help="time of a load that lasts (default: 10)")
    parser.add_argument("--java-warm-up", type=float, default=8.0, help="load before it, for Java (default: 8)")
    parser.add_argument("--list", action="store_true", help="list systems and loads, and measure nothing")
    add_data_dir(parser)
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join([*SYSTEMS, *LOADS]))
        return 0
    times = Times(arguments.seconds, arguments.java_warm_up)
    measured: Measured = defaultdict(lambda: defaultdict(list))
    try:
        systems, loads = chosen(arguments.systems, SYSTEMS, "system"), chosen(arguments.loads, LOADS, "load")
        prepare("kafka")
        with temporary_folder(arguments.data_dir) as scratch:
            for round_number in range(1, arguments.rounds + 1):
                for name, start in systems.items():
                    with temporary_folder(arguments.data_dir) as folder:
                        print(f"round {round_number}, {name}; a synced write of 4 KiB: {disk(folder)}", flush=True)
                        for told, figures in one_round(start, folder / "data", loads, times, scratch):
                            for figure, value in figures.items():
                                measured[told, figure][name].append(value)
                            printed = ", ".join(f"{figure} {value:,.2f}" for figure, value in figures.items())
                            print(f"  {told}: {printed}", flush=True)
    except (PeerError, ToolsError) as error:
        print(f"compare_gateway.py: {error}", file=sys.stderr)
        return 1
    print(f"\nMedians of {arguments.rounds} alternating rounds:\n\n{table(measured, list(systems))}")
    return 0


def one_round(
    start: Callable[[Path], AbstractContextManager[Served]],
    folder: Path,
    loads: dict[str, Load],
    times: Times,
    scratch: Path,
) -> Iterator[tuple[str, Figures]]:
    """Start a system, and run all loads on it: the figures of each."""
    with start(folder) as served:
        idle = memory_megabytes(served.broker, "VmRSS")
        for name, run in loads.items():
            yield name, run(served, times, scratch)
        yield "memory", {"idle MB": idle, "at the most MB": memory_megabytes(served.broker, "VmHWM")}


if __name__ == "__main__":
    sys.exit(main())
