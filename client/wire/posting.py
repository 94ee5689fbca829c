"""Requests that are *posted* to a connection: those of one turn of the event loop leave when the turn ends.

They leave in one frame, a pack (:mod:`octavo.protocol.packs`), where there are several and the bookie understands
packs. Each gets exactly one outcome, its own, whatever becomes of its pack
(:mod:`octavo.client.wire.outstanding_packs`).

The frames are requests of the wire (:mod:`octavo.client.wire.wire`): a pack is outstanding there under its first id,
has one deadline, and its outcome as a whole comes only when it timed out or the connection is lost.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from octavo.client.wire.outcome import OnOutcome, Outcome
from octavo.client.wire.outstanding_packs import OutstandingPack, OutstandingPacks, Settle
from octavo.client.wire.turn import Turn
from octavo.protocol.errors import OctavoError
from octavo.protocol.limits import FRAME_PAYLOAD_BYTES_TARGET
from octavo.protocol.packs import PACK_REQUESTS_MAX, decode_done, frame_head, pack_head

_LARGE_BYTES: Final = 32 * 1024
"""A request of this size leaves at once: it gains nothing from sharing a frame, and the bookie works on it while the
writer seals the next one."""

type _Posted = tuple[bytes, OnOutcome, float]
"""The tail of a request, what gets its outcome, and its timeout in seconds."""


class Frames(Protocol):
    """The wire, as it takes the frames."""

    writable: bool
    """Whether a frame is taken now."""
    error: OctavoError | None
    """Why the connection was lost; None before that."""

    @property
    def free(self) -> int:
        """Frames that may be outstanding beside those that are."""

    def expect(self, request_id: int, on_outcome: OnOutcome, timeout_seconds: float) -> None:
        """A frame is about to be written, and will have an outcome."""

    def write_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write a frame."""

    def take(self, request_id: int) -> object:
        """Nothing waits for the outcome of this frame any more."""

    def deliver(self, on_outcome: OnOutcome, outcome: Outcome) -> None:
        """Call this with the outcome; a defect met there is reported."""

    def report_defect(self, error: Exception) -> None:
        """Handling an outcome has failed."""

    def lost_error(self) -> OctavoError:
        """The outcome of a request on a connection that is lost: one instance for each."""


class Posting:
    """See the module. ``next_request_id`` gives the ids of the client's requests, one after another. What is posted
    leaves when the ``turn`` ends."""

    __slots__ = ("_frames", "_loop", "_next_request_id", "_posted", "_posted_bytes", "_turn", "packs", "takes_packs")

    def __init__(self, frames: Frames, turn: Turn, next_request_id: Callable[[], int]) -> None:
        self._frames = frames
        self._turn = turn
        self._next_request_id = next_request_id
        self._loop = asyncio.get_running_loop()
        self._posted: list[_Posted] = []
        self._posted_bytes = 0
        self.packs = OutstandingPacks()
        """Each is outstanding on the wire under its first id, too."""
        self.takes_packs = False
        """Whether the bookie understands packs."""

    @property
    def requests_without_frame(self) -> int:
        """Requests without an outcome, beyond one for each frame that is outstanding."""
        return self.packs.requests - len(self.packs) + len(self._posted)

    # --- sending --------------------------------------------------------------------------------------------------

    def post(self, tail: bytes, on_outcome: OnOutcome, timeout_seconds: float) -> bool:
        """Send a request when the turn of the event loop ends, perhaps in one frame with others. Returns False, and
        does nothing, unless the wire is writable. ``tail``: see :mod:`octavo.protocol.packs`, which says what may be
        posted. Requests leave in the order in which they are posted, and what is sent in the same turn may leave before
        them.

        A large request and a complete pack leave at once: the socket can push back in the middle of a turn."""
        frames = self._frames
        if not frames.writable:
            return False
        posted, size = self._posted, len(tail)
        if posted and (self._posted_bytes + size > FRAME_PAYLOAD_BYTES_TARGET or timeout_seconds != posted[0][2]):
            self.send_posted()
            if not self._frames.writable:  # it was lost, or is full, now
                return False
            posted = self._posted
        if not posted:
            self._turn.sends(self)
            self._posted_bytes = 0
        posted.append((tail, on_outcome, timeout_seconds))
        self._posted_bytes = posted_bytes = self._posted_bytes + size
        if (
            size >= _LARGE_BYTES
            or posted_bytes >= FRAME_PAYLOAD_BYTES_TARGET
            or len(posted) >= (PACK_REQUESTS_MAX if self.takes_packs else frames.free)
        ):
            self.send_posted()
        return True

    def send_posted(self) -> None:
        """Send what was posted and has not been sent."""
        posted, self._posted = self._posted, []
        if self.takes_packs or len(posted) == 1:
            if posted:
                self._send_together(posted)
        else:
            for one in posted:
                self._send_together([one])

    def _send_together(self, requests: list[_Posted]) -> None:
        """Send requests that have one timeout in one frame."""
        frames = self._frames
        if frames.error is not None:
            # It was lost in the middle of this flush; nothing has an outcome inside a call of :meth:`post`.
            self._loop.call_soon(self.fail, requests)
            return
        first_id = self._next_request_id()
        if len(requests) == 1:
            ((tail, on_outcome, seconds),) = requests
            frames.expect(first_id, on_outcome, seconds)
            frames.write_pieces((frame_head(first_id, tail), memoryview(tail)[1:]))
            return
        for _ in requests[1:]:
            self._next_request_id()
        self.packs.add(OutstandingPack(first_id, [(tail, on_outcome) for tail, on_outcome, _ in requests]))
        frames.expect(first_id, partial(self._pack_over, first_id), requests[0][2])
        tails = [tail for tail, _, _ in requests]
        frames.write_pieces((pack_head(first_id, tails), *tails))

    def withdraw(self) -> list[_Posted]:
        """Send none of what was posted and has not been sent. The caller fails it (:meth:`fail`)."""
        posted, self._posted = self._posted, []
        return posted

    def fail(self, requests: list[_Posted]) -> None:
        """The connection is lost: none of these was sent."""
        for _, on_outcome, _ in requests:
            self._frames.deliver(on_outcome, self._frames.lost_error())

    # --- answers --------------------------------------------------------------------------------------------------

    def answered(self, values: list[object]) -> None:
        """Requests of packs have succeeded: the frame that says which."""
        for first_id, last_id in decode_done(values):
            for pack, first, last in self.packs.parts(first_id, last_id):
                self._settle(pack.succeeded(first, last), pack)

    def has_answered(self, request_id: int, outcome: Outcome) -> bool:
        """A request has an outcome of its own; False if it is in no pack. Asked only while there are :attr:`packs`."""
        pack = self.packs.of(request_id)
        if pack is None:
            return False
        self._settle(pack.refused(request_id, outcome), pack)
        return True

    def _settle(self, settled: list[Settle], pack: OutstandingPack) -> None:
        """Deliver outcomes of requests of this pack."""
        if not pack.left and self.packs.remove(pack.first_id) is not None:
            self._frames.take(pack.first_id)
        for on_outcome, outcome in settled:
            try:
                on_outcome(outcome)
            except Exception as error:  # as `Frames.deliver` does, without its call for every answer
                self._frames.report_defect(error)

    def _pack_over(self, first_id: int, outcome: Outcome) -> None:
        """The frame of a pack has an outcome as a whole: it timed out, or the connection is lost."""
        pack = self.packs.remove(first_id)
        assert pack is not None, "a pack that is outstanding is known"
        assert isinstance(outcome, OctavoError), "requests in a pack are answered one by one"
        for on_outcome, error in pack.failed(lambda: _copy_of(outcome)):
            self._frames.deliver(on_outcome, error)


def _copy_of(error: OctavoError) -> OctavoError:
    copy = type(error)(error.message, may_have_happened=error.may_have_happened)
    copy.__cause__ = error.__cause__
    return copy
