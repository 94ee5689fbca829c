"""When a bookie process that ended is started again. Pure.

A process is *settled* once it has been ready for :data:`SETTLED_SECONDS`. A settled process that ends, with whatever
exit status, is started again after the shortest pause. A process that ends before doubles the previous pause, up to the
longest, so that a bookie that cannot stay up costs little. Two ends are final: the exit status for wrong data, because
only the operator can help; and an end before the process was ever ready in this run of ``octavo up``, because the
command then cannot give the user a whole cluster and must say why (a port in use, a disk that cannot be written).
"""

from octavo.protocol.light_dataclass import dataclass

EXIT_DATA_WRONG = 78
"""Exit status of a bookie whose data or identity are wrong: starting it again cannot help."""

PAUSE_SECONDS_MIN = 0.5
"""First pause: long enough that a port and a lock are free again, short enough that users do not notice it."""

PAUSE_SECONDS_MAX = 8.0
"""Longest pause, and so the longest time before a bookie runs again after its problem has been solved. Together with
the start that follows, it is well below the 30 s after which a writer without an ack quorum fails."""

SETTLED_SECONDS = 10.0
"""Time of service after which an end counts as a new problem: longer than the replay of the journal and the first
checkpoint, during which a bookie that cannot stay up fails."""


@dataclass(frozen=True, slots=True)
class StartAgain:
    """Start the bookie again after this pause."""

    pause_seconds: float


@dataclass(frozen=True, slots=True)
class LeaveStopped:
    """The bookie's data or identity are wrong: leave it stopped and go on with the other bookies."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The bookie was never ready: stop everything and fail."""


type AfterEnd = StartAgain | LeaveStopped | GiveUp


@dataclass(slots=True)
class RestartPolicy:
    """Decides for one bookie. Must be told of every end, in order."""

    was_ready: bool = False
    """Whether any process of this bookie has been ready in this run."""
    pause_seconds: float = 0.0
    """The latest pause; 0 before the first."""

    def ended(self, exit_status: int, ready_seconds: float | None) -> AfterEnd:
        """A process ended with ``exit_status`` after it had been ready for ``ready_seconds`` (None: never)."""
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
