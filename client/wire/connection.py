"""The connection to one bookie, kept alive over any number of TCP connections and shared by every ledger of a client.

:meth:`BookieConnection.run` connects when there is a reason to: a state listener (which wants to know when the bookie
is back), a request that waits, or a :meth:`~BookieConnection.send` that found no connection. Between failed
attempts it backs off, with jitter; the address is looked up again for every attempt, since a bookie may come back
elsewhere. Without a reason it sleeps: a client that is idle, or that no longer cares about a dead bookie, costs
nothing.

A failed attempt fails requests that wait for it, and until the next attempt requests fail at once with the reason: it
is for the asker to try another replica rather than to wait out a dead bookie's back-off.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from octavo.client.counts import reason_of
from octavo.client.options import ClientOptions
from octavo.client.wire.outcome import OnOutcome, Outcome
from octavo.client.wire.turn import Turn
from octavo.client.wire.wire import Wire
from octavo.metadata.cluster.registration import endpoint_of
from octavo.metadata.own_tasks import tasks_cancelled
from octavo.protocol.errors import (
    BookieOverloadedError,
    BookieUnavailableError,
    ClientClosedError,
    OctavoError,
    OctavoTimeoutError,
    TasksCancelledError,
    UnauthorizedError,
)
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import Hello, ReadLac, Reply, Request
from octavo.protocol.os_errors import explained
from octavo.protocol.pushes import Push
from octavo.security import forks

if TYPE_CHECKING:
    from octavo.security.login import ClientLogin

StateListener = Callable[["BookieConnection"], None]

_DOUBLINGS_MAX = 30
"""Keeps the power of two of the back-off small; the maximum delay is reached long before."""


class _Listening:
    """A listener of a connection, until it is called. Of a small class, because a client that writes ten thousand
    ledgers has thirty thousand of them."""

    __slots__ = ("_listeners",)

    def __init__(self, listeners: "dict[_Listening, StateListener]") -> None:
        self._listeners = listeners

    def __call__(self) -> None:
        self._listeners.pop(self, None)


class BookieConnection:
    """See the module. Every method but :meth:`run` may be called from any task of the loop.

    ``find_address`` gives ``host:port`` of the bookie as the cluster knows it now, or raises an :class:`OctavoError`.
    """

    def __init__(
        self,
        bookie_id: BookieId,
        *,
        hello: Hello,
        find_address: Callable[[BookieId], Awaitable[str]],
        next_request_id: Callable[[], int],
        options: ClientOptions,
        rng: random.Random,
        turn: Turn,
        reconnects: Counter[str] | None = None,
        protect: Callable[[Wire, str], asyncio.Protocol] | None = None,
        login: Callable[[Hello, asyncio.Transport], "ClientLogin | None"] | None = None,
    ) -> None:
        """``reconnects`` counts attempts that failed and connections that were lost, by reason. ``protect`` gives what
        stands between a wire and its TCP connection to a host (TLS); None: nothing does. ``login``: see
        :class:`octavo.client.wire.wire.Wire`."""
        self._login = login
        self._protect = protect
        self._reconnects = reconnects if reconnects is not None else Counter()
        self._bookie_id = bookie_id
        self._hello = hello
        self._find_address = find_address
        self._next_request_id = next_request_id
        self._options = options
        self._rng = rng
        self._turn = turn
        self._loop = asyncio.get_running_loop()
        self._wire: Wire | None = None
        self._peer: Hello | None = None
        self._listeners: dict[_Listening, StateListener] = {}
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._wanted = asyncio.Event()
        self._nudged = asyncio.Event()
        self._backing_off = False
        self._closed = False
        self._last_error: OctavoError | None = None
        self._denied = False
        self.on_pushes: Callable[[list[Push]], None] | None = None
        """Called with each frame of pushes that arrives."""

    @property
    def bookie_id(self) -> BookieId:
        """The bookie at the other end."""
        return self._bookie_id

    @property
    def connected(self) -> bool:
        """Whether hellos have been exchanged and the connection has not been lost since."""
        return self._wire is not None

    @property
    def writable(self) -> bool:
        """Whether :meth:`send` would take a request now: connected, and neither bytes nor requests over their
        bounds."""
        return self._wire is not None and self._wire.writable

    @property
    def requests_under_way(self) -> int:
        """Requests without an outcome."""
        return 0 if self._wire is None else self._wire.requests_under_way

    @property
    def last_error(self) -> OctavoError | None:
        """Why there is no connection; None while there is one, and before the first attempt."""
        return self._last_error

    @property
    def denied(self) -> bool:
        """Whether the latest attempt to connect was refused because of who this client is. A connection that the bookie
        has ended for that reason does not count: the next attempt may succeed."""
        return self._denied

    @property
    def boot_id(self) -> str | None:
        """The incarnation of the bookie that is connected; None while not connected."""
        return self._peer.boot_id if self._peer is not None else None

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities of the connected bookie beyond the protocol's version; empty while not connected."""
        return frozenset(self._peer.capabilities) if self._peer is not None else frozenset()

    # --- asking -----------------------------------------------------------------------------------------------------

    def send(
        self, body: bytes, request_id: int, on_outcome: OnOutcome, *, timeout_seconds: float, bulk: bool = False
    ) -> bool:
        """Send an encoded request now, or not at all.

        True: it was taken, and ``on_outcome`` will be called exactly once, from the event loop, never from inside
        this call: with the reply, the refusal, :class:`OctavoTimeoutError`, or :class:`BookieUnavailableError` (in
        doubt) when the connection breaks. False: nothing was done and ``on_outcome`` will not be called, since
        :attr:`writable` is false; listeners hear when that changes. The request id must be one of
        ``next_request_id``'s. ``bulk``: see :meth:`octavo.client.wire.wire.Wire.send`.
        """
        wire = self._wire
        if wire is None:
            self._wanted.set()
            return False
        return wire.send(body, request_id, on_outcome, timeout_seconds, bulk=bulk)

    def post(self, tail: bytes, on_outcome: OnOutcome, *, timeout_seconds: float) -> bool:
        """As :meth:`send`, but the request leaves when the turn of the event loop ends, perhaps in one frame with
        those of other ledgers. ``tail``: the request without its id, see :mod:`octavo.protocol.packs`."""
        wire = self._wire
        if wire is None:
            self._wanted.set()
            return False
        return wire.posting.post(tail, on_outcome, timeout_seconds)

    async def request(self, request: Request, *, timeout_seconds: float, bulk: bool = False) -> Reply:
        """Ask, and wait for the reply; connecting, and waiting for room, count towards the timeout. ``bulk``: see
        :meth:`octavo.client.wire.wire.Wire.send`.

        Raises the bookie's refusal, :class:`BookieUnavailableError`, :class:`OctavoTimeoutError`,
        :class:`ClientClosedError`; ``may_have_happened`` is false if it was never sent. Cancelling affects no other
        request.
        """
        deadline = self._loop.time() + timeout_seconds
        answered: asyncio.Future[Outcome] = self._loop.create_future()
        long_poll = isinstance(request, ReadLac) and request.wait_milliseconds > 0
        while True:
            await self._wait_writable(deadline)
            request_id = self._next_request_id()
            # At least a millisecond: a deadline that has just passed is told by the same path as any other.
            left = max(deadline - self._loop.time(), 0.001)
            wire = self._wire
            if wire is None:
                continue
            if long_poll and not wire.takes_long_polls:
                raise BookieOverloadedError(
                    f"bookie {self._bookie_id}: too many long polls are waiting at this bookie already"
                )
            on_outcome = partial(_settle, answered)
            if wire.send(request.encode(request_id), request_id, on_outcome, left, long_poll=long_poll, bulk=bulk):
                break
        outcome = await answered
        if isinstance(outcome, OctavoError):
            raise outcome
        return outcome

    async def wait_writable(self, *, timeout_seconds: float) -> None:
        """Return once :attr:`writable`, connecting if need be. Raises as :meth:`request` does; nothing has
        happened then."""
        await self._wait_writable(self._loop.time() + timeout_seconds)

    # --- state ------------------------------------------------------------------------------------------------------

    def add_state_listener(self, listener: StateListener) -> Callable[[], None]:
        """Call ``listener(connection)`` whenever the bookie is connected, lost, writable again, or denies this client,
        until the function returned is called. It is called from the event loop, in the step of the change, and must not
        raise.

        While there is a listener a lost connection is made again.
        """
        listening = _Listening(self._listeners)
        self._listeners[listening] = listener
        self._wanted.set()
        return listening

    def connect_soon(self) -> None:
        """A caller is about to send something: try to connect once, unless connected."""
        if self._wire is None:
            self._wanted.set()

    def address_changed(self) -> None:
        """Try to connect now: the bookie has registered again, perhaps at another address."""
        self._nudged.set()

    def close(self, reason: OctavoError | None = None) -> None:
        """Break the connection; everything outstanding or waiting fails. :meth:`run` must be cancelled besides.
        ``reason``: if it is not that the client is closed."""
        if self._closed:
            return
        self._closed = True
        self._last_error = reason or ClientClosedError(f"bookie {self._bookie_id}: the client is closed")
        if self._wire is not None:
            self._wire.abort(self._last_error)
        self._wake_waiters()

    # --- WireOwner --------------------------------------------------------------------------------------------------

    def wire_up(self, wire: Wire, hello: Hello) -> None:
        """The bookie is there."""
        if self._closed:
            wire.abort(ClientClosedError("the client is closed"))
            return
        self._wire, self._peer, self._last_error, self._denied = wire, hello, None, False
        self._notify()

    def wire_lost(self, wire: Wire, error: OctavoError) -> None:
        """The bookie is gone, or never was there."""
        if not self._closed:
            self._last_error = error
        if self._wire is wire:
            self._wire = self._peer = None
            self._notify()

    def wire_pushed(self, wire: Wire, pushes: list[Push]) -> None:
        """Ledgers that were subscribed to have moved."""
        if self._wire is wire and self.on_pushes is not None:
            self.on_pushes(pushes)

    def wire_writable(self, wire: Wire) -> None:
        """There is room again."""
        if self._wire is wire:
            self._notify()

    # --- life -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the connection while there is a reason to. Ends only by cancellation."""
        failures = 0
        wire: Wire | None = None
        try:
            while True:
                if not self._listeners:
                    await self._wanted.wait()
                self._wanted.clear()
                self._nudged.clear()
                started_at = self._loop.time()
                try:
                    wire = await self._connect()
                    await wire.closed.wait()
                    self._reconnects[reason_of(wire.error)] += 1
                    lasted = self._loop.time() - started_at > self._options.reconnect_delay_seconds_max
                except (OSError, OctavoError) as error:
                    self._last_error = self._explained(error)
                    self._reconnects[reason_of(self._last_error)] += 1
                    lasted = False
                    self._denied = isinstance(self._last_error, UnauthorizedError)
                    if self._denied:
                        self._notify()
                # A bookie that greets and drops us at once is backed off from like one that cannot be reached.
                failures = 0 if lasted else failures + 1
                if failures:
                    await self._back_off(failures)
        finally:
            # Nothing, if this connection was closed before it was cancelled.
            self.close(tasks_cancelled(f"the connection to bookie {self._bookie_id}"))
            if wire is not None:
                await wire.closed.wait()

    async def _connect(self) -> Wire:
        """A wire that is up, or has been since."""
        wire: Wire | None = None
        transport: asyncio.Transport | None = None
        limit = self._options.connect_timeout_seconds
        forks.check_process(self._loop)
        try:
            async with asyncio.timeout(limit):
                address = await self._find_address(self._bookie_id)
                host, port = endpoint_of(address)
                made = wire = Wire(
                    self,
                    hello=self._hello,
                    address=address,
                    outgoing_bytes_max=self._options.outgoing_bytes_max,
                    next_request_id=self._next_request_id,
                    turn=self._turn,
                    login=self._login,
                )
                protocol = made if self._protect is None else self._protect(made, host)
                transport, _ = await self._loop.create_connection(lambda: protocol, host, port)
                await wire.settled.wait()
        except TimeoutError:
            error = BookieUnavailableError(f"no hello within {limit:g} s", may_have_happened=False)
            if wire is not None:
                wire.abort(error)
            if transport is not None:
                transport.abort()
            raise error from None
        except asyncio.CancelledError:
            if wire is not None:
                wire.abort(ClientClosedError("the client is closed"))
            if transport is not None:
                transport.abort()
            raise
        if not wire.state.was_up:
            assert wire.error is not None
            raise wire.error
        return wire

    async def _back_off(self, failures: int) -> None:
        options = self._options
        delay = min(
            options.reconnect_delay_seconds_max,
            options.reconnect_delay_seconds_min * 2 ** min(failures - 1, _DOUBLINGS_MAX),
        )
        self._backing_off = True
        self._wake_waiters()
        try:
            async with asyncio.timeout(self._rng.uniform(delay / 2, delay)):
                await self._nudged.wait()
        except TimeoutError:
            pass
        finally:
            self._backing_off = False

    async def _wait_writable(self, deadline: float) -> None:
        while not self.writable:
            if self._closed:
                raise self._closed_error()
            if self._wire is None and self._backing_off:
                raise self._unavailable()
            self._wanted.set()
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters[waiter] = None
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                what = "is busy" if self.connected else "cannot be reached"
                raise OctavoTimeoutError(
                    f"bookie {self._bookie_id} {what}; nothing was sent", may_have_happened=False
                ) from None
            finally:
                self._waiters.pop(waiter, None)

    def _explained(self, error: OSError | OctavoError) -> OctavoError:
        if isinstance(error, OctavoError):
            return error
        unavailable = BookieUnavailableError(f"cannot be reached: {explained(error)}", may_have_happened=False)
        unavailable.__cause__ = error
        return unavailable

    def _closed_error(self) -> OctavoError:
        if isinstance(self._last_error, TasksCancelledError):
            return TasksCancelledError(self._last_error.message, may_have_happened=False)
        return ClientClosedError(f"bookie {self._bookie_id}: the client is closed")

    def _unavailable(self) -> OctavoError:
        reason = self._last_error.message if self._last_error is not None else "not connected"
        if isinstance(self._last_error, UnauthorizedError):
            denied = UnauthorizedError(reason, may_have_happened=False)
            denied.__cause__ = self._last_error
            return denied
        error = BookieUnavailableError(f"bookie {self._bookie_id}: {reason}", may_have_happened=False)
        error.__cause__ = self._last_error
        return error

    def _notify(self) -> None:
        for listener in list(self._listeners.values()):
            try:
                listener(self)
            except (
                Exception
            ) as error:  # a defect in one ledger's writer must not keep other listeners from being called
                self._loop.call_exception_handler(
                    {"message": f"bookie {self._bookie_id}: a state listener failed", "exception": error}
                )
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _settle(answered: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not answered.done():
        answered.set_result(outcome)
