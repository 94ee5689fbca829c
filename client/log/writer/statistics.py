"""Makes the statistics of a log's writer, when they are asked for; notes the rare turns of its life."""

from collections.abc import Callable
from typing import Final

from octavo.client.log.seam.active_segment import ActiveSegment
from octavo.client.log.writer.life import NEXT, Life
from octavo.client.statistics.writers import AddStatistics, LogWriterState, LogWriterStatistics
from octavo.client.write.statistics import replication_statistics
from octavo.protocol.errors import OctavoError

_STATES: Final[dict[Life, LogWriterState]] = {
    Life.WRITING: "writing",
    Life.HEALING: "healing",
    Life.LOST: "lost",
    Life.ENDED: "ended",
}


class Course:
    """The life of a writer so far: how long it has been in its present state, how often it healed."""

    def __init__(self, now: Callable[[], float]) -> None:
        """``now``: the loop's clock."""
        self._now = now
        self._since = now()
        self.heals = 0

    def moved(self, before: Life, life: Life) -> None:
        """It has gone from one state to the next."""
        assert life in NEXT[before], f"{before} -> {life}"
        if life is not before:
            self._since = self._now()
        self.heals += before is Life.HEALING and life is Life.WRITING

    @property
    def state_seconds(self) -> float:
        """How long it has been in its present state."""
        return self._now() - self._since


def log_writer_statistics(
    log_name: str,
    life: Life,
    course: Course,
    active: ActiveSegment,
    adds: AddStatistics,
    *,
    term: int,
    next_position: int,
    end: int,
    failure: OctavoError | None,
    rolls: int,
    is_rolling: bool,
    segment_seconds: float,
) -> LogWriterStatistics:
    """The statistics of the log's writer with these parts."""
    core, failure = active.core, failure or active.failure
    return LogWriterStatistics(
        log=log_name,
        term=term,
        state=_STATES[life],
        state_seconds=course.state_seconds,
        failure=None if failure is None else failure.message,
        next_position=next_position,
        end=end,
        adds=adds,
        heals=course.heals,
        rolls=rolls,
        is_rolling=is_rolling,
        segment_bytes_left=max(0, active.full_at - max(core.length, core.length_pushed)),
        segment_seconds=segment_seconds,
        replication=replication_statistics(core),
    )
