"""What bookies did between two looks at their counters, for `octavo top` and the console."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.client.client import BookieStatus

RATES = {
    "adds_per_second": "adds",
    "entries_added_per_second": "entries_added",
    "bytes_added_per_second": "bytes_added",
    "reads_per_second": "reads",
    "entries_read_per_second": "entries_read",
    "bytes_read_per_second": "bytes_read",
}
"""Rates shown, and the counters of INFO that they are made from."""

FACTS = ("connections", "ledgers", "journal_bytes", "cache_bytes", "free_bytes", "total_bytes", "in_doubt")
"""Facts of INFO that are shown as they are."""


def compare(before: Sequence["BookieStatus"], after: Sequence["BookieStatus"], seconds: float) -> list[dict[str, Any]]:
    """What each bookie did between two looks that are ``seconds`` apart. Rates are None where they are not known: the
    bookie did not answer, or has started anew in between."""
    known = {bookie.bookie_id: bookie.facts for bookie in before}
    rows = []
    for bookie in after:
        facts, earlier = bookie.facts, known.get(bookie.bookie_id)
        row: dict[str, Any] = {"bookie_id": bookie.bookie_id, "address": bookie.address, "state": bookie.state.value}
        for name, counter in RATES.items():
            row[name] = _rate(earlier, facts, counter, seconds)
        row |= {name: None if facts is None else facts.get(name) for name in FACTS}
        rows.append(row)
    return rows


def _rate(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, counter: str, seconds: float
) -> float | None:
    if before is None or after is None or before.get("boot_id") != after.get("boot_id"):
        return None
    if counter not in before or counter not in after:
        return None
    return round(float(after[counter] - before[counter]) / seconds, 1)
