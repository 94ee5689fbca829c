"""Produce and Fetch of clients that others have written, as golden files, and everything near them.

`tests/processes/commands/test_kafka_clients_of_others.py` and `tests/processes/gateways/test_captures.py` make the
files, with ``--rewrite``.
"""

from datetime import timedelta
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.gateway.codes import RefusedError
from octavo.gateway.records.batch import BatchLimits, checked_batch
from octavo.gateway.wire.apis import Api, decode_header
from octavo.gateway.wire.fetch import decode_fetch
from octavo.gateway.wire.fields import MalformedError
from octavo.gateway.wire.produce import decode_produce
from support.golden import FOLDER
from support.kafka.captures import (
    FAR_MS,
    Exchange,
    batches_of,
    encoded_again,
    exchanges_in,
    rendered,
    request_of,
    request_of_kio,
    selected,
)

CAPTURES = FOLDER / "gateway"
CLIENTS = (
    "aiokafka", "confluent-kafka", "franz-go", "java", "kafka-python", "kafkajs", "kcat", "platformatic",
)  # fmt: skip
SMALL = BatchLimits(bytes_max=100_000, ahead_ms_max=0)


@cache
def captured(client: str) -> list[Exchange]:
    return exchanges_in((CAPTURES / f"{client}.hex").read_text())


ALL = [(client, one) for client in CLIENTS for one in captured(client)]
REQUESTS = [one.request for _, one in ALL]
BATCHES = [batch for _, one in ALL for batch in batches_of(one)]


def test_there_is_a_file_of_each_client() -> None:
    assert sorted(path.stem for path in CAPTURES.glob("*.hex")) == sorted(CLIENTS)
    for client in CLIENTS:
        assert {request_of(one).api for one in captured(client)} == {Api.PRODUCE, Api.FETCH}, client


@pytest.mark.parametrize("client", CLIENTS)
def test_a_capture_is_read_as_its_file_says(client: str) -> None:
    assert rendered(captured(client)) == (CAPTURES / f"{client}.hex").read_text()
    assert selected(captured(client)) == captured(client)


@pytest.mark.parametrize("client", CLIENTS)
def test_an_answer_is_written_again_byte_for_byte(client: str) -> None:
    for one in captured(client):
        assert not one.answer or encoded_again(one) == one.answer


@pytest.mark.parametrize("client", CLIENTS)
def test_a_request_is_read_as_kafkas_own_description_reads_it(client: str) -> None:
    for one in captured(client):
        request, read = request_of(one), request_of_kio(one)
        if request.api is Api.PRODUCE:
            produce = decode_produce(request.body, request.version)
            assert (produce.transactional_id, produce.acks) == (read.transactional_id, read.acks)
            assert timedelta(milliseconds=produce.timeout_ms) == read.timeout
            assert [(two.topic, two.partition, bytes(two.batch)) for two in produce.batches] == [
                (topic.name, two.index, two.records) for topic in read.topic_data for two in topic.partition_data
            ]
        else:
            fetch = decode_fetch(request.body, request.version)
            assert timedelta(milliseconds=fetch.wait_ms_max) == read.max_wait
            assert (fetch.bytes_min, fetch.bytes_max) == (read.min_bytes, read.max_bytes)
            assert [(two.topic, two.partition, two.offset, two.bytes_max) for two in fetch.partitions] == [
                (topic.topic, two.partition, two.fetch_offset, two.partition_max_bytes)
                for topic in read.topics
                for two in topic.partitions
            ]


def test_the_captures_show_every_compression_and_old_and_new_versions() -> None:
    assert {checked_batch(memoryview(batch), SMALL, FAR_MS).compression for batch in BATCHES} == {0, 1, 2, 3, 4}
    versions = {(request_of(one).api, request_of(one).version) for _, one in ALL}
    assert len(versions) >= 4


@st.composite
def damaged(draw: st.DrawFn, samples: list[bytes]) -> bytes:
    """A sample that was cut, or of which some bytes are others, or are there twice."""
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, min(len(data), 300) - 1)))
        change = draw(st.sampled_from(["bytes", "cut", "twice", "without"]))
        if change == "bytes":
            data[at : at + 4] = draw(st.binary(min_size=1, max_size=4))
        elif change == "cut":
            del data[at:]
        elif change == "twice":
            data[at:at] = data[at : at + draw(st.integers(1, 40))]
        else:
            del data[at : at + draw(st.integers(1, 40))]
    return bytes(data)


@given(damaged(REQUESTS))
def test_anything_near_a_captured_request_is_understood_or_refused(frame: bytes) -> None:
    """What is understood lies in the frame: no name and no batch is longer than it."""
    try:
        request = decode_header(memoryview(frame))
        if request.api is Api.PRODUCE:
            produce = decode_produce(request.body, request.version)
            assert sum(len(one.batch) for one in produce.batches) <= len(frame)
        elif request.api is Api.FETCH:
            fetch = decode_fetch(request.body, request.version)
            assert sum(len(one.topic.encode()) for one in fetch.partitions) <= len(frame)
    except MalformedError:
        return


@given(damaged(BATCHES))
def test_anything_near_a_captured_batch_is_one_of_the_captures_or_is_refused(batch: bytes) -> None:
    """The checksum covers all but the first 21 bytes, and of those only two fields are the leader's to fill in."""
    try:
        header = checked_batch(memoryview(batch), SMALL, FAR_MS)
    except RefusedError:
        return
    assert batch[21:] in {one[21:] for one in BATCHES}
    assert header.length == len(batch) - 12
