"""Which ledgers a bookie forgets, and everything that keeps it from forgetting the wrong ones (rule B5)."""

from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping, Sequence
from pathlib import Path

import pytest
import structlog
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.bookie.upkeep.garbage import GarbageCollector
from octavo.metadata import Cookie, MetadataStore, open_metadata_store
from octavo.metadata.store import Versioned
from octavo.protocol.errors import MetadataError, MetadataUnavailableError, NoSuchLedgerError
from octavo.protocol.ids import BookieId, LedgerId
from support.faulty_filesystem import MemoryFileSystem
from support.ledger_metadata import open_ledger
from support.ledgers import LedgerScript

SETTINGS = StorageSettings(
    checkpoint_seconds=3600, journal=JournalSettings(segment_bytes=64 * 1024, first_fill_bytes=0)
)
BOOKIE = BookieId("b1")


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[MutableMapping[str, object]]]:
    with structlog.testing.capture_logs() as events:
        yield events


@pytest.fixture
async def store(request: pytest.FixtureRequest) -> AsyncIterator[MetadataStore]:
    async with await open_metadata_store(f"memory://{request.node.name}", create=True) as opened:
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
    return GarbageCollector(storage, store, bookie_id=BOOKIE, cluster_id=await store.cluster_id())  # type: ignore[arg-type,operator]


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
    assert await collector.collect() == (6, 3)
    assert storage.ledgers.live_ids() == ids[::2]
    assert await collector.collect() == (3, 0)


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


async def _gone(ledger_id: LedgerId) -> object:
    raise NoSuchLedgerError(f"ledger {ledger_id}")


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
    ],
)
async def test_nothing_is_deleted_on_the_word_of_metadata_that_cannot_be_relied_upon(
    storage: Storage, store: MetadataStore, name: str, answer: Callable[..., object], error: type[Exception]
) -> None:
    ids = await held(storage, store, 3)
    chosen = _disordered(ids) if answer is _disordered else answer
    collector = GarbageCollector(
        storage,
        Doctored(store, read_ledger=_gone, **{name: chosen}),  # type: ignore[arg-type]
        bookie_id=BOOKIE,
        cluster_id=await store.cluster_id(),
    )
    with pytest.raises(error):
        await collector.collect()
    assert storage.ledgers.live_ids() == ids


async def test_an_empty_listing_counts_only_when_it_is_seen_twice_in_a_row(
    storage: Storage, store: MetadataStore
) -> None:
    ids = await held(storage, store, 2)
    empty = await collector_for(storage, Doctored(store, list_ledgers=_nothing, read_ledger=_gone))
    assert (await empty.collect()).deleted == 0
    assert storage.ledgers.live_ids() == ids
    assert (await empty.collect()).deleted == 2


async def test_metadata_that_fail_in_the_middle_of_the_confirmations_delete_no_more(
    storage: Storage, store: MetadataStore
) -> None:
    ids = await held(storage, store, 3)

    async def read_ledger(ledger_id: LedgerId) -> object:
        raise NoSuchLedgerError("gone") if ledger_id == ids[0] else MetadataUnavailableError("no answer")

    async def only_the_last() -> AsyncIterator[LedgerId]:
        yield ids[-1]

    collector = await collector_for(storage, Doctored(store, list_ledgers=only_the_last, read_ledger=read_ledger))
    with pytest.raises(MetadataUnavailableError):
        await collector.collect()
    assert storage.ledgers.live_ids() == ids[1:]
