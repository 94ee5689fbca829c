"""Keeps a reader's view of an open ledger current: watches the metadata, and polls bookies for a higher LAC.

Which bookies are polled
========================

A bookie learns the writer's LAC from the entries that it stores, and from the explicit LAC that an idle writer sends.
``E - Qw + 1`` bookies include a member of every write set, so one of them knows the highest LAC that any bookie
knows. One more is polled, so that a slow or dead bookie delays nothing: ``min(E, E - Qw + 2)`` *pollers*, each with a
different bookie of the last fragment, the preferred ones first. A bookie that fails is blamed, and its poller takes
another one.

A bookie holds a poll for up to ``long_poll_seconds``. Polls are sent only while a caller waits for entries: an idle
follower costs a few requests a minute, a reader without a follower none.

Entries in the answers
======================

If every bookie stores every entry, the bookie of the first poller sends the next entries with its answer, so that
following costs one round trip. In a striped ledger, the bookie of every poller sends the first few entries that it has:
one of them has the next entry, and further entries are read in the ordinary way. An answer with the next entry wakes
the waiting callers at once. An answer with a higher LAC but without the entry wakes them after a short time, in which
another answer may bring the entry.

Metadata
========

The metadata are watched. They are also read again whenever a poll ends without a higher LAC (rule R5): a watch may be
late, and a bookie that is fenced, refuses, or receives nothing for long may no longer be in the writer's ensemble.
Polls go to the ensemble of the last fragment as soon as the client learns of that fragment.

A bookie that answers early without a higher LAC (the ledger is fenced) is polled again after a growing pause.
"""

import asyncio
from collections.abc import Callable, Coroutine

from octavo.client.read.lac import LacAsker, Polled
from octavo.client.read.ledger_view import LedgerView
from octavo.client.read.range_read import ReplicaReader
from octavo.client.read.source import TermSource
from octavo.metadata.ledger.term import StoredFragment, Term
from octavo.metadata.own_tasks import tasks_cancelled, when_cancelled
from octavo.metadata.store.values import Versioned
from octavo.protocol.entries import Entry
from octavo.protocol.errors import (
    ClientClosedError,
    InternalError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    OctavoError,
)
from octavo.protocol.ids import BookieId
from octavo.protocol.limits import ENTRIES_PER_FRAME_MAX
from octavo.protocol.quorums import Quorums

_PAUSE_SECONDS_MIN = 0.05
"""First pause after a poll that failed or returned no higher LAC; doubles up to the maximum."""

_PAUSE_SECONDS_MAX = 2.0
"""Longest such pause, and so the longest delay after a bookie has come back."""

_HELD_SHARE_MIN = 0.5
"""Share of the time of a poll that must pass for the client to assume that the bookie held the poll. A poll without a
higher LAC that ends earlier is followed by a pause."""

_STRIPED_ENTRIES_MAX = 8
"""Entries that each bookie of a striped ledger sends with its answer: enough for a writer that adds one entry at a
time, and little waste at high rates, where every bookie has only some of the next entries."""

ENTRY_WAIT_SECONDS = 0.002
"""Delay before waiting callers are woken after the LAC has risen without its entry, because another answer may bring
the entry: a few round trips."""


class LedgerTail:
    """See the module. One supervisor task from :meth:`start` to the ledger's close, its deletion, or :meth:`close`."""

    def __init__(
        self,
        *,
        source: TermSource,
        view: LedgerView,
        quorums: Quorums,
        replicas: ReplicaReader,
        asker: LacAsker,
        draw: Callable[[], float],
        entry_wait_seconds: float = ENTRY_WAIT_SECONDS,
    ) -> None:
        """``entry_wait_seconds``: delay before callers are woken, while another answer may bring the entry."""
        self._source = source
        self._entry_wait_seconds = entry_wait_seconds
        self._view = view
        self._quorums = quorums
        self._replicas = replicas
        self._asker = asker
        self._draw = draw
        self._loop = asyncio.get_running_loop()
        self._supervisor: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None
        self._pollers: list[asyncio.Task[None]] = []
        self._polled: dict[object, BookieId] = {}
        self._fragment: StoredFragment = view.term.last_fragment
        self._waiters: set[asyncio.Future[None]] = set()
        self._has_waiters = asyncio.Event()
        self._should_read_again = asyncio.Event()
        self._ended = asyncio.Event()
        self._notify_timer: asyncio.TimerHandle | None = None
        self._polled_entries: list[Entry] = []
        self._failure: OctavoError | None = None

    # --- the interface for readers -------------------------------------------------------------------------------

    def start(self) -> None:
        """Watch and poll from now on."""
        self._supervisor = when_cancelled(self._loop.create_task(self._supervise()), self._cancelled)

    async def close(self) -> None:
        """Stop. Waiting callers get :class:`ClientClosedError`."""
        self._end(ClientClosedError(f"the reader of ledger {self._view.term.ledger_id} is closed"))
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])

    def adopt(self, term: Versioned[Term]) -> bool:
        """Take over metadata that were read, and return whether they are newer. Every read of the metadata goes through
        here, so that the polls go to the new ensemble."""
        if not self._view.on_metadata(*term):
            return False
        moved = self._view.term.bookies != self._fragment.bookies
        if self._view.closed:
            self._ended.set()
        elif moved and self._group is not None and not self._ended.is_set():
            # The old ensemble learns nothing more (rule R5).
            self._stop_pollers()
            self._start_pollers(self._group)
        self.notify()
        return True

    def notify(self) -> None:
        """Wake the waiting callers, because the view has changed."""
        if self._notify_timer is not None:
            self._notify_timer.cancel()
            self._notify_timer = None
        waiters, self._waiters = self._waiters, set()
        self._has_waiters.clear()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    @property
    def waiting(self) -> int:
        """Callers that wait for a change of the view."""
        return len(self._waiters)

    async def wait_change(self) -> None:
        """Return when the view has changed. Raises the error that ended the tail: it was closed, the ledger was
        deleted, or its metadata cannot be read. Look at the view before every call."""
        if self._failure is not None:
            raise type(self._failure)(self._failure.message)
        waiter = self._loop.create_future()
        self._waiters.add(waiter)
        self._has_waiters.set()
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
            if not self._waiters:
                self._has_waiters.clear()
        if self._failure is not None:
            raise type(self._failure)(self._failure.message)

    def entries_from_last_poll(self, first: int, last: int) -> list[Entry]:
        """Entries ``first..last`` or the first few of them, if the latest poll returned them."""
        entries = self._polled_entries
        if not entries or not entries[0].entry_id <= first <= entries[-1].entry_id:
            return []
        start = entries[0].entry_id
        return entries[first - start : last + 1 - start]

    # --- the supervisor ------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._start_pollers(group)
                others = [
                    group.create_task(self._end_tail_on_failure(self._watch())),
                    group.create_task(self._end_tail_on_failure(self._read_again_when_asked())),
                ]
                await self._ended.wait()
                for task in others:
                    task.cancel()
                self._stop_pollers()
        finally:
            if self._notify_timer is not None:
                self._notify_timer.cancel()

    async def _end_tail_on_failure(self, work: Coroutine[None, None, None]) -> None:
        """Run work that does not end by itself. If it fails, the tail ends and waiting callers get the error."""
        try:
            await work
        except OctavoError as error:
            self._end(error)
        except Exception as error:
            failure = InternalError(f"following ledger {self._view.term.ledger_id} failed: {error!r}")
            failure.__cause__ = error
            self._end(failure)

    def _cancelled(self) -> None:
        """By :meth:`close`, which has told the callers; or by the program."""
        if self._failure is None:
            self._end(tasks_cancelled(f"following ledger {self._view.term.ledger_id}"))

    def _end(self, error: OctavoError) -> None:
        if self._failure is None:
            self._failure = error
        self._ended.set()
        self.notify()

    def _start_pollers(self, group: asyncio.TaskGroup) -> None:
        self._fragment = self._view.term.last_fragment
        size, write_quorum = self._quorums.ensemble_size, self._quorums.write_quorum
        count = min(size, size - write_quorum + 2)
        self._pollers = [
            group.create_task(self._end_tail_on_failure(self._run_poller(poller))) for poller in range(count)
        ]

    def _stop_pollers(self) -> None:
        for task in self._pollers:
            task.cancel()
        self._pollers = []

    async def _watch(self) -> None:
        """Follow the metadata until cancelled. Raises :class:`NoSuchLedgerError` when the ledger is deleted."""
        ledger_id = self._view.term.ledger_id
        async with self._source.watch_term() as watch:
            async for versioned in watch:
                if versioned is None:
                    raise NoSuchLedgerError(f"ledger {ledger_id} has been deleted")
                self.adopt(versioned)

    async def _read_again_when_asked(self) -> None:
        """Read the metadata each time a poll has given a reason to. Raises as :meth:`_watch`."""
        while True:
            await self._should_read_again.wait()
            self._should_read_again.clear()
            try:
                self.adopt(await self._source.read_term())
            except MetadataUnavailableError:
                # The watch goes on trying, and so does the next poll.
                continue

    # --- one poller ----------------------------------------------------------------------------------------------

    async def _run_poller(self, poller: int) -> None:
        fruitless_polls = 0
        while True:
            await self._has_waiters.wait()
            if fruitless_polls:
                await asyncio.sleep(self._pause_seconds(fruitless_polls))
                await self._has_waiters.wait()
            fruitless_polls = 0 if await self._poll(poller) else fruitless_polls + 1

    async def _poll(self, poller: int) -> bool:
        """Send one long poll. Return whether it returned a higher LAC or was held to its end; otherwise the next one
        follows after a pause."""
        bookie_id = self._choose()
        poll = object()
        self._polled[poll] = bookie_id
        wait_seconds = self._replicas.options.long_poll_seconds
        started_at = self._loop.time()
        try:
            polled = await self._asker.poll(
                bookie_id,
                above=self._view.readable_end,
                wait_seconds=wait_seconds,
                entries_max=self._entries_wanted(poller),
            )
        except ClientClosedError:
            raise
        except OctavoError:
            self._replicas.blame.blame(bookie_id)
            self._should_read_again.set()
            return False
        finally:
            del self._polled[poll]
        self._replicas.entries_by_bookie[bookie_id] += len(polled.entries)
        if polled.lac_advanced:
            self._on_answer(polled)
            return True
        self._should_read_again.set()
        return self._loop.time() - started_at >= wait_seconds * _HELD_SHARE_MIN

    def _entries_wanted(self, poller: int) -> int:
        if self._quorums.striped:
            return _STRIPED_ENTRIES_MAX
        return ENTRIES_PER_FRAME_MAX if poller == 0 else 0

    def _on_answer(self, polled: Polled) -> None:
        """Wake the waiting callers: now, or after a time in which another bookie may send the entry."""
        if polled.entries:
            self._polled_entries = polled.entries
        if polled.entries or not self._polled:
            self.notify()
        elif self._notify_timer is None and self._waiters:
            self._notify_timer = self._loop.call_later(self._entry_wait_seconds, self.notify)

    def _choose(self) -> BookieId:
        """The preferred bookie that no other poller asks."""
        bookies = self._view.term.bookies
        taken = set(self._polled.values())
        order = [bookies[position] for position in self._replicas.preference(bookies)]
        return next((bookie_id for bookie_id in order if bookie_id not in taken), order[0])

    def _pause_seconds(self, fruitless_polls: int) -> float:
        longest = min(_PAUSE_SECONDS_MAX, _PAUSE_SECONDS_MIN * 2.0 ** min(fruitless_polls - 1, 16))
        return longest * (0.5 + self._draw() / 2)
