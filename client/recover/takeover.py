"""Taking a stream over: from the term that a client has read to the term that it has opened. Pure.

Theory of operation
-------------------

A takeover is the recovery of the current term T, whose last compare-and-set opens the next term instead of closing the
ledger. Any number of clients may take over at once, and each may be broken off at any point: all of them recover the
same term, and the first :class:`~octavo.metadata.stream.changes.OpenTerm` that stands decides (rules T1 and T5).

::

    BEGINNING --at rest-------------------------------------------------------> ENDED
        |                                                                        ^  |
        +------BeginTakeover stands, IN_RECOVERY--> RECOVERING --the term's end--+  |
        ^                                                                           |
        +------a conflict: the stream is read again-- OPENING <--OpenTerm is sent---+
                                                         |
    any phase --the term is over--> WITHDRAWN            +--OpenTerm stands--> OPEN

- Nothing is fenced before BeginTakeover(T) stands, and then T is fenced and no other term (rules T2 and T3).
- Recovered entries are written back to their old places with their old bytes, and changes of the ensemble stay here
  until OpenTerm writes them (rule T4). What a client that lost has written back are copies of the same bytes, or lie
  above the settled end, where nothing refers to them.
- At rest there is no writer to fence, so nothing needs to begin, and the end that stands is taken (rule T8). If another
  client has opened a term since, OpenTerm is refused. If another client puts the stream at rest while this one
  recovers, with another end, OpenTerm is refused with a conflict, and the takeover begins again.
- No fragment is noted as begun before an entry below it was sealed, and the next term seals none earlier (rules P10 and
  U7). The last entry has that time, and the recovery has read it. At rest it must be read
  (:attr:`~Takeover.unread_entry`). If the last fragment is empty, its own time is enough, because the rule holds for
  it.
- Nothing of the next term may be sent before :attr:`~Takeover.opened` is known (rule T6). An OpenTerm whose answer was
  lost is sent again, the same value: its owner tells whether it stands.
- A client that finds the term over has lost to another one. It withdraws, and comes back only with a new takeover,
  after a pause (rule T10, :func:`pause_seconds`).

*How a harness drives it.* Read the stream; :meth:`~Takeover.begin` gives the first change, if one is needed. Report
what becomes of it with ``on_begun`` or ``on_refused``. While :attr:`~Takeover.recovery` is there, drive that, and
report changes of the ensemble with ``on_ensemble_changed``; call :meth:`~Takeover.poll` whenever it has moved. Once
:attr:`~Takeover.end` is known, and :attr:`~Takeover.unread_entry` is None, and what it owes is reported with
``on_asked`` if books are kept of copies, :meth:`~Takeover.open_term` gives the last change, or
:meth:`~Takeover.lay_to_rest` for a client that wants no term of its own; report it with ``on_opened``,
``on_laid_to_rest`` or ``on_refused``. When the phase is BEGINNING again, start over with the stream as it is stored
now.
"""

import enum
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from datetime import datetime
from typing import Final, Self

from octavo.client.recover.ledger_recovery import LedgerRecovery
from octavo.client.write.ensemble_changes import Commit
from octavo.metadata.ledger.debts import Debt
from octavo.metadata.stream.changes import BeginTakeover, LayToRest, OpenTerm, TermEnd
from octavo.metadata.stream.model import StreamFragment, StreamMetadata, StreamState, position_in
from octavo.protocol.errors import LedgerClosedError, MetadataConflictError, OctavoError, TermOverError
from octavo.protocol.ids import BookieId, EntryId

PAUSE_TAKEOVERS: Final = (1, 8)
"""How many takeovers long a client that lost pauses at least and at most. Two clients that both believe to lead would
otherwise take over from each other for ever, and neither would add anything."""


def pause_seconds(takeover_seconds: float, draw: float) -> float:
    """How long a client that lost waits before it takes over again (rule T10): a takeover took so long, and ``draw`` is
    random in 0 to 1."""
    shortest, longest = PAUSE_TAKEOVERS
    return takeover_seconds * (shortest + (longest - shortest) * draw)


class Phase(enum.Enum):
    """How far a takeover has come."""

    BEGINNING = "beginning"
    """The stream is to be marked as being taken over; nothing is fenced."""
    RECOVERING = "recovering"
    """The term is fenced, and its end is looked for."""
    ENDED = "ended"
    """The end of the term is known, and everything up to it is on its quorum."""
    OPENING = "opening"
    """The change that decides is sent, and it is not known what became of it."""
    OPEN = "open"
    """The next term is this client's."""
    AT_REST = "at-rest"
    """The term has its end, and there is no writer. Only for a client that wanted no more."""
    WITHDRAWN = "withdrawn"
    """Another client got ahead, or the stream is closed."""


class Takeover:
    """See the module. ``owner``: a random token of this takeover and of no other. ``wants_time``: the next term is to
    begin with the time of the last entry, if it is later than the client's."""

    __slots__ = (
        "_base",
        "_debts",
        "_fragments",
        "_make_recovery",
        "_opened",
        "_owner",
        "_recovery",
        "_rested_end",
        "_sealed_at_ms",
        "_wants_time",
        "_withdrawn",
        "phase",
    )

    def __init__(
        self,
        owner: str,
        *,
        wants_time: bool = False,
        make_recovery: Callable[..., LedgerRecovery] = LedgerRecovery,
    ) -> None:
        self._owner = owner
        self._wants_time = wants_time
        self._make_recovery = make_recovery
        self.phase = Phase.BEGINNING
        """Changed only here."""
        self._base: StreamFragment | None = None
        self._recovery: LedgerRecovery | None = None
        self._fragments: tuple[StreamFragment, ...] = ()
        self._debts: tuple[tuple[EntryId, Debt], ...] = ()
        self._rested_end: TermEnd | None = None
        self._sealed_at_ms: int | None = None
        """At rest: when the last entry was sealed, once that was read."""
        self._opened: StreamMetadata | None = None
        self._withdrawn: OctavoError | None = None

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def base(self) -> StreamFragment:
        """The last fragment when the takeover began. Its term is the one that is taken over."""
        assert self._base is not None, "the takeover has begun"
        return self._base

    @property
    def recovery(self) -> LedgerRecovery | None:
        """The machine that looks for the end of the term; None while nothing is to be asked."""
        return self._recovery

    @property
    def end(self) -> TermEnd | None:
        """Where the term ends, once everything up to there is on its quorum."""
        if self._recovery is None:
            return self._rested_end
        found = self._recovery.end
        if not self._recovery.finished or found is None:
            return None
        assert found.last_entry_id is not None, "a term without entries ends below its first place"
        return TermEnd(found.last_entry_id, found.length)

    @property
    def unread_entry(self) -> EntryId | None:
        """The last entry of the term, which must be read for its time before the next term is opened; else None. Known
        together with the end."""
        end = self._rested_end
        if not self._wants_time or end is None or self._sealed_at_ms is not None:
            return None
        return end.last_entry_id if end.last_entry_id >= self.base.first_entry_id else None

    @property
    def ended_fragments(self) -> tuple[StreamFragment, ...]:
        """The fragments that get their end with the term: the last one, and what writing back has made of it."""
        replaced = self._fragments and self._fragments[0].first_entry_id == self.base.first_entry_id
        return self._fragments if replaced else (self.base, *self._fragments)

    @property
    def opened(self) -> StreamMetadata | None:
        """The stream with this client's term, once that is known to stand (rule T6)."""
        return self._opened

    @property
    def withdrawn(self) -> OctavoError | None:
        """Why this client has withdrawn: :class:`TermOverError`, or :class:`LedgerClosedError`; else None."""
        return self._withdrawn

    # --- events -----------------------------------------------------------------------------------------------------

    def begin(
        self, stream: StreamMetadata, fenced_at: datetime | None = None, fenced_by: str = ""
    ) -> BeginTakeover | None:
        """The change that begins a takeover of the term in these metadata, which the client has read (rule T2). Its
        clock and its name are noted for the errors of the old writer. None at rest: then the end of the term is known
        at once."""
        assert self.phase is Phase.BEGINNING, "a takeover begins once, and again after a conflict"
        self._base = stream.last_fragment
        if stream.state is StreamState.AT_REST:
            self._take_rest(stream)
            return None
        return BeginTakeover(stream.term, fenced_at, fenced_by)

    def on_begun(self, stream: StreamMetadata) -> None:
        """BeginTakeover stands, in these metadata. Now, and not before, the term may be fenced (rule T2)."""
        assert self.phase is Phase.BEGINNING, "the takeover was to begin"
        assert stream.term == self.base.term, "it stands for the term that was read"
        # Repair may have changed its bookies since it was read, and those that stand are asked.
        self._base = stream.last_fragment
        if stream.state is StreamState.AT_REST:
            self._take_rest(stream)
            return
        assert stream.state is StreamState.IN_RECOVERY, "the takeover of the term has begun"
        self.phase = Phase.RECOVERING
        self._recovery = self._make_recovery(
            self.base.quorums,
            first_entry_id=self.base.first_entry_id,
            length_before=self.base.length_before,
            term=self.base.term,
            terms_skipped=stream.terms_skipped,
            wants_time=self._wants_time,
        )

    def _take_rest(self, stream: StreamMetadata) -> None:
        assert stream.last_entry_id is not None, "at rest the term has an end"
        self._rested_end = TermEnd(stream.last_entry_id, stream.length)
        self.phase = Phase.ENDED

    def on_entry_read(self, sealed_at_ms: int) -> None:
        """:attr:`unread_entry` was sealed at this time."""
        assert self.unread_entry is not None, "its time was asked for"
        self._sealed_at_ms = sealed_at_ms

    def on_ensemble_changed(self, change: Commit, opened_at_ms: int) -> None:
        """Writing back goes on with other bookies. The change stays here until the end is written (rule T4)."""
        assert self.phase is Phase.RECOVERING, "entries are written back while the end is looked for"
        base = self.base
        fragment = replace(
            base,
            first_entry_id=change.first_entry_id,
            first_position=position_in(base, change.first_entry_id),
            bookies=change.ensemble,
            length_before=change.length_before,
            opened_at_ms=opened_at_ms,
        )
        older = tuple(one for one in self._fragments if one.first_entry_id != fragment.first_entry_id)
        self._fragments = (*older, fragment)

    def on_asked(self, debts: tuple[tuple[EntryId, Debt], ...]) -> None:
        """The members of :attr:`ended_fragments` have been asked what they lack up to the end: these are the first
        places of the fragments, with what is owed of them (rule G5). Without it all of them is owed."""
        assert self.phase in (Phase.RECOVERING, Phase.ENDED), "the end is found, and not written"
        self._debts = debts

    def poll(self) -> None:
        """The recovery has moved: see whether it is over, or lost."""
        if self.phase is not Phase.RECOVERING or self._recovery is None:
            return
        later = self._recovery.later_term
        if later is not None:
            term = self.base.term
            self._withdraw(
                TermOverError(f"term {term} is over: a bookie knows of term {later}", may_have_happened=False)
            )
        elif self.end is not None:
            self.phase = Phase.ENDED

    def open_term(
        self, bookies: tuple[BookieId, ...], opened_at_ms: int, *, leader_term: int = 0, first_position_min: int = 0
    ) -> OpenTerm:
        """The change that gives the term its end and opens the next one on these bookies (rule T5). ``leader_term``:
        for a client that takes over from itself (:attr:`StreamFragment.leader_term`). ``first_position_min``: the next
        term does not begin below (rule P7)."""
        assert self.unread_entry is None, "the time of the last entry is known"
        end, fragments = self._decide(), self._dated_fragments()
        opened_at_ms = max(opened_at_ms, self._last_sealed_at_ms)
        fragment = replace(self.base, bookies=bookies, opened_at_ms=opened_at_ms, leader_term=leader_term)
        return OpenTerm(self.base, fragments, end, self._owner, fragment, first_position_min)

    def lay_to_rest(self) -> LayToRest:
        """The change that gives the term its end, for a client that wants no term of its own (rule T8)."""
        end, fragments = self._decide(), self._dated_fragments()
        return LayToRest(self.base, fragments, end)

    @property
    def _last_sealed_at_ms(self) -> int:
        """When the last entry was sealed, as far as that is known here."""
        read = self._sealed_at_ms if self._recovery is None else self._recovery.last_sealed_at_ms
        return read or 0

    def _dated_fragments(self) -> tuple[StreamFragment, ...]:
        """The fragments made here. The clock that sealed the entries below them may have been ahead of the one that
        they were noted by (rule U7). Each has an entry that was written back, so the recovery has read the last one."""
        sealed_at_ms = self._last_sealed_at_ms
        return tuple(replace(one, opened_at_ms=max(one.opened_at_ms, sealed_at_ms)) for one in self._fragments)

    def _decide(self) -> TermEnd:
        assert self.phase is Phase.ENDED, "a term is opened once the end of the one before is known"
        end = self.end
        assert end is not None, "the term has its end"
        self.phase = Phase.OPENING
        return replace(end, debts=self._debts)

    def on_opened(self, stream: StreamMetadata) -> None:
        """OpenTerm stands, in these metadata. Now, and not before, the writer may send (rule T6)."""
        assert self.phase is Phase.OPENING, "a term was to be opened"
        assert stream.state is StreamState.OPEN, "a term that stands open"
        assert stream.owner == self._owner, "and is this client's"
        self._opened = stream
        self.phase = Phase.OPEN

    def on_laid_to_rest(self) -> None:
        """LayToRest stands, or another client has given the term its end."""
        assert self.phase is Phase.OPENING, "the stream was to be put at rest"
        self.phase = Phase.AT_REST

    def on_refused(self, error: OctavoError) -> None:
        """The change cannot be made. After a conflict the takeover begins again with the stream as it is stored now;
        otherwise it is over (rule T10). ``error`` as the change's ``decide`` gave it. Raises it, if it is none of
        these."""
        assert self.phase in (Phase.BEGINNING, Phase.OPENING), "a change was sent"
        if isinstance(error, TermOverError | LedgerClosedError):
            self._withdraw(error)
        elif isinstance(error, MetadataConflictError):
            self.start_over()
        else:
            raise error

    def start_over(self) -> None:
        """The metadata from which the takeover began are no longer those of the stream, and what was learned by them is
        dropped (rule T14). The takeover begins again with the stream as it is stored now."""
        assert self.phase not in (Phase.OPEN, Phase.AT_REST, Phase.WITHDRAWN), "it is not over"
        self.phase = Phase.BEGINNING
        self._base = self._recovery = self._rested_end = self._sealed_at_ms = None
        self._fragments = self._debts = ()

    def _withdraw(self, error: OctavoError) -> None:
        self._withdrawn = error
        self._recovery = None
        self.phase = Phase.WITHDRAWN

    # --- for tests and model checkers -------------------------------------------------------------------------------

    def copy(self) -> Self:
        """An independent one in the same state."""
        other = copy(self)
        other._recovery = None if self._recovery is None else self._recovery.copy()
        return other

    def state(self) -> tuple[object, ...]:
        """Everything but the recovery that decides what happens next, as one comparable, hashable value."""
        withdrawn = None if self._withdrawn is None else type(self._withdrawn)
        known = self._rested_end, self._sealed_at_ms, self._debts
        return self.phase, self._base, self._fragments, known, self._opened, withdrawn

    def check_invariants(self) -> None:
        """Raise AssertionError unless the state is one that can be."""
        assert (self._opened is not None) == (self.phase is Phase.OPEN)
        assert (self._withdrawn is not None) == (self.phase is Phase.WITHDRAWN)
        if self.phase is Phase.BEGINNING:
            assert self._recovery is None
            assert not self._fragments
        if self.phase in (Phase.ENDED, Phase.OPENING):
            assert self.end is not None, "nothing is decided without an end"
        if self._recovery is not None:
            assert self._rested_end is None, "at rest nothing is recovered"
            assert self._sealed_at_ms is None
            self._recovery.check_invariants()
