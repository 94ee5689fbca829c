"""The forms of Produce: versions 0 to 9. Pure.

Versions 0 to 2 hold messages of the formats 0 and 1, which are refused for their format. They are understood all the
same: a client that is not offered them takes the server for one that knows no compression.

==========  =========================================  ============================================================
versions    request                                    answer
==========  =========================================  ============================================================
0           acks, timeout, topics                      topics
1                                                      throttle time
2                                                      each partition has a time of appending
3, 4        transactional id
5 on                                                   each partition has its log start offset
8 on                                                   each partition has the errors of records, and a text
9                                                      both are flexible
==========  =========================================  ============================================================
"""

from typing import Final, NamedTuple

from octavo.gateway.codes import Code
from octavo.gateway.wire.fields import Reader, Writer

VERSION_FIRST: Final = 0
VERSION_LAST: Final = 9
_THROTTLE_FROM: Final = 1
_TIME_FROM: Final = 2
_TRANSACTIONAL_FROM: Final = 3
_FLEXIBLE_FROM: Final = 9
_START_OFFSET_FROM: Final = 5
_TEXT_FROM: Final = 8

NO_OFFSET: Final = -1


class PartitionBatch(NamedTuple):
    """The batch for one partition. A view of the request."""

    topic: str
    partition: int
    batch: memoryview


class ProduceRequest(NamedTuple):
    """A decoded request."""

    transactional_id: str | None
    acks: int
    """0: no answer; 1 and -1: an answer once the batch is acknowledged."""
    timeout_ms: int
    batches: list[PartitionBatch]


class PartitionProduced(NamedTuple):
    """The answer for one partition."""

    topic: str
    partition: int
    code: Code
    base_offset: int = NO_OFFSET
    start_offset: int = NO_OFFSET
    text: str | None = None


def decode_produce(view: memoryview, version: int) -> ProduceRequest:
    """The request behind its header.

    Raises:
        MalformedError: It is not of this form.
    """
    reader = Reader(view, flexible=version >= _FLEXIBLE_FROM)

    def partition(topic: str) -> PartitionBatch:
        batch = PartitionBatch(topic, reader.int32(), reader.data() or memoryview(b""))
        reader.end_of_structure()
        return batch

    transactional_id = reader.string() if version >= _TRANSACTIONAL_FROM else None
    request = ProduceRequest(transactional_id, reader.int16(), reader.int32(), reader.topics(partition))
    reader.end_of_structure()
    reader.end()
    return request


def encode_produced(partitions: list[PartitionProduced], version: int) -> list[bytes | bytearray]:
    """The answer behind its header."""
    writer = Writer(flexible=version >= _FLEXIBLE_FROM)
    writer.topics(partitions, lambda answer: _encode_partition(writer, answer, version))
    if version >= _THROTTLE_FROM:
        writer.int32(0)
    writer.end_of_structure()
    return writer.pieces()


def _encode_partition(writer: Writer, answer: PartitionProduced, version: int) -> None:
    writer.int32(answer.partition)
    writer.int16(answer.code)
    writer.int64(answer.base_offset)
    if version >= _TIME_FROM:
        writer.int64(-1)  # topics keep the producer's times
    if version >= _START_OFFSET_FROM:
        writer.int64(answer.start_offset)
    if version >= _TEXT_FROM:
        writer.array(0)
        writer.string(answer.text)
    writer.end_of_structure()
