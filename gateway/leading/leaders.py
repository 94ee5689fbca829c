"""The partitions that this gateway leads: opened when they are first asked for, and given back when it ends.

A partition is led from the first request on that needs its leader, if this gateway is the choice for it (rule K9). If
the lead is lost, the next request begins it again. When another gateway becomes the choice, this one gives the
partition to it; until it has, it leads on, and the other one waits for the lock of the log.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from typing import Final, NamedTuple

from octavo.client.client import Client
from octavo.client.log.documents.reading import read_document
from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.leading.anchors import Anchors
from octavo.gateway.leading.beginning import Beginner
from octavo.gateway.leading.gateways import GatewayAddress, Gateways
from octavo.gateway.leading.led_log import leading
from octavo.gateway.leading.openings import Openings
from octavo.gateway.leading.partition import LedPartition
from octavo.gateway.leading.scans import Scans
from octavo.gateway.leading.snapshots import Snapshots
from octavo.gateway.topics.document import Topic
from octavo.metadata import MetadataStore
from octavo.protocol.errors import OctavoError

OPENING_SECONDS_MAX: Final = 5.0
"""A request waits no longer for the lead of a partition; the gateway goes on with it. Clients try again."""

HANDED_OVER_MAX: Final = 4
"""Partitions that are given to other gateways at a time: those behind them are led on meanwhile."""


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
        gateways: Gateways,
        highest_ids_stop: Callable[[], Awaitable[int]],
        password: bytes = b"",
    ) -> None:
        """``name`` shows people which gateway leads. ``highest_ids_stop``: as that of
        :class:`~octavo.gateway.leading.beginning.Beginner`. ``password``: of the logs of private topics."""
        self._client = client
        self._store = store
        self._name = name
        self._password = password
        self._clock_ms = clock_ms
        self._gateways = gateways
        self._highest_ids_stop = highest_ids_stop
        self._led: dict[PartitionKey, LedPartition] = {}
        self._openings = Openings[PartitionKey, LedPartition]()
        self._tasks: set[asyncio.Task[None]] = set()
        self._scans = Scans()
        self._handing_over = asyncio.Semaphore(HANDED_OVER_MAX)
        self._closed = False
        self.lost = 0
        """Leads that ended before they were given up."""

    def __len__(self) -> int:
        """Partitions that are led."""
        return len(self._led)

    @property
    def led(self) -> Collection[LedPartition]:
        """The partitions that are led."""
        return self._led.values()

    @property
    def opening(self) -> int:
        """Partitions whose lead is waited for."""
        return len(self._openings)

    def leader_of(self, topic: Topic, partition: int) -> GatewayAddress | None:
        """The gateway at which clients find the leader; None: no gateway takes part."""
        own = self._gateways.present.get(self._gateways.node_id)
        if own is not None and self.find(topic, partition) is not None:
            return own
        return self._gateways.choice(topic.log_name(partition))

    def find(self, topic: Topic, partition: int) -> LedPartition | None:
        """The partition, if this gateway leads it now."""
        return self._leading(PartitionKey(topic.topic_id, partition))

    def _leading(self, key: PartitionKey) -> LedPartition | None:
        found = self._led.get(key)
        return found if found is not None and found.leads() else None

    async def get(self, topic: Topic, partition: int) -> LedPartition:
        """The partition, led by this gateway.

        Raises:
            RefusedError: It cannot be led now, or another gateway leads it; the client is to look for the leader.
        """
        key = PartitionKey(topic.topic_id, partition)
        found = self._leading(key)
        if found is not None:
            return found
        if self._closed:
            raise RefusedError(Code.NOT_LEADER_OR_FOLLOWER, "the gateway ends")
        self._check_choice(topic.log_name(partition))
        try:
            opened = await self._openings.get(key, lambda: self._open(topic, key), OPENING_SECONDS_MAX)
        except OctavoError as error:
            text = f"partition {partition} of {topic.name} cannot be led now: {error}"
            raise RefusedError(Code.LEADER_NOT_AVAILABLE, text) from error
        if opened is None:
            text = f"partition {partition} of {topic.name} is not led yet"
            raise RefusedError(Code.LEADER_NOT_AVAILABLE, text)
        return opened

    async def get_all(self, partitions: Iterable[tuple[Topic, int]]) -> list[LedPartition | RefusedError]:
        """Several partitions, in order; for each that cannot be led, the reason. Those that are led cost no task."""

        async def attempt(topic: Topic, partition: int) -> LedPartition | RefusedError:
            try:
                return await self.get(topic, partition)
            except RefusedError as error:
                return error

        wanted = list(partitions)
        led: list[LedPartition | RefusedError | None] = [self.find(*one) for one in wanted]
        if None in led:
            missing = [one for one, found in zip(wanted, led, strict=True) if found is None]
            opened = iter(await asyncio.gather(*(attempt(*one) for one in missing)))
            led = [next(opened) if found is None else found for found in led]
        return [found for found in led if found is not None]

    def _check_choice(self, log_name: str) -> None:
        if not self._gateways.is_own(log_name):
            raise RefusedError(Code.NOT_LEADER_OR_FOLLOWER, f"log {log_name}: another gateway leads it")

    async def _open(self, topic: Topic, key: PartitionKey) -> LedPartition:
        password = topic.password_of_logs(self._password)
        async with leading(self._client, topic.log_name(key.partition), self._name, password) as (log, writer):
            anchors = Anchors(self._store, log.log_id)
            beginner = Beginner(log, anchors, Snapshots(self._store, log.log_id), self._highest_ids_stop)
            beginning = await beginner.begin(writer.end, self._clock_ms())
        opened = LedPartition(
            log,
            writer,
            beginning,
            anchors,
            self._scans,
            is_current=lambda: self._gateways.is_current,
            on_lost=lambda lost: self._forget(key, lost),
            on_snapshot_due=lambda due: self._spawn(self._store_snapshot(due)),
        )
        if self._closed or not self._gateways.is_own(log.name):
            # It waited for the lead, and another gateway has become the choice meanwhile.
            await opened.close()
            raise RefusedError(Code.NOT_LEADER_OR_FOLLOWER, f"log {log.name}: another gateway leads it")
        self._led[key] = opened
        return opened

    def _forget(self, key: PartitionKey, lost: LedPartition) -> None:
        if self._led.get(key) is lost:
            self.lost += 1
            del self._led[key]
            self._spawn(self._end(lost))

    async def _end(self, lost: LedPartition) -> None:
        with contextlib.suppress(OctavoError):
            await lost.close()

    async def _store_snapshot(self, led: LedPartition) -> None:
        """Nothing depends on it: without it, the next leader reads more of the log."""
        with contextlib.suppress(OctavoError):
            await Snapshots(self._store, led.log.log_id).store(led.log, led.appends)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def give_up_others(self) -> None:
        """Begin to give the partitions whose choice is another gateway to that one."""
        for key, led in self._led.items():
            if not self._gateways.is_own(led.log.name):
                self._spawn(self._give_up(key))

    async def _give_up(self, key: PartitionKey) -> None:
        async with self._handing_over:
            led = self._led.get(key)
            if led is not None and (self._closed or not self._gateways.is_own(led.log.name)):
                del self._led[key]
                await self._store_snapshot(led)
                await self._end(led)

    def drop(self, topic: Topic) -> None:
        """Begin to give up the partitions of a topic that another gateway deletes."""
        for key in [key for key in self._led if key.topic_id == topic.topic_id]:
            self._spawn(self._end(self._led.pop(key)))

    async def delete(self, topic: Topic) -> None:
        """Give up the partitions of a topic that is being deleted, with their documents."""
        for partition in range(topic.partitions):
            key = PartitionKey(topic.topic_id, partition)
            await self._openings.give_up(key)
            led = self._led.pop(key, None)
            if led is not None:
                await led.close()
        await delete_documents(self._store, topic)

    async def close(self) -> None:
        """Give all partitions back. What was handed over is waited for."""
        self._closed = True
        await self._openings.give_up_all()
        await asyncio.gather(*(self._give_up(key) for key in self._led))
        if self._tasks:
            await asyncio.wait(self._tasks)


async def delete_documents(store: MetadataStore, topic: Topic) -> None:
    """Delete what the metadata store holds of the partitions of a topic that is being deleted, but for their logs."""
    for partition in range(topic.partitions):
        with contextlib.suppress(OctavoError):
            log_id = (await read_document(store, topic.log_name(partition))).value.log_id
            await Snapshots(store, log_id).delete_all()
            await Anchors(store, log_id).delete()
