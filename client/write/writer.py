"""The writer of one ledger, as an application sees it.

It is a front and a core. The *front* (:mod:`octavo.client.write.front.front`) has the adds: room, queue, the turn's
adds, futures. The *core* (:mod:`octavo.client.write.core`) seals them, has them replicated, changes the ensemble, and
settles the end. When the core fails, every unacknowledged add fails, in doubt if it was ever sent to a bookie (rule
W6), and every later add is refused.

An entry costs one future, two list appends and its seal; all other costs are per frame.
"""

import asyncio
from collections.abc import Callable, Iterable

from octavo.client.async_context import Closable
from octavo.client.same_loop import check_loop
from octavo.client.statistics.writers import LedgerWriterStatistics
from octavo.client.write.core import Core, CoreFront, WriterTools
from octavo.client.write.front.adds import Payload, checked_payload, copy_error, internal_error, reject
from octavo.client.write.front.batching import frames_of
from octavo.client.write.front.front import Front, FrontSide, short_way
from octavo.client.write.statistics import ledger_writer_statistics
from octavo.client.write.writer_life import WriterState
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.stream.any_metadata import as_ledger
from octavo.protocol.errors import LedgerClosedError, OctavoError, WouldBlock
from octavo.protocol.ids import EntryId, LedgerId

OVER = (WriterState.SETTLING, WriterState.CLOSED)
"""States in which nothing is acknowledged any more."""


class LedgerWriter(Closable):
    """Appends entries to one ledger. Made by ``Client.create_ledger()``.

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
        self._options = tools.options
        self._on_close = on_close
        self._on_failure = on_failure
        self._front = front = Front(
            tools.options,
            FrontSide(self._send_turn, self._check_usable, self._refuse_for_ever),
            tools.pool.turn.at_end,
            wait_seconds_max=tools.wait_seconds_max,
            clock=tools.frame_clock,
        )
        self._core = core = make_core(
            CoreFront(
                acknowledged=front.acknowledge,
                freed=front.free_room,
                failed=self._failed,
                reject_pending=self._reject_pending,
                is_adding=self._is_adding,
                go_on=self._send_turn,
                drain=self.force,
                ended=self._ended,
            )
        )
        front.begin_at(core.pipeline.next_entry_id + core.position_shift)
        front.room_is_held = core.copies.hold_room or core.deferred is not None

    # --- properties -----------------------------------------------------------------------------------------------

    @property
    def id(self) -> LedgerId:
        """The ledger's id."""
        return self._core.id

    @property
    def metadata(self) -> LedgerMetadata:
        """The latest metadata of the ledger that this writer has seen or written."""
        return as_ledger(self._core.own_metadata.stored)

    @property
    def last_add_confirmed(self) -> EntryId | None:
        """The highest id such that its entry and all lower ones are acknowledged; None before the first."""
        return self._core.last_add_confirmed

    @property
    def last_add_pushed(self) -> EntryId | None:
        """The highest id assigned to an add; None before the first. An add that waits for room has no id yet."""
        end = self._core.pipeline.next_entry_id + len(self._front.payloads)
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
        check_loop(self._front.loop)
        return ledger_writer_statistics(self._core, self._front)

    def __repr__(self) -> str:
        lac = self.last_add_confirmed
        confirmed = "nothing confirmed" if lac is None else f"confirmed up to entry {lac}"
        return f"<{type(self).__name__} of ledger {self.id}, {self._core.life.state.value}, {confirmed}>"

    # --- adding ---------------------------------------------------------------------------------------------------

    @short_way
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
        return EntryId(await self._front.begin(payload))

    def add_nowait(self, payload: Payload) -> asyncio.Future[EntryId]:
        """Append an entry without waiting, and return a future of its id.

        The future gets every failure of the entry; if the application never retrieves it, ``close()`` raises it.

        Examples:
            >>> future = ledger.add_nowait(b"payload")
            >>> await future
            0

        Raises:
            WouldBlock: The window is full; nothing is queued.
            OctavoError: At once what ``add()`` refuses a payload with, or a closed or failed writer.
        """
        payload = checked_payload(payload)
        self._check_usable()
        self._check_room(len(payload))
        front = self._front
        future = front.create_future()
        front.put(payload, future)
        return future

    def _check_room(self, size: int) -> None:
        """Raise :class:`WouldBlock` if an add of ``size`` bytes would have to wait. Used only inside this package."""
        if self._front.would_wait(size):
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
            OctavoError: As ``add()``.
        """
        return await self._front.add_many(payloads)

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
        front, life = self._front, self._core.life
        check_loop(front.loop)
        if life.failure is not None:
            raise copy_error(life.failure)
        if front.pending:
            self._check_not_over()
            acknowledged: asyncio.Future[None] = front.loop.create_future()
            front.answer_up_to(front.end + front.queued_entries, acknowledged)
            await acknowledged

    def _check_not_over(self) -> None:
        """Raise why nothing is acknowledged any more."""
        if self._core.life.state in OVER:
            raise copy_error(
                self._core.life.close_error or LedgerClosedError(f"ledger {self.id}: this writer is closed")
            )

    async def force(self) -> None:
        """Return once every add made so far is durable on Qa bookies, including those that wait for room.

        With ``sync="immediate"`` that is ``flush()``. Cancelling the call stops nothing. After a failure the adds
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
        end = pipeline.next_entry_id + len(self._front.payloads) + self._front.queued_entries
        if end == pipeline.next_entry_id and not pipeline.pending:
            return
        self._check_not_over()
        forced = deferred.wait_forced(end - 1)
        self._send_turn()
        deferred.force()
        await forced

    def _check_usable(self) -> None:
        """Raise the error with which an add would be refused: the writer's failure, or :class:`LedgerClosedError`. Used
        only inside this package."""
        self._core.check_usable()

    def _refuse_for_ever(self, error: OctavoError) -> None:
        self._core.life.failure = error

    # --- sending --------------------------------------------------------------------------------------------------

    def _send_turn(self) -> None:
        """Send the adds that have been collected; they stay in the front while the core takes none."""
        core = self._core
        if core.pipeline.next_entry_id >= core.limit:
            core.reach_limit()
            return
        batch = self._front.take_batch()
        if batch is None:
            return
        payloads = batch.payloads
        try:
            for start, stop in frames_of(payloads) if len(payloads) > 1 else ((0, 1),):
                core.send(payloads if start == 0 and stop == len(payloads) else payloads[start:stop])
        except Exception as error:  # a broken invariant: nothing may be added any more
            core.fail(internal_error(self.id, error))
            raise

    # --- what the core tells ----------------------------------------------------------------------------------------

    def _is_adding(self) -> bool:
        """As :meth:`CoreFront.is_adding`."""
        return bool(self._front.payloads)

    def _failed(self, error: OctavoError) -> None:
        """As :meth:`CoreFront.failed`."""
        if self._on_failure is not None:
            self._on_failure(error)

    def _reject_pending(self, error: OctavoError, in_doubt: bool) -> bool:
        """As :meth:`CoreFront.reject_pending`: every unacknowledged add fails. ``in_doubt``: the error of an add that
        may be on a bookie is marked so (rule W6)."""
        front = self._front
        sent = self._core.pipeline.highest_sent + self._core.position_shift if in_doubt else -1
        futures, queue = front.give_up_unsent()
        batches, flushes = front.give_up_sent()
        for batch in batches:
            for position, future in enumerate(batch.futures, batch.first):
                if future is not None:
                    reject(future, error, may_have_happened=position <= sent)
        for future in futures:
            if future is not None:
                reject(future, error, may_have_happened=False)
        for waiting in queue:
            # Of an add_many, the part that found room may have been sent.
            reject(waiting.future, error, may_have_happened=in_doubt and waiting.at > 0)
        for _, flushed in flushes:
            reject(flushed, error, may_have_happened=in_doubt)
        return bool(batches or futures or queue)

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
        check_loop(self._front.loop)
        self._front.stop_accepting()
        await self._core.close()
