"""Consumer groups at a gateway under test: the clock by which sessions end, bookies that wait, pairs of members."""

import asyncio
from collections.abc import Awaitable, Callable

from octavo.gateway.codes import Code
from octavo.gateway.gateway import Gateway
from octavo.protocol.messages import Op
from support.clusters.gateway_cluster import GatewayCluster
from support.kafka.groups import GroupClient
from support.waiting import eventually


class SteadyClock:
    """The clock by which sessions end."""

    def __init__(self) -> None:
        self.ms = 1000

    def __call__(self) -> int:
        return self.ms


type Connect = Callable[..., Awaitable[GroupClient]]


def pass_time(cluster: GatewayCluster, gateway: Gateway, ms: int) -> None:
    """Let this time pass by the clock of sessions."""
    assert isinstance(cluster.steady_ms, SteadyClock)
    cluster.steady_ms.ms += ms
    gateway.coordinators.pass_time()


def hold(cluster: GatewayCluster, op: Op) -> None:
    """Let the answers of all bookies wait."""
    for bookie in cluster.logs.bookies:
        bookie.hold(op)


def release(cluster: GatewayCluster, op: Op) -> None:
    """Let the answers of all bookies leave."""
    for bookie in cluster.logs.bookies:
        bookie.release(op)


async def pair(connect: Connect) -> tuple[GroupClient, GroupClient]:
    """Two members of a stable group, the leader first."""
    first, second = await connect(), await connect()
    await first.enter()
    joining = asyncio.create_task(second.join())
    await eventually(lambda: is_code(first.heartbeat(), Code.REBALANCE_IN_PROGRESS))
    (joined, _) = await asyncio.gather(first.join(), joining)
    assert sorted(joined.members) == sorted([first.member_id, second.member_id])
    shares = {first.member_id: b"0", second.member_id: b"1"}
    answers = await asyncio.gather(first.sync(shares), second.sync())
    assert list(answers) == [(Code.NONE, b"0"), (Code.NONE, b"1")]
    return first, second


async def is_code(asked: Awaitable[Code], code: Code) -> bool:
    """Whether this is the answer now."""
    return await asked is code


async def is_offset(asked: Awaitable[int], offset: int) -> bool:
    """Whether this is the committed offset now."""
    return await asked == offset
