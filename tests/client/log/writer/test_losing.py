"""When a leader whose lock is lost asks for it again, and when it stops asking (rule P18). The loop is that of the
simulator, whose time passes at once."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple, cast

import pytest
from octavo.client.counts import ClientCounts
from octavo.client.log.seam.lead import LogLead
from octavo.client.log.writer.lock import LogLock
from octavo.client.log.writer.losing import LeadLoss, wait_lock_lost
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.metadata.store.driver import Kind
from octavo.metadata.store.values import Lease
from octavo.protocol.errors import MetadataUnavailableError, NotLeaderError, OctavoError
from simulation.engine.loop import SimulationLoop
from support.metadata.interposed_store import InterposedStore

LEASE_SECONDS = 9.0


class Lead:
    """Of a log that no other client has taken over."""

    name = "orders"

    async def check_lead(self) -> None:
        """No rival is known."""


class Leader(NamedTuple):
    """A client with the lock of its log."""

    server: MemoryServer
    store: InterposedStore
    lease: Lease

    @property
    def session(self) -> str:
        (session,) = self.server.sessions
        return session


type Way = Callable[[Leader], Awaitable[None]]
"""A way to lose the lock."""


async def run_out(leader: Leader) -> None:
    leader.server.end_session(leader.session)
    await leader.store.real.renew_leases()


async def delete_by_hand(leader: Leader) -> None:
    leader.server.delete(Kind.LOCK, "orders", expected=None, session=leader.session)
    await leader.store.real.renew_leases()


async def release(leader: Leader) -> None:
    await leader.lease.release()


def reason_of(lose: Way, ask: Callable[[], Awaitable[bool]], leads: Callable[[], bool]) -> OctavoError:
    """Why a client that loses the lock in this way does not lead any more. It calls ``ask`` to get the lock again."""

    async def lead() -> OctavoError:
        server = MemoryServer("losing", rng=random.Random(1))
        store = InterposedStore(open_memory_store(server, lease_seconds=LEASE_SECONDS, rng=random.Random(2)))
        async with store.real:
            leader = Leader(server, store, await store.real.lock("orders", "leader"))
            lock = LogLock(store.face, "orders", "leader", leader.lease)
            store.interpose("try_lock", lambda *_: ask())
            await lose(leader)
            return await wait_lock_lost(
                lock, cast(LogLead, Lead()), ClientCounts(), lease_seconds=LEASE_SECONDS, leads=leads
            )

    loop = SimulationLoop()
    try:
        error: OctavoError = loop.run_until_complete(lead())
        assert not loop.complaints, loop.complaints
        return error
    finally:
        loop.close()


def test_a_writer_that_has_ended_asks_no_more_for_the_lock_of_a_store_without_space() -> None:
    """While it leads, it asks three times per lease; the store answers reads, and no other client has the lock."""
    asked_at: list[float] = []

    async def ask() -> bool:
        asked_at.append(asyncio.get_running_loop().time())
        assert len(asked_at) <= 3, "it has ended"
        raise MetadataUnavailableError("the disk is full")

    error = reason_of(run_out, ask, lambda: len(asked_at) < 3)
    assert isinstance(error, NotLeaderError)
    assert "the metadata store has ended its session" in error.message
    assert [at - asked_at[0] for at in asked_at] == pytest.approx([0, LEASE_SECONDS / 3, 2 * LEASE_SECONDS / 3])


@pytest.mark.parametrize(
    ("lose", "reason"),
    [(release, "it was released"), (delete_by_hand, "another process has taken it, or it was deleted by hand")],
)
def test_a_lock_that_was_lost_while_its_session_went_on_is_not_asked_for_again(lose: Way, reason: str) -> None:
    async def ask() -> bool:
        raise AssertionError("the lock is asked for again")

    error = reason_of(lose, ask, lambda: True)
    assert isinstance(error, NotLeaderError)
    assert error.message == f"log orders: this client no longer leads ({reason})"


@pytest.mark.parametrize("asked_before", [True, False], ids=["before", "afterwards"])
@pytest.mark.parametrize("by_rival", [True, False], ids=["lost", "closed"])
def test_the_event_is_set_whenever_the_program_asks_for_it(asked_before: bool, by_rival: bool) -> None:
    counts = ClientCounts()
    loss = LeadLoss("orders", counts)
    if asked_before:
        assert not loss.event.is_set()
    if by_rival:
        loss.note(NotLeaderError("another client leads"))
    else:
        loss.end()
    assert loss.is_over
    assert loss.event.is_set()
    assert loss.event is loss.event
    assert (loss.reason is not None) == by_rival
    loss.note(NotLeaderError("again"))
    assert counts.leads_lost.total() == by_rival, "it is lost once"
