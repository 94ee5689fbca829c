"""The runner of mutations (scripts/mutate.py): what it reads, what it takes for a notice, and what its record says."""

import dataclasses
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import mutate
import pytest

type Judge = Callable[[int | None, str], tuple[str, str]]


def of(name: str, **changes: str) -> mutate.Mutation:
    """A mutation of the small tree."""
    texts = {"path": "src/octavo/protocol/errors.py", "old": "LIMIT = 3", "new": "LIMIT = 4", "harm": "more than fits"}
    return mutate.Mutation(name=name, tests=("tests/test_limit.py",), **{**texts, **changes})


def result(name: str, outcome: str, *, commit: str = "a", entry: str = "", digest: str = "") -> mutate.Result:
    return mutate.Result(name, digest, outcome, "", 1.0, entry, commit)


@pytest.fixture
def small_tree(tmp_path: Path) -> Path:
    """A repository with a package ``octavo`` that has one limit, and a test of it."""
    root = tmp_path / "root"
    (root / "src/octavo/protocol").mkdir(parents=True)
    (root / "tests").mkdir()
    for name in ("src/octavo/__init__.py", "src/octavo/protocol/__init__.py"):
        (root / name).touch()
    (root / "src/octavo/protocol/errors.py").write_text("LIMIT = 3\nNAME = 'räume'\n")
    test = "from octavo.protocol.errors import LIMIT\n\ndef test_limit() -> None:\n    assert LIMIT == 3\n"
    (root / "tests/test_limit.py").write_text(test)
    (root / "tests/test_größe.py").write_text("def test_size() -> None:\n    assert True\n")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def test_run_reads_the_copy_alone_and_leaves_it_as_it_was(tmp_path: Path, small_tree: Path) -> None:
    """A source that is edited meanwhile may have lost the text, or have the new one: the copy does not follow it."""
    source = small_tree / "src/octavo/protocol/errors.py"
    before = source.read_text()
    runner = mutate.Runner(scratch := mutate.Scratch(tmp_path, small_tree), 0, "c0ffee")
    source.write_text("LIMIT = 4\n")
    noticed = runner.run(of("limit"))
    assert (noticed.outcome, noticed.by) == (mutate.NOTICED, "tests/test_limit.py::test_limit")
    assert (noticed.commit, noticed.digest) == ("c0ffee", of("limit").digest(before))
    survived = runner.run(of("name", old="'räume'", new="'rooms'"))
    assert (survived.outcome, survived.by) == (mutate.SURVIVED, "")
    assert scratch.read("src/octavo/protocol/errors.py") == before
    assert source.read_text() == "LIMIT = 4\n"
    assert (scratch.tree / "tests/test_größe.py").exists(), "git quotes such names"


def test_mutation_that_says_nothing_is_left_out(tmp_path: Path, small_tree: Path) -> None:
    scratch = mutate.Scratch(tmp_path, small_tree)
    runner = mutate.Runner(scratch, 0, "c0ffee")
    for mutation, why in (
        (of("gone", path="src/octavo/moved.py"), "No such file"),
        (of("same", old="3", new="3"), "changes nothing"),
        (of("missing", old="LIMIT = 5"), "occurs 0 times"),
        (of("broken", new="LIMIT ="), "does not compile"),
    ):
        with pytest.raises(mutate.BrokenRunError, match=why):
            runner.run(mutation)
    scratch.write("tests/test_limit.py", "def test_limit() -> None:\n    assert False\n")
    with pytest.raises(mutate.BrokenRunError, match=r"without a mutation, tests/test_limit\.py fails"):
        runner.run(of("limit"))


def test_interrupted_run_leaves_no_process_behind(tmp_path: Path, small_tree: Path) -> None:
    """The command is in a session of its own: a Ctrl-C at the terminal does not reach it."""
    scratch = mutate.Scratch(tmp_path, small_tree)
    pid_file = tmp_path / "pid"

    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            scratch.run(["sh", "-c", f"echo $$ > {pid_file}; kill -INT $PPID; exec sleep 600"], 600)
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


@pytest.mark.parametrize(
    ("status", "output", "outcome"),
    [
        (0, "3 passed", (mutate.SURVIVED, "")),
        (None, "", (mutate.NOTICED, "hangs")),
        (1, "FAILED tests/a.py::test_b - AssertionError\n1 failed", (mutate.NOTICED, "tests/a.py::test_b")),
        (1, "ERROR tests/a.py::test_b - OSError\n1 error", (mutate.NOTICED, "tests/a.py::test_b")),
    ],
)
def test_outcome_of_pytest(status: int | None, output: str, outcome: tuple[str, str]) -> None:
    assert mutate.judged(status, output) == outcome


@pytest.mark.parametrize(
    ("status", "output", "outcome"),
    [
        (0, "50 seeds in 9 s", (mutate.SURVIVED, "")),
        (None, "", (mutate.NOTICED, "universes hang")),
        (1, "12 seeds, 1 failed\nseed 7 failed: Violation I1: lost", (mutate.NOTICED, "universe 7")),
    ],
)
def test_outcome_of_universes(status: int | None, output: str, outcome: tuple[str, str]) -> None:
    assert mutate.judged_by_universes(status, output) == outcome


@pytest.mark.parametrize("judge", [mutate.judged, mutate.judged_by_universes])
@pytest.mark.parametrize(("status", "output"), [(2, "ERROR tests/a.py"), (1, "ImportError"), (-9, "")])
def test_run_without_a_verdict_is_no_notice(judge: Judge, status: int, output: str) -> None:
    with pytest.raises(mutate.BrokenRunError, match=f"status {status}"):
        judge(status, output)


# --- the record ------------------------------------------------------------------------------------------------------


def test_record_gives_the_latest_verdict_and_reads_what_older_versions_wrote(tmp_path: Path) -> None:
    kept = tmp_path / "record.jsonl"
    older = {"name": "old", "digest": "d", "outcome": "broken", "by": "", "seconds": 0.0}
    lines = [
        result("a", mutate.SURVIVED),
        result("a", mutate.NOTICED, commit="b"),
        result("a", mutate.LEFT_OUT, commit="c"),
        result("b", mutate.LEFT_OUT),
    ]
    texts = [json.dumps(older), *(json.dumps(dataclasses.asdict(line) | {"later": 1}) for line in lines)]
    kept.write_text("\n".join(texts) + "\n")
    found = mutate.recorded(kept)
    assert {name: (one.outcome, one.commit) for name, one in found.items()} == {
        "old": ("broken", "unknown"),
        "a": (mutate.NOTICED, "b"),
        "b": (mutate.LEFT_OUT, "a"),
    }
    assert not found["old"].is_verdict
    assert mutate.recorded(tmp_path / "none") == {}


@pytest.mark.parametrize("line", ['{"name": "a", "dig', '{"name": "a"}', "[]"])
def test_damaged_record_is_refused_with_the_line(tmp_path: Path, line: str) -> None:
    kept = tmp_path / "record.jsonl"
    kept.write_text(json.dumps(dataclasses.asdict(result("a", mutate.NOTICED))) + "\n" + line)
    with pytest.raises(ValueError, match=r"line 2: not a result of a mutation; remove the line"):
        mutate.recorded(kept)


def test_what_a_second_start_runs() -> None:
    one = of("one")
    here, elsewhere = "LIMIT = 3\n", "LIMIT = 3  # changed\n"
    noticed = result("one", mutate.NOTICED, entry=one.entry, digest=one.digest(here))
    survived = dataclasses.replace(noticed, outcome=mutate.SURVIVED)
    left_out = dataclasses.replace(noticed, outcome=mutate.LEFT_OUT)
    assert mutate.is_known(one, noticed, here)
    assert not mutate.is_known(one, noticed, elsewhere), "the file has changed"
    assert not mutate.is_known(one, survived, here), "a test may notice it now"
    assert mutate.is_known(one, noticed, None), "in a campaign a verdict stands"
    assert mutate.is_known(one, survived, None)
    assert not mutate.is_known(of("one", new="LIMIT = 5"), noticed, None), "the entry has changed"
    for source in (here, None):
        assert not mutate.is_known(one, left_out, source)
        assert not mutate.is_known(one, None, source)


def test_survivors_of_a_record() -> None:
    known = {one.name: one for one in (result("a", mutate.SURVIVED), result("b", mutate.NOTICED))}
    assert [one.name for one in mutate.survivors([of("a"), of("b"), of("c")], known)] == ["a"]


def test_summary_says_what_is_missing() -> None:
    all_noticed = [result("a", mutate.NOTICED), result("b", mutate.NOTICED, commit="b")]
    lines, status = mutate.summary(all_noticed, set(), 0)
    assert status == 0
    assert lines == ["2 of 2 mutations noticed (100.0 %)", "    1 verdicts by commit a", "    1 verdicts by commit b"]
    survived = result("c", mutate.SURVIVED)
    assert mutate.summary([survived], {"c"}, 0)[1] == 0
    lines, status = mutate.summary([survived, result("d", mutate.LEFT_OUT)], set(), 5)
    assert status == 1
    assert lines[:4] == [
        "0 of 2 mutations noticed (0.0 %)",
        "survived: c",
        "survived and not argued in docs/mutations.md: c",
        "left out, see above: d",
    ]
    assert lines[-1] == "5 mutations are left: start again with the same record"
    assert mutate.summary(all_noticed, set(), 1)[1] == 1
    assert mutate.summary([result("d", mutate.LEFT_OUT)], {"d"}, 0)[1] == 1
