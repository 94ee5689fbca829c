"""What goes wrong with bookies and connections, as far as the budget goes; and when bookies sync."""

from typing import TYPE_CHECKING

from model.engine.exchange import STORE, Failed, Message
from model.engine.states import BREAK, DAMAGE, KILL, POWER_CUT, WIPE, Action, State, replaced, spent
from model.ledgers.bookie import BookieState
from octavo.metadata.stream.model import StreamMetadata
from octavo.protocol.entries import header_of

if TYPE_CHECKING:
    from model.engine.world import World


class Faults:
    """The part of a world that breaks."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._changes_of: dict[tuple[int, tuple[int, ...]], list[_Change]] = {}

    def of(self, state: State) -> list[tuple[Action, State]]:
        """Everything of the kind that can happen in a state."""
        found = [*self.breaks(state), *self._floors(state)]
        metadata, bookies, clients, messages, budget = state
        for server, number in enumerate(bookies):
            for kind, after, answers, fault in self._changes(number, budget):
                changed = metadata, replaced(bookies, server, after), clients, messages, spent(budget, fault)
                if kind in ("sync", "decide"):
                    successor = self._world.answers_sent(changed, answers)
                else:
                    successor = self._world.failed(changed, (self._world.messages[answer] for answer in answers))
                found.append(((kind, server, after), successor))
        return found

    def _floors(self, state: State) -> list[tuple[Action, State]]:
        """Bookies in doubt that learn the term of the stream."""
        metadata, bookies, clients, messages, budget = state
        world, rules = self._world, self._world.setting.bookie
        stream = world.metadata[metadata]
        if not isinstance(stream, StreamMetadata):
            return []
        noted = [
            (server, world.bookies.number(rules.note_floor(world.bookies[number], stream.term)))
            for server, number in enumerate(bookies)
        ]
        return [
            (("floor", server, after), (metadata, replaced(bookies, server, after), clients, messages, budget))
            for server, after in noted
            if after != bookies[server]
        ]

    def _changes(self, number: int, budget: tuple[int, ...]) -> "list[_Change]":
        known = self._changes_of.get((number, budget))
        if known is None:
            known = self._changes_of[number, budget] = self._compute(number, budget)
        return known

    def _compute(self, number: int, budget: tuple[int, ...]) -> "list[_Change]":
        world, rules = self._world, self._world.setting.bookie
        bookie = world.bookies[number]
        changes: list[tuple[str, BookieState, tuple[Message, ...], int | None]] = []
        if bookie.unsynced or bookie.fence_unsynced or bookie.waiting:
            changes.append(("sync", *rules.sync(bookie), None))
        changes += [("decide", *rules.decide(bookie, request), None) for request in bookie.slow]
        lost = tuple(
            message.answered(Failed()) for message in (*bookie.waiting, *bookie.slow) if message.client is not None
        )
        if budget[WIPE]:
            changes.append(("wipe", rules.wipe(bookie), lost, WIPE))
        if budget[DAMAGE]:
            held = {header_of(sealed).entry_id for sealed in bookie.held} - bookie.damaged
            changes += [("damage", rules.damage(bookie, entry_id), (), DAMAGE) for entry_id in sorted(held)]
        if budget[POWER_CUT]:
            changes.append(("power cut", rules.cut_power(bookie), lost, POWER_CUT))
        if budget[KILL]:
            changes.append(("kill", rules.kill(bookie), lost, KILL))
        return [
            (kind, world.bookies.number(after), world.in_flight(answers), fault)
            for kind, after, answers, fault in changes
            if after != bookie or answers
        ]

    def breaks(self, state: State) -> list[tuple[Action, State]]:
        """Any connection between a client and a bookie that something is under way on."""
        if not state[4][BREAK]:
            return []
        world = self._world
        ways = set()
        for number in state[3]:
            message = world.messages[number]
            if message.client is not None and message.server != STORE:
                ways.add((message.client, message.server))
        for server, bookie in enumerate(state[1]):
            ways |= {
                (message.client, server) for message in world.bookies[bookie].waiting if message.client is not None
            }
        return [(("break", client, server), self._broken(state, client, server)) for client, server in sorted(ways)]

    def _broken(self, state: State, client: int, server: int) -> State:
        """Every request of the client at the bookie fails; those on their way may arrive nevertheless."""
        metadata, bookies, clients, messages, budget = state
        world = self._world
        kept: list[int] = []
        failures: list[Message] = []
        for number in messages:
            message = world.messages[number]
            if (message.client, message.server) != (client, server):
                kept.append(number)
                continue
            failures.append(message.answered(Failed()))
            if message.answer is None:
                kept += world.orphan_of(number)
        bookie = world.bookies[bookies[server]]
        failures += [
            message.answered(Failed()) for message in (*bookie.waiting, *bookie.slow) if message.client == client
        ]
        rest = world.bookies.number(bookie.without_waiting(client))
        changed = metadata, replaced(bookies, server, rest), clients, tuple(sorted(kept)), spent(budget, BREAK)
        return world.failed(changed, dict.fromkeys(failures))


type _Change = tuple[str, int, tuple[int, ...], int | None]
"""Kind, the bookie after it, the answers that leave or the failures that are met, which fault it is."""
