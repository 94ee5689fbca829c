"""Which parts of a ledger repair may touch, and what a bookie should hold of them. Pure.

Theory of operation
-------------------

A fragment's range is *settled* when no verdict about its entries can be pending (rule C2): an earlier fragment, in any
state of the ledger, because the writer began the next one above its LAC; the last fragment only when the ledger is
CLOSED. Of a settled range every entry exists, and every member of an entry's write set should hold it.

The last fragment of a ledger that is OPEN or IN_RECOVERY is never settled: if an empty bookie took a member's place
there, its "absent" would count towards the coverage with which a recovering client ends the ledger (rule F4), and an
acknowledged entry could be cut off.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from octavo.metadata.either import EitherMetadata
from octavo.metadata.model import LedgerMetadata
from octavo.protocol.ids import BookieId
from octavo.protocol.quorums import Quorums, quorums_of


@dataclass(frozen=True, slots=True)
class SettledRange:
    """The entries ``first..last`` of one fragment, all of which exist. Empty when ``last`` is ``first - 1``."""

    first: int
    last: int
    bookies: tuple[BookieId, ...]
    length_after: int
    """Cumulative payload bytes of the ledger up to ``last`` (rule C3 compares it)."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to copy: only the name in the metadata changes."""
        return self.last < self.first


def quorums_of_ledger(metadata: LedgerMetadata) -> Quorums:
    """E, Qw and Qa of the ledger."""
    return quorums_of(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)


def settled_ranges(metadata: LedgerMetadata) -> tuple[SettledRange, ...]:
    """The settled ranges of a ledger, in order (rule C2)."""
    return tuple(_settled(metadata))


def _settled(metadata: LedgerMetadata) -> Iterator[SettledRange]:
    fragments = metadata.fragments
    for fragment, following in pairwise(fragments):
        yield SettledRange(
            fragment.first_entry_id, following.first_entry_id - 1, fragment.bookies, following.length_before
        )
    if metadata.is_closed:
        last = metadata.last_fragment
        end = metadata.last_entry_id if metadata.last_entry_id is not None else -1
        yield SettledRange(last.first_entry_id, end, last.bookies, metadata.length)


def named_in_settled(metadata: EitherMetadata, bookie_id: BookieId) -> bool:
    """Whether a settled range names the bookie. Of a stream every range counts: none is repaired yet."""
    if not isinstance(metadata, LedgerMetadata):
        return bookie_id in metadata.members
    return any(bookie_id in settled.bookies for settled in _settled(metadata))


def replaceable(metadata: LedgerMetadata, old: BookieId, new: BookieId) -> tuple[SettledRange, ...]:
    """The settled ranges in which ``new`` can take the place of ``old``: ``old`` is a member and ``new`` is not."""
    return tuple(settled for settled in _settled(metadata) if old in settled.bookies and new not in settled.bookies)


def ranges_of_member(metadata: LedgerMetadata, bookie_id: BookieId) -> tuple[SettledRange, ...]:
    """The settled ranges that name the bookie: what it should hold of the ledger."""
    return tuple(settled for settled in _settled(metadata) if bookie_id in settled.bookies)
