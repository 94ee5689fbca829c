"""Replaces bookies of a writer's ensemble, and begins new fragments: asks for spares, changes the metadata, goes on.

:mod:`octavo.client.write.ensemble_changes` decides which bookies are replaced, and when. This module asks for spares
(:mod:`octavo.client.write.spares`) and changes the metadata, one change after another (rule W5). Bookies that were
replaced, and spares that could not be reached, are put into quarantine: this client does not choose them for a while.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any

from octavo.client.write.deadline import ChangeProgress
from octavo.client.write.ensemble_changes import Commit, EnsembleChanges, FindSpares, Phase
from octavo.client.write.guard import Guard
from octavo.client.write.part import Part
from octavo.client.write.pipeline import Effect
from octavo.client.write.slots import Slots
from octavo.client.write.spares import Spares
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import BookieId

log = logging.getLogger("octavo.client")


class Replacing:
    """See the module.

    ``commit`` writes a new last fragment into the metadata and returns whether it is there; ``start`` runs a coroutine
    that ends with the writer. ``on_committed(effects)`` when the slots have their new bookies: it performs the effects,
    and sends to every slot what that lacks.
    """

    def __init__(
        self,
        changes: EnsembleChanges,
        slots: Slots,
        spares: Spares,
        guard: Guard,
        part: Part | None,
        *,
        commit: Callable[[Commit], Awaitable[bool]],
        start: Callable[[Coroutine[Any, Any, None]], object],
        on_committed: Callable[[Sequence[Effect]], None],
    ) -> None:
        self._changes = changes
        self._slots = slots
        self._spares = spares
        self._guard = guard
        self._part = part
        self._commit = commit
        self._start = start
        self._on_committed = on_committed
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._settled: asyncio.Future[bool] | None = None
        """Of the change that is under way; None: none is."""
        self._stopped = False

    def stop(self) -> None:
        """Begin no change any more. One that is being written into the metadata comes to its end."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def progress(self) -> ChangeProgress:
        """How far the change is, for the quorum timeout."""
        return ChangeProgress(self._changes.phase, self._spares.asked_metadata_at, self._spares.none_because)

    async def wait_settled(self) -> None:
        """Return when no change of the metadata is under way (a writer makes one change at a time: rule W5)."""
        while self._settled is not None:
            await asyncio.wait([self._settled])

    # --- bookies that are in trouble --------------------------------------------------------------------------------

    def consider(self) -> None:
        """Begin a change of the ensemble if one is due; otherwise set a timer for when one may be."""
        if self._stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wanted = self._changes.poll(self._loop.time())
        if wanted is not None:
            self._start(self._replace(wanted))
            return
        wake_at = self._changes.wake_at()
        if wake_at is not None:
            self._timer = self._loop.call_at(wake_at, self._guard.run, self._time_to_consider)

    def _time_to_consider(self) -> None:
        self._timer = None
        self.consider()

    def consider_unless_timed(self) -> None:
        """As :meth:`consider`, but only if no timer is set: something waits for a bookie that was in trouble before."""
        if self._timer is None:
            self.consider()

    def replace_departed(self, departed: Collection[BookieId]) -> None:
        """Replace these bookies, even if no add waits for them; and leave in place those that are not among them any
        more (rule O2)."""
        if self._stopped:
            return
        now = self._loop.time()
        for position, bookie_id in enumerate(self._changes.ensemble):
            if bookie_id in departed:
                self._changes.on_departed(position, now)
            else:
                self._changes.on_stays(position)
        self.consider()

    async def _replace(self, wanted: FindSpares) -> None:
        self._settled = settled = self._loop.create_future()
        try:
            spares = await self._spares.find(wanted.positions, self._changes.ensemble, lambda: not self._stopped)
            if self._stopped:
                return
            now, changes = self._loop.time(), self._changes
            spares = self._spares.keep_spread(changes.ensemble, changes.still_due(spares, now))
            if await self._write(changes.on_spares(spares, now)):
                self._committed(rolling=False)
        except OctavoError as error:
            self._guard.fail(error)
        finally:
            self._settle(settled, made=False)
        # Not after a cancellation or a defect: then the supervisor ends and runs nothing any more.
        self.consider()

    # --- rolls ------------------------------------------------------------------------------------------------------

    async def roll(self, place: Callable[[], Awaitable[Sequence[BookieId]]]) -> bool:
        """Begin a new fragment at LAC + 1 on the bookies that ``place`` gives (rule U6); whether there is one. Where
        all copies are required it begins at LAFR + 1, and new bookies get copies first (rule G3). Raises what ``place``
        raises; any other failure is the writer's. A change that has begun ends with the writer, not with the caller."""
        await self.wait_settled()
        while not self._stopped and not self._changes.begin_roll():
            await asyncio.sleep(0)  # a change that was decided in this turn begins in the next one
            await self.wait_settled()
        if self._stopped:
            return False
        self._settled = settled = self._loop.create_future()
        try:
            ensemble = await place()
        except BaseException:
            self._changes.on_placement(None)
            self._settle(settled, made=False)
            self.consider()
            raise
        return await self._roll_to(ensemble, settled)

    async def _roll_to(self, ensemble: Sequence[BookieId], settled: asyncio.Future[bool]) -> bool:
        chosen = self._changes.on_placement(None if self._stopped else ensemble)
        if self._changes.phase is Phase.IDLE:
            self._settle(settled, made=False)
            return False
        self._start(self._commit_roll(chosen, settled))
        await asyncio.wait([settled])
        return settled.result() and not self._stopped

    async def _commit_roll(self, chosen: Commit | None, settled: asyncio.Future[bool]) -> None:
        made = False
        try:
            if await self._write(chosen):
                self._committed(rolling=True)
                made = True
        except OctavoError as error:
            self._guard.fail(error)
        finally:
            self._settle(settled, made=made)
        self.consider()

    # --- either -----------------------------------------------------------------------------------------------------

    async def _write(self, chosen: Commit | None) -> bool:
        """Write the change into the metadata, if there is one; whether it is there."""
        commit = chosen if self._part is None else await self._part.before_commit(chosen)
        return commit is not None and await self._commit(commit)

    def _settle(self, settled: asyncio.Future[bool], *, made: bool) -> None:
        self._settled = None
        settled.set_result(made)

    def _committed(self, *, rolling: bool) -> None:
        """The metadata have the new ensemble: use it. ``rolling``: no bookie has failed."""
        before = self._changes.ensemble
        effects = self._changes.on_committed(self._loop.time())
        for position, (old, new) in enumerate(zip(before, self._changes.ensemble, strict=True)):
            if old != new:
                if not rolling:
                    answer = self._slots.answer(position)
                    log.info("ledger %d: %s replaced by %s: %s", self._guard.ledger_id, old, new, answer)
                    self._spares.retire(old, self._slots.refusals[position])
                self._slots.replace(position, new)
        self._spares.none_because = None
        self._on_committed(effects)
