import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count

import pytest
from octavo.client.options import ClientOptions
from octavo.client.wire.connection import BookieConnection
from octavo.client.wire.outcome import Outcome
from octavo.client.wire.turn import Turn
from octavo.client.wire.wire import Wire
from octavo.protocol.errors import (
    BookieUnavailableError,
    ClientClosedError,
    InvalidArgumentError,
    LedgerFencedError,
    OctavoError,
    OctavoTimeoutError,
    WrongClusterError,
)
from octavo.protocol.frames import frame_of, pack_body
from octavo.protocol.ids import BookieId
from octavo.protocol.limits import REQUESTS_PER_CONNECTION_MAX
from octavo.protocol.messages import MAGIC, Hello, Info, InfoAnswer, LacAnswer, Op, Ping, Pong, ReadFlag, ReadLac
from octavo.protocol.pushes import Push
from support.clusters.fake_bookie import CLUSTER_ID, FakeBookie
from support.descriptors import no_descriptors_left
from support.waiting import WAIT_SECONDS

QUICK = ClientOptions(
    reconnect_delay_seconds_min=0.001, reconnect_delay_seconds_max=0.002, outgoing_bytes_max=8 * 1024 * 1024
)


def connection_to(
    bookie: FakeBookie,
    *,
    find_address: Callable[[BookieId], Awaitable[str]] | None = None,
    options: ClientOptions = QUICK,
) -> BookieConnection:
    async def address(_bookie_id: BookieId) -> str:
        return bookie.address

    return BookieConnection(
        BookieId("b1"),
        hello=Hello(MAGIC, 1, 1, "test", CLUSTER_ID, "b1", "client", ()),
        find_address=find_address or address,
        next_request_id=count(1_000_000).__next__,
        options=options,
        rng=random.Random(0),
        turn=Turn(),
    )


@asynccontextmanager
async def running(connection: BookieConnection) -> AsyncIterator[BookieConnection]:
    task = asyncio.create_task(connection.run())
    try:
        yield connection
    finally:
        connection.close()
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
async def bookie() -> AsyncIterator[FakeBookie]:
    async with FakeBookie("b1") as bookie:
        yield bookie


@pytest.fixture
async def connection(bookie: FakeBookie) -> AsyncIterator[BookieConnection]:
    async with running(connection_to(bookie)) as connection:
        yield connection


async def state(connection: BookieConnection, condition: Callable[[BookieConnection], bool]) -> None:
    """Wait until a notice of the connection finds the condition true."""
    reached = asyncio.Event()
    remove = connection.add_state_listener(lambda it: reached.set() if condition(it) else None)
    async with asyncio.timeout(WAIT_SECONDS):
        if not condition(connection):
            await reached.wait()
    remove()


async def connected(connection: BookieConnection) -> None:
    await state(connection, lambda it: it.connected)


async def lost(connection: BookieConnection) -> None:
    """Wait until the connection is lost, without being a reason to make it again."""
    async with asyncio.timeout(WAIT_SECONDS):
        while connection.connected:  # noqa: ASYNC110 - a listener would be a reason to connect again
            await asyncio.sleep(0)


def send(connection: BookieConnection, request_id: int, outcomes: list[Outcome], seconds: float = 10) -> bool:
    return connection.send(Ping().encode(request_id), request_id, outcomes.append, timeout_seconds=seconds)


async def test_a_request_connects_and_is_answered(bookie: FakeBookie, connection: BookieConnection) -> None:
    assert bookie.connections_made == 0
    assert await connection.request(Ping(), timeout_seconds=10) == Pong()
    assert connection.connected
    assert connection.boot_id == "boot-1"


async def test_answers_in_any_order_reach_their_own_requests(bookie: FakeBookie, connection: BookieConnection) -> None:
    await connected(connection)
    bookie.hold(Op.INFO)
    asks = []
    for number in range(3):
        bookie.facts = {"number": number}
        asks.append(asyncio.create_task(connection.request(Info(), timeout_seconds=10)))
        await bookie.received(Op.INFO, number + 1)
    for _ in asks:
        bookie.release_newest(Op.INFO)
    answers = await asyncio.gather(*asks)
    assert answers == [InfoAnswer({"number": number}) for number in range(3)]


async def test_a_refusal_is_raised_with_its_doubt(bookie: FakeBookie, connection: BookieConnection) -> None:
    bookie.refuse(Op.PING, LedgerFencedError("fenced", may_have_happened=False))
    with pytest.raises(LedgerFencedError, match="fenced") as caught:
        await connection.request(Ping(), timeout_seconds=10)
    assert not caught.value.may_have_happened


async def test_send_without_a_connection_does_nothing_but_starts_one(
    bookie: FakeBookie, connection: BookieConnection
) -> None:
    outcomes: list[Outcome] = []
    assert not send(connection, 1, outcomes)
    await bookie.until(lambda: bookie.connections == 1)
    await connection.wait_writable(timeout_seconds=10)
    assert outcomes == []
    assert bookie.requests == []


async def test_losing_the_connection_fails_what_is_outstanding_in_doubt_and_connects_again_for_a_listener(
    bookie: FakeBookie, connection: BookieConnection
) -> None:
    await connected(connection)
    bookie.hold(Op.PING)
    states: list[bool] = []
    connection.add_state_listener(lambda it: states.append(it.connected))
    outcomes: list[Outcome] = []
    assert send(connection, 1, outcomes)
    assert send(connection, 2, outcomes)
    await bookie.received(Op.PING, 2)
    bookie.disconnect()
    await state(connection, lambda it: it.connected and bookie.connections_made == 2)
    assert states == [False, True]
    assert [type(outcome) for outcome in outcomes] == [BookieUnavailableError] * 2
    assert all(isinstance(outcome, BookieUnavailableError) and outcome.may_have_happened for outcome in outcomes)
    assert outcomes[0] is not outcomes[1]


async def test_a_connection_without_requests_is_not_made_again(
    bookie: FakeBookie, connection: BookieConnection
) -> None:
    await connection.request(Ping(), timeout_seconds=10)
    bookie.disconnect()
    await bookie.until(lambda: bookie.connections == 0)
    await lost(connection)
    connection.address_changed()
    for _ in range(50):
        await asyncio.sleep(0)
    assert bookie.connections_made == 1
    assert await connection.request(Ping(), timeout_seconds=10) == Pong()
    assert bookie.connections_made == 2


async def test_a_bookie_that_cannot_be_reached_fails_requests_at_once_as_not_happened() -> None:
    bookie = FakeBookie("b1")
    await bookie.start()
    await bookie.stop()
    slow = ClientOptions(reconnect_delay_seconds_min=3000, reconnect_delay_seconds_max=3000)
    async with running(connection_to(bookie, options=slow)) as connection:
        for _ in range(2):
            with pytest.raises(BookieUnavailableError, match="b1") as caught:
                await connection.request(Ping(), timeout_seconds=100)
            assert not caught.value.may_have_happened
        assert connection.last_error is not None
        # A new registration of the bookie cuts the back-off short.
        await bookie.start()
        connection.address_changed()
        await connected(connection)
        assert connection.last_error is None
        await bookie.stop()


@pytest.mark.parametrize("host", ["h" * 64, ".h", "h\0"])
async def test_a_host_that_cannot_be_looked_up_is_a_bookie_that_cannot_be_reached(host: str) -> None:
    async def find(_bookie_id: BookieId) -> str:
        return f"{host}:3181"

    async with running(connection_to(FakeBookie("b1"), find_address=find)) as connection:
        with pytest.raises(BookieUnavailableError, match=r"b1.*is not the name of a host"):
            await connection.request(Ping(), timeout_seconds=WAIT_SECONDS)


async def test_a_process_without_descriptors_is_told_so(bookie: FakeBookie, connection: BookieConnection) -> None:
    with no_descriptors_left(), pytest.raises(BookieUnavailableError, match=r"b1.*Too many open files.*ulimit -n"):
        await connection.request(Ping(), timeout_seconds=WAIT_SECONDS)
    await connected(connection)


async def test_the_address_is_looked_up_again_for_every_attempt() -> None:
    async with FakeBookie("b1") as here, FakeBookie("b2") as other:
        addresses = iter([other.address, "nonsense", here.address])

        async def find(_bookie_id: BookieId) -> str:
            return next(addresses)

        async with running(connection_to(here, find_address=find)) as connection:
            await connected(connection)
        assert (other.connections_made, here.connections_made) == (1, 1)


@pytest.mark.parametrize(("bookie_id", "cluster_id"), [("b2", CLUSTER_ID), ("b1", "another")])
async def test_another_bookie_or_cluster_at_the_address_is_refused(bookie_id: str, cluster_id: str) -> None:
    async with FakeBookie(bookie_id, cluster_id=cluster_id) as stranger, running(connection_to(stranger)) as connection:
        with pytest.raises(BookieUnavailableError) as caught:
            await connection.request(Ping(), timeout_seconds=10)
        assert isinstance(caught.value.__cause__, WrongClusterError)
        assert stranger.requests == []


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\xff\xff\xff",
        frame_of(pack_body((1, 8))),
        frame_of(pack_body((1, 1, 0, "too much"))),
        b"\x00\x00\x00\x01\xc1",
    ],
    ids=["oversize", "short", "field", "not msgpack"],
)
async def test_malformed_bytes_break_the_connection_and_fail_what_is_outstanding(
    bookie: FakeBookie, connection: BookieConnection, raw: bytes
) -> None:
    await connected(connection)
    bookie.drop(Op.PING)
    outcomes: list[Outcome] = []
    assert send(connection, 1, outcomes)
    await bookie.received(Op.PING)
    bookie.say(raw)
    await bookie.until(lambda: bookie.connections == 0)
    assert [type(outcome) for outcome in outcomes] == [BookieUnavailableError]


async def test_a_late_answer_after_the_deadline_is_ignored(bookie: FakeBookie, connection: BookieConnection) -> None:
    await connected(connection)
    bookie.hold(Op.PING)
    slow = asyncio.create_task(connection.request(Ping(), timeout_seconds=2.0))
    await bookie.received(Op.PING)
    # An answer to something else shows that the bookie lives: only the one request fails.
    await connection.request(Info(), timeout_seconds=10)
    with pytest.raises(OctavoTimeoutError) as caught:
        await slow
    assert caught.value.may_have_happened
    bookie.release(Op.PING)
    assert await connection.request(Ping(), timeout_seconds=10) == Pong()
    assert bookie.connections_made == 1


async def test_a_bookie_that_says_nothing_at_all_is_given_up(bookie: FakeBookie, connection: BookieConnection) -> None:
    await connected(connection)
    bookie.drop(Op.PING)
    outcomes: list[Outcome] = []
    assert send(connection, 1, outcomes, seconds=100)
    with pytest.raises(OctavoTimeoutError):
        await connection.request(Ping(), timeout_seconds=0.02)
    assert [type(outcome) for outcome in outcomes] == [BookieUnavailableError]
    await bookie.until(lambda: bookie.connections == 0)


async def test_no_hello_in_time_is_a_failed_attempt(bookie: FakeBookie) -> None:
    bookie.hello_hung = True
    options = ClientOptions(connect_timeout_seconds=0.02)
    async with running(connection_to(bookie, options=options)) as connection:
        with pytest.raises(BookieUnavailableError, match="no hello"):
            await connection.request(Ping(), timeout_seconds=10)
        await bookie.until(lambda: bookie.connections == 0)


async def test_a_request_whose_time_is_over_before_it_was_sent_did_not_happen(bookie: FakeBookie) -> None:
    bookie.hello_hung = True
    async with running(connection_to(bookie)) as connection:
        with pytest.raises(OctavoTimeoutError, match="nothing was sent") as caught:
            await connection.request(Ping(), timeout_seconds=0.02)
    assert not caught.value.may_have_happened


async def test_a_full_connection_takes_no_more_until_answers_make_room(
    bookie: FakeBookie, connection: BookieConnection
) -> None:
    await connected(connection)
    bookie.hold(Op.PING)
    outcomes: list[Outcome] = []
    for request_id in range(1, REQUESTS_PER_CONNECTION_MAX + 1):
        assert send(connection, request_id, outcomes)
    assert not connection.writable
    assert not send(connection, 5000, outcomes)
    waiting = asyncio.create_task(connection.request(Info(), timeout_seconds=10))
    await bookie.received(Op.PING, REQUESTS_PER_CONNECTION_MAX)
    bookie.release(Op.PING, 10)
    await state(connection, lambda _: True)
    assert bookie.count(Op.INFO) == 0
    bookie.release(Op.PING)
    await waiting
    assert len(outcomes) == REQUESTS_PER_CONNECTION_MAX


async def test_a_socket_that_does_not_drain_takes_no_more_until_it_does(
    bookie: FakeBookie, connection: BookieConnection
) -> None:
    await connected(connection)
    bookie.hang()
    request_id = 0
    outcomes: list[Outcome] = []
    body_bytes = 1024 * 1024
    # Whatever the kernel buffers, the bound on our own side is met in the end.
    while connection.writable:
        request_id += 1
        body = pack_body((request_id, Op.ADD, 7, b"", 0, 0, [bytes(body_bytes)]))
        assert connection.send(body, request_id, outcomes.append, timeout_seconds=100)
        assert request_id < 200
    assert connection.connected
    assert not send(connection, 5000, outcomes)
    bookie.unhang()
    await state(connection, lambda it: it.writable)
    await connection.request(Ping(), timeout_seconds=10)
    assert len(outcomes) == request_id


async def test_waiting_long_polls_leave_room_for_everything_else(
    bookie: FakeBookie, connection: BookieConnection
) -> None:
    poll = ReadLac(1, b"", ReadFlag.NONE, 0, None, 1000, 0, 0)
    polls = [
        asyncio.create_task(connection.request(poll, timeout_seconds=100))
        for _ in range(REQUESTS_PER_CONNECTION_MAX + 5)
    ]
    await bookie.until(lambda: bookie.long_polls == len(polls))
    assert await connection.request(Ping(), timeout_seconds=10) == Pong()
    bookie.end_long_polls()
    assert all(isinstance(answer, LacAnswer) for answer in await asyncio.gather(*polls))


async def test_cancelling_a_request_disturbs_no_other(bookie: FakeBookie, connection: BookieConnection) -> None:
    await connected(connection)
    bookie.hold(Op.PING)
    asks = [asyncio.create_task(connection.request(Ping(), timeout_seconds=10)) for _ in range(3)]
    await bookie.received(Op.PING, 3)
    asks[1].cancel()
    bookie.release(Op.PING)
    assert await asks[0] == await asks[2] == Pong()
    assert bookie.connections_made == 1


async def test_a_request_cancelled_at_any_turn_of_connecting_leaves_a_connection_that_works() -> None:
    answered = 0
    for turns in range(40):
        async with FakeBookie("b1") as bookie, running(connection_to(bookie)) as connection:
            ask = asyncio.create_task(connection.request(Ping(), timeout_seconds=10))
            for _ in range(turns):
                await asyncio.sleep(0)
            ask.cancel()
            await asyncio.wait([ask])
            answered += not ask.cancelled()
            assert await connection.request(Ping(), timeout_seconds=10) == Pong()
            assert bookie.connections_made == 1
    assert 0 < answered < 40, "cancelled before and after the answer"


async def test_a_client_closed_at_any_turn_of_connecting_leaves_no_connection() -> None:
    for turns in range(1, 40):
        async with FakeBookie("b1") as bookie:
            async with running(connection_to(bookie)) as connection:
                ask = asyncio.create_task(connection.request(Ping(), timeout_seconds=10))
                for _ in range(turns):
                    await asyncio.sleep(0)
            with contextlib.suppress(ClientClosedError, BookieUnavailableError):
                assert await ask == Pong()
            await bookie.until(lambda server=bookie: server.connections == 0)  # type: ignore[misc]


async def test_an_exception_in_one_callback_does_not_reach_other_requests(
    bookie: FakeBookie, connection: BookieConnection
) -> None:
    await connected(connection)
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context["exception"]))
    failure = RuntimeError("defect")

    def broken(_outcome: Outcome) -> None:
        raise failure

    outcomes: list[Outcome] = []
    bookie.hold(Op.PING)
    assert connection.send(Ping().encode(1), 1, broken, timeout_seconds=10)
    assert send(connection, 2, outcomes)
    await bookie.received(Op.PING, 2)
    bookie.release(Op.PING)
    await connection.request(Info(), timeout_seconds=10)
    assert outcomes == [Pong()]
    assert reported == [failure]


async def test_closing_fails_everything_and_leaves_no_connection(
    bookie: FakeBookie, connection: BookieConnection
) -> None:
    await connected(connection)
    bookie.drop(Op.PING)
    outcomes: list[Outcome] = []
    assert send(connection, 1, outcomes)
    connection.close()
    assert [type(outcome) for outcome in outcomes] == [BookieUnavailableError]
    assert not connection.connected
    with pytest.raises(ClientClosedError):
        await connection.request(Ping(), timeout_seconds=10)
    await bookie.until(lambda: bookie.connections == 0)


def test_options_name_what_is_wrong_with_them() -> None:
    assert ClientOptions.from_keywords({"window_entries": 5}).window_entries == 5
    wrong: list[tuple[dict[str, object], str]] = [
        ({"windows": 5}, "windows"),
        ({"window_entries": 0}, "window_entries"),
        ({"window_entries": 1.5}, "window_entries"),
        ({"window_bytes": True}, "window_bytes"),
        ({"close_timeout_seconds": -1}, "close_timeout_seconds"),
        ({"close_timeout_seconds": "1"}, "close_timeout_seconds"),
        ({"reconnect_delay_seconds_min": 5}, "reconnect_delay_seconds_min"),
    ]
    for options, named in wrong:
        with pytest.raises(InvalidArgumentError, match=rf"\b{named}\b"):
            ClientOptions.from_keywords(options)


class SilentOwner:
    """A wire's owner that is not interested."""

    def wire_up(self, wire: Wire, hello: Hello) -> None:
        """Ignored."""

    def wire_lost(self, wire: Wire, error: OctavoError) -> None:
        """Ignored."""

    def wire_pushed(self, wire: Wire, pushes: list[Push]) -> None:
        """Not subscribed to anything."""

    def wire_writable(self, wire: Wire) -> None:
        """Ignored."""


async def test_requests_of_the_turn_in_which_the_socket_breaks_fail_in_doubt_and_without_noise_in_the_log(
    bookie: FakeBookie, caplog: pytest.LogCaptureFixture
) -> None:
    hello = Hello(MAGIC, 1, 1, "test", CLUSTER_ID, "b1", "client", ())
    wire = Wire(
        SilentOwner(),
        hello=hello,
        address=bookie.address,
        outgoing_bytes_max=8 * 1024 * 1024,
        next_request_id=count(1_000_000).__next__,
        turn=Turn(),
    )
    host, _, port = bookie.address.rpartition(":")
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: wire, host, int(port))
    await wire.settled.wait()
    transport.get_extra_info("socket").shutdown(socket.SHUT_WR)
    outcomes: list[Outcome] = []
    with caplog.at_level(logging.WARNING, "asyncio"):
        for request_id in range(1, 21):
            assert wire.send(Ping().encode(request_id), request_id, outcomes.append, timeout_seconds=10)
        await wire.closed.wait()
    assert [type(outcome) for outcome in outcomes] == [BookieUnavailableError] * 20
    assert all(isinstance(outcome, BookieUnavailableError) and outcome.may_have_happened for outcome in outcomes)
    assert caplog.messages == []
