"""The bookies of a cluster, as people and their tools see them."""

import asyncio
import random
from collections.abc import Mapping

from octavo.client.options import ClientOptions
from octavo.client.wire.pool import ConnectionPool
from octavo.client.wire.protection import options_with_environment
from octavo.metadata.cluster.registration import BookieState, KnownBookie
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import BookieId
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.messages import Info, InfoAnswer

_DETAILS_TIMEOUT_SECONDS = 2.0
"""Time a bookie has to send its facts. A list of bookies is made for people, who do not wait long for a dead one."""

_DETAILS_AT_ONCE_MAX = 64
"""Most bookies asked for their facts at the same time."""


@dataclass(frozen=True, slots=True)
class BookieStatus:
    """A bookie as the cluster knows it.

    Examples:
        >>> [bookie.state.value for bookie in await client.bookies()]
        ['writable', 'writable', 'writable']
    """

    bookie_id: BookieId
    address: str
    """``host:port``, as the bookie advertises it, or advertised it last."""
    state: BookieState
    version: str | None
    """Software version; None when unavailable."""
    rack: str | None = None
    """As registered, for example ``/rack-1``; None when unavailable."""
    facts: Mapping[str, str | int | float | bool] | None = None
    """What the bookie reports of itself (capacity, load, ...; docs/wire-protocol.md lists the names). None if it was
    not asked, did not answer within two seconds, or refused."""
    error: OctavoError | None = None
    """Why a bookie that was asked for facts gave none: it denies this client, does not answer, ..."""
    host_id: str | None = None
    """The host that runs it, as registered; None when unavailable, and when it registers none."""


async def ask_bookies(store: MetadataStore) -> list[BookieStatus]:
    """As ``Client.bookies(details=True)`` of a client with default options. A command that asks for nothing else loads
    a third of a client. Raises :class:`InvalidArgumentError` for wrong settings in the environment."""
    options = options_with_environment(ClientOptions())
    pool = ConnectionPool(store, cluster_id=await store.cluster_id(), options=options, rng=random.Random())
    try:
        return await bookie_statuses(store, pool, details=True)
    finally:
        await pool.close()


async def bookie_statuses(store: MetadataStore, pool: ConnectionPool, *, details: bool) -> list[BookieStatus]:
    """Every bookie that the cluster knows, in order of ids. ``details``: ask each live bookie for its facts, too."""
    known = await store.list_known_bookies()
    facts: dict[BookieId, Mapping[str, str | int | float | bool]] = {}
    errors: dict[BookieId, OctavoError] = {}
    permits = asyncio.Semaphore(_DETAILS_AT_ONCE_MAX)

    async def ask(bookie: KnownBookie) -> None:
        async with permits:
            try:
                answer = await pool.get(bookie.bookie_id).request(Info(), timeout_seconds=_DETAILS_TIMEOUT_SECONDS)
            except OctavoError as error:
                errors[bookie.bookie_id] = error
                return
            if isinstance(answer, InfoAnswer):
                facts[bookie.bookie_id] = answer.facts

    if details:
        async with asyncio.TaskGroup() as group:
            for bookie in known:
                if bookie.registration is not None:
                    group.create_task(ask(bookie))
    return [
        BookieStatus(
            bookie.bookie_id,
            bookie.address,
            bookie.state,
            None if bookie.registration is None else bookie.registration.version,
            None if bookie.registration is None else bookie.registration.rack,
            facts.get(bookie.bookie_id),
            errors.get(bookie.bookie_id),
            None if bookie.registration is None else bookie.registration.host_id,
        )
        for bookie in known
    ]
