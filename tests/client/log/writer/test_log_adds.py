"""The front of a log's writer, with a segment that only notes what it is given (rules P2, P5 and P12)."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from octavo.client.log.seam.active_segment import ActiveSegment
from octavo.client.log.writer.adds import LogAdds
from octavo.client.options import ClientOptions
from octavo.client.write.front.front import short_way
from octavo.protocol.errors import (
    Doubt,
    NotLeaderError,
    OctavoError,
    OctavoTimeoutError,
    PositionMismatchError,
    WouldBlock,
)
from octavo.protocol.ids import LedgerId
from support.waiting import WAIT_SECONDS


class Front(LogAdds):
    """Adds to a segment that notes what is sent, and is acknowledged when the test says so."""

    def __init__(self, next_position: int = 0, **options: Any) -> None:
        segment = ActiveSegment(LedgerId(0))
        segment.first_position, segment.core = next_position, cast(Any, self)
        super().__init__(
            segment, log_id="id", term=3, options=ClientOptions(**options), check_usable=self._raise_if_ended,
            refuse_for_ever=self.refuse,
        )  # fmt: skip
        self._front = self.front
        self.sent: list[bytes] = []
        self._more = asyncio.Event()
        self.ended: OctavoError | None = None

    def _raise_if_ended(self) -> None:
        if self.ended is not None:
            raise self.ended

    def push(self, payloads: list[bytes]) -> None:
        """What the segment is given."""
        self.sent += payloads
        self._more.set()

    @short_way
    async def add(self, payload: bytes, *, expected_position: int | None = None) -> Any:
        return await self.front.begin(payload, expected_position)

    length_pushed = 0

    def at_turn_end(self, step: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(step)

    async def add_many(self, payloads: list[bytes]) -> range:
        return await self.front.add_many(payloads)

    async def flush(self) -> None:
        await self.wait_settled()
        self._raise_if_ended()

    async def has_sent(self, *payloads: bytes) -> None:
        """Returns once these have been sent, in order, and nothing else; adds may wait for later ones first."""
        async with asyncio.timeout(WAIT_SECONDS):
            while len(self.sent) < len(payloads):
                self._more.clear()
                await self._more.wait()
        assert self.sent == [*payloads]

    def acknowledge(self, stop: int) -> None:
        self.front.acknowledge(stop, self.front.bytes_below(stop))

    def hold(self) -> None:
        self.front.hold()

    def go_on(self, *, failed: bool = False) -> None:
        if failed:
            self.forget_segment()
        self.release()

    def refuse(self, error: OctavoError, *, unsent_only: bool = False) -> None:
        self.ended = error
        if unsent_only:
            self.refuse_unsent(error)
        else:
            self.refuse_all(error)


async def turn() -> None:
    """Let the turns of the loop pass in which adds are sent."""
    for _ in range(3):
        await asyncio.sleep(0)


def adding(front: Front, *payloads: bytes) -> list["asyncio.Task[int]"]:
    return [asyncio.ensure_future(front.add(payload)) for payload in payloads]


async def test_positions_are_given_in_order() -> None:
    front = Front(7)
    adds = adding(front, b"a", b"b", b"c")
    await turn()
    assert front.sent == [b"a", b"b", b"c"]
    front.acknowledge(9)
    await turn()
    assert [add.done() for add in adds] == [True, True, False]
    front.acknowledge(10)
    assert await asyncio.gather(*adds) == [7, 8, 9]


async def test_what_a_segment_has_is_not_handed_to_it_again() -> None:
    front = Front()
    adds = adding(front, b"a", b"b")
    await turn()
    front.hold()
    held = adding(front, b"c")
    await turn()
    assert front.sent == [b"a", b"b"]
    front.go_on()
    await front.has_sent(b"a", b"b", b"c")
    front.acknowledge(3)
    assert await asyncio.gather(*adds, *held) == [0, 1, 2]


async def test_after_a_failure_what_is_not_acknowledged_is_sent_again_at_its_position() -> None:
    front = Front()
    adds = adding(front, b"a", b"b", b"c")
    await turn()
    front.acknowledge(1)
    front.hold()
    held = adding(front, b"d")
    await turn()
    front.acknowledge(2)  # what the recovered end covers
    front.go_on(failed=True)
    await front.has_sent(b"a", b"b", b"c", b"c", b"d")
    front.acknowledge(4)
    assert await asyncio.gather(*adds, *held) == [0, 1, 2, 3]


async def test_adds_over_the_window_wait_in_order() -> None:
    front = Front(window_entries=2)
    adds = adding(front, b"a", b"b", b"c", b"d")
    await turn()
    assert front.sent == [b"a", b"b"]
    with pytest.raises(WouldBlock):
        front.add_nowait(b"x")
    front.acknowledge(1)
    await front.has_sent(b"a", b"b", b"c")
    front.acknowledge(3)
    await turn()
    front.acknowledge(4)
    assert await asyncio.gather(*adds) == [0, 1, 2, 3]


async def test_an_add_that_was_not_sent_is_withdrawn_when_its_caller_is_cancelled() -> None:
    front = Front(window_entries=1)
    sent, cancelled, later = adding(front, b"a", b"b", b"c")
    await turn()
    cancelled.cancel()
    await turn()
    front.acknowledge(1)
    await turn()
    assert front.sent == [b"a", b"c"]
    front.acknowledge(2)
    assert (await sent, await later) == (0, 1)


async def test_a_sent_add_is_not_withdrawn() -> None:
    front = Front()
    cancelled, later = adding(front, b"a", b"b")
    await turn()
    cancelled.cancel()
    front.acknowledge(2)
    assert await later == 1


async def test_a_time_out_says_whether_the_add_was_sent() -> None:
    front = Front(window_entries=1, log_add_timeout_seconds=0.02)
    sent, waiting = adding(front, b"a", b"b")
    results = await asyncio.gather(sent, waiting, return_exceptions=True)
    assert all(isinstance(result, OctavoTimeoutError) for result in results)
    first, second = results
    assert isinstance(first, OctavoError)
    assert isinstance(second, OctavoError)
    assert (first.may_have_happened, first.doubt) == (True, Doubt("id", 3, 0))
    assert (second.may_have_happened, second.doubt) == (False, None)
    front.acknowledge(1)
    await turn()
    assert front.sent == [b"a"], "what timed out in the queue is never sent"


async def test_a_collected_add_that_times_out_while_the_writer_is_held_is_never_sent() -> None:
    """It was told that it did not happen, and its caller may send it again."""
    front = Front(log_add_timeout_seconds=0.02, window_entries=1)
    (collected,) = adding(front, b"a")
    await asyncio.sleep(0)
    front.hold()  # the segment fails in the turn in which the add was made
    with pytest.raises(OctavoTimeoutError) as caught:
        await collected
    assert (caught.value.may_have_happened, caught.value.doubt) == (False, None)
    await front.flush()
    front.go_on(failed=True)
    (following,) = adding(front, b"b")
    await front.has_sent(b"b")
    front.acknowledge(1)
    assert await following == 0


async def test_collected_adds_that_are_cancelled_while_the_writer_is_held_are_withdrawn() -> None:
    front = Front(log_add_timeout_seconds=None)
    first, second = adding(front, b"a", b"b")
    await asyncio.sleep(0)
    front.hold()
    first.cancel()
    await turn()
    front.go_on(failed=True)
    await front.has_sent(b"b")
    front.acknowledge(1)
    assert await second == 0


async def test_adds_before_a_promised_position_are_not_withdrawn() -> None:
    front = Front()
    (first,) = adding(front, b"a")
    second = asyncio.ensure_future(front.add(b"b", expected_position=1))
    await asyncio.sleep(0)
    front.hold()
    first.cancel()
    await turn()
    front.go_on(failed=True)
    await front.has_sent(b"a", b"b")
    front.acknowledge(2)
    assert await second == 1


async def test_of_an_add_many_that_times_out_only_what_was_sent_is_in_doubt() -> None:
    front = Front(window_entries=2, log_add_timeout_seconds=0.02)
    with pytest.raises(OctavoTimeoutError) as caught:
        await front.add_many([b"a", b"b", b"c", b"d"])
    assert (caught.value.may_have_happened, caught.value.doubt) == (True, Doubt("id", 3, 1, sent=2, unsent=2))
    front.acknowledge(2)
    (following,) = adding(front, b"e")
    await turn()
    front.acknowledge(3)
    assert await following == 2
    assert front.sent == [b"a", b"b", b"e"], "what timed out in the queue is never sent"


async def test_the_end_of_the_writer_tells_sent_from_unsent() -> None:
    front = Front(window_entries=2)
    adds = adding(front, b"a", b"b", b"c")
    await turn()
    front.refuse(NotLeaderError("gone"))
    results = await asyncio.gather(*adds, return_exceptions=True)
    told = [(result.may_have_happened, result.doubt) for result in results if isinstance(result, NotLeaderError)]
    assert told == [(True, Doubt("id", 3, 0)), (True, Doubt("id", 3, 1)), (False, None)]
    with pytest.raises(NotLeaderError):
        await front.add(b"x")
    assert front.sent == [b"a", b"b"]


async def test_of_an_add_many_that_is_refused_the_beginning_that_was_sent_is_in_doubt() -> None:
    """Its end is collected while the writer is held; its beginning was sent, and is acknowledged in part."""
    front = Front(window_entries=3)
    many = asyncio.ensure_future(front.add_many([b"a", b"b", b"c", b"d"]))
    await turn()
    front.hold()  # in the turn in which the last payload finds room
    front.acknowledge(1)
    front.go_on()
    front.hold()
    await turn()
    assert front.sent == [b"a", b"b", b"c"]
    front.refuse(NotLeaderError("gone"))
    with pytest.raises(NotLeaderError) as caught:
        await many
    assert (caught.value.may_have_happened, caught.value.doubt) == (True, Doubt("id", 3, 2, sent=3, unsent=1))


async def test_of_an_add_many_in_the_queue_only_what_was_sent_is_in_doubt() -> None:
    front = Front(window_entries=3)
    (first,) = adding(front, b"a")
    await turn()
    many = asyncio.ensure_future(front.add_many([b"b", b"c", b"d", b"e"]))
    await asyncio.sleep(0)  # two of it have found room, and are not sent yet
    front.hold()
    front.refuse(NotLeaderError("gone"), unsent_only=True)
    with pytest.raises(NotLeaderError) as caught:
        await many
    assert (caught.value.may_have_happened, caught.value.doubt) == (False, None)
    front.acknowledge(1)
    assert await first == 0


async def test_the_position_in_doubt_of_an_add_many_that_timed_out_does_not_change() -> None:
    """Adds before it whose callers are gone are withdrawn before the position is told, and none afterwards."""
    front = Front(log_add_timeout_seconds=0.02)
    (gone,) = adding(front, b"a")
    many = asyncio.ensure_future(front.add_many([b"c", b"d"]))
    await asyncio.sleep(0)
    front.hold()
    gone.cancel()
    with pytest.raises(OctavoTimeoutError) as caught:
        await many
    front.go_on(failed=True)
    await front.has_sent(b"c", b"d")
    assert caught.value.doubt == Doubt("id", 3, 1, sent=2)


async def test_a_lost_writer_still_acknowledges_what_was_sent() -> None:
    front = Front()
    (sent,) = adding(front, b"a")
    await turn()
    front.hold()
    (unsent,) = adding(front, b"b")
    await turn()
    front.refuse(NotLeaderError("lost"), unsent_only=True)
    with pytest.raises(NotLeaderError) as caught:
        await unsent
    assert not caught.value.may_have_happened
    front.acknowledge(1)
    assert await sent == 0


async def test_an_expected_position_counts_the_adds_before_it() -> None:
    front = Front(5)
    first = asyncio.ensure_future(front.add(b"a"))
    second = asyncio.ensure_future(front.add(b"b", expected_position=6))
    third = asyncio.ensure_future(front.add(b"c", expected_position=6))
    await turn()
    with pytest.raises(PositionMismatchError) as caught:
        await third
    assert caught.value.end == 7
    front.acknowledge(7)
    assert (await first, await second) == (5, 6)
    assert front.sent == [b"a", b"b"]


async def test_flush_waits_for_what_waits_for_room() -> None:
    front = Front(window_entries=1)
    adds = adding(front, b"a", b"b")
    await turn()
    flushing = asyncio.ensure_future(front.flush())
    front.acknowledge(1)
    await turn()
    assert not flushing.done()
    front.acknowledge(2)
    await flushing
    assert await asyncio.gather(*adds) == [0, 1]


async def test_add_many_over_the_window() -> None:
    front = Front(window_entries=2)
    many = asyncio.ensure_future(front.add_many([b"%d" % n for n in range(5)]))
    for stop in range(1, 6):
        await turn()
        front.acknowledge(stop)
    assert await many == range(5)


async def test_flush_waits_for_earlier_adds_when_the_last_one_is_cancelled() -> None:
    front = Front(window_entries=1)
    adds = adding(front, b"a", b"b", b"c")
    await turn()
    flushing = asyncio.ensure_future(front.flush())
    await turn()
    adds[2].cancel()
    front.acknowledge(1)
    await front.has_sent(b"a", b"b")
    await turn()
    assert not flushing.done(), "b is not acknowledged"
    front.acknowledge(2)
    await flushing
    assert [await adds[0], await adds[1]] == [0, 1]


async def test_flush_waits_for_earlier_adds_when_the_last_one_is_refused() -> None:
    front = Front(window_entries=1)
    adds = adding(front, b"a", b"b")
    mismatch = asyncio.ensure_future(front.add(b"c", expected_position=7))
    await turn()
    flushing = asyncio.ensure_future(front.flush())
    front.acknowledge(1)
    await front.has_sent(b"a", b"b")
    front.hold()
    await turn()
    assert not flushing.done(), "b is not acknowledged"
    front.go_on()
    front.acknowledge(2)
    await flushing
    with pytest.raises(PositionMismatchError):
        await mismatch
    assert [await one for one in adds] == [0, 1]


async def test_flush_waits_for_earlier_adds_when_the_last_one_times_out() -> None:
    front = Front(window_entries=1, log_add_timeout_seconds=0.02)
    front.hold()
    first = asyncio.ensure_future(front.add_many([b"a", b"b"]))
    await turn()
    front.go_on()
    await front.has_sent(b"a")
    (last,) = adding(front, b"c")
    flushing = asyncio.ensure_future(front.flush())
    with pytest.raises(OctavoTimeoutError):
        await last
    with pytest.raises(OctavoTimeoutError):
        await first
    await turn()
    assert not flushing.done(), "the beginning of the first is in doubt, and may be acknowledged yet"
    front.acknowledge(1)
    await flushing


async def test_flush_does_not_wait_for_adds_that_were_made_after_it() -> None:
    """Not even where those before it were withdrawn, so that the later ones get their positions."""
    front = Front(log_add_timeout_seconds=None)
    gone, kept = adding(front, b"a", b"b")
    await asyncio.sleep(0)
    front.hold()
    flushing = asyncio.ensure_future(front.flush())
    await turn()
    gone.cancel()
    await turn()
    front.go_on()
    await front.has_sent(b"b")
    (later,) = adding(front, b"c")
    await turn()
    front.acknowledge(1)
    await flushing
    assert await kept == 0
    assert not later.done()
    later.cancel()


async def test_a_flush_of_adds_that_are_all_withdrawn_ends_although_the_writer_is_held() -> None:
    front = Front()
    front.hold()
    adds = adding(front, b"a", b"b")
    await turn()
    flushing = asyncio.ensure_future(front.flush())
    await turn()
    assert not flushing.done()
    for add in adds:
        add.cancel()
    await flushing
