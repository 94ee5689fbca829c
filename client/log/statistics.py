"""Makes the statistics of a handle on a log, when they are asked for."""

from typing import TYPE_CHECKING

from octavo.client.log.read.beginning import Beginning
from octavo.client.log.seam.view import LogView
from octavo.client.log.writer.own_writers import OwnWriters

if TYPE_CHECKING:
    from octavo.client.statistics.logs import LogStatistics


def log_statistics(view: LogView, beginning: Beginning, own: OwnWriters, *, followers: int) -> "LogStatistics":
    """The statistics of the handle with these parts."""
    from octavo.client.statistics.logs import LogStatistics  # noqa: PLC0415 - short commands do not ask

    return LogStatistics(
        log=view.name,
        log_id=view.log_id,
        layout=view.layout,
        is_closed=view.closed,
        first_position=view.first_position,
        end=max(view.end, own.end),
        metadata_seconds=beginning.known_seconds,
        is_metadata_silent=beginning.is_silent,
        followers=followers,
        is_leading=own.leads,
    )
