"""Old incarnations of a bookie that come back: an operator takes a machine for dead, gives the bookie's id to a machine
with new disks (``reset-identity``), and later the first machine goes on.

Or a bookie that has stored nothing yet was forgotten (``octavo bookies --forget``), another one got its id on empty
disks, and the disks of the first, which have counted more starts, are put into use again.

It was paused all the time, with its sockets open; or it was off, and starts on its old disks. Once the new incarnation
has served, the old one must end or refuse to start (rule B10): it does not have what the new one has confirmed, and
what it confirms the new one does not have. The fault budget counts both as one machine, which has lost its disks.
"""

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from simulation.judges.history import Violation
from simulation.world import Machine

if TYPE_CHECKING:
    from simulation.faults.nemesis import Nemesis
    from simulation.world import World

RETURNS = ("identity moves",)
"""Faults of the nemesis in universes in which old incarnations come back only."""

GRACE_SECONDS = 6.0
"""Within this time an old incarnation must have noticed: it renews its lease every third of a second."""

_ASLEEP_LEASES = (1.2, 3.0)


class Returns:
    """The machines whose identities were moved."""

    def __init__(self, world: "World", rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._old: dict[Machine, Machine] = {}
        """Machine -> the one that has its identity now."""
        self._forgotten: tuple[Machine, Machine] | None = None
        """A machine whose bookie was forgotten, and the one that has its id since."""
        self._moving: list[asyncio.Task[None]] = []
        self._healed = asyncio.Event()

    @property
    def old(self) -> list[Machine]:
        """The machines whose identities were moved."""
        return list(self._old)

    def strikes(self, nemesis: "Nemesis") -> dict[str, Callable[[], None]]:
        """The faults of :data:`RETURNS`."""

        def move() -> None:
            world = self._world
            if self._forgotten is not None:
                pair, self._forgotten = self._forgotten, None
                nemesis.count("process: forgotten bookie started")
                self._moving.append(asyncio.ensure_future(self._start_forgotten(*pair)))
                return
            machines = [one for one in world.unlucky if one.ready and not one.spent and one.serving]
            if machines:
                nemesis.count("process: identity moved")
                nemesis.count("disk: exchanged")
                self._move(self._rng.choice(machines))

        return dict.fromkeys(RETURNS, move)

    def _move(self, old: Machine) -> None:
        world = self._world
        is_paused = self._rng.random() < 0.6
        world.note(old.name, "is taken for dead; it is %s", "paused" if is_paused else "off")
        new = Machine(world, f"{old.name}-anew")
        new.ids[next(reversed(old.ids))] = None
        new.refused = "its disks are new: run reset-identity"
        new.spent = old.spent = True
        world.machines[world.machines.index(old)] = new
        world.unlucky[world.unlucky.index(old)] = new
        self._old[old] = new
        if is_paused and old.process is not None:
            old.process.pause()
        else:
            old.kill()
            old.retired = True
        self._moving.append(asyncio.ensure_future(self._return(old, new)))

    async def forget_one(self) -> None:
        """Before anything is stored: start a bookie several times, forget it, and give its id to empty disks."""
        world, old = self._world, self._world.unlucky[0]
        if self._rng.random() < 0.6:
            return
        for _ in range(self._rng.choice((1, 3))):
            old.kill()
            old.start()
            await _until(lambda: old.ready)
        old.retired = True
        old.kill()
        name = next(reversed(old.ids))
        await _until(lambda: not world.metadata.is_registered(name))
        world.metadata.forget_bookie(name)
        world.note(old.name, "is forgotten; %s is to have new disks", name)
        new = Machine(world, f"{old.name}-anew")
        new.pinned_id = name
        old.spent = True
        world.machines[world.machines.index(old)] = new
        world.unlucky[world.unlucky.index(old)] = new
        new.start()
        await _until(lambda: new.ready)
        new.spent = True
        self._forgotten = old, new

    async def _start_forgotten(self, old: Machine, new: Machine) -> None:
        """The disks of long ago are put into use while the bookie that has the id is off."""
        world = self._world
        new.retired = True
        new.kill()
        await self._sleep(self._rng.uniform(*_ASLEEP_LEASES) * world.plan.bookie["lease_seconds"])
        world.note(old.name, "starts, and was forgotten long ago")
        old.retired = False
        old.start()
        deadline = world.loop.now + GRACE_SECONDS
        while not (old.refused or world.loop.now > deadline):
            if old.ready and old.serving and world.loop.now > deadline - GRACE_SECONDS / 2:
                world.violate(Violation("B10", f"{old.name} serves, and its id was given to other disks"))
            await asyncio.sleep(0.1)
        old.retired = True
        old.kill()
        new.retired = False
        new.start()

    async def _return(self, old: Machine, new: Machine) -> None:
        """Have the identity moved, and let the old incarnation go on once the new one has served."""
        rng = self._rng
        await self._sleep(rng.uniform(*_ASLEEP_LEASES) * self._world.plan.bookie["lease_seconds"])
        if (
            old.process is not None and not old.process.paused
        ):  # it lost power, and was started again: it is stopped first
            old.retired = True
            old.kill()
        new.repair()
        await _until(lambda: new.ready)  # the operator tries again, and other faults strike
        await self._sleep(rng.uniform(0.0, 1.5))
        self._world.note(old.name, "goes on with its old disks")
        self._world.trace.count("process: old incarnation came back")
        old.retired = False
        if old.process is not None:
            old.process.resume()
        else:
            old.start()

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._healed.wait()
        except TimeoutError:
            pass

    def heal(self) -> None:
        """Let everything that is left happen soon."""
        self._healed.set()

    async def check(self) -> None:
        """Check that no old incarnation serves. Raises :class:`Violation`."""
        await asyncio.gather(*self._moving)
        loop = self._world.loop
        deadline = loop.now + GRACE_SECONDS
        while any(old.serving for old in self._old):
            if loop.now > deadline:
                names = [old.name for old in self._old if old.serving]
                raise Violation("B10", f"{names} serve, and their identities were given to other disks")
            await asyncio.sleep(0.1)
        for old in self._old:
            old.retired = True
            old.kill()


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(0.05)
