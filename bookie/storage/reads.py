"""Reading entries back: from the write cache, from what has been flushed, from the index and the entry logs.

A negative is given only for ids that every layer, consulted in one consistent moment and verified, does not hold.
An id that damage of index or entry, an I/O error or a short file hides is *unknown* (rule R2).
"""

import asyncio
import contextlib
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import structlog
from octavo.bookie.entrylog.logs import EntryLogs
from octavo.bookie.index.index import Index, Lookup, gaps_between
from octavo.bookie.index.runs import Run, merge_runs, ranges_of, run_bytes, sizes_between, slice_entries, span
from octavo.bookie.storage.cache import WriteCache
from octavo.bookie.storage.checkpoint import Checkpointer
from octavo.bookie.storage.damage import DamageReports
from octavo.protocol.entries import RESIDUE
from octavo.protocol.errors import BookieStorageError
from octavo.protocol.held_entries import Holdings
from octavo.protocol.light_dataclass import dataclass

log = structlog.get_logger()

_IDENTITY = struct.Struct(">8xQQ")
"""Ledger id and entry id in the header of a sealed entry."""

_SPARSE = 16
"""Where a smaller share than one in this number of a stretch's bytes is wanted, they are read one by one."""

_REPORTED_MAX = 10_000
"""Damaged places remembered, so that each is logged once."""

_LIST_IDS = 1 << 20
"""Ids looked up at a time when the entries of a ledger are listed."""

_FEW_RANGES = 256
"""Intervals in a window after which the next window is wider."""

_MISSING_IDS = 1 << 20
"""Ids of which one answer tells what is missing. Gaps do not count."""

_WINDOW_IDS = 1 << 18
_WINDOW_IDS_STRIPED = 1 << 14
"""Ids looked at between two turns of the loop when missing ones are listed. Where ids are striped over the ensemble,
each id held is a step of Python."""

_VERIFIED_ENTRIES = 4096
_VERIFIED_BYTES = 8 * 1024 * 1024
"""Entries read back at a time: bounds the memory of it."""

_PIECE_BYTES = 1024 * 1024
"""Held bytes read at a time to be compared with an add; at least one entry."""

_LAC_ENTRIES_TRIED = 16
"""Damaged entries stepped over in search of the one that carries the LAC; a lower LAC is safe, only older."""


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Every id asked for in ``first..last_covered`` is in ``entries``, in an interval of ``unknown``, or absent."""

    first: int
    last_covered: int
    entries: list[bytes]
    unknown: list[tuple[int, int]]


class Selection(NamedTuple):
    """Entries wanted of one run, by position."""

    run: Run
    positions: Sequence[int]


class _Reads:
    """Reads that began in one period. ``over``: done when the period has passed and the last of them has ended."""

    __slots__ = ("over", "running")

    def __init__(self) -> None:
        self.running = 0
        self.over: asyncio.Future[None] | None = None


class Amount(NamedTuple):
    """How much is held of something."""

    entries: int
    bytes: int
    """Of the entries as they are stored, without what files add to them."""


class EntryReader:
    """Looks ids up in all layers, newest first, and reads their bytes."""

    def __init__(
        self, cache: WriteCache, checkpointer: Checkpointer, index: Index, logs: EntryLogs, damage: DamageReports
    ) -> None:
        self._cache = cache
        self._checkpointer = checkpointer
        self._index = index
        self._logs = logs
        self._damage = damage
        self._reported: set[tuple[Path, int]] = set()
        self._hidden_reported: set[tuple[int, int, int]] = set()
        self._reads = _Reads()
        self._quiescing = asyncio.Lock()
        self.entries_damaged = 0

    @contextlib.contextmanager
    def places_kept(self) -> Iterator[None]:
        """Inside the block, places that are looked up can be read: no log is removed before the block is left."""
        reads = self._reads
        reads.running += 1
        try:
            yield
        finally:
            reads.running -= 1
            if not reads.running and reads.over is not None and not reads.over.done():
                reads.over.set_result(None)

    async def quiesce(self) -> None:
        """Returns once every block of :meth:`places_kept` that has been entered before the call is left."""
        async with self._quiescing:
            reads, self._reads = self._reads, _Reads()
            if reads.running:
                reads.over = asyncio.get_running_loop().create_future()
                await reads.over

    def memory_runs(self, ledger_id: int, first: int, last: int) -> list[Run]:
        """The part of an interval that the layers above the index hold."""
        found: list[Run] = []
        for run_map in (*self._cache.layers(ledger_id), *self._checkpointer.layers(ledger_id)):
            runs = run_map.between(first, last)
            if runs:
                found = list(merge_runs(runs, found)) if found else runs
        return found

    async def lookup(self, ledger_id: int, first: int, last: int, wanted: int | None = None) -> Lookup:
        """The runs of all layers. With ``wanted``, the index is spared if memory holds that many ids (all of them)."""
        runs = self.memory_runs(ledger_id, first, last)
        if wanted is not None and sum(len(run.ids) for run in runs) == wanted:
            return Lookup(runs, [])
        # No await stands between the line above and the moment in which the index fixes its list of parts: a checkpoint
        # that moved runs from one to the other in between would hide them from both.
        lookup = await self._index.lookup(ledger_id, first, last, runs)
        for hidden in lookup.unknown:
            self._report_hidden(ledger_id, *hidden)
        return lookup

    def latest(self, ledger_id: int, first: int, last: int, *, entries_max: int, bytes_max: int) -> list[bytes] | None:
        """See ``LedgerReader.latest``: the usual case of a follower, without a step in the index."""
        entries: list[bytes] = []
        expected = first
        for run in self.memory_runs(ledger_id, first, last):
            if not isinstance(run.place, bytes) or run.ids[0] != expected or run.ids[-1] - expected != len(run.ids) - 1:
                return None
            expected = run.ids[-1] + 1
            allowed = _affordable(run, range(len(run.ids)), entries_max, bytes_max, not entries)
            sealed = slice_entries(run.place, run.offset, sizes_between(run, 0, allowed))
            entries += sealed
            if allowed < len(run.ids):
                return entries
            entries_max -= allowed
            bytes_max -= sum(map(len, sealed))
        return entries if expected == last + 1 else None

    async def read(
        self,
        ledger_id: int,
        first: int,
        last: int,
        *,
        highest: int | None,
        stripe: tuple[int, Sequence[int]],
        entries_max: int,
        bytes_max: int,
        unsure: Callable[[], Sequence[tuple[int, int]]] = tuple,
    ) -> ReadResult:
        """See ``LedgerReader.read``. No id above ``highest`` is held. What is not held of the intervals ``unsure``
        may have been lost, so it is unknown (rules B4 and D2). They are asked for once everything has been looked up:
        what is given up meanwhile may be gone already, and must not be denied (rules C8 and C11)."""
        if highest is None or first > highest:
            return ReadResult(first, last, [], _unsure_parts([(first, last)], unsure()))
        with self.places_kept():
            return await self._read(
                ledger_id, first, last, highest=highest, stripe=stripe,
                entries_max=entries_max, bytes_max=bytes_max, unsure=unsure,
            )  # fmt: skip

    async def _read(
        self,
        ledger_id: int,
        first: int,
        last: int,
        *,
        highest: int,
        stripe: tuple[int, Sequence[int]],
        entries_max: int,
        bytes_max: int,
        unsure: Callable[[], Sequence[tuple[int, int]]],
    ) -> ReadResult:
        modulus, residues = stripe
        window_last = min(last, highest, first + -(-entries_max * modulus // len(residues)) - 1)
        wanted = window_last - first + 1 if modulus == 1 else None
        lookup = await self.lookup(ledger_id, first, window_last, wanted)
        last_covered = last if window_last >= highest else window_last
        if not lookup.runs and not lookup.unknown and window_last < (held_last := min(last, highest)):
            # A gap: the answer goes up to its end, however wide it is.
            next_id = await self._next_id(ledger_id, window_last + 1, held_last)
            last_covered = next_id - 1 if next_id <= held_last else last
        not_denied = unsure()
        selections: list[Selection] = []
        for run in lookup.runs:
            positions = _positions(run, modulus, residues)
            allowed = _affordable(run, positions, entries_max, bytes_max, not selections)
            entries_max -= allowed
            bytes_max -= (
                sum(run.sizes[at] for at in positions[:allowed])
                if not isinstance(run.sizes, int)
                else (allowed * run.sizes)
            )
            if allowed:
                selections.append(Selection(run, positions[:allowed]))
            if allowed < len(positions):
                last_covered = run.ids[positions[allowed]] - 1
                break
        entries: list[bytes] = []
        unknown = [(low, min(high, last_covered)) for low, high in lookup.unknown if low <= last_covered]
        if not_denied and not_denied[0][0] <= last_covered:
            gaps = _unsure_parts(gaps_between(lookup.runs, first, last_covered), not_denied)
            unknown += [gap for gap in gaps if _names_any(*gap, modulus, residues)]
        for selection in selections:
            found = await self.fetch(ledger_id, selection)
            if None in found:
                ids = [selection.run.ids[at] for at in selection.positions]
                unknown += [(entry_id, entry_id) for entry_id, sealed in zip(ids, found, strict=True) if sealed is None]
                entries += [sealed for sealed in found if sealed is not None]
            else:
                entries += found  # type: ignore[arg-type]  # no None among them
        return ReadResult(first, last_covered, entries, _joined(unknown))

    async def fetch(self, ledger_id: int, selection: Selection) -> list[bytes | None]:
        """The sealed entries selected, None for each that is damaged or cannot be read."""
        run, positions = selection
        if not positions:
            return []
        start, stop = positions[0], positions[-1] + 1
        if isinstance(run.place, bytes):
            entries = slice_entries(run.place, span(run, 0, start).size + run.offset, sizes_between(run, start, stop))
            return list(entries) if len(entries) == len(positions) else [entries[at - start] for at in positions]
        if stop - start > _SPARSE * len(positions):
            scattered: list[bytes | None] = []
            for at in positions:
                scattered += await self._read_stretch(ledger_id, run, at, at + 1)
            return scattered
        stretch = await self._read_stretch(ledger_id, run, start, stop)
        return stretch if len(stretch) == len(positions) else [stretch[at - start] for at in positions]

    async def _read_stretch(self, ledger_id: int, run: Run, start: int, stop: int) -> list[bytes | None]:
        """Adjacent entries of a run in an entry log: one read, sliced and verified."""
        assert isinstance(run.place, int)
        offset, size = span(run, start, stop)
        sizes = sizes_between(run, start, stop)
        try:
            data = await self._logs.read(run.place, offset, size)
        except OSError as error:
            if self.report(run.place, offset, stop - start, f"cannot be read: {error}"):
                self._damage.report(ledger_id, run.ids[start], run.ids[stop - 1])
            return [None] * (stop - start)
        entries = slice_entries(data, 0, sizes)
        if len(data) == size and set(map(google_crc32c.value, entries)) == {RESIDUE}:
            ledger_ids, entry_ids = zip(*map(_IDENTITY.unpack_from, entries), strict=True)
            if set(ledger_ids) == {ledger_id} and all(map(int.__eq__, entry_ids, run.ids[start:stop])):
                return list(entries)
        verified: list[bytes | None] = []
        for sealed, expected, entry_id in zip(entries, sizes, run.ids[start:stop], strict=True):
            intact = (
                len(sealed) == expected
                and google_crc32c.value(sealed) == RESIDUE
                and _IDENTITY.unpack_from(sealed) == (ledger_id, entry_id)
            )
            if not intact and self.report(run.place, offset, 1, f"ledger {ledger_id} entry {entry_id} does not verify"):
                self._damage.report(ledger_id, entry_id, entry_id)
            verified.append(sealed if intact else None)
            offset += expected
        return verified

    def report(self, log_id: int, offset: int, count: int, what: str) -> bool:
        """Count and log damage once per location; returns whether it was new."""
        place = (self._logs.path(log_id), offset)
        if place in self._reported or len(self._reported) >= _REPORTED_MAX:
            return False
        self._reported.add(place)
        self.entries_damaged += count
        log.error("entry unreadable", path=str(place[0]), offset=offset, reason=what)
        return True

    def _report_hidden(self, ledger_id: int, first: int, last: int) -> None:
        """Damage of the index hides ids of the ledger: report each interval once. The index has logged the place."""
        hidden = (ledger_id, first, last)
        if hidden not in self._hidden_reported and len(self._hidden_reported) < _REPORTED_MAX:
            self._hidden_reported.add(hidden)
            self._damage.report(*hidden)

    async def _next_id(self, ledger_id: int, first: int, last: int) -> int:
        """The lowest id from ``first`` on that may be held; ``last + 1``: none up to there. Terms are 2^35 ids apart:
        what lies between costs a look-up in each layer, and not one for each id."""
        layers = (*self._cache.layers(ledger_id), *self._checkpointer.layers(ledger_id))
        found = [run_map.first_id(first) for run_map in layers]
        # As in :meth:`lookup`: no await between the two.
        found.append(await self._index.first_id(self._index.parts, ledger_id, first))
        return min([last + 1, *(entry_id for entry_id in found if entry_id is not None)])

    async def highest_entry(self, ledger_id: int, highest: int | None, *, lowest: int = 0) -> bytes | None:
        """The intact entry with the highest id, which carries the highest LAC; a lower one where some are damaged. None
        below ``lowest`` counts."""
        with self.places_kept():
            return await self._highest_entry(ledger_id, highest, lowest)

    async def _highest_entry(self, ledger_id: int, highest: int | None, lowest: int) -> bytes | None:
        width, last, tried = 64, highest, 0
        while last is not None and last >= lowest:
            first = max(lowest, last - width + 1)
            for run in reversed((await self.lookup(ledger_id, first, last)).runs):
                for at in reversed(range(len(run.ids))):
                    sealed = (await self.fetch(ledger_id, Selection(run, (at,))))[0]
                    tried += 1
                    if sealed is not None or tried >= _LAC_ENTRIES_TRIED:
                        return sealed
            last, width = first - 1, width * 64
        return None

    async def missing(
        self, ledger_id: int, first: int, last: int, *, highest: int | None, stripe: tuple[int, Sequence[int]]
    ) -> Holdings:
        """Which of the ids of the stripe are not held, from the index alone: no entry is read."""
        modulus, residues = stripe
        width = _WINDOW_IDS if modulus == 1 else _WINDOW_IDS_STRIPED
        ids_left = _MISSING_IDS
        missing: list[tuple[int, int]] = []
        unknown: list[tuple[int, int]] = []
        held_last = first - 1 if highest is None else min(last, highest)
        while first <= last and ids_left > 0:
            next_id = await self._next_id(ledger_id, first, held_last) if first <= held_last else held_last + 1
            if next_id > held_last:
                missing.append((first, last))
                first = last + 1
                break
            if next_id > first:
                missing.append((first, next_id - 1))
            first = next_id
            window_last = min(held_last, first + width - 1)
            lookup = await self.lookup(ledger_id, first, window_last)
            missing += _without(gaps_between(lookup.runs, first, window_last), lookup.unknown)
            unknown += lookup.unknown
            ids_left -= window_last - first + 1
            first = window_last + 1
            await asyncio.sleep(0)
        return Holdings(first - 1, _named(missing, modulus, residues), _named(unknown, modulus, residues))

    async def verified(
        self, ledger_id: int, first: int, last: int, *, highest: int | None, stripe: tuple[int, Sequence[int]]
    ) -> Holdings:
        """As :meth:`missing`, but what is held is read back; an entry that does not verify is unknown."""
        result = await self.read(
            ledger_id, first, last, highest=highest, stripe=stripe,
            entries_max=_VERIFIED_ENTRIES, bytes_max=_VERIFIED_BYTES,
        )  # fmt: skip
        gaps = _without(_gaps_of(result.entries, first, result.last_covered), result.unknown)
        return Holdings(result.last_covered, _named(gaps, *stripe), _named(result.unknown, *stripe))

    async def ranges(
        self, ledger_id: int, first: int, last: int, *, ranges_max: int | None = None
    ) -> list[tuple[int, int]]:
        """The ids of ``first..last`` that are held, as maximal intervals. With ``ranges_max``, not all if there are
        more than that. Raises :class:`BookieStorageError` where damage hides them.

        The loop has a turn after each window. Windows are wide where the intervals are, and narrow where the ids are
        striped over the ensemble: then each id held is a step of Python (rule B12).
        """
        found: list[tuple[int, int]] = []
        width = _WINDOW_IDS_STRIPED
        while (first := await self._next_id(ledger_id, first, last)) <= last:
            if ranges_max is not None and len(found) > ranges_max:
                break
            before = len(found)
            window_last = min(last, first + width - 1)
            lookup = await self.lookup(ledger_id, first, window_last)
            if lookup.unknown:
                raise BookieStorageError(
                    f"ledger {ledger_id}: the index is damaged for entries {lookup.unknown[0][0]} to "
                    f"{lookup.unknown[-1][1]}; copy the ledger from its other bookies",
                    may_have_happened=False,
                )
            for low, high in ranges_of(lookup.runs):
                if found and found[-1][1] + 1 == low:
                    found[-1] = (found[-1][0], high)
                else:
                    found.append((low, high))
            first = window_last + 1
            width = min(2 * width, _LIST_IDS) if len(found) - before <= _FEW_RANGES else _WINDOW_IDS_STRIPED
            await asyncio.sleep(0)
        return found

    async def bytes_by_log(self, ledger_id: int, last: int) -> dict[int, int] | None:
        """The bytes of the entries up to ``last`` that are held in each entry log, from the index alone. None where
        damage of the index hides some."""
        found: dict[int, int] = {}
        first = 0
        while (first := await self._next_id(ledger_id, first, last)) <= last:
            window_last = min(last, first + _LIST_IDS - 1)
            lookup = await self.lookup(ledger_id, first, window_last)
            if lookup.unknown:
                return None
            for run in lookup.runs:
                if isinstance(run.place, int):
                    found[run.place] = found.get(run.place, 0) + run_bytes(run)
            first = window_last + 1
            await asyncio.sleep(0)
        return found

    async def holds_any(self, ledger_id: int, first: int, last: int) -> bool:
        """Whether one of these ids may be held."""
        return await self._next_id(ledger_id, first, last) <= last

    async def amount(self, ledger_id: int, first: int, last: int) -> Amount:
        """How much of ``first..last`` is held, from the index alone. What damage of the index hides does not count."""
        entries = size = 0
        while (first := await self._next_id(ledger_id, first, last)) <= last:
            window_last = min(last, first + _LIST_IDS - 1)
            for run in (await self.lookup(ledger_id, first, window_last)).runs:
                entries += len(run.ids)
                size += run_bytes(run)
            first = window_last + 1
            await asyncio.sleep(0)
        return Amount(entries, size)


def _gaps_of(sealed_entries: Sequence[bytes], first: int, last: int) -> list[tuple[int, int]]:
    """The intervals of ``first..last`` without an id of these entries, which are in order."""
    gaps: list[tuple[int, int]] = []
    for sealed in sealed_entries:
        entry_id = _IDENTITY.unpack_from(sealed)[1]
        if entry_id > first:
            gaps.append((first, entry_id - 1))
        first = entry_id + 1
    if first <= last:
        gaps.append((first, last))
    return gaps


def _without(ranges: Sequence[tuple[int, int]], removed: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of intervals that are in none of the others. Both are in order and apart."""
    kept: list[tuple[int, int]] = []
    for low, high in ranges:
        start = low
        for removed_low, removed_high in removed:
            if removed_low > high:
                break
            if removed_high >= start:
                if removed_low > start:
                    kept.append((start, removed_low - 1))
                start = removed_high + 1
        if start <= high:
            kept.append((start, high))
    return kept


def _unsure_parts(gaps: list[tuple[int, int]], unsure: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The common parts of the intervals of either."""
    return [
        (max(low, first), min(high, last))
        for first, last in unsure
        for low, high in gaps
        if high >= first and low <= last
    ]


def _names_any(first: int, last: int, modulus: int, residues: Sequence[int]) -> bool:
    """Whether an id of ``first..last`` was asked for."""
    return last - first + 1 >= modulus or any(entry_id % modulus in residues for entry_id in range(first, last + 1))


def _named(ranges: list[tuple[int, int]], modulus: int, residues: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The intervals joined, those that name no id of the stripe left out."""
    return tuple(interval for interval in _joined(ranges) if _names_any(*interval, modulus, residues))


def _positions(run: Run, modulus: int, residues: Sequence[int]) -> Sequence[int]:
    if modulus == 1:
        return range(len(run.ids))
    named = frozenset(residues)
    chosen = [at for at, entry_id in enumerate(run.ids) if entry_id % modulus in named]
    return range(len(run.ids)) if len(chosen) == len(run.ids) else chosen


def _affordable(run: Run, positions: Sequence[int], entries_max: int, bytes_max: int, first_of_all: bool) -> int:
    """How many of the positions fit the limits; one at least if nothing has been taken yet."""
    count = min(len(positions), entries_max)
    if not count:
        return 0
    if isinstance(run.sizes, int):
        count = min(count, max(0, bytes_max) // run.sizes)
    else:
        count = bisect_right(list(accumulate(run.sizes[at] for at in positions[:count])), bytes_max)
    return max(count, 1) if first_of_all else count


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return joined


def pieces_of(run: Run, positions: list[int]) -> Iterator[list[int]]:
    """The positions in groups whose entries have about :data:`_PIECE_BYTES`; at least one in each."""
    piece: list[int] = []
    size = 0
    for at in positions:
        size += run.sizes if isinstance(run.sizes, int) else run.sizes[at]
        if piece and size > _PIECE_BYTES:
            yield piece
            piece, size = [], run.sizes if isinstance(run.sizes, int) else run.sizes[at]
        piece.append(at)
    if piece:
        yield piece
