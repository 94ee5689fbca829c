"""Copies of ledgers in which other bookies have taken this one's place are dropped, and the fence is kept (rule C8)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import pytest
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.upkeep.replaced import may_be_asked
from octavo.metadata import LedgerMetadata, MetadataStore, Versioned, open_metadata_store
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.metadata.stream.model import StreamMetadata
from octavo.metadata.stream.pages import page_document
from octavo.protocol.errors import BookieInDoubtError, LedgerFencedError, MetadataError, NoSuchLedgerError
from octavo.protocol.held_entries import Holdings
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from support.clusters.ledgers import LedgerScript
from support.disks.copies import BOOKIE, StorageHost
from support.disks.faulty_filesystem import MemoryFileSystem, run_until_crash
from support.metadata.ledger_metadata import bookie_ids, fragment, open_ledger
from support.metadata.memory_stores import memory_uri
from support.metadata.paged_streams import paged_stream, resting
from support.metadata.stream_metadata import open_stream, stream_fragment

pytestmark = pytest.mark.usefixtures("logged")


def closed(ledger_id: int, *ensembles: str, last: int = 9) -> LedgerMetadata:
    """A ledger closed at entry ``last``, with fragments of five entries; bookie ``b1`` is the letter B."""
    made = [fragment(5 * at, ensemble, 50 * at) for at, ensemble in enumerate(ensembles)]
    named = [replace(one, bookies=tuple(BOOKIE if name == "B" else name for name in one.bookies)) for one in made]
    return open_ledger(ledger_id, *named).closed(EntryId(last), 100)


def stream(ledger_id: int, *ensembles: str) -> StreamMetadata:
    """An open stream with a term of five entries on each of these; bookie ``b1`` is the letter B."""
    made = [stream_fragment(at + 1, 0, 5 * at, ensemble, 50 * at) for at, ensemble in enumerate(ensembles)]
    named = [replace(one, bookies=tuple(BOOKIE if name == "B" else name for name in one.bookies)) for one in made]
    return replace(open_stream(*named), ledger_id=LedgerId(ledger_id))


def rested(metadata: StreamMetadata) -> StreamMetadata:
    return metadata.at_rest(EntryId(metadata.last_fragment.first_entry_id + 4), 1000)


async def held_ledger(host: StorageHost, metadata: Callable[[int], EitherMetadata | None]) -> LedgerScript:
    """A ledger of ten entries that the host holds and that has been fenced there, with these metadata."""
    script = LedgerScript(await host.store.allocate_ledger_id())
    await host.storage.writer.add(script.ledger_id, script.key, script.entries(range(10)), recovery=False)
    await host.storage.writer.fence(script.ledger_id, script.key)
    found = metadata(script.ledger_id)
    if isinstance(found, LedgerMetadata):
        await host.store.create_ledger(found)
    elif found is not None:
        await host.store.create_stream(found)
    return script


NAMED: dict[str, tuple[Callable[[int], EitherMetadata | None], bool]] = {
    "closed, other bookies only": (lambda ledger_id: closed(ledger_id, "xyz", "xyw"), True),
    "closed, named in the first fragment": (lambda ledger_id: closed(ledger_id, "Byz", "xyw"), False),
    "closed, named in the last fragment": (lambda ledger_id: closed(ledger_id, "xyz", "xyB"), False),
    "open, other bookies only": (lambda ledger_id: open_ledger(ledger_id, fragment(0, "xyz")), False),
    "in recovery, other bookies": (lambda ledger_id: open_ledger(ledger_id, fragment(0, "xyz")).in_recovery(), False),
    "deleted": (lambda _ledger_id: None, False),
    "open stream of other bookies": (lambda ledger_id: stream(ledger_id, "xyz", "xyw"), False),
    "stream being taken over": (lambda ledger_id: stream(ledger_id, "xyz").in_recovery(), False),
    "stream at rest": (lambda ledger_id: rested(stream(ledger_id, "xyz", "xyw")), False),
    "closed stream of other bookies": (lambda ledger_id: rested(stream(ledger_id, "xyz", "xyw")).closed(), True),
    "closed stream, in its first term": (lambda ledger_id: rested(stream(ledger_id, "Byz", "xyw")).closed(), False),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMED)
async def test_only_a_closed_ledger_that_does_not_name_the_bookie_is_dropped(host: StorageHost, case: str) -> None:
    metadata, dropped = NAMED[case]
    script = await held_ledger(host, metadata)
    assert [await host.replaced.round() for _ in range(3)] == [0, int(dropped), 0]
    assert host.storage.holds_entries(script.ledger_id) != dropped
    await host.restart()
    assert host.storage.holds_entries(script.ledger_id) != dropped


async def test_dropped_ledger_is_unknown_and_fenced_and_its_space_is_freed(host: StorageHost) -> None:
    script = await held_ledger(host, lambda ledger_id: closed(ledger_id, "xyz"))
    kept = await held_ledger(host, lambda ledger_id: closed(ledger_id, "xyB"))
    await host.storage.checkpoint()
    for _ in range(2):
        await host.replaced.round()
    for _ in range(2):
        result = await host.storage.reader.read(script.ledger_id, 0, 20, entries_max=99, bytes_max=99_999)
        assert (result.entries, result.unknown, result.last_covered) == ([], [(0, 9)], 20), "not denied"
        assert host.storage.reader.last_add_confirmed(script.ledger_id).in_doubt
        with pytest.raises(BookieInDoubtError):
            await host.storage.reader.list_entries(script.ledger_id)
        assert await host.copies.verified(script.ledger_id, 0, 9) == Holdings(9, ((0, 9),), ())
        assert host.storage.reader.last_add_confirmed(script.ledger_id).fenced
        with pytest.raises(LedgerFencedError):
            await host.storage.writer.add(script.ledger_id, script.key, [script.entry(10)], recovery=False)
        assert script.ledger_id in host.storage.ledgers.live_ids(), "the collector deletes it with its ledger"
        await host.restart()
    for _ in range(2):
        await host.storage.compact(0.9, RateLimiter(1e12))
    statistics = host.storage.statistics()
    assert statistics.logs_compacted == 1
    assert statistics.compaction_bytes_copied == sum(map(len, kept.entries(range(10)))), "of the other ledger alone"
    result = await host.storage.reader.read(kept.ledger_id, 0, 20, entries_max=99, bytes_max=99_999)
    assert result.entries == kept.entries(range(10))
    await host.storage.writer.delete(script.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await host.copies.missing(script.ledger_id, 0, 1)


async def test_copies_are_kept_for_a_while(store: MetadataStore) -> None:
    host = await StorageHost(MemoryFileSystem(), store, keep_seconds=3600.0).start()
    script = await held_ledger(host, lambda ledger_id: closed(ledger_id, "xyz"))
    assert [await host.replaced.round() for _ in range(3)] == [0, 0, 0]
    assert host.replaced.waiting == 1
    assert host.storage.holds_entries(script.ledger_id)
    await host.storage.close()


async def test_copies_of_a_ledger_that_is_being_repaired_here_are_kept(host: StorageHost) -> None:
    """A target holds copies before it names itself."""
    script = await held_ledger(host, lambda ledger_id: closed(ledger_id, "xyz"))
    for _ in range(3):
        assert await host.replaced.round() == 0
        await host.copies.copy_in(script.ledger_id, script.entries(range(10)))
    assert await host.replaced.round() == 0
    assert await host.replaced.round() == 1


async def test_bookie_that_names_itself_under_the_lock_keeps_its_copies(host: StorageHost) -> None:
    """Rule C1: nothing is dropped while the lock is held, and no round waits for it."""
    script = await held_ledger(host, lambda ledger_id: closed(ledger_id, "xyz"))
    other = await held_ledger(host, lambda ledger_id: closed(ledger_id, "xyz"))
    await host.replaced.round()
    async with host.copies.lock(script.ledger_id):
        assert await host.replaced.round() == 1
        assert host.storage.holds_entries(script.ledger_id)
        assert not host.storage.holds_entries(other.ledger_id)
        found = await host.store.read_ledger(script.ledger_id)
        await host.store.compare_and_set_ledger(found.value.with_member(EntryId(0), 1, BOOKIE), found.version)
    for _ in range(3):
        assert await host.replaced.round() == 0
    assert host.storage.holds_entries(script.ledger_id)


async def test_metadata_are_read_synced_under_the_lock_before_copies_are_dropped(store: MetadataStore) -> None:
    """A change that this bookie made under the lock must be seen, so the read is made current inside the lock."""
    locked: list[bool] = []

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def confirm_absent(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerId]:
            locked.extend(host.storage.copy_locks.is_held(ledger_id) for ledger_id in ledger_ids)
            return await store.confirm_absent(ledger_ids)

    host = await StorageHost(MemoryFileSystem(), cast("MetadataStore", Watched())).start()
    script = await held_ledger(host, lambda ledger_id: closed(ledger_id, "xyz"))
    await host.replaced.round()
    assert locked == []
    assert await host.replaced.round() == 1
    assert locked == [True]
    assert host.storage.copy_locks.count == 0
    assert not host.storage.holds_entries(script.ledger_id)
    await host.storage.close()


async def test_bookie_that_is_named_again_while_a_round_drops_copies_keeps_them(store: MetadataStore) -> None:
    """Repair, or a client, names it after the round has looked and before it has the lock: only a second look sees."""

    class Named:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def confirm_absent(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerId]:
            for ledger_id in ledger_ids:
                found = await store.read_ledger(ledger_id)
                await store.compare_and_set_ledger(found.value.with_member(EntryId(0), 1, BOOKIE), found.version)
            return await store.confirm_absent(ledger_ids)

    host = await StorageHost(MemoryFileSystem(), cast("MetadataStore", Named())).start()
    script = await held_ledger(host, lambda ledger_id: closed(ledger_id, "xyz"))
    assert [await host.replaced.round() for _ in range(3)] == [0, 0, 0]
    assert host.storage.holds_entries(script.ledger_id)
    assert (await host.copies.verified(script.ledger_id, 0, 9)) == Holdings(9, (), ())
    await host.storage.close()


async def test_dropped_ledger_takes_new_copies_and_nothing_of_the_old_ones_is_left(host: StorageHost) -> None:
    script = await held_ledger(host, lambda ledger_id: closed(ledger_id, "xyz"))
    other = await held_ledger(host, lambda ledger_id: closed(ledger_id, "xyB"))
    for compacted in (False, True):
        await host.storage.checkpoint()
        for _ in range(2):
            await host.replaced.round()
        assert not host.storage.holds_entries(script.ledger_id)
        if compacted:
            for _ in range(2):
                await host.storage.compact(0.99, RateLimiter(1e12))
        await host.copies.copy_in(script.ledger_id, script.entries([4, 5]))
        assert host.storage.holds_entries(script.ledger_id)
        for look in (host.copies.missing, host.copies.verified):
            assert await look(script.ledger_id, 0, 9) == Holdings(9, ((0, 3), (6, 9)), ())
            assert await look(other.ledger_id, 0, 9) == Holdings(9, (), ())
        await host.copies.copy_in(script.ledger_id, script.entries(range(10)))
        await host.cut_power(seed=1)
        assert await host.copies.verified(script.ledger_id, 0, 9) == Holdings(9, (), ())
    statistics = host.storage.statistics()
    assert (statistics.entries_damaged, statistics.index_damage_seen) == (0, 0)


@pytest.mark.parametrize("first", [2, 20], ids=["an id that was held", "an id above those held"])
async def test_late_add_to_a_dropped_ledger_brings_back_that_entry_alone(host: StorageHost, first: int) -> None:
    """The places of the old copies must not come back: the log that they are in may be gone. The others are not denied
    from then on either, and ordinary adds stay refused."""
    script = LedgerScript(await host.store.allocate_ledger_id())
    other = LedgerScript(await host.store.allocate_ledger_id())
    for one in (script, other):
        await host.storage.writer.add(one.ledger_id, one.key, one.entries(range(10)), recovery=False)
        await host.store.create_ledger(closed(one.ledger_id, "xyz" if one is script else "xyB"))
    await host.storage.checkpoint()
    for _ in range(2):
        await host.replaced.round()
    assert not host.storage.holds_entries(script.ledger_id)
    late = [script.entries([first]), script.entries([first, first + 2])]
    adds = [host.storage.writer.add(script.ledger_id, script.key, entries, recovery=True) for entries in late]
    for durable in adds:
        await durable
    held = [first, first + 2]
    lost = [(0, first - 1), (first + 1, first + 1), (first + 3, 30)]
    for restart in (False, True):
        if restart:
            await host.cut_power(seed=1)
        for _ in range(2):
            await host.storage.compact(0.99, RateLimiter(1e12))
        read = await host.storage.reader.read(script.ledger_id, 0, 30, entries_max=99, bytes_max=99_999)
        assert (read.entries, read.unknown) == (script.entries(held), lost)
        with pytest.raises(BookieInDoubtError):
            host.storage.writer.add(script.ledger_id, script.key, [script.entry(31)], recovery=False)
        assert await host.copies.missing(other.ledger_id, 0, 9) == Holdings(9, (), ())
    statistics = host.storage.statistics()
    assert (statistics.entries_damaged, statistics.index_damage_seen) == (0, 0)


async def test_add_whose_look_up_ran_while_its_ledger_was_dropped_is_stored(host: StorageHost) -> None:
    """What the look-up found is held no longer."""
    script = await held_ledger(host, lambda ledger_id: closed(ledger_id, "xyz"))
    await host.storage.checkpoint()
    add = host.storage.writer.add(script.ledger_id, script.key, script.entries([4]), recovery=True)
    await host.storage.writer.drop(script.ledger_id)
    await add
    for _ in range(2):
        await host.storage.compact(0.99, RateLimiter(1e12))
    read = await host.storage.reader.read(script.ledger_id, 0, 30, entries_max=99, bytes_max=99_999)
    assert (read.entries, read.unknown) == (script.entries([4]), [(0, 3), (5, 30)])


async def test_time_for_which_copies_are_kept_begins_anew_when_their_repair_ends(
    host: StorageHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repair that is cancelled while the metadata store does not answer may be named later (rule C1)."""
    script = await held_ledger(host, lambda ledger_id: closed(ledger_id, "xyz"))
    await host.replaced.round()
    assert host.replaced.waiting == 1
    async with host.copies.lock(script.ledger_id):
        pass
    assert host.replaced.waiting == 0
    assert await host.replaced.round() == 0
    assert host.storage.holds_entries(script.ledger_id)


async def test_offline_check_finds_nothing_wrong_with_dropped_and_copied_ledgers(host: StorageHost) -> None:
    script = await held_ledger(host, lambda ledger_id: closed(ledger_id, "xyz"))
    await held_ledger(host, lambda ledger_id: closed(ledger_id, "xyz"))
    for _ in range(2):
        await host.replaced.round()
    for _ in range(2):
        await host.storage.compact(0.99, RateLimiter(1e12))
    await host.copies.copy_in(script.ledger_id, script.entries([4, 5]))
    await host.storage.close()
    assert await host.offline_findings() == []
    await host.start()


async def test_stale_or_older_metadata_drop_nothing(host: StorageHost) -> None:
    script = await held_ledger(host, lambda ledger_id: closed(ledger_id, "xyz"))
    await host.replaced.round()
    found = await host.store.read_cookie(BOOKIE)
    assert found is not None
    await host.store.compare_and_set_cookie(replace(found.value, generation=7), found.version)
    with pytest.raises(MetadataError, match="generation 7"):
        await host.replaced.round()
    assert host.storage.holds_entries(script.ledger_id)


async def test_ledgers_are_looked_at_in_turn_and_hints_at_once(store: MetadataStore) -> None:
    read: list[int] = []

    class Watched:
        """The store, noting which ledgers are read."""

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def read_either(self, ledger_id: LedgerId) -> Versioned[EitherMetadata]:
            read.append(ledger_id)
            return await store.read_either(ledger_id)

    watched = cast("MetadataStore", Watched())
    host = await StorageHost(MemoryFileSystem(), watched, ledgers_per_round=2).start()
    scripts = [await held_ledger(host, lambda ledger_id: closed(ledger_id, "xyz")) for _ in range(5)]
    ids = [script.ledger_id for script in scripts]
    host.copies.unnamed([ids[4], LedgerId(10**6)])
    rounds = []
    for _ in range(4):
        await host.replaced.round()
        rounds.append(sorted(set(read)))
        read.clear()
    assert rounds[0] == [ids[0], ids[1], ids[4]]
    assert set(ids[2:4]) <= set(rounds[1])
    assert host.replaced.dropped == 5
    assert host.replaced.waiting == 0
    await host.storage.close()


async def test_drop_is_durable_before_anything_is_removed() -> None:
    """The power is cut at every operation: what is not dropped has all its entries."""
    for crash_at in range(1, 200):
        async with await open_metadata_store("memory://", create=True) as store:
            filesystem = MemoryFileSystem()
            made: list[LedgerScript] = []

            async def drop(
                filesystem: MemoryFileSystem = filesystem,
                store: MetadataStore = store,
                made: list[LedgerScript] = made,
                crash_at: int = crash_at,
            ) -> None:
                host = await StorageHost(filesystem, store).start()
                made.append(await held_ledger(host, lambda ledger_id: closed(ledger_id, "xyz")))
                await host.storage.checkpoint()
                await host.replaced.round()
                filesystem.crash_at = filesystem.operations + crash_at
                await host.replaced.round()
                for _ in range(2):
                    await host.storage.compact(0.99, RateLimiter(1e12))
                await host.storage.close()

            crashed = await run_until_crash(filesystem, drop)
            (script,) = made
            survivors = [filesystem.after_crash(seed=seed) for seed in range(2)]
            for survivor in survivors:
                again = await StorageHost(survivor, store).start()
                if again.storage.holds_entries(script.ledger_id):
                    assert await again.copies.verified(script.ledger_id, 0, 9) == Holdings(9, (), ())
                with pytest.raises(LedgerFencedError):
                    await again.storage.writer.add(script.ledger_id, script.key, [script.entry(10)], recovery=False)
                await again.storage.close()
            if not crashed:
                assert crash_at > 10
                return
    raise AssertionError("the workload never got to its end")


async def test_bookie_may_be_asked_until_the_ledger_is_closed_without_it() -> None:
    async with await open_metadata_store(memory_uri("asked")) as store:
        for case, (metadata, dropped) in NAMED.items():
            found = metadata(7)
            if found is not None:
                assert await may_be_asked(store, found, BOOKIE) != dropped, case


async def test_bookie_that_a_page_names_may_be_asked() -> None:
    """Rule U1: a page is a part of the metadata, also of a stream that is closed."""
    async with await open_metadata_store(memory_uri("asked")) as store:
        root, pages = paged_stream(20, 4, 6)
        for page in pages:
            await store.create_document(page_document(root.ledger_id, page.reference), page.value)
        tail = replace(root.fragments[0], bookies=bookie_ids(*"xyz"))
        closed = resting(replace(root, fragments=tuple(replace(one, bookies=tail.bookies) for one in root.fragments)))
        closed = closed.closed()
        assert not closed.members & set("abcd")
        assert await may_be_asked(store, closed, BookieId("a"))
        assert await may_be_asked(store, closed, BookieId("x"))
        assert not await may_be_asked(store, closed, BookieId("q"))
        assert not await may_be_asked(store, closed.truncated(30), BookieId("a"))
