"""A TLS session on a connection of the event loop: a protocol below, a transport above.

* The first write of a turn of the event loop leaves at once, so that a lone request is not delayed; the ones after it
  share records, which leave at the end of the turn.
* Nothing is kept here beyond a turn. What the socket does not take is in the transport below, which pauses the
  application's protocol as it does without TLS, and :meth:`TlsTransport.get_write_buffer_size` counts all of it.
* A failure is told to the other side (an alert) and to this one (``failed``, or ``connection_lost`` with an
  :class:`OctavoError`). The connection then lingers: closing it with unread data would destroy the alert on its way.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from octavo.protocol.errors import BookieUnavailableError, OctavoError
from octavo.security import forks
from octavo.security.tls_session import TlsSession

_QUEUE_BYTES_MAX = 256 * 1024
"""Writes of one turn beyond this leave before its end."""

_LINGER_SECONDS = 2.0
"""How long a side that refused the other waits for it to close the connection."""


class TlsTransport(asyncio.Transport):
    """The transport that the application's protocol writes to. See the module."""

    def __init__(self, session: TlsSession, below: asyncio.Transport, fail: Callable[[OctavoError], None]) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._session = session
        self._below = below
        self._fail = fail
        self._queued: list[bytes] = []
        self._queued_bytes = 0
        self._sent_in_this_turn = False
        self._closing = False

    def write(self, data: Any) -> None:
        """Send bytes, now or at the end of this turn."""
        if self._closing:
            return
        if not self._sent_in_this_turn:
            self._sent_in_this_turn = True
            self._loop.call_soon(self._end_turn)
            self._send(data)
            return
        self._queued.append(data)
        self._queued_bytes += len(data)
        if self._queued_bytes >= _QUEUE_BYTES_MAX:
            self._flush()

    def get_write_buffer_size(self) -> int:
        """Bytes that the socket has not taken."""
        return self._below.get_write_buffer_size() + self._queued_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """As for every transport."""
        self._below.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """``tls_session``: the session; everything else as the transport below says."""
        return self._session if name == "tls_session" else self._below.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """As for every transport."""
        self._below.pause_reading()

    def resume_reading(self) -> None:
        """As for every transport."""
        self._below.resume_reading()

    def is_reading(self) -> bool:
        """As for every transport."""
        return self._below.is_reading()

    def is_closing(self) -> bool:
        """Whether nothing more is sent."""
        return self._closing or self._below.is_closing()

    def close(self) -> None:
        """Send what was written, say that this is all, then close."""
        if not self._closing:
            self._flush()
            self._closing = True
            self._session.end()
            self.send_outgoing()
            self._below.close()

    def can_write_eof(self) -> bool:
        """Whether :meth:`write_eof` can be called."""
        return self._below.can_write_eof()

    def write_eof(self) -> None:
        """Send what was written, and say that this is all; the other side may go on sending."""
        if not self._closing:
            self._flush()
            self._closing = True
            self._session.end()
            self.send_outgoing()
            self._below.write_eof()

    def abort(self) -> None:
        """Close now; what was written may be lost."""
        self.stop()
        self._below.abort()

    def stop(self) -> None:
        """Send nothing more."""
        self._closing = True
        self._queued.clear()
        self._queued_bytes = 0

    def send_outgoing(self) -> None:
        """Send what the session has for the other side."""
        outgoing = self._session.outgoing()
        if outgoing and not self._below.is_closing():
            self._below.write(outgoing)

    def _end_turn(self) -> None:
        self._sent_in_this_turn = False
        self._flush()

    def _flush(self) -> None:
        if self._queued:
            data = self._queued[0] if len(self._queued) == 1 else b"".join(self._queued)
            self._queued.clear()
            self._queued_bytes = 0
            self._send(data)

    def _send(self, data: bytes) -> None:
        try:
            self._session.send(data)
        except OctavoError as error:
            self._fail(error)
            return
        self.send_outgoing()


class TlsProtocol(asyncio.Protocol):
    """Between a transport of the event loop and the application's protocol, which is connected once the handshake is
    complete.

    ``established`` is called before that, and may raise :class:`OctavoError` to refuse the other side. ``failed`` is
    called instead of connecting the application, with the reason.
    """

    def __init__(
        self,
        session: TlsSession,
        application: asyncio.Protocol,
        *,
        established: Callable[[TlsSession], None],
        failed: Callable[[OctavoError], None],
    ) -> None:
        self._session = session
        self._application = application
        self._established = established
        self._failed = failed
        self._below: asyncio.Transport = cast(asyncio.Transport, None)
        self._transport: TlsTransport = cast(TlsTransport, None)
        self._connected = False
        """The application's protocol has been connected, and not lost."""
        self._over = False
        self._linger: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._below = cast(asyncio.Transport, transport)
        forks.hold_connection(self)
        self._transport = TlsTransport(self._session, self._below, self.fail)
        self._shake_hands(b"")

    def data_received(self, data: bytes) -> None:
        """Decrypt, and hand on."""
        if self._over:
            return
        if not self._connected:
            self._shake_hands(data)
            return
        session = self._session
        try:
            received = session.receive(data)
        except OctavoError as error:
            self.fail(error)
            return
        self._transport.send_outgoing()
        if received:
            self._application.data_received(received)
        if session.ended and not self._over:
            self.eof_received()

    def eof_received(self) -> bool:
        """The other side sends nothing more."""
        if self._over:
            self._below.abort()
        elif self._connected:
            self._application.eof_received()
            self._transport.close()
        else:
            self._fail_to_connect(
                BookieUnavailableError("the connection was closed during the TLS handshake", may_have_happened=False)
            )
            self._below.close()
        return False

    def pause_writing(self) -> None:
        """The socket does not keep up."""
        if self._connected:
            self._application.pause_writing()

    def resume_writing(self) -> None:
        """The socket has caught up."""
        if self._connected:
            self._application.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        forks.let_go(self)
        if self._linger is not None:
            self._linger.cancel()
        self._transport.stop()
        if self._connected:
            self._over, self._connected = True, False
            self._application.connection_lost(exc)
        elif not self._over:
            reason = f": {exc}" if exc is not None else ""
            self._fail_to_connect(
                BookieUnavailableError(
                    f"the connection was lost during the TLS handshake{reason}", may_have_happened=False
                )
            )

    def on_forked(self) -> None:
        """Cut off from the socket, in a forked child: not even an alert is sent."""
        forks.socket_leads_nowhere(self._below)

    def fail(self, error: OctavoError) -> None:
        """End the connection for this reason; tell the other side what the session has for it."""
        if self._over:
            return
        self._transport.send_outgoing()
        self._transport.stop()
        if self._connected:
            self._over, self._connected = True, False
            self._application.connection_lost(error)
        else:
            self._fail_to_connect(error)
        if self._below.is_closing():
            return
        self._below.resume_reading()
        self._linger = asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._below.abort)
        if self._below.can_write_eof():
            self._below.write_eof()

    def _fail_to_connect(self, error: OctavoError) -> None:
        self._over = True
        self._failed(error)

    def _shake_hands(self, data: bytes) -> None:
        session = self._session
        try:
            complete = session.handshake(data)
            if complete:
                self._established(session)
        except OctavoError as error:
            self.fail(error)
            return
        self._transport.send_outgoing()
        if complete:
            self._connected = True
            self._application.connection_made(self._transport)
            self.data_received(b"")  # what came with the last message of the handshake
