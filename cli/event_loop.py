"""Runs a command on an event loop. In a module of its own, because help needs none: ``asyncio`` is loaded with it."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from octavo.cli.output import SIGNAL_STATUS_BASE

IMPATIENT_SECONDS: Final = 0.5
"""A second signal that arrives later than this ends the process at once. One that arrives sooner is a copy of the
first: a parent such as ``timeout`` passes on a Ctrl-C that the terminal has already sent to this process."""


def run_on_loop(work: Callable[[], Coroutine[Any, Any, int | None]], *, brief: bool = False) -> int:
    """Run ``work`` on an event loop of its own and return the exit status; a signal cancels it.

    ``brief``: on Python's own loop, which is there already. The faster one pays where much is transferred.
    """
    if brief:
        return asyncio.run(_until_signalled(work))
    import uvloop  # noqa: PLC0415

    return asyncio.run(_until_signalled(work), loop_factory=uvloop.new_event_loop)


async def _until_signalled(work: Callable[[], Coroutine[Any, Any, int | None]]) -> int:
    """Run ``work``. SIGINT and SIGTERM cancel it and let it clean up; a second one ends the process at once."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work())
    received: list[signal.Signals] = []
    first_at = 0.0

    def on_signal(number: signal.Signals) -> None:
        nonlocal first_at
        received.append(number)
        if len(received) == 1:
            first_at = loop.time()
            task.cancel()
        elif loop.time() - first_at >= IMPATIENT_SECONDS:
            os._exit(SIGNAL_STATUS_BASE + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    try:
        return await task or 0
    except asyncio.CancelledError:
        if not received:
            raise
        # A thread may be waiting for standard input or output, and nothing can interrupt it: a normal exit would wait
        # for it. The command has cleaned up by now.
        sys.stderr.flush()
        os._exit(SIGNAL_STATUS_BASE + received[0])
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def finish[T](clean_up: Awaitable[T]) -> T:
    """Await ``clean_up`` to its end even if the task is cancelled meanwhile; the cancellation takes effect
    afterwards."""
    task = asyncio.ensure_future(clean_up)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # mark as retrieved: the cancellation is raised instead
        raise cancelled
    return task.result()
