"""A log as its users hold it: read, follow, truncate, lead.

The positions of a log are spread over *stretches*: consecutive positions within one ledger
(:mod:`octavo.client.log.seam.view`). A reader finds the stretch of a position in the log's metadata, and the entry in
the ledger. Reading disturbs no leader (rule P3): ledgers are opened without recovery.

Before anything is called missing the metadata are read again: what is gone has been truncated, and then the reader
says so with the position at which the log begins now (rule P7); or it was deleted by hand, and the log is damaged.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from datetime import datetime
from typing import Literal

from octavo.client.arguments import check_position, check_text, check_time
from octavo.client.async_context import Closable
from octavo.client.awaitable_context import Opening
from octavo.client.log.cursors.cursors import Cursor
from octavo.client.log.cursors.keeper import CursorKeeper
from octavo.client.log.cursors.reading import read_cursors
from octavo.client.log.documents.chain import Retention, check_retention
from octavo.client.log.documents.cursors import CursorState
from octavo.client.log.documents.names import check_cursor_name, lock_name
from octavo.client.log.layout import LogLayout
from octavo.client.log.read.beginning import Beginning
from octavo.client.log.read.iteration import EntryIteration
from octavo.client.log.read.outcomes import check_kept, count_added, doubt_of
from octavo.client.log.seam.access import LedgerAccess
from octavo.client.log.seam.entries import Gap, LogEntry, LogExtent
from octavo.client.log.seam.status import LogStatus
from octavo.client.log.seam.use import Use
from octavo.client.log.seam.view import Place, last_of
from octavo.client.log.writer.lock import LogLock
from octavo.client.log.writer.own_writers import OwnWriters
from octavo.client.log.writer.writer import LogWriter
from octavo.client.read.reader import LedgerReader
from octavo.protocol.errors import (
    InvalidArgumentError,
    LeaseLostError,
    LogDamagedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    OctavoError,
)

log = logging.getLogger("octavo.client")

type OnTruncated = Literal["raise", "skip"]


class Log(Closable):
    """Reads one log, and the way to lead it. Made by ``Client.open_log`` and ``Client.create_log``; use it as an async
    context manager, or :meth:`close` it. Methods may be called from any task of the loop."""

    def __init__(
        self,
        access: LedgerAccess,
        layout: LogLayout,
        cursors: CursorKeeper,
        *,
        on_writer: Callable[[LogWriter], object],
        on_close: Callable[["Log"], Awaitable[None]],
        on_writer_closed: Callable[[LogWriter], object],
        on_truncated: Callable[["Log"], object],
        known_at: float,
    ) -> None:
        """``cursors`` keeps the log's cursors for all handles of the client. ``on_writer`` is told of every writer that
        this handle makes. ``on_close`` stores what cursors moved. ``on_truncated`` is told when this handle has
        truncated the log. ``known_at``: when ``layout`` was read, on the loop's clock."""
        self._access = access
        self._store = access.store
        self._loop = asyncio.get_running_loop()
        self._layout = layout
        self._view = layout.view
        self._on_writer = on_writer
        self._on_writer_closed = on_writer_closed
        self._own = OwnWriters(layout.view.name)
        self._on_close = on_close
        self._on_truncated = on_truncated
        self._beginning = Beginning(
            layout.view.name,
            access.options.log_truncation_seconds,
            layout.view.read_beginning,
            known_at=known_at,
        )
        self._iteration = EntryIteration(layout.view, self._beginning, self.refresh)
        self._cursors = cursors

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"positions {self.first_position} to {self.end}"
        return f"<octavo.Log {self.name}, {state}>"

    async def start(self) -> None:
        """Find out how far the log can be read. Call it once, before anything else. Where no bookie of an open segment
        answers, the end is that of the segments before."""
        with contextlib.suppress(OctavoError):
            await self._view.learn_end()

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The log's name."""
        return self._view.name

    @property
    def log_id(self) -> str:
        """Unique for ever: a log that is deleted and created again has another id."""
        return self._view.log_id

    @property
    def layout(self) -> str:
        """How the log is stored: ``"chain"`` or ``"stream"``."""
        return self._view.layout

    @property
    def first_position(self) -> int:
        """The first position that can be read, as this handle knows it."""
        return self._view.first_position

    @property
    def end(self) -> int:
        """The position after the last that can be read, as this handle knows it: at least what its own writers have had
        acknowledged, and what it has met of other clients. :meth:`refresh` asks how far those are by now. Never goes
        back."""
        return max(self._view.end, self._own.end)

    @property
    def closed(self) -> bool:
        """Whether this handle has been closed."""
        return self._view.closed

    async def refresh(self) -> int:
        """Ask the list and the bookies how far the log can be read now; gives :attr:`end`.

        Raises :class:`NoSuchLogError`, :class:`QuorumLostError` when no bookie of the last segment answers.
        """
        self._view.check_open()
        await self._read_metadata()
        await self._view.learn_end()
        return self.end

    async def _read_metadata(self) -> None:
        began_at = self._loop.time()
        await self._view.read_metadata()
        self._beginning.known(began_at)

    async def status(self) -> LogStatus:
        """Segments, leader, cursors, and what retention will drop next. Raises :class:`NoSuchLogError`."""
        self._view.check_open()
        await self._view.read_metadata()
        with contextlib.suppress(OctavoError):
            # Without any bookie of the last segment the list still tells the rest.
            await self._view.learn_end()
        holder = await self._store.read_lock(lock_name(self.log_id))
        cursors = await read_cursors(self._store, self.log_id)
        stored = await self._layout.status(cursors)
        return LogStatus(
            name=self.name,
            log_id=self.log_id,
            layout=stored.layout,
            first_position=self.first_position,
            end=self.end,
            term=self._view.term,
            leader=None if holder is None else holder.holder,
            retention=stored.retention,
            drops_below=stored.drops_below,
            segments=stored.segments,
            paged_segments=stored.paged_segments,
            bytes=stored.bytes,
            cursors=cursors,
            idle_cursors=stored.idle_cursors,
            gaps=stored.gaps,
            quorums=stored.quorums,
            full_copies=stored.full_copies,
            sealed=self._view.is_sealed,
            clocks=stored.clocks,
        )

    # --- reading ------------------------------------------------------------------------------------------------------

    async def read(self, first: int, last: int) -> list[LogEntry]:
        """Entries ``first..last``, both included. What the adds of this handle's own writer have returned for can be
        read at once, what other clients add a moment later.

        Raises :class:`TruncatedError` when ``first`` lies before the beginning, :class:`NoSuchEntryError` when ``last``
        is not below :attr:`end` (which is refreshed first), :class:`QuorumLostError`, :class:`LogDamagedError`, also
        for positions that an operator has given up.
        """
        _check_range(first, last)
        if last >= self._view.end:
            await self.refresh()
        await self._beginning.ask()
        self._view.check_truncated(first)
        if last >= self._view.end:
            raise NoSuchEntryError(f"log {self.name}: position {last} is not below its end, {self._view.end}")
        async with aclosing(self._iteration.entries(first, last)) as entries:
            return [entry async for entry in entries]

    def entries(self, first: int | None = None, last: int | None = None) -> AsyncGenerator[LogEntry]:
        """Iterate over ``first..last``, both included; without ``first`` from the beginning, without ``last`` up to the
        end of the log when the iteration begins, which is asked for then (as :meth:`refresh` does). Reads ahead.

        Raises as :meth:`read` while iterating. Where nothing tells the end, the entries that are known are given first.
        """
        self._view.check_open()
        for position in (first, last):
            if position is not None:
                check_position(position)
        start = 0 if first is None else first
        _check_range(start, start if last is None else max(start, last))
        return self._iteration.entries(first, last)

    def __aiter__(self) -> AsyncGenerator[LogEntry]:
        return self.entries()

    def follow(
        self, first: int | None = None, *, on_truncated: OnTruncated = "raise"
    ) -> "AsyncGenerator[LogEntry | Gap]":
        """Iterate from ``first`` on (without it, from the beginning) and wait for more, across rolls and leaders.
        Ends only at the end of a log that is sealed: no client can add anything any more (rule V3). Never disturbs a
        leader.

        A follower that the log's beginning overtakes gets :class:`TruncatedError`; with ``on_truncated="skip"`` one
        :class:`Gap` instead, and goes on behind it. Raises :class:`NoSuchLogError` when the log is deleted,
        :class:`NoSuchEntryError` when it is sealed and ends before ``first``.
        """
        self._view.check_open()
        if on_truncated not in ("raise", "skip"):
            raise InvalidArgumentError(f"on_truncated is 'raise' or 'skip', not {on_truncated!r}")
        start = self.first_position if first is None else first
        _check_range(start, start)
        return self._iteration.follow(start, skip=on_truncated == "skip")

    async def position_at(self, time: datetime) -> int:
        """The first position whose entry was sealed at ``time`` (aware) or later; the end where there is none."""
        check_time(time)
        wanted_ms = int(time.timestamp() * 1000)
        await self.refresh()
        # Times do not fall from entry to entry.
        low, high = self._view.sealed_bounds(wanted_ms)
        while low < high:
            middle = (low + high) // 2
            while (gap := self._view.gap_at(middle)) is not None:
                middle = gap[1] + 1
            if middle >= high:
                high = (low + high) // 2
                continue
            (entry,) = await self.read(middle, middle)
            if entry.sealed_at_ms < wanted_ms:
                low = middle + 1
            else:
                high = middle
        return low

    async def extents(self, first: int, last: int) -> list[LogExtent]:
        """In which ledgers the positions ``first..last`` are, both included, for programs that read ledgers themselves.
        Positions that were given up are left out. Raises as :meth:`read`."""
        _check_range(first, last)
        if last >= self._view.end:
            await self.refresh()
        if last >= self._view.end:
            raise NoSuchEntryError(f"log {self.name}: position {last} is not below its end, {self._view.end}")
        await self._beginning.ask()
        found: list[LogExtent] = []
        position = first
        while position <= last:
            self._view.check_truncated(position)
            gap = self._view.gap_at(position)
            if gap is not None:
                position = gap[1] + 1
                continue
            try:
                place = await self._view.locate(position)
            except NoSuchLedgerError as error:
                await self._view.explain_missing(position, error)
                continue
            if place is None:
                raise LogDamagedError(f"log {self.name}: no segment holds position {position}")
            stop = last if place.stop is None else min(last, place.stop - 1)
            found.append(LogExtent(place.ledger_id, place.base, position, stop))
            position = stop + 1
        return found

    def reader_at(self, position: int) -> AbstractAsyncContextManager[tuple[LogExtent, LedgerReader]]:
        """A reader of the ledger or the part of a stream that holds ``position``, and the positions that it gives from
        there on: for bulk readers, which read batches. It may be shared, and disturbs no leader.

        Of a part that is being written the last position is not known, and the extent names the largest number. Reading
        raises :class:`NoSuchLedgerError` when the part is not what it was: ask again with the position that comes next.
        Raises as :meth:`read`.
        """
        self._view.check_open()
        _check_range(position, position)
        stack = AsyncExitStack()

        async def take() -> tuple[LogExtent, LedgerReader]:
            place, reader = await self._enter_reader(position, stack)
            return LogExtent(place.ledger_id, place.base, position, last_of(place)), reader

        async def give_back(_taken: object, error: BaseException | None) -> None:
            async with stack:
                if isinstance(error, NoSuchLedgerError):
                    await self._view.explain_missing(position, error)

        return Use(take, give_back)

    async def _enter_reader(self, position: int, stack: AsyncExitStack) -> tuple[Place, LedgerReader]:
        while True:
            self._view.check_open()
            await self._beginning.ask()
            self._view.check_truncated(position)
            check_kept(self._view, position)
            try:
                place = await self._view.locate(position)
                if place is None:
                    raise NoSuchEntryError(f"log {self.name}: no leader has added position {position} yet")
                return place, await stack.enter_async_context(self._view.reading(place))
            except NoSuchLedgerError as error:
                await self._view.explain_missing(position, error)

    # --- changing -----------------------------------------------------------------------------------------------------

    async def truncate(self, before: int) -> None:
        """Remove all entries below ``before`` for readers. Disk space is freed by whole segments. A position below the
        log's beginning changes nothing.

        Raises :class:`InvalidArgumentError` for a position beyond the end, :class:`NoSuchLogError`, and
        :class:`QuorumLostError` when no bookie of the last segment answers and the metadata alone do not tell.
        """
        check_position(before)
        self._view.check_open()
        await self._layout.truncate(before)
        self._on_truncated(self)

    def _begin_at(self, position: int) -> None:
        """Another handle of this client has truncated the log there. Used only inside this package."""
        self._view.begin_at(position)

    async def give_up(self, ledger_id: int, *, last: int | None = None) -> Gap:
        """Skip a segment whose ledger was deleted by hand: its positions are lost, and followers get the returned
        :class:`Gap`. A writer of that segment loses its leadership.

        ``last``: the last lost position, required if the list does not record where the segment ended. A position that
        any reader may have seen must not get another entry, so choose one that is certainly high enough.

        Raises :class:`InvalidArgumentError` if the ledger is no segment of the log, or exists, or ``last`` is needed or
        wrong.
        """
        self._view.check_loop()
        return await self._layout.give_up(ledger_id, last)

    async def seal(self) -> int:
        """End the log for good: no client can add to it any more, and followers end after the last entry. Gives the
        end. Takes the log over first, so a leader loses its leadership.

        Raises :class:`InvalidArgumentError` for a chain, which cannot be sealed; else as :meth:`take_over`.
        """
        self._view.check_open()
        await self._layout.seal()
        return await self.refresh()

    async def set_retention(self, retention: Retention) -> None:
        """Change what the leader drops, once a minute, from the front."""
        check_retention(retention)
        self._view.check_loop()
        await self._layout.set_retention(retention)

    async def retain(self) -> int:
        """Apply the retention now, for a log without a leader; gives the first position afterwards."""
        await self.refresh()
        await self._layout.retain()
        self._on_truncated(self)
        return self.first_position

    async def cursor(self, name: str) -> Cursor:
        """A consumer's stored position, or that to which this client has moved it by now. A new cursor stands at the
        beginning of the log. Raises :class:`NoSuchLogError` where the log has been deleted,
        :class:`InvalidArgumentError`."""
        check_cursor_name(name)
        self._view.check_open()
        return Cursor(
            await self._cursors.open(name, self._first_now),
            self._cursors,
            follow=self.follow,
            end=lambda: self.end,
            refresh=self.refresh,
            check_open=self._view.check_open,
            touch_seconds=self._access.options.log_cursor_idle_seconds / 4,
        )

    async def _first_now(self) -> int:
        await self._read_metadata()
        return self.first_position

    async def cursors(self) -> dict[str, CursorState]:
        """All cursors of the log as they are stored, by name."""
        self._view.check_open()
        return await read_cursors(self._store, self.log_id)

    async def outcome(self, error: OctavoError) -> bool | None:
        """Whether the add that failed with ``error`` is in the log: True; False, once no writer can add it any more, or
        its position was given up; None while that is not known (rule P6). Of an ``add_many``: whether all of it is;
        :meth:`added` tells how much.

        May be asked of any handle of the log, in any client. Raises :class:`InvalidArgumentError` for an error that is
        not of an add to this log; :class:`LogDamagedError` where another ledger's entry is in its place, and of an
        ``add_many`` of which the middle was given up.
        """
        added, doubt = await self.added(error), error.doubt
        if added is None or doubt is None:
            return None if added is None else False
        return added == doubt.sent + doubt.unsent

    async def added(self, error: OctavoError) -> int | None:
        """How many payloads of the add that failed with ``error`` are in the log, counted from its beginning; None
        while that is not known (rule P6). The others will not get there: add them again. Raises as :meth:`outcome`.
        """
        self._view.check_loop()
        doubt = doubt_of(error, self._view)
        return (
            0 if doubt is None else await count_added(self._view, doubt, lambda position: self.read(position, position))
        )

    # --- leading ------------------------------------------------------------------------------------------------------

    def lead(self, name: str | None = None) -> Opening[LogWriter]:
        """Wait until no other client leads, then take the log over. ``name`` tells people who leads.

        ``async with log.lead() as writer``, or ``await`` it. A handle leads, or waits to lead, once at a time. Raises
        :class:`InvalidArgumentError` while it does, :class:`NoSuchLogError`, :class:`LedgerRecoveryError` and
        :class:`NotEnoughBookiesError` when the log cannot be taken over now, :class:`LogSealedError`,
        :class:`LogDamagedError`.
        """
        self._view.check_open()
        if name is not None:
            check_text("the name of a leader", name)

        async def lead() -> LogWriter:
            holder = name if name is not None else self._access.random_token()[:8]
            async with self._own.waiting():
                return await self._lead(holder)

        return Opening(lead, "lead()")

    def take_over(self) -> Opening[LogWriter]:
        """Take the log over at once, also from a client that leads: for users with an election of their own. Raises as
        :meth:`lead`."""
        self._view.check_open()

        async def take_over() -> LogWriter:
            return await self._take_over(None)

        return Opening(take_over, "take_over()")

    async def _lead(self, holder: str) -> LogWriter:
        while True:
            lock = lock_name(self.log_id)
            lease = LogLock(self._store, lock, holder, await self._store.lock(lock, holder))
            try:
                return await self._take_over(lease)
            except LeaseLostError as error:
                await lease.release()
                log.warning("%s; this client waits for the lock again", error.message)
            except BaseException:
                await lease.release()
                raise

    async def _take_over(self, lease: LogLock | None) -> LogWriter:
        def closed(writer: LogWriter) -> None:
            self._own.closed(writer)
            self._on_writer_closed(writer)

        self._view.check_open()
        writer = await self._layout.take_over(lease, closed)
        self._own.made(writer)
        self._on_writer(writer)
        return writer

    # --- life ---------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End reads and followers of this handle, and store what its cursors moved. The log is not touched, and
        writers that this handle made go on. May be called twice, from any task."""
        self._view.check_loop()
        if self._view.closed:
            return
        await self._beginning.close()
        await self._view.close()
        await self._on_close(self)


def _check_range(first: int, last: int) -> None:
    check_position(first)
    check_position(last)
    if first > last:
        raise InvalidArgumentError(f"positions are given as first <= last, not {first!r}, {last!r}")
