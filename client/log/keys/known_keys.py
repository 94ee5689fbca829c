"""The keys of a log within its window, and the adds with keys that are under way. Pure (rule P21).

The client that asks has read the log up to :attr:`KnownKeys.end`, or is the leader that adds behind it. A key is in one
of four states:

============  ======================================  =============================================================
state         the entry with this key                 the next add with it
============  ======================================  =============================================================
unknown       is not in the window                    is made
under way     was handed to the log's writer, which   waits for that one, and gets its answer
              has not answered
in doubt      was sent, and its add has failed for    fails as that one did, until the log goes on behind its
              want of an answer; it keeps its place   position: then it is in the log, and the key is known
known         is in the log, and acknowledged         gets its position
============  ======================================  =============================================================

A leader that loses its lead drops all of this: the end of its term decides what was under way or in doubt, and the
next leader begins with what it reads. So a position is only ever given for an entry that was acknowledged, or read.

A key leaves the window by count when ``entries`` entries follow its own, and by time. It is then unknown to
all clients: the entry stays in the log, and the next add with the key makes another.
"""

from bisect import insort
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from octavo.client.log.documents.key_window import KeyWindow
from octavo.protocol.errors import OctavoError


class Answer(Enum):
    """The state of a key that has no position."""

    UNKNOWN = "unknown"
    UNDER_WAY = "under way"


class _Known(NamedTuple):
    position: int
    at_ms: int
    key: str


class _InDoubt(NamedTuple):
    position: int
    at_ms: int
    error: OctavoError


class KnownKeys:
    """See the module."""

    def __init__(self, window: KeyWindow, *, end: int) -> None:
        """``end``: of the log; nothing is known below it yet."""
        self._window = window
        self._age_ms_max = None if window.seconds is None else int(window.seconds * 1000)
        self.end = end
        """The position behind the last entry that is known to be acknowledged. Never goes back."""
        self._known: dict[str, _Known] = {}
        self._in_order: list[_Known] = []
        """The values of :attr:`_known`, and some that a later entry with the key has replaced."""
        self._dropped = 0
        """How many of the first in order have left the window."""
        self._under_way: set[str] = set()
        self._in_doubt: dict[str, _InDoubt] = {}

    def __len__(self) -> int:
        return len(self._known)

    def check_invariants(self) -> None:
        """Assert what holds between any two calls."""
        assert not self._under_way & {*self._in_doubt}, "an add is under way or in doubt"
        assert all(known.position < self.end for known in self._known.values()), "an unacknowledged position is known"
        assert all(one.position >= self.end for one in self._in_doubt.values()), "the log has decided it"
        kept = self._in_order[self._dropped :]
        assert kept == sorted(kept), "positions are out of order"
        assert {*self._known.values()} <= {*kept}, "a known key can never leave"
        assert all(known.position >= self.end - self._window.entries for known in kept), "a key outlives the window"

    # --- what the log holds -------------------------------------------------------------------------------------------

    @property
    def first_wanted(self) -> int:
        """The lowest position whose key the window may hold."""
        return max(0, self.end - self._window.entries)

    def entry(self, position: int, key: str | None, at_ms: int) -> None:
        """An entry of the log, as it was read; ``at_ms``: when it was sealed."""
        self.end = max(self.end, position + 1)
        if key is not None:
            self._note(_Known(position, at_ms, key))
        self._decide()

    def entries_until(self, end: int) -> None:
        """Everything below ``end`` is acknowledged."""
        self.end = max(self.end, end)
        self._decide()

    # --- asking -------------------------------------------------------------------------------------------------------

    def find(self, key: str, now_ms: int) -> int | OctavoError | Answer:
        """The position of the entry with this key, or why there is none; of an add in doubt, its error."""
        if key in self._under_way:
            return Answer.UNDER_WAY
        if key in self._in_doubt:
            return self._in_doubt[key].error
        self._forget(now_ms)
        known = self._known.get(key)
        return Answer.UNKNOWN if known is None or self._is_old(known, now_ms) else known.position

    # --- adding -------------------------------------------------------------------------------------------------------

    def begin(self, key: str) -> None:
        """The writer has taken an add with this key, which was unknown."""
        assert key not in self._under_way, f"the add with key {key!r} is under way"
        assert key not in self._in_doubt, f"the add with key {key!r} is in doubt"
        self._under_way.add(key)

    def acknowledged(self, key: str, position: int, at_ms: int) -> None:
        """The add that was under way is in the log."""
        self._under_way.remove(key)
        self.end = max(self.end, position + 1)
        self._note(_Known(position, at_ms, key))
        self._decide()

    def refused(self, key: str) -> None:
        """The add that was under way did not happen, and will not."""
        self._under_way.remove(key)

    def doubted(self, key: str, position: int, at_ms: int, error: OctavoError) -> None:
        """The add that was under way has failed with ``error``, and its entry may get to this position, and no
        other."""
        self._under_way.remove(key)
        self._in_doubt[key] = _InDoubt(position, at_ms, error)
        self._decide()

    # --- the window ---------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """Adds in doubt below the end are in the log: the writer gives their places to no other entries."""
        for key in [key for key, one in self._in_doubt.items() if one.position < self.end]:
            decided = self._in_doubt.pop(key)
            self._note(_Known(decided.position, decided.at_ms, key))
        self._forget()

    def _note(self, known: _Known) -> None:
        before = self._known.get(known.key)
        if known.position >= self.first_wanted and (before is None or before.position < known.position):
            self._known[known.key] = known
            insort(self._in_order, known, lo=self._dropped)

    def _is_old(self, known: _Known, now_ms: int) -> bool:
        return self._age_ms_max is not None and known.at_ms <= now_ms - self._age_ms_max

    def _forget(self, now_ms: int | None = None) -> None:
        """Drop what has left the window; by time only where a time is given."""
        first, at = self.first_wanted, self._dropped
        while at < len(self._in_order):
            known = self._in_order[at]
            if known.position >= first and (now_ms is None or not self._is_old(known, now_ms)):
                break
            if self._known.get(known.key) is known:
                del self._known[known.key]
            at += 1
        self._dropped = at
        if self._dropped > 1000 and self._dropped * 2 > len(self._in_order):
            del self._in_order[: self._dropped]
            self._dropped = 0


def known_from(window: KeyWindow, end: int, entries: Iterable[tuple[int, str | None, int]]) -> KnownKeys:
    """The keys of a log that ends at ``end`` and has these entries: position, key, time of sealing."""
    known = KnownKeys(window, end=end)
    for position, key, at_ms in entries:
        known.entry(position, key, at_ms)
    return known
