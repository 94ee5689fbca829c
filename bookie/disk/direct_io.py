"""Writes that bypass the page cache, for files that are written once, forward, and read only after a crash.

A running bookie never reads its journal. Through the page cache every journal byte would be copied into a new page, and
pages worth keeping would be evicted. ``O_DIRECT`` requires whole blocks and aligned memory: a write of whole blocks is
gathered in one aligned buffer, which is reused.
"""

import ctypes
import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

from octavo.bookie.disk.descriptors import open_descriptor

DIRECT_BLOCK_BYTES = 4096
"""Offsets, sizes and addresses of direct writes are multiples of this: no common disk requires more."""

BUFFER_BYTES = 8 * 1024 * 1024 + DIRECT_BLOCK_BYTES
"""Holds one ordinary group of the journal; a larger one takes several writes."""

_SLICED_BUFFERS_MAX = 64
_JOINED_BYTES_MAX = 64 * 1024
"""More buffers than this, or so few bytes, are joined before they are copied: faster than copying each buffer."""

_UNSUPPORTED = frozenset({errno.EINVAL, errno.EOPNOTSUPP})


class DirectWriter:
    """Direct writes to one file, one at a time, from any thread. Offsets and sizes are multiples of
    :data:`DIRECT_BLOCK_BYTES`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(-1, BUFFER_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = memoryview(self._memory)
        self.address = _address_of(self._memory)
        """Address of the buffer."""

    @classmethod
    def open(cls, path: Path) -> "DirectWriter | None":
        """A writer of the file ``path``; None where its file system does not support direct writes of such blocks."""
        try:
            descriptor = open_descriptor(path, os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return None
            raise
        writer = cls(descriptor)
        try:
            os.preadv(descriptor, [writer._view[:DIRECT_BLOCK_BYTES]], 0)
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

    def gather(self, offset: int, buffers: Sequence[bytes]) -> int | None:
        """Copy a write into the buffer, for the caller to submit: its size. None, without any effect, when it does not
        fit."""
        size = _checked_size(offset, buffers)
        if size > BUFFER_BYTES:
            return None
        self._gather(buffers, size)
        return size

    def _write(self, offset: int, buffers: Sequence[bytes], *, sync: bool) -> None:
        size = _checked_size(offset, buffers)
        if size > BUFFER_BYTES:
            self._write_large(offset, b"".join(buffers))
            if sync:
                os.fdatasync(self.descriptor)
        else:
            self._gather(buffers, size)
            # One system call for both, hence one switch of the interpreter lock.
            self._flush(offset, size, os.RWF_DSYNC if sync else 0)

    def write_gathered(self, offset: int, size: int) -> None:
        """Perform the write that :meth:`gather` prepared; durable when it returns."""
        self._flush(offset, size, os.RWF_DSYNC)

    def _gather(self, buffers: Sequence[bytes], size: int) -> None:
        """Copy ``buffers``, ``size`` bytes together, into the buffer."""
        if size <= _JOINED_BYTES_MAX or len(buffers) > _SLICED_BUFFERS_MAX:
            self._view[:size] = b"".join(buffers)
            return
        at = 0
        for buffer in buffers:
            stop = at + len(buffer)
            self._view[at:stop] = buffer
            at = stop
        assert at == size

    def _write_large(self, offset: int, data: bytes) -> None:
        """Write ``data``, one buffer at a time."""
        for at in range(0, len(data), BUFFER_BYTES):
            part = data[at : at + BUFFER_BYTES]
            self._gather([part], len(part))
            self._flush(offset + at, len(part), 0)

    def _flush(self, offset: int, size: int, flags: int) -> None:
        """Write the first ``size`` bytes of the buffer at ``offset``."""
        at = 0
        while at < size:
            # The slice is released even if the write fails: an error's traceback must not keep the memory in use.
            with self._view[at:size] as rest:
                at += os.pwritev(self.descriptor, [rest], offset + at, flags)  # a short write ends at a block

    def close(self) -> None:
        """Close the file and release the memory. Raises OSError; then both are gone as well."""
        self._view.release()
        self._memory.close()
        os.close(self.descriptor)


def _checked_size(offset: int, buffers: Sequence[bytes]) -> int:
    size = sum(map(len, buffers))
    assert offset % DIRECT_BLOCK_BYTES == size % DIRECT_BLOCK_BYTES == 0, "direct writes are whole blocks"
    return size


def _address_of(memory: mmap.mmap) -> int:
    probe = ctypes.c_char.from_buffer(memory)
    address = ctypes.addressof(probe)
    del probe  # while it lives the memory cannot be closed
    return address
