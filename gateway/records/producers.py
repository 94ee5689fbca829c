"""The idempotent producers of a partition: what each has sent last, and whether a batch is a repeat. Pure.

A producer numbers its records per partition. A batch carries the producer's id and epoch, and the number of its first
record, its *sequence*. A producer that got no answer sends the same batch again; what the partition remembers of it
tells that repeat from a new batch (rule K4).

Of each producer the partition remembers the batches *under way*, which were handed over and may still be lost with the
lead, and the last :data:`WINDOW` that are *acknowledged*. A batch is compared with them:

======================================================  ==============================================================
the batch                                               then
======================================================  ==============================================================
has a lower epoch than the producer's last batch        INVALID_PRODUCER_EPOCH
has the epoch and the sequences of a remembered batch   a repeat: it is answered as that one is, once it is acknowledged
begins where the producer's last batch ends             the next batch
has a higher epoch and the sequence 0                   the next batch
is the first of a producer that cannot be forgotten,    the next batch
and has the sequence 0
is of a producer that may have been forgotten           the next batch, whatever its sequence
anything else                                           OUT_OF_ORDER_SEQUENCE_NUMBER
======================================================  ==============================================================

Ids of producers rise, so *forgotten* is one number: producers with ids below it may have been forgotten. Producers are
forgotten when they have been idle for a day, and the one idle longest when there are too many; one with a batch under
way is not (rule K5).

The state is that of exactly the batches that were noted: each one as it was handed over, and each one of the log when a
leader begins. What is *acknowledged* of it goes into snapshots (:mod:`octavo.gateway.records.snapshot`).
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.records.batch import BatchHeader

WINDOW: Final = 5
"""Acknowledged batches that are remembered of a producer: clients have at most five unanswered (`max.in.flight`)."""

PRODUCERS_MAX: Final = 10_000
"""Producers that a partition remembers. Java's are idempotent by default, so each short-lived process is one."""

IDLE_MS_MAX: Final = 24 * 3600 * 1000
"""A producer that sends nothing for a day is forgotten."""

SEQUENCES: Final = 2**31
"""Sequences go from 0 to this - 1, and begin again at 0."""


class Remembered(NamedTuple):
    """A batch of a producer."""

    epoch: int
    sequence: int
    """Of its first record."""
    record_count: int
    base_offset: int

    @property
    def next_sequence(self) -> int:
        """The sequence of the record behind its last."""
        return (self.sequence + self.record_count) % SEQUENCES


class Repeat(NamedTuple):
    """A batch that the partition has already."""

    base_offset: int
    is_acknowledged: bool
    """False: it may still be lost. The repeat is answered once that is decided."""


class Producer:
    """The batches of one producer: acknowledged ones, then those under way."""

    __slots__ = ("acknowledged", "at_ms", "under_way")

    def __init__(self, window: int) -> None:
        self.acknowledged: deque[Remembered] = deque(maxlen=window)
        self.under_way: deque[Remembered] = deque()
        self.at_ms = 0
        """When the latest batch was sealed, or handed over."""

    @property
    def last(self) -> Remembered:
        """The batch that the next one must follow."""
        return self.under_way[-1] if self.under_way else self.acknowledged[-1]

    def find(self, sent: tuple[int, int, int]) -> Repeat | None:
        """The remembered batch with this epoch, sequence and count."""
        for batches, is_acknowledged in ((self.under_way, False), (self.acknowledged, True)):
            for batch in reversed(batches):
                if batch[:3] == sent:
                    return Repeat(batch.base_offset, is_acknowledged)
        return None


class Producers:
    """The producers of one partition. See the module."""

    window = WINDOW

    def __init__(self, *, forgotten_below: int = 0, producers_max: int = PRODUCERS_MAX) -> None:
        """``forgotten_below``: producers with lower ids may have batches in the log that are not noted here."""
        assert producers_max > 0, "a partition remembers at least the producer that adds"
        self.forgotten_below = forgotten_below
        """Producers with lower ids may have been forgotten."""
        self._producers_max = producers_max
        self._by_id: dict[int, Producer] = {}
        """In the order of their latest batches."""

    def __len__(self) -> int:
        return len(self._by_id)

    def judge(self, batch: BatchHeader) -> Repeat | None:
        """Compare a batch with what is remembered: the batch that it repeats, or None for the next batch.

        Changes nothing.

        Raises:
            RefusedError: The batch does not follow what the producer has sent before.
        """
        if not batch.is_idempotent:
            return None
        producer = self._by_id.get(batch.producer_id)
        if producer is None:
            if batch.base_sequence != 0 and batch.producer_id >= self.forgotten_below:
                raise _out_of_order(batch, 0)
            return None
        last = producer.last
        if batch.producer_epoch < last.epoch:
            text = f"producer {batch.producer_id} has the epoch {last.epoch}; the batch has {batch.producer_epoch}"
            raise RefusedError(Code.INVALID_PRODUCER_EPOCH, text)
        expected = 0
        if batch.producer_epoch == last.epoch:
            repeat = producer.find(_sent(batch))
            if repeat is not None:
                return repeat
            expected = last.next_sequence
        if batch.base_sequence != expected:
            raise _out_of_order(batch, expected)
        return None

    def note_under_way(self, batch: BatchHeader, base_offset: int, now_ms: int) -> None:
        """The batch was handed over, in this step (rule K4)."""
        if batch.is_idempotent:
            self._latest(batch.producer_id, now_ms).under_way.append(Remembered(*_sent(batch), base_offset))
            self._bound()

    def note_acknowledged(self, batch: BatchHeader) -> None:
        """The oldest batch under way of its producer is acknowledged."""
        if batch.is_idempotent:
            producer = self._by_id[batch.producer_id]
            oldest = producer.under_way.popleft()
            assert oldest[:3] == _sent(batch), f"producer {batch.producer_id}: another batch was handed over before"
            producer.acknowledged.append(oldest)

    def note_stored(self, batch: BatchHeader, sealed_at_ms: int) -> None:
        """The batch was found in the log, where it has its base offset."""
        if batch.is_idempotent:
            producer = self._latest(batch.producer_id, sealed_at_ms)
            producer.acknowledged.append(Remembered(*_sent(batch), batch.base_offset))
            self._bound()

    def forget_idle(self, now_ms: int) -> None:
        """Forget the producers that have sent nothing for a day."""
        idle = [
            producer_id
            for producer_id, producer in self._by_id.items()
            if not producer.under_way and now_ms - producer.at_ms > IDLE_MS_MAX
        ]
        for producer_id in idle:
            self._forget(producer_id)

    def __iter__(self) -> Iterator[tuple[int, Producer]]:
        """Each producer with its id, the one idle longest first."""
        return iter(self._by_id.items())

    def restore(self, producer_id: int, at_ms: int, batches: Iterable[Remembered]) -> None:
        """Remember a producer as a snapshot has it."""
        producer = self._latest(producer_id, at_ms)
        producer.acknowledged.extend(batches)
        self._bound()

    def _latest(self, producer_id: int, at_ms: int) -> Producer:
        """The producer, made if it is new, behind all others in the order."""
        producer = self._by_id.pop(producer_id, None) or Producer(self.window)
        producer.at_ms = max(producer.at_ms, at_ms)
        self._by_id[producer_id] = producer
        return producer

    def _bound(self) -> None:
        if len(self._by_id) > self._producers_max:
            idle = next((one for one, producer in self._by_id.items() if not producer.under_way), None)
            if idle is not None:
                self._forget(idle)

    def _forget(self, producer_id: int) -> None:
        del self._by_id[producer_id]
        self.forgotten_below = max(self.forgotten_below, producer_id + 1)

    def check_invariants(self) -> None:
        """Raise AssertionError if a producer without a batch is remembered, or one that must not be."""
        for producer_id, producer in self._by_id.items():
            batches = [*producer.acknowledged, *producer.under_way]
            assert batches, f"producer {producer_id} has no batch"
            for before, behind in pairwise(batches):
                assert before.base_offset + before.record_count <= behind.base_offset, (
                    f"producer {producer_id}: {batches}"
                )
                assert before.epoch <= behind.epoch, f"producer {producer_id}: {batches}"


def _sent(batch: BatchHeader) -> tuple[int, int, int]:
    return batch.producer_epoch, batch.base_sequence, batch.record_count


def _out_of_order(batch: BatchHeader, expected: int) -> RefusedError:
    text = f"producer {batch.producer_id}: the sequence {batch.base_sequence} does not follow; expected {expected}"
    return RefusedError(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, text)
