"""Bookie processes killed outright under load keep every promise. ``OCTAVO_KILL_CYCLES`` (default 6) says how often;
``make soak`` asks for 200."""

import os
from pathlib import Path

import pytest
from support.commands.kill_cycles import KillCycles

CYCLES = int(os.environ.get("OCTAVO_KILL_CYCLES", "6"))
BATCH = 10
"""Kills of one bookie, with one history, before a new one begins."""


@pytest.mark.parametrize("seed", range(-(-CYCLES // BATCH)))
async def test_a_bookie_killed_at_random_moments_under_load_loses_nothing(tmp_path: Path, seed: int) -> None:
    cycles = KillCycles(tmp_path, seed)
    await cycles.run(min(CYCLES, BATCH))
    assert cycles.acknowledged > 1_000
    assert cycles.kills_before_ready
