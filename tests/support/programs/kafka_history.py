"""Programs that make a history of a topic from outside: ``kafka_history.py PROGRAM ADDRESS TOPIC PARTITIONS``.

``produce`` adds 0, 1, 2, ... to the partitions in turn, from one idempotent producer, until its standard input ends. So
number N has the offset N // PARTITIONS in partition N % PARTITIONS, whatever happens to gateways. It says again and
again how many are acknowledged in each partition, and at the end how many there are in all.

``follow`` reads all partitions from their beginning on, while they grow, and looks at each record: its number must be
the next one, and its offset that of the number. A line of its standard input is the number of records at which it ends.
"""

import json
import select
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

PACE_SECONDS = 0.005
"""Between two records: there is much else to do."""

POLL_SECONDS = 0.2

SAID_EVERY = 60
"""Records."""

FLUSH_SECONDS = 280


def say(value: Any) -> None:
    """Print one line."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def has_input(seconds: float) -> bool:
    """Whether standard input has a line, or has ended, within this time."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


class Found(NamedTuple):
    """Where a record stands."""

    offset: int | None
    partition: int


def numbered(message: Any) -> tuple[int, Found]:
    """The number in a record, and where it stands."""
    return int(message.value()), Found(message.offset(), message.partition())


def produce(address: str, topic: str, partitions: int) -> None:
    from confluent_kafka import Producer  # noqa: PLC0415

    acknowledged = [0] * partitions

    def on_delivery(error: Any, message: Any) -> None:
        assert error is None, error
        number, (offset, partition) = numbered(message)
        # This client takes a batch without an answer for stored once a later one is, and then knows no offset.
        assert offset is None or (offset, partition) == divmod(number, partitions), (offset, partition, number)
        acknowledged[partition] += 1
        if sum(acknowledged) % SAID_EVERY == 0:
            say({"acknowledged": acknowledged})

    producer = Producer(
        {
            "bootstrap.servers": address, "enable.idempotence": True, "delivery.timeout.ms": FLUSH_SECONDS * 1000,
            "linger.ms": 1, "batch.num.messages": 20,
        }
    )  # fmt: skip
    number = 0
    while not has_input(PACE_SECONDS):
        producer.produce(topic, b"%d" % number, partition=number % partitions, on_delivery=on_delivery)
        producer.poll(0)
        number += 1
    left = producer.flush(FLUSH_SECONDS)
    assert left == 0, left
    say({"produced": number, "acknowledged": acknowledged})


def follow(address: str, topic: str, partitions: int) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition  # noqa: PLC0415

    consumer = Consumer({"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, one, OFFSET_BEGINNING) for one in range(partitions)])
    followed, stop = [0] * partitions, None
    while stop is None or sum(followed) < stop:
        for message in consumer.consume(500, POLL_SECONDS):
            if message.error() is not None:
                continue
            number, (offset, partition) = numbered(message)
            assert offset == followed[partition], (offset, partition, followed)
            assert (offset, partition) == divmod(number, partitions), (offset, partition, number)
            followed[partition] += 1
        if stop is None and has_input(0):
            stop = int(sys.stdin.readline())
    say({"followed": followed})
    consumer.close()


def main(program: str, address: str, topic: str, partitions: str) -> None:
    programs: dict[str, Callable[[str, str, int], None]] = {"produce": produce, "follow": follow}
    programs[program](address, topic, int(partitions))


if __name__ == "__main__":
    main(*sys.argv[1:])
