"""Reads an entry log entry by entry and continues after damage. Used for scrubbing, checking and rebuilding.

A payload may contain anything, also sealed entries: a client may store the entry logs of another cluster in this one.
So what looks like an entry is one only where an entry is known to begin (rule B3): at the start of the log, and where
the one before ends. The length of a damaged entry leads on if something intact follows. Otherwise the walk searches
byte by byte, and what it finds may lie inside the damaged entry's payload: it is *doubtful* until intact entries, one
after another, lead from there to the known end of the log, or farther than any payload reaches. Entries inside a
payload end before the checksum of the entry around them, where no entry begins.

Without a checksum that needs a key this is no defence against a client that computes its payloads for it. Entries of
ledgers with ``hmac-sha256`` are safe from it: readers verify them with the ledger's password.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from octavo.bookie.entrylog.format import (
    FILLER_BYTES_MAX,
    FILLER_MAGIC,
    HEADER_BYTES,
    encode_filler,
    is_filler,
)
from octavo.protocol.entries import SEALED_BYTES_MAX, SEALED_BYTES_MIN, header_of, is_intact, sealed_bytes
from octavo.protocol.errors import ProtocolError

WINDOW_BYTES = 1 << 20
"""Bytes read at a time, more where an entry is longer."""

_STARTS = (b"\x01\x01\x00\x00", b"\x01\x02\x00\x00")
"""The possible first bytes of a sealed entry: format, digest, flags."""
_CANDIDATES = (*_STARTS, FILLER_MAGIC)
"""The first bytes of what may follow damage, all of one length."""

Read = Callable[[int, int], Awaitable[bytes]]
"""Up to ``size`` bytes from ``offset``, fewer only at the end. Raises OSError."""


class IntactEntry(NamedTuple):
    """An entry whose checksum is right, and its offset."""

    offset: int
    sealed: bytes


class DoubtfulEntry(NamedTuple):
    """Bytes that look like an intact entry, found after damage: it may be a part of a damaged entry's payload."""

    offset: int
    sealed: bytes


class DamagedStretch(NamedTuple):
    """Bytes without an intact entry; the next entry, or the end of the log, follows them."""

    offset: int
    size: int


async def walk_log(
    read: Read, *, stop: int, start: int = HEADER_BYTES, ends_with_entry: bool = True
) -> AsyncIterator[IntactEntry | DoubtfulEntry | DamagedStretch]:
    """Everything between two offsets, in order. Fillers are left out. Unreadable bytes count as damage.

    An entry begins at ``start``. ``ends_with_entry``: the last one ends at ``stop``, as at the length that a manifest
    gives; a file without a manifest may end in the middle of one.
    """
    window = _Window(read, stop)
    offset = start
    damage_start: int | None = None
    searched_from: int | None = None
    """Where the search ended, until it is known that an entry begins there."""
    doubtful: list[IntactEntry] = []
    while offset < stop:
        sealed = await window.entry_at(offset)
        size = await window.filler_bytes_at(offset) if sealed is None else len(sealed)
        if size:
            if damage_start is not None:
                yield DamagedStretch(damage_start, offset - damage_start)
                damage_start = None
            if sealed is not None:
                doubtful.append(IntactEntry(offset, sealed))
            offset += size
            if searched_from is None or offset - searched_from > SEALED_BYTES_MAX:
                searched_from = None
                for entry in doubtful:
                    yield entry
                doubtful.clear()
            continue
        for entry in doubtful:
            yield DoubtfulEntry(*entry)
        doubtful.clear()
        if damage_start is None:
            damage_start = offset
            claimed = await window.claimed_size(offset) if searched_from is None else None
            # Damage to a payload leaves the length intact, and the length leads to the next entry or filler.
            if claimed is not None and await window.is_intact_at(offset + claimed):
                offset += claimed
                continue
        offset = searched_from = await window.next_candidate(offset + 1)
    if damage_start is not None:
        yield DamagedStretch(damage_start, stop - damage_start)
    for entry in doubtful:
        yield entry if ends_with_entry else DoubtfulEntry(*entry)


class _Window:
    """A part of the log in memory."""

    def __init__(self, read: Read, stop: int) -> None:
        self._read = read
        self._stop = stop
        self._offset = 0
        self._data = b""

    async def _bytes(self, offset: int, size: int) -> bytes:
        """``size`` bytes from ``offset``, fewer at the stop; unreadable bytes are zero."""
        stop = min(offset + size, self._stop)
        if not self._offset <= offset <= stop <= self._offset + len(self._data):
            wanted = min(max(size, WINDOW_BYTES), self._stop - offset)
            self._offset, self._data = offset, await self._readable(offset, wanted)
        return self._data[offset - self._offset : stop - self._offset]

    async def _readable(self, offset: int, size: int) -> bytes:
        try:
            data = await self._read(offset, size)
        except OSError:
            data = b""
            for at in range(offset, offset + size, 4096):
                length = min(4096, offset + size - at)
                try:
                    data += (await self._read(at, length)).ljust(length, b"\0")
                except OSError:
                    data += bytes(length)
        return data.ljust(size, b"\0")

    async def claimed_size(self, offset: int) -> int | None:
        """The size that the entry at ``offset`` declares; None when the bytes cannot be an entry."""
        head = await self._bytes(offset, SEALED_BYTES_MIN)
        if len(head) < SEALED_BYTES_MIN or head[:4] not in _STARTS:
            return None
        try:
            size = sealed_bytes(header_of(head))
        except ProtocolError:
            return None
        return size if size <= SEALED_BYTES_MAX and offset + size <= self._stop else None

    async def entry_at(self, offset: int) -> bytes | None:
        """The intact entry at ``offset``; None when there is none."""
        size = await self.claimed_size(offset)
        if size is None:
            return None
        sealed = await self._bytes(offset, size)
        return sealed if is_intact(sealed) else None

    async def filler_bytes_at(self, offset: int) -> int:
        """The size of the filler at ``offset``; 0 when there is none."""
        data = await self._bytes(offset, FILLER_BYTES_MAX)
        return len(encode_filler(offset)) if is_filler(offset, data) else 0

    async def is_intact_at(self, offset: int) -> bool:
        """Whether an intact entry or a filler begins at ``offset``."""
        return await self.entry_at(offset) is not None or await self.filler_bytes_at(offset) > 0

    async def next_candidate(self, offset: int) -> int:
        """The next offset at which an entry or a filler could start, or the stop."""
        while offset < self._stop:
            data = await self._bytes(offset, min(WINDOW_BYTES // 4, self._stop - offset))
            found = [at for at in map(data.find, _CANDIDATES) if at >= 0]
            if found:
                return offset + min(found)
            if len(data) <= len(_STARTS[0]):
                break
            offset += len(data) - len(_STARTS[0]) + 1
        return self._stop
