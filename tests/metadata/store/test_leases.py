"""Leases whose making or release the store did not answer."""

import asyncio
import random
import time

import pytest
from octavo.metadata.memory import MemoryRecordStore, MemoryServer
from octavo.metadata.store.driver import Kind, Unchanged
from octavo.metadata.store.leases import RENEWALS_PER_LEASE, HeldLease, LeaseKeeper
from octavo.metadata.store.values import LeaseEnd, Version
from octavo.protocol.errors import MetadataUnavailableError
from simulation.engine.loop import SimulationLoop
from support.waiting import eventually

LEASE_SECONDS = 10.0


class Unreliable(MemoryRecordStore):
    """Makes and deletes nothing while it is ``silent``; ``acts`` tells whether that happens although the answer is
    lost."""

    silent = False
    silent_renewals = False
    acts = False
    may_answer: asyncio.Event | None = None
    """The answer to the making of a record waits for this; ``making`` tells that it does."""
    making = False

    async def create_in_session(
        self,
        kind: Kind,
        key: str,
        value: bytes,
        session: str,
        *,
        take_over: bool,
        unchanged: Unchanged | None = None,
    ) -> Version | None:
        made = None
        if not self.silent or self.acts:
            made = await super().create_in_session(kind, key, value, session, take_over=take_over, unchanged=unchanged)
        if self.silent:
            raise MetadataUnavailableError("no answer")
        if self.may_answer is not None:
            self.making = True
            await self.may_answer.wait()
        return made

    async def renew_session(self, session: str, lease_seconds: float) -> set[tuple[Kind, str]] | None:
        if self.silent_renewals:
            raise MetadataUnavailableError("no answer")
        return await super().renew_session(session, lease_seconds)

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


async def begin_session(process: Process) -> None:
    """What fails from now on is not the beginning of the session."""
    assert await process.keeper.acquire(Kind.LOCK, "another", b"", take_over=False) is not None


async def release_in_vain(process: Process, *, acts: bool) -> None:
    lease = await process.keeper.acquire(Kind.LOCK, "auditor", b"", take_over=False)
    assert lease is not None
    process.records.silent, process.records.acts = True, acts
    with pytest.raises(MetadataUnavailableError):
        await lease.release()
    assert lease.lost


@pytest.mark.parametrize("acts", [False, True])
async def test_a_lock_that_may_have_been_made_is_given_back_by_the_next_renewal(
    processes: tuple[Process, Process], acts: bool
) -> None:
    """No process could ever have it otherwise, not even this one, while its session goes on."""
    one, other = processes
    await begin_session(one)
    one.records.silent, one.records.acts = True, acts
    with pytest.raises(MetadataUnavailableError):
        await one.lock()
    assert await other.lock() != acts
    one.records.silent = False
    await one.keeper.renew()
    if acts:
        assert await other.lock()
    await one.keeper.renew()
    assert not await one.lock(), "another process's lock is left alone"
    for process in processes:
        await process.keeper.close()


async def test_the_process_whose_lock_may_have_been_made_gets_it_at_its_next_try(
    processes: tuple[Process, Process],
) -> None:
    one, other = processes
    await begin_session(one)
    one.records.silent, one.records.acts = True, True
    with pytest.raises(MetadataUnavailableError):
        await one.lock()
    one.records.silent = False
    assert await one.lock()
    await one.keeper.renew()
    assert not await other.lock(), "the lock that was made since is not given back"
    for process in processes:
        await process.keeper.close()


async def test_a_lock_that_is_held_stays_held_when_another_try_of_its_process_gets_no_answer(
    processes: tuple[Process, Process],
) -> None:
    one, other = processes
    lease = await one.keeper.acquire(Kind.LOCK, "auditor", b"", take_over=False)
    assert lease is not None
    one.records.silent = True
    with pytest.raises(MetadataUnavailableError):
        await one.lock()
    one.records.silent = False
    await one.keeper.renew()
    assert not lease.lost
    assert not await other.lock()
    for process in processes:
        await process.keeper.close()


async def test_a_lock_whose_answer_comes_late_stays_held_when_another_try_gets_none(
    processes: tuple[Process, Process],
) -> None:
    one, other = processes
    await begin_session(one)
    one.records.may_answer = asyncio.Event()
    acquiring = asyncio.ensure_future(one.keeper.acquire(Kind.LOCK, "auditor", b"", take_over=False))
    await eventually(lambda: one.records.making)
    one.records.silent = True
    with pytest.raises(MetadataUnavailableError):
        await one.lock()
    one.records.silent = False
    one.records.may_answer.set()
    lease = await acquiring
    assert lease is not None
    await one.keeper.renew()
    await one.keeper.renew()
    assert not lease.lost
    assert not await other.lock()
    for process in processes:
        await process.keeper.close()


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


# --- why a lease was lost ---------------------------------------------------------------------------------------------


async def test_a_lease_that_was_not_renewed_says_how_late_and_whether_the_store_or_the_process_was_silent() -> None:
    now = 100.0
    server = MemoryServer(clock=lambda: now)
    records = Unreliable(server)
    keeper = LeaseKeeper(records, LEASE_SECONDS, lambda: now, lambda: f"session at {now}")
    stood_still = await keeper.acquire(Kind.LOCK, "a", b"", take_over=False)
    assert stood_still is not None
    assert stood_still.loss is None
    now += 13.0
    late = "the lease of 10 s was not renewed for 13.0 s: was the event loop blocked, or the process stopped?"
    assert stood_still.loss == LeaseEnd(late, ran_out=True), "by its own clock"
    await keeper.renew()
    assert stood_still.loss == LeaseEnd(late, ran_out=True)

    unanswered = await keeper.acquire(Kind.LOCK, "b", b"", take_over=False)
    assert unanswered is not None
    records.silent_renewals = True
    for _ in range(4):
        now += LEASE_SECONDS / RENEWALS_PER_LEASE
        await keeper.renew()
    assert unanswered.loss is not None
    assert unanswered.loss.reason.startswith("the lease of 10 s was not renewed for 13.3 s: the metadata store did not")
    assert unanswered.loss.ran_out
    records.silent_renewals = False

    ended = await keeper.acquire(Kind.LOCK, "c", b"", take_over=False)
    assert ended is not None
    server.end_session(ended.session)
    await keeper.renew()
    assert ended.loss == LeaseEnd("the metadata store has ended its session", ran_out=True)

    taken = await keeper.acquire(Kind.LOCK, "d", b"", take_over=False)
    assert taken is not None
    server.delete(Kind.LOCK, "d", expected=None, session=taken.session)
    await keeper.renew()
    assert taken.loss == LeaseEnd("another process has taken it, or it was deleted by hand")

    released = await keeper.acquire(Kind.LOCK, "e", b"", take_over=False)
    assert released is not None
    await released.release()
    now += 2 * LEASE_SECONDS
    assert released.loss == LeaseEnd("it was released")
    await keeper.close()


@pytest.mark.parametrize(("silent_seconds", "is_lost"), [(4.2, False), (8.0, True)])
def test_a_lease_outlasts_a_store_that_is_silent_for_less_than_the_lease_time(
    silent_seconds: float, is_lost: bool
) -> None:
    """What is asked meanwhile is never answered. A renewal that was not answered is repeated soon."""
    loop = SimulationLoop()

    class Silent(MemoryRecordStore):
        async def renew_session(self, session: str, lease_seconds: float) -> set[tuple[Kind, str]] | None:
            if 3.0 <= loop.time() - began_at < 3.0 + silent_seconds:
                await asyncio.Event().wait()
            return await super().renew_session(session, lease_seconds)

    async def run() -> None:
        keeper = LeaseKeeper(
            Silent(MemoryServer(clock=loop.time)), LEASE_SECONDS, loop.time, lambda: f"session at {loop.time()}"
        )
        lease = await keeper.acquire(Kind.LOCK, "a", b"", take_over=False)
        assert lease is not None
        await asyncio.sleep(3 * LEASE_SECONDS)
        assert lease.lost == is_lost
        await keeper.close()

    began_at = loop.time()
    loop.run_until_complete(run())
    loop.close()


async def test_a_lease_counts_from_when_it_was_asked_for() -> None:
    """The answer may have been under way for long: the store counts from before it."""
    now = 0.0

    class Slow(MemoryRecordStore):
        async def renew_session(self, session: str, lease_seconds: float) -> set[tuple[Kind, str]] | None:
            nonlocal now
            held = await super().renew_session(session, lease_seconds)
            now += 3.0
            return held

    records = Slow(MemoryServer(clock=lambda: now))
    keeper = LeaseKeeper(records, LEASE_SECONDS, lambda: now, lambda: "session")
    lease = await keeper.acquire(Kind.LOCK, "a", b"", take_over=False)
    assert lease is not None
    await keeper.renew()
    assert lease.remaining_seconds == LEASE_SECONDS - 3.0
    await keeper.close()


async def test_a_renewal_whose_answer_came_in_a_long_turn_counts() -> None:
    """A turn of a busy loop takes longer than a renewal may: what came in it is not taken for silence."""
    loop = asyncio.get_running_loop()

    class Busy(MemoryRecordStore):
        async def renew_session(self, session: str, lease_seconds: float) -> set[tuple[Kind, str]] | None:
            answered = loop.create_future()
            loop.call_soon(self._take_long, answered)
            await answered
            return await super().renew_session(session, lease_seconds)

        @staticmethod
        def _take_long(answered: asyncio.Future[None]) -> None:
            until = time.monotonic() + 2 * 0.3 / RENEWALS_PER_LEASE
            while time.monotonic() < until:
                pass
            answered.set_result(None)

    keeper = LeaseKeeper(Busy(MemoryServer()), 0.3, lambda: 0.0, lambda: "session")
    lease = await keeper.acquire(Kind.LOCK, "a", b"", take_over=False)
    assert lease is not None
    await keeper.renew()
    assert keeper.answered
    await keeper.close()


class Gathering(MemoryRecordStore):
    """Answers deletions once it ``may_delete``, and counts them until then."""

    asked = 0

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.may_delete = asyncio.Event()

    async def delete_in_session(self, kind: Kind, key: str, session: str) -> bool:
        self.asked += 1
        await self.may_delete.wait()
        return await super().delete_in_session(kind, key, session)


async def test_tasks_that_release_at_the_same_time_go_on_together() -> None:
    """What each of them does next can go to the store together: a client that closes a thousand logs, say."""
    records = Gathering(MemoryServer("leases", clock=lambda: 0.0, rng=random.Random(1)))
    rng = random.Random(1)
    keeper = LeaseKeeper(records, LEASE_SECONDS, lambda: 0.0, lambda: f"{rng.getrandbits(128):032x}")
    leases = [await keeper.acquire(Kind.LOCK, f"lock-{number}", b"", take_over=False) for number in range(20)]
    turn = 0
    went_on: list[int] = []

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def release(lease: HeldLease | None) -> None:
        assert lease is not None
        await lease.release()
        went_on.append(turn)

    counting = asyncio.create_task(count_turns())
    releasing = [asyncio.create_task(release(lease)) for lease in leases]
    await eventually(lambda: records.asked == 1, what="the first deletion is asked for")
    records.may_delete.set()
    await asyncio.gather(*releasing)
    counting.cancel()
    assert records.asked == 20
    assert len(set(went_on)) <= 3, "the first, the one that deletes for all others, and these; not one a turn"
    await keeper.close()
