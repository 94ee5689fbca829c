"""The text of the documents: prose is wrapped, so that it can be read in a terminal and reviewed line by line."""

import re

import pytest
from support.tree import ROOT, tree_files

COLUMNS_MAX = 100

FENCE = re.compile(r"^ *```")


def long_lines(text: str) -> list[int]:
    """The numbers of prose lines over ``COLUMNS_MAX``. Code blocks, tables, and lines that are one long word (a link)
    do not count: they cannot be wrapped."""
    found, in_code = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            in_code = not in_code
        cannot_be_wrapped = in_code or line.lstrip().startswith("|") or " " not in line.strip().lstrip("-*> ")
        if len(line) > COLUMNS_MAX and not cannot_be_wrapped:
            found.append(number)
    return found


def test_prose_of_the_documents_is_wrapped() -> None:
    documents = [path for path in tree_files() if path.suffix == ".md"]
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in documents}
    assert {path: lines for path, text in texts.items() if (lines := long_lines(text))} == {}


@pytest.mark.parametrize("line", ["word " * 21, "* " + "word " * 20, "## " + "word " * 20])
def test_a_long_line_is_noticed(line: str) -> None:
    assert long_lines(f"# Title\n\n{line}\n") == [3]


@pytest.mark.parametrize("text", ["```\n" + "word " * 30 + "\n```", "| " + "word " * 30, "<" + "x" * 120 + ">"])
def test_what_cannot_be_wrapped_is_let_through(text: str) -> None:
    assert long_lines(text) == []
