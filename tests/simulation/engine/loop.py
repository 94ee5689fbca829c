"""The event loop of a simulated world: virtual time, one queue, and processes that can be killed and paused.

Every callback belongs to the :class:`Process` whose code scheduled it. The loop runs one callback at a time, moves the
clock only when nothing is ready, and checks the process before each callback: callbacks of a dead process are dropped,
those of a paused process are kept until it resumes. A process therefore dies between two steps, in whatever state it
is, and none of its code runs afterwards.

The loop is deterministic: ready callbacks run in the order in which they were scheduled, tasks and futures hash by
number, and there are no threads. What differs from seed to seed is how long operations of the seams (network, disk,
metadata) take, and in some universes the order within a turn (:attr:`SimulationLoop.turns`): when a turn of a process
has taken long, or the process was paused, several things are due at once. asyncio then handles what has arrived first
and timers last, libuv the reverse, and neither lets a task go on in between.

The processes share the loop, but none touches another's futures. A seam that delivers something to a process schedules
a callback of the receiver (:meth:`SimulationLoop.call_process`).
"""

import asyncio
import heapq
import itertools
import math
import random
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context, copy_context
from types import TracebackType
from typing import Any, NoReturn, Self
from weakref import ref

STEPS_MAX = 3_000_000
"""Limit of callbacks in one universe; beyond it, the code under test is taken to be in an endless loop."""

_CLOSINGS_MAX = 50
"""Attempts to close one dropped coroutine, whose clean-up code may await again."""

_serials = itertools.count(1)


class EscapedError(AssertionError):
    """Code under simulation reached for the real world: a thread, a socket, a file descriptor."""


class StuckError(AssertionError):
    """The main coroutine has not ended, and nothing is scheduled any more or :data:`STEPS_MAX` has been reached."""


class SimulatedFuture(asyncio.Future[Any]):
    """A future that hashes by number, so that sets of futures iterate in the same order in every run."""

    __slots__ = ("serial",)
    serial: int

    def __hash__(self) -> int:
        try:
            return self.serial
        except AttributeError:
            self.serial = next(_serials)
            return self.serial


class SimulatedTask(asyncio.Task[Any]):
    """A task that hashes by number and knows its process."""

    __slots__ = ("process", "serial")
    process: "Process"
    serial: int

    def __hash__(self) -> int:
        try:
            return self.serial
        except AttributeError:
            self.serial = next(_serials)
            return self.serial


class Handle:
    """A scheduled callback; it replaces :class:`asyncio.Handle` and :class:`asyncio.TimerHandle`."""

    __slots__ = ("_arguments", "_callback", "_cancelled", "_context", "_process", "_when")

    def __init__(
        self, process: "Process", callback: Callable[..., object], arguments: tuple[Any, ...], context: Context
    ) -> None:
        self._process = process
        self._callback: Callable[..., object] | None = callback
        self._arguments = arguments
        self._context = context
        self._cancelled = False
        self._when = 0.0

    def cancel(self) -> None:
        """Prevent the callback from running."""
        self._cancelled = True
        self._callback = None
        self._arguments = ()

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._cancelled

    def when(self) -> float:
        """The time at which it is due, by its process's clock."""
        return self._when


class Delivery(Handle):
    """A callback by which a seam brings something to a process. (A timer is what the process asked for itself.)"""

    __slots__ = ()


class Process:
    """A simulated operating system process: it can be killed and paused, and has its own clock.

    Its clock shows the world's time times ``clock_rate`` plus ``clock_offset``. Seams use the world's time. The clock
    never goes back: it is the one that timers use. What tells the time of day may (``World.wall_clock``).
    """

    def __init__(
        self, loop: "SimulationLoop", name: str, *, clock_offset: float = 0.0, clock_rate: float = 1.0
    ) -> None:
        self.loop = loop
        self.name = name
        self.alive = True
        self.context = Context()
        self.steps = 0
        self.children: list[ref[SimulatedTask]] = []
        """Every task it has started. (asyncio's own registry covers all universes of this interpreter.)"""
        self.die_at_step: int | None = None
        """The step after which ``on_step_death`` is called."""
        self.on_step_death: Callable[[], None] | None = None
        self.on_death: list[Callable[[], None]] = []
        """Called in order when it dies, so that the seams release it."""
        self._clock_offset = clock_offset
        self._clock_rate = clock_rate
        self._paused = False
        self._is_stalled = False
        self._held: list[Handle] = []

    def __repr__(self) -> str:
        return f"<Process {self.name}{'' if self.alive else ' dead'}>"

    def time(self) -> float:
        """Its own clock, in seconds."""
        return self.loop.now * self._clock_rate + self._clock_offset

    def world_time(self, own: float) -> float:
        """The earliest world time at which its clock shows at least ``own``. A timer never fires early."""
        due = (own - self._clock_offset) / self._clock_rate
        while due * self._clock_rate + self._clock_offset < own:
            due += max(math.ulp(own), math.ulp(due))
        return due

    @property
    def paused(self) -> bool:
        """Whether it is paused, as by SIGSTOP."""
        return self._paused

    def pause(self) -> None:
        """Pause it: callbacks that fall due are kept."""
        self._paused = True
        self._is_stalled = False

    def resume(self) -> None:
        """Run the kept callbacks, and continue. Does not revive a dead process."""
        self._paused = self._is_stalled = False
        held, self._held = self._held, []
        self.loop.put_back(held if self.loop.turns is None else _in_one_turn(held, self.loop.turns))

    def stall(self, seconds: float) -> None:
        """Let its present turn take so long: what falls due meanwhile is due together in the next one."""
        if not self._paused and self.alive:
            self._paused = self._is_stalled = True
            self.loop.call_process(self.loop.world, self.loop.now + seconds, self._end_stall)

    def _end_stall(self) -> None:
        if self._is_stalled:  # and not paused meanwhile
            self.resume()

    def hold(self, handle: Handle) -> None:
        """Keep a callback that fell due while the process is paused."""
        self._held.append(handle)

    def kill(self) -> None:
        """Kill it now. Must not be called from its own code."""
        if not self.alive:
            return
        self.alive = False
        self._held.clear()
        self.loop.keep_dead_tasks(self)
        for tell in self.on_death:
            tell()
        self.on_death.clear()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> SimulatedTask:
        """Start a task in this process from outside. Code inside the process creates tasks as usual."""
        loop = self.loop
        before, loop.current = loop.current, self
        try:
            return loop.create_task(work, name=name, context=self.context.copy())
        finally:
            loop.current = before

    def tasks(self) -> list[SimulatedTask]:
        """Its tasks that have not ended, oldest first."""
        return sorted((task for task in self.loop.tasks() if task.process is self), key=hash)


def _in_one_turn(held: list[Handle], rng: random.Random) -> list[Handle]:
    """The order in which one turn runs these: first what was ready before, then what has arrived and the timers, either
    of them first. What has arrived keeps its order, and timers keep theirs."""
    arrived = [handle for handle in held if isinstance(handle, Delivery)]
    timers = [handle for handle in held if handle._when and not isinstance(handle, Delivery)]
    due = [*arrived, *timers] if rng.random() < 0.5 else [*timers, *arrived]
    return [*(handle for handle in held if not handle._when and not isinstance(handle, Delivery)), *due]


class SimulationLoop(asyncio.BaseEventLoop):
    """The event loop. ``world`` is the process of the harness itself: faults, schedules, checkers."""

    def __init__(self) -> None:
        global _serials  # noqa: PLW0603 - hashes must not depend on earlier universes of this interpreter
        self._running = False
        super().__init__()
        _serials = itertools.count(1)
        self.now = 0.0
        self.steps = 0
        self.world = Process(self, "world")
        self.current = self.world
        self.connector: Callable[..., Coroutine[Any, Any, Any]] | None = None
        self.listener: Callable[..., Coroutine[Any, Any, Any]] | None = None
        self.complaints: list[tuple[Process, dict[str, Any]]] = []
        """Calls of the exception handler by living processes."""
        self.halted: BaseException | None = None
        """Set by the harness to end the run after the current step; raised by :meth:`run_until_complete`."""
        self.turns: random.Random | None = None
        """Decides what a turn in which several things are due begins with; None: with what was due first."""
        self.on_due: Callable[[Process], None] | None = None
        """Told of every process for which something falls due, before it runs."""
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._timer_numbers = itertools.count().__next__
        self._graveyard: list[SimulatedTask] = []

    # --- time and callbacks ----------------------------------------------------------------------------------------

    def time(self) -> float:
        """The time by the clock of the calling process."""
        return self.current.time()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(self.current, callback, args, context if context is not None else copy_context())
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_at(self.current.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        process = self.current
        handle = Handle(process, callback, args, context if context is not None else copy_context())
        handle._when = when
        heapq.heappush(self._timers, (process.world_time(when), self._timer_numbers(), handle))
        return handle

    def call_process(self, process: Process, when: float, callback: Callable[..., object], *args: Any) -> Handle:
        """Run a callback of ``process`` at ``when`` of the world's time: how seams bring things to it."""
        handle = Delivery(process, callback, args, process.context)
        heapq.heappush(self._timers, (max(when, self.now), self._timer_numbers(), handle))
        return handle

    def call_soon_threadsafe(self, *_args: Any, **_kwargs: Any) -> NoReturn:  # type: ignore[override]
        raise EscapedError("a thread calls into the simulated loop")

    def run_in_executor(self, *_args: Any, **_kwargs: Any) -> NoReturn:  # type: ignore[override]
        raise EscapedError("code under simulation starts a thread")

    def put_back(self, handles: list[Handle]) -> None:
        """Make callbacks ready that were held back."""
        self._ready.extend(handles)

    # --- futures and tasks -----------------------------------------------------------------------------------------

    def create_future(self) -> SimulatedFuture:
        return SimulatedFuture(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
        **_kwargs: Any,
    ) -> SimulatedTask:
        task = SimulatedTask(coro, loop=self, name=name, context=context)
        task.process = self.current
        task.process.children.append(ref(task))
        return task

    def tasks(self) -> list[SimulatedTask]:
        """Every unfinished task of a living process, in no order."""
        return [task for task in asyncio.all_tasks(self) if isinstance(task, SimulatedTask) and task.process.alive]

    def keep_dead_tasks(self, process: Process) -> None:
        """Hold references to a dead process's tasks: their collection would run clean-up code of the process."""
        for reference in process.children:
            task = reference()
            if task is not None and not task.done():
                self._graveyard.append(task)
        process.children.clear()

    # --- network ---------------------------------------------------------------------------------------------------

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        if self.connector is None or options:
            raise EscapedError(f"a connection to {host}:{port} with {sorted(options)}")
        return await self.connector(protocol_factory, host, port)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        options.pop("backlog", None)
        if self.listener is None or options:
            raise EscapedError(f"a server on {host}:{port} with {sorted(options)}")
        return await self.listener(protocol_factory, host, port)

    # --- running ---------------------------------------------------------------------------------------------------

    def run_until_complete(self, future: Any) -> Any:
        """Run a coroutine of the world to its end. Raises :class:`StuckError` if it cannot end."""
        with _Running(self):
            main = self.world.spawn(future, "main")
            ready, timers, pop, world = self._ready, self._timers, heapq.heappop, self.world
            # A single loop without a call per callback, for speed.
            while not main.done():
                if not ready:
                    self._go_on_to(timers, pop)
                self.steps += 1
                if self.steps > STEPS_MAX:
                    raise StuckError(f"no end after {STEPS_MAX} callbacks; last: {ready[0]._callback}")
                handle = ready.popleft()
                callback, process = handle._callback, handle._process
                if callback is None or not process.alive:
                    continue
                if process._paused:
                    process.hold(handle)
                    continue
                self.current = process
                try:
                    handle._context.run(callback, *handle._arguments)
                except Exception as error:
                    self.call_exception_handler({"message": f"callback {callback!r} failed", "exception": error})
                self.current = world
                del handle, callback  # a kept exception would keep this frame, and the frame would keep the task
                process.steps += 1
                if process.steps == process.die_at_step and process.on_step_death is not None:
                    process.on_step_death()
                if self.halted is not None:
                    raise self.halted
        return main.result()

    def _go_on_to(self, timers: list[tuple[float, int, Handle]], pop: Callable[..., Any]) -> None:
        """Advance the time to the next timer and make every timer that is due ready."""
        if not timers:
            raise StuckError("nothing is left to happen")
        ready = self._ready
        when = timers[0][0]
        self.now = max(self.now, when)
        while timers and timers[0][0] <= when:
            handle = pop(timers)[2]
            ready.append(handle)
            if self.on_due is not None:
                self.on_due(handle._process)

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def get_debug(self) -> bool:
        return False

    def close(self) -> None:
        """Drop everything. Unfinished tasks are closed without a warning."""
        self._closed = True
        self.world.alive = False
        self._ready.clear()
        self._timers.clear()
        left = [*self._graveyard, *asyncio.all_tasks(self)]
        self._graveyard.clear()
        for task in left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            for _ in range(_CLOSINGS_MAX):
                try:
                    if coroutine is not None:
                        coroutine.close()
                    break
                except Exception:
                    continue

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Record the error as a failure of the universe, unless its process is dead."""
        future = context.get("task") or context.get("future")
        process = future.process if isinstance(future, SimulatedTask) else self.current
        if process.alive and not self._closed:
            self.complaints.append((process, context))

    def _timer_handle_cancelled(self, _handle: object) -> None:
        """Required by asyncio's handles. Cancelled handles are skipped when they fall due."""

    def _adopt_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close an asynchronous generator that was dropped before its end, in a task, as asyncio does."""
        if not self._closed and self.current.alive:
            self.call_soon(self.create_task, generator.aclose())


class _Running:
    """Makes the loop the running loop of the interpreter inside the block."""

    def __init__(self, loop: SimulationLoop) -> None:
        self._loop = loop

    def __enter__(self) -> Self:
        self._hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._loop._adopt_generator)
        asyncio._set_running_loop(self._loop)
        self._loop._running = True
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._loop._running = False
        asyncio._set_running_loop(None)
        sys.set_asyncgen_hooks(*self._hooks)
