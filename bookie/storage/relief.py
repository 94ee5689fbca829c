"""Gives up ranges of ledgers that other bookies hold, without denying what lay in them (rule C11).

Theory of operation
-------------------

A drop (rule C8) ends what is held of a whole ledger. A stream goes on, and its next term may name this bookie again; so
of a stream a bookie gives up ranges, in two steps:

1. *The mark*, one id for each ledger, below which nothing that is not held is denied. It is in the journal, and later
   in the state of the ledger, before anything goes. By itself it takes nothing away: what is held is found first. It
   never falls: an entry that is added below it again is held, and found.
2. *The removal* of the ranges from the index; compaction frees their space. What is left after a crash in the middle is
   still held, and is found again by the next look at the metadata.

An add that comes during the removal must not be answered by the copy that is being removed. So the ranges are noted
(:attr:`LedgerTable.relieving`) in the step in which it is known that all old copies lie in parts of the index: what is
added from then on lies in newer layers, which the removal does not touch, and counts as not held until the removal is
over and every look-up that may have met the old copies has ended. An add that was decided before that step was made
before the removal. No add waits for one.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog
from octavo.bookie.journal.journal import Journal, RecordKind
from octavo.bookie.storage.admission import Health
from octavo.bookie.storage.background import Background
from octavo.bookie.storage.index_merger import IndexMerger
from octavo.bookie.storage.ledger_state import LedgerState, encode_relief
from octavo.bookie.storage.ledgers import LedgerTable
from octavo.bookie.storage.reads import Amount, EntryReader
from octavo.protocol.errors import NoSuchLedgerError
from octavo.protocol.ids import LedgerId

log = structlog.get_logger("octavo.bookie")

type Ranges = Sequence[tuple[int, int]]
"""Intervals of ids, in order and apart."""


class Relief:
    """See the module. Its caller is sure that no client may ask this bookie for the ranges."""

    def __init__(
        self,
        *,
        journal: Journal,
        ledgers: LedgerTable,
        health: Health,
        entries: EntryReader,
        merger: IndexMerger,
        background: Background,
        on_removed: Callable[[Iterable[int]], None],
    ) -> None:
        """``on_removed`` is told of which ledgers ranges were removed."""
        self._journal = journal
        self._ledgers = ledgers
        self._health = health
        self._entries = entries
        self._merger = merger
        self._changed: Callable[[LedgerState], None] = background.changed
        self._request_checkpoint = background.request_checkpoint
        self._on_removed = on_removed
        self._removing = asyncio.Lock()

    def mark(self, ledger_id: LedgerId, below: int) -> asyncio.Future[None]:
        """From now on nothing below this id is denied. The future is done once that is durable; only then may anything
        be removed. Idempotent; a lower id than before takes nothing back. Raises :class:`NoSuchLedgerError` for a
        ledger that is deleted here, and as :meth:`Health.check_usable`."""
        self._health.check_usable()
        ledger = self._ledgers.get(ledger_id)
        if ledger.deleted:
            raise NoSuchLedgerError(f"ledger {ledger_id} has been deleted", may_have_happened=False)
        ledger.relieve(below)
        # A second mark is journaled again: its future then says that the first is durable too.
        body = encode_relief(ledger_id, ledger.relieved_below)
        durable = self._journal.append(RecordKind.RELIEF, [body])
        self._changed(ledger)
        return durable

    async def remove(self, ranges: Mapping[LedgerId, Ranges]) -> dict[LedgerId, Amount]:
        """Remove what is held of these ranges, all of which lie below a durable mark. Returns how much was held of each
        ledger whose ranges were removed. Others are left as they are: the disk is full, the index is damaged there, or
        entries have come so late that they are not in the index yet; try again later. A caller that is cancelled once
        the removal has begun waits for its end.

        Raises OSError, which is fatal."""
        async with self._removing:
            amounts = {}
            for ledger_id, parts in ranges.items():
                found = [await self._entries.amount(ledger_id, *part) for part in parts]
                amounts[ledger_id] = Amount(sum(one.entries for one in found), sum(one.bytes for one in found))
            async with self._merger.changing():
                wanted: dict[LedgerId, Ranges] = {
                    one: parts for one, parts in ranges.items() if self._begins(one, parts)
                }
                if not wanted:
                    return {}
                removed = await self._to_the_end(wanted)
            return {one: amounts[one] for one in wanted} if removed else {}

    async def _to_the_end(self, wanted: Mapping[LedgerId, Ranges]) -> bool:
        """Remove these ranges, also when the caller is cancelled: its locks are kept until that is over. The file
        system finishes the rename of a manifest that it has begun; a repair that looked before the one in memory says
        the same would find copies that are not there after a power cut."""
        removal = asyncio.ensure_future(self._remove_now(wanted))
        cancelled: asyncio.CancelledError | None = None
        while not removal.done():
            try:
                await asyncio.wait({removal})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            if not removal.cancelled():
                removal.exception()  # the caller does not take it; the storage has failed with it
            raise cancelled
        return removal.result()

    async def _remove_now(self, wanted: Mapping[LedgerId, Ranges]) -> bool:
        try:
            removed = await self._merger.purge_ranges({int(one): parts for one, parts in wanted.items()})
        except OSError as error:
            self._health.fail(error)
            raise
        # A look-up that began before may have found what is gone, and decide about an add by it.
        await self._entries.quiesce()
        for one in wanted:
            del self._ledgers.relieving[one]
        self._on_removed(wanted)  # also where a part of it is left
        return removed

    def _begins(self, ledger_id: LedgerId, parts: Ranges) -> bool:
        """In one step: that every copy of the ranges lies in the index, and the note that they are being removed."""
        ledger = self._ledgers.get(ledger_id)
        assert parts[-1][1] < ledger.relieved_below, "nothing is removed without a mark"
        if ledger.deleted or ledger.dropped:
            return False
        if any(self._entries.memory_runs(ledger_id, *part) for part in parts):
            self._request_checkpoint()
            return False
        self._ledgers.relieving[ledger_id] = parts
        return True
