"""The records in stored batches, compressed or not, and what is no batch."""

import gzip
import sys
from collections.abc import Callable

import pyarrow
import pytest
from octavo.gateway.codes import RefusedError
from octavo.gateway.records.contents import Header, Record, records_of
from octavo.gateway.records.unpacking import MissingCodecError, unpacked
from support.kafka.batches import batch_of, number, record

VALUES = [b"one" * 50, b"", b"\xff\x00"]
PLAIN = b"".join(record(offset, value) for offset, value in enumerate(VALUES))


def snappy(data: bytes) -> bytes:
    return bytes(pyarrow.compress(data, codec="snappy", asbytes=True))


def snappy_blocks(data: bytes) -> bytes:
    """As Java writes it."""
    blocks = [snappy(data[:60]), snappy(data[60:])]
    framed = b"".join(len(block).to_bytes(4, "big") + block for block in blocks)
    return b"\x82SNAPPY\x00" + b"\0\0\0\1\0\0\0\1" + framed


def streamed(name: str) -> Callable[[bytes], bytes]:
    def compressed(data: bytes) -> bytes:
        sink = pyarrow.BufferOutputStream()
        with pyarrow.CompressedOutputStream(sink, name) as stream:
            stream.write(data)
        return bytes(sink.getvalue().to_pybytes())

    return compressed


def gzipped(data: bytes) -> bytes:
    """The same at any time: gzip's header has none."""
    return gzip.compress(data, mtime=0)


CODECS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip": (1, gzipped),
    "gzip, two members": (1, lambda data: gzipped(data[:9]) + gzipped(data[9:])),
    "snappy": (2, snappy),
    "snappy in blocks": (2, snappy_blocks),
    "lz4": (3, streamed("lz4")),
    "zstd": (4, streamed("zstd")),
    "zstd, two frames": (4, lambda data: streamed("zstd")(data[:9]) + streamed("zstd")(data[9:])),
}
"""Packed by another library than the one that unpacks."""


def refusal(entry: bytes) -> str:
    with pytest.raises(RefusedError) as refused:
        list(records_of(entry))
    return refused.value.text


def test_records_have_offsets_times_keys_and_headers() -> None:
    body = b"\0" + number(-5) + number(0) + number(1) + b"k" + number(-1)
    body += number(2) + number(1) + b"a" + number(2) + b"bc" + number(1) + b"d" + number(-1)
    second = record(1, b"", key=b"", time=7)
    entry = batch_of(records=number(len(body)) + body + second, count=2, base_offset=2**40)
    assert list(records_of(entry)) == [
        Record(2**40, 995, b"k", None, (Header(b"a", b"bc"), Header(b"d", None))),
        Record(2**40 + 1, 1007, b"", b"", ()),
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_records_are_those_that_were_compressed(codec: str) -> None:
    compression, compress = CODECS[codec]
    entry = batch_of(records=compress(PLAIN), count=3, attributes=compression, base_offset=40)
    assert [(one.offset, one.value) for one in records_of(entry)] == [*zip((40, 41, 42), VALUES, strict=True)]


@pytest.mark.parametrize("codec", CODECS)
def test_no_more_is_unpacked_than_the_bound(codec: str) -> None:
    compression, compress = CODECS[codec]
    data = bytes(3_000_000)
    packed = compress(data)
    assert unpacked(compression, packed, len(data)) == data
    with pytest.raises(RefusedError, match="more than 2999999 bytes when they are unpacked"):
        unpacked(compression, packed, len(data) - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_compression_is_refused(codec: str) -> None:
    compression, compress = CODECS[codec]
    name = codec.partition(",")[0].partition(" ")[0]
    packed = compress(PLAIN)
    for damaged in (packed[:-3], b"\xff" * 40, packed[:20]):
        with pytest.raises(RefusedError, match=f"cannot be unpacked with {name}"):
            unpacked(compression, damaged, 10_000)


def test_a_block_of_snappy_that_is_said_to_be_longer_than_it_is_is_refused() -> None:
    block = snappy(PLAIN)
    data = b"\x82SNAPPY\x00" + bytes(8) + (len(block) + 1).to_bytes(4, "big") + block
    with pytest.raises(RefusedError, match="cannot be unpacked with snappy"):
        unpacked(2, data, 10_000)


@pytest.mark.parametrize(("compression", "name"), [(2, "snappy"), (3, "lz4"), (4, "zstd")])
def test_a_missing_module_is_named_with_the_extra_that_brings_it(
    compression: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(MissingCodecError, match=f"with {name} need cramjam: .* extra `kafka`"):
        unpacked(compression, b"data", 100)
    assert unpacked(1, gzipped(b"data"), 100) == b"data"


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (b"", "0 bytes are less than the header of a batch"),
        (b"hello", "5 bytes are less"),
        (b"x" * 80, "has the format 120"),
        (batch_of(b"one")[:-1], "and says"),
        (batch_of(b"one", crc=1), "checksum"),
        (batch_of(b"one", base_offset=-1), "the base offset is -1"),
        (batch_of(b"one", attributes=0x20), "transactions"),
        (batch_of(records=gzipped(PLAIN[:-1]), count=3, attributes=1), "record 2 has the length"),
        (batch_of(records=gzipped(PLAIN + b"x"), count=3, attributes=1), "1 bytes follow the last record"),
        (batch_of(records=gzipped(PLAIN), count=4, attributes=1), "record 3 goes on behind its end"),
        (batch_of(records=gzipped(number(0) + bytes(9)), count=1, attributes=1), "record 0 has the length 0"),
        (
            batch_of(records=gzipped(number(6) + b"\0\0\0" + number(9) + b"xx"), count=1, attributes=1),
            "record 0 goes on behind its end",
        ),
        (
            batch_of(records=gzipped(number(7) + b"\0\0\0\1\1\0x"), count=1, attributes=1),
            "record 0 does not end where it says",
        ),
        (
            batch_of(records=gzipped(number(6) + b"\0\0\0\1\1" + number(-1)), count=1, attributes=1),
            "record 0 does not end where it says",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "entry",
)
def test_what_is_no_batch_is_refused_with_the_reason(entry: bytes, reason: str) -> None:
    assert reason in refusal(entry)


def test_a_time_far_ahead_of_any_clock_was_accepted_once_and_is_shown() -> None:
    entry = batch_of(b"one", base_timestamp=2**62, max_timestamp=2**62)
    assert [one.time_ms for one in records_of(entry)] == [2**62]
