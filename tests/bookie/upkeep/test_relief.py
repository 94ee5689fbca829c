"""Ranges of streams that other bookies hold are given up, and not denied (rule C11)."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.journal.format import RecordKind
from octavo.bookie.storage.cache import WriteCache
from octavo.bookie.storage.ledger_state import (
    LedgerState,
    PackedStates,
    decode_ledger_record,
    decode_relieved_below,
    encode_relief,
    relieved_below_in,
)
from octavo.bookie.storage.ledgers import LedgerTable
from octavo.bookie.storage.manifest_keeper import MANIFEST_NAME
from octavo.bookie.storage.replay import _replay_record
from octavo.bookie.upkeep.relieved import unnamed_ranges
from octavo.bookie.upkeep.replaced import READS_AT_ONCE
from octavo.metadata import MetadataStore, Versioned
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.metadata.stream.model import StreamMetadata
from octavo.metadata.stream.pages import page_document
from octavo.metadata.updates.cluster_release import Release, write_release
from octavo.protocol.errors import BookieInDoubtError, MetadataError, TermOverError
from octavo.protocol.held_entries import Holdings
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.places import place
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.copies import BOOKIE, StorageHost
from support.disks.faulty_filesystem import MemoryFileSystem
from support.disks.held_disk import HeldDisk
from support.metadata.paged_streams import paged_stream
from support.metadata.stream_metadata import open_stream, stream_fragment

pytestmark = pytest.mark.usefixtures("logged")

UNLIMITED = RateLimiter(1e12)


def stream(ledger_id: int, *ensembles: str) -> StreamMetadata:
    """An open stream with a term of five entries on each of these; bookie ``b1`` is the letter B."""
    made = [stream_fragment(at + 1, 0, 5 * at, ensemble, 50 * at) for at, ensemble in enumerate(ensembles)]
    named = [replace(one, bookies=tuple(BOOKIE if name == "B" else name for name in one.bookies)) for one in made]
    return replace(open_stream(*named), ledger_id=LedgerId(ledger_id))


def term(number: int, first: int = 0, last: int = 4) -> list[int]:
    return [place(number, at) for at in range(first, last + 1)]


async def add(host: StorageHost, script: LedgerScript, ids: list[int]) -> None:
    await host.storage.writer.add(script.ledger_id, script.key, script.entries(ids), recovery=True)


async def held_stream(host: StorageHost, *ensembles: str) -> LedgerScript:
    """A stream of which the host holds five entries of each term, in its index."""
    script = LedgerScript(await host.store.allocate_ledger_id())
    for number in range(1, len(ensembles) + 1):
        await add(host, script, term(number))
    await host.store.create_stream(stream(script.ledger_id, *ensembles))
    await host.storage.checkpoint()
    return script


async def close_stream(store: MetadataStore, ledger_id: LedgerId) -> None:
    """Its second term, the last one, ends with five entries."""
    found = await store.read_stream(ledger_id)
    await store.compare_and_set_stream(found.value.at_rest(EntryId(place(2, 4)), 1000).closed(), found.version)


async def rename(host: StorageHost, script: LedgerScript, *ensembles: str) -> None:
    found = await host.store.read_stream(script.ledger_id)
    await host.store.compare_and_set_stream(stream(script.ledger_id, *ensembles), found.version)


async def read(host: StorageHost, script: LedgerScript, number: int) -> tuple[list[int], list[tuple[int, int]]]:
    """What is held of a term, and what is unknown of it."""
    found = await host.storage.reader.read(
        script.ledger_id, place(number, 0), place(number, 4), entries_max=99, bytes_max=99_999
    )
    return ids_of(found.entries), found.unknown


WHOLE = [(place(1, 0), place(1, 4))]


@pytest.mark.parametrize(
    ("ensembles", "gone"),
    [
        (("xyz", "Bxy"), [1]),
        (("xyz", "xyz"), [1]),
        (("Bxy", "xyz", "Bxy"), [2]),
        (("xyz", "Bxy", "xyz", "yzw"), [1, 3]),
        (("Bxy", "Bxy", "xyz"), []),
        (("xyz",), []),
    ],
)
async def test_ranges_below_the_last_that_name_others_go_and_the_rest_stays(
    host: StorageHost, ensembles: tuple[str, ...], gone: list[int]
) -> None:
    script = await held_stream(host, *ensembles)
    await host.storage.writer.fence(script.ledger_id, script.key, 1)
    for _ in range(3):
        await host.replaced.round()
    for restart in (False, True):
        if restart:
            await host.cut_power(seed=1)
        for _ in range(2):
            await host.storage.compact(0.99, UNLIMITED)
        for number in range(1, len(ensembles) + 1):
            whole = (place(number, 0), place(number, 4))
            expected = ([], [whole]) if number in gone else (term(number), [])
            assert await read(host, script, number) == expected
            missing = await host.storage.reader.not_held(script.ledger_id, *whole)
            assert missing == Holdings(whole[1], (whole,) if number in gone else (), ())
            said = await host.storage.reader.missing(script.ledger_id, *whole)
            assert said == Holdings(whole[1], (), (whole,) if number in gone else ())
        if gone:
            with pytest.raises(BookieInDoubtError, match="has given up entries below"):
                await host.storage.reader.list_entries(script.ledger_id)
        listed = await host.storage.reader.list_entries(script.ledger_id, place(len(ensembles), 0))
        assert listed == [(place(len(ensembles), 0), place(len(ensembles), 4))]
        with pytest.raises(TermOverError):
            host.storage.writer.add(script.ledger_id, script.key, [script.entry(place(1, 5))], recovery=False, term=1)
        lac = host.storage.reader.last_add_confirmed(script.ledger_id, len(ensembles))
        assert not lac.in_doubt
    statistics = host.storage.statistics()
    assert (statistics.entries_damaged, statistics.index_damage_seen) == (0, 0)


async def test_what_was_given_up_is_counted_and_nothing_else_goes(host: StorageHost) -> None:
    script = await held_stream(host, "xyz", "Bxy")
    other = await held_stream(host, "Bxy", "Bxy")
    for _ in range(2):
        await host.replaced.round()
    relieved = host.replaced.relieved
    assert (relieved.ranges, relieved.entries) == (1, 5)
    assert relieved.bytes == sum(map(len, script.entries(term(1))))
    assert await read(host, script, 1) == ([], WHOLE)
    for one, number in ((script, 2), (other, 1), (other, 2)):
        assert await read(host, one, number) == (term(number), [])


async def test_live_share_is_counted_by_the_index_also_after_a_restart(host: StorageHost) -> None:
    """A log of which most was given up is compacted, although its totals say that all of it is live."""
    script = await held_stream(host, "xyz", "xyz", "xyz", "Bxy")
    for _ in range(2):
        await host.replaced.round()
    await host.restart()  # the log that was written is finished
    await host.storage.compact(0.5, UNLIMITED)
    logs = [path for path in host.filesystem.files() if path.suffix == ".log"]
    held = b"".join(host.filesystem.content(path) for path in logs)
    assert script.entry(place(2, 0)) not in held
    assert script.entry(place(4, 0)) in held


@pytest.mark.parametrize("again", ["recovery add", "copy"])
async def test_what_is_added_again_is_held_and_found(host: StorageHost, again: str) -> None:
    script = await held_stream(host, "xyz", "Bxy")
    for _ in range(2):
        await host.replaced.round()
    await rename(host, script, "Bxy", "Bxy")
    if again == "copy":
        await host.copies.copy_in(script.ledger_id, script.entries(term(1, 1, 2)))
    else:
        await add(host, script, term(1, 1, 2))
    for restart in (False, True):
        if restart:
            await host.cut_power(seed=1)
        for _ in range(2):
            await host.replaced.round()
            await host.storage.compact(0.99, UNLIMITED)
        assert await read(host, script, 1) == (term(1, 1, 2), [(place(1, 0), place(1, 0)), (place(1, 3), place(1, 4))])
    await host.storage.writer.add(script.ledger_id, script.key, [script.entry(place(3, 0))], recovery=False, term=3)


async def test_nothing_goes_before_its_time_and_a_repair_begins_it_anew(store: MetadataStore) -> None:
    host = await StorageHost(MemoryFileSystem(), store, keep_seconds=3600).start()
    script = await held_stream(host, "xyz", "Bxy")
    for _ in range(3):
        assert await host.replaced.round() == 0
    assert host.replaced.relieved.waiting == 1
    async with host.copies.lock(script.ledger_id):
        pass
    assert host.replaced.relieved.waiting == 0
    assert await read(host, script, 1) == (term(1), [])
    await host.storage.close()


class Watched:
    """A store of which a read can be followed by something else, before its caller goes on."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.after_read: Callable[[], object] = lambda: None

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def read_either(self, ledger_id: LedgerId) -> Versioned[EitherMetadata]:
        found = await self._store.read_either(ledger_id)
        told = self.after_read()
        if asyncio.iscoroutine(told):
            await told
        return found


@pytest.mark.parametrize("closed", [False, True])
async def test_repair_that_begins_while_the_metadata_are_read_is_not_forgotten(
    store: MetadataStore, closed: bool
) -> None:
    watched = Watched(store)
    host = await StorageHost(MemoryFileSystem(), cast("MetadataStore", watched)).start()
    script = await held_stream(host, "xyz", "xyz")
    if closed:
        await close_stream(store, script.ledger_id)
    watched.after_read = lambda: host.replaced.keep(script.ledger_id)
    for _ in range(3):
        assert await host.replaced.round() == 0
    assert (host.replaced.waiting, host.replaced.relieved.waiting) == (0, 0)
    assert await read(host, script, 1) == (term(1), [])
    await host.storage.close()


@pytest.mark.parametrize("closed", [False, True])
async def test_what_is_kept_and_found_again_in_one_round_waits_anew(store: MetadataStore, closed: bool) -> None:
    """A repair ends between the beginning of a round and its look at the ledger; its compare-and-set may be made
    later."""
    watched = Watched(store)
    host = await StorageHost(MemoryFileSystem(), cast("MetadataStore", watched)).start()
    *others, script = [await held_stream(host, "xyz", "xyz") for _ in range(READS_AT_ONCE + 1)]
    if closed:
        await close_stream(store, script.ledger_id)
    assert await host.replaced.round() == 0
    reads = 0

    def kept_before_its_look() -> None:
        """The first read is that of a look at others; the last stream is not among those that are looked at then."""
        nonlocal reads
        reads += 1
        if reads == 1:
            host.replaced.keep(script.ledger_id)

    watched.after_read = kept_before_its_look
    assert await host.replaced.round() == len(others)
    assert (await read(host, others[0], 1))[0] == []
    assert await read(host, script, 1) == (term(1), [])
    assert (host.replaced.waiting, host.replaced.relieved.waiting) == ((1, 0) if closed else (0, 1))
    assert await host.replaced.round() == 1
    assert (await read(host, script, 1))[0] == []
    await host.storage.close()


async def test_metadata_that_name_the_bookie_once_the_mark_is_durable_keep_the_range(store: MetadataStore) -> None:
    watched = Watched(store)
    host = await StorageHost(MemoryFileSystem(), cast("MetadataStore", watched)).start()
    script = await held_stream(host, "xyz", "Bxy")
    assert await host.replaced.round() == 0
    reads = 0

    def named_later() -> object:
        """The first read is that of the look, the second that before the mark."""
        nonlocal reads
        reads += 1
        return rename(host, script, "Bxy", "Bxy") if reads == 2 else None

    watched.after_read = named_later
    assert await host.replaced.round() == 0
    assert host.storage.ledgers.relieved_below(script.ledger_id) == place(1, 5)
    assert await read(host, script, 1) == (term(1), [])
    assert reads == 3
    await host.storage.close()


async def test_cancelled_round_keeps_the_locks_until_the_removal_is_over(store: MetadataStore) -> None:
    disk = HeldDisk(lambda name, path: name == "rename" and path.name == MANIFEST_NAME)
    host = await StorageHost(disk, store).start()
    script = await held_stream(host, "xyz", "Bxy")
    await host.replaced.round()
    disk.hold()
    round_ = asyncio.ensure_future(host.replaced.round())
    await disk.held.wait()
    round_.cancel()
    for _ in range(100):
        await asyncio.sleep(0)
    assert host.storage.copy_locks.is_held(script.ledger_id)
    disk.release()
    await asyncio.wait([round_])
    assert round_.cancelled()
    assert not host.storage.copy_locks.is_held(script.ledger_id)
    assert await read(host, script, 1) == ([], WHOLE)
    await host.storage.close()


async def test_no_mark_is_written_before_the_cluster_is_finalized(store: MetadataStore) -> None:
    host = await StorageHost(MemoryFileSystem(), store, relief_release=Release(0, 2)).start()
    script = await held_stream(host, "xyz", "Bxy")
    for _ in range(3):
        assert await host.replaced.round() == 0
    assert host.storage.ledgers.relieved_below(script.ledger_id) == 0
    await write_release(store, Release(0, 2), None)
    assert await host.replaced.round() == 1
    assert await read(host, script, 1) == ([], WHOLE)
    await host.storage.close()


async def test_older_metadata_give_up_nothing(host: StorageHost) -> None:
    script = await held_stream(host, "xyz", "Bxy")
    await host.replaced.round()
    found = await host.store.read_cookie(BOOKIE)
    assert found is not None
    await host.store.compare_and_set_cookie(replace(found.value, generation=7), found.version)
    with pytest.raises(MetadataError, match="generation 7"):
        await host.replaced.round()
    assert await read(host, script, 1) == (term(1), [])


async def test_pages_name_bookies_too(store: MetadataStore) -> None:
    root, pages = paged_stream(20, 4, 6)
    for page in pages:
        await store.create_document(page_document(root.ledger_id, page.reference), page.value)
    all_of_it = await unnamed_ranges(store, root, BookieId("q"))
    assert len(all_of_it) == 19
    assert all(last < root.last_fragment.first_entry_id for _, last in all_of_it)
    assert len(await unnamed_ranges(store, root, BookieId("b"))) == 0
    assert len(await unnamed_ranges(store, root, BookieId("c"))) == 6


async def test_page_that_cannot_be_understood_keeps_its_stream_and_no_other(host: StorageHost) -> None:
    script = await held_stream(host, "xyz", "Bxy")
    ledger_id = await host.store.allocate_ledger_id()
    damaged = LedgerScript(ledger_id)
    root, pages = paged_stream(20, 4, 6, ledger_id=ledger_id)
    await add(host, damaged, term(1))
    await host.store.create_stream(root)
    for page in pages:
        await host.store.create_document(page_document(ledger_id, page.reference), b"damage")
    await host.storage.checkpoint()
    rounds = [await host.replaced.round() for _ in range(2)]
    assert rounds == [0, 1]
    assert await read(host, script, 1) == ([], WHOLE)
    assert await read(host, damaged, 1) == (term(1), [])


async def test_closed_stream_with_a_page_that_cannot_be_understood_is_kept_and_others_go(host: StorageHost) -> None:
    script = await held_stream(host, "xyz", "xyz")
    await close_stream(host.store, script.ledger_id)
    ledger_id = await host.store.allocate_ledger_id()
    damaged = LedgerScript(ledger_id)
    root, pages = paged_stream(20, 4, 6, ledger_id=ledger_id)
    await add(host, damaged, term(1))
    last = root.last_fragment.first_entry_id
    await host.store.create_stream(root.at_rest(EntryId(last + 4), 10**6).closed())
    for page in pages:
        await host.store.create_document(page_document(ledger_id, page.reference), b"damage")
    await host.storage.checkpoint()
    rounds = [await host.replaced.round() for _ in range(3)]
    assert rounds == [0, 1, 0]
    assert (await read(host, script, 1))[0] == []
    assert await read(host, damaged, 1) == (term(1), [])


@pytest.mark.parametrize("reads_before", range(4))
@pytest.mark.parametrize("closed", [False, True])
async def test_metadata_that_cannot_be_understood_at_any_read_keep_their_ledger_and_end_no_round(
    store: MetadataStore, reads_before: int, closed: bool
) -> None:
    watched = Watched(store)
    host = await StorageHost(MemoryFileSystem(), cast("MetadataStore", watched)).start()
    script = await held_stream(host, "xyz", "xyz")
    if closed:
        await close_stream(store, script.ledger_id)
    reads = 0

    def failing() -> None:
        nonlocal reads
        reads += 1
        if reads == reads_before + 1:
            raise MetadataError("no such version")

    watched.after_read = failing
    for _ in range(5):
        await host.replaced.round()
    assert reads > reads_before or closed
    assert (await read(host, script, 1))[0] == []
    await host.storage.close()


async def test_offline_check_finds_nothing_wrong(host: StorageHost) -> None:
    await held_stream(host, "xyz", "Bxy")
    for _ in range(2):
        await host.replaced.round()
    await host.storage.close()
    assert await host.offline_findings() == []
    await host.start()


async def test_last_fragment_of_a_stream_at_rest_stays(host: StorageHost) -> None:
    """A client that takes the stream over may ask for it, and finds the members in metadata that it has read before."""
    script = await held_stream(host, "Bxy", "xyz")
    found = await host.store.read_stream(script.ledger_id)
    await host.store.compare_and_set_stream(found.value.at_rest(EntryId(place(2, 4)), 1000), found.version)
    for _ in range(3):
        assert await host.replaced.round() == 0
    assert await read(host, script, 2) == (term(2), [])


# --- records and states ---------------------------------------------------------------------------------------------


def test_replay_and_joins_take_the_highest_mark() -> None:
    for marks in ([3, 9], [9, 3], [9, 9]):
        ledgers = LedgerTable(PackedStates(), 8)
        for one in marks:
            _replay_record(RecordKind.RELIEF, encode_relief(7, one), WriteCache(1000), ledgers)
        assert ledgers.relieved_below(7) == 9
        states = [LedgerState(7), LedgerState(7)]
        for state, one in zip(states, marks, strict=True):
            state.relieve(one)
        states[0].absorb(states[1])
        assert states[0].relieved_below == 9


def test_a_replayed_mark_does_not_bring_a_deleted_ledger_back() -> None:
    ledgers = LedgerTable(PackedStates(), 8)
    ledgers.get(7).mark_deleted()
    assert _replay_record(RecordKind.RELIEF, encode_relief(7, 5), WriteCache(1000), ledgers) is None
    assert ledgers.relieved_below(7) == 0


@given(
    below=st.integers(0, 2**63),
    first_kept=st.integers(0, 2**63),
    key=st.one_of(st.none(), st.binary(min_size=1, max_size=64)),
    fenced=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_marks_of_states_round_trip(below: int, first_kept: int, key: bytes | None, fenced: bool) -> None:
    state = LedgerState(7)
    state.ledger_key, state.fenced = key, fenced
    state.trim(first_kept)
    without = state.encode()
    assert relieved_below_in(without) == 0
    state.relieve(below)
    encoded = state.encode()
    assert len(encoded) == len(without) + (8 if below else 0)
    again = LedgerState.decode(7, encoded)
    assert (again.relieved_below, again.first_kept) == (below, first_kept) == (relieved_below_in(encoded), first_kept)
    assert (again.ledger_key, again.fenced) == (key, fenced)


@given(st.binary(max_size=24))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_a_mark_or_refused(rest: bytes) -> None:
    try:
        below = decode_relieved_below(rest)
    except ValueError:
        assert len(rest) != 8 or not any(rest)
        return
    assert decode_ledger_record(encode_relief(7, below)) == (7, rest)
