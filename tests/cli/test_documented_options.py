"""Commands that documents mention within a sentence exist, with the options mentioned."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from octavo.cli.commands import command_line
from support.tree import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "runbooks").glob("*.md")])

COMMANDS: Any = typer.main.get_command(command_line())

QUOTED = re.compile(r"(?<!`)`(octavo [^`]+)`(?!`)")


def unknown_parts(text: str) -> list[str]:
    """The words of a command line that the program does not know: sub-commands and options."""
    here = COMMANDS
    words = shlex.split(text.replace("\\|", "|").partition(" | ")[0].replace("...", ""), posix=False)[1:]
    while words and hasattr(here, "commands") and words[0] in here.commands:
        here = here.commands[words.pop(0)]
    if (
        words
        and hasattr(here, "commands")
        and not here.commands.get(words[0])
        and re.fullmatch("[a-z][a-z-]*", words[0])
    ):
        return [words[0]]
    known = {option for parameter in here.params for option in (*parameter.opts, *parameter.secondary_opts)}
    options = [word.strip("[],;").partition("=")[0] for word in words if word.lstrip("[").startswith("-")]
    return [option for option in options if option not in known | {"-h", "--help", "-", "--"}]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_within_a_sentence_exists(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    quoted = [" ".join(found.split()) for found in QUOTED.findall(prose)]
    assert {text: unknown for text in quoted if (unknown := unknown_parts(text))} == {}


def test_every_command_of_a_procedure_exists() -> None:
    """tests/processes/commands/test_procedures.py runs all of them in its long form only."""
    page = (ROOT / "docs" / "procedures.md").read_text()
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    lines = [found.partition("#")[0].partition(";")[0] for found in re.findall(r"octavo (?!bookie@)[^\n]+", blocks)]
    assert len(lines) > 20
    assert {line: unknown for line in lines if (unknown := unknown_parts(line))} == {}
