"""The changes by other processes, as one connection to a SQLite file learns of them: one look for all that is watched.

The table ``changes`` names each record that was made, changed or deleted, in order. Triggers write it, so that a
process of an earlier version, which does not know the table, writes it too. The table keeps the last
:data:`CHANGES_KEPT` changes at least.

A look costs one question about shared memory (``PRAGMA data_version``) while no other process commits anything and no
session runs out. Otherwise it reads, in one transaction, the changes since the look before, and the sessions: a session
ends by the clock, and nothing is written then. The changes of the connection itself are left out: its callers report
them.
"""

from collections.abc import Callable, Iterator, Set
from typing import Any, Final, NamedTuple, Protocol

from octavo.metadata.store.driver import SESSION_KINDS, Kind

CHANGES_KEPT: Final = 10_000
"""A handle that looks for changes ten times a second misses none of them unless others make 100,000 changes a second.
One that has missed some, because its process was stopped, takes everything for changed."""

_TRIMMED_EVERY: Final = 256
"""Changes from one trimming to the next."""

CHANGES_SCHEMA: Final = (
    "CREATE TABLE changes (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL)",
    f"""CREATE TRIGGER changes_trimmed AFTER INSERT ON changes WHEN new.number % {_TRIMMED_EVERY} = 0 BEGIN
    DELETE FROM changes WHERE number <= new.number - {CHANGES_KEPT};
END""",
    """CREATE TRIGGER record_made AFTER INSERT ON records BEGIN
    INSERT INTO changes (kind, key) VALUES (new.kind, new.key);
END""",
    """CREATE TRIGGER record_changed AFTER UPDATE ON records BEGIN
    INSERT INTO changes (kind, key) VALUES (new.kind, new.key);
END""",
    """CREATE TRIGGER record_deleted AFTER DELETE ON records BEGIN
    INSERT INTO changes (kind, key) VALUES (old.kind, old.key);
END""",
)
"""Made when a file is opened that does not have it yet."""

ALIVE: Final = "boot_id = :boot AND ends_at > :now"
"""Condition on a session that has not ended."""

SESSION_KIND_NAMES: Final = tuple(kind.value for kind in SESSION_KINDS)

_KINDS: Final = {kind.value: kind for kind in Kind}

type Changes = Set[tuple[Kind, str]] | None
"""The records that others have changed, or whose sessions have ended; None: any may have changed."""

NO_CHANGES: Final[Set[tuple[Kind, str]]] = frozenset()


class Execute(Protocol):
    """Executes a statement."""

    def __call__(self, statement: str, values: tuple[object, ...] | dict[str, str | float] = ()) -> Any: ...


def last_change(execute: Execute) -> int:
    """The number of the last change; 0 before the first one."""
    (number,) = execute("SELECT max(number) FROM changes").fetchone()
    return number or 0


def is_complete(execute: Execute, seen: int) -> bool:
    """Whether all changes after the one numbered ``seen`` are still there."""
    (first,) = execute("SELECT min(number) FROM changes").fetchone()
    return first is None or first <= seen + 1


class Look(NamedTuple):
    """One look: what it found, and how far it has seen."""

    changes: Changes
    data_version: int
    number: int
    """Of the last change."""
    sessions: dict[str, float]
    """The end of each live session, unless it is renewed."""


class ChangeFeed:
    """See the module. Used in the thread of the connection. ``present`` gives the boot and the time, as parameters of
    statements."""

    def __init__(self, execute: Execute, present: Callable[[], dict[str, str | float]]) -> None:
        self._execute = execute
        self._present = present
        self._seen = Look(NO_CHANGES, 0, 0, {})
        self._own: list[tuple[int, int]] = []
        """Changes since that look which the connection has made itself: of each run, the number before the first, and
        the last."""

    def is_made(self) -> bool:
        """Whether the file has the table and all triggers."""
        (made,) = self._execute("SELECT count(*) FROM sqlite_master WHERE name = 'record_deleted'").fetchone()
        return bool(made)

    def make(self) -> None:
        """Make the table and the triggers, in a transaction."""
        for statement in CHANGES_SCHEMA:
            self._execute(statement)

    def begin(self) -> None:
        """Take what the file holds now for seen."""
        self.saw(self.look()._replace(changes=NO_CHANGES))

    def may_have_changed(self) -> bool:
        """Whether a look could find anything."""
        seen = self._seen
        ends_at = min(seen.sessions.values(), default=None)
        return self._data_version() != seen.data_version or (
            ends_at is not None and float(self._present()["now"]) >= ends_at
        )

    def look(self) -> Look:
        """Look for changes, in a transaction that reads. They are found again until :meth:`saw` is called."""
        seen = self._seen
        data_version = self._data_version()  # first: a change that is made meanwhile leads to another look
        sessions = dict(self._execute(f"SELECT session, ends_at FROM sessions WHERE {ALIVE}", self._present()))
        number = self.last()
        if not is_complete(self._execute, seen.number):
            return Look(None, data_version, number, sessions)
        found: set[tuple[str, str]] = set()
        for start, stop in self._others(seen.number, number):
            found.update(self._execute("SELECT kind, key FROM changes WHERE number > ? AND number <= ?", (start, stop)))
        for session in seen.sessions.keys() - sessions.keys():
            found.update(self._execute("SELECT kind, key FROM records WHERE session = ?", (session,)))
        changes = frozenset((_KINDS[kind], key) for kind, key in found if kind in _KINDS)
        return Look(changes, data_version, number, sessions)

    def saw(self, look: Look) -> None:
        """Note that a look has been reported: the next one begins where it ended."""
        self._seen = look
        self._own = [run for run in self._own if run[1] > look.number]

    def last(self) -> int:
        """The number of the last change; 0 before the first one."""
        return last_change(self._execute)

    def made(self, before: int, last: int) -> None:
        """The connection has committed changes of its own, which are reported without a look: those after ``before``,
        up to ``last``."""
        if before == last:
            return
        if self._own and self._own[-1][1] == before:
            before = self._own.pop()[0]
        self._own.append((before, last))

    def _others(self, seen: int, number: int) -> Iterator[tuple[int, int]]:
        """The runs of changes by others since ``seen``: of each the number before the first, and the last."""
        for before, last in self._own:
            if seen < before:
                yield seen, before
            seen = max(seen, last)
        if seen < number:
            yield seen, number

    def _data_version(self) -> int:
        (version,) = self._execute("PRAGMA data_version").fetchone()
        return int(version)
