"""The programs of docs/testing.md, and the fixtures, in a pytest of their own."""

import re
import subprocess
import sys
from pathlib import Path

import octavo.testing
import pytest
from octavo.testing.plugin import log_name
from support.docstring_examples import examples_in
from support.tree import ROOT

PROGRAMS = re.compile(r"^```python\n# (?P<name>\w+\.py)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)

MORE = """
import asyncio
import sys

import octavo
import octavo.testing
import pytest

NAMES = set()


def test_without_an_event_loop(octavo_cluster):
    async def add():
        async with octavo.connect(octavo_cluster.uri) as client:
            async with client.create_log("no-loop") as log, log.lead() as writer:
                return await writer.add(b"payload")

    assert asyncio.run(add()) == 0


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.asyncio
async def test_a_log_of_its_own(octavo_log, number):
    assert octavo_log.name not in NAMES
    NAMES.add(octavo_log.name)
    async with octavo_log.lead() as writer:
        assert await writer.add(b"payload") == 0
"""

IDLE = """
import sys


def test_nothing_is_loaded_that_is_not_used():
    assert "octavo.testing.plugin" in sys.modules
    assert not [name for name in sys.modules if name.startswith(("octavo.client", "octavo.bookie"))]
"""


def run_pytest(folder: Path) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:schemathesis", "."],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_every_program_of_the_page_passes(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    programs = {found["name"]: found["code"] for found in PROGRAMS.finditer(text)}
    assert len(programs) == text.count("```python") >= 5
    for name, code in programs.items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (tmp_path / "test_more.py").write_text(MORE, encoding="utf-8")
    assert "10 passed" in run_pytest(tmp_path)


def test_the_plugin_costs_nothing_where_it_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (tmp_path / "test_idle.py").write_text(IDLE, encoding="utf-8")
    assert "1 passed" in run_pytest(tmp_path)


@pytest.mark.parametrize(
    ("test", "start"),
    [
        ("test_orders", "test_orders-"),
        ("test_x[a b/c-1]", "test_x-a-b-c-1-"),
        ("[]", "test-"),
        ("x" * 300, "x" * 100 + "-"),
    ],
)
def test_names_of_logs(test: str, start: str) -> None:
    name = log_name(test)
    assert name.startswith(start)
    assert name.removeprefix(start).isdigit()
    assert log_name(test) != name


def test_public_names_have_examples() -> None:
    assert octavo.testing.__all__ == ["Clock", "Cluster", "cluster"]
    assert examples_in(octavo.testing.Clock.__doc__ or "")
    assert examples_in(octavo.testing.cluster.__doc__ or "")
    assert examples_in(octavo.testing.Cluster.serve_kafka.__doc__ or "")
    with pytest.raises(AttributeError, match="no attribute 'clutser'"):
        _ = octavo.testing.clutser
