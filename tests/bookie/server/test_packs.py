"""Packs at a bookie: each request in one is served as if it had come alone, and answered exactly once."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from octavo.bookie.bookie import Bookie
from octavo.bookie.server.clients import FRAMES_PER_TURN_MAX, Clients
from octavo.bookie.server.connection import Connection
from octavo.bookie.server.limits import ClientLimits
from octavo.protocol.errors import (
    BookieOverloadedError,
    BookieShuttingDownError,
    DigestMismatchError,
    DuplicateEntryError,
    LedgerFencedError,
    OctavoError,
    ProtocolError,
    UnauthorizedError,
)
from octavo.protocol.frames import frame_of, pack_body
from octavo.protocol.limits import REQUESTS_PER_CONNECTION_MAX
from octavo.protocol.messages import (
    Add,
    Added,
    AddFlag,
    Force,
    Forced,
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
from octavo.protocol.packs import CAPABILITY_PACKS, is_pack
from octavo.security.roles import Role
from support.clusters.memory_bookies import bookie_on, connected
from support.clusters.principals import DOCUMENTS, GUARDED, raw
from support.clusters.tls_bookies import cluster_of
from support.disks.faulty_filesystem import MemoryFileSystem
from support.disks.held_disk import HeldDisk
from support.raw_client import RawClient, add, key_of, read, seal, seal_lac
from support.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.usefixtures("logged")


@pytest.fixture
async def bookie() -> AsyncIterator[Bookie]:
    async with bookie_on(MemoryFileSystem()) as running:
        yield running


@pytest.fixture
async def client(bookie: Bookie) -> AsyncIterator[RawClient]:
    async with connected(bookie) as client:
        yield client


@pytest.fixture
async def disk() -> HeldDisk:
    """Syncs of the journal can be held."""
    return HeldDisk(lambda name, path: name == "sync" and path.name.startswith("journal-"))


def kinds(outcomes: Sequence[OctavoError | None]) -> list[type | None]:
    return [None if outcome is None else type(outcome) for outcome in outcomes]


def adds(*ledgers: int, first: int = 0) -> list[Request]:
    return [add(ledger_id, seal(ledger_id, first, [b"%d" % ledger_id])) for ledger_id in ledgers]


async def held(client: RawClient, ledger_id: int) -> int:
    """How many of the first ten entries the bookie has."""
    answer = await client.ask(read(ledger_id, 0, 9))
    assert isinstance(answer, ReadAnswer)
    return len(answer.entries)


async def test_a_bookie_says_that_it_takes_packs(bookie: Bookie) -> None:
    async with connected(bookie) as client:
        pass
    host, _, port = bookie.address.rpartition(":")
    async with RawClient(host, int(port)) as client:
        assert CAPABILITY_PACKS in (await client.greet()).capabilities


async def test_requests_of_several_ledgers_in_one_pack_are_answered_in_one_frame(client: RawClient) -> None:
    ids = client.send_pack(*adds(1, 2, 3))
    assert await client.receive() == [ids[0], int(Op.PACK), 0, [[ids[0], ids[-1]]]]
    assert [await held(client, ledger_id) for ledger_id in (1, 2, 3, 4)] == [1, 1, 1, 0]


async def test_adds_lacs_and_forces_are_served_in_the_order_of_the_pack(client: RawClient) -> None:
    deferred = Add(1, key_of(1), AddFlag.DEFERRED_SYNC, 0, seal(1, 0, [b"a"]))
    force = Force(1, key_of(1), 0, ((0, 0),))
    lac = WriteLac(1, key_of(1), 0, seal_lac(1, 0))
    assert await client.ask_pack(deferred, force, lac, *adds(2)) == [None] * 4
    answer = await client.ask(ReadLac(1, b"", ReadFlag.NONE, 0, None, 0, 0, 0))
    assert isinstance(answer, LacAnswer)
    assert answer.explicit == seal_lac(1, 0)


async def test_a_fence_between_two_packs_refuses_only_what_it_fences(bookie: Bookie, client: RawClient) -> None:
    assert await client.ask_pack(*adds(1, 2, 3)) == [None] * 3
    async with connected(bookie) as recoverer:
        await recoverer.ask(ReadLac(2, key_of(2), ReadFlag.FENCE, 0, None, 0, 0, 0))
    outcomes = await client.ask_pack(*adds(1, 2, 3, 2, first=1))
    assert kinds(outcomes) == [None, LedgerFencedError, None, LedgerFencedError]
    assert [await held(client, ledger_id) for ledger_id in (1, 2, 3)] == [2, 1, 2]


async def test_a_fence_that_arrives_while_a_pack_waits_for_the_disk_leaves_each_add_confirmed_and_readable(
    disk: HeldDisk,
) -> None:
    """What the bookie has accepted before the fence is in the recoverer's answer (rule F2)."""
    async with bookie_on(disk) as bookie, connected(bookie) as client, connected(bookie) as recoverer:
        assert await client.ask_pack(*adds(1, 2)) == [None, None]
        disk.hold()
        ids = client.send_pack(*adds(1, 2, first=1))
        async with asyncio.timeout(WAIT_SECONDS):
            await disk.held.wait()
        fencing = asyncio.ensure_future(recoverer.ask(read(2, 0, 9, fence=True)))
        for _ in range(200):
            await asyncio.sleep(0)
        later = client.send_pack(*adds(2, 1, first=2))
        for _ in range(200):
            await asyncio.sleep(0)
        disk.release()
        assert kinds(await client.outcomes([*ids, *later])) == [None, None, LedgerFencedError, None]
        answer = await fencing
        assert isinstance(answer, ReadAnswer)
        assert len(answer.entries) == 2


async def test_nothing_of_a_pack_is_confirmed_before_it_is_on_the_disk(disk: HeldDisk) -> None:
    async with bookie_on(disk) as bookie, connected(bookie) as client:
        assert await client.ask_pack(*adds(9)) == [None]
        disk.hold()
        ids = client.send_pack(*adds(1, 2, 3), WriteLac(9, key_of(9), 0, seal_lac(9, 0)))
        assert await client.outcomes(ids[3:]) == [None], "an explicit LAC waits for no disk (rule W2)"
        async with asyncio.timeout(WAIT_SECONDS):
            await disk.held.wait()
        receiving = asyncio.ensure_future(client.outcomes(ids[:3]))
        for _ in range(500):
            await asyncio.sleep(0)
        assert not receiving.done()
        assert [one.outstanding for one in bookie.service.connections] == [3]
        disk.release()
        assert await receiving == [None] * 3
        assert [one.outstanding for one in bookie.service.connections] == [0]


async def test_refusals_belong_to_their_own_requests(client: RawClient) -> None:
    assert await client.ask_pack(*adds(1, 2, 3)) == [None] * 3
    requests = [
        add(1, seal(1, 1, [b"x"]), key=b"another key"),
        add(2, seal(2, 0, [b"other bytes"])),
        *adds(2, 3, first=1),
        WriteLac(3, b"another key", 0, seal_lac(3, 0)),
        Force(3, b"another key", 0, ((0, 0),)),
        *adds(1, first=1),
        *adds(1, first=1),
    ]
    outcomes = await client.ask_pack(*requests)
    assert kinds(outcomes) == [
        UnauthorizedError, DuplicateEntryError, None, None, UnauthorizedError, UnauthorizedError, None, None,
    ]  # fmt: skip


async def test_a_damaged_entry_refuses_its_request_and_the_others_of_the_pack_go_on(client: RawClient) -> None:
    (sealed,) = seal(2, 0, [b"x"])
    damaged = sealed[:-1] + bytes([sealed[-1] ^ 1])
    outcomes = await client.ask_pack(*adds(1), add(2, [damaged]), *adds(3))
    assert kinds(outcomes) == [None, DigestMismatchError, None]


async def test_an_entry_of_another_ledger_in_a_pack_ends_the_connection_behind_the_answers_before_it(
    bookie: Bookie, client: RawClient
) -> None:
    lac = WriteLac(1, key_of(1), 0, seal_lac(1, 0))
    first, wrong, _ = client.send_pack(lac, add(2, seal(3, 0, [b"x"])), *adds(4))
    refused, refusal = await client.receive_reply()
    assert (refused, type(refusal)) == (wrong, ProtocolError)
    assert await client.receive() == [first, int(Op.PACK), 0, [[first, first]]]
    assert isinstance(decode_hello(await client.receive()), ProtocolError)
    with pytest.raises(asyncio.IncompleteReadError):
        await client.receive()
    async with connected(bookie) as other:
        assert await held(other, 4) == 0
        await eventually(lambda: len(bookie.service.connections) == 1)


@pytest.mark.parametrize(
    "values",
    [
        (1, 11, []),
        (1, 11, [[8]]),
        (1, 11, [[11, []]]),
        (0, 11, [[4, 7, b"", 0, b"x"]]),
        (1, 11, [[4, 7, b"", 0, b"x"]] * (REQUESTS_PER_CONNECTION_MAX + 1)),
        (1, 11, [[5, 7, b"", 0, []]] * 4096),
        (1, 11, [[5, 7, b"", 0, [[one, one] for one in range(0, 8192, 2)]]] * 20),
    ],
)
async def test_a_pack_that_breaks_the_protocol_ends_its_connection_and_no_other(
    bookie: Bookie, client: RawClient, values: tuple[object, ...]
) -> None:
    async with connected(bookie) as other:
        client.writer.write(frame_of(pack_body(values)))
        assert isinstance(decode_hello(await client.receive()), ProtocolError)
        with pytest.raises(asyncio.IncompleteReadError):
            await client.receive()
        assert await other.ask_pack(*adds(1, 2)) == [None, None]


async def test_the_largest_packs_are_served_and_requests_count_one_by_one(disk: HeldDisk) -> None:
    async with bookie_on(disk, cache_bytes=64 << 20) as bookie, connected(bookie) as client:
        assert await client.ask_pack(*adds(1)) == [None]
        disk.hold()
        sent = [client.send_pack(*adds(*range(start, start + 1024))) for start in range(2, 2 + 3 * 1024, 1024)]
        (connection,) = bookie.service.connections
        assert isinstance(connection, Connection)
        await eventually(lambda: connection.outstanding >= REQUESTS_PER_CONNECTION_MAX)
        for _ in range(500):
            await asyncio.sleep(0)
        assert connection.outstanding < 2 * REQUESTS_PER_CONNECTION_MAX, "a pack that is begun is served"
        assert connection.reading_is_paused
        disk.release()
        for ids in sent:
            assert await client.outcomes(ids) == [None] * 1024
        assert connection.outstanding == 0


class Sockets:
    """A connection that notes when it is regulated."""

    def __init__(self) -> None:
        self.regulated = 0

    def regulate(self) -> None:
        self.regulated += 1


@pytest.mark.parametrize("requests", [1, FRAMES_PER_TURN_MAX // 2, FRAMES_PER_TURN_MAX, 4 * FRAMES_PER_TURN_MAX])
async def test_requests_of_packs_count_one_by_one_against_the_turn_of_their_client(requests: int) -> None:
    """Rule B12."""
    clients, sockets = Clients(ClientLimits()), Sockets()
    client = clients.enter("address a", sockets)
    taken = 0
    while not client.rests:
        client.take_frame(requests)
        taken += requests
    assert FRAMES_PER_TURN_MAX <= taken < FRAMES_PER_TURN_MAX + requests
    assert sockets.regulated == 1
    client.take_frame(requests)
    assert sockets.regulated == 1
    await asyncio.sleep(0)
    assert not client.rests
    assert sockets.regulated == 2
    clients.close()


async def test_packs_and_single_requests_share_a_connection(client: RawClient) -> None:
    ids = client.send_pack(*adds(1, 2))
    alone = client.send(adds(3)[0])
    found: dict[int, object] = {}
    while len(found) < 3:
        values = await client.receive()
        if is_pack(values):
            found.update(dict.fromkeys(range(values[3][0][0], values[3][-1][1] + 1), "done"))
        else:
            request_id, found[request_id] = decode_reply(values)[0], decode_reply(values)[1]
    assert found == {ids[0]: "done", ids[1]: "done", alone: Added()}


async def test_a_bookie_that_stops_refuses_each_request_of_a_pack_as_not_happened(
    bookie: Bookie, client: RawClient
) -> None:
    bookie.service.draining = True
    outcomes = await client.ask_pack(*adds(1, 2), WriteLac(1, key_of(1), 0, seal_lac(1, 0)))
    bookie.service.draining = False
    assert kinds(outcomes) == [BookieShuttingDownError] * 3
    assert not any(outcome.may_have_happened for outcome in outcomes if outcome is not None)


async def test_a_bookie_that_stops_answers_the_packs_that_it_has_accepted(disk: HeldDisk) -> None:
    async with bookie_on(disk) as bookie, connected(bookie) as client:
        assert await client.ask_pack(*adds(9)) == [None]
        disk.hold()
        ids = client.send_pack(*adds(1, 2, 3))
        async with asyncio.timeout(WAIT_SECONDS):
            await disk.held.wait()
        draining = asyncio.ensure_future(bookie.service.drain(WAIT_SECONDS))
        for _ in range(200):
            await asyncio.sleep(0)
        assert not draining.done()
        disk.release()
        assert await client.outcomes(ids) == [None] * 3
        await draining
        with pytest.raises(asyncio.IncompleteReadError):
            await client.receive()


async def test_a_closed_connection_with_requests_of_a_pack_that_were_never_served_holds_up_no_drain(
    disk: HeldDisk,
) -> None:
    async with bookie_on(disk) as bookie, connected(bookie) as client:
        client.send_pack(*adds(1), add(2, seal(3, 0, [b"x"])), *adds(*range(4, 100)))
        await eventually(lambda: all(one.outstanding == 0 for one in bookie.service.connections))
        await bookie.service.drain(WAIT_SECONDS)


async def test_a_client_that_leaves_in_the_middle_of_a_pack_leaves_nothing_behind(disk: HeldDisk) -> None:
    async with bookie_on(disk) as bookie:
        async with connected(bookie) as client:
            disk.hold()
            client.send_pack(*adds(1, 2, 3))
            async with asyncio.timeout(WAIT_SECONDS):
                await disk.held.wait()
        await eventually(lambda: not bookie.service.connections)
        disk.release()
        async with connected(bookie) as other:
            assert await other.ask_pack(*adds(1, 2, 3)) == [None] * 3


async def test_each_request_of_a_pack_needs_the_rights_that_it_needs_alone() -> None:
    async with cluster_of(GUARDED, documents=DOCUMENTS) as cluster:
        (bookie,) = cluster.bookies
        async with raw(bookie) as stranger:
            assert kinds(await stranger.ask_pack(*adds(1, 2))) == [UnauthorizedError] * 2
        async with raw(bookie, Role.READ) as reader:
            assert kinds(await reader.ask_pack(*adds(1), Force(1, key_of(1), 0, ()))) == [UnauthorizedError] * 2
        async with raw(bookie, Role.APPEND) as writer:
            recovery = add(2, seal(2, 0, [b"x"]), recovery=True)
            assert await writer.ask_pack(*adds(1), recovery) == [None, None]
        assert bookie.service.storage.ledgers.known_ids() == [1, 2]


async def test_every_request_of_a_pack_is_charged_to_the_rate_of_its_client() -> None:
    async with cluster_of({"repair": False, "client_requests_per_second": 100}, documents=DOCUMENTS) as cluster:
        (bookie,) = cluster.bookies
        async with connected(bookie) as client:
            ids = [one for _ in range(3) for one in client.send_pack(*adds(*range(1, 61)))]
            async with asyncio.timeout(WAIT_SECONDS):
                assert await client.outcomes(ids) == [None] * len(ids)
            assert bookie.service.clients.throttled_seconds > 0


async def test_new_ledgers_of_a_pack_over_the_limit_are_refused_one_by_one() -> None:
    async with cluster_of({"repair": False, "client_new_ledgers_per_second": 1}, documents=DOCUMENTS) as cluster:
        (bookie,) = cluster.bookies
        async with connected(bookie) as client:
            outcomes = await client.ask_pack(*adds(*range(1, 16)))
            refused = [number for number, outcome in enumerate(outcomes, 1) if outcome is not None]
            assert refused
            assert min(refused) == 11
            assert set(kinds(outcomes)) == {None, BookieOverloadedError}
            assert bookie.service.storage.ledgers.known_ids() == [
                number for number in range(1, 16) if number not in refused
            ]


async def test_a_force_in_a_pack_is_answered_when_what_it_names_is_durable(disk: HeldDisk) -> None:
    async with bookie_on(disk) as bookie, connected(bookie) as client:
        assert await client.ask_pack(*adds(9)) == [None]
        disk.hold()
        deferred = [Add(number, key_of(number), AddFlag.DEFERRED_SYNC, 0, seal(number, 0, [b"a"])) for number in (1, 2)]
        assert await client.ask_pack(*deferred) == [None, None], "in memory, and on their way"
        ids = client.send_pack(*(Force(number, key_of(number), 0, ((0, 0),)) for number in (1, 2)))
        receiving = asyncio.ensure_future(client.outcomes(ids))
        for _ in range(500):
            await asyncio.sleep(0)
        assert not receiving.done()
        disk.release()
        assert await receiving == [None, None]
        assert await client.ask(Force(1, key_of(1), 0, ())) == Forced()
