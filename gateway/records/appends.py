"""The batches that one leader adds to a partition: their offsets, their positions, and which are repeats. Pure.

A leader holds one machine for each term. It begins with what the log holds below the term's start
(:mod:`octavo.gateway.records.takeover`). For each batch, in the order in which batches reached the leader:

1. :meth:`Appends.judge` says whether it is the next batch, or a repeat. It changes nothing.
2. The leader stamps the next batch with :attr:`Appends.next_offset` and hands it to the log's writer, which takes it or
   refuses it at once.
3. Only when the writer has taken it: :meth:`Appends.hand_over`. The batch now has its offset, its place among those of
   its producer, and its position in the log.
4. :meth:`Appends.acknowledge`, in the order of positions.

Steps 1 to 3 are one step of the event loop, so no other batch comes between (rule K2). What was handed over either
becomes acknowledged, or the leader's term ends: then the machine is dropped, and the next leader's begins with what the
log holds. So offsets of a term are consecutive, and those of the next term go on behind the last batch that is in the
log.
"""

from collections import deque
from typing import NamedTuple

from octavo.gateway.codes import WrongPositionError
from octavo.gateway.records.batch import BatchHeader
from octavo.gateway.records.producers import Producers, Repeat


class UnderWay(NamedTuple):
    """A batch that was handed over and is not acknowledged."""

    position: int
    base_offset: int
    batch: BatchHeader


class Appends:
    """See the module."""

    def __init__(self, *, position: int, next_offset: int, producers: Producers) -> None:
        """``position``: of the entry that the leader adds next. ``next_offset``: of the next record. ``producers``:
        what the log below says of them."""
        self.next_position = position
        """Of the next entry."""
        self.next_offset = next_offset
        """Of the next record."""
        self.high_watermark = next_offset
        """Records with lower offsets are acknowledged."""
        self.producers = producers
        self._under_way: deque[UnderWay] = deque()

    @property
    def under_way(self) -> tuple[UnderWay, ...]:
        """The batches that were handed over and are not acknowledged, the oldest first."""
        return tuple(self._under_way)

    @property
    def acknowledged_stop(self) -> int:
        """The position behind the last acknowledged entry."""
        return self._under_way[0].position if self._under_way else self.next_position

    def judge(self, batch: BatchHeader) -> Repeat | None:
        """The batch that this one repeats; None for the next batch (rule K4).

        Raises:
            RefusedError: It does not follow what its producer has sent before.
        """
        return self.producers.judge(batch)

    def hand_over(self, batch: BatchHeader, now_ms: int) -> int:
        """The log's writer has taken the batch with :attr:`next_offset`; its position."""
        position = self.next_position
        self.producers.note_under_way(batch, self.next_offset, now_ms)
        self._under_way.append(UnderWay(position, self.next_offset, batch))
        self.next_offset += batch.record_count
        self.next_position += 1
        return position

    def acknowledge(self, position: int) -> UnderWay:
        """The entry at this position is acknowledged, and all below it are; its batch.

        Raises:
            WrongPositionError: The oldest batch under way was to get another position.
        """
        if not self._under_way or self._under_way[0].position != position:
            expected = self._under_way[0].position if self._under_way else None
            raise WrongPositionError(f"position {position} was acknowledged; expected {expected}")
        done = self._under_way.popleft()
        self.producers.note_acknowledged(done.batch)
        self.high_watermark = done.base_offset + done.batch.record_count
        return done

    def check_invariants(self) -> None:
        """Raise AssertionError if offsets or positions under way are not consecutive."""
        self.producers.check_invariants()
        offset, position = self.high_watermark, self.acknowledged_stop
        for one in self._under_way:
            assert (one.base_offset, one.position) == (offset, position), f"{one} should begin at {offset}, {position}"
            offset, position = offset + one.batch.record_count, position + 1
        assert (offset, position) == (self.next_offset, self.next_position)
