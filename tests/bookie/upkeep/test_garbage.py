"""Which ledgers a bookie forgets, and everything that keeps it from forgetting the wrong ones (rule B5)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.bookie.upkeep.garbage import DELETIONS_AT_ONCE, Collection, GarbageCollector
from octavo.bookie.upkeep.metadata_check import KnownStart, MetadataCheck
from octavo.bookie.upkeep.tombstone_reversal import Reviver
from octavo.metadata import Cookie, MetadataStore, open_metadata_store
from octavo.metadata.store.values import Version, Versioned
from octavo.metadata.updates.garbage_hold import DOCUMENT, GarbageHold, set_hold
from octavo.protocol.errors import (
    LedgerFencedError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from octavo.protocol.ids import BookieId, LedgerId
from octavo.protocol.places import place
from support.clusters.ledgers import LedgerScript
from support.disks.faulty_filesystem import MemoryFileSystem
from support.metadata.ledger_metadata import open_ledger
from support.metadata.memory_stores import memory_uri
from support.metadata.stream_metadata import open_stream

pytestmark = pytest.mark.usefixtures("logged")

SETTINGS = StorageSettings(
    checkpoint_seconds=3600, journal=JournalSettings(segment_bytes=64 * 1024, first_fill_bytes=0)
)
BOOKIE = BookieId("b1")


@pytest.fixture
async def store(request: pytest.FixtureRequest) -> AsyncIterator[MetadataStore]:
    async with await open_metadata_store(memory_uri(request.node.name), create=True) as opened:
        await opened.create_cookie(Cookie(bookie_id=BOOKIE, generation=1, address="h:1", body=b"token"))
        yield opened


@pytest.fixture
async def storage() -> AsyncIterator[Storage]:
    opened = await Storage.open(
        MemoryFileSystem(),
        directory=Path("/d"),
        journal_directory=Path("/j"),
        settings=SETTINGS,
        on_fatal=lambda _error: None,
    )
    yield opened
    await opened.close()


class Doctored:
    """A metadata store of which some answers are not what they should be."""

    def __init__(self, store: MetadataStore, **answers: Callable[..., object]) -> None:
        self._store = store
        self._answers = answers

    def __getattr__(self, name: str) -> object:
        return self._answers.get(name) or getattr(self._store, name)


async def collector_for(storage: Storage, store: MetadataStore | Doctored) -> GarbageCollector:
    cluster_id = await store.cluster_id()  # type: ignore[operator]
    return collector_of(storage, store, KnownStart(BOOKIE, cluster_id, 1))


def collector_of(storage: Storage, store: MetadataStore | Doctored, start: KnownStart) -> GarbageCollector:
    return GarbageCollector(storage, store, MetadataCheck(store, start))  # type: ignore[arg-type]


async def held(storage: Storage, store: MetadataStore, count: int) -> list[LedgerId]:
    """Ledgers that the metadata know, with an entry each here."""
    ids = []
    for _ in range(count):
        ledger_id = await store.allocate_ledger_id()
        await store.create_ledger(open_ledger(ledger_id))
        script = LedgerScript(ledger_id)
        await storage.writer.add(script.ledger_id, script.key, [script.entry(0)], recovery=False)
        ids.append(ledger_id)
    return ids


async def test_deleted_ledgers_go_and_the_others_stay(storage: Storage, store: MetadataStore) -> None:
    ids = await held(storage, store, 6)
    for ledger_id in ids[1::2]:
        await store.delete_ledger(ledger_id)
    collector = await collector_for(storage, store)
    assert await collector.collect() == Collection(6, 3)
    assert storage.ledgers.live_ids() == ids[::2]
    assert await collector.collect() == Collection(3, 0)


async def test_entries_of_a_stream_stay_until_it_is_deleted(storage: Storage, store: MetadataStore) -> None:
    """Rule B5: in every state, and with entries of terms that its metadata know nothing of."""
    states = (
        open_stream(),
        open_stream().in_recovery(),
        open_stream().at_rest(place(1, 5), 60),
        open_stream().at_rest(place(1, 5), 60).closed(),
    )
    ids = []
    for metadata in (*states, *states):
        ledger_id = await store.allocate_ledger_id()
        await store.create_stream(replace(metadata, ledger_id=ledger_id))
        script = LedgerScript(ledger_id)
        for term in (1, 7):
            entry = script.entry(place(term, 3), lac=place(term, 2))
            await storage.writer.add(script.ledger_id, script.key, [entry], recovery=False, term=term)
        ids.append(ledger_id)
    collector = await collector_for(storage, store)
    assert await collector.collect() == Collection(8, 0)
    for ledger_id in ids[:4]:
        await store.delete_ledger(ledger_id)
    assert await collector.collect() == Collection(8, 4)
    assert storage.ledgers.live_ids() == ids[4:]
    for ledger_id in ids[4:]:
        for term in (1, 7):
            first, last = place(term, 0), place(term, 9)
            assert len((await storage.reader.read(ledger_id, first, last, entries_max=9, bytes_max=9999)).entries) == 1


async def test_nothing_is_dropped_while_garbage_collection_is_on_hold(storage: Storage, store: MetadataStore) -> None:
    (ledger_id,) = await held(storage, store, 1)
    await store.delete_ledger(ledger_id)
    await held(storage, store, 1)
    await set_hold(store, GarbageHold("restored from a dump", datetime(2026, 1, 1, tzinfo=UTC)))
    collector = await collector_for(storage, store)
    with pytest.raises(MetadataError, match=r"on hold since 2026-01-01.*restored from a dump"):
        await collector.collect()
    assert ledger_id in storage.ledgers.live_ids()
    await store.delete_document(DOCUMENT)
    assert await collector.collect() == Collection(2, 1)


async def test_late_add_to_a_collected_ledger_does_not_bring_it_back(storage: Storage, store: MetadataStore) -> None:
    ids = await held(storage, store, 2)
    await store.delete_ledger(ids[0])
    await (await collector_for(storage, store)).collect()
    script = LedgerScript(ids[0])
    with pytest.raises(NoSuchLedgerError):
        storage.writer.add(script.ledger_id, script.key, [script.entry(1)], recovery=False)
    assert storage.ledgers.live_ids() == ids[1:]


async def test_ledger_made_while_the_metadata_are_read_is_no_garbage(storage: Storage, store: MetadataStore) -> None:
    ids = await held(storage, store, 2)

    async def listing() -> AsyncIterator[LedgerId]:
        snapshot = [ledger_id async for ledger_id in store.list_ledgers()]
        ids.extend(await held(storage, store, 1))  # created, and written to, after the snapshot
        for ledger_id in snapshot:
            yield ledger_id

    collector = await collector_for(storage, Doctored(store, list_ledgers=listing))
    assert (await collector.collect()).deleted == 0
    assert storage.ledgers.live_ids() == ids


async def test_candidate_that_exists_when_it_is_asked_for_singly_stays(storage: Storage, store: MetadataStore) -> None:
    ids = await held(storage, store, 3)

    async def listing() -> AsyncIterator[LedgerId]:
        yield ids[1]  # a stale or wrong listing

    collector = await collector_for(storage, Doctored(store, list_ledgers=listing))
    assert (await collector.collect()).deleted == 0
    assert storage.ledgers.live_ids() == ids


async def _fails() -> AsyncIterator[LedgerId]:
    raise MetadataUnavailableError("no answer")
    yield LedgerId(0)


async def _unknown(_bookie_id: BookieId) -> Versioned[Cookie] | None:
    return None


async def _other_cluster() -> str:
    return "another"


async def _all_absent(ledger_ids: Sequence[LedgerId]) -> list[LedgerId]:
    return list(ledger_ids)


async def _older_cookie(bookie_id: BookieId) -> Versioned[Cookie]:
    return Versioned(Cookie(bookie_id=bookie_id, generation=0, address="h:1", body=b"token"), Version(1))


async def _nothing_allocated() -> LedgerId:
    return LedgerId(0)


def _disordered(ids: Sequence[LedgerId]) -> Callable[[], AsyncIterator[LedgerId]]:
    async def listing() -> AsyncIterator[LedgerId]:
        for ledger_id in reversed(ids):
            yield ledger_id

    return listing


async def _nothing() -> AsyncIterator[LedgerId]:
    for ledger_id in list[LedgerId]():
        yield ledger_id


@pytest.mark.parametrize(
    ("name", "answer", "error"),
    [
        ("list_ledgers", _fails, MetadataUnavailableError),
        ("read_cookie", _unknown, MetadataError),
        ("list_ledgers", _disordered, MetadataError),
        ("cluster_id", _other_cluster, MetadataError),
        ("read_cookie", _older_cookie, MetadataError),
    ],
)
async def test_nothing_is_deleted_on_the_word_of_metadata_that_cannot_be_relied_upon(
    storage: Storage, store: MetadataStore, name: str, answer: Callable[..., object], error: type[Exception]
) -> None:
    ids = await held(storage, store, 3)
    chosen = _disordered(ids) if answer is _disordered else answer
    doctored = Doctored(store, confirm_absent=_all_absent, **{name: chosen})
    collector = collector_of(storage, doctored, KnownStart(BOOKIE, await store.cluster_id(), 1))
    with pytest.raises(error):
        await collector.collect()
    assert storage.ledgers.live_ids() == ids


async def test_an_empty_listing_counts_only_when_it_is_seen_twice_in_a_row(
    storage: Storage, store: MetadataStore
) -> None:
    ids = await held(storage, store, 2)
    empty = await collector_for(storage, Doctored(store, list_ledgers=_nothing, confirm_absent=_all_absent))
    assert (await empty.collect()).deleted == 0
    assert storage.ledgers.live_ids() == ids
    assert (await empty.collect()).deleted == 2


async def test_metadata_that_fail_in_the_middle_of_the_confirmations_delete_no_more(
    storage: Storage, store: MetadataStore
) -> None:
    ids = await held(storage, store, DELETIONS_AT_ONCE + 3)
    answers = iter([_all_absent])

    async def confirm_absent(ledger_ids: Sequence[LedgerId]) -> list[LedgerId]:
        for answer in answers:
            return await answer(ledger_ids)
        raise MetadataUnavailableError("no answer")

    async def only_the_last() -> AsyncIterator[LedgerId]:
        yield ids[-1]

    collector = await collector_for(storage, Doctored(store, list_ledgers=only_the_last, confirm_absent=confirm_absent))
    with pytest.raises(MetadataUnavailableError):
        await collector.collect()
    assert storage.ledgers.live_ids() == ids[DELETIONS_AT_ONCE:]


# --- metadata that are older than the bookie ----------------------------------------------------------------------


async def test_a_ledger_whose_id_was_never_allocated_stays(storage: Storage, store: MetadataStore) -> None:
    """A client has fenced it before it was created, or the metadata were restored from a backup."""
    (known,) = await held(storage, store, 1)
    script = LedgerScript(known + 100)
    await storage.writer.fence(script.ledger_id, script.key)
    assert await (await collector_for(storage, store)).collect() == Collection(2, 0, never_allocated=1)
    assert storage.ledgers.live_ids() == [known, known + 100]


async def test_nothing_is_deleted_when_the_metadata_have_allocated_fewer_ids_than_before(
    storage: Storage, store: MetadataStore
) -> None:
    ids = await held(storage, store, 3)
    start = KnownStart(BOOKIE, await store.cluster_id(), 1)
    answers = {"stop": LedgerId(ids[-1] + 1)}

    async def ledger_ids_stop() -> LedgerId:
        return answers["stop"]

    doctored = Doctored(store, ledger_ids_stop=ledger_ids_stop)
    collector = collector_of(storage, doctored, start)
    await collector.collect()
    answers["stop"] = ids[-1]
    await store.delete_ledger(ids[0])
    with pytest.raises(MetadataError, match="restored from a backup"):
        await collector.collect()
    assert storage.ledgers.live_ids() == ids


async def test_nothing_is_deleted_when_the_id_that_limits_the_bookies_doubt_was_never_allocated(
    store: MetadataStore,
) -> None:
    check = MetadataCheck(
        Doctored(store, ledger_ids_stop=_nothing_allocated),  # type: ignore[arg-type]
        KnownStart(BOOKIE, await store.cluster_id(), 1),
    )
    assert await check.check() == 0
    with pytest.raises(MetadataError, match="id 0 was allocated before"):
        await check.check(allocated=0)


async def test_bookie_notes_durably_which_ids_were_allocated_and_again_only_when_there_are_more(
    storage: Storage, store: MetadataStore
) -> None:
    ids = await held(storage, store, 2)
    noted: list[LedgerId] = []

    async def note(ids_stop: LedgerId) -> None:
        noted.append(ids_stop)

    start = KnownStart(BOOKIE, await store.cluster_id(), 1, ledger_ids_stop=ids[0])
    collector = GarbageCollector(storage, store, MetadataCheck(store, start, note))
    await collector.collect()
    await collector.collect()
    assert noted == [ids[1] + 1]
    (later,) = await held(storage, store, 1)
    await collector.collect()
    assert noted == [ids[1] + 1, later + 1]


async def test_nothing_is_deleted_when_fewer_ids_are_allocated_than_at_the_start(
    storage: Storage, store: MetadataStore
) -> None:
    ids = await held(storage, store, 2)
    await store.delete_ledger(ids[0])
    start = KnownStart(BOOKIE, await store.cluster_id(), 1, ledger_ids_stop=LedgerId(ids[1] + 2))
    with pytest.raises(MetadataError, match="restored from a backup"):
        await collector_of(storage, store, start).collect()
    assert storage.ledgers.live_ids() == ids


# --- deleted by mistake ----------------------------------------------------------------------------------------------


async def test_a_ledger_deleted_before_it_was_created_is_revived_with_its_key_and_fence_and_is_in_doubt(
    storage: Storage, store: MetadataStore
) -> None:
    ledger_id = await store.allocate_ledger_id()
    script = LedgerScript(ledger_id)
    await storage.writer.add(script.ledger_id, script.key, [script.entry(0)], recovery=False)
    await storage.writer.fence(script.ledger_id, script.key)
    collector = await collector_for(storage, store)
    await collector.collect()
    await collector.collect()  # an empty list of ledgers counts when it is seen twice
    reviver = Reviver(storage, store, cluster_id=await store.cluster_id(), recheck_seconds=0.0)
    assert not await reviver.revive(ledger_id)
    await store.create_ledger(open_ledger(ledger_id))
    assert await reviver.revive(ledger_id)
    with pytest.raises(LedgerFencedError):
        storage.writer.add(script.ledger_id, script.key, [script.entry(1)], recovery=False)
    with pytest.raises(UnauthorizedError):
        storage.writer.fence(script.ledger_id, b"another key")
    view = storage.reader.last_add_confirmed(script.ledger_id)
    assert (view.fenced, view.in_doubt) == (True, True)
    result = await storage.reader.read(script.ledger_id, 0, 5, entries_max=10, bytes_max=1000)
    assert result.unknown[-1][1] == 5, "nothing is absent"
    await reviver.stop()


async def test_the_metadata_are_asked_once_for_many_late_adds_to_a_deleted_ledger(
    storage: Storage, store: MetadataStore
) -> None:
    asked: list[Sequence[LedgerId]] = []

    async def confirm_absent(ledger_ids: Sequence[LedgerId]) -> list[LedgerId]:
        asked.append(ledger_ids)
        return await store.confirm_absent(ledger_ids)

    ids = await held(storage, store, 3)
    for ledger_id in ids[:2]:
        await store.delete_ledger(ledger_id)
    await (await collector_for(storage, store)).collect()
    doctored = Doctored(store, confirm_absent=confirm_absent)
    reviver = Reviver(storage, doctored, cluster_id=await store.cluster_id())  # type: ignore[arg-type]
    answers = await asyncio.gather(*(reviver.revive(ledger_id) for ledger_id in ids[:2] * 50))
    assert not any(answers)
    assert not await reviver.revive(ids[0])
    assert asked == [ids[:2]]
    await reviver.stop()


async def test_without_metadata_a_deleted_ledger_stays_deleted_and_is_asked_for_again_later(
    storage: Storage, store: MetadataStore
) -> None:
    ids = await held(storage, store, 2)
    await store.delete_ledger(ids[0])
    await (await collector_for(storage, store)).collect()
    down = Doctored(store, confirm_absent=_unavailable)
    reviver = Reviver(storage, down, cluster_id=await store.cluster_id(), recheck_seconds=0.0)  # type: ignore[arg-type]
    assert not await reviver.revive(ids[0])
    assert storage.ledgers.is_deleted(ids[0])
    await reviver.stop()


async def _unavailable(_ledger_ids: Sequence[LedgerId]) -> list[LedgerId]:
    raise MetadataUnavailableError("no answer")
