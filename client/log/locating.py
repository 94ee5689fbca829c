"""Positions of a log found in its ledgers: by time, as extents, and with the reader that gives them."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from octavo.client.log.read.beginning import Beginning
from octavo.client.log.read.outcomes import check_kept
from octavo.client.log.seam.entries import LogEntry, LogExtent
from octavo.client.log.seam.use import Use
from octavo.client.log.seam.view import LogView, Place, last_of
from octavo.client.read.reader import LedgerReader
from octavo.protocol.errors import LogDamagedError, NoSuchEntryError, NoSuchLedgerError


class Locator:
    """Finds positions for one handle. :class:`octavo.client.log.log.Log` says what each method guarantees."""

    def __init__(self, view: LogView, beginning: Beginning) -> None:
        self._view = view
        self._beginning = beginning

    async def position_at(self, wanted_ms: int, read: Callable[[int, int], Awaitable[list[LogEntry]]]) -> int:
        """The first position sealed at this time or later. ``read`` gives the entries of a range of positions."""
        # Times do not fall from entry to entry.
        low, high = self._view.sealed_bounds(wanted_ms)
        while low < high:
            middle = (low + high) // 2
            while (gap := self._view.gap_at(middle)) is not None:
                middle = gap[1] + 1
            if middle >= high:
                high = (low + high) // 2
                continue
            (entry,) = await read(middle, middle)
            if entry.sealed_at_ms < wanted_ms:
                low = middle + 1
            else:
                high = middle
        return low

    async def extents(self, first: int, last: int) -> list[LogExtent]:
        """The extents of readable positions, without those that were given up."""
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
                raise LogDamagedError(f"log {self._view.name}: no segment holds position {position}")
            stop = last if place.stop is None else min(last, place.stop - 1)
            found.append(LogExtent(place.ledger_id, place.base, position, stop))
            position = stop + 1
        return found

    def reader_at(self, position: int) -> AbstractAsyncContextManager[tuple[LogExtent, LedgerReader]]:
        """A reader that may be shared, and the positions that it gives from this one on."""
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
                    raise NoSuchEntryError(f"log {self._view.name}: no leader has added position {position} yet")
                return place, await stack.enter_async_context(self._view.reading(place))
            except NoSuchLedgerError as error:
                await self._view.explain_missing(position, error)
