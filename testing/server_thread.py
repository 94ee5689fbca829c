"""A server in a thread of its own: its starts, and how each of them ends.

A stop is what SIGTERM is for a process. A kill sends no answer and breaks every connection, as SIGKILL does; the
registration ends with it, as that of a killed process does when its lease is over. A pause keeps the thread from
running, as SIGSTOP does.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, Protocol

import uvloop

_CANCEL_AGAIN_SECONDS: Final = 0.01
"""A task that is killed may wait for a file again, and is cancelled again."""


class Life:
    """One start of a server, as the server sees it."""

    def __init__(self) -> None:
        self.address: Future[str] = Future()
        self._loop: asyncio.AbstractEventLoop
        self._asked: asyncio.Future[bool]
        """How the server is to end: True: killed."""

    def begin(self) -> None:
        """The server's event loop runs."""
        self._loop = asyncio.get_running_loop()
        self._asked = self._loop.create_future()

    def started(self, address: str) -> None:
        """The server serves there."""
        self.address.set_result(address)

    async def is_killed(self) -> bool:
        """Wait for the end; whether it is a kill."""
        return await self._asked

    def end_with(self, *, kill: bool) -> None:
        """Let the server end, unless it is ending. Called from its thread."""
        if not self._asked.done():
            self._asked.set_result(kill)

    def call(self, act: Callable[[], object]) -> bool:
        """Call from the server's thread. False: that has ended."""
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:
            return False
        return True


class Server(Protocol):
    """A server that a thread runs."""

    @property
    def name(self) -> str:
        """Of the thread."""

    async def serve(self, life: Life) -> None:
        """Start, say the address to ``life``, and end as it says."""

    def keep_address(self, address: str) -> None:
        """Listen there from the next start on, as a server of production does."""

    def freeze(self) -> None:
        """A kill begins: nothing that the server does from now on may last."""

    def thaw(self) -> None:
        """Before each start."""


class ServerThread:
    """A server that can be started, and ended in three ways. Its methods are called by one thread at a time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._run: _Run | None = None

    @property
    def is_running(self) -> bool:
        """Whether the server has started and not ended; also while it is paused."""
        return self._run is not None and self._run.thread.is_alive()

    def begin(self) -> Future[str]:
        """Start the server; the future has its address once it serves, or why it does not."""
        assert not self.is_running
        self._server.thaw()
        self._run = run = _Run(self._server)
        run.thread.start()
        return run.life.address

    def keep_address(self, address: str) -> None:
        """Listen there from the next start on, as a server of production does."""
        self._server.keep_address(address)

    def stop(self) -> None:
        """Let the server finish what it has begun, and end. Does nothing once it has ended."""
        self._end(lambda run: run.ask(kill=False))

    def kill(self) -> None:
        """End the server at once. Does nothing once it has ended."""
        self._end(lambda run: run.ask(kill=True))

    def _end(self, ask: Callable[["_Run"], None]) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.may_run.set()
            wait([run.life.address])  # a start is not interrupted
            ask(run)
            run.thread.join()
            run.raise_failure()

    def pause(self) -> None:
        """Keep the server from running, until :meth:`resume`. Returns once it stands still."""
        run = self._run
        if run is not None and run.may_run.is_set():
            run.may_run.clear()
            stands: Future[None] = Future()

            def stand() -> None:
                stands.set_result(None)
                run.may_run.wait()

            if run.life.call(stand):
                stands.result()

    def resume(self) -> None:
        """Let the server run again. Does nothing if it is not paused."""
        if self._run is not None:
            self._run.may_run.set()


class _Run:
    """The server from one start to its end."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.life = Life()
        self.thread = threading.Thread(target=self._work, name=f"octavo-{server.name}", daemon=True)
        self.may_run = threading.Event()
        self.may_run.set()
        self._failure: BaseException | None = None

    def ask(self, *, kill: bool) -> None:
        def asked() -> None:
            if kill:
                self._server.freeze()  # before anything else that is ready runs
            self.life.end_with(kill=kill)

        self.life.call(asked)

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self.life.address.done():
                self._failure = error
            else:
                self.life.address.set_exception(error)

    async def _serve(self) -> None:
        self.life.begin()
        await self._server.serve(self.life)


async def cancel_all() -> None:
    """Cancel every other task until none is left: nothing of what they do then may last."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=_CANCEL_AGAIN_SECONDS)
