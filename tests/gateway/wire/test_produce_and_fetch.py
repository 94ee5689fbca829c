"""The forms of Produce and Fetch, written by hand here and by ``kio`` from Kafka's own descriptions."""

import contextlib
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.gateway.codes import Code
from octavo.gateway.wire.fetch import (
    FetchedPartition,
    WantedPartition,
    decode_fetch,
    encode_fetched,
)
from octavo.gateway.wire.fields import MalformedError
from octavo.gateway.wire.produce import (
    PartitionBatch,
    PartitionProduced,
    decode_produce,
    encode_produced,
)
from support.kafka.client import FETCH, PRODUCE, decoded_answer, request_body

PRODUCE_VERSIONS = range(3, 10)
"""``kio`` knows no older ones."""
FETCH_VERSIONS = range(4, 13)

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30)
INT32 = st.integers(0, 2**31 - 1)
INT64 = st.integers(0, 2**63 - 1)


@given(
    st.sampled_from(PRODUCE_VERSIONS),
    st.one_of(st.none(), NAMES),
    st.sampled_from([-1, 0, 1]),
    st.integers(0, 10**6),
    st.dictionaries(NAMES, st.lists(st.tuples(INT32, st.binary(max_size=200)), max_size=3), max_size=3),
)
def test_a_produce_request_is_read_as_it_was_written(
    version: int, transactional_id: str | None, acks: int, timeout_ms: int, topics: dict[str, list[tuple[int, bytes]]]
) -> None:
    body = request_body(
        PRODUCE,
        version,
        {
            "transactional_id": transactional_id,
            "acks": acks,
            "timeout": timedelta(milliseconds=timeout_ms),
            "topic_data": [
                {"name": name, "partition_data": [{"index": index, "records": data} for index, data in partitions]}
                for name, partitions in topics.items()
            ],
        },
    )
    request = decode_produce(memoryview(body), version)
    assert (request.transactional_id, request.acks, request.timeout_ms) == (transactional_id, acks, timeout_ms)
    assert request.batches == [
        PartitionBatch(name, index, memoryview(data))
        for name, partitions in topics.items()
        for index, data in partitions
    ]


PRODUCED = st.lists(
    st.builds(
        PartitionProduced,
        NAMES,
        INT32,
        st.sampled_from([Code.NONE, Code.NOT_LEADER_OR_FOLLOWER]),
        INT64,
        INT64,
        st.one_of(st.none(), NAMES),
    ),
    max_size=4,
)


@given(st.sampled_from(PRODUCE_VERSIONS), PRODUCED)
def test_a_produce_answer_is_read_as_it_was_written(version: int, answers: list[PartitionProduced]) -> None:
    answer = decoded_answer(PRODUCE, version, b"".join(encode_produced(answers, version)))
    read = [(topic.name, one) for topic in answer.responses for one in topic.partition_responses]
    expected = sorted(answers, key=lambda one: [other.topic for other in answers].index(one.topic))
    assert [(name, one.index, one.error_code.value, one.base_offset) for name, one in read] == [
        (one.topic, one.partition, one.code, one.base_offset) for one in expected
    ]
    if version >= 5:
        assert [one.log_start_offset for _, one in read] == [one.start_offset for one in expected]
    if version >= 8:
        assert [one.error_message for _, one in read] == [one.text for one in expected]


def test_the_first_versions_of_produce_are_understood_and_answered() -> None:
    """They have no transactional id; the answers have no throttle time, then one, then times of appending."""
    body = bytes.fromhex("ffff 00000064 00000001 0001 74 00000001 00000005 00000003 616263")
    sizes = []
    for version in (0, 1, 2):
        request = decode_produce(memoryview(body), version)
        assert (request.acks, request.timeout_ms) == (-1, 100)
        assert request.batches == [PartitionBatch("t", 5, memoryview(b"abc"))]
        refused = PartitionProduced("t", 5, Code.UNSUPPORTED_FOR_MESSAGE_FORMAT)
        answer = b"".join(encode_produced([refused], version))
        assert answer.startswith(bytes.fromhex("00000001 0001 74 00000001 00000005 002b ffffffffffffffff"))
        sizes.append(len(answer))
    assert sizes == [25, 29, 37]


WANTED = st.builds(WantedPartition, NAMES, INT32, st.integers(-1, 2**31 - 1), INT64, INT32)


@given(
    st.sampled_from(FETCH_VERSIONS),
    st.tuples(INT32, INT32, INT32),
    st.tuples(INT32, st.integers(-1, 5)),
    st.lists(WANTED, max_size=4),
)
def test_a_fetch_request_is_read_as_it_was_written(
    version: int, bounds: tuple[int, int, int], session: tuple[int, int], wanted: list[WantedPartition]
) -> None:
    wait_ms, bytes_min, bytes_max = bounds

    def partition(one: WantedPartition) -> dict[str, Any]:
        return {
            "partition": one.partition, "current_leader_epoch": one.leader_epoch, "fetch_offset": one.offset,
            "last_fetched_epoch": 3, "log_start_offset": -1, "partition_max_bytes": one.bytes_max,
        }  # fmt: skip

    body = request_body(
        FETCH,
        version,
        {
            "replica_id": -1,
            "max_wait": timedelta(milliseconds=wait_ms),
            "min_bytes": bytes_min,
            "max_bytes": bytes_max,
            "isolation_level": 1,
            "session_id": session[0],
            "session_epoch": session[1],
            "topics": [{"topic": one.topic, "partitions": [partition(one)]} for one in wanted],
            "forgotten_topics_data": [{"topic": "old", "partitions": [1, 2]}],
            "rack_id": "here",
            **({"cluster_id": "some cluster"} if version >= 12 else {}),
        },
    )
    request = decode_fetch(memoryview(body), version)
    assert (request.wait_ms_max, request.bytes_min, request.bytes_max) == (wait_ms, bytes_min, bytes_max)
    if version >= 7:
        assert (request.session_id, request.session_epoch) == session
    assert request.partitions == [one if version >= 9 else one._replace(leader_epoch=-1) for one in wanted]


FETCHED = st.lists(
    st.builds(
        FetchedPartition,
        NAMES,
        INT32,
        st.sampled_from([Code.NONE, Code.OFFSET_OUT_OF_RANGE]),
        INT64,
        INT64,
        st.lists(st.binary(min_size=1, max_size=100), max_size=3).map(tuple),
    ),
    max_size=4,
)


@given(st.sampled_from(FETCH_VERSIONS), FETCHED)
def test_a_fetch_answer_is_read_as_it_was_written(version: int, answers: list[FetchedPartition]) -> None:
    answer = decoded_answer(FETCH, version, b"".join(encode_fetched(answers, version)))
    read = [(topic.topic, one) for topic in answer.responses for one in topic.partitions]
    expected = sorted(answers, key=lambda one: [other.topic for other in answers].index(one.topic))
    assert [
        (name, one.partition_index, one.error_code.value, one.high_watermark, one.last_stable_offset)
        for name, one in read
    ] == [(one.topic, one.partition, one.code, one.high_watermark, one.high_watermark) for one in expected]
    assert [bytes(one.records or b"") for _, one in read] == [b"".join(one.batches) for one in expected]
    if version >= 5:
        assert [one.log_start_offset for _, one in read] == [one.start_offset for one in expected]


@pytest.mark.parametrize("decode", [decode_produce, decode_fetch])
@given(st.binary(max_size=120), st.integers(4, 9))
def test_any_bytes_are_a_request_or_are_refused(decode: Any, junk: bytes, version: int) -> None:
    with contextlib.suppress(MalformedError):
        assert decode(memoryview(junk), version) is not None


@pytest.mark.parametrize(
    "body",
    [
        bytes.fromhex("ffff 0000 00000064 7fffffff 0001 74"),  # an array of 2^31 - 1 topics
        bytes.fromhex("ffff 0000 00000064 00000001 7fff 74"),  # a name of 32 KiB
        bytes.fromhex("ffff 0000 00000064 00000001 0001 74 00000001 00000000 7fffffff 00"),  # a batch of 2 GiB
        bytes.fromhex("ffff 0000 00000064 00000001 0001 ff 00000000"),  # no UTF-8
        bytes.fromhex("ffff 0000 00000064 00000000 00"),  # a byte behind the last field
    ],
)
def test_a_request_that_lies_about_its_lengths_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedError):
        decode_produce(memoryview(body), 7)


def test_tagged_fields_are_skipped_whatever_they_are() -> None:
    """One with the number 9 and three bytes, behind the request; and a number that is too long."""
    plain = request_body(
        PRODUCE, 9, {"transactional_id": None, "acks": 1, "timeout": timedelta(seconds=1), "topic_data": []}
    )
    assert plain.endswith(b"\0")
    decode_produce(memoryview(plain[:-1] + b"\x01\x09\x03abc"), 9)
    with pytest.raises(MalformedError):
        decode_produce(memoryview(plain[:-1] + b"\x01\x09\x04abc"), 9)
    with pytest.raises(MalformedError, match="too many bytes"):
        decode_produce(memoryview(plain[:-1] + b"\xff" * 6), 9)
