"""One state to stand for all that differ only by an interchange of equals.

The representative is the least among the renamed states. Of the renamings, only those need be tried that put the
bookies in the order of what each holds and what is under way to and from it; mostly that leaves one.

A renamed client is not made by looking into its machine, which would have to be told what a position is: it is the
client that the renamed history leads to. Every client but the first ones came from another one by one event; so the
renamed client comes from the renamed other one by the renamed event. That the machines do not tell bookies apart by
anything but their answers is thereby a premise, which :meth:`Symmetry.holds` checks.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from model.engine.exchange import STORE, Change, Changed, Conflict, Message, Place
from model.engine.renaming import Renaming
from model.engine.states import State
from model.ledgers.bookie import BookieState

if TYPE_CHECKING:
    from model.engine.world import World


class _Moves:
    """What every number becomes under one renaming; filled as needed."""

    def __init__(self, renaming: Renaming) -> None:
        self.renaming = renaming
        self.metadata: dict[int, int] = {}
        self.bookies: dict[int, int] = {}
        self.clients: dict[int, int] = {}
        self.messages: dict[int, int] = {}


class Symmetry:
    """The interchanges of one world. Without any renaming, every state stands for itself."""

    def __init__(self, world: "World", renamings: Sequence[Renaming]) -> None:
        self._world = world
        self._moves = [_Moves(renaming) for renaming in renamings]
        self._bookies = range(len(renamings[0].bookies)) if renamings else range(0)
        self._candidates: dict[tuple[int, ...], list[_Moves]] = {}
        self._bares: dict[int, int] = {}
        self._ways: dict[int, tuple[int, int]] = {}
        self._facts: dict[tuple[object, ...], int] = {}

    def representative(self, state: State) -> State:
        """The one state of its class."""
        if not self._moves:
            return state
        candidates = self._orders(state)
        if len(candidates) == 1:
            return self._moved(state, candidates[0])
        return min([self._moved(state, moves) for moves in candidates])

    def _orders(self, state: State) -> list[_Moves]:
        """The renamings that put the bookies in order."""
        _, bookies, _, messages, _ = state
        ways = self._ways
        busy = [[self._bare(number)] for number in bookies]
        for number in messages:
            way = ways.get(number)
            if way is None:
                way = ways[number] = self._way(number)
            server, facts = way
            if server != STORE:
                busy[server].append(facts)
        for waiting in busy:
            waiting[1:] = sorted(waiting[1:])
        ranks = tuple([sum([other < waiting for other in busy]) for waiting in busy])
        candidates = self._candidates.get(ranks)
        if candidates is None:
            candidates = self._candidates[ranks] = self._that_sort(ranks)
        return candidates

    def _bare(self, number: int) -> int:
        """A number for all of a bookie that no renaming moves."""
        bare = self._bares.get(number)
        if bare is None:
            bookie = self._world.bookies[number]
            waiting = [tuple(sorted(map(_errand, messages), key=repr)) for messages in (bookie.waiting, bookie.slow)]
            what = (replace(bookie, waiting=(), slow=()), *waiting)
            bare = self._bares[number] = self._facts.setdefault(what, len(self._facts))
        return bare

    def _that_sort(self, ranks: tuple[int, ...]) -> list[_Moves]:
        """Of the renamings, those that give the least sequence of ranks."""
        sequences = [tuple(ranks[old] for old in moves.renaming.bookies_before) for moves in self._moves]
        least = min(sequences)
        return [moves for moves, sequence in zip(self._moves, sequences, strict=True) if sequence == least]

    def _way(self, number: int) -> tuple[int, int]:
        """The bookie of a message, and a number for all else in it that no renaming moves."""
        message = self._world.messages[number]
        return message.server, self._facts.setdefault(_errand(message), len(self._facts))

    def _moved(self, state: State, moves: _Moves) -> State:
        metadata, bookies, clients, messages, budget = state
        if moves.renaming.is_identity:
            return state
        renaming = moves.renaming
        try:
            return (
                moves.metadata[metadata],
                tuple([moves.bookies[bookies[old]] for old in renaming.bookies_before]),
                tuple([moves.clients[clients[old]] for old in renaming.clients_before]),
                tuple(sorted([moves.messages[number] for number in messages])),
                budget,
            )
        except KeyError:
            self._learn(state, moves)
            return self._moved(state, moves)

    def _learn(self, state: State, moves: _Moves) -> None:
        metadata, bookies, clients, messages, _ = state
        value = moves.renaming.value(self._world.metadata[metadata])
        moves.metadata[metadata] = self._world.metadata.number(value, value)
        for number in messages:
            self._message(number, moves)
        for number in clients:
            self._client(number, moves)
        for number in bookies:
            moves.bookies[number] = self._bookie(number, moves.renaming)

    def _message(self, number: int, moves: _Moves) -> int:
        known = moves.messages.get(number)
        if known is None:
            message = renamed_message(self._world.messages[number], moves.renaming)
            known = moves.messages[number] = self._world.messages.number(message, message)
        return known

    def _bookie(self, number: int, renaming: Renaming) -> int:
        bookie: BookieState = self._world.bookies[number]
        if not bookie.waiting and not bookie.slow:
            return number
        renamed = replace(
            bookie,
            waiting=tuple(sorted((renamed_message(one, renaming) for one in bookie.waiting), key=repr)),
            slow=tuple(renamed_message(one, renaming) for one in bookie.slow),
        )
        return self._world.bookies.number(renamed, renamed)

    def _client(self, number: int, moves: _Moves) -> int:
        """The client that the renamed history leads to."""
        known = moves.clients.get(number)
        if known is not None:
            return known
        world, renaming = self._world, moves.renaming
        client, origin = world.clients[number], world.origin(number)
        if origin is None:
            moved = client.copy()
            moved.index = renaming.clients[client.index]
            renamed = world.root(moved, client.acknowledged_before)
        else:
            before, event = origin
            moved_before = self._client(before, moves)
            if isinstance(event, Message):
                message = renamed_message(event, renaming)
                renamed, _ = world.react(moved_before, world.messages.number(message, message))
            else:
                step = event if event.argument is None else client.rename(event, renaming)
                renamed, _ = world.act(moved_before, step)
        moves.clients[number] = renamed
        return renamed

    def class_of(self, state: State) -> set[State]:
        """Every state that differs from this one by an interchange of equals."""
        return {self._moved(state, moves) for moves in self._moves} or {state}

    def holds(self, state: State) -> bool:
        """Whether what can happen in the renamed states is what can happen in the state, renamed. For tests: slow."""
        after = {self.representative(successor) for _, successor in self._world.successors(state)}
        return all(
            {self.representative(successor) for _, successor in self._world.successors(renamed)} == after
            for renamed in self.class_of(state)
        )


def _errand(message: Message) -> tuple[object, ...]:
    """All of a message to or from a bookie that no renaming moves."""
    tag = message.tag
    if isinstance(tag, Place):
        tag = tag.number, tag.tenure, tag.attempt
    return message.client is None, tag, message.request, message.answer


def renamed_message(message: Message, renaming: Renaming) -> Message:
    """A message under other names."""
    request, answer = message.request, message.answer
    if isinstance(request, Change):
        request = Change(renaming.value(request.change))
    if isinstance(answer, Changed | Conflict):
        answer = replace(answer, metadata=renaming.value(answer.metadata))
    tag = message.tag
    if isinstance(tag, Place):
        tag = replace(tag, position=renaming.position(tag.position))
    return Message(
        None if message.client is None else renaming.clients[message.client],
        message.server if message.server == STORE else renaming.bookies[message.server],
        tag,
        request,
        answer,
    )
