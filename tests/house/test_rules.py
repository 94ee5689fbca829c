"""Every cited rule is in docs/rules.md, and no text cites a document that is not in the repository."""

import ast
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from support.tree import ROOT, library_folders, tree_files

DOCUMENT = Path("docs/rules.md")
THIS_FILE = Path(__file__).resolve().relative_to(ROOT)
"""Holds examples of wrong citations."""

CITING = {".py", ".md", ".sh", ".script", ".toml", ".js", ".yml"}

_GAP = r"(?:\s|#)+"
"""Citations may go on in the next line of a comment."""
_ID = r"[A-Z]\d{1,2}"
CITATION = re.compile(rf"\b[Rr]ules?{_GAP}({_ID}(?:(?:,{_GAP}and|,|{_GAP}and|{_GAP}to){_GAP}{_ID})*)\b")
RANGE = re.compile(rf"({_ID}){_GAP}to{_GAP}({_ID})")
SECTION = re.compile(r"^### (?P<rule>[A-Z]\d+)$", re.MULTILINE)

DESIGN_CITATION = re.compile(r"\b(?:PROTOCOL|DESIGN|CONTRACT|STYLE)(?:\.md\b|\s+(?:[A-Z]?\d+|[A-Z]\b))")
DOCUMENT_NAME = re.compile(r"(?<![\w/.-])(?:[\w.-]+/)*[\w.-]+\.md\b")
NAMED = re.compile(r"`(?P<path>[\w./-]+/[\w.-]+\.\w+)`(?:\s+\((?P<names>`\w+`(?:,\s+`\w+`)*)\))?")
CANARY = re.compile(r'^    "(?P<name>[a-z-]+)": Canary\(', re.MULTILINE)


def cited_rules(text: str) -> set[str]:
    """The rules that a text cites; ``rules W1 to W3`` cites three."""
    found: set[str] = set()
    for citation in CITATION.findall(text):
        found.update(re.findall(_ID, citation))
        for first, last in RANGE.findall(citation):
            found.update(f"{first[0]}{number}" for number in range(int(first[1:]), int(last[1:]) + 1))
    return found


def sections(text: str) -> dict[str, str]:
    """The rules that a document has, each with its text."""
    starts = [*SECTION.finditer(text)]
    ends = [match.start() for match in starts[1:]] + [len(text)]
    return {match["rule"]: text[match.end() : end] for match, end in zip(starts, ends, strict=True)}


def design_citations(text: str) -> list[str]:
    return [match[0] for match in DESIGN_CITATION.finditer(text)]


def missing_documents(page: Path, text: str, existing: Iterable[Path]) -> list[str]:
    """The names of documents in a text for which there is no file: from the root, beside the page, or in docs/."""
    files = set(existing)

    def exists(name: str) -> bool:
        path = Path(name)
        from_page = Path(os.path.normpath(page.parent / path))
        return path in files or from_page in files or Path("docs") / path in files

    return [match[0] for match in DOCUMENT_NAME.finditer(text) if not exists(match[0])]


@cache
def rules() -> dict[str, str]:
    return sections((ROOT / DOCUMENT).read_text(encoding="utf-8"))


def texts() -> Iterator[tuple[Path, str]]:
    for path in tree_files():
        if path.suffix in CITING and path != THIS_FILE:
            yield path, (ROOT / path).read_text(encoding="utf-8")


def test_every_cited_rule_exists() -> None:
    unknown = {path: rest for path, text in texts() if (rest := cited_rules(text) - rules().keys())}
    assert unknown == {}


def test_every_rule_is_cited_where_it_is_kept_and_where_it_is_tested() -> None:
    by_production: defaultdict[str, list[Path]] = defaultdict(list)
    by_tests: defaultdict[str, list[Path]] = defaultdict(list)
    for path, text in texts():
        citing = by_production if path.parts[0] in library_folders() else by_tests if path.parts[0] == "tests" else None
        if citing is not None:
            for rule in cited_rules(text):
                citing[rule].append(path)
    assert [rule for rule in rules() if not by_production[rule]] == [], "no production code cites these"
    assert [rule for rule in rules() if not by_tests[rule]] == [], "no test cites these"


@pytest.mark.parametrize("rule", rules())
def test_a_rule_says_why_and_names_files_and_functions_that_exist(rule: str) -> None:
    text = rules()[rule]
    for part in ("\n**", "\n- Why: ", "\n- Kept by: ", "\n- Tested by: "):
        assert part in text, f"{rule} has no {part.strip()!r}"
    places = [*NAMED.finditer(text)]
    assert places
    for place in places:
        path = ROOT / place["path"]
        assert path.is_file(), f"{rule} names {place['path']}, which does not exist"
        for name in re.findall(r"\w+", place["names"] or ""):
            assert re.search(rf"\b{name}\b", path.read_text(encoding="utf-8")), f"{rule}: {place['path']} has no {name}"


STATEMENT_WORDS_MAX = 120
STATEMENT_SENTENCES_MAX = 3
CASE_WORDS_MAX = 80

CASE = re.compile(r"^(\d+)\. ", re.MULTILINE)
SENTENCE_END = re.compile(r"[.!?](?:\*\*)?(?:\s|$)")


def unreadable(text: str) -> list[str]:
    """What keeps a rule from being read in one go: a long statement, or cases that are long or not numbered in order.
    A statement that needs more words becomes three sentences, and numbered cases below them.
    """
    parts = CASE.split(text.partition("\n- Why: ")[0])
    statement, numbers, cases = parts[0], parts[1::2], parts[2::2]
    faults = []
    if len(statement.split()) > STATEMENT_WORDS_MAX:
        faults.append("the statement is too long")
    if cases and len(SENTENCE_END.findall(statement)) > STATEMENT_SENTENCES_MAX:
        faults.append("the statement above the cases has too many sentences")
    if any(len(case.split()) > CASE_WORDS_MAX for case in cases):
        faults.append("a case is too long")
    if numbers != [str(number) for number in range(1, len(cases) + 1)]:
        faults.append("the cases are not numbered in order")
    return faults


@pytest.mark.parametrize("rule", rules())
def test_a_rule_can_be_read_in_one_go(rule: str) -> None:
    assert unreadable(rules()[rule]) == []


@pytest.mark.parametrize(
    "text",
    [
        "**It is so.** " + "word " * 120 + "\n\n- Why: x\n",
        "**It is so.** One. Two. Three.\n\n1. A case.\n\n- Why: x\n",
        "**It is so.**\n\n1. " + "word " * 81 + "\n\n- Why: x\n",
        "**It is so.**\n\n1. A case.\n1. Another.\n\n- Why: x\n",
    ],
)
def test_a_rule_that_cannot_be_read_in_one_go_is_noticed(text: str) -> None:
    assert len(unreadable(text)) == 1


def test_a_short_statement_with_cases_is_let_through() -> None:
    assert (
        unreadable("**It is so.** " + "word " * 100 + ".\n\n1. A case.\n2. Another.\n\n- Why: " + "word " * 200) == []
    )


def test_the_document_lists_every_canary_of_the_simulator() -> None:
    canaries = set(CANARY.findall((ROOT / "tests/simulation/canaries/catalogue.py").read_text(encoding="utf-8")))
    listed = set(re.findall(r"\| `([a-z-]+)` \|", (ROOT / DOCUMENT).read_text(encoding="utf-8")))
    assert len(canaries) > 20
    assert canaries == listed


def test_no_document_is_cited_that_is_not_in_the_repository() -> None:
    files = tree_files()
    found: dict[Path, list[str]] = {}
    for path, text in texts():
        # Strings of tests hold made-up names; citations are in docstrings and comments.
        written = prose(text) if path.suffix == ".py" else text
        if missing := design_citations(written) + missing_documents(path, written, files):
            found[path] = missing
    assert found == {}


def prose(source: str) -> str:
    """The docstrings and comments of a module."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr)]
    strings = [node.value.value for node in nodes if isinstance(node.value, ast.Constant)]
    comments = re.findall(r"(?:^|\s)#[^\n]*", source)
    return "\n".join([*(string for string in strings if isinstance(string, str)), *comments])


@pytest.mark.parametrize(
    ("text", "cited"),
    [
        ("(rule W6)", {"W6"}),
        ("Rules W6 and W8 say so", {"W6", "W8"}),
        ("rules M1, W5,\n    # W9, and F1", {"M1", "W5", "W9", "F1"}),
        ("rules F1 to F3 and B2", {"F1", "F2", "F3", "B2"}),
        ("overrules W6; the ruler W8", set()),
    ],
)
def test_citations_are_found(text: str, cited: set[str]) -> None:
    assert cited_rules(text) == cited


def test_a_citation_of_a_design_or_of_a_missing_document_is_noticed() -> None:
    for text in ("see PROTOCOL W6", "(DESIGN 5)", "as CONTRACT 3 has it", "DESIGN.md"):
        assert design_citations(text) != [], text
    assert design_citations("PROTOCOL_VERSION, the CONTRACT of a store") == []
    files = [Path("docs/rules.md"), Path("README.md"), Path("docs/decisions/001-x.md")]
    text = "docs/rules.md, rules.md, README.md, decisions/001-x.md, missing.md, docs/decisions/002-y.md"
    assert missing_documents(Path("bookie/x.py"), text, files) == ["missing.md", "docs/decisions/002-y.md"]
