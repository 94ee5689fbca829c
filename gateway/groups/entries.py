"""The entries of a coordinator's log: what must outlive the coordinator of consumer groups. Pure.

The groups of a cluster are spread over the logs `kafka/__consumer_offsets/0` to `15`. The gateway that leads such a log
is the *coordinator* of its groups. An entry is :data:`MARK`, then a line of canonical JSON with a checksum, of one
group:

================  ==================================  ==================================================================
kind              fields                              means
================  ==================================  ==================================================================
`committed`       `offsets`: rows of topic id,        these partitions have these offsets now; others of the group stay
                  partition, offset, leader epoch,    as they are
                  metadata, time
`generation`      `generation`, `session_ms`,         this generation is durable, and the longest session of its members
                  `at_ms`                             is so long; 0: the group has no members
`uncommitted`     `places`: rows of topic id,         these partitions have no offset any more
                  partition
`deleted`                                             nothing is left of the group
================  ==================================  ==================================================================

So what a log says follows from its entries in order, and an entry that is added again later, with what is right then,
changes nothing. Topics go by their ids: a topic that is made again under a name has none of the older one's offsets.
An entry without the mark is of another program, and is skipped.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import batched
from typing import Any, Final, NamedTuple

from octavo.metadata.encoding import FieldReader, decode_object, encode_object

MARK: Final = b"octavo group\n"
"""The beginning of each entry."""

_FORMAT: Final = 1

METADATA_BYTES_MAX: Final = 1024
"""Of the text that a consumer commits with an offset."""

OFFSET_MIN: Final = -2
"""Lowest offset that can be committed."""

ENTRY_OFFSETS_MAX: Final = 500
"""Of an entry: with the longest texts, in the longest form that JSON has for them, it stays below 4 MiB."""


class Place(NamedTuple):
    """A partition of a topic that may be deleted and made again."""

    topic_id: str
    partition: int


class Committed(NamedTuple):
    """An offset that a consumer has committed."""

    offset: int
    """Of the next record that it wants; :data:`OFFSET_MIN` for the first that is there, -1 for the end, which some
    clients commit when they reset a group. Others take both for none."""
    leader_epoch: int
    """Of the record before; -1: the consumer has not said."""
    metadata: str
    at_ms: int


class OffsetsCommitted(NamedTuple):
    """See the module."""

    group_id: str
    offsets: Mapping[Place, Committed]


class GenerationStored(NamedTuple):
    """See the module."""

    group_id: str
    generation: int
    session_ms: int
    at_ms: int


class OffsetsDeleted(NamedTuple):
    """See the module."""

    group_id: str
    places: tuple[Place, ...]


class GroupDeleted(NamedTuple):
    """See the module."""

    group_id: str


type GroupEntry = OffsetsCommitted | GenerationStored | OffsetsDeleted | GroupDeleted


def commits_of(group_id: str, offsets: Mapping[Place, Committed]) -> Iterator[OffsetsCommitted]:
    """As many entries as a commit needs."""
    for part in batched(offsets.items(), ENTRY_OFFSETS_MAX):
        yield OffsetsCommitted(group_id, dict(part))


def encode_entry(entry: GroupEntry) -> bytes:
    """The stored form."""
    return MARK + encode_object({"group": entry.group_id, **_fields_of(entry)}, format_number=_FORMAT)


def _fields_of(entry: GroupEntry) -> dict[str, Any]:
    match entry:
        case OffsetsCommitted(_, offsets):
            rows = [[*place, *committed] for place, committed in offsets.items()]
            return {"kind": "committed", "offsets": rows}
        case GenerationStored(_, generation, session_ms, at_ms):
            return {"kind": "generation", "generation": generation, "session_ms": session_ms, "at_ms": at_ms}
        case OffsetsDeleted(_, places):
            return {"kind": "uncommitted", "places": [list(place) for place in places]}
        case GroupDeleted():
            return {"kind": "deleted"}


def decode_entry(payload: bytes, what: str) -> GroupEntry | None:
    """The entry; None: it is of another program. ``what`` names it in errors.

    Raises:
        MetadataError: It is damaged, or of a newer version. To skip it would let a commit go back.
    """
    if not payload.startswith(MARK):
        return None
    reader = FieldReader(decode_object(payload[len(MARK) :], what=what, format_max=_FORMAT), what)
    group_id = reader.get("group", str)
    try:
        match reader.get("kind", str):
            case "committed":
                return OffsetsCommitted(group_id, dict(_offsets(reader.get("offsets", list))))
            case "generation":
                numbers = reader.get("generation", int), reader.get("session_ms", int), reader.get("at_ms", int)
                return GenerationStored(group_id, *_natural(*numbers))
            case "uncommitted":
                return OffsetsDeleted(group_id, tuple(_place(*row) for row in reader.get("places", list)))
            case "deleted":
                return GroupDeleted(group_id)
            case other:
                raise reader.damaged(f"{other!r} is no kind of entry")
    except (TypeError, ValueError) as error:
        raise reader.damaged(str(error)) from error


def _offsets(rows: Iterable[list[Any]]) -> Iterator[tuple[Place, Committed]]:
    for topic_id, partition, offset, leader_epoch, metadata, at_ms in rows:
        _natural(offset - OFFSET_MIN, leader_epoch + 1, at_ms)
        if type(metadata) is not str:
            raise TypeError("the metadata of an offset are a text")
        yield _place(topic_id, partition), Committed(offset, leader_epoch, metadata, at_ms)


def _place(topic_id: Any, partition: Any) -> Place:
    if type(topic_id) is not str:
        raise TypeError("the id of a topic is a text")
    return Place(topic_id, *_natural(partition))


def _natural(*numbers: Any) -> tuple[int, ...]:
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("a number is below 0, or none")
    return numbers
