"""Octavo beside Apache BookKeeper, in alternating runs on the same machine.

    compare_bookkeeper.py [--rounds 3] [--systems 'NAME;...'] [--cases 'NAME;...'] [--seconds 10] [--list]

Each round starts every system on empty folders, runs the cases one after another, and stops it. Only one system runs
at a time, and they alternate, so that a noisy machine is equally unfair to all. A system is three storage servers and
one client: E = Qw = 3, Qa = 2, every add synced by two servers before it is acknowledged.

* ``octavo``: ``octavo up`` and ``octavo bench write``, metadata in SQLite.
* ``bookkeeper``: its default journal, which waits up to 2 ms for a group; ZooKeeper; the Java client in
  scripts/bookkeeper/AddLoad.java, which runs the same load for some seconds before it is measured.
* ``bookkeeper-tuned``: the same, but the journal syncs as soon as nothing waits (journalFlushWhenQueueEmpty).

The jars come from a Maven repository the first time. Needs Java 17 with javac, and mvn. ``octavo bench disk`` is run
before each system: without a quiet disk the latencies mean nothing. The medians over all rounds are printed.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from compare_yardstick import SETTLE_SECONDS, free_ports, wait_listening
from local_cluster import Cluster, add_data_dir, temporary_folder
from zookeeper_server import ServerGroup, ZooKeeperError, find_java

HERE = Path(__file__).resolve().parent / "bookkeeper"
CACHE = Path(__file__).resolve().parents[1] / ".check" / "bookkeeper"
VERSION = "4.17.3"
RUN_SECONDS_MAX = 600.0

JAVA_OPTIONS = (
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=10",
    "-Dio.netty.leakDetectionLevel=disabled",
    "-Dio.netty.tryReflectionSetAccessible=true",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.io", "java.nio", "java.lang", "java.util.zip", "sun.nio.ch", "jdk.internal.misc")
    ),
)
SERVER_MEMORY = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")
CLIENT_MEMORY = ("-Xms1g", "-Xmx2g")

type Result = dict[str, float]
"""``rate`` in adds per second, ``p50``, ``p99``, ``p99.9`` in milliseconds."""


class PeerError(Exception):
    """BookKeeper could not be fetched, compiled or started; the message names the reason."""


@dataclass(frozen=True, slots=True)
class Case:
    """One load."""

    name: str
    entry_bytes: int
    in_flight: int
    rate: int = 0
    """Adds per second, started when they are due; 0: as many as are in flight."""


CASES = (
    Case("100 B, 1,000 in flight", 100, 1000),
    Case("1 KiB, 1,000 in flight", 1024, 1000),
    Case("100 B, one at a time", 100, 1),
    Case("1 KiB, 5,000/s", 1024, 50_000, 5_000),
    Case("1 KiB, 20,000/s", 1024, 50_000, 20_000),
    Case("1 KiB, 50,000/s", 1024, 50_000, 50_000),
)


@dataclass(frozen=True, slots=True)
class Times:
    """How long each case runs."""

    seconds: float
    java_warm_up_seconds: float


type Run = Callable[[Case], Result]


# --- Octavo --------------------------------------------------------------------------------------------------------


@contextmanager
def octavo(folder: Path, times: Times) -> Iterator[Run]:
    """A cluster of Octavo."""

    def run(case: Case) -> Result:
        command = [
            *(sys.executable, "-P", "-m", "octavo.cli.main", "bench", "write", "--json", "--warm-up", "2"),
            *("--duration", f"{times.seconds:g}", "--entry-size", str(case.entry_bytes)),
            *("--in-flight", str(case.in_flight), "--delete"),
            *(("--rate", str(case.rate)) if case.rate else ()),
        ]
        got = json.loads(output_of(command, {"OCTAVO_METADATA": uri}))
        latencies = got["latency_ms"]
        percentiles = {"p50": latencies["p50"], "p99": latencies["p99"], "p99.9": latencies["p99_9"]}
        return {"rate": got["entries_per_second"], **percentiles}

    with Cluster(folder) as cluster:
        uri = cluster.wait_for("ready")["metadata"]
        time.sleep(SETTLE_SECONDS)
        yield run
        cluster.stop()


# --- BookKeeper ----------------------------------------------------------------------------------------------------


def prepare() -> None:
    """Fetch the jars and compile the client, unless that has been done. Raises :class:`PeerError`."""
    done = CACHE / "version"
    sources = VERSION + (HERE / "AddLoad.java").read_text() + (HERE / "pom.xml").read_text()
    if done.exists() and done.read_text() == sources:
        return
    for tool, package in (("mvn", "maven"), ("javac", "openjdk-17-jdk-headless")):
        if shutil.which(tool) is None:
            raise PeerError(f"there is no `{tool}` on the PATH; install it (Debian, Ubuntu: apt install {package})")
    shutil.rmtree(CACHE, ignore_errors=True)
    CACHE.mkdir(parents=True)
    print(f"fetching Apache BookKeeper {VERSION} ...", file=sys.stderr)
    fetched = subprocess.run(
        [
            *("mvn", "-q", "-B", "-f", HERE / "pom.xml", f"-Dbookkeeper.version={VERSION}"),
            *("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={CACHE / 'jars'}"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if fetched.returncode != 0:
        raise PeerError(f"Maven could not fetch BookKeeper {VERSION}: {(fetched.stdout + fetched.stderr)[-800:]}")
    compiled = subprocess.run(
        ["javac", "-d", CACHE / "classes", "-cp", f"{CACHE}/jars/*", HERE / "AddLoad.java"],
        capture_output=True,
        text=True,
        check=False,
    )
    if compiled.returncode != 0:
        raise PeerError(f"javac failed: {compiled.stderr[-800:]}")
    done.write_text(sources)


@contextmanager
def bookkeeper(folder: Path, times: Times, *, tuned: bool = False) -> Iterator[Run]:
    """Three bookies of BookKeeper and a ZooKeeper."""
    java = [find_java(), *JAVA_OPTIONS]
    classes = ("-cp", f"{CACHE}/classes:{CACHE}/jars/*")
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        group = stack.enter_context(ServerGroup(folder / "zookeeper", outlives=False))
        address = group.uri.removeprefix("zk://")
        uri = f"zk+hierarchical://{address}/ledgers"
        ports = free_ports(3)
        files = [configuration_of(folder / f"bookie-{number}", port, uri, tuned) for number, port in enumerate(ports)]
        output_of([*java, "-Xmx256m", *classes, "org.apache.bookkeeper.bookie.BookieShell", "-conf", files[0],
                   "initnewcluster"])  # fmt: skip
        for file in files:
            log = stack.enter_context(file.with_suffix(".log").open("wb"))
            server = subprocess.Popen(
                [*java, *SERVER_MEMORY, *classes, "org.apache.bookkeeper.server.Main", "--conf", file],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            stack.callback(server.wait)
            stack.callback(server.kill)
        for port in ports:
            wait_listening(port)
        time.sleep(SETTLE_SECONDS)

        def run(case: Case) -> Result:
            numbers = (case.entry_bytes, case.in_flight, case.rate, times.java_warm_up_seconds, times.seconds)
            told = output_of([*java, *CLIENT_MEMORY, *classes, "AddLoad", uri, *map(str, numbers)])
            # BookKeeper's client writes its log to standard output, too.
            got = next(json.loads(line) for line in reversed(told.splitlines()) if line.startswith("{"))
            if got["failed"]:
                raise PeerError(f"BookKeeper failed {got['failed']} adds of the case {case.name!r}")
            return {"rate": got["entries_per_second"], **{name: got[name] for name in ("p50", "p99", "p99.9")}}

        yield run


def configuration_of(folder: Path, port: int, uri: str, tuned: bool) -> Path:
    """Write a bookie's configuration file; its path."""
    folder.mkdir()
    settings = {
        "bookiePort": port,
        "advertisedAddress": "127.0.0.1",
        "allowLoopback": "true",
        "metadataServiceUri": uri,
        "journalDirectories": folder / "journal",
        "ledgerDirectories": folder / "ledgers",
        "indexDirectories": folder / "index",
        "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
        "journalSyncData": "true",
        "httpServerEnabled": "false",
        "diskUsageThreshold": "0.99",
        "diskUsageWarnThreshold": "0.98",
        **({"journalFlushWhenQueueEmpty": "true"} if tuned else {}),
    }
    file = folder.with_suffix(".conf")
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return file


# --- the comparison ------------------------------------------------------------------------------------------------


def output_of(command: Sequence[str | Path], environment: dict[str, str] | None = None) -> str:
    """What a command printed. Raises :class:`PeerError` with the end of its errors if it failed."""
    ended = subprocess.run(
        command,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    if ended.returncode != 0:
        raise PeerError(f"{' '.join(map(str, command[-3:]))}: exit status {ended.returncode}: {ended.stderr[-800:]}")
    return ended.stdout


def disk(folder: Path) -> str:
    """The disk's synced writes, in words."""
    command = [sys.executable, "-P", "-m", "octavo.cli.main", "bench", "disk", str(folder), "--duration", "1", "--json"]
    (smallest, *_) = json.loads(output_of(command))["writes"]
    names = {"p50": "p50_seconds", "p99": "p99_seconds", "p99.9": "p999_seconds"}
    return ", ".join(f"{told} {1000 * smallest[name]:.2f} ms" for told, name in names.items())


SYSTEMS: dict[str, Callable[[Path, Times], AbstractContextManager[Run]]] = {
    "octavo": octavo,
    "bookkeeper": bookkeeper,
    "bookkeeper-tuned": lambda folder, times: bookkeeper(folder, times, tuned=True),
}


def table(measured: dict[str, dict[str, list[Result]]], cases: Sequence[Case]) -> str:
    """The medians of each case and system."""
    lines = ["| case | system | adds/s | p50 ms | p99 ms | p99.9 ms |", "|---|---|---|---|---|---|"]
    for case in cases:
        for system, results in measured.items():
            rate, *latencies = (
                statistics.median(one[name] for one in results[case.name]) for name in ("rate", "p50", "p99", "p99.9")
            )
            cells = " | ".join(f"{value:,.2f}" for value in latencies)
            lines.append(f"| {case.name} | {system} | {rate:,.0f} | {cells} |")
    return "\n".join(lines)


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
    parser.add_argument("--systems", default=";".join(SYSTEMS), metavar="'NAME;NAME'")
    parser.add_argument("--cases", default=";".join(by_name), metavar="'NAME;NAME'")
    parser.add_argument("--seconds", type=float, default=10.0, help="time of each measurement (default: 10)")
    parser.add_argument("--java-warm-up", type=float, default=8.0, help="load before it, for Java (default: 8)")
    add_data_dir(parser)
    parser.add_argument("--list", action="store_true", help="list systems and cases, and measure nothing")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join([*SYSTEMS, *by_name]))
        return 0
    times = Times(arguments.seconds, arguments.java_warm_up)
    measured: dict[str, dict[str, list[Result]]] = {}
    try:
        systems, cases = chosen(arguments.systems, SYSTEMS, "system"), chosen(arguments.cases, by_name, "case")
        if any(name != "octavo" for name in systems):
            prepare()
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
        print(f"compare_bookkeeper.py: {error}", file=sys.stderr)
        return 1
    print(f"\nMedians of {arguments.rounds} alternating rounds:\n\n{table(measured, tuple(cases.values()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
