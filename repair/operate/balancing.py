"""Begins and stops a balance for operators, and tells them which moves it would make."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.client.choose.locations import Locations
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.ids import BookieId
from octavo.protocol.light_dataclass import dataclass
from octavo.repair.base.balance import Move
from octavo.repair.base.balance_document import (
    DOCUMENT,
    BalanceState,
    BookieFill,
    Phase,
    decode_balance,
    encode_balance,
)
from octavo.repair.base.balance_survey import FACT, survey
from octavo.repair.operate.operators import RepairRefusedError, change_document, read_states


async def ask_for_balance(
    store: MetadataStore, auditor: str | None, facts: Mapping[str, Mapping[str, Any]], *, now_ms: int
) -> BalanceState:
    """Have copies moved. Does nothing if a balance is under way. ``facts``: what registered bookies say of themselves.
    Raises :class:`RepairRefusedError` if the auditor is of a version that cannot balance."""
    if auditor is not None and auditor in facts and not facts[auditor].get(FACT, False):
        raise RepairRefusedError(
            f"bookie {auditor}, the auditor, is of a version that cannot balance; upgrade all bookies first"
        )

    def begin(state: BalanceState | None) -> BalanceState:
        if state is not None and state.is_wanted:
            return state
        # It differs from the one before also if both are asked for in one millisecond.
        return BalanceState(max(now_ms, 0 if state is None else state.asked_at_ms + 1))

    return _there(await _change(store, begin))


async def stop_balance(store: MetadataStore) -> BalanceState:
    """End the balance that is under way. What has been moved stays. Raises :class:`RepairRefusedError` if there is
    none."""

    def stop(state: BalanceState | None) -> BalanceState:
        if state is None or not state.is_wanted:
            raise RepairRefusedError("no balance is under way")
        return replace(state, phase=Phase.STOPPED, reason="an operator has stopped it", under_way=0, under_way_bytes=0)

    return _there(await _change(store, stop))


@dataclass(frozen=True, slots=True)
class PlannedBalance:
    """The moves that a balance would make."""

    moves: tuple[Move, ...]
    before: Mapping[BookieId, BookieFill]
    after: Mapping[BookieId, BookieFill]
    fixed_bytes: int
    """In ledgers and streams that do not move."""
    is_even: bool
    """Whether every bookie would hold its share then."""


async def plan_balance(store: MetadataStore, facts: Mapping[str, Mapping[str, Any]]) -> PlannedBalance:
    """The moves of a balance that began now, in order. Reads the metadata of all ledgers."""
    registrations, states, locations = await store.list_bookies(), await read_states(store), Locations()
    locations.note(registrations.values())
    known = {BookieId(name): one for name, one in facts.items()}
    found = await survey(store, registrations, states, known)
    balance, moves = found.balance, list[Move]()

    def fills() -> dict[BookieId, BookieFill]:
        return {name: BookieFill(balance.held.get(name, 0), capacity) for name, capacity in balance.capacities.items()}

    before = fills()
    while (move := balance.next_move(found.movables, locations.known, no_targets=found.no_targets)) is not None:
        balance.begin(move)
        moves.append(move)
    return PlannedBalance(tuple(moves), before, fills(), found.fixed_bytes, balance.is_even)


def _there(state: BalanceState | None) -> BalanceState:
    assert state is not None, "a change makes a balance"
    return state


async def _change(store: MetadataStore, change: Any) -> BalanceState | None:
    def decode(value: bytes | None) -> BalanceState | None:
        return None if value is None else decode_balance(value)

    def encode(state: BalanceState | None) -> bytes | None:
        return None if state is None else encode_balance(state)

    return await change_document(store, DOCUMENT, decode, encode, change)
