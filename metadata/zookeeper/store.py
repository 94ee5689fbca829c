"""``zk://host:port,host:port/root``: metadata in ZooKeeper, for clusters of many hosts. See docs/zookeeper.md.

:class:`ZooKeeperRecordStore` translates each operation on a record into operations on nodes.
:mod:`octavo.metadata.zookeeper.nodes` reads and changes nodes with definite answers, on top of the session in
:mod:`octavo.metadata.zookeeper.session`.
"""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from octavo.metadata.store.driver import Kind, Listener, Record, RecordStore, Unchanged
from octavo.metadata.store.values import Version
from octavo.metadata.zookeeper.layout import (
    GUARDED,
    KEY_DIGITS,
    VALUE_BYTES_MAX,
    Address,
    Guarded,
    Paths,
    Stat,
    check_digits,
    decode_guarded,
    decode_layout,
    encode_guarded,
    name_of,
    split_version,
    unescape,
    version_of,
)
from octavo.metadata.zookeeper.ledger_changes import change_ledgers
from octavo.metadata.zookeeper.ledger_creation import LedgerCreates
from octavo.metadata.zookeeper.ledger_ids import LedgerIds
from octavo.metadata.zookeeper.messages import (
    ANY_VERSION,
    BAD_VERSION,
    FOR_CREATOR,
    NO_NODE,
    NODE_EXISTS,
    OK,
    OPEN_TO_ALL,
    Answer,
    Node,
    Request,
    WatchEvent,
    check,
    create,
    delete,
    forget_watches,
    set_value,
)
from octavo.metadata.zookeeper.nodes import Nodes, Operation
from octavo.metadata.zookeeper.session import Session
from octavo.metadata.zookeeper.session_records import SessionRecords
from octavo.protocol.errors import (
    InvalidArgumentError,
    MetadataError,
    MetadataUnavailableError,
)
from octavo.protocol.ids import LedgerId
from octavo.security.contexts import ClientFiles

READ_AT_ONCE_MAX: Final = 200
"""Requests of one read of many records that are outstanding at once: what else the session asks waits for them."""


class ZooKeeperRecordStore(RecordStore):
    """One handle on a cluster in ZooKeeper, made by :func:`octavo.metadata.zookeeper.cluster.open_zookeeper_store`."""

    def __init__(
        self,
        uri: str,
        address: Address,
        *,
        credentials: tuple[str, bytes] | None,
        tls: ClientFiles | None = None,
        session_seconds: float,
        operation_seconds: float,
        rng: random.Random,
    ) -> None:
        self._uri = uri
        self._rng = rng
        self.paths = Paths(address.root)
        self.session = Session(
            address.servers,
            self,
            timeout_seconds=session_seconds,
            credentials=credentials,
            tls=tls,
            check=self._check_cluster,
            rng=rng,
        )
        acl = OPEN_TO_ALL if credentials is None else FOR_CREATOR
        self.nodes = Nodes(self.session, operation_seconds=operation_seconds, acl=acl)
        self._leases = SessionRecords(self.nodes, self.paths, rng)
        self._ids = LedgerIds(self.nodes, self.paths, rng)
        self._creates = LedgerCreates(self.nodes, self.paths)
        self._cluster_id: str | None = None
        self._listener: Listener | None = None
        self._tell_session_ended: Callable[[], None] | None = None
        self._watched: set[tuple[Kind, str | None]] = set()
        self._armed: set[str] = set()
        """Paths that the current connection watches."""

    # --- life ------------------------------------------------------------------------------------------------------

    @property
    def uri(self) -> str:
        return self._uri

    def start(self, listener: Listener) -> None:
        self._listener = listener

    def report_ended_sessions(self, tell: Callable[[], None]) -> None:
        self._tell_session_ended = tell

    def watching(self, active: bool) -> None:
        """Nothing to do: each record is watched by itself, see :meth:`watch_record`."""

    def watch_record(self, kind: Kind, key: str | None, *, active: bool) -> None:
        thing = (kind, key)
        if active:
            self._watched.add(thing)
            return
        self._watched.discard(thing)
        path = self.paths.folder(kind) if key is None else self.paths.node(kind, key)
        for armed in [path, *(other for other in self._armed if key is None and other.startswith(path + "/"))]:
            if armed in self._armed:
                self._armed.discard(armed)
                if not self._leases.needs_watch(self.paths.record_of(armed)):
                    self.session.post(forget_watches(armed))

    def adopt(self, cluster_id: str) -> None:
        """From now on, every connection must lead to the cluster with this id."""
        self._cluster_id = cluster_id

    async def close(self) -> None:
        await self._creates.close()
        await self._ids.close()
        await self.session.close()

    async def cluster_id(self) -> str:
        assert self._cluster_id is not None
        return self._cluster_id

    # --- notifications by the session --------------------------------------------------------------------------------

    def on_event(self, event: WatchEvent) -> None:
        self._armed.discard(event.path)
        record = self.paths.record_of(event.path)
        if record is not None:
            self._leases.changed(record)
            self._report(*record)

    def on_connected(self) -> None:
        # The watches of the previous connection are gone: reading every watched record again renews them.
        self._armed.clear()
        self._leases.connected()
        self._report(None, None)

    def on_expired(self, session_id: int) -> None:
        self._leases.expired(session_id)
        if self._tell_session_ended is not None:
            self._tell_session_ended()

    async def _check_cluster(self, _session: Session) -> None:
        if self._cluster_id is None:
            return
        layout = await self.nodes.read(self.paths.layout)
        if layout is None:
            raise MetadataError(f"{self._uri}: the cluster {self._cluster_id} no longer exists")
        present = decode_layout(layout.value, self.paths.layout)
        if present != self._cluster_id:
            raise MetadataError(f"{self._uri}: another cluster, {present}, has replaced {self._cluster_id}")

    async def time_ms(self) -> int:
        async with self.nodes.operation("the time of the servers"):
            return await self.nodes.time_ms_of_write(self.paths.confirmation)

    # --- ledger ids ------------------------------------------------------------------------------------------------

    async def allocate_ledger_id(self) -> LedgerId:
        return await self._ids.allocate()

    async def is_allocated(self, ledger_id: LedgerId) -> bool:
        return await self._ids.is_allocated(ledger_id)

    async def ledger_ids_stop(self) -> LedgerId:
        return await self._ids.stop()

    # --- reads -----------------------------------------------------------------------------------------------------

    async def read(self, kind: Kind, key: str) -> Record | None:
        async with self.nodes.operation(name_of(kind, key)):
            node = await self._read(kind, key, watch=(kind, key) in self._watched)
        return None if node is None else _record(kind, key, node)

    async def read_many(self, kind: Kind, keys: Sequence[str]) -> list[Record | None]:
        found: list[Record | None] = []
        for start in range(0, len(keys), READ_AT_ONCE_MAX):
            some = keys[start : start + READ_AT_ONCE_MAX]
            async with self.nodes.operation(f"records of kind {kind.value}"):
                nodes = await self.nodes.read_many([self.paths.node(kind, key) for key in some])
            found += [None if node is None else _record(kind, key, node) for key, node in zip(some, nodes, strict=True)]
        return found

    async def read_all(self, kind: Kind) -> list[Record]:
        watch = (kind, None) in self._watched
        folder = self.paths.folder(kind)
        async with self.nodes.operation(f"the list of every {kind.value}"):
            names = await self.nodes.children(folder, watch=watch)
            if names is None:
                self.nodes.refuse(NO_NODE, folder)
            keys = sorted(map(unescape, names))
            paths = [self.paths.node(kind, key) for key in keys]
            if watch:
                self._armed.update([folder, *paths])
            nodes = await self.nodes.read_many(paths, watch=watch)
        return [_record(kind, key, node) for key, node in zip(keys, nodes, strict=True) if node is not None]

    async def confirm_absent(self, kind: Kind, keys: Sequence[str]) -> list[str]:
        paths = [self.paths.node(kind, key) for key in keys]
        async with self.nodes.operation(f"confirming that records of kind {kind.value} are absent"):
            stats = await self.nodes.stats_after_write(self.paths.confirmation, paths)
        return [key for key, stat in zip(keys, stats, strict=True) if stat is None]

    async def list_keys(self, kind: Kind, *, prefix: str, after: str, limit: int) -> list[str]:
        async with self.nodes.operation(f"the list of every {kind.value}"):
            if kind is Kind.LEDGER:
                return await self._list_ledgers(after, limit)
            names = await self.nodes.children(self.paths.folder(kind))
            if names is None and kind is not Kind.WAITER:
                self.nodes.refuse(NO_NODE, self.paths.folder(kind))
            names = names or []  # the folder of waiters is made with the first of them
            keys = [key for key in map(unescape, names) if key.startswith(prefix) and key > after]
            return sorted(keys)[:limit]

    async def _list_ledgers(self, after: str, limit: int) -> list[str]:
        """The keys after ``after``, found by walking through the folders in order."""
        found: list[str] = []
        root = self.paths.folder(Kind.LEDGER)

        async def walk(folder: str, digits: str, depth: int) -> None:
            names = await self.nodes.children(folder)
            if names is None:
                if depth == 0:
                    # An empty list would be believed, and every ledger would be garbage (rule B5).
                    self.nodes.refuse(NO_NODE, folder)
                return
            for name in check_digits(names, KEY_DIGITS[depth], folder):
                key = digits + name
                if key < after[: len(key)] or (depth == len(KEY_DIGITS) - 1 and key <= after):
                    continue
                if depth == len(KEY_DIGITS) - 1:
                    found.append(key)
                else:
                    await walk(f"{folder}/{name}", key, depth + 1)
                if len(found) >= limit:
                    return

        await walk(root, "", 0)
        return found

    async def _read(self, kind: Kind, key: str, *, watch: bool = False) -> Node | None:
        path = self.paths.node(kind, key)
        if watch:
            self._armed.add(path)
        return await self.nodes.read(path, watch=watch)

    # --- changes ---------------------------------------------------------------------------------------------------

    async def create(self, kind: Kind, key: str, value: bytes) -> Version | None:
        if kind not in GUARDED:
            _check_size(kind, key, value)
            try:
                stat = await self._creates.create(key, value)
            finally:
                self._report(kind, key)
            return None if stat is None else version_of(stat)
        with self._reporting(kind, key):
            async with self.nodes.operation(name_of(kind, key)) as operation:
                stat = await self._create_guarded(operation, kind, key, value)
        return None if stat is None else version_of(stat)

    async def _create_guarded(self, operation: Operation, kind: Kind, key: str, value: bytes) -> Stat | None:
        path = self.paths.node(kind, key)
        stored = Guarded(f"guard-{self._rng.getrandbits(64):016x}", self._change_token(), value)
        data = encode_guarded(stored)
        _check_size(kind, key, data)
        acl = self.nodes.acl

        async def settle() -> Answer | None:
            node = await self.nodes.read(path)
            if node is None:
                return None
            if decode_guarded(node.value, name_of(kind, key)).guard != stored.guard:
                return Answer(NODE_EXISTS)
            return Answer(OK, node.stat._replace(version=0))

        requests = [create(path, data, acl), create(f"{path}/{stored.guard}", b"", acl)]
        made = await self.nodes.transact(operation, requests, settle, value_bytes=len(data))
        self.nodes.expect(made, path, NODE_EXISTS)
        return made.value if made.code == OK else None

    async def compare_and_set(self, kind: Kind, key: str, value: bytes, expected: Version) -> Version | None:
        with self._reporting(kind, key):
            async with self.nodes.operation(name_of(kind, key)) as operation:
                if kind in GUARDED:
                    stat = await self._set_guarded(operation, kind, key, value, expected)
                else:
                    stat = await self._set_ledger(operation, key, value, expected)
        return None if stat is None else version_of(stat)

    async def compare_and_set_many(
        self, kind: Kind, changes: Sequence[tuple[str, bytes, Version]]
    ) -> list[Version | None]:
        if kind in GUARDED:
            return await super().compare_and_set_many(kind, changes)
        for key, value, _ in changes:
            _check_size(kind, key, value)
        try:
            return await change_ledgers(self.nodes, self.paths, changes)
        finally:
            for key, _, _ in changes:
                self._report(kind, key)

    async def _set_ledger(self, operation: Operation, key: str, value: bytes, expected: Version) -> Stat | None:
        path = self.paths.node(Kind.LEDGER, key)
        created, version = split_version(expected)
        _check_size(Kind.LEDGER, key, value)

        async def settle() -> Answer | None:
            node = await self.nodes.read(path)
            if node is None or node.stat.created != created:
                return Answer(NO_NODE)
            if node.stat.version == version:
                return None
            # If it was changed again since, the answer is a conflict in any case: a client that changes a ledger
            # decides on the metadata that it then finds.
            return Answer(OK, node.stat) if node.value == value else Answer(BAD_VERSION)

        request = set_value(path, value, version)
        changed = await self.nodes.change(operation, request, settle, value_bytes=len(value))
        self.nodes.expect(changed, path, BAD_VERSION, NO_NODE)
        return changed.value if changed.code == OK else None

    async def _set_guarded(
        self, operation: Operation, kind: Kind, key: str, value: bytes, expected: Version
    ) -> Stat | None:
        path, what = self.paths.node(kind, key), name_of(kind, key)
        created, version = split_version(expected)
        present = await self.nodes.read(path)
        if present is None or version_of(present.stat) != expected:
            return None
        stored = Guarded(decode_guarded(present.value, what).guard, self._change_token(), value)
        data = encode_guarded(stored)
        _check_size(kind, key, data)

        async def settle() -> Answer | None:
            node = await self.nodes.read(path)
            if node is not None and version_of(node.stat) == expected:
                return None
            if node is not None and decode_guarded(node.value, what).change == stored.change:
                return Answer(OK, node.stat)
            if node is not None and node.stat == Stat(created, version + 1, 0):
                return Answer(BAD_VERSION)
            raise MetadataUnavailableError(
                f"{what}: ZooKeeper's answer was lost, and the node has been changed again since"
            )

        requests = [set_value(path, data, version), check(f"{path}/{stored.guard}", ANY_VERSION)]
        changed = await self.nodes.transact(operation, requests, settle, value_bytes=len(data))
        self.nodes.expect(changed, path, BAD_VERSION, NO_NODE)
        return changed.value if changed.code == OK else None

    async def delete(self, kind: Kind, key: str, expected: Version | None) -> bool:
        with self._reporting(kind, key):
            async with self.nodes.operation(name_of(kind, key)) as operation:
                while True:
                    deleted = await self._delete(operation, kind, key, expected)
                    if deleted is not None:
                        return deleted

    async def _delete(self, operation: Operation, kind: Kind, key: str, expected: Version | None) -> bool | None:
        """Whether it was deleted; None when it was changed meanwhile although no version was expected: try again."""
        path = self.paths.node(kind, key)
        requests: list[Request] = []
        version = ANY_VERSION if expected is None else split_version(expected)[1]
        created = None if expected is None else split_version(expected)[0]
        if kind in GUARDED:
            present = await self.nodes.read(path)
            if present is None or expected not in {None, version_of(present.stat)}:
                return False
            created = present.stat.created
            guard = decode_guarded(present.value, name_of(kind, key)).guard
            requests.append(delete(f"{path}/{guard}", ANY_VERSION))
        requests.append(delete(path, version))

        async def settle() -> Answer | None:
            stat = await self.nodes.stat(path)
            if stat is None or created not in {None, stat.created}:
                return Answer(OK)  # the node that was to be deleted no longer exists
            return None if version in {ANY_VERSION, stat.version} else Answer(BAD_VERSION)

        answer = await self.nodes.transact(operation, requests, settle, main=len(requests) - 1)
        self.nodes.expect(answer, path, NO_NODE, BAD_VERSION)
        if answer.code != OK and expected is None and kind in GUARDED:
            return None
        return answer.code == OK

    def _change_token(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"

    # --- sessions --------------------------------------------------------------------------------------------------

    async def begin_session(self, session: str, lease_seconds: float) -> None:
        await self._leases.begin(session, lease_seconds)

    async def renew_session(self, session: str, lease_seconds: float) -> set[tuple[Kind, str]] | None:
        return await self._leases.renew(session)

    async def end_session(self, session: str) -> None:
        await self._leases.end(session)

    async def create_in_session(
        self,
        kind: Kind,
        key: str,
        value: bytes,
        session: str,
        *,
        take_over: bool,
        unchanged: Unchanged | None = None,
    ) -> Version | None:
        with self._reporting(kind, key):
            return await self._leases.create(kind, key, value, session, take_over=take_over, unchanged=unchanged)

    async def set_in_session(self, kind: Kind, key: str, value: bytes, session: str) -> Version | None:
        with self._reporting(kind, key):
            return await self._leases.set(kind, key, value, session)

    async def delete_in_session(self, kind: Kind, key: str, session: str) -> bool:
        with self._reporting(kind, key):
            return await self._leases.delete(kind, key, session)

    # --- shared ----------------------------------------------------------------------------------------------------

    def _report(self, kind: Kind | None, key: str | None) -> None:
        if self._listener is not None:
            self._listener(kind, key)

    @contextlib.contextmanager
    def _reporting(self, kind: Kind, key: str) -> Iterator[None]:
        # Also when the caller was cancelled: the change may still be made.
        try:
            yield
        finally:
            self._report(kind, key)


def _record(kind: Kind, key: str, node: Node) -> Record:
    value = decode_guarded(node.value, name_of(kind, key)).value if kind in GUARDED else node.value
    return Record(key, value, version_of(node.stat))


def _check_size(kind: Kind, key: str, data: bytes) -> None:
    if len(data) > VALUE_BYTES_MAX:
        remedy = "; it has too many fragments or too much custom metadata" if kind is Kind.LEDGER else ""
        raise InvalidArgumentError(
            f"{name_of(kind, key)}: {len(data)} bytes exceed the {VALUE_BYTES_MAX} that ZooKeeper stores in one "
            f"node{remedy}"
        )
