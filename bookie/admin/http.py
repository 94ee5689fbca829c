"""HTTP/1.1 for the administration of a bookie: one connection, with its limits. h11 knows the protocol.

A client of this interface may be wrong or hostile, and it shares the event loop with adds. So everything that it sends
is bounded: the head of a request, its body, the time it takes to send them, the answers that it does not read, and the
number of connections. Requests of one connection are answered one after another; while one is worked on the bookie does
not read the socket, so that requests sent ahead pile up in the client. What is not clearly one request is refused, and
its connection closed: two readers of the same bytes must never find different requests in them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import h11
import structlog
from octavo.bookie.admin.http_messages import HttpAnswer, HttpError, HttpRequest
from octavo.protocol.errors import OctavoError, UnauthorizedError
from octavo.protocol.light_dataclass import dataclass
from octavo.security import forks
from octavo.security.names import names_of
from octavo.security.tls_port import peer_name

log = structlog.get_logger("octavo.bookie")

type Answerer = Callable[[HttpRequest], Awaitable[HttpAnswer]]
"""Answers a request. Raises :class:`HttpError`."""

_SAFE_METHODS = frozenset({b"GET", b"HEAD"})

_LINGER_SECONDS = 2.0
"""How long a client may go on sending after it has been refused: closing at once could destroy the answer."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bytes and seconds."""

    head_bytes: int = 16 * 1024
    body_bytes: int = 64 * 1024
    request_seconds: float = 10.0
    """To send a request, from its first byte to its last; and to take an answer."""
    idle_seconds: float = 75.0
    """Between two requests; longer than the interval of any scraper."""
    connections_max: int = 32


def refusal_without_tls(error: OctavoError) -> bytes:
    """The answer that a client without TLS reads on a port that speaks TLS only. ``error``: the connection is refused
    for it."""
    if isinstance(error, UnauthorizedError):
        refusal = HttpError(400, "TlsRequired", "this address speaks HTTPS only: ask for https://")
    else:
        refusal = HttpError(503, "Overloaded", error.message, retryable=True)
    answer = refusal.answer()
    status = "400 Bad Request" if refusal.status == 400 else "503 Service Unavailable"
    head = f"HTTP/1.1 {status}\r\nContent-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + answer.body


class HttpListener:
    """The things that the connections of one socket share. ``trusted``: see :class:`HttpRequest`."""

    def __init__(self, answer: Answerer, *, trusted: bool, limits: HttpLimits | None = None) -> None:
        self.answer = answer
        self.trusted = trusted
        self.limits = limits or HttpLimits()
        self.connections: dict[HttpConnection, None] = {}

    def connection(self) -> "HttpConnection":
        """A connection that has been accepted."""
        return HttpConnection(self)

    def give_way(self) -> bool:
        """End the oldest connection on which no request is being answered; False if there is none (rule B12)."""
        oldest = next((connection for connection in self.connections if not connection.answers), None)
        if oldest is None:
            return False
        del self.connections[oldest]
        oldest.abort()
        return True

    def close(self) -> None:
        """End every connection."""
        for connection in list(self.connections):
            connection.abort()


class HttpConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self._limits = listener.limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=listener.limits.head_bytes)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._timer: asyncio.TimerHandle | None = None
        self._head: h11.Request | None = None
        self._body = bytearray()
        self._work: asyncio.Task[None] | None = None
        self._receiving = False
        """Some of a request has arrived, and not all of it."""
        self._drained = asyncio.Event()
        self._drained.set()
        self._closed = False
        self._names: tuple[str, ...] | None = None
        self._peer: str | None = None

    @property
    def answers(self) -> bool:
        """Whether a request is being answered."""
        return self._work is not None

    # --- transport callbacks ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        forks.hold_connection(self)
        session = transport.get_extra_info("tls_session")
        self._names = names_of(session.peer_certificate()) if session is not None else None
        self._peer = None if self._listener.trusted else peer_name(transport)
        listener = self._listener
        full = len(listener.connections) >= self._limits.connections_max and not listener.give_way()
        listener.connections[self] = None
        if full:
            self._refuse(HttpError(503, "Overloaded", "too many connections; try again later", retryable=True))
        else:
            self._set_timer(self._limits.request_seconds)

    def on_forked(self) -> None:
        """In a forked child (rule H1): the connection is the parent's."""
        forks.socket_leads_nowhere(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        forks.let_go(self)
        self._closed = True
        self._listener.connections.pop(self, None)
        self._cancel_timer()
        self._drained.set()
        if self._work is not None and self._head is not None and self._head.method in _SAFE_METHODS:
            self._work.cancel()  # a change is made to its end

    def pause_writing(self) -> None:
        self._drained.clear()

    def resume_writing(self) -> None:
        self._drained.set()

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return  # of a request that has been refused
        if not self._receiving and self._work is None:
            self._receiving = True
            self._set_timer(self._limits.request_seconds)
        self._http.receive_data(data)
        self._read_on()

    def eof_received(self) -> bool:
        if not self._closed and self._work is None:
            self._close()
        return False

    # --- requests ---------------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        """Take what has arrived, up to the end of one request."""
        try:
            while not self._closed and self._work is None:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    return
                if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                    self._close()
                elif isinstance(event, h11.Request):
                    self._take_head(event)
                elif isinstance(event, h11.Data):
                    self._body += event.data
                    self._check_body(len(self._body))
                elif isinstance(event, h11.EndOfMessage):
                    self._complete()
        except h11.RemoteProtocolError as error:
            too_large = error.error_status_hint == 431
            what = f"a request's head has at most {self._limits.head_bytes} bytes" if too_large else str(error)
            self._refuse(HttpError(error.error_status_hint, "TooLarge" if too_large else "BadRequest", what))
        except HttpError as error:
            self._refuse(error)

    def _take_head(self, head: h11.Request) -> None:
        names = [name for name, _ in head.headers]
        if names.count(b"host") > 1:
            raise HttpError(400, "BadRequest", "more than one Host header")
        if b"transfer-encoding" in names and b"content-length" in names:
            # One reader may go by the one, another by the other: the beginning of request smuggling.
            raise HttpError(400, "BadRequest", "Transfer-Encoding and Content-Length exclude one another")
        self._check_body(int(dict(head.headers).get(b"content-length", b"0")))
        self._head = head
        self._body = bytearray()
        if self._http.they_are_waiting_for_100_continue:
            self._send(h11.InformationalResponse(status_code=100, headers=[]))

    def _check_body(self, size: int) -> None:
        if size > self._limits.body_bytes:
            raise HttpError(413, "TooLarge", f"a body has at most {self._limits.body_bytes} bytes")

    def _complete(self) -> None:
        head = self._head
        assert head is not None, "a request ends after its head"
        self._receiving = False
        self._cancel_timer()
        self._transport.pause_reading()
        headers: dict[str, str] = {}
        for name, value in head.headers:
            key, text = name.decode("latin-1"), value.decode("latin-1")
            headers[key] = f"{headers[key]},{text}" if key in headers else text
        request = HttpRequest(
            method=head.method.decode("ascii", "replace"),
            target=head.target.decode("ascii", "replace"),
            headers=headers,
            body=bytes(self._body),
            trusted=self._listener.trusted,
            names=self._names,
            peer=self._peer,
        )
        self._work = asyncio.get_running_loop().create_task(self._work_on(request))

    async def _work_on(self, request: HttpRequest) -> None:
        try:
            answer = await self._listener.answer(request)
        except HttpError as error:
            answer = error.answer()
        except Exception as error:  # no request may end more than itself
            log.exception("defect while answering an administrative request", target=request.target[:200])
            answer = HttpError(500, "Internal", f"a defect of the bookie: {type(error).__name__}").answer()
        if self._closed:
            return
        self._send_answer(answer)
        try:
            async with asyncio.timeout(self._limits.request_seconds):
                await self._drained.wait()
        except TimeoutError:
            self.abort()
            return
        self._work = self._head = None
        if self._http.our_state is h11.MUST_CLOSE or self._http.their_state is not h11.DONE:
            self._close()
            return
        self._http.start_next_cycle()
        self._set_timer(self._limits.idle_seconds)
        self._transport.resume_reading()
        self._read_on()

    # --- answers ----------------------------------------------------------------------------------------------

    def _send_answer(self, answer: HttpAnswer) -> None:
        headers = {
            "Content-Type": answer.content_type,
            "Content-Length": str(len(answer.body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            **answer.headers,
        }
        self._send(h11.Response(status_code=answer.status, headers=list(headers.items())))
        if self._head is None or self._head.method != b"HEAD":
            self._send(h11.Data(data=answer.body))
        self._send(h11.EndOfMessage())

    def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def _refuse(self, error: HttpError) -> None:
        """Tell the client what is wrong, if that is still possible, and close the connection."""
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            error.headers["Connection"] = "close"
            self._send_answer(error.answer())
            if self._transport.can_write_eof():
                self._closed = True
                self._transport.write_eof()
                self._set_timer(_LINGER_SECONDS)
                return
        self._close()

    def _close(self) -> None:
        """Send what is queued, then close; a client that does not take it loses the connection."""
        if not self._closed:
            self._closed = True
            self._set_timer(self._limits.request_seconds)
            self._transport.close()

    def abort(self) -> None:
        """Close now."""
        self._closed = True
        self._transport.abort()

    # --- time -------------------------------------------------------------------------------------------------

    def _set_timer(self, seconds: float) -> None:
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._overdue)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _overdue(self) -> None:
        if self._closed:
            self._transport.abort()
        elif self._receiving:
            seconds = self._limits.request_seconds
            self._refuse(HttpError(408, "Timeout", f"the request was not complete after {seconds:g} s"))
        else:
            self._close()
