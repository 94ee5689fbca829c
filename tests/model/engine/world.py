"""The whole model: bookies, network, metadata and clients, as states and what can happen in them.

A state is a tuple of numbers: each metadata value, bookie state, client state and message has one. What an event does
to a bookie or a client depends on that bookie or client only, so every such step is computed once, with the real
machine, and looked up from then on. That is what makes hundreds of thousands of states affordable.

What can happen, in any order: a request arrives at its bookie or at the metadata; an answer arrives; a client takes a
step of its own; and, as far as the setting's budget goes, a fault (:mod:`model.engine.faults`).

Some steps are taken at once because they make no visible difference: an answer that its receiver ignores is dropped;
the requests of a client that has finished are orphaned; an orphan that changes nothing, and never will, is dropped.
"""

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from model.engine.describing import Describer
from model.engine.exchange import (
    STORE,
    Answer,
    Change,
    Changed,
    Conflict,
    Failed,
    Found,
    Message,
    Read,
    possible_answers,
)
from model.engine.explorer import BrokenPromiseError
from model.engine.faults import Faults
from model.engine.inevitable import InevitableSteps
from model.engine.interning import Interner
from model.engine.renaming import interchanges
from model.engine.setting import Setting
from model.engine.states import (
    CUT,
    DAMAGE,
    FAULTS,
    KILL,
    LOST_SETTLEMENT,
    POWER_CUT,
    WIPE,
    Action,
    State,
    replaced,
    spent,
    with_messages,
)
from model.engine.symmetry import Symmetry
from model.ledgers.bookie import BookieState
from model.ledgers.client import BEGIN, Client, Event, Step
from octavo.metadata.ledger.decisions import Refuse, Settled
from octavo.metadata.stream.changes import PageFirst
from octavo.metadata.stream.model import StreamMetadata
from octavo.protocol.errors import InternalError, OctavoError

type _Taken = tuple[int, tuple[int, ...]]
"""The number after an event, and the messages sent."""


class World:
    """A setting as a :class:`~model.engine.explorer.Model`."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.metadata: Interner[Any] = Interner()
        self.bookies: Interner[BookieState] = Interner()
        self.clients: Interner[Client] = Interner()
        self.messages: Interner[Message] = Interner()
        self._origins: dict[int, tuple[int, Event]] = {}
        self._reactions: dict[tuple[int, int], _Taken] = {}
        self._acts: dict[tuple[int, Step], _Taken] = {}
        self._receipts: dict[tuple[int, int], _Taken] = {}
        self._settlements: dict[tuple[int, int], tuple[int, int]] = {}
        self._steps: dict[int, tuple[tuple[Step, int | None], ...]] = {}
        self._probes: dict[int, tuple[int, ...]] = {}
        self._verdicts: dict[Hashable, str | None] = {}
        self._namings: dict[Hashable, str | None] = {}
        assert set(setting.budget) <= set(FAULTS), "every entry of a budget names a fault"
        self._budget = tuple(setting.budget.get(fault, 0) for fault in FAULTS)
        nothing_is_lost = not any(self._budget[fault] for fault in (WIPE, DAMAGE, POWER_CUT, KILL))
        self._reduces_orphans = setting.reduced and nothing_is_lost
        self._promises = setting.make_promises()
        self._faults = Faults(self)
        settles = self._reduces_orphans and not setting.bookie.syncs and setting.settles
        self._inevitable = InevitableSteps(self, written=len(setting.payloads)) if settles else None
        self._describer = Describer(self)
        sizes = setting.bookies, setting.quorums.ensemble_size
        self.symmetry = Symmetry(
            self, interchanges(*sizes, setting.interchangeable_clients) if setting.symmetric else []
        )

    # --- initial states -----------------------------------------------------------------------------------------------

    def initial_states(self) -> Iterator[State]:
        for placement in self.setting.placements():
            roots = [self.root(client, placement.acknowledged) for client in self.setting.clients(placement)]
            begun = [self.act(root, BEGIN) for root in roots]
            messages = self.in_flight(placement.messages)
            for _, sent in begun:
                messages = with_messages(messages, sent)
            bookies = tuple(self.bookies.number(bookie) for bookie in placement.bookies)
            clients = tuple(client for client, _ in begun)
            yield self.metadata.number(placement.metadata), bookies, clients, messages, self._budget

    def root(self, client: Client, acknowledged_before: int) -> int:
        """The number of a client that comes from no other one."""
        client.acknowledged_before = acknowledged_before
        return self.clients.number(client, client.identity())

    def in_flight(self, messages: Iterable[Message]) -> tuple[int, ...]:
        """The numbers of messages, sorted."""
        return tuple(sorted(self.messages.number(message) for message in messages))

    # --- what can happen ----------------------------------------------------------------------------------------------

    def successors(self, state: State) -> list[tuple[Action, State]]:
        messages, budget = state[3], state[4]
        found: list[tuple[Action, State]] = []
        if all(self.clients[client].finished for client in state[2]):
            return found
        first = self.independent_client(state)
        if first is not None:
            return self._events_of(state, first)
        previous = -1
        for at, number in enumerate(messages):
            if number == previous:
                continue  # twice the same message: the same happens
            previous = number
            rest = messages[:at] + messages[at + 1 :]
            message = self.messages[number]
            if message.answer is not None:
                found.append((("answer", number, 0), self._answer(state, rest, number, message)))
                if message.server == STORE and budget[LOST_SETTLEMENT]:
                    found.append((("lose", number, 0), self._ask_again(state, rest, message)))
            elif message.server == STORE:
                found.append((("settle", number, 0), self._settle(state, rest, number)))
            else:
                found += self._arrivals(state, rest, number, message)
        for index, client in enumerate(state[2]):
            for which, (step, fault) in enumerate(self.steps_of(client)):
                if fault is None or budget[fault]:
                    paid = (*state[:4], spent(budget, fault))
                    successor = self._client_moved(paid, index, self.act(client, step))
                    found.append((("step", index, which), successor))
        found += self._faults.of(state)
        return found

    def independent_client(self, state: State) -> int | None:
        """A client that no other client can affect before it acts: everything it waits for is an answer under way.

        Its events and those of all other clients are independent, so its events can come first. The only states missed
        are those in which it is late, and none of them breaks a promise that is not broken later too, because it has
        acknowledged nothing.
        """
        if not self.setting.reduced:
            return None
        busy = 0
        answers = 0
        for number in state[3]:
            message = self.messages[number]
            if message.client is not None:
                if message.answer is None:
                    busy |= 1 << message.client
                else:
                    answers |= 1 << message.client
        for number in state[1]:
            for message in self.bookies[number].waiting:
                if message.client is not None:
                    busy |= 1 << message.client
        for index, client in enumerate(state[2]):
            if answers >> index & 1 and not busy >> index & 1 and self.clients[client].acknowledges_nothing:
                return index
        return None

    def _events_of(self, state: State, index: int) -> list[tuple[Action, State]]:
        """Everything that can happen to one client that waits for nothing but answers under way."""
        messages, budget = state[3], state[4]
        found: list[tuple[Action, State]] = []
        for at, number in enumerate(messages):
            message = self.messages[number]
            if message.client == index:
                rest = messages[:at] + messages[at + 1 :]
                found.append((("answer", number, 0), self._answer(state, rest, number, message)))
                if message.server == STORE and budget[LOST_SETTLEMENT]:
                    found.append((("lose", number, 0), self._ask_again(state, rest, message)))
        for which, (step, fault) in enumerate(self.steps_of(state[2][index])):
            if fault is None or budget[fault]:
                paid = (*state[:4], spent(budget, fault))
                found.append((("step", index, which), self._client_moved(paid, index, self.act(state[2][index], step))))
        return found + [way for way in self._faults.breaks(state) if way[0][1] == index]

    def _arrivals(
        self, state: State, rest: tuple[int, ...], number: int, message: Message
    ) -> list[tuple[Action, State]]:
        """A request arrives at its bookie, and may be answered in part."""
        metadata, bookies, clients, _, budget = state
        server = message.server
        after, answers = self.receive(bookies[server], number)
        changed = replaced(bookies, server, after)
        if after != bookies[server]:
            rest = self.still_useful(changed, rest)
        whole = metadata, changed, clients, rest, budget
        found = [(("arrive", number, 0), self.answers_sent(whole, answers))]
        if budget[CUT] and isinstance(message.request, Read) and message.request.last > message.request.first:
            cut = metadata, changed, clients, rest, spent(budget, CUT)
            found += [(("cut", number, 0), self.answers_sent(cut, (self._cut_off(answer),))) for answer in answers]
        return found

    def still_useful(self, bookies: tuple[int, ...], messages: tuple[int, ...]) -> tuple[int, ...]:
        """Sorted, without the orphans that change nothing, and never will, like the second of two equal ones."""
        if not self._reduces_orphans:
            return tuple(sorted(messages))
        kept: list[int] = []
        for number in sorted(messages):
            message = self.messages[number]
            if message.client is None:
                server = bookies[message.server]
                if self.receive(server, number)[0] == server or (kept and kept[-1] == number):
                    continue
            kept.append(number)
        return tuple(kept)

    def _cut_off(self, number: int) -> int:
        message = self.messages[number]
        assert isinstance(message.request, Read)
        assert isinstance(message.answer, Found)
        return self.messages.number(message.answered(message.answer.cut_off_after(message.request.first)))

    def receive(self, bookie: int, message: int) -> _Taken:
        """What a request does to a bookie."""
        known = self._receipts.get((bookie, message))
        if known is None:
            after, answers = self.setting.bookie.receive(self.bookies[bookie], self.messages[message])
            known = self._receipts[bookie, message] = self.bookies.number(after), self.in_flight(answers)
        return known

    def _settle(self, state: State, rest: tuple[int, ...], message: int) -> State:
        metadata, bookies, clients, _, budget = state
        after, answer = self.settlement(metadata, message)
        if after != metadata:
            self._check_named(metadata, after, state)
        return after, bookies, clients, with_messages(rest, (answer,)), budget

    def _check_named(self, before: int, after: int, state: State) -> None:
        key = before, after, state[1], self._copies_lost(state)
        if key not in self._namings:
            bookies = [self.bookies[number] for number in state[1]]
            lost = self._copies_lost(state)
            self._namings[key] = self._promises.named(self.metadata[before], self.metadata[after], bookies, lost)
        broken = self._namings[key]
        if broken is not None:
            raise BrokenPromiseError(broken)

    def settlement(self, metadata: int, message: int) -> tuple[int, int]:
        """What a change does to the metadata, and its answer.

        The whole compare-and-set loop in one step: to read again after a lost race is the same as to come later.
        """
        known = self._settlements.get((metadata, message))
        if known is None:
            current, request = self.metadata[metadata], self.messages[message].request
            assert isinstance(request, Change)
            try:
                decision = request.change.decide(current)
            except OctavoError as error:
                raise BrokenPromiseError(
                    f"I6: {type(request.change).__name__} asks for what cannot be: {error}"
                ) from error
            assert not isinstance(decision, PageFirst), "its streams have a few fragments"
            after = current if isinstance(decision, Settled | Refuse) else decision.metadata
            answer: Answer = Changed(after)
            if isinstance(decision, Refuse):
                if isinstance(decision.error, InternalError):
                    raise BrokenPromiseError(f"T1: {decision.error.message}")
                answer = Conflict(after, type(decision.error) if isinstance(current, StreamMetadata) else None)
            answered = self.messages[message].answered(answer)
            known = self.metadata.number(after), self.messages.number(answered)
            self._settlements[metadata, message] = known
        return known

    def _ask_again(self, state: State, rest: tuple[int, ...], message: Message) -> State:
        metadata, bookies, clients, _, budget = state
        asked = self.messages.number(Message(message.client, STORE, message.tag, message.request))
        return metadata, bookies, clients, with_messages(rest, (asked,)), spent(budget, LOST_SETTLEMENT)

    # --- clients ------------------------------------------------------------------------------------------------------

    def _answer(self, state: State, rest: tuple[int, ...], number: int, message: Message) -> State:
        index = message.client
        assert index is not None, "an answer has a receiver"
        metadata, bookies, clients, _, budget = state
        taken = self.react(clients[index], number)
        return self._client_moved((metadata, bookies, clients, rest, budget), index, taken)

    def react(self, client: int, message: int) -> _Taken:
        """What an answer does to a client."""
        known = self._reactions.get((client, message))
        if known is None:
            known = self._reactions[client, message] = self._take(client, self.messages[message])
        return known

    def act(self, client: int, step: Step) -> _Taken:
        """What a step of its own does to a client."""
        known = self._acts.get((client, step))
        if known is None:
            known = self._acts[client, step] = self._take(client, step)
        return known

    def _take(self, client: int, event: Event) -> _Taken:
        """One event of one client, by the real machine."""
        after = self.clients[client].copy()
        try:
            sent = after.take(event)
        except AssertionError as error:
            raise BrokenPromiseError(f"{after.name} fails an assertion of its own: {error}") from error
        unknown = len(self.clients)
        number = self.clients.number(after, after.identity())
        if number == unknown:
            self._origins[number] = client, event
        return number, self.in_flight(sent)

    def origin(self, client: int) -> tuple[int, Event] | None:
        """The client that this one came from, and by what event; None for one that was there at the beginning."""
        return self._origins.get(client)

    def steps_of(self, client: int) -> tuple[tuple[Step, int | None], ...]:
        """What a client may do of its own accord, each with the fault that it is."""
        known = self._steps.get(client)
        if known is None:
            steps = self.clients[client].steps()
            known = tuple((step, None if step.fault is None else FAULTS.index(step.fault)) for step in steps)
            self._steps[client] = known
        return known

    def _client_moved(self, state: State, index: int, taken: _Taken) -> State:
        """The state after the client has taken an event, without messages that it ignores from now on."""
        metadata, bookies, clients, messages, budget = state
        after, sent = taken
        if after != clients[index]:
            messages = self.still_useful(bookies, self._without_ignored(index, after, messages))
            clients = replaced(clients, index, after)
        return metadata, bookies, clients, with_messages(messages, sent), budget

    def _without_ignored(self, index: int, client: int, messages: tuple[int, ...]) -> tuple[int, ...]:
        kept: list[int] = []
        finished = self.clients[client].finished
        for number in messages:
            message = self.messages[number]
            if message.client != index:
                kept.append(number)
            elif message.answer is not None:
                if not self.ignores(client, number):
                    kept.append(number)
            elif message.server != STORE and (finished or self._given_up(client, number)):
                kept += self.orphan_of(number)
            else:
                kept.append(number)
        return tuple(kept)

    def _given_up(self, client: int, request: int) -> bool:
        """Whether no answer to a request makes a difference to its client any more."""
        if not self.setting.reduced:
            return False
        known = self._probes.get(request)
        if known is None:
            message = self.messages[request]
            answers = map(message.answered, possible_answers(message.request))
            known = self._probes[request] = self.in_flight(answers)
        return all(self.ignores(client, answer) for answer in known)

    def orphan_of(self, request: int) -> tuple[int, ...]:
        """What is still on its way of a request that its client does not wait for: itself orphaned, or nothing."""
        orphan = self.messages[request].orphaned()
        return () if orphan is None else (self.messages.number(orphan),)

    def ignores(self, client: int, answer: int) -> bool:
        """Whether an answer makes no difference to a client."""
        return self.react(client, answer) == (client, ())

    def answers_sent(self, state: State, answers: tuple[int, ...]) -> State:
        """The state with these answers under way, without those that their clients ignore."""
        metadata, bookies, clients, messages, budget = state
        wanted = []
        for number in answers:
            index = self.messages[number].client
            assert index is not None, "an answer has a receiver"
            if not self.ignores(clients[index], number):
                wanted.append(number)
        return metadata, bookies, clients, with_messages(messages, wanted), budget

    def failed(self, state: State, failures: Iterable[Message]) -> State:
        """The state after clients have learnt at once that these requests failed."""
        for failure in failures:
            assert isinstance(failure.answer, Failed)
            index = failure.client
            assert index is not None, "an answer has a receiver"
            state = self._client_moved(state, index, self.react(state[2][index], self.messages.number(failure)))
        return state

    # --- for the explorer ---------------------------------------------------------------------------------------------

    def representative(self, state: State) -> State:
        return self.symmetry.representative(self.settled(state))

    def settled(self, state: State) -> State:
        """The state once all that is decided has happened (:mod:`model.engine.inevitable`)."""
        return state if self._inevitable is None else self._inevitable.settled(state)

    def violation(self, state: State) -> str | None:
        metadata, bookies, clients, _, _ = state
        lost = self._copies_lost(state)
        key = metadata, bookies, clients, lost
        if key not in self._verdicts:
            self._verdicts[key] = self._promises.broken(
                self.metadata[metadata],
                [self.bookies[number] for number in bookies],
                [self.clients[number] for number in clients],
                lost,
            )
        return self._verdicts[key]

    def _copies_lost(self, state: State) -> int:
        return self.setting.lost + sum(self._budget[fault] - state[4][fault] for fault in (WIPE, DAMAGE))

    def stuck(self, state: State) -> str | None:
        unfinished_work = (self.clients[number].unfinished_work(self.metadata[state[0]]) for number in state[2])
        return next(
            (f"I8: nothing can happen any more, and {what}" for what in unfinished_work if what is not None), None
        )

    def describe_action(self, state: State, action: Action) -> str:
        return self._describer.action(state, action)

    def describe_state(self, state: State) -> list[str]:
        return self._describer.state(state)
