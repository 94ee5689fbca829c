"""Tests use the project's own code as it is: what they vary are settings, parameters, and the seams to the world.

Replaced code makes a test pass that says nothing of the real code, and it breaks with every change of the inside.
"""

import ast

from support.tree import python_files, syntax_tree

WORLD = {"loop", "os"}
"""What may be replaced: the operating system's calls, and the clock of an event loop."""

EXCUSED = {
    "tests/client/recover/test_recovery.py": "a defect in a step of the state machine",
    "tests/client/write/test_writer_changes.py": "a defect in a step of the state machines",
    "tests/zookeeper/test_aiozk_faults.py": "aiozk's pauses",
}
"""File that replaces something else -> why. No input makes correct code fail as a defect does."""


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
