"""When a writer tells its last add confirmed by itself (rule W2).

Every entry carries the LAC of the moment it was sealed; so while adds come, each tells of those before it, and only
the last ones are told of by nobody. Once everything is acknowledged a timer runs, and if nothing was added when it
ends, an explicit LAC is told. To look costs a turn of the loop: where adds are found to come one after another it is
done less often.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from octavo.client.write.pipeline import Pipeline
from octavo.protocol.ids import EntryId

_DELAY_FACTOR_BUSY: Final = 5
"""How much longer a writer whose adds were found coming one after another waits before it looks again whether they have
stopped."""


class LacTeller:
    """See the module. ``is_adding``: whether adds gather that are not pushed yet; ``tell`` sends an explicit LAC and
    the length there."""

    __slots__ = ("_armed_at", "_delay_seconds", "_is_adding", "_loop", "_pipeline", "_seconds", "_tell", "timer")

    def __init__(
        self,
        pipeline: Pipeline,
        delay_seconds: float,
        *,
        is_adding: Callable[[], bool],
        tell: Callable[[EntryId, int], None],
    ) -> None:
        self._pipeline = pipeline
        self._delay_seconds = self._seconds = delay_seconds
        self._is_adding = is_adding
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._armed_at: EntryId | None = None
        self.timer: asyncio.TimerHandle | None = None
        """Running while it is to be found out whether adds have stopped. A plain attribute: it is looked at with every
        acknowledgement."""

    def arm(self) -> None:
        """Everything pushed is acknowledged: find out whether more follows. Only while :attr:`timer` is None."""
        self._arm(self._seconds)

    def cancel(self) -> None:
        """Tell nothing more, until armed again."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _arm(self, seconds: float) -> None:
        self._armed_at = self._pipeline.last_add_confirmed
        self.timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self.timer = None
        lac = self._pipeline.last_add_confirmed
        if self._pipeline.pending or self._is_adding() or lac is None:
            self._seconds = self._delay_seconds * _DELAY_FACTOR_BUSY
            return
        if lac != self._armed_at:
            self._arm(self._delay_seconds)
            return
        self._seconds = self._delay_seconds
        self._tell(lac, self._pipeline.length)
