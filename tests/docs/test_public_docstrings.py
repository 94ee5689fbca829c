"""Docstrings of everything public can be scanned: one line, what it guarantees, examples, and errors as a list."""

import ast
import builtins
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from octavo.metadata import MetadataStore, open_metadata_store, update_ledger, update_stream
from octavo.pipeline import register
from octavo.protocol import errors
from support.docstring_examples import examples_in, names_called, public_objects

import octavo
from octavo import metrics

INTERNAL = "Used only inside this package"
"""Said by methods that other modules of Octavo call, and users do not."""

USED = ("Client", "Log", "LogWriter", "LedgerWriter", "ExplicitIdWriter", "LedgerReader", "Cursor")
"""The classes whose methods users call: each method is called in an example."""

STORE = {
    f"MetadataStore.{name}": value
    for name, value in vars(MetadataStore).items()
    if not name.startswith("_") and (callable(value) or isinstance(value, property))
}
FUNCTIONS = {
    "metrics.register": metrics.register,
    "metrics.instrument_otel": metrics.instrument_otel,
    "pipeline.register": register,
    "open_metadata_store": open_metadata_store,
    "update_ledger": update_ledger,
    "update_stream": update_stream,
}
PUBLIC: dict[str, Any] = {**dict(public_objects()), **FUNCTIONS, "MetadataStore": MetadataStore, **STORE}
DOCUMENTED = {
    name: value
    for name, value in PUBLIC.items()
    if inspect.isclass(value) or inspect.isroutine(value) or isinstance(value, property | staticmethod | classmethod)
}
"""Everything that has a docstring of its own: no fields, no members of an enum."""

ENTRY = re.compile(r"(\w+): (\S.*[.])", re.DOTALL)


def docstring_of(value: Any) -> str:
    return inspect.cleandoc(getattr(value, "__doc__", None) or "")


def raises_in(docstring: str) -> list[str]:
    """The entries of the list of errors."""
    lines = docstring.partition("\nRaises:\n")[2].splitlines()
    listed = indented(lines)
    return [entry for entry in re.split(r"\n(?=\S)", textwrap.dedent("\n".join(listed))) if entry]


def indented(lines: list[str]) -> list[str]:
    for at, line in enumerate(lines):
        if line and not line.startswith(" "):
            return lines[:at]
    return lines


def kind_of(error: str) -> type:
    """The class with this name; ``object`` where there is none."""
    kind = getattr(octavo, error, None) or getattr(builtins, error, object)
    assert isinstance(kind, type)
    return kind


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """What is below a node, without the functions defined in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from own_nodes(child)


def names_raised(value: Any) -> set[str]:
    """The errors that the body of a function raises itself."""
    function = inspect.unwrap(getattr(value, "__func__", value))
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    raised = (node.exc for node in own_nodes(tree.body[0]) if isinstance(node, ast.Raise) and node.exc is not None)
    names = {call.func.id for call in raised if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}
    return {name for name in names if hasattr(errors, name)}


def faults_of(name: str, docstring: str, raised: set[str], of_class: str) -> list[str]:
    """What a docstring lacks."""
    first, _, rest = docstring.partition("\n")
    faults = []
    if not first.endswith((".", ":")) or (rest and not rest.startswith("\n")):
        faults.append(f"{name} begins with more than one line, or with half a sentence: {first!r}")
    if re.search(r"\b[Rr]aises?\b[^.:]*:class:", docstring.partition("\nRaises:\n")[0]):
        faults.append(f"{name} hides its errors in prose")
    entries = [(entry, ENTRY.fullmatch(entry)) for entry in raises_in(docstring)]
    faults += [
        f"{name} lists what is no error with a condition: {entry!r}"
        for entry, match in entries
        if match is None or not issubclass(kind_of(match[1]), octavo.OctavoError | ValueError | ImportError)
    ]
    listed = {match[1] for _, match in entries if match} | {entry.partition(":")[0] for entry in raises_in(of_class)}
    faults += [f"{name} raises {error} and does not list it" for error in sorted(raised - listed)]
    return faults


def of_class(name: str) -> str:
    """The docstring of the class that a member belongs to."""
    owner, _, member = name.partition(".")
    return docstring_of(PUBLIC[owner]) if member and owner in PUBLIC else ""


@pytest.mark.parametrize("name", DOCUMENTED)
def test_docstring_has_one_first_line_and_a_list_of_errors(name: str) -> None:
    value = DOCUMENTED[name]
    internal = INTERNAL in docstring_of(value)
    raised = names_raised(value) if inspect.isroutine(value) and not internal else set()
    assert faults_of(name, docstring_of(value), raised, of_class(name)) == []


CALLED = [
    name
    for name, value in DOCUMENTED.items()
    if name.partition(".")[0] in USED and inspect.isroutine(value) and INTERNAL not in docstring_of(value)
]


@pytest.mark.parametrize("name", ["connect", *(name for name in FUNCTIONS if "register" in name), *CALLED])
def test_every_method_that_users_call_is_called_in_an_example(name: str) -> None:
    method = name.rpartition(".")[2]
    examples = examples_in(docstring_of(DOCUMENTED[name])) or examples_in(of_class(name))
    assert method in names_called(examples)


RETURNED = {
    "Log": ("status", "cursors", "extents", "statistics", "read", "lead", "cursor"),
    "LogWriter": ("statistics",),
    "Client": ("statistics", "bookies", "create_log", "create_ledger", "open_ledger"),
}
"""Methods whose results users look at."""


@pytest.mark.parametrize("method", [f"{name}.{method}" for name, methods in RETURNED.items() for method in methods])
def test_everything_that_users_look_at_is_exported_and_has_an_example(method: str) -> None:
    returned = str(DOCUMENTED[method].__annotations__["return"])
    kinds = {word for word in re.findall(r"\b[A-Z]\w+", returned) if word not in {"LedgerId", "Union"}}
    assert kinds
    assert kinds <= set(octavo.__all__), kinds
    for kind in kinds:
        assert examples_in(docstring_of(getattr(octavo, kind))), kind


@pytest.mark.parametrize("name", USED)
def test_what_is_internal_is_not_shown_beside_what_users_call(name: str) -> None:
    public = {member: value for member, value in DOCUMENTED.items() if member.startswith(f"{name}.")}
    internal = [member for member, value in public.items() if INTERNAL in docstring_of(value)]
    assert internal == (["LogWriter.check_usable"] if name == "LogWriter" else [])


def test_the_help_of_the_package_begins_with_a_log() -> None:
    shown = docstring_of(octavo)
    assert shown.index("create_log") < shown.index("LogWriter") < shown.index("not named here")


def test_the_event_of_a_lost_lead_is_in_the_help() -> None:
    assert "no longer leads" in docstring_of(octavo.LogWriter.lost)


def test_the_public_names_are_found() -> None:
    assert {"connect", "Client", "Client.create_log", "Log.lead", "LogWriter.add", "MetadataStore.lock"} <= set(
        DOCUMENTED
    )
    assert len(CALLED) > 50


@pytest.mark.parametrize(
    ("docstring", "fault"),
    [
        ("Adds an entry and\nreturns its id.", "begins with more than one line"),
        ("Adds an entry", "half a sentence"),
        ("Adds an entry.\n\nRaises :class:`WouldBlock` when full.", "hides its errors"),
        ("Adds an entry.\n\nRaises:\n    WouldBlock\n", "no error with a condition"),
        ("Adds an entry.\n\nRaises:\n    OtherError: When it is full.", "no error with a condition"),
        ("Adds an entry.\n\nRaises:\n    LedgerClosedError: The ledger is closed.", "raises WouldBlock and does not"),
    ],
)
def test_a_docstring_that_cannot_be_scanned_is_noticed(docstring: str, fault: str) -> None:
    assert fault in " ".join(faults_of("add", docstring, {"WouldBlock"}, ""))


def test_a_docstring_that_can_be_scanned_is_let_through() -> None:
    docstring = (
        "Adds an entry.\n\nIt waits.\n\nRaises:\n    WouldBlock: When\n        it is full.\n    LedgerClosedError: Now."
    )
    assert faults_of("add", docstring, {"WouldBlock"}, "") == []


@pytest.mark.parametrize("name", dict(public_objects()))
def test_help_in_a_terminal_has_no_roles(name: str) -> None:
    """Names stand in code, ``Log`` or ``close()``; scripts/artifacts/docstring_links.py links them on the site."""
    docstring = docstring_of(PUBLIC[name])
    if INTERNAL not in docstring:
        assert re.findall(r":\w+:`[^`]*`", docstring) == []


def test_every_public_type_has_an_example() -> None:
    types = [(name, kind) for name, kind in public_objects() if inspect.isclass(kind) and "." not in name]
    values = [(name, kind) for name, kind in types if not issubclass(kind, Exception)]
    assert len(values) > 30
    assert [name for name, kind in values if not examples_in(docstring_of(kind))] == []
