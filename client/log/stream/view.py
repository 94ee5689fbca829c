"""A log that is a stream as a reader sees it: where positions are, and how far the log can be read.

Two things in the metadata store tell that: the document under the log's name, and the metadata of the stream, its
*root*. Of each this view keeps the newest version that any part of it has met. A position is looked for in the root,
and read from a *piece* of the stream (:mod:`octavo.client.terms.pieces`), by readers that
:mod:`octavo.client.log.stream.readers` gives.

A piece can stop being what it was when it was found: its term is over, its fragments have moved into a page, were
truncated, or replaced. Then its reader says so (:class:`~octavo.client.read.terms.PieceMovedError`), and the position
is looked for anew: it means the same for ever (rule V2).
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Final

from octavo.client.log.documents.names import list_document
from octavo.client.log.documents.reading import read_stream_log
from octavo.client.log.documents.states import LogState
from octavo.client.log.documents.stream import StreamLogDocument, decode_any_log
from octavo.client.log.documents.terms import log_term, stream_term
from octavo.client.log.seam.access import LedgerAccess
from octavo.client.log.seam.view import Place, end_of_new
from octavo.client.log.stream.readers import PieceReaders, StreamPlace, ViewCalls
from octavo.client.read.reader import LedgerReader
from octavo.client.read.source import Watching
from octavo.client.read.terms import PieceMovedError
from octavo.client.same_loop import check_loop
from octavo.client.terms.pieces import piece_at
from octavo.metadata.own_tasks import failure_of
from octavo.metadata.store.signal import Signal
from octavo.metadata.store.values import Versioned
from octavo.metadata.stream.model import StreamMetadata, StreamState
from octavo.metadata.stream.pages import PageMissingError
from octavo.metadata.updates.paging import StreamPages
from octavo.protocol.errors import (
    ClientClosedError,
    InternalError,
    LogDamagedError,
    NoSuchLedgerError,
    NoSuchLogError,
    OctavoError,
    TruncatedError,
)

_STEPS_MAX: Final = 1000
"""Steps in which the end is looked for. Each goes on in a later piece or in newer metadata."""


class StreamView:
    """See the module; :class:`~octavo.client.log.seam.view.LogView` of a stream. Of one handle.

    ``reach`` gives the term of the stream that the handle's own writer has, and the position after the last one that it
    has had acknowledged: the bookies hear of that later (rule W2).
    """

    def __init__(
        self,
        access: LedgerAccess,
        document: StreamLogDocument,
        root: Versioned[StreamMetadata],
        password: bytes,
        *,
        reach: Callable[[], tuple[int, int] | None] = lambda: None,
    ) -> None:
        self._access = access
        self._store = access.store
        self._password = password
        self._reach = reach
        self.document = document
        """What stands under the log's name, as this handle knows it."""
        self.root = root
        """The metadata of the stream, likewise."""
        self._pages = StreamPages(access.store)
        self.end = 0
        self.closed = False
        self.layout = "stream"
        self.keys = document.keys
        self.changes = 0
        self._changed = Signal()
        self._loop = asyncio.get_running_loop()
        calls = ViewCalls(self.check_open, self._part_at, self.take_root, self.saw_end, reach)
        self._readers = PieceReaders(access, document.name, document.ledger_id, password, calls)
        self._watching: list[Watching] = []
        self._reading_again: asyncio.Task[None] | None = None
        """Reads the metadata because the stream was not there."""
        self._watch_failure: OctavoError | None = None
        self._note_ends()

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
        return max(self.document.first_position, self.root.value.start)

    @property
    def term(self) -> int:
        """The highest term given to a leader; 0 before the first."""
        return log_term(self.root.value.last_fragment.first_term)

    @property
    def is_sealed(self) -> bool:
        """Whether nothing can be added any more."""
        return self.root.value.state is StreamState.CLOSED

    async def read_metadata(self) -> None:
        """Read document and root as they stand now. Raises :class:`NoSuchLogError`; :class:`LogDamagedError` where the
        stream has been deleted and the log has not."""
        for attempt in range(2):
            known = await read_stream_log(self._store, self.name, log_id=self.log_id)
            self.take(known.value)
            try:
                self.take_root(await self._store.read_stream(self.document.ledger_id))
            except NoSuchLedgerError as error:
                # A log that is being deleted has lost its stream before its document.
                if attempt:
                    raise LogDamagedError(
                        f"log {self.name}: its stream, ledger {self.document.ledger_id}, does not exist any more; it "
                        "was deleted by hand. Restore its metadata, or delete the log (`octavo log delete`)"
                    ) from error
            else:
                return

    async def read_beginning(self) -> None:
        """As :meth:`LogView.read_beginning`: the start of the stream follows the document."""
        self.take((await read_stream_log(self._store, self.name, log_id=self.log_id)).value)

    def begin_at(self, position: int) -> None:
        """As :meth:`LogView.begin_at`."""
        if position > self.document.first_position:
            self.take(replace(self.document, first_position=position))

    def take(self, document: StreamLogDocument) -> None:
        """Note what stood under the log's name. It may be older than what is known: the beginning never goes back."""
        if document.first_position < self.document.first_position:
            return
        self.document = document
        self._note_ends()

    def take_root(self, root: Versioned[StreamMetadata]) -> None:
        """Note metadata of the stream that were read or written. Older ones than those known change nothing."""
        if root.version <= self.root.version:
            return
        self.root = root
        self._note_ends()

    def saw_end(self, end: int) -> None:
        """Everything below ``end`` can be read."""
        self.end = max(self.end, end)

    def _note_ends(self) -> None:
        stream = self.root.value
        end = stream.end_position
        self.saw_end(max(self.first_position, stream.last_fragment.first_position if end is None else end + 1))
        self.changes += 1
        self._changed.set()

    # --- changes ------------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Keep document and root fresh from now on; once more if that has failed before."""
        if self.closed or (self._watching and self._watch_failure is None):
            return
        self._watch_failure = None
        self._stop_watching()
        store = self._store
        self._watching = [
            store.watch_document(list_document(self.name)).begin(self._saw_document, self._watch_ended),
            store.watch_stream(self.document.ledger_id).begin(self._saw_root, self._watch_ended),
        ]

    def _stop_watching(self) -> None:
        watching, self._watching = self._watching, []
        for watch in watching:
            watch.stop()

    async def wait_change(self, seen: int) -> None:
        """Return once something has changed since :attr:`changes` was ``seen``. Raises why the metadata are not watched
        any more: :class:`NoSuchLogError` when the log is deleted."""
        while True:
            self.check_open()
            if self._watch_failure is not None:
                raise self._watch_failure
            if self.changes != seen:
                return
            self._changed.clear()
            await self._changed.wait()

    def _saw_document(self, found: Versioned[bytes] | None) -> None:
        document = None if found is None else decode_any_log(found.value, self.name)
        if (
            not isinstance(document, StreamLogDocument)
            or document.log_id != self.log_id
            or document.state is LogState.DELETED
        ):
            raise NoSuchLogError(f"log {self.name} has been deleted")
        self.take(document)

    def _saw_root(self, root: Versioned[StreamMetadata] | None) -> None:
        if root is not None:
            self.take_root(root)
        elif self._reading_again is None:
            # Says whether the log is deleted, or damaged.
            reading = self._loop.create_task(self.read_metadata(), name="octavo log watch")
            self._reading_again = reading
            reading.add_done_callback(self._has_read_again)

    def _has_read_again(self, reading: asyncio.Task[None]) -> None:
        self._reading_again = None
        if reading.cancelled() or reading.exception() is not None:
            self._watch_ended(failure_of(reading, f"watching log {self.name}"))

    def _watch_ended(self, failure: OctavoError) -> None:
        if not self.closed:
            if self._watch_failure is None or isinstance(failure, NoSuchLogError):
                self._watch_failure = failure
            self._changed.set()

    # --- life ---------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the watches and the readers."""
        self.closed = True
        self._changed.set()
        self._stop_watching()
        if self._reading_again is not None:
            self._reading_again.cancel()
            await asyncio.wait([self._reading_again])
        await self._readers.close()

    def check_loop(self) -> None:
        """Raise :class:`InvalidArgumentError` in another event loop."""
        check_loop(self._loop)

    def check_open(self) -> None:
        """Raise :class:`ClientClosedError` once the handle is closed."""
        self.check_loop()
        if self.closed:
            raise ClientClosedError(f"log {self.name}: this handle is closed")

    # --- positions ----------------------------------------------------------------------------------------------------

    def check_truncated(self, position: int) -> None:
        """Raise :class:`TruncatedError` for a position before the beginning (rule V5)."""
        first = self.first_position
        if position < first:
            raise TruncatedError(
                f"log {self.name}: position {position} has been truncated; the log begins at {first}",
                first_position=first,
            )

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Nothing of a stream is ever given up."""
        return ()

    def gap_at(self, position: int) -> tuple[int, int] | None:
        """None: nothing of a stream is ever given up. ``position`` does not matter."""
        return None

    def sealed_bounds(self, wanted_ms: int) -> tuple[int, int]:
        """All there is: the metadata have the store's times, entries have those of their writers."""
        return self.first_position, self.end

    async def end_of_term(self, term: int) -> int | None:
        """The position after the last entry of ``term``; None while the term is not over, or not known any more."""
        wanted = stream_term(term)
        while True:
            try:
                return await self._stop_of_leader(self.root.value, wanted)
            except PageMissingError:
                await self.read_metadata()

    async def _stop_of_leader(self, stream: StreamMetadata, wanted: int) -> int | None:
        """Pages are read from the newest on, until one has the answer. Hardly any term that is asked for lies in
        one."""
        found = stream.tail.stop_of_leader(wanted)
        if found is not None or stream.last_fragment.first_term <= wanted:
            return found
        stop = stream.tail_position
        for page in reversed(stream.pages):
            part = await self._pages.part(stream, page)
            if part.last_fragment.first_term <= wanted:
                return stop
            found = part.stop_of_leader(wanted)
            if found is not None:
                return found
            stop = part.fragments[0].first_position
        return None

    async def locate(self, position: int) -> StreamPlace | None:
        """Where ``position`` is or will be; None while no leader has begun the term that will have it. Raises
        :class:`TruncatedError`, also for a position that has been truncated a moment ago."""
        root = self.root
        if position < root.value.start:
            self.check_truncated(position)
        part = await self._part_at(root.value, position)
        piece = piece_at(part, position)
        return None if piece is None else StreamPlace(root.value.ledger_id, piece, root)

    async def _part_at(self, stream: StreamMetadata, position: int) -> StreamMetadata:
        """The part of the stream that holds a position. Raises :class:`PieceMovedError` where newer metadata tell."""
        if position < stream.start:
            raise PieceMovedError(f"stream {stream.ledger_id}: position {position} has been truncated")
        try:
            return await self._pages.part_at(stream, position)
        except PageMissingError as error:
            raise PieceMovedError(error.message) from error

    async def learn_end(self) -> None:
        """Ask how far the log can be read. Raises :class:`QuorumLostError` when no bookie of the last fragment
        answers."""
        for _ in range(_STEPS_MAX):
            place = await self.locate(max(self.end, self.first_position))
            if place is None:
                return
            if place.stop is not None:
                self.saw_end(place.stop)
                continue
            try:
                async with self.reading(place) as reader:
                    if not reader.ledger_closed:
                        await reader.refresh_last_add_confirmed()
                    self._readers.learn_confirmed(place, reader)
                    if not reader.ledger_closed:
                        return
            except NoSuchLedgerError as error:
                await self.explain_missing(place.piece.first_position, error)
        raise InternalError(f"log {self.name}: its end moves faster than it can be found")

    async def end_now(self, enough: int) -> int:
        """As :meth:`LogView.end_now`."""
        return (await self.find_end(enough))[0]

    async def find_end(self, enough: int) -> tuple[int, StreamMetadata]:
        """As :meth:`end_now`, and the metadata by which the end was found. What was heard of a term holds as long as it
        goes on."""
        await self.read_metadata()
        root = self.root
        anew = StreamView(self._access, self.document, root, self._password, reach=self._reach)
        anew._readers.know_as(self._readers)
        end = await end_of_new(anew, enough)
        self.saw_end(end)
        return end, root.value

    def reading(self, place: Place) -> AbstractAsyncContextManager[LedgerReader]:
        """A reader of the piece. Readers of the last piece are one."""
        assert isinstance(place, StreamPlace), "it was located by this view"
        return self._readers.reading(place)

    async def explain_missing(self, position: int, error: NoSuchLedgerError) -> None:
        """A piece is gone, or not what it was. Return if reading can go on, or will be refused. Raises
        :class:`NoSuchLogError`, :class:`LogDamagedError`."""
        await self._readers.forget_growing()
        await self.read_metadata()
