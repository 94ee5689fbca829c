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
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from octavo.gateway.codes import Code, RefusedError
from octavo.metadata.encoding import FieldReader, decode_object, encode_object
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

_FORMAT: Final = 1

TOPICS_PREFIX: Final = "kafka/topics/"
"""Of the documents of topics."""

NAME_CHARACTERS_MAX: Final = 200
"""With it the name of a partition's log fits into a log's 255 characters."""

PARTITIONS_MAX: Final = 1000
"""Of a topic: each partition in use is a log that the gateway leads."""

BYTES_MAX_DEFAULT: Final = 1_048_588
"""Of a batch with its header, as in Kafka: 1 MiB of records."""

OWN_PREFIX: Final = "__"
"""Of the names of the gateway's own topics."""

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


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
    bytes_max: int = BYTES_MAX_DEFAULT
    """Of a batch with its header: `max.message.bytes`."""
    state: TopicState = TopicState.ACTIVE
    unknown: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    """Fields of a newer version, kept as they are."""

    @property
    def is_internal(self) -> bool:
        """Whether it is the gateway's own: clients see that it is there, and cannot use it."""
        return self.name.startswith(OWN_PREFIX)

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
            "bytes_max": self.bytes_max,
            "state": self.state.value,
        }
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
            bytes_max=reader.get("bytes_max", int),
            state=TopicState(reader.get("state", str)),
            unknown=reader.unknown_fields(),
        )
    except ValueError as error:
        raise reader.damaged(str(error)) from error


def has_topic_form(name: str) -> bool:
    """Whether a topic, of a client or of the gateway's own, can have this name."""
    return len(name) <= NAME_CHARACTERS_MAX and _NAME.fullmatch(name) is not None and name not in {".", ".."}


def check_topic_name(name: str) -> None:
    """Raise :class:`RefusedError` unless a client's topic may have this name."""
    if not has_topic_form(name):
        text = f"{name[:50]!r}: the name of a topic is 1 to {NAME_CHARACTERS_MAX} letters, digits and '._-'"
        raise RefusedError(Code.INVALID_TOPIC_EXCEPTION, text)
    if name.startswith(OWN_PREFIX):
        raise RefusedError(Code.INVALID_TOPIC_EXCEPTION, f"{name}: names that begin with __ are the gateway's own")


FIXED_SETTINGS: Final[Mapping[str, frozenset[str]]] = {
    "cleanup.policy": frozenset({"delete"}),
    "compression.type": frozenset({"producer"}),
    "message.timestamp.type": frozenset({"CreateTime"}),
    "message.timestamp.after.max.ms": frozenset({"3600000"}),
    "retention.ms": frozenset({"-1"}),
    "retention.bytes": frozenset({"-1"}),
}
"""Settings that a topic has with one value only. Asking for another is refused, because it would not be kept to."""


def bytes_max_of(settings: Mapping[str, str | None]) -> int:
    """The largest batch of a topic that is created with these settings.

    Raises:
        RefusedError: A setting is not known, or a topic cannot have its value.
    """
    for name, value in settings.items():
        if name in FIXED_SETTINGS:
            if value is not None and value not in FIXED_SETTINGS[name]:
                (only,) = FIXED_SETTINGS[name]
                raise RefusedError(Code.INVALID_CONFIG, f"{name} can only be {only}, not {value}")
        elif name != "max.message.bytes":
            raise RefusedError(Code.INVALID_CONFIG, f"the setting {name} is not supported")
    wanted = settings.get("max.message.bytes")
    if wanted is None:
        return BYTES_MAX_DEFAULT
    if not (wanted.isascii() and wanted.isdecimal() and 0 < int(wanted) <= ENTRY_PAYLOAD_BYTES_MAX):
        text = f"max.message.bytes is a number from 1 to {ENTRY_PAYLOAD_BYTES_MAX}, not {wanted[:50]!r}"
        raise RefusedError(Code.INVALID_CONFIG, text)
    return int(wanted)


def settings_of(topic: Topic) -> dict[str, str]:
    """The settings of a topic by their names in Kafka."""
    fixed = {name: only for name, (only,) in ((name, tuple(values)) for name, values in FIXED_SETTINGS.items())}
    return {**fixed, "max.message.bytes": str(topic.bytes_max)}
