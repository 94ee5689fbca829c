"""Which connections may read while unfinished frames fill their memory, and which of them are dropped."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from octavo.bookie.memory.frame_memory import CHECK_SECONDS, FrameMemory
from octavo.protocol.errors import BookieOverloadedError, OctavoError, ProtocolError
from simulation.engine.loop import SimulationLoop


class Holder:
    """A connection that reads whenever it may."""

    def __init__(self, memory: FrameMemory, client: str = "one") -> None:
        self._memory = memory
        self.client = client
        self.reading_is_paused = False
        self.dropped: OctavoError | None = None
        memory.enter(self)

    def regulate(self) -> None:
        self.reading_is_paused = not self._memory.may_read(self)

    def drop(self, error: OctavoError) -> None:
        self.dropped = error

    def holds(self, size: int, *, begins: bool = False) -> None:
        self._memory.note(self, size, begins=begins)


@pytest.fixture
async def memory() -> AsyncIterator[FrameMemory]:
    memory = FrameMemory(100, timeout_seconds=3600, stalled_seconds=3600)
    yield memory
    memory.close()


async def test_a_full_memory_reads_the_oldest_frame_and_connections_without_one(memory: FrameMemory) -> None:
    first, second, small, large = (Holder(memory) for _ in range(4))
    first.holds(60)
    second.holds(40)
    assert [holder.reading_is_paused for holder in (first, second, small, large)] == [False, True, False, False]
    small.holds(0, begins=True)
    assert not small.reading_is_paused, "a request that came whole goes on"
    large.holds(10)
    assert large.reading_is_paused, "it must wait for its turn"
    first.holds(0, begins=True)
    assert not any(holder.reading_is_paused for holder in (first, second, small, large)), "half of the memory is free"
    assert memory.held == 50


async def test_the_next_oldest_frame_follows_the_one_that_is_complete(memory: FrameMemory) -> None:
    first, second, third = (Holder(memory) for _ in range(3))
    first.holds(10)
    second.holds(60)
    third.holds(30)
    first.holds(0, begins=True)
    assert [holder.reading_is_paused for holder in (first, second, third)] == [False, False, True]


async def test_beginnings_of_frames_that_fill_it_twice_cost_the_largest_its_connection(memory: FrameMemory) -> None:
    oldest, large, small, late = (Holder(memory) for _ in range(4))
    oldest.holds(80)
    large.holds(70)
    small.holds(45)
    assert not any(holder.dropped for holder in (oldest, large, small))
    late.holds(5)
    assert isinstance(large.dropped, BookieOverloadedError)
    assert large.dropped.may_have_happened is False
    assert memory.held == 130
    assert not any(holder.dropped for holder in (oldest, small, late)), "the oldest frame will be complete first"
    assert memory.dropped == 1


async def test_an_oldest_frame_that_alone_fills_it_twice_goes_on(memory: FrameMemory) -> None:
    oldest = Holder(memory)
    oldest.holds(100)
    oldest.holds(300)
    assert not oldest.reading_is_paused
    assert oldest.dropped is None


async def test_a_client_that_fills_the_memory_from_many_connections_does_not_delay_another(memory: FrameMemory) -> None:
    attacking = [Holder(memory, "attacker") for _ in range(12)]
    for holder in attacking:
        holder.holds(10)
    honest = [Holder(memory, "honest") for _ in range(3)]
    for holder in honest:
        holder.holds(8)
    assert memory.full
    assert [holder.reading_is_paused for holder in attacking] == [False, *[True] * 11], "the oldest goes on"
    assert not any(holder.reading_is_paused for holder in honest), "24 is less than the share of one client of two"
    for holder in honest:
        holder.holds(10)
    assert all(holder.reading_is_paused for holder in honest[:2]), "30 is more"
    honest[2].holds(0, begins=True)
    assert not any(holder.reading_is_paused for holder in honest[:2]), "20 is below it again"
    assert all(holder.dropped is None for holder in (*attacking, *honest))
    assert memory.held == 12 * 10 + 20


async def test_the_client_that_holds_most_loses_a_connection_when_the_memory_is_filled_twice(
    memory: FrameMemory,
) -> None:
    attacking = [Holder(memory, "attacker") for _ in range(18)]
    for holder in attacking:
        holder.holds(10)
    honest = Holder(memory, "honest")
    honest.holds(19)
    late = Holder(memory, "attacker")
    late.holds(10)
    assert honest.dropped is None
    dropped = [holder for holder in (*attacking, late) if holder.dropped is not None]
    assert len(dropped) == 1
    assert attacking[0] not in dropped
    assert isinstance(dropped[0].dropped, BookieOverloadedError)


def test_a_frame_must_be_complete_in_time_and_time_in_which_the_bookie_did_not_read_does_not_count() -> None:
    loop = SimulationLoop()  # its time passes only while nothing else happens
    seconds: list[float] = []

    async def scene() -> None:
        memory = FrameMemory(1000, timeout_seconds=3.0, stalled_seconds=3600)
        holder, began_at = Holder(memory), loop.time()
        holder.holds(1)
        await asyncio.sleep(2.0)
        holder.reading_is_paused = True  # for another reason than this memory
        await asyncio.sleep(10.0)
        holder.reading_is_paused = False
        while holder.dropped is None and loop.time() < began_at + 60:
            holder.holds(2)  # a frame that grows must be complete in time, too
            await asyncio.sleep(0.25)
        seconds.append(loop.time() - began_at)
        assert isinstance(holder.dropped, ProtocolError)
        memory.close()

    loop.run_until_complete(scene())
    loop.close()
    assert seconds == [pytest.approx(12.0 + 3.0, abs=CHECK_SECONDS + 0.25)]
