"""A gateway of a universe, over all lives of its process: one that has ended or was killed begins again."""

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

from octavo.gateway.coordinating.coordinator import GroupLimits
from octavo.gateway.gateway import Gateway, GatewaySettings
from octavo.protocol.errors import OctavoError
from simulation.gateways.connections import PORT
from simulation.judges.history import Violation
from simulation.workload.workload import note_answer
from simulation.world import ClientHost, World

RESTART_SECONDS: Final = (0.05, 1.0)
"""Range of the pause before it begins again."""


class Seat:
    """See the module. Clients reach each of its lives at the same address."""

    def __init__(self, world: World, name: str, partitions: int) -> None:
        self.world = world
        self.name = name
        self.retired = False
        """Whether it stays off once it has stopped."""
        self.host: ClientHost | None = None
        """While its process lives."""
        self.gateway: Gateway | None = None
        """While it serves."""
        self._partitions = partitions
        self._rng = world.rng_for(name)
        self._stop: asyncio.Event | None = None
        self._told_to_stop = False

    async def keep_running(self) -> None:
        """Begin it again and again, until it is retired."""
        world = self.world
        for number in itertools.count():
            if self.retired:
                return
            host = self.host = world.host(f"{self.name}.{number}" if number else self.name, self.name)
            self._told_to_stop = False
            await host.run(self._live, "gateway")
            self.host = self.gateway = self._stop = None
            host.process.kill()
            if not self.retired:
                await asyncio.sleep(self._rng.uniform(*RESTART_SECONDS))

    async def _live(self, host: ClientHost) -> None:
        """Run as ``octavo gateway`` does: until other gateways may lead what it leads, or it is told to stop."""
        world = self.world
        self._stop = stop = asyncio.Event()
        client = await host.connect()
        rng = world.rng_for(f"gateway {host.name}")
        try:
            gateway = await Gateway.start(
                client, host.store, self._settings(), name=f"gateway of {host.name}", clock_ms=self._now_ms, rng=rng
            )
        except OctavoError as error:
            note_answer(world, host.name, "cannot begin", error)
            await client.close()
            return
        self.gateway = gateway
        world.note(host.name, "serves")
        await _first_of(stop.wait(), self._wait_lost(gateway, host))
        if stop.is_set():
            world.note(host.name, "stops")
        try:
            await gateway.close()
            await client.close()
        except OctavoError as error:
            note_answer(world, host.name, "close", error)
            return
        if stop.is_set():
            world.loop.call_soon(self._check_tasks, host)

    async def _wait_lost(self, gateway: Gateway, host: ClientHost) -> None:
        try:
            await gateway.wait_lost()
            self.world.note(host.name, "has lost its lease")
            self.world.trace.count("gateway: lease lost")
        except OctavoError as error:
            note_answer(self.world, host.name, "ends", error)

    def _settings(self) -> GatewaySettings:
        _, write_quorum, ack_quorum = self.world.plan.quorums
        return GatewaySettings(
            host=self.name, port=PORT, partitions=self._partitions, write_quorum=write_quorum, ack_quorum=ack_quorum,
            groups=GroupLimits(restate_bytes=self.world.plan.hardships.gateway_restate_bytes),
        )  # fmt: skip

    def _now_ms(self) -> int:
        return int(self.world.wall_clock().timestamp() * 1000)

    def _check_tasks(self, host: ClientHost) -> None:
        """Runs a turn after an orderly end."""
        left = [task.get_name() for task in host.process.tasks() if not task.done()]
        left = [name for name in left if name != f"{host.name} gateway"]
        if left:
            self.world.violate(Violation("no leaks", f"{host.name} stopped with tasks {left}"))

    # --- what happens to it -------------------------------------------------------------------------------------------

    @property
    def serves(self) -> bool:
        """Whether it takes part, and its process goes on."""
        return self.gateway is not None and self.host is not None and not self.host.process.paused

    @property
    def leads(self) -> int:
        """Partitions and logs of groups that it leads."""
        return 0 if self.gateway is None else len(self.gateway.leaders) + len(self.gateway.coordinators.running)

    def kill(self) -> None:
        """SIGKILL."""
        if self.host is not None:
            self.world.note(self.host.name, "killed")
            self.host.process.kill()

    def stop(self) -> None:
        """SIGTERM. A gateway that is beginning ends when it serves."""
        if self.host is None or self._stop is None or self._told_to_stop:
            return
        self._told_to_stop = True
        loop = self.world.loop
        loop.call_process(self.host.process, loop.now, self._stop.set)

    def pause(self) -> Callable[[], None] | None:
        """SIGSTOP; what is SIGCONT. None: there is nothing to stop."""
        if self.host is None or self.host.process.paused:
            return None
        self.host.process.pause()
        return self.host.process.resume


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of these has ended."""
    tasks = [asyncio.ensure_future(one) for one in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def most_leading(seats: list[Seat], rng: random.Random) -> Seat | None:
    """A gateway that leads something, preferably; None: none serves."""
    serving = [one for one in seats if one.serves]
    leading = [one for one in serving if one.leads]
    return rng.choice(leading or serving) if serving else None
