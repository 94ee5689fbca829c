"""Watches for drivers: any number of watchers of a thing share one *topic*, which reads the thing again when told to.

A driver says "this may have changed" (:meth:`WatchHub.changed`) as often as it likes; the topic then loads the value,
and wakes its watchers if it differs from the one before. Requests made during a load cause one more load afterwards, so
the last change is never missed and a burst of changes costs two loads. A watcher's first value comes from a load that
began after it joined: it never sees something older than its own earlier writes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from types import TracebackType
from typing import Any, Final, Self

from octavo.protocol.errors import ClientClosedError, InternalError, MetadataUnavailableError, OctavoError

RETRY_SECONDS: Final = 0.5
"""Pause before a load that failed is tried again: short against a person's patience, long against the cost of a
load."""

_NOTHING: Final = object()
"""Stands for "no value yet", since None is a value."""

type Load[T] = Callable[[T | None], Awaitable[T]]
"""Reads the thing. It is given the value it returned before (None at first) and may return that very object when
nothing has changed, which saves decoding."""


class _Topic:
    """One watched thing: its latest value, and the task that loads it. Only :class:`WatchHub` and watches touch it."""

    def __init__(self, key: Hashable, load: Load[Any]) -> None:
        self.key = key
        self.watchers = 0
        self.value: Any = _NOTHING
        self.error: OctavoError | None = None
        self.requested = 0
        """Loads asked for."""
        self.loaded = 0
        """The value is from a load that began after so many had been asked for."""
        self._load = load
        self._wanted = asyncio.Event()
        self._changed: asyncio.Future[None] | None = None
        self.task = asyncio.create_task(self._run(), name=f"watch {key}")

    def request(self) -> int:
        """Ask for a load; the number that :attr:`loaded` must reach for the caller to be served."""
        self.requested += 1
        self._wanted.set()
        return self.requested

    async def wait_changed(self) -> None:
        """Wait for the end of the next load that brought something new (a value, an error, or an awaited number)."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        # Shielded: a cancelled watcher must not cancel what the others wait for.
        await asyncio.shield(self._changed)

    def wake(self) -> None:
        """Let every watcher look again."""
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set_result(None)

    async def _run(self) -> None:
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                serving = self.requested
                try:
                    value = await self._load(None if self.value is _NOTHING else self.value)
                except MetadataUnavailableError:
                    await asyncio.sleep(RETRY_SECONDS)
                    self._wanted.set()
                    continue
                self.value, self.loaded = value, serving
                self.wake()
        except OctavoError as error:
            # What is stored cannot be understood, or the store was closed: every watcher is told.
            self.error = error
            self.wake()
        except Exception as error:
            self.error = InternalError(f"watching {self.key} failed: {error!r}")
            self.error.__cause__ = error
            self.wake()


class HubWatch[T]:
    """A :class:`octavo.metadata.store.Watch` on a hub's topic."""

    def __init__(self, hub: "WatchHub", key: Hashable, load: Load[T]) -> None:
        self._hub = hub
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
                # A fresh instance: one error object raised in many tasks would gather all their tracebacks.
                raise type(topic.error)(topic.error.message) from topic.error
            if topic.loaded >= self._needed and (self._seen is _NOTHING or topic.value != self._seen):
                self._seen = topic.value
                value: T = topic.value
                return value
            await topic.wait_changed()


class WatchHub:
    """All watches of one store handle. ``on_watching`` hears whether anything is being watched, when that changes;
    ``on_topic`` hears it of each thing, before it is loaded for the first time."""

    def __init__(
        self,
        on_watching: Callable[[bool], None],
        on_topic: Callable[[Hashable, bool], None] = lambda _key, _active: None,
    ) -> None:
        self._on_watching = on_watching
        self._on_topic = on_topic
        self._topics: dict[Hashable, _Topic] = {}
        self._closed = False

    def watch[T](self, key: Hashable, load: Load[T]) -> HubWatch[T]:
        """A watch on the thing called ``key``, which ``load`` reads. The same key must always come with the same
        load."""
        return HubWatch(self, key, load)

    def changed(self, which: Callable[[Hashable], bool]) -> None:
        """The things whose key ``which`` accepts may have changed."""
        for key, topic in self._topics.items():
            if which(key):
                topic.request()

    def changed_one(self, key: Hashable) -> None:
        """The thing called ``key`` may have changed."""
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
        """A further watcher of ``key``."""
        if self._closed:
            raise ClientClosedError("the metadata store has been closed")
        topic = self._topics.get(key)
        if topic is None or topic.error is not None:
            if not self._topics:
                self._on_watching(True)
            self._on_topic(key, True)
            topic = self._topics[key] = _Topic(key, load)
        topic.watchers += 1
        return topic

    async def leave(self, topic: _Topic) -> None:
        """A watcher fewer; the last one ends the topic."""
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
    # Gathered with their outcomes: a task's cancellation is not ours.
    await asyncio.gather(*(topic.task for topic in topics), return_exceptions=True)
