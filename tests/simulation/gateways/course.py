"""A universe with gateways: producers, followers and the members of a consumer group use them in Kafka's protocol.

The nemesis strikes gateways, bookies, clients and the metadata meanwhile. Everything that clients are told goes into
one history (``tests/support/kafka/history.py``), which looks at it from outside. In the end all that was sent must be
acknowledged, read and committed; a fresh client reads it all through the gateways, and another one from the logs of the
partitions, and both must find the same.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from octavo.client.client import Client
from octavo.protocol.errors import OctavoError
from simulation.gateways.connections import Kafka, NoAnswerError
from simulation.gateways.members import Member
from simulation.gateways.producing import Producing
from simulation.gateways.reading import Asking, Following, end_of, fetch
from simulation.gateways.seat import Seat
from simulation.gateways.stage import TOPIC, Stage, messages_of, violation
from simulation.judges.history import Violation
from simulation.universe import LIVENESS_SECONDS_MAX, Universe
from simulation.workload.workload import note_answer
from simulation.world import ClientHost, World
from support.kafka.history import BrokenHistoryError, Message, PartitionHistory, PartitionReader

type Work = Callable[[ClientHost], Coroutine[Any, Any, None]]
"""What a client process does with gateways, in one of its lives."""

_PRODUCERS = 2
_MEMBERS = 2
_READ_ATTEMPTS_MAX = 30


class GatewayUniverse(Universe):
    """The course of events of such a universe."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        partitions = world.plan.hardships.gateway_partitions
        names = [f"gateway-{number}" for number in range(world.plan.hardships.gateway_count)]
        world.gateways = [Seat(world, name, partitions) for name in names]
        self._stage = Stage(world, names, partitions, ended=self.ended)
        self._running: list[asyncio.Future[None]] = []
        self._followers: list[asyncio.Future[None]] = []
        self._found: list[dict[int, Message]] = []
        """Of each partition: what a new consumer got in the end."""

    def _start_applications(self) -> list[asyncio.Future[None]]:
        world, stage = self.world, self._stage
        self._running = [asyncio.ensure_future(seat.keep_running()) for seat in world.gateways]
        batches = max(1, world.plan.adds // (_PRODUCERS * len(stage.partitions)))
        producers = [
            Producing(stage, world.rng_for(f"producer {number}"), f"producer-{number}", batches)
            for number in range(_PRODUCERS)
        ]
        stage.producing = len(producers)
        members = [Member(stage, world.rng_for(f"member {number}"), f"member-{number}") for number in range(_MEMBERS)]
        follower = Following(stage, world.rng_for("follower"), "follower-0")
        asking = Asking(stage, world.rng_for("asking"), "asking-0")
        self._followers = [asyncio.ensure_future(self._keep(one.name, one.run)) for one in (follower, asking)]
        return [
            *(asyncio.ensure_future(self._produce(one)) for one in producers),
            *(asyncio.ensure_future(self._keep(one.name, one.run)) for one in members),
        ]

    async def _produce(self, producing: Producing) -> None:
        await self._keep(producing.name, producing.run)
        self._stage.producing -= 1

    async def _keep(self, name: str, work: Work) -> None:
        """Run a client; start it again whenever it is killed before its end."""
        for number in itertools.count():
            host = self.world.host(f"{name}.{number}" if number else name)
            await host.run(work, "client")
            if host.process.alive:
                return
            await asyncio.sleep(self.rng.uniform(0.05, 0.5))

    # --- the end ------------------------------------------------------------------------------------------------------

    async def _judge(self) -> None:
        """Read everything, and compare it with what clients were told."""
        stage = self._stage
        await self._run_judge(self._read_all)
        stage.is_over = True
        _, late = await asyncio.wait(self._followers, timeout=LIVENESS_SECONDS_MAX)
        if late:
            raise Violation("I8", "a follower does not end")

    async def _run_judge(self, work: Work) -> None:
        _, late = await asyncio.wait([self.world.host("judge").run(work, "judge")], timeout=LIVENESS_SECONDS_MAX)
        if late:
            raise Violation("I8", "the judge could not read all partitions in time")

    async def _read_all(self, host: ClientHost) -> None:
        """Read all partitions through the gateways."""
        stage = self._stage
        kafka = stage.kafka(self.world.rng_for("judge of gateways"))
        for number, history in enumerate(stage.partitions):
            found = await self._again(host, partial(self._read, host, kafka, number))
            self._check_whole(history, found)
            self._found.append(found)
            self.world.trace.count("gateway: partitions judged")
        kafka.close()

    async def _read_logs(self, host: ClientHost) -> None:
        """Compare the logs of the partitions, which no gateway leads any more, with what a consumer got."""
        client = await host.connect()
        for number, history in enumerate(self._stage.partitions):
            in_log = await self._again(host, partial(self._read_log, client, f"kafka/{TOPIC}/{number}"))
            if in_log != self._found[number]:
                raise Violation("K1", f"{history.name}: its log holds {in_log}, a consumer got {self._found[number]}")
        await client.close()

    async def _read_log(self, client: Client, name: str) -> dict[int, Message]:
        found: dict[int, Message] = {}
        async with await client.open_log(name) as log:
            async for entry in log.entries():
                found |= dict(messages_of(entry.payload))
        return found

    async def _read(self, host: ClientHost, kafka: Kafka, number: int) -> dict[int, Message]:
        """All messages of a partition, as a new consumer gets them."""
        stage, found = self._stage, dict[int, Message]()
        end = await end_of(stage, kafka, host, number)
        reader = PartitionReader(stage.partitions[number])
        while reader.position < end:
            found |= dict(await fetch(stage, kafka, host, reader, number))
        return found

    def _check_whole(self, history: PartitionHistory, found: dict[int, Message]) -> None:
        try:
            history.check_whole(found)
        except BrokenHistoryError as error:
            raise violation(error) from error

    async def _again[T](self, host: ClientHost, step: Callable[[], Coroutine[Any, Any, T]]) -> T:
        for _ in range(_READ_ATTEMPTS_MAX):
            try:
                return await step()
            except NoAnswerError as error:
                self.world.note(host.name, "not read: %s", str(error))
            except OctavoError as error:
                note_answer(self.world, host.name, "not read", error)
            await asyncio.sleep(1.0)
        raise Violation("I8", "the judge cannot read a partition")

    async def _stop(self) -> None:
        """Stop the gateways in order, which must leave nothing running, then the bookies."""
        deadline = self.world.loop.now + LIVENESS_SECONDS_MAX
        for seat in self.world.gateways:
            seat.retired = True
        while any(seat.host is not None for seat in self.world.gateways):
            if self.world.loop.now > deadline:
                left = [seat.name for seat in self.world.gateways if seat.host is not None]
                raise Violation("I8", f"{left} did not stop")
            for seat in self.world.gateways:
                seat.stop()
            await asyncio.sleep(0.1)
        await asyncio.wait(self._running)
        await self._run_judge(self._read_logs)
        await super()._stop()
