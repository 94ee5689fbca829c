"""Many entries opened at once and kept as columns: for bulk readers, to which an object per entry is too much.

What :meth:`octavo.protocol.entries.Opener.open_batch` gives as a list of entries is here a sequence of the same entries
that are made when they are asked for; the bytes stay back to back as they arrived, the fields of the headers stand in
arrays. Only ordinary batches become columns: consecutive ids, a digest without a key. Pure.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import overload

from octavo.protocol.entries import (
    CHECKSUM,
    FORMAT,
    HEADER,
    SEALED_BYTES_MIN,
    Digest,
    Entry,
    Opener,
    all_intact,
    digest_code_of,
)
from octavo.protocol.ids import ID_MAX, EntryId, LedgerId

PAYLOAD_START = HEADER.size
PAYLOAD_STOP = -CHECKSUM.size
"""Where the payload stands in the bytes of one entry of :class:`EntryColumns`."""

HEAD_WORDS = 5
"""The header up to the cumulative length is so many 64-bit words: format, digest, flags and payload length in one;
ledger id; entry id; last add confirmed plus one; length."""

_HEAD = itemgetter(slice(0, 8 * HEAD_WORDS))

_FIRST_WORD = FORMAT << 56 | digest_code_of(Digest.CRC32C) << 48
"""The first word of an ordinary entry without payload."""


class EntryColumns(Sequence[Entry]):
    """Consecutive entries of one ledger, verified."""

    __slots__ = ("_offsets", "data", "entry_bytes", "entry_ids", "heads")

    def __init__(self, entry_ids: range, heads: "array[int]", sizes: Sequence[int], data: bytes) -> None:
        self.entry_ids = entry_ids
        self.heads = heads
        """:data:`HEAD_WORDS` numbers for each entry, in the byte order of this machine."""
        self.data = data
        """The sealed entries back to back."""
        self.entry_bytes = sizes[0] if sizes.count(sizes[0]) == len(sizes) else None
        """Of every sealed entry; None where they differ."""
        self._offsets = None if self.entry_bytes is not None else list(accumulate(sizes, initial=0))

    @property
    def payload_bytes(self) -> int:
        """Of all entries."""
        return len(self.data) - SEALED_BYTES_MIN * len(self.entry_ids)

    def place(self, at: int) -> tuple[int, int]:
        """Where the payload of the entry ``at`` (0: the first) begins and ends in :attr:`data`."""
        if self._offsets is None:
            assert self.entry_bytes is not None
            start, stop = at * self.entry_bytes, (at + 1) * self.entry_bytes
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
        _, ledger_id, entry_id, lac_plus_one, length = self.heads[HEAD_WORDS * at : HEAD_WORDS * (at + 1)]
        start, stop = self.place(at)
        lac = EntryId(lac_plus_one - 1) if lac_plus_one else None
        return Entry(LedgerId(ledger_id), EntryId(entry_id), self.data[start:stop], lac, length)

    def __iter__(self) -> Iterator[Entry]:
        return map(self.__getitem__, range(len(self)))


def open_columns(opener: Opener, batch: Sequence[bytes]) -> EntryColumns | None:
    """The entries of ``batch`` as columns, if they are ordinary and all of them intact; nothing per entry runs slower
    than C. None for any other batch, which ``opener.open_batch`` opens or refuses."""
    if opener.digest is not Digest.CRC32C or not batch:
        return None
    sizes = list(map(len, batch))
    if min(sizes) < SEALED_BYTES_MIN:
        return None
    data = b"".join(batch)
    if not all_intact(batch, sizes, data):
        return None
    heads = array("Q", b"".join(map(_HEAD, batch)))
    if sys.byteorder == "little":
        heads.byteswap()
    count, first = len(sizes), heads[2]
    if first + count - 1 > ID_MAX:
        return None
    columns = EntryColumns(range(first, first + count), heads, sizes, data)
    if columns.entry_bytes is not None:
        first_words = array("Q", (_FIRST_WORD + columns.entry_bytes - SEALED_BYTES_MIN,)) * count
    else:
        first_words = array("Q", map((_FIRST_WORD - SEALED_BYTES_MIN).__add__, sizes))
    if (
        heads[0::HEAD_WORDS] != first_words
        or heads[1::HEAD_WORDS] != array("Q", (opener.ledger_id,)) * count
        or heads[2::HEAD_WORDS] != array("Q", columns.entry_ids)
    ):
        return None
    return columns
