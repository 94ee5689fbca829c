"""Programs whose leaders give up, add many entries at once, flush, and add again what did not happen, as docs/logs.md
tells them to.

What they are told is checked from outside: an entry whose error says that it did not happen never appears (rules P6 and
P16), and when a flush has returned every add that was made before it has its answer (rule P17).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from octavo.client.log.log import Log
from octavo.client.log.writer.writer import LogWriter
from octavo.protocol.errors import InternalError, OctavoError
from simulation.judges.history import Violation
from simulation.judges.log_history import Fate, Leader

if TYPE_CHECKING:
    from simulation.world import World

RETRIES = 2
"""Times that a program adds again what did not happen."""


class Impatience:
    """What the program of one leader does besides single adds."""

    def __init__(self, world: "World", rng: random.Random, writer: LogWriter, leader: Leader) -> None:
        self._world = world
        self._rng = rng
        self._writer = writer
        self._leader = leader
        self.pending: dict[asyncio.Future[object], None] = {}
        """Its calls that have not ended."""

    def begin(self) -> int:
        """Begin one of them in the background. Returns how many entries it adds."""
        rng = self._rng
        if rng.random() < 0.3:
            self._start(self.flush())
            return 0
        count = rng.choice((1, 2, 3, 8))
        task = self._start(self.add_many(count) if count > 1 or rng.random() < 0.5 else self.add_and_retry())
        if rng.random() < 0.4:
            asyncio.get_running_loop().call_later(rng.choice((0.0, 0.001, 0.02, 0.2)) * rng.random(), task.cancel)
        return count

    def _start(self, call: Awaitable[object]) -> asyncio.Future[object]:
        task = asyncio.ensure_future(call)
        self.pending[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Future[object]) -> None:
        self.pending.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self._world.violate(task.exception() or AssertionError())

    # --- adding -----------------------------------------------------------------------------------------------------

    async def add_many(self, count: int, retries: int = RETRIES) -> None:
        """Add entries with one call. What of it did not happen is added again."""
        leader = self._leader
        indexes = [leader.add(self._filling()) for _ in range(count)]
        try:
            positions = await self._writer.add_many([leader.adds[index].payload for index in indexes])
        except OctavoError as error:
            self._count(f"log: add_many failed: {type(error).__name__}", error)
            again = leader.many_failed(indexes, error)
            if again and retries and not error.may_have_happened:
                self._world.trace.count("log: added again")
                await self.add_many(len(again), retries - 1)
        except asyncio.CancelledError:
            leader.cancelled(indexes)
            raise
        else:
            self._world.trace.count("log: adds acknowledged", count)
            if len(positions) != count:
                raise Violation("P1", f"{leader} add_many of {count} was given {positions}")
            for index, position in zip(indexes, positions, strict=True):
                leader.acknowledged(index, position)

    async def add_and_retry(self) -> None:
        """Add an entry within a short time, and again if that did not happen."""
        leader, seconds = self._leader, self._rng.choice((0.01, 0.05, 0.3))
        for _ in range(1 + RETRIES):
            index = leader.add(self._filling())
            try:
                async with asyncio.timeout(seconds):
                    leader.acknowledged(index, await self._writer.add(leader.adds[index].payload))
            except OctavoError as error:
                self._count(f"log: add failed: {type(error).__name__}", error)
                leader.failed(index, error)
                if error.may_have_happened:
                    return
                self._world.trace.count("log: added again")
            except (TimeoutError, asyncio.CancelledError) as error:
                leader.cancelled([index])
                if isinstance(error, asyncio.CancelledError):
                    raise
                return
            else:
                self._world.trace.count("log: adds acknowledged")
                return

    async def flush(self) -> None:
        """Wait for what was added so far, and check that nothing of it is still under way."""
        await asyncio.sleep(0)  # what was begun in this step is added
        before = [index for index, add in enumerate(self._leader.adds) if add.fate is Fate.PENDING]
        try:
            await self._writer.flush()
        except OctavoError:
            return
        await _several_turns()  # callers are told in the turns that follow
        left = [index for index in before if self._leader.adds[index].fate is Fate.PENDING]
        self._world.trace.count("log: flushed")
        if left:
            raise Violation("P17", f"{self._leader} was flushed, and its adds {left} are still under way")

    def _filling(self) -> bytes:
        return self._rng.randbytes(self._rng.randrange(self._world.plan.entry_bytes_max + 1))

    def _count(self, what: str, error: OctavoError) -> None:
        if isinstance(error, InternalError):
            raise Violation("no defects", f"{self._leader}: {error.message}")
        self._world.trace.count(what)

    # --- the end ----------------------------------------------------------------------------------------------------

    async def check_patience(self) -> None:
        """Every bookie is well: flushing waits for adds that wait for room, also behind one that was cancelled, and
        closing fails none of them (rule P17). Closes the writer."""
        for end in (self._writer.flush, self._writer.close):
            adding = [asyncio.ensure_future(self._add_one()) for _ in range(3 * self._writer_window + 2)]
            await asyncio.sleep(0)
            adding[-1].cancel()
            try:
                await end()
            finally:
                await _several_turns()
                for task in adding:
                    task.cancel()
                results = await asyncio.gather(*adding, return_exceptions=True)
            for error in results[:-1]:
                if isinstance(error, BaseException):
                    raise Violation("P17", f"{self._leader} after {end.__name__}(): an add ended with {error!r}")
        self._world.trace.count("log: patience checked")

    @property
    def _writer_window(self) -> int:
        return min(self._world.plan.client_options.window_entries, 20)

    async def _add_one(self) -> None:
        leader, index = self._leader, self._leader.add(b"")
        try:
            position = await self._writer.add(leader.adds[index].payload)
        except OctavoError as error:
            leader.failed(index, error)
            raise
        except asyncio.CancelledError:
            leader.cancelled([index])
            raise
        leader.acknowledged(index, position)


async def _several_turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def ask_how_many(
    world: "World", log: Log, leader: Leader, *, attempts: int, note: Callable[[str, OctavoError], None]
) -> None:
    """Ask what became of each ``add_many`` in doubt, while that is not known."""
    for indexes, error in list(leader.many_in_doubt):
        for _ in range(attempts):
            try:
                if leader.many_added(indexes, error, await log.added(error)):
                    world.trace.count("log: told how many were added")
                    break
            except OctavoError as failure:
                note("added", failure)
            await asyncio.sleep(0.05)
