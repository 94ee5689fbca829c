"""How old the entries of a log are for certain. Pure (rule P19).

The times with which entries are sealed are the word of one clock, their leader's, and never fall (rule P10). No
deletion may depend on them: entries of a leader whose clock is behind would be dropped when they are seconds old, and
those of a leader whose clock is ahead would be kept for years. So the age of entries is *counted*. A client that tidies
the log notes a *mark*: everything below this point was sealed when the log's proven time
(:mod:`octavo.metadata.clocks.proven_time`) was that much. An entry is as old as the proven time that has passed since
the first mark above it. The idleness of a cursor is counted likewise, from the first look that found it as it stands.

Proven time and marks stand in a document beside the log, changed by compare-and-set only. A client that has changed it
last knows more than the document says, namely what has passed since; it writes that from time to time.

What a *point* is depends on the layout, and must mean the same entries for ever. In a stream it is the entry id, which
contains the term. In a chain it is the position, and ``term`` tells for entries of which terms the marks hold: once an
operator has accepted a loss (rule O4), a later leader may add at positions that had been taken before.

A mark below which the log keeps nothing is forgotten. Of the others so many are forgotten that the distance between two
of them is at most a sixteenth of the age of the younger: a log has a few hundred at most, and entries are kept a
sixteenth longer than asked, at most.

Documents of older versions. Such a log has no marks, and its retention must not begin to count from nothing, or it
would need twice its room. So the first marks are made of the times of sealing, bounded by the present time by both
clocks, up to the first one that shows a clock that was behind. Logs that are created by this version say so; their ages
are counted only.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, Self

from octavo.metadata.clocks.proven_time import EARLIEST_MS, SKEW_MS, Moment, ProvenTime
from octavo.metadata.encoding import FieldReader, decode_object, encode_object
from octavo.protocol.errors import MetadataError
from octavo.protocol.light_dataclass import dataclass

FORMAT: Final = 1

_SHARE: Final = 16
"""Ages are exact to one part in this number."""

NOTED_MS_MIN: Final = 60_000
"""Proven time is written at most so often when nothing else has changed."""

_CURSORS_BYTES_MAX: Final = 256 * 1024
"""Of the names of cursors in the document. Those that hold back most have their idleness counted, the others are not
idle."""


class Mark(NamedTuple):
    """See the module."""

    stop: int
    """Everything below this point was sealed by then."""
    ms: int
    """The proven time. Below 0 for what was sealed before anything was counted."""


class StoredCursor(Protocol):
    """A cursor as its consumer stores it."""

    @property
    def position(self) -> int:
        """The first position that the consumer has not handled."""

    @property
    def touched_at_ms(self) -> int:
        """When the consumer was last heard of, by its own clock."""


class SeenCursor(NamedTuple):
    """A cursor as it has stood since."""

    position: int
    touched_at_ms: int
    ms: int
    """The proven time at the first look that found it so."""


class Sealed(NamedTuple):
    """The age of a part of the log by metadata of an older version: entries below ``stop`` were sealed by then."""

    stop: int
    at_ms: int


class LogFacts(NamedTuple):
    """The marks and positions in the metadata of a log now."""

    stop: int
    """Everything below it is sealed."""
    start: int
    """Nothing below it is kept."""
    term: int = 0
    """The highest; 0 in a stream, whose points are places and say the terms."""
    end_of_term: Callable[[int], int | None] = lambda _term: None
    """The point after the last entry of a term that is over; None where that is not known."""
    is_counted: bool = True
    """The log was created by a version that counts ages."""
    told: tuple[Sealed, ...] = ()
    """By the times of its entries, if it was not."""


@dataclass(frozen=True, slots=True)
class LogAges:
    """See the module. Immutable."""

    time: ProvenTime
    marks: tuple[Mark, ...] = ()
    """Ascending in both."""
    term: int = 0
    """The marks hold for entries of leaders up to this term; 0 in a stream."""
    cursors: Mapping[str, SeenCursor] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Fields of a newer version, kept as they are."""

    @classmethod
    def begun(cls, now: Moment, told: Iterable[Sealed] = (), *, term: int = 0) -> Self:
        """The ages of a log of which none were counted. ``told``: by the metadata of an older version, ascending."""
        marks: list[Mark] = []
        before_ms = EARLIEST_MS
        for one in told:
            if one.at_ms < before_ms - SKEW_MS:
                break  # a clock was behind: from here on, nothing is known
            before_ms = max(before_ms, one.at_ms)
            age_ms = max(min(now.wall_ms, now.store_ms) - one.at_ms, 0)
            if not marks or one.stop > marks[-1].stop:
                marks.append(Mark(one.stop, -age_ms))
        return cls(ProvenTime(now), _thinned(marks, 0), term)

    def advanced(self, now: Moment, *, at_most_ms: int | None = None) -> Self:
        """The same by now."""
        return replace(self, time=self.time.advanced(now, at_most_ms=at_most_ms))

    def holding_below(self, stop: int, term: int) -> Self:
        """Leaders up to ``term`` have led. Those after :attr:`term` began at ``stop``, or above."""
        marks: list[Mark] = []
        for mark in self.marks:
            lowered = Mark(min(mark.stop, stop), mark.ms)
            if not marks or lowered.stop > marks[-1].stop:
                marks.append(lowered)
        return replace(self, marks=tuple(marks), term=term)

    def marked(self, stop: int, *, start: int) -> Self:
        """Everything below ``stop`` is sealed by now; nothing below ``start`` is kept any more."""
        marks = [mark for mark in self.marks if mark.stop > start]
        if stop > start and (not marks or stop > marks[-1].stop):
            marks.append(Mark(stop, self.time.ms))
        return replace(self, marks=_thinned(marks, self.time.ms))

    def stop_of_older_than(self, seconds: float) -> int | None:
        """The point below which everything is older than this; None where nothing is."""
        return next((mark.stop for mark in reversed(self.marks) if self.time.ms - mark.ms > seconds * 1000), None)

    # --- cursors ------------------------------------------------------------------------------------------------------

    def with_cursors(self, cursors: Mapping[str, StoredCursor]) -> Self:
        """The cursors as they stand now."""
        seen: dict[str, SeenCursor] = {}
        room = _CURSORS_BYTES_MAX
        for name, cursor in sorted(cursors.items(), key=lambda item: (item[1].position, item[0])):
            room -= len(name)
            if room < 0:
                break
            before = self.cursors.get(name)
            if before is None or before[:2] != (cursor.position, cursor.touched_at_ms):
                before = SeenCursor(cursor.position, cursor.touched_at_ms, self.time.ms)
            seen[name] = before
        return replace(self, cursors=seen)

    def with_cursors_told(self, cursors: Mapping[str, StoredCursor]) -> Self:
        """As :meth:`with_cursors`, at the first look at a log of an older version: with the times that they tell."""
        now_ms = min(self.time.at.wall_ms, self.time.at.store_ms)
        told = {
            name: SeenCursor(
                cursor.position, cursor.touched_at_ms, self.time.ms - max(now_ms - cursor.touched_at_ms, 0)
            )
            for name, cursor in cursors.items()
            if cursor.touched_at_ms >= EARLIEST_MS
        }
        return replace(self, cursors=told).with_cursors(cursors)

    def is_unmoved(self, name: str, cursor: StoredCursor, seconds: float) -> bool:
        """Whether the cursor has stood as it does, and was not touched, for longer than this."""
        seen = self.cursors.get(name)
        if seen is None or seen[:2] != (cursor.position, cursor.touched_at_ms):
            return False
        return self.time.ms - seen.ms > seconds * 1000

    # --- looks --------------------------------------------------------------------------------------------------------

    def looked_at(
        self,
        now: Moment,
        facts: LogFacts,
        cursors: Mapping[str, StoredCursor],
        *,
        at_most_ms: int | None = None,
    ) -> Self:
        """These ages after a look at the log. ``at_most_ms``: no more time has passed since they were stored."""
        ages = self.advanced(now, at_most_ms=at_most_ms)
        if facts.term > ages.term:
            ages = ages.holding_below(facts.end_of_term(ages.term) or 0, facts.term)
        return ages.marked(facts.stop, start=facts.start).with_cursors(cursors)

    # --- what is to be written ----------------------------------------------------------------------------------------

    def is_worth_writing(self, stored: "LogAges", seconds: Sequence[float]) -> bool:
        """Whether these ages, made from the ``stored`` ones, tell enough more. ``seconds``: of what is waited for."""
        if (self.marks, self.term) != (stored.marks, stored.term):
            return True
        shortest_ms = min((one * 1000 for one in seconds), default=None)
        if shortest_ms is None:
            return False
        return self.time.ms - stored.time.ms >= max(shortest_ms / _SHARE, NOTED_MS_MIN)

    def may_tell_more(self, elapsed_ms: int, seconds: float) -> bool:
        """Whether a look may find more entries older than ``seconds``, or is due anyway, after this time."""
        limit_ms = seconds * 1000
        later_ms = self.time.ms + max(elapsed_ms, 0)
        if any(self.time.ms - mark.ms <= limit_ms < later_ms - mark.ms for mark in self.marks):
            return True
        return elapsed_ms >= max(limit_ms / _SHARE, NOTED_MS_MIN)

    # --- the stored form ----------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The stored form (:mod:`octavo.metadata.encoding`)."""
        fields: dict[str, Any] = {
            **self.unknown,
            "time": self.time.to_fields(),
            "marks": [list(mark) for mark in self.marks],
            "term": self.term,
            "cursors": {name: list(seen) for name, seen in self.cursors.items()},
        }
        return encode_object(fields, format_number=FORMAT)


def first_look(now: Moment, facts: LogFacts, cursors: Mapping[str, StoredCursor]) -> LogAges:
    """The ages of a log of which none were counted."""
    ages = LogAges.begun(now, () if facts.is_counted else facts.told, term=facts.term)
    ages = ages.marked(facts.stop, start=facts.start)
    return ages.with_cursors(cursors) if facts.is_counted else ages.with_cursors_told(cursors)


def decode_ages(value: bytes, what: str) -> LogAges:
    """From the stored form. Raises :class:`MetadataError`."""
    reader = FieldReader(decode_object(value, what=what, format_max=FORMAT), what)
    try:
        return LogAges(
            time=ProvenTime.from_fields(reader.get("time", list)),
            marks=_marks_from(reader.get("marks", list)),
            term=reader.get("term", int),
            cursors=MappingProxyType(
                {name: SeenCursor(*_integers(seen, 3)) for name, seen in reader.get("cursors", dict).items()}
            ),
            unknown=reader.unknown_fields(),
        )
    except MetadataError:
        raise
    except (ValueError, TypeError) as error:
        raise reader.damaged(str(error)) from error


def _marks_from(stored: list[Any]) -> tuple[Mark, ...]:
    marks = tuple(Mark(*_integers(one, 2)) for one in stored)
    if any(one.stop >= other.stop or one.ms > other.ms for one, other in pairwise(marks)):
        raise ValueError("marks are not ascending")
    return marks


def _integers(values: Any, count: int) -> list[int]:
    if len(values) != count or not all(type(value) is int for value in values):
        raise ValueError(f"{values!r} is not {count} numbers")
    return list(values)


def _thinned(marks: Sequence[Mark], now_ms: int) -> tuple[Mark, ...]:
    """Without those that can be spared. What lies below one that is left out counts as younger than it is."""
    kept: list[Mark] = []
    for mark in reversed(marks):
        if len(kept) >= 2 and kept[-2].ms - mark.ms <= (now_ms - kept[-2].ms) / _SHARE:
            kept.pop()
        kept.append(mark)
    return tuple(reversed(kept))
