"""Finds bookies that take the place of others in an ensemble, and tries to reach them (rule M2). Those that were
replaced are not chosen for a while."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from octavo.client.choose.placer import Placer
from octavo.client.counts import reason_of
from octavo.client.wire.pool import ConnectionPool
from octavo.client.wire.terms_known import about_terms, lacks_terms
from octavo.protocol.errors import MetadataUnavailableError, NotEnoughBookiesError, OctavoError
from octavo.protocol.ids import BookieId
from octavo.protocol.quorums import Quorums

_SPARE_TIMEOUT_SECONDS: Final = 2.0
"""Time to reach a spare bookie before another one is tried."""


class Spares:
    """See the module. ``needs_terms``: only bookies that know terms are of use."""

    def __init__(self, pool: ConnectionPool, placer: Placer, quorums: Quorums, *, needs_terms: bool) -> None:
        self._pool = pool
        self._placer = placer
        self._quorums = quorums
        self._needs_terms = needs_terms
        self._loop = asyncio.get_running_loop()
        self.none_because: OctavoError | None = None
        """Why there was none, last time; None once bookies have been replaced."""
        self.asked_metadata_at: float | None = None
        """When the metadata store was asked for one, in the loop's seconds; None: no answer is awaited."""

    async def find(
        self, positions: Sequence[int], ensemble: Sequence[BookieId], is_wanted: Callable[[], bool]
    ) -> dict[int, BookieId]:
        """Bookies that can be reached, by slot. One that cannot is put into quarantine and another one is tried,
        while ``is_wanted`` says so."""
        reached: dict[int, BookieId] = {}
        too_old: set[BookieId] = set()
        missing = list(positions)
        while missing and is_wanted():
            taken = [reached.get(position, bookie_id) for position, bookie_id in enumerate(ensemble)]
            self.asked_metadata_at = self._loop.time()
            try:
                found = await self._placer.replacements(self._quorums, taken, missing, avoid={*ensemble, *too_old})
            except (NotEnoughBookiesError, MetadataUnavailableError) as error:
                self.none_because = type(error)(error.message + about_terms(too_old))
                break
            finally:
                self.asked_metadata_at = None
            tried = await asyncio.gather(*map(self._can_be_reached, found.values()))
            reached |= {at: bookie_id for (at, bookie_id), ok in zip(found.items(), tried, strict=True) if ok}
            too_old |= {one for one in found.values() if self._needs_terms and lacks_terms(self._pool.get(one))}
            missing = [position for position in missing if position in found and position not in reached]
        return reached

    def keep_spread(self, ensemble: Sequence[BookieId], spares: Mapping[int, BookieId]) -> dict[int, BookieId]:
        """Those of the bookies that can take their slots while the other members of the ensemble stay: some may have
        recovered, and for some there is no spare (rule M6)."""
        return self._placer.keep_spread(self._quorums, ensemble, spares)

    def retire(self, bookie_id: BookieId, refusal: OctavoError | None) -> None:
        """The bookie has been replaced, after this refusal: it is not chosen for a while."""
        self._pool.counts.ensemble_changes[reason_of(refusal)] += 1
        self._pool.put_in_quarantine(bookie_id)

    async def _can_be_reached(self, bookie_id: BookieId) -> bool:
        try:
            await self._pool.get(bookie_id).wait_writable(timeout_seconds=_SPARE_TIMEOUT_SECONDS)
        except OctavoError:
            self._pool.put_in_quarantine(bookie_id)
            return False
        return not self._needs_terms or not lacks_terms(self._pool.get(bookie_id))
