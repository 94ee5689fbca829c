"""A completion behaves as a future, but its waiting task goes on at once."""

import asyncio

import pytest
from octavo.bookie.disk.completion import Completion
from support.waiting import WAIT_SECONDS


async def waiting_for(completion: Completion, seen: list[str]) -> None:
    try:
        await completion
    except OSError as error:
        seen.append(f"failed: {error}")
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise
    else:
        seen.append("complete")


async def begun(completion: Completion, seen: list[str]) -> "asyncio.Task[None]":
    task = asyncio.ensure_future(waiting_for(completion, seen))
    await asyncio.sleep(0)
    return task


async def by_the_loop(completion: Completion, error: BaseException | None, seen: list[str]) -> None:
    """Complete it from a callback of the loop; note when that callback has ended."""
    ended = asyncio.Event()

    def step() -> None:
        completion.complete(error)
        seen.append("end of the step")
        ended.set()

    asyncio.get_running_loop().call_soon(step)
    await ended.wait()


async def test_the_task_goes_on_in_the_step_that_completes_it() -> None:
    completion, seen = Completion(), list[str]()
    task = await begun(completion, seen)
    await by_the_loop(completion, None, seen)
    assert seen == ["complete", "end of the step"]
    await task


async def test_a_failure_is_raised_in_the_same_step() -> None:
    completion, seen = Completion(), list[str]()
    task = await begun(completion, seen)
    await by_the_loop(completion, OSError("disk"), seen)
    assert seen == ["failed: disk", "end of the step"]
    await task


async def test_every_waiting_task_goes_on() -> None:
    completion, seen = Completion(), list[str]()
    tasks = [await begun(completion, seen) for _ in range(3)]
    await by_the_loop(completion, None, seen)
    assert seen == ["complete"] * 3 + ["end of the step"]
    await asyncio.gather(*tasks)


async def test_a_task_that_is_cancelled_waits_no_more_and_completing_changes_nothing() -> None:
    completion, seen = Completion(), list[str]()
    task = await begun(completion, seen)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await by_the_loop(completion, None, seen)
    assert seen == ["cancelled", "end of the step"]
    assert completion.cancelled()


async def test_one_that_is_complete_already_can_be_awaited() -> None:
    completion = Completion()
    completion.complete(None)
    completion.complete(OSError("too late"))
    await completion
    await asyncio.gather(completion, asyncio.wait_for(completion, WAIT_SECONDS))


async def test_a_callback_that_was_removed_is_not_called() -> None:
    completion, seen = Completion(), list[str]()

    def note(_completion: Completion) -> None:
        seen.append("called")

    completion.add_done_callback(note)
    assert completion.remove_done_callback(note) == 1
    completion.complete(None)
    await asyncio.sleep(0)
    assert seen == []
