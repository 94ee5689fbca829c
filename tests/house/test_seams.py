"""Time, chance, threads, files and sockets come in through the seams only, so that a simulator can stand behind them.

What the seams are, docs/simulator.md says. A module that is no seam asks its event loop for the time, an ``rng`` it was
given for chance, a ``FileSystem`` for files, the loop for connections, a ``MetadataStore`` for what the cluster agrees
on.
"""

import ast
from pathlib import Path

import pytest
from support.tree import imports_of, library_modules, syntax_tree

SEAMS = {
    "octavo.bookie.archive.file_store": "files of the operating system",
    "octavo.bookie.admin.introspection": "what the interpreter says about the process",
    "octavo.bookie.admin.process": "what the operating system says about the process",
    "octavo.bookie.admin.server": "sockets in the file system",
    "octavo.bookie.administration": "made by the daemon: the administration of a bookie's process",
    "octavo.bookie.disk.async_writes": "files of the operating system",
    "octavo.bookie.config": "reads its configuration file before anything runs",
    "octavo.bookie.daemon": "the process around a bookie: signals, exit status, chance",
    "octavo.bookie.disk.direct_io": "files of the operating system",
    "octavo.bookie.disk.descriptors": "file descriptors of the process",
    "octavo.bookie.disk.shortage": "what the operating system says about a full disk",
    "octavo.bookie.disk.writeback": "files of the operating system",
    "octavo.bookie.disk.filesystem": "files of the operating system",
    "octavo.bookie.log_output": "standard error of the process",
    "octavo.bookie.logs": "times of the process's own log lines",
    "octavo.client.client_name": "names the host and the process in the metadata of ledgers that a client fences",
    "octavo.bookie.notify": "tells the process's supervisor",
    "octavo.bookie.disk.real_file": "files of the operating system",
    "octavo.bookie.process_health": "the pulse of the process: its supervisor, its interpreter",
    "octavo.gateway.access.access": "nonces that no client can guess",
    "octavo.security.audit": "the file of the audit log, and the thread that writes it",
    "octavo.bookie.server.access": "nonces that no client can guess",
    "octavo.client.wire.security": "key files, and nonces that no bookie can guess",
    "octavo.client.write.front.precise_time": "the clock from which uvloop takes its time",
    "octavo.security.contexts": "files of certificates and keys",
    "octavo.security.secret_files": "files of passwords, keys and tokens",
    "octavo.security.tls_session": "OpenSSL, on buffers in memory",
    "octavo.security.forks": "what a forked child has inherited",
    "octavo.metrics.export": "whether a client is of this process or of the one that it was forked from",
    "octavo.metrics.clock": "durations in metrics, by which nothing is decided",
    "octavo.metadata.clocks.boot_time": "the clock of leases",
    "octavo.metadata.connect": "the table of drivers: destroys a store with its files",
    "octavo.metadata.sqlite.store": "a driver of the metadata store",
    "octavo.metadata.sqlite.database": "a driver of the metadata store",
    "octavo.metadata.sqlite.inherited": "a driver of the metadata store",
}
"""Modules that may reach for the real world, and what for. Drivers of metadata stores are in ``metadata/zookeeper``."""

PROGRAMS = ("octavo.cli", "octavo.pipeline", "octavo.testing")
"""Packages of programs, and what users' tests run: they run beside a simulated world, never in it."""

REAL_WORLD = frozenset({
    "concurrent", "ctypes", "fcntl", "mmap", "multiprocessing", "os", "queue", "secrets", "select", "selectors",
    "shutil", "signal", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "time", "uuid", "uvloop",
})  # fmt: skip
"""Modules whose use is a way around the seams."""

SOCKET_CONSTANTS = frozenset({"IPPROTO_TCP", "TCP_NODELAY"})

CHANCE_OF_ONES_OWN = frozenset({"Random", "SystemRandom"})
"""Classes of ``random``: made only where an ``rng`` was not given. Its functions share one hidden state."""

AROUND_THE_LOOP = frozenset({"run_in_executor", "to_thread", "call_soon_threadsafe", "open_connection", "start_server"})

FILE_METHODS = frozenset({
    "read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "glob", "rglob", "mkdir", "unlink", "touch",
    "rmdir",
})  # fmt: skip

WALL_CLOCKS = frozenset({"datetime.utcnow", "datetime.today", "date.today"})


def is_seam(module: str) -> bool:
    """Whether a module may touch the real world."""
    return module in SEAMS or module.startswith((*PROGRAMS, "octavo.metadata.zookeeper."))


def ways_around(tree: ast.Module, module: str) -> list[str]:
    """Every place where a module reaches for the real world by itself."""
    found = [
        f"line {line}: imports {name}" for name, line in imports_of(tree, module) if name.split(".")[0] in REAL_WORLD
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner, name = node.value.id, node.attr
            if (owner == "random" and name not in CHANCE_OF_ONES_OWN) or (
                owner == "socket" and name not in SOCKET_CONSTANTS
            ):
                found.append(f"line {node.lineno}: {owner}.{name}")
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            last = called.rpartition(".")[2]
            if called in {"open", "input"} or called in WALL_CLOCKS or last in AROUND_THE_LOOP | FILE_METHODS:
                found.append(f"line {node.lineno}: {called}()")
    return found


def simulated_modules() -> dict[str, Path]:
    return {module: path for module, path in library_modules().items() if not is_seam(module)}


def test_nothing_goes_around_the_seams() -> None:
    modules = simulated_modules()
    assert len(modules) > 50
    assert {m: found for m, path in modules.items() if (found := ways_around(syntax_tree(path), m))} == {}


def test_every_seam_that_is_named_exists() -> None:
    assert SEAMS.keys() <= library_modules().keys()


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "from threading import Thread",
        "import random\nrandom.shuffle([1])",
        "import asyncio\nasyncio.to_thread(print)",
        "open('x')",
        "from pathlib import Path\nPath('x').read_bytes()",
        "import socket\nsocket.socket()",
        "from datetime import datetime\ndatetime.utcnow()",
    ],
)
def test_way_around_is_noticed(line: str) -> None:
    assert ways_around(ast.parse(line), "octavo.bookie.example") != []


def test_ordinary_code_is_let_through() -> None:
    code = (
        "import random\nimport asyncio\nrng = random.Random(1)\nrng.random()\nasyncio.sleep(1)\nfilesystem.exists(path)"
    )
    assert ways_around(ast.parse(code), "octavo.bookie.example") == []
