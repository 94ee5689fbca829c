"""Mutation testing: put defects into Octavo's source, one at a time, and see that tests notice (docs/mutations.md).

    python scripts/mutate.py                          every mutation of the catalogue, against its narrowest tests
    python scripts/mutate.py --only pipeline          those whose name or file contains the text
    python scripts/mutate.py --universes 50           run the survivors against simulated universes 1 to 50, too
    python scripts/mutate.py --list                   list the catalogue

The catalogue is in scripts/mutations/*.toml. Each entry replaces a text that occurs exactly once in its file, and says
why the result does harm. Mutations are made in a scratch copy of the tree; the tree itself is never changed. Results
are appended to a record. A second start runs only mutations that are new or have changed, or whose file has changed,
and those that survived or could not be run: a test may notice them now.

The exit status is 0 only if every mutation is noticed or argued in docs/mutations.md.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CATALOGUE = ROOT / "scripts" / "mutations"
DOCUMENT = ROOT / "docs" / "mutations.md"
RECORD = ROOT / ".check" / "mutations.jsonl"

TIMEOUT_FACTOR = 6
"""A run that takes this many times as long as without the mutation hangs."""
TIMEOUT_SECONDS_MIN = 90.0

NOTICED, SURVIVED, BROKEN = "noticed", "survived", "broken"
"""BROKEN: the mutation does not fit the source, or its tests fail without it."""


@dataclass(frozen=True)
class Mutation:
    """One defect: ``old``, which occurs exactly once in ``path``, becomes ``new``."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]
    """The narrowest tests that should notice, as arguments for pytest."""
    harm: str

    def applied_to(self, source: str) -> str:
        """The mutated source. Raises ValueError unless ``old`` occurs exactly once."""
        count = source.count(self.old)
        if count != 1:
            raise ValueError(f"{self.name}: the old text occurs {count} times in {self.path}, not once")
        return source.replace(self.old, self.new)

    def digest(self, source: str) -> str:
        """Changes when the mutation or the mutated file changes."""
        return hashlib.sha256(json.dumps([asdict(self), source]).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Result:
    """The outcome for one mutation."""

    name: str
    digest: str
    outcome: str
    by: str
    """What noticed it: the first failing test, "hangs", or the range of universes."""
    seconds: float


def catalogue() -> list[Mutation]:
    """All mutations, by file. Raises ValueError for an entry without a needed field."""
    found = []
    for path in sorted(CATALOGUE.glob("*.toml")):
        for file in tomllib.loads(path.read_text(encoding="utf-8"))["file"]:
            for entry in file["mutation"]:
                tests = tuple(entry.get("tests", file["tests"]))
                try:
                    found.append(
                        Mutation(entry["name"], file["path"], entry["old"], entry["new"], tests, entry["harm"])
                    )
                except KeyError as error:
                    raise ValueError(f"{path}: an entry of {file['path']} has no {error}") from error
    return found


def argued() -> set[str]:
    """The mutations that docs/mutations.md argues to be harmless: its headings of the third level."""
    return set(re.findall(r"^### `([\w-]+)`$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE))


class Scratch:
    """A copy of the tree in which mutations are made."""

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "tree"
        files = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout.splitlines()  # fmt: skip
        for name in files:
            if (ROOT / name).exists():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name, follow_symlinks=False)
        # This path comes before the editable install, in subprocesses of the tests as well.
        self.environment = {**os.environ, "PYTHONPATH": str(self.tree / "src"), "TMPDIR": str(folder)}
        self._changes = 0
        found = subprocess.run(
            [sys.executable, "-c", "import octavo.protocol.errors as module; print(module.__file__)"],
            cwd=folder, env=self.environment, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        if not Path(found.strip()).is_relative_to(self.tree):
            raise RuntimeError(f"the scratch copy is not what Python imports, but {found.strip()}")

    def write(self, path: str, source: str) -> None:
        """Replace a file. Its time differs every time, so that no compiled file of an earlier content is used."""
        self._changes += 1
        (self.tree / path).write_text(source, encoding="utf-8")
        at = time.time() + 2 * self._changes
        os.utime(self.tree / path, (at, at))

    def run(self, arguments: Sequence[str], timeout_seconds: float) -> tuple[int | None, str]:
        """Exit status (None: it hangs) and output of a command in the tree."""
        process = subprocess.Popen(
            arguments, cwd=self.tree, env=self.environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return None, output
        return process.returncode, output

    def test(self, tests: Sequence[str], timeout_seconds: float) -> tuple[int | None, str]:
        """Run tests until the first failure."""
        pytest = [str(Path(sys.executable).with_name("pytest")), "-q", "-x", "-p", "no:cacheprovider", *tests]
        return self.run(pytest, timeout_seconds)


class BrokenRunError(Exception):
    """A run says nothing about its mutation."""


class Runner:
    """Runs mutations in one scratch tree."""

    def __init__(self, scratch: Scratch, universes: int) -> None:
        self._scratch = scratch
        self._universes = universes
        self._baselines: dict[tuple[str, ...], float] = {}

    def run(self, mutation: Mutation) -> Result:
        """Apply a mutation, run its tests, and take it back. Raises :class:`BrokenRunError`."""
        source = (ROOT / mutation.path).read_text(encoding="utf-8")
        try:
            mutated = mutation.applied_to(source)
        except ValueError as error:
            raise BrokenRunError(str(error)) from error
        limit = max(TIMEOUT_SECONDS_MIN, TIMEOUT_FACTOR * self._baseline(mutation.tests))
        started = time.perf_counter()
        self._scratch.write(mutation.path, mutated)
        try:
            outcome, by = self._judge(*self._scratch.test(mutation.tests, limit))
            if outcome == SURVIVED and self._universes:
                seeds = f"1-{self._universes}"
                status, output = self._scratch.run(
                    [sys.executable, "scripts/simulate.py", seeds], TIMEOUT_SECONDS_MIN + 30 * self._universes
                )
                if status != 0:
                    failed = re.search(r"seed (\d+)", output)
                    outcome, by = NOTICED, f"universe {failed[1]}" if failed else f"universes {seeds}"
        finally:
            self._scratch.write(mutation.path, source)
        return Result(mutation.name, mutation.digest(source), outcome, by, round(time.perf_counter() - started, 1))

    def _judge(self, status: int | None, output: str) -> tuple[str, str]:
        if status is None:
            return NOTICED, "hangs"
        if status == 0:
            return SURVIVED, ""
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        if status == 1 and failed:
            return NOTICED, failed[1]
        raise BrokenRunError(f"pytest ended with status {status}:\n{output[-3000:]}")

    def _baseline(self, tests: tuple[str, ...]) -> float:
        """Seconds that the tests take without a mutation. Raises :class:`BrokenRunError` if they fail."""
        if tests not in self._baselines:
            started = time.perf_counter()
            status, output = self._scratch.test(tests, 1800)
            if status != 0:
                raise BrokenRunError(f"without a mutation, {' '.join(tests)} fails:\n{output[-3000:]}")
            self._baselines[tests] = time.perf_counter() - started
        return self._baselines[tests]


def recorded(path: Path) -> dict[str, Result]:
    """The latest result of each mutation in a record."""
    results: dict[str, Result] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            result = Result(**json.loads(line))
            results[result.name] = result
    return results


def chosen(mutations: Sequence[Mutation], text: str) -> Iterator[Mutation]:
    """The mutations whose name or file contains the text."""
    return (mutation for mutation in mutations if text in mutation.name or text in mutation.path)


def report(results: Sequence[Result]) -> int:
    """Print the summary; the exit status."""
    survivors = [result.name for result in results if result.outcome == SURVIVED]
    unargued = [name for name in survivors if name not in argued()]
    broken = [result.name for result in results if result.outcome == BROKEN]
    noticed = len(results) - len(survivors) - len(broken)
    print(f"{noticed} of {len(results)} mutations noticed ({100 * noticed / max(len(results), 1):.1f} %)")
    if survivors:
        print(f"survived: {', '.join(survivors)}")
    if unargued:
        print(f"survived and not argued in {DOCUMENT.relative_to(ROOT)}: {', '.join(unargued)}")
    if broken:
        print(f"not run, see above: {', '.join(broken)}")
    return 1 if unargued or broken else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutation testing of Octavo's source.")
    parser.add_argument("--only", default="", metavar="TEXT", help="only mutations whose name or file contains TEXT")
    parser.add_argument("--list", action="store_true", help="list the catalogue and run nothing")
    parser.add_argument("--universes", type=int, default=0, metavar="N", help="run survivors in universes 1 to N")
    parser.add_argument("--record", type=Path, default=RECORD, metavar="FILE", help="where results are kept")
    parser.add_argument("--again", action="store_true", help="run also what the record has")
    arguments = parser.parse_args()
    mutations = list(chosen(catalogue(), arguments.only))
    if not mutations:
        print(f"mutate: no mutation has {arguments.only!r} in its name or file", file=sys.stderr)
        return 2
    if arguments.list:
        for mutation in mutations:
            print(f"{mutation.name:44} {mutation.path:40} {mutation.harm}")
        return 0
    known = recorded(arguments.record)
    arguments.record.parent.mkdir(parents=True, exist_ok=True)
    results = []
    with tempfile.TemporaryDirectory(prefix="octavo-mutate-") as folder:
        runner = Runner(Scratch(Path(folder)), arguments.universes)
        for number, mutation in enumerate(mutations, start=1):
            digest = mutation.digest((ROOT / mutation.path).read_text(encoding="utf-8"))
            result = known.get(mutation.name)
            if arguments.again or result is None or result.digest != digest or result.outcome != NOTICED:
                try:
                    result = runner.run(mutation)
                except BrokenRunError as error:
                    result = Result(mutation.name, "", BROKEN, "", 0.0)
                    print(error, file=sys.stderr, flush=True)
                with arguments.record.open("a", encoding="utf-8") as record:
                    record.write(json.dumps(asdict(result)) + "\n")
                words = f"{result.seconds:7.1f} s  {result.outcome:8}  {mutation.name:44} {result.by}"
                print(f"{number:3}/{len(mutations)} {words}", flush=True)
            results.append(result)
    return report(results)


if __name__ == "__main__":
    sys.exit(main())
