"""ZooKeeper servers for development and tests, run from the jars of PySpark. Needs Java 17.

A :class:`ServerGroup` is one server or an ensemble in a folder: configuration, data, logs, and the process ids of what
runs, so that another process can stop what this one started. Servers outlive the process that started them.
"""

import contextlib
import ctypes
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

HOST: Final = "127.0.0.1"

JAVA_VERSION_MIN: Final = 17
"""The version that Spark 4 needs; ZooKeeper itself needs an older one."""

START_SECONDS_MAX: Final = 60.0
"""Time-out of a start, which takes a second or two on an idle machine."""

STOP_SECONDS_MAX: Final = 10.0
"""Time after which a stopping server is killed; that loses no data."""

SESSION_MILLISECONDS_MAX: Final = 60_000
"""Longest session time-out granted: ZooKeeper's default at ticks of three seconds."""

_POLL_SECONDS: Final = 0.03

_PR_SET_PDEATHSIG: Final = 1
"""Linux: the signal to be sent when the parent ends."""

_JARS: Final = (
    "zookeeper-*.jar",
    "slf4j-api-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "snappy-java-*.jar",
    "metrics-core-*.jar",
    "netty-*.jar",
    "commons-io-*.jar",
)
"""The jars that the server needs, of 250; with all of them it takes three times as long to start."""

_LOGGING: Final = """\
status = warn
appender.file.type = Console
appender.file.name = file
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{ISO8601} %-5p %c{1} %m%n
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
"""

_AUDIT_LOGGING: Final = """\
logger.audit.name = org.apache.zookeeper.audit.Slf4jAuditLogger
logger.audit.level = info
"""


class ZooKeeperError(Exception):
    """An operation on the servers failed; the message names the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a group of servers."""

    tick_milliseconds: int = 1000
    """Sessions last at least 2 ticks; a member of an ensemble that does not answer counts as failed after 5."""
    sync: bool = True
    """Whether changes are synced to disk before they are acknowledged."""
    read_only_mode: bool = False
    """Whether a member that has lost its ensemble continues to serve reads to clients that accept that."""
    request_bytes_max: int = 0
    """Largest request (``jute.maxbuffer``); 0: ZooKeeper's own limit of 1 MiB."""
    tls_pair: str = ""
    """PEM file with key and certificate of the servers, which then listen with TLS too; empty: no TLS."""
    tls_ca: str = ""
    """PEM file with the authority of the clients' certificates, which are required."""
    audit: bool = False
    """Whether the servers write an audit log, into their ordinary log."""
    heap_megabytes: int = 256
    """Memory of each server's Java heap, which holds every node: a million ledgers need 2,000."""


@dataclass(slots=True)
class Server:
    """One server of a group."""

    number: int
    client_port: int
    peer_port: int
    election_port: int
    secure_port: int = 0
    """Port of TLS."""
    pid: int = 0
    """Process id; 0 if it is not running."""
    started_ticks: int = 0
    """The kernel's start time of the process, which distinguishes it from a later process with the same id."""

    def is_running(self) -> bool:
        """Whether the process that was started is running."""
        return self.pid != 0 and _start_ticks(self.pid) == self.started_ticks


class ServerGroup:
    """One server, or an ensemble, with its files in ``folder``.

    As a context manager it is started on entering and is destroyed, files and all, on leaving.
    """

    def __init__(
        self, folder: Path, *, size: int = 1, port: int = 0, settings: Settings | None = None, outlives: bool = True
    ) -> None:
        """Use the group that exists in the folder, or create one of ``size`` servers, the first at ``port`` (0: any
        free port). ``settings`` replace those of an existing group. Unless the group ``outlives`` this process, its
        servers are killed when the thread that started them ends."""
        self.folder = folder.absolute()
        self._outlives = outlives
        self._file = self.folder / "servers.json"
        if self._file.exists():
            known = json.loads(self._file.read_text())
            self.settings = settings or Settings(**known["settings"])
            self.servers = [Server(**server) for server in known["servers"]]
            return
        self.settings = settings or Settings()
        ports = _free_ports(4 * size)
        self.servers = [Server(number + 1, *ports[4 * number : 4 * number + 4]) for number in range(size)]
        if port:
            self.servers[0].client_port = port

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.destroy()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.destroy()

    @property
    def uri(self) -> str:
        """The URI for ``--metadata``."""
        return "zk://" + ",".join(f"{HOST}:{server.client_port}" for server in self.servers)

    @property
    def secure_uri(self) -> str:
        """The URI for ``--metadata`` over TLS, without the files of the client."""
        return "zk+tls://" + ",".join(f"{HOST}:{server.secure_port}" for server in self.servers)

    def is_running(self) -> bool:
        """Whether any server is running."""
        return any(server.is_running() for server in self.servers)

    def start(self) -> None:
        """Start the servers that are not running and wait until all serve. Raises :class:`ZooKeeperError`."""
        for server in self.servers:
            self._launch(server)
        self.wait_serving()

    def start_server(self, number: int) -> None:
        """Restart one server without waiting until it serves."""
        self._launch(self.servers[number - 1])

    def wait_serving(self, seconds_max: float = START_SECONDS_MAX) -> None:
        """Wait until every started server serves clients."""
        deadline = time.monotonic() + seconds_max
        for server in self.servers:
            while server.pid and mode_of(server.client_port) in {None, "read-only"}:
                if not server.is_running():
                    raise ZooKeeperError(f"ZooKeeper ended as it started: {self._last_words(server)}")
                if time.monotonic() > deadline:
                    raise ZooKeeperError(f"ZooKeeper did not serve within {seconds_max:g} s; see {self.log_of(server)}")
                time.sleep(_POLL_SECONDS)

    def leader(self) -> int:
        """The number of the leader. Raises :class:`ZooKeeperError` if there is none."""
        for server in self.servers:
            if mode_of(server.client_port) in {"leader", "standalone"}:
                return server.number
        raise ZooKeeperError("no server leads")

    def signal_server(self, number: int, signal_number: int) -> None:
        """Send a signal to one server: SIGSTOP makes it hang, SIGCONT resumes it."""
        os.kill(self.servers[number - 1].pid, signal_number)

    def kill_server(self, number: int) -> None:
        """Kill one server and wait for its end."""
        self._end(self.servers[number - 1], signal.SIGKILL)

    def stop(self) -> None:
        """Stop all servers and keep their data."""
        for server in self.servers:
            with contextlib.suppress(ProcessLookupError):
                if server.is_running():
                    os.kill(server.pid, signal.SIGTERM)
        for server in self.servers:
            self._end(server, signal.SIGTERM)

    def destroy(self) -> None:
        """Kill all servers and delete their files."""
        for server in self.servers:
            self._end(server, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- processes -------------------------------------------------------------------------------------------------

    def _launch(self, server: Server) -> None:
        if server.is_running():
            return
        folder = self._write_files(server)
        if _is_listening(server.client_port):
            raise ZooKeeperError(
                f"port {server.client_port}, which ZooKeeper in {self.folder} uses, is taken by another program"
            )
        settings = self.settings
        options = [f"-Xmx{settings.heap_megabytes}m"]
        options += [f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}", "-Dzookeeper.preAllocSize=1024"]
        if not settings.sync:
            options.append("-Dzookeeper.forceSync=no")
        if settings.read_only_mode:
            options.append("-Dreadonlymode.enabled=true")
        if settings.request_bytes_max:
            options.append(f"-Djute.maxbuffer={settings.request_bytes_max}")
        command = [
            *(find_java(), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"),
            *options,
            *("-cp", class_path(), "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(folder / "zoo.cfg")),
        ]
        with self.log_of(server).open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=None if self._outlives else _die_with_parent,  # noqa: PLW1509 - one call of the kernel
            )
        # Not ours to reap at the end: it outlives us. Told so, Popen does not complain.
        process.returncode = 0
        server.pid, server.started_ticks = process.pid, _start_ticks(process.pid) or 0
        self._save()

    def _end(self, server: Server, signal_number: int) -> None:
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while server.is_running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(server.pid, signal_number)
            _reap(server.pid)
            if time.monotonic() > deadline:
                signal_number = signal.SIGKILL
            time.sleep(_POLL_SECONDS)
        _reap(server.pid)
        if server.pid:
            server.pid = server.started_ticks = 0
            if self.folder.exists():
                self._save()

    def _write_files(self, server: Server) -> Path:
        folder = self.folder / f"server-{server.number}"
        data = folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{server.number}\n")
        lines = [
            f"tickTime={self.settings.tick_milliseconds}",
            f"dataDir={data}",
            f"clientPort={server.client_port}",
            f"clientPortAddress={HOST}",
            "maxClientCnxns=0",
            f"minSessionTimeout={2 * self.settings.tick_milliseconds}",
            f"maxSessionTimeout={SESSION_MILLISECONDS_MAX}",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr,ruok,mntr,cons,wchs",
            "autopurge.purgeInterval=1",
        ]
        if self.settings.tls_pair:
            lines += [
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
                f"secureClientPort={server.secure_port}",
                f"secureClientPortAddress={HOST}",
                f"ssl.keyStore.location={self.settings.tls_pair}",
                "ssl.keyStore.type=PEM",
                f"ssl.trustStore.location={self.settings.tls_ca}",
                "ssl.trustStore.type=PEM",
                "ssl.clientAuth=need",
            ]
        if self.settings.audit:
            lines.append("audit.enable=true")
        if len(self.servers) > 1:
            lines += ["initLimit=20", "syncLimit=5"]
            lines += [f"server.{peer.number}={HOST}:{peer.peer_port}:{peer.election_port}" for peer in self.servers]
        (folder / "zoo.cfg").write_text("\n".join(lines) + "\n")
        logging = _LOGGING + (_AUDIT_LOGGING if self.settings.audit else "")
        (self.folder / "log4j2.properties").write_text(logging)
        return folder

    def _save(self) -> None:
        known: dict[str, Any] = {
            "settings": asdict(self.settings),
            "servers": [asdict(server) for server in self.servers],
        }
        unfinished = self._file.with_suffix(".new")
        unfinished.write_text(json.dumps(known, indent=1) + "\n")
        unfinished.replace(self._file)

    def log_of(self, server: Server) -> Path:
        """The file with all that the server logs."""
        return self.folder / f"server-{server.number}" / "log"

    def _last_words(self, server: Server) -> str:
        lines = self.log_of(server).read_text(errors="replace").splitlines()
        told = [line for line in lines if line.strip() and not line.startswith("\t")]
        return f"{told[-1] if told else 'it said nothing'} (all of it: {self.log_of(server)})"


# --- what is there ---------------------------------------------------------------------------------------------------


def find_java() -> str:
    """The ``java`` to run. Raises :class:`ZooKeeperError` saying how to get one."""
    remedy = "install it (Debian, Ubuntu: apt install openjdk-17-jre-headless) or name one by JAVA_HOME"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no `java` on the PATH"
        raise ZooKeeperError(f"Java {JAVA_VERSION_MIN} or newer is needed for ZooKeeper and Spark: {where}; {remedy}")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', answer)
    if found is None or int(found[1]) < JAVA_VERSION_MIN:
        version = found[1] if found else "of an unknown version"
        raise ZooKeeperError(
            f"Java {JAVA_VERSION_MIN} or newer is needed for ZooKeeper and Spark, {java} is {version}; {remedy}"
        )
    return java


def class_path() -> str:
    """The server's jars. Raises :class:`ZooKeeperError` if PySpark is not installed."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ZooKeeperError("PySpark, whose jars hold ZooKeeper, is not installed; run `make setup`")
    jars = Path(spec.origin).parent / "jars"
    chosen = [str(jar) for pattern in _JARS for jar in sorted(jars.glob(pattern))]
    if not any(Path(jar).name.startswith("zookeeper-") for jar in chosen):
        raise ZooKeeperError(f"there is no ZooKeeper among the jars of PySpark in {jars}")
    return os.pathsep.join(chosen)


def mode_of(port: int) -> str | None:
    """The mode that a server reports (standalone, leader, follower, read-only); None if it does not serve."""
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1.0) as connection:
        connection.sendall(b"srvr")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
        found = re.search(rb"Mode: ([\w-]+)", answer)
        return found[1].decode() if found else None
    return None


def _free_ports(number: int) -> Sequence[int]:
    """Free ports below the system's ephemeral range, so that no other process takes them while a server is down."""
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        for port in range(10_000 + os.getpid() * 31 % 10_000, 32_768):
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind((HOST, port))
                ports.append(port)
            if len(ports) == number:
                return ports
    raise ZooKeeperError(f"there are no {number} free ports below 32768")


def _is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1.0):
        return True
    return False


def _start_ticks(pid: int) -> int | None:
    """The kernel's start time of a process that has not ended. A zombie has, once its other threads have ended, too:
    until then its sockets listen."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    threads = int(fields[17])
    return None if fields[0] in {"Z", "X"} and threads <= 1 else int(fields[19])


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _reap(pid: int) -> None:
    """Reap a process, if it is a child of this one and has ended."""
    if pid:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
