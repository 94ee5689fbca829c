"""Headers of requests and answers, and the versions that a gateway offers."""

import contextlib
import struct
from dataclasses import fields
from datetime import timedelta
from io import BytesIO
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.serial import entity_reader, entity_writer
from octavo.gateway.codes import Code
from octavo.gateway.wire.apis import (
    VERSIONS,
    Api,
    Request,
    UnknownVersionError,
    answer_frame,
    answer_header,
    decode_header,
    encode_versions,
    frame_size,
    unknown_version_answer,
)
from octavo.gateway.wire.entities import decode_request, encode_answer, field_of
from octavo.gateway.wire.fields import MalformedError
from support.kafka.client import API_VERSIONS, METADATA, decoded_answer, frame, request_body


@pytest.mark.parametrize("api", Api)
def test_the_header_of_each_version_is_read(api: Api) -> None:
    for version in range(VERSIONS[api].first, VERSIONS[api].last + 1):
        if api is Api.PRODUCE and version < 3:
            continue  # kio does not know them
        whole = frame(api, version, 77, b"body")
        assert frame_size(whole[:4]) == len(whole) - 4
        request = decode_header(memoryview(whole)[4:])
        assert request == Request(api, version, 77, memoryview(b"body"), "test")
        flexible = load_request_schema(api, version).__flexible__
        tags = b"\0" if flexible and api is not Api.API_VERSIONS else b""
        assert answer_header(request) == struct.pack(">i", 77) + tags


BY_HAND = {Api.PRODUCE, Api.FETCH}

READ = [
    (api, version)
    for api, versions in VERSIONS.items()
    if api not in BY_HAND
    for version in range(versions.first, versions.last + 1)
]


@pytest.mark.parametrize(("api", "version"), READ)
def test_a_request_is_read_as_kio_reads_it(api: Api, version: int) -> None:
    schema = load_request_schema(api, version)
    asked = sample(schema)
    body = entity_bytes(schema, asked)
    assert decode_request(api, version, memoryview(body)) == asked == entity_reader(schema)(body, 0)[0]
    for size in range(len(body)):
        with pytest.raises(MalformedError):
            decode_request(api, version, memoryview(body[:size]))


@pytest.mark.parametrize(("api", "version"), [one for one in READ if load_request_schema(*one).__flexible__])
def test_tagged_fields_that_are_not_known_are_skipped(api: Api, version: int) -> None:
    """``kio`` refuses them. They may stand at the end of each structure."""
    schema = load_request_schema(api, version)
    asked = sample(schema)
    body = entity_bytes(schema, asked)
    assert body.endswith(b"\0"), "the request has no tagged field"
    with_tags = body[:-1] + b"\x02" + b"\x07\x03abc" + b"\x88\x01\x00"
    assert decode_request(api, version, memoryview(with_tags)) == asked
    with pytest.raises(MalformedError):
        decode_request(api, version, memoryview(body[:-1] + b"\x01\x07\x04abc"))


def test_a_field_that_must_be_there_is_not_null() -> None:
    with pytest.raises(MalformedError, match="null"):
        decode_request(Api.FIND_COORDINATOR, 3, memoryview(b"\0\0\0"))
    with pytest.raises(MalformedError, match="null"):
        decode_request(Api.FIND_COORDINATOR, 4, memoryview(b"\0\0\0"))


def sample(schema: type[Any]) -> Any:
    """A request with a value in each field; arrays have two items."""
    hints = get_type_hints(schema)
    return schema(**{one.name: value_for(hints[one.name], one.metadata.get("kafka_type")) for one in fields(schema)})


def value_for(hint: Any, kind: str | None) -> Any:
    if isinstance(hint, UnionType):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
    if get_origin(hint) is tuple:
        return (value_for(get_args(hint)[0], kind),) * 2
    if kind is None:
        return sample(hint)
    if kind.startswith("timedelta"):
        return timedelta(milliseconds=1234)
    return {"string": "ä text", "bytes": b"bytes", "bool": True, "uuid": UUID(int=2**100 + 7)}.get(kind, 17)


def entity_bytes(schema: type[Any], asked: Any) -> bytes:
    buffer = BytesIO()
    entity_writer(schema)(buffer, asked)
    return buffer.getvalue()


@pytest.mark.parametrize("head", [struct.pack(">hhi", 99, 0, 1), struct.pack(">hhi", 3, 99, 1), b"\0" * 7, b""])
def test_what_is_no_request_is_refused(head: bytes) -> None:
    with pytest.raises(MalformedError):
        decode_header(memoryview(head + b"\0\0" if len(head) == 8 else head))


def test_an_unknown_version_of_the_question_for_versions_is_answered_in_the_oldest_form() -> None:
    with pytest.raises(UnknownVersionError) as unknown:
        decode_header(memoryview(struct.pack(">hhih", 18, 5, 42, -1)))
    assert unknown.value.number == 42
    answer = b"".join(unknown_version_answer(42))
    assert struct.unpack_from(">ii", answer) == (len(answer) - 4, 42)
    versions = decoded_answer(API_VERSIONS, 0, answer[8:])
    assert versions.error_code.value == Code.UNSUPPORTED_VERSION
    assert {one.api_key for one in versions.api_keys} == set(VERSIONS)


@pytest.mark.parametrize("version", range(4))
def test_the_versions_are_told(version: int) -> None:
    answer = decoded_answer(API_VERSIONS, version, encode_versions(version))
    assert answer.error_code.value == Code.NONE
    told = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert told == {api.value: tuple(versions) for api, versions in VERSIONS.items()}


def test_an_answer_is_sent_with_its_length() -> None:
    assert b"".join(answer_frame(b"head", [b"one", bytearray(b"two")])) == b"\x00\x00\x00\x0aheadonetwo"


@given(st.binary(max_size=100), st.sampled_from([api for api in Api if api not in (Api.PRODUCE, Api.FETCH)]))
def test_any_bytes_are_a_request_or_are_malformed(junk: bytes, api: Api) -> None:
    for version in {VERSIONS[api].first, VERSIONS[api].last}:
        with contextlib.suppress(MalformedError):
            decode_request(api, version, memoryview(junk))


@given(st.binary(max_size=40))
def test_any_bytes_are_a_header_or_are_refused(junk: bytes) -> None:
    with contextlib.suppress(MalformedError, UnknownVersionError):
        assert decode_header(memoryview(junk)).api in VERSIONS


def test_bytes_behind_a_request_are_refused() -> None:
    body = request_body(METADATA, 1, {"topics": [{"name": "orders"}]})
    assert decode_request(METADATA, 1, memoryview(body)).topics[0].name == "orders"
    with pytest.raises(MalformedError, match="1 bytes follow"):
        decode_request(METADATA, 1, memoryview(body + b"x"))


def test_librdkafka_asks_for_all_topics_in_a_form_of_its_own() -> None:
    request = decode_request(METADATA, 9, memoryview(b"\0\0\0\0\x01\0\0\0"))
    assert request.topics is None
    assert not request.allow_auto_topic_creation


def test_a_field_that_a_version_lacks_has_a_default() -> None:
    body = request_body(METADATA, 1, {"topics": None})
    request = decode_request(METADATA, 1, memoryview(body))
    assert field_of(request, "allow_auto_topic_creation", "default") == "default"
    assert field_of(request, "topics", "default") == "default"


def test_an_answer_has_the_fields_of_its_version() -> None:
    whole = {
        "throttle_time": 250,
        "brokers": [{"node_id": 1, "host": "here", "port": 9092, "rack": None}],
        "cluster_id": "some",
        "controller_id": 1,
        "topics": [{"error_code": 3, "name": "orders", "is_internal": False, "partitions": []}],
    }
    first = decoded_answer(METADATA, 0, encode_answer(METADATA, 0, whole))
    last = decoded_answer(METADATA, 8, encode_answer(METADATA, 8, whole))
    assert first.brokers[0].host == last.brokers[0].host == "here"
    assert first.topics[0].error_code.value == last.topics[0].error_code.value == 3
    assert (last.throttle_time, last.cluster_id) == (timedelta(milliseconds=250), "some")
