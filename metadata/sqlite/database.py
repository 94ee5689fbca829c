"""The SQLite file behind ``sqlite:///`` and all operations on it; synchronous, for one thread.

Durability: the file uses a write-ahead log with ``synchronous=FULL``. A commit has been synced when it returns, so that
a power failure loses neither it nor anything that was read when the file was opened. Every change is one ``BEGIN
IMMEDIATE`` transaction, so that it neither deadlocks nor works on stale data.

Leases are measured by the host's boot time, which keeps counting during a suspend and cannot be set, together with the
boot's id: a reboot ends every lease. A store is therefore for processes of one host, on a local file system.

=============  ==================================================================================================
table          holds
=============  ==================================================================================================
``settings``   ``cluster_id`` (text); ``next_ledger_id`` and ``versions`` (integers that only grow)
``records``    kind, key, value, version (from ``versions``: unique in the whole store), session (NULL: permanent)
``sessions``   session, boot id, boot time in seconds at which the session ends
``changes``    which record was made, changed or deleted (:mod:`octavo.metadata.sqlite.change_feed`)
=============  ==================================================================================================
"""

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from octavo.metadata.sqlite.change_feed import NO_CHANGES, ChangeFeed, Changes
from octavo.metadata.sqlite.file_uri import file_uri
from octavo.metadata.sqlite.held_records import HeldRecords
from octavo.metadata.sqlite.inherited import check_not_inherited, inherit
from octavo.metadata.sqlite.questions import ListOfKeys
from octavo.metadata.store.driver import ClusterOrigin, Kind, Record, Unchanged
from octavo.metadata.store.values import Version
from octavo.protocol.errors import MetadataError, MetadataUnavailableError, OctavoError
from octavo.protocol.ids import ID_MAX, LedgerId
from octavo.protocol.os_errors import explained
from octavo.security import forks

APPLICATION_ID: Final = 0x4F435456
""""OCTV" in the file's header, which distinguishes Octavo's files from other SQLite databases."""

DESCRIPTORS: Final = 4
"""File descriptors that an open store needs, and that opening it needs for a moment."""

FORMAT: Final = 1
"""Format of the tables, in the file's ``user_version``."""

SCHEMA: Final = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE records (
    kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, version INTEGER NOT NULL, session TEXT,
    UNIQUE (kind, key)
);
CREATE INDEX records_of_session ON records (session) WHERE session IS NOT NULL;
CREATE TABLE sessions (
    session TEXT PRIMARY KEY, boot_id TEXT NOT NULL, ends_at REAL NOT NULL
) WITHOUT ROWID;
"""

_ALIVE: Final = (
    "(session IS NULL OR session IN (SELECT session FROM sessions WHERE boot_id = :boot AND ends_at > :now))"
)
"""Condition on a record: it belongs to no session, or to one that has not ended."""

_KEY_END: Final = "\x7f"
"""Sorts after every character of a key."""


class Database:
    """An open store. ``clock`` gives seconds of boot time. Every method raises :class:`MetadataUnavailableError` when
    the file cannot be used now or is no longer the file that was opened, :class:`MetadataError` when it is damaged;
    both name the path."""

    def __init__(
        self,
        path: Path,
        *,
        create: bool,
        busy_timeout_seconds: float,
        clock: Callable[[], float],
        boot_id: str,
        origin: ClusterOrigin | None = None,
    ) -> None:
        self._path = path
        self._file = path.absolute()  # the working directory may change later
        self._identity: tuple[int, int] | None = None
        self._clock = clock
        self._boot_id = boot_id
        self._origin = origin
        self._busy_timeout_seconds = busy_timeout_seconds
        self._version_seen_max = 0
        """The highest version that this handle has seen committed: the file never goes back behind it."""
        self._went_back_to: int | None = None
        """The version of an older copy, once the file has been overwritten with one."""
        self._version_drawn = 0
        """The latest version given out in the current transaction."""
        self._together = False
        """Whether a transaction of several operations is open."""
        self._feed = ChangeFeed(self._execute, self._present)
        self._held = HeldRecords(self._execute)
        check_not_inherited(path, self._file)
        forks.hold(self)
        with self._translated():
            if create:
                _make_directory(path.parent)
            elif not path.exists():
                raise MetadataUnavailableError(
                    f"there is no metadata store at {path}: start a cluster there first (`octavo up`), "
                    "or give another URI",
                    may_have_happened=False,
                )
            mode = "rwc" if create else "rw"
            self._connection = sqlite3.connect(
                f"{file_uri(self._file)}?mode={mode}", uri=True, isolation_level=None, timeout=busy_timeout_seconds
            )
            try:
                self._prepare(create)
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
        forks.let_go(self)

    def on_forked(self) -> None:
        """In a forked child: the file is not for this process."""
        inherit(self._file, getattr(self, "_connection", None), self._identity)

    # --- opening ---------------------------------------------------------------------------------------------------

    def _prepare(self, create: bool) -> None:
        if self._is_empty():
            if not create:
                raise MetadataUnavailableError(
                    f"{self._path} is empty: no cluster has been created there", may_have_happened=False
                )
            self._switch_to_wal()
            self._execute("PRAGMA synchronous=FULL")
            with self._transaction(reported=False):
                if self._is_empty():  # no other process was faster
                    self._make_tables()
            _sync_directory(self._path.parent)
        if self.pragma("application_id") != APPLICATION_ID:
            raise MetadataError(f"{self._path} is not an Octavo metadata store")
        format_number = self.pragma("user_version")
        if format_number > FORMAT:
            raise MetadataError(
                f"{self._path}: format {format_number} is newer than {FORMAT}, the newest that this version "
                "understands; upgrade Octavo"
            )
        self._switch_to_wal()
        self._execute("PRAGMA synchronous=FULL")
        # If a process was killed during a commit, the write-ahead log may hold a commit that was never synced. SQLite
        # treats it as committed, and a power failure could still take it back after this process has seen it. A
        # checkpoint syncs the log first. PASSIVE waits for no other process; while other processes use the file,
        # nothing unsynced is visible.
        self._execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        self._identity = _identity_of(self._file)
        self._version_seen_max = self._setting("versions")
        if not self._feed.is_made():
            with self._transaction(reported=False):
                if not self._feed.is_made():  # no other process was faster
                    self._feed.make()
        self._feed.begin()

    def _is_empty(self) -> bool:
        return self.pragma("application_id") == 0 and self.pragma("schema_version") == 0

    def _switch_to_wal(self) -> None:
        # SQLite does not apply its busy timeout when two connections switch at once, so this loop does.
        deadline = time.monotonic() + self._busy_timeout_seconds
        while True:
            try:
                (mode,) = self._execute("PRAGMA journal_mode=WAL").fetchone()
            except sqlite3.OperationalError as error:
                if _primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                    raise
                time.sleep(0.01)
                continue
            if mode != "wal":
                raise MetadataUnavailableError(
                    f"{self._path}: this file system does not support SQLite's write-ahead log",
                    may_have_happened=False,
                )
            return

    def _make_tables(self) -> None:
        for statement in filter(str.strip, SCHEMA.split(";")):
            self._execute(statement)
        self._feed.make()
        cluster_id, first_ledger_id = self._origin or ClusterOrigin(os.urandom(16).hex(), LedgerId(0))
        self._execute(
            "INSERT INTO settings VALUES ('cluster_id', ?), ('next_ledger_id', ?), ('versions', 0)",
            (cluster_id, first_ledger_id),
        )
        self._execute(f"PRAGMA application_id={APPLICATION_ID}")
        self._execute(f"PRAGMA user_version={FORMAT}")

    # --- groups ----------------------------------------------------------------------------------------------------

    def together(self, operations: Sequence[Callable[[], object]]) -> list[object]:
        """Do these operations (calls of the methods below) one after another in one transaction; their results, in
        order. An operation that cannot be done has the :class:`OctavoError` that it raised as its result.

        All results are durable when this returns: one sync serves all. If an operation raises, nothing of the group is
        committed, and each operation is done again in a transaction of its own.
        """
        if len(operations) > 1:
            try:
                return self._in_one_transaction(operations)
            except _OperationFailedError:
                pass
            except OctavoError as error:
                return [error] * len(operations)  # the transaction itself failed: the file is locked, the disk is full
        return [_result_of(operation) for operation in operations]

    def _in_one_transaction(self, operations: Sequence[Callable[[], object]]) -> list[object]:
        with self._transaction():
            self._together = True
            try:
                return [operation() for operation in operations]
            except (OctavoError, sqlite3.Error) as error:
                raise _OperationFailedError from error
            finally:
                self._together = False

    # --- operations: meanings as in RecordStore --------------------------------------------------------------------

    def cluster_id(self) -> str:
        with self._reading():
            (cluster_id,) = self._execute("SELECT value FROM settings WHERE name = 'cluster_id'").fetchone()
            return str(cluster_id)

    def allocate_ledger_id(self) -> LedgerId:
        with self._transaction():
            ledger_id = self._setting("next_ledger_id")
            if ledger_id > ID_MAX - 1:
                raise MetadataUnavailableError("all ledger ids have been allocated", may_have_happened=False)
            self._execute("UPDATE settings SET value = ? WHERE name = 'next_ledger_id'", (ledger_id + 1,))
            return LedgerId(ledger_id)

    def ledger_ids_stop(self) -> LedgerId:
        """The lowest id that has never been allocated."""
        with self._reading():
            return LedgerId(self._setting("next_ledger_id"))

    def confirm_absent(self, kind: Kind, keys: Sequence[str]) -> list[str]:
        with self._reading():
            return [key for key in keys if self._find(kind, key) is None]

    def create(
        self,
        kind: Kind,
        key: str,
        value: bytes,
        session: str | None = None,
        *,
        take_over: bool = False,
        unchanged: Unchanged | None = None,
    ) -> Version | None:
        with self._transaction():
            if session is not None and not self._is_live(session):
                return None
            if unchanged is not None:
                present = self._find(unchanged.kind, unchanged.key)
                if present is None or present.version != unchanged.version:
                    return None
            if not take_over and self._find(kind, key) is not None:
                return None
            version = self._next_version()
            self._execute(
                "INSERT OR REPLACE INTO records (kind, key, value, version, session) VALUES (?, ?, ?, ?, ?)",
                (kind.value, key, value, version, session),
            )
            return version

    def read_many(self, wanted: Sequence[tuple[Kind, str]]) -> list[Record | None]:
        """:meth:`RecordStore.read` for each of these, in order."""
        with self._reading():
            found = {kind: self._find_many(kind, [key for of, key in wanted if of is kind]) for kind in dict(wanted)}
            return [found[kind].get(key) for kind, key in wanted]

    def compare_and_set(self, kind: Kind, key: str, value: bytes, expected: Version) -> Version | None:
        with self._transaction():
            present = self._find(kind, key)
            if present is None or present.version != expected:
                return None
            return self._set(kind, key, value)

    def set_in_session(self, kind: Kind, key: str, value: bytes, session: str) -> Version | None:
        with self._transaction():
            if not self._is_live(session) or not self._is_held(kind, key, session):
                return None
            return self._set(kind, key, value)

    def delete(self, kind: Kind, key: str, expected: Version | None = None, session: str | None = None) -> bool:
        with self._transaction():
            changed = self._execute(
                "DELETE FROM records WHERE kind = ? AND key = ? AND version = coalesce(?, version) AND session IS ?",
                (kind.value, key, expected, session),
            )
            if changed.rowcount:
                self._next_version()
            return changed.rowcount > 0

    def list_many(self, lists: Sequence[ListOfKeys]) -> list[list[str]]:
        """:meth:`RecordStore.list_keys` for each of these, in order."""
        query = "SELECT key FROM records WHERE kind = ? AND key > ? AND key >= ? AND key < ? ORDER BY key LIMIT ?"
        with self._reading():
            found = [
                self._execute(query, (kind.value, after, prefix, prefix + _KEY_END, limit))
                for kind, prefix, after, limit in lists
            ]
            return [[key for (key,) in rows] for rows in found]

    def read_all(self, kind: Kind) -> list[Record]:
        with self._reading():
            rows = self._execute(
                f"SELECT key, value, version FROM records WHERE kind = :kind AND {_ALIVE} ORDER BY key",
                {"kind": kind.value, **self._present()},
            )
            return [Record(*row) for row in rows]

    def begin_session(self, session: str, lease_seconds: float) -> None:
        with self._transaction(reported=False):
            # A new session cleans up after sessions that ended without saying so.
            self._execute(f"DELETE FROM records WHERE NOT {_ALIVE}", self._present())
            self._execute("DELETE FROM sessions WHERE boot_id <> :boot OR ends_at <= :now", self._present())
            self._execute(
                "INSERT INTO sessions VALUES (?, ?, ?)", (session, self._boot_id, self._clock() + lease_seconds)
            )

    def renew_session(self, session: str, lease_seconds: float) -> set[tuple[Kind, str]] | None:
        """Also on a full disk, if that is possible at all: a lease must not end for lack of a page of space (rule
        P18)."""
        try:
            return self._renew_session(session, lease_seconds)
        except MetadataUnavailableError as error:
            if self._together or not _is_full(error) or not self._made_room():
                raise
            return self._renew_session(session, lease_seconds)

    def _made_room(self) -> bool:
        """Whether the write-ahead log, whose file does not shrink, begins at its beginning again: then a small change
        needs no space. All pages in it have found room in the file itself."""
        try:
            busy, in_log, copied = self._execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        except sqlite3.Error:
            return False
        return not busy and in_log == copied

    def _renew_session(self, session: str, lease_seconds: float) -> set[tuple[Kind, str]] | None:
        with self._transaction():
            if not self._is_live(session):
                return None
            self._execute("UPDATE sessions SET ends_at = ? WHERE session = ?", (self._clock() + lease_seconds, session))
            return self._held.of(session)

    def end_session(self, session: str) -> None:
        with self._transaction():
            self._next_version()
            self._execute("DELETE FROM records WHERE session = ?", (session,))
            self._execute("DELETE FROM sessions WHERE session = ?", (session,))

    def look_for_changes(self) -> Changes:
        """The records that other connections have changed, or whose sessions have ended, since the previous call, or
        since opening. Cheap when nothing changed."""
        with self._translated():
            if not self._feed.may_have_changed():
                return NO_CHANGES
        with self._reading():
            self._execute("BEGIN")
            try:
                look = self._feed.look()
            finally:
                if self._connection.in_transaction:
                    self._execute("ROLLBACK")
        self._feed.saw(look)
        return look.changes

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _find(self, kind: Kind, key: str) -> Record | None:
        row = self._execute(
            f"SELECT key, value, version FROM records WHERE kind = :kind AND key = :key AND {_ALIVE}",
            {"kind": kind.value, "key": key, **self._present()},
        ).fetchone()
        return None if row is None else Record(*row)

    def _find_many(self, kind: Kind, keys: list[str]) -> dict[str, Record]:
        # One statement for all: most of the work of a small one is not that of SQLite.
        names = {f"key{at}": key for at, key in enumerate(keys)}
        rows = self._execute(
            "SELECT key, value, version FROM records "
            f"WHERE kind = :kind AND key IN (:{', :'.join(names)}) AND {_ALIVE}",
            {"kind": kind.value, **names, **self._present()},
        )
        return {row[0]: Record(*row) for row in rows}

    def _set(self, kind: Kind, key: str, value: bytes) -> Version:
        version = self._next_version()
        self._execute(
            "UPDATE records SET value = ?, version = ? WHERE kind = ? AND key = ?",
            (value, version, kind.value, key),
        )
        return version

    def _is_held(self, kind: Kind, key: str, session: str) -> bool:
        held = self._execute(
            "SELECT 1 FROM records WHERE kind = ? AND key = ? AND session = ?", (kind.value, key, session)
        )
        return held.fetchone() is not None

    def _is_live(self, session: str) -> bool:
        return (
            self._execute(
                "SELECT 1 FROM sessions WHERE session = :session AND boot_id = :boot AND ends_at > :now",
                {"session": session, **self._present()},
            ).fetchone()
            is not None
        )

    def _present(self) -> dict[str, str | float]:
        return {"boot": self._boot_id, "now": self._clock()}

    def _next_version(self) -> Version:
        (version,) = self._execute(
            "UPDATE settings SET value = value + 1 WHERE name = 'versions' RETURNING value"
        ).fetchone()
        self._version_drawn = int(version)
        return Version(version)

    def _setting(self, name: str) -> int:
        (value,) = self._execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return int(value)

    def pragma(self, name: str) -> int:
        """The value of one of SQLite's numeric pragmas."""
        (value,) = self._execute(f"PRAGMA {name}").fetchone()
        return int(value)

    def _execute(self, statement: str, values: tuple[object, ...] | dict[str, str | float] = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Values that are read inside count only if the file is still in its place afterwards, and no older."""
        with self._translated():
            yield
            self._check_in_place()
            self._check_not_older()

    @contextlib.contextmanager
    def _transaction(self, *, reported: bool = True) -> Iterator[None]:
        """``reported``: the caller reports which records are changed."""
        if self._together:
            yield  # part of the transaction of the group
            return
        with self._translated():
            self._execute("BEGIN IMMEDIATE")
            try:
                self._check_not_older()
                before = self._feed.last() if reported else 0
                yield
                self._check_in_place()
                last = self._feed.last() if reported else 0
                self._execute("COMMIT")
                self._feed.made(before, last)
                self._version_seen_max = max(self._version_seen_max, self._version_drawn)
            finally:
                if self._connection.in_transaction:
                    self._execute("ROLLBACK")
                self._version_drawn = 0

    def _check_not_older(self) -> None:
        """Refuse a file whose content has gone back, from then on: it was overwritten with an older copy while it was
        in use. A leader of a log, for example, must not go on with a segment that the older list does not name."""
        if self._identity is None:
            return  # it is being opened, and may have no tables yet
        version = self._setting("versions")
        if self._went_back_to is None and version < self._version_seen_max:
            self._went_back_to = version
        if self._went_back_to is not None:
            raise MetadataError(
                f"{self._path} is older than what this process has already read from it (change "
                f"{self._went_back_to}, not {self._version_seen_max}): it was overwritten with a copy while it was in "
                "use; stop every process that uses it before restoring it"
            )
        self._version_seen_max = version

    def _check_in_place(self) -> None:
        """Refuse to use a file that other processes can no longer find: what is written there would be lost, and what
        is read there is not what they see."""
        if self._identity is not None and _identity_of(self._file) != self._identity:
            raise MetadataUnavailableError(
                f"{self._path} has been deleted or replaced while it was in use; put the original file back and "
                "restart this process",
                may_have_happened=False,
            )

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _error_for(error, self._path) from error
        except OSError as error:
            raise MetadataUnavailableError(f"{self._path}: {explained(error)}", may_have_happened=False) from error


_DAMAGED: Final = {
    sqlite3.SQLITE_NOTADB: "is not a metadata store (not a SQLite file)",
    sqlite3.SQLITE_CORRUPT: "is damaged",
    sqlite3.SQLITE_FORMAT: "is damaged",
}
_NOT_DONE: Final = {
    sqlite3.SQLITE_BUSY: "is locked by another process",
    sqlite3.SQLITE_LOCKED: "is locked",
    sqlite3.SQLITE_READONLY: "cannot be written",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: is it a file in a writable directory?",
    sqlite3.SQLITE_PERM: "cannot be opened: permission denied",
    sqlite3.SQLITE_FULL: "cannot be written: the disk is full",
}
"""Maps primary result codes of SQLite to messages. These errors certainly have not changed anything."""


class _OperationFailedError(Exception):
    """One operation of a group cannot be done."""


def _result_of(operation: Callable[[], object]) -> object:
    try:
        return operation()
    except OctavoError as error:
        return error


def _is_full(error: OctavoError) -> bool:
    """Whether the disk had no space for a change."""
    return isinstance(error.__cause__, sqlite3.Error) and _primary_code(error.__cause__) == sqlite3.SQLITE_FULL


def _error_for(error: sqlite3.Error, path: Path) -> OctavoError:
    code = _primary_code(error)
    if code in _DAMAGED:
        return MetadataError(f"{path} {_DAMAGED[code]}")
    if isinstance(error, sqlite3.OperationalError) or code in _NOT_DONE:
        message = _NOT_DONE.get(code)
        shortage = _shortage() if code == sqlite3.SQLITE_CANTOPEN else None
        if shortage is not None:
            message = f"cannot be opened: {explained(shortage)}"
        if message is not None:
            return MetadataUnavailableError(f"{path} {message}", may_have_happened=False)
        return MetadataUnavailableError(f"{path}: {error}")
    return MetadataError(f"{path}: {error}")


def _shortage() -> OSError | None:
    """Why so few descriptors are left that a store cannot be opened, which SQLite does not tell. It has closed again
    what it could open."""
    with contextlib.ExitStack() as opened:
        try:
            for _ in range(DESCRIPTORS):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            return error
    return None


def _primary_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _identity_of(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file at ``path``; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _make_directory(directory: Path) -> None:
    missing = [directory, *directory.parents]
    missing = [path for path in missing if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in missing:
        _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
