"""Connections on a port that speaks TLS: told from plain ones by their first byte, and admitted at a bounded rate.

A TLS record begins with 0x16, a frame with 0 (its length is below 2**24). So one port serves both kinds, and a cluster
changes from plain to TLS by rolling restarts: ``off``, ``optional``, ``required``. A connection that has told its kind
is handed to its protocol, and nothing of this module stays between a plain connection and the event loop.

A handshake costs the server about a millisecond, and memory until it is complete. So handshakes begin at a limited
rate, and only a limited number is incomplete at a time. A connection over these limits waits: the server does not read
its socket. An incomplete handshake that has taken half a second gives way to one that waits. Each connection must be
ready within ``handshake_seconds`` in any case. The handshakes of different addresses begin in turn, and no address may
have more than ``connections_per_address_max`` connections that are not ready: one that opens very many delays itself.
All that are not ready have a share of the places, and the oldest makes way when it is used up (rule B12).
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import cast

import structlog
from octavo.protocol.errors import BookieOverloadedError, OctavoError, UnauthorizedError
from octavo.protocol.frames import frame_of
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.messages import CONNECTION_REQUEST_ID, Op, encode_error
from octavo.security.contexts import ServerContext
from octavo.security.strangers import STRANGERS_SHARE
from octavo.security.tls_session import RECORD_FIRST_BYTE, TlsSession
from octavo.security.tls_transport import TlsProtocol

log = structlog.get_logger("octavo.security")

HANDSHAKE_OUTCOMES = ("ok", "refused", "failed", "timeout")
"""How a handshake can end: refused is for the certificate of one side."""

STALLED_SECONDS = 0.5
"""A handshake takes a few round trips. One that takes this long is slow on purpose, or its network is very bad."""

_BURST_SECONDS = 0.25
"""Handshakes of this time may begin at once: the connections of one client come together."""


@dataclass(frozen=True, slots=True)
class ArrivalLimits:
    """Bounds over connections that are not ready: it is not known yet whether they speak TLS, or their TLS handshake is
    incomplete."""

    connections_max: int = 4096
    connections_per_address_max: int = 256
    """0: no limit."""
    handshakes_max: int = 64
    handshakes_per_second: float = 100.0
    handshake_seconds: float = 10.0


def refusal_frame(error: OctavoError) -> bytes:
    """The frame that a client of a bookie's port reads when its connection is refused."""
    body = encode_error(CONNECTION_REQUEST_ID, Op.ERROR, error)
    return frame_of(body)


class Arrivals:
    """See the module. ``serve`` makes the protocol of a connection that is ready.
    ``refusal``: the bytes that tell a client without TLS why its connection is refused."""

    def __init__(
        self,
        context: Callable[[], ServerContext],
        *,
        plain_too: bool,
        limits: ArrivalLimits,
        serve: Callable[[], asyncio.Protocol],
        refusal: Callable[[OctavoError], bytes] = refusal_frame,
    ) -> None:
        """``context``: that of the handshakes that begin now. It may change at any time; existing connections stay
        open."""
        self.refusal = refusal
        self.plain_too = plain_too
        self._context = context
        self.outcomes: Counter[str] = Counter()
        """How handshakes ended, each of :data:`HANDSHAKE_OUTCOMES`."""
        self._limits = limits
        self._serve = serve
        self._waiting: dict[_Arrival, None] = {}
        """All that are not ready yet."""
        self._of_address: Counter[str] = Counter()
        """How many of them each address has."""
        self._queue: dict[str, dict[_Arrival, bytes]] = {}
        """By address: those whose handshake may not begin yet, the oldest first, with the bytes that they have sent.
        The address whose turn it is comes first."""
        self._shaking: dict[_Arrival, float] = {}
        """Those in their handshake, the oldest first, and when it began."""
        self._next_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._admitting = False
        self._loop = asyncio.get_running_loop()

    def connection(self) -> asyncio.Protocol:
        """A connection that has been accepted."""
        return _Arrival(self)

    @property
    def waiting(self) -> int:
        """Connections that are not ready yet."""
        return len(self._waiting)

    def close(self) -> None:
        """End every connection that is not ready yet."""
        if self._timer is not None:
            self._timer.cancel()
        self._queue.clear()
        for arrival in list(self._waiting):
            arrival.abort()

    # --- what arrivals tell -----------------------------------------------------------------------------------

    def enter(self, arrival: "_Arrival") -> bool:
        """A connection has come; whether it may stay."""
        limit = self._limits.connections_per_address_max
        if limit and self._of_address[arrival.address] >= limit:
            return False
        if len(self._waiting) >= max(self._limits.connections_max // STRANGERS_SHARE, 1):
            next(iter(self._waiting)).expire()
        self._of_address[arrival.address] += 1
        self._waiting[arrival] = None
        return True

    @property
    def handshake_seconds(self) -> float:
        """The time that a connection has to be ready."""
        return self._limits.handshake_seconds

    def leave(self, arrival: "_Arrival", outcome: str | None) -> None:
        """A connection is ready, or over. ``outcome`` of its handshake, if it had one."""
        if arrival not in self._waiting:
            return
        del self._waiting[arrival]
        self._of_address[arrival.address] -= 1
        if not self._of_address[arrival.address]:
            del self._of_address[arrival.address]
        self._take_from_queue(arrival)
        self._shaking.pop(arrival, None)
        if outcome is not None:
            self.outcomes[outcome] += 1
        self._admit()

    def first_bytes(self, arrival: "_Arrival", data: bytes) -> None:
        """A connection has told its kind."""
        if data[0] == RECORD_FIRST_BYTE:
            self._queue.setdefault(arrival.address, {})[arrival] = data
            self._admit()
            if arrival in self._queue.get(arrival.address, ()):
                arrival.transport.pause_reading()
        elif self.plain_too:
            self.leave(arrival, None)
            connection = self._serve()
            arrival.hand_over(connection)
            connection.data_received(data)
        else:
            self.leave(arrival, "failed")
            arrival.refuse_plain()

    def make_connection(self) -> asyncio.Protocol:
        """The protocol of a connection that is ready."""
        return self._serve()

    def _take_from_queue(self, arrival: "_Arrival") -> bytes:
        of_address = self._queue.get(arrival.address, {})
        data = of_address.pop(arrival, b"")
        if not of_address:
            self._queue.pop(arrival.address, None)
        return data

    # --- handshakes -------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Begin the handshakes that may begin now."""
        if self._admitting:
            return  # a handshake has ended at once; the loop below goes on
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._admitting = True
        try:
            self._begin_next()
        finally:
            self._admitting = False

    def _begin_next(self) -> None:
        limits = self._limits
        while self._queue:
            now = self._loop.time()
            wait = self._next_at - now
            if wait <= 0 and len(self._shaking) >= limits.handshakes_max:
                oldest, began_at = next(iter(self._shaking.items()))
                wait = began_at + STALLED_SECONDS - now
                if wait <= 0:
                    oldest.expire()
                    continue
            if wait > 0:
                self._timer = self._loop.call_later(wait, self._admit)
                return
            self._next_at = max(self._next_at, now - _BURST_SECONDS) + 1 / limits.handshakes_per_second
            address = next(iter(self._queue))
            arrival = next(iter(self._queue[address]))
            data = self._take_from_queue(arrival)
            if address in self._queue:
                self._queue[address] = self._queue.pop(address)  # the other addresses come first now
            self._shaking[arrival] = now
            arrival.begin(self._context(), data)


class _Arrival(asyncio.Protocol):
    """One connection until it is ready."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.address = "?"
        """The host of the other side."""
        self._timer: asyncio.TimerHandle | None = None
        self._first_bytes_came = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.address = peer_name(transport).rpartition(":")[0]
        if not self._arrivals.enter(self):
            self._refuse(BookieOverloadedError("too many connections; try again later", may_have_happened=False))
            return
        self._timer = asyncio.get_running_loop().call_later(self._arrivals.handshake_seconds, self.expire)

    def data_received(self, data: bytes) -> None:
        if not self._first_bytes_came and not self.transport.is_closing():
            self._first_bytes_came = True
            self._arrivals.first_bytes(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave(None)

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """The transport is this protocol's from now on."""
        self._stop_timer()
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)

    def begin(self, context: ServerContext, data: bytes) -> None:
        """Begin the handshake with what the client has sent."""
        tls = TlsProtocol(
            TlsSession(context.context, server_side=True),
            self._arrivals.make_connection(),
            established=lambda _session: self._leave("ok"),
            failed=self._failed,
        )
        self.transport.set_protocol(tls)
        tls.connection_made(self.transport)
        self.transport.resume_reading()
        tls.data_received(data)

    def refuse_plain(self) -> None:
        """Tell a client that does not speak TLS that it must."""
        self._stop_timer()
        self._refuse(UnauthorizedError("this bookie speaks TLS only: connect with tls=, or set OCTAVO_TLS"))

    def expire(self) -> None:
        """It has taken too long."""
        self._leave("timeout" if self._first_bytes_came else None)
        self.transport.abort()

    def abort(self) -> None:
        """The server stops."""
        self._leave(None)
        self.transport.abort()

    def _refuse(self, error: OctavoError) -> None:
        self.transport.write(self._arrivals.refusal(error))
        self.transport.close()

    def _failed(self, error: OctavoError) -> None:
        refused = isinstance(error, UnauthorizedError)
        log.info("TLS handshake failed", peer=peer_name(self.transport), reason=error.message)
        self._leave("refused" if refused else "failed")

    def _leave(self, outcome: str | None) -> None:
        self._stop_timer()
        self._arrivals.leave(self, outcome)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def peer_name(transport: asyncio.BaseTransport) -> str:
    """``HOST:PORT`` of the other side."""
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) >= 2 else "?"
