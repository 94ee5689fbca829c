"""Runs whole simulated clusters, seed after seed, in separate interpreters, and checks the rules of docs/rules.md."""

import os
import re
import subprocess
import sys
from typing import Final

import pytest
from support.tree import ROOT

SEEDS: Final = 200


def simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "simulate.py"), *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )


def test_two_hundred_universes_pass() -> None:
    run = simulate(f"1-{SEEDS}")
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr
    assert f"{SEEDS} seeds in" in run.stdout


_ONE_SEED = """
import sys; sys.path.insert(0, {tests!r})
from simulation.universe import run_universe
for seed in {seeds}:
    outcome = run_universe(seed)
    print(seed, outcome.hash, outcome.steps, outcome.ok)
"""


def hashes(seeds: list[int], hash_seed: str) -> str:
    program = _ONE_SEED.format(tests=str(ROOT / "tests"), seeds=seeds)
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout


def test_seed_gives_the_same_universe_whatever_ran_before_and_however_strings_hash() -> None:
    alone = "".join(hashes([seed], "0") for seed in (3, 12, 25))
    together = hashes([3, 12, 25, 12], "12345").splitlines(keepends=True)
    assert alone == "".join(together[:3])
    assert together[3] == together[1]
    assert len(set(re.findall(r"^\d+ (\d+)", alone, re.MULTILINE))) == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "give a seed"),
        (["1", "--without", "hail"], "hail"),
        (["1", "--set", "moons=3"], "moons"),
    ],
)
def test_wrong_argument_is_reported(arguments: list[str], text: str) -> None:
    run = simulate(*arguments)
    assert run.returncode != 0
    assert text in run.stderr
