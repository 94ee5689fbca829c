"""The source tree as the tidy tests see it: its files, its packages, and what imports what."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

PACKAGE = Path("src", "octavo")
"""The folder of the package ``octavo``. It has the public names, and a link to each folder with code (decision 001)."""

_NOT_OURS = {"build", "dist", "__pycache__", "octavo-data"}
"""Made by tools and by running Octavo. Folders whose names begin with a dot are left out as well, but for `.ci`."""


class Import(NamedTuple):
    """One imported name: ``module`` is absolute, and may name a class or function (``from m import x``: ``m.x``)."""

    module: str
    line: int


@cache
def library_folders() -> frozenset[str]:
    """Top-level folders whose code is in the distribution: the one of the package, and those that it links."""
    linked = {path.name for path in (ROOT / PACKAGE).iterdir() if path.is_symlink()}
    return frozenset({PACKAGE.parts[0], *linked})


@cache
def tree_files() -> tuple[Path, ...]:
    """Every file of the project by its own path, relative to the root, without what tools and runs have left behind."""

    def walk(folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if path.is_symlink():
                continue  # what a link leads to has a path of its own
            if path.is_dir():
                hidden = path.name.startswith(".") and path.name != ".ci"
                if not (hidden or path.name in _NOT_OURS or path.name.endswith(".egg-info")):
                    yield from walk(path)
            elif path.name != ".git":  # in a linked work tree it is a file
                yield path.relative_to(ROOT)

    return tuple(walk(ROOT))


@cache
def python_files() -> tuple[Path, ...]:
    """Every Python file of the project, relative to the root."""
    return tuple(path for path in tree_files() if path.suffix == ".py")


@cache
def library_modules() -> dict[str, Path]:
    """Every module of the distribution by its import name, as the mapping and the folders say it should be."""
    modules: dict[str, Path] = {}
    for path in python_files():
        if path.parts[0] in library_folders():
            modules[module_name(path)] = path
    return modules


def module_name(path: Path) -> str:
    """Import name of a file of the library: ``bookie/journal/journal.py`` is ``octavo.bookie.journal.journal``."""
    own = path.with_suffix("").relative_to(PACKAGE) if path.is_relative_to(PACKAGE) else path.with_suffix("")
    parts = ("octavo", *own.parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def syntax_tree(path: Path) -> ast.Module:
    """The parsed file, given relative to the root."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=str(path))


def dotted_name(expression: ast.expr) -> str:
    """``a.b.c`` of such an expression, "" of any other. Far cheaper than to write the expression out."""
    names: list[str] = []
    while isinstance(expression, ast.Attribute):
        names.append(expression.attr)
        expression = expression.value
    return ".".join([expression.id, *reversed(names)]) if isinstance(expression, ast.Name) else ""


def imports_of(tree: ast.Module, importer: str, *, is_package: bool = False) -> list[Import]:
    """Every import in the module called ``importer``, wherever it stands, relative ones made absolute.

    Modules named to ``importlib.import_module`` or ``__import__`` in a literal count too.
    """
    found: list[Import] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                enclosing = importer.split(".")
                kept = len(enclosing) - node.level + (1 if is_package else 0)
                base = ".".join([*enclosing[:kept], *([base] if base else [])])
            found += [Import(f"{base}.{alias.name}", node.lineno) for alias in node.names]
        elif isinstance(node, ast.Call) and dotted_name(node.func) in {
            "importlib.import_module",
            "import_module",
            "__import__",
        }:
            name = node.args[0] if node.args else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                found.append(Import(name.value, node.lineno))
    return found


@cache
def imports_in_file(path: Path) -> list[Import]:
    """Every import in a file of the project, given relative to the root."""
    importer = module_name(path) if path.parts[0] in library_folders() else ".".join(path.with_suffix("").parts)
    return imports_of(syntax_tree(path), importer, is_package=path.name == "__init__.py")
