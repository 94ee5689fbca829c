"""Chooses the bookies that a term begins with: such as can be reached now and know terms."""

import asyncio
from functools import partial

from octavo.client.place.placer import Placer
from octavo.client.wire.pool import ConnectionPool
from octavo.protocol.errors import NotEnoughBookiesError, OctavoError
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import CAPABILITY_TERMS
from octavo.protocol.quorums import Quorums

_REACH_SECONDS = 2.0
"""Time to reach a bookie before another one is tried."""


class Ensembles:
    """Of one client."""

    def __init__(self, pool: ConnectionPool, placer: Placer) -> None:
        self._pool = pool
        self._placer = placer

    async def reachable(self, quorums: Quorums, bookies: tuple[BookieId, ...]) -> tuple[BookieId, ...]:
        """These bookies, with others in the places of those that cannot be reached. Where there is no other one, the
        bookie stays, as long as every entry can reach its ack quorum without it (rule W8).

        Raises :class:`NotEnoughBookiesError`, :class:`MetadataUnavailableError`.
        """
        tried: set[BookieId] = set(bookies)
        reached: dict[int, BookieId] = {}
        wanted = dict(enumerate(bookies))
        while wanted:
            answers = await asyncio.gather(*map(self._can_be_reached, wanted.values()))
            reached |= {at: one for (at, one), ok in zip(wanted.items(), answers, strict=True) if ok}
            missing = [at for at in range(len(bookies)) if at not in reached]
            if not missing:
                break
            taken = [reached.get(at, one) for at, one in enumerate(bookies)]
            try:
                wanted = await self._placer.replacements(quorums, taken, missing, avoid=tried)
            except NotEnoughBookiesError:
                usable_mask = sum(1 << at for at in reached)
                if not all(map(partial(quorums.can_be_acknowledged, usable_mask=usable_mask), range(len(bookies)))):
                    raise
                break
            tried |= set(wanted.values())
        return tuple(reached.get(at, one) for at, one in enumerate(bookies))

    async def next_ones(self, quorums: Quorums, present: tuple[BookieId, ...]) -> tuple[BookieId, ...]:
        """The bookies of a fragment after the one on ``present``: newly placed, if all of them can be reached, else the
        same ones (rule U6). Raises :class:`MetadataUnavailableError`."""
        try:
            bookies = await self._placer.new_ensemble(quorums)
        except NotEnoughBookiesError:
            return present
        reached = await asyncio.gather(*map(self._can_be_reached, bookies))
        return bookies if all(reached) else present

    async def _can_be_reached(self, bookie_id: BookieId) -> bool:
        connection = self._pool.get(bookie_id)
        try:
            await connection.wait_writable(timeout_seconds=_REACH_SECONDS)
        except OctavoError:
            return False
        return CAPABILITY_TERMS in connection.capabilities
