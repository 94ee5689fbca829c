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
from support.rooms import MAY_IMPORT
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
    command = [sys.executable, str(ROOT / "scripts" / "artifacts" / "draw_rooms.py"), "--print"]
    drawn = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert (ROOT / "docs" / "packages.svg").read_text(encoding="utf-8") == drawn, "run scripts/artifacts/draw_rooms.py"


ARCHITECTURE = "docs/architecture.md"

STEPS = {
    "The life of an add to a log": 10,
    "A roll": 5,
    "A takeover": 7,
    "Healing": 5,
    "A truncation": 5,
    "When the leader loses its term": 9,
    "The life of an add to a ledger": 17,
    "The life of a followed entry of a ledger": 6,
    "The life of a followed entry of a log": 12,
    "Where TLS bytes become frames": 7,
}
"""The sections of docs/architecture.md that follow something through the code, and how many steps each has."""

SAYS_NO_CODE = re.compile(r"the same|a chain cannot be sealed|as for a roll\..*|healing: as for a takeover")
"""What a cell on chains may say instead of naming code: it is named in the cell before, or in a row above."""


def steps_of(page: str, title: str) -> list[dict[str, str]]:
    """The rows of the tables of code in a section of a page: each cell by the title of its column."""
    section = re.split(r"^#{2,3} ", page.partition(f"# {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    steps: list[dict[str, str]] = []
    titles: list[str] | None = None
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else None
        if cells is None or titles is None:
            titles = cells
        elif "code" in titles and not set("".join(cells)) <= {"-"}:
            steps.append(dict(zip(titles, cells, strict=True)))
    return steps


def names_code(cell: str) -> bool:
    """Whether it names a function, a class or a method of a file."""
    return any(match["name"] for match in CODE_NAME.finditer(cell))


def steps_without_code(page: str, title: str) -> list[dict[str, str]]:
    return [
        step
        for step in steps_of(page, title)
        if not names_code(step["code"])
        or not (names_code(step.get("in a chain", step["code"])) or SAYS_NO_CODE.match(step["in a chain"]))
    ]


@pytest.mark.parametrize(("title", "count"), STEPS.items())
def test_each_step_through_the_code_names_the_code_that_does_it(title: str, count: int) -> None:
    page = (ROOT / ARCHITECTURE).read_text(encoding="utf-8")
    assert len(steps_of(page, title)) == count
    assert steps_without_code(page, title) == []


@pytest.mark.parametrize(
    "row",
    [
        "| 1 | adds | `client/write/writer.py` | the same |",
        "| 1 | adds | `cli/output.py: say` | later |",
        "| 1 | | | |",
    ],
)
def test_a_step_that_names_no_code_is_noticed(row: str) -> None:
    page = f"### A roll\n\n| | what happens | code | in a chain |\n|---|---|---|---|\n{row}\n\n## More\n"
    assert len(steps_without_code(page, "A roll")) == 1


def test_both_sides_of_a_lease_stand_on_one_page() -> None:
    page = (ROOT / ARCHITECTURE).read_text(encoding="utf-8")
    rows = re.search(
        r"^## Where a lease expires\n.*?^\| \*\*expires\*\* \|(.+)\|(.+)\|$", page, re.MULTILINE | re.DOTALL
    )
    assert rows is not None
    assert names_code(rows[1])
    assert names_code(rows[2])


def import_table(page: str) -> dict[str, frozenset[str]]:
    """Each folder in the table of packages, and what its last column says that it may import."""
    table = page.partition("| folder | import name |")[2].partition("\n\n")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| `")]
    return {Path(row[0].strip(" `")).name: frozenset(re.findall(r"`(\w+)`", row[-1])) for row in rows}


def test_the_table_of_imports_is_that_of_the_tests() -> None:
    assert import_table((ROOT / ARCHITECTURE).read_text(encoding="utf-8")) == MAY_IMPORT


def glossary_rows(page: str) -> list[tuple[list[str], str]]:
    """The rows of a glossary: the words that each defines, and the code that it names."""
    rows = [line.strip("|").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return [(cells[0].strip().split(", "), cells[-1]) for cells in rows if cells[0].strip() != "word"]


def glossary_faults(page: str) -> list[str]:
    """The words with two rows or with a meaning in brackets, and those whose row names no code."""
    rows = glossary_rows(page)
    words = [word.lower() for row, _ in rows for word in row]
    twice = [word for word in words if words.count(word) > 1 or "(" in word]
    return twice + [row[0] for row, code in rows if CODE_NAME.search(code) is None]


def test_the_glossary_has_one_row_a_word_and_each_names_its_code() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert len(glossary_rows(page)) > 150
    assert glossary_faults(page) == []


@pytest.mark.parametrize(
    "rows",
    [
        "| run | adds | `cli/output.py` |\n| run | entries | `cli/output.py` |",
        "| E, run | adds | `cli/output.py` |\n| Run | entries | `cli/output.py` |",
        "| run (index) | entries | `cli/output.py` |",
        "| run | adds | nowhere |",
    ],
)
def test_a_word_with_two_meanings_or_without_code_is_noticed(rows: str) -> None:
    assert glossary_faults(f"| word | meaning | code |\n|---|---|---|\n{rows}\n") != []


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
