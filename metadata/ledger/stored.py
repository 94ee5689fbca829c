"""The questions about metadata that a ledger and a stream answer alike. Pure.

A stream has bookies, and entries on them, like any ledger. Repair, garbage collection, the commands and the interfaces
of bookies ask the questions of :class:`StoredLedger`, and not which of the two they look at. The models of a ledger
(:mod:`octavo.metadata.ledger.model`) and of a stream (:mod:`octavo.metadata.stream.model`) answer them, each from its
own stored form. They share no base class.

A fragment's range is *settled* when no verdict about its entries can be pending (rule C2): an earlier fragment, in any
state, because the writer began the next one above its LAC; the last fragment only once it has an end. Of a settled
range every entry exists, and every member of an entry's write set should hold it.
"""

import enum
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol, Self

from octavo.metadata.ledger.debts import Debt, FullCopies
from octavo.metadata.ledger.term import StoredFragment, Term
from octavo.protocol.entries import Digest
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.quorums import Quorums


class StoredKind(enum.Enum):
    """The two kinds, by the names that people and programs read."""

    LEDGER = "ledger"
    """It has one writer."""
    STREAM = "stream"
    """Several clients write it one after another."""


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


class StoredKey(Protocol):
    """How entries are sealed, and by what a password is checked (rule F0)."""

    @property
    def digest(self) -> Digest: ...

    @property
    def verifier(self) -> bytes: ...

    @property
    def salt(self) -> bytes: ...


class StoredPage(Protocol):
    """A document that holds some of the older fragments."""

    @property
    def fragments(self) -> int: ...

    @property
    def first_entry_id(self) -> EntryId: ...

    @property
    def last_entry_id(self) -> EntryId: ...


class StoredLedger(Protocol):
    """One version of the metadata of a ledger or a stream. Immutable; what changes them returns others."""

    # --- what it is ----------------------------------------------------------------------------------------------

    @property
    def kind(self) -> StoredKind:
        """For names and messages. What follows from it has a question of its own here."""

    @property
    def ledger_id(self) -> LedgerId: ...

    @property
    def state(self) -> enum.Enum:
        """Its value is what people read."""

    @property
    def term(self) -> int:
        """The current term; 0 where there is only one."""

    @property
    def current_term(self) -> Term:
        """The term as its writer, a recovery and a reader know it: the only one of a ledger, the latest of a stream."""

    @property
    def next_term(self) -> int | None:
        """The term that the next writer opens; None where no other writer ever comes: then nothing but repair changes
        what has an end, and nothing is truncated."""

    @property
    def custom_metadata(self) -> Mapping[str, bytes]: ...

    @property
    def created_at(self) -> datetime: ...

    @property
    def writer_token(self) -> str: ...

    @property
    def fenced_at(self) -> datetime | None: ...

    @property
    def fenced_by(self) -> str: ...

    @property
    def private(self) -> bool: ...

    @property
    def full_copies(self) -> FullCopies | None: ...

    # --- its end -------------------------------------------------------------------------------------------------

    @property
    def has_end(self) -> bool:
        """Whether the last fragment has an end, that is, is settled."""

    @property
    def is_closed(self) -> bool:
        """Whether it has an end, and no fragment will come after that."""

    @property
    def last_entry_id(self) -> EntryId | None:
        """None while it has no end, and for a ledger that was closed empty."""

    @property
    def length(self) -> int:
        """Payload bytes up to the end; 0 while there is none."""

    @property
    def start_place(self) -> EntryId:
        """The first id that is kept."""

    @property
    def written_part(self) -> object:
        """The part that a writer or a recovery changes: two versions that agree in it have had none in between."""

    def counts_lac(self, lac: int) -> bool:
        """Whether this LAC, which a member of the last fragment shows, says how far that fragment is confirmed."""

    # --- its fragments -------------------------------------------------------------------------------------------

    @property
    def fragments(self) -> Sequence[StoredFragment]:
        """Those that lie in no page, in order."""

    @property
    def last_fragment(self) -> StoredFragment:
        """The one that the writer adds to, and whose bookies a recovery asks."""

    @property
    def pages(self) -> Sequence[StoredPage]:
        """Where older fragments lie; they are read with :mod:`octavo.metadata.updates.paging`."""

    @property
    def tail(self) -> Self:
        """The part that lies in no page."""

    @property
    def members(self) -> frozenset[BookieId]:
        """Every bookie that a fragment of the tail names."""

    @property
    def spare_copies(self) -> int:
        """Copies of an entry that may be lost without losing it: the least Qa - 1 of the tail."""

    @property
    def keys(self) -> Sequence[StoredKey]:
        """All with which its entries are sealed, or were."""

    def fragment_of(self, entry_id: EntryId) -> StoredFragment:
        """The fragment of the tail to which an id belongs. Raises :class:`InvalidArgumentError` if none does."""

    def last_id_of(self, fragment: StoredFragment) -> EntryId | None:
        """The last id of a fragment of the tail that holds an entry; one below its first if it is empty; None while it
        has no end."""

    def quorums_at(self, entry_id: int) -> Quorums:
        """E, Qw and Qa of the fragment of the tail to which an id belongs."""

    def key_at(self, entry_id: int) -> StoredKey:
        """The key of the fragment of the tail to which an id belongs."""

    def settled_ranges(self) -> tuple[SettledRange, ...]:
        """The settled ranges of the tail, in order (rule C2)."""

    def debt_of(self, fragment: StoredFragment) -> Debt:
        """The debt of a fragment of the tail (rule I9)."""

    @property
    def debts(self) -> Sequence[tuple[StoredFragment, Debt]]:
        """The fragments of the tail of which something is owed, with what it is."""

    # --- transitions ---------------------------------------------------------------------------------------------

    def with_member(self, first_entry_id: EntryId, position: int, bookie_id: BookieId) -> Self:
        """With another bookie in a settled fragment of the tail (rule C2). Raises :class:`InvalidArgumentError`."""

    def with_debt(self, first_entry_id: EntryId, debt: Debt) -> Self:
        """With this debt recorded in a fragment of the tail, if there is such a fragment and debts are recorded."""

    def restored(self, terms_skipped: int) -> Self:
        """As read from a dump: the next term leaves out at least this number of terms (rule T1)."""

    def written_by(self, writer_token: str) -> Self:
        """With the token of the handle that is about to write them."""
