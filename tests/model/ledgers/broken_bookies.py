"""Bookies with one rule broken each."""

from dataclasses import replace
from typing import cast

from model.engine.exchange import Add, Answer, Message, Refused, Request
from model.ledgers.bookie import Bookie, BookieState


class ShowsEverything(Bookie):
    """Serves ordinary reads above the LAC."""

    def readable(self, state: BookieState, last_add_confirmed: int) -> tuple[bytes, ...]:
        return state.held


class AnswersBeforeTheSync(Bookie):
    """Acknowledges what is not durable."""

    def must_wait(self, state: BookieState, request: Request, answer: Answer) -> bool:
        return False


class TrustsWhatReplayFinds(Bookie):
    """Takes what it finds after it was killed for durable, and does not make it so."""

    def kill(self, state: BookieState) -> BookieState:
        return replace(super().kill(state), unsynced=state.unsynced, trusted=state.unsynced)

    def must_wait(self, state: BookieState, request: Request, answer: Answer) -> bool:
        believed = replace(state, unsynced=state.unsynced - state.trusted)
        return super().must_wait(believed, request, answer)


class ForgetsItsFence(Bookie):
    """Answers a fence before it is durable."""

    def must_wait(self, state: BookieState, request: Request, answer: Answer) -> bool:
        return super().must_wait(replace(state, fence_unsynced=False), request, answer)


class AnswersBeforeItFences(Bookie):
    """Computes the answer to a fencing read, and fences in a later step."""

    def receive(self, state: BookieState, message: Message) -> tuple[BookieState, tuple[Message, ...]]:
        if not self.fences(message.request) or message.client is None:
            return super().receive(state, message)
        _, answer = super().accept(replace(state, fenced=True), message.request)
        assert answer is not None, "a client waits for it"
        return replace(state, slow=(*state.slow, message.answered(answer))), ()

    def decide(self, state: BookieState, message: Message) -> tuple[BookieState, tuple[Message, ...]]:
        rest = tuple(other for other in state.slow if other != message)
        return self.fence(replace(state, slow=rest)), (message,) if message.client is not None else ()


class LetsQueuedAddsThrough(Bookie):
    """Checks an add when it comes, and stores it in a later step without another look at the fence."""

    def receive(self, state: BookieState, message: Message) -> tuple[BookieState, tuple[Message, ...]]:
        if not isinstance(message.request, Add) or self.refusal(state, message.request) is not None:
            return super().receive(state, message)
        return replace(state, slow=(*state.slow, message)), ()

    def decide(self, state: BookieState, message: Message) -> tuple[BookieState, tuple[Message, ...]]:
        rest = replace(state, slow=tuple(other for other in state.slow if other != message))
        after, answer = self.store(rest, cast("Add", message.request))
        return self.reply(after, message, answer)


class DeniesWhatItLost(Bookie):
    """Wiped, and answers "absent"."""

    def cannot_tell(self, state: BookieState, entry_id: int) -> bool:
        return entry_id in state.damaged


class DeniesWhatIsDamaged(Bookie):
    """Answers "absent" for a copy that does not verify."""

    def cannot_tell(self, state: BookieState, entry_id: int) -> bool:
        return state.in_doubt


class TakesAddsWhenSure(Bookie):
    """Takes ordinary adds again once its doubt is over."""

    def refusal(self, state: BookieState, request: Add) -> Refused | None:
        return super().refusal(replace(state, in_doubt=state.in_doubt and state.unsure_from is not None), request)
