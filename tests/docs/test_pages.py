"""The how-to pages and those about other systems, played as they stand: each from its top to its bottom, in one folder
and on one cluster, as a reader would who goes through all of them."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import octavo.testing
import pytest
from support.commands.gateways import gateway
from support.commands.pages import Shell, blocks_of, play, prints, tool
from support.commands.processes import environment, free_neighbours
from support.tree import ROOT

PAGES = sorted(
    str(path.relative_to(ROOT)) for folder in ("howto", "coming-from") for path in (ROOT / "docs" / folder).glob("*.md")
)

NOT_PLAYED = {
    "octavo up --detach --kafka 9092": "the cluster of the test; tests/docs/test_tutorial.py plays `octavo up`",
    "# with aiokafka": "the other side; tests/processes/commands/test_gateway.py plays such programs",
    "# with nats-py": "the other side",
    "# with redis-py": "the other side",
    "# with psycopg": "the other side",
}
"""Beginning of a block -> why it is not played."""

RUNS_TEST = re.compile(r"python -m pytest -q (?P<name>\w+\.py)\n")


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Shell, dict[str, str]]]:
    """The folder, the shell, and what stands for the addresses on the pages."""
    root = tmp_path_factory.mktemp("pages")
    folder = root / "work"
    folder.mkdir()
    port = free_neighbours(4)
    with octavo.testing.cluster() as cluster, gateway(cluster.uri, port):
        addresses = {
            "127.0.0.1:9092": f"127.0.0.1:{port}",
            **{shown: str(port + at) for at, shown in enumerate(("8000", "8001", "8002"), start=1)},
        }
        with Shell(folder, tool(root / "tools", {}), OCTAVO_METADATA=cluster.uri) as shell:
            yield folder, shell, addresses


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_played_from_top_to_bottom(terminal: tuple[Path, Shell, dict[str, str]], page: str) -> None:
    folder, shell, addresses = terminal
    played = play(page, folder, shell, shown=list(NOT_PLAYED), together=RUNS_TEST, addresses=addresses)
    assert (played > 0) == (not page.endswith("README.md"))


def test_the_tests_on_the_pages_pass(tmp_path: Path) -> None:
    """All of them in one pytest."""
    blocks = [block for page in PAGES for block in blocks_of(page)]
    for block in blocks:
        if block.program is not None:
            (tmp_path / block.program).write_text(block.code, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    run = [found["name"] for block in blocks if (found := RUNS_TEST.fullmatch(block.code))]
    assert sorted(run) == sorted(path.name for path in tmp_path.glob("test_*.py"))
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:schemathesis", *run],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    written = sum(len(re.findall(r"^(?:async )?def test_", block.code, re.MULTILINE)) for block in blocks)
    passed = re.search(r"(\d+) passed", ended.stdout)
    assert passed is not None
    assert int(passed[1]) >= written >= len(run)


@pytest.mark.parametrize("start", NOT_PLAYED)
def test_a_block_that_is_not_played_exists_once(start: str) -> None:
    blocks = [block for page in PAGES for block in blocks_of(page)]
    assert len([block for block in blocks if block.code.startswith(start)]) == 1


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\n...\n", "a\n\nb c\n", True),
        ("2 passed in ...\n", "2 passed in 0.1s\n", True),
        ("a\n", "a\nb\n", False),
        ("a.\n", "ab\n", False),
        ("2 passed in ...\n", "1 failed, 2 passed in 0.1s\n", False),
    ],
)
def test_what_a_page_shows_is_compared_with_what_is_printed(shown: str, printed: str, same: bool) -> None:
    assert prints(shown, printed) is same


@pytest.mark.parametrize("block", ["false\n", "false | true\n", "exit 0\n", "false\ntrue\n"])
def test_a_block_that_fails_is_noticed(tmp_path: Path, block: str) -> None:
    with Shell(tmp_path, tool(tmp_path / "tools", {})) as shell:
        assert shell.paste("echo one\n") == "one\n"
        with pytest.raises(AssertionError, match="failed or hung"):
            shell.paste(block)
