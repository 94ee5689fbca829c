"""Leases whose release did not reach the store."""

import random

import pytest
from octavo.metadata.leases import LeaseKeeper
from octavo.metadata.memory import MemoryRecordStore, MemoryServer
from octavo.metadata.records import Kind
from octavo.protocol.errors import MetadataUnavailableError

LEASE_SECONDS = 10.0


class Unreliable(MemoryRecordStore):
    """Deletes nothing while it is ``silent``; ``acts`` tells whether a deletion happens although its answer is lost."""

    silent = False
    acts = False

    async def delete_in_session(self, kind: Kind, key: str, session: str) -> bool:
        if not self.silent or self.acts:
            await super().delete_in_session(kind, key, session)
        if self.silent:
            raise MetadataUnavailableError("no answer")
        return True


class Process:
    """A handle of one process."""

    def __init__(self, server: MemoryServer, seed: int) -> None:
        rng = random.Random(seed)
        self.records = Unreliable(server)
        self.keeper = LeaseKeeper(self.records, LEASE_SECONDS, lambda: 0.0, lambda: f"{rng.getrandbits(128):032x}")

    async def lock(self) -> bool:
        """Whether the lock is ours now."""
        return await self.keeper.acquire(Kind.LOCK, "auditor", b"", take_over=False) is not None


@pytest.fixture
def processes() -> tuple[Process, Process]:
    server = MemoryServer("leases", clock=lambda: 0.0, rng=random.Random(1))
    return Process(server, 1), Process(server, 2)


async def release_in_vain(process: Process, *, acts: bool) -> None:
    lease = await process.keeper.acquire(Kind.LOCK, "auditor", b"", take_over=False)
    assert lease is not None
    process.records.silent, process.records.acts = True, acts
    with pytest.raises(MetadataUnavailableError):
        await lease.release()
    assert lease.lost


@pytest.mark.parametrize("acts", [False, True])
async def test_a_release_that_failed_is_made_up_for_by_the_next_renewal(
    processes: tuple[Process, Process], acts: bool
) -> None:
    one, other = processes
    await release_in_vain(one, acts=acts)
    await one.keeper.renew()  # the session goes on, and with it what it holds
    assert await other.lock() == acts
    one.records.silent = False
    await one.keeper.renew()
    if not acts:
        assert await other.lock()
    await one.keeper.renew()
    assert not await one.lock(), "another process's lock is left alone"
    for process in processes:
        await process.keeper.close()


async def test_the_same_process_can_have_the_lock_again(processes: tuple[Process, Process]) -> None:
    one, other = processes
    await release_in_vain(one, acts=False)
    with pytest.raises(MetadataUnavailableError):
        await one.lock()
    one.records.silent = False
    assert await one.lock()
    await one.keeper.renew()
    assert not await other.lock(), "the lock that was taken since is not released"
    for process in processes:
        await process.keeper.close()
