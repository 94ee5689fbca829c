"""A session with an ensemble of ZooKeeper servers: kept alive, moved from server to server, replaced when it expires.

One supervisor task owns the connection. It tries the servers in turn until one accepts the session, presents the
credentials, lets the owner verify that this is still the right ensemble (``check``), and only then lets requests
through. It sends a ping every third of the session's timeout and leaves a server that has been silent for two thirds:
one third remains for the next server. When a server says that the session has expired, the supervisor tells the owner
and begins a new session.

What a caller must know about a request (rule M1): it waits until there is a connection. When the connection breaks
before the answer arrives, :class:`AnswerLostError` says that the request may have been executed. Once the same session
is connected again, or has been found expired, no earlier request can take effect any more: the servers refuse requests
that arrive late from a connection that the session has left. So a read after that settles the question.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import structlog
from octavo.metadata.own_tasks import tasks_cancelled, when_cancelled
from octavo.metadata.zookeeper.connection import AnswerLostError, Connection
from octavo.metadata.zookeeper.messages import (
    OK,
    PASSWORD_NONE,
    Answer,
    Request,
    WatchEvent,
    authenticate,
    close_session,
    handshake,
    parse_handshake,
)
from octavo.metadata.zookeeper.tls import connect
from octavo.protocol.errors import ClientClosedError, InternalError, OctavoError, UnauthorizedError
from octavo.protocol.os_errors import explained
from octavo.security import forks
from octavo.security.contexts import ClientFiles

OUTSTANDING_MAX: Final = 1000
"""Requests outstanding at once; further requests wait here. A server stops reading at the same number."""

ROUND_PAUSE_SECONDS_MIN: Final = 0.05
ROUND_PAUSE_SECONDS_MAX: Final = 1.0
"""Pause between two rounds over servers none of which accepted the session; it doubles each time. An election takes
about a second: a longer pause would only prolong the outage."""

CLOSE_SECONDS_MAX: Final = 2.0
"""How long a server may take to end the session when it is closed. Without an answer, the session ends by its
timeout."""

UNREACHABLE_NOTICE_SECONDS: Final = 1.0
"""Time without a connection, all servers having been tried, after which a warning is logged: long enough for a server
that restarts or an election, much shorter than an operation's patience."""

_SIGNS_PER_TIMEOUT: Final = 3


def _log(level: str, event: str, **facts: object) -> None:
    """Log, if the process has configured logging: otherwise structlog would print on a program's standard output.

    A line that cannot be written (standard error is closed, its disk is full) is lost; the session continues.
    """
    if structlog.is_configured():
        with contextlib.suppress(OSError, ValueError):  # the latter is a closed file's
            getattr(structlog.get_logger("octavo.metadata"), level)(event, **facts)


class SessionGoneError(Exception):
    """The session that the request belongs to has ended; the request was not sent in another session."""


class SessionOwner(Protocol):
    """The object that a session notifies of events."""

    def on_event(self, event: WatchEvent) -> None:
        """A watched node has changed."""

    def on_connected(self) -> None:
        """There is a connection (again). All watches of earlier connections are gone."""

    def on_expired(self, session_id: int) -> None:
        """A session has ended, and its ephemeral nodes are gone."""


class Session:
    """See the module. ``check`` may raise an :class:`OctavoError`: then requests fail with it until it passes."""

    def __init__(
        self,
        servers: Sequence[tuple[str, int]],
        owner: SessionOwner,
        *,
        timeout_seconds: float,
        credentials: tuple[str, bytes] | None,
        tls: ClientFiles | None = None,
        check: Callable[["Session"], Awaitable[None]],
        rng: random.Random,
    ) -> None:
        self._servers = rng.sample(servers, len(servers))
        self._owner = owner
        self._asked_seconds = timeout_seconds
        self._credentials = credentials
        self._tls = tls
        self._check = check
        self._rng = rng
        self._next_server = 0
        self._session_id = 0
        self._password = PASSWORD_NONE
        self._timeout_seconds = timeout_seconds
        self._last_zxid = 0
        self._connection: Connection | None = None
        """Set while requests go through."""
        self._checking: Connection | None = None
        """Set while the owner checks a new connection."""
        self._refusal: OctavoError | None = None
        self._last_failure = "no server has been asked yet"
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._change = asyncio.Event()
        self._window = asyncio.Semaphore(OUTSTANDING_MAX)
        self._task: asyncio.Task[None] | None = None

    @property
    def session_id(self) -> int:
        """The current session; 0 before the first one and after one has ended."""
        return self._session_id

    @property
    def timeout_seconds(self) -> float:
        """How long the session survives without a message, as granted by the servers."""
        return self._timeout_seconds

    @property
    def connected(self) -> bool:
        """Whether requests go through."""
        return self._usable() is not None

    @property
    def last_failure(self) -> str:
        """Why the latest server was left, or did not accept the session."""
        return self._last_failure

    def start(self) -> None:
        """Begin to connect; requests wait until a server accepts the session."""
        self._task = when_cancelled(asyncio.create_task(self._run(), name="zookeeper session"), self._cancelled)

    async def close(self) -> None:
        """End the session and its ephemeral nodes now; outstanding requests fail."""
        self._closed = True
        connection, self._connection = self._connection, None
        self._change.set()
        if connection is not None:
            try:
                async with asyncio.timeout(CLOSE_SECONDS_MAX):
                    await connection.send(close_session())
            except (AnswerLostError, TimeoutError):
                pass
            connection.abort("the metadata store has been closed")
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def call(
        self, request: Request, *, session_id: int | None = None, on_sent: Callable[[], None] | None = None
    ) -> Answer:
        """Send a request and wait for its answer; waits for a connection first. The caller sets the time limit.

        With ``session_id`` it is sent in that session or not at all. ``on_sent`` is called when it is sent. Raises
        :class:`AnswerLostError`, :class:`SessionGoneError`, and what ``check`` raised.
        """
        (answer,) = await self.call_together(request, session_id=session_id, on_sent=on_sent)
        return answer

    async def call_together(
        self, *requests: Request, session_id: int | None = None, on_sent: Callable[[], None] | None = None
    ) -> list[Answer]:
        """As :meth:`call`, for several requests that are sent in order, directly after one another. In ``check``,
        raises :class:`ConnectionResetError` when the connection that is checked breaks."""
        if self._checking is not None and asyncio.current_task() is self._task:
            try:
                return await _ask(self._checking, requests)
            except AnswerLostError as error:
                # Callers repeat requests whose answers are lost. A check is of one connection, which is not replaced
                # before the check has ended: repeated, it would keep the event loop busy for ever.
                raise ConnectionResetError(str(error)) from error
        while True:
            while not self.connected:
                await self._wait_change()
            async with self._window:
                connection = self._usable()
                if connection is None:
                    continue
                if session_id is not None and session_id != self._session_id:
                    raise SessionGoneError
                if on_sent is not None:
                    on_sent()
                return await _ask(connection, requests)

    def post(self, request: Request) -> None:
        """Send a request if there is a connection; its answer is ignored."""
        connection = self._usable()
        if connection is not None:
            connection.send(request)

    # --- waiting ---------------------------------------------------------------------------------------------------

    def _usable(self) -> Connection | None:
        """The connection, unless it has just broken and the supervisor has not yet run."""
        connection = self._connection
        return None if connection is None or connection.lost.done() else connection

    async def _wait_change(self) -> None:
        if self._closed:
            raise ClientClosedError("the metadata store has been closed")
        if self._refusal is not None:
            # A fresh instance: one error object raised in many tasks would collect all their tracebacks.
            raise type(self._refusal)(self._refusal.message) from self._refusal
        await self._change.wait()

    def _tell(self) -> None:
        """Wake all callers that wait for a connection."""
        change, self._change = self._change, asyncio.Event()
        change.set()

    # --- the supervisor --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            pause = ROUND_PAUSE_SECONDS_MIN
            disconnected_at = asyncio.get_running_loop().time()
            noted = False
            while True:
                for _ in self._servers:
                    if await self._stay_with_next_server():
                        # Pause: a server that accepts and drops the session again must not cause a busy loop.
                        pause = ROUND_PAUSE_SECONDS_MIN
                        disconnected_at, noted = asyncio.get_running_loop().time(), False
                        await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
                        break
                else:
                    disconnected_seconds = asyncio.get_running_loop().time() - disconnected_at
                    if not noted and disconnected_seconds >= UNREACHABLE_NOTICE_SECONDS:
                        noted = True
                        _log("warning", "ZooKeeper cannot be reached; still trying", reason=self._last_failure)
                    await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
                    pause = min(2 * pause, ROUND_PAUSE_SECONDS_MAX)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._refusal = InternalError(f"the ZooKeeper session has failed: {error!r}")
            self._refusal.__cause__ = error
            _log("exception", "the ZooKeeper session has failed")
        finally:
            connection, self._connection = self._connection, None
            for left in (connection, self._checking):
                if left is not None:
                    left.abort("the metadata store has been closed")
            self._tell()

    async def _stay_with_next_server(self) -> bool:
        """One connection from beginning to end; False if the server did not accept the session."""
        host, port = self._servers[self._next_server]
        self._next_server = (self._next_server + 1) % len(self._servers)
        where = f"{host}:{port}"
        connection: Connection | None = None
        try:
            forks.check_process(self._loop)  # a child that connected would take the session from its parent
            async with asyncio.timeout(self._timeout_seconds / max(_SIGNS_PER_TIMEOUT, len(self._servers) + 1)):
                connection = Connection(self._owner.on_event)
                await connect(connection, host, port, self._tls)
                taken = await self._introduce(connection, where)
                if not taken:
                    return False
                self._checking = connection
                await self._check(self)
        except (OSError, AnswerLostError, TimeoutError) as error:
            reason = explained(error) if isinstance(error, OSError) else str(error)
            self._give_up(connection, where, reason or "it did not answer in time")
            return False
        except OctavoError as error:
            self._give_up(connection, where, error.message)
            self._refuse(error)
            return False
        except BaseException:
            if connection is not None:
                connection.abort("the metadata store has been closed")
            raise
        finally:
            self._checking = None
        self._refusal = None
        self._connection = connection
        _log("info", "connected to ZooKeeper", server=where, session=f"{self._session_id:#x}")
        self._owner.on_connected()
        self._tell()
        try:
            reason = await self._keep_alive(connection)
        except BaseException:
            connection.abort("the metadata store has been closed, or the program has cancelled the session's task")
            raise
        finally:
            self._last_zxid = max(self._last_zxid, connection.last_zxid)
            self._connection = None
        self._give_up(connection, where, reason)
        if not self._closed:
            _log("warning", "connection to ZooKeeper lost", server=where, reason=reason)
        return True

    async def _introduce(self, connection: Connection, where: str) -> bool:
        """Exchange the first messages; False when the session has turned out to be expired."""
        hello = handshake(self._session_id, self._password, self._asked_seconds, self._last_zxid)
        try:
            answer = parse_handshake(await connection.shake_hands(hello))
        except AnswerLostError as error:
            if connection.refusal is not None:
                raise connection.refusal from error
            # This is how servers without a quorum (read-only mode) refuse, and servers that lag behind this session.
            raise AnswerLostError(f"it did not accept a session: {error}") from error
        if answer.timeout_seconds <= 0:
            ended, self._session_id, self._password = self._session_id, 0, PASSWORD_NONE
            # Begin the new session with the same server, at once.
            self._next_server = (self._next_server - 1) % len(self._servers)
            self._give_up(connection, where, "the session has expired")
            _log("warning", "the ZooKeeper session has expired", session=f"{ended:#x}")
            self._owner.on_expired(ended)
            self._tell()
            return False
        self._session_id, self._password = answer.session_id, answer.password
        self._timeout_seconds = answer.timeout_seconds
        if self._credentials is not None:
            shown = await connection.send_authentication(authenticate(*self._credentials))
            if shown.code != OK:
                raise UnauthorizedError(f"ZooKeeper at {where} does not accept the credentials")
        return True

    async def _keep_alive(self, connection: Connection) -> str:
        """Send pings until the connection ends; returns the reason."""
        loop = asyncio.get_running_loop()
        interval = self._timeout_seconds / _SIGNS_PER_TIMEOUT
        patience = 2 * interval
        while True:
            connection.send_ping()
            done, _ = await asyncio.wait([connection.lost], timeout=interval / 2)
            if done:
                return connection.lost.result()
            silent = loop.time() - connection.heard_at
            if silent >= patience:
                return f"the server has been silent for {silent:.1f} s"

    def _cancelled(self) -> None:
        """By :meth:`close`, or by the program."""
        if not self._closed:
            self._refusal = tasks_cancelled("the ZooKeeper session")
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.abort("its task was cancelled")
            self._tell()

    def _give_up(self, connection: Connection | None, where: str, reason: str) -> None:
        self._last_failure = f"{where}: {reason}"
        if connection is not None:
            self._last_zxid = max(self._last_zxid, connection.last_zxid)
            connection.abort(reason)
        _log("debug", "ZooKeeper server given up", server=where, reason=reason)

    def _refuse(self, error: OctavoError) -> None:
        if self._refusal is None or self._refusal.message != error.message:
            _log("error", "ZooKeeper cannot be used", reason=error.message)
        self._refusal = error
        self._tell()


async def _ask(connection: Connection, requests: Sequence[Request]) -> list[Answer]:
    answers = [connection.send(request) for request in requests]
    return [await answer for answer in answers]
