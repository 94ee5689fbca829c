"""Mutation testing: put defects into Octavo's source, one at a time, and see that tests notice (docs/mutations.md).

    python scripts/mutate.py                          every mutation of the catalogue, against its narrowest tests
    python scripts/mutate.py --only pipeline          those whose name or file contains the text
    python scripts/mutate.py --universes 50           run the survivors against simulated universes 1 to 50, too
    python scripts/mutate.py --record FILE            a campaign over days: go on where FILE ends
    python scripts/mutate.py --survivors FILE         run again what survived according to FILE
    python scripts/mutate.py --minutes 60             stop after that time
    python scripts/mutate.py --list                   list the catalogue

The catalogue is in scripts/mutations/*.toml. Each entry replaces a text that occurs exactly once in its file, and says
why the result does harm. Mutations are made in a scratch copy of the tree, which is made once and is the only tree that
a run reads: the tree itself is never changed, and changes of it while a run goes on decide nothing.

Each result is appended to a record with the commit that it was run on. A second start runs only mutations that are new
or have changed, or whose file has changed, and those that survived or were left out: a test may notice them now. With
--record FILE a second start goes on: it leaves everything alone that FILE has a verdict on, also when the source has
changed since.

The exit status is 0 only if every mutation is noticed or argued in docs/mutations.md.
"""

import argparse
import contextlib
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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
CATALOGUE = ROOT / "scripts" / "mutations"
DOCUMENT = ROOT / "docs" / "mutations.md"
RECORD = ROOT / ".check" / "mutations.jsonl"

TIMEOUT_FACTOR = 6
"""A run that takes this many times as long as without the mutation hangs."""
TIMEOUT_SECONDS_MIN = 90.0

NOTICED, SURVIVED, LEFT_OUT = "noticed", "survived", "left out"
"""LEFT_OUT: nothing is known about the mutation. It does not fit the source, or its tests fail without it."""


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
        """The mutated source. Raises ValueError unless ``old`` occurs exactly once, and for a result that is the same
        or does not compile: every test would pass, or fail, whatever it checks."""
        count = source.count(self.old)
        if count != 1:
            raise ValueError(f"{self.name}: the old text occurs {count} times in {self.path}, not once")
        mutated = source.replace(self.old, self.new)
        if mutated == source:
            raise ValueError(f"{self.name} changes nothing in {self.path}")
        try:
            compile(mutated, self.path, "exec")
        except SyntaxError as error:
            raise ValueError(f"{self.name}: {self.path} does not compile with the new text: {error}") from error
        return mutated

    def digest(self, source: str) -> str:
        """Changes when the mutation or the mutated file changes."""
        return hashlib.sha256(json.dumps([asdict(self), source]).encode()).hexdigest()[:16]

    @property
    def entry(self) -> str:
        """Changes when the entry of the catalogue changes."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Result:
    """The outcome for one mutation."""

    name: str
    digest: str
    outcome: str
    by: str
    """What noticed it: the first failing test, "hangs", or the range of universes; or why it was left out."""
    seconds: float
    entry: str = ""
    commit: str = "unknown"
    """The commit of the tree that was copied."""

    @property
    def is_verdict(self) -> bool:
        """Whether it says something about the mutation."""
        return self.outcome in (NOTICED, SURVIVED)


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


@contextlib.contextmanager
def interrupts_held() -> Iterator[Callable[[], None]]:
    """Hold Ctrl-C back inside the block, until the function that the block gets is called."""
    held: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))

    def deliver() -> None:
        signal.signal(signal.SIGINT, before)
        if held and callable(before):
            before(*held.pop())

    try:
        yield deliver
    finally:
        deliver()


class Scratch:
    """A copy of the tree in which mutations are made."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.tree = folder / "tree"
        files = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root, check=True, capture_output=True, text=True,
        ).stdout.split("\0")  # fmt: skip
        for name in filter(None, files):
            if (root / name).exists():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.tree / name, follow_symlinks=False)
        # This path comes before the editable install, in subprocesses of the tests as well.
        self.environment = {**os.environ, "PYTHONPATH": str(self.tree / "src"), "TMPDIR": str(folder)}
        self._changes = 0
        found = subprocess.run(
            [sys.executable, "-c", "import octavo.protocol.errors as module; print(module.__file__)"],
            cwd=folder, env=self.environment, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        if not Path(found.strip()).is_relative_to(self.tree):
            raise RuntimeError(f"the scratch copy is not what Python imports, but {found.strip()}")

    def read(self, path: str) -> str:
        """A file of the copy. Raises :class:`FileNotFoundError`."""
        return (self.tree / path).read_text(encoding="utf-8")

    def write(self, path: str, source: str) -> None:
        """Replace a file. Its time differs every time, so that no compiled file of an earlier content is used."""
        self._changes += 1
        (self.tree / path).write_text(source, encoding="utf-8")
        at = time.time() + 2 * self._changes
        os.utime(self.tree / path, (at, at))

    def run(self, arguments: Sequence[str], timeout_seconds: float) -> tuple[int | None, str]:
        """Exit status (None: it hangs) and output of a command in the tree."""
        with interrupts_held() as deliver:  # one between the start and the `try` would leave the process behind
            process = subprocess.Popen(
                arguments, cwd=self.tree, env=self.environment, text=True, start_new_session=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                deliver()
                output, _ = process.communicate(timeout=timeout_seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
                return None, output
            except BaseException:  # an interrupted run leaves no process behind: it is in a session of its own
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                raise
            return process.returncode, output

    def test(self, tests: Sequence[str], timeout_seconds: float) -> tuple[int | None, str]:
        """Run tests until the first failure."""
        pytest = [
            str(Path(sys.executable).with_name("pytest")),
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:octavo",
            *tests,
        ]
        return self.run(pytest, timeout_seconds)


class BrokenRunError(Exception):
    """A run says nothing about its mutation."""


class Runner:
    """Runs mutations in one scratch tree."""

    def __init__(self, scratch: Scratch, universes: int, commit: str) -> None:
        self._scratch = scratch
        self._universes = universes
        self._commit = commit
        self._baselines: dict[tuple[str, ...], float] = {}

    def run(self, mutation: Mutation) -> Result:
        """Apply a mutation, run its tests, and take it back. Raises :class:`BrokenRunError`."""
        try:
            source = self._scratch.read(mutation.path)
            mutated = mutation.applied_to(source)
        except (OSError, ValueError) as error:
            raise BrokenRunError(str(error)) from error
        limit = max(TIMEOUT_SECONDS_MIN, TIMEOUT_FACTOR * self._baseline(mutation.tests))
        started = time.perf_counter()
        self._scratch.write(mutation.path, mutated)
        try:
            outcome, by = judged(*self._scratch.test(mutation.tests, limit))
            if outcome == SURVIVED and self._universes:
                outcome, by = judged_by_universes(
                    *self._scratch.run(
                        [sys.executable, "scripts/simulate.py", f"1-{self._universes}"],
                        TIMEOUT_SECONDS_MIN + 30 * self._universes,
                    )
                )
        finally:
            self._scratch.write(mutation.path, source)
        seconds = round(time.perf_counter() - started, 1)
        return Result(mutation.name, mutation.digest(source), outcome, by, seconds, mutation.entry, self._commit)

    def _baseline(self, tests: tuple[str, ...]) -> float:
        """Seconds that the tests take without a mutation. Raises :class:`BrokenRunError` if they fail."""
        if tests not in self._baselines:
            started = time.perf_counter()
            status, output = self._scratch.test(tests, 1800)
            if status != 0:
                raise BrokenRunError(f"without a mutation, {' '.join(tests)} fails:\n{output[-3000:]}")
            self._baselines[tests] = time.perf_counter() - started
        return self._baselines[tests]


def judged(status: int | None, output: str) -> tuple[str, str]:
    """The outcome of a run of pytest, and what noticed. Raises :class:`BrokenRunError` for a run that ran no test."""
    if status is None:
        return NOTICED, "hangs"
    if status == 0:
        return SURVIVED, ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    if status == 1 and failed:
        return NOTICED, failed[1]
    raise BrokenRunError(f"pytest ended with status {status}:\n{output[-3000:]}")


def judged_by_universes(status: int | None, output: str) -> tuple[str, str]:
    """The outcome of a run of universes. Raises :class:`BrokenRunError` if it ended without a verdict."""
    if status is None:
        return NOTICED, "universes hang"
    if status == 0:
        return SURVIVED, ""
    failed = re.search(r"^seed (\d+) failed", output, re.MULTILINE)
    if status == 1 and failed:
        return NOTICED, f"universe {failed[1]}"
    raise BrokenRunError(f"the universes ended with status {status}:\n{output[-3000:]}")


def recorded(path: Path) -> dict[str, Result]:
    """The latest verdict on each mutation in a record; where there is none, why it was left out. Raises ValueError for
    a line that is no result."""
    results: dict[str, Result] = {}
    known = {known.name for known in fields(Result)}
    if not path.exists():
        return results
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            result = Result(**{name: value for name, value in json.loads(line).items() if name in known})
        except (ValueError, TypeError, AttributeError):
            raise ValueError(f"{path}, line {number}: not a result of a mutation; remove the line") from None
        before = results.get(result.name)
        if result.is_verdict or before is None or not before.is_verdict:
            results[result.name] = result
    return results


def chosen(mutations: Sequence[Mutation], text: str) -> Iterator[Mutation]:
    """The mutations whose name or file contains the text."""
    return (mutation for mutation in mutations if text in mutation.name or text in mutation.path)


def survivors(mutations: Sequence[Mutation], known: Mapping[str, Result]) -> list[Mutation]:
    """The mutations that survived according to a record."""
    return [one for one in mutations if one.name in known and known[one.name].outcome == SURVIVED]


def is_known(mutation: Mutation, result: Result | None, source: str | None) -> bool:
    """Whether a result makes a run needless. ``source``: the mutated file as it is; None: in a campaign, a verdict
    stands although the source has changed since."""
    if result is None or not result.is_verdict:
        return False
    if source is None:
        return result.entry == mutation.entry
    return result.outcome == NOTICED and result.digest == mutation.digest(source)


def summary(results: Sequence[Result], argued: set[str], left: int) -> tuple[list[str], int]:
    """The lines of the summary, and the exit status. ``left``: number of mutations that were not come to."""
    survived = [result.name for result in results if result.outcome == SURVIVED]
    unargued = [name for name in survived if name not in argued]
    left_out = [result.name for result in results if not result.is_verdict]
    noticed = len(results) - len(survived) - len(left_out)
    lines = [f"{noticed} of {len(results)} mutations noticed ({100 * noticed / max(len(results), 1):.1f} %)"]
    if survived:
        lines.append(f"survived: {', '.join(survived)}")
    if unargued:
        lines.append(f"survived and not argued in {DOCUMENT.relative_to(ROOT)}: {', '.join(unargued)}")
    if left_out:
        lines.append(f"left out, see above: {', '.join(left_out)}")
    by_commit = Counter(result.commit for result in results if result.is_verdict)
    lines += [f"{number:5} verdicts by commit {commit}" for commit, number in by_commit.items()]
    if left:
        lines.append(f"{left} mutations are left: start again with the same record")
    return lines, 1 if unargued or left_out or left else 0


def commit_of_the_tree() -> str:
    """The commit that is checked out, and whether the tree differs from it."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    return found.stdout.strip() or "unknown"


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Mutation testing of Octavo's source.")
    parser.add_argument("--only", default="", metavar="TEXT", help="only mutations whose name or file contains TEXT")
    parser.add_argument("--list", action="store_true", help="list the catalogue and run nothing")
    parser.add_argument("--universes", type=int, default=0, metavar="N", help="run survivors in universes 1 to N")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="append results to FILE; leave alone what FILE has a verdict on"
    )
    parser.add_argument(
        "--survivors",
        type=Path,
        metavar="FILE",
        help="run again what survived according to FILE (--record: kept there)",
    )
    parser.add_argument("--minutes", type=float, metavar="N", help="begin no mutation after this time")
    parser.add_argument("--again", action="store_true", help="run also what the record has")
    arguments = parser.parse_args()
    if arguments.survivors is not None and not arguments.survivors.exists():
        parser.error(f"there is no record {arguments.survivors}")
    return arguments


def main() -> int:
    """Run the command."""
    arguments = parse()
    mutations = list(chosen(catalogue(), arguments.only))
    if not mutations:
        print(f"mutate: no mutation has {arguments.only!r} in its name or file", file=sys.stderr)
        return 2
    path = arguments.record or arguments.survivors or RECORD
    try:
        known = recorded(path)
        if arguments.survivors is not None:
            mutations = survivors(mutations, recorded(arguments.survivors))
    except ValueError as error:
        print(f"mutate: {error}", file=sys.stderr)
        return 2
    if arguments.list:
        for mutation in mutations:
            print(f"{mutation.name:44} {mutation.path:40} {mutation.harm}")
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="octavo-mutate-") as folder:
        results = run_all(mutations, known, path, Path(folder), arguments)
    lines, status = summary(results, argued(), len(mutations) - len(results))
    print("\n".join(lines))
    return status


def run_all(
    mutations: Sequence[Mutation], known: Mapping[str, Result], path: Path, folder: Path, arguments: argparse.Namespace
) -> list[Result]:
    """Run the mutations on which there is no verdict yet, until the time is over. Results go to the record at once."""
    commit = commit_of_the_tree()
    scratch = Scratch(folder)
    runner = Runner(scratch, arguments.universes, commit)
    deadline = time.monotonic() + 60 * arguments.minutes if arguments.minutes is not None else float("inf")
    again = arguments.again or (arguments.survivors is not None and arguments.record is None)
    results: list[Result] = []
    for number, mutation in enumerate(mutations, start=1):
        result = known.get(mutation.name)
        if again or not is_known(mutation, result, None if arguments.record else source_of(scratch, mutation)):
            if time.monotonic() > deadline:
                continue
            try:
                result = runner.run(mutation)
            except BrokenRunError as error:
                why = str(error).partition("\n")[0]
                result = Result(mutation.name, "", LEFT_OUT, why, 0.0, mutation.entry, commit)
                print(error, file=sys.stderr, flush=True)
            with path.open("a", encoding="utf-8") as record:
                record.write(json.dumps(asdict(result)) + "\n")
            words = f"{result.seconds:7.1f} s  {result.outcome:8}  {mutation.name:44} {result.by}"
            print(f"{number:3}/{len(mutations)} {words}", flush=True)
        assert result is not None
        results.append(result)
    return results


def source_of(scratch: Scratch, mutation: Mutation) -> str:
    """The file of a mutation as it is; empty if there is none."""
    try:
        return scratch.read(mutation.path)
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
