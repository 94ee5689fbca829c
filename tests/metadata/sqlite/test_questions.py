"""Questions of one turn of the event loop are answered together."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import pytest
from octavo.metadata.sqlite.questions import Questions
from octavo.protocol.errors import ClientClosedError, InternalError, MetadataUnavailableError, OctavoError


class File:
    """Doubles numbers, after a while; or fails with ``error``."""

    def __init__(self, together_max: int = 100) -> None:
        self.closed = False
        self.error: Exception | None = None
        self.calls: list[list[int]] = []
        self.questions = Questions[int, int](
            self.answer, in_thread=self.in_thread, is_closed=lambda: self.closed, together_max=together_max
        )

    def answer(self, numbers: Sequence[int]) -> list[int]:
        self.calls.append([*numbers])
        if self.error is not None:
            raise self.error
        return [2 * number for number in numbers]

    def in_thread[T](self, operation: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(None, operation)


async def test_those_of_one_turn_share_calls_and_each_gets_its_own_answer() -> None:
    file = File(together_max=4)
    assert await asyncio.gather(*map(file.questions.ask, range(10))) == [2 * number for number in range(10)]
    assert sorted(file.calls) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert await file.questions.ask(7) == 14
    assert len(file.calls) == 4


async def test_a_question_whose_caller_is_cancelled_in_its_turn_is_not_asked() -> None:
    file = File()
    asking = [asyncio.create_task(file.questions.ask(number)) for number in range(3)]
    asyncio.get_running_loop().call_soon(asking[1].cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await asking[1]
    assert [await asking[0], await asking[2]] == [0, 4]
    assert file.calls == [[0, 2]]


@pytest.mark.parametrize(
    ("error", "told"),
    [(MetadataUnavailableError("locked"), MetadataUnavailableError), (ZeroDivisionError("a defect"), InternalError)],
)
async def test_an_error_is_raised_to_each_as_an_object_of_its_own(error: Exception, told: type[OctavoError]) -> None:
    file = File()
    file.error = error
    failures = await asyncio.gather(*map(file.questions.ask, range(3)), return_exceptions=True)
    assert [type(failure) for failure in failures] == [told] * 3
    assert len({id(failure) for failure in failures}) == 3


async def test_a_file_that_is_closed_in_the_same_turn_answers_nothing() -> None:
    file = File()
    asking = asyncio.create_task(file.questions.ask(1))
    await asyncio.sleep(0)
    file.closed = True
    with pytest.raises(ClientClosedError):
        await asking
    assert file.calls == []
