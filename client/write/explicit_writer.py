"""The writer of a ledger whose entry ids are chosen by the application (rule W12).

It serves a stream that is numbered already and arrives out of order, or from several tasks. Every id from 0 on must be
added exactly once. :mod:`octavo.client.write.front.held_adds` holds adds that come early; an ordinary
:class:`~octavo.client.write.writer.LedgerWriter` gets the adds in the order of their ids. So only this client knows the
difference: for bookies, recovery and readers the ledger is an ordinary one.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from octavo.client.async_context import Closable
from octavo.client.options import ClientOptions
from octavo.client.same_loop import check_loop
from octavo.client.statistics.writers import LedgerWriterStatistics
from octavo.client.write.core import Core
from octavo.client.write.front.adds import Payload, checked_payload, reject
from octavo.client.write.front.front import Waiting
from octavo.client.write.front.held_adds import AlreadyAddedError, Held, HeldAdds, TooFarAheadError
from octavo.client.write.writer import LedgerWriter
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.protocol.errors import (
    DuplicateEntryError,
    InvalidArgumentError,
    LedgerClosedError,
    OctavoError,
    WouldBlock,
)
from octavo.protocol.ids import ID_MAX, EntryId, LedgerId

_IDS_NAMED_MAX = 5
"""How many ids an error's message names."""


class ExplicitIdWriter(Closable):
    """Appends entries under ids that the application chooses: each id from 0 on exactly once, in any order.

    Made by ``Client.create_ledger()`` with ``ids="explicit"``. Behaves as ``LedgerWriter``,
    except for ``add()``, ``add_nowait()`` and a gap at ``close()``.

    Examples:
        >>> second = ledger.add_nowait(b"second", entry_id=1)
        >>> await ledger.add(b"first", entry_id=0)
        0
        >>> await second
        1
        >>> await ledger.close()
    """

    def __init__(self, make_writer: Callable[[Callable[[OctavoError], None]], LedgerWriter], options: ClientOptions):
        """``make_writer`` makes the ordinary writer; its argument is to be called with that writer's failure."""
        self._held: HeldAdds[asyncio.Future[EntryId]] = HeldAdds(
            ahead_max=options.window_entries, bytes_max=options.window_bytes
        )
        self._gap_error: OctavoError | None = None
        self._writer = make_writer(self._writer_failed)
        self._loop = asyncio.get_running_loop()

    # --- properties -------------------------------------------------------------------------------------------------

    @property
    def id(self) -> LedgerId:
        """The ledger's id."""
        return self._writer.id

    @property
    def metadata(self) -> LedgerMetadata:
        """The latest metadata of the ledger that this writer has seen or written."""
        return self._writer.metadata

    @property
    def last_add_confirmed(self) -> EntryId | None:
        """The highest id such that its entry and all lower ones are acknowledged; None before the first."""
        return self._writer.last_add_confirmed

    @property
    def last_add_pushed(self) -> EntryId | None:
        """The highest id on its way to the bookies; None before the first. Does not count entries that are held."""
        return self._writer.last_add_pushed

    @property
    def first_missing(self) -> EntryId:
        """The lowest id that has not been added. Entries above it are held until it is."""
        return EntryId(self._held.missing)

    @property
    def length(self) -> int:
        """Payload bytes of all acknowledged entries."""
        return self._writer.length

    @property
    def closed(self) -> bool:
        """Whether closing this writer is over."""
        return self._writer.closed

    def statistics(self) -> LedgerWriterStatistics:
        """As ``LedgerWriter.statistics()``; entries that are held for lower ids count as queued.

        Examples:
            >>> future = ledger.add_nowait(b"second", entry_id=1)
            >>> ledger.statistics().adds.queued_entries
            1
            >>> await ledger.add(b"first", entry_id=0)
            0
        """
        statistics, held = self._writer.statistics(), self._held
        adds = statistics.adds
        return replace(
            statistics,
            adds=replace(
                adds,
                queued_entries=adds.queued_entries + len(held.held_ids),
                queued_bytes=adds.queued_bytes + held.held_bytes,
            ),
        )

    def __repr__(self) -> str:
        inner = repr(self._writer).removeprefix("<LedgerWriter").removesuffix(">")
        return f"<ExplicitIdWriter{inner}, first missing entry {self.first_missing}>"

    @property
    def _core(self) -> Core:
        """Used only inside this package."""
        return self._writer._core

    # --- adding -----------------------------------------------------------------------------------------------------

    async def add(self, payload: Payload, *, entry_id: int) -> EntryId:
        """Add an entry under ``entry_id`` and return the id, once the entry and all before it are acknowledged.

        The lowest missing id is always accepted, and waits for room in the window. An entry above it is held until all
        lower ids are there. Cancelling the call does not withdraw the entry.

        Examples:
            >>> await ledger.add(b"first", entry_id=0)
            0

        Raises:
            InvalidArgumentError: ``entry_id`` is not an entry id.
            DuplicateEntryError: It was added already.
            WouldBlock: It is more than a window above the lowest missing id. The call does not wait in that case,
                because the same task may be the one to add the missing id.
            OctavoError: As ``LedgerWriter.add()``.
        """
        return await self._offer(checked_payload(payload), entry_id)

    def add_nowait(self, payload: Payload, *, entry_id: int) -> asyncio.Future[EntryId]:
        """As ``add()``, but returns a future of the id.

        If the application does not look at a future that failed, ``close()`` raises the failure.

        Examples:
            >>> future = ledger.add_nowait(b"first", entry_id=0)
            >>> await future
            0

        Raises:
            WouldBlock: The window is full, also for the lowest missing id.
            OctavoError: At once what ``add()`` refuses an id or a payload with, or a closed or failed writer.
        """
        checked = checked_payload(payload)
        if entry_id == self._held.missing:
            self._writer._check_room(len(checked))
        return self._offer(checked, entry_id)

    async def flush(self) -> None:
        """Return once every entry below the first missing one is acknowledged.

        Examples:
            >>> future = ledger.add_nowait(b"first", entry_id=0)
            >>> await ledger.flush()
            >>> future.result()
            0

        Raises:
            OctavoError: The writer's failure.
        """
        await self._writer.flush()

    def _offer(self, payload: bytes, entry_id: int) -> asyncio.Future[EntryId]:
        if type(entry_id) is not int or not 0 <= entry_id <= ID_MAX:
            raise InvalidArgumentError(f"an entry id is an integer from 0 to {ID_MAX}, not {entry_id!r}")
        check_loop(self._loop)
        self._writer._check_usable()
        future: asyncio.Future[EntryId] = self._loop.create_future()
        missing = self._held.missing
        try:
            released = self._held.offer(entry_id, payload, future)
        except AlreadyAddedError:
            raise DuplicateEntryError(
                f"ledger {self.id}: entry {entry_id} has been added already", may_have_happened=False
            ) from None
        except TooFarAheadError as error:
            raise WouldBlock(
                f"ledger {self.id}: entry {entry_id} is too far above the lowest missing entry {missing}: {error}; "
                "add the missing entries first"
            ) from None
        for add in released:
            self._writer._front.enqueue(Waiting((add.payload,), add.tag))
        return future

    def _writer_failed(self, error: OctavoError) -> None:
        for add in self._held.give_up():
            reject(add.tag, error, may_have_happened=False)

    # --- closing ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the ledger as ``LedgerWriter.close()`` does.

        Entries that are held above a missing id do not become part of it: their adds fail at once (they did not
        happen).

        Raises:
            LedgerClosedError: Entries were held; it names the missing id. The ledger is closed.
            OctavoError: As ``LedgerWriter.close()``.
        """
        check_loop(self._loop)
        held = self._held.give_up()
        if held:
            self._gap_error = LedgerClosedError(
                f"ledger {self.id}: closed before entry {self._held.missing} was added; "
                f"{_named(held)} above it did not happen",
                may_have_happened=False,
            )
            for add in held:
                reject(add.tag, self._gap_error, may_have_happened=False)
        await self._writer.close()
        if self._gap_error is not None:
            raise LedgerClosedError(self._gap_error.message, may_have_happened=False)


def _named[T](held: Sequence[Held[T]]) -> str:
    ids = ", ".join(str(add.entry_id) for add in held[:_IDS_NAMED_MAX])
    more = len(held) - _IDS_NAMED_MAX
    return f"{'entry' if len(held) == 1 else 'entries'} {ids}" + (f" and {more} more" if more > 0 else "")
