"""The procedures of docs/procedures.md, run one after another as they stand, on one cluster of processes.

``systemctl`` starts and stops processes in place of units, and the grace times of the bookies are seconds. The suite
runs some of the procedures; ``make soak`` runs all of them.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands.command_server import server_address
from support.commands.processes import environment
from support.tree import ROOT
from support.waiting import WAIT_SECONDS

PAGE = (ROOT / "docs" / "procedures.md").read_text(encoding="utf-8")

PROCEDURES = {
    heading: re.findall(r"^```sh\n(.*?)^```$", body, re.MULTILINE | re.DOTALL)
    for heading, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
"""Heading -> blocks of commands."""

RUN = list(PROCEDURES) if os.environ.get("OCTAVO_PROCEDURES") else ["Add a bookie", "Move a bookie to another host"]

FIRST = {"one", "two", "three", "four"}

LEDGERS = 6


class Fleet:
    """The bookies ``one`` to ``four`` and some ledgers. Data of bookies, and all else, are in one folder, which stands
    for ``/var/lib/octavo``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metadata = f"sqlite:///{folder}/metadata.db"
        tools = folder / "tools"
        tools.mkdir()
        command = f'"{sys.executable}" -I -S "{ROOT}/tests/support/commands/command_client.py" "{server_address()}"'
        (tools / "octavo").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (tools / "systemctl").write_text((ROOT / "tests" / "support" / "systemctl.sh").read_text(encoding="utf-8"))
        for tool in tools.iterdir():
            tool.chmod(0o755)

    def paste(self, code: str) -> str:
        """Run commands as an operator would, stopping at the first that fails; their output."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", code.replace("/var/lib/octavo", str(self.folder))],
            cwd=self.folder,
            env=environment(
                PATH=f"{self.folder}/tools{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                OCTAVO_METADATA=self.metadata, FLEET=str(self.folder), PYTHON=sys.executable,
                OCTAVO_BOOKIE_LEASE_SECONDS="3", OCTAVO_BOOKIE_REPAIR_AUDIT_SECONDS="1",
                OCTAVO_BOOKIE_REPAIR_LOST_SECONDS="2", OCTAVO_BOOKIE_JOURNAL_SEGMENT_BYTES=str(16 << 20),
            ),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=5 * WAIT_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def kill(self) -> None:
        for file in self.folder.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    try:
        fleet.paste(
            "octavo cluster init\n"
            "systemctl start octavo-bookie@one octavo-bookie@two octavo-bookie@three octavo-bookie@four\n"
            f"for n in $(seq {LEDGERS}); do echo entry | octavo ledger append --quiet >> ids; done"
        )
        yield fleet
    finally:
        fleet.kill()


def test_the_procedures_run_as_they_stand_and_lose_nothing(fleet: Fleet) -> None:
    for heading in RUN:
        for block in PROCEDURES[heading]:
            fleet.paste(block)
    if "Back up and restore the metadata" in RUN:
        fleet.metadata = f"sqlite:///{fleet.folder}/restored.db"
    known = set(re.findall(r'"bookie_id": *"(\w+)"', fleet.paste("octavo bookies --json")))
    assert known == ({"three", "four", "seven", "eight"} if list(PROCEDURES) == RUN else FIRST | {"five"})
    assert fleet.paste("for id in $(cat ids); do octavo ledger read $id; done") == "entry\n" * LEDGERS


def test_operations_links_to_every_procedure() -> None:
    operations = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert len(PROCEDURES) == 8
    assert [one for one in PROCEDURES if f"procedures.md#{one.lower().replace(' ', '-')})" not in operations] == []
    assert all(PROCEDURES.values())
