"""Connects Spark's synchronous workers with the client's event loop.

A Spark task runs in a thread of a Python worker that outlives the task. Each task has its own event loop in its own
thread, so that connections are served while Spark processes a batch. The loop is closed when the task ends: also when
Spark stops reading (LIMIT), when the task is cancelled, and after a failure.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError as FutureCancelledError
from types import TracebackType
from typing import Any, Self, cast

import uvloop

BATCHES_AHEAD_MAX = 2
"""Largest number of batches that wait for Spark. It bounds the memory of a task."""


class LoopThread:
    """An event loop in a thread; a context manager. Leaving the block cancels running tasks and ends the thread."""

    def __init__(self, name: str = "octavo") -> None:
        self._loop = cast(asyncio.AbstractEventLoop, uvloop.new_event_loop())
        # A daemon thread does not keep the process alive if Spark ends the worker without closing the loop.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def run[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` and return its result. If waiting is interrupted, ``work`` is cancelled."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except FutureCancelledError:
            raise
        except BaseException:
            future.cancel()
            raise

    def iterate[T](self, make: Callable[[], AsyncGenerator[T]], *, ahead: int = BATCHES_AHEAD_MAX) -> Generator[T]:
        """The items of an asynchronous generator, which runs at most ``ahead`` items ahead.

        Closing the iterator closes the generator and waits until it is closed.
        """
        items: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        room = asyncio.Semaphore(ahead)

        async def produce() -> None:
            try:
                async with contextlib.aclosing(make()) as source:
                    async for item in source:
                        await room.acquire()
                        items.put((True, item))
                items.put((False, None))
            except BaseException as error:  # the consumer must not wait for ever
                items.put((False, error))
                if not isinstance(error, Exception):
                    raise

        async def begin() -> asyncio.Task[None]:
            return asyncio.get_running_loop().create_task(produce())

        async def end() -> None:
            producing.cancel()
            await asyncio.gather(producing, return_exceptions=True)

        producing = self.run(begin())
        try:
            while True:
                is_item, value = items.get()
                if not is_item:
                    if value is not None:
                        raise value
                    return
                self._loop.call_soon_threadsafe(room.release)
                yield value
        finally:
            if self._thread.is_alive():  # otherwise closing the loop has ended the generator
                self.run(end())

    def close(self) -> None:
        """Cancel running tasks, let them clean up, and end the thread. May be called twice."""
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.wait(tasks))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
