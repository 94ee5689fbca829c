"""Apache BookKeeper and Apache Kafka as compare_peers.py runs them: three servers on one machine, and a Java client.

The jars come from a Maven repository the first time, and are kept in .check/peers.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from compare_yardstick import SETTLE_SECONDS, free_ports, wait_listening
from zookeeper_server import ServerGroup, find_java

HERE = Path(__file__).resolve().parent / "peers"
CACHE = Path(__file__).resolve().parents[1] / ".check" / "peers"
VERSIONS = {"bookkeeper": "4.17.3", "kafka": "4.3.1"}
CLIENTS = {"bookkeeper": "BookKeeperLoad", "kafka": "KafkaLoad"}
RUN_SECONDS_MAX = 600.0

JAVA_OPTIONS = (
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=10",
    "-Dio.netty.leakDetectionLevel=disabled",
    "-Dio.netty.tryReflectionSetAccessible=true",
    f"-Dlog4j2.configurationFile={HERE / 'log4j2.xml'}",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.io", "java.nio", "java.lang", "java.util.zip", "sun.nio.ch", "jdk.internal.misc")
    ),
)
SERVER_MEMORY = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")
CLIENT_MEMORY = ("-Xms1g", "-Xmx2g")

KAFKA_CLUSTER_ID = "T2N0YXZvQ29tcGFyZXNJdA"

type Result = dict[str, float]
"""``rate`` in adds per second, ``p50``, ``p99``, ``p99.9`` in milliseconds, ``us`` of processor time per add over the
client and the three servers."""


class PeerError(Exception):
    """A peer could not be fetched, compiled, started or measured; the message names the reason."""


@dataclass(frozen=True, slots=True)
class Case:
    """One load."""

    name: str
    entry_bytes: int
    in_flight: int
    rate: int = 0
    """Adds per second, started when they are due; 0: as many as are in flight."""
    ledgers: int = 1
    """The adds in flight are dealt out evenly over this number of ledgers. Kafka has partitions instead."""


@dataclass(frozen=True, slots=True)
class Times:
    """How long each case runs."""

    seconds: float
    java_warm_up_seconds: float


type Run = Callable[[Case], Result]


def output_of(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> str:
    """The output of a command. Raises :class:`PeerError` with the end of its errors if it failed."""
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


def prepare(peer: str) -> None:
    """Fetch the jars of a peer and compile its client, unless that has been done. Raises :class:`PeerError`."""
    cache, pom = CACHE / peer, HERE / f"{peer}.pom.xml"
    files = (HERE / "AddLoad.java", HERE / f"{CLIENTS[peer]}.java")
    done = cache / "version"
    sources = "".join([VERSIONS[peer], *(file.read_text() for file in (*files, pom))])
    if done.exists() and done.read_text() == sources:
        return
    for tool, package in (("mvn", "maven"), ("javac", "openjdk-17-jdk-headless")):
        if shutil.which(tool) is None:
            raise PeerError(f"there is no `{tool}` on the PATH; install it (Debian, Ubuntu: apt install {package})")
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir(parents=True)
    print(f"fetching {peer} {VERSIONS[peer]} ...", file=sys.stderr)
    fetched = subprocess.run(
        [
            *("mvn", "-q", "-B", "-f", pom, f"-Dpeer.version={VERSIONS[peer]}", "dependency:copy-dependencies"),
            *("-DincludeScope=runtime", f"-DoutputDirectory={cache / 'jars'}"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if fetched.returncode != 0:
        raise PeerError(f"Maven could not fetch {peer} {VERSIONS[peer]}: {(fetched.stdout + fetched.stderr)[-800:]}")
    compiled = subprocess.run(
        ["javac", "-d", cache / "classes", "-cp", f"{cache}/jars/*", *files],
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
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        group = stack.enter_context(ServerGroup(folder / "zookeeper", outlives=False))
        uri = f"zk+hierarchical://{group.uri.removeprefix('zk://')}/ledgers"
        ports = free_ports(3)
        files = [bookie_settings(folder / f"bookie-{number}", port, uri, tuned) for number, port in enumerate(ports)]
        output_of([*java("bookkeeper", "-Xmx256m"), "org.apache.bookkeeper.bookie.BookieShell", "-conf", files[0],
                   "initnewcluster"])  # fmt: skip
        servers = [
            _serve(stack, "bookkeeper", ("org.apache.bookkeeper.server.Main", "--conf", file), file) for file in files
        ]
        for port in ports:
            wait_listening(port)
        time.sleep(SETTLE_SECONDS)
        yield lambda case: load("bookkeeper", (uri,), case, times, servers)


def bookie_settings(folder: Path, port: int, uri: str, tuned: bool) -> Path:
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
    return _write_settings(folder.with_suffix(".conf"), settings)


@contextmanager
def kafka(folder: Path, times: Times, *, synced: bool) -> Iterator[Run]:
    """Three brokers of Kafka that are controllers, too."""
    with brokers_of_kafka(folder) as (servers, brokers):
        yield lambda case: load("kafka", (servers, "synced" if synced else "plain"), case, times, brokers)


@contextmanager
def brokers_of_kafka(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """Three brokers of Kafka that are controllers, too: their addresses, and their process ids."""
    folder.mkdir(parents=True)
    ports, controllers = free_ports(3), free_ports(3)
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers, 1))
    with ExitStack() as stack:
        brokers = []
        for number, (port, controller) in enumerate(zip(ports, controllers, strict=True), 1):
            file = broker_settings(folder / f"broker-{number}", number, port, controller, voters)
            output_of([*java("kafka", "-Xmx256m"), "kafka.tools.StorageTool", "format", "-t", KAFKA_CLUSTER_ID, "-c",
                       file])  # fmt: skip
            brokers.append(_serve(stack, "kafka", ("kafka.Kafka", file), file))
        for port in ports:
            wait_listening(port)
        time.sleep(SETTLE_SECONDS)
        yield ",".join(f"127.0.0.1:{port}" for port in ports), brokers


def broker_settings(folder: Path, number: int, port: int, controller: int, voters: str) -> Path:
    """Write a broker's configuration file; its path."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": number,
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": folder,
        "offsets.topic.replication.factor": 3,
        "min.insync.replicas": 2,
    }
    return _write_settings(folder.with_suffix(".conf"), settings)


def _write_settings(file: Path, settings: Mapping[str, object]) -> Path:
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return file


def java(peer: str, *memory: str) -> list[str]:
    """The command that runs a class of a peer's jars, or of its compiled client, without the class."""
    cache = CACHE / peer
    return [find_java(), *JAVA_OPTIONS, *memory, "-cp", f"{cache}/classes:{cache}/jars/*"]


def _serve(stack: ExitStack, peer: str, command: tuple[str | Path, ...], settings: Path) -> int:
    """Start a server, which is killed when the stack is left; its process id."""
    log = stack.enter_context(settings.with_suffix(".log").open("wb"))
    server = subprocess.Popen([*java(peer, *SERVER_MEMORY), *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    stack.callback(server.wait)
    stack.callback(server.kill)
    return server.pid


def load(peer: str, target: tuple[str, ...], case: Case, times: Times, servers: Sequence[int]) -> Result:
    """Run the peer's client."""
    numbers = (case.entry_bytes, case.in_flight, case.rate, times.java_warm_up_seconds, times.seconds, case.ledgers)
    processes = ",".join(map(str, servers))
    told = output_of([*java(peer, *CLIENT_MEMORY), CLIENTS[peer], *target, *map(str, numbers), processes])
    return client_result(told, f"{peer}, case {case.name!r}")


def client_result(told: str, what: str) -> Result:
    """The measurements of a Java client, from its output. Raises :class:`PeerError` when an add failed."""
    # BookKeeper's client writes its log to standard output, too.
    found = next((line for line in reversed(told.splitlines()) if line.startswith("{")), None)
    if found is None:
        raise PeerError(f"{what}: the client has printed no result: {told[-800:]}")
    got = json.loads(found)
    if got["failed"]:
        raise PeerError(f"{what}: {got['failed']} adds failed")
    percentiles = {name: got[name] for name in ("p50", "p99", "p99.9")}
    return {"rate": got["entries_per_second"], **percentiles, "us": got["processor_us"]}
