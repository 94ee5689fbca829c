"""Placement's shell: asks the metadata who is there, remembers the racks of those who are gone, and lets
:mod:`octavo.client.placement` choose.
"""

from collections.abc import Callable, Collection, Sequence

from octavo.client.placement import Chance, place_ensemble, place_replacements
from octavo.metadata.registration import BookieRegistration
from octavo.metadata.store import MetadataStore
from octavo.protocol.errors import NotEnoughBookiesError
from octavo.protocol.ids import BookieId
from octavo.protocol.quorums import Quorums


class Placer:
    """Chooses bookies for the ledgers of one client.

    ``quarantined`` tells who failed lately. They are not chosen, but for a new ledger that cannot be made without
    them: one of them may be back, and until it is the others make the ack quorum.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        rng: Chance,
        racks_min: int,
        quarantined: Callable[[], Collection[BookieId]] = frozenset,
    ) -> None:
        self._store = store
        self._rng = rng
        self._racks_min = racks_min
        self._quarantined = quarantined
        self._racks: dict[BookieId, str] = {}

    async def new_ensemble(self, quorums: Quorums) -> tuple[BookieId, ...]:
        """An ensemble for a new ledger. Raises :class:`NotEnoughBookiesError` with the reason,
        :class:`MetadataUnavailableError`."""
        bookies = await self._registered()
        avoid = frozenset(self._quarantined())
        try:
            return place_ensemble(bookies, quorums, rng=self._rng, racks_min=self._racks_min, avoid=avoid)
        except NotEnoughBookiesError:
            if not avoid:
                raise
        return place_ensemble(bookies, quorums, rng=self._rng, racks_min=self._racks_min)

    async def replacements(
        self,
        quorums: Quorums,
        ensemble: Sequence[BookieId],
        positions: Collection[int],
        *,
        avoid: Collection[BookieId] = (),
    ) -> dict[int, BookieId]:
        """New bookies by position, for all of ``positions`` or for as many as can be had. None of ``avoid``, of the
        quarantined or of the ensemble.

        Raises :class:`NotEnoughBookiesError` with the reason if nobody can take any of the places,
        :class:`MetadataUnavailableError`.
        """
        bookies = await self._registered()
        return place_replacements(
            bookies,
            quorums,
            ensemble,
            positions,
            rng=self._rng,
            racks_min=self._racks_min,
            avoid=frozenset(avoid) | frozenset(self._quarantined()),
            racks=self._racks,
        )

    async def _registered(self) -> list[BookieRegistration]:
        bookies = list((await self._store.list_bookies()).values())
        self._racks.update((bookie.bookie_id, bookie.rack) for bookie in bookies)
        return bookies
