"""A log as its users hold it: read, follow, truncate, lead.

The positions of a log are spread over *stretches*: consecutive positions within one ledger
(:mod:`octavo.client.log.seam.view`). A reader finds the stretch of a position in the log's metadata, and the entry in
the ledger. Reading disturbs no leader (rule P3): ledgers are opened without recovery.

Before anything is called missing the metadata are read again: what is gone has been truncated, and then the reader
says so with the position at which the log begins now (rule P7); or it was deleted by hand, and the log is damaged.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Literal, overload

from octavo.client.arguments import check_flag, check_position, check_positions, check_text, check_time
from octavo.client.async_context import Closable
from octavo.client.awaitable_context import Opening
from octavo.client.log.cursors.cursors import Cursor
from octavo.client.log.cursors.keeper import CursorKeeper
from octavo.client.log.cursors.reading import read_cursors
from octavo.client.log.documents.chain import Retention, check_retention
from octavo.client.log.documents.cursors import CursorState
from octavo.client.log.documents.key_window import KeyWindow
from octavo.client.log.documents.names import check_cursor_name
from octavo.client.log.full_status import full_status
from octavo.client.log.key_reader import KeyReader
from octavo.client.log.keys.known_keys import KnownKeys
from octavo.client.log.layout import LogLayout
from octavo.client.log.leading import Leading
from octavo.client.log.locating import Locator
from octavo.client.log.questions import LogQuestions
from octavo.client.log.read.beginning import Beginning
from octavo.client.log.read.iteration import EntryIteration
from octavo.client.log.seam.access import LedgerAccess
from octavo.client.log.seam.entries import Gap, LogEntry, LogExtent, OnTruncated
from octavo.client.log.seam.status import LogStatus
from octavo.client.log.statistics import log_statistics
from octavo.client.read.reader import LedgerReader
from octavo.protocol.errors import (
    InvalidArgumentError,
    NoSuchEntryError,
    OctavoError,
)

if TYPE_CHECKING:
    from octavo.client.log.writer.writer import LogWriter
    from octavo.client.statistics.logs import LogStatistics


class Log(LogQuestions, Closable):
    """A handle on one log: reads it, and leads it. Made by ``Client.open_log`` and ``Client.create_log``.

    Use it as an async context manager, or ``close()`` it. Methods may be called from any task of the loop.

    Examples:
        >>> async with log.lead() as writer:
        ...     await writer.add(b"fourth")
        3
        >>> [entry.payload async for entry in log]
        [b'first', b'second', b'third', b'fourth']
        >>> await log.close()

    Raises:
        ClientClosedError: By every method, once the handle or its client is closed.
        NoSuchLogError: By every method that asks the metadata store, when the log has been deleted.
        MetadataUnavailableError: By every method that asks the metadata store, when it does not answer.
        InvalidArgumentError: By every method, for a wrong argument.
    """

    def __init__(
        self,
        access: LedgerAccess,
        layout: LogLayout,
        cursors: CursorKeeper,
        *,
        on_writer: Callable[["LogWriter"], object],
        on_close: Callable[["Log"], Awaitable[None]],
        on_writer_closed: Callable[["LogWriter"], object],
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
        self._leading = Leading(
            access.store, layout, on_writer=on_writer, on_writer_closed=on_writer_closed, read_keys=self._read_keys
        )
        self._on_close = on_close
        self._on_truncated = on_truncated
        self._beginning = Beginning(
            layout.view.name,
            access.options.log_truncation_seconds,
            layout.view.read_beginning,
            known_at=known_at,
        )
        self._locator = Locator(layout.view, self._beginning)
        self._iteration = EntryIteration(layout.view, self._beginning, self.refresh)
        self._keys = KeyReader(layout.view, self._iteration, access.clock_ms)
        self._cursors = cursors

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"positions {self.first_position} to {self.end}"
        return f"<octavo.Log {self.name}, {state}>"

    async def _start(self) -> None:
        """Find out how far the log can be read. Used only inside this package, once, before anything else.

        Where no bookie of an open segment answers, the end is that of the segments before.
        """
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
    def keys(self) -> KeyWindow | None:
        """The window within which keys of entries are known (rule P21); None: the log was created without keys."""
        return self._view.keys

    @property
    def first_position(self) -> int:
        """The first position that can be read, as this handle knows it."""
        return self._view.first_position

    @property
    def end(self) -> int:
        """The position after the last that can be read, as this handle knows it. Never goes back.

        It counts at least what the handle's own writers have had acknowledged, and what it has met of other clients.
        ``refresh()`` asks how far those are by now.
        """
        return max(self._view.end, self._leading.own.end)

    @property
    def closed(self) -> bool:
        """Whether this handle has been closed."""
        return self._view.closed

    def statistics(self) -> "LogStatistics":
        """Statistics of this handle: the bounds of the log as it knows them, and their age.

        Examples:
            >>> log.statistics().end
            3
        """
        self._view.check_loop()
        return log_statistics(self._view, self._beginning, self._leading.own, followers=self._iteration.followers)

    async def refresh(self) -> int:
        """Ask the list and the bookies how far the log can be read now; gives ``end``.

        Examples:
            >>> async with client.open_log("orders") as other, other.lead() as writer:
            ...     await writer.add(b"fourth")
            3
            >>> await log.refresh()
            4

        Raises:
            QuorumLostError: No bookie of the last segment answers.
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
        """Segments, leader, cursors, and what retention will drop next.

        Examples:
            >>> async with log.lead("host-1") as writer:
            ...     status = await log.status()
            >>> status.leader, status.first_position, status.end
            ('host-1', 0, 3)
        """
        self._view.check_open()
        await self._view.read_metadata()
        with contextlib.suppress(OctavoError):
            # Without any bookie of the last segment the list still tells the rest.
            await self._view.learn_end()
        return await full_status(self._view, self._layout, self._store, end=lambda: self.end)

    # --- reading ------------------------------------------------------------------------------------------------------

    async def read(self, first: int, last: int) -> list[LogEntry]:
        """Entries ``first..last``, both included.

        What the adds of this handle's own writer have returned for can be read at once, what other clients add a moment
        later. Memory for all of them is the caller's; ``entries()`` goes in chunks.

        Examples:
            >>> [entry.payload for entry in await log.read(0, 1)]
            [b'first', b'second']

        Raises:
            TruncatedError: ``first`` lies before the beginning of the log (rule P7).
            NoSuchEntryError: ``last`` is not below ``end``, which is refreshed first.
            QuorumLostError: An entry cannot be had from any bookie now.
            LogDamagedError: An entry is lost, or an operator has given its position up.
        """
        check_positions(first, last)
        if last >= self._view.end:
            await self.refresh()
        await self._beginning.ask()
        self._view.check_truncated(first)
        if last >= self._view.end:
            raise NoSuchEntryError(f"log {self.name}: position {last} is not below its end, {self._view.end}")
        async with aclosing(self._iteration.entries(first, last)) as entries:
            return [entry async for entry in entries]

    def entries(self, first: int | None = None, last: int | None = None) -> AsyncGenerator[LogEntry]:
        """Iterate over ``first..last``, both included; reads ahead.

        Without ``first`` it begins at the beginning of the log, without ``last`` it ends at the end of the log when the
        iteration begins, which is asked for then (as ``refresh()`` does). Where nothing tells the end, the entries
        that are known are given first. ``async for entry in log`` is the same. The errors come while iterating.

        Examples:
            >>> [(entry.position, entry.payload) async for entry in log.entries(1)]
            [(1, b'second'), (2, b'third')]

        Raises:
            TruncatedError: ``first`` lies before the beginning of the log (rule P7).
            NoSuchEntryError: ``last`` is not below the end.
            QuorumLostError: An entry cannot be had from any bookie now.
            LogDamagedError: An entry is lost, or an operator has given its position up.
        """
        self._view.check_open()
        for position in (first, last):
            if position is not None:
                check_position(position)
        start = 0 if first is None else first
        check_positions(start, start if last is None else max(start, last))
        return self._iteration.entries(first, last)

    def __aiter__(self) -> AsyncGenerator[LogEntry]:
        return self.entries()

    @overload
    def follow(
        self, first: int | None = None, *, on_truncated: Literal["raise"] = "raise"
    ) -> "AsyncGenerator[LogEntry]": ...

    @overload
    def follow(self, first: int | None = None, *, on_truncated: OnTruncated) -> "AsyncGenerator[LogEntry | Gap]": ...

    def follow(
        self, first: int | None = None, *, on_truncated: OnTruncated = "raise"
    ) -> "AsyncGenerator[LogEntry | Gap]":
        """Iterate from ``first`` on and wait for more, across rolls and leaders; without ``first`` from the beginning.

        It never disturbs a leader. It ends only at the end of a log that is sealed: no client can add anything any more
        (rule V3). A follower that the log's beginning overtakes fails, and so does one that comes to positions that an
        operator gave up; with ``on_truncated="skip"`` it gets one ``Gap`` instead, and goes on behind it. Type checkers
        know that other followers get entries only. The errors come while iterating.

        Examples:
            >>> async for entry in log.follow():
            ...     print(entry.position, entry.payload)
            ...     if entry.position == 1:
            ...         break
            0 b'first'
            1 b'second'

        Raises:
            TruncatedError: The log begins behind the next position.
            NoSuchEntryError: The log is sealed and ends before ``first``.
            QuorumLostError: An entry cannot be had from any bookie now.
            LogDamagedError: An entry is lost, or was given up.
        """
        self._view.check_open()
        if on_truncated not in ("raise", "skip"):
            raise InvalidArgumentError(f"on_truncated is 'raise' or 'skip', not {on_truncated!r}")
        start = self.first_position if first is None else first
        check_positions(start, start)
        return self._iteration.follow(start, skip=on_truncated == "skip")

    async def position_at(self, time: datetime) -> int:
        """The first position whose entry was sealed at ``time`` (aware) or later; the end where there is none.

        Examples:
            >>> from datetime import UTC, datetime
            >>> await log.position_at(datetime(2020, 1, 1, tzinfo=UTC))
            0

        Raises:
            QuorumLostError: An entry that tells cannot be had from any bookie now.
        """
        check_time(time)
        wanted_ms = int(time.timestamp() * 1000)
        await self.refresh()

        return await self._locator.position_at(wanted_ms, self.read)

    async def extents(self, first: int, last: int) -> list[LogExtent]:
        """In which ledgers the positions ``first..last`` are, both included, for programs that read ledgers themselves.

        Positions that were given up are left out.

        Examples:
            >>> [(extent.first, extent.last) for extent in await log.extents(0, 1)]
            [(0, 1)]

        Raises:
            TruncatedError: ``first`` lies before the beginning of the log (rule P7).
            NoSuchEntryError: ``last`` is not below ``end``, which is refreshed first.
            LogDamagedError: No segment holds one of the positions.
        """
        check_positions(first, last)
        if last >= self._view.end:
            await self.refresh()
        if last >= self._view.end:
            raise NoSuchEntryError(f"log {self.name}: position {last} is not below its end, {self._view.end}")
        return await self._locator.extents(first, last)

    def reader_at(
        self, position: int, *, stored: bool = False
    ) -> AbstractAsyncContextManager[tuple[LogExtent, LedgerReader]]:
        """A reader of the ledger or the part of a stream that holds ``position``, and the positions that it gives.

        It is for bulk readers, which read batches. The reader may be shared, and disturbs no leader. Of a part that is
        being written the last position is not known, and the extent names the largest number.

        Where ``keys`` is not None, entries come in their stored form, with the key in front of the payload. A
        caller that takes each apart with ``octavo.keyed_of`` says so with ``stored=True``.

        Examples:
            >>> async with log.reader_at(0) as (extent, reader):
            ...     first = extent.first - extent.base
            ...     async for batch in reader.batches(first, first + 2, confirmed=True):
            ...         [entry.payload for entry in batch.entries]
            [b'first', b'second', b'third']

        Raises:
            TruncatedError: ``position`` lies before the beginning of the log (rule P7).
            NoSuchEntryError: No leader has added the position yet.
            InvalidArgumentError: The log has keys, and ``stored`` is false.
            NoSuchLedgerError: While reading: the part is not what it was; ask again with the position that comes next.
            LogDamagedError: An operator has given the position up, or its ledger is lost.
        """
        self._view.check_open()
        check_positions(position, position)
        check_flag("stored", stored)
        if self._view.keys is not None and not stored:
            raise InvalidArgumentError(
                f"log {self.name} has keys, which stand in the stored form of its entries: read it with entries(), or "
                "with stored=True and octavo.keyed_of"
            )
        return self._locator.reader_at(position)

    # --- changing -----------------------------------------------------------------------------------------------------

    async def truncate(self, before: int) -> None:
        """Remove all entries below ``before`` for readers. Disk space is freed by whole segments.

        A position below the log's beginning changes nothing.

        Examples:
            >>> await log.truncate(1)
            >>> log.first_position, [entry.payload async for entry in log]
            (1, [b'second', b'third'])

        Raises:
            InvalidArgumentError: The position is beyond the end.
            QuorumLostError: No bookie of the last segment answers, and the metadata alone do not tell the end.
        """
        check_position(before)
        self._view.check_open()
        await self._layout.truncate(before)
        self._on_truncated(self)

    def _begin_at(self, position: int) -> None:
        """Another handle of this client has truncated the log there. Used only inside this package."""
        self._view.begin_at(position)

    async def give_up(self, ledger_id: int, *, last: int | None = None) -> Gap:
        """Skip a segment whose ledger was deleted by hand: its positions are lost.

        Followers get the returned ``Gap``. A writer of that segment loses its leadership. Of logs with
        ``layout="chain"``. ``last``: the last lost position, required if the list does not record where the segment
        ended. A position that any reader may have seen must not get another entry, so choose one that is certainly high
        enough.

        Examples:
            >>> async with client.create_log("payments", layout="chain") as log, log.lead() as writer:
            ...     await writer.add(b"first")
            ...     await writer.roll()
            ...     (extent,) = await log.extents(0, 0)
            ...     await client.delete_ledger(extent.ledger_id)
            ...     await log.give_up(extent.ledger_id, last=0)
            0
            Gap(first=0, last=0)

        Raises:
            InvalidArgumentError: The ledger is no segment of the log, or exists, or ``last`` is needed or wrong; or the
                log is a stream.
        """
        self._view.check_loop()
        return await self._layout.give_up(ledger_id, last)

    async def seal(self) -> int:
        """End the log for good: no client can add to it any more, and followers end after the last entry.

        Gives the end. Takes the log over first, so a leader loses its leadership.

        Examples:
            >>> await log.seal()
            3
            >>> [entry.payload async for entry in log.follow()]
            [b'first', b'second', b'third']

        Raises:
            InvalidArgumentError: The log is a chain, which cannot be sealed.
            LedgerRecoveryError: The log cannot be taken over now; the error names the bookies that are needed.
        """
        self._view.check_open()
        await self._layout.seal()
        return await self.refresh()

    async def set_retention(self, retention: Retention) -> None:
        """Change what the leader drops, once a minute, from the front.

        Examples:
            >>> await log.set_retention(octavo.Retention(bytes=10_000_000_000))
            >>> (await log.status()).retention.bytes
            10000000000
        """
        check_retention(retention)
        self._view.check_loop()
        await self._layout.set_retention(retention)

    async def would_drop(self, retention: Retention) -> int:
        """The position below which this retention would drop entries now, if it were the log's. Drops nothing.

        Examples:
            >>> await log.would_drop(octavo.Retention(seconds=3600))
            0
        """
        check_retention(retention)
        self._view.check_open()
        return await self._layout.would_drop(retention)

    async def retain(self) -> int:
        """Apply the retention now, for a log without a leader; gives the first position afterwards.

        Examples:
            >>> await log.retain()
            0

        Raises:
            QuorumLostError: No bookie of the last segment answers.
        """
        await self.refresh()
        await self._layout.retain()
        self._on_truncated(self)
        return self.first_position

    async def cursor(self, name: str) -> Cursor:
        """A consumer's stored position, or that to which this client has moved it by now.

        A new cursor stands at the beginning of the log.

        Examples:
            >>> cursor = await log.cursor("billing")
            >>> cursor.position
            0

        Raises:
            InvalidArgumentError: This can be no name of a cursor.
        """
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
        """All cursors of the log as they are stored, by name.

        Examples:
            >>> cursor = await log.cursor("billing")
            >>> await cursor.advance(2)
            >>> await cursor.flush()
            >>> {name: state.position for name, state in (await log.cursors()).items()}
            {'billing': 2}
        """
        self._view.check_open()
        return await read_cursors(self._store, self.log_id)

    # --- leading ------------------------------------------------------------------------------------------------------

    def lead(self, name: str | None = None) -> "Opening[LogWriter]":
        """Wait until no other client leads, then take the log over.

        ``async with log.lead() as writer``, or ``await`` it. ``name`` tells people who leads. A handle leads, or waits
        to lead, once at a time.

        Examples:
            >>> async with log.lead("host-1") as writer:
            ...     await writer.add(b"fourth")
            3

        Raises:
            InvalidArgumentError: The handle leads already, or waits to lead.
            LedgerRecoveryError: The log cannot be taken over now; the error names the bookies that are needed.
            NotEnoughBookiesError: There are too few bookies for the quorums of the log.
            LogSealedError: The log has been sealed.
            LogDamagedError: A segment is lost; see ``give_up()``.
        """
        self._view.check_open()
        if name is not None:
            check_text("the name of a leader", name)

        async def lead() -> "LogWriter":
            holder = name if name is not None else self._access.random_token()[:8]
            return await self._leading.lead(holder)

        return Opening(lead, "lead()")

    def take_over(self) -> "Opening[LogWriter]":
        """Take the log over at once, also from a client that leads: for users with an election of their own.

        Examples:
            >>> async with log.take_over() as writer:
            ...     await writer.add(b"fourth")
            3

        Raises:
            LedgerRecoveryError: The log cannot be taken over now; the error names the bookies that are needed.
            NotEnoughBookiesError: There are too few bookies for the quorums of the log.
            NotLeaderError: Another client has taken the log over meanwhile.
            LogSealedError: The log has been sealed.
            LogDamagedError: A segment is lost; see ``give_up()``.
        """
        self._view.check_open()

        async def take_over() -> "LogWriter":
            return await self._leading.take_over(None)

        return Opening(take_over, "take_over()")

    async def _read_keys(self, end: int) -> KnownKeys | None:
        return await self._keys.for_leader(end)

    # --- life ---------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End reads and followers of this handle, and store what its cursors moved.

        The log is not touched, and writers that this handle made go on. May be called twice, from any task.
        """
        self._view.check_loop()
        if self._view.closed:
            return
        await self._beginning.close()
        await self._view.close()
        await self._on_close(self)
