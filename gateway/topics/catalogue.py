"""The topics of a cluster, as a gateway knows them, and changes them.

A topic is made document first and logs after, and deleted the other way round. A gateway that begins finishes what an
earlier one has left (rule K12).

One gateway at a time changes topics: it holds a lock in the metadata store meanwhile. It announces each change in one
document, which all gateways watch (:mod:`octavo.gateway.topics.changes`), and so learn of it. A topic is announced
before it can be used, so a gateway that has caught up with the changes knows the id of each topic that was in use then.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from octavo.client.client import Client
from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.topics.changes import DOCUMENT as CHANGES
from octavo.gateway.topics.changes import TopicChanges, decode_changes
from octavo.gateway.topics.document import (
    OWN_PREFIX,
    PARTITIONS_MAX,
    TOPICS_PREFIX,
    Topic,
    TopicState,
    check_topic_name,
    decode_topic,
    has_topic_form,
    topic_document,
)
from octavo.gateway.topics.settings import DEFAULT, Change, ack_quorum_of, changed, settings_from
from octavo.metadata import MetadataStore
from octavo.metadata.store.values import Version
from octavo.protocol.errors import (
    LogExistsError,
    MetadataConflictError,
    NoSuchLogError,
    OctavoError,
    OctavoTimeoutError,
)

LOCK: Final = "kafka/topics"
"""Held by the gateway that changes a topic."""

TOPICS_MAX: Final = 1000
"""Of a cluster: the gateway holds all of them in memory, and answers with all of them."""

ALL_PARTITIONS_MAX: Final = 10_000
"""Of all topics: each one in use is a log that the gateway leads."""


class CatalogueTimes(NamedTuple):
    """The waits of a gateway for topics."""

    lock_seconds_max: float = 5.0
    """A request waits no longer for another gateway that changes topics. Clients try again."""
    retry_seconds: float = 1.0
    """After the metadata store did not answer to a gateway that learns of changes."""


class Catalogue:
    """See the module."""

    def __init__(
        self,
        client: Client,
        store: MetadataStore,
        rng: random.Random,
        *,
        name: str,
        write_quorum: int,
        ack_quorum: int,
        partitions: int,
        before_deletion: Callable[[Topic], Awaitable[None]],
        on_gone: Callable[[Topic], object],
        times: CatalogueTimes | None = None,
        password: bytes = b"",
    ) -> None:
        """``name`` shows people which gateway changes topics. Topics have these quorums and this number of partitions
        unless a request says otherwise. ``before_deletion`` gives up the lead of the partitions of a topic that this
        gateway deletes, with their documents; ``on_gone`` begins to give up those of one that another one deletes.
        ``password``: with one, new topics are private."""
        self._client = client
        self._store = store
        self._rng = rng
        self._name = name
        self._times = times or CatalogueTimes()
        self.write_quorum = write_quorum
        self.ack_quorum = ack_quorum
        self._partitions = partitions
        self.password = password
        """Of the logs of private topics."""
        self._before_deletion = before_deletion
        self._on_gone = on_gone
        self._topics: dict[str, Topic] = {}
        self._versions: dict[str, Version] = {}
        self._ids: set[str] = set()
        self._changing = asyncio.Lock()
        self._known = 0
        """The number of the latest change that this gateway has learned of."""

    # --- what other gateways change -----------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read all topics, and finish those that were left half made or half deleted.

        Raises:
            OctavoError: The metadata store or the bookies do not answer.
        """
        async with self._changing:
            await self._learn_all()
        unfinished = [topic.name for topic in self._topics.values() if topic.state is not TopicState.ACTIVE]
        for name in unfinished:
            async with self._one_at_a_time(is_patient=True):
                topic = await self._learn(name)
                if topic is not None and topic.state is TopicState.MAKING:
                    await self._finish_making(topic)
                elif topic is not None and topic.state is TopicState.DELETING:
                    await self._finish_deletion(topic)

    async def follow(self) -> None:
        """Learn what other gateways change, until cancelled."""
        async with self._store.watch_document(CHANGES) as watch:
            async for _ in watch:
                while True:
                    with contextlib.suppress(OctavoError):
                        await self.catch_up()
                        break
                    await asyncio.sleep(self._times.retry_seconds)

    async def catch_up(self) -> None:
        """Learn of all changes that were announced so far.

        Raises:
            OctavoError: The metadata store does not answer.
        """
        async with self._changing:
            changes = await self._changes()
            names = changes.since(self._known)
            if names is None:
                await self._learn_all()
                return
            for name in sorted(names):
                await self._learn(name)
            self._known = changes.number

    async def look(self, name: str) -> Topic | None:
        """The topic with this name, if it can be used; one that another gateway has just made is found, too.

        Raises:
            OctavoError: The metadata store does not answer.
        """
        if self.find(name) is None and has_topic_form(name):
            async with self._changing:
                await self._learn(name)
        return self.find(name)

    async def look_again(self, topic: Topic) -> Topic | None:
        """The topic with this id as it is stored now; None if it cannot be used any more.

        Raises:
            OctavoError: The metadata store does not answer.
        """
        async with self._changing:
            await self._learn(topic.name)
        found = self.find(topic.name)
        return found if found is not None and found.topic_id == topic.topic_id else None

    async def _changes(self) -> TopicChanges:
        found = await self._store.read_document(CHANGES)
        return TopicChanges() if found is None else decode_changes(found.value)

    async def _learn_all(self) -> None:
        known = (await self._changes()).number
        names = [one.removeprefix(TOPICS_PREFIX) async for one in self._store.list_documents(TOPICS_PREFIX)]
        for name in sorted({*names, *self._topics}):
            await self._learn(name)
        self._known = known

    async def _learn(self, name: str) -> Topic | None:
        """The topic as it is stored now. Called while :attr:`_changing` is held."""
        before = self._topics.get(name)
        found = await self._store.read_document(topic_document(name))
        topic = None if found is None else decode_topic(found.value, name)
        if found is not None and topic is not None:
            self._know(topic, found.version)
        elif before is not None:
            self._forget(before)
        if before is not None and before.state is TopicState.ACTIVE and not _is_same(before, topic):
            self._on_gone(before)
        return topic

    @contextlib.asynccontextmanager
    async def _one_at_a_time(self, *, is_patient: bool = False) -> AsyncIterator[None]:
        """Hold off every other change of a topic, here and in other gateways, for the time of a block."""
        async with self._changing:
            try:
                async with asyncio.timeout(None if is_patient else self._times.lock_seconds_max):
                    lease = await self._store.lock(LOCK, self._name)
            except TimeoutError as error:
                text = f"another gateway has been changing topics for {self._times.lock_seconds_max} s"
                raise OctavoTimeoutError(text, may_have_happened=False) from error
            try:
                yield
            finally:
                await lease.release()

    async def _announce(self, name: str) -> None:
        """Tell the other gateways that a topic has changed. Called while the lock is held."""
        while True:
            found = await self._store.read_document(CHANGES)
            changes = TopicChanges() if found is None else decode_changes(found.value)
            version = None if found is None else found.version
            with contextlib.suppress(MetadataConflictError):
                await self._store.put_document(CHANGES, changes.then(name).encode(), version)
                return

    # --- what is known ------------------------------------------------------------------------------------------------

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
        usual = self.ack_quorum if replicas == -1 else write_quorum // 2 + 1
        ack_quorum = ack_quorum_of(settings, write_quorum=write_quorum, usual=usual)
        if len(self._topics) >= TOPICS_MAX:
            raise RefusedError(Code.INVALID_REQUEST, f"there are {TOPICS_MAX} topics, which is the limit")
        self._check_all_partitions(partitions)
        topic_id = f"{self._rng.getrandbits(128):032x}"
        return Topic(
            name, topic_id, partitions, write_quorum, ack_quorum, settings_from(settings, ack_quorum=ack_quorum),
            TopicState.MAKING, is_private=bool(self.password),
        )  # fmt: skip

    def _check_all_partitions(self, more: int) -> None:
        if more + sum(topic.partitions for topic in self._topics.values()) > ALL_PARTITIONS_MAX:
            text = f"the topics of a cluster have at most {ALL_PARTITIONS_MAX} partitions"
            raise RefusedError(Code.INVALID_PARTITIONS, text)

    # --- changes ------------------------------------------------------------------------------------------------------

    async def create(
        self, name: str, partitions: int = -1, replicas: int = -1, settings: Mapping[str, str | None] | None = None
    ) -> Topic:
        """Make a topic.

        Raises:
            RefusedError: It exists, or cannot be made.
            OctavoError: The metadata store does not answer. The topic may be finished later.
        """
        check_topic_name(name)
        async with self._one_at_a_time():
            unfinished = await self._learn(name)
            if unfinished is not None and unfinished.state is TopicState.MAKING:
                return await self._finish_making(unfinished)
            if unfinished is not None and unfinished.state is TopicState.DELETING:
                await self._finish_deletion(unfinished)
            return await self._make(name, partitions, replicas, settings or {})

    async def own(self, name: str, partitions: int) -> Topic:
        """A topic of the gateway's own. It is made when it is first asked for.

        Raises:
            RefusedError: It cannot be made.
            OctavoError: The metadata store does not answer. The topic may be finished later.
        """
        assert name.startswith(OWN_PREFIX), f"{name} may be a client's"
        known = self.find(name)
        if known is not None:
            return known
        async with self._one_at_a_time():
            topic = await self._learn(name)
            if topic is None:
                return await self._make(name, partitions, -1, {})
            return topic if topic.state is TopicState.ACTIVE else await self._finish_making(topic)

    async def _make(self, name: str, partitions: int, replicas: int, settings: Mapping[str, str | None]) -> Topic:
        bookies = len(await self._store.list_bookies())
        topic = self._new(name, partitions, replicas, settings, bookies=bookies)
        self._know(topic, await self._store.create_document(topic_document(name), topic.encode()))
        return await self._finish_making(topic)

    async def grow(self, name: str, partitions: int, *, validate_only: bool = False) -> None:
        """Give a topic more partitions. Their logs are made first, so that each partition of the topic can be used.

        ``validate_only``: only find out whether it could be done.

        Raises:
            RefusedError: There is no such topic, or it cannot have this number of partitions.
            OctavoError: The metadata store does not answer. The partitions may be made all the same.
        """
        async with self._one_at_a_time():
            topic = await self._changeable(name)
            if not topic.partitions < partitions <= PARTITIONS_MAX:
                text = f"{name} has {topic.partitions} partitions; it can have more, up to {PARTITIONS_MAX}"
                raise RefusedError(Code.INVALID_PARTITIONS, text)
            self._check_all_partitions(partitions - topic.partitions)
            if not validate_only:
                await self._make_logs(topic, range(topic.partitions, partitions))
                await self._change(replace(topic, partitions=partitions))
                await self._announce(name)

    async def alter(
        self, name: str, changes: Sequence[tuple[str, Change, str | None]], *, anew: bool, validate_only: bool
    ) -> None:
        """Change settings of a topic. The other gateways learn of it, and go by it from then on.

        ``anew``: all settings that are not named get their defaults. ``validate_only``: only find out whether it could
        be done.

        Raises:
            RefusedError: There is no such topic, or it cannot have these settings.
            OctavoError: The metadata store does not answer. The change may be made all the same.
        """
        async with self._one_at_a_time():
            topic = await self._changeable(name)
            settings = changed(DEFAULT if anew else topic.settings, changes, ack_quorum=topic.ack_quorum)
            if not validate_only and settings != topic.settings:
                await self._change(replace(topic, settings=settings))
                await self._announce(name)

    async def _changeable(self, name: str) -> Topic:
        """The topic as it is stored now. Called while the lock is held. Raises :class:`RefusedError`."""
        topic = await self._learn(name) if has_topic_form(name) else None
        if topic is None or topic.state is not TopicState.ACTIVE:
            raise RefusedError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        if topic.is_internal:
            raise RefusedError(Code.INVALID_TOPIC_EXCEPTION, f"{name} is the gateway's own")
        return topic

    async def delete(self, name: str) -> None:
        """Delete a topic with its records.

        Raises:
            RefusedError: There is no such topic.
            OctavoError: The metadata store does not answer. The deletion may be finished later.
        """
        async with self._one_at_a_time():
            topic = await self._learn(name) if has_topic_form(name) else None
            if topic is None:
                raise RefusedError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
            if topic.is_internal:
                raise RefusedError(Code.INVALID_TOPIC_EXCEPTION, f"{name} is the gateway's own")
            if topic.state is not TopicState.DELETING:
                topic = await self._change(replace(topic, state=TopicState.DELETING))
            await self._finish_deletion(topic)

    def _know(self, topic: Topic, version: Version) -> None:
        before = self._topics.get(topic.name)
        if before is not None:
            self._ids.discard(before.topic_id)
        self._topics[topic.name], self._versions[topic.name] = topic, version
        self._ids.add(topic.topic_id)

    def _forget(self, topic: Topic) -> None:
        del self._topics[topic.name], self._versions[topic.name]
        self._ids.discard(topic.topic_id)

    async def _change(self, changed: Topic) -> Topic:
        name, version = topic_document(changed.name), self._versions[changed.name]
        self._know(changed, await self._store.compare_and_set_document(name, changed.encode(), version))
        return changed

    async def _finish_making(self, topic: Topic) -> Topic:
        # Before it can be used: a gateway that has caught up knows the id of each topic in use.
        await self._announce(topic.name)
        await self._make_logs(topic, range(topic.partitions))
        made = await self._change(replace(topic, state=TopicState.ACTIVE))
        await self._announce(topic.name)
        return made

    async def _make_logs(self, topic: Topic, partitions: range) -> None:
        for partition in partitions:
            try:
                log = await self._client.create_log(
                    topic.log_name(partition),
                    topic.write_quorum,
                    topic.write_quorum,
                    topic.ack_quorum,
                    password=topic.password_of_logs(self.password),
                    private=topic.is_private,
                )
                await log.close()
            except LogExistsError:
                continue

    async def _finish_deletion(self, topic: Topic) -> None:
        await self._announce(topic.name)
        await self._before_deletion(topic)
        # Also logs of further partitions, which a gateway that died has made before they were the topic's.
        for log_name in [name async for name in self._client.list_logs(topic.logs_prefix)]:
            with contextlib.suppress(NoSuchLogError):
                await self._client.delete_log(log_name)
        await self._store.delete_document(topic_document(topic.name), self._versions[topic.name])
        self._forget(topic)
        await self._announce(topic.name)


def _is_same(before: Topic, now: Topic | None) -> bool:
    """Whether a topic that could be used is still there."""
    return now is not None and now.topic_id == before.topic_id and now.state is not TopicState.DELETING
