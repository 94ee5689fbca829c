"""The writer of one ledger, as an application sees it.

The adds of one turn of the event loop are collected, then sealed, cut into frames and handed to the replication, which
reports in order what is acknowledged. Two windows bound the unacknowledged adds, one by their number and one by their
bytes. Adds beyond the windows wait in the *queue*, first in, first out; while the queue is not empty every later add
joins it.

::

    add -> [queue] -> the turn's adds -> runs -> acknowledged
           no room     not sealed yet     pending

Everything below the window happens in the writer's core (:mod:`octavo.client.write.core`): sealing, sending, ensemble
changes, the end. When the core fails, every unacknowledged add fails, in doubt if it was ever sent to a bookie (rule
W6), and every later add is refused.

An entry costs one future, two list appends and its seal; all other costs are per frame.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from octavo.client.async_context import Closable
from octavo.client.same_loop import check_loop
from octavo.client.statistics.writers import AddStatistics, LedgerWriterStatistics
from octavo.client.write.core import Core, CoreFront, WriterTools
from octavo.client.write.front.adds import (
    Payload,
    Queued,
    checked_payload,
    checked_payloads,
    copy_error,
    frames_of,
    internal_error,
    reject,
)
from octavo.client.write.front.window import AddWindow, Futures
from octavo.client.write.statistics import ledger_writer_statistics, payload_bytes
from octavo.client.write.write_path import EMPTY_DEQUE
from octavo.client.write.writer_life import WriterState
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.protocol.errors import LedgerClosedError, OctavoError, WouldBlock
from octavo.protocol.ids import EntryId, LedgerId
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

OVER = (WriterState.SETTLING, WriterState.CLOSED)
"""States in which nothing is acknowledged any more."""


class LedgerWriter(AddWindow, Closable):
    """Appends entries to one ledger. Made by :meth:`octavo.client.client.Client.create_ledger`.

    An async context manager: leaving the block waits for pending adds, closes the ledger and raises the first failure.
    Leaving it on an exception closes the ledger with the entries acknowledged so far and never masks that exception.
    Used from one event loop.

    Examples:
        >>> await ledger.add(b"payload")
        0
        >>> await ledger.close()
        >>> ledger.metadata.state.name, ledger.metadata.last_entry_id
        ('CLOSED', 0)
    """

    _create_future: Callable[[], asyncio.Future[EntryId]]

    def __init__(
        self,
        tools: WriterTools,
        make_core: Callable[[CoreFront], Core],
        *,
        on_close: Callable[["LedgerWriter"], object] | None = None,
        on_failure: Callable[[OctavoError], object] | None = None,
    ) -> None:
        """``make_core`` makes the core of this front. ``on_close`` is called when closing is over, with or without an
        error; ``on_failure`` when the writer fails, in the same step."""
        super().__init__(tools.options, wait_seconds_max=tools.wait_seconds_max)
        self._on_close = on_close
        self._on_failure = on_failure
        self._queue: deque[Queued] = EMPTY_DEQUE
        self._queued_entries = 0
        self._unacknowledged: deque[tuple[int, Futures]] = EMPTY_DEQUE
        """First position and futures of each frame pushed."""
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = EMPTY_DEQUE
        """Last position that each caller of :meth:`flush` waits for."""
        self._core = core = make_core(
            CoreFront(
                acknowledged=self._acknowledged,
                freed=self._freed,
                failed=self._failed,
                reject_pending=self._reject_pending,
                is_adding=self._is_adding,
                go_on=self._send_turn,
                drain=self.force,
                ended=self._ended,
            )
        )
        self._room_is_held = core.copies.hold_room or core.deferred is not None
        """Whether the core tells when room is free; otherwise it is when adds are acknowledged."""

    # --- properties -----------------------------------------------------------------------------------------------

    @property
    def id(self) -> LedgerId:
        """The ledger's id."""
        return self._core.id

    @property
    def metadata(self) -> LedgerMetadata:
        """The latest metadata of the ledger that this writer has seen or written."""
        return self._core.metadata

    @property
    def last_add_confirmed(self) -> EntryId | None:
        """The highest id such that its entry and all lower ones are acknowledged; None before the first."""
        return self._core.last_add_confirmed

    @property
    def last_add_pushed(self) -> EntryId | None:
        """The highest id assigned to an add; None before the first. An add that waits for room has no id yet."""
        end = self._core.pipeline.next_entry_id + len(self._payloads)
        return EntryId(end - 1) if end else None

    @property
    def length(self) -> int:
        """Payload bytes of all acknowledged entries."""
        return self._core.length

    @property
    def closed(self) -> bool:
        """Whether closing this writer is over. False while it closes, and after a failure until it is closed."""
        return self._core.closed

    def statistics(self) -> LedgerWriterStatistics:
        """Statistics for metrics and health checks: adds queued, under way and acknowledged; missing copies.

        It sends no request, and is computed when it is called: adds pay nothing for it.

        Examples:
            >>> future = ledger.add_nowait(b"payload")
            >>> ledger.statistics().adds.collected_entries
            1
            >>> await future
            0
            >>> ledger.statistics().replication.last_add_confirmed
            0
        """
        return ledger_writer_statistics(self._core, self._add_statistics())

    def _add_statistics(self) -> AddStatistics:
        core, options = self._core, self._options
        pipeline, is_over = core.pipeline, core.life.failure is not None or core.closed
        collected_bytes = payload_bytes(self._payloads)
        taken_entries = options.window_entries - self._free_entries - len(self._payloads)
        taken_bytes = options.window_bytes - self._free_bytes - collected_bytes
        return AddStatistics(
            queued_entries=self._queued_entries,
            queued_bytes=sum(payload_bytes(queued.payloads[queued.at :]) for queued in self._queue),
            collected_entries=len(self._payloads),
            collected_bytes=collected_bytes,
            unacknowledged_entries=0 if is_over else pipeline.unacknowledged,
            unacknowledged_bytes=0 if is_over else pipeline.unacknowledged_bytes,
            in_doubt_entries=0,
            held_entries=0 if is_over else taken_entries - pipeline.unacknowledged,
            held_bytes=0 if is_over else taken_bytes - pipeline.unacknowledged_bytes,
            free_entries=self._free_entries,
            free_bytes=self._free_bytes,
        )

    def __repr__(self) -> str:
        lac = self.last_add_confirmed
        confirmed = "nothing confirmed" if lac is None else f"confirmed up to entry {lac}"
        return f"<{type(self).__name__} of ledger {self.id}, {self._core.life.state.value}, {confirmed}>"

    # --- adding ---------------------------------------------------------------------------------------------------

    async def add(self, payload: Payload) -> EntryId:
        """Append an entry and return its id, once it and all entries before it are acknowledged (rule I1).

        Waits for room in the window (options ``window_entries`` and ``window_bytes``). Cancelling the call does not
        withdraw the entry: it is added all the same. ``payload`` may be a bytearray or memoryview, which is copied; it
        has at most ``octavo.protocol.limits.ENTRY_PAYLOAD_BYTES_MAX`` bytes. When the writer has failed, each add gets
        the failure; its ``may_have_happened`` says whether the entry may be in the ledger (rule W6).

        Examples:
            >>> await ledger.add(b"first"), await ledger.add(b"second")
            (0, 1)

        Raises:
            EntryTooLargeError: The payload is too large.
            InvalidArgumentError: The payload is no bytes.
            LedgerClosedError: The writer is closed.
            LedgerFencedError: Another client recovers the ledger.
            QuorumLostError: Too few bookies have the entry.
            MetadataUnavailableError: A failed bookie could not be replaced.
            NoSuchLedgerError: The ledger has been deleted.
            UnauthorizedError: A bookie refuses the key of the ledger.
            DuplicateEntryError: A bookie holds other bytes at this id.
        """
        # The same as `_put_into_window`, written out: this is the only path whose cost counts for every single entry.
        if type(payload) is bytes and self._skips_queue and self._free_entries > 0:
            size = len(payload)
            if size <= self._free_bytes and size <= ENTRY_PAYLOAD_BYTES_MAX:
                self._free_entries -= 1
                self._free_bytes -= size
                future = self._create_future()
                self._payloads.append(payload)
                self._futures.append(future)
                if not self._turn_scheduled:
                    self._turn_scheduled = True
                    self._loop.call_soon(self._end_turn)
                try:
                    return await future
                except RuntimeError:  # asyncio's, about a future of another event loop
                    check_loop(self._loop, may_have_happened=True)
                    raise
        check_loop(self._loop)
        payload = checked_payload(payload)
        self._check_usable()
        future = self._create_future()
        self._enqueue([payload], future)
        return EntryId(await future)

    def add_nowait(self, payload: Payload) -> asyncio.Future[EntryId]:
        """Append an entry without waiting, and return a future of its id.

        The future gets every failure of the entry; if the application never retrieves it, :meth:`close` raises it.

        Examples:
            >>> future = ledger.add_nowait(b"payload")
            >>> await future
            0

        Raises:
            WouldBlock: The window is full; nothing is queued.
            OctavoError: At once what :meth:`add` refuses a payload with, or a closed or failed writer.
        """
        payload = checked_payload(payload)
        self._check_usable()
        self._check_room(len(payload))
        future = self._create_future()
        self._put_into_window(payload, future)
        return future

    def _check_room(self, size: int) -> None:
        """Raise :class:`WouldBlock` if an add of ``size`` bytes would have to wait. Used only inside this package."""
        if self._queue or not self._has_room(size):
            raise WouldBlock(
                f"ledger {self.id}: the window of {self._options.window_entries} entries and "
                f"{self._options.window_bytes} bytes is full; wait for an earlier add"
            )

    async def add_many(self, payloads: Iterable[Payload]) -> range:
        """Append entries under consecutive ids and return the range of ids, once the last is acknowledged.

        The entries may exceed the window; those beyond it wait for room. All payloads are checked before the first is
        queued. After a failure the first few entries may have been added.

        Examples:
            >>> await ledger.add_many([b"first", b"second"])
            range(0, 2)

        Raises:
            OctavoError: As :meth:`add`.
        """
        check_loop(self._loop)
        checked = checked_payloads(payloads)
        self._check_usable()
        if not checked:
            end = self._next_position + len(self._payloads)
            return range(end, end)
        future = self._create_future()
        self._enqueue(checked, future)
        last = await future
        return range(last + 1 - len(checked), last + 1)

    async def flush(self) -> None:
        """Return once every add made so far is acknowledged, including those that wait for room.

        Examples:
            >>> future = ledger.add_nowait(b"payload")
            >>> await ledger.flush()
            >>> future.result()
            0

        Raises:
            LedgerClosedError: The writer was closed before they were.
            OctavoError: The writer's failure.
        """
        check_loop(self._loop)
        life = self._core.life
        if life.failure is not None:
            raise copy_error(life.failure)
        collected = len(self._payloads) + self._queued_entries
        if self._core.pipeline.unacknowledged + collected:
            self._check_not_over()
            acknowledged: asyncio.Future[None] = self._loop.create_future()
            if self._flushes is EMPTY_DEQUE:
                self._flushes = deque()
            self._flushes.append((self._next_position + collected - 1, acknowledged))
            self._hurry()
            await acknowledged

    def _check_not_over(self) -> None:
        """Raise why nothing is acknowledged any more."""
        if self._core.life.state in OVER:
            raise copy_error(
                self._core.life.close_error or LedgerClosedError(f"ledger {self.id}: this writer is closed")
            )

    @property
    def _next_position(self) -> int:
        """Of the next add that is sent."""
        return self._core.pipeline.next_entry_id + self._core.position_shift

    async def force(self) -> None:
        """Return once every add made so far is durable on Qa bookies, including those that wait for room.

        With ``sync="immediate"`` that is :meth:`flush`. Cancelling the call stops nothing. After a failure the adds
        that have returned since the last force may be lost (rule W10).

        Examples:
            >>> async with client.create_ledger(sync="deferred") as ledger:
            ...     await ledger.add(b"payload")
            ...     await ledger.force()
            0

        Raises:
            OctavoError: The writer's failure.
        """
        deferred, pipeline = self._core.deferred, self._core.pipeline
        if deferred is None:
            await self.flush()
            return
        if self._core.life.failure is not None:
            raise copy_error(self._core.life.failure)
        end = pipeline.next_entry_id + len(self._payloads) + self._queued_entries
        if end == pipeline.next_entry_id and not pipeline.pending:
            return
        self._check_not_over()
        forced = deferred.wait_forced(end - 1)
        self._send_turn()
        deferred.force()
        await forced

    def _enqueue(self, payloads: Sequence[bytes], future: asyncio.Future[EntryId]) -> None:
        """Append checked payloads to the queue, whether there is room or not; ``future`` gets the id of the last. The
        caller has called :meth:`_check_usable`, and limits the size of the queue. Used only inside this package."""
        if self._queue is EMPTY_DEQUE:
            self._queue = deque()
        self._queue.append(Queued(payloads, future))
        self._queued_entries += len(payloads)
        self._skips_queue = False
        self._admit()

    def _admit(self) -> None:
        """Move adds from the queue into the window while there is room, in order."""
        queue = self._queue
        while queue:
            queued = queue[0]
            payloads, at, last = queued.payloads, queued.at, len(queued.payloads) - 1
            while at <= last and self._has_room(len(payloads[at])):
                self._put_into_window(payloads[at], queued.future if at == last else None)
                at += 1
            self._queued_entries -= at - queued.at
            queued.at = at
            if at <= last:
                return
            queue.popleft()
        self._skips_queue = self._core.life.state is WriterState.OPEN

    def _check_usable(self) -> None:
        """Raise the error with which an add would be refused: the writer's failure, or :class:`LedgerClosedError`. Used
        only inside this package."""
        self._core.check_usable()

    def _refuse_for_ever(self, error: OctavoError) -> None:
        self._core.life.failure = error

    # --- pushing and acknowledging ----------------------------------------------------------------------------------

    @property
    def _frames_under_way(self) -> int:
        return len(self._unacknowledged)

    def _send_turn(self) -> None:
        """Send the adds that have been collected; they stay here while the core takes none."""
        core = self._core
        if core.pipeline.next_entry_id >= core.limit:
            core.reach_limit()
            return
        payloads, futures = self._take_turn()
        if not payloads:
            return
        if self._unacknowledged is EMPTY_DEQUE:
            self._unacknowledged = deque()
        pushed = 0
        try:
            for start, stop in frames_of(payloads):
                whole = start == 0 and stop == len(payloads)
                position = core.pipeline.next_entry_id + core.position_shift
                self._unacknowledged.append((position, futures if whole else futures[start:stop]))
                pushed = stop
                core.send(payloads if whole else payloads[start:stop])
        except Exception as error:  # a broken invariant: nothing may be added any more
            self._futures = futures[pushed:]
            core.fail(internal_error(self.id, error))
            raise

    # --- what the core tells ----------------------------------------------------------------------------------------

    def _acknowledged(self, first: int, last: int, payload_bytes: int) -> None:
        """As :meth:`CoreFront.acknowledged`: tell the callers of these adds, and of :meth:`flush`; what waits may be
        sent now."""
        if not self._room_is_held:
            self._free_entries += last + 1 - first
            self._free_bytes += payload_bytes
        unacknowledged = self._unacknowledged
        while first <= last:
            run_first, futures = unacknowledged[0]
            if run_first + len(futures) - 1 <= last:
                unacknowledged.popleft()
            if run_first != first or len(futures) > last + 1 - first:
                futures = futures[first - run_first : last + 1 - run_first]
            for position, future in enumerate(futures, first):
                # Done already if the caller was cancelled; the entry was added all the same.
                if future is not None and not future.done():
                    future.set_result(position)
            first += len(futures)
        self._frame_acknowledged(self._flushes)
        if self._queue:
            self._admit()
        while self._flushes and self._flushes[0][0] <= last:
            acknowledged = self._flushes.popleft()[1]
            if not acknowledged.done():
                acknowledged.set_result(None)

    def _freed(self, entries: int, payload_bytes: int) -> None:
        """As :meth:`CoreFront.freed`."""
        self._free_entries += entries
        self._free_bytes += payload_bytes
        if self._queue:
            self._admit()

    def _is_adding(self) -> bool:
        """As :meth:`CoreFront.is_adding`."""
        return bool(self._payloads)

    def _failed(self, error: OctavoError) -> None:
        """As :meth:`CoreFront.failed`."""
        if self._on_failure is not None:
            self._on_failure(error)

    def _reject_pending(self, error: OctavoError, in_doubt: bool) -> bool:
        """As :meth:`CoreFront.reject_pending`: every unacknowledged add fails. ``in_doubt``: the error of an add that
        may be on a bookie is marked so (rule W6)."""
        self._skips_queue = False
        sent = self._core.pipeline.highest_sent + self._core.position_shift if in_doubt else -1
        unacknowledged, self._unacknowledged = self._unacknowledged, EMPTY_DEQUE
        futures, self._futures = self._futures, []
        queue, self._queue = self._queue, EMPTY_DEQUE
        flushes, self._flushes = self._flushes, EMPTY_DEQUE
        self._payloads = []
        self._queued_entries = 0
        for first, run_futures in unacknowledged:
            for position, future in enumerate(run_futures, first):
                if future is not None:
                    reject(future, error, may_have_happened=position <= sent)
        for future in futures:
            if future is not None:
                reject(future, error, may_have_happened=False)
        for queued in queue:
            # Of an add_many, the part that found room may have been sent.
            reject(queued.future, error, may_have_happened=in_doubt and queued.at > 0)
        for _, flushed in flushes:
            reject(flushed, error, may_have_happened=in_doubt)
        return bool(futures or queue)

    def _ended(self) -> None:
        """As :meth:`CoreFront.ended`."""
        if self._on_close is not None:
            self._on_close(self)

    # --- closing ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for pending adds, then close the ledger at the last acknowledged entry.

        It takes at most ``close_timeout_seconds``. Any task may call it, any number of times: all calls share one
        closing, and cancelling a call does not stop it. An add that is still pending after three quarters of the time
        fails when the end of the ledger is written: that add did not happen (rule W9).

        Raises:
            UnderReplicatedError: Copies are missing that the ledger requires (rule G4). Nothing is lost: the writer
                takes no adds and goes on copying, and the next call tries again.
            OctavoError: The first failure: of an add, otherwise of closing.
        """
        check_loop(self._loop)
        self._skips_queue = False
        await self._core.close()
