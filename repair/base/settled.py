"""The settled ranges that a bookie should hold, and those in which another one can take its place. Pure.

Theory of operation
-------------------

Repair touches settled ranges only (rule C2). The metadata say which they are
(:meth:`octavo.metadata.ledger.stored.StoredLedger.settled_ranges`).

The last fragment of a ledger that is OPEN or IN_RECOVERY is never settled: if an empty bookie took a member's place
there, its "absent" would count towards the coverage with which a recovering client ends the ledger (rule F4), and an
acknowledged entry could be cut off. The same holds for a stream. What lies in pages is looked at part by part
(:mod:`octavo.repair.base.stream_parts`).
"""

from octavo.metadata.ledger.stored import SettledRange, StoredLedger
from octavo.protocol.ids import BookieId


def named_in_settled(metadata: StoredLedger, bookie_id: BookieId) -> bool:
    """Whether a settled range names the bookie."""
    return any(bookie_id in settled.bookies for settled in metadata.settled_ranges())


def replaceable(metadata: StoredLedger, old: BookieId, new: BookieId) -> tuple[SettledRange, ...]:
    """The settled ranges in which ``new`` can take the place of ``old``: ``old`` is a member and ``new`` is not."""
    ranges = metadata.settled_ranges()
    return tuple(settled for settled in ranges if old in settled.bookies and new not in settled.bookies)


def ranges_of_member(metadata: StoredLedger, bookie_id: BookieId) -> tuple[SettledRange, ...]:
    """The settled ranges that name the bookie: what it should hold of the ledger."""
    return tuple(settled for settled in metadata.settled_ranges() if bookie_id in settled.bookies)
