"""Rule C11: what was given up is never denied, nothing else goes, and what is added again is held.

As in ``test_trim_model``, the states of one stream on one bookie are explored breadth first, on the real storage on a
file system in memory. Adds of four places in two terms come early, late and again; ranges of them are given up in any
order, again, with entries that are not in the index yet, cut off by a power cut at any point, and while adds come;
between them come checkpoints, compactions, power cuts, and a deletion that turns out to be a mistake.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import structlog
from octavo.bookie.storage.index_merger import IndexMerger
from octavo.bookie.storage.ledger_reader import LedgerReader
from octavo.bookie.storage.ledger_state import LedgerState
from octavo.bookie.storage.relief import Relief
from octavo.bookie.storage.storage import Storage
from octavo.protocol.errors import BookieInDoubtError, NoSuchLedgerError
from octavo.protocol.places import place
from simulation.engine.patches import Patch, patch
from support.clusters.ledgers import LedgerScript
from support.disks.storage_model import Machine, compact_all, delete_and_revive, new_states, read_through

SCRIPT = LedgerScript(7)
PLACES = (place(1, 0), place(1, 1), place(2, 0), place(2, 1))
END = place(2, 2)
RANGES = {"first": (0, 0), "term 1": (0, 1), "middle": (1, 2)}
"""By name, from the index of one place to that of another."""


class Promises(NamedTuple):
    """What has been sent to the bookie, and what it has answered."""

    marked: int = 0
    """The highest mark that has been answered."""
    mark_sent: int = 0
    acknowledged: frozenset[int] = frozenset()
    """At any time."""
    held: frozenset[int] = frozenset()
    """Acknowledged, and not given up since."""
    revived: bool = False


class View(NamedTuple):
    """What a storage answers about the stream."""

    deleted: bool
    held: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()


class Host:
    """A bookie's storage, and what it has promised."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.promises = Promises()
        self.removed = 0
        self.under_way = 0
        """Adds that came while a range was being removed."""

    @property
    def storage(self) -> Storage:
        return self.machine.storage

    async def apply(self, event: str) -> bool:
        """Apply an event; False if it is refused or does nothing here."""
        what, _, about = event.partition(": ")
        try:
            if what == "add":
                await self._add([PLACES[int(one)] for one in about.split()])
            elif about in RANGES:
                return await self._give_up(what, RANGES[about])
            else:
                return await self._of_the_bookie(event)
        except NoSuchLedgerError:
            return False
        return True

    async def _add(self, ids: Sequence[int]) -> None:
        await self.storage.writer.add(SCRIPT.ledger_id, SCRIPT.key, SCRIPT.entries(ids), recovery=True)
        self.promises = self.promises._replace(
            acknowledged=self.promises.acknowledged | set(ids), held=self.promises.held | set(ids)
        )

    async def _give_up(self, what: str, indexes: tuple[int, int]) -> bool:
        first, last = PLACES[indexes[0]], PLACES[indexes[1]]
        if what != "give up at once":
            await self.storage.checkpoint()
        mark = self.storage.relief.mark(SCRIPT.ledger_id, last + 1)
        self.promises = self.promises._replace(mark_sent=max(self.promises.mark_sent, last + 1))
        if what == "mark and power cut":
            await self.machine.crash()
            return True
        await mark
        self.promises = self.promises._replace(marked=max(self.promises.marked, last + 1))
        if what == "mark":
            return True
        gone = {one for one in PLACES if first <= one <= last}
        self.promises = self.promises._replace(held=self.promises.held - gone)
        removal = asyncio.ensure_future(self.storage.relief.remove({SCRIPT.ledger_id: [(first, last)]}))
        if what == "give up and power cut":
            await asyncio.sleep(0)
            await self.machine.crash()
            await asyncio.gather(removal, return_exceptions=True)
            return True
        if what.startswith("give up during an add"):
            for _ in range(int(what.rpartition(" ")[2])):
                await asyncio.sleep(0)
            # An add that is decided before the removal has begun is made before it, also if it is answered later.
            begun = removal.done() or SCRIPT.ledger_id in self.storage.ledgers.relieving
            adding = asyncio.ensure_future(self._add([first]))
            await removal
            await adding
            self.under_way += begun
            if not begun:
                self.promises = self.promises._replace(held=self.promises.held - gone)
            return True
        if what.startswith("give up after an add"):
            removal.cancel()
            await asyncio.gather(removal, return_exceptions=True)
            adding = asyncio.ensure_future(self._add([first]))
            for _ in range(int(what.rpartition(" ")[2])):
                await asyncio.sleep(0)
            await self.storage.relief.remove({SCRIPT.ledger_id: [(first, last)]})
            await adding
            # It may have been decided before the range was given up: then that came after it.
            self.promises = self.promises._replace(held=self.promises.held - gone)
            return True
        if await removal:
            missing = (await self.storage.reader.not_held(SCRIPT.ledger_id, first, last)).missing
            assert missing == ((first, last),), "what was given up takes space"
            self.removed += 1
        return True

    async def _of_the_bookie(self, event: str) -> bool:
        storage, ledger_id = self.storage, SCRIPT.ledger_id
        if event == "delete and revive":
            if not await delete_and_revive(storage, ledger_id):
                return False
            self.promises = self.promises._replace(revived=True)
        elif event == "checkpoint":
            await storage.checkpoint()
        elif event == "compaction":
            await compact_all(storage)
        else:
            assert event == "power cut"
            await self.machine.crash()
        return True

    async def view(self) -> View:
        """What is answered now; checked against the promises."""
        reader, ledger_id, promises = self.storage.reader, SCRIPT.ledger_id, self.promises
        below = self.storage.ledgers.relieved_below(ledger_id)
        assert promises.marked <= below <= promises.mark_sent, "a mark was lost"
        held: list[int] = []
        unknown: list[int] = []
        for entry_id in PLACES:
            found = await reader.read(ledger_id, entry_id, entry_id, entries_max=1, bytes_max=10_000)
            assert found.entries in ([], [SCRIPT.entry(entry_id)])
            if found.entries:
                held.append(entry_id)
            elif found.unknown:
                unknown.append(entry_id)
            self._check_one(entry_id, below, bool(found.entries), bool(found.unknown))
        together, hidden = await read_through(self.storage, ledger_id, PLACES, END)
        assert together == held
        assert hidden == unknown, "an entry that was given up is denied by a long read"
        lacking = [one for one in PLACES if one not in held]
        denied_ids = [one for one in lacking if one not in unknown]
        for look, denied in ((reader.missing, denied_ids), (reader.not_held, lacking)):
            holdings = await look(ledger_id, 0, END)
            said = [one for low, high in holdings.missing for one in PLACES if low <= one <= high]
            assert said == denied, "an entry that was given up is among those that are missing"
        if not promises.revived:
            if below:
                with pytest.raises(BookieInDoubtError):
                    await reader.list_entries(ledger_id, below - 1, END)
            listed = await reader.list_entries(ledger_id, below, END)
            above = [one for low, high in listed for one in range(low, high + 1)]
            assert above == [one for one in held if one >= below]
        return View(False, tuple(held), tuple(unknown))

    def _check_one(self, entry_id: int, below: int, held: bool, unknown: bool) -> None:
        promises = self.promises
        if entry_id in promises.acknowledged:
            assert held or unknown, "an acknowledged entry is denied"
        if promises.revived:
            return
        if entry_id in promises.held:
            assert held, "an entry that was not given up is gone"
        if entry_id >= below:
            assert not unknown, "an entry above the mark is unknown"


EVENTS = (
    *(f"add: {ids}" for ids in ("0", "0 1", "2 3", "1")),
    *(f"give up: {name}" for name in RANGES),
    "give up at once: term 1",
    "mark: middle",
    "mark and power cut: first",
    "give up and power cut: term 1",
    *(f"give up during an add {turns}: term 1" for turns in (0, 1, 2, 4, 7)),
    *(f"give up after an add {turns}: term 1" for turns in (1, 2, 4)),
    "delete and revive",
    "checkpoint",
    "compaction",
    "power cut",
)
SHORT = (EVENTS, 2)
FEW_EVENTS = (
    (
        "add: 0 1",
        "add: 2 3",
        "give up: middle",
        "give up: first",
        "give up during an add 2: term 1",
        "give up and power cut: term 1",
        "compaction",
        "power cut",
    ),
    3,
)
"""One of each kind, for longer paths, with their length."""


async def start() -> Host:
    host = Host()
    await host.machine.open()
    return host


async def look(host: Host) -> tuple[Promises, View, tuple[str, ...], View]:
    """What is answered before a loss of power and after it, with what decides what comes next."""
    now, before, names = await host.view(), host.promises, host.machine.suffixes()
    await host.machine.crash()
    return before, now, names, await host.view()


async def explored(events: Sequence[str], length_max: int) -> tuple[int, int, int]:
    """Check every path of these events up to the length. The numbers of states, of those in which something was given
    up and something is held, and of adds that came during a removal."""
    states = given_up = under_way = 0
    async for host, (_before, now, _names, _after) in new_states(start, look, events, length_max):
        states += 1
        under_way += host.under_way
        given_up += bool(host.removed and now.held and now.unknown)
    return states, given_up, under_way


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


async def test_no_order_of_adds_reliefs_and_power_cuts_denies_what_was_given_up_or_loses_what_was_not() -> None:
    states, _, under_way = await explored(*SHORT)
    assert states > 50
    assert under_way > 5
    states, given_up, under_way = await explored(*FEW_EVENTS)
    assert states > 50
    assert given_up > 10
    assert under_way > 5


def mark_is_not_journaled() -> Sequence[Patch]:
    @patch(Relief, "mark")
    def mark(_original: Any, self: Any, ledger_id: Any, below: int) -> Any:
        self._ledgers.get(ledger_id).relieve(below)
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(None)
        return answer

    return (mark,)


def mark_is_answered_at_once() -> Sequence[Patch]:
    @patch(Relief, "mark")
    def mark(original: Any, self: Any, ledger_id: Any, below: int) -> Any:
        original(self, ledger_id, below)
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(None)
        return answer

    return (mark,)


def mark_goes_back() -> Sequence[Patch]:
    @patch(LedgerState, "relieve")
    def relieve(_original: Any, self: Any, below: int) -> bool:
        self.relieved_below = below
        return True

    return (relieve,)


def checkpoint_forgets_the_mark() -> Sequence[Patch]:
    @patch(LedgerState, "encode")
    def encode(original: Any, self: Any) -> Any:
        below, self.relieved_below = self.relieved_below, 0
        encoded = original(self)
        self.relieved_below = below
        return encoded

    return (encode,)


def reads_deny_what_was_given_up() -> Sequence[Patch]:
    @patch(LedgerReader, "_not_denied")
    def not_denied(_original: Any, self: Any, ledger: Any) -> Any:
        unsure = self._unsure(ledger)
        return [] if unsure is None else [unsure]

    return (not_denied,)


def removal_is_not_noted() -> Sequence[Patch]:
    @patch(Relief, "_begins")
    def begins(original: Any, self: Any, ledger_id: Any, parts: Any) -> bool:
        begun = original(self, ledger_id, parts)
        if begun:
            self._ledgers.relieving[ledger_id] = []
        return bool(begun)

    return (begins,)


def removal_forgets_what_is_in_memory() -> Sequence[Patch]:
    @patch(Relief, "_begins")
    def begins(_original: Any, self: Any, ledger_id: Any, parts: Any) -> bool:
        self._ledgers.relieving[ledger_id] = parts
        return True

    return (begins,)


def removal_takes_one_too_many() -> Sequence[Patch]:
    @patch(IndexMerger, "purge_ranges")
    async def purge_ranges(original: Any, self: Any, without: Any) -> Any:
        more = {one: [(first, last + 1) for first, last in parts] for one, parts in without.items()}
        return await original(self, more)

    return (purge_ranges,)


DENIED = "a mark was lost|an acknowledged entry is denied|is denied by a long read|among those that are missing"


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        (mark_is_not_journaled, DENIED),
        (mark_is_answered_at_once, DENIED),
        (mark_goes_back, DENIED),
        (checkpoint_forgets_the_mark, DENIED),
        (reads_deny_what_was_given_up, DENIED),
        (removal_is_not_noted, "an entry that was not given up is gone"),
        (removal_forgets_what_is_in_memory, "what was given up takes space"),
        (removal_takes_one_too_many, "an entry that was not given up is gone|an acknowledged entry is denied"),
    ],
)
async def test_canary_is_found(defect: Callable[[], Sequence[Patch]], message: str) -> None:
    patches = defect()
    for put_back in patches:
        put_back.apply()
    try:
        with pytest.raises(AssertionError, match=message):
            await explored(EVENTS, 3)
    finally:
        for put_back in patches:
            put_back.undo()
