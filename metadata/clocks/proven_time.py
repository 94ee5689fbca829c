"""How much time has passed for certain, told by several clocks of which any may be wrong. Pure.

Whatever cannot be taken back because enough time has passed (entries that retention drops, a bookie that is declared
lost) is decided by *proven time*, never by one clock's time of day (rule M5). The process that decides it, the
*observer*, notes from time to time what all clocks show in one *moment*:

=========  ===================================  ======================================  ================================
clock      shows                                proves                                  goes wrong
=========  ===================================  ======================================  ================================
host's     how long this host has been running  how much time has passed, while the     never, as far as is known; other
                                                same start of the same host looks       hosts and starts have others
observer's the time of day on this host         nothing alone                           a board without a battery begins
                                                                                        in 1970; an operator, a restored
                                                                                        virtual machine
store's    the time of day on the metadata      nothing alone                           likewise; its leader moves to
           store's leading server                                                       another server
=========  ===================================  ======================================  ================================

From one moment to the next, proven time goes on by the *least* of what the clocks say has passed. So it never goes
faster than any clock that can be compared, and a clock that is behind or ahead by the same amount all the time changes
nothing: only differences count. A clock that is set in between counts as follows.

* Set forward: the others are slower, and they count.
* Set back: nothing is proven for that step. What was proven before stays, and from then on time goes on as before, so a
  wrong clock costs one step, however wrong it was.
* Set from a time that cannot be (before there was Octavo) to one that can: the clock was never set before. It says
  nothing about the step. If no other clock does, nothing is proven.

Limit: two clocks that are wrong in the same way are believed if no process lived through the moment at which they were
set. An observer that finds what another one has stored has lived through that moment if it looked before
(:mod:`octavo.metadata.clocks.handed_over`).
"""

from dataclasses import replace
from typing import Any, Final, NamedTuple, Self

from octavo.protocol.light_dataclass import dataclass

EARLIEST_MS: Final = 1_577_836_800_000
"""The beginning of 2020: no clock that was ever set shows an earlier time."""

SKEW_MS: Final = 60_000
"""Clocks that a time server sets differ by milliseconds, and by some seconds while a virtual machine moves."""

_DISAGREE_SHARE: Final = 0.01
"""Quartz drifts by a hundredth of this."""


_TOLD_MS: Final = 86_400_000
"""For so long people are told that a clock was set."""


class BootTime(NamedTuple):
    """How long a host has been running. Two of them can be compared if they are of one start."""

    boot_id: str
    """Of the start of the host: no other start of any host has it."""
    ms: int


class Moment(NamedTuple):
    """The clocks at one moment."""

    wall_ms: int
    """The observer's time of day, in milliseconds since 1970."""
    store_ms: int
    """The metadata store's."""
    boot: BootTime
    """The observer's host's."""

    @property
    def ahead_ms(self) -> int:
        """By how much the observer's clock is ahead of the metadata store's; below 0 where it is behind."""
        return self.wall_ms - self.store_ms

    @property
    def clocks_agree(self) -> bool:
        """Whether the observer and the metadata store show the same time of day."""
        return abs(self.ahead_ms) <= SKEW_MS


class Disagreement(NamedTuple):
    """The time that passed by each clock in a step in which they did not agree, in milliseconds."""

    proven_ms: int
    """The proven time after that step."""
    wall_ms: int
    store_ms: int
    boot_ms: int | None
    """None where the host, or its start, was another one than before."""


@dataclass(frozen=True, slots=True)
class ProvenTime:
    """See the module. Immutable."""

    at: Moment
    ms: int = 0
    """The time that is proven, since the first moment."""
    disagreement: Disagreement | None = None
    """The latest."""

    def advanced(self, now: Moment, *, at_most_ms: int | None = None) -> Self:
        """The proven time by now. ``at_most_ms``: no more time has passed since another observer stored
        this."""
        before = self.at
        wall_ms, store_ms = now.wall_ms - before.wall_ms, now.store_ms - before.store_ms
        boot_ms = now.boot.ms - before.boot.ms if now.boot.boot_id == before.boot.boot_id else None
        steps = [] if boot_ms is None else [boot_ms]
        if _is_set(before.wall_ms) == _is_set(now.wall_ms):
            steps.append(wall_ms)
        if _is_set(before.store_ms) == _is_set(now.store_ms):
            steps.append(store_ms)
        step_ms = max(min(steps, default=0), 0)
        ms = self.ms + (step_ms if at_most_ms is None else min(step_ms, at_most_ms))
        if not _disagree(wall_ms, store_ms, boot_ms):
            return replace(self, at=now, ms=ms)
        return replace(self, at=now, ms=ms, disagreement=Disagreement(ms, wall_ms, store_ms, boot_ms))

    @property
    def trouble(self) -> str:
        """How clocks disagree, for people: at the latest moment, or by what a clock was set during the last day. Empty
        where they do not."""
        if not self.at.clocks_agree:
            seconds, where = abs(self.at.ahead_ms) / 1000, "ahead of" if self.at.ahead_ms > 0 else "behind"
            return f"the clock of the client is {seconds:,.0f} s {where} the clock of the metadata store"
        found = self.disagreement
        if found is None or self.ms - found.proven_ms > _TOLD_MS:
            return ""
        host = "" if found.boot_ms is None else f" and {found.boot_ms / 1000:,.0f} s by its host's run time"
        return (
            f"a clock was set: {found.wall_ms / 1000:,.0f} s passed by the clock of the client,"
            f" {found.store_ms / 1000:,.0f} s by that of the metadata store{host}"
        )

    def to_fields(self) -> list[Any]:
        """The stored form."""
        at, found = self.at, self.disagreement
        moment = [at.wall_ms, at.store_ms, at.boot.boot_id, at.boot.ms]
        return [self.ms, moment, None if found is None else list(found)]

    @classmethod
    def from_fields(cls, fields: Any) -> Self:
        """From the stored form. Raises ValueError or TypeError."""
        ms, (wall_ms, store_ms, boot_id, boot_ms), found = fields
        if type(boot_id) is not str or not all(type(number) is int for number in (ms, wall_ms, store_ms, boot_ms)):
            raise ValueError("a proven time is numbers and the id of a start")
        moment = Moment(wall_ms, store_ms, BootTime(boot_id, boot_ms))
        return cls(moment, ms, None if found is None else _disagreement_from(found))


def _disagreement_from(fields: Any) -> Disagreement:
    proven_ms, wall_ms, store_ms, boot_ms = fields
    if not all(type(number) is int for number in (proven_ms, wall_ms, store_ms, 0 if boot_ms is None else boot_ms)):
        raise ValueError("a disagreement of clocks is four numbers")
    return Disagreement(proven_ms, wall_ms, store_ms, boot_ms)


def _is_set(time_of_day_ms: int) -> bool:
    return time_of_day_ms >= EARLIEST_MS


def _disagree(*steps_ms: int | None) -> bool:
    known = [step for step in steps_ms if step is not None]
    return max(known) - min(known) > max(SKEW_MS, _DISAGREE_SHARE * max(known))
