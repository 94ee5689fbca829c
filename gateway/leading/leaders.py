"""The partitions that this gateway leads: opened when they are first asked for, and given back when it ends.

A partition is led from the first request on that needs its leader. If the lead is lost, the next request begins it
again.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from octavo.client.client import Client
from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.leading.beginning import Beginner
from octavo.gateway.leading.partition import LedPartition
from octavo.gateway.leading.snapshots import Snapshots
from octavo.gateway.records.names import anchor_document
from octavo.gateway.topics.document import Topic
from octavo.metadata import MetadataStore
from octavo.protocol.errors import OctavoError

OPENING_SECONDS_MAX: Final = 5.0
"""A request waits no longer for the lead of a partition; the gateway goes on with it. Clients try again."""


class PartitionKey(NamedTuple):
    """A partition of a topic that may be deleted and made again."""

    topic_id: str
    partition: int


class Leaders:
    """See the module."""

    def __init__(
        self,
        client: Client,
        store: MetadataStore,
        *,
        name: str,
        clock_ms: Callable[[], int],
        is_current: Callable[[], bool],
        highest_ids_stop: Callable[[], Awaitable[int]],
    ) -> None:
        """``name`` shows people which gateway leads. ``is_current``: as that of
        :class:`~octavo.gateway.leading.partition.LedPartition`. ``highest_ids_stop``: as that of
        :class:`~octavo.gateway.leading.beginning.Beginner`."""
        self._client = client
        self._store = store
        self._name = name
        self._clock_ms = clock_ms
        self._is_current = is_current
        self._highest_ids_stop = highest_ids_stop
        self._led: dict[PartitionKey, LedPartition] = {}
        self._opening: dict[PartitionKey, asyncio.Task[LedPartition]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        """Partitions that are led."""
        return len(self._led)

    async def get(self, topic: Topic, partition: int) -> LedPartition:
        """The partition, led by this gateway.

        Raises:
            RefusedError: It cannot be led now; the client is to try again.
        """
        key = PartitionKey(topic.topic_id, partition)
        led = self._led.get(key)
        if led is not None:
            with contextlib.suppress(RefusedError):
                led.check_leads()
                return led
        if self._closed:
            raise RefusedError(Code.NOT_LEADER_OR_FOLLOWER, "the gateway ends")
        opening = self._opening.get(key)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._open(topic, key))
            self._opening[key] = opening
            opening.add_done_callback(lambda _done: self._opening.pop(key, None))
        try:
            async with asyncio.timeout(OPENING_SECONDS_MAX):
                return await asyncio.shield(opening)
        except TimeoutError as error:
            text = f"partition {partition} of {topic.name} is not led yet"
            raise RefusedError(Code.LEADER_NOT_AVAILABLE, text) from error
        except OctavoError as error:
            text = f"partition {partition} of {topic.name} cannot be led now: {error}"
            raise RefusedError(Code.LEADER_NOT_AVAILABLE, text) from error

    async def get_all(self, partitions: Iterable[tuple[Topic, int]]) -> list[LedPartition | RefusedError]:
        """Several partitions, in order; for each that cannot be led, the reason."""

        async def attempt(topic: Topic, partition: int) -> LedPartition | RefusedError:
            try:
                return await self.get(topic, partition)
            except RefusedError as error:
                return error

        return await asyncio.gather(*(attempt(*one) for one in partitions))

    async def _open(self, topic: Topic, key: PartitionKey) -> LedPartition:
        log = await self._client.open_log(topic.log_name(key.partition))
        try:
            writer = await log.lead(self._name)
            try:
                snapshots = Snapshots(self._store, log.log_id)
                beginner = Beginner(log, self._store, snapshots, self._highest_ids_stop)
                beginning = await beginner.begin(writer.end, self._clock_ms())
            except BaseException:
                with contextlib.suppress(OctavoError):
                    await writer.close()
                raise
        except BaseException:
            await log.close()
            raise
        led = LedPartition(
            log,
            writer,
            beginning,
            clock_ms=self._clock_ms,
            is_current=self._is_current,
            on_lost=lambda lost: self._forget(key, lost),
            on_snapshot_due=lambda due: self._spawn(self._store_snapshot(due)),
        )
        self._led[key] = led
        return led

    def _forget(self, key: PartitionKey, lost: LedPartition) -> None:
        if self._led.get(key) is lost:
            del self._led[key]
            self._spawn(self._end(lost))

    async def _end(self, lost: LedPartition) -> None:
        await lost.close()

    async def _store_snapshot(self, led: LedPartition) -> None:
        """Nothing depends on it: without it, the next leader reads more of the log."""
        with contextlib.suppress(OctavoError):
            await Snapshots(self._store, led.log.log_id).store(led.log, led.appends)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def delete(self, topic: Topic) -> None:
        """Give up the partitions of a topic that is being deleted, with their documents."""
        for partition in range(topic.partitions):
            key = PartitionKey(topic.topic_id, partition)
            if (opening := self._opening.get(key)) is not None:
                await asyncio.wait([opening])
            led = self._led.pop(key, None)
            if led is not None:
                await led.close()
            with contextlib.suppress(OctavoError):
                log = await self._client.open_log(topic.log_name(partition))
                log_id = log.log_id
                await log.close()
                await Snapshots(self._store, log_id).delete_all()
                await self._store.delete_document(anchor_document(log_id))

    async def close(self) -> None:
        """Give all partitions back. What was handed over is waited for."""
        self._closed = True
        if self._opening:
            await asyncio.wait(self._opening.values())
        led, self._led = list(self._led.values()), {}
        for one in led:
            await self._store_snapshot(one)
            await one.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
