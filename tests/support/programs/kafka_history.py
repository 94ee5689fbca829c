"""Programs that make a history of a topic from outside: ``kafka_history.py PROGRAM ADDRESS TOPIC PARTITIONS``. What
they are told is looked at by :mod:`support.kafka.history`, as in the simulator.

``produce`` adds 0, 1, 2, ... to the partitions in turn, from one idempotent producer, until its standard input ends. So
number N is the message N // PARTITIONS of partition N % PARTITIONS, and has that offset, whatever happens to gateways.
It says again and again how many are acknowledged in each partition, and at the end how many there are in all.

``follow`` reads all partitions from their beginning on, while they grow. A line of its standard input is the number of
records at which it ends; then each partition must hold all messages up to its last.
"""

import json
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.kafka.history import Message, PartitionHistory, PartitionReader

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


PRODUCER = "the producer"


class Found(NamedTuple):
    """A record, and where it stands."""

    message: Message
    offset: int | None
    partition: int


def found(record: Any, partitions: int) -> Found:
    """What a record says, and where it stands."""
    number, partition = divmod(int(record.value()), partitions)
    assert partition == record.partition(), (int(record.value()), record.partition())
    return Found(Message(PRODUCER, number), record.offset(), partition)


def histories(partitions: int) -> list[PartitionHistory]:
    """Of all partitions."""
    return [PartitionHistory(f"partition {one}") for one in range(partitions)]


def produce(address: str, topic: str, partitions: int) -> None:
    from confluent_kafka import Producer  # noqa: PLC0415

    acknowledged, history = [0] * partitions, histories(partitions)

    def on_delivery(error: Any, record: Any) -> None:
        assert error is None, error
        message, offset, partition = found(record, partitions)
        # This client takes a batch without an answer for stored once a later one is, and then knows no offset.
        if offset is not None:
            assert offset == message.number, (offset, message)
            history[partition].acknowledged(message, offset)
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
    readers, stop = [PartitionReader(one) for one in histories(partitions)], None
    while stop is None or sum(one.position for one in readers) < stop:
        for record in consumer.consume(500, POLL_SECONDS):
            if record.error() is not None:
                continue
            message, offset, partition = found(record, partitions)
            assert offset is not None, message
            readers[partition].polled(message, offset)
        if stop is None and has_input(0):
            stop = int(sys.stdin.readline())
    for reader in readers:
        reader.partition.check_whole(reader.partition.messages)
    say({"followed": [one.position for one in readers]})
    consumer.close()


def main(program: str, address: str, topic: str, partitions: str) -> None:
    programs: dict[str, Callable[[str, str, int], None]] = {"produce": produce, "follow": follow}
    programs[program](address, topic, int(partitions))


if __name__ == "__main__":
    main(*sys.argv[1:])
