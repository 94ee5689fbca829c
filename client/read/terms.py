"""The meaning of a LAC for a reader of a stream. Pure.

A LAC counts for its own term only (rule V1). One of an earlier term says nothing new. One of a later term says nothing
of where this term ends: entries may lie on its bookies above the end, left there by a writer that was taken over, and
only the metadata tell which. It tells the reader to read those again.
"""

from octavo.protocol.errors import NoSuchLedgerError
from octavo.protocol.ids import EntryId
from octavo.protocol.places import term_of_lac


def confirmed_in(term: int, last_add_confirmed: int) -> EntryId | None:
    """Up to which place of ``term`` this LAC says that entries may be read: itself, or None if it is of another term.
    The LAC of a term without entries is one below its first place."""
    return EntryId(last_add_confirmed) if term_of_lac(last_add_confirmed + 1) == term else None


def tells_of_later_term(term: int, last_add_confirmed: int) -> bool:
    """Whether this LAC is of a later term, so that ``term`` has its end in the metadata."""
    return term_of_lac(last_add_confirmed + 1) > term


class PieceMovedError(NoSuchLedgerError):
    """The piece of a stream that is read has moved: the metadata must be read again, and say where the position is now.
    Positions and places have not changed (rule V2). Never leaves this package."""
