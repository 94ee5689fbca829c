"""Run mypy, strict, over the packages as installed, the tests, the scripts and the examples.

In the tree each module has two paths, its own and the one through the link in src/octavo (docs/decisions/001), and mypy
refuses that. So the wheel is unpacked into a scratch folder, mypy runs inside it, and the paths in its messages are
turned back into those of the tree. The scratch folder also keeps mypy's cache, which makes repeats quick.
"""

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "artifacts"))

from build_wheel import ROOT, package_folders, unpack_wheel

SCRATCH = ROOT / ".check"
SITE = SCRATCH / "site"
SOURCES = ("tests", "scripts", "examples")
SCRIPTS = (ROOT / "scripts" / "artifacts", ROOT / "scripts" / "measure")
"""Their modules are imported by their bare names, as those of scripts/ are."""


def tree_paths(output: str) -> str:
    """mypy's output with the paths of the unpacked wheel replaced by those of the tree, which an editor can open."""
    for package, folder in sorted(package_folders().items(), reverse=True):
        output = re.sub(rf"^{re.escape(package.replace('.', '/'))}/", f"{folder}/", output, flags=re.MULTILINE)
    return re.sub(r"^(\.\./)+", "", output, flags=re.MULTILINE)


def run_mypy(*arguments: str) -> bool:
    """Run mypy inside the unpacked wheel, print what it says; whether it found nothing wrong."""
    # The current folder comes first in mypy's search: from the root of the tree it would find `bookie` and not
    # `octavo.bookie`.
    search = [str(SITE), *(str(ROOT / source) for source in SOURCES), *(str(folder) for folder in SCRIPTS)]
    mypy = subprocess.run(
        [
            *(sys.executable, "-m", "mypy"),
            *("--config-file", str(ROOT / "pyproject.toml")),
            *("--cache-dir", str(SCRATCH / "mypy_cache")),
            *arguments,
        ],
        cwd=SITE,
        env=os.environ | {"MYPYPATH": os.pathsep.join(search)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(tree_paths(mypy.stdout), end="", flush=True)
    return mypy.returncode == 0


def main() -> int:
    SCRATCH.mkdir(exist_ok=True)
    with (SCRATCH / "types.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            unpack_wheel(SITE)
        except RuntimeError as error:
            print(f"check_types: {error}", file=sys.stderr)
            return 1
        sources = [os.path.relpath(ROOT / source, SITE) for source in SOURCES]
        results = [run_mypy("-p", "octavo"), run_mypy(*sources)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
