"""The simulated metadata service: the server of the memory store, behind a link that can fail.

Every process has its own handle. A request travels to the server and back; either way can be blocked or slow, so a
change may have been made although its answer is lost. The guarantees of a driver (``octavo.metadata.store.driver``)
hold: a lost answer is reported as :class:`MetadataUnavailableError`; reads of ledgers, cookies and documents are not
stale. The list of bookies is a hint (rule M2), so it may be stale here. Watch events may be late, or lost and made up
for later.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from octavo.metadata.memory import MemoryServer
from octavo.metadata.store.driver import Kind, Listener, Record, RecordStore, Unchanged
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version
from octavo.protocol.errors import MetadataUnavailableError
from octavo.protocol.ids import LedgerId
from simulation.engine.loop import Process, SimulationLoop
from simulation.engine.network import Network
from simulation.engine.trace import Trace

ADDRESS = "metadata"

CLOCK_AHEAD_SECONDS = 500
"""How far the service's clock is ahead of the beginning of all clocks. Those of machines are up to 1000 s ahead: half
of them are behind the service's."""

REQUEST_TIMEOUT_SECONDS = 2.0
"""Time after which a handle fails a request that has no answer."""


@dataclass(slots=True)
class MetadataFaults:
    """Faults that are active now. Chances per request, from 0 to 1."""

    down: bool = False
    """Whether the service executes and answers nothing."""
    lose_answer_chance: float = 0.0
    """Chance that a request is executed and its answer is lost."""
    lose_request_chance: float = 0.0
    slow_change_seconds: float = 0.0
    """Longest additional delay before a change is made. (In an ensemble of servers only changes need agreement.)"""
    stale_bookies_chance: float = 0.0
    """Chance that a list of bookies is an earlier one."""
    list_nothing_chance: float = 0.0
    """Chance that a list of ledgers is empty, like that of a server that has lost its data."""
    late_watch_seconds: float = 0.0
    """Longest additional delay of a watch event."""
    lose_watch_chance: float = 0.0
    """Chance that a watch event is lost; the handle notices later and reads everything again."""


@dataclass(frozen=True, slots=True)
class MetadataCopy:
    """A backup of the metadata: everything but sessions and what ends with them."""

    records: dict[Kind, dict[str, bytes]]
    ledger_ids_stop: int


class MetadataService:
    """The metadata servers, as a single service."""

    def __init__(
        self, loop: SimulationLoop, network: Network, rng: random.Random, trace: Trace, *, epoch: datetime
    ) -> None:
        """``epoch``: where all clocks begin."""
        self.epoch = epoch
        self.loop = loop
        self.network = network
        self.rng = rng
        self.trace = trace
        self.clock_ahead_seconds = 0.0
        """By how much the service's clock is ahead of what it should be."""
        self.faults = MetadataFaults()
        self.slow_changes_until = 0.0
        """When the last delayed change takes effect, whether its client lives or not."""
        self.server = MemoryServer("simulated", rng=rng)
        self.asking: Process | None = None
        """The process whose request is being served."""
        self.on_ledger: Callable[[LedgerId, bytes | None], None] | None = None
        """Called with every version of every ledger's metadata; None: deleted."""
        self.on_document: Callable[[str, bytes | None], None] | None = None
        """Called with every version of every document; None: deleted."""
        self.on_registered: Callable[[str, str], None] | None = None
        """Called with the process's name and the bookie's id at every registration."""
        self.on_locked: Callable[[Process, str], None] | None = None
        """Called with the process and the lock whenever a lock is given, before the process is told."""
        self._handles: dict[SimulatedRecords, None] = {}
        self._bookies_before: deque[list[Record]] = deque(maxlen=4)
        self._bookies_now: list[Record] = []
        network.attach(loop.world, ADDRESS)
        self.server.add_listener(self._changed)

    def open(self, process: Process, *, lease_seconds: float, rng: random.Random) -> MetadataStore:
        """Open a handle for a process. To be called by its own code."""
        records = SimulatedRecords(self, process)
        process.on_death.append(lambda: self._handles.pop(records, None))
        return MetadataStore(records, lease_seconds=lease_seconds, clock=self.loop.time, rng=rng)

    def time_ms(self) -> int:
        """The time by the service's clock, in milliseconds since 1970."""
        seconds = self.epoch.timestamp() + CLOCK_AHEAD_SECONDS + self.clock_ahead_seconds + self.loop.now
        return int(seconds * 1000)

    def expire_sessions(self, chance: float) -> int:
        """Expire sessions, each with this chance, as after a loss of contact. Returns the number of sessions."""
        ended = [session for session in list(self.server.sessions) if self.rng.random() < chance]
        for session in ended:
            self.server.end_session(session)
        return len(ended)

    def forget_bookie(self, name: str) -> None:
        """Delete a bookie's cookie, as ``octavo bookies --forget`` does for one that is not registered."""
        self.server.delete(Kind.COOKIE, name, expected=None, session=None)

    def is_registered(self, name: str) -> bool:
        """Whether a bookie's lease goes on."""
        self.server.end_late_sessions()
        return name in self.server.records[Kind.BOOKIE]

    def ledger(self, ledger_id: LedgerId) -> bytes | None:
        """The stored metadata of a ledger, read directly; None if there is none."""
        record = self.server.read(Kind.LEDGER, f"{ledger_id:019d}")
        return None if record is None else record.value

    def rewrite_ledger(self, ledger_id: LedgerId) -> bool:
        """Store a ledger's metadata again, unchanged, under a new version. The next change by a client conflicts."""
        key = f"{ledger_id:019d}"
        record = self.server.read(Kind.LEDGER, key)
        if record is None:
            return False
        return self.server.compare_and_set(Kind.LEDGER, key, record.value, record.version) is not None

    def copy(self) -> MetadataCopy:
        """A backup of the metadata as they are now."""
        records = {
            kind: {key: stored.value for key, stored in stored_by_key.items() if stored.session is None}
            for kind, stored_by_key in self.server.records.items()
        }
        return MetadataCopy(records, self.server.ledger_ids_stop())

    def restore(self, copy: MetadataCopy) -> None:
        """Put a backup in the place of the metadata. No process may have a handle. No watch event is sent."""
        server = self.server
        for session in list(server.sessions):
            server.end_session(session)
        told, self.on_ledger = self.on_ledger, None
        for kind in Kind:
            for key in list(server.records[kind]):
                server.delete(kind, key, expected=None, session=None)
            for key, value in copy.records[kind].items():
                server.create(kind, key, value, None, take_over=False)
        server.next_ledger_id = copy.ledger_ids_stop
        self.on_ledger = told

    # --- handles ----------------------------------------------------------------------------------------------------

    def listen(self, handle: "SimulatedRecords") -> None:
        """Send watch events to a handle."""
        self._handles[handle] = None

    def unlisten(self, handle: "SimulatedRecords") -> None:
        """Send no more watch events to a handle."""
        self._handles.pop(handle, None)

    def request(self, process: Process, serve: Callable[[], Any], *, change: bool) -> asyncio.Future[Any]:
        """Send a request from a process. Returns the future of its answer."""
        loop, faults, draw = self.loop, self.faults, self.rng.random
        answer: asyncio.Future[Any] = loop.create_future()
        home = self.network.home(process).name
        lost = faults.down or self.network.link(home, ADDRESS).blocked
        if not lost and faults.lose_request_chance and draw() < faults.lose_request_chance:
            self.trace.count("metadata: request lost")
            lost = True
        if lost:
            self._give_up(process, answer)
        else:
            due = loop.now + self.network.delay(home, ADDRESS)
            if change and faults.slow_change_seconds:
                self.trace.count("metadata: slow change")
                due += draw() * faults.slow_change_seconds
                self.slow_changes_until = max(self.slow_changes_until, due)
            loop.call_process(loop.world, due, self._serve, process, home, serve, answer, change)
        return answer

    def _serve(
        self, process: Process, home: str, serve: Callable[[], Any], answer: asyncio.Future[Any], change: bool
    ) -> None:
        loop, faults = self.loop, self.faults
        if faults.down or self.network.link(home, ADDRESS).blocked:
            self._give_up(process, answer)
            return
        outcome: Any = None
        failure: Exception | None = None
        self.asking = process
        try:
            outcome = serve()
        except Exception as error:
            failure = error
        self.asking = None
        if faults.lose_answer_chance and self.rng.random() < faults.lose_answer_chance:
            self.trace.count("metadata: change applied, answer lost" if change else "metadata: answer lost")
            self._give_up(process, answer)
        elif self.network.link(ADDRESS, home).blocked:
            self.trace.count("metadata: change applied, answer cut off" if change else "metadata: answer cut off")
            self._give_up(process, answer)
        else:
            due = loop.now + self.network.delay(ADDRESS, home)
            loop.call_process(process, due, _settle, answer, outcome, failure)

    def _give_up(self, process: Process, answer: asyncio.Future[Any]) -> None:
        self.trace.count("metadata: unavailable")
        error = MetadataUnavailableError("the simulated metadata store does not answer")
        self.loop.call_process(process, self.loop.now + REQUEST_TIMEOUT_SECONDS, _settle, answer, None, error)

    def list_bookies(self) -> list[Record]:
        """The registered bookies, now or (by fault) at an earlier time."""
        faults = self.faults
        if faults.stale_bookies_chance and self._bookies_before and self.rng.random() < faults.stale_bookies_chance:
            self.trace.count("metadata: stale list of bookies")
            return self.rng.choice(self._bookies_before)
        return self.server.read_all(Kind.BOOKIE)

    def lists_nothing(self, kind: Kind) -> bool:
        """Whether this list is wrongly empty by fault."""
        chance = self.faults.list_nothing_chance
        if kind is not Kind.LEDGER or not chance or self.rng.random() >= chance:
            return False
        self.trace.count("metadata: empty list of ledgers")
        return True

    def _changed(self, kind: Kind | None, key: str | None) -> None:
        if kind is Kind.LEDGER and key is not None and self.on_ledger is not None:
            stored = self.server.records[Kind.LEDGER].get(key)
            self.on_ledger(LedgerId(int(key)), None if stored is None else stored.value)
        if kind is Kind.DOCUMENT and key is not None and self.on_document is not None:
            stored = self.server.records[Kind.DOCUMENT].get(key)
            self.on_document(key, None if stored is None else stored.value)
        if kind is Kind.BOOKIE:
            self._bookies_before.append(self._bookies_now)
            records = self.server.records[Kind.BOOKIE]
            self._bookies_now = [
                Record(name, records[name].value, records[name].version) for name in self.server.keys[Kind.BOOKIE]
            ]
        faults, loop, draw = self.faults, self.loop, self.rng.random
        for handle in self._handles:
            home = self.network.home(handle.process).name
            due = loop.now + self.network.delay(ADDRESS, home)
            what: tuple[Kind | None, str | None] = (kind, key)
            if self.network.link(ADDRESS, home).blocked or (
                faults.lose_watch_chance and draw() < faults.lose_watch_chance
            ):
                self.trace.count("metadata: watch lost")
                due, what = due + REQUEST_TIMEOUT_SECONDS * (1 + draw()), (None, None)
            elif faults.late_watch_seconds:
                self.trace.count("metadata: watch late")
                due += draw() * faults.late_watch_seconds
            loop.call_process(handle.process, due, handle.report, *what)


class SimulatedRecords(RecordStore):
    """One process's handle of the service."""

    def __init__(self, service: MetadataService, process: Process) -> None:
        self._service = service
        self._server = service.server
        self.process = process
        self._listener: Listener | None = None

    def report(self, kind: Kind | None, key: str | None) -> None:
        """Deliver a watch event."""
        if self._listener is not None:
            self._listener(kind, key)

    @property
    def uri(self) -> str:
        return "memory://simulated"

    def start(self, listener: Listener) -> None:
        self._listener = listener
        self._service.listen(self)

    def watching(self, active: bool) -> None:
        """Nothing to do: the service always sends watch events."""

    async def close(self) -> None:
        self._listener = None
        self._service.unlisten(self)

    async def _ask(self, serve: Callable[[], Any], *, change: bool = False) -> Any:
        return await self._service.request(self.process, serve, change=change)

    async def cluster_id(self) -> str:
        return str(await self._ask(lambda: self._server.cluster_id))

    async def time_ms(self) -> int:
        return int(await self._ask(self._service.time_ms))

    async def allocate_ledger_id(self) -> LedgerId:
        return LedgerId(await self._ask(self._server.allocate_ledger_id, change=True))

    async def is_allocated(self, ledger_id: LedgerId) -> bool:
        return ledger_id < await self.ledger_ids_stop()

    async def ledger_ids_stop(self) -> LedgerId:
        return LedgerId(await self._ask(self._server.ledger_ids_stop))

    async def confirm_absent(self, kind: Kind, keys: Sequence[str]) -> list[str]:
        absent: list[str] = await self._ask(
            lambda: [key for key in keys if self._server.read(kind, key) is None], change=True
        )
        return absent

    async def create(self, kind: Kind, key: str, value: bytes) -> Version | None:
        version: Version | None = await self._ask(
            lambda: self._server.create(kind, key, value, None, take_over=False), change=True
        )
        return version

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
        def serve() -> Version | None:
            version = self._server.create(kind, key, value, session, take_over=take_over, unchanged=unchanged)
            tell = self._service.on_registered
            if version is not None and kind is Kind.BOOKIE and tell is not None:
                tell(self.process.name, key)
            if version is not None and kind is Kind.LOCK and self._service.on_locked is not None:
                self._service.on_locked(self.process, key)
            return version

        version: Version | None = await self._ask(serve, change=True)
        return version

    async def read(self, kind: Kind, key: str) -> Record | None:
        record: Record | None = await self._ask(lambda: self._server.read(kind, key))
        return record

    async def compare_and_set(self, kind: Kind, key: str, value: bytes, expected: Version) -> Version | None:
        version: Version | None = await self._ask(
            lambda: self._server.compare_and_set(kind, key, value, expected), change=True
        )
        return version

    async def set_in_session(self, kind: Kind, key: str, value: bytes, session: str) -> Version | None:
        version: Version | None = await self._ask(
            lambda: self._server.set_in_session(kind, key, value, session), change=True
        )
        return version

    async def delete(self, kind: Kind, key: str, expected: Version | None) -> bool:
        return bool(
            await self._ask(lambda: self._server.delete(kind, key, expected=expected, session=None), change=True)
        )

    async def delete_in_session(self, kind: Kind, key: str, session: str) -> bool:
        return bool(
            await self._ask(lambda: self._server.delete(kind, key, expected=None, session=session), change=True)
        )

    async def list_keys(self, kind: Kind, *, prefix: str, after: str, limit: int) -> list[str]:
        keys: list[str] = await self._ask(lambda: self._server.list_keys(kind, prefix=prefix, after=after, limit=limit))
        return [] if keys and self._service.lists_nothing(kind) else keys

    async def read_all(self, kind: Kind) -> list[Record]:
        if kind is Kind.BOOKIE:
            records: list[Record] = await self._ask(self._service.list_bookies)
        else:
            records = await self._ask(lambda: self._server.read_all(kind))
        return records

    async def begin_session(self, session: str, lease_seconds: float) -> None:
        await self._ask(lambda: self._server.begin_session(session, lease_seconds), change=True)

    async def renew_session(self, session: str, lease_seconds: float) -> set[tuple[Kind, str]] | None:
        held: set[tuple[Kind, str]] | None = await self._ask(
            lambda: self._server.renew_session(session, lease_seconds), change=True
        )
        return held

    async def end_session(self, session: str) -> None:
        await self._ask(lambda: self._server.end_session(session), change=True)


def _settle(answer: asyncio.Future[Any], outcome: Any, failure: Exception | None) -> None:
    if answer.done():
        return
    if failure is None:
        answer.set_result(outcome)
    else:
        answer.set_exception(failure)
