"""Rules that hold for every file of the project."""

import ast
import re
from pathlib import Path

import pytest
from support.private_names import private_names_in, uses_in
from support.tree import ROOT, dotted_name, library_modules, python_files, syntax_tree, tree_files

LINES_MAX = 600
"""A file that one cannot read in one sitting has more than one subject."""

THIS_FILE = Path(__file__).resolve().relative_to(ROOT)
"""The rules are spelt out here, so that this one file would break them."""

FORBIDDEN = {
    "a path of some machine": r"(?<![\w.])/(work|root)/|(?<!\w)/home/\w+/",
    "a folder beside the project": r"\.\./shared\b",
    "the host of a package registry": r"\bindex-url\b|\bextra-index\b|artifactory|pythonhosted|\bnexus\b",
    "a word about how the project was written": r"(?i)\b(claude|anthropic|chatgpt|openai|copilot|session transcript)\b",
    "work left undone": r"\b(TODO|FIXME|XXX|HACK)\b",
    "history, which belongs in the changelog": r"(?i)\bfor now\b|\bno longer needed\b|\bused to be\b",
    "a merge left half done": r"^(<{7}|>{7}) ",
}


def text_of(path: Path) -> str | None:
    """The text of a file given relative to the root, or None where it holds bytes that are no text."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def breaches(text: str) -> list[str]:
    """Every line that says something that no file may say."""
    return [
        f"line {number}: {what}: {line.strip()[:80]}"
        for number, line in enumerate(text.splitlines(), start=1)
        for what, pattern in FORBIDDEN.items()
        if re.search(pattern, line)
    ]


def test_no_file_says_what_does_not_belong_there() -> None:
    ours = [path for path in tree_files() if path != THIS_FILE and "sample" not in path.parts]
    assert {path: found for path in ours if (found := breaches(text_of(path) or ""))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "see /work/main/bookie",
        "cd /root/octavo",
        "cp ../shared/DESIGN.md .",
        "pip install --index-url https://example.org",
        "# TODO: sync",
        "# a lock is enough for now",
    ],
)
def test_what_does_not_belong_is_noticed(line: str) -> None:
    assert breaches(line) != []


@pytest.mark.parametrize("line", ["/var/lib/octavo/journal", "docs/work/plan", "a ZooKeeper session", "index.urls"])
def test_ordinary_words_are_let_through(line: str) -> None:
    assert breaches(line) == []


def test_every_file_can_be_read_in_one_sitting() -> None:
    lengths = {path: len((text_of(path) or "").splitlines()) for path in python_files()}
    assert {path: length for path, length in lengths.items() if length > LINES_MAX} == {}


def test_every_module_of_the_library_says_what_it_is() -> None:
    assert [path for path in library_modules().values() if not ast.get_docstring(syntax_tree(path))] == []


def test_nothing_but_the_command_prints() -> None:
    def prints(path: Path) -> list[int]:
        calls = [node for node in ast.walk(syntax_tree(path)) if isinstance(node, ast.Call)]
        return [call.lineno for call in calls if dotted_name(call.func) == "print"]

    library = [path for path in library_modules().values() if path.parts[0] != "cli"]
    assert {path: lines for path in library if (lines := prints(path))} == {}


def test_asserts_stay_on() -> None:
    # Python drops them under -O and PYTHONOPTIMIZE; the invariants of the library are asserts.
    optimise = re.compile(r"python[0-9.]*\s+(-\w*O|-\S+\s+-O)|PYTHONOPTIMIZE\s*[=:]")
    assert [path for path in tree_files() if path != THIS_FILE and optimise.search(text_of(path) or "")] == []


def test_text_files_end_with_one_line_end() -> None:
    def untidy(path: Path) -> bool:
        text = text_of(path) if path.suffix in {".py", ".md", ".toml", ".sh", ".yml", ".yaml"} else None
        return text is not None and text != "" and (not text.endswith("\n") or text.endswith("\n\n") or "\r" in text)

    assert [path for path in tree_files() if untidy(path)] == []


# --- private names --------------------------------------------------------------------------------------------------

USES_MAX = 23
"""Uses of private attributes in tests; the number only falls. A test sees what users see: ``statistics()`` say what
writers, readers, logs and clients are doing, and tests/support/inside.py gives the few parts that tests let fail."""


def test_tests_use_few_private_names() -> None:
    private = frozenset[str]().union(*(private_names_in(syntax_tree(path)) for path in library_modules().values()))
    found = [
        f"{path}:{use.line} {use.text}"
        for path in python_files()
        if path.parts[0] == "tests"
        for use in uses_in(syntax_tree(path), private)
    ]
    assert len(found) <= USES_MAX, "\n".join(found)
    assert len(found) > USES_MAX - 5, f"only {len(found)} are left: lower USES_MAX"


PRIVATE = private_names_in(
    ast.parse("_BOUND = 1\nclass Machine:\n    def __init__(self):\n        self._state = 0\n    def _go(self): ...")
)


@pytest.mark.parametrize("text", ["machine._state", "machine._go()", "module._BOUND", "one.other._state = 1"])
def test_a_private_name_of_octavo_is_noticed(text: str) -> None:
    assert len(uses_in(ast.parse(text), PRIVATE)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "self._state",
        "machine.state",
        "row._replace(one=1)",
        "os._exit(0)",
        "machine.__dict__",
        "class Fake:\n    def __init__(self):\n        self._state = 0\nFake()._state",
    ],
)
def test_a_public_name_and_a_name_of_the_test_itself_are_let_through(text: str) -> None:
    assert uses_in(ast.parse(text), PRIVATE) == []
