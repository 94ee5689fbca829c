"""Decides when an idle writer sends its last add confirmed (LAC) as a message of its own (rule W2).

Every entry carries the LAC known when it was sealed. So while adds follow one another, each entry announces the
acknowledgement of those before it, and only the last entries are not announced. When everything is acknowledged the
sender is *armed*: a little later it checks, and if nothing was added meanwhile, the writer sends an explicit LAC. The
check is done less often while adds are found to follow one another. All writers of a client share a timer
(:mod:`octavo.client.wire.turn`).
"""

from collections.abc import Callable
from typing import Final

from octavo.client.wire.turn import Turn
from octavo.client.write.pipeline import Pipeline
from octavo.protocol.ids import EntryId

_DELAY_FACTOR_BUSY: Final = 5
"""How many times longer the timer runs after a check that found adds under way."""


class LacSender:
    """See the module. ``is_adding`` returns whether there are adds that are not pushed yet; ``send`` sends an explicit
    LAC with the length of the ledger there."""

    __slots__ = (
        "_armed_at",
        "_cancelled",
        "_delay_seconds",
        "_is_adding",
        "_pipeline",
        "_seconds",
        "_send",
        "_turn",
        "armed",
    )

    def __init__(
        self,
        pipeline: Pipeline,
        delay_seconds: float,
        *,
        turn: Turn,
        is_adding: Callable[[], bool],
        send: Callable[[EntryId, int], None],
    ) -> None:
        self._pipeline = pipeline
        self._delay_seconds = self._seconds = delay_seconds
        self._is_adding = is_adding
        self._send = send
        self._turn = turn
        self._armed_at: EntryId | None = None
        self._cancelled = False
        self.armed = False
        """A check is due. A plain attribute, because it is read at every acknowledgement."""

    def arm(self) -> None:
        """Everything pushed is acknowledged: check later whether adds have stopped. Only if not :attr:`armed`."""
        self._arm(self._seconds)

    def cancel(self) -> None:
        """Send nothing any more."""
        self._cancelled = True

    def _arm(self, seconds: float) -> None:
        self._armed_at = self._pipeline.last_add_confirmed
        self.armed = True
        self._turn.at_end_after(seconds, self._check)

    def _check(self) -> None:
        self.armed = False
        if self._cancelled:
            return
        lac = self._pipeline.last_add_confirmed
        if self._pipeline.pending or self._is_adding() or lac is None:
            self._seconds = self._delay_seconds * _DELAY_FACTOR_BUSY
            return
        if lac != self._armed_at:
            self._arm(self._delay_seconds)
            return
        self._seconds = self._delay_seconds
        self._send(lac, self._pipeline.length)
