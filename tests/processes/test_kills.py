"""Bookie processes killed outright under load keep every promise. ``OCTAVO_KILL_CYCLES`` (default 10) says how often;
``make soak`` asks for 200."""

import os
from pathlib import Path

from support.kill_cycles import KillCycles

CYCLES = int(os.environ.get("OCTAVO_KILL_CYCLES", "10"))


async def test_a_bookie_killed_at_random_moments_under_load_loses_nothing(tmp_path: Path) -> None:
    cycles = KillCycles(tmp_path, seed=CYCLES)
    await cycles.run(CYCLES)
    assert cycles.acknowledged > 100 * CYCLES
    assert cycles.kills_before_ready
