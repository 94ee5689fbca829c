"""The life of a log that is a stream, once for each change of the metadata that it makes: that change loses its answer,
comes late, or meets a rival. Whatever becomes of it, what was acknowledged is read back at its position."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from octavo.client.client import Client
from octavo.client.log.stream.lead import StreamSegment
from octavo.client.options import ClientOptions
from octavo.protocol.errors import InternalError, MetadataUnavailableError, OctavoError
from support.clusters.log_cluster import QUICK, LogCluster, open_log_cluster
from support.inside import active_of
from support.metadata.interposed_store import InterposedStore
from support.metadata.metadata_clusters import MemoryCluster
from support.waiting import WAIT_SECONDS, loop_turns

import octavo

CHANGES = ("create_document", "compare_and_set_document", "create_stream", "compare_and_set_stream")
"""The calls by which a client changes what the store holds of a log."""

type Happens = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Makes a change, or has it made later; what the client is told of it."""


class FaultyStore:
    """The n-th change that goes through it becomes what ``happens`` makes of it; ``number`` 0: none does."""

    def __init__(self, store: Any, number: int, happens: Happens) -> None:
        self.interposed = InterposedStore(store)
        self.changes = 0
        self._number = number
        self._happens = happens
        for method in CHANGES:
            self.interposed.interpose(method, self._counted(getattr(store, method)))

    def _counted(self, change: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any) -> Any:
            self.changes += 1
            if self.changes == self._number:
                return await self._happens(lambda: change(*arguments))
            return await change(*arguments)

        return call


@dataclass
class Known:
    """What the applications know of the log."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)
    in_doubt: list[tuple[OctavoError, bytes]] = field(default_factory=list)

    async def add(self, writer: octavo.LogWriter, payload: bytes) -> None:
        try:
            self.acknowledged[await writer.add(payload)] = payload
        except OctavoError as error:
            _is_no_defect(error)
            if error.may_have_happened:
                self.in_doubt.append((error, payload))


def _is_no_defect(error: OctavoError) -> None:
    assert not isinstance(error, InternalError | octavo.LogDamagedError), error


async def again[T](attempt: Callable[[], Awaitable[T]]) -> T:
    """The result of a step that is tried again while the store does not answer."""
    while True:
        try:
            return await attempt()
        except MetadataUnavailableError:
            await asyncio.sleep(0)


async def opened(client: octavo.Client) -> octavo.Log:
    """The log, created unless an attempt whose answer was lost has done so."""
    try:
        return await client.create_log("orders", layout="stream")
    except octavo.LogExistsError:
        return await client.open_log("orders")


async def life(client: octavo.Client, known: Known) -> None:
    """A leader that rolls, truncates, renews, heals and rests, and one that follows it."""
    log = await again(lambda: opened(client))
    writer = await again(log.take_over)
    steps: list[Callable[[], Awaitable[object]]] = [
        writer.roll,
        lambda: log.truncate(1),
        lambda: _renew(writer),
        lambda: _fail(writer),
        writer.close,
    ]
    for number, step in enumerate(steps):
        await known.add(writer, b"first %d" % number)
        try:
            await step()
        except OctavoError as error:
            _is_no_defect(error)
    await writer.close()
    with contextlib.suppress(octavo.NotLeaderError):
        async with await again(log.take_over) as following:
            await known.add(following, b"second")


async def _renew(writer: octavo.LogWriter) -> None:
    segment = active_of(writer)
    assert isinstance(segment, StreamSegment)
    await segment.term.renew()


async def _fail(writer: octavo.LogWriter) -> None:
    active_of(writer).core.fail(octavo.QuorumLostError("for a test"))


async def check(logs: LogCluster, known: Known) -> None:
    """From outside, with a client that has seen nothing before."""
    log = await (await logs.client()).open_log("orders")
    async with await log.take_over() as writer:
        await known.add(writer, b"last")
    end, first = await log.refresh(), log.first_position
    read = {entry.position: entry.payload for entry in await log.read(first, end - 1)}
    assert list(read) == list(range(first, end))
    assert {at: one for at, one in known.acknowledged.items() if at >= first}.items() <= read.items()
    for error, payload in known.in_doubt:
        outcome = await log.outcome(error)
        assert outcome is (payload in read.values()), payload


def late(logs: LogCluster, _known: Known) -> Happens:
    async def happens(change: Callable[[], Awaitable[Any]]) -> Any:
        async def arrives() -> None:
            await loop_turns(50)
            with contextlib.suppress(OctavoError):
                await change()

        arriving = asyncio.create_task(arrives())
        logs.stack.push_async_callback(asyncio.wait, [arriving])
        raise MetadataUnavailableError("it is under way")

    return happens


def after_a_rival(logs: LogCluster, known: Known) -> Happens:
    async def happens(change: Callable[[], Awaitable[Any]]) -> Any:
        await _lead(logs, known)
        return await change()

    return happens


def unanswered_before_a_rival(logs: LogCluster, known: Known) -> Happens:
    async def happens(change: Callable[[], Awaitable[Any]]) -> Any:
        with contextlib.suppress(OctavoError):
            await change()
        await _lead(logs, known)
        raise MetadataUnavailableError("the answer was lost")

    return happens


async def _lead(logs: LogCluster, known: Known) -> None:
    """A rival takes the log over, and goes on to lead it."""
    with contextlib.suppress(octavo.NoSuchLogError):
        log = await (await logs.client()).open_log("orders")
        await known.add(await log.take_over(), b"rival")


async def universe(number: int, how: Callable[[LogCluster, Known], Happens]) -> int:
    """One life; how many changes of the metadata it made."""
    known = Known()
    async with asyncio.timeout(WAIT_SECONDS), open_log_cluster(MemoryCluster(Path()), "stream") as logs:
        store = FaultyStore(await logs.metadata.open(), number, how(logs, known))
        options = ClientOptions(**QUICK)
        async with Client(
            store.interposed.face, cluster_id=logs.cluster_id, options=options, rng=random.Random(7)
        ) as client:
            await life(client, known)
        await check(logs, known)
    return store.changes


@pytest.mark.parametrize("how", [late, after_a_rival, unanswered_before_a_rival])
async def test_whatever_becomes_of_one_change_nothing_acknowledged_is_lost(
    how: Callable[[LogCluster, Known], Happens],
) -> None:
    number = 1
    while await universe(number, how) >= number:
        number += 1
    assert number > 8, "the life of the log makes fewer changes than it should"
