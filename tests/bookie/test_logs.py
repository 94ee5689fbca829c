"""What a process logs, as its operator reads it."""

import io
import json

import pytest
import structlog
from octavo.bookie.logs import configure_logging


def fail(key: bytes) -> None:
    raise RuntimeError(f"a defect met {len(key)} bytes")


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_traceback_names_the_lines_of_code_and_no_values(log_format: str) -> None:
    written = io.StringIO()
    configure_logging("info", log_format, stream=written)
    try:
        fail(b"master key")
    except RuntimeError:
        structlog.get_logger("octavo.test").exception("request failed", ledger=7)
    text = written.getvalue()
    told = json.loads(text)["exception"] if log_format == "json" else text
    assert "request failed" in text
    assert "Traceback (most recent call last)" in told
    assert 'fail(b"master key")' in told, "the line of code"
    assert "RuntimeError: a defect met 10 bytes" in told
    assert "locals" not in told
    assert "key = " not in told
