"""What sieges consist of: for each kind of pile-up that loses data in practice, the moves that make it.

A move has a chance to take part, and begins within some seconds of the siege's beginning.
"""

from typing import NamedTuple


class Move(NamedTuple):
    """One fault of a siege."""

    name: str
    chance: float = 1.0
    """To take part at all."""
    earliest: float = 0.0
    """Seconds after the siege's beginning; so is ``latest``."""
    latest: float = 0.3


NEEDS_BUDGET = frozenset({"wipe member", "rot in member"})
"""Moves for machines of the fault budget only."""

DRAWN = ("takeover", "replacement", "exchange", "succession", "disks", "pile-up")
"""Sieges that a plan may have beside each other; for others it is made (``BESIEGED`` in ``plan.py``)."""

NEEDS_EVERY_MEMBER = frozenset({"exchange"})
"""Sieges that come to most where an entry needs every member of its write set."""

STORIES = ("blackout", "absence", "race")
"""Sieges that are one move: what happens in them depends on what has happened (``siege_stories.py``)."""

SIEGES: dict[str, tuple[Move, ...]] = {
    "takeover": (
        # A writer that lives is believed dead, and does not hear of it; what it has sent is still under way.
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
        # One bookie of the ensemble is lost while another lags; the metadata take their time.
        Move("hold up member", latest=0.05),
        Move("delay writer's adds", 0.6, latest=0.05),
        Move("delay metadata", 0.7, latest=0.0),
        Move("lose member", earliest=0.05, latest=0.3),
        Move("lose member", 0.2, latest=1.0),
        Move("kill writer", 0.4, earliest=0.2, latest=1.5),
    ),
    "exchange": (
        # What one bookie says arrives late, another is lost with adds under way that it had confirmed: when the late
        # confirmations come, the ensemble is being changed, or has been.
        Move("delay member's answers", latest=0.0),
        Move("slow changes of metadata", 0.7, latest=0.1),
        Move("delay metadata", 0.2, latest=0.1),
        Move("kill member", earliest=0.1, latest=0.4),
        Move("kill writer", 0.15, earliest=0.6, latest=2.0),
    ),
    "succession": (
        # The writer is gone, so is one of its bookies, and who takes over may not live either.
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
