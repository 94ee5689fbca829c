"""Who may import whom: one direction between packages, no bare folder names, nothing impure in the pure core."""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from support.rooms import MAY_IMPORT, ROOMS
from support.tree import (
    ROOT,
    Import,
    dotted_name,
    imports_in_file,
    imports_of,
    library_modules,
    python_files,
    syntax_tree,
)

MODULES_MAX = 22
"""Modules that a folder may hold."""

FOR_EVERYONE = "octavo._version"
"""The one module of the face that any package may read: it imports nothing."""

PURE_MODULES = frozenset(
    {
        "octavo.cli.bench.histogram",
        "octavo.cli.ledger.lines",
        "octavo.client.options",
        "octavo.client.read.plan",
        "octavo.metadata.encoding",
        "octavo.metadata.ledger.model",
        "octavo.metadata.cluster.registration",
    }
)
"""Modules that must stay pure whatever they say of themselves. All of protocol/ is pure, and so is every module whose
docstring calls it "Pure"."""

IMPURE = frozenset(
    {
        "aiofiles",
        "aiozk",
        "asyncio",
        "concurrent",
        "fcntl",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "queue",
        "random",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "sqlite3",
        "ssl",
        "structlog",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "typer",
        "uuid",
        "uvloop",
    }
)
"""What a pure module must not import: clocks, chance, threads, disks, networks, logs."""

IMPURE_CALLS = frozenset(
    {
        "open",
        "input",
        "print",
        "datetime.now",
        "datetime.utcnow",
        "datetime.today",
        "date.today",
        "datetime.datetime.now",
    }
)
"""Effects that need no import of their own."""

HARMLESS = frozenset({"pathlib.PurePath", "pathlib.PurePosixPath"})
"""Names from impure modules that are mere values."""

PROGRAM = "octavo.__main__"
"""The one module of the face that imports the command line: ``python -m octavo`` runs it, nothing imports it."""

BARE_NAMES = frozenset(MAY_IMPORT) - {"octavo"}
"""Folder names that Python finds from the root of the tree, where they make second copies of every class."""


def folder_of(module: str) -> str:
    """The folder that holds a module of ours: ``octavo.bookie.journal.journal`` is in bookie, ``octavo.connect`` in
    octavo."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in BARE_NAMES else "octavo"


def is_ours(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] == "octavo"


def owning_module(imported: str) -> str:
    """The module an import reads: the imported name itself, or what it is a member of."""
    modules = library_modules()
    while imported not in modules and "." in imported:
        imported = imported.rpartition(".")[0]
    return imported


def wrong_directions(importer: str, imports: list[Import]) -> list[str]:
    """The imports of a library module that point against the direction of dependencies."""
    folder = folder_of(importer)
    if importer == PROGRAM:
        folder = "cli"
    allowed = MAY_IMPORT[folder] | {folder}
    return [
        f"{importer}:{line} imports {module}"
        for module, line in imports
        if is_ours(module) and folder_of(module) not in allowed and not f"{module}.".startswith(f"{FOR_EVERYONE}.")
    ]


def room_of(module: str) -> str:
    """The room of a module: ``octavo.client.wire.pool`` is in client.wire, ``octavo.client.client`` in client."""
    name = module.partition(".")[2]
    if name in MAY_IMPORT:
        name += ".__init__"
    while name not in ROOMS and "." in name:
        name = name.rpartition(".")[0]
    return name


def wrong_rooms(importer: str, imports: list[Import]) -> list[str]:
    """The imports of a library module from rooms of its own folder that it may not know."""
    room, folder = room_of(importer), folder_of(importer)
    rooms = [(module, line, room_of(owning_module(module))) for module, line in imports if folder_of(module) == folder]
    return [
        f"{importer}:{line} imports {module}"
        for module, line, imported in rooms
        if room in ROOMS and is_ours(module) and imported != room and imported not in ROOMS[room]
    ]


def bare_imports(imports: list[Import]) -> list[str]:
    """The imports that name one of our folders without ``octavo.`` before it."""
    return [f"line {line} imports {module}" for module, line in imports if module.split(".")[0] in BARE_NAMES]


@cache
def pure_modules() -> frozenset[str]:
    def says_so(path: Path) -> bool:
        return re.search(r"\bPure\b", ast.get_docstring(syntax_tree(path)) or "") is not None

    modules = library_modules().items()
    return PURE_MODULES | {name for name, path in modules if folder_of(name) == "protocol" or says_so(path)}


def impurities(importer: str, imports: list[Import], tree: ast.Module) -> list[str]:
    """What makes a module impure: an import with effects, one of an impure module of ours, a call with effects."""
    found = [
        f"{importer}:{line} imports {module}"
        for module, line in imports
        if module.split(".")[0] in IMPURE and module not in HARMLESS
    ]
    found += [
        f"{importer}:{line} imports {module}, which is not pure"
        for module, line in imports
        if is_ours(module) and owning_module(module) not in pure_modules()
    ]
    found += [
        f"{importer}:{node.lineno} calls {dotted_name(node.func)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and dotted_name(node.func) in IMPURE_CALLS
    ]
    return found


def imports_of_source(source: str, importer: str = "octavo.bookie.sample") -> list[Import]:
    return imports_of(ast.parse(source), importer)


def test_every_folder_of_the_library_has_its_place_in_the_direction() -> None:
    assert {folder_of(name) for name in library_modules()} <= set(MAY_IMPORT)


def test_dependencies_point_one_way() -> None:
    assert [
        wrong for name, path in library_modules().items() for wrong in wrong_directions(name, imports_in_file(path))
    ] == []


def test_every_folder_inside_a_folder_is_a_room() -> None:
    inner = {".".join(path.parts[:-1]) for path in library_modules().values() if len(path.parts) > 2}
    divided = {"bookie", "cli", "client", "gateway", "metadata", "pipeline", "repair"}
    assert {room for room in inner if room.split(".")[0] in divided} <= ROOMS.keys()


def test_no_folder_is_a_drawer() -> None:
    """A folder with more modules is divided into rooms."""
    folders = Counter(path.parent for path in python_files() if path.name != "__init__.py")
    assert {str(folder): count for folder, count in folders.items() if count > MODULES_MAX} == {}


def test_every_room_of_the_table_holds_modules() -> None:
    assert {room_of(module) for module in library_modules()} >= ROOMS.keys()


def test_the_table_of_rooms_names_a_room_before_it_is_imported() -> None:
    names = list(ROOMS)
    assert [room for room, below in ROOMS.items() if any(names.index(b) > names.index(room) for b in below)] == []


def test_rooms_know_only_those_below_them() -> None:
    assert [
        wrong for name, path in library_modules().items() for wrong in wrong_rooms(name, imports_in_file(path))
    ] == []


def in_a_circle(importing: Mapping[str, set[str]]) -> set[str]:
    """The modules that import themselves by way of others."""

    def reached(module: str) -> set[str]:
        found: set[str] = set()
        todo = [*importing.get(module, ())]
        while todo:
            following = todo.pop()
            if following not in found:
                found.add(following)
                todo += importing.get(following, ())
        return found

    return {module for module in importing if module in reached(module)}


def test_no_modules_import_one_another_in_a_circle() -> None:
    """Imports inside functions and for types only count, too: two modules that know one another are one."""
    modules = library_modules()
    importing = {
        name: {owning_module(module) for module, _ in imports_in_file(path) if is_ours(module)} - {name}
        for name, path in modules.items()
    }
    assert in_a_circle(importing) == set()


@pytest.mark.parametrize(
    ("imports", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, set()),
        ({"a": {"b"}, "b": {"a"}}, {"a", "b"}),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, {"b", "c"}),
    ],
)
def test_a_circle_is_found(imports: dict[str, set[str]], found: set[str]) -> None:
    assert in_a_circle(imports) == found


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("octavo.bookie.journal.sample", "from octavo.bookie.storage.storage import Storage"),
        ("octavo.bookie.disk.sample", "from octavo.bookie.config import BookieConfig"),
        ("octavo.client.wire.sample", "from octavo.client.write import writer"),
        ("octavo.client.read.sample", "from ..write.writer import LedgerWriter"),
        ("octavo.client.choose.sample", "import octavo.client.client"),
        ("octavo.metadata.sqlite.sample", "from octavo.metadata.connect import open_metadata_store"),
        ("octavo.metadata.zookeeper.sample", "from octavo.metadata.sqlite import store"),
    ],
)
def test_an_import_from_a_room_above_or_beside_is_noticed(importer: str, source: str) -> None:
    assert wrong_rooms(importer, imports_of_source(source, importer)) != []


@pytest.mark.parametrize(
    "source",
    [
        "from octavo.client import connection",
        "import octavo.client.write.writer",
        "def late():\n    from octavo import client",
        "from ..client import writer",
        "from octavo import connect",
        "import importlib\nimportlib.import_module('octavo.cli.main')",
    ],
)
def test_a_bookie_that_imports_the_client_or_the_face_is_noticed(source: str) -> None:
    assert wrong_directions("octavo.bookie.sample", imports_of_source(source)) != []


@pytest.mark.parametrize(
    "source",
    [
        "from octavo.protocol import ids",
        "from octavo.metadata.ledger.model import LedgerMetadata",
        "from . import journal",
        "from .journal import Journal",
        "from octavo._version import __version__",
        "import asyncio",
    ],
)
def test_a_bookie_may_import_what_lies_below_it(source: str) -> None:
    assert wrong_directions("octavo.bookie.sample", imports_of_source(source)) == []


def test_no_module_imports_our_folders_by_their_bare_names() -> None:
    assert {path: bare for path in python_files() if (bare := bare_imports(imports_in_file(path)))} == {}


@pytest.mark.parametrize(
    "source", ["import protocol", "from client import writer", "import cli.main as m", "__import__('metadata')"]
)
def test_a_bare_name_is_noticed(source: str) -> None:
    assert bare_imports(imports_of_source(source)) != []


def test_no_folder_of_the_tests_hides_the_package() -> None:
    # tests/ is on the import path of pytest: a folder tests/octavo would be found before an editable install is.
    assert not (ROOT / "tests" / "octavo").exists()


def test_every_module_listed_as_pure_exists() -> None:
    assert set(library_modules()) >= PURE_MODULES


def test_pure_modules_are_pure() -> None:
    modules = library_modules()
    assert [
        impurity
        for name in sorted(pure_modules())
        for impurity in impurities(name, imports_in_file(modules[name]), syntax_tree(modules[name]))
    ] == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from os import path",
        "import concurrent.futures",
        "def late():\n    import random",
        "from octavo.bookie.disk.filesystem import File",
        "from datetime import datetime\nnow = datetime.now()",
        "data = open('x').read()",
    ],
)
def test_an_effect_in_a_pure_module_is_noticed(source: str) -> None:
    tree = ast.parse(source)
    assert impurities("octavo.protocol.sample", imports_of(tree, "octavo.protocol.sample"), tree) != []


def test_the_library_imports_only_what_the_distribution_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    runtime = project["dependencies"] + [line for extra in extras if extra != "dev" for line in extras[extra]]
    declared = {line.split(">")[0].split("[")[0].strip().lower() for line in runtime}
    providers = packages_distributions()

    def undeclared(path: Path) -> list[str]:
        tops = {module.split(".")[0] for module, _ in imports_in_file(path)}
        foreign = tops - {"octavo"} - sys.stdlib_module_names
        return sorted(top for top in foreign if not declared & {d.lower() for d in providers.get(top, [top])})

    assert {path: names for path in library_modules().values() if (names := undeclared(path))} == {}
