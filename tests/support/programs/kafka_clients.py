"""Programs that use clients of Kafka's protocol which others have written: ``kafka_clients.py CLIENT ADDRESS``.

``aiokafka``, ``kafka-python`` and ``confluent-kafka`` produce numbered messages to a topic of their own name, some of
them with an idempotent producer and compressed, and read them back. ``numbers`` produces numbers from an idempotent
producer, one line for each hundred that are acknowledged, until its standard input ends; ``read`` prints all of them,
and ``leader`` the port of the gateway that leads their partition. ``settings`` creates a topic with aiokafka, and
changes its settings with all three. ``bills`` and ``topics`` produce to a topic of bills, and look for it.
``codecs`` produces a message with a key and a header in each compression.
Each prints what it has seen as lines of JSON.
"""

import asyncio
import json
import sys
from typing import Any

COUNT = 200
NUMBERS = "numbers"


def say(value: Any) -> None:
    """Print one line."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def numbered(count: int = COUNT) -> list[bytes]:
    return [b"message %d" % number for number in range(count)]


async def with_aiokafka(address: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition  # noqa: PLC0415

    for is_idempotent in (False, True):
        async with AIOKafkaProducer(
            bootstrap_servers=address, enable_idempotence=is_idempotent, compression_type="gzip"
        ) as producer:
            for sent in [await producer.send("aiokafka", value, key=b"key") for value in numbered()]:
                await sent
    consumer = AIOKafkaConsumer(bootstrap_servers=address, enable_auto_commit=False)
    await consumer.start()
    place = TopicPartition("aiokafka", 0)
    consumer.assign([place])
    await consumer.seek_to_beginning(place)
    got = [await consumer.getone() for _ in range(2 * COUNT)]
    say({"values": [one.value.decode() for one in got], "offsets": [one.offset for one in got]})
    say({"end": (await consumer.end_offsets([place]))[place]})
    await consumer.stop()


def with_kafka_python(address: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition  # noqa: PLC0415

    for is_idempotent in (False, True):
        producer = KafkaProducer(bootstrap_servers=address, enable_idempotence=is_idempotent)
        sent = [producer.send("kafka-python", value) for value in numbered()]
        for one in sent:
            one.get(60)
        producer.close()
    consumer = KafkaConsumer(bootstrap_servers=address, enable_auto_commit=False)
    place = TopicPartition("kafka-python", 0)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    got = [next(consumer) for _ in range(2 * COUNT)]
    say({"values": [one.value.decode() for one in got], "offsets": [one.offset for one in got]})
    say({"end": consumer.end_offsets([place])[place]})
    consumer.close()


def with_confluent_kafka(address: str) -> None:
    from confluent_kafka import TopicPartition  # noqa: PLC0415
    from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]  # noqa: PLC0415

    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic("confluent-kafka", 1, replication_factor=1)]).values():
        made.result(60)
    for settings in ({"compression.type": "zstd"}, {"enable.idempotence": True, "compression.type": "lz4"}):
        errors = deliver(address, "confluent-kafka", numbered(), **settings)
        assert errors == [], errors
    got = consume(address, "confluent-kafka", 2 * COUNT)
    say({"values": [one.value().decode() for one in got], "offsets": [one.offset() for one in got]})
    say({"end": watermark(address, TopicPartition("confluent-kafka", 0))})
    for grown in admin.create_partitions([NewPartitions("confluent-kafka", 3)]).values():
        grown.result(60)
    (deleted,) = admin.delete_records([TopicPartition("confluent-kafka", 0, 10)]).values()
    partitions = admin.list_topics("confluent-kafka", timeout=100).topics["confluent-kafka"].partitions
    say({"begins": deleted.result(60).low_watermark, "partitions": len(partitions)})


def deliver(address: str, topic: str, values: list[bytes], **settings: Any) -> list[str]:
    """Produce the values; the errors of the others are returned: of each that was not acknowledged."""
    from confluent_kafka import Producer  # noqa: PLC0415

    errors: list[str] = []
    producer = Producer({"bootstrap.servers": address, **settings})

    def on_delivery(error: Any, _message: Any) -> None:
        if error is not None:
            errors.append(str(error))

    for value in values:
        producer.produce(topic, value, on_delivery=on_delivery)
    producer.flush(100)
    return errors


def consume(address: str, topic: str, count: int) -> list[Any]:
    """The first messages of partition 0."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition  # noqa: PLC0415

    consumer = Consumer({"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    got: list[Any] = []
    while len(got) < count:
        message = consumer.poll(100)
        if message is not None and message.error() is None:
            got.append(message)
    consumer.close()
    return got


def watermark(address: str, partition: Any) -> int:
    from confluent_kafka import Consumer  # noqa: PLC0415

    consumer = Consumer({"bootstrap.servers": address, "group.id": "none"})
    (_, end) = consumer.get_watermark_offsets(partition, timeout=100)
    consumer.close()
    return int(end)


def produce_numbers(address: str) -> None:
    """Produce 0, 1, 2, ... until standard input ends, then say how many there are."""
    import select  # noqa: PLC0415

    from confluent_kafka import Producer  # noqa: PLC0415

    acknowledged = 0

    def on_delivery(error: Any, _message: Any) -> None:
        nonlocal acknowledged
        assert error is None, error
        acknowledged += 1
        if acknowledged % 100 == 0:
            say({"acknowledged": acknowledged})

    producer = Producer(
        {
            "bootstrap.servers": address, "enable.idempotence": True, "delivery.timeout.ms": 280_000, "linger.ms": 1,
            "batch.num.messages": 20, "queue.buffering.max.messages": 200,
        }
    )  # fmt: skip
    number = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        try:
            producer.produce(NUMBERS, b"%d" % number, on_delivery=on_delivery)
            number += 1
        except BufferError:
            producer.poll(0.01)
    left = producer.flush(280)
    assert left == 0, left
    say({"produced": number})


def read_numbers(address: str, count: int) -> None:
    """Print the numbers in the order of their offsets, and the end of the partition."""
    from confluent_kafka import TopicPartition  # noqa: PLC0415

    got = consume(address, NUMBERS, count)
    say({"numbers": [int(one.value()) for one in got], "offsets": [one.offset() for one in got]})
    say({"end": watermark(address, TopicPartition(NUMBERS, 0))})


def say_leader(address: str) -> None:
    """Print the port of the gateway that leads the numbers."""
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    found = AdminClient({"bootstrap.servers": address}).list_topics(NUMBERS, timeout=100)
    say({"port": found.brokers[found.topics[NUMBERS].partitions[0].leader].port})


RETAINED = "retained"


async def create_and_describe_with_aiokafka(address: str) -> dict[str, str]:
    """The settings of a topic that is created with a retention, as aiokafka sees them."""
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic  # noqa: PLC0415
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType  # noqa: PLC0415

    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    await admin.create_topics([NewTopic(RETAINED, 1, 1, topic_configs={"retention.ms": "86400000"})])
    changed = ConfigResource(ConfigResourceType.TOPIC, RETAINED, {"retention.ms": "7000", "retention.bytes": "5"})
    for answer in await admin.alter_configs([changed]):
        assert [code for code, *_ in answer.resources] == [0], answer
    (described,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, RETAINED)])
    await admin.close()
    (_, _, _, _, settings) = described.resources[0]
    return {name: value for name, value, *_ in settings}


def change_settings(address: str) -> None:
    """Print the settings as each client sees them, and the refusal of compaction."""
    from confluent_kafka.admin import (  # type: ignore[attr-defined]  # noqa: PLC0415
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )
    from kafka.admin import ConfigResource as PythonResource  # noqa: PLC0415
    from kafka.admin import ConfigResourceType, KafkaAdminClient  # noqa: PLC0415

    say(asyncio.run(create_and_describe_with_aiokafka(address)))
    python = KafkaAdminClient(bootstrap_servers=address)
    python.alter_configs([PythonResource(ConfigResourceType.TOPIC, RETAINED, {"retention.bytes": "1000000"})])
    described = python.describe_configs([PythonResource(ConfigResourceType.TOPIC, RETAINED)])
    say({name: found["value"] for name, found in next(iter(described.values()))[RETAINED].items()})
    python.close()
    admin = AdminClient({"bootstrap.servers": address})

    def alter(name: str, value: str) -> Any:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        (done,) = admin.incremental_alter_configs(
            [ConfigResource(ResourceType.TOPIC, RETAINED, incremental_configs=[entry])]
        ).values()
        return done.result(60)

    alter("retention.ms", "-1")
    (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, RETAINED)]).values()
    say({name: entry.value for name, entry in found.result(60).items()})
    try:
        alter("cleanup.policy", "compact")
    except Exception as error:
        say({"refused": str(error)})


def produce_bills(address: str) -> None:
    """Produce three messages to partition 0 of a topic that is there already."""
    from kafka import KafkaProducer  # noqa: PLC0415

    producer = KafkaProducer(bootstrap_servers=address)
    for value in numbered(3):
        producer.send("bills", value, partition=0).get(60)
    producer.close()
    say({"bills": 3})


def produce_in_each_compression(address: str) -> None:
    """Produce to partition 0 of a topic; a batch has two messages."""
    from confluent_kafka import Producer  # noqa: PLC0415

    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer({"bootstrap.servers": address, "compression.type": codec, "linger.ms": 1000})
        value = (codec * 100).encode()
        producer.produce("codecs", value, b"key", partition=0, timestamp=1_767_225_600_000, headers=[("codec", codec)])
        producer.produce("codecs", None, partition=0, timestamp=1_767_225_600_001)
        producer.flush(100)
    say({"codecs": 10})


def say_topics(address: str) -> None:
    """Print whether there is a topic of bills."""
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    say({"bills": "bills" in AdminClient({"bootstrap.servers": address}).list_topics(timeout=100).topics})


def main(program: str, address: str, *arguments: str) -> None:
    if program == "aiokafka":
        asyncio.run(with_aiokafka(address))
    elif program == "read":
        read_numbers(address, int(arguments[0]))
    else:
        programs = {
            "kafka-python": with_kafka_python, "confluent-kafka": with_confluent_kafka, NUMBERS: produce_numbers,
            "leader": say_leader, "settings": change_settings, "bills": produce_bills, "topics": say_topics,
            "codecs": produce_in_each_compression,
        }  # fmt: skip
        programs[program](address)


if __name__ == "__main__":
    main(*sys.argv[1:])
