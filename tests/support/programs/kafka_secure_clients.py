"""A client of Kafka's protocol with a key: ``kafka_secure_clients.py CLIENT ADDRESS CA MECHANISM NAME TOPIC``.

It reads the password from its standard input, adds a message to the topic, and reads it in a group with its own name.
It prints one line of JSON: the message that it read, or the error that it was given.
"""

import asyncio
import json
import logging
import ssl
import sys
from typing import Any, NamedTuple

MESSAGE = b"a message"
SECONDS_MAX = 20


class Given(NamedTuple):
    """The arguments, and the password."""

    password: str
    address: str
    ca: str
    mechanism: str
    name: str
    topic: str


async def with_aiokafka(given: Given) -> bytes:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # noqa: PLC0415

    common: dict[str, Any] = {
        "bootstrap_servers": given.address, "security_protocol": "SASL_SSL", "sasl_mechanism": given.mechanism,
        "sasl_plain_username": given.name, "sasl_plain_password": given.password,
        "ssl_context": ssl.create_default_context(cafile=given.ca),
    }  # fmt: skip
    async with AIOKafkaProducer(**common) as producer:
        await producer.send_and_wait(given.topic, MESSAGE)
    async with AIOKafkaConsumer(given.topic, group_id=given.name, auto_offset_reset="earliest", **common) as consumer:
        value: bytes = (await consumer.getone()).value
        return value


def with_kafka_python(given: Given) -> bytes:
    from kafka import KafkaConsumer, KafkaProducer  # noqa: PLC0415

    common: dict[str, Any] = {
        "bootstrap_servers": given.address, "security_protocol": "SASL_SSL", "sasl_mechanism": given.mechanism,
        "sasl_plain_username": given.name, "sasl_plain_password": given.password, "ssl_cafile": given.ca,
    }  # fmt: skip
    producer = KafkaProducer(**common)
    producer.send(given.topic, MESSAGE).get(SECONDS_MAX)
    producer.close()
    consumer = KafkaConsumer(given.topic, group_id=given.name, auto_offset_reset="earliest", **common)
    value: bytes = next(iter(consumer)).value
    consumer.close()
    return value


def with_confluent(given: Given) -> bytes:
    from confluent_kafka import Consumer, KafkaException, Producer  # noqa: PLC0415

    errors: list[Any] = []
    common: dict[str, Any] = {
        "bootstrap.servers": given.address, "security.protocol": "SASL_SSL", "sasl.mechanism": given.mechanism,
        "sasl.username": given.name, "sasl.password": given.password, "ssl.ca.location": given.ca,
        "error_cb": errors.append, "allow.auto.create.topics": True,
    }  # fmt: skip
    producer = Producer({**common, "message.timeout.ms": 5000})

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            errors.append(error)

    producer.produce(given.topic, MESSAGE, on_delivery=delivered)
    producer.flush(SECONDS_MAX)
    if errors:
        raise KafkaException(errors[0])
    consumer = Consumer({**common, "group.id": given.name, "auto.offset.reset": "earliest"})
    consumer.subscribe([given.topic])
    message = consumer.poll(SECONDS_MAX)
    assert message is not None
    if message.error():
        raise KafkaException(message.error())
    consumer.close()
    value: bytes = message.value() or b""
    return value


def main() -> None:
    logging.basicConfig(level=logging.WARNING)  # some clients say there why they cannot connect
    client, *arguments = sys.argv[1:]
    given = Given(sys.stdin.read().strip(), *arguments)
    try:
        if client == "aiokafka":
            value = asyncio.run(asyncio.wait_for(with_aiokafka(given), SECONDS_MAX))
        else:
            value = {"kafka-python": with_kafka_python, "confluent-kafka": with_confluent}[client](given)
    except Exception as error:
        said = {"error": f"{type(error).__name__}: {error}"}
    else:
        said = {"read": value.decode()}
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
