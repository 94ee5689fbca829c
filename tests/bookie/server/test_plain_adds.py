"""Plain adds of a pack are accepted together. Answers, entries and counts are as if each had come alone."""

import asyncio
import errno
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from octavo.bookie.bookie import Bookie
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.server.authority import Standing
from octavo.bookie.server.replies import Replies
from octavo.bookie.server.request_counts import RequestCounts
from octavo.bookie.storage.admission import Done
from octavo.bookie.storage.ledger_state import LedgerState
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.protocol.entries import verify_lone_entries
from octavo.protocol.errors import (
    BookieReadOnlyError,
    BookieShuttingDownError,
    BookieStorageError,
    DigestMismatchError,
    OctavoError,
    ProtocolError,
)
from octavo.protocol.frames import LENGTH, FrameDecoder, unpack_body
from octavo.protocol.held_entries import Doubt
from octavo.protocol.ids import LedgerId
from octavo.protocol.messages import (
    Add,
    AddFlag,
    LacAnswer,
    Op,
    ReadAnswer,
    ReadFlag,
    ReadLac,
    Request,
    WriteLac,
    decode_hello,
    decode_reply,
)
from octavo.protocol.packs import PLAIN_ADDS_MIN, PlainAdds, decode_pack, pack_head, tail_of
from octavo.protocol.places import place
from support.clusters.ledgers import LedgerScript
from support.clusters.memory_bookies import bookie_on, connected
from support.disks.faulty_filesystem import MemoryFileSystem
from support.disks.held_disk import HeldDisk
from support.raw_client import RawClient, add, key_of, read, seal, seal_lac
from support.waiting import WAIT_SECONDS, eventually
from support.written import Written

pytestmark = pytest.mark.usefixtures("logged")

LEDGERS = range(1, 13)
TERM_FENCED, TERM = 1, 2


def adds(ledgers: Sequence[int], first: int) -> list[Request]:
    return [add(ledger_id, seal(ledger_id, first, [b"%d" % ledger_id])) for ledger_id in ledgers]


def parts_of(requests: Sequence[Request]) -> list[type]:
    tails = [tail_of(request) for request in requests]
    body = b"".join((pack_head(1, tails), *tails))[LENGTH.size :]
    return [type(part) for part in decode_pack(unpack_body(body)).parts]


def test_the_packs_of_these_tests_are_plain() -> None:
    assert parts_of(adds(LEDGERS, 1)) == [PlainAdds]
    assert parts_of([*adds(LEDGERS[:3], 1)]) == [Add] * 3
    lac = WriteLac(1, key_of(1), 0, seal_lac(1, 0))
    assert parts_of([*adds(LEDGERS, 1), lac, *adds(LEDGERS[:PLAIN_ADDS_MIN], 1)]) == [PlainAdds, WriteLac, PlainAdds]
    for other in (
        add(1, seal(1, 2, [b"a second one of a ledger"])),
        add(99, seal(99, 1, [b"two", b"entries"])),
        add(99, seal(99, 1, [b"x"]), recovery=True),
        Add(99, key_of(99), AddFlag.PRIVATE, 0, seal(99, 1, [b"x"])),
    ):
        assert parts_of([*adds(LEDGERS, 1), other]) == [Add] * (len(LEDGERS) + 1)


# --- as if each had come alone ----------------------------------------------------------------------------------------


def some_add(ledger_id: int, chance: random.Random) -> Request:
    """Mostly an ordinary next add of the ledger; see :func:`prepared`."""
    ((sealed,), key, term) = (seal(ledger_id, 1, [b"next"]), key_of(ledger_id), 0)
    match chance.randrange(12):
        case 0:
            key = b"another key"
        case 1:
            (sealed,) = seal(ledger_id, 0, [b"held"])
        case 2:
            (sealed,) = seal(ledger_id, 0, [b"other bytes"])
        case 3:
            sealed = sealed[:-1] + bytes([sealed[-1] ^ 1]) if chance.random() < 0.3 else sealed
        case 4:
            term = chance.choice([TERM_FENCED, TERM])
            (sealed,) = seal(ledger_id, place(term, 0), [b"of a term"])
        case 5:
            (sealed,) = seal(ledger_id, 7, [b"behind a gap"])
        case 6:
            key = b""
        case 7:
            (sealed,) = seal(ledger_id, 1, [bytes(chance.randrange(3000))])
        case _:
            pass
    return Add(ledger_id, key, AddFlag.NONE, term, [sealed])


async def prepared(client: RawClient) -> None:
    """Ledgers 1 to 10 have an entry. 3 is fenced, 4 up to a term; 11 and 12 are unknown, 5 is private."""
    for ledger_id in LEDGERS[:10]:
        flags = AddFlag.PRIVATE if ledger_id == 5 else AddFlag.NONE
        await client.ask(Add(ledger_id, key_of(ledger_id), flags, 0, seal(ledger_id, 0, [b"held"])))
    await client.ask(ReadLac(3, key_of(3), ReadFlag.FENCE, 0, None, 0, 0, 0))
    await client.ask(ReadLac(4, key_of(4), ReadFlag.FENCE, TERM_FENCED, None, 0, 0, 0))


async def found(bookie: Bookie, client: RawClient) -> dict[int, object]:
    """What the bookie has of each ledger, and says of it."""
    answers: dict[int, object] = {}
    for ledger_id in LEDGERS:
        lac = await client.ask(ReadLac(ledger_id, key_of(ledger_id), ReadFlag.NONE, 0, None, 0, 0, 0))
        seen: list[object] = [lac if isinstance(lac, LacAnswer) else type(lac)]
        for term in (0, TERM_FENCED, TERM):
            first = place(term, 0) if term else 0
            entries = await client.ask(read(ledger_id, first, first + 9))
            seen.append(entries.entries if isinstance(entries, ReadAnswer) else type(entries))
        answers[ledger_id] = seen
    traffic = bookie.service.traffic
    answers[0] = (traffic.adds, traffic.entries_added, traffic.bytes_added)
    return answers


def told(outcome: OctavoError | None) -> tuple[type, str] | None:
    return None if outcome is None else (type(outcome), outcome.message)


@pytest.mark.parametrize("seed", range(8))
async def test_a_pack_does_what_its_requests_do_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    # The first pack is plain as a whole, however unlucky the draws are.
    packs = [adds(LEDGERS[5:10], 1)] + [
        [some_add(ledger_id, chance) for ledger_id in chance.sample(LEDGERS, chance.randrange(4, len(LEDGERS) + 1))]
        for _ in range(4)
    ]
    outcomes: list[list[object]] = [[], []]
    seen: list[dict[int, object]] = []
    for together in range(2):
        async with bookie_on(MemoryFileSystem()) as bookie, connected(bookie) as client:
            await prepared(client)
            for pack in packs:
                if together:
                    outcomes[together] += map(told, await client.ask_pack(*pack))
                else:
                    ids = [client.send_pack(request)[0] for request in pack]
                    outcomes[together] += map(told, await client.outcomes(ids))
            seen.append(await found(bookie, client))
    assert outcomes[1] == outcomes[0]
    assert seen[1] == seen[0]
    assert None in outcomes[0]


def stops(bookie: Bookie) -> None:
    bookie.service.draining = True


def is_full(bookie: Bookie) -> None:
    bookie.service.read_only = True


def was_given_up(bookie: Bookie) -> None:
    bookie.service.standing.lost()


@pytest.mark.parametrize(
    ("happens", "refusal"),
    [(stops, BookieShuttingDownError), (is_full, BookieReadOnlyError), (was_given_up, BookieShuttingDownError)],
)
async def test_a_bookie_that_takes_no_adds_takes_none_in_packs(
    happens: Callable[[Bookie], None], refusal: type[OctavoError]
) -> None:
    async with bookie_on(MemoryFileSystem()) as bookie, connected(bookie) as client:
        assert await client.ask_pack(*adds(LEDGERS, 0)) == [None] * len(LEDGERS)
        happens(bookie)
        outcomes = await client.ask_pack(*adds(LEDGERS, 1))
        assert {type(outcome) for outcome in outcomes} == {refusal}
        bookie.service.draining = False
        for ledger_id in LEDGERS:
            answer = await client.ask(read(ledger_id, 0, 9))
            assert isinstance(answer, ReadAnswer)
            assert len(answer.entries) == 1


@pytest.mark.parametrize(("term", "entry_id"), [(2, place(3, 0)), (2, place(1, 7)), (2, 5), (3, place(4, 0) - 1)])
async def test_an_entry_of_another_term_in_a_pack_ends_the_connection(term: int, entry_id: int) -> None:
    async with bookie_on(MemoryFileSystem()) as bookie, connected(bookie) as client:
        assert await client.ask_pack(*adds(LEDGERS, 0)) == [None] * len(LEDGERS)
        wrong = Add(3, key_of(3), AddFlag.NONE, term, seal(3, entry_id, [b"x"]))
        ids = client.send_pack(*adds(LEDGERS[:2], 1), wrong, *adds(LEDGERS[3:], 1))
        assert await client.receive_reply() == (ids[2], ANY)
        assert isinstance(decode_hello(await client.receive()), ProtocolError)
        async with connected(bookie) as other:
            for ledger_id in LEDGERS[3:]:
                answer = await other.ask(read(ledger_id, 0, 9))
                assert isinstance(answer, ReadAnswer)
                assert len(answer.entries) == 1, "what stands behind the entry was not served"


# --- durable first ----------------------------------------------------------------------------------------------------


async def test_none_is_confirmed_before_all_are_on_the_disk() -> None:
    disk = HeldDisk(lambda name, path: name == "sync" and path.name.startswith("journal-"))
    async with bookie_on(disk) as bookie, connected(bookie) as client:
        assert await client.ask_pack(*adds(LEDGERS, 0)) == [None] * len(LEDGERS)
        disk.hold()
        receiving = asyncio.ensure_future(client.outcomes(client.send_pack(*adds(LEDGERS, 1))))
        async with asyncio.timeout(WAIT_SECONDS):
            await disk.held.wait()
        for _ in range(500):
            await asyncio.sleep(0)
        was_early = receiving.done()
        outstanding = [one.outstanding for one in bookie.service.connections]
        disk.release()  # before anything fails: a bookie whose disk is held cannot stop
        assert not was_early
        assert outstanding == [len(LEDGERS)]
        assert await receiving == [None] * len(LEDGERS)
        assert [one.outstanding for one in bookie.service.connections] == [0]


async def test_a_refused_one_is_refused_while_the_others_wait_for_the_disk() -> None:
    disk = HeldDisk(lambda name, path: name == "sync" and path.name.startswith("journal-"))
    async with bookie_on(disk) as bookie, connected(bookie) as client:
        assert await client.ask_pack(*adds(LEDGERS, 0)) == [None] * len(LEDGERS)
        disk.hold()
        (sealed,) = seal(4, 1, [b"x"])
        damaged = add(4, [sealed[:-1] + bytes([sealed[-1] ^ 1])])
        ids = client.send_pack(*adds(LEDGERS[:3], 1), damaged, *adds(LEDGERS[4:], 1))
        assert [type(outcome) for outcome in await client.outcomes(ids[3:4])] == [DigestMismatchError]
        disk.release()
        assert await client.outcomes(ids[:3] + ids[4:]) == [None] * (len(LEDGERS) - 1)


async def test_a_long_poll_is_answered_when_its_ledger_has_grown() -> None:
    async with bookie_on(MemoryFileSystem()) as bookie, connected(bookie) as client, connected(bookie) as follower:
        assert await client.ask_pack(*adds(LEDGERS, 0)) == [None] * len(LEDGERS)
        waiting = asyncio.ensure_future(follower.ask(ReadLac(3, b"", ReadFlag.NONE, 0, None, 60_000, 0, 0)))
        await eventually(lambda: sum(one.long_polls for one in bookie.service.connections) == 1)
        began_at = asyncio.get_running_loop().time()
        grown: list[Request] = [add(one, seal(one, 1, [b"x"], lac=0)) for one in LEDGERS]
        assert await client.ask_pack(*grown) == [None] * len(LEDGERS)
        async with asyncio.timeout(WAIT_SECONDS):
            answer = await waiting
        assert isinstance(answer, LacAnswer)
        assert answer.entry == seal(3, 1, [b"x"], lac=0)[0]
        assert asyncio.get_running_loop().time() - began_at < 30, "answered when the poll was over"


# --- answers ----------------------------------------------------------------------------------------------------------


async def answers_to(ids: Sequence[int], now: float, failure: BaseException | None) -> tuple[list[Any], RequestCounts]:
    """What a client is sent when these adds, which began at 1.0, have an outcome at ``now``. The bookie was sure of its
    registration until 5.0."""
    clock = [1.0]
    standing = Standing(lambda: 5.0)
    standing.lost()
    standing.sure_until = 5.0
    counts = RequestCounts(lambda: clock[0])
    replies = Replies(lambda: None, counts, standing)
    transport = Written()
    replies.connected(transport)
    replies.begin_pack(ids[0], len(ids))
    clock[0] = now
    replies.added_together(ids, replies.began_at, failure)
    await asyncio.sleep(0)
    assert replies.outstanding == 0
    return [unpack_body(body) for body in FrameDecoder().feed(transport.data)], counts


async def test_one_answer_confirms_those_that_have_one_outcome() -> None:
    answers, counts = await answers_to(range(3, 9), 2.0, None)
    assert answers == [[3, int(Op.PACK), 0, [[3, 8]]]]
    assert (counts.add_seconds.count, counts.add_seconds.sum_seconds) == (6, 6.0)


@pytest.mark.parametrize(
    ("now", "failure", "refusal"),
    [
        (6.0, None, BookieShuttingDownError),
        (2.0, BookieStorageError("the journal failed"), BookieStorageError),
    ],
)
async def test_each_is_refused_if_none_may_be_confirmed(
    now: float, failure: BaseException | None, refusal: type[OctavoError]
) -> None:
    """The journal has failed, or the bookie was paused for so long that it may confirm nothing (rule B10)."""
    answers, counts = await answers_to(range(3, 9), now, failure)
    replies = [decode_reply(answer) for answer in answers]
    assert [request_id for request_id, _ in replies] == list(range(3, 9))
    assert {type(reply) for _, reply in replies} == {refusal}
    assert counts.add_seconds.count == 0
    assert counts.refused.total() == 6


# --- in the storage ---------------------------------------------------------------------------------------------------

SCRIPTS = [LedgerScript(ledger_id) for ledger_id in range(0, 3000, 100)]


async def opened(filesystem: MemoryFileSystem, failures: list[BaseException] | None = None) -> Storage:
    """Groups of few records, and room for the states of four ledgers."""
    journal = JournalSettings(segment_bytes=64 * 1024, first_fill_bytes=0, group_records_max=7)
    return await Storage.open(
        filesystem,
        directory=Path("/bookie/data"),
        journal_directory=Path("/bookie/journal"),
        settings=StorageSettings(
            cache_bytes_max=20_000, ledgers_hot_max=4, checkpoint_seconds=3600, entry_log_bytes=30_000, journal=journal
        ),
        on_fatal=(failures if failures is not None else []).append,
    )


class Outcome:
    """What becomes of adds that are taken together."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.failure: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def __call__(self, taken: Sequence[int]) -> Done:
        self.taken = list(taken)
        return self.failure.set_result

    async def wait(self) -> BaseException | None:
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.failure


def add_to_each(storage: Storage, entry_id: int, outcome: Outcome) -> list[int]:
    """Add an entry to each ledger. Returns the indexes of the ledgers that were left out."""
    entries = [ledger.entry(entry_id) for ledger in SCRIPTS]
    ids = [ledger.ledger_id for ledger in SCRIPTS]
    adds = PlainAdds(ids, [ledger.key for ledger in SCRIPTS], [0] * len(SCRIPTS), entries)
    verified = verify_lone_entries(ids, entries)
    assert verified is not None
    return storage.writer.add_plain_then(adds, verified, outcome)


async def begun(storage: Storage) -> None:
    """Each ledger has an entry 0."""
    for ledger in SCRIPTS:
        await storage.writer.add(ledger.ledger_id, ledger.key, [ledger.entry(0)], recovery=False)


async def all_held(storage: Storage) -> list[list[bytes]]:
    return [
        list((await storage.reader.read(ledger.ledger_id, 0, 99, entries_max=500, bytes_max=100_000)).entries)
        for ledger in SCRIPTS
    ]


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_what_was_reported_durable_survives_a_crash(checkpoint: bool) -> None:
    filesystem = MemoryFileSystem()
    storage = await opened(filesystem)
    await begun(storage)
    for entry_id in range(1, 6):
        outcome = Outcome()
        assert add_to_each(storage, entry_id, outcome) == []
        assert outcome.taken == list(range(len(SCRIPTS)))
        assert not outcome.failure.done()
        assert await outcome.wait() is None
        if checkpoint and entry_id == 3:
            await storage.checkpoint()
    storage = await opened(filesystem.after_crash(1))
    assert await all_held(storage) == [ledger.entries(range(6)) for ledger in SCRIPTS]
    assert [storage.ledgers.get(ledger.ledger_id).highest_plus_one for ledger in SCRIPTS] == [6] * len(SCRIPTS)
    await storage.close()


async def test_what_is_held_is_known_although_there_is_no_room_for_the_states_of_all_ledgers() -> None:
    storage = await opened(MemoryFileSystem())
    await begun(storage)
    await storage.checkpoint()  # from here on nothing keeps the states
    for other in range(5000, 5010):
        storage.ledgers.get(other)
    assert add_to_each(storage, 1, Outcome()) == []
    assert [storage.ledgers.get(ledger.ledger_id).highest_plus_one for ledger in SCRIPTS] == [2] * len(SCRIPTS)
    assert add_to_each(storage, 1, Outcome()) == list(range(len(SCRIPTS)))
    await storage.close()


async def test_ledgers_that_are_not_as_usual_are_left_out() -> None:
    storage = await opened(MemoryFileSystem())
    await begun(storage)
    await storage.writer.fence(SCRIPTS[2].ledger_id, SCRIPTS[2].key)
    await storage.writer.add(SCRIPTS[4].ledger_id, SCRIPTS[4].key, [SCRIPTS[4].entry(1)], recovery=False)
    outcome = Outcome()
    assert add_to_each(storage, 1, outcome) == [2, 4]
    assert outcome.taken == [index for index in range(len(SCRIPTS)) if index not in {2, 4}]
    assert await outcome.wait() is None
    assert [len(entries) for entries in await all_held(storage)] == [
        1 if index == 2 else 2 for index in range(len(SCRIPTS))
    ]
    await storage.close()


FENCED_UP_TO = 3


def mark(state: LedgerState, number: int) -> None:
    """Make it one of several states that a ledger can be in; those of numbers from 8 on are as usual."""
    state.fenced = number in {0, 1, 2}
    state.fenced_term = FENCED_UP_TO if number in {1, 2} else 0
    state.deleted = number == 3
    state.dropped = number == 4
    state.in_doubt = number in {2, 5}
    state.ledger_key = None if number == 6 else b"another key" if number == 7 else state.ledger_key


@pytest.mark.parametrize("term", [0, FENCED_UP_TO, FENCED_UP_TO + 1])
@pytest.mark.parametrize("doubt", [None, Doubt(SCRIPTS[14].ledger_id, term_floors={SCRIPTS[12].ledger_id: 3})])
async def test_what_is_taken_is_what_would_be_taken_of_adds_that_came_alone(term: int, doubt: Doubt | None) -> None:
    storage = await opened(MemoryFileSystem())
    await begun(storage)
    storage.ledgers.doubt = doubt
    for number, ledger in enumerate(SCRIPTS):
        mark(storage.ledgers.get(ledger.ledger_id), number)
    ids = [ledger.ledger_id for ledger in SCRIPTS]
    first = place(term, 0) if term else 1
    entries = [seal(ledger_id, first, [b"x"])[0] for ledger_id in ids]
    adds = PlainAdds(ids, [ledger.key for ledger in SCRIPTS], [term] * len(SCRIPTS), entries)
    verified = verify_lone_entries(ids, entries)
    assert verified is not None
    left = storage.writer.add_plain_then(adds, verified, Outcome())
    refused = []
    for index, ledger in enumerate(SCRIPTS):
        try:
            await storage.writer.force(LedgerId(ledger.ledger_id), ledger.key, term)  # refused as an add would be
        except OctavoError:
            refused.append(index)
    slow = [number for number in (4, 6) if number not in refused]
    assert left == sorted(refused + slow)
    assert {3, 7} <= set(refused)
    storage.ledgers.doubt = None
    await storage.close()


async def test_a_journal_that_fails_fails_all_that_were_taken_and_takes_no_more() -> None:
    filesystem = MemoryFileSystem()
    failures: list[BaseException] = []
    storage = await opened(filesystem, failures)
    await begun(storage)

    def fault(name: str, path: Path) -> OSError | None:
        return OSError(errno.EIO, os.strerror(errno.EIO)) if name == "sync" and "journal" in str(path) else None

    filesystem.fault = fault
    outcome = Outcome()
    assert add_to_each(storage, 1, outcome) == []
    assert await outcome.wait() is not None
    assert failures
    again = Outcome()
    assert add_to_each(storage, 2, again) == list(range(len(SCRIPTS)))
    assert not again.failure.done()
    await storage.close()
