"""A time of day that a test moves."""

from datetime import UTC, datetime, timedelta


class Clock:
    """The argument ``wall_clock`` of ``octavo.connect``: the time that new entries and ledgers are marked with.

    It goes on as the host's clock does, and is moved by :meth:`move`. No retention by age follows it: what a log drops
    for its age has to be old by the metadata store's clock as well (rule P8), and a clock that steps proves no age.

    Examples:
        >>> clock = octavo.testing.Clock()
        >>> client = await octavo.connect(cluster.uri, wall_clock=clock)
        >>> clock.move(timedelta(days=1))
    """

    def __init__(self) -> None:
        self._ahead = timedelta()

    def __call__(self) -> datetime:
        """The time, with the zone UTC."""
        return datetime.now(UTC) + self._ahead

    def move(self, by: timedelta) -> None:
        """Move the clock; back if ``by`` is negative."""
        self._ahead += by
