"""Recovery of a ledger as rules F1 to F6 have it, one entry at a time: a specification that can be run.

It does what the rules say in the plainest way, keeps answers as sets, and does one thing at a time. What any other
recovery may lead to is what this one may lead to. Each rule has a method of its own, so that a canary can break it.
"""

from collections.abc import Hashable, Iterable
from copy import copy
from typing import Self

from model.engine.exchange import (
    STORE,
    Add,
    Change,
    Changed,
    Conflict,
    Done,
    Found,
    Lac,
    Message,
    Read,
    ReadLac,
    metadata_text,
)
from model.engine.renaming import Renaming, bookie_id, bookie_index
from model.ledgers.client import Client, Event, Step
from octavo.metadata.ledger.changes import BeginRecovery, FinishRecovery
from octavo.metadata.ledger.model import Fragment, LedgerMetadata
from octavo.protocol.entries import header_of
from octavo.protocol.ids import EntryId
from octavo.protocol.quorums import Quorums

_MARKING, _FENCING, _READING, _WRITING, _CLOSING, _CLOSED, _BLOCKED = (
    "marking the ledger as being recovered",
    "fencing",
    "reading",
    "writing back",
    "closing",
    "has closed",
    "blocked",
)


class ReferenceRecovery(Client):
    """Recovers once. ``reads_ahead``: how many ids a read asks for."""

    acknowledges_nothing = True

    def __init__(self, quorums: Quorums, *, bookies: int, reads_ahead: int = 1, index: int = 0) -> None:
        super().__init__(index, f"recovery {index}")
        self._quorums = quorums
        self._bookies = range(bookies)
        self._reads_ahead = reads_ahead
        self._phase = _MARKING
        self._base: LedgerMetadata | None = None
        self._ensemble: tuple[int, ...] = ()
        """The bookies written to; those read from are in the base's last fragment."""
        self._fragments: tuple[Fragment, ...] = ()
        self._fenced: frozenset[int] = frozenset()
        self._silent: frozenset[int] = frozenset()
        """Bookies that will not answer the fence."""
        self._highest_lac = -1
        self._lengths: frozenset[tuple[int, int]] = frozenset()
        """Lengths at ids, from verified answers."""
        self._at = 0
        self._asked_stop = 0
        self._entries: frozenset[bytes] = frozenset()
        self._absent: frozenset[tuple[int, int]] = frozenset()
        self._unknown: frozenset[tuple[int, int]] = frozenset()
        """(entry, bookie) of the negatives, and of the answers that say nothing."""
        self._written: frozenset[int] = frozenset()
        self._lost: frozenset[int] = frozenset()
        """Of the entry being written back: bookies that have it, and members that cannot be written to."""
        self._end: LedgerMetadata | None = None

    def copy(self) -> Self:
        return copy(self)

    def key(self) -> Hashable:
        return tuple(value for name, value in vars(self).items() if name not in ("index", "name", "_quorums"))

    # --- events -------------------------------------------------------------------------------------------------------

    def begin(self) -> list[Message]:
        return [Message(self.index, STORE, None, Change(BeginRecovery()))]

    def on(self, event: Event) -> list[Message]:
        if isinstance(event, Step):
            assert isinstance(event.argument, tuple)
            return self._replace(*event.argument)
        if isinstance(event.request, Change):
            return self._settled(event)
        if isinstance(event.request, ReadLac):
            return self._fence_answered(event) if self._phase == _FENCING else []
        if isinstance(event.request, Read):
            return self._read_answered(event, event.request) if self._phase in (_READING, _WRITING) else []
        assert isinstance(event.request, Add)
        return self._write_answered(event, event.request) if self._phase == _WRITING else []

    def _settled(self, message: Message) -> list[Message]:
        assert isinstance(message.request, Change)
        assert isinstance(message.answer, Changed | Conflict)
        metadata = message.answer.metadata
        if isinstance(message.answer, Conflict):
            self._phase = _BLOCKED
            return []
        if metadata.is_closed:
            self._phase, self._end = _CLOSED, metadata
            return []
        if not isinstance(message.request.change, BeginRecovery):
            return []
        self._base = metadata
        self._ensemble = tuple(map(bookie_index, metadata.last_fragment.bookies))
        self._phase = _FENCING
        return [Message(self.index, server, None, ReadLac(fence=True)) for server in self._ensemble]

    # --- fencing ------------------------------------------------------------------------------------------------------

    def _fence_answered(self, message: Message) -> list[Message]:
        if isinstance(message.answer, Lac):
            self._fenced |= {message.server}
            for told in (message.answer.entry, message.answer.explicit):
                if told is not None:
                    header = header_of(told)
                    self._highest_lac = max(self._highest_lac, header.last_add_confirmed_plus_one - 1)
                    self._lengths |= {(header.entry_id, header.length)}
        else:
            self._silent |= {message.server}
        if all(self.covers(residue, self._fenced) for residue in range(self._quorums.ensemble_size)):
            self._at = self.first_to_read()
            self._fenced, self._silent = frozenset(), frozenset()
            return self._ask()
        if self._fenced | self._silent >= set(self._members):
            self._phase = _BLOCKED
        return []

    def first_to_read(self) -> int:
        """Where reading begins (rule F3): at the entry at the LAC itself if the length there is unknown."""
        first = max(self._highest_lac + 1, self._last_fragment.first_entry_id)
        return first - (self._length_at(first - 1) is None)

    def covers(self, entry_id: int, answered: Iterable[int]) -> bool:
        """Whether every Qa of the entry's write set include one that answered (docs/rules.md, coverage)."""
        cohort = self._write_set(entry_id)
        return len(cohort & set(answered)) >= self.coverage_of(len(cohort))

    def coverage_of(self, cohort: int) -> int:
        """Answers that cover a cohort of this size."""
        return cohort - self._quorums.ack_quorum + 1

    # --- reading ------------------------------------------------------------------------------------------------------

    def _ask(self) -> list[Message]:
        """Read the next ids, from the bookies that recovery began with, fencing (rule F4)."""
        self._phase = _READING
        first, last = self._at, self._at + self._reads_ahead - 1
        self._asked_stop = last + 1
        servers = sorted({server for entry_id in range(first, last + 1) for server in self._write_set(entry_id)})
        return [self._read(server, first, last) for server in servers]

    def _read(self, server: int, first: int, last: int) -> Message:
        return Message(self.index, server, None, Read(first, last, fence=self.reads_fence()))

    def reads_fence(self) -> bool:
        """Whether recovery reads fence (rule F4)."""
        return True

    def _read_answered(self, message: Message, read: Read) -> list[Message]:
        again: list[Message] = []
        if isinstance(message.answer, Found):
            answer = message.answer
            self._entries |= {entry for entry in answer.entries if header_of(entry).entry_id >= self._open_from}
            found = {header_of(entry).entry_id for entry in answer.entries}
            stop = self.answered_stop(read, answer)
            silent = set(range(max(read.first, self._open_from), stop)) - found
            self._unknown |= {(entry_id, message.server) for entry_id in silent & set(answer.unknown)}
            self._absent |= {(entry_id, message.server) for entry_id in silent - set(answer.unknown)}
            if stop <= read.last:
                again = [self._read(message.server, stop, read.last)]
        else:
            ids = range(max(read.first, self._open_from), read.last + 1)
            self._unknown |= {(entry_id, message.server) for entry_id in ids}
        return again + (self._judge() if self._phase == _READING else [])

    @property
    def _open_from(self) -> int:
        """The lowest id not yet judged."""
        return self._at + (self._phase == _WRITING)

    def answered_stop(self, read: Read, answer: Found) -> int:
        """The first id that the answer says nothing of (rule R2)."""
        return min(answer.last_covered, read.last) + 1

    def _judge(self) -> list[Message]:
        """What is known of the entry in question: it is there, the ledger ends before it, or neither (rule F4)."""
        if self._entry() is not None:
            return self._write_back()
        cohort = self._write_set(self._at)
        absent = {server for entry_id, server in self._absent if entry_id == self._at}
        unknown = {server for entry_id, server in self._unknown if entry_id == self._at}
        if self.covers(self._at, absent):
            return self._close()
        if absent | unknown >= cohort:
            self._phase = _BLOCKED
        return []

    def _entry(self) -> bytes | None:
        return next((entry for entry in self._entries if header_of(entry).entry_id == self._at), None)

    # --- writing back -------------------------------------------------------------------------------------------------

    def _write_back(self) -> list[Message]:
        """The recovered entry to its whole write set, verbatim (rule F5)."""
        self._phase = _WRITING
        self._absent = frozenset(pair for pair in self._absent if pair[0] > self._at)
        self._unknown = frozenset(pair for pair in self._unknown if pair[0] > self._at)
        return [self._add(server) for server in self._targets()]

    def _targets(self) -> list[int]:
        return [self._ensemble[position] for position in self._quorums.write_set(self._at)]

    def _add(self, server: int) -> Message:
        entry = self._entry()
        assert entry is not None, "an entry is written back that was read"
        return Message(self.index, server, None, Add((self.verbatim(entry),), recovery=True))

    def verbatim(self, entry: bytes) -> bytes:
        """The bytes to write back for an entry read: the same (rules W2 and F5)."""
        return entry

    def _write_answered(self, message: Message, add: Add) -> list[Message]:
        if header_of(add.entries[0]).entry_id != self._at or message.server not in self._ensemble:
            return []
        if isinstance(message.answer, Done):
            self._written |= {message.server}
            return self._next() if len(self._written & set(self._targets())) >= self._quorums.ack_quorum else []
        self._lost |= {message.server}
        spares = set(self._bookies) - set(self._ensemble)
        if len(set(self._targets()) - self._lost) + len(spares) < self._quorums.ack_quorum:
            self._phase = _BLOCKED
        return []

    def _next(self) -> list[Message]:
        """Qa have it; on to the next entry."""
        entry = self._entry()
        assert entry is not None, "an entry was written back"
        self._lengths |= {(self._at, header_of(entry).length)}
        self._at += 1
        self._written, self._lost = frozenset(), frozenset()
        self._entries = frozenset(entry for entry in self._entries if header_of(entry).entry_id >= self._at)
        if self._at >= self._asked_stop:
            return self._ask()
        self._phase = _READING
        return self._judge()

    def steps(self) -> list[Step]:
        if self._phase != _WRITING:
            return []
        spares = [server for server in self._bookies if server not in self._ensemble]
        return [Step("replaces bookie at position", (self._ensemble.index(lost), spare))
                for lost in sorted(self._lost) for spare in spares]  # fmt: skip

    def _replace(self, position: int, spare: int) -> list[Message]:
        """Another bookie in place of one that cannot be written to; local until the end (rule F5)."""
        ensemble = list(self._ensemble)
        self._lost -= {ensemble[position]}
        ensemble[position] = spare
        self._ensemble = tuple(ensemble)
        length = self._length_at(self._at - 1)
        assert length is not None, "the entry before was read, or an answer stated its length"
        fragment = Fragment(EntryId(self._at), tuple(map(bookie_id, ensemble)), length)
        self._fragments = (*(old for old in self._fragments if old.first_entry_id != self._at), fragment)
        more = [self._add(spare)] if spare in self._targets() else []
        return more + self.replaced(fragment)

    def replaced(self, fragment: Fragment) -> list[Message]:
        """What else an ensemble change makes it do: nothing (rule F5)."""
        return []

    # --- the end ------------------------------------------------------------------------------------------------------

    def _close(self) -> list[Message]:
        """The end is before the entry in question (rule F6)."""
        self._phase = _CLOSING
        self._entries, self._absent, self._unknown = frozenset(), frozenset(), frozenset()
        end = EntryId(self._at - 1) if self._at else None
        length = self._length_at(self._at - 1)
        assert length is not None, "the entry before the end was read, or an answer stated its length"
        return [
            Message(self.index, STORE, None, Change(FinishRecovery(self._last_fragment, self._fragments, end, length)))
        ]

    def _length_at(self, entry_id: int) -> int | None:
        """The ledger's length at an id, from entries or the last fragment (rule F6); None if unknown."""
        fragment = self._last_fragment
        return fragment.length_before if entry_id < fragment.first_entry_id else dict(self._lengths).get(entry_id)

    @property
    def _last_fragment(self) -> Fragment:
        assert self._base is not None, "recovery has begun"
        return self._base.last_fragment

    @property
    def _members(self) -> list[int]:
        return list(map(bookie_index, self._last_fragment.bookies))

    def _write_set(self, entry_id: int) -> set[int]:
        """Of the ensemble as it was when recovery began."""
        members = self._members
        return {members[position] for position in self._quorums.write_set(entry_id)}

    def rename(self, step: Step, renaming: Renaming) -> Step:
        assert isinstance(step.argument, tuple)
        position, spare = step.argument
        return Step(step.name, (renaming.position(position), renaming.bookies[spare]))

    # --- for the promises ---------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self._phase in (_CLOSED, _BLOCKED)

    @property
    def settled(self) -> LedgerMetadata | None:
        return self._end

    def unfinished_work(self, metadata: LedgerMetadata) -> str | None:
        return None if self.finished else f"{self.name} is {self._phase}"

    def describe(self) -> str:
        where = f" entry {self._at}" if self._phase in (_READING, _WRITING) else ""
        return self._phase + where + (f": {metadata_text(self._end)}" if self._end else "")
