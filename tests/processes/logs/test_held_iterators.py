"""A program that still refers to iterators when its client is closed and its event loop ends: nothing is said."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands.processes import WAIT_SECONDS, Up, environment
from support.programs import held_iterators


@pytest.fixture(scope="module")
def up(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "data", "--bookies", 2) as cluster:
        yield cluster.wait_ready()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_program_that_still_refers_to_its_iterators_ends_in_silence(up: Up, loop: str) -> None:
    program = Path(held_iterators.__file__)
    ended = subprocess.run(
        [sys.executable, "-P", str(program), up.uri, loop],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_SECONDS,
        env=environment(PYTHONPATH=str(program.parents[2])),
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "16\n"
