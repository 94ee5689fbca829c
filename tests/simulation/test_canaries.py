"""Known defects, put back one at a time: the ordinary checkers must find each, and the same seed pass without it.

The seeds are the first that find a defect when all from 1 on are tried (docs/simulator.md). When a change of the code
or of the plans moves them, ``make simulate SEED=1-150 OPTIONS="--canary all"`` gives the new ones.
"""

import pytest
from simulation.canaries import CANARIES
from simulation.test_universes import simulate

CHEAPEST = {
    "directory-not-synced": (1, "I8"),
    "index-put-hides": (1, "I1"),
    "retry-failed-sync": (1, "no unexplained error"),
    "read-above-lac": (2, "I3"),
    "recoverer-makes-lac": (2, "I3"),
    "compaction-removes-early": (3, "no unexplained error"),
    "truncated-is-absence": (3, "I2"),
    "coverage-off-by-one": (14, "I2"),
    "fence-lets-adds-through": (14, "I7"),
    "reseal-on-resend": (19, "I3"),
    "garbage-by-listing": (20, "I8"),
}
"""Canary -> the seed that finds it, and the rule that is seen broken."""


@pytest.mark.parametrize("canary", CHEAPEST)
def test_known_defect_is_found_and_the_same_seed_passes_without_it(canary: str) -> None:
    seed, rule = CHEAPEST[canary]
    broken = simulate(str(seed), "--canary", canary)
    assert broken.returncode == 1, f"{canary}: seed {seed} does not find it any more"
    assert f"seed {seed} failed: Violation {rule}: " in broken.stdout
    sound = simulate(str(seed))
    assert sound.returncode == 0, sound.stdout[-5_000:]


def test_siege_finds_what_needs_many_seeds_otherwise() -> None:
    siege = ("12", "--siege", "takeover")
    broken = simulate(*siege, "--canary", "reads-do-not-fence")
    assert broken.returncode == 1
    assert "seed 12 failed: Violation I7: " in broken.stdout
    sound = simulate(*siege)
    assert sound.returncode == 0, sound.stdout[-5_000:]


def test_ten_canaries_are_kept_alive() -> None:
    assert len(CHEAPEST) >= 10
    assert CHEAPEST.keys() <= CANARIES.keys()
