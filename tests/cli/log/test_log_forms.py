"""Times and payloads as `octavo log read` and `octavo log tail` take and write them."""

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from octavo.cli.log.forms import PayloadForm, format_of
from octavo.cli.log.moments import age_in_words, parse_moment
from octavo.cli.log.overview import size_in_words
from octavo.client.log.seam.entries import LogEntry
from octavo.protocol.ids import EntryId, LedgerId

import octavo

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172_800), ("1w", 604_800), (" 5m ", 300)],
)
def test_an_age_is_counted_back_from_now(text: str, seconds: float) -> None:
    assert parse_moment(text, NOW) == NOW - timedelta(seconds=seconds)


def test_a_time_with_a_zone_is_taken_by_that_zone() -> None:
    wanted = datetime(2026, 1, 31, 10, 30, tzinfo=timezone(timedelta(hours=2)))
    assert parse_moment("2026-01-31T10:30+02:00", NOW) == wanted
    assert parse_moment("2026-01-31T08:30Z", NOW) == wanted


def test_a_time_without_a_zone_is_one_of_this_host() -> None:
    assert parse_moment("2026-01-31", NOW) == datetime(2026, 1, 31).astimezone()


@pytest.mark.parametrize("text", ["", "soon", "10", "10x", "-5m", "2026-13-01", "5m ago", "9" * 400 + "d"])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(octavo.InvalidArgumentError, match="10m or 1h30m"):
        parse_moment(text, NOW)


@pytest.mark.parametrize(
    ("seconds", "words"), [(-1, "0s"), (59.9, "59s"), (60, "1m"), (3599, "59m"), (7200, "2h"), (86_400 * 9, "9d")]
)
def test_an_age_is_told_in_its_largest_unit(seconds: float, words: str) -> None:
    assert age_in_words(seconds) == words


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_500_000, "2.5 MB"), (3e16, "30000.0 TB")]
)
def test_a_size_is_told_in_its_largest_unit(size: float, words: str) -> None:
    assert size_in_words(size) == words


def test_the_key_of_an_entry_is_one_of_its_facts() -> None:
    entry = LogEntry(7, b"text", 3, 0, LedgerId(1), EntryId(7), "order-17")
    line = format_of(None, as_json=True)(entry)
    assert json.loads(line)["key"] == "order-17"
    assert format_of(None, as_json=False)(entry) == b"text\n"


def written(payload: bytes, form: PayloadForm | None, *, as_json: bool = False) -> bytes:
    return format_of(form, as_json=as_json)(LogEntry(7, payload, 3, 0, LedgerId(1), EntryId(7)))


@pytest.mark.parametrize(
    ("form", "line"),
    [
        (None, b"a\xff\x1b\n"),
        (PayloadForm.TEXT, b"a\xff\x1b\n"),
        (PayloadForm.HEX, b"61ff1b\n"),
        (PayloadForm.BASE64, b"Yf8b\n"),
        (PayloadForm.JSON, b'{"base64": "Yf8b"}\n'),
    ],
)
def test_a_payload_alone_is_a_line_in_each_form(form: PayloadForm | None, line: bytes) -> None:
    assert written(b"a\xff\x1b", form) == line


@pytest.mark.parametrize(
    ("payload", "line"),
    [
        (b'{"a": 1}', b'{"a": 1}\n'),
        (b'{\n\t"a": 1.10,\r\n "b": [1e999]\n}\n', b'{  "a": 1.10,   "b": [1e999] }\n'),
        (b'{"a": 1, "a": 2}', b'{"a": 1, "a": 2}\n'),
        (b'"' + b"9" * 5000 + b'"', b'"' + b"9" * 5000 + b'"\n'),
        (b"9" * 5000, b"9" * 5000 + b"\n"),
        ('"\u202e\x7f"'.encode(), b'"\\u202e\\u007f"\n'),
        (b"NaN", b'"NaN"\n'),
        (b"no json\n", b'"no json\\n"\n'),
        (b"", b'""\n'),
        (b"[" * 100_000, b'"' + b"[" * 100_000 + b'"\n'),
    ],
)
def test_json_is_written_unchanged_on_one_line_and_what_is_none_as_a_string(payload: bytes, line: bytes) -> None:
    assert written(payload, PayloadForm.JSON) == line


@pytest.mark.parametrize(
    ("form", "payload", "value"),
    [
        (None, b"text", "text"),
        (None, b"\xff", {"base64": "/w=="}),
        (PayloadForm.TEXT, b"a\xff", "a\\xff"),
        (PayloadForm.JSON, b'{"n":\n 1}', {"n": 1}),
        (PayloadForm.JSON, b"{", "{"),
        (PayloadForm.BASE64, b"text", "dGV4dA=="),
        (PayloadForm.HEX, b"text", "74657874"),
    ],
)
def test_an_entry_as_json_has_its_facts_and_its_payload_in_the_form(
    form: PayloadForm | None, payload: bytes, value: object
) -> None:
    line = written(payload, form, as_json=True)
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "position": 7,
        "term": 3,
        "sealed_at": "1970-01-01T00:00:00+00:00",
        "payload": value,
    }
