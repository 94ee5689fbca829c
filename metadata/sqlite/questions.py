"""Questions to a file: those of one turn of the event loop are answered together, by one way to the thread and back.

A thousand records that are read, or locks that are looked for, cost that way a few times.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from octavo.metadata.store.driver import Kind
from octavo.protocol.errors import ClientClosedError, InternalError, OctavoError


class ListOfKeys(NamedTuple):
    """A question: the first ``limit`` keys of one kind that begin with a prefix and come after ``after``."""

    kind: Kind
    prefix: str
    after: str
    limit: int


class _Asked[Q, A](NamedTuple):
    """A question of this turn."""

    question: Q
    answered: asyncio.Future[A]


class InThread(Protocol):
    """Calls an operation in the thread."""

    def __call__[T](self, operation: Callable[[], T]) -> asyncio.Future[T]: ...


class Questions[Q, A]:
    """The questions of one kind to one file. ``answer`` answers some of them, in order, and is called in the thread."""

    def __init__(
        self,
        answer: Callable[[Sequence[Q]], list[A]],
        *,
        in_thread: InThread,
        is_closed: Callable[[], bool],
        together_max: int,
    ) -> None:
        """``together_max``: no more are answered at once, which bounds the time for which all else waits."""
        self._answer = answer
        self._in_thread = in_thread
        self._is_closed = is_closed
        self._together_max = together_max
        self._loop = asyncio.get_running_loop()
        self._asked: list[_Asked[Q, A]] = []

    async def ask(self, question: Q) -> A:
        """The answer. Raises what ``answer`` raises, and :class:`ClientClosedError` if the file is closed meanwhile."""
        if not self._asked:
            self._loop.call_soon(self._end_turn)
        answered: asyncio.Future[A] = self._loop.create_future()
        self._asked.append(_Asked(question, answered))
        return await answered

    def _end_turn(self) -> None:
        turn, self._asked = self._asked, []
        for start in range(0, len(turn), self._together_max):
            asked = [one for one in turn[start : start + self._together_max] if not one.answered.done()]
            if self._is_closed():
                _refuse(asked, ClientClosedError("the metadata store has been closed"))
            elif asked:
                answering = self._in_thread(partial(self._answer, [one.question for one in asked]))
                answering.add_done_callback(partial(_settle, asked))


def _settle[Q, A](asked: Sequence[_Asked[Q, A]], answering: asyncio.Future[list[A]]) -> None:
    failure = asyncio.CancelledError() if answering.cancelled() else answering.exception()
    if isinstance(failure, OctavoError):
        _refuse(asked, failure)
    elif failure is not None:
        defect = InternalError(f"reading the metadata failed: {failure!r}")
        defect.__cause__ = failure
        _refuse(asked, defect)
    else:
        for one, answer in zip(asked, answering.result(), strict=True):
            if not one.answered.done():
                one.answered.set_result(answer)


def _refuse[Q, A](asked: Sequence[_Asked[Q, A]], error: OctavoError) -> None:
    for one in asked:
        if not one.answered.done():
            # A fresh instance: one error object raised in many tasks would collect all their tracebacks.
            failure = type(error)(error.message, may_have_happened=error.may_have_happened)
            failure.__cause__ = error
            one.answered.set_exception(failure)
