"""The beginning of a term: next offset and producers from snapshot, anchor and entries. Pure.

A new leader reads the log below its start, and gives each entry to this machine, in order of positions. It need not
read all of it. Where it begins depends on what it has:

================================  =====================================================================================
it has                            it reads from
================================  =====================================================================================
a snapshot that counts            the snapshot's position on
none, and the log is complete     the beginning
none, and the log is cut or long  the first entry of the last day on: producers before it are forgotten. The leader
                                  says below which id producers may have been given out before
================================  =====================================================================================

The *next offset* is that behind the last batch that was read; where none was read at or above the anchor's position,
the anchor's; and never below that of any snapshot (rule K2). Entries that are no batches take no offset.
"""

from octavo.gateway.records.appends import Appends
from octavo.gateway.records.batch import BatchHeader
from octavo.gateway.records.offsets import Anchor
from octavo.gateway.records.producers import Producers


class Takeover:
    """See the module."""

    def __init__(self, anchor: Anchor, producers: Producers, *, first_position: int, next_offset_min: int = 0) -> None:
        """``producers``: of the snapshot, or none. ``first_position``: from which entries are given.
        ``next_offset_min``: the highest next offset of any snapshot, whether it counts or not."""
        self._producers = producers
        self._position = first_position
        self._next_offset = max(anchor.base_offset, next_offset_min)

    def entry(self, position: int, batch: BatchHeader | None, sealed_at_ms: int) -> None:
        """The next entry of the log; None: it is no batch. Positions that were given up are left out."""
        assert position >= self._position, f"position {position} comes after {self._position - 1}"
        self._position = position + 1
        if batch is not None:
            self._next_offset = max(self._next_offset, batch.next_offset)
            self._producers.note_stored(batch, sealed_at_ms)

    def begin(self, end: int, now_ms: int) -> Appends:
        """The machine of the term, which begins at this end of the log. All entries below it have been given."""
        assert end >= self._position, f"the log ends at {end}, below {self._position}"
        self._producers.forget_idle(now_ms)
        return Appends(position=end, next_offset=self._next_offset, producers=self._producers)
