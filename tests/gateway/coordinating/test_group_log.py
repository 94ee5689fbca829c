"""The log of a coordinator on bookies in memory: it is truncated only below what was added once more (rule K10)."""

import asyncio
from contextlib import suppress
from typing import NamedTuple

import pytest
from octavo.client.log.log import Log
from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.coordinating.coordinator import Clocks, Committing, Coordinator, GroupLimits
from octavo.gateway.coordinating.group_log import GroupLog, read_commits
from octavo.gateway.groups.commits import Commits
from octavo.gateway.groups.entries import Committed, OffsetsCommitted
from octavo.gateway.groups.member import Joining, Protocol, Syncing
from octavo.gateway.groups.places import Place
from octavo.protocol.errors import MetadataError
from octavo.protocol.messages import Op
from support.clusters.gateway_cluster import GatewayCluster
from support.waiting import eventually, loop_turns

FIRST = Place("aa", 0)


class Led(NamedTuple):
    """A log that is led, and how its lease is."""

    log: Log
    group_log: GroupLog
    lease: list[bool]


async def lead(cluster: GatewayCluster, name: str = "groups", *, restate_bytes: int = 1) -> Led:
    client = await cluster.logs.client()
    log = await client.create_log(name, 3, 3, 2)
    writer = await log.lead()
    commits, lease = Commits(restate_bytes=restate_bytes), [True]
    await read_commits(log, writer.end, commits, lambda _topic_id: True)
    group_log = GroupLog(
        log, writer, commits, is_current=lambda: lease[0], is_live=lambda _topic_id: True, on_lost=lambda: None
    )
    return Led(log, group_log, lease)


def commit(offset: int) -> OffsetsCommitted:
    return OffsetsCommitted("billing", {FIRST: Committed(offset, -1, "", 0)})


def hold(cluster: GatewayCluster) -> None:
    for bookie in cluster.logs.bookies:
        bookie.hold(Op.ADD)


def release(cluster: GatewayCluster) -> None:
    for bookie in cluster.logs.bookies:
        bookie.release(Op.ADD)


async def test_the_log_is_truncated_once_what_was_added_once_more_is_durable(cluster: GatewayCluster) -> None:
    log, group_log, _ = await lead(cluster)
    await group_log.add(commit(5))
    hold(cluster)  # the groups are restated from the next turn of the loop on
    await loop_turns()
    assert log.first_position == 0
    release(cluster)
    await eventually(lambda: log.first_position >= 1)
    await group_log.close()


async def test_a_coordinator_that_loses_its_log_while_it_restates_truncates_nothing(cluster: GatewayCluster) -> None:
    log, group_log, lease = await lead(cluster)
    await group_log.add(commit(5))
    hold(cluster)
    await loop_turns()
    lease[0] = False
    with pytest.raises(RefusedError, match="lease"):
        group_log.check_leads()
    await loop_turns()
    release(cluster)
    await group_log.close()
    assert log.first_position == 0
    found = Commits()
    again = await (await cluster.logs.client()).open_log("groups")
    await read_commits(again, await again.refresh(), found, lambda _topic_id: True)
    record = found.find("billing")
    assert record is not None
    assert record.offsets[FIRST].offset == 5


async def test_an_entry_of_a_newer_release_stops_the_coordinator(cluster: GatewayCluster) -> None:
    log = await (await cluster.logs.client()).create_log("groups", 3, 3, 2)
    async with log.lead() as writer:
        await writer.add(b"octavo group\n{}")
        end = writer.end
    with pytest.raises(MetadataError, match="entry 0 of log groups"):
        await read_commits(log, end, Commits(), lambda _topic_id: True)


async def test_an_answer_that_comes_after_the_lease_has_ended_is_not_given(cluster: GatewayCluster) -> None:
    """Another gateway may have begun the next generation meanwhile."""
    _, group_log, lease = await lead(cluster, restate_bytes=1 << 20)
    clocks = Clocks(lambda: 0, lambda: 1000)
    coordinator = Coordinator(group_log, clocks, lambda: "m1", GroupLimits(), lambda _name: None)
    joined = await coordinator.join("g", Joining("", None, 10_000, 10_000, "consumer", (Protocol("range", b""),)))
    assert joined.code is Code.NONE
    hold(cluster)
    syncing = asyncio.create_task(coordinator.sync("g", Syncing("m1", None, 1, {"m1": b"mine"})))
    await loop_turns()
    lease[0] = False
    release(cluster)
    with pytest.raises(RefusedError) as refused:
        await syncing
    assert refused.value.code is Code.NOT_COORDINATOR
    with pytest.raises(RefusedError):
        coordinator.heartbeat("g", Committing("m1", None, 1))
    with pytest.raises(RefusedError):
        coordinator.record("g")
    with suppress(RefusedError):
        await group_log.close()


async def test_a_join_whose_wait_ends_is_not_answered_once_the_lease_has_ended(cluster: GatewayCluster) -> None:
    """The member would take part in a generation that another gateway knows nothing of."""
    _, group_log, lease = await lead(cluster, restate_bytes=1 << 20)
    names = iter(("m1", "m2"))
    coordinator = Coordinator(
        group_log, Clocks(lambda: 0, lambda: 1000), lambda: next(names), GroupLimits(), lambda _: None
    )
    joining = Joining("", None, 10_000, 10_000, "consumer", (Protocol("range", b""),))
    await coordinator.join("g", joining)
    await coordinator.sync("g", Syncing("m1", None, 1, {"m1": b"mine"}))
    waiting = asyncio.create_task(coordinator.join("g", joining))
    await loop_turns()
    assert not waiting.done(), "the first member has not joined again"
    again = asyncio.create_task(coordinator.join("g", joining._replace(member_id="m1")))
    await asyncio.sleep(0)  # both are in the next generation; the one that has waited is not told yet
    lease[0] = False
    with pytest.raises(RefusedError) as refused:
        await waiting
    assert refused.value.code is Code.NOT_COORDINATOR
    assert (await again).generation == 2
