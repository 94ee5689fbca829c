"""Terms at a bookie (rule T7): what a fence refuses and what it does not, on the wire, on disk and in tools."""

import asyncio
import base64
import json
import random
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.journal.format import RecordKind
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.offline.inspect_file import inspect_file
from octavo.bookie.offline.layout import Layout
from octavo.bookie.offline.rebuild_index import IndexRebuild
from octavo.bookie.storage.cache import WriteCache
from octavo.bookie.storage.ledger_state import (
    LedgerState,
    PackedStates,
    decode_fenced_term,
    decode_ledger_record,
    encode_ledger_record,
    encode_term_fence,
)
from octavo.bookie.storage.ledgers import LedgerTable
from octavo.bookie.storage.manifest_keeper import MANIFEST_NAME
from octavo.bookie.storage.replay import _replay_record
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.metadata import MetadataStore
from octavo.protocol.errors import LedgerFencedError, ProtocolError, TermOverError
from octavo.protocol.ids import TERM_MAX, LedgerId
from octavo.protocol.messages import (
    CAPABILITY_TERMS,
    Add,
    Added,
    AddFlag,
    Force,
    Forced,
    Hello,
    LacAnswer,
    Ping,
    Pong,
    ReadFlag,
    ReadLac,
)
from octavo.protocol.places import OFFSET_MAX, place
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.faulty_filesystem import MemoryFileSystem
from support.golden import FOLDER
from support.raw_client import RawClient, add, key_of, seal
from support.waiting import loop_turns

pytestmark = pytest.mark.usefixtures("logged")

DATA, JOURNAL = Path("/d"), Path("/j")
SETTINGS = StorageSettings(
    checkpoint_seconds=86_400, journal=JournalSettings(segment_bytes=16 * 1024, first_fill_bytes=0)
)
SCRIPT = LedgerScript(7)


def never(error: BaseException) -> None:
    raise AssertionError("the storage failed") from error


async def opened(filesystem: MemoryFileSystem, config: StorageSettings = SETTINGS) -> Storage:
    return await Storage.open(filesystem, directory=DATA, journal_directory=JOURNAL, settings=config, on_fatal=never)


@pytest.fixture
async def storage() -> AsyncIterator[Storage]:
    made = await opened(MemoryFileSystem())
    yield made
    await made.close()


def sent(storage: Storage, term: int, *ids: int, recovery: bool = False) -> asyncio.Future[None]:
    return storage.writer.add(SCRIPT.ledger_id, SCRIPT.key, SCRIPT.entries(ids), recovery=recovery, term=term)


# --- adds -----------------------------------------------------------------------------------------------------------


async def test_a_fence_refuses_its_term_and_those_before_it_and_no_later_one(storage: Storage) -> None:
    await sent(storage, 2, place(2, 0))
    await storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key, 2)
    for term in (1, 2):
        with pytest.raises(TermOverError, match=f"ledger 7: term {term} is over, as term 2 is") as refusal:
            sent(storage, term, place(term, 5))
        assert not refusal.value.may_have_happened
    await sent(storage, 3, place(3, 0))
    await sent(storage, 2, place(2, 1), recovery=True)
    await storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key, 1)
    await sent(storage, 3, place(3, 1))
    with pytest.raises(TermOverError):
        sent(storage, 2, place(2, 2))
    held = [(place(2, 0), place(2, 1)), (place(3, 0), place(3, 1))]
    assert await storage.reader.list_entries(SCRIPT.ledger_id) == held


async def test_a_fence_of_an_unknown_ledger_stops_its_terms_and_pins_no_key(storage: Storage) -> None:
    await storage.writer.fence(SCRIPT.ledger_id, b"anybody's", 4)
    assert storage.ledgers.get(7).ledger_key is None
    with pytest.raises(TermOverError):
        sent(storage, 4, place(4, 0))
    await sent(storage, 5, place(5, 0))
    assert storage.ledgers.get(7).ledger_key == SCRIPT.key


async def test_a_slow_add_meets_the_fence_that_came_while_it_waited(storage: Storage) -> None:
    await sent(storage, 3, place(3, 5))
    slow = [sent(storage, 3, place(3, entry)) for entry in (0, 1)]
    fence = storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key, 3)
    outcomes = await asyncio.gather(*slow, fence, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [TermOverError, TermOverError, type(None)]
    await sent(storage, 4, place(4, 5))
    slow = [sent(storage, 4, place(4, 0)), sent(storage, 3, place(3, 1), recovery=True)]
    await storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key, 3)
    await asyncio.gather(*slow)


async def test_copies_of_other_bookies_pass_every_fence(storage: Storage) -> None:
    await storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key, 9)
    await storage.writer.copy_in(SCRIPT.ledger_id, SCRIPT.entries([place(3, 0), place(4, 0)]))
    assert await storage.reader.list_entries(SCRIPT.ledger_id) == [(place(3, 0),) * 2, (place(4, 0),) * 2]


async def test_ids_of_a_standard_ledger_may_be_as_large_as_places_and_are_fenced_as_all_others(
    storage: Storage,
) -> None:
    """Explicit ids: the term of the request decides, not the bits of the id."""
    large = place(3, 1)
    await sent(storage, 0, 5, large)
    await storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key)
    with pytest.raises(LedgerFencedError) as refusal:
        sent(storage, 0, place(2**20, 0))
    assert type(refusal.value) is LedgerFencedError, "clients without terms do not know another error"
    assert await storage.reader.list_entries(SCRIPT.ledger_id) == [(5, 5), (large, large)]


async def test_forces_of_a_term_that_is_over_are_refused(storage: Storage) -> None:
    await sent(storage, 2, place(2, 0))
    await storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key, 1)
    await storage.writer.force(SCRIPT.ledger_id, SCRIPT.key, 2)
    with pytest.raises(TermOverError):
        storage.writer.force(SCRIPT.ledger_id, SCRIPT.key, 1)


async def test_only_a_fence_that_changes_something_is_counted(storage: Storage) -> None:
    for term in (2, 2, 1, 3):
        await storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key, term)
    assert storage.statistics().fences == 2


# --- what a follower is told ----------------------------------------------------------------------------------------


async def test_fenced_means_that_the_term_asked_for_is_over(storage: Storage) -> None:
    await storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key, 2)
    fenced = [storage.reader.last_add_confirmed(SCRIPT.ledger_id, term).fenced for term in range(5)]
    assert fenced == [True, True, True, False, False]


async def test_a_follower_of_a_term_is_not_woken_by_the_end_of_an_earlier_one(storage: Storage) -> None:
    await sent(storage, 3, place(3, 0))
    older, newer = (storage.reader.wait_lac(SCRIPT.ledger_id, place(3, 7), term) for term in (2, 3))
    await storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key, 2)
    assert (older.done(), newer.done()) == (True, False)
    late = storage.reader.wait_lac(SCRIPT.ledger_id, place(3, 7), 2)
    assert late.done()
    await storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key, 3)
    assert newer.done()


# --- on the wire ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def client(store: MetadataStore) -> AsyncIterator[RawClient]:
    config = load_config(None, {}, {"data_dir": DATA, "port": 0, "journal_segment_bytes": 16 << 20})
    bookie = await Bookie.start(
        config, filesystem=MemoryFileSystem(), store=store, rng=random.Random(1), software="0-test",
        wall_clock=lambda: 1.0,
    )  # fmt: skip
    host, _, port = bookie.address.rpartition(":")
    async with RawClient(host, int(port)) as connected:
        hello = await connected.greet()
        assert isinstance(hello, Hello)
        assert CAPABILITY_TERMS in hello.capabilities
        yield connected
    await bookie.stop()


def add_of(term: int, first: int, *payloads: bytes, flags: AddFlag = AddFlag.NONE, lac: int | None = None) -> Add:
    return Add(7, key_of(7), flags, term, seal(7, first, payloads, lac=lac))


def fence_of(term: int) -> ReadLac:
    return ReadLac(7, key_of(7), ReadFlag.FENCE, term, None, 0, 0, 0)


def poll_of(term: int, above: int | None, *, wait_milliseconds: int = 0) -> ReadLac:
    return ReadLac(7, b"", ReadFlag.NONE, term, above, wait_milliseconds, 10, 1 << 20)


async def test_a_takeover_as_a_bookie_sees_it(client: RawClient) -> None:
    assert await client.ask(add_of(1, place(1, 0), b"a")) == Added()
    fenced = await client.ask(fence_of(1))
    assert isinstance(fenced, LacAnswer)
    assert fenced.fenced
    refusal = await client.ask(add_of(1, place(1, 1), b"b"))
    assert isinstance(refusal, TermOverError)
    assert not refusal.may_have_happened
    assert await client.ask(add_of(1, place(1, 1), b"b", flags=AddFlag.RECOVERY)) == Added()
    assert await client.ask(add_of(2, place(2, 0), b"c")) == Added()
    assert isinstance(await client.ask(add(7, seal(7, 9, [b"no term"]))), LedgerFencedError)
    deferred = AddFlag.DEFERRED_SYNC
    assert await client.ask(add_of(2, place(2, 1), b"d", flags=deferred)) == Added()
    assert await client.ask(Force(7, key_of(7), 2, ((place(2, 1), place(2, 1)),))) == Forced()
    force = Force(7, key_of(7), 1, ((place(1, 1), place(1, 1)),))
    assert isinstance(await client.ask(force), TermOverError)
    read = await client.ask(fence_of(2))
    assert isinstance(read, LacAnswer)
    assert isinstance(await client.ask(add_of(2, place(2, 2), b"e")), TermOverError)


@pytest.mark.parametrize(
    ("term", "ids"),
    [
        (2, [0]),
        (2, [place(1, 0)]),
        (2, [place(3, 0)]),
        (2, [place(1, 9), place(2, 0)]),
        (2, [place(2, 0), place(3, 0)]),
        (2, [place(2, OFFSET_MAX) + 1]),
        (1, [place(2, 0)]),
        (TERM_MAX, [place(TERM_MAX, OFFSET_MAX) + 1]),
    ],
)
@pytest.mark.parametrize("flags", [AddFlag.NONE, AddFlag.RECOVERY, AddFlag.PRIVATE])
async def test_a_frame_whose_ids_are_not_of_its_term_ends_the_connection(
    client: RawClient, term: int, ids: list[int], flags: AddFlag
) -> None:
    entries = [sealed for entry_id in ids for sealed in seal(7, entry_id, [b"x"])]
    asked = client.send(Add(7, key_of(7), flags, term, entries))
    answered, refusal = await client.receive_reply()
    assert (answered, type(refusal)) == (asked, ProtocolError)
    connection, _ = await client.receive_reply()
    assert connection == 0
    with pytest.raises(asyncio.IncompleteReadError):
        await client.receive()


async def test_a_force_whose_ids_are_not_of_its_term_ends_the_connection(client: RawClient) -> None:
    client.send(Force(7, key_of(7), 2, ((place(1, 0), place(1, 0)), (place(2, 0), place(2, 0)))))
    assert isinstance((await client.receive_reply())[1], ProtocolError)


async def test_the_last_place_of_the_last_term_is_taken(client: RawClient) -> None:
    assert await client.ask(add_of(TERM_MAX, place(TERM_MAX, OFFSET_MAX), b"x")) == Added()
    assert isinstance(await client.ask(fence_of(TERM_MAX)), LacAnswer)
    assert isinstance(await client.ask(add_of(TERM_MAX, place(TERM_MAX, 0), b"x")), TermOverError)


async def test_a_long_poll_follows_one_term(client: RawClient) -> None:
    """The end of the term before does not answer it, and nothing of the term after is brought along."""
    entries = seal(7, place(2, 0), [b"a"]) + seal(7, place(2, 1), [b"b"], lac=place(2, 0))
    assert await client.ask(Add(7, key_of(7), AddFlag.NONE, 2, entries)) == Added()
    poll = client.send(poll_of(2, place(2, 1), wait_milliseconds=60_000))
    assert isinstance(await client.ask(fence_of(1)), LacAnswer)
    assert await client.ask(Ping()) == Pong()
    client.send(fence_of(2))
    answers = dict([await client.receive_reply(), await client.receive_reply()])
    assert answers[poll] == LacAnswer(True, True, False, None, entries[1], [])
    later = seal(7, place(3, 0), [b"c"]) + seal(7, place(3, 1), [b"d"], lac=place(3, 0))
    assert await client.ask(Add(7, key_of(7), AddFlag.NONE, 3, later)) == Added()
    of_two, of_three = await client.ask(poll_of(2, place(2, 0))), await client.ask(poll_of(3, place(3, 0) - 1))
    assert of_two == LacAnswer(True, True, False, None, later[1], entries[1:])
    assert of_three == LacAnswer(True, False, False, None, later[1], later[:1])


async def test_a_follower_at_the_end_of_a_term_gets_nothing_of_the_next(client: RawClient) -> None:
    (last,) = seal(7, place(2, OFFSET_MAX), [b"a"])
    later = seal(7, place(3, 0), [b"b"]) + seal(7, place(3, 1), [b"c"], lac=place(3, 0))
    for term, entries in ((2, [last]), (3, later)):
        assert await client.ask(Add(7, key_of(7), AddFlag.NONE, term, entries)) == Added()
    answer = await client.ask(poll_of(2, place(2, OFFSET_MAX) - 1))
    assert answer == LacAnswer(True, False, False, None, later[1], [last])


async def test_a_reader_of_a_standard_ledger_gets_ids_as_large_as_places(client: RawClient) -> None:
    entries = seal(7, place(2, 0), [b"a"]) + seal(7, place(3, 0), [b"b"], lac=place(2, 0))
    assert await client.ask(add(7, entries)) == Added()
    assert await client.ask(poll_of(0, place(2, 0) - 1)) == LacAnswer(True, False, False, None, entries[1], entries[:1])


# --- on disk --------------------------------------------------------------------------------------------------------

kinds_and_terms = st.integers(0, TERM_MAX) | st.sampled_from([0, 1, 2, TERM_MAX])


@given(st.integers(0, 2**63 - 1), kinds_and_terms)
def test_record_of_a_fence_comes_back(ledger_id: int, term: int) -> None:
    found, rest = decode_ledger_record(encode_term_fence(ledger_id, term))
    assert (found, decode_fenced_term(rest)) == (ledger_id, term)


@pytest.mark.parametrize("rest", [b"", b"\0\0\1", b"\0\0\0\1\0"])
def test_a_record_of_another_length_is_refused(rest: bytes) -> None:
    with pytest.raises(ValueError, match="TERM_FENCE"):
        decode_fenced_term(rest)


@given(st.lists(st.tuples(kinds_and_terms, st.sampled_from(["fence", "checkpoint", "restart"])), max_size=12))
@settings(deadline=None)
def test_replay_takes_the_maximum_wherever_a_checkpoint_came(steps: list[tuple[int, str]]) -> None:
    """What a checkpoint has stored, and records from before and after it in any order, add up to the latest term."""
    fences = [term for term, what in steps if what == "fence"]
    stored = PackedStates()
    state = LedgerState(7)
    records: list[tuple[RecordKind, bytes]] = []
    for term, what in steps:
        if what == "fence":
            state.fence(term)
            records.append(fence_record(term))
        elif what == "checkpoint":
            stored.put(7, state.encode())
        else:
            state = replayed(stored, records)
    found = replayed(stored, records)
    assert (found.fenced, found.fenced_term) == (bool(fences), max(fences, default=0))
    assert replayed(stored, records[::-1]).encode() == replayed(stored, records * 2).encode() == found.encode()


def fence_record(term: int) -> tuple[RecordKind, bytes]:
    if term == 0:
        return RecordKind.FENCE, encode_ledger_record(7)
    return RecordKind.TERM_FENCE, encode_term_fence(7, term)


def replayed(stored: PackedStates, records: list[tuple[RecordKind, bytes]]) -> LedgerState:
    ledgers = LedgerTable(stored, 8)
    for kind, body in records:
        _replay_record(kind, body, WriteCache(1000), ledgers)
    return ledgers.get(7)


def test_a_tombstone_keeps_the_term_that_was_fenced() -> None:
    records = [fence_record(5), (RecordKind.TOMBSTONE, encode_ledger_record(7)), fence_record(2)]
    state = replayed(PackedStates(), [*records, (RecordKind.REVIVAL, encode_ledger_record(7))])
    assert (state.fenced_term, state.in_doubt, state.deleted) == (5, True, False)


def test_two_states_of_unknown_order_keep_the_later_fence() -> None:
    early, late, blank = LedgerState(7), LedgerState(7), LedgerState(7)
    early.fence(2)
    late.fence(6)
    for state, other in ((early, late), (late, early), (late, blank), (blank, late)):
        together = LedgerState.decode(7, state.encode())
        together.absorb(other)
        assert (together.fenced, together.fenced_term) == (True, 6)


COMPACTING = StorageSettings(
    cache_bytes_max=2_500,
    entry_log_bytes=4_000,
    checkpoint_seconds=86_400,
    journal=JournalSettings(segment_bytes=16 * 1024, first_fill_bytes=0),
)


async def several_terms(filesystem: MemoryFileSystem) -> Storage:
    """Entries of three terms in logs that a deletion leaves half empty; term 2 is fenced, then late again term 1."""
    storage = await opened(filesystem, COMPACTING)
    garbage = LedgerScript(8)
    for term in (1, 2, 3):
        for first in range(0, 20, 10):
            ids = [place(term, offset) for offset in range(first, first + 10)]
            await sent(storage, term, *ids, recovery=True)
            await storage.writer.add(garbage.ledger_id, garbage.key, garbage.entries(ids), recovery=False)
        await storage.checkpoint()
        if term > 1:
            await storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key, 4 - term)
    await storage.writer.delete(garbage.ledger_id)
    return storage


HELD = [(place(term, 0), place(term, 19)) for term in (1, 2, 3)]


async def holds_its_terms(storage: Storage) -> None:
    assert await storage.reader.list_entries(SCRIPT.ledger_id) == HELD
    for low, high in HELD:
        found = await storage.reader.read(SCRIPT.ledger_id, low, high, entries_max=100, bytes_max=100_000)
        assert ids_of(found.entries) == list(range(low, high + 1))
    with pytest.raises(TermOverError):
        sent(storage, 2, place(2, 30))
    await sent(storage, 3, place(3, 19))


async def test_compaction_and_restarts_keep_places_and_fence() -> None:
    filesystem = MemoryFileSystem()
    storage = await several_terms(filesystem)
    result = await storage.compact(0.9, RateLimiter(1e12))
    assert result.logs_removed > 0
    assert result.bytes_copied > 0
    await holds_its_terms(storage)
    await storage.close()
    again = await opened(filesystem, COMPACTING)
    await holds_its_terms(again)
    await again.close()


@pytest.mark.parametrize("without_manifest", [False, True])
async def test_a_rebuilt_index_keeps_places_and_fence(without_manifest: bool) -> None:
    filesystem = MemoryFileSystem()
    await (await several_terms(filesystem)).close()
    if without_manifest:
        await filesystem.remove(DATA / MANIFEST_NAME)
    layout = Layout.of(DATA, JOURNAL)
    await IndexRebuild(filesystem, layout).run()
    storage = await opened(filesystem, COMPACTING)
    if not without_manifest:
        await holds_its_terms(storage)
    fenced = [storage.reader.last_add_confirmed(SCRIPT.ledger_id, term).fenced for term in range(1, 4)]
    assert fenced == [True, True, False]
    await storage.close()


async def test_inspect_shows_the_term_of_a_fence() -> None:
    filesystem = MemoryFileSystem()
    storage = await opened(filesystem)
    standard = LedgerScript(8)
    for checkpoint in (True, False):
        await storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key, 5)
        await storage.writer.fence(standard.ledger_id, standard.key)
        if checkpoint:
            await storage.checkpoint()
    shown = [
        line
        for path in filesystem.files()
        if path.name.startswith("journal-") or path.suffix == ".runs"
        async for line in inspect_file(filesystem, path)
    ]
    await storage.close()
    text = "\n".join(shown)
    assert "FENCE ledger 7 up to term 5\n" in text
    assert "FENCE ledger 8\n" in text
    assert "\nledger 7: fenced up to term 5, no key" in text
    assert "\nledger 8: fenced, no key" in text


# --- older versions -------------------------------------------------------------------------------------------------


def disk_without_terms() -> MemoryFileSystem:
    """Written by the last version without terms, up to a power cut: ledger 1 of 5 entries, fenced, and an entry written
    back; ledger 2 with explicit ids, open; ledger 3 fenced before it was known; ledger 4 of one large id, fenced. The
    last add to ledgers 1 and 2, and all of ledger 4, are in the journal only."""
    golden = json.loads((FOLDER / "disk" / "bookie-without-terms.json").read_text())
    filesystem = MemoryFileSystem()
    for path, text in golden["files"].items():
        filesystem.set_content(Path(path), zlib.decompress(base64.b64decode(text)))
    return filesystem


async def test_data_of_a_version_without_terms_are_served_as_before() -> None:
    storage = await opened(disk_without_terms())
    assert storage.doubt is None
    held = {n: await storage.reader.list_entries(LedgerId(n)) for n in (1, 2, 4)}
    large = [(place(3, 0), place(3, 1)), (place(7, 4), place(7, 5))]
    assert held == {1: [(0, 5)], 2: [(0, 2), *large], 4: [(place(2, 0),) * 2]}
    for number in (1, 3, 4):
        script = LedgerScript(number)
        state = storage.ledgers.get(number)
        assert (state.fenced, state.fenced_term) == (True, 0)
        with pytest.raises(LedgerFencedError) as refusal:
            storage.writer.add(script.ledger_id, script.key, [script.entry(place(9, 0))], recovery=False)
        assert type(refusal.value) is LedgerFencedError
    script = LedgerScript(2)
    await storage.writer.add(script.ledger_id, script.key, [script.entry(place(8, 0))], recovery=False)
    await storage.close()


async def test_fences_of_standard_ledgers_write_the_bytes_that_older_versions_read() -> None:
    """Going back to the version before is possible as long as no term has been used."""
    filesystem = MemoryFileSystem()
    storage = await opened(filesystem)
    await storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key)
    image = b"".join(filesystem.content(path) for path in filesystem.files(JOURNAL))
    assert RecordKind.TERM_FENCE not in kinds_in(image)
    assert RecordKind.FENCE in kinds_in(image)
    await storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key, 1)
    image = b"".join(filesystem.content(path) for path in filesystem.files(JOURNAL))
    assert RecordKind.TERM_FENCE in kinds_in(image), "a version without terms refuses to start on it"
    await storage.close()
    state = LedgerState(7)
    state.fence(0)
    assert state.encode() == bytes([1]) + bytes(4 + 8 + 8 + 1 + 1)


def kinds_in(image: bytes) -> set[int]:
    """The kinds of the records about ledger 7 in journal segments: the word that stands 20 bytes before its id."""
    wanted = (7).to_bytes(8, "big")
    return {
        int.from_bytes(image[at - 20 : at - 16], "big") & 0x7FFFFFFF
        for at in range(20, len(image) - 8)
        if image[at : at + 8] == wanted
    }


async def test_a_follower_waits_no_longer_for_a_deleted_ledger(storage: Storage) -> None:
    await sent(storage, 2, place(2, 0))
    waiting = storage.reader.wait_lac(SCRIPT.ledger_id, place(2, 0), 2)
    await storage.writer.delete(SCRIPT.ledger_id)
    await loop_turns(1)
    assert waiting.done()
