"""The text of the project: plain English without phrases that have confused readers, and documents that are wrapped, so
that they can be read in a terminal and reviewed line by line."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tree import ROOT, tree_files

THIS_FILE = Path(__file__).resolve().relative_to(ROOT)
"""Spells the phrases out."""

COLUMNS_MAX = 100

CONFUSING = {
    r"nobody|somebody|whoever|whomever|anybody|everybody": "name the actor: the bookie, the writer, another client",
    r"how quick|in earnest|there is to prove|shot for real|with himself|as rightly": "say it plainly",
    r"of (?:this|that|the|its) moment": "current, active",
    r"takes? leave": "reserve, is charged against",
    r"takes? no answers": "does not read its responses",
    r"heeds?|heed(?:ed|ing)": "watch, observe",
    r"news": "a change, a higher LAC, a notification",
    r"gives? up on|gave up on": "abandons, stops waiting for",
    r"puts? out": "evict, disconnect",
    r"set out to|in good order": "begin; cleanly",
    r"a person must look": "say who has to do what",
    r"told of by|is told so|comes to pass": "say what happens",
    r"wait(?:s|ed|ing)? for company": "wait for later adds",
    r"connections? lives? on": "stays open",
    r"some hundred|some thousand": "about a hundred, several hundred",
    r"stands? beside|lies? beside|goes on beside": "next to, with",
    r'so (?:many|much)\b(?![^."]*\bthat\b)': "name the number: this number of, `count` more",
    r"in vain": "say what does not happen",
    r"none such|such as (?:can|do|are|have)": "name the things again",
    r"of those that": "repeat the noun, or: of which some",
    r"what there is": "name it: the bytes that have arrived",
    r"tells(?= of\b|\s*[.,;:)])": "tells whom what? says, shows, decides, has the answer",
    r"(?:laid|lays?|laying)(?: it| the stream| a stream| them)? to rest": "put at rest; to a user: closed",
    r"(?:keep|keeps|keeping|kept) books": "with full copies, created with `full_copies`",
    r"before all times|none that a caller|goes? on to write": "say it plainly",
}
"""Phrase (whole words, in any case) -> what to write instead. Found by readers who did not know the project."""

WRAPPED = r"\s+"
"""What stands between the words of a phrase: it may go on in the next line."""

CONFUSING_NAMES = {
    *("heed_no_more_news", "_well_again", "note_short_directories", "until_it_fits", "told_bytes", "put_out"),
    *("other_self", "start_room", "writer_work", "bury", "somebody_may_answer", "news", "foregone"),
}
"""Names that readers could not understand without their comments."""

CONFUSING_IN_TEST_NAMES = re.compile(
    r"test_who_\w+|test_(?:\w+_)?(?:nobody|somebody|whoever|news|(?:all|by|for|of|one|those|to)_who)(?:_\w+)?"
)
"""Names of tests are sentences, in which the actor is named."""

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


ANY_CONFUSING = re.compile(
    rf"(?<!\w)(?:{'|'.join([*CONFUSING, *CONFUSING_NAMES, CONFUSING_IN_TEST_NAMES.pattern])})(?!\w)", re.IGNORECASE
)


def prose_of_module(source: str, *, messages: bool) -> Iterator[tuple[int, str]]:
    """The docstrings and comments of a module with their lines; with ``messages`` all of its strings."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    tree = ast.parse(source)
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (messages or id(node) in documents):
            yield node.lineno, node.value


def names_of_module(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string


def is_confusing_name(name: str) -> bool:
    return name in CONFUSING_NAMES or CONFUSING_IN_TEST_NAMES.fullmatch(name) is not None


def confusing(pieces: Iterator[tuple[int, str]]) -> list[str]:
    """Every confusing phrase in pieces of text, with its line and what to write instead."""
    return [
        f"line {line + text.count(chr(10), 0, match.start())}: {match[0]!r}: {remedy}"
        for line, text in pieces
        for pattern, remedy in CONFUSING.items()
        for match in re.finditer(rf"\b(?:{pattern.replace(' ', WRAPPED)})\b", text, re.IGNORECASE)
    ]


RIDDLE = re.compile(r"(?:Who|What)\b(?! (?:if|happens when)\b)")
"""A docstring that begins so lets its reader guess a noun: "What a log asks of its client" are ledger operations."""


def riddles(source: str) -> list[str]:
    """The docstrings that begin with a riddle."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    first_lines = [(ast.get_docstring(node) or "").partition("\n")[0] for node in nodes]
    return [line for line in first_lines if RIDDLE.match(line)]


def test_no_docstring_begins_with_a_riddle() -> None:
    paths = [path for path in tree_files() if path.suffix == ".py" and path.parts[0] != "tests"]
    found = {str(path): wrong for path in paths if (wrong := riddles((ROOT / path).read_text(encoding="utf-8")))}
    assert found == {}


def test_a_riddle_is_noticed() -> None:
    assert riddles('"""What a log asks of its client."""') != []
    assert riddles('class Log:\n    """Who leads, and\n    reads."""') != []
    assert riddles('async def ask():\n    """What is answered."""') != []
    assert riddles('"""Whatever happens, it is said."""\n\nclass Log:\n    """The leader."""') == []


def confusing_in(path: Path, text: str) -> list[str]:
    """What is confusing in a file of the project. In tests, strings are data."""
    if not ANY_CONFUSING.search(re.sub(r"\s[\s#]*", " ", text)):
        return []  # parsing takes longer than everything else here
    if path.suffix == ".py":
        names = [f"line {line}: the name {name}" for line, name in names_of_module(text) if is_confusing_name(name)]
        return confusing(prose_of_module(text, messages=path.parts[0] != "tests")) + names
    return confusing(iter([(1, text)]))


PROSE = {".md", ".py", ".sh", ".toml", ".service", ".script"}


def test_no_text_has_a_phrase_that_confused_readers() -> None:
    paths = [
        path
        for path in tree_files()
        if (path.suffix in PROSE or path.name in {"Makefile", "run"}) and path != THIS_FILE
    ]
    texts = {str(path): (ROOT / path).read_text(encoding="utf-8") for path in paths}
    found = {path: wrong for path, text in texts.items() if (wrong := confusing_in(Path(path), text))}
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        '"""Nobody answers."""',
        "x = 1  # the log of this moment",
        'raise ValueError("somebody changed it")',
        '"""Reads what a\nconnection gives\nup on."""',
        '"""Ends in good\n    order."""',
        '"""So many adds are\na flow."""',
        "x = 1  # the list tells.",
        'raise ValueError("stream 7 is not laid to rest")',
        "def note_short_directories(): ...",
        "def test_a_bookie_disturbs_nobody(): ...",
    ],
)
def test_a_confusing_phrase_is_noticed(source: str) -> None:
    assert confusing_in(Path("bookie/sample.py"), source) != []


def test_strings_of_tests_are_data_and_ordinary_words_are_let_through() -> None:
    assert confusing_in(Path("tests/sample.py"), 'write("somebody")') == []
    assert confusing_in(Path("docs/sample.md"), "The newspaper, a newsletter and the output of a bookie.") == []
    assert confusing_in(Path("docs/sample.md"), "If so many fail that no add can be made, the writer tells them.") == []
