"""A term: what one writer, a recovery and a reader know of the ledger that bookies see (decision 024). Pure.

To bookies a ledger with one writer is one term, number 0. A stream is written in terms from 1 on, one after another,
each of which is what a ledger was: one writer, one set of quorums, one key, ids that follow one another, one end. What
writes, recovers and reads takes a :class:`Term`, and does not know from which document it was made. A ledger and a
stream both give their current one (:attr:`octavo.metadata.ledger.stored.StoredLedger.current_term`); a piece of a
stream gives one that is over (:mod:`octavo.client.terms.pieces`). A term is never stored.
"""

import enum
from bisect import bisect_right
from typing import NamedTuple, Protocol

from octavo.metadata.ledger.debts import Debt, FullCopies
from octavo.protocol.entries import Digest
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.quorums import Quorums


class StoredFragment(Protocol):
    """A run of entries on one ensemble, of a ledger or of a stream."""

    @property
    def first_entry_id(self) -> EntryId: ...

    @property
    def bookies(self) -> tuple[BookieId, ...]: ...

    @property
    def length_before(self) -> int:
        """Payload bytes before its first entry."""

    @property
    def debt(self) -> Debt | None: ...


class TermState(enum.Enum):
    """Whether a term has its end."""

    OPEN = "open"
    """Its writer adds to it."""
    IN_RECOVERY = "in-recovery"
    """A client has begun to find its end."""
    ENDED = "ended"
    """Its end is the same for all clients."""


class TermKey(NamedTuple):
    """How the entries of a term are sealed, and by what a password is checked (rule F0)."""

    digest: Digest
    verifier: bytes
    salt: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """See the module. ``fragments``: at least one, in order, and no others than those of the term."""

    ledger_id: LedgerId
    number: int
    """0 for a ledger with one writer; of a stream, from 1 on."""
    state: TermState
    quorums: Quorums
    fragments: tuple[StoredFragment, ...]
    last_entry_id: EntryId | None
    """The last id, once it has ended; None before, and for an empty ledger with one writer. A term of a stream that is
    empty ends one below its first id."""
    length: int
    """Payload bytes of the ledger, or of the stream, up to there; 0 before it has ended."""
    key: TermKey
    private: bool
    """Bookies give its entries only to clients that have its key, and to repairs (rule S3)."""
    full_copies: FullCopies | None
    """What is promised about all Qw copies of its entries (rule I9)."""

    @property
    def has_end(self) -> bool:
        """Whether its end is settled."""
        return self.state is TermState.ENDED

    @property
    def last_fragment(self) -> StoredFragment:
        """The fragment that the writer adds to, and whose bookies recovery asks."""
        return self.fragments[-1]

    @property
    def bookies(self) -> tuple[BookieId, ...]:
        """The ensemble of the last fragment, by slot."""
        return self.fragments[-1].bookies

    def fragment_of(self, entry_id: int) -> StoredFragment | None:
        """The fragment whose ensemble holds ``entry_id``, written or not; None below the first one."""
        at = bisect_right(self.fragments, entry_id, key=_first_entry_id)
        return self.fragments[at - 1] if at else None

    def last_id_of(self, fragment: StoredFragment) -> EntryId | None:
        """The last id that belongs to ``fragment`` (inclusive); None while the term has no end. An empty last fragment
        ends at its first id - 1."""
        at = bisect_right(self.fragments, int(fragment.first_entry_id), key=_first_entry_id)
        if at < len(self.fragments):
            return EntryId(self.fragments[at].first_entry_id - 1)
        if self.has_end and self.last_entry_id is None:
            return EntryId(-1)
        return self.last_entry_id


def mean_entry_bytes(term: Term) -> float | None:
    """The mean size of the payloads of a closed ledger, or of part of a stream; None where that is not known."""
    if not term.has_end or term.last_entry_id is None:
        return None
    first = term.fragments[0]
    count = term.last_entry_id + 1 - first.first_entry_id
    return (term.length - first.length_before) / count if count else None


def _first_entry_id(fragment: StoredFragment) -> int:
    return fragment.first_entry_id
