"""Many entries opened at once and kept as columns: for bulk readers, for which an object per entry is too slow.

What :meth:`octavo.protocol.entries.Opener.open_batch` gives as a list of entries is here a sequence of the same entries
that are made when they are asked for; the bytes stay as they arrived, the fields of the headers stand in
arrays. Only ordinary batches become columns: consecutive ids, a digest without a key. Pure.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple, overload

from octavo.protocol.bulk_answers import EvenEntries
from octavo.protocol.entries import (
    CHECKSUM,
    FORMAT,
    HEADER,
    SEALED_BYTES_MIN,
    Digest,
    Entry,
    Opener,
    all_intact,
    all_intact_evenly,
    digest_code_of,
)
from octavo.protocol.ids import ID_MAX, EntryId, LedgerId

PAYLOAD_START = HEADER.size
PAYLOAD_STOP = -CHECKSUM.size
"""Where the payload stands in the bytes of one entry of :class:`EntryColumns`."""

HEAD_WORDS = 6
"""The header is this number of 64-bit words: format, digest, flags and payload length in one; ledger id; entry id; last
add confirmed plus one; length; time of sealing."""

_HEAD = itemgetter(slice(0, 8 * HEAD_WORDS))

_FIRST_WORD = FORMAT << 56 | digest_code_of(Digest.CRC32C) << 48
"""The first word of an ordinary entry without payload."""


class EntryColumns(Sequence[Entry]):
    """Consecutive entries of one ledger, verified."""

    __slots__ = ("_offsets", "data", "entry_ids", "heads", "payload_bytes", "prefix_bytes", "stride")

    def __init__(
        self, entry_ids: range, heads: "array[int]", sizes: Sequence[int], data: bytes, prefix_bytes: int = 0
    ) -> None:
        self.entry_ids = entry_ids
        self.heads = heads
        """:data:`HEAD_WORDS` numbers for each entry, in the byte order of this machine."""
        self.data = data
        """The sealed entries one behind the other."""
        self.prefix_bytes = prefix_bytes
        """Bytes in front of each entry that do not belong to it."""
        even = sizes.count(sizes[0]) == len(sizes)
        self.stride = prefix_bytes + sizes[0] if even else None
        """From one entry to the next; None where sizes differ."""
        self._offsets = None if even else list(accumulate(sizes, initial=0))
        assert even or not prefix_bytes, "what stands in front of entries is only known of even ones"
        self.payload_bytes = len(data) - (SEALED_BYTES_MIN + prefix_bytes) * len(entry_ids)
        """Of all entries."""

    def place(self, at: int) -> tuple[int, int]:
        """Where the payload of the entry ``at`` (0: the first) begins and ends in :attr:`data`."""
        if self._offsets is None:
            assert self.stride is not None
            start, stop = at * self.stride + self.prefix_bytes, (at + 1) * self.stride
        else:
            start, stop = self._offsets[at], self._offsets[at + 1]
        return start + PAYLOAD_START, stop + PAYLOAD_STOP

    def __len__(self) -> int:
        return len(self.entry_ids)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = self.entry_ids[index] - self.entry_ids.start
        _, ledger_id, entry_id, lac_plus_one, length, sealed_at_ms = self.heads[HEAD_WORDS * at : HEAD_WORDS * (at + 1)]
        start, stop = self.place(at)
        lac = EntryId(lac_plus_one - 1) if lac_plus_one else None
        return Entry(LedgerId(ledger_id), EntryId(entry_id), self.data[start:stop], lac, length, sealed_at_ms)

    def __iter__(self) -> Iterator[Entry]:
        return map(self.__getitem__, range(len(self)))


def open_columns(opener: Opener, batch: Sequence[bytes]) -> EntryColumns | None:
    """The entries of ``batch`` as columns, if they are ordinary and all of them intact; nothing per entry runs slower
    than C. None for any other batch, which ``opener.open_batch`` opens or refuses."""
    if opener.digest is not Digest.CRC32C or not batch:
        return None
    intact = _intact_evenly(batch) if isinstance(batch, EvenEntries) else _intact(batch)
    if intact is None:
        return None
    sizes, data, heads, prefix_bytes = intact
    if sys.byteorder == "little":
        heads.byteswap()
    count, first = len(sizes), heads[2]
    if first + count - 1 > ID_MAX:
        return None
    columns = EntryColumns(range(first, first + count), heads, sizes, data, prefix_bytes)
    if columns.stride is not None:
        first_words = array("Q", (_FIRST_WORD + sizes[0] - SEALED_BYTES_MIN,)) * count
    else:
        first_words = array("Q", map((_FIRST_WORD - SEALED_BYTES_MIN).__add__, sizes))
    if (
        heads[0::HEAD_WORDS] != first_words
        or heads[1::HEAD_WORDS] != array("Q", (opener.ledger_id,)) * count
        or heads[2::HEAD_WORDS] != array("Q", columns.entry_ids)
    ):
        return None
    return columns


class _Intact(NamedTuple):
    """Entries whose checksums are right, the words of their headers as they stand in them."""

    sizes: Sequence[int]
    data: bytes
    heads: "array[int]"
    prefix_bytes: int


def _intact(batch: Sequence[bytes]) -> _Intact | None:
    sizes = list(map(len, batch))
    if min(sizes) < SEALED_BYTES_MIN:
        return None
    data = b"".join(batch)
    if not all_intact(batch, sizes, data):
        return None
    return _Intact(sizes, data, array("Q", b"".join(map(_HEAD, batch))), 0)


def _intact_evenly(batch: EvenEntries) -> _Intact | None:
    count, size, data, start = len(batch), batch.entry_bytes, batch.data, len(batch.prefix)
    if size < SEALED_BYTES_MIN or not all_intact_evenly(data, batch.prefix, size, count):
        return None
    # Byte by byte of all headers at once, which is quicker than header by header.
    width = 8 * HEAD_WORDS
    heads = bytearray(width * count)
    for at in range(width):
        heads[at::width] = data[start + at :: start + size]
    return _Intact([size] * count, data, array("Q", bytes(heads)), start)
