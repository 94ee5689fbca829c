"""Iterates over the entries of a log, for one handle: from stretch to stretch, across rolls, leaders and truncations.

An iteration finds the stretch of a position in the log's metadata, reads there as far as the stretch goes, and goes on
behind it. It gives nothing below the beginning of the log, as the handle knows it (rule P7).
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager

from octavo.client.log.keys.form import keyed_of
from octavo.client.log.read.beginning import Beginning
from octavo.client.log.read.outcomes import check_kept
from octavo.client.log.seam.access import used_before
from octavo.client.log.seam.entries import Gap, LogEntry
from octavo.client.log.seam.view import LogView, last_of
from octavo.protocol.errors import (
    ClientClosedError,
    LogDamagedError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    OctavoError,
    QuorumLostError,
)


class EntryIteration:
    """See the module. Of one handle."""

    def __init__(self, view: LogView, beginning: Beginning, refresh: Callable[[], Awaitable[object]]) -> None:
        """``refresh`` asks for the end of now."""
        self._view = view
        self._name = view.name
        self._beginning = beginning
        self._refresh = refresh
        self.followers = 0
        """Iterations of :meth:`follow` that have begun and not ended."""

    async def _bounds(self, first: int | None, last: int | None) -> tuple[int, int, OctavoError | None]:
        """The first and the last position of an iteration, and why the log may go on behind them. The end is asked for
        unless ``last`` is known to lie below it (rule P14)."""
        unknown: OctavoError | None = None
        if last is None or last >= self._view.end:
            try:
                await self._refresh()
            except (QuorumLostError, MetadataUnavailableError) as error:
                if last is not None:
                    raise
                unknown = error
        start, end = self._view.first_position if first is None else first, self._view.end
        if last is not None and start <= last >= end:
            self._view.check_truncated(start)
            raise NoSuchEntryError(f"log {self._name}: position {last} is not below its end, {end}")
        return start, end - 1 if last is None else last, unknown

    async def entries(self, first: int | None, last: int | None) -> AsyncGenerator[LogEntry]:
        """As ``Log.entries``, whose arguments have been checked."""
        position, last, unknown = await self._bounds(first, last)
        has_keys = self._view.keys is not None
        while position <= last:
            self._view.check_open()
            await self._beginning.ask()
            self._view.check_truncated(position)
            check_kept(self._view, position)
            try:
                place = await self._view.locate(position)
                if place is None:
                    raise LogDamagedError(f"log {self._name}: no segment holds position {position}")
                stop = last if place.stop is None else min(last, place.stop - 1)
                base, term, ledger_id, made_at_ms = place.base, place.term, place.ledger_id, place.made_at_ms
                async with (
                    self._view.reading(place) as reader,
                    aclosing(reader.entries(position - base, stop - base)) as entries,
                ):
                    async for entry in entries:
                        if self._beginning.is_due:
                            await self._beginning.ask()
                        if position < self._view.first_position:
                            break
                        if entry.sealed_at_ms < made_at_ms:
                            raise used_before(self._name, ledger_id, f"entry {entry.entry_id} was sealed before it")
                        key, payload = keyed_of(entry.payload) if has_keys else (None, entry.payload)
                        yield LogEntry(position, payload, term, entry.sealed_at_ms, ledger_id, entry.entry_id, key)
                        position += 1
            except NoSuchLedgerError as error:
                await self._view.explain_missing(position, error)
            except ClientClosedError:
                self._view.check_open()  # says that the handle is closed, rather than a ledger's reader
                raise
        if unknown is not None:
            raise unknown

    @contextmanager
    def _counted_as_follower(self) -> Iterator[None]:
        self.followers += 1
        try:
            yield
        finally:
            self.followers -= 1

    def _gap_at(self, position: int, *, skip: bool) -> "Gap | None":
        """From this position on those that are not there any more. Without ``skip`` they are an error."""
        if not skip:
            self._view.check_truncated(position)
            check_kept(self._view, position)
            return None
        if position < self._view.first_position:
            return Gap(position, self._view.first_position - 1)
        lost = self._view.gap_at(position)
        return None if lost is None else Gap(position, lost[1])

    async def follow(self, first: int, *, skip: bool) -> "AsyncGenerator[LogEntry | Gap]":
        """As ``Log.follow``, from ``first`` on; ``skip``: what was truncated or given up, of which it yields gaps."""
        with self._counted_as_follower():
            position = first
            has_keys = self._view.keys is not None
            self._view.watch()
            while True:
                self._view.check_open()
                gap = self._gap_at(position, skip=skip)
                if gap is not None:
                    yield gap
                    position = gap.last + 1
                    continue
                seen = self._view.changes
                try:
                    place = await self._view.locate(position)
                    if place is None or position > last_of(place):
                        if self._view.is_sealed:
                            if position > self._view.end:
                                raise NoSuchEntryError(
                                    f"log {self._name} is sealed and ends at {self._view.end}: there will never be a "
                                    f"position {position}"
                                )
                            return
                        await self._view.wait_change(seen)
                        continue
                    base, term, ledger_id, made_at_ms = place.base, place.term, place.ledger_id, place.made_at_ms
                    async with self._view.reading(place) as reader, aclosing(reader.follow(position - base)) as entries:
                        async for entry in entries:
                            if position < self._view.first_position:
                                break
                            if entry.sealed_at_ms < made_at_ms:
                                raise used_before(self._name, ledger_id, f"entry {entry.entry_id} was sealed before it")
                            self._view.saw_end(position + 1)
                            key, payload = keyed_of(entry.payload) if has_keys else (None, entry.payload)
                            yield LogEntry(position, payload, term, entry.sealed_at_ms, ledger_id, entry.entry_id, key)
                            position += 1
                except NoSuchLedgerError as error:
                    await self._view.explain_missing(position, error)
                except ClientClosedError:
                    self._view.check_open()
                    raise
