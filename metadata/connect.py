"""From a metadata URI to a store: the table of drivers."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from octavo.metadata.memory import memory_server, open_memory_store
from octavo.metadata.sqlite import open_sqlite_store, path_of_uri
from octavo.metadata.store import LEASE_SECONDS_DEFAULT, MetadataStore
from octavo.protocol.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """What every driver is told."""

    create: bool
    """Make the store if there is none."""
    lease_seconds: float
    rng: random.Random | None
    """Makes tokens; None: the system's."""


type Opener = Callable[[str, OpenOptions], Awaitable[MetadataStore]]


async def open_metadata_store(
    uri: str,
    *,
    create: bool = False,
    lease_seconds: float = LEASE_SECONDS_DEFAULT,
    rng: random.Random | None = None,
) -> MetadataStore:
    """Open the store that ``uri`` names: ``memory://name``, ``sqlite:///relative/path``, ``sqlite:////absolute/path``,
    ``zk://host:port,host:port/root``.

    ``create`` makes a store where there is none; without it, that is a :class:`MetadataUnavailableError`, so that a
    mistyped path does not become an empty cluster. Raises :class:`InvalidArgumentError` for a URI that nobody
    understands, :class:`MetadataError` for a store of a newer format or something that is no store.
    """
    scheme, separator, _ = uri.partition("://")
    opener = DRIVERS.get(scheme) if separator else None
    if opener is None:
        known = ", ".join(f"{scheme}://" for scheme in sorted(DRIVERS))
        raise InvalidArgumentError(f"{uri!r} is not a metadata URI; the schemes known are {known}")
    return await opener(uri, OpenOptions(create, lease_seconds, rng))


async def _open_memory(uri: str, options: OpenOptions) -> MetadataStore:
    server = memory_server(uri.removeprefix("memory://"))
    return open_memory_store(server, lease_seconds=options.lease_seconds, rng=options.rng)


async def _open_sqlite(uri: str, options: OpenOptions) -> MetadataStore:
    return await open_sqlite_store(
        path_of_uri(uri), create=options.create, lease_seconds=options.lease_seconds, rng=options.rng
    )


async def _open_zookeeper(uri: str, options: OpenOptions) -> MetadataStore:
    from octavo.metadata.zookeeper_open import open_zookeeper_store  # noqa: PLC0415 - others do without aiozk

    return await open_zookeeper_store(uri, create=options.create, lease_seconds=options.lease_seconds, rng=options.rng)


DRIVERS: Final[dict[str, Opener]] = {
    "memory": _open_memory,
    "sqlite": _open_sqlite,
    "zk": _open_zookeeper,
}
"""Scheme -> how to open it."""
