"""Known defects, put back one at a time: the ordinary checkers find each, and the same seed passes without it.

Many changes of the code change the universe of a seed. The search therefore begins at the seed that last found the
defect and continues with the following ones; ``make simulate SEED=1-150 OPTIONS="--canary all"`` gives the first seeds.
"""

import re
from typing import Any

import pytest
from simulation.canaries.catalogue import CANARIES
from simulation.engine.patches import patch
from simulation.test_universes import LARGE_SEEDS, SEEDS, SMALL_SEEDS
from support.commands.simulator import simulate
from support.tree import ROOT

FURTHER = 40
"""Seeds tried after the first. Most of these defects are found by at least one seed in ten."""

CHEAPEST = {
    "index-put-hides": 1,
    "read-above-lac": 2,
    "recoverer-makes-lac": 2,
    "directory-not-synced": 5,
    "early-ensemble-commit": 8,
    "reseal-on-resend": 8,
    "truncated-is-absence": 12,
    "coverage-off-by-one": 14,
    "fence-lets-adds-through": 18,
    "garbage-by-listing": 46,
}
"""Canary -> the first seed to try, of large universes."""

BESIEGED = {
    "ack-during-change": ("exchange", 13),
    "corruption-is-absence": ("blackout", 4),
    "doubt-answers-absent": ("blackout", 30),
    "fence-after-lookup": ("race", 6),
    "fence-not-durable": ("absence", 1),
    "entry-log-rewrites-pages": ("rack", 5),
    "journal-rewrites-pages": ("rack", 4),
    "reads-do-not-fence": ("race", 6),
    "recovery-keeps-last-change": ("collapse", 62),
    "replaced-still-counts": ("exchange", 13),
}
"""Canary that ordinary seeds seldom find -> a siege that finds it sooner, and the first seed to try."""


LOGS = {
    "log-takeover-does-not-fence": 2,
    "log-orphans-forgotten": 103,
    "log-drops-last-segments": 28,
    "log-deletes-before-it-drops": 2,
    "log-old-leader-heals": 6,
    "log-roll-does-not-wait": 68,
    "log-heals-from-first-doubt": 52,
    "log-outcome-too-early": 19,
    "log-truncation-inexact": 8,
    "log-retention-ignores-cursors": 14,
    "log-retention-believes-clock": 12,
    "log-retention-below-size": 8,
    "log-time-falls": 2,
    "log-cursor-goes-back": 12,
    "log-position-unchecked": 2,
    "log-deletion-keeps-ledgers": 4,
}
"""Canary in logs -> the first seed to try, of universes with a log."""

STREAMS = {
    "stream-old-leader-heals": ("quick", 9),
    "stream-roll-does-not-wait": ("small", 8),
    "stream-pages-change": ("quick", 3),
    "stream-pages-go-early": ("quick", 10),
    "stream-truncates-last-fragment": ("small", 46),
    "stream-nothing-is-trimmed": ("small", 6),
    "stream-trim-not-durable": ("small", 5),
    "stream-trims-what-is-kept": ("small", 2),
    "stream-outcome-too-early": ("quick", 79),
    "stream-truncates-early": ("quick", 2),
    "stream-retention-ignores-cursors": ("small", 69),
    "stream-retention-believes-clock": ("small", 37),
    "stream-time-falls": ("small", 63),
    "stream-deletion-keeps-stream": ("small", 86),
    "stream-abandoned-is-forgotten": ("quick", 146),
}
"""Canary in streams -> a size, and the first seed to try, of universes with a log that is a stream."""

BESIEGED_STREAMS = {
    "stream-term-not-compared": ("race", 6),
}
"""Canary in streams -> a siege that finds it, and the first seed to try, of small universes with a log that is a
stream."""

SELDOM = {"stream-fence-ends-doubt", "pack-answer-of-older-connection", "log-follower-guesses-end"}
"""Canaries that hardly any universe finds (docs/simulator.md)."""

QUICK = {"log-outcome-too-early"}
"""Canaries in logs that quick universes find sooner than small ones."""


THESEUS = {
    "repair-names-early": 2,
}
"""Canary in repair -> the first seed to try, of Theseus universes. docs/simulator.md lists the seeds of the others."""


GUARDED = {
    "disabled-principal-stays": ("quick", 1),
    "new-ledgers-are-believed": ("quick", 1),
    "private-is-forgotten": ("small", 2),
    "private-lost-is-public": ("quick", 62),
    "private-not-journaled": ("small", 2),
    "refused-add-is-confirmed": ("quick", 1),
    "roles-are-not-checked": ("quick", 8),
}
"""Canary in what bookies allow -> a size, and the first seed to try, of universes whose bookies guard themselves."""

DEFERRED = {
    "accepted-moves-lac": 8,
    "force-across-restart": 8,
    "replaced-acceptance-kept": 12,
}
"""Canary in deferred sync -> the first seed to try, of quick universes whose ledgers have it."""

FULL_COPIES = {
    "debt-is-forgotten": 20,
    "copies-are-believed": 21,
    "full-is-acknowledged": 8,
}
"""Canary in full copies -> the first seed to try, of quick universes whose ledgers have full copies."""

LOG_COPIES = {
    "takeover-owes-nothing": 28,
    "required-copies-are-missing": 28,
}
"""Canary in full copies of logs -> the first seed to try, of quick universes whose logs have full copies."""

REPAIR = {
    "repair-open-fragment": ("", 12),
    "repair-doubt-ends-early": ("blackout", 2),
    "repair-floor-lifted": ("amnesia", 9),
}
"""Canary in repair -> a siege, and the first seed to try, of small universes with agents."""

BALANCES = {
    "balance-drops-early": 2,
    "balance-brings-together": 10,
}
"""Canary in balance -> the first seed to try, of quick universes in which copies are moved."""

PACKS = {
    "pack-refused-is-done": 17,
    "pack-refusal-of-neighbour": 17,
    "pack-partly-done-is-done": 4,
    "pack-lost-is-partly-done": 18,
    "pack-ignores-fence-within": 20,
    "pack-done-before-sync": 31,
    "pack-outlives-connection": 31,
    "packs-are-sent-to-all": 23,
}
"""Canary in packs -> the first seed to try, of quick universes in which a client has many ledgers."""

PUSHES = {
    "push-lost": 5,
    "push-credit-not-returned": 14,
    "push-is-confirmation": 5,
    "push-of-fence-forgotten": 5,
    "push-lost-with-connection": 19,
    "push-begins-with-what-comes": 5,
    "push-asked-of-all": 9,
}
"""Canary in following -> the first seed to try, of quick universes in which a client follows many ledgers."""

GATEWAYS: dict[str, tuple[int, tuple[str, ...]]] = {
    "gateway-answers-early": (1, ()),
    "gateway-forgets-producers": (5, ()),
    "gateway-compares-no-sequences": (22, ("cut gateway off", "pause bookie", "cut power everywhere")),
    "gateway-offset-too-low": (1, ()),
    "gateway-read-skips": (2, ()),
    "gateway-commits-early": (6, ()),
    "gateway-stale-commit": (10, ()),
    "gateway-believes-its-lead": (6, ("gateway absent",)),
    "gateway-generations-fall": (1, ()),
}
"""Canary in gateways -> the first seed to try, of quick universes with gateways, and the faults that strike; none:
those that the seed draws."""

CHAIN, STREAM = ("logs=1", "log_streams=0", "agents=0"), ("logs=1", "log_streams=1", "agents=0")

HARDSHIPS = {
    "candidate-ignores-its-lease": ("quick", 5, ("absences=1", *CHAIN)),
    "kept-metadata-are-believed": ("small", 94, ("keepsakes=1", *STREAM)),
    "withdrawn-add-is-sent": ("small", 4, ("impatience=1", *CHAIN)),
    "flush-waits-for-last": ("small", 3, ("impatience=1", *STREAM)),
    "identity-is-not-confirmed": ("quick", 1, ("returns=1", "logs=0")),
    "lineage-is-not-compared": ("quick", 5, ("returns=1", "logs=0")),
    "hosts-are-not-looked-at": ("quick", 2, ("hosts=1",)),
    "spread-of-parts-is-not-kept": ("quick", 47, ("hosts=1",)),
    "one-clock-is-believed": ("quick", 5, ("clocks=1", *STREAM)),
    "key-doubt-is-forgotten": ("small", 3, ("keyed=1", "logs=1", "agents=0")),
    "key-leader-reads-none": ("quick", 10, ("keyed=1", "logs=1", "agents=0")),
    "repair-documents-grow": ("quick", 5, ("crowds=1", "logs=0", "restores_metadata=0")),
}
"""Canary that needs a hardship -> a size, the first seed to try, and settings."""


STALE = r"\b(AttributeError|NameError|TypeError)\b"
"""In a violation: the replacement asks the code for what it no longer has."""


class Retired:
    """Code that has changed since a canary was written."""

    def look(self, entry_id: int, *, deep: bool = False) -> int:
        """Give the id back."""
        return entry_id + deep


def check_found(canary: str, first: int, *options: str) -> None:
    """Check that one of these universes fails with a :class:`Violation`, and passes without the defect. A replacement
    that does not fit the code any more fails, too: that finds nothing."""
    seeds = f"{first}-{first + FURTHER}"
    broken = simulate(seeds, *options, "--canary", canary, "--until-failure", "--jobs", "1")
    found = re.search(r"^seed (\d+) failed: Violation (.*)", broken.stdout, re.MULTILINE)
    assert found, f"{canary} is not found in seeds {seeds}: {broken.stdout[-5_000:]}{broken.stderr}"
    assert not re.search(STALE, found[2]), f"{canary} does not fit the code any more: {found[2]}"
    sound = simulate(found[1], *options)
    assert sound.returncode == 0, sound.stdout[-5_000:]


@pytest.mark.parametrize("canary", CHEAPEST)
def test_known_defect_is_found_and_the_same_seed_passes_without_it(canary: str) -> None:
    check_found(canary, CHEAPEST[canary], "--size", "large", "--set", "logs=0")


@pytest.mark.parametrize("canary", BESIEGED)
def test_siege_finds_defect_that_ordinary_seeds_seldom_find(canary: str) -> None:
    siege, first = BESIEGED[canary]
    check_found(canary, first, "--siege", siege, "--size", "small", "--set", "logs=0")


@pytest.mark.parametrize("canary", LOGS)
def test_known_defect_in_logs_is_found(canary: str) -> None:
    size = "quick" if canary in QUICK else "small"
    retained = "log_retain_seconds=1" if canary == "log-retention-believes-clock" else "log_retain_seconds=0"
    layout = ("--set", "logs=1", "--set", "log_streams=0")
    asks = ("--set", "impatience=1") if canary == "log-outcome-too-early" else ()  # what became of adds
    check_found(canary, LOGS[canary], "--size", size, *layout, "--set", "agents=0", "--set", retained, *asks)


@pytest.mark.parametrize("canary", STREAMS)
def test_known_defect_in_streams_is_found(canary: str) -> None:
    size, first = STREAMS[canary]
    layout = ("--set", "logs=1", "--set", "log_streams=1")
    retained = ("--set", "log_retain_seconds=1") if canary == "stream-retention-believes-clock" else ()
    check_found(canary, first, "--size", size, *layout, "--set", "agents=0", *retained)


@pytest.mark.parametrize("canary", BESIEGED_STREAMS)
def test_siege_finds_defect_in_streams(canary: str) -> None:
    siege, first = BESIEGED_STREAMS[canary]
    layout = ("--set", "logs=1", "--set", "log_streams=1")
    check_found(canary, first, "--size", "small", "--siege", siege, *layout, "--set", "agents=0")


@pytest.mark.parametrize("canary", THESEUS)
def test_known_defect_in_repair_is_found(canary: str) -> None:
    check_found(canary, THESEUS[canary], "--theseus")


@pytest.mark.parametrize("canary", GUARDED)
def test_known_defect_in_what_bookies_allow_is_found(canary: str) -> None:
    size, first = GUARDED[canary]
    losses = ("--set", "repairs_die=1", "--set", "deletes=0") if canary == "private-lost-is-public" else ()
    check_found(canary, first, "--size", size, "--set", "guarded=1", "--set", "logs=0", *losses)


@pytest.mark.parametrize("canary", DEFERRED)
def test_known_defect_in_deferred_sync_is_found(canary: str) -> None:
    check_found(canary, DEFERRED[canary], "--size", "quick", "--set", "deferred=1")


@pytest.mark.parametrize("canary", FULL_COPIES)
def test_known_defect_in_full_copies_is_found(canary: str) -> None:
    check_found(canary, FULL_COPIES[canary], "--size", "quick", "--set", "full_copies=1")


@pytest.mark.parametrize("canary", LOG_COPIES)
def test_known_defect_in_full_copies_of_logs_is_found(canary: str) -> None:
    check_found(canary, LOG_COPIES[canary], "--size", "quick", "--set", "log_copies=1")


@pytest.mark.parametrize("canary", PACKS)
def test_known_defect_in_packs_is_found(canary: str) -> None:
    check_found(canary, PACKS[canary], "--size", "quick", "--set", "packs=1")


@pytest.mark.parametrize("canary", PUSHES)
def test_known_defect_in_following_is_found(canary: str) -> None:
    check_found(canary, PUSHES[canary], "--size", "quick", "--set", "followers=1")


@pytest.mark.parametrize("canary", GATEWAYS)
def test_known_defect_in_gateways_is_found(canary: str) -> None:
    first, only = GATEWAYS[canary]
    check_found(canary, first, "--size", "quick", "--set", "gateways=1", *(x for one in only for x in ("--only", one)))


@pytest.mark.parametrize("canary", HARDSHIPS)
def test_hardship_finds_defect(canary: str) -> None:
    size, first, settings = HARDSHIPS[canary]
    check_found(canary, first, "--size", size, *(word for setting in settings for word in ("--set", setting)))


@pytest.mark.parametrize("canary", REPAIR)
def test_known_defect_in_repair_is_found_without_the_loss_of_a_machine(canary: str) -> None:
    siege, first = REPAIR[canary]
    options = ("--siege", siege) if siege else ()
    check_found(canary, first, "--size", "small", "--set", "logs=0", "--set", "agents=1", *options)


@pytest.mark.parametrize("canary", BALANCES)
def test_known_defect_in_balance_is_found(canary: str) -> None:
    check_found(canary, BALANCES[canary], "--size", "quick", "--set", "balances=1")


@pytest.mark.parametrize("canary", CANARIES)
def test_every_known_defect_can_be_applied(canary: str) -> None:
    with CANARIES[canary].applied():
        pass


def test_a_replacement_that_takes_other_arguments_than_the_code_is_refused() -> None:
    """Such a canary would be found because it fails when it is called, not because of its defect."""
    with pytest.raises(TypeError, match=r"replacement of Retired\.look does not take the arguments"):

        @patch(Retired, "look")
        def look(_original: Any, _self: Any) -> None:
            """Lacks an argument that the code has been given since."""

    @patch(Retired, "look")
    def fitting(original: Any, self: Any, entry_id: int, *, deep: bool = False) -> int:
        return int(original(self, entry_id, deep=deep)) + 1

    fitting.apply()
    try:
        assert Retired().look(1) == 2
    finally:
        fitting.undo()
    assert Retired().look(1) == 1


def test_the_document_says_how_much_is_run_and_names_every_canary() -> None:
    text = " ".join((ROOT / "docs" / "simulator.md").read_text(encoding="utf-8").split())
    streams = {**STREAMS, **BESIEGED_STREAMS}
    special = {**BALANCES, **GUARDED, **DEFERRED, **FULL_COPIES, **HARDSHIPS, **PACKS, **PUSHES, **GATEWAYS}
    kept = str(len({**CHEAPEST, **BESIEGED, **LOGS, **streams, **THESEUS, **REPAIR, **special}))
    assert re.findall(r"(\d+) known defects", text) == re.findall(r"(\d+) canaries in every", text) == [kept]
    assert re.findall(r"runs (\d+) universes", text) == [str(SEEDS + SMALL_SEEDS + LARGE_SEEDS)]
    rules = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert [canary for canary in CANARIES if f"`{canary}`" not in (rules if canary in LOGS else text)] == []


def test_a_dozen_canaries_are_kept_alive() -> None:
    assert len({**CHEAPEST, **BESIEGED}) >= 12
    assert CHEAPEST.keys() | BESIEGED.keys() <= CANARIES.keys()
    in_packs = {canary for canary in CANARIES if canary.startswith("pack")}
    assert PACKS.keys() == in_packs - SELDOM
    assert PUSHES.keys() == {canary for canary in CANARIES if canary.startswith("push")}
    assert GATEWAYS.keys() == {canary for canary in CANARIES if canary.startswith("gateway-")} - SELDOM
    assert LOGS.keys() == {canary for canary in CANARIES if canary.startswith("log-")} - SELDOM
    in_streams = {canary for canary in CANARIES if canary.startswith("stream-")}
    assert STREAMS.keys() | BESIEGED_STREAMS.keys() == in_streams - SELDOM
