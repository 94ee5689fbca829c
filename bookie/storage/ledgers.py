"""The ledgers a bookie knows: recently used ones as objects, all others packed, the requests that wait for their LAC,
and the locks of ledgers that are copied or given up."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import islice

from octavo.bookie.storage.damage import ID_LAST
from octavo.bookie.storage.ledger_state import (
    Follower,
    LedgerState,
    PackedStates,
    first_kept_in,
    is_tombstone,
    is_without_entries,
    may_be_stream,
    relieved_below_in,
)
from octavo.protocol.entries import header_of
from octavo.protocol.held_entries import Doubt
from octavo.protocol.places import place

_EVICTED_AT_ONCE = 8
"""States looked at when one must be evicted: enough that the table shrinks again after a burst."""


class LedgerTable:
    """Ledger id -> state. A state that has not been used for long and is durable is evicted: only its packed bytes stay
    in memory.

    A state that has changed is *dirty* until a checkpoint freezes it, and *committing* until that checkpoint is
    durable. Neither is evicted: its packed bytes are older than the object.
    """

    def __init__(self, packed: PackedStates, hot_max: int) -> None:
        self.doubt: Doubt | None = None
        """Of which ledgers something may have been lost here; None: of none, ever (rule B4)."""
        self.deleting: set[int] = set()
        """Ledgers that are being deleted or dropped: that is not durable yet."""
        self.trimming: dict[int, int] = {}
        """Ledgers that are being trimmed, and the first id that each keeps as far as that is durable."""
        self.relieving: dict[int, Sequence[tuple[int, int]]] = {}
        """Ranges whose copies are being removed (rule C11): what is added to them meanwhile is stored, also where it
        is still held."""
        self.dirty: dict[int, LedgerState] = {}
        self.committing: dict[int, LedgerState] = {}
        self._packed = packed
        self._hot: dict[int, LedgerState] = {}
        self._hot_max = hot_max

    def get(self, ledger_id: int) -> LedgerState:
        """The state of a ledger; a blank one for an unknown ledger. As long as a state is dirty, committing or
        waited on, every call returns the same object."""
        state = self._hot.get(ledger_id)
        if state is None:
            encoded = self._packed.get(ledger_id)
            state = LedgerState(ledger_id) if encoded is None else LedgerState.decode(ledger_id, encoded)
            if len(self._hot) >= self._hot_max:
                self._evict()
            self._hot[ledger_id] = state
        return state

    def freeze(self) -> dict[int, LedgerState]:
        """Begin a checkpoint: the dirty states become the committing ones, and are returned."""
        self.committing, self.dirty = self.dirty, {}
        return self.committing

    def pack(self, state: LedgerState) -> bytes:
        """Keep the packed bytes of a committing state; returns them."""
        encoded = state.encode()
        self._packed.put(state.ledger_id, encoded)
        return encoded

    def committed(self) -> None:
        """The checkpoint is durable."""
        self.committing = {}

    def is_deleted(self, ledger_id: int) -> bool:
        state = self._hot.get(ledger_id)
        if state is not None:
            return state.deleted
        encoded = self._packed.get(ledger_id)
        return encoded is not None and is_tombstone(encoded)

    def is_gone(self, ledger_id: int) -> bool:
        """Whether the ledger is deleted or dropped, durably: what is left of it anywhere may go (rules B5 and C8)."""
        if ledger_id in self.deleting:
            return False
        state = self._hot.get(ledger_id)
        if state is not None:
            return state.deleted or state.dropped
        encoded = self._packed.get(ledger_id)
        return encoded is not None and is_without_entries(encoded)

    def first_kept(self, ledger_id: int) -> int:
        """The first id that the ledger keeps, durably: what is left of it below, anywhere, may go (rule U5)."""
        durable = self.trimming.get(ledger_id)
        if durable is not None:
            return durable
        state = self._hot.get(ledger_id)
        if state is not None:
            return state.first_kept
        encoded = self._packed.get(ledger_id)
        return 0 if encoded is None else first_kept_in(encoded)

    def relieved_below(self, ledger_id: int) -> int:
        """The id below which entries of the ledger may have been given up (rule C11); 0: none were."""
        state = self._hot.get(ledger_id)
        if state is not None:
            return state.relieved_below
        encoded = self._packed.get(ledger_id)
        return 0 if encoded is None else relieved_below_in(encoded)

    def may_be_stream(self, ledger_id: int) -> bool:
        """Whether the ledger may be a stream, by what is known of it here. False for a deleted one."""
        state = self._hot.get(ledger_id)
        if state is not None:
            return state.may_be_stream and not state.deleted
        encoded = self._packed.get(ledger_id)
        return encoded is not None and may_be_stream(encoded) and not is_tombstone(encoded)

    def has_taken_part(self, ledger_id: int, term: int) -> bool:
        """Whether a writer of the ledger, or with a term one of that term, has added entries here."""
        state = self.get(ledger_id)
        return state.ledger_key is not None and state.highest_plus_one > (place(term, 0) if term else 0)

    def note_trimmed(self, ledger_id: int, first_kept: int) -> None:
        """A trim up to this id is durable now."""
        if self.get(ledger_id).first_kept > first_kept:
            self.trimming[ledger_id] = first_kept  # a later one is not
        else:
            self.trimming.pop(ledger_id, None)

    def is_below_floor(self, ledger: LedgerState, term: int) -> bool:
        """Whether the ledger's key or a fence of the term, or acknowledged entries of it, have or may have been lost
        here once: ordinary adds of it are refused for ever (rules B4, B5, D1 and T12)."""
        if ledger.in_doubt or ledger.dropped:
            return True
        return self.doubt is not None and not self.doubt.takes_adds(ledger.ledger_id, term)

    def privacy_is_lost(self, ledger: LedgerState) -> bool:
        """Whether something of the ledger is held here, and may be private without its state saying so: a ledger that
        existed when this bookie began to doubt. That it is sure of its entries since says nothing of the state (rule
        S3)."""
        doubt = self.doubt
        if doubt is None or ledger.private or ledger.public or ledger.ledger_id >= doubt.stop:
            return False
        return is_known(ledger)

    def unsure_from(self, ledger: LedgerState) -> int | None:
        """The first entry id of the ledger that this bookie must not deny, as it may have held it; None: none (rule
        D2)."""
        if ledger.in_doubt:
            return 0
        return None if self.doubt is None else self.doubt.unsure_from(ledger.ledger_id)

    def last_unsure(self, ledger: LedgerState) -> int:
        """The last entry id that this bookie must not deny, if it must not deny those from :meth:`unsure_from` on
        (rule T12)."""
        last = None if self.doubt is None or ledger.in_doubt else self.doubt.last_unsure(ledger.ledger_id)
        return ID_LAST if last is None else last

    def _evict(self) -> None:
        for ledger_id in list(islice(self._hot, _EVICTED_AT_ONCE)):
            state = self._hot.pop(ledger_id)
            if state.is_waited_on or ledger_id in self.dirty or ledger_id in self.committing:
                self._hot[ledger_id] = state  # to the end, with those used last

    @property
    def hot_count(self) -> int:
        """States held as objects."""
        return len(self._hot)

    def known_ids(self) -> list[int]:
        """Every ledger known, ascending."""
        return sorted({*self._packed, *(ledger_id for ledger_id, state in self._hot.items() if is_known(state))})

    def live_ids(self) -> list[int]:
        """Every ledger known that is not deleted, ascending."""
        return [ledger_id for ledger_id in self.known_ids() if not self.is_deleted(ledger_id)]

    def count(self) -> int:
        """How many ledgers are known; those new since the last checkpoint may be missing."""
        return len(self._packed)

    def all_waiters(self) -> list["asyncio.Future[None]"]:
        return [waiter for state in self._hot.values() for waiter in state.waiters or ()]


class LedgerLocks:
    """Locks by ledger id, taken to name this bookie as holding a ledger's copies, and to give them up (rule C1). A task
    that waits for one gets it in the order of arrival. Not reentrant."""

    def __init__(self) -> None:
        self._locks: dict[int, tuple[asyncio.Lock, int]] = {}
        """Each with the number of tasks that hold it or wait for it."""

    @contextlib.asynccontextmanager
    async def hold(self, ledger_id: int) -> AsyncIterator[None]:
        """Hold the ledger's lock inside the block."""
        lock, users = self._locks.get(ledger_id, (None, 0))
        if lock is None:
            lock = asyncio.Lock()
        self._locks[ledger_id] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            users = self._locks[ledger_id][1] - 1
            if users:
                self._locks[ledger_id] = lock, users
            else:
                del self._locks[ledger_id]

    def is_held(self, ledger_id: int) -> bool:
        """Whether a task holds the ledger's lock or waits for it."""
        return ledger_id in self._locks

    @property
    def count(self) -> int:
        """Ledgers whose lock is held or waited for."""
        return len(self._locks)


def is_known(state: LedgerState) -> bool:
    """Whether a writer or a fence has named the ledger to this bookie."""
    return state.ledger_key is not None or state.fenced or state.deleted or state.highest_plus_one > 0


def is_over(state: LedgerState, term: int) -> bool:
    """Whether this bookie refuses ordinary adds of the term, because it or a later one has been fenced (rule T7)."""
    return state.fenced and term <= state.fenced_term


def add_waiter(state: LedgerState, above: int | None, term: int) -> "asyncio.Future[None]":
    """A future that is done once the ledger's LAC is higher than ``above`` or the term is over. May be cancelled."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    needed = 1 if above is None else above + 2
    if is_over(state, term) or state.deleted or state.lac_plus_one >= needed:
        future.set_result(None)
        return future
    if state.waiters is None:
        state.waiters = {}
    state.waiters[future] = needed, term

    def remove(done: asyncio.Future[None]) -> None:
        if state.waiters is not None:
            state.waiters.pop(done, None)
            if not state.waiters:
                state.waiters = None

    future.add_done_callback(remove)
    return future


def wake_waiters(state: LedgerState) -> None:
    """Wake the requests that waited for what has happened: the LAC has risen, the ledger is deleted, or the term that
    they follow is over. Tell the followers of it."""
    state.tell_followers()
    for future, (needed, term) in list((state.waiters or {}).items()):
        over = state.fenced and term <= state.fenced_term
        if (over or state.deleted or state.lac_plus_one >= needed) and not future.done():
            future.set_result(None)


def note_next_entries(states: Iterable[LedgerState], entry_ids: Iterable[int], lacs_plus_one: Iterable[int]) -> None:
    """Each ledger holds an entry more, above all others of it: its id and the LAC in it."""
    for state, entry_id, lac_plus_one in zip(states, entry_ids, lacs_plus_one, strict=True):
        state.highest_plus_one = entry_id + 1
        if lac_plus_one > state.lac_plus_one:
            state.lac_plus_one = lac_plus_one
            if state.waiters is not None:
                wake_waiters(state)
        if state.followers is not None:
            state.tell_followers()


def add_follower(state: LedgerState, follower: Follower) -> None:
    """The follower is told of each change from now on."""
    if state.followers is None:
        state.followers = {}
    state.followers[follower] = None


def remove_follower(state: LedgerState, follower: Follower) -> None:
    """It is told no more."""
    if state.followers is not None:
        state.followers.pop(follower, None)
        if not state.followers:
            state.followers = None


def apply_explicit_lac(ledger: LedgerState, sealed: bytes, lac: int) -> bool:
    """Keep the explicit LAC if it is the highest so far."""
    if ledger.explicit_lac is not None and header_of(ledger.explicit_lac).entry_id >= lac:
        return False
    ledger.explicit_lac = sealed
    ledger.lac_plus_one = max(ledger.lac_plus_one, lac + 1)
    return True
