"""Tasks of Octavo's own, in an event loop that belongs to the program (rule H2).

A program may cancel all tasks of its event loop, and then wait for something that one of Octavo's tasks was to bring.
So each task that runs in the background has an owner that learns how it ended, whatever ended it, and fails what
depends on it. A task that is cancelled before its first step runs no line of its own: only a callback of the task is
sure to be called.
"""

import asyncio
from collections.abc import Callable

from octavo.protocol.errors import InternalError, OctavoError, TasksCancelledError


def tasks_cancelled(what: str) -> TasksCancelledError:
    """The error of what depended on a task that the program has cancelled. ``what`` has ended."""
    return TasksCancelledError(
        f"{what}: the program has cancelled tasks of the client's own (all tasks of the event loop, for example); "
        "close the client and connect again"
    )


def when_cancelled[T](task: asyncio.Task[T], act: Callable[[], object]) -> asyncio.Task[T]:
    """Call ``act`` if the task is cancelled, by its owner or by the program; the task."""
    task.add_done_callback(lambda ended: act() if ended.cancelled() else None)
    return task


async def result_of[T](task: asyncio.Task[T], what: str) -> T:
    """Wait for a task of one's own, which goes on if the caller is cancelled. Raises what the task raises, and
    :class:`TasksCancelledError` if the program has cancelled it: the caller was not."""
    await asyncio.wait([task])
    return result_in(task, what)


def result_in[T](task: asyncio.Task[T], what: str) -> T:
    """The result of a task that has ended. Raises as :func:`result_of`."""
    if task.cancelled():
        raise tasks_cancelled(what)
    return task.result()


def failure_of[T](task: asyncio.Task[T], what: str) -> OctavoError:
    """Why a task has ended that ends by failing only."""
    if task.cancelled():
        return tasks_cancelled(what)
    error = task.exception()
    if isinstance(error, OctavoError):
        return error
    failure = InternalError(f"{what} failed: {error!r}")
    failure.__cause__ = error
    return failure
