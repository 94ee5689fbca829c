"""Opens the metadata store that a URI names; holds the table of drivers, of which a process loads one."""

# ruff: noqa: PLC0415 - see above

import random
import re
from collections.abc import Awaitable, Callable
from typing import Final

from octavo.metadata.store.driver import ClusterOrigin
from octavo.metadata.store.leases import LEASE_SECONDS_DEFAULT
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.errors import InvalidArgumentError, MetadataError, MetadataUnavailableError, OctavoError
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.os_errors import explained
from octavo.security import forks

_MEMORY: Final = "memory://"


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """Options that every driver takes."""

    create: bool
    """Create the store if it does not exist."""
    lease_seconds: float
    rng: random.Random | None
    """Generates tokens. None means the system's generator."""


type Opener = Callable[[str, OpenOptions], Awaitable[MetadataStore]]


async def open_metadata_store(
    uri: str,
    *,
    create: bool = False,
    lease_seconds: float = LEASE_SECONDS_DEFAULT,
    rng: random.Random | None = None,
) -> MetadataStore:
    """Open the store that ``uri`` names.

    URIs are ``memory://name``, ``sqlite:///relative/path``, ``sqlite:////absolute/path``,
    ``zk://host:port,host:port/root``, and ``zk+tls://`` with the parameters ``tls_ca``, ``tls_certificate``,
    ``tls_key``. With ``create``, a store that does not exist is created.

    Raises:
        MetadataUnavailableError: There is no such store: a mistyped path does not become an empty cluster.
        InvalidArgumentError: No driver understands the URI.
        MetadataError: The store is of a newer format, or the file is not a store.
        ForkedError: In a forked child, for a SQLite file that was open in the parent, and in an event loop of the
            parent's (rule H1).
    """
    forks.check_running_loop()
    scheme, separator, _ = uri.partition("://")
    opener = DRIVERS.get(scheme) if separator else None
    if opener is None:
        known = ", ".join(f"{scheme}://" for scheme in sorted(DRIVERS) if scheme != "memory")
        raise InvalidArgumentError(f"{uri!r} is not a metadata URI; the known schemes are {known}")
    try:
        return await opener(uri, OpenOptions(create, lease_seconds, rng))
    except OctavoError:
        raise
    except OSError as error:  # no file descriptors, for example
        raise MetadataUnavailableError(
            f"{without_password(uri)} cannot be opened: {explained(error)}", may_have_happened=False
        ) from error


async def open_cluster(
    uri: str,
    *,
    create: bool = False,
    lease_seconds: float = LEASE_SECONDS_DEFAULT,
    rng: random.Random | None = None,
) -> MetadataStore:
    """As :func:`open_metadata_store`, for programs, commands and bookies.

    Raises :class:`InvalidArgumentError` for a store in memory that is not open in this process yet: no bookie of
    another process can register there, so the cluster would have none for ever.
    """
    if uri.startswith(_MEMORY) and not _is_open_in_memory(uri):
        raise InvalidArgumentError(
            f"{uri!r} has no bookies and never will: memory:// is for tests that run bookies in their own process; "
            "give the URI of a cluster, sqlite:///PATH (`octavo up` starts one) or zk://HOST:PORT/ROOT"
        )
    return await open_metadata_store(uri, create=create, lease_seconds=lease_seconds, rng=rng)


async def create_metadata_store(uri: str, origin: ClusterOrigin) -> MetadataStore:
    """Create a store at ``uri`` that continues another cluster, whose dump is being restored.

    Raises :class:`MetadataError` when there is a cluster already, :class:`InvalidArgumentError` for a URI of another
    kind.
    """
    scheme, separator, _ = uri.partition("://")
    creator = _CREATORS.get(scheme) if separator else None
    if creator is None:
        known = ", ".join(f"{scheme}://" for scheme in sorted(_CREATORS))
        raise InvalidArgumentError(f"{uri!r}: no cluster can be restored there; the known schemes are {known}")
    try:
        async with await open_metadata_store(uri) as present:
            cluster_id = await present.cluster_id()
    except MetadataUnavailableError as error:
        if error.may_have_happened:
            raise
    else:
        raise MetadataError(
            f"there is a cluster at {uri} already ({cluster_id}); restore to another place, or run "
            "`octavo cluster destroy` first"
        )
    store = await creator(uri, origin)
    if await store.cluster_id() != origin.cluster_id:
        await store.close()
        raise MetadataError(f"another process has created a cluster at {uri} meanwhile; nothing has been restored")
    return store


async def destroy_metadata_store(uri: str, *, on_deleted: Callable[[int], None] = lambda _number: None) -> None:
    """Delete the cluster at ``uri`` and all its metadata. ``on_deleted`` is called with each number of further records
    that have been deleted.

    Raises :class:`MetadataUnavailableError` when there is no cluster, :class:`MetadataError` while its bookies are
    running, :class:`InvalidArgumentError` for a URI of another kind.
    """
    scheme, separator, _ = uri.partition("://")
    destroyer = _DESTROYERS.get(scheme) if separator else None
    if destroyer is None:
        known = ", ".join(f"{scheme}://" for scheme in sorted(_DESTROYERS))
        raise InvalidArgumentError(f"{uri!r} is not a cluster that can be destroyed; the known schemes are {known}")
    await destroyer(uri, on_deleted)


def without_password(uri: str) -> str:
    """The URI without the password that may stand before its host."""
    return re.sub(r"(?<=//)([^/@:]*):[^/@]*@", r"\1:***@", uri)


def _is_open_in_memory(uri: str) -> bool:
    from octavo.metadata.memory import is_memory_server

    return is_memory_server(uri.removeprefix(_MEMORY))


async def _open_memory(uri: str, options: OpenOptions) -> MetadataStore:
    from octavo.metadata.memory import memory_server, open_memory_store

    server = memory_server(uri.removeprefix(_MEMORY))
    return open_memory_store(server, lease_seconds=options.lease_seconds, rng=options.rng)


async def _open_sqlite(uri: str, options: OpenOptions) -> MetadataStore:
    from octavo.metadata.sqlite.store import open_sqlite_store, path_of_uri

    return await open_sqlite_store(
        path_of_uri(uri), create=options.create, lease_seconds=options.lease_seconds, rng=options.rng
    )


async def _open_zookeeper(uri: str, options: OpenOptions) -> MetadataStore:
    from octavo.metadata.zookeeper.cluster import open_zookeeper_store

    return await open_zookeeper_store(uri, create=options.create, lease_seconds=options.lease_seconds, rng=options.rng)


async def _destroy_sqlite(uri: str, _on_deleted: Callable[[int], None]) -> None:
    from octavo.metadata.sqlite.store import open_sqlite_store, path_of_uri

    path = path_of_uri(uri)
    async with await open_sqlite_store(path) as store:
        live = await store.list_bookies()
    if live:
        raise MetadataError(f"{uri}: {len(live)} bookies are running, for example {next(iter(live))}; stop them first")
    # Delete the write-ahead log before its database: in the other order, a new database could pick up the old log.
    for suffix in ("-wal", "-shm", ""):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


async def _destroy_zookeeper(uri: str, on_deleted: Callable[[int], None]) -> None:
    from octavo.metadata.zookeeper.cluster import destroy_zookeeper_store

    await destroy_zookeeper_store(uri, on_deleted=on_deleted)


async def _create_sqlite(uri: str, origin: ClusterOrigin) -> MetadataStore:
    from octavo.metadata.sqlite.store import open_sqlite_store, path_of_uri

    return await open_sqlite_store(path_of_uri(uri), create=True, origin=origin)


async def _create_zookeeper(uri: str, origin: ClusterOrigin) -> MetadataStore:
    from octavo.metadata.zookeeper.cluster import open_zookeeper_store

    return await open_zookeeper_store(uri, create=True, origin=origin)


_CREATORS: Final = {"sqlite": _create_sqlite, "zk": _create_zookeeper, "zk+tls": _create_zookeeper}

_DESTROYERS: Final = {"sqlite": _destroy_sqlite, "zk": _destroy_zookeeper, "zk+tls": _destroy_zookeeper}

DRIVERS: Final[dict[str, Opener]] = {
    "memory": _open_memory,
    "sqlite": _open_sqlite,
    "zk": _open_zookeeper,
    "zk+tls": _open_zookeeper,
}
"""Maps each URI scheme to the function that opens it."""
