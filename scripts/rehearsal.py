"""Rehearse what an operator does, on three hosts' worth of namespaces: ``sudo scripts/rehearsal.py [--pictures DIR]``.

Each host is a real systemd with processes, files and a network of its own, connected by veth to a bridge, on which the
metadata (ZooKeeper), the operator's commands, the console and a client that writes a log all the time run. The steps
are those of the documents: install with certificates and principals (docs/install.md), see the cluster on dashboard
and console, be alerted by a killed bookie and by a filling disk, follow the runbooks, replace certificates
(docs/security.md), upgrade under load and finalize (docs/upgrades.md). At the end every line that the client has added
is read back. Each step is timed; the first that does not end as it should ends the rehearsal.

The alert rules are the shipped ones, except that an alert fires after five seconds instead of minutes. Needs root;
takes a few minutes. Nothing outside the namespaces is changed.
"""

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts"), str(ROOT / "scripts" / "artifacts")]

from debian_tools import TOOLS_NEEDED, ToolsError, program  # noqa: E402 - from the paths above
from make_dashboard import EMPTY_WHEN_HEALTHY, queries  # noqa: E402
from support.browser import Browser  # noqa: E402
from support.commands.installed import PACKAGES, make_environment, unpack_wheel  # noqa: E402
from support.systemd import Machine  # noqa: E402
from zookeeper_server import ServerGroup  # noqa: E402

INSIDE = "OCTAVO_REHEARSAL_INSIDE"
"""Set in the process that runs in the network of its own."""

GATEWAY = "10.77.0.1"
METADATA = f"zk://{GATEWAY}:2181/octavo"
UNIT = "octavo-bookie@one"
WAIT_SECONDS = 180.0
DISK_BYTES = 1_500_000_000

SETTINGS = """
bookie_id = "bookie-{number}"
rack = "/rack-{number}"
host = "0.0.0.0"
advertise = "{address}:3181"
admin_listen = "127.0.0.1:3180"
lease_seconds = 4.0
cache_bytes = 16777216
disk_warn_bytes = 600000000
disk_read_only_bytes = 400000000
disk_writable_bytes = 500000000
disk_check_seconds = 1.0
tls = "required"
tls_certificate = "/etc/octavo/tls/bookie.crt"
tls_key = "/etc/octavo/tls/bookie.key"
tls_ca = "/etc/octavo/tls/ca.crt"
"""
"""What an operator puts before the shipped settings. The disks are small, so their limits are, too."""

PROMETHEUS_UNIT = """[Service]
ExecStart=/opt/prometheus/prometheus --config.file=/etc/prometheus.json --storage.tsdb.path=/var/lib/prometheus \
--web.listen-address=0.0.0.0:9090
"""


class RehearsalError(Exception):
    """A step has not ended as it should."""


def ip(*arguments: object) -> None:
    """Run `ip` in the network of the operator."""
    subprocess.run(["ip", *map(str, arguments)], check=True)


def wait_for(condition: Callable[[], Any], what: str | Callable[[], str]) -> Any:
    """The first true value of ``condition``. Raises :class:`RehearsalError`, which says ``what``, when none comes."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise RehearsalError(f"this never happened: {what if isinstance(what, str) else what()}")
        time.sleep(0.3)
    return found


def check(condition: object, what: str) -> None:
    """Raises :class:`RehearsalError` unless ``condition``."""
    if not condition:
        raise RehearsalError(what)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Announce and time a step."""
    begun = time.monotonic()
    print(f"{title} ...", end=" ", flush=True)
    yield
    print(f"{time.monotonic() - begun:.1f} s", flush=True)


class Host:
    """One host with a bookie and a Prometheus."""

    def __init__(self, number: int, machine: Machine) -> None:
        self.number = number
        self.address = f"10.77.0.{10 + number}"
        self.machine = machine
        ip("link", "add", f"host{number}", "type", "veth", "peer", "name", "eth0", "netns", machine.process_1)
        ip("link", "set", f"host{number}", "master", "cluster", "up")
        machine.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        machine.run("ip", "link", "set", "eth0", "up")
        machine.run("ip", "link", "set", "lo", "up")
        machine.write("/etc/ld.so.conf.d/python.conf", "/opt/python/lib\n")
        machine.run("ldconfig")

    def install(self, certificates: Path) -> None:
        """As docs/install.md says. ``certificates`` is the directory of `octavo tls init`."""
        octavo = "/opt/octavo/bin/octavo"
        self.machine.run(octavo, "deploy", "install")
        self.machine.run("mkdir", "-p", "/var/lib/octavo/one")
        self.machine.run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "disk", "/var/lib/octavo/one")
        self.machine.run(octavo, "deploy", "bookie", "one")
        shown = self.machine.run("cat", "/etc/octavo/one.toml")
        shown = re.sub(r"^metadata = .*$", f'metadata = "{METADATA}"', shown, flags=re.MULTILINE)
        self.machine.write("/etc/octavo/one.toml", SETTINGS.format(number=self.number, address=self.address) + shown)
        self.give_certificate(certificates)
        self.machine.run(octavo, "config", "check", "/etc/octavo/one.toml")
        self.machine.run("systemctl", "enable", "--now", "octavo.target", UNIT)
        self.machine.wait_for(UNIT, "ActiveState", "active")

    def give_certificate(self, certificates: Path) -> None:
        """Copy the authority's certificate and the two files of this host to it, readable for the bookie alone."""
        files = {"ca.crt": "ca.crt", f"{self.address}.crt": "bookie.crt", f"{self.address}.key": "bookie.key"}
        for source, target in files.items():
            path = f"/etc/octavo/tls/{target}"
            self.machine.write(f"{path}.new", (certificates / source).read_text(encoding="ascii"))
            self.machine.run("chown", "root:octavo", f"{path}.new")
            self.machine.run("chmod", "640", f"{path}.new")
            self.machine.run("mv", f"{path}.new", path)

    def watch(self) -> None:
        """Let a Prometheus scrape the bookie, with the shipped rules."""
        rules = self.machine.run("/opt/octavo/bin/octavo", "deploy", "show", "prometheus/octavo.rules.yml")
        self.machine.write("/etc/octavo.rules.yml", re.sub(r"for: \w+", "for: 5s", rules))
        target = {"targets": ["127.0.0.1:3180"], "labels": {"instance": f"bookie-{self.number}"}}
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["/etc/octavo.rules.yml"],
            "scrape_configs": [{"job_name": "octavo", "static_configs": [target]}],
        }
        self.machine.write("/etc/prometheus.json", json.dumps(settings))
        self.machine.write("/etc/systemd/system/prometheus.service", PROMETHEUS_UNIT)
        self.machine.run("systemctl", "daemon-reload")
        self.machine.run("systemctl", "start", "prometheus")

    def ask(self, query: str) -> list[Any]:
        """The answer of its Prometheus; nothing while it does not listen."""
        parameters = urllib.parse.urlencode({"query": query})
        try:
            with urllib.request.urlopen(f"http://{self.address}:9090/api/v1/query?{parameters}", timeout=10) as answer:
                found: list[Any] = json.load(answer)["data"]["result"]
                return found
        except OSError:
            return []

    def alerts(self) -> set[str]:
        """The alerts that fire."""
        return {one["metric"]["alertname"] for one in self.ask('ALERTS{alertstate="firing"}')}


class Load:
    """A client that adds lines to a log until it is ended."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "octavo.cli.main", "log", "append", "orders", "--json"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=settings,
        )  # fmt: skip
        self._stopped = threading.Event()
        self.lines: list[bytes] = []
        self._thread = threading.Thread(target=self._add)
        self._thread.start()

    def _add(self) -> None:
        assert self._process.stdin is not None
        while not self._stopped.wait(0.05):
            lines = [b"line %d\n" % number for number in range(len(self.lines), len(self.lines) + 50)]
            self._process.stdin.write(b"".join(lines))
            self._process.stdin.flush()
            self.lines += lines

    def finish(self) -> int:
        """End the input; the exit status once everything is acknowledged."""
        self._stopped.set()
        self._thread.join()
        self._process.communicate(timeout=WAIT_SECONDS)
        return self._process.returncode

    def kill(self) -> None:
        """End it in any case."""
        self._stopped.set()
        self._process.kill()
        self._thread.join()
        self._process.wait()


def forward(port: int) -> None:
    """Let hosts reach the ZooKeeper, which listens on loopback, at the gateway's port 2181."""
    listener = socket.create_server((GATEWAY, 2181))

    def carry(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            source.close()
            target.close()

    def accept() -> None:
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", port))
            for pair in ((client, server), (server, client)):
                threading.Thread(target=carry, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


class Rehearsal:
    """The steps, in order."""

    def __init__(self, folder: Path, pictures: Path | None, stack: ExitStack) -> None:
        self._folder = folder
        self._pictures = pictures
        self._stack = stack
        self._settings = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
        self._certificates = folder / "tls"
        self._settings |= {
            "OCTAVO_METADATA": METADATA,
            "OCTAVO_TLS_CA": str(self._certificates / "ca.crt"),
            "OCTAVO_TLS_CERTIFICATE": str(self._certificates / "admin.crt"),
            "OCTAVO_TLS_KEY": str(self._certificates / "admin.key"),
        }
        self._hosts: list[Host] = []

    def _settings_of_orders(self) -> dict[str, str]:
        """The environment of the client that writes the log: a principal with a key and no certificate."""
        administrator = {"OCTAVO_TLS_CERTIFICATE", "OCTAVO_TLS_KEY"}
        settings = {name: value for name, value in self._settings.items() if name not in administrator}
        return settings | {"OCTAVO_KEY_FILE": str(self._folder / "orders.key")}

    def octavo(self, *arguments: object, ok: bool = True) -> str:
        """Run a command as the operator; what it prints."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "octavo.cli.main", *map(str, arguments)],
            env=self._settings, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False,
        )  # fmt: skip
        check(not ok or done.returncode == 0, f"`octavo {' '.join(map(str, arguments))}`: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def problems(self) -> list[str]:
        """The findings of `octavo cluster status`."""
        found = json.loads(self.octavo("cluster", "status", "--json", ok=False))
        return [finding["text"] for finding in found["findings"] if finding["severity"] == "problem"]

    def prepare(self) -> None:
        """Network, ZooKeeper, two releases, and three hosts that have them installed."""
        ip("link", "set", "lo", "up")
        ip("link", "add", "cluster", "type", "bridge")
        ip("address", "add", f"{GATEWAY}/24", "dev", "cluster")
        ip("link", "set", "cluster", "up")
        zookeeper = self._stack.enter_context(ServerGroup(self._folder / "zookeeper", outlives=False))
        forward(zookeeper.servers[0].client_port)
        releases = self._releases()
        prometheus = self._folder / "prometheus"
        prometheus.mkdir()
        shutil.copy2(program("prometheus"), prometheus / "prometheus")
        mounts = {
            **releases,
            PACKAGES: "/opt/packages",
            Path(sys.base_prefix): "/opt/python",
            prometheus: "/opt/prometheus",
        }
        for number in (1, 2, 3):
            folder = self._folder / f"host-{number}"
            folder.mkdir()
            machine = self._stack.enter_context(Machine(folder, mounts))
            self._hosts.append(Host(number, machine))

    def _releases(self) -> dict[Path, str]:
        """The wheel of this tree, and the same with the next version number, each with its environment."""
        mounts: dict[Path, str] = {}
        for name in ("octavo", "octavo-new"):
            wheel = unpack_wheel(self._folder / f"{name}-wheel")
            if name == "octavo-new":
                version = wheel / "octavo" / "_version.py"
                text = version.read_text(encoding="utf-8")
                check('"0.1.0"' in text, "the version of this tree is not 0.1.0: mend the rehearsal")
                text = text.replace('"0.1.0"', '"0.2.0"').replace('RELEASES = ("0.1",)', 'RELEASES = ("0.1", "0.2")')
                version.write_text(text, encoding="utf-8")
            environment = self._folder / name
            make_environment(
                environment, Path(f"/opt/{name}-wheel"), python=Path("/opt/python"), packages=Path("/opt/packages")
            )
            command = environment / "bin" / "octavo"
            text = command.read_text(encoding="utf-8").replace(str(environment), f"/opt/{name}")
            command.write_text(text, encoding="utf-8")
            mounts |= {environment: f"/opt/{name}", wheel: f"/opt/{name}-wheel"}
        return mounts

    def install(self) -> None:
        """Certificates and principals, and three bookies, each with its Prometheus."""
        hosts = [argument for host in self._hosts for argument in ("--host", host.address)]
        self.octavo("tls", "init", self._certificates, *hosts)
        for host in self._hosts:
            host.install(self._certificates)
            host.watch()
        refused = self.octavo("cluster", "test", ok=False)
        check("octavo:admin is no principal" in refused, f"the cluster has no principal yet, but: {refused}")
        self.octavo("access", "add", "admin", "--role", "admin")
        self.octavo("access", "add", "orders", "--role", "append")
        self.octavo("access", "key", "orders", "--output", self._folder / "orders.key")
        check(self.problems() == [], f"the new cluster has problems: {self.problems()}")
        self.octavo("cluster", "test")
        self.octavo("doctor")
        self.octavo("log", "create", "orders")

    def dashboard(self) -> None:
        """Every query of the dashboard has an answer on some host."""
        left = [query for query in queries() if not any(part in query for part in EMPTY_WHEN_HEALTHY)]

        def answered() -> bool:
            left[:] = [query for query in left if not any(host.ask(query) for host in self._hosts)]
            return not left

        wait_for(answered, lambda: f"answers to {left}")

    def console(self) -> Browser:
        """Open the console; it shows three bookies."""
        console = subprocess.Popen(
            [sys.executable, "-P", "-m", "octavo.cli.main", "console", "--json"],
            env=self._settings, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self._stack.callback(console.wait)
        self._stack.callback(console.kill)
        assert console.stdout is not None
        place = json.loads(console.stdout.readline())
        browser = self._stack.enter_context(Browser(self._folder / "browser"))
        browser.open(f"{place['url']}#token={place['token']}")
        browser.wait_for("The cluster is healthy", "#health")
        browser.wait_for("writable of 3", "main")
        browser.wait_for(" ms", "main")  # the latencies of the load
        return browser

    def picture(self, browser: Browser, name: str) -> None:
        """Keep a picture of the console."""
        if self._pictures is not None:
            browser.screenshot(self._pictures / f"{name}.png")

    def killed_bookie(self, browser: Browser) -> None:
        """A bookie is killed and stays away: alert, console, runbook BookieDown."""
        host = self._hosts[1]
        host.machine.write(f"/run/systemd/system/{UNIT}.service.d/stay.conf", "[Service]\nRestart=no\n")
        host.machine.run("systemctl", "daemon-reload")
        host.machine.run("systemctl", "kill", "--signal=KILL", UNIT)
        wait_for(lambda: "BookieDown" in host.alerts(), "the alert BookieDown")
        browser.wait_for("bookie-2", "#health")
        self.picture(browser, "killed")
        check(any("bookie-2" in text for text in wait_for(self.problems, "a problem")), "status misses bookie-2")
        check("failed" in host.machine.run("systemctl", "status", UNIT, check=False), "systemd thinks that it runs")
        host.machine.run("rm", f"/run/systemd/system/{UNIT}.service.d/stay.conf")
        host.machine.run("systemctl", "daemon-reload")
        host.machine.run("systemctl", "start", UNIT)
        wait_for(lambda: "BookieDown" not in host.alerts() and not self.problems(), "the end of the alert")
        browser.wait_for("The cluster is healthy", "#health")

    def filling_disk(self, browser: Browser) -> None:
        """Something else fills a disk: DiskFullSoon first, then BookieReadOnly; removing it is the runbook's remedy."""
        host = self._hosts[2]
        filler = "/var/lib/octavo/one/lost+found"
        fired: set[str] = set()

        def fill() -> bool:
            fired.update(host.alerts())
            free = host.ask('octavo_bookie_disk_free_bytes{role="data"}')
            left = 360_000_000 if "DiskFullSoon" in fired else 420_000_000
            if free and float(free[0]["value"][1]) > left:
                host.machine.run("bash", "-c", f"head -c 20000000 /dev/zero >> {filler}")
            return {"DiskFullSoon", "BookieReadOnly"} <= fired

        wait_for(fill, "the alerts DiskFullSoon and BookieReadOnly")
        browser.run("location.hash = '#/bookies'")
        browser.wait_for("read-only", "main")
        browser.wait_for("days left", "main")  # of the certificates
        self.picture(browser, "disk")
        reason = host.ask('octavo_bookie_read_only_reason{reason="disk"} == 1')
        check(reason, "the metric does not tell the reason")
        host.machine.run("rm", filler)
        wait_for(lambda: "BookieReadOnly" not in host.alerts(), "the end of the alert BookieReadOnly")
        browser.run("location.hash = '#/cluster'")

    def replace_certificates(self) -> None:
        """Every host gets a new certificate, which its bookie takes over without a restart."""
        hosts = [argument for host in self._hosts for argument in ("--host", host.address)]
        self.octavo("tls", "issue", self._certificates, *hosts)
        for host in self._hosts:
            host.give_certificate(self._certificates)
            host.machine.run("systemctl", "reload", UNIT)
            host.machine.wait_for_log(UNIT, "TLS files reloaded")
        check(self.problems() == [], f"the cluster has problems with its new certificates: {self.problems()}")

    def upgrade(self) -> None:
        """One host after the other, the second one with a kill in between; then finalize."""
        new = "/opt/octavo-new/bin/octavo"
        for host in self._hosts:
            if host.number == 2:
                host.machine.run("systemctl", "kill", "--signal=KILL", UNIT)
                host.machine.wait_for(UNIT, "NRestarts", "1")
                host.machine.wait_for(UNIT, "ActiveState", "active")
            host.machine.run(new, "deploy", "install")
            host.machine.run("systemctl", "restart", UNIT)
            self.octavo("repair", "wait", "--timeout", WAIT_SECONDS / 2)
            wait_for(lambda: not self.problems(), f"a cluster without problems after host {host.number}")
        first = self._hosts[0].machine
        first.run(new, "cluster", "finalize", "0.2", "--metadata", METADATA)
        refused = first.run("/opt/octavo/bin/octavo", "cluster", "finalize", "0.1", "--metadata", METADATA, check=False)
        check("cannot go back" in refused or "does not know" in refused, f"going back was not refused: {refused}")
        wait_for(lambda: not self.problems(), "a healthy cluster")

    def run(self) -> None:
        """All steps."""
        with step("two releases, three hosts"):
            self.prepare()
        with step("install three bookies"):
            self.install()
        load = Load(self._settings_of_orders())
        self._stack.callback(load.kill)
        with step("dashboard: every query answered"):
            self.octavo("bench", "write", "--duration", "1", "--delete")
            self.dashboard()
        with step("console in a browser"):
            browser = self.console()
            self.picture(browser, "console")
        with step("killed bookie: alert, console, runbook"):
            self.killed_bookie(browser)
        with step("filling disk: alerts, console, runbook"):
            self.filling_disk(browser)
        with step("new certificates, without a restart"):
            self.replace_certificates()
        with step("upgrade under load, finalize"):
            self.upgrade()
        with step("every line that was added"):
            check(load.finish() == 0, "the client that added lines failed")
            read = self.octavo("log", "read", "orders").encode()
            check(read == b"".join(load.lines), "the log does not hold what was added")
        print(f"the rehearsal ended well; {len(load.lines)} lines were added meanwhile, and all were read back")


def main() -> int:
    parser = argparse.ArgumentParser(description="Rehearse what an operator does, on three hosts of namespaces.")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="keep pictures of the console")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("the rehearsal makes namespaces: run it as root")
    if INSIDE not in os.environ:
        try:
            for name in (name for tool in TOOLS_NEEDED.values() for name in tool.programs):
                program(name)  # fetched now if need be: the network inside leads nowhere
        except ToolsError as error:
            parser.exit(1, f"rehearsal: {error}\n")
        # Everything that this process starts is in a network of its own from here on.
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    if arguments.pictures is not None:
        arguments.pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="octavo-rehearsal-") as name, ExitStack() as stack:
        Path(name).chmod(0o755)
        try:
            Rehearsal(Path(name), arguments.pictures, stack).run()
        except (RehearsalError, AssertionError) as error:
            print(f"\nrehearsal: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
