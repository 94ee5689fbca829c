"""States and actions in words, for traces."""

from typing import TYPE_CHECKING

from model.engine.exchange import STORE, Message, answer_text, entry_text, id_text, metadata_text, request_text
from model.engine.renaming import BOOKIE_NAMES
from model.engine.states import Action, State
from model.ledgers.bookie import BookieState
from model.ledgers.client import Step
from octavo.protocol.entries import header_of

if TYPE_CHECKING:
    from model.engine.world import World

_BOOKIE_EVENTS = {
    "sync": "syncs",
    "decide": "works off what it had taken up",
    "wipe": "loses its disk, and knows it",
    "floor": "learns the term of the stream",
    "damage": "a copy rots",
    "power cut": "loses its power and starts again",
    "kill": "is killed and starts again",
}


class Describer:
    """Describes states and actions of a world for traces."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def action(self, state: State, action: Action) -> str:
        """One line."""
        kind, first, second = action
        if kind == "step":
            client = state[2][first]
            return f"{self._name(state, first)}: {step_text(self._world.steps_of(client)[second][0])}"
        if kind == "break":
            return f"the connection of {self._name(state, first)} to {bookie_name(second)} breaks"
        if kind in _BOOKIE_EVENTS:
            return f"{bookie_name(first)} {_BOOKIE_EVENTS[kind]}"
        return self._message(state, kind, self._world.messages[first])

    def _message(self, state: State, kind: str, message: Message) -> str:
        sender = "orphaned request" if message.client is None else self._name(state, message.client)
        server = "metadata" if message.server == STORE else bookie_name(message.server)
        what = request_text(message.request)
        if kind == "answer":
            assert message.answer is not None
            return f"{server} -> {sender}: {answer_text(message.answer)} (to: {what})"
        if kind == "lose":
            return f"{server} -> {sender}: the answer is lost; {what} once more"
        return f"{sender} -> {server}: {what}" + {"cut": "; answered in part", "drop": "; changes nothing"}.get(
            kind, ""
        )

    def _name(self, state: State, index: int) -> str:
        return self._world.clients[state[2][index]].name

    def state(self, state: State) -> list[str]:
        """What each bookie holds and each client knows."""
        world = self._world
        lines = [f"metadata: {metadata_text(world.metadata[state[0]])}"]
        lines += [f"{bookie_name(at)}: {bookie_text(world.bookies[number])}" for at, number in enumerate(state[1])]
        lines += [f"{world.clients[number].name}: {world.clients[number].describe()}" for number in state[2]]
        messages = [world.messages[number] for number in state[3]]
        return lines + [f"under way: {self._under_way(state, message)}" for message in messages]

    def _under_way(self, state: State, message: Message) -> str:
        return self._message(state, "arrive" if message.answer is None else "answer", message)


def bookie_name(index: int) -> str:
    return f"bookie {BOOKIE_NAMES[index]}"


def step_text(step: Step) -> str:
    return step.name if step.argument is None else f"{step.name} {step.argument}"


def bookie_text(bookie: BookieState) -> str:
    """What a bookie holds."""
    parts = []
    for sealed in bookie.held:
        entry_id = header_of(sealed).entry_id
        parts.append(
            entry_text(sealed)
            + (" damaged" if entry_id in bookie.damaged else "")
            + (" unsynced" if entry_id in bookie.unsynced else "")
        )
    if bookie.explicit_lac is not None:
        parts.append(f"explicit LAC {id_text(header_of(bookie.explicit_lac).entry_id)}")
    if bookie.fenced:
        fenced = f"fenced up to term {bookie.fenced_term}" if bookie.fenced_term else "fenced"
        parts.append(f"{fenced}, unsynced" if bookie.fence_unsynced else fenced)
    if bookie.in_doubt:
        parts.append("in doubt" if bookie.term_floor is None else f"in doubt up to term {bookie.term_floor}")
    return ", ".join(parts) or "holds nothing"
