"""The stored form of a member of a group of the consumer protocol. Pure.

An entry `member` of a coordinator's log has these fields. Partitions are rows: the id of a topic, then its partitions.

======================================  ==============================================================================
field                                   means
======================================  ==============================================================================
`member`, `instance`                    the ids of the member; the instance is null for a dynamic one
`epoch`, `previous_epoch`               the epoch in which it has its partitions, and the one before
`assigned`, `revoking`                  rows of the partitions that it may read, and of the ones it is to give back
`away`                                  whether it has said that its process begins again
`topics`, `pattern`, `matched`          the names and the pattern to which it has subscribed, and what that matched
`assignor`, `rebalance_ms`              the way of sharing that it asks for, and its time to give partitions back
`rack`, `client`, `host`                where it is, and its program; shown to people
======================================  ==============================================================================
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from octavo.gateway.groups.epoch_member import EpochMember, Places
from octavo.gateway.groups.places import Place
from octavo.metadata.encoding import FieldReader


def member_fields(member: EpochMember) -> dict[str, Any]:
    """The stored form."""
    return {
        "member": member.member_id,
        "instance": member.instance_id,
        "epoch": member.epoch,
        "previous_epoch": member.previous_epoch,
        "assigned": _rows(member.assigned),
        "revoking": _rows(member.revoking),
        "away": member.is_away,
        "topics": list(member.topics),
        "pattern": member.pattern,
        "matched": list(member.matched),
        "assignor": member.assignor,
        "rebalance_ms": member.rebalance_ms,
        "rack": member.rack,
        "client": member.client,
        "host": member.host,
    }


def member_from(reader: FieldReader) -> EpochMember:
    """The member that an entry holds.

    Raises:
        MetadataError: A field lacks, or is of another kind.
        TypeError: A partition is none.
        ValueError: A number is below 0.
    """
    epoch, previous_epoch, rebalance_ms = natural(
        reader.get("epoch", int), reader.get("previous_epoch", int), reader.get("rebalance_ms", int)
    )
    return EpochMember(
        reader.get("member", str),
        reader.optional("instance", str),
        epoch,
        previous_epoch,
        _places(reader.get("assigned", list)),
        _places(reader.get("revoking", list)),
        reader.get("away", bool),
        _texts(reader.get("topics", list)),
        reader.get("pattern", str),
        _texts(reader.get("matched", list)),
        reader.get("assignor", str),
        rebalance_ms,
        reader.get("rack", str),
        reader.get("client", str),
        reader.get("host", str),
    )


def _rows(places: Places) -> list[list[Any]]:
    return [
        [topic_id, *(one.partition for one in found)]
        for topic_id, found in groupby(sorted(places), key=lambda one: one.topic_id)
    ]


def _places(rows: Iterable[list[Any]]) -> Places:
    return frozenset(place_from(topic_id, number) for topic_id, *numbers in rows for number in numbers)


def _texts(values: Iterable[Any]) -> tuple[str, ...]:
    found = tuple(values)
    if not all(type(one) is str for one in found):
        raise TypeError("a name is a text")
    return found


def place_from(topic_id: Any, partition: Any) -> Place:
    """A partition, as it is stored. Raises TypeError or ValueError if it is none."""
    if type(topic_id) is not str:
        raise TypeError("the id of a topic is a text")
    return Place(topic_id, *natural(partition))


def natural(*numbers: Any) -> tuple[int, ...]:
    """The numbers. Raises ValueError if one is below 0, or none."""
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("a number is below 0, or none")
    return numbers
