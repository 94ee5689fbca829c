"""Runs whole simulated clusters, seed after seed, in separate interpreters, and checks the rules of docs/rules.md."""

import os
import re
import subprocess
import sys
from collections import Counter
from typing import Final

import pytest
from simulation.engine.limits import CHANGED_OFTEN, EVICTED, LIMITS
from simulation.engine.old_peers import (
    ADDS,
    IN_PACKS,
    OF_SEVERAL_LEDGERS,
    OF_SEVERAL_PUSHES,
    OLD_BOOKIES,
    PUSHED_ENTRIES,
)
from simulation.plan import SIZES, draw_size
from support.commands.simulator import run_program, simulate
from support.tree import ROOT

SEEDS: Final = 40
"""Seeds of the sizes that they draw: nearly all of them are quick."""

SMALL_SEEDS: Final = 16
LARGE_SEEDS: Final = 6

PACK_SEEDS: Final = 6
"""Seeds of universes in which a client has many ledgers."""

FOLLOWER_SEEDS: Final = 5
"""Seeds of universes in which a client follows many ledgers and logs."""

LIMIT_SEEDS: Final = 150
"""Largest number of seeds after which each limit must have been reached."""


@pytest.mark.parametrize(
    ("seeds", "options"), [(SEEDS, ()), (SMALL_SEEDS, ("--size", "small")), (LARGE_SEEDS, ("--size", "large"))]
)
def test_universes_of_every_size_pass(seeds: int, options: tuple[str, ...]) -> None:
    run = simulate(f"1-{seeds}", *options)
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr
    assert f"{seeds} seeds in" in run.stdout


def test_universes_whose_bookies_guard_themselves_pass() -> None:
    """Clients authenticate, principals change, an intruder tries what it may not, new ledgers are looked up, clients
    reach their limits, and ledgers are private (rules S1 to S3)."""
    run = simulate("1-30", "--size", "quick", "--set", "guarded=1")
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr
    for counted in (
        "reads of private ledgers refused",
        "security: disabled principal refused",
        "security: intruder met NoSuchLedgerError",
        "security: intruder met UnauthorizedError",
        "security: principal changed",
        "security: principal disabled",
    ):
        assert re.search(rf"[1-9]\d* in +\d+% of seeds  {counted}", run.stdout), counted


def test_universes_whose_ledgers_have_deferred_sync_pass() -> None:
    """Writers force now and then, and bookies lose their memory, also all at once and while forces are under way (rule
    W10)."""
    run = simulate("1-40", "--size", "quick", "--set", "deferred=1")
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr
    for counted in ("forces", "process: power cut", "process: power cut everywhere", "ensemble changes", "recoveries"):
        assert re.search(rf"[1-9]\d* in +\d+% of seeds  {counted}$", run.stdout, re.MULTILINE), counted


def test_universes_whose_logs_are_streams_pass() -> None:
    """Leaders duel, roll, renew their terms, stand still and heal; streams are truncated and paged out; pages, places
    and copies are right in the end, and what was truncated is gone (N2 to N6 of docs/simulator.md)."""
    run = simulate("1-40", "--size", "quick", "--set", "logs=1", "--set", "log_streams=1")
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr
    for counted in (
        "log: entries whose copies were compared",
        "log: looked for truncated entries",
        "log: taken over by hand",
        "log: takeover begun by hand",
        "stream: fragment begun",
        "stream: fragments paged out",
        "stream: term opened from rest",
        "stream: term renewed by its leader",
        "stream: term taken over",
    ):
        assert re.search(rf"[1-9]\d* in +\d+% of seeds  {counted}$", run.stdout, re.MULTILINE), counted


def test_universes_whose_ledgers_keep_books_of_their_copies_pass() -> None:
    """Bookies are killed and replaced, writers give copies up, and every entry has all copies or is owed (rule I9)."""
    run = simulate("1-40", "--size", "quick", "--set", "full_copies=1")
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr
    for counted in (
        "debts judged",
        "ensemble changes",
        "ledgers with full copies recorded judged",
        "ledgers with full copies required judged",
        "recoveries",
    ):
        assert re.search(rf"[1-9]\d* in +\d+% of seeds  {counted}$", run.stdout, re.MULTILINE), counted


def test_universes_whose_logs_keep_books_of_their_copies_pass() -> None:
    """Leaders are killed, roll and rest; at the end every position is on its write quorum, or is owed (rule I9)."""
    run = simulate("1-12", "--size", "quick", "--set", "log_copies=1")
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr
    for counted in (
        "log: debts judged",
        "log: with full copies recorded judged",
        "log: with full copies required judged",
        "stream: term taken over",
    ):
        assert re.search(rf"[1-9]\d* in +\d+% of seeds  {counted}$", run.stdout, re.MULTILINE), counted


def test_universes_in_which_a_client_has_many_ledgers_pass() -> None:
    """Most adds travel in packs; ledgers are fenced meanwhile, bookies fail, and some peers know no packs."""
    run = simulate(f"1-{PACK_SEEDS}", "--size", "quick", "--set", "packs=1")
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr
    counted = {name: int(number) for number, name in re.findall(r"^ +(\d+) in +\d+% of seeds  (.+)$", run.stdout, re.M)}
    for name in (
        OLD_BOOKIES,
        "answer: LedgerFencedError",
        "forces",
        "log: judged",
        "packs: ledgers fenced while they are written",
    ):
        assert counted[name], name
    assert counted[IN_PACKS] > 0.7 * counted[ADDS]
    assert counted[OF_SEVERAL_LEDGERS] > PACK_SEEDS
    assert counted["packs: ledgers judged on the disks"] > 50 * PACK_SEEDS


def test_universes_in_which_a_client_follows_many_ledgers_and_logs_pass() -> None:
    """What is acknowledged arrives, once, in order and in time: whatever was pushed and lost."""
    run = simulate(f"1-{FOLLOWER_SEEDS}", "--size", "quick", "--set", "followers=1")
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr
    counted = {name: int(number) for number, name in re.findall(r"^ +(\d+) in +\d+% of seeds  (.+)$", run.stdout, re.M)}
    for name in ("followers: entries of logs", "followers: ledgers fenced", "followers: logs taken over"):
        assert counted[name], name
    assert counted[OF_SEVERAL_PUSHES] > FOLLOWER_SEEDS
    assert counted[PUSHED_ENTRIES] > counted["followers: entries"] / 2
    assert counted["followers: entries that came promptly"] > 4 * counted["followers: entries that came late"]


def test_universe_in_which_repair_has_more_to_say_than_fits_passes() -> None:
    """Names are long, and more ledgers are blocked than a document has room for (rule A12)."""
    run = simulate("2-2", "--size", "quick", "--set", "crowds=1", "--set", "logs=0", "--set", "restores_metadata=0")
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr
    for counted in ("repair: blocked ledgers that had no room", "repair: bookie took a place"):
        assert re.search(rf"[1-9]\d*  {counted}$|[1-9]\d* in +\d+% of seeds  {counted}$", run.stdout, re.MULTILINE)


def test_universes_of_one_size_out_of_many_are_what_most_seeds_draw() -> None:
    assert sum(SIZES.values()) == pytest.approx(1.0)
    drawn = Counter(draw_size(seed) for seed in range(5_000))
    assert drawn["quick"] > 0.9 * 5_000
    assert drawn["small"] > drawn["large"] > 10


_REACHED = """
import sys
from simulation.campaign import Order, run_orders
orders = (Order(seed, size={size!r}, siege={siege!r}, settings={settings!r}) for seed in range(1, {seeds}))
for _, outcome in run_orders(orders, jobs=1):
    assert outcome.ok, outcome.explanation
    if outcome.counters[{counter!r}]:
        break
else:
    sys.exit("never")
"""


@pytest.mark.parametrize("counter", LIMITS)
def test_limit_that_few_universes_reach_is_reached(counter: str) -> None:
    size, siege, settings = "quick", None, {"logs": 0, "repairs_die": 1}
    if counter == CHANGED_OFTEN:
        size, siege, settings = "small", "collapse", {"logs": 0}
    elif counter == EVICTED:
        size, settings = "small", {}
    program = _REACHED.format(seeds=LIMIT_SEEDS, size=size, siege=siege, settings=settings, counter=counter)
    run = run_program(program)
    assert run.returncode == 0, run.stderr[-5_000:]


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
