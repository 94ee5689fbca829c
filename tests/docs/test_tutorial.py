"""docs/tutorial.md, played from an empty folder as it stands, with real processes."""

from pathlib import Path

from support.commands.pages import Shell, play, tool
from support.commands.processes import octavo

PAGE = "docs/tutorial.md"

INSTALLED = "python3 -m venv"
"""The beginning of the block that installs: tests/house/test_packaging.py installs the wheel."""


def test_the_tutorial_leads_from_an_empty_folder_to_failover(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    tools = tool(tmp_path / "tools", {"up": "--base-port 0"})
    try:
        with Shell(folder, tools, PYTEST_ADDOPTS="-p no:schemathesis") as shell:
            assert play(PAGE, folder, shell, shown=[INSTALLED]) > 20
        assert "stopped" in octavo("status", cwd=folder).stdout.decode(), "the page stops what it starts"
    finally:
        octavo("down", "--data-dir", folder / "octavo-data")
