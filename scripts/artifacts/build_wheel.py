"""Build Octavo's wheel from a clean copy of the tree: ``build_wheel.py OUT [--unpack]``.

setuptools builds inside the source tree and includes what an earlier build left there, so a module that has been
removed since would still be in the wheel. A copy with nothing but the distribution's sources avoids that, and several
builds can run at once. Prints the path of the wheel; with ``--unpack``, OUT gets the files that an installation would
have.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD_INPUTS = ("pyproject.toml", "README.md", "LICENSE")
PACKAGE = Path("src", "octavo")


def package_folders() -> dict[str, str]:
    """Import name of the package, and of each package that it links, to its folder relative to the root of the tree."""
    linked = sorted(path.name for path in (ROOT / PACKAGE).iterdir() if path.is_symlink())
    return {"octavo": str(PACKAGE)} | {f"octavo.{name}": name for name in linked}


def copy_tree(copy: Path) -> None:
    """Copy what the distribution is made from into the existing folder ``copy``."""
    for name in BUILD_INPUTS:
        shutil.copy2(ROOT / name, copy / name)
    leave_out = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*")
    for folder in sorted({Path(folder).parts[0] for folder in package_folders().values()}):
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=leave_out)


def build_wheel(out: Path) -> Path:
    """Build the wheel into the folder ``out`` and return its path. Raises RuntimeError with the build's log."""
    with tempfile.TemporaryDirectory(prefix="octavo-wheel-") as copy:
        copy_tree(Path(copy))
        build = subprocess.run(
            [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), copy],
            capture_output=True,
            text=True,
            check=False,
        )
    if build.returncode != 0:
        raise RuntimeError(f"the wheel could not be built:\n{build.stdout}{build.stderr}")
    (wheel,) = out.glob("*.whl")
    return wheel


def unpack_wheel(target: Path) -> None:
    """Make ``target`` hold the unpacked wheel and nothing else."""
    with tempfile.TemporaryDirectory(prefix="octavo-wheel-") as out, zipfile.ZipFile(build_wheel(Path(out))) as wheel:
        shutil.rmtree(target, ignore_errors=True)
        wheel.extractall(target)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build Octavo's wheel from a clean copy of the tree.")
    parser.add_argument("out", type=Path, help="folder for the wheel, or for its content")
    parser.add_argument("--unpack", action="store_true", help="unpack the wheel into OUT, replacing what is there")
    arguments = parser.parse_args()
    try:
        if arguments.unpack:
            unpack_wheel(arguments.out)
            print(arguments.out)
        else:
            arguments.out.mkdir(parents=True, exist_ok=True)
            print(build_wheel(arguments.out))
    except RuntimeError as error:
        print(f"build_wheel: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
