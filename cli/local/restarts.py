"""When a bookie process that ended is started again. Pure.

A process is *settled* once it has been ready for :data:`SETTLED_SECONDS`. What ends after that, whatever its exit
status, is started again after the shortest pause; what ends before it doubles the pause of the time before, up to the
longest, so that a bookie that cannot stay up costs little. Two ends are final: the exit status that says the data are
wrong, since only a person can help; and an end before the process was ever ready in this run of ``octavo up``, since
then the command has not kept its promise of a whole cluster and had better say so (a port in use, a disk that cannot
be written).
"""

from dataclasses import dataclass

EXIT_DATA_WRONG = 78
"""What a bookie exits with when its data or identity are wrong: starting it again cannot help."""

PAUSE_SECONDS_MIN = 0.5
"""First pause: long enough that a port and a lock are free again, short enough not to be waited for."""

PAUSE_SECONDS_MAX = 8.0
"""Longest pause: how long a cured cause goes unnoticed at most. With the start that follows it stays well below the
30 s after which a writer whose adds miss their quorum gives up: the pause must not be what kills it."""

SETTLED_SECONDS = 10.0
"""Time of service after which an end is news, not the same trouble again: longer than replaying the journal and the
first checkpoint take, which is where a bookie that cannot stay up fails."""


@dataclass(frozen=True, slots=True)
class StartAgain:
    """Start it again after this pause."""

    pause_seconds: float


@dataclass(frozen=True, slots=True)
class LeaveStopped:
    """Its data or identity are wrong: leave it, and go on with the others."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It never came up: stop everything and fail."""


type AfterEnd = StartAgain | LeaveStopped | GiveUp


@dataclass(slots=True)
class RestartPolicy:
    """Decides for one bookie. Told of every end, in order."""

    was_ready: bool = False
    """Whether any process of this bookie has been ready in this run."""
    pause_seconds: float = 0.0
    """The latest pause; 0 before the first."""

    def ended(self, exit_status: int, ready_seconds: float | None) -> AfterEnd:
        """A process ended with ``exit_status`` after having been ready for ``ready_seconds`` (None: it never was)."""
        if ready_seconds is not None:
            self.was_ready = True
        if exit_status == EXIT_DATA_WRONG:
            return LeaveStopped()
        if not self.was_ready:
            return GiveUp()
        settled = ready_seconds is not None and ready_seconds >= SETTLED_SECONDS
        if settled or self.pause_seconds == 0.0:
            self.pause_seconds = PAUSE_SECONDS_MIN
        else:
            self.pause_seconds = min(self.pause_seconds * 2, PAUSE_SECONDS_MAX)
        return StartAgain(self.pause_seconds)
