"""``--only FAULT``: what strikes in a universe, how it goes with the other options, and what the document says.

``OCTAVO_FAULT_SEEDS`` (default 1) is the number of universes in which each fault strikes alone; ``make soak`` runs
more.
"""

import itertools
import json
import os
import re
from pathlib import Path

import pytest
from simulation.campaign import Order, smaller
from simulation.faults.hardships import Hardships
from simulation.faults.names import FAULTS, LOSES_DATA, NEEDED, known_fault
from simulation.plan import Plan
from support.commands.simulator import run_program, simulate
from support.tree import ROOT

DOCUMENT = ROOT / "docs" / "simulator.md"

SAMPLED = range(1, 40)

SEEDS = int(os.environ.get("OCTAVO_FAULT_SEEDS", "1"))

RUN_EACH_ALONE = """
import gc
from simulation.campaign import Order, run_order
from simulation.faults.names import FAULTS
from simulation.universe import collect_garbage
gc.disable()
gc.freeze()
for name in FAULTS:
    strikes = 0
    for seed in range(2, 20):
        outcome = run_order(Order(seed, size="quick", only=(name,)), lines=True)
        told = (line.split(None, 2) for line in outcome.lines)
        struck = {{text for _, by, text in told if by == "nemesis" and not text.startswith(("heals", "bridge is"))}}
        assert outcome.ok and struck <= {{name}}, (name, seed, struck, outcome.failure)
        strikes += len(struck)
        if strikes >= {seeds}:
            break
    else:
        raise AssertionError((name, strikes))
    collect_garbage()
print("every fault alone:", len(FAULTS))
"""
"""Universes of a fault until it has struck in as many as are asked for. Garbage is collected between faults, as in a
campaign."""


def test_every_fault_can_strike_alone() -> None:
    run = run_program(RUN_EACH_ALONE.format(seeds=SEEDS))
    assert run.stdout == f"every fault alone: {len(FAULTS)}\n", run.stdout + run.stderr


@pytest.mark.parametrize("seed", SAMPLED)
def test_nothing_else_goes_wrong(seed: int) -> None:
    plan = Order(seed, only=("kill client", "slow link")).plan()
    assert plan.disturbances.keys() == {"kill client", "slow link"}
    assert (plan.network.spike_chance, plan.disk.spike_chance, plan.clock_drift) == (0, 0, 0)
    for name in ("rolling_restart", "clients_die", "judge_hindered", "repairs_die", "restores_metadata"):
        assert not getattr(plan, name), name
    assert plan.hardships == Hardships()


@pytest.mark.parametrize("fault", sorted(LOSES_DATA))
@pytest.mark.parametrize("size", ["quick", "small", "large"])
def test_fault_that_destroys_data_has_a_machine_that_may_lose_it(fault: str, size: str) -> None:
    for seed in SAMPLED:
        plan = Order(seed, size=size, only=(fault,)).plan()
        ensemble, write_quorum, ack_quorum = plan.quorums
        # Where copies are on different hosts, and the machines that may lose data on one, a write set has one of them.
        apart = plan.hardships.hosts and plan.options.get("hosts_per_write_quorum_min") == write_quorum
        in_one_write_set = min(plan.unlucky, 1) if apart else plan.unlucky
        assert 1 <= in_one_write_set < ack_quorum
        assert plan.bookies >= ensemble + (write_quorum == ack_quorum), "a lost machine needs a spare"


def test_settings_decide_the_kind_of_universe_and_only_decides_its_faults() -> None:
    plan = Order(7, only=("sync failure",), settings={"guarded": 1, "logs": 0, "adds": 9, "clients_die": 1}).plan()
    assert plan.disturbances.keys() == {"sync failure"}
    assert (plan.guarded, plan.logs, plan.adds, plan.clients_die) == (True, 0, 9, 1)
    assert Order(7, only=("disable principal",)).plan().guarded
    assert Order(7, only=("leader absent",)).plan().hardships.absences


def test_siege_that_is_asked_for_strikes_beside_the_named_fault() -> None:
    plan = Order(7, siege="takeover", only=("sync failure",)).plan()
    assert plan.disturbances.keys() == {"sync failure", "siege"}
    assert plan.sieges == ("takeover",)


def test_command_of_an_order_names_its_faults() -> None:
    order = Order(7, only=("kill client", "rot"), settings={"logs": 0})
    assert order.command() == """make simulate SEED=7 OPTIONS="--set logs=0 --only 'kill client' --only 'rot'\""""


def test_shrinking_tries_each_fault_alone_first() -> None:
    """The defect shows whenever clients are killed and the universe has more than 20 adds."""
    ran: list[Order] = []

    def fails(order: Order) -> bool:
        ran.append(order)
        plan: Plan = order.plan()
        return "kill client" in plan.disturbances and plan.adds > 20

    first = next(
        order
        for order in (Order(seed, size="large", settings={"adds": 60}) for seed in itertools.count(1))
        if fails(order)
    )
    ran.clear()
    told: list[str] = []
    least = smaller(first, tell=told.append, rule_of=lambda order: "I1" if fails(order) else "")
    assert least.only == ("kill client",)
    assert least.without == ()
    assert fails(least)
    assert told[-1] == least.command()
    commands = [order.command() for order in ran[:-1]]
    assert len(commands) == len(set(commands)), "no universe runs twice"


def test_shrinking_leaves_named_faults_out() -> None:
    wanted = {"kill client", "cut power"}
    first = Order(3, only=("kill client", "slow link", "cut power", "reset connections"))

    def rule_of(order: Order) -> str:
        return "I1" if wanted <= order.plan().disturbances.keys() else ""

    least = smaller(first, tell=lambda _command: None, rule_of=rule_of)
    assert set(least.only) == wanted


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--only", "snyc failure"), "there is no fault 'snyc failure' (did you mean 'sync failure'?)"),
        (("--without", "nothing"), "there is no fault 'nothing'; the faults are:"),
        (("--only", "rot", "--without", "rot"), "--only and --without both name 'rot'"),
        (("--only", "wipe", "--set", "unlucky=0"), "the fault 'wipe' destroys synced data"),
        (("--only", "wipe", "--set", "full_copies=1"), "the fault 'wipe' destroys synced data"),
        (("--only", "rot", "--theseus"), "leave out --theseus"),
        (("--only", "identity moves", "--theseus"), "leave out --theseus"),
        (("--only", "clock steps", "--set", "clocks=0"), "the fault 'clock steps' needs --set clocks=1"),
        (("--only", "rot", "--canary", "all"), "--canary all can be combined with --size only"),
        (("--set", "logs"), "'logs' is not NAME=NUMBER"),
        (("--set", "ledgres=1"), "a plan has no 'ledgres'"),
    ],
)
def test_wrong_options_get_one_clear_error(options: tuple[str, ...], error: str) -> None:
    run = simulate("1-2", *options)
    assert (run.returncode, run.stdout) == (2, "")
    usage, told, *more = run.stderr.splitlines()
    assert usage.startswith("usage:")
    assert error in told
    assert [line.strip() for line in more] == (list(FAULTS) if "there is no fault" in error else [])


def test_every_name_is_known() -> None:
    assert [known_fault(name) for name in FAULTS] == list(FAULTS)
    assert len(set(FAULTS)) == len(FAULTS)
    assert NEEDED.keys() <= set(FAULTS)


def test_campaign_with_named_faults_resumes_and_mixes_with_no_other(tmp_path: Path) -> None:
    kept = tmp_path / "campaign.jsonl"
    record = ("--jobs", "1", "--record", str(kept))
    assert simulate("3-4", *record, "--only", "kill client", "--only", "slow link").returncode == 0
    run = simulate("3-5", *record, "--only", "slow link", "--only", "kill client")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "3 seeds in" in run.stdout
    before = kept.read_text()
    assert sorted(json.loads(line)["seed"] for line in before.splitlines()) == [3, 4, 5]
    run = simulate("3-6", *record, "--only", "slow link")
    assert run.returncode == 2
    assert (
        "line 1: of a campaign with --only 'kill client' --only 'slow link', not with --only 'slow link'" in run.stderr
    )
    assert simulate("3-6", *record, "--size", "quick").returncode == 2
    assert kept.read_text() == before


def test_failure_in_a_record_with_named_faults_tells_how_to_run_it_again(tmp_path: Path) -> None:
    kept = tmp_path / "campaign.jsonl"
    options = ("--jobs", "1", "--record", str(kept), "--only", "slow link")
    assert simulate("3", *options).returncode == 0
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"failure": "Violation I1: lost"}) + "\n")
    run = simulate("3", *options)
    assert run.returncode == 1
    assert """replay: make simulate SEED=3 OPTIONS="--only 'slow link'\"""" in run.stdout


def documented() -> dict[str, list[str]]:
    """Fault -> the columns of its row in the document."""
    section = DOCUMENT.read_text(encoding="utf-8").partition("\n## Faults\n")[2].partition("\n### ")[0]
    rows = (line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `"))
    return {name.strip(" `"): [column.strip() for column in columns] for name, *columns in rows}


def test_the_document_lists_every_fault_with_what_it_does_and_its_rules() -> None:
    rows = documented()
    assert list(rows) == list(FAULTS)
    rules = set(re.findall(r"^### ([A-Z]\d+)$", (ROOT / "docs" / "rules.md").read_text(encoding="utf-8"), re.MULTILINE))
    for name, (does, aimed_at) in rows.items():
        assert does, name
        named = re.findall(r"[A-Z]\d+", aimed_at)
        assert named, name
        assert set(named) <= rules, name
        for setting, value in NEEDED.get(name, {}).items():
            assert value == 0 or f"{setting}=1" in does, name
        assert ("unlucky" in does) == (name in LOSES_DATA), name
