"""The clients of a bookie, and how much of it each may take.

A client is a principal; a connection whose principal is not known (yet, or because authentication is not required)
belongs to the client of its address. What a client has of the limits is shared by its connections, and outlives them:

* **Connections**: one more than ``connections_max`` is refused with an error frame.
* **Bytes and requests**: each frame is charged to two token buckets. While one is in debt the bookie reads from none of
  the client's sockets; nothing is refused, and nothing that was acknowledged is touched.
* **Turns**: in one turn of the event loop a client has :data:`FRAMES_PER_TURN_MAX` frames served (a pack counts as
  many as it has requests), over all of its connections, which take turns. The rest waits for the next turn, in which
  other clients, timers and the bookie's own work come first (rule B12).
* **Held requests**: those that wait for an answer of the metadata store, long polls, and subscriptions. Beyond the
  bounds they are refused with :class:`BookieOverloadedError`; the client's other requests, and other clients, go on
  (rule B13).
* **New ledgers**: the first add, LAC or fence of a ledger that is new here. Beyond the limit it is refused with
  :class:`BookieOverloadedError`, which writers repeat after a pause; the ledgers that the bookie knows go on.

Buckets hold a second's worth, so that bursts pass; that of new ledgers ten seconds' worth.
"""

import asyncio
from collections import Counter
from typing import Final, Protocol

from octavo.bookie.server.limits import ClientLimits
from octavo.protocol.errors import BookieOverloadedError
from octavo.security.token_bucket import TokenBucket

LIMITS: Final = ("connections", "new_ledgers", "held", "long_polls", "subscriptions")
"""The limits that refuse something."""

FRAMES_PER_TURN_MAX: Final = 256
"""Frames of a client that are served before others have their turn: about 3 ms of the smallest. Far more than one
client sends in a turn, unless it sends as fast as it can."""

HELD_REQUESTS_MAX: Final = 4096
"""Requests of one client that wait for the metadata store: the first requests of this many ledgers at once."""

HELD_SHARE: Final = 8
"""A client's held requests have an eighth of the memory for requests that wait: where one client had all of it, the
bookie would read no socket any more."""

QUESTIONS_AT_ONCE: Final = 16
"""Held requests of one client for which the metadata store is asked at a time: what the bookie itself asks, above all
to keep its registration, never waits behind more."""

LONG_POLLS_MAX: Final = 32_768
"""Long polls of one client, over all of its connections. Each takes about 4 KB."""

SUBSCRIPTIONS_MAX: Final = 65_536
"""Subscriptions of one client, over all of its connections. Each takes about 1 KB, with the state of its ledger, which
stays in memory."""

_IDLE_CLIENTS_MAX = 10_000
"""Clients without connections that are remembered, the latest ones: a client that connects again finds its debts."""

_NEW_LEDGERS_BURST_SECONDS = 10.0


class ClientConnection(Protocol):
    """A connection as its client sees it."""

    def regulate(self) -> None:
        """Read the socket, or stop reading it, as the limits say now."""


class Client:
    """One client: its connections, and what it has taken."""

    def __init__(self, name: str, clients: "Clients") -> None:
        self.name = name
        """``principal NAME`` or ``address HOST``."""
        self.connections: dict[ClientConnection, None] = {}
        """In the order in which they came."""
        self.throttled = False
        """The bookie reads from none of the client's sockets, because the client is over its rates."""
        self.rests = False
        """The client has had its turn: its frames wait for the next one."""
        self._frames_left = FRAMES_PER_TURN_MAX
        self.held_requests = 0
        """Requests that wait for the metadata store."""
        self.held_bytes = 0
        """The memory of these."""
        self.asking = asyncio.Semaphore(QUESTIONS_AT_ONCE)
        """Held while the metadata store is asked for a held request."""
        self.long_polls = 0
        """Long polls that wait, over all connections."""
        self.subscriptions = 0
        """Subscriptions, over all connections."""
        limits = clients.limits
        self._clients = clients
        self._loop = asyncio.get_running_loop()
        self._bytes = _bucket(limits.bytes_per_second)
        self._requests = _bucket(limits.requests_per_second)
        self._new_ledgers = _bucket(limits.new_ledgers_per_second, _NEW_LEDGERS_BURST_SECONDS)
        self._throttled_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def take_frame(self, requests: int = 1) -> None:
        """A frame with this number of requests is served. After the last one of a turn the client :attr:`rests` until
        the next turn.

        The count begins again only then: a client that never sends that many frames at once costs a subtraction each.
        """
        self._frames_left -= requests
        if self._frames_left <= 0 and not self.rests:
            self.rests = True
            self._loop.call_soon(self._next_turn)
            self._regulate()

    def _next_turn(self) -> None:
        self.rests = False
        self._frames_left = FRAMES_PER_TURN_MAX
        for connection in list(self.connections):
            connection.regulate()
            if self.rests:
                # The next turn begins with the connections behind this one.
                if connection in self.connections:
                    self._begin_behind(connection)
                return

    def _begin_behind(self, last: ClientConnection) -> None:
        order = list(self.connections)
        at = order.index(last) + 1
        self.connections = dict.fromkeys(order[at:] + order[:at])

    def charge(self, frame_bytes: int, requests: int = 1) -> None:
        """A frame of this size, with this number of requests, has arrived. It is served; frames after it may wait."""
        now = self._loop.time()
        wait = self._bytes.take(frame_bytes, now) if self._bytes is not None else 0.0
        if self._requests is not None:
            wait = max(wait, self._requests.take(requests, now))
        if wait > 0 and not self.throttled:
            self.throttled = True
            self._throttled_at = now
            self._timer = self._loop.call_later(wait, self._go_on)
            self._regulate()

    def hold(self, size_bytes: int, bytes_max: int) -> None:
        """A request begins to wait for the metadata store; :meth:`release` ends that. ``bytes_max``: the memory of all
        requests that wait. Raises :class:`BookieOverloadedError`: the client may repeat it."""
        over = self.held_bytes + size_bytes > bytes_max // HELD_SHARE and self.held_requests > 0
        if over or self.held_requests >= HELD_REQUESTS_MAX:
            self._clients.refused["held"] += 1
            raise BookieOverloadedError(
                f"too many requests of {self.name} wait for the metadata store; try again later",
                may_have_happened=False,
            )
        self.held_requests += 1
        self.held_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """The request waits no longer."""
        self.held_requests -= 1
        self.held_bytes -= size_bytes

    def begin_long_poll(self) -> None:
        """A long poll begins; :meth:`end_long_poll` ends it. Raises :class:`BookieOverloadedError`."""
        if self.long_polls >= LONG_POLLS_MAX:
            self._clients.refused["long_polls"] += 1
            raise BookieOverloadedError(
                f"{self.name} has {LONG_POLLS_MAX} long polls on this bookie, and may have no more",
                may_have_happened=False,
            )
        self.long_polls += 1

    def end_long_poll(self) -> None:
        """It is answered, or its connection is lost."""
        self.long_polls -= 1

    def begin_subscription(self) -> None:
        """A subscription begins; :meth:`end_subscriptions` ends it. Raises :class:`BookieOverloadedError`."""
        if self.subscriptions >= SUBSCRIPTIONS_MAX:
            self._clients.refused["subscriptions"] += 1
            raise BookieOverloadedError(
                f"{self.name} has {SUBSCRIPTIONS_MAX} subscriptions on this bookie, and may have no more",
                may_have_happened=False,
            )
        self.subscriptions += 1

    def end_subscriptions(self, number: int) -> None:
        """As many have ended, or their connection is lost."""
        self.subscriptions -= number

    def charge_new_ledger(self) -> None:
        """The client brings a ledger that is new here. Raises :class:`BookieOverloadedError`."""
        if self._new_ledgers is not None and not self._new_ledgers.take_if_there(self._loop.time()):
            self._clients.refused["new_ledgers"] += 1
            raise BookieOverloadedError(
                f"{self.name} begins more than {self._clients.limits.new_ledgers_per_second} new ledgers per second on "
                "this bookie; try again later",
                may_have_happened=False,
            )

    def close(self) -> None:
        """Forget the client."""
        if self._timer is not None:
            self._timer.cancel()

    def _go_on(self) -> None:
        self._clients.throttled_seconds += self._loop.time() - self._throttled_at
        self.throttled = False
        self._timer = None
        self._regulate()

    def _regulate(self) -> None:
        for connection in list(self.connections):
            connection.regulate()


class Clients:
    """All clients. See the module."""

    def __init__(self, limits: ClientLimits | None = None) -> None:
        self.limits = limits or ClientLimits()
        self.meters_frames = bool(self.limits.bytes_per_second or self.limits.requests_per_second)
        """Whether each frame is charged."""
        self.acting: Client | None = None
        """The client whose requests are being served in this step; None: the bookie acts by itself."""
        self.refused: Counter[str] = Counter()
        """Refusals since the start, each of :data:`LIMITS`."""
        self.throttled_seconds = 0.0
        """For how long clients have been throttled, all together."""
        self._by_name: dict[str, Client] = {}
        self._idle: dict[str, None] = {}
        """The longest idle first."""

    @property
    def count(self) -> int:
        """Clients with connections."""
        return len(self._by_name) - len(self._idle)

    @property
    def remembered(self) -> int:
        """Clients with connections, and those that left."""
        return len(self._by_name)

    @property
    def throttled(self) -> int:
        """Clients from which the bookie does not read now."""
        return sum(client.throttled for client in self._by_name.values())

    def enter(self, name: str, connection: ClientConnection) -> Client:
        """The connection is one of this client. Raises :class:`BookieOverloadedError` if it has too many."""
        client = self._by_name.get(name)
        connections_max = self.limits.connections_max
        if client is not None and connections_max and len(client.connections) >= connections_max:
            self.refused["connections"] += 1
            raise BookieOverloadedError(
                f"{name} has {connections_max} connections to this bookie, and may have no more",
                may_have_happened=False,
            )
        if client is None:
            client = self._by_name[name] = Client(name, self)
        self._idle.pop(name, None)
        client.connections[connection] = None
        return client

    def leave(self, client: Client, connection: ClientConnection) -> None:
        """The connection is lost, or another client's."""
        client.connections.pop(connection, None)
        if not client.connections and self._by_name.get(client.name) is client:
            self._idle[client.name] = None
            if len(self._idle) > _IDLE_CLIENTS_MAX:
                oldest = next(iter(self._idle))
                del self._idle[oldest]
                self._by_name.pop(oldest).close()

    def charge_new_ledger(self) -> None:
        """A request of the acting client names a ledger that is new here. Raises :class:`BookieOverloadedError`."""
        if self.acting is not None:
            self.acting.charge_new_ledger()

    def close(self) -> None:
        """No client is served any more."""
        for client in self._by_name.values():
            client.close()


def _bucket(per_second: int, burst_seconds: float = 1.0) -> TokenBucket | None:
    return TokenBucket(per_second, per_second * burst_seconds) if per_second else None
