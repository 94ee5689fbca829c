"""Packs at the client: each posted request gets exactly one outcome, its own, whatever becomes of its pack."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from itertools import count

import pytest
import uvloop
from octavo.client.wire.outcome import Outcome
from octavo.client.wire.turn import Turn
from octavo.client.wire.wire import Wire
from octavo.protocol.errors import (
    BookieUnavailableError,
    LedgerFencedError,
    OctavoError,
    OctavoTimeoutError,
    ProtocolError,
    UnauthorizedError,
)
from octavo.protocol.frames import frame_of, pack_body
from octavo.protocol.limits import FRAME_PAYLOAD_BYTES_TARGET, REQUESTS_PER_CONNECTION_MAX
from octavo.protocol.messages import MAGIC, Added, Hello, LacWritten, Op, Ping, Pong, WriteLac, encode_error
from octavo.protocol.packs import CAPABILITY_PACKS, PACK_REQUESTS_MAX, encode_done, tail_of
from octavo.protocol.pushes import Push
from simulation.canaries import packs
from simulation.canaries.catalogue import CANARIES
from support.clusters.fake_bookie import CLUSTER_ID, FakeBookie
from support.raw_client import add, key_of, seal, seal_lac
from support.waiting import WAIT_SECONDS

FIRST_ID = 1000


class Owner:
    """A wire's owner that counts."""

    def __init__(self) -> None:
        self.writable = 0

    def wire_up(self, wire: Wire, hello: Hello) -> None:
        """Ignored."""

    def wire_lost(self, wire: Wire, error: OctavoError) -> None:
        """Ignored."""

    def wire_pushed(self, wire: Wire, pushes: list[Push]) -> None:
        """Not subscribed to anything."""

    def wire_writable(self, wire: Wire) -> None:
        self.writable += 1


class Client:
    """One wire, and the outcomes of what was posted on it: by ledger, each as often as it came."""

    def __init__(self, wire: Wire, owner: Owner) -> None:
        self.wire = wire
        self.owner = owner
        self.outcomes: dict[int, list[Outcome]] = {}

    def post(self, *ledgers: int, payload: bytes = b"x", timeout_seconds: float = 100) -> None:
        """Post an add of entry 0 in each of these ledgers."""
        for ledger_id in ledgers:
            outcomes = self.outcomes.setdefault(ledger_id, [])
            assert self.wire.posting.post(
                tail_of(add(ledger_id, seal(ledger_id, 0, [payload]))), outcomes.append, timeout_seconds
            )

    def post_lac(self, ledger_id: int) -> list[Outcome]:
        outcomes: list[Outcome] = []
        request = WriteLac(ledger_id, key_of(ledger_id), 0, seal_lac(ledger_id, 0))
        assert self.wire.posting.post(tail_of(request), outcomes.append, 100)
        return outcomes

    async def settled(self, *ledgers: int) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            # The outcomes come from the socket.
            while not all(self.outcomes[ledger_id] for ledger_id in ledgers or self.outcomes):  # noqa: ASYNC110
                await asyncio.sleep(0)

    def kinds(self) -> dict[int, list[type]]:
        return {ledger_id: [type(one) for one in outcomes] for ledger_id, outcomes in self.outcomes.items()}


@asynccontextmanager
async def connected(
    bookie: FakeBookie, *, owner: Owner | None = None, outgoing_bytes_max: int = 64 << 20
) -> AsyncIterator[Client]:
    owner = owner or Owner()
    wire = Wire(
        owner,
        hello=Hello(MAGIC, 1, 1, "test", CLUSTER_ID, "b1", "client", ()),
        address=bookie.address,
        outgoing_bytes_max=outgoing_bytes_max,
        next_request_id=count(FIRST_ID).__next__,
        turn=Turn(),
    )
    host, _, port = bookie.address.rpartition(":")
    await asyncio.get_running_loop().create_connection(lambda: wire, host, int(port))
    await wire.settled.wait()
    try:
        yield Client(wire, owner)
    finally:
        wire.abort(BookieUnavailableError("the test is over"))
        await wire.closed.wait()


@pytest.fixture
async def bookie() -> AsyncIterator[FakeBookie]:
    async with FakeBookie("b1") as bookie:
        yield bookie


@pytest.fixture
async def client(bookie: FakeBookie) -> AsyncIterator[Client]:
    async with connected(bookie) as client:
        yield client


def done(*request_ids: int) -> bytes:
    return frame_of(encode_done(request_ids))


async def test_what_is_posted_in_one_turn_leaves_in_one_frame(bookie: FakeBookie, client: Client) -> None:
    client.post(1, 2, 3)
    lac = client.post_lac(4)
    assert client.wire.requests_under_way == 4, "they are posted, and have no outcome"
    await client.settled()
    assert bookie.packs == [4]
    assert client.kinds() == {1: [Added], 2: [Added], 3: [Added]}
    assert lac == [LacWritten()]
    assert client.wire.requests_under_way == 0


async def test_a_request_that_is_posted_alone_travels_alone(bookie: FakeBookie, client: Client) -> None:
    client.post(1)
    await client.settled()
    client.post(2)
    await client.settled()
    assert bookie.packs == []
    assert client.kinds() == {1: [Added], 2: [Added]}


async def test_requests_leave_in_the_order_in_which_they_are_posted(bookie: FakeBookie, client: Client) -> None:
    ledgers = list(range(1, 2 * PACK_REQUESTS_MAX + 2))
    client.post(*ledgers)
    await client.settled()
    assert [request.ledger_id for request in bookie.requests if hasattr(request, "ledger_id")] == ledgers
    assert bookie.packs == [PACK_REQUESTS_MAX, PACK_REQUESTS_MAX]
    assert set(map(tuple, client.kinds().values())) == {(Added,)}


async def test_a_bookie_without_the_capability_gets_every_request_alone(bookie: FakeBookie) -> None:
    bookie.capabilities = tuple(name for name in bookie.capabilities if name != CAPABILITY_PACKS)
    async with connected(bookie) as client:
        client.post(1, 2, 3)
        await client.settled()
        assert bookie.packs == []
        assert client.kinds() == {1: [Added], 2: [Added], 3: [Added]}


async def test_a_bookie_without_the_capability_is_sent_no_more_than_it_takes(bookie: FakeBookie) -> None:
    bookie.capabilities = ()
    bookie.hold(Op.ADD)
    async with connected(bookie) as client:
        client.post(*range(1, REQUESTS_PER_CONNECTION_MAX + 1))
        assert not client.wire.writable
        assert not client.wire.posting.post(b"never sent", list[Outcome]().append, 1)
        await bookie.received(Op.ADD, REQUESTS_PER_CONNECTION_MAX)
        bookie.release(Op.ADD)
        await client.settled()
        assert client.wire.writable
        assert client.owner.writable == 1


async def test_a_pack_ends_at_the_bytes_of_a_frame_and_one_larger_entry_travels_with_no_other(
    bookie: FakeBookie, client: Client
) -> None:
    payload = bytes(30_000)
    client.post(*range(1, 21), payload=payload)
    client.post(21, payload=bytes(2 * FRAME_PAYLOAD_BYTES_TARGET))
    client.post(22, 23)
    await client.settled()
    assert bookie.packs == [FRAME_PAYLOAD_BYTES_TARGET // 30_200, 20 - FRAME_PAYLOAD_BYTES_TARGET // 30_200, 2]
    assert set(map(tuple, client.kinds().values())) == {(Added,)}


async def test_a_socket_that_is_full_is_noticed_in_the_middle_of_a_turn(bookie: FakeBookie) -> None:
    async with connected(bookie, outgoing_bytes_max=1 << 20) as client:
        bookie.hang()
        tail, outcomes = tail_of(add(1, seal(1, 0, [bytes(FRAME_PAYLOAD_BYTES_TARGET)]))), list[Outcome]()
        taken = 0
        while client.wire.posting.post(tail, outcomes.append, 100):
            taken += 1
            assert taken < 200, "a turn posts without end"
        bookie.unhang()
        async with asyncio.timeout(WAIT_SECONDS):
            while len(outcomes) < taken:  # noqa: ASYNC110 - the outcomes come from the socket
                await asyncio.sleep(0)
        assert set(map(type, outcomes)) == {Added}


async def test_requests_with_other_deadlines_are_in_other_packs_and_time_out_at_their_own(
    bookie: FakeBookie, client: Client
) -> None:
    bookie.drop(Op.ADD)
    client.post(1, 2, timeout_seconds=0.3)
    client.post(3, 4, timeout_seconds=100)
    await bookie.received(Op.ADD, 4)
    bookie.say(frame_of(Pong().encode(1)))  # it is alive
    await client.settled(1, 2)
    assert client.kinds() == {1: [OctavoTimeoutError], 2: [OctavoTimeoutError], 3: [], 4: []}
    assert bookie.packs == [2, 2]


async def test_a_refusal_in_a_pack_reaches_its_own_request_and_no_other(bookie: FakeBookie, client: Client) -> None:
    bookie.fence(2)
    bookie.ledger(4).key = b"another"
    client.post(1, 2, 3, 4, 5)
    await client.settled()
    assert client.kinds() == {1: [Added], 2: [LedgerFencedError], 3: [Added], 4: [UnauthorizedError], 5: [Added]}
    assert client.wire.requests_under_way == 0


async def test_answers_in_any_order_and_in_pieces_reach_their_own_requests(bookie: FakeBookie, client: Client) -> None:
    bookie.drop(Op.ADD)
    client.post(1, 2, 3, 4)
    await bookie.received(Op.ADD, 4)
    assert client.wire.requests_under_way == 4, "in one frame"
    bookie.say(done(FIRST_ID + 2))
    await client.settled(3)
    assert client.kinds() == {1: [], 2: [], 3: [Added], 4: []}
    bookie.say(frame_of(encode_error(FIRST_ID, Op.ADD, LedgerFencedError("fenced"))))
    await client.settled(1)
    assert client.wire.requests_under_way == 2, "those of the pack that wait"
    bookie.say(done(FIRST_ID + 1, FIRST_ID + 3))
    await client.settled()
    assert client.kinds() == {1: [LedgerFencedError], 2: [Added], 3: [Added], 4: [Added]}
    assert client.wire.requests_under_way == 0


async def test_one_answer_to_several_packs_reaches_each_and_what_is_in_none_is_ignored(
    bookie: FakeBookie, client: Client
) -> None:
    bookie.drop(Op.ADD)
    client.post(1, 2)
    await bookie.received(Op.ADD, 2)
    client.post(3, 4)
    await bookie.received(Op.ADD, 4)
    bookie.say(frame_of(encode_done(range(1, FIRST_ID + 3))))
    await client.settled(1, 2, 3)
    assert client.kinds() == {1: [Added], 2: [Added], 3: [Added], 4: []}
    bookie.say(done(FIRST_ID + 3, FIRST_ID + 4))
    await client.settled()


async def test_an_answer_that_comes_twice_counts_once(bookie: FakeBookie, client: Client) -> None:
    bookie.drop(Op.ADD)
    client.post(1, 2, 3)
    await bookie.received(Op.ADD, 3)
    refusal = frame_of(encode_error(FIRST_ID, Op.ADD, LedgerFencedError("fenced")))
    bookie.say(done(FIRST_ID) + done(FIRST_ID, FIRST_ID + 1) + refusal + done(FIRST_ID + 1) + done(FIRST_ID + 2))
    bookie.say(done(FIRST_ID + 2) + refusal)
    await client.settled()
    assert client.kinds() == {1: [Added], 2: [Added], 3: [Added]}
    assert client.wire.error is None


async def test_when_time_is_over_only_what_has_no_answer_times_out_and_a_late_answer_is_ignored(
    bookie: FakeBookie, client: Client
) -> None:
    bookie.drop(Op.ADD)
    client.post(1, 2, 3, timeout_seconds=0.3)
    await bookie.received(Op.ADD, 3)
    bookie.say(done(FIRST_ID + 1))
    await client.settled()
    assert client.kinds() == {1: [OctavoTimeoutError], 2: [Added], 3: [OctavoTimeoutError]}
    (first,), (third,) = client.outcomes[1], client.outcomes[3]
    assert first is not third
    assert isinstance(first, OctavoError)
    assert first.may_have_happened
    bookie.say(done(FIRST_ID, FIRST_ID + 1, FIRST_ID + 2))
    bookie.say(frame_of(encode_error(FIRST_ID, Op.ADD, LedgerFencedError("fenced"))))
    bookie.accept(Op.ADD)
    client.post(4, 5)
    await client.settled()
    assert client.kinds() == {
        1: [OctavoTimeoutError], 2: [Added], 3: [OctavoTimeoutError], 4: [Added], 5: [Added],
    }  # fmt: skip


async def test_a_lost_connection_fails_what_is_unanswered_and_what_was_posted_in_this_turn(
    bookie: FakeBookie, client: Client
) -> None:
    bookie.drop(Op.ADD)
    client.post(1, 2, 3)
    await bookie.received(Op.ADD, 3)
    bookie.say(done(FIRST_ID + 1))
    await client.settled(2)
    client.post(4, 5)
    client.wire.abort(BookieUnavailableError("gone"))
    lost = BookieUnavailableError
    assert client.kinds() == {1: [lost], 2: [Added], 3: [lost], 4: [lost], 5: [lost]}
    failures = [client.outcomes[ledger_id][0] for ledger_id in (1, 3, 4, 5)]
    assert len(set(map(id, failures))) == 4
    assert all(isinstance(one, OctavoError) and one.may_have_happened for one in failures)
    await asyncio.sleep(0)
    assert bookie.count(Op.ADD) == 3
    assert not client.wire.posting.post(b"never sent", list[Outcome]().append, 1)


@pytest.mark.parametrize("is_broken", [False, True], ids=["sound", "canary"])
async def test_an_answer_of_a_connection_that_was_given_up_counts_for_nothing_on_the_next(
    bookie: FakeBookie, is_broken: bool
) -> None:
    """Both count their requests from the same id on. Hardly any universe brings such an answer and a loss of what it
    names together; the canary shows that this test notices."""
    defect = CANARIES["pack-answer-of-older-connection"].applied() if is_broken else nullcontext()
    first_id = packs.FIRST_ID if is_broken else FIRST_ID
    bookie.drop(Op.ADD)
    owner = Owner()
    with defect:
        async with connected(bookie, owner=owner) as older, connected(bookie, owner=owner) as newer:
            older.post(1, 2)
            newer.post(3, 4)
            await bookie.received(Op.ADD, 4)
            older.wire.abort(BookieUnavailableError("gone"))
            older.wire.data_received(done(first_id, first_id + 1))
            assert older.kinds() == {1: [BookieUnavailableError], 2: [BookieUnavailableError]}
            answered = [Added] if is_broken else []
            assert newer.kinds() == {3: answered, 4: answered}


async def test_an_outcome_whose_handling_closes_the_wire_leaves_one_outcome_to_each_of_the_others(
    bookie: FakeBookie, client: Client
) -> None:
    """The run of an answer spans two packs, and the first of its outcomes closes the wire."""
    bookie.drop(Op.ADD)
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context))
    closing: list[Outcome] = []

    def close(outcome: Outcome) -> None:
        closing.append(outcome)
        client.wire.abort(BookieUnavailableError("closed by the handler"))

    assert client.wire.posting.post(tail_of(add(9, seal(9, 0, [b"x"]))), close, 100)
    client.post(1)
    await bookie.received(Op.ADD, 2)
    client.post(2, 3)
    await bookie.received(Op.ADD, 4)
    bookie.say(done(FIRST_ID, FIRST_ID + 1, FIRST_ID + 2))
    await client.settled()
    await client.wire.closed.wait()
    assert closing == [Added()]
    assert client.kinds() == {1: [Added], 2: [BookieUnavailableError], 3: [BookieUnavailableError]}
    assert faults == []


async def test_a_defect_in_the_handling_of_one_outcome_does_not_reach_the_others(
    bookie: FakeBookie, client: Client
) -> None:
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context["exception"]))
    fault = ValueError("a defect")

    def broken(_outcome: Outcome) -> None:
        raise fault

    assert client.wire.posting.post(tail_of(add(9, seal(9, 0, [b"x"]))), broken, 100)
    client.post(1, 2)
    await client.settled()
    assert client.kinds() == {1: [Added], 2: [Added]}
    assert faults == [fault]


@pytest.mark.parametrize(
    "raw", [[FIRST_ID, 11, 0], [FIRST_ID, 11, 0, [[FIRST_ID + 1, FIRST_ID]]], [FIRST_ID, 11, 5, "no", True]]
)
async def test_a_malformed_answer_ends_the_connection(bookie: FakeBookie, client: Client, raw: list[object]) -> None:
    bookie.drop(Op.ADD)
    client.post(1, 2)
    await bookie.received(Op.ADD, 2)
    bookie.say(frame_of(pack_body(tuple(raw))))
    await client.settled()
    assert client.kinds() == {1: [BookieUnavailableError], 2: [BookieUnavailableError]}
    assert isinstance(client.wire.error, ProtocolError)


async def test_single_requests_and_packs_on_one_wire_do_not_disturb_each_other(
    bookie: FakeBookie, client: Client
) -> None:
    bookie.hold(Op.ADD)
    pongs: list[Outcome] = []
    client.post(1, 2)
    assert client.wire.send(Ping().encode(5), 5, pongs.append, 100)
    client.post(3)
    await bookie.received(Op.ADD, 3)
    await bookie.received(Op.PING)
    bookie.release(Op.ADD)
    await client.settled()
    assert pongs == [Pong()]
    assert bookie.packs == [3]
    assert [request.op for request in bookie.requests] == [Op.PING, Op.ADD, Op.ADD, Op.ADD]
    assert client.kinds() == {1: [Added], 2: [Added], 3: [Added]}


async def test_held_answers_of_a_pack_leave_one_by_one_and_newest_first(bookie: FakeBookie, client: Client) -> None:
    bookie.hold(Op.ADD)
    client.post(1, 2, 3)
    await bookie.received(Op.ADD, 3)
    bookie.release_newest(Op.ADD)
    await client.settled(3)
    bookie.release(Op.ADD, 1)
    await client.settled(1)
    assert client.kinds() == {1: [Added], 2: [], 3: [Added]}
    bookie.release(Op.ADD)
    await client.settled()


def test_a_deadline_that_is_due_at_once_does_not_disturb_what_is_posted_next() -> None:
    """For a timer of less than half a millisecond uvloop gives a handle that does not know when it is due."""

    async def post_twice() -> dict[int, list[type]]:
        async with FakeBookie("b1") as bookie, connected(bookie) as client:
            bookie.hold(Op.ADD)
            client.post(1, timeout_seconds=0.0001)
            client.wire.posting.send_posted()
            client.post(2, timeout_seconds=0.00005)
            client.wire.posting.send_posted()
            await client.settled()
            return client.kinds()

    assert uvloop.run(post_twice()) == {1: [OctavoTimeoutError], 2: [OctavoTimeoutError]}
