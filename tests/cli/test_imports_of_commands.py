"""What a command loads before it does anything: modules are counted, because times depend on the machine."""

import ast
import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from octavo.metadata.connect import open_metadata_store
from support.commands.processes import environment
from support.tree import imports_in_file, library_modules, syntax_tree
from support.waiting import WAIT_SECONDS

NEVER = ("rich.", "pyarrow", "pyspark", "octavo.gateway", "octavo.repair", "octavo.pipeline", "octavo.bookie.storage")
"""What no command needs that is about something else."""

ABOUT = {"topic": "octavo.gateway", "repair": "octavo.repair"}
"""Commands that are about one of these."""

LATE = ("structlog", "aiofiles", "aiozk", "h11", "hypothesis", "zlib_ng")
"""Modules of others that are loaded by commands that log, open a file, or use ZooKeeper."""

BARE = {
    *("octavo", "octavo._version", "octavo.protocol", "octavo.protocol.errors", "octavo.cli", "octavo.cli.main"),
    *("octavo.cli.commands", "octavo.cli.session", "octavo.cli.output", "octavo.cli.running_cluster"),
    "octavo.protocol.light_dataclass",
}
"""Modules of Octavo that may be loaded to list the commands, or to refuse a word that is none: a new one makes every
command slower."""

NOT_BARE = {"asyncio", "uvloop", "structlog", "msgpack", "sqlite3", "ssl", "socket", "rich"}
"""Modules of others that only a running command needs."""

NOT_LISTING = {
    *("structlog", "uvloop", "ctypes", "urllib.parse", "ipaddress", "secrets", "hmac", "aiofiles", "msgpack", "rich"),
    *("octavo.bookie.logs", "octavo.client.client", "octavo.client.wire.connection", "octavo.client.write.core"),
    *("octavo.protocol.messages", "octavo.metadata.ledger.model", "octavo.metadata.stream.model"),
}
"""Modules that a list of logs does without: each takes a hundredth of its time, or more."""

SILENT_EXCEPT = ("octavo.metadata.zookeeper.", "octavo.bookie.logs")
"""What logs with structlog under commands that are declared not to: the driver of ZooKeeper, for which logging is set
up, and what sets it up."""

PROGRAM = """
import json, os, sys
from octavo.cli.main import main
status = main(sys.argv[1:])
os.write(3, json.dumps([status, sorted(sys.modules)]).encode())
"""


def loaded_by(*arguments: str, folder: Path) -> tuple[int, set[str]]:
    """The exit status of a command in a process of its own, and the modules that it has loaded."""
    report = folder / "report.json"
    with report.open("wb") as file:
        program = PROGRAM.replace("os.write(3,", f"os.write({file.fileno()},")
        subprocess.run(
            [sys.executable, "-P", "-c", program, *arguments],
            env=environment(),
            cwd=folder,
            capture_output=True,
            timeout=WAIT_SECONDS,
            check=True,
            pass_fds=[file.fileno()],
        )
    status, modules = json.loads(report.read_text())
    return status, set(modules)


async def make_store(folder: Path) -> None:
    """Metadata of a cluster without bookies, where commands look for them."""
    await (await open_metadata_store(f"sqlite:///{folder}/octavo-data/metadata.db", create=True)).close()


def octavo_modules(modules: set[str]) -> int:
    return sum(name.startswith("octavo.") for name in modules)


COMMANDS = [
    ("--version", 0, 3),
    ("log list", 0, 80),
    ("log create orders", 1, 270),
    ("log show orders", 1, 195),
    ("log read orders", 1, 195),
    ("log tail orders", 1, 195),
    ("log cursors orders", 1, 195),
    ("ledger list", 0, 90),
    ("ledger show 7", 1, 90),
    ("ledger read 7", 1, 195),
    ("bookies", 0, 92),
    ("topic list", 0, 75),
    ("topic show orders", 1, 197),
    ("cluster show", 0, 72),
    ("cluster status", 1, 98),
    ("repair status", 0, 127),
]
"""Commands that people wait for, the exit status of each on a cluster without bookies, and the most modules of Octavo
that it may load. They are those that it loads today, and a few more."""


@pytest.mark.parametrize(("line", "expected", "octavo_max"), COMMANDS, ids=[line for line, _, _ in COMMANDS])
def test_a_command_loads_what_it_needs(line: str, expected: int, octavo_max: int, tmp_path: Path) -> None:
    asyncio.run(make_store(tmp_path))
    status, modules = loaded_by(*line.split(), folder=tmp_path)
    assert status == expected
    unwanted = {*NEVER, *LATE} - {ABOUT.get(line.partition(" ")[0])}
    assert [name for name in sorted(modules) if name.startswith((*unwanted,))] == []
    assert octavo_modules(modules) <= octavo_max
    sources = library_modules()
    assert [name for name in sorted(modules & {*sources}) if has_heavy_dataclass(sources[name])] == []


def test_the_search_for_heavy_dataclasses_finds_some() -> None:
    assert has_heavy_dataclass(library_modules()["octavo.pipeline.base.planning"])


def has_heavy_dataclass(path: Path) -> bool:
    """Whether a module has frozen dataclasses of the standard library. Python compiles seven methods of each, which
    takes four times as long as the one of ``octavo.protocol.light_dataclass``."""
    tree = syntax_tree(path)
    standard = any(
        isinstance(node, ast.ImportFrom)
        and node.module == "dataclasses"
        and "dataclass" in {a.name for a in node.names}
        for node in ast.walk(tree)
    )
    frozen = any(isinstance(node, ast.keyword) and node.arg == "frozen" for node in ast.walk(tree))
    return standard and frozen and path.name != "light_dataclass.py"


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), (), ("no-such-command",)], ids=" ".join)
def test_the_list_of_commands_loads_none_of_them(arguments: tuple[str, ...], tmp_path: Path) -> None:
    _, modules = loaded_by(*arguments, folder=tmp_path)
    assert {name for name in modules if name.partition(".")[0] == "octavo"} == BARE
    assert modules & NOT_BARE == set()


def test_help_of_a_command_loads_no_event_loop(tmp_path: Path) -> None:
    status, modules = loaded_by("log", "list", "--help", folder=tmp_path)
    assert status == 0
    assert modules & {"asyncio", "uvloop", "structlog", "octavo.client", "octavo.metadata", "octavo.bookie"} == set()


def test_the_version_is_told_without_a_command_line(tmp_path: Path) -> None:
    _, modules = loaded_by("--version", folder=tmp_path)
    assert not modules & {"typer", "pydantic", "asyncio"}


def test_listing_logs_loads_no_client_and_nothing_that_only_others_need(tmp_path: Path) -> None:
    asyncio.run(make_store(tmp_path))
    status, modules = loaded_by("log", "list", folder=tmp_path)
    assert status == 0
    assert modules & NOT_LISTING == set()


def declares_no_logs(path: Path) -> bool:
    return any(
        isinstance(node, ast.keyword)
        and node.arg == "logs"
        and isinstance(node.value, ast.Constant)
        and node.value.value is False
        for node in ast.walk(syntax_tree(path))
    )


def loggers_below(start: str) -> list[str]:
    """Modules that import structlog, of all that this one may ever load."""
    modules = library_modules()
    seen, waiting, found = {start}, [start], []
    while waiting:
        module = waiting.pop()
        for imported, _ in imports_in_file(modules[module]):
            name = imported
            while name not in modules and "." in name:
                name = name.rpartition(".")[0]
            if name == "structlog":
                found.append(module)
            elif name in modules and name not in seen and not name.startswith(SILENT_EXCEPT):
                seen.add(name)
                waiting.append(name)
    return found


def test_commands_that_set_up_no_logging_use_nothing_that_logs_with_structlog() -> None:
    """What it logs before it is set up goes to standard output, among the results."""
    commands = [
        name for name, path in library_modules().items() if name.startswith("octavo.cli.") and declares_no_logs(path)
    ]
    assert {"octavo.cli.log.commands", "octavo.cli.ledger.commands", "octavo.cli.cluster.status"} <= {*commands}
    assert {name: found for name in commands if (found := loggers_below(name))} == {}
    assert loggers_below("octavo.cli.bookie.commands") != [], "the search finds loggers"


ONLY_TO_WRITE = (
    *("octavo.client.write.", "octavo.client.writing", "octavo.client.recover.", "octavo.client.choose."),
    *("octavo.client.log.creation", "octavo.client.log.stream.lead", "octavo.client.log.writer.leader"),
    *("octavo.metadata.ledger.changes", "octavo.metadata.stream.changes", "octavo.client.log.stream.changes"),
)
"""Modules of a client that begin with one of these names are for writing, and for ending what another one wrote."""

ONLY_IF_ASKED = (
    "octavo.client.statistics.",
    "octavo.metrics.table",
    "octavo.client.wire.security",
    "octavo.security.tls",
)
"""For statistics, and for clients with TLS or a key."""

NEEDED_BY_OPTIONS = {"octavo.security.tls_options"}


def test_a_client_that_reads_loads_nothing_to_write_with(tmp_path: Path) -> None:
    _, modules = loaded_by("log", "read", "orders", folder=tmp_path)
    assert "octavo.client.client" in modules
    assert [name for name in modules if name.startswith("octavo.client.log.chain.")] == [], "most programs have streams"
    unwanted = (*ONLY_TO_WRITE, *ONLY_IF_ASKED)
    assert [name for name in sorted(modules - NEEDED_BY_OPTIONS) if name.startswith(unwanted)] == []
    assert "structlog" not in modules
