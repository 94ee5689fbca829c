"""Universes with gateways: whatever strikes gateways, bookies, clients and the metadata, nothing is lost, doubled or
reordered, no poll skips, and no commit goes back (rules K2 to K5, K7, K9 to K11).
"""

import re

from support.commands.simulator import simulate

SEEDS = 4

SEEDS_IN_SOAK = 60

COUNTED = (
    "gateway: commits answered",
    "gateway: generations joined",
    "gateway: lease lost",
    "gateway: messages acknowledged",
    "gateway: messages read",
    "gateway: partitions judged",
    "stream: term taken over",
)


def check_pass(seeds: int, *counted: str) -> None:
    run = simulate(f"1-{seeds}", "--size", "quick", "--set", "gateways=1", "--jobs", "1")
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr
    for name in counted:
        assert re.search(rf"[1-9]\d* in +\d+% of seeds  {name}$", run.stdout, re.MULTILINE), name


def test_universes_with_gateways_pass() -> None:
    check_pass(SEEDS, *COUNTED)


def test_many_universes_with_gateways_pass() -> None:
    everything = (
        "gateway: absent", "gateway: cut off from bookies", "gateway: cut off from clients",
        "gateway: cut off from metadata", "gateway: killed", "gateway: next one absent", "gateway: next one killed",
        "gateway: stopped in order",
    )  # fmt: skip
    check_pass(SEEDS_IN_SOAK, *COUNTED, *everything)
