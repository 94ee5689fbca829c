"""Builds what one installs without pip: ``build_packages.py deb|pyz OUT``.

Both contain Octavo's wheel and the packages that it needs, as they are installed in this environment; nothing is
downloaded. Some of these are compiled for one version of Python and one architecture, so the results are, too.

* ``deb``: a Debian package. Octavo is in /opt/octavo, its units in /usr/lib/systemd/system, the command in /usr/bin.
* ``pyz``: one executable file with everything in it, made by shiv. It unpacks itself at its first run.
"""

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from build_wheel import ROOT, unpack_wheel
from octavo._version import __version__
from packaging.requirements import Requirement

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
NEXT_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor + 1}"

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""The kernel's names and Debian's."""

COMMAND = f"""#!/opt/octavo/bin/python -P
import sys
sys.path.insert(0, "/opt/octavo/lib/{PYTHON}/site-packages")
from octavo.cli.main import main
sys.exit(main())
"""

CONTROL = """Package: octavo
Version: {version}
Architecture: {architecture}
Maintainer: Octavo <octavo@localhost>
Installed-Size: {kibibytes}
Depends: python3 (>= {python}), python3 (<< {next_python}), systemd
Section: database
Priority: optional
Description: replicated, append-only log store
 Octavo stores endless logs of entries on several servers, called bookies. This
 package contains the servers, the command line and the client for Python.
"""

POSTINST = """#!/bin/sh
set -e
if [ "$1" = configure ]; then
    systemd-sysusers octavo.conf
    systemd-tmpfiles --create octavo.conf
    if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
fi
"""

PRERM = """#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl stop octavo.target 'octavo-bookie@*.service' 'octavo-gateway@*.service' octavo-console.service
fi
"""

POSTRM = """#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
# Python has left compiled modules beside those of the package.
if [ "$1" = remove ]; then rm -rf /opt/octavo; fi
if [ "$1" = purge ]; then
    for link in /etc/systemd/system/*.wants/octavo-bookie@*.service /etc/systemd/system/*.wants/octavo.target \
        /etc/systemd/system/*.wants/octavo-console.service /etc/systemd/system/*.wants/octavo-gateway@*.service; do
        if [ -L "$link" ]; then rm -f "$link"; fi
    done
    # Enabling the first bookie has made this directory. What an administrator has put into it stays.
    rmdir --ignore-fail-on-non-empty /etc/systemd/system/octavo.target.wants 2>/dev/null || true
    if [ -d /var/lib/octavo ] && [ -n "$(ls -A /var/lib/octavo)" ]; then
        echo "octavo: the entries in /var/lib/octavo and the settings in /etc/octavo stay; remove them yourself" >&2
    else
        rm -rf /var/lib/octavo /etc/octavo /etc/octavo-gateway
    fi
fi
"""

PLACES = {
    "octavo-bookie@.service": "usr/lib/systemd/system/octavo-bookie@.service",
    "octavo-console.service": "usr/lib/systemd/system/octavo-console.service",
    "octavo-gateway@.service": "usr/lib/systemd/system/octavo-gateway@.service",
    "octavo.target": "usr/lib/systemd/system/octavo.target",
    "octavo.sysusers": "usr/lib/sysusers.d/octavo.conf",
    "octavo.tmpfiles": "usr/lib/tmpfiles.d/octavo.conf",
    "bookie.toml": "usr/share/doc/octavo/examples/bookie.toml",
}
"""Where the package has the files of deploy/."""


def needed(name: str, seen: set[str], extra: str = "") -> Iterator[Distribution]:
    """The distributions that ``name``, with this extra, needs here, without itself."""
    for line in distribution(name).requires or []:
        requirement = Requirement(line)
        key = requirement.name.lower()
        if key in seen or (requirement.marker is not None and not requirement.marker.evaluate({"extra": extra})):
            continue
        seen.add(key)
        yield distribution(requirement.name)
        yield from needed(requirement.name, seen)


def collect(folder: Path) -> None:
    """Put Octavo, with the gateway, and what it needs into ``folder``, as an installation would."""
    unpack_wheel(folder)
    for found in needed("octavo", set(), "kafka"):
        for path in found.files or []:
            source = Path(str(found.locate_file(path)))
            if ".." in path.parts or "__pycache__" in path.parts or not source.is_file():
                continue
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def build_deb(out: Path) -> Path:
    """The Debian package, in the folder ``out``. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="octavo-deb-") as folder:
        root = Path(folder) / "root"
        site = root / "opt/octavo/lib" / PYTHON / "site-packages"
        collect(site)
        (root / "opt/octavo/bin").mkdir()
        (root / "opt/octavo/bin/python").symlink_to(f"/usr/bin/{PYTHON}")
        command = root / "opt/octavo/bin/octavo"
        command.write_text(COMMAND, encoding="utf-8")
        command.chmod(0o755)
        (root / "usr/bin").mkdir(parents=True)
        (root / "usr/bin/octavo").symlink_to("/opt/octavo/bin/octavo")
        for name, place in PLACES.items():
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / "deploy" / name, root / place)
        shutil.copyfile(ROOT / "LICENSE", root / "usr/share/doc/octavo/copyright")
        size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())
        architecture = ARCHITECTURES.get(platform.machine(), platform.machine())
        control = root / "DEBIAN"
        control.mkdir()
        (control / "control").write_text(
            CONTROL.format(
                version=__version__,
                architecture=architecture,
                kibibytes=-(-size // 1024),
                python=PYTHON.removeprefix("python"),
                next_python=NEXT_PYTHON,
            ),
            encoding="utf-8",
        )
        for name, text in {"postinst": POSTINST, "prerm": PRERM, "postrm": POSTRM}.items():
            (control / name).write_text(text, encoding="utf-8")
            (control / name).chmod(0o755)
        for path in root.rglob("*"):
            if path.is_dir():
                path.chmod(0o755)
        out.mkdir(parents=True, exist_ok=True)
        package = out / f"octavo_{__version__}_{architecture}.deb"
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(root), str(package)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return package


def build_pyz(out: Path) -> Path:
    """The executable file, in the folder ``out``. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="octavo-pyz-") as folder:
        site = Path(folder) / "site"
        collect(site)
        out.mkdir(parents=True, exist_ok=True)
        file = out / "octavo.pyz"
        subprocess.run(
            [sys.executable, "-m", "shiv", "--site-packages", str(site), "--entry-point", "octavo.cli.main:main",
             "--python", f"/usr/bin/env {PYTHON}", "--output-file", str(file)],
            check=True,
        )  # fmt: skip
    return file


def main() -> int:
    parser = argparse.ArgumentParser(description="Build packages that need no pip.")
    parser.add_argument("kind", choices=["deb", "pyz"])
    parser.add_argument("out", type=Path, help="folder for the result")
    arguments = parser.parse_args()
    print(build_deb(arguments.out) if arguments.kind == "deb" else build_pyz(arguments.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
