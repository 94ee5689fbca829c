"""A bookie's listening side: accepts connections, holds them back when the storage is full, drains them at the end."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from octavo.bookie.server.answer_room import AnswerRoom
from octavo.bookie.server.connection import Connection
from octavo.bookie.storage.storage import Storage


@dataclass(frozen=True, slots=True)
class Identity:
    """Who answers here, as told in the hello."""

    bookie_id: str
    cluster_id: str
    boot_id: str
    software: str


@dataclass(slots=True)
class Traffic:
    """Counters since the start."""

    adds: int = 0
    entries_added: int = 0
    bytes_added: int = 0
    reads: int = 0
    entries_read: int = 0
    bytes_read: int = 0
    protocol_errors: int = 0


class BookieServer:
    """Listens, and serves the requests of every connection from one storage."""

    def __init__(
        self,
        storage: Storage,
        identity: Identity,
        *,
        answer_bytes: int,
        facts: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        """``answer_bytes`` is what answers to readers may hold in memory, all connections together. ``facts`` adds to
        what INFO tells, for what only the daemon around this server knows."""
        self.storage = storage
        self.answers = AnswerRoom(answer_bytes)
        self.identity = identity
        self.traffic = Traffic()
        self.draining = False
        self.read_only = False
        self.out_of_room = False
        """Read-only, and there is no room for recovery adds either (rule B6)."""
        self.connections: dict[Connection, None] = {}
        """In the order in which they came, as a simulated world must repeat what is done to all of them."""
        self._facts = facts or dict
        self._server: asyncio.Server | None = None
        self._started_at = 0.0
        self._room_waiter: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()

    async def start(self, host: str, port: int) -> int:
        """Listen; the port listened on. OSError when that cannot be."""
        loop = asyncio.get_running_loop()
        self._started_at = loop.time()
        self._server = await loop.create_server(partial(Connection, self), host, port, backlog=512)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self, *, drain_timeout_seconds: float) -> None:
        """Take no more connections and requests, answer those begun, then close every connection."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        if any(connection.outstanding for connection in self.connections):
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), drain_timeout_seconds)
        for connection in list(self.connections):
            connection.close()
        self.answers.close()
        if self._room_waiter is not None:
            self._room_waiter.cancel()

    def request_finished(self) -> None:
        """A connection has answered; wakes :meth:`stop` after the last one."""
        if self.draining and not any(connection.outstanding for connection in self.connections):
            self._idle.set()

    @property
    def held_back(self) -> bool:
        """Whether connections must not read their sockets because the storage has no room."""
        return self._room_waiter is not None

    def hold_back_if_full(self) -> None:
        """Stop reading every socket until the storage has room again."""
        if self._room_waiter is None and not self.storage.has_room:
            self._room_waiter = asyncio.get_running_loop().create_task(self._await_room())
            for connection in self.connections:
                connection.regulate()

    async def _await_room(self) -> None:
        try:
            await self.storage.room()
        finally:
            self._room_waiter = None
            for connection in list(self.connections):
                connection.regulate()

    async def info(self) -> dict[str, Any]:
        """The facts of INFO; docs/wire-protocol.md lists them."""
        statistics = self.storage.statistics()
        space = await self.storage.disk_space()
        traffic = self.traffic
        return {
            "state": "read-only" if self.read_only else "writable",
            "version": self.identity.software,
            "boot_id": self.identity.boot_id,
            "uptime_seconds": round(asyncio.get_running_loop().time() - self._started_at, 3),
            "total_bytes": space.total_bytes,
            "free_bytes": space.free_bytes,
            "ledgers": statistics.ledgers,
            "journal_bytes": statistics.journal_bytes,
            "cache_bytes": statistics.cache_bytes,
            "connections": len(self.connections),
            "answer_bytes": self.answers.budget.held,
            "connections_put_out": self.answers.put_out,
            "adds": traffic.adds,
            "entries_added": traffic.entries_added,
            "bytes_added": traffic.bytes_added,
            "reads": traffic.reads,
            "entries_read": traffic.entries_read,
            "bytes_read": traffic.bytes_read,
            "log_bytes": statistics.log_bytes,
            "bytes_compacted": statistics.compaction_bytes_freed,
            "entries_damaged": statistics.entries_damaged,
            "index_damage": statistics.index_damage_seen,
            "in_doubt": self.storage.doubt_stop is not None,
            **self._facts(),
        }
