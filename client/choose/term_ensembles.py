"""Chooses the bookies that a term begins with: reachable bookies that support terms."""

import asyncio
from collections.abc import Collection, Mapping

from octavo.client.choose.placer import Placer
from octavo.client.wire.pool import ConnectionPool
from octavo.client.wire.terms_known import about_terms, lacks_terms
from octavo.metadata.own_tasks import result_in
from octavo.protocol.errors import NotEnoughBookiesError, OctavoError
from octavo.protocol.ids import BookieId
from octavo.protocol.quorums import Quorums

REACH_SECONDS = 2.0
"""Time to reach a bookie before another one is tried."""

_GRACE_SECONDS_MIN = 0.05
"""What a takeover allows the slowest bookies for connecting, once the others make every ack quorum, although those took
less."""


class Ensembles:
    """Of one client."""

    def __init__(self, pool: ConnectionPool, placer: Placer) -> None:
        self._pool = pool
        self._placer = placer

    async def new_ones(self, quorums: Quorums) -> tuple[BookieId, ...]:
        """Bookies for a new stream. None of them is known to lack terms; some may be out of reach.

        Raises :class:`NotEnoughBookiesError`, which names the bookies that lack terms,
        :class:`MetadataUnavailableError`.
        """
        bookies = list(await self._placer.new_ensemble(quorums))
        too_old: set[BookieId] = set()
        unknown = dict(enumerate(bookies))
        while unknown:
            await asyncio.gather(*map(self._can_be_reached, unknown.values()))
            wrong = [at for at, one in unknown.items() if lacks_terms(self._pool.get(one))]
            too_old |= {bookies[at] for at in wrong}
            if not wrong:
                break
            try:
                unknown = await self._placer.replacements(quorums, bookies, wrong, avoid=too_old)
            except NotEnoughBookiesError as error:
                raise NotEnoughBookiesError(error.message + about_terms(too_old)) from error
            for at, one in unknown.items():
                bookies[at] = one
            unknown = {at: bookies[at] for at in wrong}
        return tuple(bookies)

    async def reachable(
        self, quorums: Quorums, bookies: tuple[BookieId, ...], *, asked_at: float | None = None
    ) -> tuple[BookieId, ...]:
        """These bookies, with others in the slots of members that cannot be reached or lack terms. Where there is no
        other one, the bookie stays, as long as every entry can reach its ack quorum without it (rule W8): no writer
        sends anything to one that lacks terms.

        ``asked_at``: the time, on the loop's clock, since when bookies are asked for something else that was waited
        for. Once enough of them are reached, the others get as long again, and are given up then: the writer does not
        need them to begin. Without it all get a few seconds.

        Raises :class:`NotEnoughBookiesError`, which names the bookies that lack terms,
        :class:`MetadataUnavailableError`.
        """
        tried: set[BookieId] = set(bookies)
        reached: dict[int, BookieId] = {}
        wanted = dict(enumerate(bookies))
        while wanted:
            await self._reach(quorums, wanted, reached, asked_at)
            missing = [at for at in range(len(bookies)) if at not in reached]
            if not missing:
                break
            taken = [reached.get(at, one) for at, one in enumerate(bookies)]
            try:
                wanted = await self._placer.replacements(quorums, taken, missing, avoid=tried)
            except NotEnoughBookiesError as error:
                if not _are_enough(quorums, reached):
                    too_old = [one for one in sorted(tried) if lacks_terms(self._pool.get(one))]
                    raise NotEnoughBookiesError(error.message + about_terms(too_old)) from error
                break
            tried |= set(wanted.values())
        return self._with(quorums, bookies, reached)

    def _with(
        self, quorums: Quorums, bookies: tuple[BookieId, ...], reached: Mapping[int, BookieId]
    ) -> tuple[BookieId, ...]:
        """These bookies, with those that have been reached instead of others, as far as the write sets keep their
        spread (rule M6). Raises :class:`NotEnoughBookiesError`."""
        others = {at: one for at, one in reached.items() if one != bookies[at]}
        kept = self._placer.keep_spread(quorums, bookies, others)
        if len(kept) < len(others) and not _are_enough(quorums, reached.keys() - (others.keys() - kept.keys())):
            raise NotEnoughBookiesError(
                f"the bookies that can be reached ({', '.join(sorted(reached.values()))}) are on too few hosts, or in "
                "too few racks, for the copies of an entry to span as many as this client asks for; start the others"
            )
        return tuple(kept.get(at, one) for at, one in enumerate(bookies))

    async def _reach(
        self,
        quorums: Quorums,
        wanted: Mapping[int, BookieId],
        reached: dict[int, BookieId],
        asked_at: float | None,
    ) -> None:
        """Add to ``reached`` those of ``wanted`` that can be reached in time."""
        loop = asyncio.get_running_loop()
        asked = {loop.create_task(self._can_be_reached(one)): (at, one) for at, one in wanted.items()}
        deadline: float | None = None
        pending: Collection[asyncio.Task[bool]] = asked.keys()
        try:
            while pending:
                now = loop.time()
                if deadline is None and asked_at is not None and _are_enough(quorums, reached):
                    deadline = now + max(_GRACE_SECONDS_MIN, now - asked_at)
                left = None if deadline is None else max(deadline - now, 0.0)
                done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                reached |= dict(asked[task] for task in done if result_in(task, "asking a bookie"))
                if not done:
                    break
        finally:
            for task in pending:
                task.cancel()
            if pending:
                await asyncio.wait(pending)

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
            await connection.wait_writable(timeout_seconds=REACH_SECONDS)
        except OctavoError:
            return False
        return not lacks_terms(connection)


def _are_enough(quorums: Quorums, reached: Collection[int]) -> bool:
    """Whether the bookies in these slots make an ack quorum for every entry."""
    usable_mask = sum(1 << at for at in reached)
    return all(quorums.can_be_acknowledged(residue, usable_mask) for residue in range(quorums.ensemble_size))
