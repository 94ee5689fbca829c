"""What the auditor asks members of a ledger, and when it asks again (rule A11)."""

import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.cluster.repair_states import BookieCondition, Condition, RepairStates
from octavo.protocol.errors import BookieOverloadedError
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import Op
from octavo.repair.audit.rounds import Rounds
from octavo.repair.base.settings import RepairSettings
from support.clusters.local_bookie import MemoryBookie
from support.clusters.reading import Cluster, HandmadeLedger, cluster_of
from support.waiting import WAIT_SECONDS

AWAY = BookieId("b1")


@dataclass
class Audited:
    """The rounds of an auditor, and a closed ledger of which :data:`AWAY` lacks an entry."""

    cluster: Cluster
    rounds: Rounds
    ledger: HandmadeLedger

    async def round(self, states: RepairStates = RepairStates()) -> list[BookieId]:  # noqa: B008 - immutable
        """Ask whom there is to ask; the members that lack something of the ledger."""
        await self.rounds.take_round(states, ())
        holes = self.rounds.take_holes()
        assert {ledger_id for ledger_id, _ in holes} <= {self.ledger.id}
        return [name for _, name in holes]


@pytest.fixture
async def audited() -> AsyncIterator[Audited]:
    async with cluster_of(3) as cluster, contextlib.AsyncExitStack() as stack:
        ledger = await cluster.ledger()
        ledger.add_numbered(5)
        await ledger.close()
        cluster.bookie(AWAY).forget(ledger.id, 3)
        bookie = MemoryBookie("b0", cluster.store, await cluster.store.cluster_id())
        pool = ConnectionPool(
            cluster.store, cluster_id=bookie.cluster_id, options=cluster.options, rng=random.Random(5)
        )
        stack.push_async_callback(pool.close)
        rounds = Rounds(bookie, pool, RepairSettings(audit_seconds=1e9, request_timeout_seconds=WAIT_SECONDS))
        yield Audited(cluster, rounds, ledger)


@pytest.mark.parametrize("why", ["it is missing", "it does not answer"])
async def test_a_member_that_was_away_when_it_was_asked_is_asked_once_it_returns(audited: Audited, why: str) -> None:
    states = RepairStates()
    if why == "it is missing":
        states = RepairStates({AWAY: BookieCondition(Condition.MISSING, 0)})
    else:
        audited.cluster.bookie(AWAY).refuse(Op.MISSING, BookieOverloadedError("busy"), times=1)
    assert await audited.round(states) == []
    assert await audited.round() == []  # not in every round
    audited.rounds.on_returned(AWAY)
    assert await audited.round() == [AWAY]
    audited.rounds.on_returned(AWAY)
    assert await audited.round() == []  # it has answered
    assert audited.cluster.bookie("b2").count(Op.MISSING) == 2
