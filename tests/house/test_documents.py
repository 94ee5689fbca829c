"""README and docs/ hold what they promise: their Python compiles, and their links lead somewhere."""

import ast
import re
import textwrap
from pathlib import Path

import pytest
from support.tree import ROOT, tree_files

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ +(?P<title>.+?) *$", re.MULTILINE)


def documents() -> list[Path]:
    return [path for path in tree_files() if path.suffix == ".md"]


def python_blocks(text: str) -> list[tuple[int, str]]:
    """The line each block of Python starts on, and its code."""
    return [
        (text.count("\n", 0, match.start()) + 2, textwrap.dedent(match["code"]))
        for match in FENCE.finditer(text)
        if match["language"] in {"python", "py"}
    ]


def syntax_errors(text: str) -> list[str]:
    """What the compiler says of the blocks of Python; ``await`` is allowed outside functions, as in a notebook."""
    errors = []
    for line, code in python_blocks(text):
        try:
            compile(code, "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        except SyntaxError as error:
            errors.append(f"line {line + (error.lineno or 1) - 1}: {error.msg}")
    return errors


def anchors(text: str) -> set[str]:
    """The anchors that a page's headings have, as GitHub makes them."""
    titles = (match["title"].lower().replace("`", "") for match in HEADING.finditer(FENCE.sub("", text)))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def broken_links(page: Path, text: str) -> list[str]:
    """The links of a page (its path absolute) to files and headings that do not exist. Other sites are not asked."""
    broken = []
    for match in LINK.finditer(FENCE.sub("", text)):
        target, _, anchor = match["target"].partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        linked = (page.parent / target).resolve() if target else page
        if not linked.exists() or not linked.is_relative_to(ROOT):
            broken.append(match["target"])
        elif anchor and linked.suffix == ".md":
            linked_text = text if linked == page else linked.read_text(encoding="utf-8")
            if anchor not in anchors(linked_text):
                broken.append(match["target"])
    return broken


def test_the_python_in_the_documents_compiles() -> None:
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in documents()}
    assert {path: errors for path, text in texts.items() if (errors := syntax_errors(text))} == {}


def test_the_links_in_the_documents_lead_somewhere() -> None:
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in documents()}
    assert {path: links for path, text in texts.items() if (links := broken_links(ROOT / path, text))} == {}


def test_a_block_that_does_not_compile_is_noticed() -> None:
    assert syntax_errors("# Title\n\n```python\nawait ledger.add(b'x')\nledger.add(\n```\n") != []
    assert syntax_errors("1. Say\n\n   ```python\n   await ledger.add(b'x')\n   ```\n") == []


@pytest.mark.parametrize("link", ["missing.md", "#no-such-heading", "LICENSE/x", "../outside.md"])
def test_a_broken_link_is_noticed(link: str) -> None:
    assert broken_links(ROOT / "README.md", f"# A heading\n\n[words]({link})\n") == [link]


@pytest.mark.parametrize("link", ["LICENSE", "#a-heading", "docs", "https://example.org/x#y"])
def test_a_sound_link_is_let_through(link: str) -> None:
    assert broken_links(ROOT / "README.md", f"# A heading\n\n[words]({link})\n") == []


def test_decisions_are_numbered_one_after_another() -> None:
    numbers = sorted(path.name[:3] for path in documents() if path.parent == Path("docs/decisions"))
    assert numbers == [f"{number:03}" for number in range(1, len(numbers) + 1)]
