"""The work of bookies between two looks at their counters, for `octavo top` and the console."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from octavo.metrics.histogram import BOUNDS_SECONDS, counts_from_text, quantile_of

if TYPE_CHECKING:
    from octavo.client.bookie_status import BookieStatus

RATES = {
    "adds_per_second": "adds",
    "entries_added_per_second": "entries_added",
    "bytes_added_per_second": "bytes_added",
    "reads_per_second": "reads",
    "entries_read_per_second": "entries_read",
    "bytes_read_per_second": "bytes_read",
}
"""Rates shown, and the counters of INFO that they are made from."""

LATENCIES = {"add": "add_seconds", "read": "read_seconds", "journal_sync": "journal_sync_seconds"}
"""What is timed, and the fact of INFO that has the counts of its durations."""

QUANTILES = {"p50": 0.5, "p99": 0.99}

FACTS = ("connections", "ledgers", "journal_bytes", "cache_bytes", "free_bytes", "total_bytes", "in_doubt")
"""Facts of INFO that are shown as they are."""


def compare(before: Sequence["BookieStatus"], after: Sequence["BookieStatus"], seconds: float) -> list[dict[str, Any]]:
    """The work of each bookie between two looks that are ``seconds`` apart. Rates are None where they are not known:
    the bookie did not answer, or has started anew in between. Latencies (``add_p99_seconds``) are the upper bounds of
    their buckets, and None also where nothing was timed."""
    known = {bookie.bookie_id: bookie.facts for bookie in before}
    rows = []
    for bookie in after:
        facts, earlier = bookie.facts, known.get(bookie.bookie_id)
        row: dict[str, Any] = {"bookie_id": bookie.bookie_id, "address": bookie.address, "state": bookie.state.value}
        for name, counter in RATES.items():
            row[name] = _rate(earlier, facts, counter, seconds)
        for name, fact in LATENCIES.items():
            row |= _quantiles(name, [_durations(earlier, facts, fact)])
        row |= {name: None if facts is None else facts.get(name) for name in FACTS}
        rows.append(row)
    return rows


def latencies(before: Sequence["BookieStatus"], after: Sequence["BookieStatus"]) -> dict[str, float | None]:
    """The latencies of all bookies together between two looks, as :func:`compare` has them for each."""
    known = {bookie.bookie_id: bookie.facts for bookie in before}
    found: dict[str, float | None] = {}
    for name, fact in LATENCIES.items():
        found |= _quantiles(name, [_durations(known.get(bookie.bookie_id), bookie.facts, fact) for bookie in after])
    return found


def _quantiles(name: str, durations: Iterable[list[int] | None]) -> dict[str, float | None]:
    together = [sum(bucket) for bucket in zip(*(counts for counts in durations if counts is not None), strict=True)]
    found = {label: quantile_of(together, share) for label, share in QUANTILES.items()}
    # The last bucket has no upper bound, and no value may be infinite in JSON.
    return {
        f"{name}_{label}_seconds": None if seconds is None else min(seconds, BOUNDS_SECONDS[-1])
        for label, seconds in found.items()
    }


def _durations(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, fact: str) -> list[int] | None:
    """How many durations each bucket has counted between two looks; None where that is not known."""
    if before is None or after is None or before.get("boot_id") != after.get("boot_id"):
        return None
    try:
        old, new = counts_from_text(before[fact]), counts_from_text(after[fact])
    except (KeyError, AttributeError, ValueError):
        return None  # a bookie of another version
    return [count - earlier for count, earlier in zip(new, old, strict=True)]


def _rate(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, counter: str, seconds: float
) -> float | None:
    if before is None or after is None or before.get("boot_id") != after.get("boot_id"):
        return None
    if counter not in before or counter not in after:
        return None
    return round(float(after[counter] - before[counter]) / seconds, 1)
