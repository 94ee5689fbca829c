"""Watches for all drivers. All watchers of one stored value share a *topic*, which loads the value again on request.

A driver reports "this may have changed" (:meth:`WatchHub.changed`) as often as it likes. The topic then loads the value
and wakes its watchers if it differs from the previous one. Requests made during a load cause one more load afterwards,
so that the last change is never missed and a burst of changes costs two loads. The first value of a watcher comes from
a load that began after the watcher joined, so it is never older than the watcher's own earlier writes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from types import TracebackType
from typing import Any, Final, Self

from octavo.metadata.own_tasks import tasks_cancelled, when_cancelled
from octavo.protocol.errors import ClientClosedError, InternalError, MetadataUnavailableError, OctavoError

RETRY_SECONDS: Final = 0.5
"""Pause before a failed load is tried again: short enough that a person does not notice it, long compared with the cost
of a load."""

_NOTHING: Final = object()
"""Means "no value yet"; None is a valid value."""

type Load[T] = Callable[[T | None], Awaitable[T]]
"""Reads the watched value. Its argument is the value it returned before (None at first); it may return that same object
when nothing has changed, which saves decoding."""


def _as_it_is(value: Any) -> Any:
    return value


class _Topic:
    """One watched value and the task that loads it. Used only by :class:`WatchHub` and its watches."""

    def __init__(self, key: Hashable, load: Load[Any], retry_seconds: float) -> None:
        self.key = key
        self._retry_seconds = retry_seconds
        self.watchers = 0
        self.value: Any = _NOTHING
        self.error: OctavoError | None = None
        self.requested = 0
        """Number of loads requested so far."""
        self.loaded = 0
        """Number of requests that had been made when the load of the current value began."""
        self._load = load
        self._wanted = asyncio.Event()
        self._changed: asyncio.Future[None] | None = None
        self.task = when_cancelled(asyncio.create_task(self._run(), name=f"watch {key}"), self._cancelled)

    def request(self) -> int:
        """Request a load; returns the number that :attr:`loaded` reaches once the request has been served."""
        self.requested += 1
        self._wanted.set()
        return self.requested

    async def wait_changed(self) -> None:
        """Wait for the end of the next load, or for an error."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        # Shielded: a cancelled watcher must not cancel the wait of the other watchers.
        await asyncio.shield(self._changed)

    def wake(self) -> None:
        """Wake all watchers."""
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set_result(None)

    def _cancelled(self) -> None:
        """By the hub, which has no watchers left or has told them; or by the program."""
        if self.error is None:
            self.error = tasks_cancelled(f"watching {self.key}")
            self.wake()

    async def _run(self) -> None:
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                serving = self.requested
                try:
                    value = await self._load(None if self.value is _NOTHING else self.value)
                except MetadataUnavailableError:
                    await asyncio.sleep(self._retry_seconds)
                    self._wanted.set()
                    continue
                self.value, self.loaded = value, serving
                self.wake()
        except OctavoError as error:
            # The stored value cannot be understood, or the store was closed: every watcher raises it.
            self.error = error
            self.wake()
        except Exception as error:
            self.error = InternalError(f"watching {self.key} failed: {error!r}")
            self.error.__cause__ = error
            self.wake()


class HubWatch[T]:
    """A :class:`octavo.metadata.store.values.Watch` on a hub's topic."""

    def __init__(self, hub: "WatchHub", key: Hashable, load: Load[Any], accept: Callable[[Any], T]) -> None:
        self._hub = hub
        self._accept = accept
        self._key = key
        self._load = load
        self._topic: _Topic | None = None
        self._needed = 0
        self._seen: object = _NOTHING

    async def __aenter__(self) -> Self:
        if self._topic is not None:
            raise RuntimeError("a watch is entered once")
        self._topic = self._hub.join(self._key, self._load)
        self._needed = self._topic.request()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._topic is not None:
            await self._hub.leave(self._topic)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        topic = self._topic
        if topic is None:
            raise RuntimeError("enter the watch first: async with store.watch_...() as watch")
        while True:
            if topic.error is not None:
                # A fresh instance: one error object raised in many tasks would collect all their tracebacks.
                raise type(topic.error)(topic.error.message) from topic.error
            if topic.loaded >= self._needed and (self._seen is _NOTHING or topic.value != self._seen):
                self._seen = topic.value
                return self._accept(topic.value)
            await topic.wait_changed()


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

    def watch[T](self, key: Hashable, load: Load[T]) -> HubWatch[T]:
        """A watch on the value with this key, which ``load`` reads. The same key must always come with the same
        load."""
        return self.watch_as(key, load, _as_it_is)

    def watch_as[V, T](self, key: Hashable, load: Load[V], accept: Callable[[V], T]) -> HubWatch[T]:
        """As :meth:`watch`, and the watcher gets what ``accept`` makes of a value. If it raises, only this watcher
        learns of it."""
        return HubWatch(self, key, load, accept)

    def changed(self, which: Callable[[Hashable], bool]) -> None:
        """Report that the values whose keys ``which`` accepts may have changed."""
        for key, topic in self._topics.items():
            if which(key):
                topic.request()

    def changed_one(self, key: Hashable) -> None:
        """Report that the value with this key may have changed."""
        topic = self._topics.get(key)
        if topic is not None:
            topic.request()

    async def close(self) -> None:
        """End every watch with :class:`ClientClosedError`."""
        self._closed = True
        topics = list(self._topics.values())
        self._topics.clear()
        for topic in topics:
            topic.error = ClientClosedError("the metadata store has been closed")
            topic.wake()
        await _end_tasks(topics)

    def join(self, key: Hashable, load: Load[Any]) -> _Topic:
        """Add a watcher of ``key``."""
        if self._closed:
            raise ClientClosedError("the metadata store has been closed")
        topic = self._topics.get(key)
        if topic is None or topic.error is not None:
            if not self._topics:
                self._on_watching(True)
            self._on_topic(key, True)
            topic = self._topics[key] = _Topic(key, load, self._retry_seconds)
        topic.watchers += 1
        return topic

    async def leave(self, topic: _Topic) -> None:
        """Remove a watcher; the last one ends the topic."""
        topic.watchers -= 1
        if topic.watchers == 0:
            if self._topics.get(topic.key) is topic:
                del self._topics[topic.key]
                self._on_topic(topic.key, False)
                if not self._topics:
                    self._on_watching(False)
            await _end_tasks([topic])


async def _end_tasks(topics: list[_Topic]) -> None:
    for topic in topics:
        topic.task.cancel()
    # Collect outcomes: a cancelled topic must not look like a cancellation of this task.
    await asyncio.gather(*(topic.task for topic in topics), return_exceptions=True)
