"""A model of a log: candidates and leaders around the real list and the real steps to leadership.

What is real: :class:`~octavo.client.log.chain.leader_steps.LeaderSteps`, every change of the list, the list itself.
What is the smallest thing that can be: a ledger is a sequence of entries that can be fenced, appended to and closed; a
recovery closes it, in one step, at any end that has everything acknowledged. What is specified here: how a leader
sends, rolls and heals (``client/log/writer/writer.py`` in words). Any step of any client may come at any time, so a
client that stands still is one whose next step comes late. Answers of changes may be lost.

Promises: rules P1, P2 and P5 (each acknowledged entry at its position, once; a prefix of what each leader sent), L2 (at
most one segment besides the newest is open), L3 (no listed ledger is deleted).
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from octavo.client.log.chain.changes import AppendSegment, BeginSegment, LogChange
from octavo.client.log.chain.leader_steps import (
    Allocate,
    Change,
    Create,
    Delete,
    Lead,
    LeaderSteps,
    ReadList,
    Recover,
    Stop,
)
from octavo.client.log.documents.chain import LogDocument, SegmentEnd
from octavo.client.log.documents.effects import WriteDocument
from octavo.metadata.ledger.decisions import Refuse
from octavo.protocol.errors import MetadataUnavailableError
from octavo.protocol.ids import LedgerId
from support.metadata.log_documents import empty_log

type Entry = tuple[int, int]
"""Which client added it, and as its how manieth."""


@dataclass(frozen=True)
class Ledger:
    """What bookies and metadata know of one ledger."""

    ledger_id: LedgerId
    entries: tuple[Entry, ...] = ()
    """What a quorum has, acknowledged or not."""
    acknowledged: int = 0
    """The number of them that have been acknowledged to the writer."""
    closed: bool = False
    deleted: bool = False


@dataclass(frozen=True)
class Roll:
    """A roll under way: the next segment, and how far it has got."""

    stage: str
    ledger_id: LedgerId


@dataclass(frozen=True)
class Writer:
    """A leader."""

    owner: str
    term: int
    ledger_id: LedgerId
    base: int
    """Position of the segment's first entry."""
    pending: tuple[tuple[int, int], ...] = ()
    """Adds that are not acknowledged, in order: position and number."""
    in_flight: int = 0
    """The number of pending ones, the first, that have been handed to the segment."""
    sent: int = 0
    """Adds that were ever sent."""
    previous: LedgerId | None = None
    """The segment before, while it is not closed."""
    ends: tuple[tuple[LedgerId, SegmentEnd], ...] = ()
    """Ends of segments before that the list does not have yet."""
    roll: Roll | None = None
    healing: bool = False


class Steps:
    """The real machine as a value."""

    def __init__(self, machine: LeaderSteps) -> None:
        self.machine = machine

    @cached_property
    def _key(self) -> tuple[object, ...]:
        machine = self.machine
        document = getattr(machine, "_document")  # noqa: B009 - the machine's state, to be compared
        return (
            machine.stage,
            machine.owner,
            machine.attempts,
            machine.ledger_id,
            None if document is None else document.encode(),
            tuple(sorted(machine.ends.items())),
            type(getattr(machine, "_failure")),  # noqa: B009
            getattr(machine, "_restart"),  # noqa: B009
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Steps) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class List:
    """The list of segments as a value."""

    def __init__(self, document: LogDocument) -> None:
        self.document = document

    @cached_property
    def _key(self) -> bytes:
        return self.document.encode()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, List) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@dataclass(frozen=True)
class Client:
    """A candidate while it has steps, a leader while it has a writer, done when it has neither."""

    steps: Steps | None
    writer: Writer | None
    adds_left: int
    rolls_left: int
    takeovers: int


@dataclass(frozen=True)
class State:
    """Everything."""

    document: List
    ledgers: tuple[Ledger, ...]
    clients: tuple[Client, ...]
    lost_answers: int
    """The number that may still be lost."""
    failures: int
    """So often a segment may still fail without a rival."""
    acknowledged: frozenset[tuple[int, Entry]] = frozenset()
    """Positions and entries that callers were told."""


type Action = tuple[str, int]


@dataclass
class LogModel:
    """See the module."""

    clients: int = 2
    adds: int = 1
    rolls: int = 0
    lost_answers: int = 0
    failures: int = 0
    broken: str = ""
    """A rule that is broken on purpose."""

    def initial_states(self) -> Iterable[State]:
        """An empty log, and clients that want to lead it."""
        clients = tuple(
            Client(Steps(LeaderSteps(f"c{number}", 0, attempts_max=2)), None, self.adds, self.rolls, 1)
            for number in range(self.clients)
        )
        yield State(List(empty_log()), (), clients, self.lost_answers, self.failures)

    def representative(self, state: State) -> State:
        """Clients are alike but for their names, which stand in the list: states are taken as they are."""
        return state

    def stuck(self, state: State) -> str | None:
        """A client that neither leads nor gave up."""
        for number, client in enumerate(state.clients):
            if client.steps is not None:
                return f"c{number} does not get on: {client.steps.machine.stage.value}"
        return None

    # --- what can happen ----------------------------------------------------------------------------------------------

    def successors(self, state: State) -> Sequence[tuple[Action, State]]:
        """Every next step of every client, with and without a lost answer."""
        found: list[tuple[Action, State]] = []
        for number, client in enumerate(state.clients):
            if client.steps is not None:
                found += self._step(state, number, client, client.steps.machine)
            if client.writer is not None:
                found += self._write(state, number, client, client.writer)
        return found

    def _step(self, state: State, number: int, client: Client, before: LeaderSteps) -> list[tuple[Action, State]]:
        effect = before.effect
        machine = copy.copy(before)
        name = type(effect).__name__
        match effect:
            case ReadList():
                machine.on_list(state.document.document)
            case Allocate():
                machine.on_allocated(LedgerId(len(state.ledgers)))
                ledgers = (*state.ledgers, Ledger(LedgerId(len(state.ledgers)), deleted=True))
                state = replace(state, ledgers=ledgers)
            case Change(change):
                return self._change_step(state, number, client, machine, change)
            case Recover(segments):
                return self._recover_step(state, number, client, machine, [s.ledger_id for s in segments])
            case Create(ledger_id):
                state = _with_ledger(state, replace(state.ledgers[ledger_id], deleted=False))
                machine.on_done()
            case Delete(ledger_id):
                state = _with_ledger(state, replace(state.ledgers[ledger_id], deleted=True))
                machine.on_done()
            case Lead(segment):
                writer = Writer(machine.owner, segment.term, segment.ledger_id, segment.first_position or 0)
                if client.writer is not None:
                    state = self._healed(state, number, client.writer, segment.first_position or 0)
                    client = state.clients[number]
                    assert client.writer is not None, "a healing leader"
                    pending = client.writer.pending
                    writer = replace(writer, pending=pending, sent=client.writer.sent)
                return [((name, number), _with_client(state, number, replace(client, steps=None, writer=writer)))]
            case Stop():
                return [((name, number), _with_client(state, number, replace(client, steps=None, writer=None)))]
        return [((name, number), _with_client(state, number, replace(client, steps=Steps(machine))))]

    def _change_step(
        self, state: State, number: int, client: Client, machine: LeaderSteps, change: LogChange
    ) -> list[tuple[Action, State]]:
        name = type(change).__name__
        if self.broken == "serve before the compare-and-set" and isinstance(change, AppendSegment):
            known = state.document.document.with_ends(change.ends).known_stop
            early = Writer(machine.owner, change.term, change.ledger_id, known)
            return [(("leads early", number), _with_client(state, number, replace(client, steps=None, writer=early)))]
        if self.broken == "compare-and-set without the version" and isinstance(change, AppendSegment | BeginSegment):
            newest = state.document.document.newest
            change = replace(change, base=None if newest is None else newest.ledger_id)
        decision = change.decide(state.document.document)
        found: list[tuple[Action, State]] = []
        if isinstance(decision, Refuse):
            machine.on_failed(decision.error)
            return [((f"{name} refused", number), _with_client(state, number, replace(client, steps=Steps(machine))))]
        after = replace(state, document=List(decision.document)) if isinstance(decision, WriteDocument) else state
        if state.lost_answers:
            lost = copy.copy(machine)
            lost.on_failed(MetadataUnavailableError("lost"))
            if self.broken == "delete after a lost answer" and isinstance(change, AppendSegment):
                lost.on_changed(_without(after.document.document, lost.ledger_id))
            fewer = replace(after, lost_answers=state.lost_answers - 1)
            found.append(
                ((f"{name}, its answer lost", number), _with_client(fewer, number, replace(client, steps=Steps(lost))))
            )
        answered = copy.copy(machine)
        answered.on_changed(after.document.document)
        found.append(((name, number), _with_client(after, number, replace(client, steps=Steps(answered)))))
        return found

    def _recover_step(
        self, state: State, number: int, client: Client, machine: LeaderSteps, ledger_ids: list[LedgerId]
    ) -> list[tuple[Action, State]]:
        """All the ledgers are closed, each at any end that has what was acknowledged."""
        states = [state]
        recovered = ledger_ids[-1:] if self.broken == "fence only the last ledger" else ledger_ids
        for ledger_id in recovered:
            states = [closed for one in states for closed in _closings(one, ledger_id)]
        found: list[tuple[Action, State]] = []
        for after in states:
            moved = copy.copy(machine)
            ends = {one: SegmentEnd(len(after.ledgers[one].entries), 0, 0) for one in ledger_ids}
            moved.on_recovered(ends)
            found.append((("Recover", number), _with_client(after, number, replace(client, steps=Steps(moved)))))
        return found

    # --- a leader -----------------------------------------------------------------------------------------------------

    def _write(self, state: State, number: int, client: Client, writer: Writer) -> list[tuple[Action, State]]:
        if writer.healing:
            return []
        found: list[tuple[Action, State]] = []
        ledger = state.ledgers[writer.ledger_id]
        holds = writer.roll is not None and writer.roll.stage == "drain"
        if client.adds_left and (not holds or self.broken == "send before the predecessor is acknowledged"):
            position = writer.base + len(ledger.entries[: ledger.acknowledged]) + len(writer.pending)
            added = replace(writer, pending=(*writer.pending, (position, writer.sent)), sent=writer.sent + 1)
            after = _with_client(state, number, replace(client, writer=added, adds_left=client.adds_left - 1))
            found.append((("adds", number), after))
        if writer.in_flight < len(writer.pending) and (not holds):
            found += self._send(state, number, client, writer, ledger)
        if ledger.acknowledged < len(ledger.entries) and not ledger.closed and writer.in_flight:
            found.append((("is told of an acknowledgement", number), self._acknowledge(state, number, writer, ledger)))
        if ledger.closed or ledger.deleted or (state.failures and (writer.pending or writer.roll)):
            found.append((("its segment fails", number), self._fail(state, number, client, writer, ledger)))
        found += self._roll(state, number, client, writer)
        return found

    def _send(
        self, state: State, number: int, client: Client, writer: Writer, ledger: Ledger
    ) -> list[tuple[Action, State]]:
        """The next pending add reaches a quorum, unless the ledger is closed to it."""
        if ledger.closed or ledger.deleted:
            return []
        _, sequence = writer.pending[writer.in_flight]
        stored = replace(ledger, entries=(*ledger.entries, (number, sequence)))
        sent = replace(client, writer=replace(writer, in_flight=writer.in_flight + 1))
        return [(("sends", number), _with_client(_with_ledger(state, stored), number, sent))]

    def _acknowledge(self, state: State, number: int, writer: Writer, ledger: Ledger) -> State:
        (position, sequence), *rest = writer.pending
        entry = ledger.entries[ledger.acknowledged]
        after = _with_ledger(state, replace(ledger, acknowledged=ledger.acknowledged + 1))
        after = replace(after, acknowledged=after.acknowledged | {(position, (number, sequence))})
        assert entry == (number, sequence), "a segment acknowledges in order"
        told = replace(writer, pending=tuple(rest), in_flight=writer.in_flight - 1)
        return _with_client(after, number, replace(after.clients[number], writer=told))

    def _fail(self, state: State, number: int, client: Client, writer: Writer, ledger: Ledger) -> State:
        """The leader takes over from itself (rule P5); a rival's segment in the list ends it there."""
        spontaneous = not (ledger.closed or ledger.deleted)
        steps = Steps(LeaderSteps(writer.owner, 0, healing=True, attempts_max=2))
        healing = replace(writer, healing=True, roll=None)
        after = replace(state, failures=state.failures - spontaneous)
        return _with_client(after, number, replace(client, steps=steps, writer=healing))

    def _healed(self, state: State, number: int, writer: Writer, stop: int) -> State:
        """What the recovered end covers has happened; the rest is sent again, at the positions that it had."""
        kept = tuple(add for add in writer.pending if add[0] >= stop)
        settled = {(position, (number, sequence)) for position, sequence in writer.pending if position < stop}
        after = replace(state, acknowledged=state.acknowledged | settled)
        if self.broken == "send everything again":
            kept = writer.pending
        healed = replace(writer, pending=kept, in_flight=0)
        return _with_client(after, number, replace(after.clients[number], writer=healed))

    # --- rolling ------------------------------------------------------------------------------------------------------

    def _roll(self, state: State, number: int, client: Client, writer: Writer) -> list[tuple[Action, State]]:
        found: list[tuple[Action, State]] = []
        roll = writer.roll
        if writer.previous is not None:
            # Everything of it is acknowledged; the leader closes it in the background.
            previous = state.ledgers[writer.previous]
            ends = ((writer.previous, SegmentEnd(len(previous.entries), 0, 0)),)
            closed = replace(writer, previous=None, ends=ends)
            after = _with_ledger(state, replace(previous, closed=True))
            found.append((("closes the segment before", number), _with_writer(after, number, closed)))
        if roll is None:
            if (
                client.rolls_left
                and writer.previous is None
                and (writer.pending or state.ledgers[writer.ledger_id].entries)
            ):
                ledger_id = LedgerId(len(state.ledgers))
                after = replace(state, ledgers=(*state.ledgers, Ledger(ledger_id, deleted=True)))
                begun = replace(
                    client, rolls_left=client.rolls_left - 1, writer=replace(writer, roll=Roll("begin", ledger_id))
                )
                found.append((("begins to roll", number), _with_client(after, number, begun)))
            return found
        change: LogChange
        match roll.stage:
            case "begin":
                change = BeginSegment(roll.ledger_id, writer.owner, writer.ledger_id)
                found += self._roll_change(state, number, writer, change, replace(roll, stage="create"))
            case "create":
                after = _with_ledger(state, replace(state.ledgers[roll.ledger_id], deleted=False))
                found.append(
                    (
                        ("creates", number),
                        _with_writer(after, number, replace(writer, roll=replace(roll, stage="append"))),
                    )
                )
            case "append":
                change = AppendSegment(
                    roll.ledger_id, writer.owner, writer.term, 0, writer.ledger_id, dict(writer.ends), is_takeover=False
                )
                found += self._roll_change(state, number, writer, change, replace(roll, stage="drain"))
            case "drain":
                if not writer.in_flight or self.broken == "send before the predecessor is acknowledged":
                    ledger = state.ledgers[writer.ledger_id]
                    base = writer.base + len(ledger.entries)
                    switched = replace(
                        writer, ledger_id=roll.ledger_id, base=base, previous=writer.ledger_id, ends=(), roll=None
                    )
                    if self.broken == "send before the predecessor is acknowledged":
                        switched = replace(switched, in_flight=0, pending=writer.pending[writer.in_flight :])
                    found.append((("switches", number), _with_writer(state, number, switched)))
        return found

    def _roll_change(
        self, state: State, number: int, writer: Writer, change: LogChange, following: Roll
    ) -> list[tuple[Action, State]]:
        decision = change.decide(state.document.document)
        name = f"rolls: {type(change).__name__}"
        if isinstance(decision, Refuse):
            ended = replace(state.clients[number], writer=None)
            return [((f"{name} refused", number), _with_client(state, number, ended))]
        after = replace(state, document=List(decision.document)) if isinstance(decision, WriteDocument) else state
        return [((name, number), _with_writer(after, number, replace(writer, roll=following)))]

    # --- promises -----------------------------------------------------------------------------------------------------

    def violation(self, state: State) -> str | None:
        """Which promise does not hold."""
        document = state.document.document
        listed = [state.ledgers[segment.ledger_id] for segment in document.segments]
        for ledger in listed:
            if ledger.deleted:
                return f"rule L3: ledger {ledger.ledger_id} is listed and does not exist"
        if sum(not ledger.closed for ledger in listed[:-1]) > 1:
            return "rule L2: two segments before the newest are open"
        content = [entry for ledger in listed for entry in ledger.entries]
        for position, entry in state.acknowledged:
            if position >= len(content) or content[position] != entry:
                found = content[position] if position < len(content) else "nothing"
                return f"rule P1: {entry} was acknowledged at position {position}, where the log has {found}"
        for number in range(len(state.clients)):
            mine = [sequence for owner, sequence in content if owner == number]
            if mine != list(range(len(mine))):
                return f"rule P2: of the adds of c{number} the log holds {mine}"
        return None

    # --- telling ------------------------------------------------------------------------------------------------------

    def describe_action(self, state: State, action: Action) -> str:
        """One line."""
        del state
        return f"c{action[1]}: {action[0]}"

    def describe_state(self, state: State) -> list[str]:
        """The list and the ledgers."""
        document = state.document.document
        lines = ["list: " + ", ".join(f"{s.ledger_id} (term {s.term})" for s in document.segments)]
        lines += [
            f"ledger {ledger.ledger_id}: {list(ledger.entries)}{' closed' if ledger.closed else ''}"
            for ledger in state.ledgers
            if not ledger.deleted
        ]
        return lines


def _closings(state: State, ledger_id: LedgerId) -> list[State]:
    ledger = state.ledgers[ledger_id]
    if ledger.closed:
        return [state]
    return [
        _with_ledger(state, replace(ledger, closed=True, entries=ledger.entries[:end]))
        for end in range(ledger.acknowledged, len(ledger.entries) + 1)
    ]


def _with_ledger(state: State, ledger: Ledger) -> State:
    ledgers = list(state.ledgers)
    ledgers[ledger.ledger_id] = ledger
    return replace(state, ledgers=tuple(ledgers))


def _with_client(state: State, number: int, client: Client) -> State:
    clients = list(state.clients)
    clients[number] = client
    return replace(state, clients=tuple(clients))


def _with_writer(state: State, number: int, writer: Writer) -> State:
    return _with_client(state, number, replace(state.clients[number], writer=writer))


def _without(document: LogDocument, ledger_id: LedgerId | None) -> LogDocument:
    """The list as a client sees it that does not look whether its ledger is listed."""
    return replace(document, segments=tuple(s for s in document.segments if s.ledger_id != ledger_id))
