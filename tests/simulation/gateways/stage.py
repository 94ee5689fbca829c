"""What the clients of gateways in one universe share: the topic, its history, the group, and when all is over."""

import asyncio
import random
from collections.abc import Callable
from typing import Final

from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.records.contents import records_of
from simulation.gateways.connections import Kafka
from simulation.judges.history import Violation
from simulation.world import World
from support.kafka.history import BrokenHistoryError, GroupHistory, Message, PartitionHistory

TOPIC: Final = "orders"
GROUP: Final = "billing"

STEP_SECONDS: Final = 0.05
"""Between two looks at what other processes have done."""


class Stage:
    """See the module."""

    def __init__(self, world: World, addresses: list[str], partitions: int, *, ended: Callable[[], bool]) -> None:
        """``ended``: whether no more faults strike."""
        self.world = world
        self.addresses = addresses
        self.ended = ended
        self.partitions = [PartitionHistory(f"partition {one}") for one in range(partitions)]
        self.group = GroupHistory(GROUP, partitions)
        self.producing = 0
        """Producers that have not ended."""
        self.is_over = False
        """Whether followers may go."""

    def kafka(self, rng: random.Random) -> Kafka:
        """The connections of one life of a client."""
        return Kafka(self.world, rng, self.addresses, self.world.plan.hardships.gateway_client_seconds)

    def has_all_committed(self) -> bool:
        """Whether nothing is added any more, and the group has committed all that is known."""
        ends = [one.end for one in self.partitions]
        return not self.producing and all(
            commit.known >= end for commit, end in zip(self.group.commits, ends, strict=True)
        )

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for what another process does."""
        while not condition():  # noqa: ASYNC110 - an event would wake the waiter inside the process that sets it
            await asyncio.sleep(STEP_SECONDS)

    def note(self, where: str, what: str, code: Code) -> None:
        """Record an answer that refuses something."""
        self.world.trace.count(f"gateway answer: {code.name}")
        self.world.note(where, "%s: %s", what, code.name)


def violation(error: BrokenHistoryError) -> Violation:
    """The same, as a failure of the universe."""
    return Violation(error.rule, error.text)


def value_of(message: Message) -> bytes:
    """The content of a message."""
    return f"{message.producer} {message.number}".encode()


def messages_in(batches: bytes | None) -> list[tuple[int, Message]]:
    """The messages of the batches in an answer to Fetch, with their offsets."""
    found, rest = [], batches or b""
    while rest:
        size = 12 + int.from_bytes(rest[8:12])
        found += messages_of(rest[:size])
        rest = rest[size:]
    return found


def messages_of(batch: bytes) -> list[tuple[int, Message]]:
    """The messages of one batch, with their offsets."""
    found = []
    try:
        for record in records_of(batch):
            producer, _, number = (record.value or b"").decode().partition(" ")
            found.append((record.offset, Message(producer, int(number))))
    except RefusedError as error:
        raise Violation("K1", f"a consumer got a batch that is damaged: {error}") from error
    return found
