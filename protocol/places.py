"""Places: the entry ids of a ledger that several writers write one after another, each in a term of its own.

A *place* is ``term << 35 | offset``. A new term writes at ids that no earlier term can have used, so what an earlier
writer has left on a bookie is never in the way. Terms begin at 1: term 0 stands for a ledger with one writer, whose ids
are plain numbers of any size. So the term of a request, and not an id, tells which of the two it is (rule T7).
"""

from collections.abc import Sequence

from octavo.protocol.errors import ProtocolError
from octavo.protocol.ids import EntryId

OFFSET_BITS = 35
"""34 thousand million entries in one term: more than a day at 290,000 adds per second."""

OFFSET_MAX = 2**OFFSET_BITS - 2
"""Largest offset. The id above it is no place: as a LAC it stands for "nothing of the next term yet"."""

FIRST_TERM = 1
"""Of every stream. Term 0 stands for ledgers with one writer."""


def place(term: int, offset: int) -> EntryId:
    """The place of an offset, 0 to :data:`OFFSET_MAX`, in a term, 0 to ``TERM_MAX``."""
    return EntryId(term << OFFSET_BITS | offset)


def term_of(entry_id: int) -> int:
    """The term of a place."""
    return entry_id >> OFFSET_BITS


def offset_of(entry_id: int) -> int:
    """The offset of a place in its term."""
    return entry_id & (1 << OFFSET_BITS) - 1


def term_of_lac(last_add_confirmed_plus_one: int) -> int:
    """The term that a LAC is about. Before its first acknowledgement a term has the LAC ``place(term, 0) - 1``, which
    as a place would be one of the term before: only the id above it shows the term."""
    return last_add_confirmed_plus_one >> OFFSET_BITS


def last_place(term: int) -> EntryId:
    """The last place of a term."""
    return place(term, OFFSET_MAX)


def are_places(terms: Sequence[int], entry_ids: Sequence[int]) -> bool:
    """Whether each id is a place of its term, column by column; without a term, 0, it may be any id."""
    return not any(terms) or all(
        not term or term << OFFSET_BITS <= entry_id <= (term << OFFSET_BITS) + OFFSET_MAX
        for term, entry_id in zip(terms, entry_ids, strict=True)
    )


def check_places(term: int, first: int, last: int) -> None:
    """Raise :class:`ProtocolError` unless the ids ``first`` to ``last`` are places of ``term``, which is not 0."""
    base = term << OFFSET_BITS  # without calls: this is asked for every frame
    if first < base or last > base + OFFSET_MAX:
        raise ProtocolError(f"ids {first} to {last} are not places of term {term}")
