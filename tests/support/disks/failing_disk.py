"""``octavo`` on a disk that fails below its file system: ``python failing_disk.py TRIGGER ARGUMENTS...``.

The content of the file TRIGGER, once it exists, selects the fault. ``sync``: every sync fails with EIO, as on a failing
disk; written data is in the page cache, clean and readable, but possibly not on disk. ``slow``: every sync, and every
write with a sync, takes :data:`SLOW_SECONDS` longer. ``full``: no file grows; a write that would extend a file is
shortened, and the next one fails with ENOSPC."""

import errno
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TRIGGER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()


SLOW_SECONDS = 0.03


def fault() -> str:
    try:
        return TRIGGER.read_text()
    except OSError:
        return ""


def failing_sync(sync: Callable[[int], None]) -> Callable[[int], None]:
    def call(descriptor: int) -> None:
        sync(descriptor)
        if fault() == "slow":
            time.sleep(SLOW_SECONDS)
        if fault() == "sync":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    return call


_pwritev, _pwrite, _fallocate = os.pwritev, os.pwrite, os.posix_fallocate


def pwritev(descriptor: int, buffers: Sequence[bytes], offset: int, flags: int = 0) -> int:
    if fault() == "full":
        return pwrite(descriptor, b"".join(buffers), offset)
    written = _pwritev(descriptor, buffers, offset, flags)
    if flags & os.RWF_DSYNC and fault() == "slow":
        time.sleep(SLOW_SECONDS)
    if flags & os.RWF_DSYNC and fault() == "sync":
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return written


def pwrite(descriptor: int, data: bytes, offset: int) -> int:
    size = os.fstat(descriptor).st_size
    if fault() != "full" or offset + len(data) <= size:
        return _pwrite(descriptor, data, offset)
    if size == 0 or offset + 1000 > size + 100_000:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if len(data) > 1000:
        return _pwrite(descriptor, data[: len(data) // 2], offset)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fallocate(descriptor: int, offset: int, size: int) -> None:
    if fault() == "full" and offset + size > os.fstat(descriptor).st_size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    _fallocate(descriptor, offset, size)


def main() -> None:
    os.fsync, os.fdatasync = failing_sync(os.fsync), failing_sync(os.fdatasync)  # type: ignore[assignment]
    os.pwritev, os.pwrite, os.posix_fallocate = pwritev, pwrite, fallocate  # type: ignore[assignment]
    from octavo.bookie.disk.async_writes import AsyncWrites  # noqa: PLC0415 - after the disk has been prepared
    from octavo.cli.main import main as octavo  # noqa: PLC0415

    write_and_sync = AsyncWrites.write_and_sync

    def write_and_fail(self: AsyncWrites, *arguments: Any) -> bool:
        if fault() == "slow":
            return False  # fall back to the thread, whose writes are slow
        descriptor, address, size, offset, on_written = arguments

        def written(result: int) -> None:
            on_written(-errno.EIO if fault() == "sync" else result)

        return write_and_sync(self, descriptor, address, size, offset, written)

    AsyncWrites.write_and_sync = write_and_fail  # type: ignore[assignment,method-assign]
    sys.exit(octavo(sys.argv[2:]))


if __name__ == "__main__":
    main()
