"""One client's connection to a bookie: its limits, and the way from a request to the storage and back.

* Frames are handled in the order in which they arrive; replies leave in the order in which they are ready.
* At ``REQUESTS_PER_CONNECTION_MAX`` outstanding requests the connection stops reading its socket, and goes on at half
  of that; long polls that wait for the ledger to grow are counted apart.
* Look-ups begin a few at a time, only while the client takes what it is sent, and only while there is memory for the
  answer (``answer_memory``): replies never pile up. Fences take effect on arrival; their answers wait.
* While the storage has no room, no connection reads its socket: a slow disk pushes back on the network.
* Unfinished frames of all connections share one memory, and each must be completed in time (``frame_memory``).
* Bytes that break the protocol get one error frame and a closed connection; they never do more than that.
"""

import asyncio
from collections import deque
from functools import partial
from typing import Any, cast

import structlog
from octavo.bookie.memory.answer_memory import AnswerQueue
from octavo.bookie.server.access import Gate
from octavo.bookie.server.clients import Client
from octavo.bookie.server.held import HeldRequests
from octavo.bookie.server.limits import STRANGER_FRAME_BYTES_MAX
from octavo.bookie.server.lookups import Lookup, Lookups
from octavo.bookie.server.packed_requests import PackedRequests
from octavo.bookie.server.questions import Question, Questions
from octavo.bookie.server.replies import Replies
from octavo.bookie.server.service import BookieService
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
from octavo.protocol.frames import FrameDecoder, unpack_body
from octavo.protocol.ids import LedgerId
from octavo.protocol.limits import REQUESTS_PER_CONNECTION_MAX
from octavo.protocol.messages import (
    CAPABILITY_AUTHENTICATE,
    CAPABILITY_DEFERRED_SYNC,
    CAPABILITY_REPAIR,
    CAPABILITY_TERMS,
    CONNECTION_REQUEST_ID,
    MAGIC,
    PROTOCOL_VERSION,
    Add,
    AddFlag,
    Authenticate,
    Force,
    Forced,
    Hello,
    Info,
    InfoAnswer,
    LacWritten,
    Op,
    Ping,
    Pong,
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
from octavo.protocol.packs import CAPABILITY_PACKS, decode_pack, is_pack
from octavo.protocol.places import check_places
from octavo.protocol.pushes import CAPABILITY_SUBSCRIPTIONS
from octavo.security import forks
from octavo.security.names import names_of
from octavo.security.tls_port import peer_name
from octavo.security.tls_session import TlsSession

log = structlog.get_logger("octavo.bookie")

CAPABILITIES = (
    CAPABILITY_REPAIR,
    CAPABILITY_DEFERRED_SYNC,
    CAPABILITY_TERMS,
    CAPABILITY_PACKS,
    CAPABILITY_SUBSCRIPTIONS,
)
"""What this bookie understands beyond the protocol's version."""

WRITE_BUFFER_BYTES_HIGH = 4 * 1024 * 1024
"""Unsent bytes of a connection above which none of its look-ups is started."""


class Connection(asyncio.Protocol):
    """One client's connection. See the rules at the top of the module."""

    def __init__(self, service: BookieService) -> None:
        self._service = service
        self._storage = service.storage
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._decoder = FrameDecoder()
        self._frames = service.frames
        self._holds_frame = False
        self._peer = "?"
        self._hello_timer: asyncio.TimerHandle | None = None
        self._greeted = False
        self._closing = False
        self._write_paused = False
        self._read_paused = False
        self._backlog: deque[memoryview | bytes] = deque()
        self._working_off_backlog = False
        self._standing = service.standing
        self._replies = replies = Replies(self._finished, service.requests, service.standing)
        self._answers = AnswerQueue(
            service.answers,
            unsent_bytes=lambda: replies.unsent_bytes,
            written_bytes=lambda: replies.bytes_sent,
            evict=self._evict,
        )
        self._gate = gate = service.access.gate(self.drop) if service.access is not None else None
        self._lookups = Lookups(replies, self._answers, service, gate, client=lambda: self._client)
        self._questions = Questions(service)
        self._held = HeldRequests(service, replies, self._questions, self._dispatch)
        self._packed = PackedRequests(service, replies, serve=self._serve, is_closing=lambda: self._closing)
        new_ledgers = service.new_ledgers
        self._new_ledgers = new_ledgers if new_ledgers is not None and new_ledgers.checks_writes else None
        self._clients = service.clients
        self._client: Client | None = None
        self._guarded = gate is not None or self._new_ledgers is not None or service.clients.meters_frames
        """Whether requests are looked at before they are served: one question for each frame of other bookies."""

    @property
    def outstanding(self) -> int:
        """Requests that are to be answered yet; none of a connection that is closed."""
        return 0 if self._replies.closed else self._replies.outstanding

    @property
    def long_polls(self) -> int:
        """Long polls that wait for a ledger to grow."""
        return self._lookups.long_polls

    @property
    def subscriptions(self) -> int:
        """Subscriptions of the client to ledgers."""
        return len(self._lookups.subscriptions)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the client has not taken yet."""
        return self._replies.unsent_bytes

    @property
    def peer(self) -> str:
        """``HOST:PORT`` of the client."""
        return self._peer

    @property
    def uses_tls(self) -> bool:
        """Whether the client speaks TLS."""
        return self._transport.get_extra_info("tls_session") is not None

    @property
    def principal(self) -> str | None:
        """The principal that the client has proved to be; None while that is not known, or not asked for."""
        return self._gate.name if self._gate is not None else None

    @property
    def client(self) -> Client | None:
        """The client that the connection belongs to; None before it is connected, and if it was refused."""
        return self._client

    @property
    def reading_is_paused(self) -> bool:
        """The bookie does not read the socket."""
        return self._read_paused

    # --- transport callbacks --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        forks.hold_connection(self)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH)
        self._replies.connected(self._transport)
        self._peer = peer_name(transport)
        if self._gate is not None:
            self._gate.peer = self._peer
        self._lookups.peer = self._peer
        service, limits = self._service, self._service.limits
        refused = len(service.connections) >= limits.connections_max and not service.strangers.give_way()
        service.connections[self] = None
        service.answers.add_queue(self._answers)
        self._frames.enter(self)
        if refused:
            service.traffic.connections_refused += 1
            self._fail(
                BookieOverloadedError(f"more than {limits.connections_max} connections", may_have_happened=False)
            )
            return
        if not self._become(f"address {self._peer.rpartition(':')[0]}"):
            return
        if self._gate is not None:
            service.strangers.enter(self)
        self._hello_timer = asyncio.get_running_loop().call_later(limits.hello_timeout_seconds, self._hello_overdue)
        self.regulate()

    def on_forked(self) -> None:
        """In a forked child (rule H1): the connection is the parent's."""
        forks.socket_leads_nowhere(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        forks.let_go(self)
        self._closing = True
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        if self._gate is not None:
            self._gate.leave()
            self._service.strangers.leave(self)
        if self._client is not None:
            self._clients.leave(self._client, self)
        self._backlog.clear()
        # This object is part of a cycle. Until that is collected, megabytes would stay that nothing counts any more.
        self._decoder.clear()
        self._answers.close()
        self._frames.leave(self)
        self._replies.cancel()
        self._lookups.subscriptions.close()
        self._service.connections.pop(self, None)
        self._service.request_finished()
        if exc is not None:
            log.debug("connection lost", peer=self._peer, error=str(exc))

    def pause_writing(self) -> None:
        self._write_paused = self._answers.paused = True
        self._answers.observe_socket()
        self.regulate()

    def resume_writing(self) -> None:
        self._write_paused = self._answers.paused = False
        self._answers.observe_socket()
        self.regulate()
        self._answers.start_ready()

    def data_received(self, data: bytes) -> None:
        completed = False
        self._clients.acting = self._client
        try:
            for body in self._decoder.feed(data):
                completed = True
                if self._backlog or self._must_hold:
                    self._backlog.append(body)
                else:
                    self._frame(body)
                if self._closing:
                    return
        except Exception as error:
            self._refuse_client(error)
        else:
            unfinished_bytes = self._decoder.buffered_bytes
            if unfinished_bytes or self._holds_frame:
                self._holds_frame = unfinished_bytes > 0
                if unfinished_bytes > STRANGER_FRAME_BYTES_MAX and self._gate is not None and self._gate.name is None:
                    self._fail(ProtocolError(f"a frame over {STRANGER_FRAME_BYTES_MAX} bytes before authentication"))
                    return
                self._frames.note(self, unfinished_bytes, begins=completed)

    def eof_received(self) -> bool:
        return False

    # --- flow control --------------------------------------------------------------------------------

    @property
    def _must_hold(self) -> bool:
        return (
            self._replies.outstanding >= REQUESTS_PER_CONNECTION_MAX
            or self._service.held_back
            or (self._client is not None and self._client.rests)
        )

    @property
    def _is_throttled(self) -> bool:
        return self._client is not None and self._client.throttled

    def regulate(self) -> None:
        """Read the socket, or stop reading it, as the limits say now; frames held back go first."""
        if self._closing:
            return
        throttled = self._is_throttled
        if self._backlog and not self._must_hold and not self._working_off_backlog and not throttled:
            self._work_off_backlog()
        hold = (
            bool(self._backlog) or throttled or self._must_hold or self._write_paused or not self._frames.may_read(self)
        )
        if not (self._read_paused and self._replies.outstanding > REQUESTS_PER_CONNECTION_MAX // 2):
            if hold and not self._read_paused:
                self._read_paused = True
                self._transport.pause_reading()
            elif not hold and self._read_paused:
                self._read_paused = False
                self._transport.resume_reading()
        self._replies.watched = self._read_paused or self._service.draining

    def _finished(self) -> None:
        if self._read_paused:
            self.regulate()
        if self._service.draining:
            self._service.request_finished()

    def _work_off_backlog(self) -> None:
        self._working_off_backlog = True
        self._clients.acting = self._client
        try:
            while self._backlog and not self._must_hold and not self._is_throttled and not self._closing:
                self._frame(self._backlog.popleft())
        except Exception as error:
            self._refuse_client(error)
        finally:
            self._working_off_backlog = False

    # --- requests --------------------------------------------------------------------------------

    def _frame(self, body: memoryview | bytes) -> None:
        values = unpack_body(body)
        if not self._greeted:
            self._greet(values)
            return
        if is_pack(values):
            self._pack(values, body)
            return
        if not self._admit_frame(body, 1):
            return
        replies = self._replies
        try:
            request_id, request = decode_request(values)
        except UnknownOperationError as error:
            refusal = UnsupportedOperationError(error.message)
            self._service.requests.note_refused(Op.ERROR, refusal)
            replies.send(encode_error(error.request_id, Op.ERROR, refusal))
            return
        replies.begin()
        self._serve(request_id, request)
        if replies.outstanding >= REQUESTS_PER_CONNECTION_MAX:
            self.regulate()

    def _pack(self, values: list[Any], body: memoryview | bytes) -> None:
        """Serve the requests of a pack, each as if it had come alone."""
        pack = decode_pack(values)
        if self._admit_frame(body, pack.size):
            self._packed.serve(pack, guarded=self._guarded)
            if self._replies.outstanding >= REQUESTS_PER_CONNECTION_MAX:
                self.regulate()

    def _admit_frame(self, body: memoryview | bytes, requests: int) -> bool:
        """Count a frame of this number of requests against its client; False if the client is over its rates, and the
        frame waits."""
        client = self._client
        if client is None:
            return True
        client.take_frame(requests)
        return not self._clients.meters_frames or self._charge(client, body, requests)

    def _serve(self, request_id: int, request: Request) -> None:
        """Serve a request that has begun. Raises :class:`ProtocolError` if it ends the connection."""
        replies = self._replies
        if self._service.draining:
            replies.refuse(
                request_id, request.op, BookieShuttingDownError("the bookie is stopping", may_have_happened=False)
            )
            return
        try:
            if replies.began_at >= self._standing.sure_until:
                self._standing.check(request, replies.began_at, self._storage.ledgers)
            if not self._guarded or self._may_go_on(request_id, request):
                self._dispatch(request_id, request)
        except ProtocolError as error:
            # An entry that no honest writer sends: the request is refused, and so is the client.
            replies.refuse(request_id, request.op, error)
            raise
        except OctavoError as error:
            question = self._questions.about(request, error)
            if question is None:
                replies.refuse(request_id, request.op, error)
            else:
                self._hold(request_id, request, question)

    def _charge(self, client: Client, body: memoryview | bytes, requests: int) -> bool:
        """Charge a frame to the client's rates; False if it is over them, and the frame waits."""
        if client.throttled:
            self._backlog.append(body)
            self.regulate()
            return False
        client.charge(len(body), requests)
        return True

    def _may_go_on(self, request_id: int, request: Request) -> bool:
        """Whether the request may be dispatched now; if not, it is dispatched later. Raises
        :class:`UnauthorizedError`."""
        if self._gate is not None:
            self._gate.check(request)
        if self._new_ledgers is not None and self._new_ledgers.must_wait(request):
            self._hold(request_id, request, self._questions.about_key(request, self._new_ledgers))
            return False
        return True

    def _dispatch(self, request_id: int, request: Request) -> None:
        if type(request) is Add:
            self._add(request_id, request)
        elif isinstance(request, Lookup):
            self._lookups.serve(request_id, request)
        elif type(request) is WriteLac:
            lac = verify_explicit_lac(LedgerId(request.ledger_id), request.sealed)
            self._storage.writer.write_lac(LedgerId(request.ledger_id), request.ledger_key, request.sealed, lac)
            self._replies.finish(LacWritten(), request_id)
        elif type(request) is Force:
            if request.term and request.ids:
                check_places(request.term, request.ids[0][0], request.ids[-1][1])
            durable = self._storage.writer.force(LedgerId(request.ledger_id), request.ledger_key, request.term)
            self._replies.start(request_id, request.op, self._forced(durable), self._replies.began_at)
        elif type(request) is Info:
            self._replies.start(request_id, request.op, self._info(), self._replies.began_at)
        elif type(request) is Ping:
            self._replies.finish(Pong(), request_id)
        elif type(request) is Authenticate and self._gate is not None:
            self._authenticate(request_id, request, self._gate)
        else:
            raise UnsupportedOperationError(f"operation {request.op.name} is not served by this version")

    def _authenticate(self, request_id: int, request: Authenticate, gate: Gate) -> None:
        try:
            answer = gate.authenticate(request)
        except UnauthorizedError as error:
            self._fail(error)
        else:
            if gate.name is None or self._become(f"principal {gate.name}"):
                if gate.name is not None and self._hello_timer is not None:
                    self._hello_timer.cancel()
                self._replies.finish(answer, request_id)

    def _add(self, request_id: int, request: Add) -> None:
        recovery = private = deferred = False
        if request.flags is not AddFlag.NONE:
            deferred = bool(request.flags & AddFlag.DEFERRED_SYNC)
            recovery = bool(request.flags & AddFlag.RECOVERY)
            if deferred and recovery:
                raise UnsupportedOperationError("an add of a recovery cannot be deferred", may_have_happened=False)
            private = bool(request.flags & AddFlag.PRIVATE)
        service, storage = self._service, self._storage
        if service.read_only and (not recovery or service.out_of_space):
            raise BookieReadOnlyError(f"bookie {service.identity.bookie_id} is read-only")
        ledger_id = LedgerId(request.ledger_id)
        entries = request.entries
        batch = verify_batch(ledger_id, entries)
        term = request.term
        if term:
            check_places(term, batch.entry_ids[0], batch.entry_ids[-1])
        if private:
            storage.writer.make_private(ledger_id, request.ledger_key)
        done = partial(self._replies.added, request_id, self._replies.began_at)
        storage.writer.add_then(
            ledger_id, request.ledger_key, entries, recovery=recovery, batch=batch, done=done, deferred=deferred,
            term=term,
        )  # fmt: skip
        traffic = service.traffic
        traffic.adds += 1
        traffic.entries_added += len(entries)
        traffic.bytes_added += len(batch.data)
        if not storage.admission.has_room:
            service.hold_back_if_full()

    def _hold(self, request_id: int, request: Request, question: Question) -> None:
        """Keep the request until ``question`` returns, and dispatch it then. What it raises refuses the request."""
        assert self._client is not None, "requests come from a client"
        self._held.hold(self._client, request_id, request, question)

    async def _forced(self, durable: asyncio.Future[None]) -> Reply:
        await durable
        if not self._standing.may_confirm(self._service.requests.clock()):
            raise self._standing.refusal(may_have_happened=True)
        return Forced()

    async def _info(self) -> Reply:
        return InfoAnswer(await self._service.info())

    # --- hello and the end --------------------------------------------------------------------------------

    def _greet(self, values: list[Any]) -> None:
        hello = decode_hello(values)
        if isinstance(hello, OctavoError):
            self.close()
            return
        identity = self._service.identity
        capabilities: tuple[str, ...] = CAPABILITIES
        extensions: dict[str, bytes] = {}
        if self._gate is not None:
            capabilities = (*CAPABILITIES, CAPABILITY_AUTHENTICATE)
            extensions = dict(self._gate.greeted(self._certificate_names()))
            if self._gate.name is not None and not self._become(f"principal {self._gate.name}"):
                return
        ours = Hello(
            MAGIC, PROTOCOL_VERSION, PROTOCOL_VERSION, identity.software, identity.cluster_id, identity.bookie_id,
            identity.boot_id, capabilities, extensions,
        )  # fmt: skip
        if common_version(ours, hello) is None:
            raise UnsupportedVersionError(
                f"this bookie speaks protocol version {PROTOCOL_VERSION}, the client {hello.version_lowest} to "
                f"{hello.version_highest}"
            )
        if hello.cluster_id and hello.cluster_id != identity.cluster_id:
            raise WrongClusterError(f"this bookie belongs to cluster {identity.cluster_id}, not {hello.cluster_id}")
        if hello.bookie_id and hello.bookie_id != identity.bookie_id:
            raise WrongClusterError(f"bookie {identity.bookie_id} answers here, not {hello.bookie_id}")
        self._greeted = True
        if self._hello_timer is not None and (self._gate is None or self._gate.name is not None):
            self._hello_timer.cancel()
        self._replies.send(encode_hello(ours))

    def _become(self, name: str) -> bool:
        """The connection is one of this client; False if it has too many, and this one is closed."""
        if self._client is not None:
            self._clients.leave(self._client, self)
            self._client = None
            self._service.strangers.leave(self)  # it was one of its address until now
        try:
            self._client = self._clients.enter(name, self)
        except BookieOverloadedError as error:
            self._service.traffic.connections_refused += 1
            self._service.audit.refused("connect", "connections_per_client_max", peer=self._peer, client=name)
            self._fail(error)
            return False
        return True

    def _certificate_names(self) -> tuple[str, ...]:
        """The names in the client's certificate; none without TLS."""
        session = self._transport.get_extra_info("tls_session")
        return names_of(session.peer_certificate()) if isinstance(session, TlsSession) else ()

    def _hello_overdue(self) -> None:
        missing = "authentication" if self._greeted else "hello"
        self._fail(ProtocolError(f"no {missing} within {self._service.limits.hello_timeout_seconds:g} seconds"))

    def _refuse_client(self, error: Exception) -> None:
        """A frame that could not be handled ends its connection, never more than that; the error says whose fault it
        was."""
        if isinstance(error, ProtocolError):
            self._fail(error)
        else:
            log.error("defect while handling a frame", peer=self._peer, exc_info=error)
            self._fail(InternalError(f"a defect of the bookie: {type(error).__name__}"))

    def _fail(self, error: OctavoError) -> None:
        """One error frame, a log line, and the end of this connection."""
        if self._closing:
            return
        self._service.traffic.protocol_errors += 1
        log.warning("connection refused", peer=self._peer, error=type(error).__name__, reason=error.message)
        self._replies.send_done()  # a client takes nothing behind the error
        self._replies.send(encode_error(CONNECTION_REQUEST_ID, Op.ERROR, error))
        self.close()

    def close(self) -> None:
        """Send what is queued, then close."""
        if not self._closing:
            self._closing = True
            self._lookups.subscriptions.close()
            self._replies.close()
            self._service.request_finished()
            self._backlog.clear()
            self._decoder = FrameDecoder()
            self._frames.leave(self)
            self._transport.close()
            self._answers.observe_socket()

    def drop(self, error: OctavoError) -> None:
        """The client does not complete a frame."""
        self._fail(error)

    def make_way(self) -> None:
        """Close at once: the bookie does not know the principal, and needs the place."""
        self._service.traffic.connections_refused += 1
        self._service.connections.pop(self, None)
        self.sever()

    def sever(self) -> None:
        """Close at once: nothing more is served or answered."""
        self._closing = True
        self._replies.close()
        self._transport.abort()

    def _evict(self, seconds: float, unsent_bytes: int) -> None:
        """The answers that the client does not read hold memory that other clients need."""
        log.warning(
            "closing connection: client is not reading responses",
            peer=self._peer, seconds=round(seconds, 1), unsent_bytes=unsent_bytes,
        )  # fmt: skip
        self.sever()
