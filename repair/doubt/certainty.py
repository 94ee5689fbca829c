"""When a bookie in doubt is sure of a ledger again. Pure.

Theory of operation
-------------------

A bookie in doubt answers "unknown" where it holds nothing (rule B4), because it may have confirmed the entry and lost
it. Doubt about one ledger ends when no negative of this bookie can be wrong any more. Negatives decide only in a
recovery, about the last fragment of a ledger that is not CLOSED. So, on metadata read after the doubt began (rules D3
and D4):

===========================  =====================================  ==================================================
ledger                       what the bookie holds                  sure of
===========================  =====================================  ==================================================
deleted                      -                                      all ids
CLOSED                       everything that it should hold         all ids
CLOSED                       less                                   nothing
open or in recovery,         everything that it should hold of the  all ids
not in the last fragment     earlier fragments
open or in recovery, not in  everything that it should hold of the  ids below the first id of the last fragment
the last fragment, where     earlier fragments
all copies are required
open or in recovery,         everything that it should hold of the  ids below the first id of the last fragment
in the last fragment         earlier fragments
open or in recovery          less                                   nothing
===========================  =====================================  ==================================================

A stream at rest is as one that is CLOSED: what comes later is of a later term. Of any other stream of which it holds
what it should, the bookie is sure below the last fragment, also if it is not in it. It is sure of all ids if the last
fragment is of a term above the one that the bookie has noted: of later terms it has lost nothing (rule T12).

The last row but one of the table is why copying never ends the doubt about the last fragment of an open ledger: entries
above the LAC may have been confirmed by this bookie alone, and no other bookie can give them to it. Closing the ledger,
or replacing the bookie in it, settles that.

A bookie that is not in the last fragment may be named in a later one. Then it confirms nothing that it does not hold,
because the floor of its doubt stands for ever (rule D1): ordinary adds to ledgers below it are refused. Where all
copies are required, that is not enough: the bookie may have confirmed copies as a joiner, which the metadata do not
name until the copies are made (rule G3), and lost them since. So it stays unsure of the last fragment, as a member.
"""

from typing import Final

from octavo.metadata.ledger.debts import FullCopies
from octavo.metadata.ledger.stored import StoredLedger
from octavo.protocol.ids import BookieId

SURE_OF_ALL: Final = None
"""No id of the ledger is unsure."""

UNSURE_OF_ALL: Final = 0
"""Every id of the ledger is unsure."""


def first_unsure_id(
    metadata: StoredLedger | None, bookie_id: BookieId, *, holds_all: bool, term_floor: int | None = None
) -> int | None:
    """The first id of the ledger about which the bookie stays in doubt; None: it is sure of all (rule D3).

    ``metadata``: as read after the doubt began; None when the ledger has been deleted. ``holds_all``: whether the
    bookie holds, verified, everything that the settled ranges of these metadata say it should hold (rule C3).
    ``term_floor``: of a stream, the term that the bookie has noted since the doubt began; None: none.
    """
    if metadata is None:
        return SURE_OF_ALL
    if not holds_all:
        return UNSURE_OF_ALL
    last = metadata.last_fragment
    of_later_term = term_floor is not None and metadata.term > term_floor
    if metadata.has_end or of_later_term:
        return SURE_OF_ALL
    confirms_nothing_new = metadata.next_term is None and metadata.full_copies is not FullCopies.REQUIRED
    if confirms_nothing_new and bookie_id not in last.bookies:
        return SURE_OF_ALL
    return int(last.first_entry_id)
