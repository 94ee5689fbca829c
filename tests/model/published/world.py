"""The model of unbounded ledgers as they were published (:mod:`model.published.machines`), for the explorer.

Any client may take over at any moment, and each does so at most once. Requests may arrive at any time or never. Between
one client and one bookie adds arrive in the order of their ids, but for those that are *lost*: the client sees a
timeout. A *repeated* request goes out a second time on another connection, and either of the two may be the later one.
A bookie that *hangs* takes nothing. Bookies lose nothing, and metadata answer at once.

What must hold, in every state:

* *an acknowledged entry is kept*: AQ bookies of its ensemble hold it, and no later term has another one at its id;
* *no log divergence, no dirty read*: a bookie of an entry's ensemble serves ids up to its LAC, as the specification
  demands of it; what it serves must be what was acknowledged;
* *guaranteed write quorum*: what a client takes for fully replicated is on every bookie of its ensemble;
* *progress*: where nothing can happen any more, the client of the current term has opened it, and nothing is pending.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from model.published.machines import (
    ACK_QUORUM,
    ENSEMBLE_SIZE,
    Bookie,
    Client,
    Fragment,
    Ledger,
    Message,
    Rules,
    add_message,
    add_next,
    answered,
    ensemble_changed,
    is_pinned,
    may_open,
    members,
    start_term,
    taken,
)

type Action = tuple[str, Message | int, int, int]
"""What happens: its kind; a message or a client; and, for changes, the old and the new bookie."""


class World(NamedTuple):
    """One state."""

    ledger: Ledger
    bookies: tuple[Bookie, ...]
    clients: tuple[Client, ...]
    messages: tuple[Message, ...]
    committed: tuple[str | None, ...] = ()
    """By entry id: the value that was acknowledged, or that a client has opened its term with."""
    broken: str | None = None
    losses: int = 0
    """The number of adds that may still be lost."""
    repeats: int = 0


@dataclass(frozen=True)
class Published:
    """One setting. Client 1 has opened term 1 on the first three bookies."""

    name: str
    rules: Rules
    values: tuple[tuple[str, ...], ...]
    """What each client writes."""
    spares: int = 0
    losses: int = 0
    repeats: int = 0
    hung: int = 0
    """The number of the first bookies, which hang."""
    left_behind: tuple[tuple[int, ...], ...] | None = None
    """Client 1 is dead: for each of its values, the bookies that have it. None: it is alive."""
    left_lafr: int = -1
    """What the dead client's last add has told of LAC and LAFR."""

    # --- the model ----------------------------------------------------------------------------------------------------

    def initial_states(self) -> Iterable[World]:
        """The one state to start from."""
        ledger = Ledger(True, 1, 1, (Fragment(0, (1 << ENSEMBLE_SIZE) - 1),))
        bookies = [Bookie() for _ in range(ENSEMBLE_SIZE + self.spares)]
        first = Client("OPEN", 1, 1, ledger.fragments, values=self.values[0])
        if self.left_behind is not None:
            first = Client("WITHDRAWN", 1)
            for entry, holders in enumerate(self.left_behind):
                told = self.left_lafr if entry == len(self.left_behind) - 1 else -1
                for at in holders:
                    add = Message("add", 0, at, 1, entry, self.values[0][entry], told, told)
                    bookies[at], _ = taken(self.rules, bookies[at], add)
        clients = (first, *(Client(values=values) for values in self.values[1:]))
        committed = self.values[0][: self.left_lafr + 1]
        yield World(ledger, tuple(bookies), clients, (), committed, None, self.losses, self.repeats)

    def successors(self, state: World) -> Sequence[tuple[Action, World]]:
        """Everything that can happen."""
        found: list[tuple[Action, World]] = []
        for message in state.messages:
            if self._is_next(state, message):
                found.append((("take", message, 0, 0), self._take(state, message)))
            if message.kind == "add" and state.losses and self._is_awaited(state, message):
                found.append((("lose", message, 0, 0), _lose(state, message)))
            if (message.truncate or message.kind == "join") and state.repeats and not message.connection:
                copy = message._replace(connection=1)
                found.append((("repeat", message, 0, 0), _sent(state._replace(repeats=state.repeats - 1), [copy])))
        for index in range(len(state.clients)):
            found += self._steps(state, index)
        return found

    def _steps(self, state: World, index: int) -> Iterable[tuple[Action, World]]:
        client, ledger = state.clients[index], state.ledger
        if client.status == "WAITING":
            raised = ledger._replace(is_open=False, term=ledger.term + 1, version=ledger.version + 1)
            started = start_term(index, client._replace(version=raised.version), raised)
            yield ("start", index, 0, 0), self._moved(state._replace(ledger=raised), index, *started)
        if may_open(self.rules, client) and ledger.version == client.version:
            yield ("open", index, 0, 0), _opened(state, index)
        if client.status == "OPEN" and client.values and not any(client.joining):
            yield ("add", index, 0, 0), self._moved(state, index, *add_next(self.rules, index, client))
        if client.timed_out:
            yield from self._changes(state, index)

    def _changes(self, state: World, index: int) -> Iterable[tuple[Action, World]]:
        client, ledger = state.clients[index], state.ledger
        spares = [
            at for at in range(self.hung, len(state.bookies)) if not (client.ensemble | client.timed_out) >> at & 1
        ]
        for old in members(client.timed_out & client.ensemble):
            pinned = is_pinned(client, old)
            if self.rules.retries and (pinned or not spares):
                again = [
                    add_message(self.rules, index, client, add, old)
                    for add in client.pending
                    if not client.confirmed[add.entry] >> old & 1
                ]
                patient = client._replace(timed_out=client.timed_out & ~(1 << old), joining=(0, 0, 0))
                yield ("retry", index, old, 0), self._moved(state, index, patient, again)
            if pinned or not client.pending or (not client.in_recovery and client.version != ledger.version):
                continue
            for new in spares:
                if client.in_recovery or not self.rules.joins or client.joining == (1 << old, 1 << new, 1):
                    yield ("change", index, old, new), self._change(state, index, old, new)
                elif not any(client.joining):
                    asked = client._replace(joining=(1 << old, 1 << new, 0))
                    join = Message("join", index, new, client.term, client.lafr + 1, version=client.version)
                    yield ("join", index, old, new), self._moved(state, index, asked, [join])

    def _change(self, state: World, index: int, old: int, new: int) -> World:
        client, ledger = state.clients[index], state.ledger
        version = client.version if client.in_recovery else ledger.version + 1
        client, sent = ensemble_changed(self.rules, index, client, (old, new), version)
        if not client.in_recovery:
            state = state._replace(ledger=ledger._replace(version=version, fragments=client.fragments))
        return self._moved(state, index, client, sent)

    def _is_next(self, state: World, message: Message) -> bool:
        if message.bookie < self.hung:
            return False
        return message.kind != "add" or not any(
            other.kind == "add"
            and other[1:3] == message[1:3]
            and other.connection == message.connection
            and other.entry < message.entry
            for other in state.messages
        )

    def _is_awaited(self, state: World, message: Message) -> bool:
        client = state.clients[message.client]
        return (
            client.status != "WITHDRAWN"
            and bool(client.ensemble >> message.bookie & 1)
            and message.entry > client.lafr
            and not client.confirmed[message.entry] >> message.bookie & 1
            and not client.timed_out >> message.bookie & 1
        )

    def _take(self, state: World, message: Message) -> World:
        at, index = message.bookie, message.client
        reply = taken(self.rules, state.bookies[at], message)
        state = state._replace(
            bookies=(*state.bookies[:at], reply.bookie, *state.bookies[at + 1 :]),
            messages=tuple(one for one in state.messages if one != message),
        )
        before = state.clients[index]
        if before.status == "WITHDRAWN":
            return state
        client, sent = answered(self.rules, index, before, message, reply)
        if client.status == "OPEN":
            state = _committed(state, client, before.lac, client.lac)
        return self._moved(state, index, client, sent)

    def _moved(self, state: World, index: int, client: Client, sent: list[Message]) -> World:
        clients = (*state.clients[:index], client, *state.clients[index + 1 :])
        return _sent(state._replace(clients=clients), sent)

    def representative(self, state: World) -> World:
        """The state without requests that do nothing any more, and with the bookies in an order of what is known of
        each: every part of a state is about one bookie at a time, so those of equal rank are equal."""
        state = _without_past(state)
        state = state._replace(messages=tuple(one for one in state.messages if _matters(state, one)))
        count = len(state.bookies)
        order = sorted(range(count), key=lambda at: (at >= self.hung, _of_one(state, at)))
        return state if order == list(range(count)) else _renamed(state, order)

    # --- what must hold -----------------------------------------------------------------------------------------------

    def violation(self, state: World) -> str | None:
        """The first promise that does not hold."""
        return state.broken or _kept(state) or _served(state) or _fully_replicated(state)

    def stuck(self, state: World) -> str | None:
        """What the client of the current term waits for."""
        for index, client in enumerate(state.clients):
            if client.status in ("WAITING", "WITHDRAWN") or client.term != state.ledger.term:
                continue
            if client.in_recovery:
                has = "everything has reached WQ" if _all_confirmed(client) else "the no-op has not reached WQ"
                return f"no progress: {has}, and c{index + 1} cannot open term {client.term}"
            if client.pending:
                return f"no progress: entry {client.pending[0].entry} of c{index + 1} never reaches WQ"
        return None

    def describe_action(self, state: World, action: Action) -> str:
        """One line for a trace."""
        from model.published.words import action_text  # noqa: PLC0415 - it describes this module's states

        return action_text(self.rules, state, action)

    def describe_state(self, state: World) -> list[str]:
        """Some lines for a trace."""
        from model.published.words import state_lines  # noqa: PLC0415

        return state_lines(self, state)


def _sent(state: World, sent: Iterable[Message]) -> World:
    return state._replace(messages=tuple(sorted({*state.messages, *sent})))


def _lose(state: World, message: Message) -> World:
    client = state.clients[message.client]
    client = client._replace(timed_out=client.timed_out | 1 << message.bookie)
    return state._replace(
        clients=(*state.clients[: message.client], client, *state.clients[message.client + 1 :]),
        messages=tuple(one for one in state.messages if one != message),
        losses=state.losses - 1,
    )


def _opened(state: World, index: int) -> World:
    """The client's compare-and-set has opened its term: its fragments stand, and what it has written back is final."""
    client, ledger = state.clients[index], state.ledger
    client = client._replace(status="OPEN", version=ledger.version + 1, recovery_lac=-1, recovery_lafr=-1)
    ledger = ledger._replace(is_open=True, version=client.version, fragments=client.fragments)
    state = _committed(state, client, -1, client.lap)
    return state._replace(ledger=ledger, clients=(*state.clients[:index], client, *state.clients[index + 1 :]))


def _committed(state: World, client: Client, after: int, last: int) -> World:
    """What the client has pushed above ``after``, up to ``last``, is acknowledged."""
    committed, broken = list(state.committed), state.broken
    for entry, value in client.pushed:
        if after < entry <= last:
            committed += [None] * (entry + 1 - len(committed))
            known = committed[entry]
            if known not in (None, value):
                broken = f"acknowledged entry lost: entry {entry} was {known}; in term {client.term} it is {value}"
            committed[entry] = value
    return state._replace(committed=tuple(committed), broken=broken)


def _without_past(state: World) -> World:
    """The state without what no request will ask for any more: terms of bookies below all that can still come, and who
    has confirmed what the LAFR has passed."""
    live = [client.term for client in state.clients if client.status not in ("WAITING", "WITHDRAWN")]
    least = min([state.ledger.term + 1, *live, *(message.term for message in state.messages)])
    bookies = tuple(
        bookie._replace(
            term=max(bookie.term, least),
            truncated_in=bookie.truncated_in if bookie.truncated_in >= least else 0,
            joined_for=bookie.joined_for if bookie.joined_for[0] >= least else (0, 0),
        )
        for bookie in state.bookies
    )
    clients = tuple(
        client._replace(confirmed=tuple(mask if at > client.lafr else 0 for at, mask in enumerate(client.confirmed)))
        for client in state.clients
    )
    return state._replace(bookies=bookies, clients=clients)


def _matters(state: World, message: Message) -> bool:
    bookie, client = state.bookies[message.bookie], state.clients[message.client]
    gone = client.status == "WITHDRAWN"
    if message.term != bookie.term or message.kind in ("add", "join"):
        return message.term >= bookie.term if gone else True
    if message.kind == "fence":
        return client.status == "FENCING"
    return client.status == "READING" and message.entry == client.lap + 1


def _of_one(state: World, at: int) -> tuple[object, ...]:
    """All that a state says of one bookie."""
    return (
        state.bookies[at],
        [part.ensemble >> at & 1 for part in state.ledger.fragments],
        [
            (
                [part.ensemble >> at & 1 for part in client.fragments],
                [mask >> at & 1 for mask in (client.recovery_ensemble, client.answered, client.timed_out)],
                [mask >> at & 1 for mask in (*client.joining[:2], *client.confirmed)],
            )
            for client in state.clients
        ],
        [message._replace(bookie=0) for message in state.messages if message.bookie == at],
    )


def _renamed(state: World, order: Sequence[int]) -> World:
    def mask(old: int) -> int:
        return sum(1 << new for new, at in enumerate(order) if old >> at & 1)

    def fragments(parts: Iterable[Fragment]) -> tuple[Fragment, ...]:
        return tuple(Fragment(part.first, mask(part.ensemble)) for part in parts)

    clients = tuple(
        client._replace(
            fragments=fragments(client.fragments),
            recovery_ensemble=mask(client.recovery_ensemble),
            answered=mask(client.answered),
            timed_out=mask(client.timed_out),
            confirmed=tuple(map(mask, client.confirmed)),
            joining=(mask(client.joining[0]), mask(client.joining[1]), client.joining[2]),
        )
        for client in state.clients
    )
    places = {at: new for new, at in enumerate(order)}
    return state._replace(
        ledger=state.ledger._replace(fragments=fragments(state.ledger.fragments)),
        bookies=tuple(state.bookies[at] for at in order),
        clients=clients,
        messages=tuple(sorted(message._replace(bookie=places[message.bookie]) for message in state.messages)),
    )


def _ensemble(fragments: Sequence[Fragment], entry: int) -> list[int]:
    return members(next(part.ensemble for part in reversed(fragments) if part.first <= entry))


def _count(bookies: Sequence[int]) -> str:
    """How many; not which ones, which the representative of a state names otherwise than the trace."""
    return f"{len(bookies)} {'bookie' if len(bookies) == 1 else 'bookies'}"


def _kept(state: World) -> str | None:
    for entry, value in enumerate(state.committed):
        ensemble = _ensemble(state.ledger.fragments, entry)
        holders = [at for at in ensemble if state.bookies[at].value(entry) == value]
        if value is not None and len(holders) < ACK_QUORUM:
            return f"acknowledged entry lost: entry {entry} ({value}) is on {_count(holders)} of its ensemble"
    return None


def _served(state: World) -> str | None:
    for at, bookie in enumerate(state.bookies):
        for entry, value in bookie.entries:
            if entry > bookie.lac or at not in _ensemble(state.ledger.fragments, entry):
                continue
            known = state.committed[entry] if entry < len(state.committed) else None
            ensemble = _ensemble(state.ledger.fragments, entry)
            holders = [other for other in ensemble if state.bookies[other].value(entry) == value]
            if known is None and len(holders) < ACK_QUORUM:
                return f"dirty read: a bookie serves {value} as entry {entry}; {_count(holders)} of its ensemble has it"
            if value != (known or value):
                return f"log divergence: a bookie serves {value} as entry {entry}, which is {known}"
    return None


def _fully_replicated(state: World) -> str | None:
    for index, client in enumerate(state.clients):
        for entry, value in client.pushed:
            if entry > client.lafr:
                continue
            ensemble = _ensemble(client.fragments, entry)
            holders = [at for at in ensemble if state.bookies[at].value(entry) == value]
            if len(holders) < len(ensemble):
                where = f"entry {entry} is on {_count(holders)}"
                return f"write quorum not guaranteed: c{index + 1} has LAFR {client.lafr}; {where}"
    return None


def _all_confirmed(client: Client) -> bool:
    return all(client.confirmed[add.entry] & client.ensemble == client.ensemble for add in client.pending)
