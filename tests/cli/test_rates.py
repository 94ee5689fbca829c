"""What bookies did between two looks, as `octavo top` and the console show it."""

from typing import Any

import pytest
from octavo.cli.rates import compare, latencies
from octavo.client.bookie_status import BookieStatus
from octavo.metadata import BookieState
from octavo.metrics.histogram import BOUNDS_SECONDS, Histogram, counts_as_text
from octavo.protocol.ids import BookieId

FACTS: dict[str, Any] = {
    "boot_id": "first", "adds": 10, "entries_added": 100, "bytes_added": 1000, "reads": 0, "entries_read": 0,
    "bytes_read": 0, "add_seconds": "0 10", "read_seconds": "", "journal_sync_seconds": "5",
}  # fmt: skip


def bookie(name: str = "a", **facts: Any) -> BookieStatus:
    return BookieStatus(BookieId(name), f"{name}:3181", BookieState.WRITABLE, "0.1.0", "/r", FACTS | facts)


def durations(*seconds: float) -> str:
    histogram = Histogram()
    for duration in seconds:
        histogram.observe(duration)
    return counts_as_text(histogram.counts)


def test_rates_and_latencies_are_those_of_the_time_between_the_looks() -> None:
    later = bookie(adds=30, entries_added=500, bytes_added=9000, add_seconds="0 10 90 0 0 10")
    (row,) = compare([bookie()], [later], 2.0)
    assert (row["adds_per_second"], row["entries_added_per_second"], row["bytes_added_per_second"]) == (10, 200, 4000)
    # 90 of the 100 new durations are in the third bucket; the 10 in the second were there before.
    assert (row["add_p50_seconds"], row["add_p99_seconds"]) == (BOUNDS_SECONDS[2], BOUNDS_SECONDS[5])
    assert row["journal_sync_p99_seconds"] is None, "nothing was synced between the looks"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], [bookie()]),
        ([bookie()], [BookieStatus(BookieId("a"), "a:3181", BookieState.WRITABLE, "0.1.0", "/r", None)]),
        ([bookie()], [bookie(boot_id="second", adds=1, add_seconds="0 0 1")]),
    ],
    ids=["new", "silent", "started anew"],
)
def test_nothing_is_known_of_a_bookie_without_two_looks_at_the_same_process(
    before: list[BookieStatus], after: list[BookieStatus]
) -> None:
    (row,) = compare(before, after, 1.0)
    assert row["adds_per_second"] is row["add_p99_seconds"] is None
    assert set(latencies(before, after).values()) == {None}


@pytest.mark.parametrize("counts", [None, 7, "one two", "-1", "1 " * 30])
def test_a_bookie_that_does_not_time_its_requests_or_does_it_otherwise_has_no_latencies(counts: Any) -> None:
    (row,) = compare([bookie()], [bookie(adds=30, add_seconds=counts)], 2.0)
    assert (row["adds_per_second"], row["add_p99_seconds"]) == (10, None)


def test_latencies_of_the_cluster_count_each_request_of_each_bookie() -> None:
    before = [bookie(name, add_seconds="") for name in "abc"]
    after = [
        bookie("a", add_seconds=durations(*[0.001] * 98)),
        bookie("b", add_seconds=durations(0.5, 0.5)),
        bookie("c", boot_id="second", add_seconds=durations(*[5.0] * 1000)),
    ]
    found = latencies(before, after)
    assert found["add_p50_seconds"] == pytest.approx(0.0016)
    assert found["add_p99_seconds"] == pytest.approx(0.8192)


def test_the_longest_durations_are_shown_as_the_last_bound() -> None:
    found = latencies([bookie()], [bookie(journal_sync_seconds=durations(100.0, 100.0, *[1e-6] * 5))])
    assert found["journal_sync_p99_seconds"] == BOUNDS_SECONDS[-1]
