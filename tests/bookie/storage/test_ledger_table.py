"""The table of ledger states: what is evicted, and what never is."""

import asyncio
from collections import deque

from octavo.bookie.storage.ledger_state import PackedStates
from octavo.bookie.storage.ledgers import LedgerTable, add_follower, add_waiter, remove_follower

HOT_MAX = 4


def crowd(table: LedgerTable, start: int) -> None:
    """Ask for so many other ledgers that every state that may be evicted is."""
    for ledger_id in range(start, start + 20 * HOT_MAX):
        table.get(ledger_id)


def test_a_state_is_the_same_object_from_its_change_until_its_checkpoint_is_durable() -> None:
    table = LedgerTable(PackedStates(), HOT_MAX)
    fenced = table.get(1)
    fenced.fenced = True
    table.dirty[1] = fenced
    crowd(table, 100)
    assert table.get(1) is fenced
    taken = table.freeze()
    assert taken == {1: fenced}
    crowd(table, 300)
    assert table.get(1) is fenced, "the checkpoint has taken it, its packed bytes are older"
    table.pack(fenced)
    crowd(table, 500)
    assert table.get(1) is fenced
    table.committed()
    crowd(table, 700)
    found = table.get(1)
    assert found is not fenced
    assert found.fenced


def test_a_state_that_changes_during_its_checkpoint_is_kept_for_the_next() -> None:
    table = LedgerTable(PackedStates(), HOT_MAX)
    state = table.get(1)
    state.highest_plus_one = 5
    table.dirty[1] = state
    table.pack(table.freeze()[1])
    state.fenced = True
    table.dirty[1] = state
    table.committed()
    crowd(table, 100)
    assert table.get(1) is state


class _Follower:
    def moved(self) -> None:
        """Nothing is pushed here."""


async def test_a_state_that_is_waited_for_or_followed_is_kept_though_nothing_of_it_has_changed() -> None:
    table = LedgerTable(PackedStates(), HOT_MAX)
    adding, polled, followed, follower = table.get(1), table.get(2), table.get(3), _Follower()
    add_follower(followed, follower)
    adding.slow_adds = deque(["an add that waits for a look-up"])
    polling = add_waiter(polled, 1, 0)
    crowd(table, 100)
    assert (table.get(1) is adding, table.get(2) is polled, table.get(3) is followed) == (True, True, True)
    remove_follower(followed, follower)
    adding.slow_adds = None
    polling.cancel()
    await asyncio.sleep(0)
    crowd(table, 300)
    assert (table.get(1) is adding, table.get(2) is polled, table.get(3) is followed) == (False, False, False)


def test_a_burst_of_states_is_evicted_once_they_are_durable() -> None:
    table = LedgerTable(PackedStates(), HOT_MAX)
    for ledger_id in range(200):
        table.dirty[ledger_id] = table.get(ledger_id)
    assert table.hot_count == 200
    for state in table.freeze().values():
        table.pack(state)
    table.committed()
    crowd(table, 1000)
    assert table.hot_count <= 2 * HOT_MAX
