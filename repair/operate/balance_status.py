"""How far a balance is, for operators. It reads no ledgers, as :mod:`octavo.repair.operate.balancing` does."""

from collections.abc import Mapping
from typing import Any

from octavo.metadata.store.store import MetadataStore
from octavo.protocol.ids import BookieId
from octavo.repair.base.balance_document import DOCUMENT, BalanceState, BookieFill, decode_balance


async def read_balance(store: MetadataStore) -> BalanceState | None:
    """The balance that is under way, or the last one; None if there never was one."""
    found = await store.read_document(DOCUMENT)
    return None if found is None else decode_balance(found.value)


def balance_fields(state: BalanceState | None) -> dict[str, Any] | None:
    """A balance, as ``--json`` shows it; None if there never was one."""
    if state is None:
        return None
    return {
        "phase": state.phase.value,
        "asked_by": state.asked_by.value,
        "asked_at": state.asked_at_ms / 1000,
        "reason": state.reason,
        "moved": state.moved,
        "moved_bytes": state.moved_bytes,
        "failed": state.failed,
        "under_way": state.under_way,
        "under_way_bytes": state.under_way_bytes,
        "bookies": fill_fields(state.bookies),
    }


def fill_fields(bookies: Mapping[BookieId, BookieFill]) -> list[dict[str, Any]]:
    """How full bookies are, as ``--json`` shows it."""
    return [
        {
            "bookie_id": name,
            "held_bytes": one.held_bytes,
            "capacity_bytes": one.capacity_bytes,
            "percent": round(100 * one.held_bytes / one.capacity_bytes, 2),
        }
        for name, one in sorted(bookies.items())
    ]
