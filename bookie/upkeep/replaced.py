"""Gives up the copies that other bookies hold in this one's place: whole ledgers (rule C8), and ranges of streams that
go on (rule C11).

Repair names another bookie where this one was named: when it was lost and came back, or was drained. What it holds of
such a ledger only takes space. It is dropped when the metadata have said for some time that the ledger is
CLOSED and names this bookie in no fragment, and say so again in a read that is not stale, made under the lock that this
bookie's own repair takes when it names itself (rule C1). The fence stays: an old writer that was cut off while the
ledger was fenced and closed must not find a bookie that has forgotten it.

What goes of a stream that is not CLOSED is the matter of :mod:`octavo.bookie.upkeep.relieved`.

A round looks at some ledgers only, in turn, besides those that repair has pointed out: it costs a bounded number of
reads whatever the number of ledgers. What is known of a ledger is lost when the bookie stops; it then waits again.
"""

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from itertools import batched
from typing import Final

import structlog
from octavo.bookie.storage.storage import Storage
from octavo.bookie.upkeep.metadata_check import MetadataCheck
from octavo.bookie.upkeep.relieved import MARK_SECONDS_MAX, RELIEF_RELEASE, RelievedRanges
from octavo.metadata import MetadataStore
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.metadata.updates.cluster_release import Release
from octavo.metadata.updates.paging import members_of
from octavo.protocol.errors import MetadataError, MetadataUnavailableError, NoSuchLedgerError
from octavo.protocol.ids import BookieId, LedgerId

log = structlog.get_logger("octavo.bookie")

LEDGERS_PER_ROUND: Final = 2_000
"""Ledgers looked at in a round, in turn. A round comes every quarter of an hour: a million ledgers take five days."""

READS_AT_ONCE: Final = 32
"""Reads of the metadata outstanding at a time."""

CANDIDATES_MAX: Final = 100_000
"""Ledgers remembered; further ones are found in a later round."""


class ReplacedCopies:
    """Compares a storage with the metadata. One round at a time."""

    def __init__(
        self,
        storage: Storage,
        store: MetadataStore,
        metadata: MetadataCheck,
        bookie_id: BookieId,
        *,
        keep_seconds: float,
        ledgers_per_round: int = LEDGERS_PER_ROUND,
        relief_release: Release = RELIEF_RELEASE,
        mark_seconds_max: float = MARK_SECONDS_MAX,
    ) -> None:
        """Copies are kept for ``keep_seconds`` after the metadata were first seen not to name this bookie. A round
        looks at ``ledgers_per_round`` ledgers, besides those that were pointed out. Ranges of streams go once the
        cluster is finalized at ``relief_release``; a mark is waited for ``mark_seconds_max``."""
        self._storage = storage
        self._store = store
        self._metadata = metadata
        self._bookie_id = bookie_id
        self._keep_seconds = keep_seconds
        self._ledgers_per_round = ledgers_per_round
        self._candidates: dict[LedgerId, float] = {}
        """Ledger -> when it was first seen closed and without this bookie, in the loop's seconds."""
        self._hints: dict[LedgerId, None] = {}
        self._cursor = -1
        """The last ledger that a round has looked at in turn."""
        self._looking: set[LedgerId] = set()
        """Ledgers whose metadata are being read, and that have not been kept since."""
        self.dropped = 0
        self.relieved = RelievedRanges(
            storage, store, bookie_id, check_metadata=self._check_metadata, keep_seconds=keep_seconds,
            release=relief_release, mark_seconds_max=mark_seconds_max,
        )  # fmt: skip

    @property
    def waiting(self) -> int:
        """Ledgers that will be dropped unless something changes."""
        return len(self._candidates)

    def hint(self, ledger_ids: Collection[LedgerId]) -> None:
        """These ledgers may no longer name this bookie: look at them in the next round."""
        for ledger_id in ledger_ids:
            if len(self._hints) >= CANDIDATES_MAX:
                return
            self._hints[ledger_id] = None

    def keep(self, ledger_id: LedgerId) -> None:
        """The ledger is being repaired here, and the metadata are about to name this bookie, or may be: the time for
        which its copies are kept begins again."""
        self._candidates.pop(ledger_id, None)
        self._looking.discard(ledger_id)
        self.relieved.keep(ledger_id)

    async def round(self) -> int:
        """One round; how many ledgers were dropped, or of how many streams ranges were given up. Raises
        :class:`MetadataError`, :class:`MetadataUnavailableError` and the storage's errors; what has gone before the
        error stays so."""
        looked_at = self._next_ledgers()
        if not looked_at and not self._candidates and not self.relieved.waiting:
            return 0
        await self._check_metadata()
        now = asyncio.get_running_loop().time()
        due = {one: since for one, since in self._candidates.items() if now - since >= self._keep_seconds}
        due_ranges = self.relieved.due(now)
        for page in batched(looked_at, READS_AT_ONCE):
            await asyncio.gather(*(self._look(ledger_id, now) for ledger_id in page))
        before = self.dropped
        for some in batched(due.items(), READS_AT_ONCE):
            await self._drop_some(dict(some))
        if self.dropped > before:
            log.info("copies dropped: other bookies have taken this one's place", ledgers=self.dropped - before)
        return self.dropped - before + await self.relieved.relieve(due_ranges)

    async def _check_metadata(self) -> None:
        storage = self._storage
        await self._metadata.check(allocated=None if storage.doubts_every_ledger else storage.doubted_ids_stop)

    async def _look(self, ledger_id: LedgerId, now: float) -> None:
        """Read the metadata of a ledger, and remember what they say. If repair has had to do with the ledger meanwhile,
        what was read may be older than that, and is not remembered."""
        self._looking.add(ledger_id)
        ranges = None
        try:
            metadata = (await self._store.read_either(ledger_id)).value
            replaced = not await may_be_asked(self._store, metadata, self._bookie_id)
            if not metadata.is_closed and metadata.next_term is not None:
                ranges = await self.relieved.look(metadata, now)
        except NoSuchLedgerError:
            replaced = False  # the garbage collector's
        except MetadataUnavailableError:
            raise
        except MetadataError as error:
            _note_kept(ledger_id, error)
            replaced, ranges = False, {}
        if ledger_id not in self._looking:
            return
        self._looking.discard(ledger_id)
        if ranges is not None:
            self.relieved.note(ledger_id, ranges, now)
        if not replaced:
            self._candidates.pop(ledger_id, None)
        elif len(self._candidates) < CANDIDATES_MAX:
            self._candidates.setdefault(ledger_id, now)

    def _next_ledgers(self) -> list[LedgerId]:
        """The ledgers pointed out, and the next ones in turn, as far as entries of them are held."""
        held = [LedgerId(ledger_id) for ledger_id in self._storage.ledgers.live_ids()]
        later = [ledger_id for ledger_id in held if ledger_id > self._cursor][: self._ledgers_per_round]
        self._cursor = later[-1] if len(later) == self._ledgers_per_round else -1
        hints, self._hints = self._hints, {}
        return [ledger_id for ledger_id in dict.fromkeys((*hints, *later)) if self._storage.holds_entries(ledger_id)]

    async def _is_replaced(self, ledger_id: LedgerId) -> bool:
        try:
            found = await self._store.read_either(ledger_id)
            return not await may_be_asked(self._store, found.value, self._bookie_id)
        except NoSuchLedgerError:
            return False  # the garbage collector's
        except MetadataUnavailableError:
            raise
        except MetadataError as error:
            _note_kept(ledger_id, error)
            return False

    async def _drop_some(self, due: Mapping[LedgerId, float]) -> None:
        """Drop these ledgers where nothing speaks against it, under their locks. Each comes with the time since when it
        waits: one that was kept meanwhile, and found again by a look of the same round, waits anew."""
        locks = self._storage.copy_locks
        async with contextlib.AsyncExitStack() as stack:
            held = []
            for ledger_id, since in due.items():
                if locks.is_held(ledger_id):  # it is being repaired here, which may take hours
                    self._candidates.pop(ledger_id, None)
                elif self._candidates.get(ledger_id) == since:
                    await stack.enter_async_context(locks.hold(ledger_id))
                    held.append(ledger_id)
            # After it this handle's reads show every change that was made before the locks were taken (rule M3).
            absent = set(await self._store.confirm_absent(held))
            for ledger_id in held:
                if ledger_id not in absent and self._storage.holds_entries(ledger_id):
                    await self._drop(ledger_id, due[ledger_id])
                self._candidates.pop(ledger_id, None)

    async def _drop(self, ledger_id: LedgerId, since: float) -> None:
        if await self._is_replaced(ledger_id) and self._candidates.get(ledger_id) == since:
            await self._storage.writer.drop(ledger_id)
            self.dropped += 1


def _note_kept(ledger_id: LedgerId, error: MetadataError) -> None:
    """Log that a ledger is kept whose metadata cannot be understood: they may name any bookie. Others go on."""
    log.warning("copies kept: the metadata of their ledger cannot be read", ledger=ledger_id, reason=error.message)


async def may_be_asked(store: MetadataStore, metadata: EitherMetadata, bookie_id: BookieId) -> bool:
    """Whether a reader or a recovering client may ask this bookie for entries of the ledger, now or later. The next
    term of a stream may name any bookie, so a stream may ask until it is CLOSED. Raises :class:`NoSuchLedgerError`,
    :class:`MetadataError` for a page that cannot be understood, :class:`MetadataUnavailableError`."""
    return not metadata.is_closed or bookie_id in await members_of(store, metadata)
