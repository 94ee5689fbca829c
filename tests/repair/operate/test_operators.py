"""What operators decide, and what they are shown (docs/repair.md)."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from octavo.cli.repair.commands import parse_duration
from octavo.cli.session import CommandError
from octavo.metadata import LedgerMetadata, MetadataStore, Version, Versioned
from octavo.metadata.cluster.repair_states import BookieCondition, Condition
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.protocol.errors import MetadataConflictError, MetadataError, MetadataUnavailableError
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.repair.base.documents import (
    AUDITOR_LOCK,
    CHECKS,
    SUMMARY,
    BookieFigures,
    Check,
    Summary,
    blocked_name,
    encode_blocked,
    encode_checks,
    encode_summary,
)
from octavo.repair.base.planning import Blocked, BlockedClass
from octavo.repair.operate import operators
from octavo.repair.operate.operators import RepairRefusedError
from octavo.repair.operate.retiring import retire, unretire
from support.metadata.interposed_store import InterposedStore
from support.metadata.ledger_metadata import fragment, open_ledger
from support.metadata.metadata_clusters import cookie, registration

A, B = BookieId("a"), BookieId("b")


@pytest.fixture
async def store() -> AsyncIterator[MetadataStore]:
    async with open_memory_store(MemoryServer()) as opened:
        for name in "abcd":
            await opened.create_cookie(cookie(name))
        yield opened


async def condition(store: MetadataStore, name: BookieId = A) -> Condition | None:
    return (await operators.read_states(store)).condition_of(name)


async def silent(_bookie_id: BookieId) -> bool:
    """The bookie answers no hello."""
    return False


async def new_ledger(store: MetadataStore, names: str, *, closed: bool = True) -> LedgerId:
    ledger_id = await store.allocate_ledger_id()
    metadata = open_ledger(ledger_id, fragment(0, names))
    await store.create_ledger(metadata.closed(EntryId(3), 9) if closed else metadata)
    return ledger_id


async def test_a_bookie_is_held_for_a_time_and_released(store: MetadataStore) -> None:
    held = await operators.hold(store, "a", seconds=60, reason="memory", now_ms=1000)
    assert held == BookieCondition(Condition.HELD, 1000, 61_000, "memory")
    assert await condition(store) is Condition.HELD
    await operators.release(store, "a", now_ms=2000)
    assert (await operators.read_states(store)).bookies[A] == BookieCondition(Condition.MISSING, 2000)
    await store.register_bookie(registration("a"))
    await operators.hold(store, "a", seconds=60, reason="", now_ms=1000)
    await operators.release(store, "a", now_ms=2000)
    assert await condition(store) is None


async def test_what_makes_no_sense_is_refused_with_one_sentence(store: MetadataStore) -> None:
    for name in ("x", "../a", ""):
        with pytest.raises(RepairRefusedError, match="does not know"):
            await operators.drain(store, name, now_ms=0)
    with pytest.raises(RepairRefusedError, match="at most 7 days"):
        await operators.hold(store, "a", seconds=8 * 86_400, reason="", now_ms=0)
    with pytest.raises(RepairRefusedError, match="at most 200 characters"):
        await operators.hold(store, "a", seconds=8, reason="x" * 201, now_ms=0)
    with pytest.raises(RepairRefusedError, match="not held"):
        await operators.release(store, "a", now_ms=0)
    with pytest.raises(RepairRefusedError, match="not being drained"):
        await operators.undrain(store, "a")
    with pytest.raises(RepairRefusedError, match="brake is not on"):
        await operators.resume(store, override_brake=True)
    await operators.drain(store, "a", now_ms=0)
    with pytest.raises(RepairRefusedError, match="is draining"):
        await operators.hold(store, "a", seconds=8, reason="", now_ms=0)
    await operators.undrain(store, "a")
    assert await condition(store) is None


async def test_a_bookie_is_retired_when_no_ledger_names_it_and_is_forgotten(store: MetadataStore) -> None:
    await new_ledger(store, "bcd")
    assert await retire(store, "a", silent, lost=False, now_ms=5) == []
    assert await condition(store) is Condition.RETIRED
    assert await store.read_cookie(A) is None
    assert await retire(store, "a", silent, lost=False, now_ms=6) == []  # a second time changes nothing
    with pytest.raises(RepairRefusedError, match="does not know"):
        await operators.drain(store, "a", now_ms=0)


async def test_a_bookie_that_is_named_is_retired_as_lost_only(store: MetadataStore) -> None:
    ledger_id = await new_ledger(store, "abc", closed=False)
    await operators.drain(store, "a", now_ms=1)
    assert await retire(store, "a", silent, lost=False, now_ms=5) == [ledger_id]
    assert await condition(store) is Condition.DRAINING
    assert await store.read_cookie(A) is not None
    assert await retire(store, "a", silent, lost=True, now_ms=5) == [ledger_id]
    assert await condition(store) is Condition.RETIRED
    assert await store.read_cookie(A) is None


@pytest.mark.parametrize("what", ["registers", "raises its generation"])
async def test_a_bookie_that_starts_while_it_is_being_retired_is_not_retired(store: MetadataStore, what: str) -> None:
    """A loss may be accepted on the strength of its absence (rule O4), so it must not serve on."""

    async def start() -> AsyncIterator[LedgerId]:
        if what == "registers":
            await store.register_bookie(registration("a"))
        else:
            found = await store.read_cookie(A)
            assert found is not None
            await store.compare_and_set_cookie(replace(found.value, generation=9), found.version)
        async for ledger_id in store.list_ledgers():
            yield ledger_id

    interposed = InterposedStore(store)
    interposed.interpose("list_ledgers", start)
    with pytest.raises(RepairRefusedError, match="has been started meanwhile"):
        await retire(interposed.face, "a", silent, lost=True, now_ms=5)
    assert await condition(store) is None
    assert await store.read_cookie(A) is not None


async def test_a_bookie_that_registers_while_its_cookie_is_deleted_is_not_retired(store: MetadataStore) -> None:
    """Rule B10: without its cookie it cannot register any more, but it may have done so just before."""

    async def delete(bookie_id: BookieId, expected: Version) -> None:
        await store.register_bookie(registration("a"))
        await store.delete_cookie(bookie_id, expected)

    interposed = InterposedStore(store)
    interposed.interpose("delete_cookie", delete)
    before = await store.read_cookie(A)
    with pytest.raises(RepairRefusedError, match="has been started meanwhile"):
        await retire(interposed.face, "a", silent, lost=True, now_ms=5)
    assert await condition(store) is None
    after = await store.read_cookie(A)
    assert before is not None
    assert after is not None
    assert after.value == before.value


async def test_a_registered_bookie_is_not_retired(store: MetadataStore) -> None:
    await store.register_bookie(registration("a"))
    with pytest.raises(RepairRefusedError, match="stop it before"):
        await retire(store, "a", silent, lost=True, now_ms=5)
    assert await condition(store) is None


@pytest.mark.parametrize("serves_from", [0, 1])
async def test_a_bookie_that_answers_although_its_session_has_expired_is_not_retired(
    store: MetadataStore, serves_from: int
) -> None:
    """It would confirm adds of a ledger that is closed without it (rules M2 and O4)."""
    asked: list[BookieId] = []

    async def serves(bookie_id: BookieId) -> bool:
        asked.append(bookie_id)
        return len(asked) > serves_from  # the second question comes after the ledgers were read

    with pytest.raises(RepairRefusedError, match="stop it before you retire it"):
        await retire(store, "a", serves, lost=True, now_ms=5)
    assert asked == [A] * (serves_from + 1)
    assert await condition(store) is None
    assert await store.read_cookie(A) is not None


async def test_a_bookie_is_not_retired_while_metadata_that_may_name_it_cannot_be_understood(
    store: MetadataStore,
) -> None:
    await new_ledger(store, "bcd")

    async def not_understood(ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        raise MetadataError(f"ledger {ledger_id}: metadata of a newer version")

    interposed = InterposedStore(store)
    interposed.interpose("read_either", not_understood)
    with pytest.raises(MetadataError, match="newer version"):
        await retire(interposed.face, "a", silent, lost=False, now_ms=5)
    assert await condition(store) is None
    assert await store.read_cookie(A) is not None


@pytest.mark.parametrize("interrupted", ["list_ledgers", "delete_cookie"])
@pytest.mark.parametrize("before", [None, Condition.DRAINING])
async def test_a_retirement_that_is_cancelled_is_taken_back(
    store: MetadataStore, interrupted: str, before: Condition | None
) -> None:
    """Ctrl-C while the ledgers are read, which takes minutes in a large cluster, or just before the last step (O5)."""
    if before is Condition.DRAINING:
        await operators.drain(store, "a", now_ms=1)
    reached = asyncio.Event()

    async def wait_for_ever(*_arguments: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    async def read_for_ever() -> AsyncIterator[LedgerId]:
        await wait_for_ever()
        yield LedgerId(0)

    interposed = InterposedStore(store)
    interposed.interpose(interrupted, read_for_ever if interrupted == "list_ledgers" else wait_for_ever)
    retiring = asyncio.ensure_future(retire(interposed.face, "a", silent, lost=True, now_ms=5))
    await reached.wait()
    assert await condition(store) is Condition.RETIRED
    retiring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await retiring
    assert await condition(store) is before
    assert await store.read_cookie(A) is not None


async def test_a_store_that_goes_away_leaves_a_mark_that_unretire_takes_back(store: MetadataStore) -> None:
    async def away(*_arguments: object) -> None:
        raise MetadataUnavailableError("the store does not answer")

    interposed = InterposedStore(store)
    interposed.interpose("delete_cookie", away)
    interposed.interpose("compare_and_set_cookie", away)
    with pytest.raises(
        RepairRefusedError, match=r"is not retired: the store does not answer.*octavo repair unretire a"
    ):
        await retire(interposed.face, "a", silent, lost=True, now_ms=5)
    assert await condition(store) is Condition.RETIRED
    await unretire(store, "a", now_ms=7)
    assert await condition(store) is Condition.MISSING
    await retire(store, "a", silent, lost=True, now_ms=9)
    with pytest.raises(RepairRefusedError, match="has been retired, and its id is never used again"):
        await unretire(store, "a", now_ms=10)


async def test_a_retirement_that_was_interrupted_is_completed_or_taken_back_by_the_next(store: MetadataStore) -> None:
    mark = BookieCondition(Condition.RETIRED, 3)
    await operators.change_states(store, lambda states: states.with_bookie(A, mark))
    ledger_id = await new_ledger(store, "abc")
    assert await retire(store, "a", silent, lost=False, now_ms=5) == [ledger_id]
    assert await condition(store) is None
    await operators.change_states(store, lambda states: states.with_bookie(A, mark))
    assert await retire(store, "a", silent, lost=True, now_ms=5) == [ledger_id]
    assert await store.read_cookie(A) is None
    assert await retire(store, "a", silent, lost=False, now_ms=5) == []


async def test_a_deletion_that_arrives_after_the_mark_was_taken_back_deletes_nothing(store: MetadataStore) -> None:
    """The answer of the last step is lost and it is carried out later: never is a bookie without cookie and mark."""
    late: list[Version] = []

    async def lost_on_the_way(_bookie_id: BookieId, expected: Version) -> None:
        late.append(expected)
        raise MetadataUnavailableError("no answer")

    interposed = InterposedStore(store)
    interposed.interpose("delete_cookie", lost_on_the_way)
    with pytest.raises(MetadataUnavailableError):
        await retire(interposed.face, "a", silent, lost=True, now_ms=5)
    assert await condition(store) is None
    with pytest.raises(MetadataConflictError):
        await store.delete_cookie(A, late[0])
    assert await store.read_cookie(A) is not None


async def test_a_retirement_whose_last_answer_is_lost_is_final(store: MetadataStore) -> None:
    async def done_but_not_told(bookie_id: BookieId, expected: Version) -> None:
        await store.delete_cookie(bookie_id, expected)
        raise MetadataUnavailableError("no answer")

    interposed = InterposedStore(store)
    interposed.interpose("delete_cookie", done_but_not_told)
    with pytest.raises(MetadataUnavailableError):
        await retire(interposed.face, "a", silent, lost=True, now_ms=5)
    assert await condition(store) is Condition.RETIRED


async def test_only_what_is_retired_is_taken_back(store: MetadataStore) -> None:
    with pytest.raises(RepairRefusedError, match="a is not retired"):
        await unretire(store, "a", now_ms=1)
    with pytest.raises(RepairRefusedError, match="does not know"):
        await unretire(store, "zz", now_ms=1)


async def test_repair_is_paused_and_resumed(store: MetadataStore) -> None:
    await operators.pause(store)
    assert (await operators.read_states(store)).paused
    assert not (await operators.resume(store)).paused


async def test_ledgers_that_are_not_whole_are_found_in_settled_ranges_only(store: MetadataStore) -> None:
    await new_ledger(store, "bcd")
    named = await new_ledger(store, "abd")
    await new_ledger(store, "abc", closed=False)
    states = await operators.read_states(store)
    assert await operators.find_unfinished(store, states.with_bookie(A, BookieCondition(Condition.LOST, 0))) == [named]
    assert await operators.find_unfinished(store, states.with_bookie(A, BookieCondition(Condition.MISSING, 0))) == []
    assert len([one async for one in operators.ledgers_naming(store, B, count=2)]) == 2


async def test_checks_are_asked_for_taken_and_forgotten(store: MetadataStore) -> None:
    one, two = LedgerId(1), LedgerId(2)
    await operators.ask_for_checks(store, [one, two], now_ms=5)
    assert await operators.take_checked(store, [one, two]) == {}
    found = await store.read_document(CHECKS)
    assert found is not None
    await store.compare_and_set_document(
        CHECKS, encode_checks([Check(one, 5, short=True), Check(two, 5)]), found.version
    )
    assert await operators.take_checked(store, [one, two]) == {one: True}
    await operators.forget_checks(store, [two])
    assert await store.read_document(CHECKS) is None


async def test_the_status_has_every_field_and_what_is_blocked_anywhere(store: MetadataStore) -> None:
    await store.lock(AUDITOR_LOCK, "b")
    short = Blocked(LedgerId(3), 5, 6, BlockedClass.SHORT, (A,), "gone")
    unsure = Blocked(LedgerId(9), 0, None, BlockedClass.OPEN, (B,), "in doubt")
    summary = Summary(
        1000, 100, 4, 6, {"short": 1}, {B: BookieFigures(50, 2)}, 7, 700, 70.0, 2.0, 500, (short,)
    )  # fmt: skip
    await store.create_document(SUMMARY, encode_summary(summary))
    await store.create_document(blocked_name(B), encode_blocked([unsure]))
    await operators.drain(store, "a", now_ms=500)
    status = await operators.read_status(store)
    assert not status.is_quiet
    assert not status.is_stuck
    facts = {"b": {"repair_round_at_ms": 2000, "repair_ledgers": 120, "in_doubt": True, "unsure_ledgers": 3}}
    assert operators.status_fields(status, facts, now_ms=3000, blocked_max=100) == {
        "auditor": "b",
        "paused": False,
        "brake": False,
        "last_round_seconds_ago": 1.0,
        "bookies": [
            {
                "bookie_id": "a", "state": "draining", "since": 0.5, "until": None, "reason": "", "ledgers": None,
                "ledgers_at_margin": None, "in_doubt": None, "unsure_ledgers": None,
            },
            {
                "bookie_id": "b", "state": "ordinary", "since": None, "until": None, "reason": "", "ledgers": 50,
                "ledgers_at_margin": 2, "in_doubt": True, "unsure_ledgers": 3,
            },
        ],
        "ledgers": {"whole": 108, "queued": 4, "copying": 6, "short": 1, "open": 1, "divergent": 0, "no_target": 0},
        "entries_copied": 7,
        "bytes_copied": 700,
        "bytes_per_second": 70.0,
        "ledgers_per_second": 2.0,
        "seconds_left": 5.0,
        "oldest_queued_seconds": 2.5,
        "blocked": [
            {
                "ledger_id": 3, "first_entry": 5, "last_entry": 6, "class": "short", "bookies": ["a"], "reason": "gone",
            },
            {
                "ledger_id": 9, "first_entry": 0, "last_entry": None, "class": "open", "bookies": ["b"],
                "reason": "in doubt",
            },
        ],
    }  # fmt: skip


async def test_the_status_of_a_new_cluster_is_quiet(store: MetadataStore) -> None:
    status = await operators.read_status(store)
    assert status.is_quiet
    fields = operators.status_fields(status, {}, now_ms=1, blocked_max=None)
    assert (fields["auditor"], fields["last_round_seconds_ago"], fields["blocked"]) == (None, None, [])


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200), ("1.5d", 129_600)])
def test_times_are_given_with_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "h", "-1h", "2 h", "1h30m", "1H"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="not a time"):
        parse_duration(text)
