"""The forms of Fetch: versions 4 to 12. Pure.

==========  ==================================================  ===================================================
versions    request                                             answer
==========  ==================================================  ===================================================
4           replica, max wait, min bytes, max bytes, isolation  throttle time, topics
5, 6        each partition has a log start offset               each partition has its log start offset
7, 8        session id and epoch, forgotten topics              an error, the session id
9, 10       each partition has the leader's epoch
11          the consumer's rack                                 each partition has a preferred read replica
12          each partition has the last epoch that was read     both are flexible
==========  ==================================================  ===================================================

Sessions are not kept: the answer has the session id 0, and a client then names all partitions in each request.
"""

from typing import Final, NamedTuple

from octavo.gateway.codes import Code
from octavo.gateway.wire.fields import Reader, Writer

VERSION_FIRST: Final = 4
VERSION_LAST: Final = 12
_START_OFFSET_FROM: Final = 5
_SESSION_FROM: Final = 7
_EPOCH_FROM: Final = 9
_RACK_FROM: Final = 11
_FLEXIBLE_FROM: Final = 12

NO_SESSION: Final = 0
NO_OFFSET: Final = -1
NO_EPOCH: Final = -1


class WantedPartition(NamedTuple):
    """A partition that a consumer reads."""

    topic: str
    partition: int
    leader_epoch: int
    """The epoch that the consumer knows, or -1."""
    offset: int
    """Of the first record that it wants."""
    bytes_max: int


class FetchRequest(NamedTuple):
    """A decoded request."""

    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    session_id: int
    session_epoch: int
    partitions: list[WantedPartition]


class FetchedPartition(NamedTuple):
    """The answer for one partition."""

    topic: str
    partition: int
    code: Code
    high_watermark: int = NO_OFFSET
    start_offset: int = NO_OFFSET
    batches: tuple[bytes, ...] = ()


def decode_fetch(view: memoryview, version: int) -> FetchRequest:
    """The request behind its header.

    Raises:
        MalformedError: It is not of this form.
    """
    reader = Reader(view, flexible=version >= _FLEXIBLE_FROM)

    def partition(topic: str) -> WantedPartition:
        index = reader.int32()
        epoch = reader.int32() if version >= _EPOCH_FROM else NO_EPOCH
        offset = reader.int64()
        if version >= _FLEXIBLE_FROM:
            reader.int32()  # the last epoch that the consumer has read
        if version >= _START_OFFSET_FROM:
            reader.int64()  # of a follower
        wanted = WantedPartition(topic, index, epoch, offset, reader.int32())
        reader.end_of_structure()
        return wanted

    reader.int32()  # the id of a replica; consumers have none
    wait_ms_max, bytes_min, bytes_max = reader.int32(), reader.int32(), reader.int32()
    reader.int8()  # the isolation level: without transactions all are the same
    session = (reader.int32(), reader.int32()) if version >= _SESSION_FROM else (NO_SESSION, -1)
    partitions = reader.topics(partition)
    if version >= _SESSION_FROM:
        reader.topics(lambda _: reader.int32())  # those that leave the session
    if version >= _RACK_FROM:
        reader.string()
    reader.end_of_structure()
    reader.end()
    return FetchRequest(wait_ms_max, bytes_min, bytes_max, *session, partitions)


def encode_fetched(partitions: list[FetchedPartition], version: int, code: Code = Code.NONE) -> list[bytes | bytearray]:
    """The answer behind its header. ``code``: of the whole request."""
    writer = Writer(flexible=version >= _FLEXIBLE_FROM)
    writer.int32(0)  # throttle time
    if version >= _SESSION_FROM:
        writer.int16(code)
        writer.int32(NO_SESSION)
    writer.topics(partitions, lambda answer: _encode_partition(writer, answer, version))
    writer.end_of_structure()
    return writer.pieces()


def _encode_partition(writer: Writer, answer: FetchedPartition, version: int) -> None:
    writer.int32(answer.partition)
    writer.int16(answer.code)
    writer.int64(answer.high_watermark)
    writer.int64(answer.high_watermark)  # the last stable offset: there are no transactions
    if version >= _START_OFFSET_FROM:
        writer.int64(answer.start_offset)
    writer.array(0)  # aborted transactions
    if version >= _RACK_FROM:
        writer.int32(-1)  # the preferred read replica: the leader
    writer.data(list(answer.batches))
    writer.end_of_structure()
