"""SQLite files that were open when this process was forked: this process can never use them (rule H1).

SQLite remembers, once for each process and file, which locks the process has; a child inherits the memory and not the
locks. A connection that the child opens to such a file therefore has no locks: the parent closes its own, finds itself
alone, and deletes the write-ahead log that the child writes to. What the child commits is lost, and with it the ledgers
that it creates. SQLite's documentation says of inherited connections that a child must not use them, and must not even
close them ("How to corrupt an SQLite database file", 2.6). So the child keeps them for ever, and opens none of their
files.
"""

import os
import sqlite3
from pathlib import Path

from octavo.protocol.errors import ForkedError

_files: set[tuple[int, int]] = set()
"""Device and inode of each."""


def _load_before_fork() -> None:
    """Load what a child needs while the parent can: in the child it might have no file descriptor left for it, or find
    it half loaded by a thread that the child does not have. Most programs never fork, and do without it."""
    import ctypes  # noqa: F401, PLC0415 - see above


os.register_at_fork(before=_load_before_fork)


def inherit(file: Path, connection: sqlite3.Connection | None, identity: tuple[int, int] | None) -> None:
    """Called in the child of everything that the parent had open, or was opening."""
    if identity is not None:
        _files.add(identity)
    try:
        status = file.stat()
    except OSError:
        pass
    else:
        _files.add((status.st_dev, status.st_ino))
    if connection is not None:
        import ctypes  # noqa: PLC0415 - loaded before the fork

        # A reference that nothing gives back: neither the collector nor the end of the interpreter closes it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def check_not_inherited(path: Path, file: Path) -> None:
    """Raise :class:`ForkedError` for a file that was open at the fork. ``path``: its name in the message."""
    if not _files:
        return
    try:
        status = file.stat()
    except OSError:
        return
    if (status.st_dev, status.st_ino) in _files:
        raise ForkedError(
            f"{path} was open in the process that this one ({os.getpid()}) was forked from, and SQLite cannot open it "
            "in the child: its locks would not hold. Connect in the parent only after the fork, or start "
            "processes without forking (multiprocessing's 'spawn' or 'forkserver')"
        )
