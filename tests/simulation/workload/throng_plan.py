"""The plan of a universe in which a client has many ledgers open at once (``throng.py``)."""

import random

from simulation.plan import Plan

PACK_REQUESTS_MAX = "octavo.client.wire.posting:PACK_REQUESTS_MAX"

_FAULTS = (
    "kill bookie",
    "cut power",
    "cut power everywhere",
    "restart bookie",
    "pause bookie",
    "isolate machine",
    "one-way partition",
    "slow link",
    "reset connections",
    "slow disk",
    "sync failure",
    "disk full",
)
"""Faults that strike while packs are under way, some of which are in each of these universes."""


def open_many(plan: Plan, rng: random.Random) -> None:
    """Change the plan so that one client has up to hundreds of ledgers open at once, some of which another client
    fences; some bookies and clients know no packs. A log stays where the seed has one."""
    hardships = plan.hardships
    hardships.old_bookie_chance = rng.choice((0.0, 0.0, 0.0, 0.3))
    hardships.old_client_chance = rng.choice((0.0, 0.0, 0.0, 0.4))
    plan.ledgers = rng.choice((30, 30, 100, 240))
    plan.clients, plan.recoverers, plan.adds = 2, 0, 8
    plan.agents = plan.drains = plan.deferred = plan.full_copies = False
    plan.entry_bytes_max = min(plan.entry_bytes_max, 100)
    plan.safety_seconds = max(rng.choice((0.3, 0.6, 1.0)), 80 * plan.network.delay_seconds_mean)
    plan.disturbance_every_seconds = rng.choice((0.06, 0.12, 0.3))
    plan.disturbances = {**plan.disturbances, **dict.fromkeys(rng.sample(_FAULTS, 4), 1.0)}
    plan.disturbances["cut power at a file operation"] = rng.choice((0.0, 2.0, 6.0))
    plan.options |= {
        "window_entries": rng.choice((1, 2, 20)),
        "bookie_loss_seconds": rng.choice((0.05, 0.5)),
        "add_quorum_timeout_seconds": rng.choice((4.0, 15.0)),
        "request_timeout_seconds": rng.choice((0.1, 0.3, 1.0)),
    }
    plan.knobs[PACK_REQUESTS_MAX] = rng.choice((5, 40, 512, 512))
    # What bookies do for each ledger now and then would cost more than all else.
    plan.bookie |= {
        "cache_bytes": rng.choice((16, 64)) * 1024,
        "checkpoint_journal_bytes": 1024 * 1024,
        "checkpoint_seconds": rng.choice((0.5, 60.0, 60.0)),
        "garbage_seconds": 60.0,
        "compaction_major_seconds": 60.0,
        "scrub_pause_seconds": 60.0,
    }
    plan.storage = {"ledgers_hot_max": 20} if rng.random() < 0.3 else {}
