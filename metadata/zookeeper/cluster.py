"""Opens, creates and destroys clusters in ZooKeeper."""

import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NoReturn

from octavo.metadata.clocks.boot_time import boot_time_seconds
from octavo.metadata.store.driver import ClusterOrigin
from octavo.metadata.store.leases import LEASE_SECONDS_DEFAULT, check_lease_seconds
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.zookeeper.layout import (
    Address,
    LedgerIdCounter,
    decode_layout,
    encode_layout,
    encode_ledger_ids,
    parents_of,
    parse_credentials,
    parse_uri,
)
from octavo.metadata.zookeeper.messages import (
    ANY_VERSION,
    NO_NODE,
    NODE_EXISTS,
    NOT_EMPTY,
    OK,
    Answer,
    children,
    create,
    delete,
    set_value,
)
from octavo.metadata.zookeeper.store import ZooKeeperRecordStore
from octavo.metadata.zookeeper.tls import tls_files
from octavo.protocol.errors import (
    InvalidArgumentError,
    MetadataError,
    MetadataUnavailableError,
)
from octavo.protocol.ids import LedgerId
from octavo.security.secret_files import read_secret

OPERATION_SECONDS_DEFAULT: Final = 15.0
"""How long an operation waits for an answer: longer than the election of a new leader, and longer than it takes to
lose and replace a session of the default length."""

AUTH_VARIABLE: Final = "OCTAVO_ZOOKEEPER_AUTH"
"""Environment variable that holds the credentials, ``digest:user:password``."""

DELETES_AT_ONCE: Final = 500
"""Nodes deleted at the same time while a cluster is destroyed: half of the requests that may be outstanding."""


def _credentials(address: Address) -> tuple[str, bytes] | None:
    if address.auth_file is not None:
        path = address.auth_file
        try:
            return parse_credentials(read_secret(path, "ZooKeeper's auth_file").decode(), path)
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"ZooKeeper's auth_file {path}: it is not text") from error
    text = os.environ.get(AUTH_VARIABLE)
    return parse_credentials(text, f"the variable {AUTH_VARIABLE}") if text else None


def connect_records(
    uri: str, *, lease_seconds: float, operation_seconds: float, rng: random.Random
) -> ZooKeeperRecordStore:
    """A driver that connects in the background. It has not checked whether there is a cluster."""
    address = parse_uri(uri)
    records = ZooKeeperRecordStore(
        uri,
        address,
        credentials=_credentials(address),
        tls=tls_files(address),
        session_seconds=lease_seconds,
        operation_seconds=operation_seconds,
        rng=rng,
    )
    records.session.start()
    return records


async def open_zookeeper_store(
    uri: str,
    *,
    create: bool = False,
    lease_seconds: float = LEASE_SECONDS_DEFAULT,
    operation_seconds: float = OPERATION_SECONDS_DEFAULT,
    clock: Callable[[], float] = boot_time_seconds,
    rng: random.Random | None = None,
    origin: ClusterOrigin | None = None,
) -> MetadataStore:
    """A handle on the cluster at ``uri``; with ``create``, a missing cluster is created. It continues the cluster
    ``origin`` if there is one.

    ``lease_seconds`` is also the session's timeout; servers may grant less, and leases are then shorter. ``clock``
    gives seconds that keep counting during a suspend. Raises :class:`InvalidArgumentError`,
    :class:`MetadataUnavailableError` when no server answers in time or there is no cluster, :class:`MetadataError` for
    a cluster of a newer layout, :class:`UnauthorizedError` without the right credentials.
    """
    check_lease_seconds(lease_seconds)
    rng = rng or random.SystemRandom()
    records = connect_records(uri, lease_seconds=lease_seconds, operation_seconds=operation_seconds, rng=rng)
    try:
        cluster_id = await _read_layout(records)
        if cluster_id is None and create:
            cluster_id = await _make_layout(
                records, origin or ClusterOrigin(f"{rng.getrandbits(128):032x}", LedgerId(0))
            )
        records.adopt(cluster_id or _no_cluster(uri))
    except BaseException:
        await records.close()
        raise
    granted = min(lease_seconds, records.session.timeout_seconds)
    return MetadataStore(records, lease_seconds=granted, clock=clock, rng=rng)


def _no_cluster(uri: str) -> NoReturn:
    raise MetadataUnavailableError(
        f"there is no cluster at {uri}: create one with `octavo cluster init`, or give another URI",
        may_have_happened=False,
    )


async def _read_layout(records: ZooKeeperRecordStore) -> str | None:
    async with records.nodes.operation(records.uri):
        layout = await records.nodes.read(records.paths.layout)
    return None if layout is None else decode_layout(layout.value, records.paths.layout)


async def _make_layout(records: ZooKeeperRecordStore, origin: ClusterOrigin) -> str:
    """Create a new cluster with all of its folders in one transaction; returns the id of the cluster that is then
    there."""
    nodes, paths = records.nodes, records.paths
    cluster_id = origin.cluster_id
    for path in [*parents_of(paths.root), paths.root]:
        await nodes.ensure(path)
    requests = [
        create(paths.layout, encode_layout(cluster_id), nodes.acl),
        create(paths.ledger_ids, encode_ledger_ids(LedgerIdCounter(origin.first_ledger_id)), nodes.acl),
        *(create(folder, b"", nodes.acl) for folder in paths.folders),
    ]

    async def settle() -> Answer | None:
        present = await _read_layout(records)
        if present is None:
            return None
        return Answer(OK) if present == cluster_id else Answer(NODE_EXISTS)

    async with nodes.operation(records.uri) as operation:
        made = await nodes.transact(operation, requests, settle)
        nodes.expect(made, paths.layout, NODE_EXISTS)
    present = await _read_layout(records)
    if present is None:
        raise MetadataError(
            f"{records.uri}: there are nodes of a cluster, but no layout; run `octavo cluster destroy` to its end"
        )
    return present


async def destroy_zookeeper_store(
    uri: str, *, on_deleted: Callable[[int], None], operation_seconds: float = OPERATION_SECONDS_DEFAULT
) -> None:
    """Delete the cluster at ``uri`` and all its metadata; ``on_deleted`` is called with each number of deleted nodes.

    The layout is marked first, so that no process opens a half-destroyed cluster. An interrupted call continues where
    it stopped when called again. Raises :class:`MetadataUnavailableError` when there is no cluster,
    :class:`MetadataError` while bookies are registered.
    """
    records = connect_records(
        uri, lease_seconds=LEASE_SECONDS_DEFAULT, operation_seconds=operation_seconds, rng=random.SystemRandom()
    )
    try:
        await _mark(records)
        async for paths in _deepest_first(records):
            await _delete_all(records, paths)
            on_deleted(len(paths))
        await _delete_all(records, [records.paths.layout])
        await _delete_all(records, [records.paths.root])
    finally:
        await records.close()


async def _mark(records: ZooKeeperRecordStore) -> None:
    nodes, paths = records.nodes, records.paths
    async with nodes.operation(records.uri):
        layout = await nodes.read(paths.layout)
        if layout is None:
            raise MetadataUnavailableError(f"there is no cluster at {records.uri}", may_have_happened=False)
        live = await nodes.children(f"{paths.root}/bookies/registered") or []
        if live:
            raise MetadataError(
                f"{records.uri}: {len(live)} bookies are running, for example {live[0]}; stop them first"
            )
        (marked,) = await nodes.ask(set_value(paths.layout, encode_layout("", destroying=True), ANY_VERSION))
        nodes.expect(marked, paths.layout)


async def _deepest_first(records: ZooKeeperRecordStore) -> AsyncIterator[list[str]]:
    """Every node below the root except the layout, children before parents, in groups of bounded size."""
    nodes = records.nodes

    async def walk(path: str, names: Sequence[str]) -> AsyncIterator[list[str]]:
        below = [child for name in names if (child := f"{path}/{name}") != records.paths.layout]
        for start in range(0, len(below), DELETES_AT_ONCE):
            group = below[start : start + DELETES_AT_ONCE]
            async with nodes.operation(path):
                answers = await nodes.ask(*map(children, group))
            for child, answer in zip(group, answers, strict=True):
                if nodes.expect(answer, child, NO_NODE).value:
                    async for deeper in walk(child, answer.value):
                        yield deeper
            yield group

    async with nodes.operation(records.uri):
        names = await nodes.children(records.paths.root) or []
    async for paths in walk(records.paths.root, names):
        yield paths


async def _delete_all(records: ZooKeeperRecordStore, paths: Sequence[str]) -> None:
    async with records.nodes.operation(records.uri):
        answers = await records.nodes.ask(*(delete(path, ANY_VERSION) for path in paths))
    for path, answer in zip(paths, answers, strict=True):
        records.nodes.expect(answer, path, NO_NODE, NOT_EMPTY)
