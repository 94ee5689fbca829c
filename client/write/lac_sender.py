"""Decides when an idle writer sends its last add confirmed (LAC) as a message of its own (rule W2).

Every entry carries the LAC known when it was sealed. So while adds follow one another, each entry announces the
acknowledgement of those before it, and only the last entries are not announced. When everything is acknowledged a
timer is started; if nothing was added when it fires, the writer sends an explicit LAC. Each check costs a turn of the
event loop, so it is done less often while adds are found to follow one another.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from octavo.client.write.pipeline import Pipeline
from octavo.protocol.ids import EntryId

_DELAY_FACTOR_BUSY: Final = 5
"""How many times longer the timer runs after a check that found adds under way."""


class LacSender:
    """See the module. ``is_adding`` returns whether there are adds that are not pushed yet; ``send`` sends an explicit
    LAC with the length of the ledger there."""

    __slots__ = ("_armed_at", "_delay_seconds", "_is_adding", "_loop", "_pipeline", "_seconds", "_send", "timer")

    def __init__(
        self,
        pipeline: Pipeline,
        delay_seconds: float,
        *,
        is_adding: Callable[[], bool],
        send: Callable[[EntryId, int], None],
    ) -> None:
        self._pipeline = pipeline
        self._delay_seconds = self._seconds = delay_seconds
        self._is_adding = is_adding
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._armed_at: EntryId | None = None
        self.timer: asyncio.TimerHandle | None = None
        """Runs from the last acknowledgement to the check. A plain attribute, because it is read at every
        acknowledgement."""

    def arm(self) -> None:
        """Everything pushed is acknowledged: check later whether adds have stopped. Only if :attr:`timer` is None."""
        self._arm(self._seconds)

    def cancel(self) -> None:
        """Send nothing until armed again."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _arm(self, seconds: float) -> None:
        self._armed_at = self._pipeline.last_add_confirmed
        self.timer = self._loop.call_later(seconds, self._check)

    def _check(self) -> None:
        self.timer = None
        lac = self._pipeline.last_add_confirmed
        if self._pipeline.pending or self._is_adding() or lac is None:
            self._seconds = self._delay_seconds * _DELAY_FACTOR_BUSY
            return
        if lac != self._armed_at:
            self._arm(self._delay_seconds)
            return
        self._seconds = self._delay_seconds
        self._send(lac, self._pipeline.length)
