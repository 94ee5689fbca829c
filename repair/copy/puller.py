"""Pulls sealed entries from other bookies and stores them here, verbatim (rules C3, C6 and C7).

:mod:`octavo.repair.copy.copying` decides which member is asked for what; this module asks, verifies and stores. A few
windows of a range are under way at a time, so that the next entries travel while the last ones are synced. The bytes
that are under way are bounded for all ledgers of the bookie together.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from octavo.client.wire.connection import BookieConnection
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.ledger.stored import SettledRange, StoredLedger
from octavo.protocol.entries import Digest, digest_code_of, header_of, verify_batch, verify_explicit_lac
from octavo.protocol.errors import (
    BookieShuttingDownError,
    BookieStorageError,
    ClientClosedError,
    OctavoError,
    ProtocolError,
)
from octavo.protocol.ids import BookieId, LedgerId
from octavo.protocol.limits import ENTRIES_PER_FRAME_MAX
from octavo.protocol.messages import CAPABILITY_REPAIR, LacAnswer, Read, ReadAnswer, ReadFlag, ReadLac
from octavo.repair.base.local_bookie import LocalCopies
from octavo.repair.copy.copying import WINDOW_ENTRIES, Ask, CopyWindow, Unsound, ids_of_runs
from octavo.repair.copy.pacing import ByteLimit, Pace

CHUNKS_AT_ONCE: Final = 64
"""Answers under way for all ledgers of a bookie: bounds their memory."""

STORED_AT_ONCE: Final = 2
"""Pieces handed to the own journal at a time: an ordinary add waits for no more of them. While one is synced, the other
gathers, so that the journal is never idle."""

WINDOWS_AT_ONCE: Final = 3
"""Windows of one range under way: while one is stored, two are read."""

LOCAL_FAILURES: Final = (BookieStorageError, BookieShuttingDownError, ClientClosedError)
"""Errors of this bookie's own storage or life: no verdict about any copy follows from them."""


@dataclass(slots=True)
class Copied:
    """How much a bookie has copied since its process began."""

    entries: int = 0
    bytes: int = 0


class Puller:
    """Makes ranges whole in this bookie's storage."""

    def __init__(
        self, copies: LocalCopies, pool: ConnectionPool, pace: Pace, *, request_timeout_seconds: float
    ) -> None:
        self._copies = copies
        self._pool = pool
        self._pace = pace
        self.timeout_seconds = self._timeout_seconds = request_timeout_seconds
        """Time that a bookie has to answer."""
        self._chunks = asyncio.Semaphore(CHUNKS_AT_ONCE)
        self._storing = ByteLimit(lambda: STORED_AT_ONCE * pace.piece_bytes)
        self.copied = Copied()

    async def make_whole(
        self,
        metadata: StoredLedger,
        settled: SettledRange,
        position: int,
        preference: Sequence[int],
        *,
        is_urgent: Callable[[], bool] = lambda: False,
    ) -> Unsound | None:
        """Copy everything that the bookie at ``position`` should hold of the range and does not hold soundly.

        What it held before is read back (rule C3). Returns what could not be copied, or None when the range is whole
        and durable. Raises :class:`DuplicateEntryError` when another bookie has other intact bytes under an id that
        is held here (rule C6), and the errors of the own storage. While ``is_urgent`` says so, no rate is kept.
        """
        if settled.is_empty:
            return None
        quorums = metadata.quorums_at(settled.first)
        residues = quorums.residues_at(position)
        worst: Unsound | None = None
        windows: set[asyncio.Task[Unsound | None]] = set()
        try:
            async for ids in self._windows(metadata.ledger_id, settled, quorums.ensemble_size, residues):
                if len(windows) >= WINDOWS_AT_ONCE:
                    done, windows = await asyncio.wait(windows, return_when=asyncio.FIRST_COMPLETED)
                    worst = _worse(worst, [task.result() for task in done])
                window = CopyWindow(quorums, position, ids, preference)
                windows.add(asyncio.ensure_future(self._fill(metadata, settled, window, is_urgent)))
            while windows:
                done, windows = await asyncio.wait(windows, return_when=asyncio.FIRST_COMPLETED)
                worst = _worse(worst, [task.result() for task in done])
        finally:
            for task in windows:
                task.cancel()
            if windows:
                await asyncio.gather(*windows, return_exceptions=True)
        return worst

    async def ends_right(self, metadata: StoredLedger, settled: SettledRange, position: int) -> bool:
        """Whether the last entry of a range, if the slot holds it, has the length that the metadata say (rule
        C3)."""
        quorums = metadata.quorums_at(settled.first)
        if settled.is_empty or not quorums.write_mask(settled.last) >> position & 1:
            return True
        if settled.last < self._copies.first_kept(metadata.ledger_id):
            return True  # trimmed by newer metadata: nothing is left to compare (rule U5)
        sealed = await self._copies.read_entry(metadata.ledger_id, settled.last)
        return sealed is not None and header_of(sealed).length == settled.length_after

    async def last_add_confirmed(self, metadata: StoredLedger, bookies: Sequence[BookieId]) -> int | None:
        """The highest LAC that this bookie or one of ``bookies`` shows, verified as far as that can be done without a
        password; None when none shows one. Of a stream only LACs of its current term count: one of a later term says
        that the term has an end, and not where."""
        ledger_id = metadata.ledger_id
        shown = [self._copies.last_add_confirmed(ledger_id)]
        for answer in await asyncio.gather(*(self._read_lac(ledger_id, name) for name in bookies)):
            if answer is not None:
                shown += _confirmed_in(ledger_id, metadata, answer)
        return max((lac for lac in shown if lac is not None and metadata.counts_lac(lac)), default=None)

    async def _read_lac(self, ledger_id: LedgerId, source: BookieId) -> LacAnswer | None:
        connection = self._pool.get(source)
        try:
            await connection.wait_writable(timeout_seconds=self._timeout_seconds)
            request = ReadLac(ledger_id, b"", _repair_flag(connection), 0, None, 0, 0, 0)
            answer = await connection.request(request, timeout_seconds=self._timeout_seconds)
        except ClientClosedError:
            raise
        except OctavoError:
            return None
        return answer if isinstance(answer, LacAnswer) else None

    async def _windows(
        self, ledger_id: LedgerId, settled: SettledRange, modulus: int, residues: tuple[int, ...]
    ) -> AsyncIterator[list[int]]:
        """The ids that are not held soundly, several thousand at a time."""
        first = settled.first
        while first <= settled.last:
            stripe = simplest_stripe(modulus, residues)
            held = await self._copies.verified(ledger_id, first, settled.last, stripe=stripe)
            runs = sorted(
                (max(low, first), min(high, held.last_covered)) for low, high in (*held.missing, *held.unknown)
            )
            ids = iter(ids_of_runs(runs, modulus, residues))
            while window := list(islice(ids, WINDOW_ENTRIES)):
                yield window
            if held.last_covered < first:
                raise ProtocolError(f"ledger {ledger_id}: the storage says nothing about entry {first}")
            first = held.last_covered + 1

    async def _fill(
        self, metadata: StoredLedger, settled: SettledRange, window: CopyWindow, is_urgent: Callable[[], bool]
    ) -> Unsound | None:
        while (ask := window.next_ask()) is not None:
            async with self._chunks:
                await self._ask(metadata, settled, ask, window, is_urgent)
        return window.unsound()

    async def _ask(
        self,
        metadata: StoredLedger,
        settled: SettledRange,
        ask: Ask,
        window: CopyWindow,
        is_urgent: Callable[[], bool],
    ) -> None:
        ledger_id, source = metadata.ledger_id, settled.bookies[ask.position]
        try:
            answer = await self._read(ledger_id, source, ask, len(settled.bookies))
        except ClientClosedError:
            raise
        except OctavoError:
            window.on_failed(ask)
            return
        sound = sound_entries(ledger_id, metadata.key_at(settled.first).digest, answer.entries)
        given = {entry_id: sealed for entry_id, sealed in sound if ask.first <= entry_id <= ask.last}
        wanted = window.on_answer(
            ask, answer.last_covered, given.keys(), answer.unknown,
            absent_is_certain=len(sound) == len(answer.entries),
        )  # fmt: skip
        if wanted:
            entries = [given[entry_id] for entry_id in wanted]
            size_bytes = sum(map(len, entries))
            await self._pace.take(size_bytes, urgent=is_urgent())
            async with self._storing.hold(size_bytes):
                await self._copies.copy_in(ledger_id, entries, private=metadata.private)
            self.copied.entries += len(entries)
            self.copied.bytes += size_bytes

    async def _read(self, ledger_id: LedgerId, source: BookieId, ask: Ask, modulus: int) -> ReadAnswer:
        connection = self._pool.get(source)
        await connection.wait_writable(timeout_seconds=self._timeout_seconds)
        modulus, residues = simplest_stripe(modulus, ask.residues)
        request = Read(
            ledger_id,
            b"",
            _repair_flag(connection),
            0,
            ask.first,
            ask.last,
            modulus,
            residues,
            ENTRIES_PER_FRAME_MAX,
            self._pace.piece_bytes,
        )
        answer = await connection.request(request, timeout_seconds=self._timeout_seconds, bulk=True)
        if not isinstance(answer, ReadAnswer) or answer.last_covered < ask.first:
            raise ProtocolError(f"bookie {source} answered without any of the entries asked for")
        return answer


def _repair_flag(connection: BookieConnection) -> ReadFlag:
    return ReadFlag.REPAIR if CAPABILITY_REPAIR in connection.capabilities else ReadFlag.NONE


def simplest_stripe(modulus: int, residues: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """The same ids as a stripe that a storage selects without looking at each id, where that is all ids: of a ledger
    that is not striped."""
    return (1, (0,)) if len(residues) == modulus else (modulus, residues)


def sound_entries(ledger_id: LedgerId, digest: Digest, entries: Collection[bytes]) -> Sequence[tuple[int, bytes]]:
    """Those of the sealed entries that are intact, of this ledger, and of this digest, with their ids (rule C3)."""
    code = digest_code_of(digest)
    whole = list(entries)
    if not whole:
        return []
    try:
        ids = verify_batch(ledger_id, whole).entry_ids
    except OctavoError:
        return list(_each_sound(ledger_id, code, whole))
    # All of a batch have the same digest.
    return list(zip(ids, whole, strict=True)) if header_of(whole[0]).digest_code == code else []


def _each_sound(ledger_id: LedgerId, code: int, entries: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    for sealed in entries:
        try:
            (entry_id,) = verify_batch(ledger_id, [sealed]).entry_ids
        except OctavoError:
            continue
        if header_of(sealed).digest_code == code:
            yield entry_id, sealed


def _confirmed_in(ledger_id: LedgerId, metadata: StoredLedger, answer: LacAnswer) -> list[int | None]:
    found: list[int | None] = []
    digest = metadata.key_at(metadata.last_fragment.first_entry_id).digest
    if answer.explicit is not None:
        with contextlib.suppress(OctavoError):
            found.append(verify_explicit_lac(ledger_id, answer.explicit))
    if answer.entry is not None:
        found += [
            header_of(sealed).last_add_confirmed for _, sealed in sound_entries(ledger_id, digest, [answer.entry])
        ]
    return found


def _worse(worst: Unsound | None, others: Sequence[Unsound | None]) -> Unsound | None:
    """The first of the intervals that are not sound, with the count of all."""
    found = [one for one in (worst, *others) if one is not None]
    if not found:
        return None
    first = min(found, key=lambda one: one.first)
    return Unsound(first.first, max(one.last for one in found), sum(one.count for one in found), first.told)
