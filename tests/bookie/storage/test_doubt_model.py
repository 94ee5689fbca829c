"""Rule T12: a bookie that lost its disks, and has learnt the term of a stream, takes adds of later terms, denies only
entries of later terms, and never forgets what it answered.

As in ``test_term_model``, the states of one stream on one bookie are explored breadth first, on the real storage on a
file system in memory. Terms are opened elsewhere, while this bookie hears of it early, late or never. Its disks are
lost again and again; each time it may read the root of the stream, and note the term that it has read, with anything
in between. Fences and writers are as late as a network makes them.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import structlog
from octavo.bookie.storage.ledgers import LedgerTable
from octavo.bookie.storage.manifest import DOUBT_OF_EVERY_LEDGER, EMPTY, encode_manifest
from octavo.bookie.storage.storage import Storage
from octavo.bookie.storage.writes import EntryWriter
from octavo.protocol.errors import BookieInDoubtError, TermOverError
from octavo.protocol.held_entries import Doubt
from octavo.protocol.places import place, term_of
from simulation.engine.patches import Patch, patch
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.faulty_filesystem import MemoryFileSystem
from support.disks.storage_model import DATA, Machine, new_states

SCRIPT = LedgerScript(7)
LENGTH_MAX = 5 + int(os.environ.get("OCTAVO_MORE_EVENTS", "0"))
"""Events of a path, which begins with lost disks."""
TERMS = (1, 2, 3)
STOP = 50
"""Ledgers below it existed when the doubt began."""


class Facts(NamedTuple):
    """What is true elsewhere, and what the bookie has answered in all its lives."""

    root: int = 1
    """The term of the stream."""
    read: int | None = None
    """What the bookie has read of it, since its disks were lost, and has not noted yet."""
    floor: int | None = None
    """What it has noted since its disks were lost."""
    over: int = 0
    """The highest term of which it has answered a fence."""
    acknowledged: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()
    """Those of them that were lost with its disks."""


class View(NamedTuple):
    """What the storage answers about the stream, by term."""

    held: tuple[int, ...]
    unknown: tuple[bool, ...]
    in_doubt: tuple[bool, ...]
    over: tuple[bool, ...]


class Host:
    """A bookie's storage on its disk, in doubt."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.facts = Facts()
        self.heard_over = 0
        """The highest term of which a fence has been answered since the disks were lost."""

    @property
    def storage(self) -> Storage:
        return self.machine.storage

    async def lose_disks(self) -> None:
        """As ``octavo bookie reset-identity`` leaves the directories."""
        self.machine.filesystem = MemoryFileSystem()
        manifest = encode_manifest(EMPTY._replace(doubt=DOUBT_OF_EVERY_LEDGER))
        self.machine.filesystem.set_content(DATA / "manifest", manifest)
        await self.machine.open()
        await self.storage.limit_doubt(STOP)
        self.heard_over = 0

    async def apply(self, event: str) -> bool:
        """Apply an event; False if it cannot happen, is refused, or changes nothing."""
        what, _, number = event.partition(" ")
        if what == "fence":
            return await self._fence(int(number))
        if what == "add":
            return await self._add(int(number))
        facts = self.facts
        if event == "open a term" and facts.root < max(TERMS):
            self.facts = facts._replace(root=facts.root + 1)
        elif event == "read the root":
            self.facts = facts._replace(read=facts.root)
        elif event == "note the term" and facts.read is not None:
            await self.storage.narrow_doubt(0, {}, {SCRIPT.ledger_id: facts.read})
            self.facts = facts._replace(read=None, floor=facts.read if facts.floor is None else facts.floor)
        elif event == "lose the disks":
            await self.storage.close()
            await self.lose_disks()
            self.facts = facts._replace(read=None, floor=None, lost=facts.acknowledged)
        elif event == "power cut":
            await self.machine.crash()
        elif event == "checkpoint":
            await self.storage.checkpoint()
        else:
            return False
        return True

    async def _fence(self, term: int) -> bool:
        facts = self.facts
        if term > facts.root:
            return False  # rule T2: a term that is fenced was open
        await self.storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key, term)
        self.heard_over = max(self.heard_over, term)
        self.facts = facts._replace(over=max(facts.over, term))
        return True

    async def _add(self, term: int) -> bool:
        facts = self.facts
        if term > facts.root:
            return False  # rule T1: nothing of a term is sent before it is open
        entry_id = place(term, 0)
        takes = facts.floor is not None and term > max(facts.floor, self.heard_over)
        try:
            entry = SCRIPT.entry(entry_id)
            await self.storage.writer.add(SCRIPT.ledger_id, SCRIPT.key, [entry], recovery=False, term=term)
        except (BookieInDoubtError, TermOverError):
            assert not takes, f"an add of term {term} above the floor {facts.floor} was refused"
            return False
        assert term > facts.over, f"an add of term {term} was answered after a fence of {facts.over}"
        assert takes, f"an add of term {term} was taken in doubt"
        self.facts = facts._replace(acknowledged=facts.acknowledged | {entry_id}, lost=facts.lost - {entry_id})
        return True

    async def view(self) -> View:
        """What is answered now; checked against the facts."""
        reader, facts = self.storage.reader, self.facts
        held: tuple[int, ...] = ()
        unknown, in_doubt, over = [], [], []
        for term in TERMS:
            first, last = place(term, 0), place(term, 9)
            found = await reader.read(SCRIPT.ledger_id, first, last, entries_max=10, bytes_max=10_000)
            missing = await reader.missing(SCRIPT.ledger_id, first, last)
            assert bool(missing.unknown) == bool(found.unknown)
            held += tuple(ids_of(found.entries))
            hidden = {entry_id for low, high in found.unknown for entry_id in range(low, high + 1)}
            mine = {entry_id for entry_id in facts.acknowledged if term_of(entry_id) == term}
            assert mine <= hidden | set(held), "an acknowledged entry is denied"
            assert facts.floor is None or term <= facts.floor or not hidden, "an entry above the floor is unknown"
            view = reader.last_add_confirmed(SCRIPT.ledger_id, term)
            assert view.fenced == (term <= self.heard_over)
            assert view.in_doubt == bool(hidden)
            unknown.append(bool(hidden))
            in_doubt.append(view.in_doubt)
            over.append(view.fenced)
        assert facts.acknowledged - facts.lost <= set(held), "an acknowledged entry is gone"
        with pytest.raises(BookieInDoubtError):
            await reader.list_entries(SCRIPT.ledger_id)
        return View(held, tuple(unknown), tuple(in_doubt), tuple(over))


EVENTS = (
    "open a term",
    "fence 1",
    "fence 2",
    *(f"add {term}" for term in TERMS),
    "read the root",
    "note the term",
    "lose the disks",
    "power cut",
    "checkpoint",
)


FEW_EVENTS = (("open a term", "fence 2", "add 2", "read the root", "note the term", "lose the disks"), 8)
"""For longer paths, with their length."""


async def start() -> Host:
    host = Host()
    await host.lose_disks()
    return host


async def look(host: Host) -> tuple[Facts, View, View]:
    """What is answered before a loss of power and after it."""
    before, now = host.facts, await host.view()
    await host.machine.crash()
    return before, now, await host.view()


async def explored(events: Sequence[str] = EVENTS, length_max: int = LENGTH_MAX) -> tuple[int, int]:
    """Check every path of these events up to the length. The numbers of states, and of those in which an add was
    taken."""
    states = taken = 0
    async for _, (before, _now, _after) in new_states(start, look, events, length_max):
        states += 1
        taken += bool(before.acknowledged)
    return states, taken


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


async def test_no_order_of_terms_fences_and_lost_disks_makes_the_bookie_forget_or_deny_what_it_answered() -> None:
    states, taken = await explored()
    assert states > 80
    assert taken > 5
    states, taken = await explored(*FEW_EVENTS)
    assert states > 80
    assert taken > 20


def fence_ends_doubt() -> Patch:
    """A fence of a takeover that was delayed says nothing of later ones that the bookie has lost."""

    @patch(EntryWriter, "fence")
    def fence(original: Any, self: Any, ledger_id: Any, key: bytes, term: int = 0) -> Any:
        self._ledgers.doubt = self._ledgers.doubt.with_term_floors({int(ledger_id): term})
        return original(self, ledger_id, key, term)

    return fence


def own_term_is_above_the_floor() -> Patch:
    @patch(Doubt, "takes_adds")
    def takes_adds(original: Any, self: Any, ledger_id: int, term: int) -> Any:
        return original(self, ledger_id, term) or self.term_floors.get(ledger_id) == term

    return takes_adds


def doubt_ends_below_the_floor() -> Patch:
    @patch(Doubt, "last_unsure")
    def last_unsure(original: Any, self: Any, ledger_id: int) -> Any:
        last = original(self, ledger_id)
        return None if last is None else place(term_of(last), 0) - 1

    return last_unsure


def any_floor_will_do() -> Patch:
    """The term was read before the disks were lost."""

    @patch(Doubt, "with_term_floors")
    def with_term_floors(original: Any, self: Any, floors: Any) -> Any:
        return original(self, dict.fromkeys(floors, 1))

    return with_term_floors


def doubt_hides_later_terms() -> Patch:
    @patch(Doubt, "last_unsure")
    def last_unsure(_original: Any, _self: Any, _ledger_id: int) -> None:
        return None

    return last_unsure


def floor_is_lost_by_a_power_cut() -> Patch:
    @patch(Storage, "_change_doubt")
    async def change_doubt(_original: Any, self: Any, doubt: Doubt) -> None:
        if doubt.term_floors:
            self.ledgers.doubt = doubt
        else:
            await _original(self, doubt)

    return change_doubt


def floor_rises() -> Patch:
    @patch(LedgerTable, "is_below_floor")
    def is_below_floor(_original: Any, self: Any, ledger: Any, term: int) -> bool:
        return bool(_original(self, ledger, term) or term <= ledger.highest_plus_one >> 35)

    return is_below_floor


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        (fence_ends_doubt, "was taken in doubt|answered after a fence"),
        (own_term_is_above_the_floor, "was taken in doubt|answered after a fence"),
        (doubt_ends_below_the_floor, "an acknowledged entry is denied"),
        (any_floor_will_do, "was taken in doubt|answered after a fence"),
        (doubt_hides_later_terms, "above the floor is unknown"),
        (floor_is_lost_by_a_power_cut, "above the floor is unknown|was refused"),
        (floor_rises, "was refused"),
    ],
)
async def test_canary_is_found(defect: Callable[[], Patch], message: str) -> None:
    put_back = defect()
    put_back.apply()
    try:
        with pytest.raises(AssertionError, match=message):
            await explored(*(FEW_EVENTS if defect is doubt_ends_below_the_floor else (EVENTS, LENGTH_MAX)))
    finally:
        put_back.undo()
