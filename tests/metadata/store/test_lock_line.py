"""Places in the line for a lock (rule M4)."""

import asyncio
import random

from octavo.metadata import MetadataStore
from octavo.metadata.memory import MemoryRecordStore, MemoryServer
from octavo.metadata.store.driver import Kind
from support.waiting import WAIT_SECONDS, loop_turns

LEASE_SECONDS = 10.0


class HeldRecords(MemoryRecordStore):
    """Lists nothing of the line before :attr:`may_list` is set; :attr:`lists` tells that it would."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.lists, self.may_list = asyncio.Event(), asyncio.Event()

    async def list_keys(self, kind: Kind, *, prefix: str, after: str, limit: int) -> list[str]:
        if kind is Kind.WAITER:
            self.lists.set()
            await self.may_list.wait()
        return await super().list_keys(kind, prefix=prefix, after=after, limit=limit)


async def test_a_client_whose_session_ends_while_it_looks_at_the_line_joins_again_at_its_end() -> None:
    """Its first place does not count, nor does it wait for the lock without a place, so that later clients pass."""
    now = 0.0
    server = MemoryServer("line", clock=lambda: now, rng=random.Random(1))

    def handle(records: MemoryRecordStore, seed: int) -> MetadataStore:
        return MetadataStore(records, lease_seconds=LEASE_SECONDS, clock=server.now, rng=random.Random(seed))

    paused = HeldRecords(server)
    slow = handle(paused, 0)
    holder, second, last = (handle(MemoryRecordStore(server), seed) for seed in (1, 2, 3))
    got: list[str] = []
    waiting: list[asyncio.Task[None]] = []

    async def wait(name: str, store: MetadataStore) -> None:
        lease = await store.lock("leader", name)
        got.append(name)
        await lease.release()

    async with holder, slow, second, last, asyncio.timeout(WAIT_SECONDS):
        held = await holder.lock("leader", "holder")
        waiting.append(asyncio.create_task(wait("slow", slow)))
        await paused.lists.wait()
        for _ in range(2):  # the process of `slow` stands still, and the holder renews its lease
            now += 0.6 * LEASE_SECONDS
            await holder.renew_leases()
        server.end_late_sessions()
        waiting.append(asyncio.create_task(wait("second", second)))
        await loop_turns()
        paused.may_list.set()
        await loop_turns()
        waiting.append(asyncio.create_task(wait("last", last)))
        await loop_turns()
        await held.release()
        await asyncio.gather(*waiting)
    assert got == ["second", "slow", "last"]
