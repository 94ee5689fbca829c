"""A candidate that stands still for longer than its lease lasts, anywhere between getting the lock and leading, leaves
the client in peace that has the lock by now (rule P3)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.clusters.log_cluster import LogCluster
from support.metadata.interposed_store import InterposedStore
from support.metadata.metadata_clusters import LEASE_SECONDS
from support.waiting import WAIT_SECONDS, eventually

import octavo

STEPS = (
    *("lock", "read_stream", "compare_and_set_stream", "read_document", "compare_and_set_document"),
    *("allocate_ledger_id", "create_ledger", "read_ledger", "compare_and_set_ledger"),
)
"""Methods of the store that a takeover calls. A candidate that is paused in one may be paused at any bookie, too: what
it does after it depends on what the store says next."""


class Pause:
    """Lets a client stand still in the ``wanted``-th call of its store, before or after the store hears of it."""

    def __init__(
        self, store: InterposedStore, wanted: int, *, before: bool, meanwhile: Callable[[], Awaitable[object]]
    ):
        self._wanted = wanted
        self._before = before
        self._meanwhile = meanwhile
        self.calls: list[str] = []
        self.happened = False
        for method in STEPS:
            store.interpose(method, self._call(method, getattr(store.real, method)))

    def _call(self, method: str, real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any) -> Any:
            self.calls.append(method)
            pauses = len(self.calls) == self._wanted
            if pauses and self._before:
                await self._pause()
            answer = await real(*arguments)
            if pauses and not self._before:
                await self._pause()
            return answer

        return call

    async def _pause(self) -> None:
        self.happened = True
        await self._meanwhile()


@pytest.mark.parametrize("before", [True, False], ids=["request-late", "answer-late"])
@pytest.mark.parametrize("rests", [True, False], ids=["at-rest", "led"])
async def test_a_candidate_that_was_paused_disturbs_no_leader(logs: LogCluster, rests: bool, before: bool) -> None:
    number = 2 if before else 1  # the lock is got with the first call, and a pause before is none of a candidate's
    while await _paused_at(logs, number, rests=rests, before=before):
        number += 1
    assert number > 3, "a takeover asks the store more than once"


async def _paused_at(logs: LogCluster, number: int, *, rests: bool, before: bool) -> bool:
    """Whether a takeover has this number of calls; it is paused in this one."""
    name = f"orders-{number}"
    log = await logs.log(name)
    former = await log.take_over()
    await former.add(b"former")
    if rests:
        await former.close()
    client, store = await logs.interposed_client()
    handle = store.real
    candidate = await client.open_log(name)
    rival = await (await logs.client()).open_log(name)
    leaders: list[octavo.LogWriter] = []
    led: list[object] = []

    async def meanwhile() -> None:
        await logs.metadata.advance(LEASE_SECONDS + 1, asleep=handle)
        leaders.append(await asyncio.wait_for(rival.lead(), WAIT_SECONDS))
        await leaders[0].add(b"rival")
        led.append(await _term_of(leaders[0], logs))

    pause = Pause(store, number, before=before, meanwhile=meanwhile)
    leading = asyncio.ensure_future(_lead(candidate))
    await eventually(lambda: leading.done() or pause.calls.count("lock") == 2)
    if pause.happened:
        (leader,) = leaders
        await leader.add(b"undisturbed")
        assert not leader.lost.is_set(), pause.calls
        assert [await _term_of(leader, logs)] == led, pause.calls  # a leader that is deposed for a moment heals
        await leader.close()
    writer = await asyncio.wait_for(leading, WAIT_SECONDS)
    if pause.calls.count("lock") == 2:
        await writer.add(b"candidate")
    store.restore()
    await writer.close()
    await former.close()
    return pause.happened


async def _term_of(leader: octavo.LogWriter, logs: LogCluster) -> object:
    """The ledger or the term that it writes, and whether that is being ended."""
    ledger_id = leader.statistics().replication.ledger_id
    if logs.layout == "chain":
        return ledger_id, (await logs.store.read_ledger(ledger_id)).value.state
    stream = (await logs.store.read_stream(ledger_id)).value
    return stream.term, stream.state


async def _lead(log: octavo.Log) -> octavo.LogWriter:
    return await log.lead()
