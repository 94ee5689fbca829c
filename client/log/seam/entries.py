"""The values that readers of a log get."""

from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from octavo.protocol.entries import EPOCH
from octavo.protocol.ids import EntryId, LedgerId

type OnTruncated = Literal["raise", "skip"]
"""What a follower does about positions that it cannot have."""


class LogEntry(NamedTuple):
    """One entry of a log.

    Examples:
        >>> (entry,) = await log.read(1, 1)
        >>> entry.position, entry.payload, entry.term, entry.key
        (1, b'second', 1, None)
    """

    position: int
    payload: bytes
    term: int
    """Of the leader that added it; rises from leader to leader."""
    sealed_at_ms: int
    """The leader's clock when it sealed the entry, in milliseconds since 1970. It never falls within a log."""
    ledger_id: LedgerId
    entry_id: EntryId
    key: str | None = None
    """With which it was added; None without one."""

    @property
    def sealed_at(self) -> datetime:
        """When the leader sealed the entry, by its own clock."""
        return EPOCH + timedelta(milliseconds=self.sealed_at_ms)


class LogExtent(NamedTuple):
    """Neighbouring positions of a log that are in one ledger.

    Examples:
        >>> (extent,) = await log.extents(0, 2)
        >>> extent.first, extent.last
        (0, 2)
    """

    ledger_id: LedgerId
    base: int
    """The position of the ledger's entry 0."""
    first: int
    last: int
    """Positions, both inclusive."""


class Gap(NamedTuple):
    """Positions that a follower cannot have: they were truncated, or given up by an operator. Both are inclusive.

    Examples:
        >>> await log.truncate(2)
        >>> async for item in log.follow(0, on_truncated="skip"):
        ...     print(item)
        ...     break
        Gap(first=0, last=1)
    """

    first: int
    last: int
