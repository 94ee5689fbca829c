"""The settings of a topic that clients can see, and change, by their names in Kafka. Pure.

A setting of another name is refused, and so is a value that would not be kept to: a program that asks for something
must not believe that it has it.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from octavo.gateway.codes import Code, RefusedError
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

BYTES_MAX_DEFAULT: Final = 1_048_588
"""Of a batch with its header, as in Kafka: 1 MiB of records."""

_NO_LIMIT: Final = -1
_INT64_MAX: Final = 2**63 - 1


class TopicRetention(NamedTuple):
    """The limits by which a topic's oldest records go. None: this limit does not apply."""

    ms: int | None = None
    """Records go that are in the log for longer: `retention.ms`."""
    bytes: int | None = None
    """Of each partition: `retention.bytes`."""


KEEP_ALL: Final = TopicRetention()


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """See the module."""

    bytes_max: int = BYTES_MAX_DEFAULT
    """Of a batch with its header: `max.message.bytes`."""
    retention: TopicRetention = KEEP_ALL


DEFAULT: Final = TopicSettings()


class _Number(NamedTuple):
    """A setting that is a number."""

    low: int
    high: int
    may_be_none: bool
    """-1 stands for no limit."""
    read: Callable[[TopicSettings], int | None]


_NUMBERS: Final[Mapping[str, _Number]] = {
    "max.message.bytes": _Number(1, ENTRY_PAYLOAD_BYTES_MAX, False, lambda one: one.bytes_max),
    "retention.bytes": _Number(1, _INT64_MAX, True, lambda one: one.retention.bytes),
    "retention.ms": _Number(1, _INT64_MAX, True, lambda one: one.retention.ms),
}

_FIXED: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.after.max.ms": "3600000",
}
"""Settings that a topic has with one value only."""

_WHY_FIXED: Final[Mapping[str, str]] = {
    "cleanup.policy": "compaction is not supported",
    "compression.type": "batches are stored as they came",
    "message.timestamp.type": "batches are stored as they came",
}


COPIES_MIN: Final = "min.insync.replicas"
"""The least number of copies that acknowledge a batch: the ack quorum of the topic's logs, which never changes."""


class Change(Enum):
    """The operation of a request on a setting."""

    SET = 0
    UNSET = 1
    """It gets its default."""
    APPEND = 2
    SUBTRACT = 3


def ack_quorum_of(values: Mapping[str, str | None], *, write_quorum: int, usual: int) -> int:
    """How many copies acknowledge a batch of a topic that is created with these values and has ``write_quorum`` copies.

    ``usual``, or more if `min.insync.replicas` asks for more; never fewer: in Kafka that setting is the least when
    replicas are missing, not how many acknowledge.

    Raises:
        RefusedError: The topic has fewer copies than that.
    """
    value = values.get(COPIES_MIN)
    return usual if value is None else max(usual, _copies(value, write_quorum))


def changed(
    before: TopicSettings, changes: Iterable[tuple[str, Change, str | None]], *, ack_quorum: int
) -> TopicSettings:
    """The settings after these changes, in their order. Without a value a setting gets its default. ``ack_quorum``: of
    the topic's logs.

    Raises:
        RefusedError: A setting is not known, or a topic cannot have its value.
    """
    numbers = {name: number.read(before) for name, number in _NUMBERS.items()}
    for name, change, value in changes:
        wanted = None if change is Change.UNSET else value
        if name not in _NUMBERS and name not in _FIXED and name != COPIES_MIN:
            raise _refused(f"the setting {name[:100]} is not supported")
        if change in {Change.APPEND, Change.SUBTRACT}:
            raise _refused(f"{name} is no list")
        if name in _NUMBERS:
            numbers[name] = _NUMBERS[name].read(DEFAULT) if wanted is None else _number(name, wanted)
        elif name == COPIES_MIN:
            if wanted is not None:
                _copies(wanted, ack_quorum)
        elif wanted not in {None, _FIXED[name]}:
            why = f": {_WHY_FIXED[name]}" if name in _WHY_FIXED else ""
            raise _refused(f"{name} can only be {_FIXED[name]}, not {str(wanted)[:50]}{why}")
    return TopicSettings(
        numbers["max.message.bytes"] or BYTES_MAX_DEFAULT,
        TopicRetention(numbers["retention.ms"], numbers["retention.bytes"]),
    )


def settings_from(values: Mapping[str, str | None], *, ack_quorum: int) -> TopicSettings:
    """The settings of a topic that is created with these values. Raises as :func:`changed`."""
    return changed(DEFAULT, ((name, Change.SET, value) for name, value in values.items()), ack_quorum=ack_quorum)


class Shown(NamedTuple):
    """A setting as clients see it."""

    name: str
    value: str
    is_default: bool
    can_change: bool
    is_number: bool


def shown(settings: TopicSettings, *, ack_quorum: int) -> list[Shown]:
    """All settings of a topic, by name. ``ack_quorum``: of its logs."""
    found = [
        Shown(name, value, is_default=True, can_change=False, is_number=value.isdecimal())
        for name, value in _FIXED.items()
    ]
    found.append(Shown(COPIES_MIN, str(ack_quorum), is_default=False, can_change=False, is_number=True))
    for name, number in _NUMBERS.items():
        value = number.read(settings)
        text = str(_NO_LIMIT if value is None else value)
        found.append(Shown(name, text, is_default=value == number.read(DEFAULT), can_change=True, is_number=True))
    return sorted(found)


def _number(name: str, text: str) -> int | None:
    number = _NUMBERS[name]
    if number.may_be_none and text == str(_NO_LIMIT):
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and number.low <= int(text) <= number.high):
        no_limit = f", or {_NO_LIMIT} for no limit" if number.may_be_none else ""
        raise _refused(f"{name} is a number from {number.low} to {number.high}{no_limit}, not {text[:50]!r}")
    return int(text)


def _copies(text: str, at_most: int) -> int:
    """The number in a value of `min.insync.replicas`. Raises :class:`RefusedError` for one above ``at_most``."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and 1 <= int(text) <= at_most):
        told = f"{COPIES_MIN} is a number from 1 to {at_most}, not {text[:50]!r}"
        raise _refused(f"{told}: how many copies acknowledge a batch is settled when a topic is made")
    return int(text)


def _refused(text: str) -> RefusedError:
    return RefusedError(Code.INVALID_CONFIG, text)
