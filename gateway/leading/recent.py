"""The batches of a partition that were acknowledged last: consumers that follow read them from memory. Pure."""

from bisect import bisect_right
from collections import deque
from typing import Final

BYTES_MAX: Final = 1024 * 1024
"""Of a partition."""


class Recent:
    """See the module. Batches that follow each other, the oldest first."""

    def __init__(self, next_offset: int) -> None:
        """``next_offset``: of the first batch."""
        self._offsets: deque[int] = deque()
        self._batches: deque[bytes] = deque()
        self._stop = next_offset
        self._bytes = 0

    def add(self, base_offset: int, next_offset: int, batch: bytes) -> None:
        """The next batch, which is acknowledged."""
        assert base_offset == self._stop, f"offset {base_offset} comes after {self._stop - 1}"
        self._offsets.append(base_offset)
        self._batches.append(batch)
        self._stop = next_offset
        self._bytes += len(batch)
        while self._bytes > BYTES_MAX:
            self._offsets.popleft()
            self._bytes -= len(self._batches.popleft())

    def read(self, offset: int, bytes_max: int) -> list[bytes] | None:
        """Whole batches from the one that holds the offset on, at least one; None if that one is not here."""
        at = bisect_right(self._offsets, offset) - 1
        if at < 0 or offset >= self._stop:
            return None
        found = [self._batches[at]]
        size = len(found[0])
        for batch in list(self._batches)[at + 1 :]:
            size += len(batch)
            if size > bytes_max:
                break
            found.append(batch)
        return found
