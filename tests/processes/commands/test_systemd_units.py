"""The shipped units under a real systemd: what `octavo deploy` installs starts, serves, is confined and stops.

One machine serves all tests of this module; each test has bookies of its own.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands.installed import PACKAGES, make_environment, unpack_wheel
from support.systemd import Machine

OCTAVO = "/opt/octavo/bin/octavo"

EXPOSURE_MAX = 2.0
"""systemd's own measure: 0 is confined in every respect that it knows, 10 in none."""

AS_OCTAVO = f"setpriv --reuid octavo --regid octavo --clear-groups {OCTAVO}"

METADATA = "--metadata sqlite:////var/lib/octavo/metadata.db"

LEASE_SECONDS = 2.0
"""Of a bookie that is killed: it registers again only when its old registration has expired."""

REPLAY_BYTES = int(os.environ.get("OCTAVO_REPLAY_BYTES", "16000000"))
"""Bytes of entries that a killed bookie has to replay. `make soak` takes 2 GB."""

REPLAY_SECONDS_MAX = 60 + REPLAY_BYTES / 5e6


@pytest.fixture(scope="module")
def machine(module_folder: Path) -> Iterator[Machine]:
    """A machine with Octavo in /opt/octavo, installed from its wheel, where `octavo deploy install` has run."""
    wheel = unpack_wheel(module_folder / "wheel")
    environment = module_folder / "environment"
    make_environment(environment, Path("/opt/wheel"), python=Path("/opt/python"), packages=Path("/opt/packages"))
    command = environment / "bin" / "octavo"
    command.write_text(command.read_text().replace(str(environment), "/opt/octavo"))
    machine_folder = module_folder / "machine"
    machine_folder.mkdir()
    disk = module_folder / "disk"
    disk.mkdir()
    module_folder.chmod(0o755)
    mounts = {
        environment: "/opt/octavo",
        wheel: "/opt/wheel",
        PACKAGES: "/opt/packages",
        Path(sys.base_prefix): "/opt/python",
        disk: "/var/lib/octavo/eight",  # the machine's own files are in memory
    }
    with Machine(machine_folder, mounts) as booted:
        # An interpreter that was built elsewhere looks for its library there, and the units hide that directory.
        booted.write("/etc/ld.so.conf.d/python.conf", "/opt/python/lib\n")
        booted.run("ldconfig")
        booted.run(OCTAVO, "deploy", "install")
        yield booted


def prepare(machine: Machine, name: str, port: int, **settings: object) -> str:
    """Prepare a bookie whose settings are the shipped ones but for port and ``settings``; the name of its unit."""
    machine.run(OCTAVO, "deploy", "bookie", name)
    path = f"/etc/octavo/{name}.toml"
    shown = machine.run("cat", path)
    lines = [f"{key} = {value!r}".replace("'", '"') for key, value in {"port": port, **settings}.items()]
    machine.write(path, "\n".join([*lines, shown]))
    return f"octavo-bookie@{name}"


def test_a_bookie_with_the_shipped_settings_starts_serves_and_stops_confined(machine: Machine) -> None:
    unit = prepare(machine, "one", 3181)
    machine.start(unit)
    as_octavo, metadata = AS_OCTAVO.split(), METADATA.split()
    options = [*metadata, "-E", 1, "-W", 1, "-A", 1]
    added = machine.run(*as_octavo, "ledger", "append", "--quiet", *options, stdin="kept\n" * 1000)
    machine.run("systemctl", "restart", unit)
    read = machine.run(*as_octavo, "ledger", "read", added.strip(), *metadata)
    assert read == "kept\n" * 1000
    assert exposure(machine, unit) < EXPOSURE_MAX
    owners = machine.run("stat", "-c", "%U %G %a", "/var/lib/octavo", "/var/lib/octavo/one", "/etc/octavo")
    assert owners.split("\n")[:3] == ["octavo octavo 750", "octavo octavo 750", "root octavo 750"]
    machine.run("systemctl", "stop", unit)
    assert machine.property(unit, "ExecMainStatus") == "0", machine.log(unit)
    assert "bookie has stopped" in machine.log(unit)


def test_a_journal_on_another_disk_is_writable_once_the_host_is_prepared_for_it(machine: Machine) -> None:
    unit = prepare(machine, "two", 3182, journal_dir="/srv/fast disk/journal")
    machine.run("systemctl", "start", unit, check=False)
    machine.wait_for(unit, "ActiveState", "activating", "failed")
    machine.run("systemctl", "stop", unit)
    assert "/srv/fast disk" in machine.log(unit)
    machine.run(OCTAVO, "deploy", "bookie", "two")
    machine.start(unit)
    assert machine.run("stat", "-c", "%U", "/srv/fast disk/journal").strip() == "octavo"
    machine.run("systemctl", "stop", unit)


def test_a_bookie_is_not_started_again_after_an_invalid_setting_and_says_which(machine: Machine) -> None:
    unit = prepare(machine, "three", 3183, cache_bytes=-1)
    machine.run("systemctl", "start", unit, check=False)
    machine.wait_for(unit, "ActiveState", "failed")
    assert machine.property(unit, "ExecMainStatus") == "2"
    assert machine.property(unit, "NRestarts") == "0"
    assert "cache_bytes must be a whole number" in machine.log(unit)


def test_the_target_starts_and_stops_every_enabled_bookie(machine: Machine) -> None:
    units = [prepare(machine, name, port) for name, port in [("four", 3184), ("five", 3185)]]
    machine.run("systemctl", "enable", "octavo.target", *units)
    machine.run("systemctl", "start", "octavo.target")
    for unit in units:
        machine.wait_for(unit, "ActiveState", "active")
    machine.run("systemctl", "stop", "octavo.target")
    for unit in units:
        machine.wait_for(unit, "ActiveState", "inactive")


def test_a_reload_takes_over_the_log_level_and_keeps_the_process(machine: Machine) -> None:
    unit = prepare(machine, "six", 3186)
    machine.start(unit)
    assert machine.property(unit, "WatchdogUSec") == "30s"
    process = machine.property(unit, "MainPID")
    shown = machine.run("cat", "/etc/octavo/six.toml")
    machine.write("/etc/octavo/six.toml", f'log_level = "debug"\ncache_bytes = 33554432\n{shown}')
    machine.run("systemctl", "reload", unit)
    machine.wait_for_log(unit, "configuration reloaded")
    assert '"restart_needed_for": ["cache_bytes"]' in machine.log(unit)
    assert machine.property(unit, "MainPID") == process
    machine.run("systemctl", "stop", unit)


def test_a_bookie_that_hangs_is_ended_and_started_again(machine: Machine) -> None:
    unit = prepare(machine, "seven", 3187, lease_seconds=LEASE_SECONDS)
    machine.write(f"/etc/systemd/system/{unit}.service.d/fast.conf", "[Service]\nWatchdogSec=5\n")
    machine.run("systemctl", "daemon-reload")
    machine.start(unit)
    machine.run("kill", "-STOP", machine.property(unit, "MainPID"))
    # Nothing else ends a process that stands still. On a busy machine, the next one may be too late as well.
    machine.wait_for(unit, "NRestarts", *map(str, range(1, 10)))
    machine.wait_for(unit, "ActiveState", "active")
    machine.run("systemctl", "stop", unit)


def test_a_killed_bookie_is_given_the_time_that_its_replay_takes(machine: Machine) -> None:
    unit = prepare(
        machine,
        "eight",
        3188,
        lease_seconds=LEASE_SECONDS,
        checkpoint_journal_bytes=4 * REPLAY_BYTES + 2**29,
        checkpoint_seconds=3600,
    )
    machine.start(unit)
    append = f"{AS_OCTAVO} ledger append - --quiet --whole-file --chunk 100000 -E 1 -W 1 -A 1 {METADATA}"
    added = machine.run("bash", "-c", f"head -c {REPLAY_BYTES} /dev/zero | {append}", seconds_max=REPLAY_SECONDS_MAX)
    added = added.strip()
    if REPLAY_BYTES >= 1_000_000_000:
        # The replay takes longer: what the bookie asks for by itself keeps systemd from ending it.
        machine.write(f"/etc/systemd/system/{unit}.service.d/hasty.conf", "[Service]\nTimeoutStartSec=4\n")
        machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "kill", "--signal=KILL", unit)
    machine.wait_for(unit, "NRestarts", "1")
    machine.wait_for(unit, "ActiveState", "active")
    replayed = re.findall(r'"records": (\d+), .*"journal replayed"', machine.log(unit))
    assert int(replayed[-1]) >= REPLAY_BYTES // 1_000_000  # several entries arrive in one record
    read = f"{AS_OCTAVO} ledger read {added} {METADATA}"
    machine.run(
        "bash",
        "-c",
        f"set -o pipefail; {read} | cmp - <(head -c {REPLAY_BYTES} /dev/zero)",
        seconds_max=REPLAY_SECONDS_MAX,
    )
    machine.run("systemctl", "stop", unit)


def test_the_console_is_a_service_that_gives_data_to_those_with_the_token(machine: Machine) -> None:
    machine.start(prepare(machine, "ten", 3180))
    machine.run("systemctl", "start", "octavo-console", check=False)
    assert machine.property("octavo-console", "ActiveState") != "active"  # there is no token yet
    machine.write("/etc/octavo/console.env", "OCTAVO_METADATA=sqlite:////var/lib/octavo/metadata.db\n")
    machine.write("/etc/octavo/console.token", "a-token-of-the-operator\n")
    machine.run("bash", "-c", "chgrp octavo /etc/octavo/console.* && chmod 640 /etc/octavo/console.*")
    machine.start("octavo-console")
    machine.wait_for_log("octavo-console", "http://127.0.0.1:3190/ with the token in")
    ask = (
        "import sys, urllib.request as r; print(r.urlopen(r.Request(*sys.argv[1:], headers={'Authorization': 'Bearer '"
    )
    ask += " + open('/etc/octavo/console.token').read().strip()})).read().decode())"
    answer = machine.run("/opt/octavo/bin/python", "-P", "-c", ask, "http://127.0.0.1:3190/api/state")
    assert '"can_be_switched": true' in answer  # the console's sandbox lets it reach the bookie's socket
    assert exposure(machine, "octavo-console") < EXPOSURE_MAX
    machine.run("systemctl", "stop", "octavo-console", "octavo-bookie@ten")
    assert machine.property("octavo-console", "ActiveState") == "inactive"


def test_a_gateway_is_a_service_that_says_when_it_serves_and_is_confined(machine: Machine) -> None:
    machine.start(prepare(machine, "eleven", 3179))
    unit = "octavo-gateway@one"
    machine.run("systemctl", "start", unit, check=False)
    assert machine.property(unit, "ActiveState") != "active"  # it has no settings yet
    options = "--listen 127.0.0.1:9092 --admin-listen 127.0.0.1:9180 --write-quorum 1 --ack-quorum 1"
    settings = f"OCTAVO_METADATA=sqlite:////var/lib/octavo/metadata.db\nOCTAVO_GATEWAY_OPTIONS={options}\n"
    machine.write("/etc/octavo-gateway/one.env", settings)
    drop_in = "[Service]\nUser=octavo\nGroup=octavo\nStateDirectory=octavo\n"
    machine.write(f"/etc/systemd/system/{unit}.service.d/embedded-metadata.conf", drop_in)
    machine.run("systemctl", "daemon-reload")
    machine.start(unit)
    assert machine.property(unit, "WatchdogUSec") == "30s"
    ask = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())"
    metrics = machine.run("/opt/octavo/bin/python", "-P", "-c", ask, "http://127.0.0.1:9180/metrics")
    assert "\noctavo_gateway_serves 1\n" in metrics
    assert exposure(machine, unit) < EXPOSURE_MAX
    machine.run("systemctl", "kill", "--signal=KILL", unit)
    machine.wait_for(unit, "NRestarts", "1")
    machine.wait_for(unit, "ActiveState", "active")
    machine.run("systemctl", "stop", unit, "octavo-bookie@eleven")
    assert machine.property(unit, "ActiveState") == "inactive"


def exposure(machine: Machine, unit: str) -> float:
    """systemd's rating of a unit."""
    rated = machine.run("systemd-analyze", "security", "--no-pager", unit)
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", rated)
    assert found is not None, rated
    return float(found[1])
