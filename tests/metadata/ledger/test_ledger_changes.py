"""What each change of a ledger's metadata does with what it finds in the store: the table of metadata.changes."""

import itertools
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from octavo.metadata import (
    BeginRecovery,
    ChangeEnsemble,
    CloseLedger,
    FinishRecovery,
    Fragment,
    LedgerMetadata,
    LedgerState,
    MetadataChange,
    ReplaceMember,
    Version,
    Versioned,
    open_metadata_store,
    update_ledger,
)
from octavo.metadata.ledger.decisions import Refuse, Settled, Write
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.metadata.store.driver import Kind
from octavo.metadata.updates.compare_and_set import ATTEMPTS_MAX
from octavo.protocol.errors import (
    InvalidArgumentError,
    LedgerFencedError,
    MetadataConflictError,
    NoSuchLedgerError,
)
from octavo.protocol.ids import BookieId, EntryId
from support.metadata.ledger_metadata import bookie_ids, fragment, open_ledger

BASE = fragment(10, "abc", 100)
FOUND = {
    "open": open_ledger(7, fragment(0, "xyz"), BASE),
    "open, older fragment repaired": open_ledger(7, fragment(0, "xyw"), BASE),
    "open, ensemble already changed": open_ledger(7, fragment(0, "xyz"), BASE, fragment(20, "abd", 200)),
    "open, other last fragment": open_ledger(7, fragment(0, "xyz"), BASE, fragment(15, "uvw", 150)),
    "in recovery": open_ledger(7, fragment(0, "xyz"), BASE).in_recovery(),
    "in recovery, older fragment repaired": open_ledger(7, fragment(0, "xyw"), BASE).in_recovery(),
    "in recovery, other last fragment": open_ledger(7, fragment(0, "xyz"), fragment(15, "uvw", 150)).in_recovery(),
    "closed, same end": open_ledger(7, fragment(0, "xyz"), BASE).closed(EntryId(29), 300),
    "closed, other end": open_ledger(7, fragment(0, "xyz"), BASE).closed(EntryId(28), 290),
    "closed, same entry, other length": open_ledger(7, fragment(0, "xyz"), BASE).closed(EntryId(29), 299),
}
CHANGES: dict[str, MetadataChange] = {
    "change": ChangeEnsemble(BASE, EntryId(20), bookie_ids("a", "b", "d"), 200),
    "close": CloseLedger(BASE, EntryId(29), 300),
    "begin": BeginRecovery(),
    "finish": FinishRecovery(BASE, (fragment(20, "abd", 200), fragment(25, "abe", 250)), EntryId(29), 300),
}
TABLE = """
                                      change    close     begin    finish
open                                  write     write     write    conflict
open, older fragment repaired         write     write     write    conflict
open, ensemble already changed        settled   conflict  write    conflict
open, other last fragment             conflict  conflict  write    conflict
in recovery                           fenced    fenced    settled  write
in recovery, older fragment repaired  fenced    fenced    settled  write
in recovery, other last fragment      fenced    fenced    settled  conflict
closed, same end                      fenced    settled   settled  settled
closed, other end                     fenced    fenced    settled  settled
closed, same entry, other length      fenced    fenced    settled  settled
"""


def rows() -> dict[tuple[str, str], str]:
    _, header, *lines, _ = TABLE.split("\n")
    outcomes = {}
    for line in lines:
        found, cells = line[:38].strip(), line[38:].split()
        outcomes.update({(found, change): cell for change, cell in zip(header.split(), cells, strict=True)})
    return outcomes


def outcome(change: MetadataChange, found: LedgerMetadata) -> str:
    match change.decide(found):
        case Write():
            return "write"
        case Settled():
            return "settled"
        case Refuse(LedgerFencedError()):
            return "fenced"
        case Refuse(MetadataConflictError()):
            return "conflict"
    raise AssertionError("no such decision")


def test_every_change_has_a_row_for_everything_it_can_find() -> None:
    assert set(rows()) == set(itertools.product(FOUND, CHANGES))


@pytest.mark.parametrize(("found", "change"), rows())
def test_decision_is_as_the_table_says(found: str, change: str) -> None:
    assert outcome(CHANGES[change], FOUND[found]) == rows()[found, change]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("found", FOUND)
def test_own_write_whose_answer_was_lost_is_settled(found: str, change: str) -> None:
    decision = CHANGES[change].decide(FOUND[found])
    if isinstance(decision, Write):
        assert isinstance(CHANGES[change].decide(decision.metadata), Settled)


@pytest.mark.parametrize("change", CHANGES)
def test_refusals_did_not_happen_and_name_the_ledger(change: str) -> None:
    for found in FOUND.values():
        decision = CHANGES[change].decide(found)
        if isinstance(decision, Refuse):
            assert not decision.error.may_have_happened
            assert "ledger 7" in decision.error.message


def test_the_refusal_of_a_fenced_writer_says_by_whom_and_when() -> None:
    begin = BeginRecovery(datetime(2026, 5, 4, 12, 30, tzinfo=UTC), "host-2, process 99")
    decision = begin.decide(FOUND["open"])
    assert isinstance(decision, Write)
    for found, done in (
        (decision.metadata, r"is being recovered by {who}$"),
        (decision.metadata.closed(EntryId(29), 300), r"has been recovered by {who}, and closed with last entry 29$"),
    ):
        who = r"another client \(host-2, process 99\), which fenced it at 2026-05-04 12:30:00\+00:00"
        refusal = CHANGES["change"].decide(found)
        assert isinstance(refusal, Refuse)
        assert re.search(done.format(who=who), refusal.error.message), refusal.error.message


def test_older_fragments_are_taken_as_found() -> None:
    for change, found in (
        ("change", "open, older fragment repaired"),
        ("close", "open, older fragment repaired"),
        ("finish", "in recovery, older fragment repaired"),
    ):
        decision = CHANGES[change].decide(FOUND[found])
        assert isinstance(decision, Write)
        assert decision.metadata.fragments[0] == fragment(0, "xyw")


def test_recovery_commits_its_fragments_with_the_end() -> None:
    decision = CHANGES["finish"].decide(FOUND["in recovery"])
    assert isinstance(decision, Write)
    assert decision.metadata.fragments[2:] == (fragment(20, "abd", 200), fragment(25, "abe", 250))
    assert (decision.metadata.state, decision.metadata.last_entry_id) == (LedgerState.CLOSED, 29)


# --- repair ----------------------------------------------------------------------------------------------------------

OPEN = open_ledger(7, fragment(0, "xyz"), BASE)
SPLIT_EARLIER = open_ledger(7, fragment(0, "xyz"), fragment(5, "abc"))
EMPTY_TAIL = open_ledger(7, fragment(0, "xyz"), BASE, fragment(30, "abd", 300)).closed(EntryId(29), 300)
REPAIRED = {
    # found, (first id, last id of the range, position, old, new), decision
    "earlier fragment, open": (OPEN, (0, 9, 1, "y", "n"), "write"),
    "earlier fragment, in recovery": (OPEN.in_recovery(), (0, 9, 1, "y", "n"), "write"),
    "earlier fragment, closed": (OPEN.closed(EntryId(29), 300), (0, 9, 1, "y", "n"), "write"),
    "last fragment, closed": (OPEN.closed(EntryId(29), 300), (10, 29, 0, "a", "n"), "write"),
    "empty last fragment, closed": (EMPTY_TAIL, (30, 29, 2, "d", "n"), "write"),
    "empty ledger, closed": (open_ledger(7).closed(None, 0), (0, -1, 0, "a", "n"), "write"),
    "last fragment, open": (OPEN, (10, 29, 0, "a", "n"), "conflict"),
    "last fragment, in recovery": (OPEN.in_recovery(), (10, 29, 0, "a", "n"), "conflict"),
    "last fragment has another end": (OPEN.closed(EntryId(28), 290), (10, 29, 0, "a", "n"), "conflict"),
    "fragment ends earlier now": (SPLIT_EARLIER, (0, 9, 1, "y", "n"), "conflict"),
    "no fragment begins there": (OPEN, (3, 9, 1, "y", "n"), "conflict"),
    "no such position": (OPEN, (0, 9, 3, "z", "n"), "conflict"),
    "negative position": (OPEN, (0, 9, -1, "z", "n"), "conflict"),
    "another target was quicker": (OPEN, (0, 9, 1, "w", "n"), "conflict"),
    "old at another position": (OPEN, (0, 9, 1, "z", "n"), "conflict"),
    "new is a member already": (OPEN, (0, 9, 1, "y", "z"), "conflict"),
    "done already": (OPEN, (0, 9, 1, "w", "y"), "settled"),
    "done already, closed last": (OPEN.closed(EntryId(29), 300), (10, 29, 0, "w", "a"), "settled"),
}  # fmt: skip


def replacement(first: int, last: int, position: int, old: str, new: str) -> ReplaceMember:
    return ReplaceMember(EntryId(first), last, position, BookieId(old), BookieId(new))


@pytest.mark.parametrize("case", REPAIRED)
def test_member_is_replaced_in_settled_ranges_only(case: str) -> None:
    """Rules C2 and C5."""
    found, wanted, expected = REPAIRED[case]
    change = replacement(*wanted)
    assert outcome(change, found) == expected
    decision = change.decide(found)
    if isinstance(decision, Refuse):
        assert not decision.error.may_have_happened
        assert f"ledger 7, fragment from entry {wanted[0]}" in decision.error.message
    if isinstance(decision, Write):
        assert isinstance(change.decide(decision.metadata), Settled), "the own write, when its answer was lost"


def test_replacement_changes_one_name_and_nothing_else() -> None:
    first = Fragment(EntryId(0), bookie_ids("x", "y", "z"), unknown_fields={"tier": "cold"})
    found = replace(open_ledger(7, first, BASE), unknown_fields={"pinned": True}).closed(EntryId(29), 300)
    decision = replacement(0, 9, 2, "z", "n").decide(found)
    assert isinstance(decision, Write)
    repaired = replace(first, bookies=bookie_ids("x", "y", "n"))
    assert decision.metadata == replace(found, fragments=(repaired, BASE))
    assert decision.metadata.fragments[0].unknown_fields == {"tier": "cold"}
    assert decision.metadata.unknown_fields == {"pinned": True}


def test_transition_itself_refuses_what_repair_may_not_touch() -> None:
    with pytest.raises(InvalidArgumentError, match="before it is closed"):
        OPEN.with_member(EntryId(10), 0, BookieId("n"))
    with pytest.raises(InvalidArgumentError, match="distinct"):
        OPEN.with_member(EntryId(0), 0, BookieId("z"))
    for first, position in ((1, 0), (0, 3), (0, -1)):
        with pytest.raises(InvalidArgumentError, match="there is no slot"):
            OPEN.with_member(EntryId(first), position, BookieId("n"))


@pytest.mark.parametrize("change", ["change", "close", "finish"])
def test_repair_between_decision_and_write_costs_writer_and_recovery_one_round(change: str) -> None:
    found = OPEN.in_recovery() if change == "finish" else OPEN
    repaired = replacement(0, 9, 1, "y", "n").decide(found)
    assert isinstance(repaired, Write)
    decision = CHANGES[change].decide(repaired.metadata)
    assert isinstance(decision, Write)
    assert decision.metadata.fragments[0] == fragment(0, "xnz")


async def test_update_stamps_the_token_and_gives_what_stands_there() -> None:
    async with await open_metadata_store("memory://") as store:
        ledger = open_ledger(await store.allocate_ledger_id())
        version = await store.create_ledger(ledger)
        change = CloseLedger(ledger.last_fragment, EntryId(4), 40)
        written = await update_ledger(
            store, ledger.ledger_id, change, writer_token="me", known=Versioned(ledger, version)
        )
        assert written == await store.read_ledger(ledger.ledger_id)
        assert (written.value.writer_token, written.value.last_entry_id) == ("me", 4)


async def test_update_merges_with_a_change_made_meanwhile() -> None:
    async with await open_metadata_store("memory://") as store:
        before = open_ledger(await store.allocate_ledger_id(), fragment(0, "xyz"), BASE)
        known = Versioned(before, await store.create_ledger(before))
        repaired = open_ledger(before.ledger_id, fragment(0, "xyw"), BASE)
        await store.compare_and_set_ledger(repaired, known.version)
        written = await update_ledger(store, before.ledger_id, CHANGES["change"], writer_token="me", known=known)
        assert written.value.fragments == (fragment(0, "xyw"), BASE, fragment(20, "abd", 200))


async def test_update_believes_the_store_rather_than_the_caller_before_it_gives_up() -> None:
    """What the caller knows may be of the past: a refusal or "nothing to do" must come from what stands there now."""
    async with await open_metadata_store("memory://") as store:
        ledger = open_ledger(await store.allocate_ledger_id())
        await store.create_ledger(ledger)
        outdated = Versioned(ledger.closed(EntryId(1), 1), Version(1))
        change = CloseLedger(ledger.last_fragment, EntryId(4), 40)
        written = await update_ledger(store, ledger.ledger_id, change, writer_token="me", known=outdated)
        assert written.value.last_entry_id == 4


async def test_nothing_to_do_is_said_of_what_stands_in_the_store() -> None:
    async with await open_metadata_store("memory://") as store:
        ledger = open_ledger(await store.allocate_ledger_id())
        version = await store.create_ledger(ledger)
        believed = Versioned(ledger.in_recovery(), version)
        closed = ledger.closed(EntryId(4), 40)
        await store.compare_and_set_ledger(closed, version)
        found = await update_ledger(store, ledger.ledger_id, BeginRecovery(), writer_token="me", known=believed)
        assert found.value == closed, "another client was faster"


async def test_update_of_a_deleted_ledger_says_so() -> None:
    async with await open_metadata_store("memory://") as store:
        ledger = open_ledger(await store.allocate_ledger_id())
        known = Versioned(ledger, await store.create_ledger(ledger))
        await store.delete_ledger(ledger.ledger_id)
        with pytest.raises(NoSuchLedgerError):
            await update_ledger(store, ledger.ledger_id, BeginRecovery(), writer_token="me", known=known)


class _NeverDone:
    """A change that undoes itself by a second handle before every write."""

    def __init__(self, server: MemoryServer) -> None:
        self.server = server
        self.rounds = 0

    def decide(self, current: LedgerMetadata) -> Write[LedgerMetadata]:
        self.rounds += 1
        (record,) = self.server.read_all(Kind.LEDGER)
        self.server.compare_and_set(Kind.LEDGER, record.key, record.value, record.version)
        return Write(current)


async def test_update_gives_up_when_it_never_gets_through() -> None:
    server = MemoryServer()
    async with open_memory_store(server) as store:
        ledger = open_ledger(await store.allocate_ledger_id())
        await store.create_ledger(ledger)
        change = _NeverDone(server)
        with pytest.raises(MetadataConflictError, match=f"{ATTEMPTS_MAX} times"):
            await update_ledger(store, ledger.ledger_id, change, writer_token="me")
        assert change.rounds == ATTEMPTS_MAX
