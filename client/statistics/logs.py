"""The statistics of a handle on a log."""

from octavo.protocol.light_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatistics:
    """Statistics of a handle on a log: what it knows, and how old that is. Made by ``Log.statistics()``.

    Examples:
        >>> statistics = log.statistics()
        >>> statistics.first_position, statistics.end, statistics.followers, statistics.is_leading
        (0, 3, 0, False)
    """

    log: str
    """The name of the log."""
    log_id: str
    layout: str
    """``"chain"`` or ``"stream"``."""
    is_closed: bool
    """Whether the handle has been closed."""
    first_position: int
    """The first position that can be read, as the handle knows it."""
    end: int
    """The position after the last that can be read, as the handle knows it."""
    metadata_seconds: float
    """How long ago the handle asked the metadata store for what it knows of the beginning of the log."""
    is_metadata_silent: bool
    """Whether the metadata store did not answer in time when readers asked where the log begins."""
    followers: int
    """Iterations of ``follow()`` that have begun and not ended."""
    is_leading: bool
    """Whether a writer of this handle leads."""
