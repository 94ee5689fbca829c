"""The writer of a ledger as rules W1 to W9 have it, with ensemble changes: a specification that can be run.

It records confirmations by bookie, not by position, and computes completion from them every time. What any
other writer may lead to is what this one may lead to. Each rule has a method of its own, so that a canary can break it.
"""

from collections.abc import Hashable
from copy import copy
from dataclasses import dataclass
from typing import Self

from model.engine.exchange import (
    FENCED,
    STORE,
    Add,
    Change,
    Changed,
    Conflict,
    Done,
    Message,
    Refused,
    WriteLac,
    metadata_text,
)
from model.engine.renaming import Renaming, bookie_id, bookie_index
from model.engine.sealing import length_up_to, sealed, sealed_lac
from model.ledgers.client import Client, Event, Step
from octavo.metadata.ledger.changes import ChangeEnsemble, CloseLedger
from octavo.metadata.ledger.model import LedgerMetadata, LedgerState
from octavo.protocol.entries import header_of
from octavo.protocol.ids import EntryId
from octavo.protocol.quorums import Quorums

_ADDS, _SENDS_LAC, _CLOSES = Step("adds an entry"), Step("sends its LAC"), Step("closes")
_READY, _REPLACES = "sends again to the bookie at position", "replaces bookie at position"


@dataclass(frozen=True, slots=True)
class EnsembleChange:
    """A change that is being written to the metadata."""

    first: int
    ensemble: tuple[int, ...]


class ReferenceWriter(Client):
    """Writes ``entries`` entries, sends an explicit LAC if ``sends_lac``, and closes once all are acknowledged or it
    has failed."""

    def __init__(
        self, metadata: LedgerMetadata, *, bookies: int, entries: int, sends_lac: bool = False, index: int = 0
    ) -> None:
        super().__init__(index, "writer")
        self._quorums = Quorums(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        self._bookies = range(bookies)
        self._wanted = entries
        self._metadata = metadata
        self._entries: tuple[bytes, ...] = ()
        """Sealed, by id."""
        self._acknowledged = -1
        self._confirmed: frozenset[tuple[int, int]] = frozenset()
        """(entry, bookie)."""
        self._lost: frozenset[int] = frozenset()
        """Members that an add to failed, and that have not been sent to since."""
        self._change: EnsembleChange | None = None
        self._lac_to_send = sends_lac
        self._failure: str | None = None
        self._closing = False
        self._end: LedgerMetadata | None = None

    def copy(self) -> Self:
        return copy(self)

    def key(self) -> Hashable:
        return tuple(value for name, value in vars(self).items() if name not in ("index", "name", "_quorums"))

    # --- events -------------------------------------------------------------------------------------------------------

    def begin(self) -> list[Message]:
        return self._add()

    def on(self, event: Event) -> list[Message]:
        if isinstance(event, Step):
            return self._step(event)
        if isinstance(event.request, Change):
            closing = isinstance(event.request.change, CloseLedger)
            return self._close_settled(event) if closing else self._change_settled(event)
        return self._answered(event) if self._works else []

    def steps(self) -> list[Step]:
        steps: list[Step] = []
        if self._works:
            lost = sorted(self._ensemble.index(server) for server in self._lost)
            spares = [server for server in self._bookies if server not in self._ensemble]
            steps += [Step(_READY, position) for position in lost]
            if self._change is None:
                steps += [Step(_REPLACES, (position, spare)) for position in lost for spare in spares]
            if len(self._entries) < self._wanted:
                steps.append(_ADDS)
            elif self._lac_to_send and self._all_acknowledged:
                steps.append(_SENDS_LAC)
        over = self._all_acknowledged or self._failure is not None
        if over and self._change is None and not self._closing and self._end is None:
            steps.append(_CLOSES)
        return steps

    def rename(self, step: Step, renaming: Renaming) -> Step:
        if isinstance(step.argument, int):
            return Step(step.name, renaming.position(step.argument))
        assert isinstance(step.argument, tuple)
        position, spare = step.argument
        return Step(step.name, (renaming.position(position), renaming.bookies[spare]))

    def _step(self, step: Step) -> list[Message]:
        if step == _ADDS:
            return self._add()
        if step == _SENDS_LAC:
            self._lac_to_send = False
            return [Message(None, server, None, WriteLac(sealed_lac(self._acknowledged))) for server in self._ensemble]
        if step == _CLOSES:
            return self._close()
        if isinstance(step.argument, int):
            server = self._ensemble[step.argument]
            self._lost -= {server}
            return [self._send(entry_id, server) for entry_id in self._unconfirmed_by(server)]
        assert isinstance(step.argument, tuple)
        return self._replace(*step.argument)

    # --- adding -------------------------------------------------------------------------------------------------------

    def _add(self) -> list[Message]:
        """Seal once, with the current LAC, and send to the write set (rules W1 and W2)."""
        entry_id = len(self._entries)
        self._entries += (sealed(entry_id, self._acknowledged),)
        return [self._send(entry_id, server) for server in self._write_set(entry_id) if server not in self._lost]

    def _send(self, entry_id: int, server: int) -> Message:
        return Message(self.index, server, None, Add((self.bytes_of(entry_id),), recovery=False))

    def bytes_of(self, entry_id: int) -> bytes:
        """The bytes to send for an entry: those sealed at first (rule W2)."""
        return self._entries[entry_id]

    def _unconfirmed_by(self, server: int) -> list[int]:
        """What a member is to be sent (again), lowest first (rule W8)."""
        return [
            entry_id
            for entry_id in range(self._acknowledged + 1, len(self._entries))
            if server in self._write_set(entry_id) and (entry_id, server) not in self._confirmed
        ]

    def _write_set(self, entry_id: int) -> list[int]:
        return [self._ensemble[position] for position in self._quorums.write_set(entry_id)]

    @property
    def _ensemble(self) -> tuple[int, ...]:
        return tuple(map(bookie_index, self._metadata.last_fragment.bookies))

    def _answered(self, message: Message) -> list[Message]:
        assert isinstance(message.request, Add)
        entry_id = header_of(message.request.entries[0]).entry_id
        if message.answer == Refused(FENCED):
            self._fail(FENCED)
        elif message.server not in self._ensemble:
            pass  # replaced since: what it says counts for nothing
        elif isinstance(message.answer, Done):
            if entry_id > self._acknowledged:
                self._confirmed |= {(entry_id, message.server)}
                self._acknowledge()
        elif entry_id > self._acknowledged:
            self._lost |= {message.server}
        return []

    def _acknowledge(self) -> None:
        """In order, what Qa bookies of its write set have confirmed (rules W1 and W4)."""
        while self._acknowledged + 1 < len(self._entries) and self.may_acknowledge(self._acknowledged + 1):
            self._acknowledged += 1
        self._confirmed = frozenset(pair for pair in self._confirmed if pair[0] > self._acknowledged)

    def may_acknowledge(self, entry_id: int) -> bool:
        """Whether an entry is complete; nothing at or above a change under way is (rule W1)."""
        return self.is_confirmed(entry_id) and (self._change is None or entry_id < self._change.first)

    def is_confirmed(self, entry_id: int) -> bool:
        """Whether Qa of its current write set have confirmed it."""
        confirmed = {server for confirmed_id, server in self._confirmed if confirmed_id == entry_id}
        return len(confirmed & set(self._write_set(entry_id))) >= self._quorums.ack_quorum

    @property
    def _all_acknowledged(self) -> bool:
        return self._acknowledged == self._wanted - 1

    # --- ensemble changes ---------------------------------------------------------------------------------------------

    def _replace(self, position: int, spare: int) -> list[Message]:
        """A new fragment after the LAC, with another bookie in one place (rule W3)."""
        ensemble = (*self._ensemble[:position], spare, *self._ensemble[position + 1 :])
        self._change = EnsembleChange(self._acknowledged + 1, ensemble)
        base, names = self._metadata.last_fragment, tuple(map(bookie_id, ensemble))
        change = ChangeEnsemble(base, EntryId(self._change.first), names, length_up_to(self._acknowledged))
        return [Message(self.index, STORE, None, Change(change))]

    def _change_settled(self, message: Message) -> list[Message]:
        assert isinstance(message.answer, Changed | Conflict)
        change, self._change = self._change, None
        if self._failure is not None or change is None:
            return []
        if isinstance(message.answer, Conflict):
            self._fail(f"ledger is {message.answer.metadata.state.name}")
            return []
        before = set(self._ensemble)
        self._metadata = message.answer.metadata
        fresh = sorted(set(self._ensemble) - before)
        self._lost &= set(self._ensemble)
        self._confirmed = frozenset(pair for pair in self._confirmed if self.still_counts(*pair))
        self._acknowledge()
        return [self._send(entry_id, server) for server in fresh for entry_id in self._unconfirmed_by(server)]

    def still_counts(self, entry_id: int, server: int) -> bool:
        """Whether a confirmation counts after an ensemble change: not a replaced bookie's (rule W3)."""
        return server in self._ensemble or entry_id < self._metadata.last_fragment.first_entry_id

    # --- the end ------------------------------------------------------------------------------------------------------

    def _fail(self, reason: str) -> None:
        """Dead for good (rule W7)."""
        self._failure = reason
        self._confirmed, self._lost = frozenset(), frozenset()

    def _close(self) -> list[Message]:
        """With what is acknowledged (rule W9)."""
        self._closing = True
        end = EntryId(self._acknowledged) if self._acknowledged >= 0 else None
        change = CloseLedger(self._metadata.last_fragment, end, length_up_to(self._acknowledged))
        return [Message(self.index, STORE, None, Change(change))]

    def _close_settled(self, message: Message) -> list[Message]:
        assert isinstance(message.answer, Changed | Conflict)
        self._closing = False
        self._end = message.answer.metadata
        if isinstance(message.answer, Conflict):
            self._failure = self._failure or f"ledger is {self._end.state.name}"
        return []

    # --- for the promises ---------------------------------------------------------------------------------------------

    @property
    def _works(self) -> bool:
        return self._failure is None and not self._closing and self._end is None

    @property
    def finished(self) -> bool:
        return self._end is not None

    @property
    def acknowledged(self) -> int:
        return self._acknowledged

    @property
    def did_not_happen_from(self) -> int | None:
        closed_here = self._end is not None and self._failure is None and self._end.state is LedgerState.CLOSED
        return self._acknowledged + 1 if closed_here else None

    def unfinished_work(self, metadata: LedgerMetadata) -> str | None:
        return None if self.finished else f"the writer waits: {self.describe()}"

    def describe(self) -> str:
        parts = ["has acknowledged " + (f"up to entry {self._acknowledged}" if self._acknowledged >= 0 else "nothing")]
        if self._change is not None:
            parts.append(f"changes its ensemble from entry {self._change.first}")
        if self._failure is not None:
            parts.append(f"failed: {self._failure}")
        if self._end is not None:
            parts.append(f"found {metadata_text(self._end)}")
        return ", ".join(parts)
