"""The memory of unfinished frames, all connections together, and the time that a client has to complete one.

A client makes the bookie hold the bytes of a frame that it has sent in part. One frame is small; unfinished frames of
very many connections are not. When their bytes reach ``bytes_max``:

1. unfinished frames that have not grown for ``stalled_seconds`` are dropped with their connections, the oldest first;
2. if that is not enough, the bookie reads from the connection with the oldest unfinished frame, from those that have
   none, and from those of clients that hold less than their share: half of ``bytes_max``, divided by the number of
   clients with unfinished frames. The others follow when the oldest is complete, or is dropped because it stalls, or
   when their client is below its share again. So every frame is completed, and a client that fills the memory from
   many connections delays itself, not the others;
3. if new connections fill the memory to twice ``bytes_max`` with the beginnings of frames, the largest unfinished frame
   but the oldest is dropped with its connection: one of the client that holds most.

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

    @property
    def client(self) -> object:
        """Whose connection it is."""

    def regulate(self) -> None:
        """Read the socket, or stop reading it, as the limits say now."""

    def drop(self, error: OctavoError) -> None:
        """Tell the client why, and close the connection."""


@dataclass(slots=True)
class _Share:
    """The unfinished frames of one client."""

    key: object
    held: int
    holders: dict[FrameHolder, None]


@dataclass(slots=True)
class _Unfinished:
    client: "_Share"
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
        self._shares: dict[object, _Share] = {}
        """By client, of those with unfinished frames."""
        self._holders: dict[FrameHolder, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.held = 0
        self.full = False
        """Of the unfinished frames only the oldest may grow, and those of clients below their share."""
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
        if not self.full:
            return True
        frame = self._unfinished.get(holder)
        return frame is None or next(iter(self._unfinished)) is holder or self._is_below_share(frame.client)

    def _is_below_share(self, client: _Share) -> bool:
        return client.held < self._bytes_max // (2 * max(1, len(self._shares)))

    def note(self, holder: FrameHolder, size: int, *, begins: bool) -> None:
        """The connection holds ``size`` bytes of an unfinished frame, which ``begins`` if the one before it has been
        completed."""
        now = asyncio.get_running_loop().time()
        frame = self._unfinished.get(holder)
        oldest = next(iter(self._unfinished), None)
        completed = None
        if frame is not None and (begins or not size):
            completed, frame = frame, None
            self._forget(holder, completed)
        begun = frame is None and size > 0
        if begun:
            self._begin(holder, size, now)
        elif frame is not None:
            self._charge(frame, size)
            frame.grew_at = now
        if not self.full:
            if self.held >= self._bytes_max:
                self._fill(now)
        elif self.held <= self._bytes_max * 3 // 4:
            self._set_full(full=False)
        else:
            self._share_out(holder, oldest, completed, begun=begun, now=now)

    def _share_out(
        self, holder: FrameHolder, oldest: FrameHolder | None, completed: _Unfinished | None, *, begun: bool, now: float
    ) -> None:
        """The memory is full, and what the holder holds has changed: who may read now?"""
        if oldest is holder:
            self._resume_oldest(now)
        else:
            holder.regulate()
            if begun and self.held >= 2 * self._bytes_max:
                self._drop_largest_but_oldest()
        if completed is not None and self._is_below_share(completed.client):
            for other in list(completed.client.holders):
                other.regulate()

    def _begin(self, holder: FrameHolder, size: int, now: float) -> None:
        key = holder.client
        client = self._shares.get(key)
        if client is None:
            client = self._shares[key] = _Share(key, 0, {})
        client.holders[holder] = None
        frame = self._unfinished[holder] = _Unfinished(client, 0, now, now)
        self._charge(frame, size)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)

    def _charge(self, frame: _Unfinished, size: int) -> None:
        self.held += size - frame.size
        frame.client.held += size - frame.size
        frame.size = size

    def _forget(self, holder: FrameHolder, frame: _Unfinished) -> None:
        self._charge(frame, 0)
        del self._unfinished[holder]
        del frame.client.holders[holder]
        if not frame.client.holders:
            del self._shares[frame.client.key]

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
        oldest = next(iter(self._unfinished))
        others = [holder for holder in self._unfinished if holder is not oldest]
        most = max((self._unfinished[holder].client for holder in others), key=lambda client: client.held, default=None)
        if most is not None:
            self._drop(
                max(
                    (holder for holder in most.holders if holder is not oldest),
                    key=lambda holder: self._unfinished[holder].size,
                ),
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
