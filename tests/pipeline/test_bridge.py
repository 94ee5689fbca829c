"""Between a synchronous worker and an event loop: nothing outlives the block, nothing runs ahead of its bound."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import closing

import pytest
from octavo.pipeline.base.bridge import LoopThread
from support.waiting import WAIT_SECONDS, loop_turns, pause

NAME = "octavo under test"


def threads() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


class Source:
    """Counts up for ever; notes how far it came and that it was closed."""

    def __init__(self) -> None:
        self.made = 0
        self.closed = False

    async def numbers(self) -> AsyncGenerator[int]:
        try:
            while True:
                self.made += 1
                yield self.made
                await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)
            self.closed = True


def test_an_iterator_closed_early_has_closed_its_source_and_its_thread_ends() -> None:
    source = Source()
    with LoopThread(NAME) as loop:
        iterator = loop.iterate(source.numbers)
        assert [next(iterator), next(iterator)] == [1, 2]
        assert not source.closed
        iterator.close()
        assert source.closed
        assert threads() == 1
    assert threads() == 0


def test_leaving_the_block_cancels_what_runs_and_lets_it_clean_up() -> None:
    source = Source()
    with LoopThread(NAME) as loop:
        assert next(loop.iterate(source.numbers, ahead=1)) == 1
    assert (source.closed, threads()) == (True, 0)


def test_a_source_goes_no_further_ahead_than_it_may() -> None:
    source = Source()
    with LoopThread(NAME) as loop:
        iterator = loop.iterate(source.numbers, ahead=3)
        for taken in range(1, 20):
            assert next(iterator) == taken
            loop.run(loop_turns(20))
            assert source.made <= taken + 3 + 1, "as many as may wait, and the one that has no room yet"


def test_an_error_comes_after_the_items_before_it() -> None:
    async def failing() -> AsyncGenerator[int]:
        yield 1
        yield 2
        raise ValueError("damaged")

    with LoopThread(NAME) as loop:
        iterator = loop.iterate(failing)
        assert [next(iterator), next(iterator)] == [1, 2]
        with pytest.raises(ValueError, match="damaged"):
            next(iterator)


def test_an_end_and_a_result_come_through() -> None:
    async def some() -> AsyncGenerator[int]:
        for number in range(5):
            yield number

    with LoopThread(NAME) as loop:
        assert list(loop.iterate(some, ahead=1)) == list(range(5))
        assert loop.run(asyncio.sleep(0, "done")) == "done"
        loop.close()
        loop.close()
    assert threads() == 0


def test_a_consumer_that_takes_its_time_does_not_stop_the_loop() -> None:
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await pause(0.001)

    async def numbers() -> AsyncGenerator[int]:
        beating = asyncio.ensure_future(beat())
        try:
            while True:
                yield beats
                await asyncio.sleep(0)
        finally:
            beating.cancel()

    with LoopThread(NAME) as loop, closing(loop.iterate(numbers, ahead=1)) as iterator:
        for _ in range(3):
            next(iterator)
            before = beats
            deadline = time.monotonic() + WAIT_SECONDS
            while beats < before + 3 and time.monotonic() < deadline:
                pass
            assert beats >= before + 3, "connections are served while Spark works"
