"""A bookie in doubt about a stream that learns the stream's term: above it the doubt is over (rule T12)."""

from dataclasses import replace

from model.engine.exchange import Add, Answer, ReadLac, Refused, Request
from model.ledgers.bookie import Bookie, BookieState
from octavo.protocol.places import place


class FlooredBookie(Bookie):
    """See the module. The first floor stays."""

    def note_floor(self, state: BookieState, term: int) -> BookieState:
        return replace(state, term_floor=term) if state.in_doubt and state.term_floor is None else state

    def refusal(self, state: BookieState, request: Add) -> Refused | None:
        return super().refusal(self._as_for(state, request.term), request)

    def look_up(self, state: BookieState, request: Request) -> Answer | None:
        return super().look_up(self._as_for(state, request.term) if isinstance(request, ReadLac) else state, request)

    def is_unsure(self, state: BookieState, entry_id: int) -> bool:
        floor = state.term_floor
        return super().is_unsure(state, entry_id) and (floor is None or entry_id < place(floor + 1, 0))

    def _as_for(self, state: BookieState, term: int) -> BookieState:
        floor = state.term_floor
        return replace(state, in_doubt=False) if floor is not None and term > floor else state


class FenceEndsDoubt(FlooredBookie):
    """Takes the term of a fence for the floor."""

    def fence(self, state: BookieState, term: int = 0) -> BookieState:
        return self.note_floor(super().fence(state, term), term)
