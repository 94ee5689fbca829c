"""The ledgers a bookie knows: recently used ones as objects, all others packed, and who waits for their LAC."""

import asyncio
from itertools import islice

from octavo.bookie.storage.checkpoint import Checkpointer
from octavo.bookie.storage.ledger_state import LedgerState, PackedStates, is_tombstone
from octavo.protocol.entries import header_of


class LedgerTable:
    """Ledger id -> state. A clean state not used for long is dropped from memory but for its packed bytes."""

    def __init__(self, packed: PackedStates, hot_max: int) -> None:
        self.doubt_stop: int | None = None
        """Of ledgers with lower ids something may have been lost here; None: of none (rule B4)."""
        self.deleting: set[int] = set()
        """Ledgers whose tombstone is not durable yet."""
        self._packed = packed
        self._hot: dict[int, LedgerState] = {}
        self._hot_max = hot_max
        self.checkpointer: Checkpointer | None = None
        """Knows which states may not be dropped; None while the storage opens."""

    def get(self, ledger_id: int) -> LedgerState:
        """The state of a ledger; a blank one for a ledger never heard of. Never drops a state that somebody changes:
        the object stays the only one of its ledger until it is clean and nobody waits on it."""
        state = self._hot.get(ledger_id)
        if state is None:
            encoded = self._packed.get(ledger_id)
            state = LedgerState(ledger_id) if encoded is None else LedgerState.decode(ledger_id, encoded)
            if len(self._hot) >= self._hot_max:
                self._evict()
            self._hot[ledger_id] = state
        return state

    def is_deleted(self, ledger_id: int) -> bool:
        state = self._hot.get(ledger_id)
        if state is not None:
            return state.deleted
        encoded = self._packed.get(ledger_id)
        return encoded is not None and is_tombstone(encoded)

    def is_gone(self, ledger_id: int) -> bool:
        """Whether the ledger is deleted, durably: what is left of it anywhere may go (rule B5)."""
        return self.is_deleted(ledger_id) and ledger_id not in self.deleting

    def in_doubt(self, ledger_id: int) -> bool:
        """Whether acknowledged entries, or the fence, of this ledger may have been lost here."""
        return self.doubt_stop is not None and ledger_id < self.doubt_stop

    def _evict(self) -> None:
        checkpointer = self.checkpointer
        if checkpointer is None:
            return
        for ledger_id in list(islice(self._hot, 8)):
            state = self._hot.pop(ledger_id)
            if (
                state.waiters
                or state.slow_adds is not None
                or ledger_id in checkpointer.dirty
                or ledger_id in checkpointer.committing_states
            ):
                self._hot[ledger_id] = state  # to the end, with those used last

    def ledger_ids(self) -> list[int]:
        """Every ledger known, ascending."""
        return sorted({*self._packed, *(ledger_id for ledger_id, state in self._hot.items() if is_known(state))})

    def live_ids(self) -> list[int]:
        """Every ledger known that is not deleted, ascending."""
        return [ledger_id for ledger_id in self.ledger_ids() if not self.is_deleted(ledger_id)]

    def count(self) -> int:
        """How many ledgers are known; those new since the last checkpoint may be missing."""
        return len(self._packed)

    def all_waiters(self) -> list["asyncio.Future[None]"]:
        return [waiter for state in self._hot.values() for waiter in state.waiters or ()]


def is_known(state: LedgerState) -> bool:
    """The bookie has heard of the ledger: from a writer, or from a fence."""
    return state.ledger_key is not None or state.fenced or state.deleted or state.highest_plus_one > 0


def add_waiter(state: LedgerState, above: int | None) -> "asyncio.Future[None]":
    """A future that is done once the ledger's LAC is higher than ``above`` or the ledger is fenced. May be
    cancelled."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    needed = 1 if above is None else above + 2
    if state.fenced or state.deleted or state.lac_plus_one >= needed:
        future.set_result(None)
        return future
    if state.waiters is None:
        state.waiters = {}
    state.waiters[future] = needed

    def forget(done: asyncio.Future[None]) -> None:
        if state.waiters is not None:
            state.waiters.pop(done, None)
            if not state.waiters:
                state.waiters = None

    future.add_done_callback(forget)
    return future


def wake_waiters(state: LedgerState) -> None:
    """The LAC has risen or the ledger has been fenced or deleted: tell those it concerns."""
    for future, needed in list((state.waiters or {}).items()):
        if (state.fenced or state.deleted or state.lac_plus_one >= needed) and not future.done():
            future.set_result(None)


def apply_explicit_lac(ledger: LedgerState, sealed: bytes, lac: int) -> bool:
    """Keep the explicit LAC if it is the highest so far."""
    if ledger.explicit_lac is not None and header_of(ledger.explicit_lac).entry_id >= lac:
        return False
    ledger.explicit_lac = sealed
    ledger.lac_plus_one = max(ledger.lac_plus_one, lac + 1)
    return True
