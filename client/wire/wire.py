"""One TCP connection to a bookie: hello, frames, outstanding requests, deadlines, back-pressure.

:mod:`octavo.client.wire.wire_state` is the life of a wire as a table. Every request that the wire takes gets exactly
one outcome: its reply, its refusal, :class:`OctavoTimeoutError` at its deadline, or :class:`BookieUnavailableError`
when the connection is lost. A reply that arrives after that is ignored.

One timer serves all deadlines. It is armed for the earliest one; a reply does not touch it, and when it fires the wire
checks every outstanding request once. An idle wire has no timer.

Requests of ledgers are *posted* (:mod:`octavo.client.wire.posting`): those of one turn of the event loop leave when the
turn ends, in one frame where that is possible.

If nothing at all has arrived from the bookie since an overdue request was sent, the bookie is taken to be dead or
unreachable: the wire is closed, so that every request on it fails now and not at its own deadline.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from octavo.client.wire.outcome import OnOutcome, Outcome
from octavo.client.wire.posting import Posting
from octavo.client.wire.turn import Turn
from octavo.client.wire.wire_state import WireEvent, WireState, after
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
from octavo.protocol.limits import (
    LONG_POLLS_PER_CONNECTION_MAX,
    REQUESTS_PER_CONNECTION_MAX,
)
from octavo.protocol.messages import (
    CAPABILITY_AUTHENTICATE,
    CONNECTION_REQUEST_ID,
    AuthenticateAnswer,
    Hello,
    common_version,
    decode_hello,
    decode_reply,
    encode_hello,
)
from octavo.protocol.packs import CAPABILITY_PACKS, is_pack
from octavo.protocol.pushes import Push, are_pushes, decode_pushes
from octavo.security import forks

if TYPE_CHECKING:
    from octavo.security.login import ClientLogin

_JOIN_BYTES_MAX = 128 * 1024
"""Bodies up to this size are copied behind their length prefix: writing the four bytes separately would cost a system
call and a packet, and would wake the bookie before the body is there."""

_LOGIN_REQUEST_ID = 1
"""Of the frames of an authentication: no other request is outstanding then."""

_RESUME_REQUESTS = REQUESTS_PER_CONNECTION_MAX * 3 // 4
"""A full wire takes requests again when this few are outstanding. Resuming at every single reply would send requests
one at a time."""


class WireOwner(Protocol):
    """The reports of a wire to its owner. None of these methods may raise."""

    def wire_up(self, wire: "Wire", hello: Hello) -> None:
        """The hellos have been exchanged and agree."""

    def wire_lost(self, wire: "Wire", error: OctavoError) -> None:
        """The connection is lost, or could not be established. Called once, before the outstanding requests fail."""

    def wire_pushed(self, wire: "Wire", pushes: list[Push]) -> None:
        """Ledgers that were subscribed to have moved."""

    def wire_writable(self, wire: "Wire") -> None:
        """The wire takes requests again."""


@dataclass(slots=True, eq=False)
class _Outstanding:
    sent_at: float
    deadline: float
    on_outcome: OnOutcome
    long_poll: bool
    bulk: bool


class Wire(asyncio.Protocol):
    """See the module."""

    def __init__(
        self,
        owner: WireOwner,
        *,
        hello: Hello,
        address: str,
        outgoing_bytes_max: int,
        next_request_id: Callable[[], int],
        turn: Turn,
        login: Callable[[Hello, asyncio.Transport], "ClientLogin | None"] | None = None,
    ) -> None:
        """``next_request_id`` gives the ids of the client's requests, one after another. What is posted leaves
        when the ``turn`` ends. ``login`` returns the authentication to go through with a bookie that offers it, given
        its hello and the transport, or None to go without; it raises the error with which the connection is to fail.
        None: the client never authenticates."""
        self._find_login = login
        self._login: ClientLogin | None = None
        self._greeting: Hello | None = None
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._hello = hello
        self._name = f"bookie {hello.bookie_id} at {address}"
        self._outgoing_bytes_max = outgoing_bytes_max
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder()
        self._outstanding: dict[int, _Outstanding] = {}
        self.posting = Posting(self, turn, next_request_id)
        """The requests that are posted: :meth:`Posting.post`."""
        self._long_polls = 0
        self._bulk_reads = 0
        self._received_at = 0.0
        self._timer: asyncio.Handle | None = None
        self._timer_due_at = 0.0
        self.state = WireState.CONNECTING
        """Where it is in its life."""
        self.writable = False
        """Whether :meth:`send` takes a request now. Derived from :attr:`state`; checked for every request."""
        self.peer: Hello | None = None
        """The bookie's hello, once it has arrived and agrees."""
        self.error: OctavoError | None = None
        """Why the connection was lost; None before that."""
        self.settled = asyncio.Event()
        """Set when the wire is up, or lost."""
        self.closed = asyncio.Event()
        """Set when the transport is gone; never set if there was none."""

    @property
    def requests_under_way(self) -> int:
        """Requests without an outcome: each request of a pack for itself, and what was posted and has not been sent."""
        return len(self._outstanding) + self.posting.requests_without_frame

    @property
    def free(self) -> int:
        """Frames that may be outstanding beside those that are; long polls do not count."""
        return REQUESTS_PER_CONNECTION_MAX - len(self._outstanding) + self._long_polls

    @property
    def takes_long_polls(self) -> bool:
        """Whether fewer long polls wait than a bookie accepts from one connection."""
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
        """Send the body of a request. Returns False, and does nothing, unless :attr:`writable`.

        ``request_id`` must not be outstanding. ``bulk``: the entries of the answer may be decoded as
        :mod:`octavo.protocol.bulk_answers` does. A long poll does not count towards the limit of outstanding requests,
        because a bookie may hold it for long; the caller checks :attr:`takes_long_polls` before it sends one.
        """
        if not self.writable:
            return False
        if request_id in self._outstanding:
            raise ValueError(f"{self._name}: request {request_id} is outstanding already")
        self._long_polls += long_poll
        self._bulk_reads += bulk
        self.expect(request_id, on_outcome, timeout_seconds, long_poll=long_poll, bulk=bulk)
        self._write(body)
        return True

    def write_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write a frame, in one piece if it is not large."""
        transport = self._transport
        assert transport is not None
        if transport.is_closing():
            return  # as in `_write`
        if len(pieces) == 2 and len(pieces[1]) > _JOIN_BYTES_MAX:
            transport.write(pieces[0])
            transport.write(pieces[1])
        else:
            transport.write(b"".join(pieces))

    def lost_error(self) -> BookieUnavailableError:
        """The outcome of a request on a connection that is lost. One instance for each request: an exception collects
        the traceback of whatever raises it."""
        assert self.error is not None, "the connection is lost"
        failure = BookieUnavailableError(self.error.message, may_have_happened=True)
        failure.__cause__ = self.error
        return failure

    def expect(
        self,
        request_id: int,
        on_outcome: OnOutcome,
        timeout_seconds: float,
        *,
        long_poll: bool = False,
        bulk: bool = False,
    ) -> None:
        """A frame is about to be written, and will have an outcome."""
        outstanding = self._outstanding
        now = self._loop.time()
        deadline = now + timeout_seconds
        outstanding[request_id] = _Outstanding(now, deadline, on_outcome, long_poll, bulk)
        if self.writable and len(outstanding) - self._long_polls >= REQUESTS_PER_CONNECTION_MAX:
            self._go(WireEvent.FILLED)
        if self._timer is None or deadline < self._timer_due_at:
            self._arm(deadline)

    def abort(self, error: OctavoError) -> None:
        """Close the connection now. The owner is told and every outstanding request fails before this returns."""
        if self._transport is not None:
            self._transport.abort()
        self._lose(error)

    # --- asyncio.Protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the hello."""
        # Not checked: uvloop's transports are no subclass of asyncio's.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        forks.hold_connection(self)
        self._go(WireEvent.MADE)
        if self.state.is_over:
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
        forks.let_go(self)
        self.closed.set()
        self._decoder.clear()  # an unfinished answer may be large, and this object part of a cycle
        if isinstance(exc, OctavoError):
            self._lose(type(exc)(f"{self._name}: {exc.message}", may_have_happened=exc.may_have_happened))
            return
        reason = str(exc) or type(exc).__name__ if exc is not None else "closed by the bookie"
        self._lose(BookieUnavailableError(f"{self._name}: connection lost: {reason}"))

    def not_connected(self, error: OctavoError) -> None:
        """The TLS handshake has failed: there will be no ``connection_made``."""
        self._lose(type(error)(f"{self._name}: {error.message}", may_have_happened=False))

    def pause_writing(self) -> None:
        """The socket does not keep up."""
        self._go(WireEvent.SOCKET_FULL)

    def resume_writing(self) -> None:
        """The socket has caught up."""
        self._go(WireEvent.SOCKET_DRAINED)
        self._tell_writable()

    def data_received(self, data: bytes) -> None:
        """Deliver every reply that is complete."""
        lost = self.error
        if lost is not None:
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
            self._consider_drained()

    def on_forked(self) -> None:
        """In a forked child (rule H1): the connection is the parent's."""
        forks.socket_leads_nowhere(self._transport)
        forks.later_in_child(self._loop, lambda: self.abort(forks.forked_error()))

    # --- inside ---------------------------------------------------------------------------------------------------

    def _write(self, body: bytes) -> None:
        transport = self._transport
        assert transport is not None
        if transport.is_closing():
            # It has failed, and `connection_lost` will follow; a transport logs a warning for each write after that.
            return
        size = len(body)
        prefix = LENGTH.pack(size)
        if size <= _JOIN_BYTES_MAX:
            transport.write(prefix + body)
        else:
            # Not `writelines`: asyncio's own, in Python 3.12 and 3.13.0, never calls `pause_writing`.
            transport.write(prefix)
            transport.write(body)

    def _frame_received(self, values: list[object]) -> None:
        if self.peer is None:
            if self._login is None:
                self._hello_received(values)
            else:
                self._login_answered(self._login, values)
            return
        if is_pack(values):
            self.posting.answered(values)
            return
        if are_pushes(values):
            self._owner.wire_pushed(self, decode_pushes(values))
            return
        request_id, outcome = decode_reply(values)
        if request_id == CONNECTION_REQUEST_ID:
            # The bookie is about to close the connection because of something that this client sent.
            assert isinstance(outcome, OctavoError)
            self.abort(outcome)
            return
        if self.posting.packs and self.posting.has_answered(request_id, outcome):
            return
        if request_id in self._outstanding:
            self.deliver(self.take(request_id).on_outcome, outcome)

    def _bulk_received(self, body: memoryview) -> bool:
        """Deliver the frame if it answers a bulk read and can be decoded without an object per entry; else False."""
        answer = decode_bulk_answer(body)
        if answer is None:
            return False
        request_id, reply = answer
        request = self._outstanding.get(request_id)
        if request is None or not request.bulk:
            return False
        self.deliver(self.take(request_id).on_outcome, reply)
        return True

    def take(self, request_id: int) -> _Outstanding:
        """Nothing waits for the outcome of this frame any more."""
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
                WrongClusterError(f"{self._name} belongs to cluster {theirs.cluster_id}, not to {ours.cluster_id}")
            )
        elif theirs.bookie_id != ours.bookie_id:
            self.abort(WrongClusterError(f"{self._name}: bookie {theirs.bookie_id} answers at this address"))
        elif common_version(ours, theirs) is None:
            self.abort(
                UnsupportedVersionError(
                    f"{self._name}: speaks protocol versions {theirs.version_lowest} to {theirs.version_highest}, "
                    f"this client {ours.version_lowest} to {ours.version_highest}"
                )
            )
        else:
            self._greeting = theirs
            if CAPABILITY_AUTHENTICATE in theirs.capabilities and self._find_login is not None:
                self._begin_login(theirs, self._find_login)
            else:
                self._up()

    def _begin_login(
        self, theirs: Hello, find_login: Callable[[Hello, asyncio.Transport], "ClientLogin | None"]
    ) -> None:
        transport = self._transport
        assert transport is not None, "a hello came over it"
        try:
            self._login = find_login(theirs, transport)
        except OctavoError as error:
            self.abort(error)
            return
        if self._login is None:
            self._up()
        else:
            self._write(self._login.first().encode(_LOGIN_REQUEST_ID))

    def _login_answered(self, login: "ClientLogin", values: list[object]) -> None:
        request_id, outcome = decode_reply(values)
        if isinstance(outcome, OctavoError):
            self.abort(type(outcome)(f"{self._name}: {outcome.message}", may_have_happened=False))
            return
        if request_id != _LOGIN_REQUEST_ID or not isinstance(outcome, AuthenticateAnswer):
            raise ProtocolError(f"{self._name}: not an answer to an authentication")
        try:
            following = login.answered(outcome)
        except OctavoError as error:
            self.abort(error)
            return
        if following is None:
            self._login = None
            self._up()
        else:
            self._write(following.encode(_LOGIN_REQUEST_ID))

    def _up(self) -> None:
        greeting = self._greeting
        assert greeting is not None, "the bookie has sent its hello"
        self.peer = greeting
        self.posting.takes_packs = CAPABILITY_PACKS in greeting.capabilities
        self._go(WireEvent.GREETED)
        self.settled.set()
        self._owner.wire_up(self, greeting)

    def _go(self, event: WireEvent) -> None:
        self.state = after(self.state, event)
        self.writable = self.state is WireState.READY

    def _consider_drained(self) -> None:
        """If the wire was full and few requests are outstanding, take requests again."""
        full = self.state is WireState.FULL or self.state is WireState.PAUSED_FULL
        if full and len(self._outstanding) - self._long_polls <= _RESUME_REQUESTS:
            self._go(WireEvent.DRAINED)
            self._tell_writable()

    def _tell_writable(self) -> None:
        if self.writable:
            self._owner.wire_writable(self)

    def _lose(self, error: OctavoError) -> None:
        if self.state.is_over:
            return
        self._go(WireEvent.LOSE)
        self.error = error
        self.settled.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        outstanding, self._outstanding = self._outstanding, {}
        posted = self.posting.withdraw()
        self._owner.wire_lost(self, error)
        for request in outstanding.values():
            self.deliver(request.on_outcome, self.lost_error())
        self.posting.fail(posted)

    def deliver(self, on_outcome: OnOutcome, outcome: Outcome) -> None:
        """Call this with the outcome of a request; a defect met there is reported."""
        try:
            on_outcome(outcome)
        except Exception as error:  # a defect in one ledger's writer must not lose the replies to other ledgers
            self.report_defect(error)

    def report_defect(self, error: Exception) -> None:
        """Handling an outcome has failed."""
        self._loop.call_exception_handler(
            {"message": f"{self._name}: handling an outcome failed", "exception": error, "protocol": self}
        )

    # --- deadlines --------------------------------------------------------------------------------------------------

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_due_at = self._loop.call_at(deadline, self._deadline_reached), deadline

    def _deadline_reached(self) -> None:
        self._timer = None
        now = self._loop.time()
        overdue = [request_id for request_id, request in self._outstanding.items() if request.deadline <= now]
        if overdue and self._received_at < min(self._outstanding[request_id].sent_at for request_id in overdue):
            self._give_up_silent_bookie(overdue)
            return
        for request_id in overdue:
            if request_id in self._outstanding:  # else handling an outcome has closed the wire
                self._time_out(self.take(request_id))
        if self.error is not None:
            return
        if self._outstanding and self._timer is None:
            self._arm(min(request.deadline for request in self._outstanding.values()))
        self._consider_drained()

    def _time_out(self, request: _Outstanding) -> None:
        seconds = request.deadline - request.sent_at
        self.deliver(request.on_outcome, OctavoTimeoutError(f"{self._name}: no answer within {seconds:.3g} s"))

    def _give_up_silent_bookie(self, overdue: list[int]) -> None:
        timed_out = [self.take(request_id) for request_id in overdue]
        self.abort(
            BookieUnavailableError(
                f"{self._name}: connection closed: the bookie sent nothing since a request timed out"
            )
        )
        for request in timed_out:
            self._time_out(request)
