"""The questions that a target asks before it takes a place for the sake of balance (rule A14).

The auditor's plan is a hint. So the target decides anew, by what the metadata say when it is about to begin and once
more when it is about to take the place: that a balance is still wanted, that no bookie of the ledger is away, leaves or
doubts, and that the copies stay as far apart as they were.
"""

from collections.abc import Collection

from octavo.client.choose.locations import location_of
from octavo.metadata.cluster.repair_states import DOCUMENT as STATES
from octavo.metadata.cluster.repair_states import decode_states
from octavo.metadata.ledger.stored import SettledRange
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.protocol.errors import MetadataError, MetadataUnavailableError
from octavo.protocol.ids import BookieId
from octavo.repair.base.balance import Slots, keeps_apart
from octavo.repair.base.balance_document import DOCUMENT, decode_balance
from octavo.repair.base.local_bookie import LocalBookie


class Balancing:
    """See the module."""

    def __init__(self, bookie: LocalBookie) -> None:
        self._me: BookieId = bookie.bookie_id
        self._store: MetadataStore = bookie.store
        self._check_metadata = bookie.check_metadata
        self.moved = 0
        """Ledgers in which this bookie has taken a place for the sake of balance."""

    async def may_take(
        self, old: BookieId, metadata: EitherMetadata, part: EitherMetadata, ranges: Collection[SettledRange]
    ) -> bool:
        """Whether this bookie may take the place of ``old`` in these ranges of a part of a ledger. Raises
        :class:`MetadataError` for a document that cannot be understood, and :class:`MetadataUnavailableError`."""
        if not metadata.is_closed or part.debts or not await self._is_wanted():
            return False
        concerned = {self._me, old, *(name for settled in ranges for name in settled.bookies)}
        return (
            await self._are_ordinary(concerned)
            and await self._stay_apart(old, part, ranges, concerned)
            and await self._is_up_to_date()
        )

    async def _is_wanted(self) -> bool:
        found = await self._store.read_document(DOCUMENT)
        return found is not None and decode_balance(found.value).is_wanted

    async def _are_ordinary(self, names: Collection[BookieId]) -> bool:
        stored = await self._store.read_document(STATES)
        states = decode_states(None if stored is None else stored.value)
        return not (states.paused or states.brake or states.bookies.keys() & names)

    async def _stay_apart(
        self, old: BookieId, part: EitherMetadata, ranges: Collection[SettledRange], names: Collection[BookieId]
    ) -> bool:
        """Also whether all of them are registered: else it is not known where they are."""
        there = await self._store.list_bookies()
        locations = {name: location_of(there[name]) for name in names if name in there}
        return len(locations) == len(names) and all(
            keeps_apart(Slots(part.quorums_at(settled.first), settled.bookies), old, self._me, locations)
            for settled in ranges
        )

    async def _is_up_to_date(self) -> bool:
        """Whether the metadata are not older than the data: the members that they name may have left since (rule
        D5)."""
        try:
            await self._check_metadata()
        except MetadataUnavailableError:
            raise
        except MetadataError:
            return False
        return True
