"""Rule U5: what was trimmed is unknown, for ever and never absent; and no trim takes anything that lies above it.

As in ``test_term_model``, the states of one stream on one bookie are explored breadth first, on the real storage on a
file system in memory. Adds of four places in two terms come early, late and again, in frames that a trim may straddle;
trims come in any order, again, and cut off by a power cut before they are answered; between them come checkpoints,
compactions, power cuts, and a deletion that turns out to be a mistake.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import structlog
from octavo.bookie.entrylog.format import Total
from octavo.bookie.index.runs import clip
from octavo.bookie.storage import checkpoint, ledger_reader
from octavo.bookie.storage.compaction import Compactor
from octavo.bookie.storage.ledger_state import LedgerState
from octavo.bookie.storage.ledgers import LedgerTable
from octavo.bookie.storage.storage import Storage
from octavo.bookie.storage.writes import EntryWriter
from octavo.protocol.errors import BookieStorageError, NoSuchLedgerError
from octavo.protocol.held_entries import Holdings
from octavo.protocol.places import place
from simulation.engine.patches import Patch, patch
from support.clusters.ledgers import LedgerScript
from support.disks.storage_model import Machine, compact_all, delete_and_revive, new_states, read_through

SCRIPT = LedgerScript(7)
LENGTH_MAX = 2 + int(os.environ.get("OCTAVO_MORE_EVENTS", "0"))
"""Events of a path."""
PLACES = (place(1, 0), place(1, 1), place(2, 0), place(2, 1))
END = place(2, 2)


class Promises(NamedTuple):
    """What has been sent to the bookie, and what it has answered."""

    trimmed: int = 0
    """The highest place to which a trim has been answered."""
    trim_sent: int = 0
    """The highest place to which a trim has been sent."""
    acknowledged: frozenset[int] = frozenset()
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

    @property
    def storage(self) -> Storage:
        return self.machine.storage

    async def apply(self, event: str) -> bool:
        """Apply an event; False if it is refused or does nothing here."""
        what, _, number = event.rpartition(" ")
        try:
            if what == "add":
                await self._add([PLACES[int(number)]])
            elif what == "add frame of term":
                await self._add([one for one in PLACES if one >> 35 == int(number)])
            elif what.startswith("trim"):
                await self._trim(what, PLACES[int(number)])
            else:
                return await self._of_the_bookie(event)
        except NoSuchLedgerError:
            return False
        return True

    async def _add(self, ids: Sequence[int]) -> None:
        await self.storage.writer.add(SCRIPT.ledger_id, SCRIPT.key, SCRIPT.entries(ids), recovery=True)
        self.promises = self.promises._replace(acknowledged=self.promises.acknowledged | set(ids))

    async def _trim(self, what: str, first_kept: int) -> None:
        answer = self.storage.writer.trim(SCRIPT.ledger_id, first_kept)
        self.promises = self.promises._replace(trim_sent=max(self.promises.trim_sent, first_kept))
        if what == "trim and power cut":
            if not answer.done():  # a trim that is not above one that is durable is answered at once
                await self.machine.crash()
                return
        elif what == "trim during an add":
            await self._add(PLACES[:1])
            await self.machine.crash()
            return
        await answer
        self.promises = self.promises._replace(trimmed=max(self.promises.trimmed, first_kept))

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
        first_kept = reader.first_kept(ledger_id)
        held: list[int] = []
        unknown: list[int] = []
        for entry_id in PLACES:
            found = await reader.read(ledger_id, entry_id, entry_id, entries_max=1, bytes_max=10_000)
            assert found.entries in ([], [SCRIPT.entry(entry_id)])
            if found.entries:
                held.append(entry_id)
            elif found.unknown:
                unknown.append(entry_id)
            await self._check_one(entry_id, bool(found.entries), bool(found.unknown))
        together, hidden = await read_through(self.storage, ledger_id, PLACES, END)
        assert together == held
        assert hidden == unknown, "a trimmed entry is denied by a read that reaches above the trim"
        assert first_kept in (promises.trimmed, *(one for one in PLACES if promises.trimmed < one)), "a trim was lost"
        assert first_kept <= promises.trim_sent, "more was trimmed than was asked for"
        await self._check_lists(first_kept, held)
        return View(False, tuple(held), tuple(unknown))

    async def _check_one(self, entry_id: int, held: bool, unknown: bool) -> None:
        promises = self.promises
        if entry_id < promises.trimmed:
            assert not held, "a trimmed entry is shown"
            assert unknown, "a trimmed entry is denied"
        elif entry_id >= promises.trim_sent and not promises.revived:
            assert not unknown, "an entry above the trim is unknown"
        if entry_id in promises.acknowledged:
            assert held or unknown, "an acknowledged entry is denied"

    async def _check_lists(self, first_kept: int, held: Sequence[int]) -> None:
        """What repair is told: below the trim nothing is missing, and above it what is not held."""
        reader, ledger_id = self.storage.reader, SCRIPT.ledger_id
        lacking = [one for one in PLACES if one >= first_kept and one not in held]
        for look in (reader.not_held, reader.verified):
            found: list[int] = []
            first = 0
            while first <= END:
                holdings = await look(ledger_id, first, END)
                assert holdings.unknown == ()
                found += [one for low, high in holdings.missing for one in PLACES if low <= one <= high]
                first = holdings.last_covered + 1
            assert found == lacking, "repair is told to copy what it need not, or not told what it must"
        if self.promises.revived:
            return
        if first_kept:
            with pytest.raises(BookieStorageError, match="has trimmed the entries below"):
                await reader.list_entries(ledger_id, first_kept - 1, END)
        listed = await reader.list_entries(ledger_id, first_kept, END)
        assert [one for low, high in listed for one in range(low, high + 1)] == list(held)


EVENTS = (
    *(f"add {at}" for at in (0, 1, 3)),
    *(f"add frame of term {term}" for term in (1, 2)),
    *(f"trim {at}" for at in (1, 2, 3)),
    *(f"trim and power cut {at}" for at in (1, 3)),
    "trim during an add 2",
    "delete and revive",
    "checkpoint",
    "compaction",
    "power cut",
)

MAIN_EVENTS = (
    (
        "add 0",
        "add frame of term 1",
        "add 3",
        "trim 2",
        "trim and power cut 1",
        "trim during an add 2",
        "delete and revive",
        "checkpoint",
        "compaction",
    ),
    3,
)
"""One of each kind, for longer paths, with their length."""

FEW_EVENTS = (("add frame of term 1", "add 3", "trim 1", "trim 2", "compaction", "power cut"), 4)
"""The same for still longer ones."""


async def start() -> Host:
    host = Host()
    await host.machine.open()
    return host


async def look(host: Host) -> tuple[Promises, View, tuple[str, ...], View]:
    """What is answered before a loss of power and after it, with what decides what comes next."""
    now, before, names = await host.view(), host.promises, host.machine.suffixes()
    await host.machine.crash()
    return before, now, names, await host.view()


async def explored(events: Sequence[str] = EVENTS, length_max: int = LENGTH_MAX) -> tuple[int, int]:
    """Check every path of these events up to the length. The numbers of states, and of those with something held above
    a trim that is answered."""
    states = above_a_trim = 0
    async for _, (before, now, _names, _after) in new_states(start, look, events, length_max):
        states += 1
        above_a_trim += bool(before.trimmed and now.held)
    return states, above_a_trim


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


async def test_no_order_of_adds_trims_and_power_cuts_denies_what_was_trimmed_or_loses_what_was_not() -> None:
    states, above_a_trim = await explored()
    assert states > 80
    assert above_a_trim > 5
    states, above_a_trim = await explored(*MAIN_EVENTS)
    assert states > 100
    assert above_a_trim > 10
    states, above_a_trim = await explored(*FEW_EVENTS)
    assert states > 30
    assert above_a_trim > 10


def trim_is_not_journaled() -> Sequence[Patch]:
    @patch(EntryWriter, "trim")
    def trim(_original: Any, self: Any, ledger_id: Any, first_kept: int) -> Any:
        self._ledgers.get(ledger_id).trim(first_kept)
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(None)
        return answer

    return (trim,)


def trim_is_answered_at_once() -> Sequence[Patch]:
    @patch(EntryWriter, "trim")
    def trim(original: Any, self: Any, ledger_id: Any, first_kept: int) -> Any:
        answer = original(self, ledger_id, first_kept)
        if not answer.done():
            answer.set_result(None)
        return answer

    return (trim,)


def trim_goes_back() -> Sequence[Patch]:
    @patch(LedgerState, "trim")
    def trim(_original: Any, self: Any, first_kept: int) -> bool:
        self.first_kept = first_kept
        return True

    @patch(LedgerTable, "first_kept")
    def first_kept_durably(_original: Any, _self: Any, _ledger_id: int) -> int:
        return 0

    return trim, first_kept_durably


def checkpoint_forgets_the_trim() -> Sequence[Patch]:
    @patch(LedgerState, "encode")
    def encode(original: Any, self: Any) -> Any:
        first_kept, self.first_kept = self.first_kept, 0
        encoded = original(self)
        self.first_kept = first_kept
        return encoded

    return (encode,)


def reads_deny_what_was_trimmed() -> Sequence[Patch]:
    @patch(ledger_reader, "_read_from")
    def read_from(_original: Any, result: Any, *_: Any) -> Any:
        return replace(result, unknown=[])

    return (read_from,)


def repair_is_told_to_copy_what_was_trimmed() -> Sequence[Patch]:
    @patch(ledger_reader, "_holdings_from")
    def holdings_from(_original: Any, holdings: Holdings, first_kept: int) -> Holdings:
        return holdings._replace(missing=((0, first_kept - 1), *holdings.missing)) if first_kept else holdings

    return (holdings_from,)


def frame_that_straddles_is_not_stored() -> Sequence[Patch]:
    @patch(EntryWriter, "_append_missing")
    def append_missing(original: Any, self: Any, ledger: Any, slow_add: Any, missing: Any) -> None:
        straddles = slow_add.batch.entry_ids[0] < ledger.first_kept
        original(self, ledger, slow_add, [] if straddles else missing)

    return (append_missing,)


def log_counts_as_dead_with_its_last_entry_above_the_trim() -> Sequence[Patch]:
    @patch(Total, "is_live")
    def is_live(_original: Any, self: Total, first_kept: int) -> bool:
        return self.highest is None or self.highest > first_kept

    return (is_live,)


def checkpoint_cuts_one_too_many() -> Sequence[Patch]:
    @patch(checkpoint, "runs_from")
    def runs_from(original: Any, runs: Any, first: int) -> Any:
        return original(runs, first + 1 if first else 0)

    return (runs_from,)


def compaction_copies_from_above_the_first_kept() -> Sequence[Patch]:
    @patch(Compactor, "_runs_in")
    async def runs_in(original: Any, self: Any, parts: Any, ledger_id: int, log_id: int) -> Any:
        async for run in original(self, parts, ledger_id, log_id):
            piece = clip(run, self._first_kept(ledger_id) + 1, run.last)
            if piece is not None:
                yield piece

    return (runs_in,)


OF_COMPACTION = (log_counts_as_dead_with_its_last_entry_above_the_trim, compaction_copies_from_above_the_first_kept)
LOST = "a trim was lost|a trimmed entry is denied|a trimmed entry is shown|an acknowledged entry is denied"


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        (trim_is_not_journaled, LOST),
        (trim_is_answered_at_once, LOST),
        (trim_goes_back, LOST),
        (checkpoint_forgets_the_trim, LOST),
        (reads_deny_what_was_trimmed, "a trimmed entry is denied by a read that reaches above the trim"),
        (repair_is_told_to_copy_what_was_trimmed, "repair is told to copy what it need not"),
        (frame_that_straddles_is_not_stored, "an acknowledged entry is denied"),
        (log_counts_as_dead_with_its_last_entry_above_the_trim, "an entry above the trim is unknown"),
        (checkpoint_cuts_one_too_many, "an acknowledged entry is denied"),
        (compaction_copies_from_above_the_first_kept, "an entry above the trim is unknown|entry is denied"),
    ],
)
async def test_canary_is_found(defect: Callable[[], Sequence[Patch]], message: str) -> None:
    patches = defect()
    for put_back in patches:
        put_back.apply()
    try:
        with pytest.raises(AssertionError, match=message):
            await explored(*(FEW_EVENTS if defect in OF_COMPACTION else (EVENTS, LENGTH_MAX)))
    finally:
        for put_back in patches:
            put_back.undo()
