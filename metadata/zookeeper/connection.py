"""One TCP connection to a ZooKeeper server: frames, request numbers, answers in order. Knows nothing of sessions.

A server answers in the order of the requests, so the outstanding requests form a queue. Requests made in one iteration
of the event loop are sent in one write.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from octavo.metadata.zookeeper.messages import (
    AUTH_XID,
    OK,
    PING_XID,
    REPLY_HEADER,
    SESSION_CODES,
    WATCH_XID,
    Answer,
    Request,
    WatchEvent,
    parse_event,
    ping,
)
from octavo.protocol.errors import UnauthorizedError
from octavo.security import forks

REPLY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest answer accepted: a list of a million children would be smaller."""

_LENGTH: Final = struct.Struct("!i")
_XID_MAX: Final = 0x7FFFFFFF


class AnswerLostError(Exception):
    """The connection broke before the answer arrived, so the request may have been executed. The text says why."""


class Connection(asyncio.Protocol):
    """A connection from its opening to its end. Made by the event loop's ``create_connection``."""

    def __init__(self, on_event: Callable[[WatchEvent], None]) -> None:
        self._on_event = on_event
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._outgoing: list[bytes] = []
        self._pending: deque[tuple[int, Request, asyncio.Future[Answer]]] = deque()
        self._authenticating: asyncio.Future[Answer] | None = None
        self._xid = 0
        self._first: asyncio.Future[bytes] | None = None
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.last_zxid = 0
        """The latest change (zxid) that the server has reported."""
        self.heard_at = loop.time()
        """Loop time at which the server last sent something."""
        self.lost: asyncio.Future[str] = loop.create_future()
        """Done when the connection has ended; its result is the reason."""
        self.refusal: UnauthorizedError | None = None
        """Why TLS ended the connection, if the server refused this side's certificate."""

    # --- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of no class of asyncio's
        forks.hold_connection(self)

    def on_forked(self) -> None:
        """In a forked child (rule H1): the connection is the parent's."""
        forks.socket_leads_nowhere(self._transport)
        forks.later_in_child(self._loop, lambda: self.abort("this process was forked from the one that connected"))

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        received = self._received
        received += data
        start = 0
        try:
            while len(received) - start >= _LENGTH.size and not self.lost.done():
                (length,) = _LENGTH.unpack_from(received, start)
                _check_length(length)
                stop = start + _LENGTH.size + length
                if len(received) < stop:
                    break
                self._take(bytes(memoryview(received)[start + _LENGTH.size : stop]))
                start = stop
        except (ValueError, IndexError, KeyError, struct.error, UnicodeDecodeError, AssertionError) as error:
            self.abort(f"it does not speak ZooKeeper's protocol ({error})")
            return
        if start:
            del received[:start]

    def connection_lost(self, error: Exception | None) -> None:
        forks.let_go(self)
        if isinstance(error, UnauthorizedError):
            self.refusal = error
        self._end(f"it was lost ({error})" if error else "the server closed it")

    # --- requests --------------------------------------------------------------------------------------------------

    async def shake_hands(self, payload: bytes) -> bytes:
        """Send the connect request; returns the body of its answer. Raises :class:`AnswerLostError`."""
        self._check()
        self._first = self._loop.create_future()
        self._write(payload)
        return await self._first

    def send(self, request: Request) -> asyncio.Future[Answer]:
        """Send a request; returns a future for its answer, which may be cancelled. Raises :class:`AnswerLostError`, and
        so does the future when the connection breaks."""
        self._check()
        self._xid = self._xid % _XID_MAX + 1
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._write(request.payload(self._xid))
        self._pending.append((self._xid, request, answer))
        return answer

    def send_authentication(self, request: Request) -> asyncio.Future[Answer]:
        """Send credentials, before any request that needs them."""
        self._check()
        self._authenticating = self._loop.create_future()
        self._write(request.payload(AUTH_XID))
        return self._authenticating

    def send_ping(self) -> None:
        """Send a ping; the server answers it."""
        if not self.lost.done():
            self._write(ping().payload(PING_XID))

    def abort(self, reason: str) -> None:
        """End the connection now; outstanding requests fail."""
        if self._transport is not None:
            self._transport.abort()
        self._end(reason)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.lost.done():
            raise AnswerLostError(self.lost.result())

    def _write(self, payload: bytes) -> None:
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(_LENGTH.pack(len(payload)))
        self._outgoing.append(payload)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is not None and not self.lost.done():
            self._transport.write(b"".join(outgoing))

    def _take(self, frame: bytes) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_result(frame)
            return
        xid, zxid, code = REPLY_HEADER.unpack_from(frame)
        body = frame[REPLY_HEADER.size :]
        self.last_zxid = max(self.last_zxid, zxid)
        if xid == WATCH_XID:
            event = parse_event(body)
            if event is not None:
                self._on_event(event)
        elif xid == AUTH_XID:
            if self._authenticating is not None and not self._authenticating.done():
                self._authenticating.set_result(Answer(code))
        elif xid != PING_XID:
            self._answered(xid, code, body)

    def _answered(self, xid: int, code: int, body: bytes) -> None:
        expected, request, answer = self._pending.popleft()
        if xid != expected:
            self._pending.appendleft((expected, request, answer))
            raise ValueError(f"got the answer to request {xid} instead of the one to request {expected}")
        if code in SESSION_CODES:
            self._pending.appendleft((expected, request, answer))
            self.abort(f"the server no longer serves this session (code {code})")
            return
        if answer.done():
            return
        answer.set_result(Answer(code, request.parse(body) if code == OK else None))

    def _end(self, reason: str) -> None:
        if self.lost.done():
            return
        self.lost.set_result(reason)
        waiting: list[asyncio.Future[Any]] = [answer for _, _, answer in self._pending]
        waiting += [future for future in (self._first, self._authenticating) if future is not None]
        self._pending.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(AnswerLostError(reason))
                # Mark as retrieved: the caller may have been cancelled, which is not an error.
                future.exception()


def _check_length(length: int) -> None:
    if not 0 <= length <= REPLY_BYTES_MAX:
        raise ValueError(f"an answer of {length} bytes")
