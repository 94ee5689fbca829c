"""The stored form of a topic. Pure.

A topic is a name, an id that is never used again, a number of partitions and its settings. Partition p of topic T is
the log `kafka/T/p`.

========  ===========================================  ==============================================================
state     means                                        then
========  ===========================================  ==============================================================
MAKING    some of its logs may be missing              ACTIVE, once all are there
ACTIVE    all logs are there                           DELETING
DELETING  some of its logs may be gone                 the document goes, once all are
========  ===========================================  ==============================================================

So the document is there as long as any of its logs is, and a gateway that finds a topic MAKING or DELETING can finish
it (rule K12).
"""

import re
from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Any, Final

from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.topics.settings import DEFAULT, KEEP_ALL, TopicRetention, TopicSettings
from octavo.metadata.encoding import FieldReader, decode_object, encode_object
from octavo.protocol.light_dataclass import dataclass

_FORMAT: Final = 1

TOPICS_PREFIX: Final = "kafka/topics/"
"""Of the documents of topics."""

NAME_CHARACTERS_MAX: Final = 200
"""With it the name of a partition's log fits into a log's 255 characters."""

PARTITIONS_MAX: Final = 1000
"""Of a topic: each partition in use is a log that the gateway leads."""

OWN_PREFIX: Final = "__"
"""Of the names of the gateway's own topics."""

_KEEPS_ALL: Final = [None, None]
"""The retention of a topic that names none."""

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")

_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,3}")
"""Of a partition."""


class TopicState(Enum):
    """See the module."""

    MAKING = "making"
    ACTIVE = "active"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class Topic:
    """See the module."""

    name: str
    topic_id: str
    """32 hexadecimal digits. A topic created again under the name has another."""
    partitions: int
    write_quorum: int
    """Copies of each batch, and bookies of each log."""
    ack_quorum: int
    settings: TopicSettings = DEFAULT
    state: TopicState = TopicState.ACTIVE
    is_private: bool = False
    """Whether its logs are private, with the password of the gateways."""
    unknown: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    """Fields of a newer version, kept as they are."""

    @property
    def is_internal(self) -> bool:
        """Whether it is the gateway's own: clients see that it is there, and cannot use it."""
        return self.name.startswith(OWN_PREFIX)

    def password_of_logs(self, password: bytes) -> bytes:
        """The password of its logs, if this is that of the gateways."""
        return password if self.is_private else b""

    def log_name(self, partition: int) -> str:
        """The log of a partition."""
        return f"{self.logs_prefix}{partition}"

    @property
    def logs_prefix(self) -> str:
        """The beginning of the names of its logs."""
        return f"kafka/{self.name}/"

    def encode(self) -> bytes:
        """The stored form."""
        fields = {
            **self.unknown,
            "name": self.name,
            "topic_id": self.topic_id,
            "partitions": self.partitions,
            "write_quorum": self.write_quorum,
            "ack_quorum": self.ack_quorum,
            "bytes_max": self.settings.bytes_max,
            "state": self.state.value,
            **({"private": True} if self.is_private else {}),
        }
        retention = self.settings.retention
        if retention != KEEP_ALL:
            fields["retention"] = list(retention)
        return encode_object(fields, format_number=_FORMAT)


def topic_document(name: str) -> str:
    """The name of a topic's document."""
    return TOPICS_PREFIX + name


def decode_topic(value: bytes, name: str) -> Topic:
    """The topic with this name from its stored form.

    Raises:
        MetadataError: The value is damaged, or of another topic.
    """
    what = f"topic {name}"
    reader = FieldReader(decode_object(value, what=what, format_max=_FORMAT), what)
    if reader.get("name", str) != name:
        raise reader.damaged("it is of another topic")
    try:
        return Topic(
            name=name,
            topic_id=reader.get("topic_id", str),
            partitions=reader.get("partitions", int),
            write_quorum=reader.get("write_quorum", int),
            ack_quorum=reader.get("ack_quorum", int),
            settings=TopicSettings(
                reader.get("bytes_max", int), _retention_of(reader.added_later("retention", list, _KEEPS_ALL))
            ),
            state=TopicState(reader.get("state", str)),
            is_private=reader.added_later("private", bool, False),
            unknown=reader.unknown_fields(),
        )
    except ValueError as error:
        raise reader.damaged(str(error)) from error


def _retention_of(stored: list[Any]) -> TopicRetention:
    """Raises ValueError."""
    if len(stored) != 2 or not all(limit is None or (type(limit) is int and limit > 0) for limit in stored):
        raise ValueError(f"its retention is {stored!r}")
    return TopicRetention(*stored)


def has_topic_form(name: str) -> bool:
    """Whether a topic, of a client or of the gateway's own, can have this name."""
    return len(name) <= NAME_CHARACTERS_MAX and _NAME.fullmatch(name) is not None and name not in {".", ".."}


def is_partition_log(log_name: str) -> bool:
    """Whether a log with this name is a partition of a client's topic, and holds batches.

    Example:
        >>> is_partition_log("kafka/orders/0"), is_partition_log("kafka/__consumer_offsets/0")
        (True, False)
    """
    start, _, rest = log_name.partition("/")
    topic, _, number = rest.partition("/")
    if start != "kafka" or not has_topic_form(topic) or topic.startswith(OWN_PREFIX):
        return False
    return _NUMBER.fullmatch(number) is not None and int(number) < PARTITIONS_MAX


def check_topic_name(name: str) -> None:
    """Raise :class:`RefusedError` unless a client's topic may have this name."""
    if not has_topic_form(name):
        text = f"{name[:50]!r}: the name of a topic is 1 to {NAME_CHARACTERS_MAX} letters, digits and '._-'"
        raise RefusedError(Code.INVALID_TOPIC_EXCEPTION, text)
    if name.startswith(OWN_PREFIX):
        raise RefusedError(Code.INVALID_TOPIC_EXCEPTION, f"{name}: names that begin with __ are the gateway's own")
