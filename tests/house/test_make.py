"""What the make targets and the set-up promise, as far as it can be seen without building anything."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.tree import ROOT

TARGETS = ("demo", "up", "test", "check", "model", "mutate", "bench", "simulate", "soak", "docs")

SETUP_INPUTS = (".python-version", "pyproject.toml", "scripts/setup_venv.sh")


def plan_of(target: str, *variables: str) -> str:
    """The commands that make would run."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", "--dry-run", target, *variables], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    ).stdout


def run_setup(tree: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "scripts/setup_venv.sh", *arguments],
        cwd=tree,
        env={"PATH": os.environ["PATH"], "HOME": str(tree), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def fresh_tree(tmp_path: Path) -> Path:
    """A tree with what set-up reads and nothing else."""
    (tmp_path / "scripts").mkdir()
    for name in SETUP_INPUTS:
        shutil.copy2(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_sets_up_first(target: str) -> None:
    assert plan_of(target).splitlines()[0] == "scripts/setup_venv.sh"


def test_the_demo_is_secure_on_request() -> None:
    assert 'scripts/demo.py --metadata "" --secure\n' in plan_of("demo", "SECURE=1")
    assert "--secure" not in plan_of("demo")


def test_tests_run_without_skips() -> None:
    assert "OCTAVO_NO_SKIPS=1 .venv/bin/pytest -n 3 --no-loadscope-reorder --durations=30 " in plan_of("test")


def test_no_test_runs_twice() -> None:
    """Neither `make` nor a test asks for it, and no tool that could do it is installed (decision 034)."""
    asking = re.compile(r"reruns?failures|--reruns|--lf\b|--ff\b|--last-failed|mark\.flaky|flaky\(|RERUNS")
    sources = [ROOT / name for name in ("Makefile", "pyproject.toml", ".ci/run", *SETUP_INPUTS)]
    sources += [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    assert [path for path in sources if asking.search(path.read_text(encoding="utf-8"))] == []


def test_what_tests_import_is_compiled_once() -> None:
    """Under `make` and under plain `pytest`: no setting makes each process compile everything again."""
    """Neither `make` nor plain `pytest` obeys a setting under which each process compiles everything again."""
    assert not sys.dont_write_bytecode
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ
    assert "\nunexport PYTHONDONTWRITEBYTECODE\n" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_check_looks_at_format_lint_types_and_tidy_rules() -> None:
    plan = plan_of("check")
    for command in ("ruff format --check", "ruff check", "scripts/check_types.py", "pytest -q -n 3 tests/house"):
        assert command in plan


def test_types_are_checked_in_the_unpacked_wheel() -> None:
    # In the tree each module has two paths, which mypy refuses.
    program = (ROOT / "scripts" / "check_types.py").read_text()
    assert "unpack_wheel(SITE)" in program
    assert "cwd=SITE" in program


def test_setup_refuses_an_interpreter_that_cannot_be_used_and_makes_nothing(fresh_tree: Path) -> None:
    run = run_setup(fresh_tree, PYTHON="/nowhere/python3.12")
    assert run.returncode == 1
    assert "PYTHON=/nowhere/python3.12 is not a Python 3.12 or newer" in run.stderr
    assert not (fresh_tree / ".venv").exists()


def test_setup_without_any_python_says_what_to_install(fresh_tree: Path) -> None:
    tools = fresh_tree / "tools"
    tools.mkdir()
    for tool in ("bash", "cat", "cksum", "dirname", "flock", "mkdir", "sort", "tr"):
        if found := shutil.which(tool):
            (tools / tool).symlink_to(found)
    run = run_setup(fresh_tree, PATH=str(tools))
    assert run.returncode == 1
    assert "no Python 3.12 or newer" in run.stderr
    assert "apt install python3.12 python3.12-venv" in run.stderr
    assert not (fresh_tree / ".venv").exists()


def test_setup_installs_the_tree_again_after_pip_has_replaced_it_by_a_copy(fresh_tree: Path) -> None:
    """`pip install .` removes the line that puts the tree on the path; tests would then run the copy."""
    python = fresh_tree / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\ncase "$*" in *--editable*) echo "$@" >>"$HOME/installed" ;; esac\n')
    python.chmod(0o755)
    path_file = fresh_tree / ".venv" / "lib" / "python3.13" / "site-packages" / "__editable__.octavo-0.1.0.pth"
    path_file.parent.mkdir(parents=True)
    path_file.write_text(f"{fresh_tree}/src\n")

    def installs() -> int:
        assert run_setup(fresh_tree).returncode == 0
        return len((fresh_tree / "installed").read_text().splitlines())

    assert [installs(), installs()] == [1, 1]
    path_file.unlink()
    assert installs() == 2


def test_setup_passes_over_a_python_that_is_too_old(fresh_tree: Path) -> None:
    tools = fresh_tree / "tools"
    tools.mkdir()
    for name in ("python3.13", "python3.12", "python3.14", "python3"):
        (tools / name).write_text("#!/bin/sh\nexit 1\n")
        (tools / name).chmod(0o755)
    (tools / "python").symlink_to(sys.executable)
    run = run_setup(fresh_tree, "--find-python", PATH=os.pathsep.join([str(tools), os.environ["PATH"]]))
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "python"


def test_setup_prefers_the_version_of_the_project_among_those_of_pyenv(fresh_tree: Path) -> None:
    for version in ("3.12.9", "3.13.2", "3.13.10", "3.14.1"):
        folder = fresh_tree / ".pyenv" / "versions" / version / "bin"
        folder.mkdir(parents=True)
        (folder / "python").symlink_to(sys.executable)
    (fresh_tree / ".python-version").write_text("3.13\n")
    tools = fresh_tree / "tools"
    tools.mkdir()
    (tools / "python3.13").write_text("#!/bin/sh\nexit 1\n")
    (tools / "python3.13").chmod(0o755)
    run = run_setup(fresh_tree, "--find-python", PATH=os.pathsep.join([str(tools), os.environ["PATH"]]))
    assert run.stdout.strip().endswith(".pyenv/versions/3.13.10/bin/python")
