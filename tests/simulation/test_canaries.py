"""Known defects, put back one at a time: the ordinary checkers must find each, and the same seed pass without it.

The seeds are the first that find a defect when all from 1 on are tried (docs/simulator.md). When a change of the code
or of the plans moves them, ``make simulate SEED=1-150 OPTIONS="--canary all"`` gives the new ones.
"""

import pytest
from simulation.canaries import CANARIES
from simulation.test_universes import simulate

CHEAPEST = {
    "index-put-hides": (1, "I1"),
    "read-above-lac": (2, "I3"),
    "recoverer-makes-lac": (2, "I3"),
    "directory-not-synced": (5, "I8"),
    "early-ensemble-commit": (8, "I3"),
    "replaced-still-counts": (8, "I5"),
    "reseal-on-resend": (8, "I3"),
    "coverage-off-by-one": (14, "I2"),
    "truncated-is-absence": (12, "I2"),
    "fence-lets-adds-through": (18, "I7"),
    "garbage-by-listing": (46, "I8"),
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


BESIEGED = {
    "ack-during-change": ("exchange", 10, "I5"),
    "corruption-is-absence": ("blackout", 4, "I2"),
    "doubt-answers-absent": ("blackout", 9, "I2"),
    "fence-after-lookup": ("race", 2, "I7"),
    "fence-not-durable": ("absence", 1, "I7"),
    "reads-do-not-fence": ("race", 2, "I7"),
}
"""Canary that needs many seeds otherwise -> a siege that finds it soon, the seed, and the rule."""


@pytest.mark.parametrize("canary", BESIEGED)
def test_siege_finds_what_needs_many_seeds_otherwise(canary: str) -> None:
    siege, seed, rule = BESIEGED[canary]
    order = (str(seed), "--siege", siege)
    broken = simulate(*order, "--canary", canary)
    assert broken.returncode == 1
    assert f"seed {seed} failed: Violation {rule}: " in broken.stdout
    sound = simulate(*order)
    assert sound.returncode == 0, sound.stdout[-5_000:]


@pytest.mark.parametrize("canary", CANARIES)
def test_every_known_defect_fits_the_code_as_it_is(canary: str) -> None:
    with CANARIES[canary].applied():
        pass


def test_ten_canaries_are_kept_alive() -> None:
    assert len(CHEAPEST) >= 10
    assert CHEAPEST.keys() <= CANARIES.keys()
