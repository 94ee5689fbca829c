"""What the pipeline deletes by age, where clocks are wrong (rule M5)."""

from datetime import UTC, datetime, timedelta

import pytest
from octavo.pipeline.datasets import is_old

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
UNSET = datetime(1970, 1, 1, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("created_at", "older_than_seconds", "old"),
    [
        (NOON - timedelta(hours=2), 3600.0, True),
        (NOON - timedelta(minutes=59), 3600.0, False),
        (NOON + timedelta(days=365), 3600.0, False),
        (UNSET, 3600.0, False),
        (UNSET, 0.0, True),
        (NOON + timedelta(days=365), 0.0, True),
    ],
)
def test_a_ledger_of_a_clock_that_was_never_set_is_not_old(
    created_at: datetime, older_than_seconds: float, old: bool
) -> None:
    assert is_old(created_at, NOON, older_than_seconds) is old
