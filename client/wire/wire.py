"""One TCP connection to a bookie: hello, frames, outstanding requests, deadlines, back-pressure.

A wire lives once: ``connecting -> greeting -> up -> lost``, and never leaves ``lost``. Requests are taken only while
it is up. Each taken request gets exactly one outcome: its reply, its refusal, :class:`OctavoTimeoutError` at its
deadline, or :class:`BookieUnavailableError` when the wire is lost. A reply that comes after that is ignored.

Deadlines cost one timer for the whole wire, armed for the earliest deadline; replies leave it alone, and when it
fires it looks at every outstanding request once. An idle wire has no timer.

A bookie from which nothing at all has arrived since an overdue request was sent is taken for dead or unreachable: the
wire is given up, so that everything on it fails now instead of at its own deadline.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

from octavo.protocol.bulk_answers import decode_bulk_answer
from octavo.protocol.errors import (
    BookieUnavailableError,
    OctavoError,
    OctavoTimeoutError,
    ProtocolError,
    UnsupportedVersionError,
    WrongClusterError,
)
from octavo.protocol.frames import LENGTH, FrameDecoder, unpack_body
from octavo.protocol.limits import LONG_POLLS_PER_CONNECTION_MAX, REQUESTS_PER_CONNECTION_MAX
from octavo.protocol.messages import (
    CONNECTION_REQUEST_ID,
    Hello,
    Reply,
    common_version,
    decode_hello,
    decode_reply,
    encode_hello,
)

Outcome = Reply | OctavoError
OnOutcome = Callable[[Outcome], None]

_JOIN_BYTES_MAX = 128 * 1024
"""Bodies up to this size are copied behind their length: a write of four bytes by itself is a system call and a packet
more, and wakes the peer for nothing."""

_RESUME_REQUESTS = REQUESTS_PER_CONNECTION_MAX * 3 // 4
"""A wire that was full of requests takes more once this few are outstanding: resuming at every reply would resume
in drips."""


class WireOwner(Protocol):
    """What a wire tells its owner. None of these may raise."""

    def wire_up(self, wire: "Wire", hello: Hello) -> None:
        """The hellos are exchanged and agree."""

    def wire_lost(self, wire: "Wire", error: OctavoError) -> None:
        """The wire is no more; called once, before the outcomes of what was outstanding, also if it was never up."""

    def wire_writable(self, wire: "Wire") -> None:
        """The wire takes requests again."""


class _Outstanding(NamedTuple):
    sent_at: float
    deadline: float
    on_outcome: OnOutcome
    long_poll: bool
    bulk: bool


class Wire(asyncio.Protocol):
    """See the module. ``writable`` says whether :meth:`send` would take a request."""

    def __init__(self, owner: WireOwner, *, hello: Hello, address: str, outgoing_bytes_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._hello = hello
        self._name = f"bookie {hello.bookie_id} at {address}"
        self._outgoing_bytes_max = outgoing_bytes_max
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder()
        self._outstanding: dict[int, _Outstanding] = {}
        self._long_polls = 0
        self._bulk_reads = 0
        self._paused = False
        self._lost = False
        self._greeted = False
        self._received_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.writable = False
        self.error: OctavoError | None = None
        """Why it was lost; None before."""
        self.settled = asyncio.Event()
        """Set once it is up or lost."""
        self.closed = asyncio.Event()
        """Set once a transport that was made is gone."""

    @property
    def up(self) -> bool:
        """Whether the hellos are exchanged and the connection has not been lost since."""
        return self._greeted and not self._lost

    @property
    def greeted(self) -> bool:
        """Whether it is up or was once."""
        return self._greeted

    @property
    def outstanding(self) -> int:
        """Requests without an outcome."""
        return len(self._outstanding)

    @property
    def takes_long_polls(self) -> bool:
        """Whether fewer long-polls wait than a bookie holds for one connection."""
        return self._long_polls < LONG_POLLS_PER_CONNECTION_MAX

    def send(
        self,
        body: bytes,
        request_id: int,
        on_outcome: OnOutcome,
        timeout_seconds: float,
        *,
        long_poll: bool = False,
        bulk: bool = False,
    ) -> bool:
        """Send a request's body; False, and nothing happens, unless :attr:`writable`. The id must not be outstanding.
        ``bulk``: entries of the answer may come as :mod:`octavo.protocol.bulk_answers` has them.

        Long-polls wait for somebody else, so they do not count among the requests that make a wire unwritable;
        callers look at :attr:`takes_long_polls`.
        """
        if not self.writable:
            return False
        outstanding = self._outstanding
        if request_id in outstanding:
            raise ValueError(f"{self._name}: request {request_id} is outstanding already")
        now = self._loop.time()
        deadline = now + timeout_seconds
        outstanding[request_id] = _Outstanding(now, deadline, on_outcome, long_poll, bulk)
        self._long_polls += long_poll
        self._bulk_reads += bulk
        if len(outstanding) - self._long_polls >= REQUESTS_PER_CONNECTION_MAX:
            self.writable = False
        if self._timer is None or deadline < self._timer.when():
            self._arm(deadline)
        self._write(body)
        return True

    def abort(self, error: OctavoError) -> None:
        """Give the connection up, now: the owner and everything outstanding learn of it before this returns."""
        if self._transport is not None:
            self._transport.abort()
        self._lose(error)

    # --- asyncio.Protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello."""
        # Not checked: uvloop's transports are no subclass of asyncio's.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        if self._lost:
            transport.abort()
            return
        transport.set_write_buffer_limits(high=self._outgoing_bytes_max, low=self._outgoing_bytes_max // 4)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            # A frame leaves when it is written: the next one may be a whole round trip away.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._write(encode_hello(self._hello))

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is gone."""
        self.closed.set()
        reason = str(exc) or type(exc).__name__ if exc is not None else "closed by the bookie"
        self._lose(BookieUnavailableError(f"{self._name}: connection lost: {reason}"))

    def pause_writing(self) -> None:
        """The socket does not keep up."""
        self._paused = True
        self.writable = False

    def resume_writing(self) -> None:
        """The socket has caught up."""
        self._paused = False
        self._reconsider_writable()

    def data_received(self, data: bytes) -> None:
        """Hand out every reply that is complete."""
        if self._lost:
            return
        self._received_at = self._loop.time()
        try:
            for body in self._decoder.feed(data):
                if self._bulk_reads and self._bulk_received(body):
                    continue
                self._frame_received(unpack_body(body))
                if self.error is not None:
                    return
        except ProtocolError as error:
            self.abort(error)
            return
        if not self.writable:
            self._reconsider_writable()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _write(self, body: bytes) -> None:
        transport = self._transport
        assert transport is not None
        if transport.is_closing():
            # It has failed, and `connection_lost` is on its way; transports complain in the log of writes after that.
            return
        prefix = LENGTH.pack(len(body))
        if len(body) <= _JOIN_BYTES_MAX:
            transport.write(prefix + body)
        else:
            # Not `writelines`: asyncio's own, in Python 3.12 and 3.13.0, never calls `pause_writing`.
            transport.write(prefix)
            transport.write(body)

    def _frame_received(self, values: list[object]) -> None:
        if not self._greeted:
            self._hello_received(values)
            return
        request_id, outcome = decode_reply(values)
        if request_id == CONNECTION_REQUEST_ID:
            # The bookie is about to close because of what we sent.
            assert isinstance(outcome, OctavoError)
            self.abort(outcome)
            return
        if request_id in self._outstanding:
            self._deliver(self._take(request_id).on_outcome, outcome)

    def _bulk_received(self, body: memoryview) -> bool:
        """Deliver the frame if it is the answer to a bulk read and of a kind that needs no object for each entry."""
        answer = decode_bulk_answer(body)
        if answer is None:
            return False
        request_id, reply = answer
        request = self._outstanding.get(request_id)
        if request is None or not request.bulk:
            return False
        self._deliver(self._take(request_id).on_outcome, reply)
        return True

    def _take(self, request_id: int) -> _Outstanding:
        request = self._outstanding.pop(request_id)
        self._long_polls -= request.long_poll
        self._bulk_reads -= request.bulk
        return request

    def _hello_received(self, values: list[object]) -> None:
        theirs, ours = decode_hello(values), self._hello
        if isinstance(theirs, OctavoError):
            self.abort(theirs)
        elif ours.cluster_id and theirs.cluster_id != ours.cluster_id:
            self.abort(
                WrongClusterError(f"{self._name}: belongs to cluster {theirs.cluster_id}, not to {ours.cluster_id}")
            )
        elif theirs.bookie_id != ours.bookie_id:
            self.abort(WrongClusterError(f"{self._name}: bookie {theirs.bookie_id} answers there"))
        elif common_version(ours, theirs) is None:
            self.abort(
                UnsupportedVersionError(
                    f"{self._name}: speaks protocol versions {theirs.version_lowest} to {theirs.version_highest}, "
                    f"this client {ours.version_lowest} to {ours.version_highest}"
                )
            )
        else:
            self._greeted = True
            self.writable = not self._paused
            self.settled.set()
            self._owner.wire_up(self, theirs)

    def _reconsider_writable(self) -> None:
        counted = len(self._outstanding) - self._long_polls
        if self.up and not self.writable and not self._paused and counted <= _RESUME_REQUESTS:
            self.writable = True
            self._owner.wire_writable(self)

    def _lose(self, error: OctavoError) -> None:
        if self._lost:
            return
        self._lost = True
        self.error = error
        self.writable = False
        self.settled.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        outstanding, self._outstanding = self._outstanding, {}
        self._owner.wire_lost(self, error)
        for request in outstanding.values():
            # One instance each: a raised exception collects its raiser's traceback.
            failure = BookieUnavailableError(error.message, may_have_happened=True)
            failure.__cause__ = error
            self._deliver(request.on_outcome, failure)

    def _deliver(self, on_outcome: OnOutcome, outcome: Outcome) -> None:
        try:
            on_outcome(outcome)
        except Exception as error:  # a defect in one ledger's writer must not take the others' replies with it
            self._loop.call_exception_handler(
                {"message": f"{self._name}: handling an outcome failed", "exception": error, "protocol": self}
            )

    # --- deadlines --------------------------------------------------------------------------------------------------

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._deadline_reached)

    def _deadline_reached(self) -> None:
        self._timer = None
        now = self._loop.time()
        overdue = [request_id for request_id, request in self._outstanding.items() if request.deadline <= now]
        if overdue and self._received_at < min(self._outstanding[request_id].sent_at for request_id in overdue):
            self._silent(overdue)
            return
        for request_id in overdue:
            self._time_out(self._take(request_id))
        if self._lost:
            return
        if self._outstanding and self._timer is None:
            self._arm(min(request.deadline for request in self._outstanding.values()))
        self._reconsider_writable()

    def _time_out(self, request: _Outstanding) -> None:
        seconds = request.deadline - request.sent_at
        self._deliver(request.on_outcome, OctavoTimeoutError(f"{self._name}: no answer within {seconds:.3g} s"))

    def _silent(self, overdue: list[int]) -> None:
        timed_out = [self._take(request_id) for request_id in overdue]
        self.abort(BookieUnavailableError(f"{self._name}: silent, given up"))
        for request in timed_out:
            self._time_out(request)
