"""The answer to Produce (rules K1 to K4)."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.leading.leaders import Leaders, PartitionKey
from octavo.gateway.leading.partition import LedPartition
from octavo.gateway.records.batch import BatchHeader, BatchLimits, checked_batch
from octavo.gateway.service.needs import check_topic
from octavo.gateway.topics.catalogue import Catalogue
from octavo.gateway.topics.document import Topic
from octavo.gateway.wire.apis import Request
from octavo.gateway.wire.connection import Pieces
from octavo.gateway.wire.produce import (
    PartitionBatch,
    PartitionProduced,
    ProduceRequest,
    decode_produce,
    encode_produced,
)

AHEAD_MS_MAX: Final = 3600 * 1000
"""How far a record's time may lie ahead: `message.timestamp.after.max.ms`."""

_NO_ACKNOWLEDGEMENT: Final = 0
_ACKS: Final = frozenset({_NO_ACKNOWLEDGEMENT, 1, -1})


class _Checked(NamedTuple):
    """A batch that is sound, for a partition that exists."""

    asked: PartitionBatch
    topic: Topic
    key: PartitionKey
    batch: BatchHeader


class ProduceService:
    """See the module."""

    def __init__(self, catalogue: Catalogue, leaders: Leaders, clock_ms: Callable[[], int]) -> None:
        self._catalogue = catalogue
        self._leaders = leaders
        self._clock_ms = clock_ms

    async def answer(self, request: Request, _held: AsyncExitStack) -> Pieces | None:
        """The answer; None where the producer wants none. That one waits for its batches all the same: it must not
        send more than the gateway can hold."""
        asked = decode_produce(request.body, request.version)
        answers = await self._produce(request, asked)
        request.outcome.note(one.code for one in answers)
        return None if asked.acks == _NO_ACKNOWLEDGEMENT else encode_produced(answers, request.version)

    async def _produce(self, request: Request, asked: ProduceRequest) -> list[PartitionProduced]:
        refused = _refusal_of(asked)
        if refused is not None:
            return [_refused(one, refused) for one in asked.batches]
        now_ms = self._clock_ms()
        checked = [self._check(request, one, now_ms) for one in asked.batches]
        partitions = {one.key: (one.topic, one.asked.partition) for one in checked if isinstance(one, _Checked)}
        led = dict(zip(partitions, await self._leaders.get_all(partitions.values()), strict=True))
        now_ms = self._clock_ms()
        # No other request comes between: the batches of a partition are handed over in the order of the request.
        handed_over = [
            one if isinstance(one, PartitionProduced) else _hand_over(one, led[one.key], now_ms) for one in checked
        ]
        waiting = [one for one in handed_over if isinstance(one, asyncio.Future)]
        if waiting:
            await asyncio.wait(waiting, timeout=max(0, asked.timeout_ms) / 1000)
        answers = []
        for check, one in zip(checked, handed_over, strict=True):
            answer = _answer_to(check, one, led) if isinstance(check, _Checked) else check
            if isinstance(check, _Checked) and answer.code is Code.NONE:
                request.outcome.note_acknowledged(check.batch.record_count, len(check.asked.batch))
            answers.append(answer)
        return answers

    def _check(self, request: Request, asked: PartitionBatch, now_ms: int) -> "_Checked | PartitionProduced":
        try:
            check_topic(request, asked.topic)
            topic = self._catalogue.partition(asked.topic, asked.partition)
            limits = BatchLimits(topic.settings.bytes_max, AHEAD_MS_MAX)
            batch = checked_batch(asked.batch, limits, now_ms)
            return _Checked(asked, topic, PartitionKey(topic.topic_id, asked.partition), batch)
        except RefusedError as error:
            return _refused(asked, error)


type _HandedOver = asyncio.Future[int] | PartitionProduced


def _refusal_of(asked: ProduceRequest) -> RefusedError | None:
    """Why nothing of a request is done."""
    if asked.acks not in _ACKS:
        return RefusedError(Code.INVALID_REQUIRED_ACKS, f"acks is 0, 1 or -1, not {asked.acks}")
    if asked.transactional_id is not None:
        return RefusedError(Code.INVALID_REQUEST, "transactions are not supported")
    return None


def _hand_over(checked: _Checked, led: LedPartition | RefusedError, now_ms: int) -> _HandedOver:
    try:
        if isinstance(led, RefusedError):
            return _refused(checked.asked, led)
        return led.add(checked.asked.batch, checked.batch, now_ms)
    except RefusedError as error:
        return _refused(checked.asked, error)


def _answer_to(
    checked: _Checked, handed_over: _HandedOver, led: dict[PartitionKey, LedPartition | RefusedError]
) -> PartitionProduced:
    if isinstance(handed_over, PartitionProduced):
        return handed_over
    asked = checked.asked
    if not handed_over.done():
        return _refused(asked, RefusedError(Code.REQUEST_TIMED_OUT, "the batch was not acknowledged in time"))
    error = handed_over.exception()
    if error is not None:
        return _refused(asked, error)
    partition = led[checked.key]
    assert isinstance(partition, LedPartition), "the batch was handed over"
    start_offset = partition.start_offset
    return PartitionProduced(asked.topic, asked.partition, Code.NONE, handed_over.result(), start_offset)


def _refused(asked: PartitionBatch, error: BaseException) -> PartitionProduced:
    if not isinstance(error, RefusedError):
        return PartitionProduced(asked.topic, asked.partition, Code.UNKNOWN_SERVER_ERROR, text=str(error))
    return PartitionProduced(asked.topic, asked.partition, error.code, text=error.text)
