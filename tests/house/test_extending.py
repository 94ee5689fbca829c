"""docs/extending.md names every member of the seams for layouts of logs and for metadata drivers, every test of their
contracts, and every module that asks for the layout of a log."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from octavo.client.log import layout
from octavo.client.log.seam import active_segment as active
from octavo.client.log.seam import lead, view
from octavo.metadata.connect import DRIVERS
from octavo.metadata.store import driver as records
from support.metadata.metadata_clusters import DRIVERS as DRIVERS_UNDER_TEST
from support.tree import ROOT, library_modules, python_files, syntax_tree

TEXT = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
SEAMS = (layout, lead, view, active, records)
"""The modules that the seams are in."""


def is_protocol(value: Any, module: str) -> bool:
    return inspect.isclass(value) and value.__module__ == module and getattr(value, "_is_protocol", False)


CLASSES = {
    name: value for module in SEAMS for name, value in vars(module).items() if is_protocol(value, module.__name__)
} | {seam.__name__: seam for seam in (layout.LayoutStatus, active.ActiveSegment, records.RecordStore)}
"""The classes whose members the page must have."""


def members_of(value: type) -> set[str]:
    """The public members of a class of a seam."""
    return {name for name in {*vars(value), *vars(value).get("__annotations__", {})} if not name.startswith("_")}


def rows_of(name: str) -> list[list[str]]:
    """The rows of the page's table about a class."""
    table = TEXT.partition(f"| member of `{name}` |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_the_seams_are_found() -> None:
    assert {"LogLayout", "LogView", "LogLead", "Place", "RecordStore"} <= CLASSES.keys()
    assert set(re.findall(r"\| member of `(\w+)` \|", TEXT)) == CLASSES.keys()


@pytest.mark.parametrize("name", CLASSES)
def test_every_member_of_a_seam_has_a_row_and_every_row_is_a_member(name: str) -> None:
    named = [member for row in rows_of(name) for member in re.findall(r"`(\w+)`", row[0])]
    assert len(named) == len(set(named))
    assert set(named) == members_of(CLASSES[name])
    assert [row for row in rows_of(name) if not row[1]] == []


def test_every_test_of_the_contracts_is_named() -> None:
    tests = [path for path in python_files() if path.is_relative_to("tests/contract") and path.name != "conftest.py"]
    assert len(tests) > 10
    assert [path for path in tests if f"`{path.name}`" not in TEXT and f"`{path}`" not in TEXT] == []


def asks_for_the_layout(tree: ast.Module) -> bool:
    """Whether code tells the documents of the layouts apart, or compares the name of a layout."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            if {found.id for found in ast.walk(node) if isinstance(found, ast.Name)} & {
                "LogDocument",
                "StreamLogDocument",
            }:
                return True
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute | ast.Name):
            name = node.left.attr if isinstance(node.left, ast.Attribute) else node.left.id
            others = [value for other in node.comparators for value in ast.walk(other)]
            texts = {value.value for value in others if isinstance(value, ast.Constant)}
            if name == "layout" and texts & {"chain", "stream"}:
                return True
    return False


def test_every_module_that_asks_for_the_layout_of_a_log_is_named() -> None:
    asking = {path.as_posix() for path in library_modules().values() if asks_for_the_layout(syntax_tree(path))}
    assert {"client/log/logs.py", "pipeline/source/log_scan.py"} <= asking
    assert {path for path in asking if f"`{path}" not in TEXT} == set()


@pytest.mark.parametrize("code", ['if log.layout == "stream": ...', "isinstance(document, LogDocument | None)"])
def test_a_question_for_the_layout_is_noticed(code: str) -> None:
    assert asks_for_the_layout(ast.parse(code))


def test_every_driver_is_named() -> None:
    drivers = {
        f"`{path.as_posix()}: {node.name}`"
        for path in [*library_modules().values(), Path("tests/simulation/engine/metadata.py")]
        for node in syntax_tree(path).body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id == "RecordStore" for base in node.bases)
    }
    assert len(drivers) == 4
    assert {driver for driver in drivers if driver not in TEXT} == set()
    assert len(DRIVERS_UNDER_TEST) == len(drivers) - 1
    assert {scheme.removesuffix("+tls") for scheme in DRIVERS} == {"memory", "sqlite", "zk"}
