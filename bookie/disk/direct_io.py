"""Writes that bypass the page cache, for files that are written once, forward, and read only after a crash.

A running bookie never reads its journal. Through the page cache every journal byte would be copied into a new page, and
pages worth keeping would be evicted. ``O_DIRECT`` requires whole blocks and aligned memory: a write is gathered in one
aligned buffer, which is reused, together with the block in which the previous write ended.
"""

import ctypes
import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

DIRECT_BLOCK_BYTES = 4096
"""Offsets, sizes and addresses of direct writes are multiples of this: no common disk requires more."""

BUFFER_BYTES = 8 * 1024 * 1024 + 2 * DIRECT_BLOCK_BYTES
"""Holds one ordinary group of the journal wherever in a block it starts; a larger one takes several writes."""

_SLICED_BUFFERS_MAX = 64
"""More buffers than this are joined before they are copied: faster than copying each one."""

_UNSUPPORTED = frozenset({errno.EINVAL, errno.EOPNOTSUPP})


class DirectWriter:
    """Direct writes to one file, one at a time, from any thread.

    The bytes between the end of a write and the end of its last block are zeros afterwards.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(-1, BUFFER_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = memoryview(self._memory)
        self.address = _address_of(self._memory)
        """Address of the buffer."""
        self._end = 0
        """Just after the last write."""
        self._tail = b""
        """Content of the block in which the last write ended, up to that end."""

    @classmethod
    def open(cls, path: Path) -> "DirectWriter | None":
        """A writer of the file ``path``; None where its file system does not support direct writes of such blocks."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return None
            raise
        writer = cls(descriptor)
        try:
            writer._read_block(0)
        except OSError as error:
            writer.close()
            if error.errno in _UNSUPPORTED:
                return None
            raise
        return writer

    def write(self, offset: int, buffers: Sequence[bytes]) -> None:
        """Write the buffers one after another from ``offset`` on. Not durable before a sync."""
        self._write(offset, buffers, sync=False)

    def write_and_sync(self, offset: int, buffers: Sequence[bytes]) -> None:
        """As :meth:`write`; durable when it returns."""
        self._write(offset, buffers, sync=True)

    def gather(self, offset: int, buffers: Sequence[bytes]) -> tuple[int, int] | None:
        """Copy a write into the buffer, for the caller to submit: its aligned offset and its size.

        None, without any effect, when it does not fit, or when the bytes before it in its block are not known.
        """
        start = offset - offset % DIRECT_BLOCK_BYTES
        if offset not in (start, self._end):
            return None
        head = b"" if offset == start else self._tail
        stop = len(head) + sum(map(len, buffers))
        if stop > BUFFER_BYTES:
            return None
        return start, self._gather(head, buffers, stop, start)

    def _write(self, offset: int, buffers: Sequence[bytes], *, sync: bool) -> None:
        start = offset - offset % DIRECT_BLOCK_BYTES
        head = self._before(start, offset)
        stop = len(head) + sum(map(len, buffers))
        if stop > BUFFER_BYTES:
            self._write_large(start, b"".join((head, *buffers)))
            if sync:
                os.fdatasync(self.descriptor)
        else:
            size = self._gather(head, buffers, stop, start)
            # One system call for both, hence one switch of the interpreter lock.
            self._flush(start, size, os.RWF_DSYNC if sync else 0)

    def write_gathered(self, start: int, size: int) -> None:
        """Perform the write that :meth:`gather` prepared; durable when it returns."""
        self._flush(start, size, os.RWF_DSYNC)

    def _before(self, start: int, offset: int) -> bytes:
        """The file's bytes from ``start`` of a block to ``offset`` in it."""
        if offset == start:
            return b""
        if offset == self._end:
            return self._tail
        self._read_block(start)
        return bytes(self._view[: offset - start])

    def _read_block(self, start: int) -> None:
        os.preadv(self.descriptor, [self._view[:DIRECT_BLOCK_BYTES]], start)

    def _gather(self, head: bytes, buffers: Sequence[bytes], stop: int, start: int) -> int:
        """Fill the buffer with ``head`` and ``buffers``, ``stop`` bytes together, and zeros up to a whole block; the
        size of the result."""
        view, at = self._view, len(head)
        view[:at] = head
        for buffer in buffers if len(buffers) <= _SLICED_BUFFERS_MAX else [b"".join(buffers)]:
            view[at : at + len(buffer)] = buffer
            at += len(buffer)
        assert at == stop
        size = stop + -stop % DIRECT_BLOCK_BYTES
        view[stop:size] = bytes(size - stop)
        self._end = start + stop
        self._tail = bytes(view[stop - stop % DIRECT_BLOCK_BYTES : stop])
        return size

    def _write_large(self, start: int, data: bytes) -> None:
        """Write ``data`` from ``start`` of a block on, a bufferful at a time."""
        for at in range(0, len(data), BUFFER_BYTES):
            part = data[at : at + BUFFER_BYTES]
            self._flush(start + at, self._gather(b"", [part], len(part), start + at), 0)

    def _flush(self, start: int, size: int, flags: int) -> None:
        """Write the first ``size`` bytes of the buffer at ``start``."""
        at = 0
        while at < size:
            # A short write (a signal) ends at a block.
            at += os.pwritev(self.descriptor, [self._view[at:size]], start + at, flags)

    def close(self) -> None:
        """Close the file and release the memory."""
        self._view.release()
        self._memory.close()
        os.close(self.descriptor)


def _address_of(memory: mmap.mmap) -> int:
    probe = ctypes.c_char.from_buffer(memory)
    address = ctypes.addressof(probe)
    del probe  # while it lives the memory cannot be closed
    return address
