"""The memory of unfinished frames, all connections together, and the time that a client has to complete one.

A client makes the bookie hold the bytes of a frame that it has sent in part. One frame is small; unfinished frames of
very many connections are not. When their bytes reach ``bytes_max``:

1. unfinished frames that have not grown for ``stalled_seconds`` are dropped with their connections, the oldest first;
2. if that is not enough, the bookie reads from the connection with the oldest unfinished frame, and from those that
   have none. The others follow when the oldest is complete, or is dropped because it stalls. So every frame is
   completed, and a client whose requests are small does not notice;
3. if new connections fill the memory to twice ``bytes_max`` with the beginnings of frames, the largest unfinished frame
   but the oldest is dropped with its connection.

The bookie reads from all sockets again when a quarter of the memory is free. Independently of this, a frame must be
completed within ``timeout_seconds``; time in which the bookie itself does not read the socket does not count.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from octavo.protocol.errors import BookieOverloadedError, OctavoError, ProtocolError

CHECK_SECONDS = 0.5
"""Between two checks of the unfinished frames while there are any."""


class FrameHolder(Protocol):
    """A connection with an unfinished frame."""

    @property
    def reading_is_paused(self) -> bool:
        """The bookie does not read the socket."""

    def regulate(self) -> None:
        """Read the socket, or stop reading it, as the limits say now."""

    def drop(self, error: OctavoError) -> None:
        """Tell the client why, and close the connection."""


@dataclass(slots=True)
class _Unfinished:
    size: int
    began_at: float
    grew_at: float


class FrameMemory:
    """See the module. Sizes in bytes, times in the loop's seconds."""

    def __init__(self, bytes_max: int, *, timeout_seconds: float, stalled_seconds: float = 1.0) -> None:
        self._bytes_max = bytes_max
        self._timeout_seconds = timeout_seconds
        self._stalled_seconds = stalled_seconds
        self._unfinished: dict[FrameHolder, _Unfinished] = {}
        """The oldest first."""
        self._holders: dict[FrameHolder, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.held = 0
        self.full = False
        """Of the unfinished frames only the oldest may grow."""
        self.dropped = 0
        """Connections closed because of an unfinished frame."""

    def enter(self, holder: FrameHolder) -> None:
        """A connection has been made."""
        self._holders[holder] = None

    def leave(self, holder: FrameHolder) -> None:
        """A connection is lost or closing."""
        self._holders.pop(holder, None)
        self.note(holder, 0, begins=False)

    def may_read(self, holder: FrameHolder) -> bool:
        """Whether the connection may read its socket."""
        return not self.full or holder not in self._unfinished or next(iter(self._unfinished)) is holder

    def note(self, holder: FrameHolder, size: int, *, begins: bool) -> None:
        """The connection holds ``size`` bytes of an unfinished frame, which ``begins`` if the one before it has been
        completed."""
        now = asyncio.get_running_loop().time()
        frame = self._unfinished.get(holder)
        oldest = next(iter(self._unfinished), None)
        if frame is not None:
            self.held -= frame.size
            if begins or not size:
                del self._unfinished[holder]
                frame = None
        if size:
            self.held += size
            if frame is None:
                self._unfinished[holder] = _Unfinished(size, now, now)
            else:
                frame.size, frame.grew_at = size, now
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)
        if not self.full and self.held >= self._bytes_max:
            self._fill(now)
        elif self.full:
            if self.held <= self._bytes_max * 3 // 4:
                self._set_full(full=False)
            elif oldest is holder:
                self._resume_oldest(now)
            elif frame is None and size:
                holder.regulate()
                if self.held >= 2 * self._bytes_max:
                    self._drop_largest_but_oldest()

    def close(self) -> None:
        """Check no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _fill(self, now: float) -> None:
        for holder, frame in list(self._unfinished.items()):
            if now - frame.grew_at >= self._stalled_seconds and self.held > self._bytes_max * 3 // 4:
                self._drop(holder, self._stalled_error())
        if self.held >= self._bytes_max:
            self._set_full(full=True)
            self._resume_oldest(now)

    def _drop_largest_but_oldest(self) -> None:
        others = list(self._unfinished)[1:]
        if others:
            self._drop(
                max(others, key=lambda holder: self._unfinished[holder].size),
                BookieOverloadedError(f"unfinished frames hold {self.held} bytes", may_have_happened=False),
            )

    def _set_full(self, *, full: bool) -> None:
        self.full = full
        for holder in list(self._holders):
            holder.regulate()

    def _resume_oldest(self, now: float) -> None:
        for holder, frame in self._unfinished.items():
            frame.grew_at = now
            holder.regulate()
            return

    def _check(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for holder, frame in list(self._unfinished.items()):
            if holder.reading_is_paused:
                frame.began_at = frame.grew_at = now
            elif self.full and now - frame.grew_at >= self._stalled_seconds:
                self._drop(holder, self._stalled_error())
            elif now - frame.began_at >= self._timeout_seconds:
                self._drop(holder, ProtocolError(f"a frame was not completed within {self._timeout_seconds:g} seconds"))
        if self._unfinished and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)

    def _drop(self, holder: FrameHolder, error: OctavoError) -> None:
        self.dropped += 1
        holder.drop(error)
        self.leave(holder)

    def _stalled_error(self) -> OctavoError:
        return BookieOverloadedError(
            f"unfinished frames hold {self.held} bytes, and this one has not grown for "
            f"{self._stalled_seconds:g} seconds",
            may_have_happened=False,
        )
