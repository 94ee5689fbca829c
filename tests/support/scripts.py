"""Scripted tests: one file per scenario, and next to it a file with the expected output.

A script is a text file of commands, one a line, ``#`` comments and empty lines between. The interpreter of its kind
answers each command with lines of text; script and answers together must be what stands in the file of the same name
ending in ``.expected``. ``pytest --rewrite`` writes those files again: review the difference before committing it.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

type Interpreter = Callable[[list[str]], Iterable[str]]
"""The words of one command -> its output, as lines."""


def scripts_in(folder: Path) -> list[pytest.param]:  # type: ignore[valid-type]
    """Every script of a folder, as parameters of a test."""
    found = sorted(folder.glob("*.script"))
    assert found, f"no scripts in {folder}"
    return [pytest.param(path, id=path.stem) for path in found]


def check_script(path: Path, interpreter: Interpreter, *, rewrite: bool) -> None:
    """Run a script and compare its output with the expected output."""
    transcript: list[str] = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        transcript.append(line)
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            transcript += [f"    {answer}" for answer in interpreter(words)]
        except Exception as error:
            error.add_note(f"{path.name}, line {number}: {line}")
            raise
    result = "\n".join(transcript) + "\n"
    expected = path.with_suffix(".expected")
    if rewrite:
        expected.write_text(result)
    assert expected.read_text() == result, f"{path.name}: unexpected output; if intended, use --rewrite and review"
