"""Rolls: how a log's writer goes on in a new segment, by size, by age, or because the program asks (rules U6 and P2).

One roll is made at a time, in turn with every other change of the metadata that the writer makes. After a roll that
failed the present segment serves on.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from octavo.client.log.seam.active_segment import ActiveSegment
from octavo.client.log.seam.lead import LogLead
from octavo.client.log.writer.adds import LogAdds
from octavo.client.options import ClientOptions
from octavo.protocol.errors import NotLeaderError, OctavoError

log = logging.getLogger("octavo.client")

_RETRY_SECONDS: Final = 1.0
"""Pause after a roll that failed: a segment may grow beyond its size, and the metadata store must not be flooded."""


class RollsSide(NamedTuple):
    """The leader that rolls, as its rolls see it."""

    is_writing: Callable[[], bool]
    """Whether the leader sends adds to its active segment."""
    is_closing: Callable[[], bool]
    listen_to: Callable[[ActiveSegment], bool]
    """Make it the active segment; whether it can be written."""
    end: Callable[[OctavoError], None]
    """Another client leads."""
    defect: Callable[[BaseException], None]
    """Something has happened that must not."""


class Rolls:
    """See the module, and :class:`~octavo.client.log.seam.lead.LeadHost`. ``turns`` is held while the metadata are
    changed."""

    def __init__(
        self, lead: LogLead, adds: LogAdds, options: ClientOptions, turns: asyncio.Lock, side: RollsSide
    ) -> None:
        self._lead = lead
        self._adds = adds
        self._options = options
        self._turns = turns
        self._side = side
        self._loop = adds.front.loop
        adds.on_full = self.begin_if_due
        self.active_since = self._loop.time()
        """When the active segment began."""
        self.made = 0
        """How many rolls were made."""
        self.rolling: asyncio.Task[OctavoError | None] | None = None
        """The roll that is under way."""
        self.drained: asyncio.Future[None] | None = None
        """Answered once nothing is in flight; only while a roll waits for that."""
        self._not_before = 0.0
        self._ageing: asyncio.TimerHandle | None = None

    def begin(self) -> "asyncio.Task[OctavoError | None] | None":
        """Begin a roll, unless the leader heals, closes or has ended. The task's result is why there is no new segment,
        although the present one holds something."""
        if not self._side.is_writing() or self._side.is_closing():
            return None
        self.rolling = rolling = self._loop.create_task(self._roll(), name=f"octavo roll of log {self._lead.name}")
        rolling.add_done_callback(self._rolled)
        return rolling

    def begin_if_due(self) -> None:
        """The segment is large enough: begin a roll, unless one is under way, or has failed a moment ago."""
        if self.rolling is None and self._loop.time() >= self._not_before:
            self.begin()

    def _rolled(self, rolling: "asyncio.Task[OctavoError | None]") -> None:
        if self.rolling is rolling:
            self.rolling = None
        if not rolling.cancelled() and (error := rolling.exception()) is not None:
            self._side.defect(error)

    async def stop(self) -> None:
        """Cut short the roll that is under way."""
        if self.rolling is not None:
            self.rolling.cancel()
            await asyncio.wait([self.rolling])
        self.drained = None

    def begin_by_age(self) -> None:
        """Begin a roll whenever the active segment is old enough, until :meth:`stop_by_age`."""
        left = self.active_since + self._options.log_segment_seconds - self._loop.time()
        if left <= 0:
            if self.rolling is None and self._adds.segment.core.is_written:
                self.begin()
            self.active_since = self._loop.time()
            left = self._options.log_segment_seconds
        self._ageing = self._loop.call_later(left, self.begin_by_age)

    def stop_by_age(self) -> None:
        """Begin no roll for age any more."""
        if self._ageing is not None:
            self._ageing.cancel()
            self._ageing = None

    async def _roll(self) -> OctavoError | None:
        """Why there is no new segment, although the present one holds something; None if there is one."""
        segment = self._adds.segment
        try:
            async with self._turns:
                if segment is not self._adds.segment or not segment.core.is_written:
                    return None
                await self._lead.roll(self)
                self.active_since = self._loop.time()
                self.made += 1
        except NotLeaderError as error:
            self._side.end(error)
        except OctavoError as error:
            if segment.failure is not None:
                return None  # the writer heals
            # The present segment serves on; a later add over the limit, or the next hour, tries again.
            self._not_before = self._loop.time() + _RETRY_SECONDS
            log.warning("log %s: not rolled: %s", self._lead.name, error.message)
            return error
        return None

    # --- what a lead asks for while it rolls --------------------------------------------------------------------------

    async def drain_segment(self) -> None:
        """Send what was added this turn, and wait for all of it (rule P2)."""
        self._adds.send_turn()
        self._adds.front.hold()
        try:
            if self._adds.in_flight:
                self.drained = self._loop.create_future()
                await self.drained
        except asyncio.CancelledError:
            self.drained = None
            if self._side.is_writing():
                # Not cut short by a failure of the segment, which holds on: the writer is closing.
                self._adds.release()
            raise

    def has_drained(self) -> None:
        """Nothing is in flight any more."""
        drained, self.drained = self.drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def give_up_draining(self) -> None:
        """A roll need not wait for acknowledgements any more: none will come."""
        if self.drained is not None:
            self.drained.cancel()
            self.drained = None

    def begin_segment(self, following: ActiveSegment) -> None:
        """Send to this segment from now on."""
        front = self._adds.front
        assert not front.batches, "everything sent is acknowledged, and nothing was sent meanwhile"
        following.begin_at(front.next_position)
        if self._side.listen_to(following):
            self._adds.release()
