"""Placement's shell: asks the metadata for the registered bookies, remembers where bookies were that have gone, and
lets :mod:`octavo.client.choose.placement` choose.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from octavo.client.choose.arrangement import ANYWHERE, Spread
from octavo.client.choose.locations import Locations
from octavo.client.choose.placement import (
    Chance,
    SortedOut,
    keep_spread,
    place_among,
    place_ensemble,
    place_replacements,
    sort_out,
)
from octavo.metadata.cluster.registration import BookieRegistration
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.errors import NotEnoughBookiesError
from octavo.protocol.ids import BookieId
from octavo.protocol.quorums import Quorums


class Placer:
    """Chooses bookies for the ledgers of one client.

    ``watched`` gives the registered bookies as last heard of, or None. New ledgers go by that: it is a hint as good as
    any (rule M2), and a question to the store per ledger would cost as much as creating it. Only when it does not
    do, and for replacements, the store is asked.

    ``least``: what each write set must span. ``quarantined`` returns the bookies that failed lately. They are chosen
    only for a new ledger that cannot be made without them: one of them may be back, and until it is the others make the
    ack quorum.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        rng: Chance,
        least: Spread = ANYWHERE,
        quarantined: Callable[[], Collection[BookieId]] = frozenset,
        watched: Callable[[], Mapping[BookieId, BookieRegistration] | None] = lambda: None,
    ) -> None:
        self._store = store
        self._rng = rng
        self._least = least
        self._quarantined = quarantined
        self._watched = watched
        self._heard: Mapping[BookieId, BookieRegistration] | None = None
        self._avoided: Collection[BookieId] = ()
        self._sorted_out = sort_out((), ())
        """The bookies to choose from: those heard of, without those to be avoided."""
        self._locations = Locations()

    async def new_ensemble(self, quorums: Quorums) -> tuple[BookieId, ...]:
        """An ensemble for a new ledger. Raises :class:`NotEnoughBookiesError` with the reason,
        :class:`MetadataUnavailableError`."""
        avoid = frozenset(self._quarantined())
        watched = self._watched()
        if watched is not None:
            try:
                return place_among(self._sort_out(watched, avoid), quorums, rng=self._rng, least=self._least)
            except NotEnoughBookiesError:
                pass  # the watch may be late
        bookies = await self._registered()
        try:
            return place_ensemble(bookies, quorums, rng=self._rng, least=self._least, avoid=avoid)
        except NotEnoughBookiesError:
            if not avoid:
                raise
        return place_ensemble(bookies, quorums, rng=self._rng, least=self._least)

    async def replacements(
        self,
        quorums: Quorums,
        ensemble: Sequence[BookieId],
        positions: Collection[int],
        *,
        avoid: Collection[BookieId] = (),
    ) -> dict[int, BookieId]:
        """New bookies by slot, for all of ``positions`` or for as many as can be had. None of ``avoid``, of the
        quarantined or of the ensemble.

        Raises :class:`NotEnoughBookiesError` with the reason if no bookie is available for any of the slots,
        :class:`MetadataUnavailableError`.
        """
        bookies = await self._registered()
        return place_replacements(
            bookies,
            quorums,
            ensemble,
            positions,
            rng=self._rng,
            least=self._least,
            avoid=frozenset(avoid) | frozenset(self._quarantined()),
            locations=self._locations.known,
        )

    def keep_spread(
        self, quorums: Quorums, ensemble: Sequence[BookieId], replacements: Mapping[int, BookieId]
    ) -> dict[int, BookieId]:
        """Those of the :meth:`replacements` that can be made while the other members stay (rule M6)."""
        return keep_spread(quorums, ensemble, replacements, self._locations.known, self._least)

    async def _registered(self) -> list[BookieRegistration]:
        bookies = list((await self._store.list_bookies()).values())
        self._locations.note(bookies)
        return bookies

    def _sort_out(self, watched: Mapping[BookieId, BookieRegistration], avoid: frozenset[BookieId]) -> SortedOut:
        if watched is not self._heard or avoid != self._avoided:
            self._heard, self._avoided = watched, avoid
            self._sorted_out = sort_out(watched.values(), avoid)
            self._locations.note(watched.values())
        return self._sorted_out
