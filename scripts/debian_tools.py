"""Unpacks Debian packages for the tests, without installing them: ``debian_tools.py fetch [TOOL...]``.

The tests check the alert rules and the metrics with Prometheus's own tools, the console in a real browser, the Compose
file with the schema of docker-compose, and the gateway with kcat. A program that is on the PATH is used as it is.
Otherwise its package, and what it depends on and the host lacks, is downloaded by apt-get and unpacked below
.check/tools, which needs no root and starts no service.
"""

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

TOOLS = ROOT / ".check" / "tools"


class Tool(NamedTuple):
    """The parts of some packages that tests need."""

    packages: tuple[str, ...]
    programs: dict[str, str]
    """Program, or file -> its path below the folder into which the packages are unpacked."""
    needs_libraries: bool = False
    """Whether it depends on shared libraries that a host may lack."""


TOOLS_NEEDED = {
    "prometheus": Tool(("prometheus",), {"promtool": "usr/bin/promtool", "prometheus": "usr/bin/prometheus"}),
    "chromium": Tool(
        ("chromium", "chromium-driver", "fonts-dejavu-core"),
        # /usr/bin/chromium is a script that looks for its files in /usr/lib.
        {"chromium": "usr/lib/chromium/chromium", "chromedriver": "usr/bin/chromedriver"},
        needs_libraries=True,
    ),
    "docker-compose": Tool(
        ("docker-compose",), {"compose_spec.json": "usr/lib/python3/dist-packages/compose/config/compose_spec.json"}
    ),
    "kcat": Tool(("kcat",), {"kcat": "usr/bin/kcat"}, needs_libraries=True),
}
"""Tool -> what it consists of."""


class ToolsError(Exception):
    """A package cannot be had. Its text says why, and what to do."""


def program(name: str) -> Path:
    """The path of a program, fetched if need be. Raises :class:`ToolsError`."""
    installed = shutil.which(name)
    if installed is not None:
        return Path(installed)
    tool = next(tool for tool, needed in TOOLS_NEEDED.items() if name in needed.programs)
    path = TOOLS / tool / TOOLS_NEEDED[tool].programs[name]
    if not path.exists():
        fetch(tool)
    return path


def library_path(name: str) -> str:
    """The value of LD_LIBRARY_PATH with which an unpacked program, fetched if need be, finds its libraries; empty if it
    is installed. Raises :class:`ToolsError`."""
    if shutil.which(name) is not None:
        return ""
    program(name)  # its libraries come with it
    tool = next(tool for tool, needed in TOOLS_NEEDED.items() if name in needed.programs)
    folders = sorted((TOOLS / tool / "usr" / "lib").glob("*-linux-gnu*"))
    # Some libraries look for companions in a folder of their own, by an absolute path that is not there.
    folders += sorted({library.parent for folder in folders for library in folder.glob("*/lib*.so*")})
    return os.pathsep.join(map(str, folders))


def fetch(tool: str) -> None:
    """Download and unpack a tool. Several processes may do so at once: the first one does, the others wait."""
    TOOLS.mkdir(parents=True, exist_ok=True)
    with (TOOLS / f"{tool}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (TOOLS / tool).exists():
            return
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            missing = ", ".join(TOOLS_NEEDED[tool].programs)
            raise ToolsError(f"{tool} is missing, and this is no Debian: install {missing}")
        with tempfile.TemporaryDirectory(dir=TOOLS) as folder:
            here, unpacked = Path(folder), Path(folder) / "unpacked"
            _run("apt-get", "download", "-qq", *_packages(TOOLS_NEEDED[tool], here), cwd=here, tool=tool)
            for archive in sorted(here.glob("*.deb")):
                _run("dpkg-deb", "--extract", str(archive), str(unpacked), cwd=here, tool=tool)
            unpacked.rename(TOOLS / tool)


def _packages(tool: Tool, folder: Path) -> list[str]:
    """The packages to unpack: the tool's own, and those that it depends on and that are not installed."""
    if not tool.needs_libraries:
        return list(tool.packages)
    planned = _run(
        "apt-get", "install", "--simulate", "--no-install-recommends", *tool.packages, cwd=folder, tool=tool.packages[0]
    )
    missing = [line.split()[1] for line in planned.splitlines() if line.startswith("Inst ")]
    return sorted({*tool.packages, *missing})


def _run(*arguments: str, cwd: Path, tool: str) -> str:
    done = subprocess.run(arguments, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolsError(
            f"{tool} cannot be fetched: `{' '.join(arguments)}` failed: {done.stderr.strip() or done.returncode}. Run"
            f" `apt-get update`, or install {tool}"
        )
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description="Unpack the Debian packages that tests need.")
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="fetch tools unless their programs are there")
    fetching.add_argument("tools", nargs="*", default=sorted(TOOLS_NEEDED), help="default: all")
    arguments = parser.parse_args()
    unknown = set(arguments.tools) - TOOLS_NEEDED.keys()
    if unknown:
        parser.error(f"no test needs {', '.join(sorted(unknown))}; there are {', '.join(sorted(TOOLS_NEEDED))}")
    try:
        for tool in arguments.tools:
            for name in TOOLS_NEEDED[tool].programs:
                print(f"{name}: {os.path.relpath(program(name))}")
    except ToolsError as error:
        print(f"debian_tools: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
