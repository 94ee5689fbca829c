"""What a log drops (rule P8): the limits by table, held back by cursors."""

import math

import pytest
from octavo.client.log.chain.retention import retention_cut
from octavo.client.log.documents.chain import Retention
from octavo.protocol.errors import InvalidArgumentError
from support.metadata.log_documents import log_of

NOW = 100_000
NO_CURSORS = None
IDLE: dict[str, int] = {}
"""The log has cursors, and all of them are idle."""


@pytest.mark.parametrize(
    ("retention", "cursors", "cut"),
    [
        # Segments of 3, 4, 5, 6 entries of 100 bytes, sealed at 1 s, 2 s, 3 s, 4 s; then an open one.
        (Retention(), NO_CURSORS, 0),
        (Retention(seconds=98.5), NO_CURSORS, 3),
        (Retention(seconds=97.5), NO_CURSORS, 7),
        (Retention(seconds=1), NO_CURSORS, 12),
        (Retention(seconds=200), NO_CURSORS, 0),
        (Retention(bytes=1800), NO_CURSORS, 0),
        (Retention(bytes=1799), NO_CURSORS, 3),
        (Retention(bytes=1200), NO_CURSORS, 7),
        (Retention(bytes=1), NO_CURSORS, 12),
        (Retention(seconds=1, cursors=True), {"a": 7, "b": 100}, 7),
        (Retention(seconds=1, cursors=True), {"a": 6}, 3),
        (Retention(seconds=1, cursors=True), NO_CURSORS, 0),
        (Retention(seconds=1, cursors=True), IDLE, 12),
        (Retention(bytes=1200, cursors=True), IDLE, 7),
        (Retention(cursors=True), IDLE, 0),
        (Retention(cursors=True), {"a": 12}, 12),
        (Retention(cursors=True), {"a": 11, "b": 5}, 3),
        (Retention(cursors=True), NO_CURSORS, 0),
    ],
)
def test_what_is_dropped(retention: Retention, cursors: dict[str, int] | None, cut: int) -> None:
    document = log_of(3, 4, 5, 6, None, retention=retention)
    limit_ms = math.inf if retention.seconds is None else retention.seconds * 1000
    ends = [(segment.stop_position, segment.end) for segment in document.segments]
    old = [stop for stop, end in ends if end is not None and NOW - end.sealed_at_ms > limit_ms]
    old_stop = max((stop for stop in old if stop is not None), default=None)
    assert retention_cut(document, old_stop=old_stop, cursors=cursors) == cut


@pytest.mark.parametrize(
    "fields",
    [
        {"seconds": 0},
        {"seconds": -1},
        {"seconds": math.inf},
        {"seconds": math.nan},
        {"seconds": "60"},
        {"seconds": True},
        {"bytes": 0},
        {"bytes": 1.5},
        {"bytes": "60"},
    ],
)
def test_limits_are_numbers_above_zero(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"must be a .*number above 0"):
        Retention(**fields)  # type: ignore[arg-type]
