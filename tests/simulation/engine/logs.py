"""Log lines of the code under test: warnings go into the trace; an injected fault must explain each error."""

from typing import TYPE_CHECKING, Any

import structlog
from simulation.judges.history import Violation

if TYPE_CHECKING:
    from simulation.world import World

_DAMAGE = ("disk: exchanged", "disk: rot", "disk: lying", "disk: read error", "disk: wiped")

EXPLAINED_BY: dict[str, tuple[str, ...]] = {
    "storage failed": ("disk: ",),
    "disk full, waiting for free space": ("disk: full",),
    "read-only: a disk is short of space": ("disk: full",),
    "disk full, cannot create the next journal segment": ("disk: full",),
    "journal damaged": _DAMAGE,
    "the bookie is in doubt: it may have lost acknowledged entries": _DAMAGE,
    "entry unreadable": _DAMAGE,
    "the directories are empty, but the cluster knows a bookie at this address: starting as a new bookie": _DAMAGE,
    "damaged entry log is kept and not compacted": _DAMAGE,
    "scrubbed": _DAMAGE,
    "index damaged": _DAMAGE,
    "the metadata are older than the directories: no bookie collects garbage until an operator ends the hold": (
        "metadata: restored to an older state",
        "process: forgotten bookie started",
    ),
}
"""Error-level event -> prefixes of counters; one such counter must not be zero when the event is logged."""

_current: list["World"] = []


class LogJudge:
    """Receives every log line of a universe from ``warning`` up."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def __enter__(self) -> None:
        _current.append(self._world)

    def __exit__(self, *_exception: object) -> None:
        _current.remove(self._world)

    @staticmethod
    def install() -> None:
        """Send the log of this interpreter to the running universe."""
        structlog.configure(
            processors=[_hear],
            wrapper_class=structlog.make_filtering_bound_logger(30),
            cache_logger_on_first_use=False,
        )


def _hear(_logger: Any, level: str, event: Any) -> Any:
    if _current:
        world = _current[-1]
        process = world.loop.current
        if process.alive:
            what = str(event.get("event"))
            details = " ".join(f"{key}={value}" for key, value in event.items() if key not in ("event", "exc_info"))
            world.note(process.name, "%s: %s %s", level, what, details)
            if level in ("error", "critical", "exception"):
                _judge(world, process.name, what, details, event.get("exc_info"))
    raise structlog.DropEvent


def _judge(world: "World", where: str, what: str, details: str, error: object) -> None:
    causes = EXPLAINED_BY.get(what, ())
    counters = world.trace.counters
    if not any(counters[counter] for counter in counters if counter.startswith(causes or ("\0",))):
        violation = Violation("no unexplained error", f"{where} logged {what!r} {details}")
        if isinstance(error, BaseException):
            violation.__cause__ = error
        world.violate(violation)
