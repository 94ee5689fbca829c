"""Consumers of partitions, and one that only asks where partitions end and what is committed."""

import asyncio
import random
from collections.abc import Collection, Coroutine
from typing import Any

from octavo.gateway.codes import Code
from octavo.gateway.wire.apis import Api
from simulation.gateways.connections import Kafka, NoAnswerError, code_of
from simulation.gateways.stage import GROUP, TOPIC, Stage, messages_in, violation
from simulation.judges.history import Violation
from simulation.world import ClientHost
from support.kafka.client import fetch_request
from support.kafka.history import BrokenHistoryError, Message, PartitionReader

WAIT_MS = 200
"""How long a fetch waits for records."""

_LATEST = -1

ASKED_MAX = 60
"""Questions without an answer; then a new connection is made."""


async def fetch(
    stage: Stage, kafka: Kafka, host: ClientHost, reader: PartitionReader, partition: int
) -> list[tuple[int, Message]]:
    """Read on where a reader is; what it was given, with offsets. Raises :class:`NoAnswerError`."""
    try:
        return await _fetch(stage, kafka, host, reader, partition)
    except NoAnswerError:
        kafka.forget_leader(partition)
        raise


async def _fetch(
    stage: Stage, kafka: Kafka, host: ClientHost, reader: PartitionReader, partition: int
) -> list[tuple[int, Message]]:
    address = await kafka.leader(TOPIC, partition)
    bytes_max = kafka.rng.choice((1, 200, 5000))
    asked = fetch_request(TOPIC, reader.position, partition=partition, partition_bytes_max=bytes_max)
    asked |= {"max_wait": WAIT_MS}
    answer = await kafka.ask(address, f"fetch {partition}", Api.FETCH, asked, extra_seconds=2 * WAIT_MS / 1000)
    ((told,),) = (response.partitions for response in answer.responses)
    code = code_of(told)
    if code is Code.OFFSET_OUT_OF_RANGE:
        # Nothing is deleted, and the reader knows no offset above what it was told.
        raise Violation("K7", f"{reader.partition.name}: offset {reader.position} is said to be out of range")
    if code is not Code.NONE:
        stage.note(host.name, f"fetch of {reader.partition.name}", code)
        raise NoAnswerError(code.name)
    given = []
    try:
        for offset, message in messages_in(told.records):
            if offset >= told.high_watermark:
                raise Violation("K7", f"{reader.partition.name}: offset {offset} at or above {told.high_watermark}")
            if offset >= reader.position:  # the first batch may begin below
                reader.polled(message, offset)
                given.append((offset, message))
    except BrokenHistoryError as error:
        raise violation(error) from error
    stage.world.trace.count("gateway: messages read", len(given))
    return given


class Following:
    """A consumer that is in no group, over all lives of its process."""

    def __init__(self, stage: Stage, rng: random.Random, name: str) -> None:
        self.stage = stage
        self.rng = rng
        self.name = name
        self._readers = [PartitionReader(one) for one in stage.partitions]
        self._lives = 0

    async def run(self, host: ClientHost) -> None:
        """Run one life, until the stage is over."""
        self._lives += 1
        kafka = self.stage.kafka(self.stage.world.rng_for(f"{self.name} life {self._lives}"))
        await asyncio.gather(*(self._follow(host, kafka, one) for one in range(len(self._readers))))
        kafka.close()

    async def _follow(self, host: ClientHost, kafka: Kafka, partition: int) -> None:
        stage, reader = self.stage, self._readers[partition]
        while not stage.is_over:
            try:
                await fetch(stage, kafka, host, reader, partition)
            except NoAnswerError as error:
                stage.world.note(host.name, "fetch of partition %d: %s", partition, str(error))
                await asyncio.sleep(kafka.rng.uniform(0.05, 0.2))


class Asking:
    """Asks every gateway for the ends of partitions and the offsets that the group has committed, whether it leads them
    or not, and without waiting for its answers: one that stood still finds such questions when it goes on."""

    def __init__(self, stage: Stage, rng: random.Random, name: str) -> None:
        self.stage = stage
        self.rng = rng
        self.name = name
        self._lives = 0

    async def run(self, host: ClientHost) -> None:
        """Run one life, until the stage is over."""
        self._lives += 1
        kafka = self.stage.kafka(self.stage.world.rng_for(f"{self.name} life {self._lives}"))
        await asyncio.gather(*(self._ask(kafka, address) for address in self.stage.addresses))
        kafka.close()

    async def _ask(self, kafka: Kafka, address: str) -> None:
        stage, asked = self.stage, set[asyncio.Task[None]]()
        while not stage.is_over:
            await asyncio.sleep(kafka.rng.uniform(0.05, 0.3))
            try:
                connection = await kafka.connection(address, "ask")
            except NoAnswerError:
                continue
            if len(asked) > ASKED_MAX:
                connection.close()
            ends = connection.send(Api.LIST_OFFSETS, _ends_asked(range(len(stage.partitions))))
            known_ends = [one.acknowledged_stop for one in stage.partitions]
            commits = connection.send(Api.OFFSET_FETCH, _commits_asked(range(len(stage.partitions))))
            known_commits = [one.known for one in stage.group.commits]
            for waiting in (self._hear_ends(ends, known_ends), self._hear_commits(commits, known_commits)):
                task = asyncio.ensure_future(self._hear(waiting))
                asked.add(task)
                task.add_done_callback(asked.discard)
        for task in asked:
            task.cancel()

    async def _hear(self, waiting: Coroutine[Any, Any, None]) -> None:
        try:
            await waiting
        except NoAnswerError:
            return
        except BrokenHistoryError as error:
            self.stage.world.violate(violation(error))

    async def _hear_ends(self, asked: asyncio.Future[Any], known: list[int]) -> None:
        for told in _rows_of(await asked):
            if code_of(told) is Code.NONE:
                self.stage.partitions[told.partition_index].told_end(told.offset, known[told.partition_index])
                self.stage.world.trace.count("gateway: ends told")

    async def _hear_commits(self, asked: asyncio.Future[Any], known: list[int]) -> None:
        for told in _rows_of(await asked):
            if code_of(told) is Code.NONE:
                number = told.partition_index
                self.stage.group.found(number, told.committed_offset, known[number])
                self.stage.world.trace.count("gateway: committed offsets told")


async def find_commits(
    stage: Stage, kafka: Kafka, host: ClientHost, purpose: str, partitions: Collection[int]
) -> dict[int, int]:
    """The offsets that the group has committed, by partition. Raises :class:`NoAnswerError`."""
    group = stage.group
    address = await kafka.coordinator(GROUP)
    known = {one: group.commits[one].known for one in partitions}
    answer = await kafka.ask(address, purpose, Api.OFFSET_FETCH, _commits_asked(partitions))
    rows = _rows_of(answer)
    for code in (code_of(answer), *map(code_of, rows)):
        if code is not Code.NONE:
            stage.note(host.name, "committed offsets", code)
            raise NoAnswerError(code.name)
    for told in rows:
        group.found(told.partition_index, told.committed_offset, known[told.partition_index])
    return {int(told.partition_index): int(told.committed_offset) for told in rows}


async def end_of(stage: Stage, kafka: Kafka, host: ClientHost, partition: int) -> int:
    """Where a partition ends, as its leader says. Raises :class:`NoAnswerError`."""
    try:
        return await _end_of(stage, kafka, host, partition)
    except NoAnswerError:
        kafka.forget_leader(partition)
        raise


async def _end_of(stage: Stage, kafka: Kafka, host: ClientHost, partition: int) -> int:
    address = await kafka.leader(TOPIC, partition)
    answer = await kafka.ask(address, f"fetch {partition}", Api.LIST_OFFSETS, _ends_asked((partition,)))
    (told,) = _rows_of(answer)
    if code_of(told) is not Code.NONE:
        stage.note(host.name, f"end of partition {partition}", code_of(told))
        raise NoAnswerError(code_of(told).name)
    return int(told.offset)


def _ends_asked(partitions: Collection[int]) -> dict[str, Any]:
    rows = [{"partition_index": one, "current_leader_epoch": -1, "timestamp": _LATEST} for one in partitions]
    return {"replica_id": -1, "isolation_level": 0, "topics": [{"name": TOPIC, "partitions": rows}]}


def _commits_asked(partitions: Collection[int]) -> dict[str, Any]:
    return {"group_id": GROUP, "topics": [{"name": TOPIC, "partition_indexes": list(partitions)}]}


def _rows_of(answer: Any) -> list[Any]:
    """Of the partitions in an answer."""
    return [one for topic in answer.topics for one in topic.partitions]
