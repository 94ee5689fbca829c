"""Requests and answers of clients that others have written, as they went over the wire: Produce and Fetch.

A golden file of tests/golden/gateway holds some of one client: of each version, and each compression, the smallest. The
comments say what the codec that is written by hand reads there (`gateway/wire/produce.py`, `gateway/wire/fetch.py`), so
another reading is another file.
"""

import json
from collections.abc import Iterable
from io import BytesIO
from typing import Any, Final, NamedTuple

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader
from octavo.gateway.codes import Code
from octavo.gateway.records.batch import BatchHeader, BatchLimits, checked_batch
from octavo.gateway.records.contents import records_of
from octavo.gateway.wire.apis import Api, Request, answer_frame, answer_header, decode_header
from octavo.gateway.wire.fetch import FetchedPartition, decode_fetch, encode_fetched
from octavo.gateway.wire.produce import PartitionProduced, decode_produce, encode_produced
from support.golden import bytes_in, check_golden, hex_lines, readable

PREFIX_BYTES: Final = 4
"""Of a frame: the number of bytes that follow."""

ANY: Final = BatchLimits(bytes_max=4 * 1024 * 1024, ahead_ms_max=0)
FAR_MS: Final = 2**62
"""Every batch was made before."""

COMPRESSIONS: Final = ("uncompressed", "gzip", "snappy", "lz4", "zstd")


class Exchange(NamedTuple):
    """A request and its answer, each behind the number of its bytes."""

    request: bytes
    answer: bytes
    """Empty: there was none."""


def request_of(exchange: Exchange) -> Request:
    """The request, by its header."""
    return decode_header(memoryview(exchange.request))


def is_wanted(exchange: Exchange) -> bool:
    """Whether it is one of the two whose forms are written by hand. A consumer that ends may leave a Fetch open."""
    key = int.from_bytes(exchange.request[:2])
    return key == Api.PRODUCE or (key == Api.FETCH and bool(exchange.answer))


# --- what the codec reads ---------------------------------------------------------------------------------------------


def batches_of(exchange: Exchange) -> list[bytes]:
    """The batches that were sent or fetched."""
    request = request_of(exchange)
    if request.api is Api.PRODUCE:
        return [bytes(one.batch) for one in decode_produce(request.body, request.version).batches]
    return [batch for one in fetched_by(exchange) for batch in one.batches]


def produced_by(exchange: Exchange) -> list[PartitionProduced]:
    """The answer to Produce, as ``kio`` reads it."""
    answer = _answer_of(exchange)
    return [
        PartitionProduced(
            topic.name,
            one.index,
            Code(one.error_code.value),
            one.base_offset,
            getattr(one, "log_start_offset", -1),
            getattr(one, "error_message", None),
        )
        for topic in answer.responses
        for one in topic.partition_responses
    ]


def fetched_by(exchange: Exchange) -> list[FetchedPartition]:
    """The answer to Fetch, as ``kio`` reads it."""
    answer = _answer_of(exchange)
    return [
        FetchedPartition(
            topic.topic,
            one.partition_index,
            Code(one.error_code.value),
            one.high_watermark,
            getattr(one, "log_start_offset", -1),
            tuple(_divided(bytes(one.records or b""))),
        )
        for topic in answer.responses
        for one in topic.partitions
    ]


def encoded_again(exchange: Exchange) -> bytes:
    """The answer, read by ``kio`` and written by hand."""
    request = request_of(exchange)
    if request.api is Api.PRODUCE:
        pieces = encode_produced(produced_by(exchange), request.version)
    else:
        code = Code(getattr(_answer_of(exchange), "error_code", Code.NONE))
        pieces = encode_fetched(fetched_by(exchange), request.version, code)
    return b"".join(answer_frame(answer_header(request), pieces))[PREFIX_BYTES:]


def request_of_kio(exchange: Exchange) -> Any:
    """The request, as ``kio`` reads it."""
    request = request_of(exchange)
    read, size = entity_reader(load_request_schema(request.api, request.version))(bytes(request.body), 0)
    assert size == len(request.body)
    return read


def _answer_of(exchange: Exchange) -> Any:
    request = request_of(exchange)
    body = exchange.answer[len(answer_header(request)) :]
    read, size = entity_reader(load_response_schema(request.api, request.version))(body, 0)
    assert size == len(body)
    return read


def _divided(data: bytes) -> Iterable[bytes]:
    """Whole batches, one after another."""
    stream = BytesIO(data)
    while head := stream.read(12):
        yield head + stream.read(int.from_bytes(head[8:12]))


def header_of(batch: bytes) -> BatchHeader:
    """The header of a batch, which is sound."""
    return checked_batch(memoryview(batch), ANY, FAR_MS)


# --- golden files -----------------------------------------------------------------------------------------------------


def _kind_of(exchange: Exchange) -> tuple[object, ...]:
    """Of exchanges of one kind one is kept."""
    request = request_of(exchange)
    batches = batches_of(exchange)
    compressions = frozenset(header_of(batch).compression for batch in batches)
    idempotent = any(header_of(batch).is_idempotent for batch in batches) and request.api is Api.PRODUCE
    return request.api, request.version, bool(exchange.answer), tuple(sorted(compressions)), idempotent


def selected(exchanges: Iterable[Exchange]) -> list[Exchange]:
    """The smallest exchange of each kind that is wanted."""
    found: dict[tuple[object, ...], Exchange] = {}
    for one in filter(is_wanted, exchanges):
        kind = _kind_of(one)
        if kind not in found or sum(map(len, one)) < sum(map(len, found[kind])):
            found[kind] = one
    return [found[kind] for kind in sorted(found)]


def described(exchange: Exchange) -> list[str]:
    """The request in words, and what its batches hold."""
    request = request_of(exchange)
    first = f"{request.api.name} {request.version} of {request.client!r}, number {request.number}: "
    lines = []
    if request.api is Api.PRODUCE:
        produce = decode_produce(request.body, request.version)
        first += f"acks {produce.acks}, timeout {produce.timeout_ms} ms, transactional id {produce.transactional_id}"
        lines += [f"to {one.topic}/{one.partition}: {len(one.batch)} bytes" for one in produce.batches]
    else:
        fetch = decode_fetch(request.body, request.version)
        first += (
            f"wait {fetch.wait_ms_max} ms, {fetch.bytes_min} to {fetch.bytes_max} bytes, "
            f"session {fetch.session_id}, epoch {fetch.session_epoch}"
        )
        lines += [
            f"of {one.topic}/{one.partition} from {one.offset}, epoch {one.leader_epoch}, {one.bytes_max} bytes"
            for one in fetch.partitions
        ]
    return [first, *lines, *(_described_batch(batch) for batch in batches_of(exchange))]


def _described_batch(batch: bytes) -> str:
    header = header_of(batch)
    stored = batch if header.base_offset >= 0 else bytes(8) + batch[8:]
    records = list(records_of(stored))
    first = records[0]
    what = {"key": _text(first.key), "value": _text(first.value), "headers": [_text(one.name) for one in first.headers]}
    return (
        f"batch, {COMPRESSIONS[header.compression]}: base offset {header.base_offset}, epoch {header.leader_epoch}, "
        f"producer {header.producer_id}, {header.producer_epoch}, sequence {header.base_sequence}, "
        f"{len(records)} records, the first {json.dumps(what)}"
    )


def _text(data: bytes | None) -> str | None:
    return None if data is None else data[:40].decode(errors="backslashreplace")


def rendered(exchanges: Iterable[Exchange]) -> str:
    """The golden file with these."""
    blocks = []
    for one in exchanges:
        text = readable("\n".join(described(one)))
        blocks.append(f"{text}\n# request\n{hex_lines(one.request)}\n# answer\n{hex_lines(one.answer)}".rstrip("\n"))
    return "\n\n".join(blocks) + "\n"


def exchanges_in(text: str) -> list[Exchange]:
    """Those of a golden file."""
    found = []
    for block in text.strip("\n").split("\n\n"):
        request, _, answer = block.partition("# request\n")[2].partition("# answer")
        found.append(Exchange(bytes_in(request), bytes_in(answer)))
    return found


def check_captures(config: pytest.Config, client: str, exchanges: Iterable[Exchange]) -> None:
    """What a client has said just now is read as Kafka's own description reads it, and answers are written so, too.

    With ``--rewrite`` it becomes the client's golden file.
    """
    found = selected(exchanges)
    assert {request_of(one).api for one in found} == {Api.PRODUCE, Api.FETCH}
    for one in found:
        request_of_kio(one)
        assert not one.answer or encoded_again(one) == one.answer
    text = rendered(found)
    assert exchanges_in(text) == found
    if config.getoption("--rewrite", default=False):
        check_golden(config, f"gateway/{client}.hex", text)
