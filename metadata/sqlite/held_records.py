"""Records that a session holds, as a renewal tells them: kept in memory, and brought up to date from the changes.

A client that leads ten thousand logs holds as many locks. To read them all with each renewal would cost a percent of a
processor, and hardly ever tell anything new.
"""

from octavo.metadata.sqlite.change_feed import SESSION_KIND_NAMES, Execute, is_complete, last_change
from octavo.metadata.store.driver import Kind

_NAMES = ", ".join(f"'{name}'" for name in SESSION_KIND_NAMES)


class HeldRecords:
    """See the module. Used in the thread of the connection, in transactions."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute
        self._session: str | None = None
        self._seen = 0
        """The number of the last change that is contained."""
        self._held: set[tuple[Kind, str]] = set()

    def of(self, session: str) -> set[tuple[Kind, str]]:
        """The records that the session holds now."""
        number = last_change(self._execute)
        if session != self._session or not is_complete(self._execute, self._seen):
            rows = self._execute("SELECT kind, key FROM records WHERE session = ?", (session,))
            self._held = {(Kind(kind), key) for kind, key in rows}
        elif number != self._seen:
            for kind, key, holder in self._execute(
                "SELECT changes.kind, changes.key, records.session FROM changes LEFT JOIN records "
                "ON records.kind = changes.kind AND records.key = changes.key "
                f"WHERE number > ? AND changes.kind IN ({_NAMES})",
                (self._seen,),
            ):
                if holder == session:
                    self._held.add((Kind(kind), key))
                else:
                    self._held.discard((Kind(kind), key))
        self._session, self._seen = session, number
        return set(self._held)
