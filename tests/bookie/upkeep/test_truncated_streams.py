"""A garbage round trims the streams that a bookie holds to where their metadata say that they begin (rule U5)."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.upkeep.metadata_check import KnownStart, MetadataCheck
from octavo.bookie.upkeep.truncated import Trimmed, TruncatedStreams
from octavo.metadata import MetadataStore
from octavo.metadata.stream.model import StreamMetadata
from octavo.metadata.updates.garbage_hold import GarbageHold, set_hold
from octavo.protocol.errors import MetadataError, MetadataUnavailableError
from octavo.protocol.ids import LedgerId
from octavo.protocol.places import place
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.copies import BOOKIE, StorageHost
from support.metadata.ledger_metadata import fragment, open_ledger
from support.metadata.stream_metadata import open_stream, stream_fragment

NOTHING = Trimmed(0, 0, 0)

pytestmark = pytest.mark.usefixtures("logged")


def stream(ledger_id: int, start: int) -> StreamMetadata:
    """Positions 0 to 4 in term 1, 5 to 9 in term 2, and from 10 on in term 5, from ``start`` on."""
    whole = open_stream(stream_fragment(1, 0, 0), stream_fragment(2, 0, 5), stream_fragment(5, 0, 10))
    return replace(whole, ledger_id=LedgerId(ledger_id)).truncated(start)


async def held_stream(host: StorageHost, start: int) -> LedgerScript:
    """A stream that the host holds whole, with an entry above the end of term 1, to which no fragment refers."""
    script = LedgerScript(await host.store.allocate_ledger_id())
    ids = [*(place(1, one) for one in range(6)), *(place(2, one) for one in range(5)), place(5, 0)]
    await host.storage.writer.copy_in(script.ledger_id, script.entries(ids))
    await host.store.create_stream(stream(script.ledger_id, start))
    return script


@pytest.fixture
async def truncated(host: StorageHost) -> TruncatedStreams:
    return await made(host)


class Store:
    """The store, but for what it answers about one ledger."""

    def __init__(self, store: MetadataStore, read_either: Callable[[LedgerId], Awaitable[Any]]) -> None:
        self._store = store
        self.read_either = read_either

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def made(host: StorageHost, read_either: Any = None, **settings: Any) -> TruncatedStreams:
    check = MetadataCheck(host.store, KnownStart(BOOKIE, await host.store.cluster_id(), 1))
    store = host.store if read_either is None else cast("MetadataStore", Store(host.store, read_either))
    return TruncatedStreams(host.storage, store, check, **settings)


STARTS = {
    0: place(1, 0), 3: place(1, 3), 4: place(1, 4), 5: place(2, 0), 9: place(2, 4), 10: place(5, 0), 99: place(5, 0),
}  # fmt: skip


@pytest.mark.parametrize("start", STARTS)
async def test_a_stream_is_trimmed_to_the_place_of_its_start(
    host: StorageHost, truncated: TruncatedStreams, start: int
) -> None:
    script = await held_stream(host, start)
    first_kept = STARTS[start]
    held = [*(place(1, one) for one in range(6)), *(place(2, one) for one in range(5)), place(5, 0)]
    below = [entry for one, entry in zip(held, script.entries(held), strict=True) if one < first_kept]
    assert await truncated.round() == Trimmed(bool(below), len(below), sum(map(len, below)))
    assert await truncated.round() == NOTHING
    assert truncated.trims == 1
    assert host.storage.ledgers.first_kept(script.ledger_id) == first_kept
    found: list[int] = []
    for term in (1, 2, 5):
        result = await host.storage.reader.read(
            script.ledger_id, place(term, 0), place(term, 9), entries_max=20, bytes_max=1 << 20
        )
        found += ids_of(result.entries)
        low = [one for one in range(place(term, 0), place(term, 10)) if one < first_kept]
        assert result.unknown == ([(low[0], low[-1])] if low else [])
    assert found == [one for one in held if one >= first_kept]


async def test_ledgers_with_one_writer_are_left_alone(host: StorageHost, truncated: TruncatedStreams) -> None:
    """Also one with ids as high as places."""
    script = LedgerScript(await host.store.allocate_ledger_id())
    await host.storage.writer.copy_in(script.ledger_id, script.entries([0, place(3, 0)]))
    await host.store.create_ledger(open_ledger(script.ledger_id, fragment(0, "abc")))
    assert await truncated.round() == NOTHING
    assert host.storage.ledgers.first_kept(script.ledger_id) == 0


async def test_space_comes_back_in_one_round(host: StorageHost, truncated: TruncatedStreams) -> None:
    script = LedgerScript(await host.store.allocate_ledger_id(), payload_bytes=1000)
    for first in range(0, 100, 10):
        await host.storage.writer.copy_in(
            script.ledger_id, script.entries([place(1, one) for one in range(first, first + 10)])
        )
        await host.storage.checkpoint()
    await host.store.create_stream(stream(script.ledger_id, 10))
    logs = host.storage.statistics().entry_logs
    assert logs > 3
    trimmed = await truncated.round()
    assert (trimmed.streams, trimmed.entries) == (1, 100), "what is in entry logs counts as what is in memory"
    assert trimmed.bytes > 100 * 1000
    result = await host.storage.compact(0.2, RateLimiter(1e12))
    assert (result.logs_removed >= logs - 1, result.bytes_copied) == (True, 0)


async def _hold(host: StorageHost) -> None:
    await set_hold(host.store, GarbageHold("older", datetime(2026, 1, 1, tzinfo=UTC)))


async def _older(host: StorageHost) -> None:
    """The metadata have another generation of the bookie than its directories."""
    cookie = await host.store.read_cookie(BOOKIE)
    assert cookie is not None
    await host.store.compare_and_set_cookie(replace(cookie.value, generation=7), cookie.version)


@pytest.mark.parametrize("happen", [_hold, _older])
@pytest.mark.parametrize("during", [False, True])
async def test_nothing_is_trimmed_by_metadata_that_may_be_older_than_the_data(
    host: StorageHost, happen: Callable[[StorageHost], Awaitable[None]], during: bool
) -> None:
    """On restored metadata a stream can be truncated although it is live in the newest ones."""
    script = await held_stream(host, 5)

    async def read_either(ledger_id: LedgerId) -> Any:
        found = await host.store.read_either(ledger_id)
        if during:
            await happen(host)
        return found

    truncated = await made(host, read_either)
    if not during:
        await happen(host)
    with pytest.raises(MetadataError):
        await truncated.round()
    assert host.storage.ledgers.first_kept(script.ledger_id) == 0


async def test_metadata_that_lag_behind_take_nothing_back(host: StorageHost, truncated: TruncatedStreams) -> None:
    script = await held_stream(host, 3)
    await host.storage.writer.trim(script.ledger_id, place(2, 2))
    assert await truncated.round() == NOTHING
    assert host.storage.ledgers.first_kept(script.ledger_id) == place(2, 2)


async def test_a_deleted_stream_and_unreadable_metadata_stop_no_other(
    host: StorageHost,
) -> None:
    gone, damaged, deleted_here, good = [await held_stream(host, 5) for _ in range(4)]
    await host.store.delete_ledger(gone.ledger_id)
    await host.storage.writer.delete(deleted_here.ledger_id)

    async def read_either(ledger_id: LedgerId) -> Any:
        if ledger_id == damaged.ledger_id:
            raise MetadataError("damaged")
        return await host.store.read_either(ledger_id)

    assert (await (await made(host, read_either)).round()).streams == 1
    assert host.storage.ledgers.first_kept(good.ledger_id) == place(2, 0)


async def test_a_store_that_does_not_answer_ends_the_round(host: StorageHost) -> None:
    script = await held_stream(host, 5)

    async def read_either(_ledger_id: LedgerId) -> Any:
        raise MetadataUnavailableError("no answer")

    truncated = await made(host, read_either)
    with pytest.raises(MetadataUnavailableError):
        await truncated.round()
    assert host.storage.ledgers.first_kept(script.ledger_id) == 0


async def test_rounds_take_many_streams_in_turn(host: StorageHost) -> None:
    scripts = [await held_stream(host, 5) for _ in range(5)]
    truncated = await made(host, streams_per_round=2)
    assert [(await truncated.round()).streams for _ in range(4)] == [2, 2, 1, 0]
    assert all(host.storage.ledgers.first_kept(script.ledger_id) == place(2, 0) for script in scripts)


async def test_a_stream_that_was_only_fenced_is_looked_at(host: StorageHost, truncated: TruncatedStreams) -> None:
    ledger_id = await host.store.allocate_ledger_id()
    await host.storage.writer.fence(ledger_id, b"key", 1)
    await host.store.create_stream(stream(ledger_id, 5))
    await host.storage.checkpoint()
    await host.restart()
    truncated = await made(host)
    assert await truncated.round() == NOTHING, "the bookie held nothing of what was truncated"
    assert truncated.trims == 1
