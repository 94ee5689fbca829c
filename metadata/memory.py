"""``memory://[name]``: metadata in the memory of this process, for tests and simulation.

A :class:`MemoryServer` takes the place of the servers that a real driver talks to; any number of handles share one. It
is deterministic: time comes from the event loop (or ``clock``), names come from ``rng``, and every operation yields to
the event loop once before it takes effect, as with any real store.
"""

import asyncio
import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final
from weakref import WeakValueDictionary

from octavo.metadata.store.driver import SESSION_KINDS, Kind, Listener, Record, RecordStore, Unchanged
from octavo.metadata.store.leases import LEASE_SECONDS_DEFAULT
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version
from octavo.protocol.errors import MetadataUnavailableError
from octavo.protocol.ids import ID_MAX, LedgerId


class StoredRecord:
    """A record as stored. Immutable: a change stores another."""

    __slots__ = ("session", "value", "version")

    def __init__(self, value: bytes, version: Version, session: str | None) -> None:
        self.value = value
        self.version = version
        self.session = session


class MemoryServer:
    """The state behind all handles of one ``memory://`` store. Its methods are synchronous and take effect at once.

    ``clock`` gives seconds, by default the running loop's time. A test that passes its own clock calls
    :meth:`end_late_sessions` after moving it. ``rng`` generates the cluster's id.
    """

    def __init__(
        self,
        name: str = "",
        *,
        clock: Callable[[], float] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.name = name
        self.cluster_id = f"{(rng or random.SystemRandom()).getrandbits(128):032x}"
        self._clock = clock
        self.records: dict[Kind, dict[str, StoredRecord]] = {kind: {} for kind in Kind}
        """What is stored, for worlds that judge it or restore an older state."""
        self.keys: dict[Kind, list[str]] = {kind: [] for kind in Kind}
        """The keys of :attr:`records`, ascending."""
        self._versions = 0
        self.next_ledger_id = 0
        """The id that is allocated next."""
        self.sessions: dict[str, float] = {}
        """When each session ends unless it is renewed."""
        self._listeners: dict[int, Listener] = {}
        self._listeners_added = 0
        self._timer: asyncio.TimerHandle | None = None

    def check_invariants(self) -> None:
        """Assert that keys are sorted and that every record in a session belongs to one that has not ended."""
        for kind, records in self.records.items():
            assert self.keys[kind] == sorted(records), f"keys of {kind} are not sorted"
            for key, stored in records.items():
                assert stored.session is None or stored.session in self.sessions, f"{key} outlives its session"
                assert 0 < stored.version <= self._versions, f"{key} has a version from the future"

    def now(self) -> float:
        """The time by which leases are measured, in seconds."""
        return asyncio.get_running_loop().time() if self._clock is None else self._clock()

    def time_ms(self) -> int:
        """The time of day, in milliseconds since 1970."""
        return int(datetime.now(UTC).timestamp() * 1000)

    def add_listener(self, listener: Listener) -> int:
        """Report every change to ``listener``; returns the number by which to remove it."""
        self._listeners_added += 1
        self._listeners[self._listeners_added] = listener
        return self._listeners_added

    def remove_listener(self, number: int) -> None:
        """Stop reporting to this listener."""
        del self._listeners[number]

    def allocate_ledger_id(self) -> LedgerId:
        if self.next_ledger_id > ID_MAX:
            raise MetadataUnavailableError("all ledger ids have been allocated", may_have_happened=False)
        self.next_ledger_id += 1
        return LedgerId(self.next_ledger_id - 1)

    def ledger_ids_stop(self) -> LedgerId:
        return LedgerId(self.next_ledger_id)

    def create(
        self,
        kind: Kind,
        key: str,
        value: bytes,
        session: str | None,
        *,
        take_over: bool,
        unchanged: Unchanged | None = None,
    ) -> Version | None:
        self.end_late_sessions()
        if session is not None and session not in self.sessions:
            return None
        if unchanged is not None:
            present = self.records[unchanged.kind].get(unchanged.key)
            if present is None or present.version != unchanged.version:
                return None
        if key in self.records[kind]:
            if not take_over:
                return None
        else:
            insort(self.keys[kind], key)
        return self._store(kind, key, value, session)

    def read(self, kind: Kind, key: str) -> Record | None:
        self.end_late_sessions()
        stored = self.records[kind].get(key)
        return None if stored is None else Record(key, stored.value, stored.version)

    def compare_and_set(self, kind: Kind, key: str, value: bytes, expected: Version) -> Version | None:
        stored = self.records[kind].get(key)
        if stored is None or stored.version != expected:
            return None
        return self._store(kind, key, value, stored.session)

    def set_in_session(self, kind: Kind, key: str, value: bytes, session: str) -> Version | None:
        stored = self.records[kind].get(key)
        if stored is None or stored.session != session or not self._is_live(session):
            return None
        return self._store(kind, key, value, session)

    def delete(self, kind: Kind, key: str, *, expected: Version | None, session: str | None) -> bool:
        stored = self.records[kind].get(key)
        if stored is None or stored.session != session or (expected is not None and stored.version != expected):
            return False
        self._forget(kind, key)
        return True

    def list_keys(self, kind: Kind, *, prefix: str, after: str, limit: int) -> list[str]:
        keys = self.keys[kind]
        start = max(bisect_right(keys, after), bisect_left(keys, prefix))
        page = []
        for key in keys[start : start + limit]:
            if not key.startswith(prefix):
                break
            page.append(key)
        return page

    def read_all(self, kind: Kind) -> list[Record]:
        self.end_late_sessions()
        records = self.records[kind]
        return [Record(key, records[key].value, records[key].version) for key in self.keys[kind]]

    def begin_session(self, session: str, lease_seconds: float) -> None:
        self.sessions[session] = self.now() + lease_seconds
        self._set_timer()

    def renew_session(self, session: str, lease_seconds: float) -> set[tuple[Kind, str]] | None:
        if not self._is_live(session):
            return None
        self.sessions[session] = self.now() + lease_seconds
        self._set_timer()
        return {
            (kind, key)
            for kind in SESSION_KINDS
            for key, stored in self.records[kind].items()
            if stored.session == session
        }

    def end_session(self, session: str) -> None:
        """End the session now: its holder closed, or a simulation lets it expire."""
        if self.sessions.pop(session, None) is None:
            return
        for kind in SESSION_KINDS:
            for key in [key for key, stored in self.records[kind].items() if stored.session == session]:
                self._forget(kind, key)
        self._set_timer()

    def end_late_sessions(self) -> None:
        """End the sessions that were not renewed in time."""
        for session in list(self.sessions):
            self._is_live(session)

    def _is_live(self, session: str) -> bool:
        ends_at = self.sessions.get(session)
        if ends_at is None:
            return False
        if self.now() >= ends_at:
            self.end_session(session)
            return False
        return True

    def _set_timer(self) -> None:
        if self._clock is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.sessions:
            self._timer = asyncio.get_running_loop().call_at(min(self.sessions.values()), self.end_late_sessions)

    def _store(self, kind: Kind, key: str, value: bytes, session: str | None) -> Version:
        self._versions += 1
        version = Version(self._versions)
        self.records[kind][key] = StoredRecord(value, version, session)
        self._report(kind, key)
        return version

    def _forget(self, kind: Kind, key: str) -> None:
        del self.records[kind][key]
        keys = self.keys[kind]
        del keys[bisect_right(keys, key) - 1]
        self._report(kind, key)

    def _report(self, kind: Kind, key: str) -> None:
        for listener in list(self._listeners.values()):
            listener(kind, key)


class MemoryRecordStore(RecordStore):
    """The access of one handle to a :class:`MemoryServer`."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._listener: int | None = None

    @property
    def uri(self) -> str:
        return f"memory://{self._server.name}"

    def start(self, listener: Listener) -> None:
        self._listener = self._server.add_listener(listener)

    def watching(self, active: bool) -> None:
        """Nothing to do: the server always reports changes."""

    async def close(self) -> None:
        assert self._listener is not None
        self._server.remove_listener(self._listener)

    async def cluster_id(self) -> str:
        return (await self._reach()).cluster_id

    async def time_ms(self) -> int:
        return (await self._reach()).time_ms()

    async def allocate_ledger_id(self) -> LedgerId:
        return (await self._reach()).allocate_ledger_id()

    async def is_allocated(self, ledger_id: LedgerId) -> bool:
        return ledger_id < await self.ledger_ids_stop()

    async def ledger_ids_stop(self) -> LedgerId:
        return (await self._reach()).ledger_ids_stop()

    async def confirm_absent(self, kind: Kind, keys: Sequence[str]) -> list[str]:
        server = await self._reach()
        return [key for key in keys if server.read(kind, key) is None]

    async def create(self, kind: Kind, key: str, value: bytes) -> Version | None:
        return (await self._reach()).create(kind, key, value, None, take_over=False)

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
        server = await self._reach()
        return server.create(kind, key, value, session, take_over=take_over, unchanged=unchanged)

    async def read(self, kind: Kind, key: str) -> Record | None:
        return (await self._reach()).read(kind, key)

    async def read_many(self, kind: Kind, keys: Sequence[str]) -> list[Record | None]:
        server = await self._reach()
        return [server.read(kind, key) for key in keys]

    async def compare_and_set(self, kind: Kind, key: str, value: bytes, expected: Version) -> Version | None:
        return (await self._reach()).compare_and_set(kind, key, value, expected)

    async def set_in_session(self, kind: Kind, key: str, value: bytes, session: str) -> Version | None:
        return (await self._reach()).set_in_session(kind, key, value, session)

    async def delete(self, kind: Kind, key: str, expected: Version | None) -> bool:
        return (await self._reach()).delete(kind, key, expected=expected, session=None)

    async def delete_in_session(self, kind: Kind, key: str, session: str) -> bool:
        return (await self._reach()).delete(kind, key, expected=None, session=session)

    async def list_keys(self, kind: Kind, *, prefix: str, after: str, limit: int) -> list[str]:
        return (await self._reach()).list_keys(kind, prefix=prefix, after=after, limit=limit)

    async def read_all(self, kind: Kind) -> list[Record]:
        return (await self._reach()).read_all(kind)

    async def begin_session(self, session: str, lease_seconds: float) -> None:
        (await self._reach()).begin_session(session, lease_seconds)

    async def renew_session(self, session: str, lease_seconds: float) -> set[tuple[Kind, str]] | None:
        return (await self._reach()).renew_session(session, lease_seconds)

    async def end_session(self, session: str) -> None:
        (await self._reach()).end_session(session)

    async def _reach(self) -> MemoryServer:
        await asyncio.sleep(0)
        return self._server


_servers: Final[WeakValueDictionary[str, MemoryServer]] = WeakValueDictionary()
"""Named stores of this process. A store lives as long as a handle on it is open."""


def memory_server(name: str) -> MemoryServer:
    """The store called ``name`` in this process, created on first use; without a name, a new store every time."""
    if not name:
        return MemoryServer()
    server = _servers.get(name)
    if server is None:
        server = _servers[name] = MemoryServer(name)
    return server


def is_memory_server(name: str) -> bool:
    """Whether this process has a store of this name open."""
    return name in _servers


def open_memory_store(
    server: MemoryServer, *, lease_seconds: float = LEASE_SECONDS_DEFAULT, rng: random.Random | None = None
) -> MetadataStore:
    """A handle on ``server``. ``rng`` generates the names of its sessions."""
    return MetadataStore(
        MemoryRecordStore(server), lease_seconds=lease_seconds, clock=server.now, rng=rng or random.SystemRandom()
    )
