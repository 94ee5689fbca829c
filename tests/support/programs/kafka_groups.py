"""Programs that are members of consumer groups, with clients that others have written: ``kafka_groups.py PROGRAM ...``.

``aiokafka``, ``kafka-python`` and ``confluent-kafka`` join a group, read the numbers of a topic and commit what they
have read, until their standard input ends; ``consumer-protocol`` does that with ``confluent-kafka`` and KIP-848.
``topic`` makes a topic, ``produce`` adds numbers to its partitions in turn, and ``committed`` says what a group has
committed. Each prints what it has seen as lines of JSON.
"""

import asyncio
import json
import select
import sys
from collections.abc import Callable, Mapping
from typing import Any

SESSION_MS = 6_000
HEARTBEAT_MS = 500
POLL_MS = 200


def say(value: Any) -> None:
    """Print one line."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def is_over() -> bool:
    """Whether the test has closed standard input."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


class Teller:
    """Says what a member has, once each time that it changes, and knows what it has not committed yet."""

    def __init__(self) -> None:
        self._assigned: list[int] | None = None
        self.uncommitted: dict[int, int] = {}
        """By partition. A member that keeps its partitions when a commit is refused does not read again what it has
        read, so it has to commit that once more."""

    def assigned(self, partitions: list[int]) -> None:
        if partitions != self._assigned:
            self._assigned = partitions
            say({"assigned": partitions})
        self.uncommitted = {one: offset for one, offset in self.uncommitted.items() if one in partitions}

    def got(self, numbers: list[int], offsets: Mapping[int, int]) -> None:
        if numbers:
            say({"got": numbers})
        self.uncommitted |= offsets

    def committed(self) -> None:
        say({"committed": {str(partition): offset for partition, offset in self.uncommitted.items()}})
        self.uncommitted = {}

    def refused(self, error: BaseException) -> None:
        say({"refused": repr(error)})


async def with_aiokafka(address: str, group: str, topic: str) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition  # noqa: PLC0415
    from aiokafka.errors import KafkaError  # noqa: PLC0415

    tell = Teller()
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=address, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS, heartbeat_interval_ms=HEARTBEAT_MS,
    )  # fmt: skip
    await consumer.start()
    while not is_over():
        batches = await consumer.getmany(timeout_ms=POLL_MS)
        tell.assigned(sorted(one.partition for one in consumer.assignment()))
        tell.got(
            [int(one.value) for records in batches.values() for one in records],
            {place.partition: records[-1].offset + 1 for place, records in batches.items() if records},
        )
        if tell.uncommitted:
            try:
                await consumer.commit({TopicPartition(topic, one): offset for one, offset in tell.uncommitted.items()})
            except KafkaError as error:
                tell.refused(error)
            else:
                tell.committed()
    await consumer.stop()


def with_kafka_python(address: str, group: str, topic: str) -> None:
    from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition  # noqa: PLC0415
    from kafka.errors import KafkaError  # noqa: PLC0415

    tell = Teller()
    consumer = KafkaConsumer(
        topic, bootstrap_servers=address, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS, heartbeat_interval_ms=HEARTBEAT_MS,
    )  # fmt: skip
    while not is_over():
        try:
            batches = consumer.poll(timeout_ms=POLL_MS)
        except KafkaError as error:  # no gateway listens: this client says so, and goes on at the next call
            tell.refused(error)
            continue
        tell.assigned(sorted(one.partition for one in consumer.assignment()))
        tell.got(
            [int(one.value) for records in batches.values() for one in records],
            {place.partition: records[-1].offset + 1 for place, records in batches.items() if records},
        )
        if tell.uncommitted:
            try:
                consumer.commit(
                    {
                        TopicPartition(topic, one): OffsetAndMetadata(offset, "", -1)
                        for one, offset in tell.uncommitted.items()
                    }
                )
            except KafkaError as error:
                tell.refused(error)
            else:
                tell.committed()
    consumer.close()


CLASSIC = {
    "session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS,
    "partition.assignment.strategy": "cooperative-sticky",
}  # fmt: skip
"""Settings of a member of the classic protocol."""


def with_consumer_protocol(address: str, group: str, topic: str) -> None:
    with_confluent_kafka(address, group, topic, {"group.protocol": "consumer"})


def with_confluent_kafka(address: str, group: str, topic: str, settings: Mapping[str, Any] = CLASSIC) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition  # noqa: PLC0415

    tell = Teller()
    consumer = Consumer(
        {
            "bootstrap.servers": address, "group.id": group, "enable.auto.commit": False,
            "auto.offset.reset": "earliest", **settings,
        }
    )  # fmt: skip
    consumer.subscribe([topic])
    while not is_over():
        records: list[Any] = [one for one in consumer.consume(500, POLL_MS / 1000) if one.error() is None]
        tell.assigned(sorted(one.partition for one in consumer.assignment()))
        tell.got([int(one.value()) for one in records], {one.partition(): one.offset() + 1 for one in records})
        if tell.uncommitted:
            places = [TopicPartition(topic, partition, offset) for partition, offset in tell.uncommitted.items()]
            try:
                consumer.commit(offsets=places, asynchronous=False)
            except KafkaException as error:
                tell.refused(error)
            else:
                tell.committed()
    consumer.close()


def make_topic(address: str, topic: str, partitions: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # noqa: PLC0415

    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic(topic, int(partitions), replication_factor=1)]).values():
        made.result(60)


def produce(address: str, topic: str, partitions: str, first: str, stop: str) -> None:
    """Add the numbers ``first`` to ``stop``, ``stop`` excluded, to the partitions in turn."""
    from confluent_kafka import Producer  # noqa: PLC0415

    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "delivery.timeout.ms": 280_000})
    for number in range(int(first), int(stop)):
        producer.produce(topic, b"%d" % number, partition=number % int(partitions))
    left = producer.flush(280)
    assert left == 0, left


def committed(address: str, group: str, topic: str, partitions: str) -> None:
    """What the group has committed, by partition; below 0: nothing."""
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition  # noqa: PLC0415

    moving = {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    places = [TopicPartition(topic, partition) for partition in range(int(partitions))]
    while True:
        try:
            found = consumer.committed(places, timeout=100)
        except KafkaException as error:
            if error.args[0].code() not in moving:
                raise
            consumer.poll(0.2)  # this client leaves it to its user to ask again while the coordinator moves
        else:
            break
    say({str(one.partition): one.offset for one in found})
    consumer.close()


def main(program: str, *arguments: str) -> None:
    if program == "aiokafka":
        asyncio.run(with_aiokafka(*arguments))
        return
    programs: dict[str, Callable[..., None]] = {
        "kafka-python": with_kafka_python, "confluent-kafka": with_confluent_kafka,
        "consumer-protocol": with_consumer_protocol, "topic": make_topic,
        "produce": produce, "committed": committed,
    }  # fmt: skip
    programs[program](*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
