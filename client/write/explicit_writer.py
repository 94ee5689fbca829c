"""The writer of a ledger whose entry ids its callers choose (rule W12).

What it is for: a stream that is numbered already, and is delivered here out of order or by several tasks. Every id from
0 on must be added, by whoever has it, once; :mod:`octavo.client.write.held_adds` holds what comes early, and an
ordinary :class:`~octavo.client.write.writer.LedgerWriter` is given the rest, in order. So nobody but this client sees
a difference: the ledger, its recovery and its readers are ordinary ones.
"""

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from octavo.client.options import ClientOptions
from octavo.client.write.adds import Payload, checked_payload, reject
from octavo.client.write.held_adds import AlreadyAddedError, Held, HeldAdds, TooFarAheadError
from octavo.client.write.writer import LedgerWriter
from octavo.metadata.model import LedgerMetadata
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


class ExplicitIdWriter:
    """Appends entries under ids of the callers' choice, each from 0 on exactly once, in any order. Made by
    :meth:`octavo.client.client.Client.create_ledger` with ``ids="explicit"``.

    Everything but :meth:`add`, :meth:`add_nowait` and what closing does with a gap is as in :class:`LedgerWriter`.
    """

    def __init__(self, make_writer: Callable[[Callable[[OctavoError], None]], LedgerWriter], options: ClientOptions):
        """``make_writer`` gives the ordinary writer; what it is passed is to be told that writer's failure."""
        self._held: HeldAdds[asyncio.Future[EntryId]] = HeldAdds(
            ahead_max=options.window_entries, bytes_max=options.window_bytes
        )
        self._gap_error: OctavoError | None = None
        self._writer = make_writer(self._writer_failed)
        self._loop = asyncio.get_running_loop()

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def id(self) -> LedgerId:
        """The ledger."""
        return self._writer.id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer knows them."""
        return self._writer.metadata

    @property
    def last_add_confirmed(self) -> EntryId | None:
        """The highest id such that it and all lower ones are acknowledged; None before the first."""
        return self._writer.last_add_confirmed

    @property
    def last_add_pushed(self) -> EntryId | None:
        """The highest id on its way to the bookies; None before the first. Held ones are not."""
        return self._writer.last_add_pushed

    @property
    def first_missing(self) -> EntryId:
        """The lowest id that nobody has added. Entries above it are held until it is there."""
        return EntryId(self._held.missing)

    @property
    def length(self) -> int:
        """Acknowledged payload bytes."""
        return self._writer.length

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` of this handle has ended."""
        return self._writer.closed

    def ledger_deleted(self) -> None:
        """As :meth:`LedgerWriter.ledger_deleted`."""
        self._writer.ledger_deleted()

    # --- adding -----------------------------------------------------------------------------------------------------

    async def add(self, payload: Payload, *, entry_id: int) -> EntryId:
        """Add an entry under this id; the id, once it and all lower ones are acknowledged.

        The lowest missing id is always taken, and waits for room in the window; one above it is held until those below
        it are there. Cancelling withdraws nothing.

        Raises as :meth:`LedgerWriter.add`; :class:`DuplicateEntryError` for an id that was added already;
        :class:`WouldBlock` for one more than a window ahead of the lowest missing one, which waiting would not help if
        it is the same caller who is to bring that; :class:`InvalidArgumentError` for what is no id.
        """
        return await self._offer(checked_payload(payload), entry_id)

    def add_nowait(self, payload: Payload, *, entry_id: int) -> asyncio.Future[EntryId]:
        """As :meth:`add`, but a future of the id, and :class:`WouldBlock` for the lowest missing id while the window is
        full. A failure that nobody asks the future about is raised by :meth:`close`."""
        checked = checked_payload(payload)
        if entry_id == self._held.missing:
            self._writer.check_room(len(checked))
        return self._offer(checked, entry_id)

    async def flush(self) -> None:
        """Return once every entry below the first missing one is acknowledged. Raises the writer's failure."""
        await self._writer.flush()

    def _offer(self, payload: bytes, entry_id: int) -> asyncio.Future[EntryId]:
        if type(entry_id) is not int or not 0 <= entry_id <= ID_MAX:
            raise InvalidArgumentError(f"an entry id is an integer from 0 to {ID_MAX}, not {entry_id!r}")
        self._writer.check_usable()
        future: asyncio.Future[EntryId] = self._loop.create_future()
        missing = self._held.missing
        try:
            going = self._held.offer(entry_id, payload, future)
        except AlreadyAddedError:
            raise DuplicateEntryError(
                f"ledger {self.id}: entry {entry_id} has been added already", may_have_happened=False
            ) from None
        except TooFarAheadError as error:
            raise WouldBlock(
                f"ledger {self.id}: entry {entry_id} is too far above {missing}, the lowest id that is missing: "
                f"{error}; add what is missing first"
            ) from None
        for add in going:
            self._writer.enqueue([add.payload], add.tag)
        return future

    def _writer_failed(self, error: OctavoError) -> None:
        for add in self._held.give_up():
            reject(add.tag, error, may_have_happened=False)

    # --- closing ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the ledger as :meth:`LedgerWriter.close` does. Entries held above a missing one are not part of it:
        their adds fail at once, as not happened, and so does this call in the end, naming the missing id.
        """
        held = self._held.give_up()
        if held:
            self._gap_error = LedgerClosedError(
                f"ledger {self.id}: closed before entry {self._held.missing} was added, which "
                f"{_named(held)} waited for; they did not happen",
                may_have_happened=False,
            )
            for add in held:
                reject(add.tag, self._gap_error, may_have_happened=False)
        await self._writer.close()
        if self._gap_error is not None:
            raise LedgerClosedError(self._gap_error.message, may_have_happened=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except OctavoError:
            if error is None:
                raise


def _named[T](held: Sequence[Held[T]]) -> str:
    ids = ", ".join(str(add.entry_id) for add in held[:_IDS_NAMED_MAX])
    more = len(held) - _IDS_NAMED_MAX
    return f"{'entry' if len(held) == 1 else 'entries'} {ids}" + (f" and {more} more" if more > 0 else "")
