"""Clients, bookies and readers of a stream with one rule of terms broken each."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from model.engine.exchange import STORE, Answer, Change, Fence, Message, Missing, ReadLac, Request
from model.engine.renaming import Renaming
from model.ledgers.bookie import Bookie, BookieState
from model.ledgers.broken_clients import QuorumsCoveringOneShort
from model.ledgers.client import Event, Step
from model.ledgers.machine_recovery import MachineRecovery
from model.streams.long_writer import Renewing, Rolling
from model.streams.promises import StreamPromises
from model.streams.taker import Taker
from model.streams.writer import StreamWriter
from octavo.client.recover.ledger_recovery import LedgerRecovery
from octavo.client.write.ensemble_changes import Commit
from octavo.metadata.ledger.decisions import Refuse, Settled, Write
from octavo.metadata.stream.changes import BeginTakeover, ChangeFragment, OpenTerm, StreamChange, StreamDecision
from octavo.metadata.stream.model import StreamFragment, StreamMetadata, StreamState
from octavo.protocol.errors import InvalidArgumentError, TermOverError
from octavo.protocol.ids import EntryId
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.places import term_of
from octavo.protocol.quorums import Quorums


class AnyLacCounts(StreamPromises):
    """A reader that takes any LAC for one of the term that it follows."""

    def readable(self, term: int, last_add_confirmed: int) -> int | None:
        return last_add_confirmed


class TermOfTheLacItself(StreamPromises):
    """A reader that finds a LAC's term from the LAC, and not from the id above it."""

    def readable(self, term: int, last_add_confirmed: int) -> int | None:
        return last_add_confirmed if term_of(last_add_confirmed) == term else None


class AddsBeforeItsTermStands(Taker):
    """Sends the first entry of the term together with the change that is to open it."""

    def _finish(self) -> list[Message]:
        sent = super()._finish()
        for message in sent:
            assert isinstance(message.request, Change)
            change = message.request.change
            if isinstance(change, OpenTerm):
                decision = change.decide(replace(self.base, state=StreamState.IN_RECOVERY))
                assert isinstance(decision, Write)
                return sent + self._become_writer(decision.metadata)
        return sent

    def on(self, event: Event) -> list[Message]:
        request = event.request if isinstance(event, Message) else None
        answers_opening = isinstance(request, Change) and isinstance(request.change, OpenTerm)
        return [] if self._writer is not None and answers_opening else super().on(event)


@dataclass(frozen=True, slots=True)
class ChangeAnyOpenTerm(ChangeFragment):
    """A writer's change that looks at nothing but the state."""

    def decide(self, current: StreamMetadata) -> StreamDecision:
        if current.state is not StreamState.OPEN:
            return Refuse(TermOverError("not open"))
        last = current.last_fragment
        return Write(
            current.with_fragment(replace(last, bookies=self.fragment.bookies))
            if current.term != self.fragment.term
            else current.with_fragment(self.fragment)
        )


class ChangesWhateverIsOpen(StreamWriter):
    """A writer whose change of the ensemble asks for an open term, and not for its own."""

    def _ensemble_change(self, commit: Commit) -> StreamChange:
        change = super()._ensemble_change(commit)
        assert isinstance(change, ChangeFragment)
        return ChangeAnyOpenTerm(change.base, change.fragment)


class AcknowledgesWhileRenewing(Renewing):
    """Goes on with its adds after it has chosen the end of its term."""

    def _renew(self) -> list[Message]:
        self._renewing = True
        return [Message(self.index, STORE, None, Change(self._renewal()))]

    def steps(self) -> list[Step]:
        return StreamWriter.steps(self) if self._renewing else super().steps()


class RollsAboveTheLac(Rolling):
    """Begins the new fragment above everything that it has sent, acknowledged or not."""

    def _ensemble_change(self, commit: Commit) -> StreamChange:
        first = self._replication.pipeline.next_entry_id
        above = replace(commit, first_entry_id=EntryId(first), length_before=self._length_up_to(first - 1))
        return super()._ensemble_change(above)


class ReadsTermsWithoutFence(Taker):
    """Recovery reads that do not fence."""

    def reads_fence(self) -> bool:
        return False


class RecoveryCoveringOneShort(LedgerRecovery):
    """Takes one answer less than coverage for coverage."""

    def __init__(self, quorums: Quorums, **arguments: Any) -> None:
        short = QuorumsCoveringOneShort(quorums.ensemble_size, quorums.write_quorum, quorums.ack_quorum)
        super().__init__(short, **arguments)


class TakesOverOneShort(Taker):
    """Coverage off by one."""

    make_machine = RecoveryCoveringOneShort


class RecoveryOfAnyTerm(LedgerRecovery):
    """Takes the LAC of a later term for one of its own."""

    def on_fenced(
        self, position: int, last_add_confirmed: int | None, lengths: Mapping[int, int] | None = None
    ) -> None:
        term, self._term = self._term, 0
        super().on_fenced(position, last_add_confirmed, lengths)
        self._term = term


class CountsLacsOfLaterTerms(Taker):
    """Starts to recover above a LAC that is not of its term."""

    make_machine = RecoveryOfAnyTerm


class GoesOnBesideALaterTerm(Taker):
    """Does not withdraw when it learns that another client has opened a later term."""

    def _advance(self) -> list[Message]:
        return MachineRecovery._advance(self)

    def _finish(self) -> list[Message]:
        is_over = self._machine is not None and self._machine.later_term is not None
        return [] if is_over else super()._finish()


class FencesTheNextTerm(Taker):
    """Names the term that it is about to open in its fences."""

    def _fence(self) -> ReadLac:
        return ReadLac(fence=True, term=self.term + 1)


class FencesBeforeItBegins(Taker):
    """Fences what it has read, together with the change that begins the takeover."""

    def _settled(self, message: Message) -> list[Message]:
        sent = super()._settled(message)
        for begun in sent:
            if isinstance(begun.request, Change) and isinstance(begun.request.change, BeginTakeover):
                fence = ReadLac(fence=True, term=begun.request.change.term)
                return sent + [
                    Message(None, server, None, Fence(fence.term)) for server in range(self._quorums.ensemble_size)
                ]
        return sent


@dataclass(frozen=True, slots=True)
class OpenTermKnownByItsPlace(OpenTerm):
    """Takes the term after the recovered one for its own, even if another client opened it."""

    def decide(self, current: StreamMetadata) -> StreamDecision:
        if current.state is StreamState.OPEN and current.term == self.base.term + 1:
            return Settled()
        return OpenTerm.decide(self, current)

    def renamed(self, renaming: Renaming) -> Self:
        """The same under other names."""
        fragments = tuple(map(renaming.value, self.fragments))
        base, fragment = renaming.value(self.base), renaming.value(self.fragment)
        return replace(self, base=base, fragments=fragments, fragment=fragment)


class TakesRivalsTermForItsOwn(Taker):
    """A lost answer is settled by looking at the term and not at its owner."""

    def _to_store(self, change: StreamChange) -> Message:
        if isinstance(change, OpenTerm):
            change = OpenTermKnownByItsPlace(change.base, change.fragments, change.end, change.owner, change.fragment)
        return super()._to_store(change)

    def _opened(self, stream: StreamMetadata) -> list[Message]:
        self._takeover._owner = stream.owner
        return super()._opened(stream)


@dataclass(frozen=True, slots=True)
class CommitStreamFragment:
    """An ensemble change of a takeover, written to the metadata before the end is known."""

    fragment: StreamFragment

    def decide(self, current: StreamMetadata) -> StreamDecision:
        if current.state is not StreamState.IN_RECOVERY or current.term != self.fragment.term:
            return Refuse(TermOverError("opened meanwhile"))
        try:
            return Write(current.with_fragment(self.fragment))
        except InvalidArgumentError:
            return Settled()

    def renamed(self, renaming: Renaming) -> Self:
        """The same under other names."""
        return type(self)(renaming.value(self.fragment))


class CommitsStreamFragmentsEarly(Taker):
    """Writes its ensemble changes to the metadata at once."""

    def replaced(self, fragment: StreamFragment) -> list[Message]:
        return [Message(self.index, STORE, None, Change(CommitStreamFragment(fragment)))]

    def _settled(self, message: Message) -> list[Message]:
        assert isinstance(message.request, Change)
        return [] if isinstance(message.request.change, CommitStreamFragment) else super()._settled(message)


class FencesLikeAFlag(Bookie):
    """Refuses every ordinary add once any term was fenced."""

    def is_over(self, state: BookieState, term: int) -> bool:
        return state.fenced


class LastFenceCounts(Bookie):
    """Keeps the last term that was fenced, not the highest one."""

    def fence(self, state: BookieState, term: int = 0) -> BookieState:
        return super().fence(replace(state, fenced=False) if term != state.fenced_term else state, term)


class ForgetsTermsInAPowerCut(Bookie):
    """Answers a fence before it is durable."""

    def must_wait(self, state: BookieState, request: Request, answer: Answer) -> bool:
        return super().must_wait(replace(state, fence_unsynced=False), request, answer)


class TellsOfCopiesBeforeTheSync(Bookie):
    """Calls an entry held, and not missing, before it is durable."""

    def must_wait(self, state: BookieState, request: Request, answer: Answer) -> bool:
        return not isinstance(request, Missing) and super().must_wait(state, request, answer)
