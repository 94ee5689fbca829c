"""Pages of the site played as their readers play them: programs are saved, commands pasted into one shell, one block
after another, and what a page shows as printed is compared with what they print.

A block ``python`` is a program, whose first line names its file: ``# shop.py``. A block ``sh`` is pasted. A block
``text`` after it is what it prints; ``...`` stands for anything.
"""

import contextlib
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from support.commands.command_server import server_address
from support.commands.processes import environment
from support.tree import ROOT
from support.waiting import WAIT_SECONDS

BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM_NAME = re.compile(r"# (?P<name>[\w/]+\.py)\n")

BLOCK_SECONDS_MAX = 3 * WAIT_SECONDS


class Block(NamedTuple):
    """A block of a page."""

    language: str
    code: str

    @property
    def program(self) -> str | None:
        """The name of the file that it is saved as; None of what is no program."""
        found = PROGRAM_NAME.match(self.code) if self.language == "python" else None
        return None if found is None else found["name"]


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page, which is named from the root of the tree."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(found["language"], found["code"]) for found in BLOCK.finditer(text)]


def save(block: Block, folder: Path) -> None:
    """Save a program under its name."""
    assert block.program is not None
    path = folder / block.program
    assert not path.exists(), f"two programs are called {block.program}"
    path.write_text(block.code, encoding="utf-8")


def prints(expected: str, output: str) -> bool:
    """Whether a block ``text`` shows this output."""
    pattern = re.escape(expected.rstrip()).replace(r"\.\.\.", ".*")
    return re.fullmatch(pattern, output.rstrip(), re.DOTALL) is not None


def tool(folder: Path, first: Mapping[str, str]) -> Path:
    """A folder with the command ``octavo``, which is quick to start (:mod:`support.commands.command_server`).
    ``first`` has more arguments for some of its commands: for ports that are free."""
    command = f'"{sys.executable}" -I -S "{ROOT}/tests/support/commands/command_client.py" "{server_address()}"'
    cases = "".join(f'if [ "$1" = {name} ]; then exec {command} "$@" {more}; fi\n' for name, more in first.items())
    folder.mkdir()
    (folder / "octavo").write_text(f'#!/bin/sh\n{cases}exec {command} "$@"\n')
    (folder / "octavo").chmod(0o755)
    return folder


class Shell:
    """One terminal: a shell in a folder, in which blocks run one after another. The first failure ends it."""

    def __init__(self, folder: Path, tools: Path, **variables: str) -> None:
        self._folder = folder
        self._errors = tools / "errors"
        path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
        with self._errors.open("ab") as errors:
            self._bash = subprocess.Popen(
                ["bash", "--norc", "-euo", "pipefail"],
                cwd=folder,
                env=environment(PATH=path, **variables),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,
            )
        self._blocks = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, 9)  # with what a block has left in the background
        self._bash.communicate()

    def paste(self, code: str) -> str:
        """Run a block; what it prints."""
        self._blocks += 1
        script = self._errors.with_name(f"block-{self._blocks}.sh")
        script.write_text(code, encoding="utf-8")
        end = f"-- the end of block {self._blocks}\n"
        assert self._bash.stdin is not None
        self._bash.stdin.write(f'source "{script}" < /dev/null; printf "%s" "{end}"\n'.encode())
        self._bash.stdin.flush()
        output = self._read_until(end.encode(), code)
        return output.decode().removesuffix(end)

    def _read_until(self, end: bytes, code: str) -> bytes:
        assert self._bash.stdout is not None
        descriptor, output = self._bash.stdout.fileno(), b""
        deadline = time.monotonic() + BLOCK_SECONDS_MAX
        while not output.endswith(end):
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(descriptor, 1 << 16) if ready else b""
            assert more, f"failed or hung:\n{code}\n{output.decode()}\n{self._errors.read_text()}"
            output += more
        return output


def play(
    page: str,
    folder: Path,
    shell: Shell,
    *,
    shown: Collection[str] = (),
    together: re.Pattern[str] | None = None,
    addresses: Mapping[str, str] | None = None,
) -> int:
    """Play a page from its top to its bottom in a folder; how many blocks it has that are played.

    ``shown`` has the beginnings of blocks that are not played. Those that match ``together`` are played by the caller,
    who runs them at once. ``addresses``: what stands for some words of the page.
    """
    played: int = 0
    printed: str | None = None
    for block in blocks_of(page):
        if any(block.code.startswith(beginning) for beginning in shown):
            printed = None
            continue
        played += 1
        code = block.code
        for address, here in (addresses or {}).items():
            code = code.replace(address, here)
        if block.language == "text":
            assert printed is not None, f"{page} shows what nothing prints:\n{code}"
            assert prints(code, printed), f"{page} shows:\n{code}\nand what is printed is:\n{printed}"
        elif block.language == "sh":
            printed = None if together is not None and together.fullmatch(code) else shell.paste(code)
        else:
            save(Block(block.language, code), folder)
            printed = None
    return played
