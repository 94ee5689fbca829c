"""Rule T7: after an answered fence of a term, no ordinary add of it or of an earlier term is ever answered; and no
fence of an earlier term ever refuses a later one.

As in ``test_fence_model``, the states of one ledger on one bookie are explored breadth first, on the real storage on a
file system in memory. The clients are as bad as a network makes them: fences of two takeovers come early, late, again,
or are lost by a power cut before they are answered; writers of all terms add whenever they like. Recovery adds pass
every fence (rule F5). A ledger whose deletion was a mistake is in doubt: it takes no ordinary add of any term, and no
fence that it receives then lifts that (rule B4).
"""

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import structlog
from octavo.bookie.journal.format import RecordKind
from octavo.bookie.storage import replay, writes
from octavo.bookie.storage.ledger_state import LedgerState
from octavo.bookie.storage.ledgers import LedgerTable
from octavo.bookie.storage.storage import Storage
from octavo.bookie.storage.writes import EntryWriter
from octavo.protocol.errors import BookieInDoubtError, NoSuchLedgerError, TermOverError
from octavo.protocol.places import place, term_of
from simulation.engine.patches import Patch, patch
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.storage_model import Machine, new_states

SCRIPT = LedgerScript(7)
LENGTH_MAX = 3 + int(os.environ.get("OCTAVO_MORE_EVENTS", "0"))
"""Events of a path."""
TERMS = (1, 2, 3)
FENCED_TERMS = (1, 2)


class Promises(NamedTuple):
    """What has been sent to the bookie, and what it has answered."""

    over: int = 0
    """The highest term of which a fence has been answered; 0: of none."""
    fence_sent: int = 0
    """The highest term of which a fence has been sent."""
    acknowledged: frozenset[int] = frozenset()
    revived: bool = False


class View(NamedTuple):
    """What a storage answers about the ledger."""

    deleted: bool
    over: tuple[bool, ...]
    """For each term, whether it is said to be over."""
    in_doubt: bool
    held: tuple[int, ...]
    unknown: bool


class Host:
    """A bookie's storage, and what it has promised."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.promises = Promises()

    @property
    def storage(self) -> Storage:
        return self.machine.storage

    async def apply(self, event: str) -> bool:
        """Apply an event; False if it is refused or does nothing here. Checks what accepting or refusing it says."""
        what, _, number = event.rpartition(" ")
        term = int(number) if number.isdigit() else 0
        if what == "fence":
            return await self._fence(term)
        if what == "fence and power cut":
            return await self._fence_cut_off(term)
        if what in {"add", "recovery add"}:
            return await self._add(term, recovery=what == "recovery add")
        return await self._of_the_bookie(event)

    async def _fence(self, term: int) -> bool:
        promises = self.promises
        try:
            await self.storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key, term)
        except NoSuchLedgerError:
            return False
        self.promises = promises._replace(over=max(promises.over, term), fence_sent=max(promises.fence_sent, term))
        return True

    async def _fence_cut_off(self, term: int) -> bool:
        """The bookie accepts the fence, and loses power before it answers."""
        try:
            answer = self.storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key, term)
        except NoSuchLedgerError:
            return False
        self.promises = self.promises._replace(fence_sent=max(self.promises.fence_sent, term))
        answered = answer.done()
        assert not answered, "a fence was answered in the step that accepted it"
        await self.machine.crash()
        return True

    async def _add(self, term: int, *, recovery: bool) -> bool:
        promises = self.promises
        entry_id = place(term, int(recovery))
        try:
            await self.storage.writer.add(
                SCRIPT.ledger_id, SCRIPT.key, [SCRIPT.entry(entry_id)], recovery=recovery, term=term
            )
        except TermOverError:
            assert not recovery, "a fence refused a recovery add"
            assert term <= promises.fence_sent, f"term {term} was refused by a fence of term {promises.fence_sent}"
            return False
        except NoSuchLedgerError:
            return False
        except BookieInDoubtError:
            assert promises.revived, "the bookie is in doubt for no reason"
            return False
        assert recovery or term > promises.over, f"an add of term {term} was answered after a fence of {promises.over}"
        assert recovery or not promises.revived, "an ordinary add was accepted although fences may be lost"
        self.promises = promises._replace(acknowledged=promises.acknowledged | {entry_id})
        return True

    async def _of_the_bookie(self, event: str) -> bool:
        storage, ledger_id = self.storage, SCRIPT.ledger_id
        if event == "collect":
            if ledger_id not in storage.ledgers.live_ids():
                return False
            await storage.writer.delete(ledger_id)
        elif event == "revive":
            if not storage.ledgers.is_deleted(ledger_id):
                return False
            await storage.writer.revive(ledger_id)
            self.promises = self.promises._replace(revived=True)
        elif event == "checkpoint":
            await storage.checkpoint()
        else:
            assert event == "power cut"
            await self.machine.crash()
        return True

    async def view(self) -> View:
        """What is answered now; checked against the promises."""
        storage, ledger_id, promises = self.storage, SCRIPT.ledger_id, self.promises
        over = tuple(storage.reader.last_add_confirmed(ledger_id, term).fenced for term in TERMS)
        for term, is_over in zip(TERMS, over, strict=True):
            assert is_over or term > promises.over, f"the fence of term {promises.over} is lost"
            assert not is_over or term <= promises.fence_sent, f"term {term} is over without a fence of it"
        assert all(earlier or not later for earlier, later in pairwise(over))
        if storage.ledgers.is_deleted(ledger_id):
            return View(True, over, False, (), False)
        held: tuple[int, ...] = ()
        unknown = False
        for term in TERMS:
            first, last = place(term, 0), place(term, 9)
            found = await storage.reader.read(ledger_id, first, last, entries_max=10, bytes_max=10_000)
            held += tuple(ids_of(found.entries))
            unknown |= bool(found.unknown)
        if not promises.revived:
            assert promises.acknowledged <= set(held), "an acknowledged entry is absent"
            ranges = await storage.reader.list_entries(ledger_id)
            assert [entry_id for low, high in ranges for entry_id in range(low, high + 1)] == list(held)
        in_doubt = storage.reader.last_add_confirmed(ledger_id).in_doubt
        return View(False, over, in_doubt, held, unknown)


EVENTS = (
    *(f"fence {term}" for term in FENCED_TERMS),
    *(f"fence and power cut {term}" for term in FENCED_TERMS),
    *(f"add {term}" for term in TERMS),
    "recovery add 1",
    "collect",
    "revive",
    "checkpoint",
    "power cut",
)


FEW_EVENTS = (("fence 1", "add 1", "add 2", "collect", "revive"), 5)
"""Where longer paths are needed, with their length."""


async def start() -> Host:
    host = Host()
    await host.machine.open()
    return host


async def look(host: Host) -> tuple[Promises, View, View]:
    """What is answered before a loss of power and after it."""
    now, before = await host.view(), host.promises
    await host.machine.crash()
    return before, now, await host.view()


async def explored(events: Sequence[str] = EVENTS, length_max: int = LENGTH_MAX) -> tuple[int, int]:
    """Check every path of these events up to the length. The number of states, and how many of them hold entries of two
    terms."""
    states = of_two_terms = 0
    async for _, (_before, now, _after) in new_states(start, look, events, length_max):
        states += 1
        of_two_terms += len({term_of(entry_id) for entry_id in now.held}) > 1
    return states, of_two_terms


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


async def test_no_order_of_fences_adds_and_power_cuts_lets_an_old_term_in_or_keeps_a_new_one_out() -> None:
    states, of_two_terms = await explored()
    assert states > 80
    assert of_two_terms > 20


def fence_lifts_a_higher_one() -> Patch:
    @patch(LedgerState, "fence")
    def fence(_original: Any, self: Any, term: int) -> bool:
        self.fenced, self.fenced_term = True, term
        return True

    return fence


def fence_of_all_terms() -> Patch:
    @patch(LedgerState, "fence")
    def fence(original: Any, self: Any, _term: int) -> Any:
        return original(self, max(TERMS))

    return fence


def replay_takes_the_last_fence() -> Patch:
    @patch(replay, "_replay_record")
    def replay_record(original: Any, kind: Any, body: bytes, cache: Any, ledgers: LedgerTable) -> Any:
        ledger = original(kind, body, cache, ledgers)
        if kind is RecordKind.TERM_FENCE and ledger is not None:
            ledger.fenced_term = int.from_bytes(body[8:], "big")
        return ledger

    return replay_record


def own_term_is_not_over() -> Patch:
    """``<`` in place of ``<=``."""

    @patch(EntryWriter, "_admit")
    def admit(original: Any, self: Any, ledger: Any, key: bytes, recovery: bool, term: int) -> None:  # noqa: PLR0917
        original(self, ledger, key, recovery or (term == ledger.fenced_term and not ledger.in_doubt), term)

    return admit


def fence_is_journaled_without_its_term() -> Patch:
    @patch(writes, "encode_term_fence")
    def encode_term_fence(original: Any, ledger_id: int, _term: int) -> Any:
        return original(ledger_id, 0)

    return encode_term_fence


def checkpoint_forgets_the_term() -> Patch:
    @patch(LedgerState, "encode")
    def encode(original: Any, self: Any) -> Any:
        term, self.fenced_term = self.fenced_term, 0
        encoded = original(self)
        self.fenced_term = term
        return encoded

    return encode


def fence_is_answered_at_once() -> Patch:
    @patch(EntryWriter, "fence")
    def fence(original: Any, self: Any, ledger_id: Any, key: bytes, term: int = 0) -> Any:
        answer = original(self, ledger_id, key, term)
        answer.set_result(None)
        return answer

    return fence


def fence_ends_doubt() -> Patch:
    """A fence that a bookie in doubt receives would say which terms are over, were it not for those it has lost."""

    @patch(LedgerState, "fence")
    def fence(original: Any, self: Any, term: int) -> Any:
        self.in_doubt = False
        return original(self, term)

    return fence


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        (fence_lifts_a_higher_one, "the fence of term 2 is lost"),
        (fence_of_all_terms, "is over without a fence of it|was refused by a fence of term 1"),
        (replay_takes_the_last_fence, "the fence of term 2 is lost"),
        (own_term_is_not_over, "an add of term 1 was answered after a fence of 1"),
        (fence_is_journaled_without_its_term, "the fence of term 1 is lost"),
        (checkpoint_forgets_the_term, "the fence of term 1 is lost"),
        (fence_is_answered_at_once, "the fence of term 1 is lost"),
        (fence_ends_doubt, "although fences may be lost"),
    ],
)
async def test_canary_is_found(defect: Callable[[], Patch], message: str) -> None:
    put_back = defect()
    put_back.apply()
    try:
        events, length_max = FEW_EVENTS if defect is fence_ends_doubt else (EVENTS, LENGTH_MAX)
        with pytest.raises(AssertionError, match=message):
            await explored(events, length_max)
    finally:
        put_back.undo()
