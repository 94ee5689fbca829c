"""The recovery of the model: the real machines, with what octavo.client.recover.recovery does around them.

The machines are octavo.client.recover.ledger_recovery and :mod:`model.ledgers.replication`.

Each bookie has one request at a time: the fence, then reads as far as they are wanted. A failed request is repeated or
given up at any time. No read goes further than one id above everything ever written: that id is absent, and one such
answer is enough.
"""

from collections.abc import Hashable
from copy import copy
from typing import Any, Self

from model.engine.exchange import (
    STORE,
    Add,
    Change,
    Changed,
    Conflict,
    Failed,
    Found,
    Lac,
    Message,
    Read,
    ReadLac,
    metadata_text,
)
from model.engine.renaming import Renaming, bookie_index
from model.engine.sealing import opener
from model.ledgers.client import Client, Event, Step
from model.ledgers.replication import Outcome, Replication
from octavo.client.recover.ledger_recovery import LedgerRecovery
from octavo.client.write.ensemble_changes import Commit
from octavo.metadata.ledger.changes import BeginRecovery, FinishRecovery
from octavo.metadata.ledger.model import Fragment, LedgerMetadata
from octavo.protocol.entries import header_of
from octavo.protocol.ids import EntryId
from octavo.protocol.quorums import Quorums

_AGAIN, _GIVES_UP = "asks again the bookie at position", "gives up the bookie at position"


class MachineRecovery(Client):
    """Recovers once.

    ``horizon``: the lowest id that was never written; ``reads_ahead``: most ids in one read; ``reads_at_once``: once
    enough bookies are fenced the others are read too, without waiting for their fences (the shell waits).
    """

    acknowledges_nothing = True
    make_machine: type[LedgerRecovery] = LedgerRecovery

    def __init__(
        self,
        quorums: Quorums,
        *,
        bookies: int,
        horizon: int,
        reads_ahead: int | None = None,
        reads_at_once: bool = False,
        index: int = 0,
    ) -> None:
        super().__init__(index, f"recovery {index}")
        self._quorums = quorums
        self._bookies = bookies
        self._horizon = horizon
        self._reads_ahead = reads_ahead
        self._reads_at_once = reads_at_once
        self._base: Any = None
        self._machine: LedgerRecovery | None = None
        self._failed: frozenset[tuple[int, bool]] = frozenset()
        """Positions whose request has failed; whether it was the fence."""
        self._busy = 0
        """Mask of the positions that have a request to answer, or have failed to, or are given up."""
        self._replication: Replication | None = None
        self._fragments: tuple[Any, ...] = ()
        self._unwritten: tuple[int, ...] = ()
        self._closing = False
        self._blocked: str | None = None
        self._end: LedgerMetadata | None = None

    def copy(self) -> Self:
        other = copy(self)
        other._machine = None if self._machine is None else self._machine.copy()
        other._replication = None if self._replication is None else self._replication.copy()
        return other

    def key(self) -> Hashable:
        if self.finished:
            return self._blocked, self._end
        if self._closing:
            return self._base, self._fragments, self._machine is not None and self._machine.end
        replication = None if self._replication is None else self._replication.key()
        writing = self._base, replication, self._fragments, self._unwritten
        if self._machine is None:
            return writing
        if self._machine.end is not None:
            return writing, self._machine.end, self._machine.last_recovered
        return writing, self._machine.state(), self._failed, self._busy

    # --- events -------------------------------------------------------------------------------------------------------

    def begin(self) -> list[Message]:
        return [Message(self.index, STORE, None, Change(BeginRecovery()))]

    def on(self, event: Event) -> list[Message]:
        if isinstance(event, Message) and isinstance(event.request, Change):
            return self._settled(event)
        if self._closing or self.finished:
            return []
        if isinstance(event, Step):
            sent = self._step(event)
        elif self.machine.end is not None and not isinstance(event.request, Add):
            return []  # nothing more is asked
        elif self._reads_at_once and self.machine.fence_over and isinstance(event.request, ReadLac):
            return []  # the fence is complete; this answer is late
        elif isinstance(event.request, Add):
            assert self._replication is not None, "an add was sent"
            sent = self._handle_outcome(self._replication.on_answer(event))
        else:
            sent = self._answered(event)
        self.machine.check_invariants()
        if self._replication is not None:
            self._replication.check_invariants()
        return sent

    def steps(self) -> list[Step]:
        if self._closing or self.finished or self._machine is None:
            return []
        steps = [] if self._replication is None else self._replication.steps()
        for position, _ in sorted(self._failed):
            steps += [Step(_AGAIN, position), Step(_GIVES_UP, position)]
        return steps

    def rename(self, step: Step, renaming: Renaming) -> Step:
        if step.name in (_AGAIN, _GIVES_UP):
            assert isinstance(step.argument, int)
            return Step(step.name, renaming.position(step.argument))
        assert self._replication is not None, "the step is its"
        return self._replication.rename(step, renaming)

    def _settled(self, message: Message) -> list[Message]:
        assert isinstance(message.answer, Changed | Conflict)
        metadata = message.answer.metadata
        if isinstance(message.answer, Conflict):
            self._blocked = f"ledger is {metadata_text(metadata)}"
            return []
        if metadata.is_closed:
            self._end = metadata
            return []
        self._base = metadata
        fragment = metadata.last_fragment
        self._machine = self.make_machine(
            self._quorums, first_entry_id=fragment.first_entry_id, length_before=fragment.length_before
        )
        return self._fence_all()

    def _fence_all(self) -> list[Message]:
        self._busy = self._quorums.full_mask
        return [self._ask(position, self._fence()) for position in range(self._quorums.ensemble_size)]

    def _fence(self) -> ReadLac:
        return ReadLac(fence=True, term=self.term)

    # --- asking -------------------------------------------------------------------------------------------------------

    @property
    def machine(self) -> LedgerRecovery:
        """The machine, once recovery has begun."""
        assert self._machine is not None, "recovery has begun"
        return self._machine

    @property
    def base(self) -> Any:
        """The metadata when recovery began."""
        assert self._base is not None, "recovery has begun"
        return self._base

    @property
    def term(self) -> int:
        """The term that is recovered; 0 where a ledger has one writer."""
        return 0

    @property
    def attempt(self) -> int | None:
        """Which of its attempts this is; None for a client that makes one."""
        return None

    @property
    def horizon(self) -> int:
        """The lowest id that was never written."""
        return self._horizon

    def _ask(self, position: int, request: Read | ReadLac) -> Message:
        return Message(self.index, bookie_index(self.base.last_fragment.bookies[position]), self.attempt, request)

    def _answered(self, message: Message) -> list[Message]:
        names = [bookie_index(name) for name in self.base.last_fragment.bookies]
        position, answer, request = names.index(message.server), message.answer, message.request
        assert isinstance(request, Read | ReadLac)
        if isinstance(answer, Failed):
            if self.machine.end is None:
                self._failed |= {(position, isinstance(request, ReadLac))}
            return []
        self._busy &= ~(1 << position)
        if isinstance(answer, Lac):
            self.machine.on_fenced(position, *self._evidence(answer))
            if self._reads_at_once and self.machine.fence_over:
                self._busy, self._failed = 0, frozenset()
        else:
            assert isinstance(answer, Found)
            assert isinstance(request, Read)
            found: dict[int, bytes] = {header_of(entry).entry_id: entry for entry in answer.entries}
            self.machine.on_read(position, request.first, self.last_covered(request, answer), found, answer.unknown)
        return self._advance()

    def last_covered(self, request: Read, answer: Found) -> int:
        """The last id that the answer says anything of (rule R2)."""
        return answer.last_covered

    def _evidence(self, answer: Lac) -> tuple[int | None, dict[int, int]]:
        """The highest LAC that the writer sealed into the answer, and the lengths that it states."""
        highest, lengths = None, {}
        for told in (answer.explicit, answer.entry):
            if told is not None:
                confirmed, length = opener.open_last_add_confirmed(told)
                if confirmed is not None:
                    highest = confirmed if highest is None else max(highest, confirmed)
                    if length is not None:
                        lengths[int(confirmed)] = length
        return highest, lengths

    def _step(self, step: Step) -> list[Message]:
        if step.name not in (_AGAIN, _GIVES_UP):
            assert self._replication is not None, "the step is its"
            return self._handle_outcome(self._replication.on_step(step))
        assert isinstance(step.argument, int)
        position = step.argument
        fencing = (position, True) in self._failed
        self._failed -= {(position, True), (position, False)}
        if step.name == _GIVES_UP:
            self.machine.on_gave_up(position)
        elif fencing:
            return [self._ask(position, self._fence())]
        else:
            self._busy &= ~(1 << position)
        return self._advance()

    # --- going on -----------------------------------------------------------------------------------------------------

    def _advance(self) -> list[Message]:
        """Take all steps that an answer made possible."""
        machine = self.machine
        sent: list[Message] = []
        blocked_by = machine.blocked_by
        if blocked_by is not None:
            self._blocked = f"by the bookies at positions {list(blocked_by)}"
            return []
        recovered = machine.take_recovered()
        if recovered:
            if self._replication is None:
                self._replication = self._begin_writing()
            self._unwritten += tuple(map(len, recovered))
            length = header_of(recovered[-1]).length
            sent += self._replication.push([self.verbatim(entry) for entry in recovered], length_after=length)
        if machine.fence_over:
            # The order of the fences and further lengths make no difference any more.
            machine._fenced, machine._lac_lengths = self._quorums.full_mask, {}
        if machine.end is not None:
            self._failed = frozenset()
        for position in range(self._quorums.ensemble_size):
            wanted = None if self._busy >> position & 1 else machine.wanted_read(position)
            if wanted is not None and wanted[0] <= self.horizon:
                first, last = wanted[0], min(wanted[1], self.horizon)
                if self._reads_ahead is not None:
                    last = min(last, first + self._reads_ahead - 1)
                self._busy |= 1 << position
                sent.append(self._ask(position, Read(first, last, self.reads_fence(), self.term)))
        return sent + self._finish()

    def reads_fence(self) -> bool:
        """Whether recovery reads fence (rule F4)."""
        return True

    def verbatim(self, entry: bytes) -> bytes:
        """The bytes to write back for an entry read: the same (rules W2 and F5)."""
        return entry

    def _begin_writing(self) -> Replication:
        start = self.machine.start
        assert start is not None, "entries are recovered after the fence"
        return Replication(
            self.index,
            self._quorums,
            self.base.last_fragment.bookies,
            bookies=self._bookies,
            recovery=True,
            term=self.term,
            attempt=self.attempt or 0,
            first_entry_id=start + 1,
            length=self.machine.start_length,
        )

    def _handle_outcome(self, outcome: Outcome) -> list[Message]:
        sent = list(outcome.sent)
        replication = self._replication
        assert replication is not None, "something was written back"
        if outcome.failure is not None:
            self._blocked = outcome.failure
            return []
        if outcome.commit is not None:
            sent += self.replaced(self._note_change(outcome.commit))
            sent += replication.on_committed()
        self._note_written_back(replication.acknowledged)
        return sent + self._advance()

    def _note_change(self, commit: Commit) -> Any:
        """The new last fragment, which stays here (rule F5)."""
        fragment = Fragment(EntryId(commit.first_entry_id), commit.ensemble, commit.length_before)
        older = (old for old in self._fragments if old.first_entry_id != fragment.first_entry_id)
        self._fragments = (*older, fragment)
        return fragment

    def replaced(self, fragment: Any) -> list[Message]:
        """Further messages after an ensemble change: none, it stays local until the end (rule F5)."""
        return []

    def _note_written_back(self, last: int) -> None:
        pending = self.machine.last_recovered - last
        count = len(self._unwritten) - pending
        if count > 0:
            size = sum(self._unwritten[:count])
            self._unwritten = self._unwritten[count:]
            self.machine.on_written_back(last, size)

    def _finish(self) -> list[Message]:
        end = self.machine.end
        if not self.machine.finished or end is None or self._closing:
            return []
        self._closing = True
        finish = FinishRecovery(self.base.last_fragment, self._fragments, end.last_entry_id, end.length)
        return [Message(self.index, STORE, None, Change(finish))]

    # --- for the promises ---------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self._blocked is not None or self._end is not None

    @property
    def may_use_lacs(self) -> bool:
        return self._machine is None or not self._machine.fence_over

    @property
    def settled(self) -> LedgerMetadata | None:
        return self._end

    def unfinished_work(self, metadata: LedgerMetadata) -> str | None:
        return None if self.finished else f"{self.name} {self.describe()}"

    def describe(self) -> str:
        if self._end is not None:
            return f"has closed: {metadata_text(self._end)}"
        if self._blocked is not None:
            return f"is blocked: {self._blocked}"
        if self._closing:
            return "is closing"
        if self._machine is None:
            return "marks the ledger as being recovered"
        if self._machine.end is not None:
            return "is writing back, the end is known"
        return f"is reading from entry {self._machine.last_recovered + 1}" if self._machine.fence_over else "is fencing"
