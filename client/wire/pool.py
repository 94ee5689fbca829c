"""The connections of a client: one per bookie, shared by all its ledgers, and what it knows of the bookies'
whereabouts.

Where bookies are comes from the metadata: registrations are watched from the first use on, and a bookie that is not
registered (it may only have lost its lease: rule M2) is tried at the address in its cookie.
"""

import asyncio
import itertools
import random
from collections.abc import Mapping, Set
from functools import partial
from typing import TYPE_CHECKING

from octavo._version import __version__
from octavo.client.counts import ClientCounts
from octavo.client.options import ClientOptions
from octavo.client.supervisor import Supervisor
from octavo.client.wire.connection import BookieConnection
from octavo.client.wire.protection import login_without_key
from octavo.client.wire.turn import Turn
from octavo.client.wire.wire import Wire
from octavo.metadata.cluster.registration import BookieRegistration
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.errors import (
    BookieUnavailableError,
    ClientClosedError,
    MetadataUnavailableError,
    OctavoError,
    TasksCancelledError,
)
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import MAGIC, PROTOCOL_VERSION, Hello

if TYPE_CHECKING:
    from octavo.client.statistics.clients import ConnectionState, ConnectionStatistics
    from octavo.client.wire.security import WireSecurity

_QUARANTINE_SPREAD = 1.5
"""Longest quarantine as a multiple of the shortest: bookies that failed together are not all tried again together, nor
one of them by all clients at once."""


_ADDRESS_PATIENCE_SECONDS = 1.0
"""How long the store may take to return an address before the last known address is tried. Shorter than an election:
reaching a bookie need not wait for one."""


class ConnectionPool:
    """See the module. Made inside a running loop, used from that loop only."""

    def __init__(self, store: MetadataStore, *, cluster_id: str, options: ClientOptions, rng: random.Random) -> None:
        """Raises :class:`InvalidArgumentError` for files of TLS that cannot be used."""
        self._store = store
        self._cluster_id = cluster_id
        self._options = options
        self._rng = rng
        self._security = _security_of(options)
        self._tls_of: dict[BookieId, str] = {}
        """What registrations say of TLS, as of the last look."""
        self.counts = ClientCounts()
        """What the client counts."""
        self._boot_id = f"{rng.getrandbits(64):016x}"
        self._request_ids = itertools.count(1)
        self.next_request_id = self._request_ids.__next__
        """A request id that no other request of this client has: the same body may go to several bookies."""
        self.turn = Turn()
        """What is done when a turn of the event loop ends."""
        self._connections: dict[BookieId, BookieConnection] = {}
        self._registrations: Mapping[BookieId, BookieRegistration] | None = None
        """As the watch reported them last; None before its first report and after its end."""
        self._quarantine: dict[BookieId, float] = {}
        """Bookie -> the loop's time at which it may be chosen again."""
        self._supervisor = Supervisor("octavo connections", self._failed)
        self._watching = False
        self._closed = False
        self._failure: OctavoError | None = None
        """Why there are no connections any more, if it is not that the client was closed."""

    def get(self, bookie_id: BookieId) -> BookieConnection:
        """The connection to a bookie, made at first use. It connects when asked something or listened to.

        Raises :class:`ClientClosedError`, :class:`TasksCancelledError`.
        """
        connection = self._connections.get(bookie_id)
        if connection is None:
            if self._failure is not None:
                raise type(self._failure)(self._failure.message, may_have_happened=False)
            if self._closed:
                raise ClientClosedError("the client is closed")
            connection = BookieConnection(
                bookie_id,
                hello=self._hello(bookie_id),
                find_address=self._find_address,
                next_request_id=self.next_request_id,
                options=self._options,
                rng=self._rng,
                turn=self.turn,
                reconnects=self.counts.reconnects,
                protect=None if self._security is None else partial(self._protect, bookie_id),
                login=login_without_key if self._security is None else self._security.login,
            )
            self._connections[bookie_id] = connection
            self._supervisor.start(connection.run())
            if not self._watching:
                self._watching = True
                self._supervisor.start(self._watch_registrations())
        return connection

    def registrations(self) -> Mapping[BookieId, BookieRegistration] | None:
        """The registered bookies as a watch told them last; None while nothing is watched."""
        return self._registrations

    def put_in_quarantine(self, bookie_id: BookieId) -> None:
        """Do not choose the bookie for a while, or until it registers again: it has failed a ledger."""
        seconds = self._options.bookie_quarantine_seconds * self._rng.uniform(1.0, _QUARANTINE_SPREAD)
        self._quarantine[bookie_id] = asyncio.get_running_loop().time() + seconds

    def quarantined(self) -> Set[BookieId]:
        """Bookies not to be chosen now."""
        if not self._quarantine:
            return frozenset()
        now = asyncio.get_running_loop().time()
        self._quarantine = {bookie_id: until for bookie_id, until in self._quarantine.items() if until > now}
        return self._quarantine.keys()

    def statistics(self) -> "dict[BookieId, ConnectionStatistics]":
        """Of each connection that was used, by bookie."""
        from octavo.client.statistics.clients import ConnectionStatistics  # noqa: PLC0415 - short commands do not ask

        quarantined, now = self.quarantined(), asyncio.get_running_loop().time()
        return {
            bookie_id: ConnectionStatistics(
                state=_state_of(connection),
                requests_under_way=connection.requests_under_way,
                error=None if connection.last_error is None else connection.last_error.message,
                quarantined_seconds=self._quarantine[bookie_id] - now if bookie_id in quarantined else None,
            )
            for bookie_id, connection in sorted(self._connections.items())
        }

    async def close(self) -> None:
        """Break all connections; whatever is outstanding fails. Any task may call it, any number of times."""
        self._closed = True
        for connection in self._connections.values():
            connection.close()
        await self._supervisor.close()

    def _hello(self, bookie_id: BookieId) -> Hello:
        version, software = PROTOCOL_VERSION, f"octavo {__version__}"
        return Hello(MAGIC, version, version, software, self._cluster_id, bookie_id, self._boot_id, ())

    async def _find_address(self, bookie_id: BookieId) -> str:
        """Read from the store each time, not from the watch: an attempt that failed may have failed for an old
        address. Only while the store does not answer, the address last heard of must do: bookies serve without it."""
        heard = None if self._registrations is None else self._registrations.get(bookie_id)
        try:
            async with asyncio.timeout(None if heard is None else _ADDRESS_PATIENCE_SECONDS):
                registration = (await self._store.list_bookies()).get(bookie_id)
        except (TimeoutError, MetadataUnavailableError):
            if heard is None:
                raise
            registration = heard
        if registration is not None:
            self._tls_of[bookie_id] = registration.tls
            return registration.address
        cookie = await self._store.read_cookie(bookie_id)
        if cookie is not None:
            return cookie.value.address
        raise BookieUnavailableError(f"bookie {bookie_id} is not known to the cluster", may_have_happened=False)

    def _protect(self, bookie_id: BookieId, wire: Wire, host: str) -> asyncio.Protocol:
        assert self._security is not None, "a pool without TLS protects nothing"
        return self._security.protocol(wire, bookie_id, host, registered=self._tls_of.get(bookie_id))

    async def _watch_registrations(self) -> None:
        try:
            async with self._store.watch_bookies() as watch:
                async for registrations in watch:
                    before, self._registrations = self._registrations or {}, registrations
                    for bookie_id, registration in registrations.items():
                        if registration == before.get(bookie_id):
                            continue
                        self._quarantine.pop(bookie_id, None)
                        connection = self._connections.get(bookie_id)
                        if connection is not None:
                            connection.address_changed()
        except ClientClosedError:
            # The store was closed before us. Connections remain; only reports of bookies that come back are missing.
            return
        finally:
            self._registrations = None

    def _failed(self, error: BaseException) -> None:
        self._closed = True
        if isinstance(error, TasksCancelledError):
            self._failure = error
            for connection in self._connections.values():
                connection.close(error)
            self._connections.clear()  # who asks for one learns why there is none
            return
        for connection in self._connections.values():
            connection.close()
        asyncio.get_running_loop().call_exception_handler(
            {"message": "the connections of a client failed", "exception": error}
        )


def _security_of(options: ClientOptions) -> "WireSecurity | None":
    if not options.tls and options.key_file is None:
        return None
    from octavo.client.wire.security import WireSecurity  # noqa: PLC0415 - most clients have neither TLS nor a key

    return WireSecurity(options)


def _state_of(connection: BookieConnection) -> "ConnectionState":
    if connection.connected:
        return "connected" if connection.writable else "busy"
    return "idle" if connection.last_error is None else "down"
