"""The storage of a running bookie as its own repair agent sees it.

The agent copies entries of other bookies in, looks at what is held, and says of which ledgers the bookie has become
sure. What it decides is its own affair; this class keeps what must hold whatever it decides: entries are verified and
durable before :meth:`LedgerCopies.copy_in` returns (rules C6 and C7), copying and dropping exclude each other (rule
C1), and no bookie takes copies that its disks have no room for.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence

from octavo.bookie.storage.storage import Storage
from octavo.bookie.upkeep.replaced import ReplacedCopies
from octavo.protocol.errors import NoSuchLedgerError
from octavo.protocol.held_entries import Doubt, Holdings
from octavo.protocol.ids import LedgerId
from octavo.protocol.limits import ENTRIES_PER_FRAME_MAX, FRAME_BYTES_MAX

type Stripe = tuple[int, Sequence[int]]
"""A modulus and the residues of the ids meant, as in READ."""

ALL_IDS: Stripe = (1, (0,))


class LedgerCopies:
    """See the module. All methods may raise :class:`BookieStorageError` and :class:`BookieShuttingDownError`, and
    :class:`NoSuchLedgerError` for a deleted ledger."""

    def __init__(
        self,
        storage: Storage,
        *,
        revive: Callable[[LedgerId], Awaitable[bool]],
        check_space: Callable[[], None],
        replaced: ReplacedCopies,
    ) -> None:
        """``revive`` tells whether a ledger that is deleted here was found alive, and is so no longer; ``check_space``
        raises the error for entries that the disks have no room for; ``replaced`` drops copies."""
        self._storage = storage
        self._revive = revive
        self._check_space = check_space
        self._replaced = replaced
        self.entries_copied = 0
        self.bytes_copied = 0

    def lock(self, ledger_id: LedgerId) -> contextlib.AbstractAsyncContextManager[None]:
        """The ledger's lock (rule C1): nothing of the ledger is dropped inside the block. The block holds the first
        look at what is held, the copies, the compare-and-set by which this bookie names itself, and the read that
        settles it if its answer was lost. It may take long. Not reentrant.

        The time after which copies may be dropped begins again when the block ends: a compare-and-set that nothing is
        known of, because the metadata store does not answer, is made long before it is over, or never."""
        return self._hold(ledger_id)

    @contextlib.asynccontextmanager
    async def _hold(self, ledger_id: LedgerId) -> AsyncIterator[None]:
        async with self._storage.copy_locks.hold(ledger_id):
            try:
                yield
            finally:
                self._replaced.keep(ledger_id)

    # --- entries --------------------------------------------------------------------------------------------------

    async def copy_in(self, ledger_id: LedgerId, entries: Sequence[bytes], *, private: bool = False) -> None:
        """Store sealed entries of one ledger, ids ascending, as they are; durable when it returns (rules C6 and C7).
        ``private``: what the ledger's metadata say (rule S3).

        An id that is held with the same bytes is a success; a held copy that does not verify is replaced. All or
        nothing. Waits while the storage has no memory for more.

        Raises :class:`ProtocolError` for entries that no bookie gives out, :class:`DigestMismatchError` for damaged
        ones, :class:`DuplicateEntryError` where other intact bytes are held (rule C6: nothing is overwritten),
        :class:`BookieReadOnlyError` when the disks are short of space, and :class:`NoSuchLedgerError` when the metadata
        agree that the ledger is deleted.
        """
        assert len(entries) <= ENTRIES_PER_FRAME_MAX, "copies come in pieces of a frame's size"
        size = sum(map(len, entries))
        assert size <= FRAME_BYTES_MAX, "copies come in pieces of a frame's size"
        self._check_space()
        self._replaced.keep(ledger_id)
        await self._storage.admission.wait_for_room()
        try:
            durable = self._storage.writer.copy_in(ledger_id, entries, private=private)
        except NoSuchLedgerError:
            if not await self._revive(ledger_id):
                raise
            durable = self._storage.writer.copy_in(ledger_id, entries, private=private)
        await durable
        self.entries_copied += len(entries)
        self.bytes_copied += size

    async def missing(self, ledger_id: LedgerId, first: int, last: int, *, stripe: Stripe = ALL_IDS) -> Holdings:
        """The entries that are not held, by the index. Unlike the answer to another bookie, what may have been lost
        here is missing, not unknown. Nothing is missing of what has been trimmed (rule U5). What is held is durable
        when it returns."""
        holdings = await self._storage.reader.not_held(ledger_id, first, last, stripe=stripe)
        await self._storage.writer.sync_accepted()
        return holdings

    async def verified(self, ledger_id: LedgerId, first: int, last: int, *, stripe: Stripe = ALL_IDS) -> Holdings:
        """As :meth:`missing`, but every entry held is read back; one that does not verify is unknown (rule C3). Covers
        a few MiB: go on above ``last_covered``. What is held is durable when it returns: an add may have been accepted
        and not synced yet."""
        holdings = await self._storage.reader.verified(ledger_id, first, last, stripe=stripe)
        await self._storage.writer.sync_accepted()
        return holdings

    async def read_entry(self, ledger_id: LedgerId, entry_id: int) -> bytes | None:
        """One sealed entry; None when it is not held, or does not verify."""
        result = await self._storage.reader.read(ledger_id, entry_id, entry_id, entries_max=1, bytes_max=0)
        return result.entries[0] if result.entries else None

    def first_kept(self, ledger_id: LedgerId) -> int:
        """The first id of which this bookie has trimmed nothing: below it :meth:`missing` and :meth:`verified` find
        nothing missing (rule U5)."""
        return self._storage.reader.first_kept(ledger_id)

    def last_add_confirmed(self, ledger_id: LedgerId) -> int | None:
        """The highest LAC of the ledger that this bookie knows."""
        return self._storage.reader.last_add_confirmed(ledger_id).last_add_confirmed

    def unnamed(self, ledger_ids: Collection[LedgerId]) -> None:
        """A hint: the metadata of these ledgers say that they are closed, and name other bookies only. The bookie's
        upkeep looks for itself, and drops what it holds of them after some time (rule C8)."""
        self._replaced.hint(ledger_ids)

    def listen_for_damage(self, told: Callable[[int, int, int], None]) -> None:
        """``told(ledger_id, first, last)`` is called in the event loop when a read or the scrubber meets an entry, or a
        place of the index, that does not verify, and for what was met before. The interval may hold sound entries, and
        entries that this bookie need not hold. The scrubber tells again in every round; a read tells once."""
        self._storage.damage.listen(told)

    # --- doubt ----------------------------------------------------------------------------------------------------

    @property
    def doubt(self) -> Doubt | None:
        """Of which ledgers this bookie denies nothing, because it may have lost entries; None: of none (rule D2)."""
        return self._storage.doubt

    async def mark_sure(
        self, sure_below: int, exceptions: Mapping[LedgerId, int], term_floors: Mapping[LedgerId, int]
    ) -> None:
        """The bookie is unsure only of the ledgers from ``sure_below`` to ``doubt.stop`` - 1 from now on, and of each
        ledger in ``exceptions`` from the entry id given. It takes adds of streams above ``term_floors`` (rule T12).
        Durable when it returns; see :meth:`Doubt.narrowed` for the :class:`ValueError` that it raises. The caller
        vouches for every ledger that it makes sure, and for the floors."""
        await self._storage.narrow_doubt(
            sure_below,
            {int(ledger_id): first for ledger_id, first in exceptions.items()},
            {int(ledger_id): term for ledger_id, term in term_floors.items()},
        )
