"""Look-ups wait for their turn, and for memory that other connections' answers hold."""

import asyncio
from collections.abc import Iterator

import pytest
from octavo.bookie.memory.answer_budget import STALLED_SECONDS_MAX, Grant
from octavo.bookie.memory.answer_memory import (
    ANSWER_BYTES_MIN,
    READS_AT_ONCE,
    AnswerMemory,
    AnswerQueue,
    AnswerTiming,
    Demand,
)

MIB = 1 << 20


class Peer:
    """A connection as its queue sees it: a socket that takes what it is told to take."""

    def __init__(self, memory: AnswerMemory) -> None:
        self.sent = 0
        self.unsent = 0
        self.begun: list[Grant] = []
        self.ended_after: float | None = None
        self.queue = AnswerQueue(
            memory, unsent_bytes=lambda: self.unsent, written_bytes=lambda: self.sent, evict=self.end
        )
        memory.add_queue(self.queue)

    def end(self, seconds: float, _unsent_bytes: int) -> None:
        self.ended_after = seconds
        self.queue.close()

    def ask(self, *sizes: int) -> None:
        for size in sizes:
            self.queue.put(Demand(size), self.begun.append)

    def answer(self, *, taken: bool) -> None:
        """The oldest look-up is over; its answer is as large as granted."""
        grant = self.begun.pop(0)
        self.sent += grant.bytes_max
        self.unsent += 0 if taken else grant.bytes_max
        self.queue.finish(grant)

    def fill(self) -> None:
        """Ask and take nothing until nothing is given any more."""
        self.ask(*[MIB] * 500)
        while self.begun:
            self.answer(taken=False)


@pytest.fixture
def memory() -> Iterator[AnswerMemory]:
    memory = AnswerMemory(ANSWER_BYTES_MIN, AnswerTiming(observe_seconds=0.0, watch_seconds=0.0))
    yield memory
    memory.budget.check_invariants()
    memory.close()


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_look_ups_of_one_connection_begin_a_few_at_a_time_in_their_order() -> None:
    memory = AnswerMemory(1 << 30)
    peer = Peer(memory)
    peer.ask(*range(1, READS_AT_ONCE + 3))
    assert [grant.bytes_max for grant in peer.begun] == [*range(1, READS_AT_ONCE + 1)]
    peer.answer(taken=True)
    assert peer.begun[-1].bytes_max == READS_AT_ONCE + 1
    memory.close()


async def test_nothing_begins_while_the_socket_is_full() -> None:
    memory = AnswerMemory(1 << 30)
    peer = Peer(memory)
    peer.queue.paused = True
    peer.ask(MIB)
    assert not peer.begun
    peer.queue.paused = False
    peer.queue.start_ready()
    assert len(peer.begun) == 1
    memory.close()


async def test_a_client_that_holds_nothing_is_served_while_others_read_nothing(memory: AnswerMemory) -> None:
    stalled = [Peer(memory) for _ in range(5)]
    for peer in stalled:
        peer.fill()
    held = memory.budget.held
    quick = Peer(memory)
    for _ in range(20):
        quick.ask(MIB)
        quick.answer(taken=True)
    assert memory.budget.held == held
    assert all(peer.queue.waiting for peer in stalled)


async def test_waiting_look_ups_go_on_when_a_socket_drains_unannounced(memory: AnswerMemory) -> None:
    stalled = Peer(memory)
    stalled.fill()
    before = stalled.queue.waiting
    stalled.unsent = 0
    await turns()
    assert stalled.queue.waiting < before
    assert stalled.begun


async def test_when_a_look_up_ends_the_starved_queue_that_waits_longest_is_served_first(
    memory: AnswerMemory,
) -> None:
    peers = [Peer(memory) for _ in range(12)]
    for peer in peers:
        peer.ask(MIB)
    running = [peer for peer in peers if peer.begun]
    starving = [peer for peer in peers if not peer.begun]
    assert len(running) == 7, "each reserves an entry of 4 MiB, of 32"
    running[0].answer(taken=True)
    assert [bool(peer.begun) for peer in starving] == [True, False, False, False, False]


async def test_a_lost_connection_frees_its_memory(memory: AnswerMemory) -> None:
    peers = [Peer(memory) for _ in range(8)]
    for peer in peers:
        peer.ask(MIB)
    assert not peers[7].begun
    peers[0].queue.close()
    assert peers[7].begun
    peers[0].answer(taken=False)  # its look-up ends late: of no account any more
    assert memory.budget.held == sum(grant.reserved for peer in peers[1:] for grant in peer.begun)


async def test_a_turn_given_up_is_given_to_the_next(memory: AnswerMemory) -> None:
    peers = [Peer(memory) for _ in range(9)]
    for peer in peers[:7]:
        peer.ask(MIB)
    waiting = asyncio.ensure_future(peers[7].queue.wait_turn(Demand(MIB)))
    await turns(1)
    waiting.cancel()
    peers[8].ask(MIB)
    peers[0].answer(taken=True)
    assert peers[8].begun
    assert peers[7].queue.share.held == 0


async def test_a_client_that_reads_nothing_for_long_is_evicted(memory: AnswerMemory) -> None:
    stalled = Peer(memory)
    stalled.ask(MIB)
    stalled.answer(taken=False)
    await turns()
    assert stalled.ended_after is None
    stalled.queue.share.progress_at -= STALLED_SECONDS_MAX
    await turns()
    assert stalled.ended_after is not None
    assert stalled.ended_after >= STALLED_SECONDS_MAX
    assert (memory.connections_evicted, memory.budget.held) == (1, 0)
    await turns()
    assert not memory.is_watching


async def test_the_smallest_memory_is_enough_for_the_largest_answer() -> None:
    memory = AnswerMemory(ANSWER_BYTES_MIN)
    peer = Peer(memory)
    peer.queue.put(Demand(8 * MIB, other_bytes=5 * MIB), peer.begun.append)
    assert peer.begun
    memory.close()
