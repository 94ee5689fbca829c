"""Which ranges of a stream are moved next, and into how many objects. Pure.

What is moved is the front of the stream, in order (rule J5): the first range that must not be moved stops it, with a
reason that operators can read. Ranges are moved when they are older than the local window, or when as many bytes as it
holds lie behind them; either is enough. The last fragment that holds an entry stays on bookies, and so does all behind
it: takeovers and gateways read the last entry.

An object is worth its requests only from a certain size. Smaller ranges wait for their neighbours and share one, unless
what follows cannot join them: then they would wait for ever. A range that is larger than an object may be is cut into
several of about the same number of entries.
"""

import enum
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from octavo.bookie.archive.format import OBJECT_BYTES_MAX, RANGES_MAX, IdRange
from octavo.metadata.ledger.archive_word import WORDS_MAX
from octavo.protocol.entries import OVERHEAD_BYTES_MAX
from octavo.protocol.quorums import Quorums

OBJECT_BYTES_MIN = 1024 * 1024
"""Below it ranges wait for neighbours: requests are paid for one by one, and a list has a line for each object."""
TABLES_BYTES = 1024 * 1024
"""More than the head, the index and the tail of the largest object have together."""


class Candidate(NamedTuple):
    """A settled fragment, without what was truncated of it."""

    ids: IdRange
    """Empty where the last id is one below the first."""
    payload_bytes: int
    quorums: Quorums
    ended_at_ms: int
    """When the fragment after it was begun, by the clock of the metadata store."""
    archived: bool = False
    """It has words."""
    problem: str | None = None
    """Why it must not be moved: copies are missing or differ, or a debt is open."""


class LocalWindow(NamedTuple):
    """The entries that stay on the disks of bookies, by age and by bytes.

    None: that measure moves nothing; with both None nothing is moved.
    """

    seconds: float | None = None
    bytes: int | None = None


class Waiting(enum.Enum):
    """Why no more of a stream is moved now."""

    NOT_OLD = "not old"
    """What follows is within the local window, or is the newest."""
    SMALL = "small"
    """What is old enough is too little for an object."""
    PROBLEM = "problem"


class Choice(NamedTuple):
    """The objects to make now, and why there are no more."""

    objects: tuple[tuple[IdRange, ...], ...]
    """The ranges of each object, in order. Objects that share a range lie one after another."""
    waiting: Waiting
    waiting_at: int | None
    """The first id that is not moved; None: there is none."""
    problem: str | None = None


class ObjectLimits(NamedTuple):
    """Sizes of objects."""

    bytes_min: int = OBJECT_BYTES_MIN
    bytes_max: int = OBJECT_BYTES_MAX - TABLES_BYTES
    """Of sealed entries."""
    ranges_max: int = RANGES_MAX
    parts_max: int = WORDS_MAX
    """Objects of one range."""


def choose(
    candidates: Sequence[Candidate], window: LocalWindow, *, now_ms: int, limits: ObjectLimits | None = None
) -> Choice:
    """The objects to be made of the front of a stream. ``candidates``: all of its settled fragments, in order."""
    limits = limits or ObjectLimits()
    movable = _without_newest(candidates)
    behind_bytes = sum(one.payload_bytes for one in candidates)
    objects: list[tuple[IdRange, ...]] = []
    group = _Group(limits)
    for at, one in enumerate(candidates):
        behind_bytes -= one.payload_bytes
        if one.archived or one.ids.entry_count == 0:
            continue
        if at >= movable or not _is_due(one, window, now_ms, behind_bytes):
            return group.choice(objects, Waiting.NOT_OLD, one.ids.first)
        problem = one.problem or _size_problem(one, limits)
        if problem is not None:
            return group.choice(objects, Waiting.PROBLEM, one.ids.first, problem)
        if not group.takes(one):
            objects += group.taken()  # too small perhaps, but nothing can join it any more
        if sealed_bytes_max(one) > limits.bytes_max:
            objects += [(part,) for part in _parts(one, limits)]
        else:
            group.add(one)
    return group.choice(objects, Waiting.NOT_OLD, None)


def sealed_bytes_max(one: Candidate) -> int:
    """At most so large are the sealed entries of a candidate."""
    return one.payload_bytes + one.ids.entry_count * OVERHEAD_BYTES_MAX


class _Group:
    """Consecutive ranges that will share an object."""

    def __init__(self, limits: ObjectLimits) -> None:
        self._limits = limits
        self._ranges: list[Candidate] = []

    @property
    def size(self) -> int:
        return sum(map(sealed_bytes_max, self._ranges))

    def takes(self, one: Candidate) -> bool:
        """Whether a range can join. A group that is large enough is complete."""
        if not self._ranges:
            return True
        return (
            self.size < self._limits.bytes_min
            and one.quorums == self._ranges[0].quorums
            and len(self._ranges) < self._limits.ranges_max
            and self.size + sealed_bytes_max(one) <= self._limits.bytes_max
        )

    def add(self, one: Candidate) -> None:
        self._ranges.append(one)

    def taken(self) -> list[tuple[IdRange, ...]]:
        """Its ranges as an object, if it has any. It is empty afterwards."""
        ranges, self._ranges = tuple(one.ids for one in self._ranges), []
        return [ranges] if ranges else []

    def choice(
        self, objects: list[tuple[IdRange, ...]], waiting: Waiting, waiting_at: int | None, problem: str | None = None
    ) -> Choice:
        """The objects chosen so far, with these ranges if they are enough for an object."""
        if self.size >= self._limits.bytes_min:
            objects += self.taken()
        elif self._ranges and problem is None:
            waiting, waiting_at = Waiting.SMALL, self._ranges[0].ids.first
        return Choice(tuple(objects), waiting, waiting_at, problem)


def _without_newest(candidates: Sequence[Candidate]) -> int:
    """How many candidates lie before the last one that holds an entry."""
    return max((at for at, one in enumerate(candidates) if one.ids.entry_count), default=0)


def _is_due(one: Candidate, window: LocalWindow, now_ms: int, behind_bytes: int) -> bool:
    if window.seconds is not None and now_ms - one.ended_at_ms >= window.seconds * 1000:
        return True
    return window.bytes is not None and behind_bytes >= window.bytes


def _size_problem(one: Candidate, limits: ObjectLimits) -> str | None:
    if _part_count(one, limits) <= min(limits.parts_max, one.ids.entry_count):
        return None
    return f"it has {one.payload_bytes} bytes, more than {limits.parts_max} objects hold"


def _part_count(one: Candidate, limits: ObjectLimits) -> int:
    return -(-sealed_bytes_max(one) // limits.bytes_max)


def _parts(one: Candidate, limits: ObjectLimits) -> list[IdRange]:
    """A range in parts of about as many entries. Entries differ in size, so a part may turn out too large; the writer
    refuses it, and it is cut again."""
    first, last = one.ids
    count, parts = one.ids.entry_count, _part_count(one, limits)
    bounds = [first + count * at // parts for at in range(parts)] + [last + 1]
    return [IdRange(start, stop - 1) for start, stop in pairwise(bounds)]
