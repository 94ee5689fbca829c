"""One client's connection to a bookie: its limits, and the way from a request to the storage and back.

* Frames are handled in the order in which they arrive; replies leave in the order in which they are ready.
* A request is *outstanding* from its arrival to its reply. At ``REQUESTS_PER_CONNECTION_MAX`` the connection stops
  reading its socket, and goes on at half of that; long polls, which wait for somebody else, are counted apart.
* Reads are started a few at a time and only while the client takes what it is sent: replies never pile up.
* While the storage has no room, no connection reads its socket: a slow disk pushes back on the network (DESIGN 5).
* Bytes that break the protocol get one error frame and a closed connection; they never do more than that.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import structlog
from octavo.bookie.answers import answer_list_entries, answer_read, answer_read_lac
from octavo.protocol.entries import verify_batch, verify_explicit_lac
from octavo.protocol.errors import (
    BookieOverloadedError,
    BookieReadOnlyError,
    BookieShuttingDownError,
    InternalError,
    OctavoError,
    ProtocolError,
    UnauthorizedError,
    UnsupportedOperationError,
    UnsupportedVersionError,
    WrongClusterError,
)
from octavo.protocol.frames import LENGTH, FrameDecoder, unpack_body
from octavo.protocol.ids import LedgerId
from octavo.protocol.limits import (
    HELLO_TIMEOUT_SECONDS,
    LONG_POLLS_PER_CONNECTION_MAX,
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
    ReadFlag,
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
    from octavo.bookie.server import BookieServer

log = structlog.get_logger("octavo.bookie")

READS_AT_ONCE = 8
"""Reads of one connection that run at a time: enough to keep a disk busy."""

READ_BYTES_AT_ONCE = 8 * 1024 * 1024
"""What the reads of one connection that run at a time may bring together, or one read alone: all that a peer who asks
and does not take the answers makes a bookie hold. Eight reads of our clients fit."""

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
        self._reads: deque[tuple[int, Request]] = deque()
        self._reads_running = 0
        self._read_bytes_running = 0
        self._long_polls = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.outstanding = 0

    # --- transport callbacks --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH)
        self._peer = _peer_name(transport)
        self._server.connections[self] = None
        self._hello_timer = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_SECONDS, self._hello_overdue)
        self.regulate()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self._backlog.clear()
        self.outstanding -= len(self._reads)
        self._reads.clear()
        for task in self._tasks:
            task.cancel()
        self._server.connections.pop(self, None)
        self._server.request_finished()
        if exc is not None:
            log.debug("connection lost", peer=self._peer, error=str(exc))

    def pause_writing(self) -> None:
        self._write_paused = True
        self.regulate()

    def resume_writing(self) -> None:
        self._write_paused = False
        self.regulate()
        self._start_reads()

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
            if request.flags & ReadFlag.FENCE:
                # The fence takes effect here, in the order of arrival; only the answer waits (PROTOCOL F2).
                self._start(request_id, request.op, self._fence_then(request, partial(self._read, request)))
            else:
                self._reads.append((request_id, request))
                self._start_reads()
        elif type(request) is ReadLac:
            self._read_lac(request_id, request)
        elif type(request) is WriteLac:
            lac = verify_explicit_lac(LedgerId(request.ledger_id), request.sealed)
            self._storage.write_lac(LedgerId(request.ledger_id), request.ledger_key, request.sealed, lac)
            self._finish(LacWritten().encode(request_id))
        elif type(request) is ListEntries:
            self._reads.append((request_id, request))
            self._start_reads()
        elif type(request) is Info:
            self._start(request_id, request.op, self._info())
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

    def _start_reads(self) -> None:
        while self._reads and self._reads_running < READS_AT_ONCE and not self._write_paused and not self._closing:
            request_id, request = self._reads[0]
            size = request.bytes_max if type(request) is Read else 0
            if self._reads_running and self._read_bytes_running + size > READ_BYTES_AT_ONCE:
                return
            self._reads.popleft()
            self._reads_running += 1
            self._read_bytes_running += size
            if type(request) is Read:
                task = self._start(request_id, request.op, self._read(request))
            else:
                work = answer_list_entries(self._storage, cast(ListEntries, request))
                task = self._start(request_id, request.op, work)
            task.add_done_callback(partial(self._read_finished, size))

    def _read_finished(self, size: int, _task: asyncio.Task[None]) -> None:
        self._reads_running -= 1
        self._read_bytes_running -= size
        self._start_reads()

    async def _read(self, request: Read) -> Reply:
        answer = await answer_read(self._storage, request)
        traffic = self._server.traffic
        traffic.reads += 1
        traffic.entries_read += len(answer.entries)
        traffic.bytes_read += sum(map(len, answer.entries))
        return answer

    def _read_lac(self, request_id: int, request: ReadLac) -> None:
        fence = bool(request.flags & ReadFlag.FENCE)
        if request.wait_milliseconds == 0 or fence:
            answer = partial(answer_read_lac, self._storage, request)
            work = self._fence_then(request, answer) if fence else answer()
            self._start(request_id, request.op, work)
            return
        if self._long_polls >= LONG_POLLS_PER_CONNECTION_MAX:
            raise BookieOverloadedError(f"more than {LONG_POLLS_PER_CONNECTION_MAX} long polls on one connection")
        self._long_polls += 1
        self.outstanding -= 1
        task = self._start(request_id, request.op, self._long_poll(request))
        task.add_done_callback(self._long_poll_finished)

    def _long_poll_finished(self, _task: asyncio.Task[None]) -> None:
        self._long_polls -= 1

    async def _long_poll(self, request: ReadLac) -> Reply:
        # Counted as outstanding only while it is answered, so that the counts around it stay simple.
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(request.wait_milliseconds / 1000):
                    await self._storage.wait_lac(LedgerId(request.ledger_id), request.above)
        finally:
            self.outstanding += 1
        return await answer_read_lac(self._storage, request)

    def _fence_then(self, request: Read | ReadLac, answer: Callable[[], Awaitable[Reply]]) -> Awaitable[Reply]:
        if not request.ledger_key:
            raise UnauthorizedError(f"ledger {request.ledger_id}: a fence needs the ledger key")
        durable = self._storage.fence(LedgerId(request.ledger_id), request.ledger_key)

        async def work() -> Reply:
            # Computed after the fence, sent after it is durable.
            reply = await answer()
            await durable
            return reply

        return work()

    async def _info(self) -> Reply:
        return InfoAnswer(await self._server.info())

    # --- replies --------------------------------------------------------------------------------

    def _start(self, request_id: int, op: Op, work: Awaitable[Reply]) -> asyncio.Task[None]:
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


def _as_octavo_error(error: BaseException) -> OctavoError:
    if isinstance(error, OctavoError):
        return error
    log.error("request failed by a defect", error=repr(error), exc_info=error)
    return InternalError(f"a defect of the bookie: {type(error).__name__}")


def _peer_name(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) >= 2 else "?"
