"""An event without the memory of one."""

import asyncio

from octavo.metadata.store.signal import Signal
from support.waiting import loop_turns


async def test_signal_lets_all_go_on_that_wait_and_nothing_wait_while_it_is_set() -> None:
    signal = Signal()
    assert not signal.is_set()
    waiting = [asyncio.create_task(signal.wait()) for _ in range(3)]
    await loop_turns(2)
    assert not any(task.done() for task in waiting)
    waiting[0].cancel()
    await loop_turns(2)
    signal.set()
    signal.set()
    await asyncio.gather(*waiting[1:])
    assert signal.is_set()
    await signal.wait()
    assert waiting[0].cancelled()


async def test_cleared_signal_is_waited_for_again() -> None:
    signal = Signal()
    waiting = asyncio.create_task(signal.wait())
    await loop_turns(2)
    signal.set()
    signal.clear()
    await waiting  # what waited when it was set goes on, although it has been cleared since
    again = asyncio.create_task(signal.wait())
    await loop_turns(2)
    assert not again.done()
    signal.set()
    await again


async def test_waiters_that_were_cancelled_leave_nothing_behind() -> None:
    signal = Signal()
    for _ in range(3):
        waiting = asyncio.create_task(signal.wait())
        await loop_turns(2)
        waiting.cancel()
        await asyncio.wait([waiting])
    other = asyncio.create_task(signal.wait())
    await loop_turns(2)
    signal.set()
    await other
