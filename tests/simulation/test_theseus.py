"""Universes in which no bookie of the beginning is left at the end (rules A1 to A7, C1 to C5)."""

import os
import subprocess
import sys
from typing import Final

from support.tree import ROOT

SEEDS: Final = range(1, 7)

_PROGRAM = """
import sys; sys.path.insert(0, {tests!r})
from simulation.theseus import run_theseus
for seed in {seeds}:
    outcome = run_theseus(seed)
    if not outcome.ok:
        print(*outcome.lines[-60:], sep="\\n")
        print(outcome.explanation)
        sys.exit(f"seed {{seed}}: {{outcome.failure}}")
    print(seed, outcome.hash, outcome.counters["theseus: every machine replaced"])
"""


def test_everything_is_whole_after_every_machine_was_lost() -> None:
    program = _PROGRAM.format(tests=str(ROOT / "tests"), seeds=list(SEEDS))
    run = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONHASHSEED": "0"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-5000:]
    assert [line.split()[2] for line in run.stdout.splitlines()] == ["1"] * len(SEEDS)
