"""The task under which a client runs its background tasks, and programs that cancel tasks which are not theirs (rule
H2)."""

import asyncio

import pytest
from octavo.client.supervisor import Supervisor
from octavo.metadata.own_tasks import failure_of, result_of
from octavo.protocol.errors import InternalError, NoSuchLogError, TasksCancelledError
from support.waiting import loop_turns


async def forever() -> None:
    await asyncio.Event().wait()


class Supervised:
    """A supervisor, its tasks, and what it reported."""

    def __init__(self) -> None:
        before = asyncio.all_tasks()
        self.reported: list[BaseException] = []
        self.supervisor = Supervisor("octavo test", self.reported.append)
        assert asyncio.all_tasks() == before, "there is no task while there is nothing to do"
        self.supervisor.start(forever())
        self.supervisor.start(forever())
        self._before = before

    def tasks(self) -> list[asyncio.Task[object]]:
        return [*asyncio.all_tasks() - self._before]


@pytest.mark.parametrize("turns", [0, 5], ids=["before its first step", "while it runs"])
async def test_cancelled_task_ends_the_others_and_is_reported_once(turns: int) -> None:
    made = Supervised()
    await loop_turns(turns)
    made.tasks()[0].cancel()
    await loop_turns(10)
    assert [type(error) for error in made.reported] == [TasksCancelledError]
    assert made.tasks() == []
    await made.supervisor.close()
    assert len(made.reported) == 1


async def test_all_cancelled_at_once_is_one_failure() -> None:
    made = Supervised()
    await loop_turns(5)
    for task in made.tasks():
        task.cancel()
    await loop_turns(10)
    assert [type(error) for error in made.reported] == [TasksCancelledError]


async def test_nothing_is_run_after_a_failure_or_a_closing() -> None:
    made = Supervised()
    made.tasks()[0].cancel()
    await loop_turns(1)
    made.supervisor.start(forever())
    await loop_turns(10)
    assert made.tasks() == []
    made = Supervised()
    await made.supervisor.close()
    made.supervisor.start(forever())
    assert made.tasks() == []


async def test_failure_is_reported_when_the_others_have_ended() -> None:
    made = Supervised()
    cleaning = asyncio.Event()

    async def clean_up() -> None:
        try:
            await forever()
        finally:
            await cleaning.wait()

    made.supervisor.start(clean_up())
    await loop_turns(2)
    made.tasks()[0].cancel()
    await loop_turns(10)
    is_early = bool(made.reported)
    cleaning.set()
    await loop_turns(10)
    assert not is_early
    assert len(made.reported) == 1


async def test_closing_reports_nothing() -> None:
    made = Supervised()
    await loop_turns(5)
    await made.supervisor.close()
    assert made.reported == []


async def test_child_that_fails_is_what_is_reported() -> None:
    made = Supervised()

    async def fail() -> None:
        raise NoSuchLogError("gone")

    made.supervisor.start(fail())
    await loop_turns(10)
    assert [type(error) for error in made.reported] == [NoSuchLogError]


async def test_waiting_for_a_task_that_the_program_cancelled_is_no_cancellation_of_the_caller() -> None:
    task = asyncio.create_task(forever())
    waiting = asyncio.create_task(result_of(task, "closing"))
    await loop_turns(3)
    task.cancel()
    with pytest.raises(TasksCancelledError, match="closing: the program has cancelled"):
        await waiting


async def test_cancelling_the_caller_leaves_the_task() -> None:
    task = asyncio.create_task(forever())
    waiting = asyncio.create_task(result_of(task, "closing"))
    await loop_turns(3)
    waiting.cancel()
    await loop_turns(3)
    assert waiting.cancelled()
    assert not task.done()
    task.cancel()


async def test_task_that_must_not_end_tells_why_it_did() -> None:
    async def fail() -> None:
        raise ValueError("defect")

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    failure = failure_of(task, "watching")
    assert isinstance(failure, InternalError)
    assert "watching failed: ValueError('defect')" in failure.message
