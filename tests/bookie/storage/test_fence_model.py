"""No fence is ever lost across garbage collection: every order of events, up to a length, on the real storage.

The states of one ledger on one bookie are explored breadth first, as in the model check (docs/model.md). An event is
applied by a storage on a file system in memory. ``collect`` deletes the ledger at any time, as if the metadata always
misled the collector, so that no decision of the collector can lose a fence. A state is what the storage answers, and
what it would answer after a power cut. Two paths that lead to the same state are continued once.

Checked in every state (rules B2, B4, B5 and F0): once a fence has been answered, no ordinary add is ever accepted; once
a key was named by an accepted add, no other key is ever accepted; an acknowledged entry is never absent, unless the
ledger counts as deleted; after a deletion was reversed, nothing is absent and no ordinary add is accepted.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import structlog
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.storage.ledger_state import LedgerState
from octavo.bookie.storage.storage import Storage
from octavo.protocol.errors import BookieInDoubtError, LedgerFencedError, NoSuchLedgerError, UnauthorizedError
from simulation.engine.patches import Patch, patch
from support.clusters.ledgers import LedgerScript
from support.disks.storage_model import DATA, Machine, new_states

SCRIPT = LedgerScript(7)
STRANGER = LedgerScript(7, password=b"another")
LENGTH_MAX = 5 + int(os.environ.get("OCTAVO_MORE_EVENTS", "0"))
"""Events of a path."""
REFUSALS = (BookieInDoubtError, LedgerFencedError, NoSuchLedgerError, UnauthorizedError)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


class Promises(NamedTuple):
    """What the bookie has told its clients so far."""

    fenced: bool = False
    key_pinned: bool = False
    acknowledged: frozenset[int] = frozenset()
    revived: bool = False


class View(NamedTuple):
    """What a storage answers about the ledger."""

    deleted: bool
    known: bool
    fenced: bool
    in_doubt: bool
    has_key: bool
    held: tuple[int, ...]
    unknown: bool
    """Whether it says of ids that it does not hold that they are unknown, not absent."""


class Host:
    """A bookie's storage, and what it has promised."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.promises = Promises()

    @property
    def storage(self) -> Storage:
        return self.machine.storage

    async def apply(self, event: str) -> bool:
        """Apply an event; False if it is refused or does nothing here. Checks what accepting it promises."""
        storage, ledger_id, promises = self.storage, SCRIPT.ledger_id, self.promises
        try:
            if event == "fence":
                await storage.writer.fence(ledger_id, SCRIPT.key)
                self.promises = promises._replace(fenced=True)
            elif event in {"add", "recovery add"}:
                entry_id = len(promises.acknowledged)
                recovery = event == "recovery add"
                await storage.writer.add(ledger_id, SCRIPT.key, [SCRIPT.entry(entry_id)], recovery=recovery)
                assert recovery or not promises.fenced, "an ordinary add was accepted after a fence"
                assert recovery or not promises.revived, "an ordinary add was accepted although the fence may be lost"
                self.promises = promises._replace(key_pinned=True, acknowledged=promises.acknowledged | {entry_id})
            elif event == "add of a stranger":
                await storage.writer.add(ledger_id, STRANGER.key, [STRANGER.entry(0)], recovery=True)
                assert not promises.key_pinned, "another key was accepted"
                return False  # from here on the ledger is the stranger's
            elif event == "collect":
                if ledger_id not in storage.ledgers.live_ids():
                    return False
                await storage.writer.delete(ledger_id)
            elif event == "revive":
                if not storage.ledgers.is_deleted(ledger_id):
                    return False
                await storage.writer.revive(ledger_id)
                self.promises = promises._replace(revived=True)
            elif event == "checkpoint":
                await storage.checkpoint()
            elif event == "compact":
                await storage.compact(1.0, RateLimiter(1e12))
                await storage.checkpoint()
                await storage.compact(1.0, RateLimiter(1e12))
            else:
                assert event == "power cut"
                await self.machine.crash()
        except REFUSALS:
            return False
        return True

    async def view(self) -> View:
        """What is answered now; checked against the promises."""
        storage, ledger_id, promises = self.storage, SCRIPT.ledger_id, self.promises
        if storage.ledgers.is_deleted(ledger_id):
            with pytest.raises(NoSuchLedgerError):
                storage.writer.add(ledger_id, SCRIPT.key, [SCRIPT.entry(9)], recovery=True)
            state = storage.ledgers.get(ledger_id)
            assert state.fenced or not promises.fenced, "the tombstone has no fence"
            assert state.ledger_key is not None or not promises.key_pinned, "the tombstone has no key"
            return View(True, True, state.fenced, state.in_doubt, state.ledger_key is not None, (), False)
        found = await storage.reader.read(ledger_id, 0, 9, entries_max=100, bytes_max=100_000)
        held = tuple(int.from_bytes(sealed[16:24], "big") for sealed in found.entries)
        unknown = {i for low, high in found.unknown for i in range(low, high + 1)}
        assert promises.acknowledged <= {*held, *unknown}, "an acknowledged entry is absent"
        assert not promises.revived or unknown | {*held} >= {*range(10)}, "something is absent after a revival"
        lac = storage.reader.last_add_confirmed(ledger_id)
        assert lac.fenced or not promises.fenced, "the fence is lost"
        has_key = storage.ledgers.get(ledger_id).ledger_key is not None
        assert has_key or not promises.key_pinned, "the key is lost"
        return View(False, lac.known, lac.fenced, lac.in_doubt, has_key, held, bool(unknown))


EVENTS = (
    "fence",
    "add",
    "recovery add",
    "add of a stranger",
    "collect",
    "revive",
    "checkpoint",
    "compact",
    "power cut",
)


async def start() -> Host:
    host = Host()
    await host.machine.open()
    return host


async def look(host: Host) -> tuple[Promises, View, View, tuple[str, ...]]:
    """What is answered before a loss of power and after it, with what decides what comes next."""
    now, names = await host.view(), host.machine.suffixes(DATA / "index")
    await host.machine.crash()
    return host.promises, now, await host.view(), names


async def explored() -> tuple[int, int]:
    """Check every path up to the length. The numbers of states, and of those in which the ledger counts as deleted."""
    states = deleted = 0
    async for _, (_promises, now, _after, _names) in new_states(start, look, EVENTS, LENGTH_MAX):
        states += 1
        deleted += now.deleted
    return states, deleted


async def test_no_order_of_fences_adds_collections_and_power_cuts_loses_a_fence() -> None:
    states, deleted = await explored()
    assert states > 40
    assert deleted > 10


def deletion_forgets_fence() -> Patch:
    @patch(LedgerState, "mark_deleted")
    def mark_deleted(original: Any, self: Any) -> None:
        original(self)
        self.fenced = False

    return mark_deleted


def deletion_forgets_key() -> Patch:
    @patch(LedgerState, "mark_deleted")
    def mark_deleted(original: Any, self: Any) -> None:
        original(self)
        self.ledger_key = None

    return mark_deleted


def revival_is_sure() -> Patch:
    @patch(LedgerState, "revive")
    def revive(_original: Any, self: Any) -> None:
        self.deleted = False

    return revive


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        (deletion_forgets_fence, "the tombstone has no fence"),
        (deletion_forgets_key, "the tombstone has no key"),
        (revival_is_sure, "absent after a revival|although the fence may be lost"),
    ],
)
async def test_canary_is_found(defect: Callable[[], Patch], message: str) -> None:
    put_back = defect()
    put_back.apply()
    try:
        with pytest.raises(AssertionError, match=message):
            await explored()
    finally:
        put_back.undo()
