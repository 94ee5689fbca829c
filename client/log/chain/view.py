"""A chain as a reader sees it: where positions are, how far the log can be read, and whether the list has changed.

Reading disturbs no leader (rule P3): ledgers are opened without recovery. Where the segment before is not known to be
closed, the next one's first position is not known, and its entries are not read yet.
"""

import asyncio
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from octavo.client.log.chain.housekeeping import read_page
from octavo.client.log.documents.chain import LogDocument, PageReference, Segment, decode_log
from octavo.client.log.documents.key_window import KeyWindow
from octavo.client.log.documents.names import list_document
from octavo.client.log.documents.reading import read_log
from octavo.client.log.documents.states import LogState
from octavo.client.log.seam.access import LedgerAccess
from octavo.client.log.seam.use import Use
from octavo.client.log.seam.view import Place as LayoutPlace
from octavo.client.log.seam.view import Reach, end_of_new
from octavo.client.read.reader import LedgerReader
from octavo.client.same_loop import check_loop
from octavo.metadata.own_tasks import failure_of
from octavo.metadata.store.values import Versioned
from octavo.protocol.errors import (
    ClientClosedError,
    LogDamagedError,
    NoSuchLedgerError,
    NoSuchLogError,
    OctavoError,
    TruncatedError,
)
from octavo.protocol.ids import LedgerId

_READERS_MAX: Final = 8
"""Ledgers that one handle keeps open for reading besides those that are being read."""

_PAGES_MAX: Final = 16
"""Pages of the list kept in memory by one handle."""


class Place(NamedTuple):
    """Where a position is, or will be."""

    segment: Segment
    first: int
    stop: int | None
    """The position after the segment's last entry; None while it is open."""

    @property
    def ledger_id(self) -> LedgerId:
        """The segment's ledger."""
        return self.segment.ledger_id

    @property
    def base(self) -> int:
        """The position of the ledger's entry 0."""
        return self.first

    @property
    def term(self) -> int:
        """Of the leader that made the segment."""
        return self.segment.term

    @property
    def made_at_ms(self) -> int:
        """When the segment was made."""
        return self.segment.created_at_ms


class ChainView:
    """See the module; :class:`~octavo.client.log.seam.view.LogView` of a chain. Of one handle.

    ``reach_of`` tells what the handle's own writer knows of a ledger: the bookies hear of an acknowledgement later
    (rule W2)."""

    def __init__(
        self,
        access: LedgerAccess,
        document: LogDocument,
        password: bytes,
        *,
        reach_of: Callable[[LedgerId], Reach | None] = lambda _: None,
    ) -> None:
        self._access = access
        self._reach_of = reach_of
        self._store = access.store
        self.document = document
        """The list, as this handle knows it."""
        self._password = password
        self.end = max(document.known_stop, document.first_position)
        """The position after the last that can be read, as this handle knows it. Never goes back, and is not below the
        first position: a truncation may have passed all that the list says about the last segment."""
        self.closed = False
        self._readers: OrderedDict[LedgerId, LedgerReader] = OrderedDict()
        """The least recently used first."""
        self._in_use: Counter[LedgerReader] = Counter()
        self._opening = asyncio.Lock()
        self._pages: OrderedDict[str, tuple[Segment, ...]] = OrderedDict()
        self._loop = asyncio.get_running_loop()
        self.layout = "chain"
        self.keys: KeyWindow | None = None
        self.changes = 0
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._watch_failure: OctavoError | None = None

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The log's name."""
        return self.document.name

    @property
    def log_id(self) -> str:
        """Unique for ever."""
        return self.document.log_id

    @property
    def first_position(self) -> int:
        """The first position that can be read."""
        return self.document.first_position

    @property
    def term(self) -> int:
        """The highest term given to a leader; 0 before the first."""
        return self.document.term

    @property
    def is_sealed(self) -> bool:
        """Never: a chain can always get another segment."""
        return False

    async def end_of_term(self, term: int) -> int | None:
        """The position after the last entry of ``term``; None while the term is not over, or not known any more."""
        return self.document.end_of_term(term)

    def sealed_bounds(self, wanted_ms: int) -> tuple[int, int]:
        """The bounds that the ends of segments give for the first entry that was sealed at this time or later."""
        low, high = self.first_position, self.end
        for page in self.document.pages:
            if page.sealed_at_ms < wanted_ms:
                low = max(low, page.stop_position)
        for segment in self.document.segments:
            stop = segment.stop_position
            if stop is not None and segment.end is not None and segment.end.entries:
                if segment.end.sealed_at_ms < wanted_ms:
                    low = max(low, stop)
                else:
                    high = min(high, stop)
                    break
        return low, high

    # --- the list -----------------------------------------------------------------------------------------------------

    async def read_metadata(self) -> None:
        """Read the list as it stands now. Raises :class:`NoSuchLogError`."""
        self.take((await read_log(self._store, self.document.name, log_id=self.document.log_id)).value)

    async def read_beginning(self) -> None:
        """As :meth:`LogView.read_beginning`: it is in the list."""
        await self.read_metadata()

    def begin_at(self, position: int) -> None:
        """As :meth:`LogView.begin_at`."""
        if position > self.document.first_position:
            self.take(replace(self.document, first_position=position))

    def take(self, document: LogDocument) -> None:
        """Note what stood in the store. It may have been read before what is known already: the beginning never goes
        back."""
        first = max(document.first_position, self.document.first_position)
        self.document = document if first == document.first_position else replace(document, first_position=first)
        self.saw_end(max(document.known_stop, first))
        self._note_change()

    def saw_end(self, end: int) -> None:
        """Everything below ``end`` can be read."""
        self.end = max(self.end, end)

    def watch(self) -> None:
        """Keep the list fresh from now on; once more if that has failed before."""
        if not self.closed and (self._watching is None or self._watching.done()):
            self._watch_failure = None
            self._watching = asyncio.get_running_loop().create_task(self._watch_list(), name="octavo log watch")
            self._watching.add_done_callback(self._watch_ended)

    async def wait_change(self, seen: int) -> None:
        """Return once the list has changed since :attr:`changes` was ``seen``. Raises why it is not watched any more:
        :class:`NoSuchLogError` when the log is deleted."""
        while True:
            self.check_open()
            if self._watch_failure is not None:
                raise self._watch_failure
            if self.changes != seen:
                return
            self._changed.clear()
            await self._changed.wait()

    def _note_change(self) -> None:
        self.changes += 1
        self._changed.set()

    async def close(self) -> None:
        """End the watch and the readers."""
        self.closed = True
        self._changed.set()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        for reader in {*self._readers.values(), *self._in_use}:
            await reader.close()
        self._readers.clear()

    def check_loop(self) -> None:
        """Raise :class:`InvalidArgumentError` in another event loop."""
        check_loop(self._loop)

    def check_open(self) -> None:
        """Raise :class:`ClientClosedError` once the handle is closed."""
        self.check_loop()
        if self.closed:
            raise ClientClosedError(f"log {self.document.name}: this handle is closed")

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """The positions that were given up and not truncated since."""
        return self.document.gaps

    def gap_at(self, position: int) -> tuple[int, int] | None:
        """The positions around this one that were given up, both inclusive; None where it was not."""
        return next((gap for gap in self.document.gaps if gap[0] <= position <= gap[1]), None)

    def check_truncated(self, position: int) -> None:
        """Raise :class:`TruncatedError` for a position before the beginning."""
        first = self.document.first_position
        if position < first:
            raise TruncatedError(
                f"log {self.document.name}: position {position} has been truncated; the log begins at {first}",
                first_position=first,
            )

    async def _watch_list(self) -> None:
        name = self.document.name
        async with self._store.watch_document(list_document(name)) as watch:
            async for found in watch:
                document = None if found is None else decode_log(found.value, name)
                if document is None or document.log_id != self.document.log_id or document.state is LogState.DELETED:
                    raise NoSuchLogError(f"log {name} has been deleted")
                self.take(document)

    def _watch_ended(self, watching: asyncio.Task[None]) -> None:
        failure = failure_of(watching, f"watching log {self.name}")
        if watching is self._watching and not self.closed:
            self._watch_failure = failure
            self._changed.set()

    # --- positions ----------------------------------------------------------------------------------------------------

    async def locate(self, position: int) -> Place | None:
        """Where ``position`` is or will be, as far as the list says; None when its segment is not listed yet."""
        document = self.document
        page = document.page_at(position)
        if page is not None:
            return _in_page(await self._page(page), position)
        segment = document.segment_at(position)
        if segment is None or segment.first_position is None:
            return None
        at, first = document.segments.index(segment), segment.first_position
        while True:
            segment = document.segments[at]
            stop = None if segment.end is None else first + segment.end.entries
            if stop is None:
                reader = await self._reader(segment.ledger_id)
                if self._is_over(reader):
                    stop = first + _entries_of(reader)
            at += 1
            if stop is None or position < stop or at == len(document.segments):
                return Place(segment, first, stop)
            # The next one's first position may not be in the list yet: it follows from the end of this one.
            first = stop

    async def learn_end(self) -> None:
        """Ask how far the newest segment can be read whose first position is known. Raises :class:`QuorumLostError`
        when no bookie of it answers."""
        place = await self.locate(max(self.end, self.document.first_position))
        while place is not None:
            if place.segment.end is not None:
                self.saw_end(place.first + place.segment.end.entries)
            else:
                async with self.using(place.segment.ledger_id) as reader:
                    if not self._is_over(reader):
                        await reader.refresh_last_add_confirmed()
                    self.saw_end(place.first + _entries_of(reader))
                    if not self._is_over(reader):
                        return
            following = await self.locate(self.end)
            if following is None or following.segment.ledger_id == place.segment.ledger_id:
                return
            place = following

    async def end_now(self, enough: int) -> int:
        """As :meth:`LogView.end_now`."""
        return (await self.find_end(enough))[0]

    async def find_end(self, enough: int) -> tuple[int, Versioned[LogDocument]]:
        """As :meth:`end_now`, and the metadata by which the end was found. What was heard of a ledger holds as long as
        it is open."""
        known = await read_log(self._store, self.document.name, log_id=self.document.log_id)
        self.take(known.value)
        anew = ChainView(self._access, known.value, self._password, reach_of=self._heard_of)
        end = await end_of_new(anew, enough)
        self.saw_end(end)
        return end, known

    def _heard_of(self, ledger_id: LedgerId) -> Reach | None:
        reach, reader = self._reach_of(ledger_id), self._readers.get(ledger_id)
        return reach if reach is not None or reader is None else Reach(_entries_of(reader), is_final=False)

    def reading(self, place: LayoutPlace) -> AbstractAsyncContextManager[LedgerReader]:
        """A reader of the segment; see :meth:`using`."""
        return self.using(place.ledger_id)

    def using(self, ledger_id: LedgerId) -> Use[LedgerReader]:
        """A reader of the ledger, which does not disturb its writer, and which other readers of this handle leave open
        until the block ends. Raises :class:`NoSuchLedgerError`, and :class:`ClientClosedError` once the client is
        being closed."""
        return Use(partial(self._take, ledger_id), partial(self._give_back, ledger_id))

    async def _take(self, ledger_id: LedgerId) -> LedgerReader:
        reader = await self._reader(ledger_id)
        self._in_use[reader] += 1
        return reader

    async def _give_back(self, ledger_id: LedgerId, reader: LedgerReader, _error: BaseException | None) -> None:
        self._in_use[reader] -= 1
        if not self._in_use[reader]:
            del self._in_use[reader]
            if self._readers.get(ledger_id) is not reader:
                await reader.close()

    async def _reader(self, ledger_id: LedgerId) -> LedgerReader:
        async with self._opening:
            reader = self._readers.get(ledger_id)
            if reader is None or reader.closed:
                self.check_open()
                reader = self._readers[ledger_id] = await self._access.open(ledger_id, self._password, False)
            self._readers.move_to_end(ledger_id)
            unused = [one for one, other in self._readers.items() if other is not reader and not self._in_use[other]]
            for one in unused[:-_READERS_MAX]:
                await self._readers.pop(one).close()
        if (reach := self._reach_of(ledger_id)) is not None:
            reader._learn_confirmed(reach.entries - 1)
        return reader

    def _is_over(self, reader: LedgerReader) -> bool:
        """Whether the ledger has its last entry, and the reader knows of it."""
        reach = self._reach_of(reader.id)
        return reader.ledger_closed or (reach is not None and reach.is_final)

    async def explain_missing(self, position: int, error: NoSuchLedgerError) -> None:
        """A ledger or page is gone. Return if the list has changed, so that reading can go on or be refused; else the
        log is damaged, which is raised."""
        before = self.document
        readers, self._readers = self._readers, OrderedDict()
        for reader in readers.values():
            if not self._in_use[reader]:
                await reader.close()
        await self.read_metadata()
        if self.document == before and position >= self.document.first_position:
            raise LogDamagedError(
                f"log {self.document.name}: {error.message}, although position {position} was not truncated; restore "
                "it, or give its positions up (`octavo log give-up`)"
            ) from error

    async def _page(self, page: PageReference) -> tuple[Segment, ...]:
        segments = self._pages.get(page.document)
        if segments is None:
            found = await read_page(self._store, self.document.name, page)
            if found is None:
                raise NoSuchLedgerError(f"log {self.document.name}: page {page.document} has been dropped")
            segments = self._pages[page.document] = found
            while len(self._pages) > _PAGES_MAX:
                self._pages.popitem(last=False)
        return segments


def _in_page(segments: tuple[Segment, ...], position: int) -> Place:
    """The segment of a page that holds ``position``; the page has it. Empty segments share their first position with
    the one behind them, which is found."""
    at = bisect_right(segments, position, key=lambda segment: segment.first_position or 0) - 1
    return Place(segments[at], segments[at].first_position or 0, segments[at].stop_position)


def _entries_of(reader: LedgerReader) -> int:
    last = reader.last_add_confirmed
    return 0 if last is None else last + 1
