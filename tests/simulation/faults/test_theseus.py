"""Universes in which no bookie of the beginning is left at the end (rules A1 to A7, C1 to C5)."""

from typing import Final

from support.commands.simulator import run_program

SEEDS: Final = range(1, 7)

_PROGRAM = """
import sys
from simulation.faults.theseus import run_theseus
for seed in {seeds}:
    outcome = run_theseus(seed)
    if not outcome.ok:
        print(*outcome.lines[-60:], sep="\\n")
        print(outcome.explanation)
        sys.exit(f"seed {{seed}}: {{outcome.failure}}")
    replaced, pages = outcome.counters["theseus: every machine replaced"], outcome.counters["stream: pages repaired"]
    print(seed, outcome.hash, replaced, pages)
"""


def test_everything_is_whole_after_every_machine_was_lost() -> None:
    run = run_program(_PROGRAM.format(seeds=list(SEEDS)))
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-5000:]
    seeds = [line.split() for line in run.stdout.splitlines()]
    assert [replaced for _, _, replaced, _ in seeds] == ["1"] * len(SEEDS)
    assert any(int(pages) for *_, pages in seeds), "bookies that pages name were replaced, too"
