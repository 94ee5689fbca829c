"""Keeps a reader's view of an open ledger current: watches the metadata, and hears what bookies tell.

Bookies are listened to by a feed (:mod:`octavo.client.read.feed`), which all readers of a client share that follow the
same term; it begins when one of them waits. What it hears goes into the view of each reader, and wakes the callers that
wait when the view says that more can be read: at once if the feed has the next entry, else after a short time, in which
another bookie may bring it.

The metadata are watched. They are also read again whenever the feed asks for it (rules R5 and V4), in a task of its own
that ends with the answer.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence

from octavo.client.read.feed import Feed
from octavo.client.read.ledger_view import LedgerView
from octavo.client.read.source import TermSource, Watching
from octavo.metadata.ledger.term import Term
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
from octavo.protocol.ids import BookieId, EntryId

ENTRY_WAIT_SECONDS = 0.002
"""Delay before waiting callers are woken after the LAC has risen without its entry, because another answer may bring
the entry: a few round trips."""


class LedgerTail:
    """See the module. From :meth:`start` to the ledger's close, its deletion, or :meth:`close`."""

    def __init__(
        self,
        *,
        source: TermSource,
        view: LedgerView,
        find_feed: Callable[[], Feed],
        count: Callable[[BookieId, int], None],
        entry_wait_seconds: float = ENTRY_WAIT_SECONDS,
    ) -> None:
        """``find_feed`` gives the feed of the term as the view has it. ``count`` is told how many entries each bookie
        has brought. ``entry_wait_seconds``: delay before callers are woken, while another answer may bring the
        entry."""
        self._count = count
        self._source = source
        self._entry_wait_seconds = entry_wait_seconds
        self._view = view
        self._find_feed = find_feed
        self._loop = asyncio.get_running_loop()
        self._feed: Feed | None = None
        """What the reader has joined, once a caller has waited."""
        self._watching: Watching | None = None
        self._reading_again: asyncio.Task[None] | None = None
        self._should_read_again = False
        self._waiters: set[asyncio.Future[None]] = set()
        self._notify_timer: asyncio.TimerHandle | None = None
        self._ended = False
        self._failure: OctavoError | None = None

    # --- the interface for readers -------------------------------------------------------------------------------

    def start(self) -> None:
        """Watch the metadata from now on."""
        self._watching = self._source.watch_term(self._saw, self._end)

    async def close(self) -> None:
        """Stop. Waiting callers get :class:`ClientClosedError`."""
        self._end(ClientClosedError(f"the reader of ledger {self._view.term.ledger_id} is closed"))
        reading = self._reading_again
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])

    def adopt(self, term: Versioned[Term]) -> bool:
        """Take over metadata that were read, and return whether they are newer. Every read of the metadata goes through
        here, so that the bookies of the new ensemble are listened to."""
        if not self._view.on_metadata(*term):
            return False
        if self._view.closed:
            self._stop()
        elif self._feed is not None:
            self._feed.adopt(term)
        self.notify()
        return True

    def notify(self) -> None:
        """Wake the waiting callers, because the view has changed."""
        if self._notify_timer is not None:
            self._notify_timer.cancel()
            self._notify_timer = None
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, set()
        if self._feed is not None:
            self._feed.wait_over(self)
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
        self._check()
        if self._has_heard_more():
            return
        waiter = self._loop.create_future()
        self._waiters.add(waiter)
        if self._feed is not None:
            self._feed.wait(self, self._view.last_add_confirmed)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
            if not self._waiters and self._feed is not None:
                self._feed.wait_over(self)
        self._check()

    def entries_that_came(self, first: int, last: int) -> list[Entry]:
        """Entries ``first..last`` or the first few of them, if they have been told."""
        return [] if self._feed is None else self._feed.entries(first, last)

    # --- as a reader of the feed ---------------------------------------------------------------------------------

    def heard(self, entries: Sequence[Entry], last_add_confirmed: EntryId | None, length: int | None) -> None:
        """As :meth:`octavo.client.read.feed.FeedReader.heard`."""
        view = self._view
        before = view.readable_end
        if not (view.on_entries(entries) if entries else view.on_last_add_confirmed(last_add_confirmed, length)):
            if self._notify_timer is None or self._feed is None or not self._feed.holds(before):
                return
            self.notify()  # the entry that was waited for has come
            return
        feed = self._feed
        if feed is None or feed.is_alone or feed.holds(before + 1):
            self.notify()
        elif self._notify_timer is None and self._waiters:
            self._notify_timer = self._loop.call_later(self._entry_wait_seconds, self.notify)

    def brought(self, bookie_id: BookieId, entries: int) -> None:
        """As :meth:`octavo.client.read.feed.FeedReader.brought`."""
        self._count(bookie_id, entries)

    def read_metadata_again(self) -> None:
        """As :meth:`octavo.client.read.feed.FeedReader.read_metadata_again`."""
        self._should_read_again = True
        if self._reading_again is None and not self._ended:
            task = self._loop.create_task(self._end_on_failure(self._read_again), name="octavo ledger metadata")
            self._reading_again = when_cancelled(task, self._cancelled)

    def feed_failed(self, error: OctavoError) -> None:
        """As :meth:`octavo.client.read.feed.FeedReader.feed_failed`."""
        self._end(error)

    # --- inside --------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(self._failure.message)

    def _has_heard_more(self) -> bool:
        """Join the feed, unless that is done; whether it knows more already."""
        if self._feed is not None or self._ended:
            return False
        feed = self._feed = self._find_feed()
        last_add_confirmed, length = feed.join(self)
        return self._view.on_last_add_confirmed(last_add_confirmed, length)

    def _saw(self, term: Versioned[Term] | None) -> None:
        """The metadata as the watch has seen them."""
        if term is None:
            raise NoSuchLedgerError(f"ledger {self._view.term.ledger_id} has been deleted")
        self.adopt(term)

    async def _read_again(self) -> None:
        """Read the metadata as often as there was a reason to. Raises what ends the watch; a store that does not answer
        is asked again by the watch, and for the next reason."""
        try:
            while self._should_read_again:
                self._should_read_again = False
                try:
                    self.adopt(await self._source.read_term())
                except MetadataUnavailableError:
                    continue
        finally:
            self._reading_again = None

    async def _end_on_failure(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """If ``work`` fails, the tail ends and waiting callers get the error."""
        try:
            await work()
        except OctavoError as error:
            self._end(error)
        except Exception as error:
            failure = InternalError(f"following ledger {self._view.term.ledger_id} failed: {error!r}")
            failure.__cause__ = error
            self._end(failure)

    def _cancelled(self) -> None:
        """By :meth:`close`, which has told the callers; because the ledger is closed; or by the program."""
        if not self._ended:
            self._end(tasks_cancelled(f"following ledger {self._view.term.ledger_id}"))

    def _end(self, error: OctavoError) -> None:
        if self._failure is None:
            self._failure = error
        self._stop()
        self.notify()

    def _stop(self) -> None:
        """Nothing more will be heard: the ledger has its end, or following has failed."""
        self._ended = True
        if self._notify_timer is not None:
            self._notify_timer.cancel()
            self._notify_timer = None
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.leave(self)
        if self._watching is not None:
            self._watching.stop()
            self._watching = None
        reading = self._reading_again
        if reading is not None and reading is not asyncio.current_task(self._loop):
            reading.cancel()
