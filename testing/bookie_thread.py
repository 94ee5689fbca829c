"""One bookie in a thread of its own: its starts, and how each of them ends.

A stop is what SIGTERM is for a process. A kill leaves the files as they are at that moment, sends no answer and breaks
every connection, as SIGKILL does; the registration ends with it, as that of a killed process does when its lease is
over. A pause keeps the thread from running, as SIGSTOP does.
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Final

import uvloop
from octavo._version import __version__
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import BookieConfig
from octavo.metadata.connect import open_cluster
from octavo.metadata.updates.cluster_release import begin_cluster
from octavo.testing.memory_disk import MemoryDisk

_CANCEL_AGAIN_SECONDS: Final = 0.01
"""A task that is killed may wait for a file again, and is cancelled again."""


class BookieThread:
    """A bookie that can be started, and ended in three ways. Its methods are called by one thread at a time."""

    def __init__(self, config: BookieConfig) -> None:
        self._config = config
        self._disk = MemoryDisk()
        self._run: _Run | None = None

    @property
    def is_running(self) -> bool:
        """Whether the bookie has started and not ended; also while it is paused."""
        return self._run is not None and self._run.thread.is_alive()

    def begin(self) -> Future[str]:
        """Start the bookie; the future has its address once it serves, or why it does not."""
        assert not self.is_running
        self._disk.thaw()
        self._run = run = _Run(self._config, self._disk)
        run.thread.start()
        return run.address

    def keep_address(self, address: str) -> None:
        """Listen there from the next start on, as a bookie of production does."""
        host, _, port = address.rpartition(":")
        self._config = replace(self._config, host=host, port=int(port))

    def stop(self) -> None:
        """Let the bookie finish what it has begun, and end. Does nothing once it has ended."""
        self._end(lambda run: run.ask(kill=False))

    def kill(self) -> None:
        """End the bookie at once. Does nothing once it has ended."""
        self._end(lambda run: run.ask(kill=True))

    def _end(self, ask: Callable[["_Run"], None]) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.may_run.set()
            wait([run.address])  # a start is not interrupted
            ask(run)
            run.thread.join()
            run.raise_failure()

    def pause(self) -> None:
        """Keep the bookie from running, until :meth:`resume`. Returns once it stands still."""
        run = self._run
        if run is not None and run.may_run.is_set():
            run.may_run.clear()
            stands: Future[None] = Future()

            def stand() -> None:
                stands.set_result(None)
                run.may_run.wait()

            if run.call(stand):
                stands.result()

    def resume(self) -> None:
        """Let the bookie run again. Does nothing if it is not paused."""
        if self._run is not None:
            self._run.may_run.set()


class _Run:
    """The bookie from one start to its end."""

    def __init__(self, config: BookieConfig, disk: MemoryDisk) -> None:
        self._config = config
        self._disk = disk
        self.thread = threading.Thread(target=self._work, name=f"octavo-{config.bookie_id}", daemon=True)
        self.address: Future[str] = Future()
        self.may_run = threading.Event()
        self.may_run.set()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop
        self._asked: asyncio.Future[bool]
        """How the bookie is to end: True: killed."""

    def call(self, act: Callable[[], object]) -> bool:
        """Call from the bookie's thread. False: that has ended."""
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:
            return False
        return True

    def ask(self, *, kill: bool) -> None:
        def asked() -> None:
            if kill:
                self._disk.freeze()  # before anything else that is ready runs
            self._end_with(kill=kill)

        self.call(asked)

    def _end_with(self, *, kill: bool) -> None:
        if not self._asked.done():
            self._asked.set_result(kill)

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self.address.done():
                self._failure = error
            else:
                self.address.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked = self._loop.create_future()
        config = self._config
        store = await open_cluster(config.metadata, create=True, lease_seconds=config.lease_seconds)
        try:
            await begin_cluster(store)
            bookie = await Bookie.start(
                config,
                filesystem=self._disk,
                store=store,
                rng=random.Random(),
                software=__version__,
                wall_clock=time.time,
            )
            self.address.set_result(bookie.address)
            broken = asyncio.ensure_future(bookie.broken())
            broken.add_done_callback(lambda _: self._end_with(kill=True))
            if await self._asked:
                self._disk.freeze()
                bookie.sever()
                await _cancel_all()
            else:
                broken.cancel()
                await bookie.stop()
        finally:
            await store.close()


async def _cancel_all() -> None:
    """Cancel every other task until none is left. Nothing of what they do then changes a file."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=_CANCEL_AGAIN_SECONDS)


def config_of(name: str, metadata: str, *, lease_seconds: float) -> BookieConfig:
    """The settings of a bookie of a test: small files, no background reads, and a host of its own."""
    return BookieConfig(
        data_dir=Path(f"/{name}"),
        bookie_id=name,
        host_id=name,
        port=0,
        metadata=metadata,
        lease_seconds=lease_seconds,
        journal_segment_bytes=16 << 20,
        checkpoint_journal_bytes=8 << 20,
        entry_log_bytes=16 << 20,
        cache_bytes=4 << 20,
        page_cache_bytes=0,
        scrub_bytes_per_second=0,
        drain_timeout_seconds=1.0,
    )
