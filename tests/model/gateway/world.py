"""Everything that can happen to the batches of an idempotent producer, for the explorer of tests/model/engine.

One producer sends its batches to one partition. A request may be delivered again at any time, in any order and long
after it was answered; any answer may be lost; the log's writer may refuse a batch; the leader may die at any time, with
any beginning of what it had under way in the log; it may have stored a snapshot. What decides is production code. The
promises are checked against the batches in the log, which no production code has counted.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import NamedTuple

from model.engine.explorer import BrokenPromiseError
from octavo.gateway.codes import RefusedError
from octavo.gateway.records.appends import Appends
from octavo.gateway.records.batch import BatchHeader, read_header
from octavo.gateway.records.offsets import NO_ANCHOR
from octavo.gateway.records.producers import WINDOW, Producers
from octavo.gateway.records.snapshot import (
    SnapshotHead,
    decode_producers,
    decode_snapshot,
    encode_pages,
    encode_snapshot,
)
from octavo.gateway.records.takeover import Takeover
from support.kafka.batches import batch_of

PRODUCER_ID = 7
LOG_ID = "log-1"


@dataclass(frozen=True)
class Defects:
    """What is broken on purpose: by default nothing."""

    producers: type[Producers] = Producers
    appends: type[Appends] = Appends
    keeps_what_was_refused: bool = False
    """The state changes before the log's writer has taken the batch."""
    skips_after_snapshot: int = 0
    """Entries behind a snapshot's position that a new leader does not read."""
    snapshot_has_what_is_under_way: bool = False
    goes_on_behind_what_was_handed_over: bool = False
    """A new leader's offsets follow the old leader's, not the log's."""


NO_DEFECTS = Defects()


class Stored(NamedTuple):
    """A batch in the log."""

    number: int
    """Among the producer's batches."""
    base_offset: int


class Leader:
    """The machine of a leader, as a value: it is copied before it changes."""

    def __init__(self, appends: Appends) -> None:
        self.appends = appends
        self.key = (
            appends.next_offset,
            appends.next_position,
            appends.high_watermark,
            tuple(one[:2] for one in appends.under_way),
            tuple(remembered(appends.producers)),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Leader) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def remembered(producers: Producers) -> Iterable[tuple[object, ...]]:
    """What the producers of a machine are, but for times."""
    for producer_id, producer in producers:
        yield producer_id, tuple(producer.acknowledged), tuple(producer.under_way), producers.forgotten_below


class Snapshot(NamedTuple):
    """What a leader has stored."""

    head: bytes
    pages: tuple[bytes, ...]


class State(NamedTuple):
    """One state of the world."""

    leader: Leader
    log: tuple[Stored, ...] = ()
    """What is acknowledged to the leader, or was found by a takeover."""
    sent: int = 0
    """Batches that the producer has sent at least once."""
    answers: tuple[int | None, ...] = ()
    """Of each batch the offset that the producer was told; None while it has no answer."""
    waiting: frozenset[int] = frozenset()
    """Batches of which a repeat waits for the first."""
    snapshot: Snapshot | None = None
    takeovers: int = 0
    snapshots: int = 0
    refusals: int = 0


class Batch(NamedTuple):
    """A batch that the producer sends."""

    epoch: int
    sequence: int
    record_count: int


@dataclass(frozen=True)
class ProduceWorld:
    """The model. ``epochs``: the records of each batch, epoch by epoch."""

    name: str
    epochs: tuple[tuple[int, ...], ...]
    takeovers: int = 0
    snapshots: int = 0
    refusals: int = 0
    """How often the log's writer refuses a batch."""
    in_order: bool = False
    """Requests that were not delivered yet are delivered in their order, as on one connection."""
    defects: Defects = NO_DEFECTS

    def with_defects(self, **defects: object) -> "ProduceWorld":
        """The same world, broken."""
        return replace(self, defects=replace(NO_DEFECTS, **defects))  # type: ignore[arg-type]  # passed on as it is

    @property
    def batches(self) -> list[Batch]:
        """All that the producer sends, in its order."""
        return [
            Batch(epoch, sum(counts[:at]), count)
            for epoch, counts in enumerate(self.epochs)
            for at, count in enumerate(counts)
        ]

    # --- the model ----------------------------------------------------------------------------------------------------

    def initial_states(self) -> Iterable[State]:
        appends = self.defects.appends(position=0, next_offset=0, producers=self.defects.producers())
        return [State(Leader(appends), answers=(None,) * len(self.batches))]

    def successors(self, state: State) -> Sequence[tuple[str, State]]:
        found = [*self._sends(state)]
        for number in range(state.sent):
            if not self.in_order or number == 0 or self._was_delivered(state, number - 1):
                found += self._deliveries(state, number)
        found += self._acknowledgements(state)
        if state.takeovers < self.takeovers:
            found += self._takeovers(state)
        if state.snapshots < self.snapshots:
            found.append(("the leader stores a snapshot", self._with_snapshot(state)))
        return [(action, after) for action, after in found if after != state]

    def representative(self, state: State) -> State:
        return state

    def violation(self, state: State) -> str | None:
        try:
            return self._broken_promise(state)
        except AssertionError as error:
            return f"invariant: {error}"

    def _broken_promise(self, state: State) -> str | None:
        batches, next_offset, last = self.batches, 0, None
        for stored in state.log:
            batch = batches[stored.number]
            if stored.base_offset != next_offset:
                return f"offsets: batch {stored.number} has {stored.base_offset}, not {next_offset}"
            next_offset += batch.record_count
            if batch.sequence != (
                0 if last is None or last.epoch != batch.epoch else last.sequence + last.record_count
            ):
                return f"order: batch {stored.number} is in the log behind {last}"
            if last is not None and batch.epoch < last.epoch:
                return f"epoch: batch {stored.number} is in the log behind {last}"
            last = batch
        for number, offset in enumerate(state.answers):
            if offset is not None and Stored(number, offset) not in state.log:
                return f"lost: batch {number} was answered with offset {offset}, and is not in the log"
        wrong = self._remembers_wrongly(state)
        if wrong is None:
            state.leader.appends.check_invariants()
        return wrong

    def stuck(self, state: State) -> str | None:
        return "the last batch has no answer" if state.answers[-1] is None else None

    def describe_action(self, state: State, action: str) -> str:
        return action

    def describe_state(self, state: State) -> list[str]:
        return [f"log {state.log}", f"answers {state.answers}", f"leader {state.leader.key}"]

    # --- what happens -------------------------------------------------------------------------------------------------

    def _sends(self, state: State) -> Iterable[tuple[str, State]]:
        """The producer sends its next batch. With a new epoch it leaves what was not answered before."""
        if state.sent == len(self.batches):
            return
        epoch = self.batches[state.sent].epoch
        unanswered = [n for n in range(state.sent) if state.answers[n] is None and self.batches[n].epoch == epoch]
        if not unanswered or state.sent - unanswered[0] < WINDOW:
            yield f"the producer sends batch {state.sent}", state._replace(sent=state.sent + 1)

    def _deliveries(self, state: State, number: int) -> Iterable[tuple[str, State]]:
        appends = deepcopy(state.leader.appends)
        batch = self._header(number)
        try:
            repeat = appends.judge(batch)
        except RefusedError as error:
            self._check_refusal(state, number, error)
            return
        if repeat is not None:
            if repeat.is_acknowledged:
                yield f"batch {number} is a repeat, answered", _answered(state, number, repeat.base_offset)
            else:
                yield f"batch {number} is a repeat, waits", state._replace(waiting=state.waiting | {number})
            return
        if state.refusals < self.refusals:
            if self.defects.keeps_what_was_refused:
                appends.producers.note_under_way(batch, appends.next_offset, 0)
                appends.producers.note_acknowledged(batch)
            refused = state._replace(leader=Leader(deepcopy(appends)), refusals=state.refusals + 1)
            yield f"the writer refuses batch {number}", refused
            if self.defects.keeps_what_was_refused:
                return
        appends.hand_over(batch, 0)
        yield f"batch {number} is handed over", state._replace(leader=Leader(appends))

    def _acknowledgements(self, state: State) -> Iterable[tuple[str, State]]:
        if state.leader.appends.under_way:
            appends = deepcopy(state.leader.appends)
            done = appends.acknowledge(appends.acknowledged_stop)
            number = self._number_of(done.batch)
            after = state._replace(
                leader=Leader(appends),
                log=(*state.log, Stored(number, done.base_offset)),
                waiting=state.waiting - {number},
            )
            yield f"batch {number} is acknowledged, its answer lost", after
            yield f"batch {number} is acknowledged", _answered(after, number, done.base_offset)

    def _takeovers(self, state: State) -> Iterable[tuple[str, State]]:
        """Of what was under way, any beginning is in the log."""
        under_way = state.leader.appends.under_way
        for survivors in range(len(under_way) + 1):
            found = [Stored(self._number_of(one.batch), one.base_offset) for one in under_way[:survivors]]
            log = (*state.log, *found)
            appends = self._taken_over(log, state.snapshot)
            if self.defects.goes_on_behind_what_was_handed_over:
                appends.next_offset = appends.high_watermark = state.leader.appends.next_offset
            after = state._replace(leader=Leader(appends), log=log, waiting=frozenset(), takeovers=state.takeovers + 1)
            yield f"the leader dies, {survivors} of {len(under_way)} batches under way are in the log", after

    def _with_snapshot(self, state: State) -> State:
        appends = deepcopy(state.leader.appends)
        position, next_offset = appends.acknowledged_stop, appends.high_watermark
        if self.defects.snapshot_has_what_is_under_way:
            while appends.under_way:
                appends.acknowledge(appends.acknowledged_stop)
        pages = encode_pages(appends.producers, log_id=LOG_ID, position=position)
        head = encode_snapshot(SnapshotHead(LOG_ID, 0, position, next_offset, 0, len(pages)))
        return state._replace(snapshot=Snapshot(head, tuple(pages)), snapshots=state.snapshots + 1)

    def _taken_over(self, log: tuple[Stored, ...], snapshot: Snapshot | None) -> Appends:
        producers, first, next_offset_min = self.defects.producers(), 0, 0
        if snapshot is not None:
            head = decode_snapshot(snapshot.head, LOG_ID)
            next_offset_min = head.next_offset
            if head.counts(end=len(log), term_below=0):
                producers, first = decode_producers(head, snapshot.pages), head.position
                first = min(first + self.defects.skips_after_snapshot, len(log))
        takeover = Takeover(NO_ANCHOR, producers, first_position=first, next_offset_min=next_offset_min)
        for position, stored in enumerate(log[first:], first):
            takeover.entry(position, self._header(stored.number)._replace(base_offset=stored.base_offset), 0)
        appends = takeover.begin(len(log), 0)
        return self.defects.appends(
            position=appends.next_position, next_offset=appends.next_offset, producers=appends.producers
        )

    # --- promises -----------------------------------------------------------------------------------------------------

    def _remembers_wrongly(self, state: State) -> str | None:
        """Where a leader that reads the whole log would know other producers than the leader does."""
        whole = Takeover(NO_ANCHOR, self.defects.producers(), first_position=0)
        for position, stored in enumerate(state.log):
            whole.entry(position, self._header(stored.number)._replace(base_offset=stored.base_offset), 0)
        read = {one: tuple(producer.acknowledged) for one, producer in whole.begin(len(state.log), 0).producers}
        has = {one: tuple(producer.acknowledged) for one, producer in state.leader.appends.producers}
        has = {one: batches for one, batches in has.items() if batches}
        return None if read == has else f"producers: the leader has {has}, the log {read}"

    def _check_refusal(self, state: State, number: int, error: RefusedError) -> None:
        """A producer whose batch is in the log, and that waits for its answer, must not be told that it failed."""
        batch = self.batches[number]
        is_stale = state.answers[number] is not None or self.batches[state.sent - 1].epoch > batch.epoch
        if not is_stale and any(stored.number == number for stored in state.log):
            raise BrokenPromiseError(f"refused: batch {number} is in the log, and is refused: {error}")

    # --- batches ------------------------------------------------------------------------------------------------------

    def _header(self, number: int) -> BatchHeader:
        batch = self.batches[number]
        header = read_header(
            batch_of(
                *[b"x"] * batch.record_count,
                producer_id=PRODUCER_ID,
                producer_epoch=batch.epoch,
                base_sequence=batch.sequence,
            )
        )
        assert header is not None
        return header

    def _number_of(self, header: BatchHeader) -> int:
        return self.batches.index(Batch(header.producer_epoch, header.base_sequence, header.record_count))

    def _was_delivered(self, state: State, number: int) -> bool:
        under_way = {self._number_of(one.batch) for one in state.leader.appends.under_way}
        return number in under_way or any(stored.number == number for stored in state.log)


def _answered(state: State, number: int, base_offset: int) -> State:
    return state._replace(answers=(*state.answers[:number], base_offset, *state.answers[number + 1 :]))
