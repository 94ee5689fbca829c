"""The documents are right where a test can tell: their Python compiles, their links lead somewhere, and the files and
functions that they name exist."""

import ast
import re
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest
from support.tree import ROOT, library_folders, library_modules, syntax_tree, tree_files

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
CODE_NAME = re.compile(r"`(?P<path>[\w.@-]+(?:/[\w.@-]+)+/?|Makefile)(?:: ?(?P<name>[A-Za-z_][\w.]*))?`")
"""A file or folder of the project with its path from the root, and a class, function or method in it:
```` `client/write/writer.py: LedgerWriter.add` ````."""

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


def defined_names(tree: ast.Module) -> set[str]:
    """Every function, class, method, attribute and constant of a module; members with their class before them."""
    names = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(prefix + node.name)
            elif isinstance(node, ast.ClassDef):
                names.add(prefix + node.name)
                collect(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    collect(tree.body, "")
    return names


def missing_code(text: str) -> list[str]:
    """The files, and functions in them, that a page names and that do not exist."""
    tops = {path.parts[0] for path in tree_files() if len(path.parts) > 1} | library_folders() | {"Makefile"}
    missing = []
    for match in CODE_NAME.finditer(FENCE.sub("", text)):
        path = Path(match["path"])
        if path.parts[0] not in tops:
            continue  # a path on some machine, in another project, or of an operation
        name = match["name"]
        known = (ROOT / path).exists() and (
            name is None or (path.suffix == ".py" and name in defined_names(syntax_tree(path)))
        )
        if not known:
            missing.append(match[0].strip("`"))
    return missing


def test_the_code_that_the_documents_name_exists() -> None:
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in documents() if path.name != "CHANGELOG.md"}
    assert {path: names for path, text in texts.items() if (names := missing_code(text))} == {}


@pytest.mark.parametrize(
    "name",
    ["client/write/missing.py", "client/write/writer.py: LedgerWriter.missing", "docs/missing/", "bookie/config.py: x"],
)
def test_code_that_does_not_exist_is_noticed(name: str) -> None:
    assert missing_code(f"It is in `{name}`.") == [name]


@pytest.mark.parametrize(
    "name", ["client/write/writer.py: LedgerWriter.add", "docs/", "tmp/x.py", "protocol/messages.py"]
)
def test_code_that_exists_is_let_through(name: str) -> None:
    assert missing_code(f"It is in `{name}`.") == []


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


def decisions() -> list[Path]:
    folder = [path for path in documents() if path.parent == Path("docs/decisions")]
    return sorted(path for path in folder if path.name != "README.md")


def test_decisions_are_numbered_one_after_another() -> None:
    numbers = [path.name[:3] for path in decisions()]
    assert numbers == [f"{number:03}" for number in range(1, len(numbers) + 1)]


def test_decisions_have_one_form() -> None:
    form = re.compile(
        r"# (?P<number>\d{3}): .+\n\n\* Status: (accepted|replaced by \d{3})\n\* Date: \d{4}-\d\d-\d\d\n\n"
        r"## Context\n\n(?!#).+\n\n## Decision\n\n(?!#).+\n\n## Consequences\n\n(?!#).+\n",
        re.DOTALL,
    )
    wrong = []
    for path in decisions():
        text = (ROOT / path).read_text(encoding="utf-8")
        found = form.fullmatch(text)
        if found is None or found["number"] != path.name[:3] or len(HEADING.findall(text)) != 4:
            wrong.append(path)
    assert wrong == []


def test_the_picture_of_the_rooms_shows_the_tables_as_they_are() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "draw_rooms.py"), "--print"]
    drawn = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert (ROOT / "docs" / "packages.svg").read_text(encoding="utf-8") == drawn, "run scripts/draw_rooms.py"


ADD_STEPS = 16


def test_each_step_of_an_add_names_the_code_that_does_it() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## The life of one add\n")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if re.match(r"\| \d+ \|", line)]
    assert len(rows) == ADD_STEPS
    assert [row for row in rows if not any(match["name"] for match in CODE_NAME.finditer(row.split("|")[-2]))] == []


@cache
def messages() -> str:
    """Every text of the library, a message a line; what it fills in is left out."""
    nodes = [node for path in library_modules().values() for node in ast.walk(syntax_tree(path))]
    whole = [node for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr)]
    texts = [node.values if isinstance(node, ast.JoinedStr) else [node] for node in whole]
    return "\n".join(
        "\0".join(str(part.value).replace("\n", " ") for part in parts if isinstance(part, ast.Constant))
        for parts in texts
    )


def unknown_messages(text: str) -> list[str]:
    """The messages quoted in a page's section on troubleshooting that the library does not have. ``...``, N and HOST
    stand for what a message fills in."""
    rows = [line for line in text.partition("## Troubleshooting\n")[2].splitlines() if line.startswith("| ")]
    quoted = [quote for row in rows for quote in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    sentences = [quote for quote in quoted if quote.count(" ") > 1 and not quote.startswith("octavo ")]
    return [
        quote
        for quote in sentences
        if not all(piece in messages() for piece in map(str.strip, re.split(r"\.\.\.|\bN\b|\bHOST\b|[():]", quote)))
    ]


@pytest.mark.parametrize("page", ["docs/operations.md", "docs/zookeeper.md"])
def test_messages_in_the_tables_of_troubleshooting_are_those_of_the_code(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "## Troubleshooting\n" in text
    assert unknown_messages(text) == []


def test_a_message_that_no_code_has_is_noticed() -> None:
    assert unknown_messages("## Troubleshooting\n\n| `the moon is full` | wait |\n") == ["the moon is full"]


def test_the_map_of_the_code_has_every_folder() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = {path.parent.as_posix() for path in library_modules().values()}
    assert [folder for folder in sorted(folders) if f"`{folder}/`" not in page] == []


@pytest.mark.parametrize("index", ["docs/README.md", "docs/lab/README.md"])
def test_an_index_lists_every_page_beside_it(index: str) -> None:
    linked = {match["target"] for match in LINK.finditer((ROOT / index).read_text(encoding="utf-8"))}
    pages = [path.name for path in documents() if path.parent == Path(index).parent and path.name != "README.md"]
    assert [page for page in pages if page not in linked] == []
