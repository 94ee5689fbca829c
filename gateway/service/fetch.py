"""The answer to Fetch (rule K7).

A fetch waits until there is something to read, or its time is over. Bytes for the answer are taken from the budget of
answers only when there is: many consumers may wait at a time. They are given back when the consumer has read the
answer.

Consumers that read nothing can use the budget up for as long as an answer may stay unread. So a fetch waits a moment
only for its share. Then it gets a small answer, which lies in the buffer of its connection, as small requests do. Such
answers are read few at a time. Where even one batch is no small answer, the fetch waits in turn.
"""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress
from typing import Final

from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.leading.leaders import Leaders, PartitionKey
from octavo.gateway.leading.partition import LedPartition
from octavo.gateway.service.needs import check_topic
from octavo.gateway.topics.catalogue import Catalogue
from octavo.gateway.topics.document import Topic
from octavo.gateway.wire.apis import Request
from octavo.gateway.wire.budget import ByteBudget
from octavo.gateway.wire.connection import BUFFER_BYTES, Pieces
from octavo.gateway.wire.fetch import (
    NO_EPOCH,
    NO_SESSION,
    FetchedPartition,
    FetchRequest,
    WantedPartition,
    decode_fetch,
    encode_fetched,
)
from octavo.protocol.errors import OctavoError

ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of an answer, but for its last batch: what one consumer that reads nothing holds."""

SHARE_SECONDS_MAX: Final = 0.1
"""Consumers that read take their answers within some milliseconds."""

_SMALL_READS_MAX: Final = 4
"""At a time: each may read one batch of any size."""

WAIT_SECONDS_MAX: Final = 60.0
"""A fetch waits no longer, whatever it asks for."""

type _Led = dict[PartitionKey, LedPartition | RefusedError]

_ID_CHARACTERS: Final = 36
"""Of the id of a topic as a text, with hyphens."""

_NO_LEADER: Final = 0
"""The epoch before the first leader. librdkafka asks with it where it has heard of no epoch."""


class FetchService:
    """See the module."""

    def __init__(self, catalogue: Catalogue, leaders: Leaders, answers: ByteBudget) -> None:
        """``answers``: the budget of answers."""
        self._catalogue = catalogue
        self._leaders = leaders
        self._answers = answers
        self._small_reads = asyncio.Semaphore(_SMALL_READS_MAX)

    async def answer(self, request: Request, held: AsyncExitStack) -> Pieces:
        """The answer. ``held`` keeps its bytes."""
        asked = decode_fetch(request.body, request.version)
        if asked.session_id != NO_SESSION:
            request.outcome.note([Code.FETCH_SESSION_ID_NOT_FOUND])
            return encode_fetched([], request.version, Code.FETCH_SESSION_ID_NOT_FOUND)
        said = self._said_by_id(asked)
        if said:
            named = [one._replace(topic=said.get(one.topic, one.topic)) for one in asked.partitions]
            asked = asked._replace(partitions=named)
        allowed, refused = _divided(request, asked)
        found = [*refused, *await self._fetch(allowed, held)]
        request.outcome.note(one.code for one in found)
        request.outcome.fetched_bytes = _bytes_in(found)
        if said:
            as_said = {name: text for text, name in said.items()}
            found = [one._replace(topic=as_said.get(one.topic, one.topic)) for one in found]
        return encode_fetched(found, request.version)

    def _said_by_id(self, asked: FetchRequest) -> dict[str, str]:
        """The names of the topics that are named by their ids: @platformatic/kafka does so as soon as Metadata tells
        ids, also in those versions of Fetch that have names."""
        unknown = {
            one.topic
            for one in asked.partitions
            if len(one.topic) == _ID_CHARACTERS and self._catalogue.find(one.topic) is None
        }
        if not unknown:
            return {}
        names = self._catalogue.names_by_id()
        return {text: names[topic_id] for text in unknown if (topic_id := text.replace("-", "")) in names}

    async def _fetch(self, asked: FetchRequest, held: AsyncExitStack) -> list[FetchedPartition]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max(0, asked.wait_ms_max) / 1000, WAIT_SECONDS_MAX)
        bytes_max = max(0, min(asked.bytes_max, ANSWER_BYTES_MAX))
        while True:
            led = await self._led(asked.partitions)
            growing = [one.growth() for one in led.values() if isinstance(one, LedPartition)]
            seconds_left = deadline - loop.time()
            if seconds_left <= 0 or self._has_something(asked, led):
                async with AsyncExitStack() as attempt:
                    found = await self._read_with_share(asked, led, bytes_max, attempt)
                    seconds_left = deadline - loop.time()
                    if seconds_left <= 0 or _is_enough(found, asked.bytes_min):
                        await held.enter_async_context(attempt.pop_all())
                        return found
            if growing:
                await asyncio.wait(growing, timeout=seconds_left, return_when=asyncio.FIRST_COMPLETED)
            else:
                deadline = loop.time()

    async def _read_with_share(
        self, asked: FetchRequest, led: _Led, bytes_max: int, attempt: AsyncExitStack
    ) -> list[FetchedPartition]:
        """The partitions; ``attempt`` holds their bytes, but for those of a small answer."""
        if await self._has_share(bytes_max, attempt):
            return await self._read(asked, led, bytes_max)
        async with self._small_reads:
            found = await self._read(asked, led, min(bytes_max, BUFFER_BYTES))
        small = _within(found, BUFFER_BYTES)
        if _bytes_in(small) or not _bytes_in(found):
            return small
        found.clear()  # its batches are not held meanwhile
        await attempt.enter_async_context(self._answers.holding(bytes_max))
        return await self._read(asked, led, bytes_max)

    async def _has_share(self, bytes_max: int, attempt: AsyncExitStack) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(SHARE_SECONDS_MAX):
                await attempt.enter_async_context(self._answers.holding(bytes_max))
                return True
        return False

    async def _led(self, wanted: Iterable[WantedPartition]) -> _Led:
        partitions: dict[PartitionKey, tuple[Topic, int]] = {}
        for one in wanted:
            topic = self._catalogue.find(one.topic)
            if topic is not None and not topic.is_internal and 0 <= one.partition < topic.partitions:
                partitions[PartitionKey(topic.topic_id, one.partition)] = topic, one.partition
        return dict(zip(partitions, await self._leaders.get_all(partitions.values()), strict=True))

    def _partition(self, wanted: WantedPartition, led: _Led) -> LedPartition:
        """The partition, if the consumer can read it there. Raises :class:`RefusedError`."""
        topic = self._catalogue.partition(wanted.topic, wanted.partition)
        found = led[PartitionKey(topic.topic_id, wanted.partition)]
        if isinstance(found, RefusedError):
            raise RefusedError(found.code, found.text)
        if wanted.leader_epoch not in (NO_EPOCH, _NO_LEADER, found.writer.term):
            is_old = wanted.leader_epoch < found.writer.term
            code = Code.FENCED_LEADER_EPOCH if is_old else Code.UNKNOWN_LEADER_EPOCH
            raise RefusedError(code, f"the leader's epoch is {found.writer.term}")
        found.check_offset(wanted.offset)
        return found

    def _has_something(self, asked: FetchRequest, led: _Led) -> bool:
        """Whether there is a record to read, or an error to tell."""
        for one in asked.partitions:
            try:
                if self._partition(one, led).high_watermark > one.offset:
                    return True
            except (RefusedError, KeyError):
                return True
        return False

    async def _read(self, asked: FetchRequest, led: _Led, bytes_max: int) -> list[FetchedPartition]:
        found, left = [], bytes_max
        for one in asked.partitions:
            answer = await self._read_partition(one, led, min(one.bytes_max, left), is_full=left <= 0 < bytes_max)
            left -= sum(map(len, answer.batches))
            found.append(answer)
        return found

    async def _read_partition(
        self, wanted: WantedPartition, led: _Led, bytes_max: int, *, is_full: bool
    ) -> FetchedPartition:
        try:
            partition = self._partition(wanted, led)
            batches = () if is_full else tuple(await partition.read(wanted.offset, bytes_max))
        except KeyError:
            return FetchedPartition(wanted.topic, wanted.partition, Code.UNKNOWN_TOPIC_OR_PARTITION)
        except RefusedError as error:
            return FetchedPartition(wanted.topic, wanted.partition, error.code)
        except OctavoError:
            return FetchedPartition(wanted.topic, wanted.partition, Code.KAFKA_STORAGE_ERROR)
        return FetchedPartition(
            wanted.topic,
            wanted.partition,
            Code.NONE,
            partition.high_watermark,
            partition.start_offset,
            batches,
        )


def _divided(request: Request, asked: FetchRequest) -> tuple[FetchRequest, list[FetchedPartition]]:
    """The part that the consumer may read, and the answers for the rest, for which nothing waits."""
    allowed, refused = [], []
    for one in asked.partitions:
        try:
            check_topic(request, one.topic)
            allowed.append(one)
        except RefusedError as error:
            refused.append(FetchedPartition(one.topic, one.partition, error.code))
    wait_ms_max = 0 if refused else asked.wait_ms_max
    return asked._replace(partitions=allowed, wait_ms_max=wait_ms_max), refused


def _within(found: list[FetchedPartition], bytes_max: int) -> list[FetchedPartition]:
    """Without the batches of partitions that do not fit any more."""
    kept, left = [], bytes_max
    for one in found:
        size = sum(map(len, one.batches))
        kept.append(one if size <= left else one._replace(batches=()))
        left -= size if size <= left else 0
    return kept


def _is_enough(found: list[FetchedPartition], bytes_min: int) -> bool:
    """Whether an answer is given before its time is over: it has the bytes that were asked for, or an error."""
    return _bytes_in(found) >= bytes_min or any(one.code is not Code.NONE for one in found)


def _bytes_in(found: list[FetchedPartition]) -> int:
    return sum(len(batch) for one in found for batch in one.batches)
