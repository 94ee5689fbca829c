"""One client's connection to a bookie: its limits, and the way from a request to the storage and back.

* Frames are handled in the order in which they arrive; replies leave in the order in which they are ready.
* A request is *outstanding* from its arrival to its reply. At ``REQUESTS_PER_CONNECTION_MAX`` the connection stops
  reading its socket, and goes on at half of that; long polls, which wait for somebody else, are counted apart.
* Whatever looks something up begins a few at a time, only while the client takes what it is sent, and only while there
  is memory for its answer (``answer_room``): replies never pile up. Fences take effect on arrival; their answers wait.
* While the storage has no room, no connection reads its socket: a slow disk pushes back on the network, so that memory
  stays bounded.
* Bytes that break the protocol get one error frame and a closed connection; they never do more than that.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import structlog
from octavo.bookie.server.answer_room import AnswerQueue
from octavo.bookie.server.lookups import Lookups
from octavo.protocol.entries import verify_batch, verify_explicit_lac
from octavo.protocol.errors import (
    BookieReadOnlyError,
    BookieShuttingDownError,
    InternalError,
    OctavoError,
    ProtocolError,
    UnsupportedOperationError,
    UnsupportedVersionError,
    WrongClusterError,
)
from octavo.protocol.frames import LENGTH, FrameDecoder, unpack_body
from octavo.protocol.ids import LedgerId
from octavo.protocol.limits import (
    HELLO_TIMEOUT_SECONDS,
    REQUESTS_PER_CONNECTION_MAX,
)
from octavo.protocol.messages import (
    CONNECTION_REQUEST_ID,
    MAGIC,
    PROTOCOL_VERSION,
    Add,
    Added,
    AddFlag,
    Hello,
    Info,
    InfoAnswer,
    LacWritten,
    ListEntries,
    Op,
    Ping,
    Pong,
    Read,
    ReadLac,
    Reply,
    Request,
    UnknownOperationError,
    WriteLac,
    common_version,
    decode_hello,
    decode_request,
    encode_error,
    encode_hello,
)

if TYPE_CHECKING:
    from octavo.bookie.server.server import BookieServer

log = structlog.get_logger("octavo.bookie")

_JOIN_BYTES_MAX = 128 * 1024
"""Bodies up to this size are copied behind their length: a write of four bytes by itself is a system call and a packet
more, and wakes the peer for nothing."""

WRITE_BUFFER_BYTES_HIGH = 4 * 1024 * 1024
"""Unsent bytes of a connection above which no further read of its is started."""


class Connection(asyncio.Protocol):
    """One client's connection. See the rules at the top of the module."""

    def __init__(self, server: "BookieServer") -> None:
        self._server = server
        self._storage = server.storage
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._decoder = FrameDecoder()
        self._peer = "?"
        self._hello_timer: asyncio.TimerHandle | None = None
        self._greeted = False
        self._closing = False
        self._write_paused = False
        self._read_paused = False
        self._backlog: deque[memoryview | bytes] = deque()
        self._working_off_backlog = False
        self._bytes_sent = 0
        self._answers = AnswerQueue(
            server.answers,
            unsent_bytes=self._unsent_bytes,
            sent_bytes=lambda: self._bytes_sent,
            put_out=self._put_out,
        )
        self._lookups = Lookups(self, self._answers, server)
        self._tasks: set[asyncio.Task[None]] = set()
        self.outstanding = 0

    # --- transport callbacks --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH)
        self._peer = _peer_name(transport)
        self._server.connections[self] = None
        self._server.answers.enter(self._answers)
        self._hello_timer = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_SECONDS, self._hello_overdue)
        self.regulate()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self._backlog.clear()
        self._answers.forget()
        for task in self._tasks:
            task.cancel()
        self._server.connections.pop(self, None)
        self._server.request_finished()
        if exc is not None:
            log.debug("connection lost", peer=self._peer, error=str(exc))

    def pause_writing(self) -> None:
        self._write_paused = self._answers.paused = True
        self._answers.look()
        self.regulate()

    def resume_writing(self) -> None:
        self._write_paused = self._answers.paused = False
        self._answers.look()
        self.regulate()
        self._answers.go()

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._decoder.feed(data):
                if self._backlog or self._must_hold:
                    self._backlog.append(body)
                else:
                    self._frame(body)
                if self._closing:
                    return
        except Exception as error:
            self._refuse_peer(error)

    def eof_received(self) -> bool:
        return False

    # --- flow control --------------------------------------------------------------------------------

    @property
    def _must_hold(self) -> bool:
        return self.outstanding >= REQUESTS_PER_CONNECTION_MAX or self._server.held_back

    def regulate(self) -> None:
        """Read the socket or leave it, as the rules say now; frames held back go first."""
        if self._closing:
            return
        if self._backlog and not self._must_hold and not self._working_off_backlog:
            self._work_off_backlog()
        hold = bool(self._backlog) or self._must_hold or self._write_paused
        if self._read_paused and self.outstanding > REQUESTS_PER_CONNECTION_MAX // 2:
            return
        if hold and not self._read_paused:
            self._read_paused = True
            self._transport.pause_reading()
        elif not hold and self._read_paused:
            self._read_paused = False
            self._transport.resume_reading()

    def _work_off_backlog(self) -> None:
        self._working_off_backlog = True
        try:
            while self._backlog and not self._must_hold and not self._closing:
                self._frame(self._backlog.popleft())
        except Exception as error:
            self._refuse_peer(error)
        finally:
            self._working_off_backlog = False

    # --- requests --------------------------------------------------------------------------------

    def _frame(self, body: memoryview | bytes) -> None:
        values = unpack_body(body)
        if not self._greeted:
            self._greet(values)
            return
        try:
            request_id, request = decode_request(values)
        except UnknownOperationError as error:
            self._send(encode_error(error.request_id, Op.ERROR, UnsupportedOperationError(error.message)))
            return
        self.outstanding += 1
        if self._server.draining:
            self._refuse(
                request_id, request.op, BookieShuttingDownError("the bookie is stopping", may_have_happened=False)
            )
            return
        try:
            self._dispatch(request_id, request)
        except ProtocolError as error:
            # An entry that no honest writer sends: the request is refused, and so is the peer.
            self._refuse(request_id, request.op, error)
            raise
        except OctavoError as error:
            self._refuse(request_id, request.op, error)
        if self.outstanding >= REQUESTS_PER_CONNECTION_MAX:
            self.regulate()

    def _dispatch(self, request_id: int, request: Request) -> None:
        if type(request) is Add:
            self._add(request_id, request)
        elif type(request) is Read:
            self._lookups.read(request_id, request)
        elif type(request) is ReadLac:
            self._lookups.read_lac(request_id, request)
        elif type(request) is WriteLac:
            lac = verify_explicit_lac(LedgerId(request.ledger_id), request.sealed)
            self._storage.write_lac(LedgerId(request.ledger_id), request.ledger_key, request.sealed, lac)
            self._finish(LacWritten().encode(request_id))
        elif type(request) is ListEntries:
            self._lookups.list_entries(request_id, request)
        elif type(request) is Info:
            self.start(request_id, request.op, self._info())
        elif type(request) is Ping:
            self._finish(Pong().encode(request_id))
        else:
            raise UnsupportedOperationError(f"operation {request.op.name} is not served by this version")

    def _add(self, request_id: int, request: Add) -> None:
        recovery = False
        if request.flags is not AddFlag.NONE:
            if request.flags & AddFlag.DEFERRED_SYNC:
                raise UnsupportedOperationError("deferred sync is not served by this version")
            recovery = bool(request.flags & AddFlag.RECOVERY)
        server = self._server
        if server.read_only and (not recovery or server.out_of_room):
            raise BookieReadOnlyError(f"bookie {server.identity.bookie_id} is read-only")
        ledger_id = LedgerId(request.ledger_id)
        entries = request.entries
        batch = verify_batch(ledger_id, entries)
        done = partial(self._added, request_id)
        self._storage.add_then(ledger_id, request.ledger_key, entries, recovery=recovery, batch=batch, done=done)
        traffic = server.traffic
        traffic.adds += 1
        traffic.entries_added += len(entries)
        traffic.bytes_added += len(batch.data)
        if not self._storage.has_room:
            server.hold_back_if_full()

    def _added(self, request_id: int, failure: BaseException | None) -> None:
        if failure is None:
            self._finish(Added().encode(request_id))
        else:
            self._refuse(request_id, Op.ADD, _as_octavo_error(failure))

    async def _info(self) -> Reply:
        return InfoAnswer(await self._server.info())

    # --- replies --------------------------------------------------------------------------------

    def start(self, request_id: int, op: Op, work: Awaitable[Reply]) -> asyncio.Task[None]:
        """Answer a request once ``work`` is done; ends with the connection."""
        task = asyncio.get_running_loop().create_task(self._answer(request_id, op, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, request_id: int, op: Op, work: Awaitable[Reply]) -> None:
        try:
            reply = await work
            body = reply.encode(request_id)
        except asyncio.CancelledError:
            self.outstanding -= 1
            raise
        except Exception as error:  # every failure is an answer; none may end the bookie from here
            self._refuse(request_id, op, _as_octavo_error(error))
        else:
            self._finish(body)

    def _finish(self, body: bytes) -> None:
        self.outstanding -= 1
        self._send(body)
        if self._read_paused:
            self.regulate()
        if self._server.draining:
            self._server.request_finished()

    def _refuse(self, request_id: int, op: Op, error: OctavoError) -> None:
        self._finish(encode_error(request_id, op, error))

    def _send(self, body: bytes) -> None:
        if not self._closing:
            # Not writelines(): asyncio's own transports do not pause their protocol in it.
            self._bytes_sent += LENGTH.size + len(body)
            prefix = LENGTH.pack(len(body))
            if len(body) <= _JOIN_BYTES_MAX:
                self._transport.write(prefix + body)
            else:
                self._transport.write(prefix)
                self._transport.write(body)

    # --- hello and the end --------------------------------------------------------------------------------

    def _greet(self, values: list[Any]) -> None:
        hello = decode_hello(values)
        if isinstance(hello, OctavoError):
            self.close()
            return
        identity = self._server.identity
        ours = Hello(
            MAGIC, PROTOCOL_VERSION, PROTOCOL_VERSION, identity.software, identity.cluster_id, identity.bookie_id,
            identity.boot_id, (),
        )  # fmt: skip
        if common_version(ours, hello) is None:
            raise UnsupportedVersionError(
                f"this bookie speaks protocol version {PROTOCOL_VERSION}, you speak {hello.version_lowest} to "
                f"{hello.version_highest}"
            )
        if hello.cluster_id and hello.cluster_id != identity.cluster_id:
            raise WrongClusterError(f"this bookie belongs to cluster {identity.cluster_id}, not {hello.cluster_id}")
        if hello.bookie_id and hello.bookie_id != identity.bookie_id:
            raise WrongClusterError(f"bookie {identity.bookie_id} answers here, not {hello.bookie_id}")
        self._greeted = True
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self._send(encode_hello(ours))

    def _hello_overdue(self) -> None:
        if not self._greeted:
            self._fail(ProtocolError(f"no hello within {HELLO_TIMEOUT_SECONDS:g} seconds"))

    def _refuse_peer(self, error: Exception) -> None:
        """A frame that could not be handled ends its connection, never more than that; whose fault it was is told."""
        if isinstance(error, ProtocolError):
            self._fail(error)
        else:
            log.error("defect while handling a frame", peer=self._peer, exc_info=error)
            self._fail(InternalError(f"a defect of the bookie: {type(error).__name__}"))

    def _fail(self, error: OctavoError) -> None:
        """One error frame, a log line, and the end of this connection."""
        if self._closing:
            return
        self._server.traffic.protocol_errors += 1
        log.warning("connection refused", peer=self._peer, error=type(error).__name__, reason=error.message)
        self._send(encode_error(CONNECTION_REQUEST_ID, Op.ERROR, error))
        self.close()

    def close(self) -> None:
        """Send what is queued, then close."""
        if not self._closing:
            self._closing = True
            self._backlog.clear()
            self._transport.close()
            self._answers.look()

    def _unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def _put_out(self, seconds: float, unsent_bytes: int) -> None:
        """The peer takes nothing: what waits for it holds memory that others need."""
        log.warning(
            "connection ended: its peer takes no answers",
            peer=self._peer, seconds=round(seconds, 1), unsent_bytes=unsent_bytes,
        )  # fmt: skip
        self._closing = True
        self._transport.abort()


def _as_octavo_error(error: BaseException) -> OctavoError:
    if isinstance(error, OctavoError):
        return error
    log.error("request failed by a defect", error=repr(error), exc_info=error)
    return InternalError(f"a defect of the bookie: {type(error).__name__}")


def _peer_name(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) >= 2 else "?"
