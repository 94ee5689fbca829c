"""An operator of balance: has copies moved, and stops that, while faults strike; and once more when all is well."""

import asyncio
import random
from collections.abc import Callable

from octavo.client.client import Client
from octavo.protocol.errors import OctavoError
from octavo.repair.base.balance_document import BalanceState
from octavo.repair.operate import balancing
from octavo.repair.operate.balance_status import read_balance
from simulation.judges.history import Violation
from simulation.workload.workload import note_answer
from simulation.world import ClientHost, World

PAUSE_SECONDS = 0.3


class BalanceOperating:
    """See the module. Accepts every :class:`OctavoError` as a result."""

    def __init__(self, world: World, rng: random.Random, ended: Callable[[], bool]) -> None:
        self._world = world
        self._rng = rng
        self._ended = ended

    async def run(self, host: ClientHost, _client: Client) -> None:
        """Run until the safety phase has ended."""
        while not self._ended():
            await asyncio.sleep(self._rng.uniform(0.05, 0.5))
            what = self._rng.choice(("begin", "begin", "begin", "stop"))
            try:
                if what == "begin":
                    await _ask(host)
                else:
                    await balancing.stop_balance(host.store)
            except OctavoError as error:
                note_answer(self._world, host.name, f"{what} balance", error)
            else:
                self._world.note(host.name, "%s balance", what)
                self._world.trace.count(f"repair: {what} balance")


async def balance_all(world: World, seconds: float) -> None:
    """Have a balance run to its end, now that all is well. Raises :class:`Violation`."""
    watched = _Watched()
    waiting = world.host("balance operator").run(watched.run, "operator")
    _, late = await asyncio.wait([waiting], timeout=seconds)
    if late:
        raise Violation("A15", f"a balance does not end within {seconds} s: {watched.seen}")
    world.balance_judge.check_held()


class _Watched:
    """A balance from outside."""

    def __init__(self) -> None:
        self._asked: int | None = None
        self.seen: BalanceState | str = ""
        """The state, or the error, that was seen last."""

    async def run(self, host: ClientHost) -> None:
        """Ask for it, and return when it has ended."""
        client = await host.connect()
        try:
            while not await self._is_done(host):  # noqa: ASYNC110 - the metadata store may not answer
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            await client.close()

    async def _is_done(self, host: ClientHost) -> bool:
        try:
            if self._asked is None:
                self._asked = (await _ask(host)).asked_at_ms
            state = await read_balance(host.store)
        except OctavoError as error:
            self.seen = f"{type(error).__name__} {error.message}"
            return False
        assert state is not None, "the document of a balance is never deleted"
        self.seen = state
        return state.asked_at_ms >= self._asked and not state.is_wanted


async def _ask(host: ClientHost) -> BalanceState:
    now_ms = int(host.world.wall_clock().timestamp() * 1000)
    return await balancing.ask_for_balance(host.store, None, {}, now_ms=now_ms)
