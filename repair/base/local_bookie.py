"""The parts of a bookie that the repair in its process needs: the seam between ``repair`` and ``bookie``.

``repair`` imports no ``bookie``; the bookie satisfies these protocols with its own classes.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from octavo.metadata import MetadataStore
from octavo.protocol.held_entries import Doubt, Holdings
from octavo.protocol.ids import BookieId, LedgerId

type Stripe = tuple[int, Sequence[int]]
"""The ensemble size and the residues of the entry ids that a slot holds, as in a READ request."""


class LocalCopies(Protocol):
    """The bookie's own storage. Every method raises :class:`BookieStorageError` when the storage has failed and
    :class:`BookieShuttingDownError` while it stops."""

    def lock(self, ledger_id: LedgerId) -> AbstractAsyncContextManager[None]:
        """The lock of a ledger (rule C1). Nothing of the ledger is dropped while it is held. It encloses the first look
        at what is held, the copies, the compare-and-set that names this bookie, and the read that settles a lost
        answer. Not reentrant. Nothing is dropped for a long time after the lock was given up, either."""

    async def copy_in(self, ledger_id: LedgerId, entries: Sequence[bytes], *, private: bool = False) -> None:
        """Store sealed entries of one ledger, ids ascending, verbatim; durable when it returns (rules C6 and C7).

        Raises :class:`DuplicateEntryError` when an id is held with other intact bytes, :class:`DigestMismatchError`,
        :class:`ProtocolError`, :class:`NoSuchLedgerError`, :class:`BookieReadOnlyError`."""

    async def missing(self, ledger_id: LedgerId, first: int, last: int, *, stripe: Stripe = (1, (0,))) -> Holdings:
        """The entries that the bookie lacks, from its index; no entry is read."""

    async def verified(self, ledger_id: LedgerId, first: int, last: int, *, stripe: Stripe = (1, (0,))) -> Holdings:
        """As :meth:`missing`, with every held entry read back: what does not verify is unknown, and what is held is
        durable when it returns (rule C3)."""

    async def read_entry(self, ledger_id: LedgerId, entry_id: int) -> bytes | None:
        """One sealed entry that verifies, or None."""

    def first_kept(self, ledger_id: LedgerId) -> int:
        """The first id of which nothing has been trimmed. :meth:`missing` and :meth:`verified` find nothing missing
        below it: the stream begins there or later, and nothing is to be copied (rule U5)."""

    def last_add_confirmed(self, ledger_id: LedgerId) -> int | None:
        """The highest LAC that this bookie knows."""

    @property
    def doubt(self) -> Doubt | None:
        """The doubt of the bookie; None when it is in doubt about nothing."""

    async def mark_sure(
        self, sure_below: int, exceptions: Mapping[LedgerId, int], term_floors: Mapping[LedgerId, int]
    ) -> None:
        """Doubt is over but for the ledgers from ``sure_below`` on and the exceptions, each with its first unsure id
        (rules D2 and D3), and for the terms of streams above these floors (rule T12). A floor that is known stays.
        Durable when it returns. Raises ValueError for what would make anything unsure again."""

    def listen_for_damage(self, told: Callable[[int, int, int], None]) -> None:
        """``told`` is called with a ledger and an interval of ids in which damage was found."""


class LocalBookie(Protocol):
    """The bookie in whose process repair runs."""

    @property
    def bookie_id(self) -> BookieId: ...
    @property
    def cluster_id(self) -> str: ...
    @property
    def store(self) -> MetadataStore:
        """The bookie's own handle: locks taken on it end with the bookie."""

    @property
    def copies(self) -> LocalCopies: ...
    @property
    def rng(self) -> random.Random: ...
    @property
    def wall_clock(self) -> Callable[[], float]:
        """Seconds since 1970."""

    async def check_metadata(self) -> None:
        """Whether the metadata may be older than what bookies have on their disks, as garbage collection asks it (rules
        B5 and D5). Raises :class:`MetadataError` if they may be, with the reason, and what the store raises."""

    def owns_id(self) -> bool:
        """Whether the bookie's id is certainly its own: it is registered, and no other can be (rule B10)."""

    def take_add_delay_seconds(self) -> float:
        """Mean time that the adds of clients have taken here since the last call; 0.0 when there were none. Copies are
        no adds: repair must not slow down because of itself."""

    async def set_draining(self, draining: bool) -> None:
        """Register as read-only, so that nothing new is placed here, and serve on; or end that. Raises
        :class:`MetadataUnavailableError`."""

    def publish(self, facts: Mapping[str, str | int | float | bool]) -> None:
        """Show these facts in INFO, in place of those published before."""
