"""Tests use the project's own code as it is: what they vary are settings, parameters, and the seams to the world.

Replaced code makes a test pass that says nothing of the real code, and it breaks with every change of the inside.
"""

import ast
import importlib
import re

import pytest
from support.tree import python_files, syntax_tree

WORLD = {"loop", "os"}
"""What may be replaced: the operating system's calls, and the clock of an event loop."""

KNOB = re.compile(r"(octavo(?:\.\w+)+):(\w+)")
"""A constant that simulated universes set: its module, and its name there."""

EXCUSED = {
    "tests/client/recover/test_recovery.py": "a defect in a step of the state machine",
    "tests/client/write/test_writer_changes.py": "a defect in a step of the state machines",
    "tests/processes/bookies/test_older_bookies.py": "a client of the version before packs",
    "tests/zookeeper/test_aiozk_faults.py": "aiozk's pauses",
}
"""File that replaces something else -> why. No input makes correct code fail as a defect does, or older than it is."""


def replaced(tree: ast.AST) -> set[str]:
    """What ``setattr`` of a ``MonkeyPatch`` changes in this file."""
    return {
        ast.unparse(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "setattr"
        and ast.unparse(node.func.value) != "object"
    }


def test_no_test_replaces_the_code_that_it_tests() -> None:
    found = {
        str(path): names
        for path in python_files()
        if path.parts[0] == "tests" and (names := replaced(syntax_tree(path)) - WORLD)
    }
    assert {path: names for path, names in found.items() if path not in EXCUSED} == {}
    assert EXCUSED.keys() - found.keys() == set(), "excused without need"


def test_a_replacement_is_found() -> None:
    source = (
        "def test(monkeypatch):\n    monkeypatch.setattr(os, 'open', f)\n    monkeypatch.setattr(Journal, 'append', f)"
    )
    assert replaced(ast.parse(source)) == {"os", "Journal"}


def knobs(tree: ast.AST) -> set[str]:
    """The constants that this file names as texts."""
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and KNOB.fullmatch(node.value)
    }


KNOBS = sorted(
    set[str]().union(
        *(knobs(syntax_tree(path)) for path in python_files() if path.parts[:2] == ("tests", "simulation"))
    )
)


@pytest.mark.parametrize("knob", KNOBS)
def test_a_constant_that_the_simulator_sets_is_there(knob: str) -> None:
    """Most universes leave it alone, so a constant that has moved would be noticed late."""
    module, _, name = knob.partition(":")
    assert name in vars(importlib.import_module(module))


def test_the_constants_that_the_simulator_sets_are_found() -> None:
    assert len(KNOBS) > 5
    assert knobs(ast.parse('plan.knobs["octavo.bookie.sample:SIZE"] = "octavo.bookie.sample"')) == {
        "octavo.bookie.sample:SIZE"
    }
