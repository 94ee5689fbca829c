"""Gives up the ranges of streams that other bookies hold instead of this one (rule C11).

A stream goes on, and its next term may name any bookie, so it is never dropped as a whole (rule C8). But a range that
has ended is asked for only where the metadata name a bookie in it, and only a bookie itself writes its name there,
under the lock of the ledger (rule C1). So a range below the last fragment goes when the metadata have not named this
bookie in it for some time, and say so again under that lock: before the mark is written, and once more when it is
durable, before anything is removed. What repair does with the stream meanwhile begins the time anew.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from itertools import batched
from typing import Final

import structlog
from octavo.bookie.storage.storage import Storage
from octavo.metadata import MetadataStore
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.metadata.updates.cluster_release import Release, finalized_release
from octavo.metadata.updates.paging import parts_of
from octavo.protocol.errors import MetadataError, MetadataUnavailableError, NoSuchLedgerError
from octavo.protocol.ids import BookieId, LedgerId

log = structlog.get_logger("octavo.bookie")

RELIEF_RELEASE: Final = Release(0, 1)
"""The first release that reads marks: until the cluster is finalized at it, none is written, because an earlier one
could not start on the journal."""

MARK_SECONDS_MAX: Final = 30.0
"""Longest time that a mark is waited for. One that comes later does no harm, and the next round finds it durable: the
rounds, which free space, must not wait for a journal that waits for space."""

LOOK_SECONDS: Final = 6 * 3600.0
"""Time between two looks at the pages of a stream: each is a read of the metadata."""

RANGES_MAX: Final = 100_000
"""Ranges remembered; further ones are found when these are gone."""

_AT_ONCE: Final = 32

type Range = tuple[int, int]

type Due = dict[LedgerId, dict[Range, float]]
"""Stream -> range -> when the metadata were first seen not to name this bookie in it."""


class RelievedRanges:
    """The ranges that wait, and how they go. Used by :class:`ReplacedCopies`, one call at a time."""

    def __init__(
        self,
        storage: Storage,
        store: MetadataStore,
        bookie_id: BookieId,
        *,
        check_metadata: Callable[[], Awaitable[None]],
        keep_seconds: float,
        release: Release = RELIEF_RELEASE,
        mark_seconds_max: float = MARK_SECONDS_MAX,
        ranges_max: int = RANGES_MAX,
    ) -> None:
        """``check_metadata`` raises :class:`MetadataError` if the metadata cannot be relied upon."""
        self._storage = storage
        self._store = store
        self._bookie_id = bookie_id
        self._check_metadata = check_metadata
        self._keep_seconds = keep_seconds
        self._release = release
        self._mark_seconds_max = mark_seconds_max
        self._ranges_max = ranges_max
        self._look_seconds = min(LOOK_SECONDS, keep_seconds / 4)
        self._candidates: Due = {}
        self._looked_at: dict[LedgerId, float] = {}
        self.ranges = 0
        """Given up since the start; the next two likewise."""
        self.entries = 0
        self.bytes = 0

    @property
    def waiting(self) -> int:
        """Streams of which ranges will be given up unless something changes."""
        return len(self._candidates)

    def keep(self, ledger_id: LedgerId) -> None:
        """See :meth:`ReplacedCopies.keep`."""
        self._candidates.pop(ledger_id, None)
        self._looked_at.pop(ledger_id, None)

    async def look(self, stream: EitherMetadata, now: float) -> dict[Range, float] | None:
        """The ranges of a stream that may go and of which something is held, each with the time since when; None if it
        is too early for another look. Changes nothing: see :meth:`note`."""
        ledger_id = stream.ledger_id
        if stream.pages and now < self._looked_at.get(ledger_id, float("-inf")) + self._look_seconds:
            return None
        known = self._candidates.get(ledger_id, {})
        found = {}
        for one in await self._unnamed_in(stream):
            if await self._storage.reader.holds_any(ledger_id, *one):
                found[one] = known.get(one, now)
            await asyncio.sleep(0)
        return found

    def note(self, ledger_id: LedgerId, found: dict[Range, float], now: float) -> None:
        """Remember what a look has found."""
        self._looked_at[ledger_id] = now
        self._candidates.pop(ledger_id, None)
        if found and sum(map(len, self._candidates.values())) + len(found) <= self._ranges_max:
            self._candidates[ledger_id] = found

    def due(self, now: float) -> Due:
        """The ranges that have waited for long enough, in order, each with the time since when."""
        due = {}
        for ledger_id, ranges in self._candidates.items():
            old = {one: since for one, since in sorted(ranges.items()) if now - since >= self._keep_seconds}
            if old:
                due[ledger_id] = old
        return due

    async def relieve(self, due: Due) -> int:
        """Give this up where nothing speaks against it; of how many streams. A range whose time has begun again since
        it was due stays. Raises :class:`MetadataError`, :class:`MetadataUnavailableError` and the storage's errors."""
        if not due or await finalized_release(self._store) < self._release:
            return 0
        before = self.entries
        streams = 0
        for page in batched(due.items(), _AT_ONCE):
            streams += await self._relieve_some(dict(page))
        if streams:
            log.info(
                "ranges of streams given up: other bookies hold them", streams=streams, entries=self.entries - before
            )
        return streams

    async def _relieve_some(self, due: Due) -> int:
        locks, relief = self._storage.copy_locks, self._storage.relief
        async with contextlib.AsyncExitStack() as stack:
            held = {}
            for ledger_id, ranges in due.items():
                if locks.is_held(ledger_id):  # it is being repaired here, which may take hours
                    self.keep(ledger_id)
                elif ledger_id in self._candidates:
                    await stack.enter_async_context(locks.hold(ledger_id))
                    held[ledger_id] = ranges
            wanted = await self._still_unnamed(held)
            marks = {ledger_id: relief.mark(ledger_id, max(ranges)[1] + 1) for ledger_id, ranges in wanted.items()}
            if not marks:
                return 0
            done, _ = await asyncio.wait(marks.values(), timeout=self._mark_seconds_max)
            for mark in done:
                mark.result()
            await self._check_metadata()
            marked = {ledger_id: ranges for ledger_id, ranges in wanted.items() if marks[ledger_id] in done}
            wanted = await self._still_unnamed(marked)
            removed = await relief.remove({ledger_id: list(ranges) for ledger_id, ranges in wanted.items()})
            for ledger_id, amount in removed.items():
                self.ranges += len(wanted[ledger_id])
                self.entries += amount.entries
                self.bytes += amount.bytes
                left = self._candidates.pop(ledger_id, {})
                if left := {one: since for one, since in left.items() if one not in wanted[ledger_id]}:
                    self._candidates[ledger_id] = left
            return len(removed)

    async def _still_unnamed(self, due: Due) -> Due:
        """Those of the ranges that metadata read now do not give this bookie, and whose time has not begun again
        since they were due: with a look of the same round a stream that was kept meanwhile is known again. Called under
        their locks."""
        # After it this handle's reads show every change that was made before (rule M3).
        absent = set(await self._store.confirm_absent(list(due)))
        found = {}
        for ledger_id, ranges in due.items():
            found[ledger_id] = [] if ledger_id in absent else await self._unnamed_of(ledger_id, ranges)
        still: Due = {}
        for ledger_id, unnamed in found.items():
            known = self._candidates.get(ledger_id, {})
            same = {one: due[ledger_id][one] for one in unnamed if known.get(one) == due[ledger_id][one]}
            if same and self._storage.holds_entries(ledger_id):
                still[ledger_id] = same
        return still

    async def _unnamed_of(self, ledger_id: LedgerId, ranges: Collection[Range]) -> list[Range]:
        try:
            stream = (await self._store.read_either(ledger_id)).value
            if stream.is_closed:
                return []  # it is dropped, once it names this bookie nowhere
            unnamed = set(await self._unnamed_in(stream))
        except NoSuchLedgerError:
            return []
        except MetadataUnavailableError:
            raise
        except MetadataError as error:
            log.warning("ranges of a stream not given up: its metadata cannot be read", reason=error.message)
            return []
        return [one for one in ranges if one in unnamed]

    async def _unnamed_in(self, stream: EitherMetadata) -> list[Range]:
        """As :func:`unnamed_ranges`; none of a stream with a page that cannot be understood, which may name any bookie,
        and must not keep the space of other streams."""
        try:
            return await unnamed_ranges(self._store, stream, self._bookie_id)
        except MetadataUnavailableError:
            raise
        except MetadataError as error:
            log.warning("ranges of a stream not given up: a page cannot be read", reason=error.message)
            return []


async def unnamed_ranges(store: MetadataStore, stream: EitherMetadata, bookie_id: BookieId) -> list[Range]:
    """The ranges of an open stream below its last fragment that do not name the bookie, in order. Raises as
    :func:`parts_of`."""
    last_first = stream.last_fragment.first_entry_id
    found: list[Range] = []
    async with contextlib.aclosing(parts_of(store, stream)) as parts:
        async for part in parts:
            found += [
                (one.first, one.last)
                for one in part.settled_ranges()
                if bookie_id not in one.bookies and not one.is_empty and one.last < last_first
            ]
    return found
