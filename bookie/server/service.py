"""The things that all connections of a bookie share: the storage, its identity, counters, and the limits over all of
them.

Connections know the service, the server knows both; the service knows connections only as :class:`ServedConnection`.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import Any, Protocol

from octavo.bookie.memory.answer_memory import AnswerMemory, AnswerTiming
from octavo.bookie.memory.frame_memory import FrameMemory
from octavo.bookie.server.access import Access
from octavo.bookie.server.authority import Standing
from octavo.bookie.server.clients import Clients
from octavo.bookie.server.ledger_privacy import LedgerPrivacy
from octavo.bookie.server.limits import ClientLimits, ConnectionLimits
from octavo.bookie.server.new_ledgers import NewLedgers
from octavo.bookie.server.repair_reads import RepairReads
from octavo.bookie.server.request_counts import MeanOfLatest, RequestCounts
from octavo.bookie.storage.storage import Storage
from octavo.metrics.histogram import counts_as_text
from octavo.protocol.errors import BookieReadOnlyError
from octavo.protocol.ids import LedgerId
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.messages import Op
from octavo.security.audit import Audit
from octavo.security.strangers import Strangers

REPAIR_READ_BYTES_PER_SECOND = 64 * 1024 * 1024
"""Default rate of the reads of repairs: a fraction of what a disk gives, so that ordinary reads have the rest."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The facts about itself that the bookie sends in the hello."""

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
    connections_refused: int = 0


@dataclass(slots=True)
class TlsFacts:
    """The facts about TLS that the bookie shows."""

    mode: str = "off"
    expires_at: Callable[[], float | None] = lambda: None
    """When the certificate expires, in seconds since 1970; None: TLS is off."""
    handshakes: Counter[str] = field(default_factory=Counter)
    """By how they ended."""


class ServedConnection(Protocol):
    """A connection as the service sees it."""

    @property
    def outstanding(self) -> int:
        """Requests without an answer yet."""

    @property
    def long_polls(self) -> int:
        """Long polls that wait for a ledger to grow."""

    @property
    def subscriptions(self) -> int:
        """Subscriptions of the client to ledgers."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the client has not taken yet."""

    @property
    def peer(self) -> str:
        """``HOST:PORT`` of the client."""

    @property
    def uses_tls(self) -> bool:
        """Whether the client speaks TLS."""

    @property
    def principal(self) -> str | None:
        """The principal that the client has proved to be; None while that is not known, or not asked for."""

    def regulate(self) -> None:
        """Read the socket, or stop reading it, as the limits say now."""

    def sever(self) -> None:
        """Close at once: nothing more is served or answered."""

    def close(self) -> None:
        """Send what is queued, then close."""


class BookieService:
    """See the module."""

    def __init__(
        self,
        storage: Storage,
        identity: Identity,
        *,
        revive: Callable[[LedgerId], Awaitable[bool]],
        answer_bytes: int,
        privacy: LedgerPrivacy,
        access: Access | None = None,
        audit: Audit | None = None,
        new_ledgers: NewLedgers | None = None,
        answer_timing: AnswerTiming | None = None,
        limits: ConnectionLimits | None = None,
        client_limits: ClientLimits | None = None,
        repair_read_bytes_per_second: int = REPAIR_READ_BYTES_PER_SECOND,
        wall_clock: Callable[[], float] | None = None,
        clock: Callable[[], float] | None = None,
        standing: Standing | None = None,
    ) -> None:
        """``revive`` tells whether a deleted ledger was found alive. ``answer_bytes`` bounds the memory of answers to
        readers, all connections together. ``access`` decides which clients are served; None: all are.
        ``new_ledgers`` verifies the keys of ledgers that are new here; None: they are not verified.
        ``privacy`` learns whether ledgers are private where that may have been lost.
        ``wall_clock`` gives the time of day for INFO, in seconds since 1970;
        ``clock`` seconds for the times of requests, by default the event loop's. ``standing`` uses the same clock;
        None: the bookie registers nowhere."""
        self.standing = standing = standing or Standing.always()
        storage.reader.may_deny = standing.may_deny
        self._wall_clock = wall_clock
        self.storage = storage
        self.access = access
        self.audit = audit or Audit()
        self.new_ledgers = new_ledgers
        self.privacy = privacy
        self.tls = TlsFacts()
        self.revive = revive
        self.answers = AnswerMemory(answer_bytes, answer_timing)
        self.limits = limits = limits or ConnectionLimits()
        self.frames = FrameMemory(limits.unfinished_frame_bytes, timeout_seconds=limits.frame_timeout_seconds)
        self.clients = Clients(client_limits)
        self.strangers = Strangers(limits.connections_max)
        storage.writer.before_new_ledger = self.clients.charge_new_ledger
        self.identity = identity
        self.traffic = Traffic()
        self.requests = RequestCounts(clock or asyncio.get_running_loop().time)
        self.repair_reads = RepairReads(repair_read_bytes_per_second, self.mean_add_delay())
        self.draining = False
        self.read_only = False
        """For lack of disk space, or because an operator wants it. Derived; checked for every add."""
        self.operator_read_only: str | None = None
        """The reason for which an operator has made the bookie read-only; None: no operator has."""
        self.disks_read_only = False
        self.out_of_space = False
        """Read-only, and there is no disk space for recovery adds either (rule B6)."""
        self.disk_space_low = False
        """A disk has less free space than that of which the bookie warns."""
        self.disk_shortage: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Bytes that are free on a short disk, and that are wanted there; 0 and 0 unless disks make it read-only."""
        self.connections: dict[ServedConnection, None] = {}
        """In the order in which they came, as a simulated world must repeat what is done to all of them."""
        self.avoid_placement = False
        """Registered as read-only although adds are taken: the bookie is being drained."""
        self.companion_facts: Mapping[str, Any] = {}
        """What the bookie's companion adds to INFO."""
        self._started_at = asyncio.get_running_loop().time()
        self._room_waiter: asyncio.Task[None] | None = None
        self.held_back = False
        """Whether no connection may read its socket because the storage has no memory for more."""
        self._held_back_at = 0.0
        self._held_back_seconds = 0.0
        self._idle = asyncio.Event()

    def mean_add_delay(self) -> MeanOfLatest:
        """How long adds take, for one caller: each call tells the mean of those answered since its last one."""
        return MeanOfLatest(self.requests.add_seconds)

    def check_space(self) -> None:
        """Raise :class:`BookieReadOnlyError` unless the disks have room for new entries (rule B6)."""
        if self.read_only:
            raise BookieReadOnlyError(f"bookie {self.identity.bookie_id} is read-only", may_have_happened=False)

    # --- read-only ----------------------------------------------------------------------------------------------

    def note_disks(self, *, low: bool, read_only: bool, out_of_space: bool) -> None:
        """The disks allow more or less than before."""
        self.disk_space_low, self.disks_read_only, self.out_of_space = low, read_only, out_of_space
        self._derive_read_only()

    def switch_read_only(self, reason: str | None) -> None:
        """An operator makes the bookie read-only, or takes that back (None). The disks never undo it."""
        self.operator_read_only = reason
        self._derive_read_only()

    def _derive_read_only(self) -> None:
        self.read_only = self.disks_read_only or self.operator_read_only is not None

    # --- back-pressure ----------------------------------------------------------------------------------------

    @property
    def held_back_seconds(self) -> float:
        """For how long no socket has been read since the start, all such times together."""
        now = asyncio.get_running_loop().time()
        return self._held_back_seconds + (now - self._held_back_at if self.held_back else 0.0)

    def hold_back_if_full(self) -> None:
        """Stop reading every socket until the storage has room again."""
        if not self.held_back and not self.storage.admission.has_room:
            self.held_back = True
            loop = asyncio.get_running_loop()
            self._held_back_at = loop.time()
            self._room_waiter = loop.create_task(self._wait_for_room())
            for connection in self.connections:
                connection.regulate()

    async def _wait_for_room(self) -> None:
        try:
            await self.storage.admission.wait_for_room()
        finally:
            self.held_back, self._room_waiter = False, None
            self._held_back_seconds += asyncio.get_running_loop().time() - self._held_back_at
            for connection in list(self.connections):
                connection.regulate()

    # --- draining ---------------------------------------------------------------------------------------------

    async def drain(self, timeout_seconds: float) -> None:
        """Refuse new requests, wait until those begun are answered or the time is over, then close all connections."""
        self.draining = True
        for connection in list(self.connections):
            connection.regulate()
        if self._any_outstanding():
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), timeout_seconds)
        for connection in list(self.connections):
            connection.close()
        self.answers.close()
        self.frames.close()
        self.clients.close()
        if self._room_waiter is not None:
            self._room_waiter.cancel()

    def request_finished(self) -> None:
        """A connection has answered a request or is gone; ends the wait of :meth:`drain` after the last one."""
        if self.draining and not self._any_outstanding():
            self._idle.set()

    def _any_outstanding(self) -> bool:
        return any(connection.outstanding for connection in self.connections)

    # --- facts ------------------------------------------------------------------------------------------------

    async def info(self) -> dict[str, Any]:
        """The facts of INFO; docs/wire-protocol.md lists them."""
        statistics = self.storage.statistics()
        space = await self.storage.space.largest()
        traffic = self.traffic
        short_free_bytes, short_wanted_bytes = self.disk_shortage()
        return {
            "state": "read-only" if self.read_only else "writable",
            "version": self.identity.software,
            "boot_id": self.identity.boot_id,
            "uptime_seconds": round(asyncio.get_running_loop().time() - self._started_at, 3),
            "total_bytes": space.total_bytes,
            "free_bytes": space.free_bytes,
            "disk_space_low": self.disk_space_low,
            "disk_short_free_bytes": short_free_bytes,
            "disk_short_wanted_bytes": short_wanted_bytes,
            "ledgers": statistics.ledgers,
            "journal_bytes": statistics.journal_bytes,
            "cache_bytes": statistics.cache_bytes,
            "connections": len(self.connections),
            "answer_bytes": self.answers.budget.held,
            "connections_evicted": self.answers.connections_evicted,
            "adds": traffic.adds,
            "entries_added": traffic.entries_added,
            "bytes_added": traffic.bytes_added,
            "reads": traffic.reads,
            "entries_read": traffic.entries_read,
            "bytes_read": traffic.bytes_read,
            "add_seconds": counts_as_text(self.requests.seconds[Op.ADD].counts),
            "read_seconds": counts_as_text(self.requests.seconds[Op.READ].counts),
            "journal_sync_seconds": counts_as_text(statistics.journal.sync_seconds.counts),
            "log_bytes": statistics.log_bytes,
            "bytes_compacted": statistics.compaction_bytes_freed,
            "entries_damaged": statistics.entries_damaged,
            "index_damage": statistics.index_damage_seen,
            "repair_reads": self.repair_reads.reads,
            "repair_bytes_read": self.repair_reads.bytes_read,
            "in_doubt": self.storage.doubt is not None,
            "unsure_ledgers": 0 if self.storage.doubt is None else self.storage.doubt.unsure_ledgers,
            "doubt_floor": self.storage.doubted_ids_stop or 0,
            "tls": self.tls.mode,
            "certificate_expires_at": self.tls.expires_at() or 0,
            **({} if self._wall_clock is None else {"clock_seconds": round(self._wall_clock(), 3)}),
            **self.companion_facts,
        }
