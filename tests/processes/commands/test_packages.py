"""Packages that need no pip: the Debian package in a machine of its own, and the executable file."""

import subprocess
import sys
from pathlib import Path

import build_packages
from octavo._version import __version__
from support.commands.processes import environment
from support.systemd import Machine
from support.waiting import WAIT_SECONDS


def test_the_debian_package_installs_runs_a_bookie_and_goes_without_taking_data_along(tmp_path: Path) -> None:
    package = build_packages.build_deb(tmp_path / "out")
    folder = tmp_path / "machine"
    folder.mkdir()
    with Machine(folder, {package.parent: "/opt/packages", Path(sys.base_prefix): "/opt/python"}) as machine:
        # The machine has the files of this host, whose Python may be another than the package is for.
        machine.write("/etc/ld.so.conf.d/python.conf", "/opt/python/lib\n")
        machine.run("ldconfig")
        machine.run("ln", "-sfn", f"/opt/python/bin/{build_packages.PYTHON}", f"/usr/bin/{build_packages.PYTHON}")
        machine.run("dpkg", "--force-depends", "--install", f"/opt/packages/{package.name}")
        assert machine.run("octavo", "--version").strip() == f"octavo {__version__}"
        machine.run("octavo", "deploy", "bookie", "one")
        machine.start("octavo-bookie@one")
        machine.run("systemctl", "enable", "octavo-bookie@one")
        assert machine.property("octavo-bookie@one", "FragmentPath").startswith(("/usr/lib/", "/lib/"))
        purged = machine.run("dpkg", "--purge", "octavo")
        assert machine.property("octavo-bookie@one", "ActiveState") == "inactive"
        assert "/var/lib/octavo" in purged
        assert machine.run("ls", "/var/lib/octavo/one/cookie").strip() == "/var/lib/octavo/one/cookie"
        gone = machine.run("find", "/opt/octavo", "/usr/bin/octavo", check=False)
        assert gone.count("No such file") == 2, gone
        assert machine.run("find", "/etc/systemd/system", "-name", "octavo*") == ""
        machine.run("dpkg", "--force-depends", "--install", f"/opt/packages/{package.name}")
        machine.start("octavo-bookie@one")


def test_the_executable_file_runs_anywhere(tmp_path: Path) -> None:
    file = build_packages.build_pyz(tmp_path / "out")
    done = subprocess.run(
        [sys.executable, file, "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment(SHIV_ROOT=str(tmp_path / "unpacked")),
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"octavo {__version__}\n", "")
