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
from collections.abc import Mapping
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
class _Unfinished:
    size: int
    began_at: float
    grew_at: float


class _Share:
    """The share of one client."""

    __slots__ = ("client", "held", "sizes")

    def __init__(self, client: object) -> None:
        self.client = client
        self.held = 0
        self.sizes: dict[FrameHolder, int] = {}


class _Shares:
    """The share of each client in a full memory. A memory that is not full keeps no shares: it would cost each read of
    a socket more than the rest of the bookkeeping."""

    def __init__(self, unfinished: Mapping[FrameHolder, _Unfinished]) -> None:
        self._of_holder: dict[FrameHolder, _Share] = {}
        self._of_client: dict[object, _Share] = {}
        for holder, frame in unfinished.items():
            self.begin(holder, frame.size)

    @property
    def count(self) -> int:
        """Clients with unfinished frames."""
        return len(self._of_client)

    def of(self, holder: FrameHolder) -> _Share:
        """The share of the client whose unfinished frame this connection holds."""
        return self._of_holder[holder]

    def begin(self, holder: FrameHolder, size: int) -> None:
        """The connection has an unfinished frame now. It is its client's, also if the connection becomes another's."""
        client = holder.client
        share = self._of_client.get(client)
        if share is None:
            share = self._of_client[client] = _Share(client)
        self._of_holder[holder] = share
        share.held += size
        share.sizes[holder] = size

    def grow(self, holder: FrameHolder, size: int) -> None:
        """The frame has this size now."""
        share = self._of_holder[holder]
        share.held += size - share.sizes[holder]
        share.sizes[holder] = size

    def end(self, holder: FrameHolder) -> _Share:
        """The connection has no unfinished frame any more; the share of its client without it."""
        share = self._of_holder.pop(holder)
        share.held -= share.sizes.pop(holder)
        if not share.sizes:
            del self._of_client[share.client]
        return share


class FrameMemory:
    """See the module. Sizes in bytes, times in the loop's seconds."""

    def __init__(self, bytes_max: int, *, timeout_seconds: float, stalled_seconds: float = 1.0) -> None:
        self._bytes_max = bytes_max
        self._timeout_seconds = timeout_seconds
        self._stalled_seconds = stalled_seconds
        self._unfinished: dict[FrameHolder, _Unfinished] = {}
        """The oldest first."""
        self._shares: _Shares | None = None
        """None: the memory is not full."""
        self._holders: dict[FrameHolder, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.held = 0
        self.dropped = 0
        """Connections closed because of an unfinished frame."""

    @property
    def full(self) -> bool:
        """Of the unfinished frames only the oldest may grow, and those of clients below their share."""
        return self._shares is not None

    def enter(self, holder: FrameHolder) -> None:
        """A connection has been made."""
        self._holders[holder] = None

    def leave(self, holder: FrameHolder) -> None:
        """A connection is lost or closing."""
        self._holders.pop(holder, None)
        self.note(holder, 0, begins=False)

    def may_read(self, holder: FrameHolder) -> bool:
        """Whether the connection may read its socket."""
        shares = self._shares
        return (
            shares is None
            or holder not in self._unfinished
            or next(iter(self._unfinished)) is holder
            or self._is_below(shares, shares.of(holder))
        )

    def _is_below(self, shares: _Shares, share: _Share) -> bool:
        return share.held < self._bytes_max // (2 * max(1, shares.count))

    def note(self, holder: FrameHolder, size: int, *, begins: bool) -> None:
        """The connection holds ``size`` bytes of an unfinished frame, which ``begins`` if the one before it has been
        completed."""
        now = asyncio.get_running_loop().time()
        if self._shares is not None:
            self._note_while_full(self._shares, holder, size, begins=begins, now=now)
            return
        self._keep(holder, size, begins=begins, now=now)
        if self.held >= self._bytes_max:
            self._fill(now)

    def _keep(self, holder: FrameHolder, size: int, *, begins: bool, now: float) -> None:
        frame = self._unfinished.get(holder)
        if frame is not None:
            self.held -= frame.size
            if begins or not size:
                del self._unfinished[holder]
                frame = None
        if not size:
            return
        self.held += size
        if frame is None:
            self._unfinished[holder] = _Unfinished(size, now, now)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)
        else:
            frame.size, frame.grew_at = size, now

    def _note_while_full(self, shares: _Shares, holder: FrameHolder, size: int, *, begins: bool, now: float) -> None:
        """The share of the holder has changed: who may read now?"""
        held_before = holder in self._unfinished
        was_oldest = held_before and next(iter(self._unfinished)) is holder
        self._keep(holder, size, begins=begins, now=now)
        completed = shares.end(holder) if held_before and (begins or not size) else None
        begun = size > 0 and (completed is not None or not held_before)
        if begun:
            shares.begin(holder, size)
        elif size:
            shares.grow(holder, size)
        if self.held <= self._bytes_max * 3 // 4:
            self._set_full(full=False)
            return
        if was_oldest:
            self._resume_oldest(now)
        else:
            holder.regulate()
            if begun and self.held >= 2 * self._bytes_max:
                self._drop_largest_but_oldest(shares)
        if completed is not None and self._is_below(shares, completed):
            for other in list(completed.sizes):
                other.regulate()

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

    def _drop_largest_but_oldest(self, shares: _Shares) -> None:
        oldest, *others = self._unfinished
        if others:
            most = max((shares.of(holder) for holder in others), key=lambda share: share.held)
            self._drop(
                max((holder for holder in most.sizes if holder is not oldest), key=most.sizes.__getitem__),
                BookieOverloadedError(f"unfinished frames hold {self.held} bytes", may_have_happened=False),
            )

    def _set_full(self, *, full: bool) -> None:
        self._shares = _Shares(self._unfinished) if full else None
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
