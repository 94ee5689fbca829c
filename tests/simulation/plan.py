"""The plan of a universe, drawn from its seed: sizes, speeds, workloads and faults.

Each seed leaves most faults out and makes the others frequent (swarm testing): two or three frequent faults together
find more than a few of every kind.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.client.options import ClientOptions
from octavo.repair.base.settings import RepairSettings
from simulation.engine.disk import DiskSettings
from simulation.engine.knobs import FRAME, FRAME_BYTES, KNOBS, STORAGE, STREAM_KNOBS
from simulation.engine.network import NetworkSettings
from simulation.faults.hardships import Hardships
from simulation.faults.siege_moves import DRAWN, NEEDS_EVERY_MEMBER, STORIES
from simulation.workload.balance_plan import balance_some

DISTURBANCES = (
    "siege",
    "kill bookie",
    "kill bookie at a step",
    "cut power",
    "cut power at a file operation",
    "cut power everywhere",
    "kill in a journal write, then cut power",
    "pause client, restart bookies",
    "restart bookie",
    "pause bookie",
    "pause client",
    "kill client",
    "isolate machine",
    "partition into halves",
    "bridge",
    "one-way partition",
    "slow link",
    "reset connections",
    "slow disk",
    "sync failure",
    "write errors",
    "read errors",
    "disk full",
    "rot",
    "lying sync",
    "wipe",
    "metadata down",
    "metadata loses answers",
    "metadata loses requests",
    "metadata changes slowly",
    "stale list of bookies",
    "late watches",
    "lost watches",
    "expire sessions",
    "metadata conflict",
    "metadata lists are empty",
)
"""Every fault of the nemesis. Those in :data:`NEEDS_BUDGET` strike only machines of the fault budget."""

NEEDS_BUDGET = frozenset({"rot", "lying sync", "wipe"})


QUICK_BOOKIE: dict[str, Any] = {
    "cache_bytes": 8 * 1024,
    "journal_segment_bytes": 64 * 1024,
    "checkpoint_journal_bytes": 32 * 1024,
    "checkpoint_seconds": 1.0,
    "entry_log_bytes": 64 * 1024,
    "lease_seconds": 3.0,
    "drain_timeout_seconds": 1.0,
    "garbage_seconds": 1.0,
    "compaction_major_seconds": 2.0,
    "scrub_pause_seconds": 2.0,
    "disk_check_seconds": 1.0,
}
"""Bookie settings with which segments roll, caches evict and checkpoints run all the time."""


QUICK_REPAIR = RepairSettings(
    lost_seconds=2.0, audit_seconds=1.0, open_seconds=2.0, silent_seconds=4.0, report_seconds=0.2, poll_seconds=0.2,
    retry_seconds_open=0.2, retry_seconds_min=0.5, retry_seconds_max=2.0, request_timeout_seconds=2.0,
)  # fmt: skip
"""Seconds instead of minutes."""


@dataclass(slots=True)
class Plan:
    """Everything that is fixed about a universe before it begins. Times in seconds, sizes in bytes."""

    bookies: int = 3
    clients: int = 2
    quorums: tuple[int, int, int] = (3, 3, 2)
    adds: int = 200
    """Adds of all writers together."""
    ledgers: int = 2
    entry_bytes_max: int = 100
    safety_seconds: float = 8.0
    disturbances: dict[str, float] = field(default_factory=dict)
    """Fault -> weight among those drawn."""
    disturbance_every_seconds: float = 1.0
    unlucky: int = 0
    """Number of machines whose disks may lose synced data, at most Qa - 1."""
    clock_drift: float = 0.0
    logs: int = 0
    """Number of logs. They take the place of the ledgers: clients lead, follow and tidy them."""
    log_streams: bool = False
    """Whether the logs are streams; otherwise they are chains of ledgers."""
    log_clients: int = 2
    """Client processes that each lead every log."""
    log_retain_bytes: int = 0
    """What retention keeps of a log; 0: everything."""
    log_retain_seconds: float = 0.0
    """Age to which retention keeps entries; 0: any."""
    log_retain_cursors: bool = False
    """Whether retention drops only what all cursors have passed."""
    recoverers: int = 1
    deletes: bool = False
    rolling_restart: bool = False
    operator: bool = True
    """Whether refusing bookies are repaired during the safety phase; they always are after healing."""
    repairs_die: bool = False
    """Whether the operator's offline tools are killed, or their machine loses power, at some step."""
    sieges: tuple[str, ...] = DRAWN
    """Kinds of siege that are drawn."""
    aimed: bool = False
    """Whether sieges of one kind are nearly the only fault, and everything else suits them."""
    steady: bool = False
    """Whether writers add without waiting for acknowledgements; otherwise they wait now and then."""
    recoverers_apart: bool = False
    """Whether recovering clients are processes of their own; otherwise they share the writers' connections."""
    restores_metadata: bool = False
    """Whether the metadata are restored to an older state for a while, after every application was killed."""
    clients_die: bool = False
    """Whether every application is killed at the end of the safety phase, so that the judge recovers its ledgers."""
    judge_hindered: bool = False
    """Whether a machine hangs while the judge begins to recover and read."""
    knobs: dict[str, int] = field(default_factory=dict)
    """Constant of the code under test (``module:NAME``) -> a smaller value, so that its limit is reached."""
    storage: dict[str, int] = field(default_factory=dict)
    """Settings of the bookies' storage that their configuration does not have."""
    agents: bool = False
    """Whether the bookies have repair agents."""
    guarded: bool = False
    """Whether bookies authenticate clients, look new ledgers up and limit what one client may take, principals change,
    and some ledgers are private."""
    deferred: bool = False
    """Whether ledgers have deferred sync."""
    full_copies: bool = False
    """Whether ledgers have full copies: each of them records missing ones, or requires all."""
    log_copies: bool = False
    """Whether logs that are streams have full copies (``log_books.py``)."""
    hardships: Hardships = field(default_factory=Hardships)
    repair: RepairSettings = QUICK_REPAIR
    drains: bool = False
    """Whether an operator drains and holds bookies."""
    balances: bool = False
    """Whether copies are moved from full bookies to empty ones, by an operator and in the end."""
    copies_min: int = 1
    """How many bookies store each entry at least, whatever leaders change the quorums of their log to."""
    network: NetworkSettings = field(default_factory=NetworkSettings)
    disk: DiskSettings = field(default_factory=DiskSettings)
    bookie: dict[str, Any] = field(default_factory=lambda: dict(QUICK_BOOKIE))
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def client_options(self) -> ClientOptions:
        """The options of every client."""
        return ClientOptions.from_keywords(self.options)


QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (3, 3, 3), (3, 2, 1), (2, 2, 1), (4, 3, 2), (5, 3, 2), (3, 3, 1), (1, 1, 1))


EVERY_MEMBER = ((2, 2, 2), (3, 3, 3), (3, 2, 2))
"""Quorums of at least two bookies in which every member of a write set must confirm (Qw = Qa)."""


def require_every_member(plan: Plan, rng: random.Random) -> None:
    """Change the plan so that every member of a write set must confirm, a spare bookie exists, writers add without
    waiting, and no synced data is lost."""
    if plan.quorums not in EVERY_MEMBER:
        plan.quorums = rng.choice(EVERY_MEMBER)
    plan.bookies = plan.quorums[0] + rng.choice((1, 1, 2))
    plan.unlucky = 0
    plan.disturbances = {name: weight for name, weight in plan.disturbances.items() if name not in NEEDS_BUDGET}
    plan.steady, plan.adds = True, max(plan.adds, 100)
    plan.options = {
        **plan.options,
        "window_entries": max(plan.options["window_entries"], 100),
        "bookie_loss_seconds": rng.choice((0.05, 0.05, 0.5)),
        "request_timeout_seconds": rng.choice((1.0, 3.0)),
    }


BESIEGED: tuple[tuple[float, tuple[str, ...]], ...] = (
    (0.12, ("exchange",)),
    (0.24, ("race", "race", "race", "blackout", "absence")),
)
"""Share of large universes -> kinds of siege, one of which is nearly the only fault of the universe. These kinds
seldom find anything when they are combined with others."""


def besiege(plan: Plan, siege: str, rng: random.Random) -> Plan:
    """Change the plan so that sieges of one kind are its only fault, with the cluster and workload that they need."""
    plan.disturbances, plan.sieges, plan.disturbance_every_seconds = {"siege": 1.0}, (siege,), 0.3
    plan.aimed = True
    if siege in STORIES and plan.quorums[2] == 1 and rng.random() < 0.7:
        plan.quorums = rng.choice([quorums for quorums in QUORUMS if quorums[2] > 1])
    plan.bookies = max(plan.bookies, plan.quorums[0] + 1)
    plan.unlucky = min(plan.quorums[2] - 1, 1)
    plan.safety_seconds = max(plan.safety_seconds, 4.0)
    plan.recoverers, plan.recoverers_apart, plan.operator = max(plan.recoverers, 1), True, True
    plan.network.spike_chance = plan.network.split_chance = plan.disk.spike_chance = 0.0
    plan.steady, plan.options = True, {**plan.options, "window_entries": 1000, "window_bytes": 65536}
    if siege in NEEDS_EVERY_MEMBER:
        require_every_member(plan, rng)
    if siege == "rack":
        plan.disk.garble_chance = 1.0
    if siege == "collapse":
        # Writing back takes long enough for several failures. One ledger is recovered again and again.
        plan.bookies = plan.quorums[0] + 2
        plan.knobs |= {
            "octavo.client.recover.recovery:WINDOW_ENTRIES": 3,
            "octavo.client.recover.recovery:ENTRIES_PER_FRAME_MAX": 1,
        }
        plan.safety_seconds, plan.adds, plan.ledgers, plan.deletes = 2.0, 100, 1, False
        plan.disturbance_every_seconds, plan.options["window_bytes"] = 0.4, 65536
        plan.options |= {"bookie_loss_seconds": 0.05, "add_quorum_timeout_seconds": 15.0}
    elif siege == "amnesia":
        # One ledger, whose recovery needs two of three bookies, and time enough for repair.
        plan.quorums, plan.bookies, plan.unlucky = (3, 3, 2), 4, 1
        plan.safety_seconds, plan.adds, plan.ledgers, plan.deletes = 8.0, 100, 1, False
        plan.recoverers, plan.repairs_die = 1, False
        plan.options |= {"request_timeout_seconds": 3.0, "add_quorum_timeout_seconds": 15.0}
        run_agents(plan, rng)
        plan.drains = False
    elif siege == "rivals":
        # A log that is a stream, whose takeover needs two of three bookies. Adds wait for the end of the story.
        plan.quorums, plan.bookies, plan.unlucky = (3, 3, 2), 4, 1
        plan.safety_seconds, plan.adds, plan.repairs_die = 9.0, 200, False
        plan.logs, plan.log_streams, plan.log_retain_seconds, plan.log_retain_bytes = 1, True, 0.0, 0
        plan.options |= {
            "request_timeout_seconds": 3.0,
            "add_quorum_timeout_seconds": 15.0,
            "log_add_timeout_seconds": None,
            "bookie_loss_seconds": 5.0,
            "log_segment_bytes": 100_000,
            "log_segment_seconds": 60.0,
        }
        plan.knobs.pop("octavo.client.terms.term:RENEWAL_OFFSET", None)  # a renewal would wait for the metadata
    elif siege in STORIES:
        # Enough adds for several stories, and time-outs that are longer than a story.
        plan.safety_seconds, plan.adds, plan.ledgers, plan.deletes = 5.0, 300, min(plan.ledgers, 2), False
        plan.recoverers = rng.choice((1, 2))
        plan.options |= {
            "request_timeout_seconds": 3.0,
            "add_quorum_timeout_seconds": 15.0,
            "explicit_lac_delay_seconds": rng.choice((0.02, 0.5, 0.5)),
        }
    return plan


def restore_metadata(plan: Plan) -> None:
    """Change the plan so that the metadata are restored to an older state after the safety phase. No disk loses synced
    data, because a bookie that is in doubt asks the metadata, and no bookie comes back under a new identity."""
    plan.restores_metadata = plan.clients_die = True
    plan.unlucky, plan.ledgers = 0, max(plan.ledgers, 2)
    plan.disturbances = {name: weight for name, weight in plan.disturbances.items() if name not in NEEDS_BUDGET}
    plan.bookie |= {"garbage_seconds": 0.5, "compaction_major_seconds": 1.0}


def lose_data(plan: Plan) -> None:
    """Change the plan so that a machine loses synced data again and again, and its operator's offline tools are
    interrupted."""
    plan.repairs_die, plan.operator, plan.restores_metadata = True, True, False
    if plan.quorums[2] == 1:
        plan.quorums = (3, 3, 2)
    plan.unlucky, plan.bookies = 1, max(plan.bookies, plan.quorums[0] + (plan.quorums[1] == plan.quorums[2]))
    plan.disturbances = {"wipe": 1.0, "rot": 4.0, "restart bookie": 4.0, "kill bookie": 1.0}
    plan.safety_seconds = max(plan.safety_seconds, 1.0)


def run_agents(plan: Plan, rng: random.Random) -> None:
    """Change the plan so that the bookies have repair agents. They recover and change ledgers also on an older copy of
    the metadata, which the checkers do not allow for."""
    plan.agents, plan.restores_metadata = True, False
    plan.repair = replace(QUICK_REPAIR, lost_seconds=rng.choice((0.2, 2.0)), audit_seconds=rng.choice((0.2, 1.0)))
    plan.drains = rng.random() < 0.4
    plan.knobs["octavo.repair.copy.pacing:PIECE_BYTES_MAX"] = rng.choice((500, 8000))  # must fit into a journal segment


GUARDED_DISTURBANCES = ("disable principal", "change principal")
"""Faults of universes whose bookies guard themselves only."""


def guard(plan: Plan, rng: random.Random) -> None:
    """Change the plan so that bookies guard themselves: clients authenticate, and their principals are changed and
    disabled; new ledgers are looked up; each client has limits that it reaches; ledgers with a password are private."""
    plan.guarded = True
    plan.disturbances = {**plan.disturbances, **dict.fromkeys(GUARDED_DISTURBANCES, rng.choice((0.3, 1.0, 3.0)))}
    plan.bookie |= {
        "auth": "required",
        "connections_per_client_max": rng.choice((1, 2, 256)),
        "verify_new_ledgers": "true",
        "client_requests_per_second": rng.choice((0, 20, 100)),
        "client_bytes_per_second": rng.choice((0, 2000, 20_000)),
        "client_new_ledgers_per_second": rng.choice((1, 2)),
    }
    plan.knobs["octavo.bookie.server.clients:_NEW_LEDGERS_BURST_SECONDS"] = 1


def defer(plan: Plan, rng: random.Random) -> None:
    """Change the plan so that ledgers have deferred sync, writers force seldom or often, and bookies restart, one after
    another and all at once, while forces are under way."""
    plan.deferred, plan.logs, plan.restores_metadata = True, 0, False
    plan.disturbances = {
        **plan.disturbances,
        "kill bookie": 2.0, "cut power": 2.0, "cut power everywhere": 2.0, "cut power at a file operation": 1.0,
    }  # fmt: skip
    plan.disk.sync_seconds = rng.choice((0.002, 0.02, 0.05))
    plan.adds = max(plan.adds, 16)
    plan.options |= {
        "force_interval_seconds": rng.choice((0.02, 0.1, 1.0)),
        "unforced_bytes_max": rng.choice((500, 5000, 1_000_000)),
        "bookie_loss_seconds": rng.choice((0.05, 0.5)),
        "add_quorum_timeout_seconds": rng.choice((4.0, 15.0)),
    }


def keep_books(plan: Plan, rng: random.Random) -> None:
    """Change the plan so that ledgers have full copies (rule I9), not all bookies are needed to acknowledge,
    spares are there, and connections and bookies fail. No disk loses synced data: a ledger that requires all copies
    cannot be closed while one is lost for good."""
    plan.full_copies, plan.logs, plan.restores_metadata, plan.unlucky = True, 0, False, 0
    if plan.quorums[1] == plan.quorums[2]:
        plan.quorums = rng.choice(((3, 3, 2), (2, 2, 1), (3, 2, 1)))
    plan.bookies = plan.quorums[0] + rng.choice((0, 1, 2))
    kept = {name: weight for name, weight in plan.disturbances.items() if name not in NEEDS_BUDGET}
    plan.disturbances = {**kept, "kill bookie": 2.0, "restart bookie": 1.0}
    plan.adds = max(plan.adds, 16)
    plan.options |= {
        "full_copies_patience_seconds": rng.choice((0.01, 0.3, 2.0)),
        "retained_bytes_max": rng.choice((0, 300, 100_000)),
        "bookie_loss_seconds": rng.choice((0.05, 0.5)),
        "window_entries": rng.choice((2, 10, 100)),
    }


AGENTS_SHARES = {"quick": 0.03, "small": 0.25, "large": 0.25}
"""Size of a universe -> share in which the bookies have repair agents. They double the cost of a quick one."""


SIZES = {"quick": 0.94, "small": 0.05, "large": 0.01}
"""Size of a universe -> share of the seeds that draw it. A quick universe costs about a quarter of a small one, and a
small one about a seventh of a large one."""


LOSSES_SHARE = 0.05
"""Share of quick universes in which a machine loses synced data and its repairs are interrupted."""

COLLAPSE_SHARE = 0.1
"""Share of small universes in which bookies fail one after another while a ledger is recovered."""


def draw_size(seed: int) -> str:
    """The size of a seed's universe."""
    (size,) = random.Random(f"{seed} size").choices(list(SIZES), list(SIZES.values()))
    return size


def draw_plan(seed: int, size: str | None = None) -> Plan:
    """Draw the plan of a seed: a quick universe for most seeds, or one of ``size``."""
    size = size or draw_size(seed)
    plan = _draw_large(random.Random(f"{seed} plan"), besieged=size == "large")
    if size != "large":
        _make_small(plan, random.Random(f"{seed} small"))
    loses = size == "quick" and random.Random(f"{seed} losses").random() < LOSSES_SHARE
    if size == "quick":
        _make_quick(plan, random.Random(f"{seed} quick"))
        if loses:
            lose_data(plan)
    elif size == "small" and random.Random(f"{seed} collapse").random() < COLLAPSE_SHARE:
        besiege(plan, "collapse", random.Random(f"{seed} collapses"))
    _draw_logs(plan, random.Random(f"{seed} logs"), size)
    if seed % 2 == 0 and not plan.aimed:
        plan.logs = 1
    _draw_streams(plan, random.Random(f"{seed} streams"))
    rng = random.Random(f"{seed} agents")
    if rng.random() < AGENTS_SHARES[size] and not (plan.aimed or plan.restores_metadata or loses):
        run_agents(plan, rng)
        balance_some(plan, seed)
    return plan


def _draw_logs(plan: Plan, rng: random.Random, size: str) -> None:
    """Draw what matters only to logs. Every second seed has one; with ``--set logs=1`` every seed has."""
    plan.log_clients = rng.choice((2, 2, 3)) if size == "large" else 2
    plan.log_retain_bytes = rng.choice((0, 0, 300, 3000))
    plan.log_retain_cursors = rng.random() < 0.3
    plan.options |= {
        "lease_seconds": rng.choice((0.3, 1.0, 5.0)),
        "log_segment_bytes": rng.choice((50, 300, 2000, 100_000)),
        "log_segment_seconds": rng.choice((0.2, 60.0)),
        "log_page_segments": rng.choice((1, 1, 3, 100)),
        "log_retention_seconds": rng.choice((0.1, 0.5, 60.0)),
        "log_add_timeout_seconds": rng.choice((None, None, 0.3, 2.0)),
        "log_duel_pause_seconds": rng.choice((0.01, 0.1)),
        "cursor_flush_seconds": rng.choice((0.01, 0.2)),
    }
    plan.log_retain_seconds = rng.choice((0.0, 0.0, 0.0, 0.2))


def _draw_streams(plan: Plan, rng: random.Random) -> None:
    """Draw what matters only to logs that are streams: half of all logs; all of them with ``--set log_streams=1``."""
    plan.log_streams = rng.random() < 0.5
    plan.knobs |= {name: value for name, values in STREAM_KNOBS.items() if (value := rng.choice(values)) is not None}


def _make_small(plan: Plan, rng: random.Random) -> None:
    """Reduce a plan to one or two ledgers of few adds, with as few bookies as its quorums allow, and with only the
    background work that its faults need. Faults and limits stay, and some are added that need many universes."""
    ensemble, write_quorum, ack_quorum = plan.quorums
    spare = (plan.unlucky and write_quorum == ack_quorum) or rng.random() < 0.3
    plan.bookies = max(2, ensemble + spare)
    plan.clients = 1
    plan.ledgers = 2 if plan.deletes else 1
    plan.adds = rng.choice((10, 20, 40))
    plan.recoverers = min(plan.recoverers, rng.choice((1, 1, 2)))
    plan.safety_seconds = rng.choice((0.5, 0.8, 1.5))
    plan.disturbance_every_seconds = min(plan.disturbance_every_seconds, 0.3)
    idle = {"scrub_pause_seconds": 60.0, "disk_check_seconds": 60.0}
    if not plan.deletes:
        idle |= {"garbage_seconds": 60.0, "compaction_major_seconds": 60.0}
    plan.bookie |= {name: seconds for name, seconds in idle.items() if rng.random() < 0.9}
    plan.options["explicit_lac_delay_seconds"] = max(plan.options["explicit_lac_delay_seconds"], 0.02)
    plan.disk.garble_chance = rng.choice((0.0, 0.5, 1.0))
    if rng.random() < 0.1:
        plan.disturbances, plan.sieges = {"siege": 1.0}, ("rack",)
        plan.disk.garble_chance, plan.steady = 1.0, True
    plan.repairs_die = rng.random() < 0.5
    if rng.random() < 0.08:
        restore_metadata(plan)
    plan.storage = {name: value for name, values in STORAGE.items() if (value := rng.choice(values)) is not None}


QUICK_QUORUMS = ((2, 2, 1), (2, 2, 2), (3, 3, 2), (3, 2, 1), (1, 1, 1))


def _make_quick(plan: Plan, rng: random.Random) -> None:
    """Reduce a small plan to a moment: one ledger of a few adds on two or three bookies, and a handful of faults close
    together. Faults, limits and time-outs stay as they are drawn."""
    if plan.quorums[0] > 3 or rng.random() < 0.5:
        plan.quorums = rng.choice(QUICK_QUORUMS)
    ensemble, write_quorum, ack_quorum = plan.quorums
    plan.unlucky = min(plan.unlucky, ack_quorum - 1)
    if not plan.unlucky:
        plan.disturbances = {name: weight for name, weight in plan.disturbances.items() if name not in NEEDS_BUDGET}
    spare = (plan.unlucky and write_quorum == ack_quorum) or rng.random() < 0.4
    plan.bookies = max(2, ensemble + spare)
    plan.adds = rng.choice((4, 8, 16))
    plan.recoverers = rng.choice((0, 1, 1, 2))
    plan.options["bookie_loss_seconds"] = 0.05
    plan.safety_seconds = rng.choice((0.15, 0.3, 0.5))
    plan.disturbance_every_seconds = rng.choice((0.03, 0.06, 0.12))
    plan.disk.looks_take_time = False
    plan.bookie |= {"lease_seconds": 3.0, "checkpoint_seconds": rng.choice((0.05, 60.0, 60.0))}


def _draw_large(rng: random.Random, *, besieged: bool) -> Plan:
    """Draw a large universe; ``besieged``: some of these have little else than sieges of one kind."""
    quorums = rng.choice(QUORUMS)
    bookies = quorums[0] + rng.choice((0, 1, 1))
    plan = Plan(
        bookies=max(3, bookies),
        clients=rng.choice((2, 2, 3)),
        quorums=quorums,
        adds=rng.choice((40, 60, 120, 200, 200)),
        ledgers=rng.choice((1, 1, 2, 3)),
        entry_bytes_max=rng.choice((20, 400, 1500)),
        safety_seconds=rng.choice((1.5, 2.0, 4.0)),
        disturbance_every_seconds=rng.choice((0.15, 0.3, 0.6, 1.2)),
        unlucky=min(quorums[2] - 1, 1) if rng.random() < 0.5 else 0,
        clock_drift=rng.choice((0.0, 0.0, 0.02, 0.2)),
        recoverers=rng.choice((0, 1, 1, 2, 4)),
        deletes=rng.random() < 0.35,
        rolling_restart=rng.random() < 0.1,
        recoverers_apart=rng.random() < 0.7,
        clients_die=rng.random() < 0.4,
        judge_hindered=rng.random() < 0.5,
        network=_network(rng),
        disk=_disk(rng),
        bookie=_bookie(rng),
        options=_options(rng),
        knobs={name: value for name, values in KNOBS.items() if (value := rng.choice(values)) is not None},
    )
    plan.knobs[FRAME] = FRAME_BYTES
    if plan.unlucky and quorums[1] == quorums[2]:
        # Where every member must confirm, a lost machine needs a spare.
        plan.bookies = max(plan.bookies, quorums[0] + 1)
    share = rng.choice((0.1, 0.2, 0.4))
    drawn = [name for name in DISTURBANCES if rng.random() < share]
    plan.disturbances = {
        name: rng.choice((1.0, 1.0, 4.0)) for name in drawn if plan.unlucky or name not in NEEDS_BUDGET
    }
    if rng.random() < 0.7:
        plan.disturbances["cut power at a file operation"] = 6.0
    kind = rng.random()
    if kind < 0.5:
        # Few other faults: a siege finds more in a cluster that is otherwise healthy.
        plan.disturbances = {
            "siege": 4.0,
            "cut power at a file operation": rng.choice((2.0, 4.0)),
            "kill in a journal write, then cut power": rng.choice((0.0, 2.0)),
        }
        plan.disturbance_every_seconds = rng.choice((0.2, 0.5))
        if rng.random() < 0.6:
            plan.network.spike_chance = plan.network.split_chance = plan.disk.spike_chance = 0.0
    elif kind < 0.7:
        plan.disturbances["siege"] = 4.0
    if plan.deletes:
        # Garbage collection and compaction run often, and have work to do.
        plan.ledgers = max(plan.ledgers, 2)
        plan.bookie["garbage_seconds"] = rng.choice((0.1, 0.3))
        plan.bookie["entry_log_bytes"] = rng.choice((8, 64)) * 1024
        plan.bookie["checkpoint_seconds"] = rng.choice((0.2, 1.0))
        plan.bookie["compaction_major_seconds"] = 0.5
        if rng.random() < 0.4:
            plan.disturbances["metadata lists are empty"] = 2.0
    plan.sieges = tuple(rng.sample(DRAWN, rng.choice((1, 2, len(DRAWN)))))
    plan.operator = rng.random() < 0.7
    if "pause client, restart bookies" in plan.disturbances:
        plan.recoverers = max(plan.recoverers, 1)
    chance = rng.random() if besieged else 1.0
    for share, kinds in BESIEGED:
        if 0 <= chance < share:
            siege = rng.choice(kinds)
            besiege(plan, siege, rng)
            plan.disturbances["cut power at a file operation"] = rng.choice((0.0, 0.05 if siege == "race" else 0.3))
        chance -= share
    return plan


def _network(rng: random.Random) -> NetworkSettings:
    return NetworkSettings(
        delay_seconds_mean=rng.choice((0.0002, 0.001, 0.01)),
        spike_chance=rng.choice((0.0, 0.0, 0.01, 0.1)),
        spike_seconds=rng.choice((0.05, 0.5, 2.0)),
        split_chance=rng.choice((0.0, 0.0, 0.1, 0.5)),
        socket_bytes=rng.choice((2_000, 16_384, 262_144)),
    )


def _disk(rng: random.Random) -> DiskSettings:
    return DiskSettings(
        sync_seconds=rng.choice((0.0002, 0.002, 0.02)),
        spike_chance=rng.choice((0.0, 0.0, 0.02)),
        spike_seconds=rng.choice((0.1, 1.0, 5.0)),
    )


def _bookie(rng: random.Random) -> dict[str, Any]:
    return {
        **QUICK_BOOKIE,
        "cache_bytes": rng.choice((2, 8, 64)) * 1024,
        "journal_segment_bytes": rng.choice((32, 64, 256)) * 1024,
        "checkpoint_journal_bytes": rng.choice((8, 32, 1024)) * 1024,
        "checkpoint_seconds": rng.choice((0.2, 1.0, 60.0)),
        "entry_log_bytes": rng.choice((8, 64, 1024)) * 1024,
        "lease_seconds": rng.choice((1.0, 3.0, 10.0)),
        "garbage_seconds": rng.choice((0.2, 1.0, 60.0)),
        "compaction_minor_share": rng.choice((0.2, 0.7)),
        "compaction_major_share": rng.choice((0.8, 0.99)),
        "compaction_major_seconds": rng.choice((0.5, 5.0)),
        "scrub_pause_seconds": rng.choice((0.5, 60.0, 60.0)),
    }


def _options(rng: random.Random) -> dict[str, Any]:
    timeout = rng.choice((0.3, 1.0, 3.0))
    return {
        "connect_timeout_seconds": timeout,
        "request_timeout_seconds": timeout,
        "reconnect_delay_seconds_max": rng.choice((0.2, 1.0)),
        "window_entries": rng.choice((1, 5, 20, 1000)),
        "window_bytes": 4096,
        "retained_bytes_max": rng.choice((0, 1000, 100_000)),
        "add_quorum_timeout_seconds": rng.choice((1.0, 4.0, 15.0)),
        "resend_delay_seconds": rng.choice((0.05, 0.5)),
        "close_timeout_seconds": rng.choice((2.0, 10.0)),
        "explicit_lac_delay_seconds": rng.choice((0.001, 0.02, 0.5)),
        "bookie_loss_seconds": rng.choice((0.05, 0.5)),
        "bookie_quarantine_seconds": rng.choice((0.2, 2.0, 30.0)),
        "recovery_timeout_seconds": rng.choice((2.0, 20.0)),
        "read_ahead_bytes": rng.choice((500, 4096, 1_000_000)),
        "read_slow_seconds": rng.choice((0.05, 0.5)),
        "replica_avoid_seconds": rng.choice((0.5, 5.0)),
        "read_quorum_timeout_seconds": rng.choice((1.0, 5.0)),
        "long_poll_seconds": rng.choice((0.2, 2.0, 30.0)),
    }
