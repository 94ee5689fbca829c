"""The topics of a cluster, for the one gateway that changes them.

A topic is made document first and logs after, and deleted the other way round. A gateway that begins finishes what an
earlier one has left (rule K12).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

from octavo.client.client import Client
from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.topics.document import (
    OWN_PREFIX,
    PARTITIONS_MAX,
    TOPICS_PREFIX,
    Topic,
    TopicState,
    bytes_max_of,
    check_topic_name,
    decode_topic,
    topic_document,
)
from octavo.metadata import MetadataStore
from octavo.metadata.store.values import Version
from octavo.protocol.errors import LogExistsError, NoSuchLogError

TOPICS_MAX: Final = 1000
"""Of a cluster: the gateway holds all of them in memory, and answers with all of them."""

ALL_PARTITIONS_MAX: Final = 10_000
"""Of all topics: each one in use is a log that the gateway leads."""


class Catalogue:
    """See the module. Used by the gateway that holds the lock of the cluster's gateways."""

    def __init__(
        self,
        client: Client,
        store: MetadataStore,
        rng: random.Random,
        *,
        write_quorum: int,
        ack_quorum: int,
        partitions: int,
        before_deletion: Callable[[Topic], Awaitable[None]],
    ) -> None:
        """Topics have these quorums and this number of partitions unless a request says otherwise.
        ``before_deletion`` gives up the lead of the topic's partitions."""
        self._client = client
        self._store = store
        self._rng = rng
        self.write_quorum = write_quorum
        self.ack_quorum = ack_quorum
        self._partitions = partitions
        self._before_deletion = before_deletion
        self._topics: dict[str, Topic] = {}
        self._versions: dict[str, Version] = {}
        self._ids: set[str] = set()
        self._changing = asyncio.Lock()

    async def load(self) -> None:
        """Read all topics, and finish those that were left half made or half deleted."""
        async for document in self._store.list_documents(TOPICS_PREFIX):
            name = document.removeprefix(TOPICS_PREFIX)
            found = await self._store.read_document(document)
            if found is not None:
                self._know(decode_topic(found.value, name), found.version)
        for topic in list(self._topics.values()):
            if topic.state is TopicState.MAKING:
                await self._finish_making(topic)
            elif topic.state is TopicState.DELETING:
                await self._finish_deletion(topic)

    def find(self, name: str) -> Topic | None:
        """The topic with this name, if there is one that can be used."""
        topic = self._topics.get(name)
        return topic if topic is not None and topic.state is TopicState.ACTIVE else None

    def partition(self, name: str, number: int) -> Topic:
        """The topic of a partition.

        Raises:
            RefusedError: There is no such partition.
        """
        topic = self.find(name)
        if topic is None or not 0 <= number < topic.partitions:
            raise RefusedError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {number} of a topic {name!r}")
        if topic.is_internal:
            raise RefusedError(Code.INVALID_TOPIC_EXCEPTION, f"{name} is the gateway's own")
        return topic

    def has_id(self, topic_id: str) -> bool:
        """Whether a topic with this id is there."""
        return topic_id in self._ids

    def all(self) -> list[Topic]:
        """All topics that can be used, by name."""
        return [self._topics[name] for name in sorted(self._topics) if self.find(name) is not None]

    def names_by_id(self) -> dict[str, str]:
        """The names of all topics, by their ids."""
        return {topic.topic_id: topic.name for topic in self.all()}

    def check_new(
        self, name: str, partitions: int, replicas: int, settings: Mapping[str, str | None], *, bookies: int
    ) -> Topic:
        """The topic that :meth:`create` would make. -1 stands for a default.

        Raises:
            RefusedError: It cannot be made.
        """
        check_topic_name(name)
        return self._new(name, partitions, replicas, settings, bookies=bookies)

    def _new(
        self, name: str, partitions: int, replicas: int, settings: Mapping[str, str | None], *, bookies: int
    ) -> Topic:
        if name in self._topics:
            raise RefusedError(Code.TOPIC_ALREADY_EXISTS, f"there is a topic {name}")
        partitions = self._partitions if partitions == -1 else partitions
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise RefusedError(Code.INVALID_PARTITIONS, f"a topic has 1 to {PARTITIONS_MAX} partitions")
        write_quorum = self.write_quorum if replicas == -1 else replicas
        if not 1 <= write_quorum <= bookies:
            text = f"{write_quorum} copies of each batch, and there are {bookies} bookies"
            raise RefusedError(Code.INVALID_REPLICATION_FACTOR, text)
        ack_quorum = self.ack_quorum if replicas == -1 else write_quorum // 2 + 1
        if len(self._topics) >= TOPICS_MAX:
            raise RefusedError(Code.INVALID_REQUEST, f"there are {TOPICS_MAX} topics, which is the limit")
        if partitions + sum(topic.partitions for topic in self._topics.values()) > ALL_PARTITIONS_MAX:
            text = f"the topics of a cluster have at most {ALL_PARTITIONS_MAX} partitions"
            raise RefusedError(Code.INVALID_PARTITIONS, text)
        topic_id = f"{self._rng.getrandbits(128):032x}"
        return Topic(name, topic_id, partitions, write_quorum, ack_quorum, bytes_max_of(settings), TopicState.MAKING)

    async def create(
        self, name: str, partitions: int = -1, replicas: int = -1, settings: Mapping[str, str | None] | None = None
    ) -> Topic:
        """Make a topic.

        Raises:
            RefusedError: It exists, or cannot be made.
            OctavoError: The metadata store does not answer. The topic may be finished later.
        """
        async with self._changing:
            unfinished = self._topics.get(name)
            if unfinished is not None and unfinished.state is TopicState.MAKING:
                return await self._finish_making(unfinished)
            check_topic_name(name)
            return await self._make(name, partitions, replicas, settings or {})

    async def own(self, name: str, partitions: int) -> Topic:
        """A topic of the gateway's own. It is made when it is first asked for.

        Raises:
            RefusedError: It cannot be made.
            OctavoError: The metadata store does not answer. The topic may be finished later.
        """
        assert name.startswith(OWN_PREFIX), f"{name} may be a client's"
        async with self._changing:
            topic = self._topics.get(name)
            if topic is None:
                return await self._make(name, partitions, -1, {})
            return topic if topic.state is TopicState.ACTIVE else await self._finish_making(topic)

    async def _make(self, name: str, partitions: int, replicas: int, settings: Mapping[str, str | None]) -> Topic:
        bookies = len(await self._store.list_bookies())
        topic = self._new(name, partitions, replicas, settings, bookies=bookies)
        self._know(topic, await self._store.create_document(topic_document(name), topic.encode()))
        return await self._finish_making(topic)

    async def delete(self, name: str) -> None:
        """Delete a topic with its records.

        Raises:
            RefusedError: There is no such topic.
            OctavoError: The metadata store does not answer. The deletion may be finished later.
        """
        async with self._changing:
            topic = self._topics.get(name)
            if topic is None:
                raise RefusedError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
            if topic.is_internal:
                raise RefusedError(Code.INVALID_TOPIC_EXCEPTION, f"{name} is the gateway's own")
            if topic.state is not TopicState.DELETING:
                topic = await self._change(topic, TopicState.DELETING)
            await self._finish_deletion(topic)

    def _know(self, topic: Topic, version: Version) -> None:
        self._topics[topic.name], self._versions[topic.name] = topic, version
        self._ids.add(topic.topic_id)

    async def _change(self, topic: Topic, state: TopicState) -> Topic:
        changed = replace(topic, state=state)
        name, version = topic_document(topic.name), self._versions[topic.name]
        self._know(changed, await self._store.compare_and_set_document(name, changed.encode(), version))
        return changed

    async def _finish_making(self, topic: Topic) -> Topic:
        for partition in range(topic.partitions):
            try:
                log = await self._client.create_log(
                    topic.log_name(partition), topic.write_quorum, topic.write_quorum, topic.ack_quorum
                )
                await log.close()
            except LogExistsError:
                continue
        return await self._change(topic, TopicState.ACTIVE)

    async def _finish_deletion(self, topic: Topic) -> None:
        await self._before_deletion(topic)
        for partition in range(topic.partitions):
            try:
                await self._client.delete_log(topic.log_name(partition))
            except NoSuchLogError:
                continue
        await self._store.delete_document(topic_document(topic.name), self._versions[topic.name])
        del self._topics[topic.name], self._versions[topic.name]
        self._ids.discard(topic.topic_id)
