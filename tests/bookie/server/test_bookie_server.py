"""A whole bookie, asked over a real socket: what it takes, refuses, and how it treats those who break the rules."""

import asyncio
import os
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import BookieConfig, load_config
from octavo.bookie.disk.filesystem import RealFileSystem
from octavo.bookie.identity.errors import BookieStartError, DataWrongError
from octavo.metadata import BookieState, MetadataStore, open_metadata_store
from octavo.metrics.histogram import counts_from_text
from octavo.protocol import limits
from octavo.protocol.errors import (
    BookieInDoubtError,
    BookieReadOnlyError,
    BookieShuttingDownError,
    DigestMismatchError,
    DuplicateEntryError,
    LedgerFencedError,
    NoSuchLedgerError,
    OctavoError,
    ProtocolError,
    UnauthorizedError,
    UnsupportedOperationError,
    UnsupportedVersionError,
    WrongClusterError,
)
from octavo.protocol.frames import LENGTH, pack_body
from octavo.protocol.messages import (
    Added,
    EntryList,
    Hello,
    Info,
    InfoAnswer,
    LacAnswer,
    LacWritten,
    ListEntries,
    Missing,
    MissingAnswer,
    Op,
    Ping,
    Pong,
    Read,
    ReadAnswer,
    ReadFlag,
    ReadLac,
    Request,
    WriteLac,
)
from support.metadata.ledger_metadata import open_ledger
from support.raw_client import RawClient, add, key_of, read, seal, seal_lac
from support.waiting import WAIT_SECONDS, eventually

WIRE_DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "wire-protocol.md").read_text(encoding="utf-8")


@asynccontextmanager
async def running_bookie(
    directory: Path, store: MetadataStore, *, seed: int = 1, **settings: object
) -> AsyncIterator[Bookie]:
    config: BookieConfig = load_config(
        None, {}, {"data_dir": directory, "port": 0, "journal_segment_bytes": 16 << 20, **settings}
    )
    filesystem = RealFileSystem()
    try:
        bookie = await Bookie.start(
            config,
            filesystem=filesystem,
            store=store,
            rng=random.Random(seed),
            software="0-test",
            wall_clock=lambda: 1_700_000_000.0,
        )
        try:
            yield bookie
        finally:
            await bookie.stop()
    finally:
        await filesystem.close()


def cut_off_journal(directory: Path) -> None:
    """What no crash does: the only segment ends before the size in its header."""
    (segment,) = directory.rglob("journal-*.segment")
    os.truncate(segment, 16 * 1024)


def client_of(bookie: Bookie) -> RawClient:
    host, _, port = bookie.address.rpartition(":")
    return RawClient(host, int(port))


@pytest.fixture
async def bookie(tmp_path: Path, store: MetadataStore) -> AsyncIterator[Bookie]:
    async with running_bookie(tmp_path, store) as running:
        yield running


@pytest.fixture
async def client(bookie: Bookie) -> AsyncIterator[RawClient]:
    async with client_of(bookie) as connected:
        assert isinstance(await connected.greet(), Hello)
        yield connected


# --- entries ------------------------------------------------------------


async def test_what_was_added_is_read_back_byte_for_byte(client: RawClient) -> None:
    entries = seal(7, 0, [b"a", b"", b"c" * 1000])
    assert await client.ask(add(7, entries)) == Added()
    answer = await client.ask(read(7, 0, 5))
    assert answer == ReadAnswer(5, entries, (), None)


async def test_a_read_stops_at_its_byte_limit_but_gives_one_entry(client: RawClient) -> None:
    entries = seal(7, 0, [b"x" * 100] * 4)
    await client.ask(add(7, entries))
    assert await client.ask(read(7, 0, 3, bytes_max=1)) == ReadAnswer(0, entries[:1], (), None)


async def test_any_request_revives_a_ledger_that_was_deleted_by_mistake_also_one_of_a_repair(
    bookie: Bookie, client: RawClient, store: MetadataStore
) -> None:
    storage = bookie.service.storage
    requests: list[Callable[[int], Request]] = [
        lambda ledger_id: read(ledger_id, 0, 9),
        lambda ledger_id: Read(ledger_id, b"", ReadFlag.REPAIR, 0, 0, 9, 1, (0,), 1000, 1 << 20),
        lambda ledger_id: Missing(ledger_id, 0, 9, 1, (0,)),
        lambda ledger_id: add(ledger_id, seal(ledger_id, 1, [b"b"]), recovery=True),
        lambda ledger_id: ReadLac(ledger_id, b"", ReadFlag.NONE, 0, None, 0, 0, 0),
    ]
    for request in requests:
        ledger_id = await store.allocate_ledger_id()
        await store.create_ledger(open_ledger(ledger_id))
        await client.ask(add(ledger_id, seal(ledger_id, 0, [b"a"])))
        await storage.writer.delete(ledger_id)
        answer = await client.ask(request(ledger_id))
        assert not isinstance(answer, OctavoError), answer
        assert not storage.ledgers.is_deleted(ledger_id)
        if isinstance(answer, MissingAnswer):
            assert (answer.missing, answer.unknown) == ((), ((1, 9),)), "the ledger is in doubt: nothing is absent"
        await store.delete_ledger(ledger_id)
        await storage.writer.delete(ledger_id)
        assert isinstance(await client.ask(request(ledger_id)), NoSuchLedgerError)


async def test_the_first_add_pins_the_key(client: RawClient) -> None:
    assert await client.ask(add(7, seal(7, 0, [b"a"]))) == Added()
    refusal = await client.ask(add(7, seal(7, 1, [b"b"]), key=key_of(7, b"wrong")))
    assert isinstance(refusal, UnauthorizedError)
    assert (await client.ask(read(7, 1, 1))) == ReadAnswer(1, [], (), None)


async def test_the_same_entry_twice_is_a_success_and_other_bytes_are_not(client: RawClient) -> None:
    entries = seal(7, 0, [b"a", b"b"])
    assert await client.ask(add(7, entries)) == Added()
    assert await client.ask(add(7, entries)) == Added()
    assert isinstance(await client.ask(add(7, seal(7, 1, [b"other"]))), DuplicateEntryError)
    assert await client.ask(read(7, 0, 1)) == ReadAnswer(1, entries, (), None)


async def test_an_entry_damaged_on_the_way_is_refused_and_nothing_of_its_frame_stored(client: RawClient) -> None:
    entries = seal(7, 0, [b"aaaa", b"bbbb"])
    damaged = entries[1][:-6] + b"X" + entries[1][-5:]
    assert isinstance(await client.ask(add(7, [entries[0], damaged])), DigestMismatchError)
    assert await client.ask(read(7, 0, 1)) == ReadAnswer(1, [], (), None)


async def test_ids_that_do_not_fit_into_a_list_are_unanswered_not_absent(client: RawClient) -> None:
    """Rule R2."""
    ids = range(1, 8501, 2)
    for start in range(0, len(ids), 1500):
        frame = [sealed for entry_id in ids[start : start + 1500] for sealed in seal(7, entry_id, [b""])]
        assert await client.ask(add(7, frame)) == Added()
    held = await client.ask(ListEntries(7, 0, 10_000))
    assert held == EntryList(8191, tuple((entry_id, entry_id) for entry_id in range(1, 8192, 2)))


async def test_listed_entries_are_those_held(client: RawClient) -> None:
    await client.ask(add(7, [*seal(7, 0, [b"a", b"b"]), *seal(7, 5, [b"f"])]))
    assert await client.ask(ListEntries(7, 1, 9)) == EntryList(9, ((1, 1), (5, 5)))


async def test_missing_ids_are_those_not_held(client: RawClient) -> None:
    assert await client.ask(Missing(7, 0, 9, 1, (0,))) == MissingAnswer(9, ((0, 9),), ())
    await client.ask(add(7, [*seal(7, 0, [b"a", b"b"]), *seal(7, 5, [b"f"])]))
    assert await client.ask(Missing(7, 0, 9, 1, (0,))) == MissingAnswer(9, ((2, 4), (6, 9)), ())
    assert await client.ask(Missing(7, 0, 2**62, 3, (1, 2))) == MissingAnswer(2**62, ((2, 4), (6, 2**62)), ())
    assert await client.ask(Missing(7, 0, 1, 1, (0,))) == MissingAnswer(1, (), ()), "it holds all"


async def test_missing_ids_that_do_not_fit_into_an_answer_are_unanswered(client: RawClient) -> None:
    """Rule R2."""
    ids = range(1, 8501, 2)
    for start in range(0, len(ids), 1500):
        frame = [sealed for entry_id in ids[start : start + 1500] for sealed in seal(7, entry_id, [b""])]
        assert await client.ask(add(7, frame)) == Added()
    found: list[tuple[int, int]] = []
    first = 0
    while first <= 8499:
        answer = await client.ask(Missing(7, first, 8499, 1, (0,)))
        assert isinstance(answer, MissingAnswer)
        assert answer.last_covered >= first
        found += answer.missing
        first = answer.last_covered + 1
    assert found == [(entry_id, entry_id) for entry_id in range(0, 8500, 2)]


async def test_read_of_a_repair_is_answered_like_any_other_and_counted_apart(client: RawClient) -> None:
    entries = seal(7, 0, [b"a", b"b", b"c"])
    await client.ask(add(7, entries))
    asked = Read(7, b"", ReadFlag.REPAIR, 0, 0, 9, 2, (0,), 1000, 1 << 20)
    assert await client.ask(asked) == ReadAnswer(9, entries[::2], (), None)
    info = await client.ask(Info())
    assert isinstance(info, InfoAnswer)
    assert (info.facts["reads"], info.facts["repair_reads"]) == (0, 1)
    assert info.facts["repair_bytes_read"] == len(entries[0]) + len(entries[2])


# --- fencing and the last add confirmed ------------------------------------------------------------


async def test_fenced_bookie_refuses_plain_add_but_takes_recovery_add(client: RawClient) -> None:
    first, second = seal(7, 0, [b"a"]), seal(7, 1, [b"b"])
    assert await client.ask(add(7, first)) == Added()
    assert await client.ask(read(7, 0, 0, fence=True)) == ReadAnswer(0, first, (), None)
    refusal = await client.ask(add(7, second))
    assert isinstance(refusal, LedgerFencedError)
    assert not refusal.may_have_happened
    assert await client.ask(add(7, second, recovery=True)) == Added()


async def test_a_fence_without_the_key_is_refused_and_fences_nothing(client: RawClient) -> None:
    await client.ask(add(7, seal(7, 0, [b"a"])))
    for key in (b"", key_of(7, b"wrong")):
        fence = ReadLac(7, key, ReadFlag.FENCE, 0, None, 0, 0, 0)
        assert isinstance(await client.ask(fence), UnauthorizedError)
    assert await client.ask(add(7, seal(7, 1, [b"b"]))) == Added()


async def test_a_fence_needs_a_key_also_of_an_unknown_ledger(client: RawClient) -> None:
    for fence in (
        Read(9, b"", ReadFlag.FENCE, 0, 0, 0, 1, (0,), 1, 0),
        ReadLac(9, b"", ReadFlag.FENCE, 0, None, 0, 0, 0),
    ):
        assert isinstance(await client.ask(fence), UnauthorizedError)
    assert await client.ask(add(9, seal(9, 0, [b"a"]))) == Added(), "nothing was fenced"


async def test_an_unknown_ledger_can_be_fenced_and_its_key_is_not_pinned(client: RawClient) -> None:
    """Rule F0: the client that fences first cannot lock out the writer."""
    answer = await client.ask(ReadLac(9, key_of(9, b"anybody"), ReadFlag.FENCE, 0, None, 0, 0, 0))
    assert answer == LacAnswer(True, True, False, None, None, [])
    assert isinstance(await client.ask(add(9, seal(9, 0, [b"a"]))), LedgerFencedError)
    assert await client.ask(add(9, seal(9, 0, [b"a"]), recovery=True)) == Added()


async def test_adds_sent_behind_a_fence_on_one_connection_are_refused(client: RawClient) -> None:
    client.send(read(7, 0, 0, fence=True))
    refused = client.send(add(7, seal(7, 0, [b"a"])))
    outcomes = dict([await client.receive_reply(), await client.receive_reply()])
    assert isinstance(outcomes[refused], LedgerFencedError)


async def test_what_a_fencing_answer_shows_was_taken_before_the_fence_and_is_durable_when_it_leaves(
    client: RawClient,
) -> None:
    entries = seal(7, 0, [b"a"])
    added, fenced = client.send(add(7, entries)), client.send(read(7, 0, 5, fence=True))
    refused = client.send(add(7, seal(7, 1, [b"b"])))
    replies = dict([await client.receive_reply() for _ in range(3)])
    assert (replies[added], replies[fenced]) == (Added(), ReadAnswer(5, entries, (), None))
    assert isinstance(replies[refused], LedgerFencedError)
    order = [number for number in replies if number != refused]
    assert order == [added, fenced], "the fence is journaled after the entry it shows, and waits for both"


async def test_the_highest_lac_is_answered_with_its_evidence(client: RawClient) -> None:
    entries = [*seal(7, 0, [b"a"]), *seal(7, 1, [b"b"], lac=0)]
    await client.ask(add(7, entries))
    ask = ReadLac(7, b"", ReadFlag.NONE, 0, None, 0, 10, 1 << 20)
    assert await client.ask(ask) == LacAnswer(True, False, False, None, entries[1], entries[:1])
    explicit = seal_lac(7, 1)
    assert await client.ask(WriteLac(7, key_of(7), 0, explicit)) == LacWritten()
    assert await client.ask(ask) == LacAnswer(True, False, False, explicit, entries[1], entries)


async def test_entries_beside_a_lac_never_make_its_answer_larger_than_a_frame(client: RawClient) -> None:
    """The evidence may be as large as an entry can be, and so may the first entry asked for along with it."""
    payload = bytes(limits.ENTRY_PAYLOAD_BYTES_MAX)
    entries = [*seal(7, 0, [payload]), *seal(7, 1, [payload], lac=0), *seal(8, 0, [payload]), *seal(8, 1, [b""], lac=0)]
    for ledger_id, sealed in zip((7, 7, 8, 8), entries, strict=True):
        assert await client.ask(add(ledger_id, [sealed])) == Added()
    answer = await client.ask(ReadLac(7, b"", ReadFlag.NONE, 0, None, 0, 10, 8 << 20))
    assert answer == LacAnswer(True, False, False, None, entries[1], [])
    answer = await client.ask(ReadLac(8, b"", ReadFlag.NONE, 0, None, 0, 10, 1 << 20))
    assert answer == LacAnswer(True, False, False, None, entries[3], [entries[2]])


async def test_a_long_poll_is_answered_when_the_lac_rises_and_adds_pass_it_by(client: RawClient) -> None:
    poll = client.send(ReadLac(7, b"", ReadFlag.NONE, 0, None, 60_000, 10, 1 << 20))
    assert (await client.ask(Ping())) == Pong()
    entries = [*seal(7, 0, [b"a"]), *seal(7, 1, [b"b"], lac=0)]
    added = client.send(add(7, entries))
    outcomes = dict([await client.receive_reply(), await client.receive_reply()])
    assert outcomes[added] == Added()
    assert outcomes[poll] == LacAnswer(True, False, False, None, entries[1], entries[:1])


async def test_a_long_poll_ends_with_its_time_when_nothing_changes(client: RawClient) -> None:
    answer = await client.ask(ReadLac(7, b"", ReadFlag.NONE, 0, None, 1, 0, 0))
    assert answer == LacAnswer(False, False, False, None, None, [])


# --- breaking the rules ------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [
        LENGTH.pack(limits.FRAME_BYTES_MAX + 1),
        LENGTH.pack(0),
        LENGTH.pack(3) + b"\xc1\xc1\xc1",
        LENGTH.pack(1) + b"\x05",
        LENGTH.pack(len(pack_body((1, int(Op.PING), "too", "many")))) + pack_body((1, int(Op.PING), "too", "many")),
    ],
)
async def test_broken_bytes_get_one_error_frame_and_a_closed_connection(
    bookie: Bookie, client: RawClient, garbage: bytes
) -> None:
    client.writer.write(garbage)
    _, error = await client.receive_reply()
    assert isinstance(error, ProtocolError)
    with pytest.raises(asyncio.IncompleteReadError):
        await client.receive()
    async with client_of(bookie) as another:
        assert isinstance(await another.greet(), Hello)


async def test_a_request_before_the_hello_is_refused(bookie: Bookie) -> None:
    async with client_of(bookie) as client:
        client.send(Ping())
        assert isinstance((await client.receive_reply())[1], ProtocolError)
        with pytest.raises(asyncio.IncompleteReadError):
            await client.receive()


async def test_another_version_bookie_or_cluster_is_refused(bookie: Bookie, store: MetadataStore) -> None:
    for hello, expected in (
        ({"versions": (99, 100)}, UnsupportedVersionError),
        ({"bookie_id": "another"}, WrongClusterError),
        ({"cluster_id": "another"}, WrongClusterError),
    ):
        async with client_of(bookie) as client:
            assert isinstance(await client.greet(**hello), expected)
    async with client_of(bookie) as client:
        answer = await client.greet(bookie_id=bookie.bookie_id, cluster_id=await store.cluster_id())
        assert isinstance(answer, Hello)
        assert answer.bookie_id == bookie.bookie_id


async def test_what_this_version_does_not_serve_is_refused_and_the_connection_goes_on(client: RawClient) -> None:
    client.send_body(pack_body((1000, 99)))
    request_id, refusal = await client.receive_reply()
    assert request_id == 1000
    assert isinstance(refusal, UnsupportedOperationError)
    assert await client.ask(Ping()) == Pong()


async def test_a_flood_of_requests_is_answered_in_full(client: RawClient) -> None:
    count = limits.REQUESTS_PER_CONNECTION_MAX * 3
    sent = [client.send(add(7, seal(7, entry_id, [b"x"]))) for entry_id in range(count)]
    answered = [await client.receive_reply() for _ in range(count)]
    assert sorted(request_id for request_id, _ in answered) == sent
    assert all(outcome == Added() for _, outcome in answered)


async def test_a_client_that_does_not_read_its_answers_delays_no_other_and_holds_little_memory(
    bookie: Bookie, client: RawClient
) -> None:
    payload = b"x" * (1 << 20)
    for entry_id in range(4):
        assert await client.ask(add(7, seal(7, entry_id, [payload]))) == Added()
    async with client_of(bookie) as slow:
        await slow.greet()
        slow.pause_reading()
        asked = [slow.send(read(7, 0, 3, bytes_max=8 << 20)) for _ in range(60)]
        assert await client.ask(Ping()) == Pong()

        async def reads_have_stalled() -> bool:
            before = (await client.ask(Info())).facts["reads"]  # type: ignore[union-attr]
            for _ in range(200):
                await asyncio.sleep(0)
            return bool(before == (await client.ask(Info())).facts["reads"])  # type: ignore[union-attr]

        await eventually(reads_have_stalled)
        info = await client.ask(Info())
        assert isinstance(info, InfoAnswer)
        # What lies in the kernel's buffers has been taken; the bookie itself holds one answer.
        assert int(info.facts["reads"]) < 8
        slow.resume_reading()
        answered = sorted([(await slow.receive_reply())[0] for _ in asked])
        assert answered == asked


async def test_every_kind_of_answer_gives_back_the_memory_it_was_given(bookie: Bookie, client: RawClient) -> None:
    await client.ask(add(7, seal(7, 0, [b"x"])))
    key = key_of(8)
    for _ in range(20):  # more than may run at a time: what is not given back would soon keep all others waiting
        for request in (
            read(7, 0, 0),
            read(8, 0, 0, fence=True),
            ListEntries(7, 0, 10),
            Missing(7, 0, 10, 1, (0,)),
            Read(7, b"", ReadFlag.REPAIR, 0, 0, 0, 1, (0,), 1, 1 << 20),
            ReadLac(7, b"", ReadFlag.NONE, 0, None, 0, 10, 1 << 20),
            ReadLac(7, b"", ReadFlag.NONE, 0, None, 1, 10, 1 << 20),
            ReadLac(8, key, ReadFlag.FENCE, 0, None, 0, 0, 0),
            ReadLac(9, b"", ReadFlag.FENCE, 0, None, 0, 0, 0),  # refused
        ):
            async with asyncio.timeout(WAIT_SECONDS):
                await client.ask(request)
    assert await client.ask(Ping()) == Pong()
    assert bookie.service.answers.budget.held == 0


async def test_info_tells_the_facts_that_the_document_lists(bookie: Bookie, client: RawClient) -> None:
    table = WIRE_DOCUMENT.split("| fact | is |")[1].split("\n\n")[0]
    documented = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    info = await client.ask(Info())
    assert isinstance(info, InfoAnswer)
    assert list(info.facts) == documented
    assert 0 < int(info.facts["free_bytes"]) < int(info.facts["total_bytes"])
    entries = seal(7, 0, [b"a", b"bb"])
    await client.ask(add(7, entries))
    await client.ask(read(7, 1, 1))
    await bookie.service.storage.checkpoint()
    counted = await bookie.service.info()
    size = sum(map(len, entries))
    assert (counted["adds"], counted["entries_added"], counted["bytes_added"]) == (1, 2, size)
    assert (counted["reads"], counted["entries_read"], counted["bytes_read"]) == (1, 1, len(entries[1]))
    timed = {name: sum(counts_from_text(counted[f"{name}_seconds"])) for name in ("add", "read", "journal_sync")}
    assert (timed["add"], timed["read"]) == (1, 1)
    assert timed["journal_sync"] >= 1
    assert (counted["ledgers"], counted["connections"], counted["state"]) == (1, 1, "writable")
    assert counted["boot_id"] == bookie.service.identity.boot_id


async def test_a_bookie_that_stops_refuses_new_requests_as_not_happened(bookie: Bookie, client: RawClient) -> None:
    bookie.service.draining = True
    outcome = await client.ask(add(7, seal(7, 0, [b"a"])))
    bookie.service.draining = False
    assert isinstance(outcome, BookieShuttingDownError)
    assert not outcome.may_have_happened
    assert await client.ask(read(7, 0, 0)) == ReadAnswer(0, [], (), None)


async def test_a_read_only_bookie_takes_recovery_adds_only(bookie: Bookie, client: RawClient) -> None:
    """Rule B6."""
    bookie.service.read_only = True
    assert isinstance(await client.ask(add(7, seal(7, 0, [b"a"]))), BookieReadOnlyError)
    assert await client.ask(add(7, seal(7, 0, [b"a"]), recovery=True)) == Added()


async def test_a_bookie_without_any_room_takes_no_recovery_adds_and_still_fences(
    bookie: Bookie, client: RawClient
) -> None:
    entries = seal(7, 0, [b"a"])
    await client.ask(add(7, entries))
    bookie.service.read_only = bookie.service.out_of_space = True
    assert await client.ask(read(7, 0, 0, fence=True)) == ReadAnswer(0, entries, (), None)
    assert isinstance(await client.ask(add(7, seal(7, 1, [b"b"]), recovery=True)), BookieReadOnlyError)
    bookie.service.read_only = bookie.service.out_of_space = False
    assert isinstance(await client.ask(add(7, seal(7, 1, [b"b"]))), LedgerFencedError), "the fence holds"
    assert await client.ask(add(7, seal(7, 1, [b"b"]), recovery=True)) == Added()


# --- a life ------------------------------------------------------------


async def test_a_bookie_has_everything_after_a_restart_and_keeps_its_name(tmp_path: Path, store: MetadataStore) -> None:
    entries = seal(7, 0, [b"a", b"b"])
    async with running_bookie(tmp_path, store) as bookie, client_of(bookie) as client:
        name = bookie.bookie_id
        await client.greet()
        await client.ask(add(7, entries))
        await client.ask(read(8, 0, 0, fence=True))
    async with running_bookie(tmp_path, store) as bookie, client_of(bookie) as client:
        assert bookie.bookie_id == name
        await client.greet()
        assert await client.ask(read(7, 0, 1)) == ReadAnswer(1, entries, (), None)
        assert isinstance(await client.ask(add(7, seal(7, 2, [b"c"], password=b"no"), key=b"no")), UnauthorizedError)
        assert isinstance(await client.ask(add(8, seal(8, 0, [b"c"]))), LedgerFencedError)


async def test_a_bookie_with_a_damaged_journal_doubts_every_ledger_made_before_and_none_made_later(
    tmp_path: Path, store: MetadataStore
) -> None:
    old = await store.allocate_ledger_id()
    await store.create_ledger(open_ledger(old))
    async with running_bookie(tmp_path, store) as bookie, client_of(bookie) as client:
        await client.greet()
        assert await client.ask(add(old, seal(old, 0, [b"a"]))) == Added()
    cut_off_journal(tmp_path)
    for _ in range(2):
        async with running_bookie(tmp_path, store) as bookie, client_of(bookie) as client:
            await client.greet()
            new = await store.allocate_ledger_id()
            assert await client.ask(read(old, 0, 1)) == ReadAnswer(1, seal(old, 0, [b"a"]), ((1, 1),), None)
            assert isinstance(await client.ask(add(old, seal(old, 1, [b"b"]))), BookieInDoubtError)
            assert await client.ask(add(new, seal(new, 0, [b"c"]))) == Added()
            assert await client.ask(read(new, 0, 1)) == ReadAnswer(1, seal(new, 0, [b"c"]), (), None)


async def test_a_bookie_is_registered_while_it_lives(tmp_path: Path, store: MetadataStore) -> None:
    async with running_bookie(tmp_path, store) as bookie:
        (registration,) = (await store.list_bookies()).values()
        assert (registration.bookie_id, registration.address) == (bookie.bookie_id, bookie.address)
        assert registration.state is BookieState.WRITABLE
    assert not await store.list_bookies()
    (known,) = await store.list_known_bookies()
    assert known.state is BookieState.UNAVAILABLE


async def test_a_port_in_use_is_one_clear_error_and_leaves_nothing_running(
    tmp_path: Path, store: MetadataStore, bookie: Bookie
) -> None:
    port = int(bookie.address.rpartition(":")[2])
    with pytest.raises(BookieStartError, match=f"port {port} of 127.0.0.1 is in use"):
        async with running_bookie(tmp_path / "second", store, seed=2, port=port):
            pass
    assert list(await store.list_bookies()) == [bookie.bookie_id]


async def test_a_directory_in_use_is_refused(tmp_path: Path, store: MetadataStore, bookie: Bookie) -> None:
    with pytest.raises(BookieStartError, match="in use by another bookie"):
        async with running_bookie(tmp_path, store):
            pass


async def test_a_folder_of_another_cluster_is_refused_for_good(tmp_path: Path, store: MetadataStore) -> None:
    async with running_bookie(tmp_path, store):
        pass
    async with await open_metadata_store("memory://", create=True) as other:
        with pytest.raises(DataWrongError, match="another cluster"):
            async with running_bookie(tmp_path, other):
                pass
        assert not await other.list_bookies()
