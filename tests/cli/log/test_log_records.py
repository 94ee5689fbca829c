"""Records of a partition as `octavo log read --records` writes them."""

import json
import sys

import pytest
from octavo.cli.log.forms import PayloadForm
from octavo.cli.log.records import check_partition, record_lines
from octavo.cli.session import CommandError
from octavo.client.log.seam.entries import LogEntry
from octavo.protocol.ids import EntryId, LedgerId
from support.kafka.batches import batch_of, number, record

import octavo

NAME = "kafka/orders/0"


def lines(payload: bytes, form: PayloadForm | None = None, *, as_json: bool = False) -> list[bytes]:
    entry = LogEntry(7, payload, 3, 0, LedgerId(1), EntryId(7))
    return list(record_lines(entry, NAME, form, as_json=as_json))


def with_headers(key: bytes, value: bytes | None) -> bytes:
    """A batch of one record, with the headers a=1 and b, which has no value."""
    body = b"\0\0\0" + number(len(key)) + key + (number(-1) if value is None else number(len(value)) + value)
    body += number(2) + number(1) + b"a" + number(1) + b"1" + number(1) + b"b" + number(-1)
    return batch_of(records=number(len(body)) + body, count=1, base_offset=40)


@pytest.mark.parametrize(
    ("form", "columns"),
    [
        (None, [b"k", b"a=1,b=", b"\xff\t"]),
        (PayloadForm.TEXT, [b"k", b"a=1,b=", b"\xff\t"]),
        (PayloadForm.JSON, [b'"k"', b"a=1,b=null", b'{"base64": "/wk="}']),
        (PayloadForm.BASE64, [b"aw==", b"a=MQ==,b=", b"/wk="]),
        (PayloadForm.HEX, [b"6b", b"a=31,b=", b"ff09"]),
    ],
)
def test_a_record_is_a_line_with_its_value_last(form: PayloadForm | None, columns: list[bytes]) -> None:
    wanted = b"\t".join([b"40", b"1970-01-01T00:00:01+00:00", *columns]) + b"\n"
    assert lines(with_headers(b"k", b"\xff\t"), form) == [wanted]


@pytest.mark.parametrize(
    ("form", "key", "value"),
    [
        (None, "k", {"base64": "/w=="}),
        (PayloadForm.TEXT, "k", "\\xff"),
        (PayloadForm.HEX, "6b", "ff"),
        (PayloadForm.BASE64, "aw==", "/w=="),
    ],
)
def test_a_record_as_json_has_position_and_offset(form: PayloadForm | None, key: str, value: object) -> None:
    [line] = lines(with_headers(b"k", b"\xff"), form, as_json=True)
    shown = json.loads(line)
    assert line.count(b"\n") == 1
    assert [one["name"] for one in shown.pop("headers")] == ["a", "b"]
    assert shown == {
        "position": 7,
        "offset": 40,
        "timestamp_ms": 1000,
        "timestamp": "1970-01-01T00:00:01+00:00",
        "key": key,
        "value": value,
    }


def test_what_is_not_there_is_null_in_json_and_empty_text_otherwise() -> None:
    [line] = lines(with_headers(b"k", None), PayloadForm.JSON, as_json=True)
    shown = json.loads(line)
    assert (shown["value"], shown["headers"]) == (None, [{"name": "a", "value": 1}, {"name": "b", "value": None}])
    assert lines(with_headers(b"k", None))[0].endswith(b"\ta=1,b=\t\n")
    assert json.loads(lines(batch_of(b"v"), as_json=True)[0])["key"] is None


def test_each_record_has_its_line() -> None:
    batch = batch_of(records=record(0, b"x", key=b"k") + record(1, b"y", time=5), count=2, base_offset=3)
    assert [line.split(b"\t")[0::4] for line in lines(batch)] == [[b"3", b"x\n"], [b"4", b"y\n"]]


def test_a_time_that_no_calendar_has_is_a_number() -> None:
    batch = batch_of(b"x", base_timestamp=2**62, max_timestamp=2**62)
    assert lines(batch)[0].split(b"\t")[1] == str(2**62).encode()
    shown = json.loads(lines(batch, as_json=True)[0])
    assert (shown["timestamp_ms"], shown["timestamp"]) == (2**62, None)


def test_an_entry_that_is_no_batch_is_named_with_its_position() -> None:
    with pytest.raises(CommandError, match=f"log {NAME}: the entry at position 7 is no batch of records: 5 bytes"):
        lines(b"hello")


def test_a_missing_module_is_named_with_the_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(CommandError, match=f"log {NAME}: position 7: records compressed with zstd need cramjam"):
        lines(batch_of(records=b"x" * 20, count=1, attributes=4))


@pytest.mark.parametrize("name", ["kafka/orders/0", "kafka/a.b-c_d/999"])
def test_a_partition_is_accepted(name: str) -> None:
    check_partition(name)


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "orders/0",
        "kafka/orders",
        "kafka/orders/x",
        "kafka/orders/01",
        "kafka/orders/1000",
        "kafka/orders/0/1",
        "kafka/__consumer_offsets/0",
        "kafka//0",
        "kafka/../0",
        "other/orders/0",
    ],
)
def test_a_log_that_is_no_partition_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(octavo.InvalidArgumentError, match=f"log {name} is no partition of a Kafka topic"):
        check_partition(name)
