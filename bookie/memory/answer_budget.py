"""The memory that answers may hold in a bookie, all connections together: which connection may look something up now.

An answer holds memory from the moment it is looked up until the client's socket has taken it. A client that sends
requests and reads no answers would hold it without limit. A connection's own limits bound what one of them holds;
this bounds all.

Each connection has a *share*: bytes *reserved* for look-ups that are under way, and bytes *unsent* of answers. A
look-up may begin if

1. all shares, with what it reserves, stay within ``bytes_max``, and
2. its own share holds nothing yet, or would hold at most a sixth of what is free (``FREE_PER_SHARE``).

By rule 2 a few clients may hold much, many clients hold little each, and memory is left for a client that holds
nothing: a client that reads its answers is not kept waiting by those that do not. (Switches divide a buffer among their
ports in this way: "dynamic queue length thresholds", Choudhury and Hahne 1998.) A look-up reserves the most that its
answer may take: a whole entry at least. As memory gets scarce answers are granted fewer bytes.

If so many clients stall that nothing is left, rule 1 makes all look-ups wait until some clients are evicted:
:meth:`AnswerBudget.stalled` names them. A client whose socket takes something, however little, is never evicted.
"""

from dataclasses import dataclass
from typing import NamedTuple

FREE_PER_SHARE = 6
"""Free bytes that must be there for each byte of a share: at the default size, one connection alone can have its eight
reads of the largest entries under way."""

GRANT_BYTES_MIN = 64 * 1024
"""The smallest grant: shorter answers would cost more work than they save memory."""

FREE_PER_GRANT = 64
"""Free bytes that must be there for each byte granted, above ``GRANT_BYTES_MIN``."""

STALLED_SECONDS_MAX = 60.0
"""Time after which a client that reads nothing of its answers is evicted. Longer than any pause of an honest client."""

STALLED_SECONDS_MIN = 10.0
"""The same while other clients wait for the memory that it holds."""


class Grant(NamedTuple):
    """Permission to look something up."""

    bytes_max: int
    """For the entries of the answer; where a single one is larger it may still come."""
    reserved: int


@dataclass(slots=True, eq=False)
class Share:
    """The memory that the answers of one connection hold. Changed by the budget alone."""

    reserved: int = 0
    unsent: int = 0
    taken: int = 0
    """Bytes that the client's socket has taken since it was connected, when it was last observed."""
    progress_at: float = 0.0
    """When the socket last sent something or had nothing to send, in the loop's seconds."""

    @property
    def held(self) -> int:
        return self.reserved + self.unsent


class AnswerBudget:
    """See the module. All sizes are in bytes, all times in the loop's seconds."""

    def __init__(
        self,
        bytes_max: int,
        *,
        stalled_seconds_max: float = STALLED_SECONDS_MAX,
        stalled_seconds_min: float = STALLED_SECONDS_MIN,
    ) -> None:
        self.bytes_max = bytes_max
        self._stalled_seconds_max = stalled_seconds_max
        self._stalled_seconds_min = stalled_seconds_min
        self.held = 0
        """Bytes that all shares hold together."""
        self._holding: dict[Share, None] = {}

    @property
    def holding(self) -> list[Share]:
        """The shares that hold something, longest first."""
        return list(self._holding)

    def grant(self, share: Share, wanted: int, *, entry_bytes_min: int, other_bytes: int = 0) -> Grant | None:
        """Grant memory for an answer with ``wanted`` bytes of entries, or fewer if memory is scarce. Returns None if
        the look-up must wait.

        ``entry_bytes_min`` is reserved for them in any case, as a single entry may take that; ``other_bytes`` for
        everything else in the answer.
        """
        free = self.bytes_max - self.held
        granted = min(wanted, max(GRANT_BYTES_MIN, free // FREE_PER_GRANT))
        reserved = max(granted, entry_bytes_min) + other_bytes
        if reserved > free or (share.held and (share.held + reserved) * FREE_PER_SHARE > free):
            return None
        self._change(share, reserved=share.reserved + reserved, unsent=share.unsent)
        return Grant(granted, reserved)

    def release(self, share: Share, grant: Grant) -> None:
        """Take a grant back, because the look-up has ended. From now on :meth:`observe` counts the bytes of its
        answer."""
        assert share.reserved >= grant.reserved, "a grant is released once"
        self._change(share, reserved=share.reserved - grant.reserved, unsent=share.unsent)

    def observe(self, share: Share, *, unsent: int, taken: int, now: float) -> None:
        """Record how many bytes the connection's socket has sent (``taken``) and still has to send (``unsent``)."""
        if taken > share.taken or not share.unsent:
            share.progress_at = now
        share.taken = taken
        self._change(share, reserved=share.reserved, unsent=unsent)

    def forget(self, share: Share) -> None:
        """Release everything that a closed connection held."""
        self._change(share, reserved=0, unsent=0)

    def stalled(self, now: float, *, memory_is_wanted: bool) -> list[Share]:
        """The shares to evict: all that have taken nothing for ``stalled_seconds_max``; if there is none and a client
        that holds nothing waits for memory, the largest that has taken nothing for ``stalled_seconds_min``."""
        stalled = [
            share for share in self._holding if share.unsent and now - share.progress_at >= self._stalled_seconds_min
        ]
        overdue = [share for share in stalled if now - share.progress_at >= self._stalled_seconds_max]
        if overdue or not (stalled and memory_is_wanted):
            return overdue
        return [max(stalled, key=lambda share: share.held)]

    def _change(self, share: Share, *, reserved: int, unsent: int) -> None:
        self.held += reserved + unsent - share.held
        share.reserved, share.unsent = reserved, unsent
        if share.held:
            self._holding[share] = None
        else:
            self._holding.pop(share, None)

    def check_invariants(self) -> None:
        assert self.held == sum(share.held for share in self._holding)
        assert all(share.held for share in self._holding)
        assert all(share.reserved >= 0 and share.unsent >= 0 for share in self._holding)
