"""Looks at all ledgers and bookies before copies are moved: how much each bookie holds, and what it can give up."""

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from typing import Any

from octavo.metadata.cluster.registration import BookieRegistration, BookieState
from octavo.metadata.cluster.repair_states import RepairStates
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.metadata.updates.paging import parts_of
from octavo.protocol.errors import MetadataError, MetadataUnavailableError, NoSuchLedgerError
from octavo.protocol.ids import BookieId
from octavo.protocol.light_dataclass import dataclass
from octavo.repair.base.balance import Balance, Movable, Movables, bytes_of_members, ensembles_of
from octavo.repair.base.read_metadata import each_ledger
from octavo.repair.base.unreadable import log_unreadable

FACT = "repair_balance"
"""The fact that a bookie shows in INFO if it can take a place for the sake of balance (rule A14)."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The result."""

    balance: Balance
    movables: Movables
    fixed_bytes: int
    """Held in ledgers and streams that do not move, because their bookies would give nothing back (rule C8)."""
    no_targets: frozenset[BookieId]
    """Bookies that take part and cannot take a place: read-only ones, those of older versions, those without repair."""


async def survey(
    store: MetadataStore,
    registrations: Mapping[BookieId, BookieRegistration],
    states: RepairStates,
    facts: Mapping[BookieId, Mapping[str, Any]],
) -> Survey:
    """Read the metadata of all ledgers. ``facts``: what bookies say of themselves; one that says nothing takes no part,
    and neither does one with a condition. A ledger that cannot be understood is left out. Raises
    :class:`MetadataUnavailableError`."""
    capacities = {
        name: capacity
        for name in sorted(registrations)
        if name not in states.bookies and (capacity := _capacity(facts.get(name, {}))) > 0
    }
    balance, movables, fixed = Balance(capacities, {}), Movables(), 0
    async with contextlib.aclosing(each_ledger(store, log_unreadable)) as ledgers:
        async for metadata in ledgers:
            parts = await parts_read(store, metadata)
            sizes = bytes_of_parts(parts)
            for name, size in sizes.items():
                balance.held[name] = balance.held.get(name, 0) + size
            if may_move(metadata, parts, capacities):
                movables.add(Movable(metadata.ledger_id, sizes, ensembles_of(parts)))
            else:
                fixed += sum(sizes.values())
            await asyncio.sleep(0)
    no_targets = frozenset(
        name for name in capacities
        if registrations[name].state is not BookieState.WRITABLE or not facts[name].get(FACT, False)
    )  # fmt: skip
    return Survey(balance, movables, fixed, no_targets)


def may_move(metadata: EitherMetadata, parts: Collection[EitherMetadata], takes_part: Collection[BookieId]) -> bool:
    """Whether a ledger may be moved: it is CLOSED, so that its bookies give back what they hold (rule C8), and it needs
    no repair: none of its members is away, leaves or doubts, and it owes no copies."""
    if not parts or not metadata.is_closed or any(part.debts for part in parts):
        return False
    return all(name in takes_part for part in parts for name in part.members)


def bytes_of_parts(parts: Collection[EitherMetadata]) -> dict[BookieId, int]:
    """The bytes that each bookie holds of a ledger."""
    sizes: dict[BookieId, int] = {}
    for part in parts:
        for name, size in bytes_of_members(part).items():
            sizes[name] = sizes.get(name, 0) + size
    return sizes


async def parts_read(store: MetadataStore, metadata: EitherMetadata) -> list[EitherMetadata]:
    """The parts of a ledger; none of one that was deleted just now, or that cannot be understood. Raises
    :class:`MetadataUnavailableError`."""
    try:
        async with contextlib.aclosing(parts_of(store, metadata)) as parts:
            return [part async for part in parts]
    except MetadataUnavailableError:
        raise
    except (NoSuchLedgerError, MetadataError):
        return []


def _capacity(facts: Mapping[str, Any]) -> int:
    """Bytes for entries: those in its entry logs, and those that are free, not what else lies on the disk."""
    used, free = facts.get("log_bytes"), facts.get("free_bytes")
    return used + free if isinstance(used, int) and isinstance(free, int) else 0
