"""The bookie in whose process repair runs, in memory (:mod:`octavo.repair.base.local_bookie`).

``MemoryCopies`` keeps sealed entries in a dictionary; tests damage, lose and count them. It passes the same contract as
the storage of a real bookie (tests/repair/base/test_local_contract.py).
"""

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

from octavo.metadata import MetadataStore
from octavo.metadata.updates.garbage_hold import read_hold
from octavo.protocol.entries import header_of, is_intact, verify_batch
from octavo.protocol.errors import DuplicateEntryError, MetadataError
from octavo.protocol.held_entries import Doubt, Holdings
from octavo.protocol.ids import BookieId, LedgerId
from octavo.repair.base.local_bookie import Stripe

COVERED_MAX = 64
"""Ids of one answer: small, so that tests see that callers ask on."""


class MemoryCopies:
    """See the module."""

    def __init__(self, held: dict[int, dict[int, bytes]] | None = None) -> None:
        """``held``: ledger id -> entry id -> sealed entry. May be shared with a :class:`FakeBookie`'s entries."""
        self.held: dict[int, dict[int, bytes]] = held if held is not None else defaultdict(dict)
        self.copied: list[tuple[int, tuple[int, ...]]] = []
        """Every batch that was copied in."""
        self.trimmed: dict[int, int] = {}
        """Ledger -> the first id of which nothing has been trimmed."""
        self.lacs: dict[int, int] = {}
        self.private: set[int] = set()
        """Ledgers whose copies came as those of private ledgers."""
        self.locked: list[int] = []
        """Ledgers in the order in which their locks were taken."""
        self.on_last_look: Callable[[int], None] = lambda _: None
        """Called before the index is asked what is missing."""
        self.unlocked: list[int] = []
        """Ledgers that were looked at or copied in without their lock."""
        self._doubt: Doubt | None = None
        self._locks: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._told: Callable[[int, int, int], None] = lambda *_: None

    @contextlib.asynccontextmanager
    async def lock(self, ledger_id: LedgerId) -> AsyncIterator[None]:
        async with self._locks[ledger_id]:
            self.locked.append(ledger_id)
            yield

    def is_locked(self, ledger_id: LedgerId) -> bool:
        """Whether the lock of the ledger is held."""
        return self._locks[ledger_id].locked()

    async def copy_in(self, ledger_id: LedgerId, entries: Sequence[bytes], *, private: bool = False) -> None:
        self._note_lock(ledger_id)
        if private:
            self.private.add(ledger_id)
        ids = verify_batch(ledger_id, entries).entry_ids
        held = self.held.setdefault(ledger_id, {})
        for entry_id, sealed in zip(ids, entries, strict=True):
            if entry_id in held and is_intact(held[entry_id]) and held[entry_id] != sealed:
                raise DuplicateEntryError(f"ledger {ledger_id} entry {entry_id} is held with other bytes")
        held.update(zip(ids, entries, strict=True))
        self.copied.append((ledger_id, tuple(ids)))
        await asyncio.sleep(0)

    async def missing(self, ledger_id: LedgerId, first: int, last: int, *, stripe: Stripe = (1, (0,))) -> Holdings:
        self._note_lock(ledger_id)
        self.on_last_look(ledger_id)
        return self._holdings(ledger_id, first, last, stripe, lambda _: True)

    async def verified(self, ledger_id: LedgerId, first: int, last: int, *, stripe: Stripe = (1, (0,))) -> Holdings:
        self._note_lock(ledger_id)
        return self._holdings(ledger_id, first, last, stripe, is_intact)

    async def read_entry(self, ledger_id: LedgerId, entry_id: int) -> bytes | None:
        sealed = self.held.get(ledger_id, {}).get(entry_id)
        return sealed if sealed is not None and is_intact(sealed) else None

    def first_kept(self, ledger_id: LedgerId) -> int:
        return self.trimmed.get(ledger_id, 0)

    def last_add_confirmed(self, ledger_id: LedgerId) -> int | None:
        lacs = [header_of(sealed).last_add_confirmed for sealed in self.held.get(ledger_id, {}).values()]
        return max((lac for lac in (*lacs, self.lacs.get(ledger_id)) if lac is not None), default=None)

    @property
    def doubt(self) -> Doubt | None:
        return self._doubt

    def begin_doubt(self, stop: int) -> None:
        """Everything below may have been lost."""
        self._doubt = Doubt(stop)

    async def mark_sure(
        self, sure_below: int, exceptions: Mapping[LedgerId, int], term_floors: Mapping[LedgerId, int]
    ) -> None:
        assert self._doubt is not None
        narrowed = self._doubt.narrowed(sure_below, {int(one): first for one, first in exceptions.items()})
        narrowed = narrowed.with_term_floors({int(one): term for one, term in term_floors.items()})
        self._doubt = None if narrowed.is_over else narrowed

    def listen_for_damage(self, told: Callable[[int, int, int], None]) -> None:
        self._told = told

    def damage(self, ledger_id: int, entry_id: int) -> None:
        """Flip a bit of a held entry, and let the scrubber find it."""
        sealed = self.held[ledger_id][entry_id]
        self.held[ledger_id][entry_id] = sealed[:-1] + bytes([sealed[-1] ^ 1])
        self._told(ledger_id, entry_id, entry_id)

    def _note_lock(self, ledger_id: LedgerId) -> None:
        if not self.is_locked(ledger_id):
            self.unlocked.append(ledger_id)

    def _holdings(
        self, ledger_id: LedgerId, first: int, last: int, stripe: Stripe, sound: Callable[[bytes], bool]
    ) -> Holdings:
        held, (modulus, residues) = self.held.get(ledger_id, {}), stripe
        last_covered = min(last, first + COVERED_MAX - 1)
        kept = max(first, self.first_kept(ledger_id))
        wanted = [entry_id for entry_id in range(kept, last_covered + 1) if entry_id % modulus in residues]
        return Holdings(
            last_covered,
            tuple(_runs(entry_id for entry_id in wanted if entry_id not in held)),
            tuple(_runs(entry_id for entry_id in wanted if entry_id in held and not sound(held[entry_id]))),
        )


def _runs(ids: Iterator[int]) -> Iterator[tuple[int, int]]:
    run: tuple[int, int] | None = None
    for entry_id in ids:
        if run is not None and entry_id == run[1] + 1:
            run = run[0], entry_id
        else:
            if run is not None:
                yield run
            run = entry_id, entry_id
    if run is not None:
        yield run


class MemoryBookie:
    """A bookie for an agent of repair; its clock stands still until a test moves it."""

    def __init__(
        self, bookie_id: str, store: MetadataStore, cluster_id: str, *, copies: MemoryCopies | None = None
    ) -> None:
        self.bookie_id = BookieId(bookie_id)
        self.cluster_id = cluster_id
        self.store = store
        self.copies = copies if copies is not None else MemoryCopies()
        self.rng = random.Random(bookie_id)
        self.now = 1_000_000.0
        self.draining = False
        self.facts: dict[str, str | int | float | bool] = {}
        self.metadata_checks = 0
        """How often :meth:`check_metadata` was called."""

    async def check_metadata(self) -> None:
        """Knows the hold only."""
        self.metadata_checks += 1
        if (hold := await read_hold(self.store)) is not None:
            raise MetadataError(f"garbage collection is on hold: {hold.reason}")

    @property
    def wall_clock(self) -> Callable[[], float]:
        return lambda: self.now

    def take_add_delay_seconds(self) -> float:
        return 0.0

    def owns_id(self) -> bool:
        return True

    async def set_draining(self, draining: bool) -> None:
        self.draining = draining
        await asyncio.sleep(0)

    def publish(self, facts: Mapping[str, str | int | float | bool]) -> None:
        self.facts = dict(facts)
