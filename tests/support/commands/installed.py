"""Octavo installed from a wheel, apart from the tree: a virtual environment whose code is the wheel's alone."""

import subprocess
import sys
from pathlib import Path

from support.tree import ROOT

PACKAGES = next(
    path for path in map(Path, sys.path) if path.name == "site-packages" and path.is_relative_to(sys.prefix)
)
"""Where this interpreter has the packages that Octavo depends on."""


def unpack_wheel(folder: Path, *, tree: Path = ROOT) -> Path:
    """The unpacked wheel of a tree, in ``folder``. The tree's own script builds it."""
    command = [sys.executable, "scripts/artifacts/build_wheel.py", "--unpack", str(folder)]
    subprocess.run(command, cwd=tree, check=True, stdout=subprocess.DEVNULL)
    return folder


def archived_tree(folder: Path, commit: str) -> Path:
    """The sources of an earlier commit of this repository, in ``folder``."""
    folder.mkdir()
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "--extract", "--directory", str(folder)], input=archive, check=True)
    return folder


def make_environment(
    folder: Path, wheel: Path, *, python: Path = Path(sys.base_prefix), packages: Path = PACKAGES
) -> Path:
    """A virtual environment in ``folder`` whose Octavo is the unpacked ``wheel``; the path of its ``octavo``.

    Dependencies are those in ``packages``; an editable Octavo there has no effect, because it is not a site directory
    of this environment. The environment may be used where ``python``, ``wheel`` and ``packages`` are mounted, so none
    of the paths has to exist here.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    site.mkdir(parents=True)
    (site / "octavo.pth").write_text(f"{wheel}\n{packages}\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(python / "bin" / version)
    (folder / "pyvenv.cfg").write_text(f"home = {python / 'bin'}\ninclude-system-site-packages = false\n")
    command = folder / "bin" / "octavo"
    command.write_text(f"#!{folder}/bin/python -P\nimport sys\nfrom octavo.cli.main import main\nsys.exit(main())\n")
    command.chmod(0o755)
    return command
