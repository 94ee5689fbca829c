"""Unpacks Debian packages for the tests, without installing them: ``debian_tools.py fetch [PACKAGE...]``.

The tests check the alert rules and the metrics with Prometheus's own tools. A program that is on the PATH is used as it
is. Otherwise its package is downloaded by apt-get and unpacked below .check/tools, which needs no root and starts no
service.
"""

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

TOOLS = ROOT / ".check" / "tools"

PACKAGES = {"prometheus": ("promtool", "prometheus")}
"""Package -> its programs in /usr/bin that tests run."""


class ToolsError(Exception):
    """A package cannot be had. Its text says why, and what to do."""


def program(name: str) -> Path:
    """The path of a program, fetched if need be. Raises :class:`ToolsError`."""
    installed = shutil.which(name)
    if installed is not None:
        return Path(installed)
    package = next(package for package, programs in PACKAGES.items() if name in programs)
    path = TOOLS / package / "usr" / "bin" / name
    if not path.exists():
        fetch(package)
    return path


def fetch(package: str) -> None:
    """Download and unpack a package. Several processes may do so at once: the first one does, the others wait."""
    TOOLS.mkdir(parents=True, exist_ok=True)
    with (TOOLS / f"{package}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (TOOLS / package).exists():
            return
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise ToolsError(f"{package} is missing, and this is no Debian: install {', '.join(PACKAGES[package])}")
        with tempfile.TemporaryDirectory(dir=TOOLS) as folder:
            _run("apt-get", "download", "-qq", package, cwd=Path(folder), package=package)
            (archive,) = Path(folder).glob("*.deb")
            unpacked = Path(folder) / "unpacked"
            _run("dpkg-deb", "--extract", str(archive), str(unpacked), cwd=Path(folder), package=package)
            unpacked.rename(TOOLS / package)


def _run(*arguments: str, cwd: Path, package: str) -> None:
    done = subprocess.run(arguments, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolsError(
            f"the package {package} cannot be fetched: `{' '.join(arguments)}` failed: "
            f"{done.stderr.strip() or done.returncode}. Run `apt-get update`, or install {package}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Unpack the Debian packages that tests need.")
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="fetch packages unless their programs are there")
    fetching.add_argument("packages", nargs="*", default=sorted(PACKAGES), help="default: all")
    arguments = parser.parse_args()
    unknown = set(arguments.packages) - PACKAGES.keys()
    if unknown:
        parser.error(f"no test needs {', '.join(sorted(unknown))}; there are {', '.join(sorted(PACKAGES))}")
    try:
        for package in arguments.packages:
            for name in PACKAGES[package]:
                print(f"{name}: {os.path.relpath(program(name))}")
    except ToolsError as error:
        print(f"debian_tools: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
