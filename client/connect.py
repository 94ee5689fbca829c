"""Opening a client: :func:`connect`."""

import random
from collections.abc import Callable
from datetime import datetime
from typing import Unpack

from octavo.client.arguments import check_text
from octavo.client.awaitable_context import Opening
from octavo.client.client import Client
from octavo.client.client_name import default_client_name
from octavo.client.options import ClientOptions, ConnectOptions
from octavo.client.wire.protection import options_with_environment
from octavo.metadata.connect import open_cluster
from octavo.metadata.ledger.checks import CLIENT_NAME_CHARACTERS_MAX
from octavo.protocol.errors import InvalidArgumentError


def connect(
    uri: str,
    *,
    rng: random.Random | None = None,
    wall_clock: Callable[[], datetime] | None = None,
    client_name: str | None = None,
    **options: Unpack[ConnectOptions],
) -> Opening[Client]:
    """Connect to a cluster: ``async with connect(uri) as client``, or ``client = await connect(uri)``.

    ``uri`` is the metadata store's: ``zk://host:port,host:port/path`` for ZooKeeper, ``sqlite:///relative/path`` or
    ``sqlite:////absolute`` for the embedded store. ``options`` are those of ``ClientOptions``, which has their
    defaults and what each means; units are part of their names. ``rng`` decides everything left
    to chance (placement, back-off). ``wall_clock`` returns the time of day, with a time zone; it is noted in new
    ledgers and sealed into entries. ``client_name`` is noted in ledgers that this client fences, so that the errors of
    their writers name it; the default is the host and the process id.

    Examples:
        >>> async with octavo.connect("sqlite:///octavo-data/metadata.db", log_add_timeout_seconds=5) as client:
        ...     async with client.create_log("payments") as log, log.lead() as writer:
        ...         await writer.add(b"payload")
        0

    Raises:
        InvalidArgumentError: An option is unknown or out of range; or, once awaited, the URI's scheme is unknown, or
            it is ``memory://`` and no bookies run in this process, as in tests.
        MetadataUnavailableError: There is no such store, or it does not answer.
        MetadataError: The content of the store cannot be understood.
    """
    check_text("the URI of the metadata store", uri)
    if rng is not None and not isinstance(rng, random.Random):
        raise InvalidArgumentError(f"rng is a random.Random, not {rng!r}")
    if wall_clock is not None and not callable(wall_clock):
        raise InvalidArgumentError(f"wall_clock is a function that returns the time, not {wall_clock!r}")
    if client_name is not None:
        check_text("client_name", client_name)
    checked = options_with_environment(ClientOptions.from_keywords(options))
    name = client_name if client_name is not None else default_client_name()
    if len(name) > CLIENT_NAME_CHARACTERS_MAX:
        raise InvalidArgumentError(f"client_name has at most {CLIENT_NAME_CHARACTERS_MAX} characters, not {len(name)}")

    async def open_client() -> Client:
        store = await open_cluster(uri, lease_seconds=checked.lease_seconds, rng=rng)
        try:
            cluster_id = await store.cluster_id()
            client = Client(
                store, cluster_id=cluster_id, options=checked, rng=rng, wall_clock=wall_clock, client_name=name
            )
        except BaseException:
            await store.close()
            raise
        client._warns_if_unclosed = True
        return client

    return Opening(open_client, "connect()")
