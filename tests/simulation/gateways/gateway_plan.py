"""The plan of a universe with gateways (``course.py``)."""

import random
from typing import Final

from simulation.plan import Plan

GATEWAY_FAULTS: Final = ("kill gateway", "stop gateway", "gateway absent", "cut gateway off", "two takeovers")
"""Faults of the nemesis in universes with gateways only."""

_OTHER_FAULTS: Final = (
    "kill bookie",
    "cut power",
    "restart bookie",
    "pause bookie",
    "kill client",
    "pause client",
    "isolate machine",
    "partition into halves",
    "one-way partition",
    "slow link",
    "slow disk",
    "metadata down",
    "metadata loses answers",
    "metadata changes slowly",
    "late watches",
    "lost watches",
    "expire sessions",
    "metadata conflict",
)
"""Faults of bookies, clients and the metadata, some of which are in each of these universes. Gateways and the programs
that use them are clients here, too."""

KNOBS: Final[dict[str, tuple[int | None, ...]]] = {
    "octavo.gateway.coordinating.coordinators:LOGS": (1, 2),
    "octavo.gateway.leading.gateways:GATEWAYS_MAX": (4,),
    "octavo.gateway.leading.partition:SNAPSHOT_BYTES": (None, 300, 1000),
    "octavo.gateway.leading.recent:BYTES_MAX": (None, 200),
    "octavo.gateway.leading.index:POINT_BYTES": (None, 300),
    "octavo.gateway.topics.producer_ids:BLOCK": (1, 2, 1000),
}
"""As :data:`simulation.engine.knobs.KNOBS`."""


def serve_with_gateways(plan: Plan, rng: random.Random) -> None:
    """Change the plan so that two or three gateways serve producers and members of a group instead of the programs that
    use ledgers and logs. Clocks for timers run at the right rate: leases are compared with those of other processes."""
    hardships = plan.hardships
    hardships.gateway_count = rng.choice((2, 2, 3))
    hardships.gateway_partitions = rng.choice((1, 1, 2, 3))
    hardships.gateway_client_seconds = rng.choice((0.2, 0.5, 1.5, 6.0))
    hardships.gateway_restate_bytes = rng.choice((500, 2000, 1 << 24))
    plan.adds = rng.choice((24, 40, 60))
    plan.logs = 0
    plan.agents = plan.drains = plan.deferred = plan.full_copies = plan.log_copies = plan.deletes = False
    plan.clients_die = plan.restores_metadata = plan.repairs_die = plan.guarded = False
    plan.clock_drift = 0.0
    plan.network.delay_seconds_mean = min(plan.network.delay_seconds_mean, 0.001)
    plan.disk.sync_seconds = min(plan.disk.sync_seconds, 0.002)
    plan.safety_seconds = rng.choice((2.0, 4.0))
    plan.disturbance_every_seconds = rng.choice((0.2, 0.4, 0.8))
    kept = {name: weight for name, weight in plan.disturbances.items() if name != "siege"}
    plan.disturbances = {
        **kept,
        **dict.fromkeys(rng.sample(_OTHER_FAULTS, rng.choice((0, 1, 3))), rng.choice((0.5, 1.0))),
        **dict.fromkeys(rng.sample(GATEWAY_FAULTS, rng.choice((1, 2, 5))), rng.choice((1.0, 3.0))),
    }
    plan.options |= {
        "lease_seconds": rng.choice((0.3, 0.5, 1.0)),
        "log_add_timeout_seconds": None,  # what was handed over is not withdrawn
        "window_entries": rng.choice((2, 20)),
        "log_segment_bytes": rng.choice((300, 2000, 100_000)),
        "bookie_loss_seconds": rng.choice((0.05, 0.5)),
        "add_quorum_timeout_seconds": rng.choice((0.5, 1.0, 4.0)),
        "recovery_timeout_seconds": rng.choice((1.0, 5.0)),
    }
    plan.knobs |= {name: value for name, values in KNOBS.items() if (value := rng.choice(values)) is not None}
    plan.bookie |= {
        "checkpoint_seconds": rng.choice((0.5, 60.0)),
        "garbage_seconds": 60.0,
        "compaction_major_seconds": 60.0,
        "scrub_pause_seconds": 60.0,
        "disk_check_seconds": 1.0,
    }
