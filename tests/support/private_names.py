"""Uses of private attributes of Octavo's objects in tests (tests/house/test_tidy.py).

A use is an attribute ``x._name`` where ``x`` is not ``self`` or ``cls``, the name is defined somewhere in Octavo (as an
attribute, a function, a class, or a name of a module), and the file of the test does not define it itself. What a named
tuple or the interpreter defines (``_replace``, ``__dict__``) does not count.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

_OF_NAMED_TUPLES = frozenset(vars(NamedTuple("_Any", [("one", int)])))


class Use(NamedTuple):
    """One use."""

    line: int
    text: str


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in _OF_NAMED_TUPLES


def private_names_in(tree: ast.AST) -> frozenset[str]:
    """The private names that a module defines, at any level."""
    return frozenset(name for node in ast.walk(tree) for name in _defined_by(node) if _is_private(name))


def _defined_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
            yield name


def uses_in(tree: ast.AST, private: frozenset[str]) -> list[Use]:
    """The uses of these private names in the tree of a test's file, without names that the file defines."""
    foreign = private - private_names_in(tree)
    return [
        Use(node.lineno, ast.unparse(node))
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in foreign
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    ]
