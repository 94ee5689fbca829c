"""An operator of repair: drains bookies, holds them, and changes its mind, while faults strike."""

import asyncio
import random
from collections.abc import Callable

from octavo.client.client import Client
from octavo.metadata.cluster.registration import BookieState
from octavo.metadata.cluster.repair_states import Condition
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import BookieId
from octavo.repair.operate import operators
from simulation.judges.history import Violation
from simulation.workload.workload import note_answer
from simulation.world import ClientHost, World


class Operating:
    """See the module. Accepts every :class:`OctavoError` as a result."""

    def __init__(self, world: World, rng: random.Random, ended: Callable[[], bool]) -> None:
        self._world = world
        self._rng = rng
        self._ended = ended

    async def run(self, host: ClientHost, client: Client) -> None:
        """Run until the safety phase has ended."""
        while not self._ended():
            await asyncio.sleep(self._rng.uniform(0.05, 0.8))
            known = sorted(name for machine in self._world.machines for name in machine.ids)
            if self._ended() or not known:
                continue
            name = BookieId(self._rng.choice(known))
            what = self._rng.choice(("drain", "drain", "undrain", "undrain", "hold", "release"))
            try:
                await self._do(host.store, what, name)
            except OctavoError as error:
                note_answer(self._world, host.name, f"{what} {name}", error)
            else:
                self._world.note(host.name, "%s %s", what, name)
                self._world.trace.count(f"repair: {what}")

    async def _do(self, store: MetadataStore, what: str, name: BookieId) -> None:
        now_ms = int(self._world.wall_clock().timestamp() * 1000)
        match what:
            case "drain":
                await operators.drain(store, name, now_ms=now_ms)
            case "undrain":
                await operators.undrain(store, name)
            case "hold":
                await operators.hold(store, name, seconds=self._rng.uniform(0.1, 2.0), reason="test", now_ms=now_ms)
            case _:
                self._world.clocks.releases(name)
                await operators.release(store, name, now_ms=now_ms)


async def end_drains(world: World, seconds: float) -> None:
    """End every drain and every hold, as an operator does who sees that all bookies are well. Raises
    :class:`Violation`."""
    ending = world.host("repair operator").run(_end_all, "operator")
    _, late = await asyncio.wait([ending], timeout=seconds)
    if late:
        raise Violation("I8", f"a drain could not be ended within {seconds} s")


async def _end_all(host: ClientHost) -> None:
    client = await host.connect()
    try:
        while not await _all_ended(host.world, host.store):  # noqa: ASYNC110 - the metadata store may not answer
            await asyncio.sleep(0.2)
    finally:
        await client.close()


async def _all_ended(world: World, store: MetadataStore) -> bool:
    """End what has not ended. A bookie whose drain has ended registers as writable a moment later: were it to stand
    still before that, new ledgers would lack it. A drain that a client asked for, which has been killed since, may
    still begin."""
    began_at = world.loop.now
    try:
        states, registrations = await operators.read_states(store), await store.list_bookies()
        read_only = [name for name, one in registrations.items() if one.state is BookieState.READ_ONLY]
        for name, condition in states.bookies.items():
            if condition.condition is Condition.DRAINING:
                await operators.undrain(store, name)
                read_only.append(name)
            elif condition.condition is Condition.HELD:
                world.clocks.releases(name)
                await operators.release(store, name, now_ms=int(world.wall_clock().timestamp() * 1000))
    except OctavoError as error:
        world.note("repair operator", "%s %s", type(error).__name__, error.message)
        return False
    return not read_only and began_at >= world.metadata.slow_changes_until
