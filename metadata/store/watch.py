"""Watches for all drivers. All watchers of one stored value share a *topic*; all topics of a handle share one task.

A driver reports "this may have changed" (:meth:`WatchHub.changed`) as often as it likes. The hub then loads the value
and wakes the topic's watchers if it differs from the previous one. Requests made during a load cause one more load
afterwards, so that the last change is never missed and a burst of changes costs two loads. The first value of a watcher
comes from a load that began after the watcher joined, so it is never older than the watcher's own earlier writes.

A topic in which nothing happens is an object in memory: it has no task, no timer and no request of its own. The hub's
task starts the loads that are wanted, at most :data:`LOADS_MAX` at a time; a load has a task only while it lasts. If
the program cancels the hub's task, every watch ends with an error (rule H2).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from types import TracebackType
from typing import Any, Final, Self

from octavo.metadata.own_tasks import tasks_cancelled, when_cancelled
from octavo.protocol.errors import ClientClosedError, InternalError, MetadataUnavailableError, OctavoError

RETRY_SECONDS: Final = 0.5
"""Pause before failed loads are tried again: short enough that a person does not notice it, long compared with the cost
of a load."""

LOADS_MAX: Final = 256
"""Loads at a time, for all topics of a hub. After a connection was lost all topics are loaded again: 256 are enough to
keep a store busy, and leave room for the requests of the program."""

_NOTHING: Final = object()
"""Means "no value yet"; None is a valid value."""

type Load[T] = Callable[[T | None], Awaitable[T]]
"""Reads the watched value. Its argument is the value it returned before (None at first); it may return that same object
when nothing has changed, which saves decoding."""


def _as_it_is(value: Any) -> Any:
    return value


class _Topic:
    """One watched value. Used only by :class:`WatchHub` and its watches."""

    __slots__ = ("error", "is_queued", "key", "load", "loaded", "loading", "requested", "value", "watches")

    def __init__(self, key: Hashable, load: Load[Any]) -> None:
        self.key = key
        self.load = load
        self.watches: dict[HubWatch[Any], None] = {}
        self.value: Any = _NOTHING
        self.error: OctavoError | None = None
        self.requested = 0
        """Number of loads requested so far."""
        self.loaded = 0
        """Number of requests that had been made when the load of the current value began."""
        self.loading: asyncio.Task[Any] | None = None
        self.is_queued = False
        """Whether it waits for its load to begin."""

    def wake(self) -> None:
        """Wake all watchers."""
        for watch in self.watches:
            watch.wake()

    def fail(self, error: OctavoError) -> None:
        """Every watcher raises ``error``, unless an earlier one."""
        if self.error is None:
            self.error = error
            self.wake()


class HubWatch[T]:
    """A :class:`octavo.metadata.store.values.Watch` on a hub's topic."""

    __slots__ = ("_accept", "_hub", "_key", "_load", "_needed", "_on_end", "_on_value", "_seen", "_topic", "_woken")

    def __init__(self, hub: "WatchHub", key: Hashable, load: Load[Any], accept: Callable[[Any], T]) -> None:
        self._hub = hub
        self._accept = accept
        self._key = key
        self._load = load
        self._topic: _Topic | None = None
        self._needed = 0
        self._seen: object = _NOTHING
        self._woken: asyncio.Future[None] | None = None
        """What the watcher waits for, while it waits."""
        self._on_value: Callable[[T], object] | None = None
        """What is called with each value, of a watch that was begun."""
        self._on_end: Callable[[OctavoError], object] | None = None

    async def __aenter__(self) -> Self:
        if self._topic is not None:
            raise RuntimeError("a watch is entered once")
        self._topic = self._hub.join(self, self._key, self._load)
        self._needed = self._hub.request(self._topic)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._topic is not None:
            await self._hub.leave(self, self._topic)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        topic = self._topic
        if topic is None:
            raise RuntimeError("enter the watch first: async with store.watch_...() as watch")
        while True:
            if self._has_news(topic):
                self._seen = topic.value
                return self._accept(topic.value)
            self._woken = asyncio.get_running_loop().create_future()
            try:
                await self._woken
            finally:
                self._woken = None

    def begin(self, on_value: Callable[[T], object], on_end: Callable[[OctavoError], object]) -> Self:
        """As :meth:`octavo.metadata.store.values.Watch.begin`."""
        if self._topic is not None or self._on_value is not None:
            raise RuntimeError("a watch is begun once")
        self._on_value, self._on_end = on_value, on_end
        try:
            self._topic = self._hub.join(self, self._key, self._load)
        except ClientClosedError as error:
            asyncio.get_running_loop().call_soon(self._end, error)
        else:
            self._needed = self._hub.request(self._topic)
        return self

    def stop(self) -> None:
        """As :meth:`octavo.metadata.store.values.Watch.stop`."""
        self._on_value = self._on_end = None
        topic, self._topic = self._topic, None
        if topic is not None:
            self._hub.leave_soon(self, topic)

    def wake(self) -> None:
        """Let the watcher look at its topic."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)
        elif self._on_value is not None:
            # Not in this call: the hub is in the middle of telling all watchers.
            asyncio.get_running_loop().call_soon(self._tell)

    def _has_news(self, topic: _Topic) -> bool:
        """Whether there is a value that the watcher has not had. Raises what the topic failed with."""
        if topic.error is not None:
            # A fresh instance: one error object raised in many tasks would collect all their tracebacks.
            raise type(topic.error)(topic.error.message) from topic.error
        return topic.loaded >= self._needed and (self._seen is _NOTHING or topic.value != self._seen)

    def _tell(self) -> None:
        topic, on_value = self._topic, self._on_value
        if topic is None or on_value is None:
            return  # it has been stopped meanwhile
        try:
            if self._has_news(topic):
                self._seen = topic.value
                on_value(self._accept(topic.value))
        except OctavoError as error:
            self._end(error)
        except Exception as error:
            defect = InternalError(f"watching {self._key} failed: {error!r}")
            defect.__cause__ = error
            self._end(defect)

    def _end(self, error: OctavoError) -> None:
        on_end = self._on_end
        self.stop()
        if on_end is not None:
            on_end(error)


class WatchHub:
    """All watches of one store handle. ``on_watching`` is called when the first watch begins and when the last one
    ends. ``on_topic`` is called for each value before its first load and after its last watch."""

    def __init__(
        self,
        on_watching: Callable[[bool], None],
        on_topic: Callable[[Hashable, bool], None] = lambda _key, _active: None,
        *,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._retry_seconds = retry_seconds
        self._on_watching = on_watching
        self._on_topic = on_topic
        self._topics: dict[Hashable, _Topic] = {}
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        """Starts the loads; there is one while anything is watched."""
        self._queue: deque[_Topic] = deque()
        """Topics whose loads are to begin. Those that failed meanwhile are passed over."""
        self._failed: list[_Topic] = []
        """Topics that the store did not answer; they are loaded again together."""
        self._retry: asyncio.TimerHandle | None = None
        self._loads = 0
        """Loads under way."""
        self._may_load = asyncio.Event()
        """Set when a load can begin: one is wanted, and there are not too many."""
        self._ending: set[asyncio.Task[Any]] = set()
        """Tasks that were cancelled because nothing watches any more, and have not ended."""

    def watch[T](self, key: Hashable, load: Load[T]) -> HubWatch[T]:
        """A watch on the value with this key, which ``load`` reads. The same key must always come with the same
        load."""
        return self.watch_as(key, load, _as_it_is)

    def watch_as[V, T](self, key: Hashable, load: Load[V], accept: Callable[[V], T]) -> HubWatch[T]:
        """As :meth:`watch`, and the watcher gets what ``accept`` makes of a value. If it raises, only this watcher
        learns of it."""
        return HubWatch(self, key, load, accept)

    @property
    def watched(self) -> Iterable[Hashable]:
        """The keys of all values that are watched."""
        return self._topics.keys()

    @property
    def requests(self) -> dict[Hashable, int]:
        """How often each of the watched values was to be loaded, by its key."""
        return {key: topic.requested for key, topic in self._topics.items()}

    def changed(self, which: Callable[[Hashable], bool]) -> None:
        """Report that the values whose keys ``which`` accepts may have changed."""
        for key, topic in self._topics.items():
            if which(key):
                self.request(topic)

    def changed_one(self, key: Hashable) -> None:
        """Report that the value with this key may have changed."""
        topic = self._topics.get(key)
        if topic is not None:
            self.request(topic)

    async def close(self) -> None:
        """End every watch with :class:`ClientClosedError`."""
        self._closed = True
        topics = list(self._topics.values())
        self._topics.clear()
        for topic in topics:
            topic.fail(ClientClosedError("the metadata store has been closed"))
        await _end([topic.loading for topic in topics] + [self._stop(), *self._ending])

    # --- for watches -----------------------------------------------------------------------------------------------

    def join(self, watch: HubWatch[Any], key: Hashable, load: Load[Any]) -> _Topic:
        """Add a watcher of ``key``."""
        if self._closed:
            raise ClientClosedError("the metadata store has been closed")
        topic = self._topics.get(key)
        if topic is None or topic.error is not None:
            if not self._topics:
                self._on_watching(True)
            self._on_topic(key, True)
            topic = self._topics[key] = _Topic(key, load)
            if self._task is None:
                task = asyncio.create_task(self._run(), name="metadata watches")
                self._task = when_cancelled(task, lambda: self._cancelled(task))
        topic.watches[watch] = None
        return topic

    def request(self, topic: _Topic) -> int:
        """Request a load; returns the number that the topic's ``loaded`` reaches once the request has been served."""
        topic.requested += 1
        if topic.loading is None and not topic.is_queued and topic.error is None:
            topic.is_queued = True
            self._queue.append(topic)
            self._may_load.set()
        return topic.requested

    async def leave(self, watch: HubWatch[Any], topic: _Topic) -> None:
        """Remove a watcher; the last one ends the topic."""
        await _end(self._leave(watch, topic))

    def leave_soon(self, watch: HubWatch[Any], topic: _Topic) -> None:
        """As :meth:`leave`, without waiting until what the topic did has ended."""
        for task in self._leave(watch, topic):
            if task is not None:
                task.cancel()
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)

    def _leave(self, watch: HubWatch[Any], topic: _Topic) -> list[asyncio.Task[Any] | None]:
        """The tasks that are to be cancelled."""
        topic.watches.pop(watch, None)
        if topic.watches:
            return []
        ending = [topic.loading]
        topic.error = topic.error or ClientClosedError("nothing watches it any more")
        if self._topics.get(topic.key) is topic:
            del self._topics[topic.key]
            self._on_topic(topic.key, False)
            if not self._topics:
                self._on_watching(False)
                ending.append(self._stop())
        return ending

    # --- loads -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._may_load.wait()
            self._may_load.clear()
            while self._queue and self._loads < LOADS_MAX:
                topic = self._queue.popleft()
                topic.is_queued = False
                if topic.error is None:
                    self._begin(topic)

    def _begin(self, topic: _Topic) -> None:
        serving = topic.requested
        previous = None if topic.value is _NOTHING else topic.value
        self._loads += 1
        topic.loading = asyncio.create_task(_load(topic, previous), name=f"load {topic.key}")
        topic.loading.add_done_callback(lambda load: self._loaded(topic, serving, load))

    def _loaded(self, topic: _Topic, serving: int, load: asyncio.Task[Any]) -> None:
        topic.loading = None
        self._loads -= 1
        self._may_load.set()
        if load.cancelled():
            # By the hub, which has no watchers left or has told them; or by the program.
            topic.fail(tasks_cancelled(f"watching {topic.key}"))
            return
        error = load.exception()
        if error is None:
            topic.value, topic.loaded = load.result(), serving
            topic.wake()
            if topic.requested > serving and topic.error is None:
                topic.is_queued = True
                self._queue.append(topic)
        elif isinstance(error, MetadataUnavailableError):
            self._load_later(topic)
        elif isinstance(error, OctavoError):
            # The stored value cannot be understood, or the store was closed: every watcher raises it.
            topic.fail(error)
        else:
            defect = InternalError(f"watching {topic.key} failed: {error!r}")
            defect.__cause__ = error
            topic.fail(defect)

    def _load_later(self, topic: _Topic) -> None:
        topic.is_queued = True
        self._failed.append(topic)
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(self._retry_seconds, self._load_again)

    def _load_again(self) -> None:
        self._retry = None
        self._queue.extend(self._failed)
        self._failed.clear()
        self._may_load.set()

    def _stop(self) -> asyncio.Task[None] | None:
        """Nothing is watched any more. The task, which is about to end."""
        task, self._task = self._task, None
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._failed.clear()
        self._queue.clear()
        return task

    def _cancelled(self, task: asyncio.Task[None]) -> None:
        """By the hub, or by the program."""
        if self._task is task:
            self._stop()
            for topic in self._topics.values():
                topic.fail(tasks_cancelled(f"watching {topic.key}"))


async def _load(topic: _Topic, previous: Any) -> Any:
    return await topic.load(previous)


async def _end(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    ending = [task for task in tasks if task is not None]
    for task in ending:
        task.cancel()
    # Collect outcomes: a cancelled task must not look like a cancellation of this one.
    await asyncio.gather(*ending, return_exceptions=True)
