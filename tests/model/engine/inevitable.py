"""Partial-order reduction: steps that cannot be avoided and that no other step depends on are taken at once.

* *A fence without effect.* A fence refuses ordinary adds, and does nothing else. If no ordinary add is on its way to a
  bookie and no client will send another one, the bookie answers every later request alike, fenced or not. All such
  bookies count as fenced.
* *An explicit LAC that will not be read.* Once the writer sends none and no recovery reads LACs, an explicit LAC at a
  bookie, and the bookie's answer to a late LAC read, count as none.
* *An answer that cannot change.* If a request changes nothing at its bookie, and the bookie would answer it in the same
  way whenever it arrived, it is answered now: its arrival is independent of every other step. This holds for an add
  that the fence refuses, for a recovery add whose entries are there already, and for a read from a fenced bookie that
  holds every entry that could still reach it.

This applies only where bookies lose nothing and each of their steps is durable at once.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from model.engine.exchange import STORE, Add, Lac, Read, ReadLac, WriteLac
from model.engine.states import State
from octavo.protocol.entries import header_of

if TYPE_CHECKING:
    from model.engine.world import World

_ADD, _READ, _READ_LAC, _LAC = range(1, 5)


class _MessageFacts(NamedTuple):
    """The facts about a message under way that matter here."""

    kind: int = 0
    """One of the above: what waits for an answer, or is one; 0 for anything else."""
    server: int = STORE
    adds: int = 0
    """The server's bit if it is an ordinary add."""
    tells: int = 0
    """The server's bit if it is an explicit LAC."""
    carries: int = 0
    """Mask of the ids that it brings its server."""


class _StillPossible(NamedTuple):
    """What may still happen after a state."""

    asking: bool
    """A client may read LACs and use the answer."""
    telling: int
    """Mask of the bookies that an explicit LAC may reach."""
    entries: int
    """Mask of the ids that may reach a bookie."""


_INERT = _MessageFacts()


class InevitableSteps:
    """See the module. ``written``: how many entries the setting may ever have."""

    def __init__(self, world: "World", *, written: int) -> None:
        self._world = world
        self._cuts = bool(world.setting.budget.get("cuts"))
        self._all_written = (1 << written) - 1
        self._facts: dict[int, _MessageFacts] = {}
        self._held: dict[int, int] = {}
        self._fenced: dict[int, int] = {}
        self._lacless: dict[int, int] = {}
        self._clients: dict[int, tuple[bool, bool]] = {}

    def settled(self, state: State) -> State:
        """The state after all inevitable steps."""
        adding = asking = False
        for number in state[2]:
            known = self._clients.get(number)
            if known is None:
                client = self._world.clients[number]
                known = self._clients[number] = client.may_add, client.may_use_lacs
            adding, asking = adding or known[0], asking or known[1]
        met = telling = carried = 0
        waiting: list[tuple[int, _MessageFacts]] = []
        for number in state[3]:
            facts = self._facts.get(number)
            if facts is None:
                facts = self._facts[number] = self._look(number)
            if facts is not _INERT:
                met |= facts.adds
                telling |= facts.tells
                carried |= facts.carries
                waiting.append((number, facts))
        if adding:
            met = telling = -1
            carried = self._all_written
        state = self._bare(state, met, -1 if asking or adding else 0)
        if not waiting:
            return state
        for number in state[1]:
            carried |= self._holds(number)
        return self._answered(state, waiting, _StillPossible(asking, telling, carried))

    def _bare(self, state: State, met: int, asked: int) -> State:
        """Without fences but where they may be met, and explicit LACs but where they may be asked for: masks."""
        metadata, bookies, clients, messages, budget = state
        fenced, lacless = self._fenced, self._lacless
        bare = []
        for server, number in enumerate(bookies):
            after = number
            if not met >> server & 1:
                if number not in fenced:
                    self._learn(number)
                after = fenced[number]
            if not asked >> server & 1:
                if after not in lacless:
                    self._learn(after)
                after = lacless[after]
            bare.append(after)
        after_all = tuple(bare)
        if after_all == bookies:
            return state
        return metadata, after_all, clients, self._world.still_useful(after_all, messages), budget

    def _answered(self, state: State, waiting: list[tuple[int, _MessageFacts]], possible: _StillPossible) -> State:
        """The state once every request is answered that can only be answered in one way."""
        world, bookies = self._world, state[1]
        for number, facts in waiting:
            kind, server = facts.kind, facts.server
            if not kind or number not in state[3]:
                continue
            bookie = bookies[server]
            if kind == _LAC:
                if not possible.asking:
                    state = self._exchanged(state, number, (self._nothing_of(number),))
                continue
            after, answers = world.receive(bookie, number)
            if kind == _READ_LAC and not possible.asking:
                answers = (self._nothing_of(number),)
            if after == bookie and self._is_final(number, facts, bookie, possible):
                state = self._exchanged(state, number, answers)
        return state

    def _is_final(self, number: int, facts: _MessageFacts, bookie: int, possible: _StillPossible) -> bool:
        """Whether a request that changes nothing will never be answered otherwise."""
        if facts.kind == _ADD:
            request = self._world.messages[number].request
            assert isinstance(request, Add)
            return request.recovery or self._world.bookies[bookie].fenced
        whole = self._holds(bookie) & possible.entries == possible.entries
        if facts.kind == _READ:
            return whole and not self._cuts
        return not possible.asking or (whole and not possible.telling >> facts.server & 1)

    def _exchanged(self, state: State, number: int, answers: tuple[int, ...]) -> State:
        """The state with answers under way in the place of one message."""
        metadata, bookies, clients, messages, budget = state
        if answers == (number,):
            return state
        at = messages.index(number)
        rest = metadata, bookies, clients, messages[:at] + messages[at + 1 :], budget
        return self._world.answers_sent(rest, answers)

    def _nothing_of(self, number: int) -> int:
        """The answer to a LAC read that reports no LAC."""
        message = self._world.messages[number].answered(Lac(None, None, in_doubt=False))
        return self._world.messages.number(message)

    def _holds(self, number: int) -> int:
        known = self._held.get(number)
        if known is None:
            known = self._held[number] = _mask(self._world.bookies[number].held)
        return known

    def _learn(self, number: int) -> None:
        bookies = self._world.bookies
        bookie = bookies[number]
        self._fenced[number] = bookies.number(self._world.setting.bookie.fence(bookie))
        self._lacless[number] = bookies.number(replace(bookie, explicit_lac=None))

    def _look(self, number: int) -> _MessageFacts:
        message = self._world.messages[number]
        request, server, waits = message.request, message.server, message.client is not None
        if message.answer is not None:
            return _MessageFacts(_LAC, server) if isinstance(message.answer, Lac) else _INERT
        if isinstance(request, Add):
            kind, adds = _ADD if waits else 0, 0 if request.recovery else 1 << server
            return _MessageFacts(kind, server, adds=adds, carries=_mask(request.entries))
        if isinstance(request, WriteLac):
            return _MessageFacts(0, server, tells=1 << server)
        if waits and isinstance(request, Read | ReadLac):
            return _MessageFacts(_READ if isinstance(request, Read) else _READ_LAC, server)
        return _INERT


def _mask(entries: tuple[bytes, ...]) -> int:
    return sum(1 << header_of(sealed).entry_id for sealed in entries)
