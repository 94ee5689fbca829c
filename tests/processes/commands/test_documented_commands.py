"""The commands and programs of README and of pages for operators, run as they stand: a reader who pastes them one after
another into a shell gets what the pages say.

Each page runs from top to bottom in one empty folder, with real processes. A program is saved under the name in its
first line. One thing differs from what a reader does: ``octavo up`` takes free ports, since tests run at the same time.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support.commands.command_server import server_address
from support.commands.processes import environment, octavo
from support.tree import ROOT
from support.waiting import WAIT_SECONDS

PAGES = ("README.md", "docs/operations.md", "docs/backups.md", "docs/repair.md", "docs/security.md")

NOT_RUN = {
    ("README.md", "make demo"): "needs the tree; `make demo` and `make test` are what runs this test",
    ("README.md", "make setup"): "needs the tree; tests/house/test_make.py tests the set-up",
    ("README.md", 'echo "hello" | kcat'): "needs the gateway's port; tests/processes/commands/test_kcat.py runs it",
    ("README.md", "pip install"): "installs from a package registry",
    ("README.md", "octavo up --detach\noctavo pipeline"): "Spark takes minutes on a busy machine",
    ("README.md", "# spark_example.py"): "the same; tests/pipeline/test_pipeline_document.py runs such programs",
    ("README.md", "python spark_example.py"): "the same",
    ("docs/security.md", "tls = octavo.Tls("): "names files of a real cluster; tests/security runs the same calls",
    ("docs/security.md", "ledger = await client.create_ledger("): "the same",
    ("docs/operations.md", "octavo bookie --data-dir"): "runs in the foreground, on paths and names of a real host",
    (
        "docs/operations.md",
        "python3 -m venv",
    ): "needs root; tests/processes/commands/test_systemd_units.py runs it in a machine",
}
"""Page and beginning of a block -> why it cannot run here."""

BLOCK = re.compile(r"^```(?P<language>sh|python)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM_NAME = re.compile(r"# (?P<name>\w+\.py)\n")

BLOCK_SECONDS_MAX = 3 * WAIT_SECONDS


class Block(NamedTuple):
    """A block of a page."""

    language: str
    code: str


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(match["language"], match["code"]) for match in BLOCK.finditer(text)]


def is_run(page: str, block: Block) -> bool:
    return not any(block.code.startswith(start) for of, start in NOT_RUN if of == page)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder for a page's commands; clusters that they leave running are stopped."""
    work = tmp_path / "work"
    work.mkdir()
    tools = tmp_path / "tools"
    tools.mkdir()
    command = f'"{sys.executable}" -I -S "{ROOT}/tests/support/commands/command_client.py" "{server_address()}"'
    (tools / "octavo").write_text(
        f'#!/bin/sh\nif [ "$1" = up ]; then exec {command} "$@" --base-port 0; fi\nexec {command} "$@"\n'
    )
    (tools / "octavo").chmod(0o755)
    yield work
    for lock in work.glob("*/up.lock"):
        octavo("down", "--data-dir", lock.parent)


def paste(code: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run shell commands as a reader would, stopping at the first that fails."""
    path = os.pathsep.join([str(folder.parent / "tools"), str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=folder,
        env=environment(PATH=path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BLOCK_SECONDS_MAX,
        check=False,
    )


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_one_after_another_as_they_stand(page: str, folder: Path) -> None:
    outputs = {}
    for block in blocks(page):
        if not is_run(page, block):
            continue
        if block.language == "python":
            name = PROGRAM_NAME.match(block.code)
            assert name is not None, f"{page}: a program whose first line does not name its file:\n{block.code}"
            (folder / name["name"]).write_text(block.code, encoding="utf-8")
            continue
        done = paste(block.code, folder)
        assert done.returncode == 0, f"{page}:\n{block.code}\n{done.stdout}\n{done.stderr}"
        outputs[block.code] = done.stdout
    assert outputs
    if page == "README.md":
        payloads = [b"hello", b"world", b"!", *(b"%d" % number for number in range(1000))]
        expected = [f"{entry_id} {payload!r}" for entry_id, payload in enumerate(payloads)]
        assert outputs["python example.py\n"].splitlines() == expected
        log_expected = ["0 b'hello'", "1 b'world'", "2 b'!'"]
        assert outputs["python log_example.py\n"].splitlines() == log_expected
    status = octavo("status", "--data-dir", folder / "octavo-data")
    assert "stopped" in status.stdout.decode(), "the page stops what it starts"


@pytest.mark.parametrize("page", PAGES)
def test_every_program_of_a_page_is_run(page: str) -> None:
    programs = [block for block in blocks(page) if block.language == "python" and is_run(page, block)]
    shell = "\n".join(block.code for block in blocks(page) if block.language == "sh" and is_run(page, block))
    names = [match["name"] for block in programs if (match := PROGRAM_NAME.match(block.code))]
    assert len(names) == len(programs)
    assert [name for name in names if f"{name}\n" not in shell] == []


@pytest.mark.parametrize(("page", "start"), NOT_RUN)
def test_a_block_that_is_not_run_exists_once(page: str, start: str) -> None:
    assert len([block for block in blocks(page) if block.code.startswith(start)]) == 1


@pytest.mark.parametrize("target", ["demo", "test", "setup"])
def test_the_make_targets_of_readme_exist(target: str) -> None:
    assert any(re.search(rf"^make {target}\b", block.code, re.MULTILINE) for block in blocks("README.md"))
    assert re.search(rf"^{target}:.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
