"""The moves (faults) that each kind of siege consists of.

Each move takes part with some chance, and begins within some seconds of the siege's beginning.
"""

from typing import NamedTuple


class Move(NamedTuple):
    """One fault of a siege."""

    name: str
    chance: float = 1.0
    """Chance that the move takes part, from 0 to 1."""
    earliest: float = 0.0
    """Seconds after the siege's beginning; so is ``latest``."""
    latest: float = 0.3


NEEDS_BUDGET = frozenset({"wipe member", "rot in member"})
"""Moves that destroy synced data: they strike only machines of the fault budget."""

DRAWN = ("takeover", "replacement", "exchange", "succession", "disks", "pile-up")
"""Kinds that a plan may combine. Other kinds need a plan of their own (``BESIEGED`` in ``plan.py``)."""

NEEDS_EVERY_MEMBER = frozenset({"exchange", "collapse"})
"""Kinds that find most where every member of a write set must confirm (Qw = Qa)."""

STORIES = ("blackout", "absence", "race", "collapse", "amnesia", "rivals")
"""Kinds that consist of one move, a scripted sequence (``siege_stories.py``)."""

SIEGES: dict[str, tuple[Move, ...]] = {
    "takeover": (
        # Another client takes a living writer for failed; the writer is not told, and its adds are still in flight.
        Move("deafen writer", 0.8, latest=0.0),
        Move("delay writer's adds", 0.9, latest=0.0),
        Move("delay writer's adds", 0.6, latest=0.0),
        Move("suspect writer", latest=0.2),
        Move("slow member's disk", 0.4),
        Move("delay recoverer", 0.5),
        Move("hold up member", 0.2),
        Move("pause writer", 0.2),
    ),
    "replacement": (
        # One bookie of the ensemble fails while another lags and the metadata store is slow.
        Move("hold up member", latest=0.05),
        Move("delay writer's adds", 0.6, latest=0.05),
        Move("delay metadata", 0.7, latest=0.0),
        Move("lose member", earliest=0.05, latest=0.3),
        Move("lose member", 0.2, latest=1.0),
        Move("kill writer", 0.4, earliest=0.2, latest=1.5),
    ),
    "exchange": (
        # The answers of one bookie are late, and another bookie fails with adds pending that it had confirmed. The late
        # confirmations arrive during the ensemble change or after it.
        Move("delay member's answers", latest=0.0),
        Move("slow changes of metadata", 0.7, latest=0.1),
        Move("delay metadata", 0.2, latest=0.1),
        Move("kill member", earliest=0.1, latest=0.4),
        Move("kill writer", 0.15, earliest=0.6, latest=2.0),
    ),
    "succession": (
        # The writer fails, one of its bookies fails, and the recovering client may fail, too.
        Move("delay writer's adds", 0.6, latest=0.0),
        Move("hold up member", 0.5, latest=0.0),
        Move("kill writer", latest=0.4),
        Move("lose member", 0.9, earliest=0.1, latest=0.8),
        Move("kill another client", 0.4, earliest=0.3, latest=1.2),
        Move("suspect writer", 0.5),
        Move("delay recoverer", 0.6, latest=0.6),
    ),
    "disks": (
        Move("delay writer's adds", 0.5, latest=0.0),
        Move("member's sync fails", 0.5),
        Move("member cannot read", 0.7, latest=1.0),
        Move("wipe member", 0.4),
        Move("rot in member", 0.7, latest=1.0),
        Move("restart members", 0.3, latest=0.5),
        Move("kill writer", 0.5, latest=0.6),
        Move("suspect writer", 0.5, latest=1.5),
    ),
    "rack": (
        # The bookies of the ensemble lose power together, each during one of its next journal writes.
        Move("cut members' power in journal writes", latest=0.1),
        Move("kill writer", 0.5, earliest=0.1, latest=0.5),
    ),
    **{story: (Move(story, latest=0.0),) for story in STORIES},
    "pile-up": (
        Move("deafen writer", 0.2),
        Move("delay writer's adds", 0.3),
        Move("delay recoverer", 0.2),
        Move("delay metadata", 0.2),
        Move("hold up member", 0.3),
        Move("lose member", 0.3),
        Move("slow member's disk", 0.3),
        Move("member cannot read", 0.2),
        Move("member's sync fails", 0.3),
        Move("pause writer", 0.2),
        Move("kill writer", 0.2, latest=0.6),
        Move("kill another client", 0.1, latest=0.6),
        Move("suspect writer", 0.3),
        Move("restart members", 0.2),
        Move("wipe member", 0.1),
        Move("rot in member", 0.3),
    ),
}
"""Kind of siege -> its moves."""
