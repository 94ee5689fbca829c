"""The client of the model that takes over a stream with full copies: it asks what the term owes before
it writes its end (rule G5), as octavo.client.recover.stream_taker does; and clients with that rule broken."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from model.engine.exchange import Lacks, Message, Missing, Place
from model.engine.renaming import bookie_index
from model.ledgers.client import Event, Step
from model.streams.taker import Taker
from model.streams.term_books import TermBooks
from octavo.client.recover.takeover import Phase
from octavo.metadata.ledger.debts import NO_DEBT, Debt
from octavo.metadata.stream.model import StreamFragment
from octavo.protocol.ids import BookieId, EntryId

_WAITS_NO_LONGER = Step("waits no longer for what is owed")


class AskingTaker(Taker):
    """See the module. A member that does not answer, or is not waited for any longer, may lack all of its share."""

    make_writer = TermBooks

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._awaited: frozenset[Place] = frozenset()
        """The questions that are not answered."""
        self._owed: tuple[tuple[EntryId, Debt], ...] = ()
        """What is known so far."""

    def key(self) -> Hashable:
        return super().key(), self._awaited, self._owed

    def on(self, event: Event) -> list[Message]:
        if isinstance(event, Message) and isinstance(event.request, Missing):
            return self._told(event) if event.tag in self._awaited else []
        if event == _WAITS_NO_LONGER:
            for question in self._questions():
                if question.tag in self._awaited:
                    self._note(question, self.may_lack(question.request))
            return self._asked()
        return super().on(event)

    def steps(self) -> list[Step]:
        return [_WAITS_NO_LONGER] if self._awaited else super().steps()

    def _finish(self) -> list[Message]:
        takeover = self._takeover
        takeover.poll()
        if self._closing or takeover.phase is not Phase.ENDED or takeover.recovery is None:
            return super()._finish()
        self._closing = True  # the recovery is over, and what it sends ends with it
        self._owed = tuple((fragment.first_entry_id, NO_DEBT) for fragment in takeover.ended_fragments)
        questions = list(self._questions())
        self._awaited = frozenset(question.tag for question in questions if isinstance(question.tag, Place))
        return questions or self._asked()

    def _questions(self) -> Iterator[Message]:
        takeover = self._takeover
        assert takeover.end is not None, "the recovery is over"
        fragments = takeover.ended_fragments
        stops = [*(int(one.first_entry_id) for one in fragments[1:]), takeover.end.last_entry_id + 1]
        for fragment, stop in zip(fragments, stops, strict=True):
            first = int(fragment.first_entry_id)
            for position, name in enumerate(self.members(fragment)):
                share = [one for one in range(first, stop) if self._quorums.write_mask(one) >> position & 1]
                if share:
                    tag = Place(position, first, 0, self._attempt)
                    yield Message(self.index, bookie_index(name), tag, Missing(tuple(share)))

    def members(self, fragment: StreamFragment) -> tuple[BookieId, ...]:
        """Whom it asks about a fragment that ends with the term."""
        return fragment.bookies

    def _told(self, message: Message) -> list[Message]:
        answer = message.answer
        self._note(message, answer.entry_ids if isinstance(answer, Lacks) else self.may_lack(message.request))
        return [] if self._awaited else self._asked()

    def may_lack(self, question: Any) -> tuple[int, ...]:
        """What a member may lack that has not answered."""
        assert isinstance(question, Missing)
        return question.entry_ids

    def _note(self, question: Message, lacking: Sequence[int]) -> None:
        assert isinstance(question.tag, Place)
        self._awaited -= {question.tag}
        if lacking:
            debt = Debt(min(lacking), max(lacking))
            self._owed = tuple(
                (first, owed.joined(debt) if first == question.tag.number else owed) for first, owed in self._owed
            )

    def _asked(self) -> list[Message]:
        self._takeover.on_asked(self.debts())
        self._closing, self._owed = False, ()
        return super()._finish()

    def debts(self) -> tuple[tuple[EntryId, Debt], ...]:
        """What it records, once all is known."""
        return self._owed

    def describe(self) -> str:
        return f"asks what is owed of term {self.term}" if self._awaited else super().describe()


class OwesNothing(AskingTaker):
    """Takes every entry for one that has all copies."""

    def debts(self) -> tuple[tuple[EntryId, Debt], ...]:
        return tuple((first, NO_DEBT) for first, _ in self._owed)


class RecordsNothing(AskingTaker):
    """Does not record what it has been told."""

    def debts(self) -> tuple[tuple[EntryId, Debt], ...]:
        return ()


class TakesSilenceForCopies(AskingTaker):
    """A member that does not answer is taken for one that lacks nothing."""

    def may_lack(self, question: Any) -> tuple[int, ...]:
        return ()


class AsksTheOldMembers(AskingTaker):
    """Asks the members of the fragment that it found, although it has replaced one of them."""

    def members(self, fragment: StreamFragment) -> tuple[BookieId, ...]:
        found: StreamFragment = self.base.last_fragment
        return found.bookies
