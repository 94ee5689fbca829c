"""Which parts of a ledger repair may touch, and what a bookie should hold of them. Pure.

Theory of operation
-------------------

A fragment's range is *settled* when no verdict about its entries can be pending (rule C2): an earlier fragment, in any
state of the ledger, because the writer began the next one above its LAC; the last fragment only when the ledger is
CLOSED. Of a settled range every entry exists, and every member of an entry's write set should hold it.

The last fragment of a ledger that is OPEN or IN_RECOVERY is never settled: if an empty bookie took a member's place
there, its "absent" would count towards the coverage with which a recovering client ends the ledger (rule F4), and an
acknowledged entry could be cut off.

The same holds for a stream. Its last fragment is settled at rest, too: its term has an end, and what comes later is of
another term. A range ends where the positions of its fragment end, and not below the next fragment's first id: between
two terms lie ids that no bookie holds. The first range begins where the stream begins after truncation.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.metadata.stream.model import StreamFragment, StreamMetadata
from octavo.protocol.entries import Digest
from octavo.protocol.ids import BookieId
from octavo.protocol.quorums import Quorums, quorums_of


@dataclass(frozen=True, slots=True)
class SettledRange:
    """The entries ``first..last`` of one fragment, all of which exist. Empty when ``last`` is ``first - 1``."""

    first: int
    last: int
    bookies: tuple[BookieId, ...]
    length_after: int
    """Cumulative payload bytes of the ledger up to ``last`` (rule C3 compares it)."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to copy: only the name in the metadata changes."""
        return self.last < self.first


def quorums_of_ledger(metadata: LedgerMetadata) -> Quorums:
    """E, Qw and Qa of the ledger."""
    return quorums_of(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)


def quorums_at(metadata: EitherMetadata, first: int) -> Quorums:
    """E, Qw and Qa of the range that begins at ``first``."""
    if isinstance(metadata, LedgerMetadata):
        return quorums_of_ledger(metadata)
    return stream_fragment_at(metadata, first).quorums


def digest_at(metadata: EitherMetadata, first: int) -> Digest:
    """The digest of the entries of the range that begins at ``first``."""
    if isinstance(metadata, LedgerMetadata):
        return metadata.digest
    return metadata.keys[stream_fragment_at(metadata, first).key].digest


def stream_fragment_at(metadata: StreamMetadata, entry_id: int) -> StreamFragment:
    """The fragment to which an id of one of its ranges belongs."""
    return metadata.fragments[bisect_right(metadata.fragments, entry_id, key=_first_entry_id) - 1]


def last_is_settled(metadata: EitherMetadata) -> bool:
    """Whether the last fragment is settled, too."""
    return metadata.is_closed if isinstance(metadata, LedgerMetadata) else metadata.has_end


def settled_ranges(metadata: EitherMetadata) -> tuple[SettledRange, ...]:
    """The settled ranges of a ledger, in order (rule C2)."""
    return tuple(_settled(metadata))


def _settled(metadata: EitherMetadata) -> Iterator[SettledRange]:
    if isinstance(metadata, LedgerMetadata):
        yield from _settled_of_ledger(metadata)
        return
    # What lies in pages is looked at by itself (:mod:`octavo.repair.base.stream_parts`).
    metadata = metadata.tail
    # The last fragment is followed by the end of the stream.
    lengths_after = (*(one.length_before for one in metadata.fragments[1:]), metadata.length)
    truncated = metadata.start - metadata.fragments[0].first_position
    for fragment, length_after in zip(metadata.fragments, lengths_after, strict=True):
        last = metadata.last_place_of(fragment)
        if last is not None:
            yield SettledRange(fragment.first_entry_id + truncated, last, fragment.bookies, length_after)
        truncated = 0


def _settled_of_ledger(metadata: LedgerMetadata) -> Iterator[SettledRange]:
    fragments = metadata.fragments
    for fragment, following in pairwise(fragments):
        yield SettledRange(
            fragment.first_entry_id, following.first_entry_id - 1, fragment.bookies, following.length_before
        )
    if metadata.is_closed:
        last = metadata.last_fragment
        end = metadata.last_entry_id if metadata.last_entry_id is not None else -1
        yield SettledRange(last.first_entry_id, end, last.bookies, metadata.length)


def named_in_settled(metadata: EitherMetadata, bookie_id: BookieId) -> bool:
    """Whether a settled range names the bookie."""
    return any(bookie_id in settled.bookies for settled in _settled(metadata))


def replaceable(metadata: EitherMetadata, old: BookieId, new: BookieId) -> tuple[SettledRange, ...]:
    """The settled ranges in which ``new`` can take the place of ``old``: ``old`` is a member and ``new`` is not."""
    return tuple(settled for settled in _settled(metadata) if old in settled.bookies and new not in settled.bookies)


def ranges_of_member(metadata: EitherMetadata, bookie_id: BookieId) -> tuple[SettledRange, ...]:
    """The settled ranges that name the bookie: what it should hold of the ledger."""
    return tuple(settled for settled in _settled(metadata) if bookie_id in settled.bookies)


def _first_entry_id(fragment: StreamFragment) -> int:
    return fragment.first_entry_id
