"""What operators ask of a balance (rule A14)."""

from collections.abc import AsyncIterator

import pytest
from octavo.metadata import MetadataStore
from octavo.metadata.cluster.repair_states import Condition
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.repair.base.balance_document import Phase
from octavo.repair.operate import operators
from octavo.repair.operate.balance_status import balance_fields, read_balance
from octavo.repair.operate.balancing import (
    ask_for_balance,
    plan_balance,
    stop_balance,
)
from octavo.repair.operate.operators import RepairRefusedError
from support.metadata.ledger_metadata import fragment, open_ledger
from support.metadata.metadata_clusters import cookie, registration

ABLE = {"log_bytes": 0, "free_bytes": 10_000_000, "repair_balance": True}
FACTS = dict.fromkeys("abcd", ABLE)


@pytest.fixture
async def store() -> AsyncIterator[MetadataStore]:
    async with open_memory_store(MemoryServer()) as opened:
        for name in "abcd":
            await opened.create_cookie(cookie(name))
            await opened.register_bookie(registration(name))
        yield opened


async def new_ledger(store: MetadataStore, names: str = "abc", *, closed: bool = True) -> LedgerId:
    ledger_id = await store.allocate_ledger_id()
    metadata = open_ledger(ledger_id, fragment(0, names))
    await store.create_ledger(metadata.closed(EntryId(9), 100_000) if closed else metadata)
    return ledger_id


async def test_asking_twice_begins_one_balance_and_each_balance_has_a_moment_of_its_own(store: MetadataStore) -> None:
    first = await ask_for_balance(store, "a", FACTS, now_ms=5)
    assert (first.phase, first.asked_at_ms) == (Phase.ASKED, 5)
    assert await ask_for_balance(store, "a", FACTS, now_ms=9) == first
    stopped = await stop_balance(store)
    assert (stopped.phase, stopped.reason) == (Phase.STOPPED, "an operator has stopped it")
    assert (await ask_for_balance(store, None, {}, now_ms=4)).asked_at_ms == 6, "a clock that was set back"


async def test_an_auditor_that_cannot_balance_is_named(store: MetadataStore) -> None:
    older = {"a": {"log_bytes": 0, "free_bytes": 5}, "b": ABLE}
    with pytest.raises(RepairRefusedError, match="bookie a, the auditor, is of a version that cannot balance"):
        await ask_for_balance(store, "a", older, now_ms=5)
    assert await read_balance(store) is None
    assert (await ask_for_balance(store, "b", older, now_ms=5)).is_wanted


async def test_what_is_not_under_way_cannot_be_stopped(store: MetadataStore) -> None:
    with pytest.raises(RepairRefusedError, match="no balance is under way"):
        await stop_balance(store)
    await ask_for_balance(store, None, {}, now_ms=5)
    await stop_balance(store)
    with pytest.raises(RepairRefusedError, match="no balance is under way"):
        await stop_balance(store)


async def test_the_plan_shows_all_moves_and_changes_nothing(store: MetadataStore) -> None:
    for _ in range(12):
        await new_ledger(store)
    opened = await new_ledger(store, closed=False)
    plan = await plan_balance(store, FACTS)
    assert len(plan.moves) == 9
    assert plan.is_even
    assert {move.target for move in plan.moves} == {"d"}
    assert opened not in {move.ledger_id for move in plan.moves}
    assert plan.before[BookieId("d")].held_bytes == 0
    assert plan.after[BookieId("d")].held_bytes == plan.after[BookieId("a")].held_bytes
    assert await read_balance(store) is None
    assert (await plan_balance(store, FACTS)).moves == plan.moves, "it leaves nothing to chance"


async def test_the_plan_leaves_out_bookies_with_a_condition_and_those_that_do_not_answer(store: MetadataStore) -> None:
    for _ in range(12):
        await new_ledger(store)
    await operators.hold(store, "d", seconds=60.0, reason="", now_ms=0)
    assert (await plan_balance(store, FACTS)).moves == ()
    assert (await operators.read_states(store)).condition_of(BookieId("d")) is Condition.HELD
    await operators.release(store, "d", now_ms=0)
    silent = await plan_balance(store, dict.fromkeys("abc", ABLE))
    assert (silent.moves, set(silent.before)) == ((), {"a", "b", "c"})
    older = await plan_balance(store, {**FACTS, "d": {"log_bytes": 0, "free_bytes": 10_000_000}})
    assert (older.moves, older.is_even) == ((), False)


async def test_the_status_has_the_balance(store: MetadataStore) -> None:
    assert balance_fields(await read_balance(store)) is None
    await ask_for_balance(store, None, {}, now_ms=5000)
    assert balance_fields(await read_balance(store)) == {
        "phase": "asked", "asked_by": "operator", "asked_at": 5.0, "reason": "", "moved": 0, "moved_bytes": 0,
        "failed": 0, "under_way": 0, "under_way_bytes": 0, "bookies": [],
    }  # fmt: skip
