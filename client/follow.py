"""Keeps a reader's view of a ledger that is not closed moving: watches its metadata, and polls bookies for a higher
LAC.

Who is polled
=============

A bookie learns the writer's LAC from the entries it is sent, and from the explicit LAC that goes to everybody once the
writer is idle. ``E - Qw + 1`` bookies include a member of every write set, so one of them has heard whatever any
has heard. One more is polled, so that one slow or dead bookie holds nobody up: ``min(E, E - Qw + 2)`` *slots*, each
with a bookie of the last fragment of its own, the preferred ones first. A bookie that fails is blamed, and its slot
takes another.

A poll waits at the bookie (up to ``long_poll_seconds``), and only while somebody waits here: a follower that is
idle costs some requests a minute, a reader without a follower none. If every bookie holds every entry, the first
slot's bookie sends the next entries along, so that following costs one round trip.

A bookie that answers early without news (the ledger is fenced) is asked again after a growing pause.
"""

import asyncio
from collections.abc import Callable

from octavo.client.lac import LacAsker
from octavo.client.ledger_view import LedgerView
from octavo.client.range_read import ReplicaReader
from octavo.metadata.store import MetadataStore
from octavo.protocol.entries import Entry
from octavo.protocol.errors import ClientClosedError, InternalError, NoSuchLedgerError, OctavoError
from octavo.protocol.ids import BookieId
from octavo.protocol.quorums import Quorums

_PAUSE_SECONDS_MIN = 0.05
"""First pause after a poll that failed or brought no news; doubles up to the maximum."""

_PAUSE_SECONDS_MAX = 2.0
"""Longest such pause: what a follower may lag behind a bookie that has come back."""

_EARLY = 0.5
"""A poll that ends without news before this share of its time was not held by the bookie."""


class LedgerTail:
    """See the module. One supervisor task from :meth:`start` to the ledger's close, its deletion, or :meth:`close`."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        view: LedgerView,
        quorums: Quorums,
        replicas: ReplicaReader,
        asker: LacAsker,
        draw: Callable[[], float],
    ) -> None:
        self._store = store
        self._view = view
        self._quorums = quorums
        self._replicas = replicas
        self._asker = asker
        self._draw = draw
        self._loop = asyncio.get_running_loop()
        self._supervisor: asyncio.Task[None] | None = None
        self._slots: list[asyncio.Task[None]] = []
        self._polled: dict[int, BookieId] = {}
        self._waiters: set[asyncio.Future[None]] = set()
        self._wanted = asyncio.Event()
        self._brought: list[Entry] = []
        self._failure: OctavoError | None = None

    # --- what readers do with it ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Watch and poll from now on."""
        self._supervisor = self._loop.create_task(self._supervise())

    async def close(self) -> None:
        """Stop; whoever waits gets :class:`ClientClosedError`."""
        self._fail(ClientClosedError(f"the reader of ledger {self._view.metadata.ledger_id} is closed"))
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])

    def notify(self) -> None:
        """The view has changed: let whoever waits look at it."""
        waiters, self._waiters = self._waiters, set()
        self._wanted.clear()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_change(self) -> None:
        """Return when the view has changed. Raises what ended the tail: closed, the ledger deleted, its metadata
        unreadable. Look at the view before every call."""
        if self._failure is not None:
            raise type(self._failure)(self._failure.message)
        waiter = self._loop.create_future()
        self._waiters.add(waiter)
        self._wanted.set()
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
            if not self._waiters:
                self._wanted.clear()
        if self._failure is not None:
            raise type(self._failure)(self._failure.message)

    def brought_from(self, first: int, last: int) -> list[Entry]:
        """Entries ``first..last`` or a beginning of them, if the latest poll brought them along."""
        brought = self._brought
        if not brought or not brought[0].entry_id <= first <= brought[-1].entry_id:
            return []
        start = brought[0].entry_id
        return brought[first - start : last + 1 - start]

    # --- the supervisor ------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._start_slots(group)
                await self._watch(group)
                self._stop_slots()
        except* OctavoError as errors:
            self._fail(_first(errors))
        except* Exception as errors:
            self._fail(InternalError(f"following ledger {self._view.metadata.ledger_id} failed: {errors.exceptions!r}"))

    def _fail(self, error: OctavoError) -> None:
        if self._failure is None:
            self._failure = error
        self.notify()

    def _start_slots(self, group: asyncio.TaskGroup) -> None:
        size, write_quorum = self._quorums.ensemble_size, self._quorums.write_quorum
        count = min(size, size - write_quorum + 2)
        self._slots = [group.create_task(self._run_slot(slot)) for slot in range(count)]

    def _stop_slots(self) -> None:
        for task in self._slots:
            task.cancel()
        self._slots = []
        self._polled.clear()

    async def _watch(self, group: asyncio.TaskGroup) -> None:
        """Follow the metadata until the ledger is closed. Raises :class:`NoSuchLedgerError` when it is deleted."""
        view = self._view
        async with self._store.watch_ledger(view.metadata.ledger_id) as watch:
            async for versioned in watch:
                if versioned is None:
                    raise NoSuchLedgerError(f"ledger {view.metadata.ledger_id} has been deleted")
                fragment = view.metadata.last_fragment
                if view.on_metadata(*versioned):
                    self.notify()
                if view.closed:
                    return
                if view.metadata.last_fragment != fragment:
                    # The old ensemble learns nothing more (PROTOCOL R5).
                    self._stop_slots()
                    self._start_slots(group)

    # --- one slot ------------------------------------------------------------------------------------------------

    async def _run_slot(self, slot: int) -> None:
        barren = 0
        while True:
            await self._wanted.wait()
            if barren:
                await asyncio.sleep(self._pause_seconds(barren))
                await self._wanted.wait()
            barren = 0 if await self._poll(slot) else barren + 1

    async def _poll(self, slot: int) -> bool:
        """One long poll. Gives whether it brought news or was held to its end; otherwise the next one should not
        follow at once."""
        bookie_id = self._choose(slot)
        wait_seconds = self._replicas.options.long_poll_seconds
        started_at = self._loop.time()
        self._polled[slot] = bookie_id
        # Only replicas of everything can send the next entries without holes.
        bring = slot == 0 and not self._quorums.striped
        try:
            news, entries = await self._asker.poll(
                bookie_id, above=self._view.readable_end, wait_seconds=wait_seconds, bring=bring
            )
        except ClientClosedError:
            raise
        except OctavoError:
            self._replicas.blame.blame(bookie_id)
            return False
        finally:
            self._polled.pop(slot, None)
        if entries and entries[-1].entry_id - entries[0].entry_id == len(entries) - 1:
            self._brought = entries
        return news or self._loop.time() - started_at >= wait_seconds * _EARLY

    def _choose(self, slot: int) -> BookieId:
        """The preferred bookie that no other slot polls."""
        bookies = self._view.metadata.last_fragment.bookies
        taken = {bookie_id for other, bookie_id in self._polled.items() if other != slot}
        order = [bookies[position] for position in self._replicas.preference(bookies)]
        return next((bookie_id for bookie_id in order if bookie_id not in taken), order[0])

    def _pause_seconds(self, barren: int) -> float:
        longest = min(_PAUSE_SECONDS_MAX, _PAUSE_SECONDS_MIN * 2.0 ** min(barren - 1, 16))
        return longest * (0.5 + self._draw() / 2)


def _first(errors: BaseExceptionGroup[OctavoError]) -> OctavoError:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
