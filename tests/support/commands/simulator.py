"""The simulator as tests run it: ``scripts/simulate.py``, and programs that use its modules, in processes of their own.

They are forked from a process that has imported everything (:mod:`support.commands.command_server`), because that takes
longer than most universes.
"""

import os
import subprocess

from support.commands.command_server import SIMULATOR, run_command
from support.tree import ROOT

SECONDS_MAX = 900.0
"""Time-out of a run: many times what the longest takes."""


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``scripts/simulate.py`` with these arguments."""
    status, output, errors = run_command(
        [*arguments],
        stdin=b"",
        cwd=str(ROOT),
        env=dict(os.environ),
        timeout_seconds=SECONDS_MAX,
        program=SIMULATOR,
    )
    return subprocess.CompletedProcess(arguments, status, output.decode(), errors.decode())


def run_program(text: str) -> subprocess.CompletedProcess[str]:
    """Run a program that imports modules of the simulator."""
    return simulate("-c", text)
