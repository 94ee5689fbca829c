"""The plan of a universe in which a client follows many ledgers and some logs (``audience.py``)."""

import random

from simulation.plan import Plan

SUBSCRIPTIONS_MAX = "octavo.bookie.server.clients:SUBSCRIPTIONS_MAX"
WINDOWS = ("octavo.client.read.feeds:_WINDOW_BYTES_MAX", "octavo.client.read.feeds:_WINDOW_BYTES_MIN")

WINDOW_BYTES_AMPLE = 900
"""Twice what is added to a ledger at once: where it is less, a bookie whose credit is used up tells the LAC later."""

_FAULTS = (
    "kill bookie",
    "cut power",
    "cut power everywhere",
    "restart bookie",
    "pause bookie",
    "pause client",
    "kill client",
    "isolate machine",
    "one-way partition",
    "slow link",
    "slow disk",
    "metadata down",
    "late watches",
    "lost watches",
    "expire sessions",
)
"""Faults that a follower must bear, some of which are in each of these universes."""


def follow_many(plan: Plan, rng: random.Random) -> None:
    """Change the plan so that a client follows up to hundreds of ledgers and some logs, which other clients write,
    fence and take over. Connections break often, and what was pushed is lost with them. Windows are a few entries, so
    that credit runs out; some bookies bear few subscriptions, some peers know none."""
    hardships = plan.hardships
    hardships.old_bookie_chance = rng.choice((0.0, 0.0, 0.3))
    hardships.old_client_chance = rng.choice((0.0, 0.0, 0.0, 0.2))
    plan.logs, plan.log_streams, plan.log_clients = rng.choice((0, 2, 4)), True, 2
    plan.log_retain_seconds = plan.log_retain_bytes = 0
    plan.ledgers = rng.choice((20, 20, 60, 200)) if not plan.logs else rng.choice((10, 30))
    plan.clients, plan.recoverers, plan.adds = 3, 0, 16 * plan.logs
    plan.agents = plan.drains = plan.deferred = plan.full_copies = plan.log_copies = plan.deletes = False
    plan.clients_die = plan.judge_hindered = plan.restores_metadata = plan.repairs_die = plan.guarded = False
    plan.unlucky, plan.clock_drift = 0, 0.0
    plan.entry_bytes_max = min(plan.entry_bytes_max, 100)
    plan.network.delay_seconds_mean = min(plan.network.delay_seconds_mean, 0.001)
    plan.safety_seconds = rng.choice((0.6, 1.0, 2.0))
    plan.disturbance_every_seconds = rng.choice((0.06, 0.12, 0.3))
    plan.disturbances = dict.fromkeys(rng.sample(_FAULTS, 4), 1.0) | {"reset connections": rng.choice((0.5, 2.0))}
    plan.disk.sync_seconds = min(plan.disk.sync_seconds, 0.002)
    plan.options |= {
        "window_entries": rng.choice((2, 20)),
        "bookie_loss_seconds": rng.choice((0.05, 0.5)),
        "add_quorum_timeout_seconds": rng.choice((4.0, 15.0)),
        "request_timeout_seconds": rng.choice((0.3, 1.0)),
        "explicit_lac_delay_seconds": rng.choice((0.001, 0.02)),
        "long_poll_seconds": rng.choice((2.0, 30.0, 30.0)),
        "reconnect_delay_seconds_max": 0.2,
        "replica_avoid_seconds": 0.5,
    }
    plan.knobs |= dict.fromkeys(WINDOWS, rng.choice((300, 300, WINDOW_BYTES_AMPLE)))
    if rng.random() < 0.3:
        plan.knobs[SUBSCRIPTIONS_MAX] = rng.choice((5, 40))
    plan.bookie |= {
        "cache_bytes": rng.choice((16, 64)) * 1024,
        "checkpoint_journal_bytes": 1024 * 1024,
        "checkpoint_seconds": rng.choice((0.5, 60.0, 60.0)),
        "garbage_seconds": 60.0,
        "compaction_major_seconds": 60.0,
        "scrub_pause_seconds": 60.0,
    }
    plan.storage = {"ledgers_hot_max": 20} if rng.random() < 0.3 else {}
