"""How long bookies have been missing or held, for certain. Pure (rule A13).

The document of the conditions says since when, by the clock of the auditor or the operator who wrote it. An auditor
whose clock is a day ahead would declare lost what is missing for a moment, and end every hold at once. So the auditor
counts in proven time (:mod:`octavo.metadata.clocks.proven_time`) since it has first seen a condition as it stands. The
document ``repair/clock`` carries the count from auditor to auditor. What a hold says is how long it lasts, not when it
ends: both of its times are of one clock, the operator's.

A condition that begins anew has another time, and is counted anew. A count that is lost, or that an older version has
not kept, begins at the next look: a bookie is held, or missing, for longer then, never for less.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from octavo.metadata.clocks.proven_time import BootTime, Moment, ProvenTime
from octavo.metadata.cluster.repair_states import BookieCondition, Condition, RepairStates
from octavo.metadata.encoding import FieldReader, decode_object, encode_object
from octavo.protocol.errors import MetadataError
from octavo.protocol.ids import BookieId
from octavo.protocol.light_dataclass import dataclass

DOCUMENT: Final = "repair/clock"

FORMAT: Final = 1

_COUNTED: Final = frozenset({Condition.MISSING, Condition.HELD})

_SHARE: Final = 16
"""How often the count is stored during the shortest wait, if nothing else changes."""

_NOTED_MS_MIN: Final = 1000
"""It is not stored more often."""


class Wait(NamedTuple):
    """A condition as it was first seen."""

    since_ms: int
    until_ms: int | None
    """Both as the condition says."""
    ms: int
    """The proven time at the first look that found it so."""


@dataclass(frozen=True, slots=True)
class Waits:
    """See the module. Immutable."""

    time: ProvenTime
    begun: Mapping[BookieId, Wait] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Fields of a newer version, kept as they are."""

    def advanced(self, now: Moment, *, at_most_ms: int | None = None) -> Self:
        """The same by now. ``at_most_ms``: no more time has passed since they were stored."""
        return replace(self, time=self.time.advanced(now, at_most_ms=at_most_ms))

    def of(self, states: RepairStates) -> Self:
        """With the conditions of these bookies that are counted, and no others."""
        begun = {
            name: wait if (wait := self._wait(name, entry)) is not None
            else Wait(entry.since_ms, entry.until_ms, self.time.ms)
            for name, entry in states.bookies.items()
            if entry.condition in _COUNTED
        }  # fmt: skip
        return replace(self, begun=begun)

    def elapsed_ms(self, name: BookieId, entry: BookieCondition) -> int:
        """How long the bookie has been in this condition, for certain."""
        wait = self._wait(name, entry)
        return 0 if wait is None else self.time.ms - wait.ms

    def is_worth_writing(self, stored: "Waits", lost_ms: int) -> bool:
        """Whether these waits tell enough more than the ``stored`` ones. ``lost_ms``: the grace time."""
        if self.begun != stored.begun:
            return True
        holds = [wait.until_ms - wait.since_ms for wait in self.begun.values() if wait.until_ms is not None]
        return bool(self.begun) and self.time.ms - stored.time.ms >= max(min([lost_ms, *holds]) / _SHARE, _NOTED_MS_MIN)

    def _wait(self, name: BookieId, entry: BookieCondition) -> Wait | None:
        wait = self.begun.get(name)
        return wait if wait is not None and wait[:2] == (entry.since_ms, entry.until_ms) else None

    def encode(self) -> bytes:
        """The stored form (:mod:`octavo.metadata.encoding`)."""
        begun = {name: list(wait) for name, wait in self.begun.items()}
        return encode_object({**self.unknown, "time": self.time.to_fields(), "waits": begun}, format_number=FORMAT)


NOTHING_COUNTED: Final = Waits(ProvenTime(Moment(0, 0, BootTime("", 0))))
"""While nothing is waited for."""


def is_counted(entry: BookieCondition) -> bool:
    """Whether it matters how long a bookie is in this condition."""
    return entry.condition in _COUNTED


def decode_waits(value: bytes) -> Waits:
    """From the stored form. Raises :class:`MetadataError`."""
    reader = FieldReader(decode_object(value, what=f"document {DOCUMENT}", format_max=FORMAT), f"document {DOCUMENT}")
    try:
        return Waits(
            ProvenTime.from_fields(reader.get("time", list)),
            MappingProxyType({BookieId(name): _wait(*wait) for name, wait in reader.get("waits", dict).items()}),
            reader.unknown_fields(),
        )
    except MetadataError:
        raise
    except (ValueError, TypeError) as error:
        raise reader.damaged(str(error)) from error


def _wait(since_ms: int, until_ms: int | None, ms: int) -> Wait:
    if not all(type(number) is int for number in (since_ms, since_ms if until_ms is None else until_ms, ms)):
        raise ValueError("a wait is two times and a proven time")
    return Wait(since_ms, until_ms, ms)
