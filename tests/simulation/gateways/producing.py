"""Idempotent producers: they send numbered messages to each partition of a topic, several batches at a time, and send
each batch again until it is acknowledged. A producer that is killed begins as another one, with an id of its own.
"""

import asyncio
import random
from collections import deque
from typing import Any, NamedTuple

from octavo.gateway.codes import Code
from octavo.gateway.wire.apis import Api
from simulation.gateways.connections import Connection, Kafka, NoAnswerError, code_of
from simulation.gateways.stage import TOPIC, Stage, value_of, violation
from simulation.judges.history import Violation
from simulation.world import ClientHost
from support.kafka.batches import batch_of
from support.kafka.history import BrokenHistoryError, Message

_PURPOSE = "produce"

_MADE_AT_MS = 1_000

_PAUSE_CHANCE = 0.3
"""After a batch: several are sent together."""

RETRIED = frozenset(
    {Code.NOT_LEADER_OR_FOLLOWER, Code.LEADER_NOT_AVAILABLE, Code.REQUEST_TIMED_OUT, Code.UNKNOWN_TOPIC_OR_PARTITION}
)
"""After these a producer tries again. Any other refusal of the batch that is next would let it give the batch up."""


class Batch(NamedTuple):
    """Messages that are sent together."""

    messages: tuple[Message, ...]
    content: bytes


class Producing:
    """One producer over all lives of its process. Each life is another producer."""

    def __init__(self, stage: Stage, rng: random.Random, name: str, batches: int) -> None:
        """``batches``: for each partition."""
        self.stage = stage
        self.rng = rng
        self.name = name
        self._left = [batches] * len(stage.partitions)
        """Batches that no life has had acknowledged, by partition."""
        self._lives = 0
        self.window = rng.choice((1, 2, 5))
        """Batches under way at a time; five is what clients have at most."""
        self.pause_seconds = stage.world.plan.safety_seconds / batches
        """Between two batches, on average: there is something to send as long as faults strike."""
        self.timeout_ms = rng.choice((200, 200, 1000))

    async def run(self, host: ClientHost) -> None:
        """Run one life."""
        self._lives += 1
        rng = self.stage.world.rng_for(f"{self.name} life {self._lives}")
        kafka = self.stage.kafka(rng)
        producer_id = await self._take_id(host, kafka)
        name = f"{self.name}.{self._lives}"
        sender = _Sender(name, producer_id)
        lanes = [_Lane(self, host, kafka, sender, one) for one in range(len(self.stage.partitions))]
        await asyncio.gather(*(lane.run(self._left) for lane in lanes))
        kafka.close()

    async def _take_id(self, host: ClientHost, kafka: Kafka) -> int:
        asked = {"transactional_id": None, "transaction_timeout": 1000}
        while True:
            try:
                answer = await kafka.ask(kafka.any_address(), "metadata", Api.INIT_PRODUCER_ID, asked)
            except NoAnswerError as error:
                self.stage.world.note(host.name, "no producer id: %s", str(error))
            else:
                if code_of(answer) is Code.NONE:
                    return int(answer.producer_id)
                self.stage.note(host.name, "no producer id", code_of(answer))
            await asyncio.sleep(kafka.rng.uniform(0.05, 0.2))


class _Sender(NamedTuple):
    """One life of a producer."""

    name: str
    producer_id: int


class _Lane:
    """The batches of one life of a producer for one partition."""

    def __init__(self, producing: Producing, host: ClientHost, kafka: Kafka, sender: _Sender, partition: int) -> None:
        self._producing = producing
        self._host = host
        self._kafka = kafka
        self._sender = sender
        self._partition = partition
        self._purpose = f"{_PURPOSE} {partition}"
        self._history = producing.stage.partitions[partition]
        self._next = 0
        """Number of the next message."""
        self._unacknowledged: deque[Batch] = deque()
        """The oldest first. Each has been sent."""

    async def run(self, left: list[int]) -> None:
        """Send as many batches as are left, and count them down as they are acknowledged."""
        kafka, world = self._kafka, self._producing.stage.world
        while left[self._partition]:
            try:
                address = await kafka.leader(TOPIC, self._partition)
                connection = await kafka.connection(address, self._purpose)
                await self._send_on(connection, left)
            except NoAnswerError as error:
                world.note(self._host.name, "partition %d: %s", self._partition, str(error))
                kafka.forget_leader(self._partition)
            except BrokenHistoryError as error:
                raise violation(error) from error
            if left[self._partition]:
                await asyncio.sleep(kafka.rng.uniform(0.02, 0.2))

    async def _send_on(self, connection: Connection, left: list[int]) -> None:
        """Send what is not acknowledged again, then further batches, until one is refused."""
        waiting: deque[asyncio.Future[Any]] = deque()
        extra = self._producing.timeout_ms / 1000
        while left[self._partition]:
            while len(waiting) < min(self._producing.window, left[self._partition]):
                if len(self._unacknowledged) == len(waiting):
                    self._unacknowledged.append(self._make())
                batch = self._unacknowledged[len(waiting)]
                waiting.append(connection.send(Api.PRODUCE, self._request(batch)))
            answer = await self._kafka.answer(connection, waiting.popleft(), extra)
            if not self._is_acknowledged(answer):
                # What is under way behind it may be added, or not: it is all sent again, once it is answered.
                for place, asked in enumerate(waiting, 1):
                    self._note_later(await self._kafka.answer(connection, asked, extra), self._unacknowledged[place])
                raise NoAnswerError("a batch is to be sent again")
            left[self._partition] -= 1
            if self._kafka.rng.random() < _PAUSE_CHANCE:
                await asyncio.sleep(self._producing.pause_seconds * self._kafka.rng.uniform(0, 2 / _PAUSE_CHANCE))

    def _make(self) -> Batch:
        count = self._kafka.rng.choice((1, 1, 2, 3))
        messages = tuple(Message(self._sender.name, self._next + one) for one in range(count))
        content = batch_of(
            *map(value_of, messages), producer_id=self._sender.producer_id, producer_epoch=0, base_sequence=self._next,
            base_timestamp=_MADE_AT_MS, max_timestamp=_MADE_AT_MS,
        )  # fmt: skip
        self._next += count
        return Batch(messages, content)

    def _request(self, batch: Batch) -> dict[str, Any]:
        rows = [{"index": self._partition, "records": batch.content}]
        return {
            "transactional_id": None, "acks": -1, "timeout": self._producing.timeout_ms,
            "topic_data": [{"name": TOPIC, "partition_data": rows}],
        }  # fmt: skip

    def _note_later(self, answer: Any, batch: Batch) -> None:
        """A batch behind one that was refused: it is acknowledged only if that one is stored."""
        ((told,),) = (response.partition_responses for response in answer.responses)
        if code_of(told) is Code.NONE:
            self._note_acknowledged(batch, told.base_offset)

    def _note_acknowledged(self, batch: Batch, base_offset: int) -> None:
        for place, message in enumerate(batch.messages):
            self._history.acknowledged(message, base_offset + place)
            self._producing.stage.world.trace.count("gateway: messages acknowledged")

    def _is_acknowledged(self, answer: Any) -> bool:
        """Whether the oldest batch is; it is left then."""
        ((told,),) = (response.partition_responses for response in answer.responses)
        code, batch, stage = code_of(told), self._unacknowledged[0], self._producing.stage
        if code is not Code.NONE:
            stage.note(self._host.name, f"{batch.messages[0]}", code)
            if code not in RETRIED:
                raise Violation("K4", f"{self._history.name}: {batch.messages[0]} is next and is refused: {code.name}")
            return False
        self._unacknowledged.popleft()
        self._note_acknowledged(batch, told.base_offset)
        return True
