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
                  `at_ms`                             is so long; 0: the group has no members that its leader shares
                                                      partitions among
`epoch`           `epoch`, `at_ms`                    this epoch is durable: the coordinator shares the partitions
`member`          those of :mod:`~octavo.gateway.     the group has this member, in an epoch, with these partitions
                  groups.member_form`
`left`            `member`                            the group does not have this member any more
`uncommitted`     `places`: rows of topic id,         these partitions have no offset any more
                  partition
`deleted`                                             nothing is left of the group
================  ==================================  ==================================================================

So what a log says follows from its entries in order, and an entry that is added again later, with what is right then,
changes nothing. Topics go by their ids: a topic that is made again under a name has none of the older one's offsets.
An entry without the mark is of another program, and is skipped.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import batched
from typing import Any, Final, NamedTuple

from octavo.gateway.groups.epoch_member import EpochMember
from octavo.gateway.groups.member_form import member_fields, member_from, natural, place_from
from octavo.gateway.groups.places import Place
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


class EpochStored(NamedTuple):
    """See the module. Epochs and generations of a group are one sequence of numbers."""

    group_id: str
    epoch: int
    at_ms: int


class MemberStored(NamedTuple):
    """See the module."""

    group_id: str
    member: EpochMember


class MemberLeft(NamedTuple):
    """See the module."""

    group_id: str
    member_id: str


class OffsetsDeleted(NamedTuple):
    """See the module."""

    group_id: str
    places: tuple[Place, ...]


class GroupDeleted(NamedTuple):
    """See the module."""

    group_id: str


type GroupEntry = (
    OffsetsCommitted | GenerationStored | EpochStored | MemberStored | MemberLeft | OffsetsDeleted | GroupDeleted
)


def commits_of(group_id: str, offsets: Mapping[Place, Committed]) -> Iterator[OffsetsCommitted]:
    """As many entries as a commit needs."""
    for part in batched(offsets.items(), ENTRY_OFFSETS_MAX):
        yield OffsetsCommitted(group_id, dict(part))


def encode_entry(entry: GroupEntry) -> bytes:
    """The stored form."""
    return MARK + encode_object({"group": entry.group_id, **_fields_of(entry)}, format_number=_FORMAT)


def _fields_of(entry: GroupEntry) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    match entry:
        case OffsetsCommitted(_, offsets):
            fields = {"offsets": [[*place, *committed] for place, committed in offsets.items()]}
        case GenerationStored(_, generation, session_ms, at_ms):
            fields = {"generation": generation, "session_ms": session_ms, "at_ms": at_ms}
        case EpochStored(_, epoch, at_ms):
            fields = {"epoch": epoch, "at_ms": at_ms}
        case MemberStored(_, member):
            fields = member_fields(member)
        case MemberLeft(_, member_id):
            fields = {"member": member_id}
        case OffsetsDeleted(_, places):
            fields = {"places": [list(place) for place in places]}
        case GroupDeleted():
            pass
    return {"kind": _KINDS[type(entry)], **fields}


_KINDS: Final[Mapping[type[GroupEntry], str]] = {
    OffsetsCommitted: "committed",
    GenerationStored: "generation",
    EpochStored: "epoch",
    MemberStored: "member",
    MemberLeft: "left",
    OffsetsDeleted: "uncommitted",
    GroupDeleted: "deleted",
}

_READ: Final[Mapping[type[GroupEntry], Callable[[str, FieldReader], GroupEntry]]] = {
    OffsetsCommitted: lambda group_id, reader: OffsetsCommitted(group_id, dict(_offsets(reader.get("offsets", list)))),
    GenerationStored: lambda group_id, reader: GenerationStored(
        group_id, *natural(reader.get("generation", int), reader.get("session_ms", int), reader.get("at_ms", int))
    ),
    EpochStored: lambda group_id, reader: EpochStored(
        group_id, *natural(reader.get("epoch", int), reader.get("at_ms", int))
    ),
    MemberStored: lambda group_id, reader: MemberStored(group_id, member_from(reader)),
    MemberLeft: lambda group_id, reader: MemberLeft(group_id, reader.get("member", str)),
    OffsetsDeleted: lambda group_id, reader: OffsetsDeleted(
        group_id, tuple(place_from(*row) for row in reader.get("places", list))
    ),
    GroupDeleted: lambda group_id, _: GroupDeleted(group_id),
}
_OF_KIND: Final = {name: kind for kind, name in _KINDS.items()}


def decode_entry(payload: bytes, what: str) -> GroupEntry | None:
    """The entry; None: it is of another program. ``what`` names it in errors.

    Raises:
        MetadataError: It is damaged, or of a newer version. To skip it would let a commit go back.
    """
    if not payload.startswith(MARK):
        return None
    reader = FieldReader(decode_object(payload[len(MARK) :], what=what, format_max=_FORMAT), what)
    group_id = reader.get("group", str)
    kind = reader.get("kind", str)
    if kind not in _OF_KIND:
        raise reader.damaged(f"{kind!r} is no kind of entry")
    try:
        return _READ[_OF_KIND[kind]](group_id, reader)
    except (TypeError, ValueError) as error:
        raise reader.damaged(str(error)) from error


def _offsets(rows: Iterable[list[Any]]) -> Iterator[tuple[Place, Committed]]:
    for topic_id, partition, offset, leader_epoch, metadata, at_ms in rows:
        natural(offset - OFFSET_MIN, leader_epoch + 1, at_ms)
        if type(metadata) is not str:
            raise TypeError("the metadata of an offset are a text")
        yield place_from(topic_id, partition), Committed(offset, leader_epoch, metadata, at_ms)
