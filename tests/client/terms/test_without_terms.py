"""Bookies that do not know terms, as older versions do not: no stream begins on one, nothing is sent to one, and errors
name it (rule T7)."""

import asyncio
from typing import Any

import pytest
from octavo.client.arguments import Protection
from octavo.client.terms.term_writer import TermWriter
from octavo.protocol.errors import LedgerRecoveryError, NotEnoughBookiesError, OctavoError, QuorumLostError
from octavo.protocol.messages import CAPABILITY_TERMS, Add, ReadFlag, ReadLac
from octavo.protocol.quorums import Quorums
from support.clusters.fake_bookie import FakeBookie
from support.clusters.streams import StreamCluster, stream_cluster
from support.clusters.writing import DIGEST, PASSWORD
from support.waiting import eventually

THREE = Quorums(3, 3, 2)


def make_old(bookie: FakeBookie) -> None:
    """Its next connections are to an older version."""
    bookie.capabilities = tuple(set(bookie.capabilities) - {CAPABILITY_TERMS})


async def replace_by_older_version(bookie: FakeBookie) -> None:
    await bookie.stop()
    make_old(bookie)
    bookie.requests.clear()
    await bookie.start()


FENCE = ReadFlag.FENCE
PATIENT: dict[str, Any] = {
    "add_quorum_timeout_seconds": 3.0, "resend_delay_seconds": 0.2, "reconnect_delay_seconds_min": 0.5,
    "reconnect_delay_seconds_max": 1.0,
}  # fmt: skip


def asked(bookie: FakeBookie) -> list[object]:
    """What changes a ledger among the requests that came."""
    return [one for one in bookie.requests if isinstance(one, Add) or (isinstance(one, ReadLac) and one.flags & FENCE)]


async def create(cluster: StreamCluster, name: str = "first") -> TermWriter:
    return await cluster.client(name).streams.create(THREE, password=PASSWORD)


async def test_no_stream_begins_on_an_older_version() -> None:
    async with stream_cluster(4) as cluster:
        old = cluster.fake.bookies[1]
        make_old(old)
        for number in range(8):
            writer = await create(cluster, str(number))
            await writer.add(b"a")
            await writer.close()
            assert old.bookie_id not in (await cluster.stored(writer.id)).members
        ledger_id = await cluster.fake.store.allocate_ledger_id()
        resting = await cluster.client("at rest").streams.create_at_rest(
            ledger_id, THREE, Protection(PASSWORD, DIGEST, False), custom_metadata={}
        )
        assert old.bookie_id not in resting.value.members
        assert asked(old) == []


async def test_where_too_few_know_terms_the_error_names_the_older_ones() -> None:
    async with stream_cluster(3) as cluster:
        old = cluster.fake.bookies[2]
        make_old(old)
        named = f"bookie {old.bookie_id} does not know terms, which streams need: upgrade"
        with pytest.raises(NotEnoughBookiesError, match=named) as refused:
            await create(cluster)
        assert refused.value.retryable
        make_old(cluster.fake.bookies[0])
        with pytest.raises(NotEnoughBookiesError, match=r"bookies \S+, \S+ do not know terms"):
            await create(cluster, "second")
        assert [ledger_id async for ledger_id in cluster.fake.store.list_ledgers()] == []


async def test_no_change_of_quorums_places_an_older_version() -> None:
    async with stream_cluster(4) as cluster:
        old = cluster.fake.bookies[3]
        make_old(old)
        writer = await create(cluster)
        await writer.add(b"a")
        with pytest.raises(NotEnoughBookiesError, match=f"bookie {old.bookie_id} does not know terms"):
            await writer.change_quorums(Quorums(4, 3, 2))
        await writer.add(b"b")
        await writer.close()
        stream = await cluster.stored(writer.id)
        assert (stream.term, stream.last_fragment.quorums) == (1, THREE)
        assert asked(old) == []


async def test_a_member_that_is_an_older_version_is_sent_nothing_and_takeovers_go_on() -> None:
    """Its first fence would be one of every term, and end each writer that comes after."""
    async with stream_cluster(3) as cluster:
        writer = await create(cluster)
        await writer.add(b"a")
        old = cluster.fake.bookies[0]
        await replace_by_older_version(old)
        assert await writer.add(b"b") == 1
        for term in (2, 3):
            writer = await cluster.client(str(term), recovery_timeout_seconds=0.5).take_over(writer.id)
            assert (writer.term, await writer.add(b"c")) == (term, term)
        assert asked(old) == []
        assert old.bookie_id in writer.stream.last_fragment.bookies, "there is no other one"
        await old.stop()
        old.capabilities = (*old.capabilities, CAPABILITY_TERMS)
        await old.start()
        await writer.add(b"d")
        await eventually(lambda: any(isinstance(one, Add) for one in old.requests))
        await writer.close()


async def test_a_member_that_becomes_an_older_version_is_replaced() -> None:
    async with stream_cluster(4) as cluster:
        writer = await create(cluster)
        await writer.add(b"a")
        names = writer.stream.last_fragment.bookies
        old = next(one for one in cluster.fake.bookies if one.bookie_id in names)
        await replace_by_older_version(old)

        async def replaced() -> bool:
            await writer.add(b"b")  # a change begins while an add waits for the bookie
            return old.bookie_id not in (await cluster.stored(writer.id)).last_fragment.bookies

        await eventually(replaced)
        assert asked(old) == []
        await writer.close()


async def test_an_older_version_is_no_spare_and_asking_for_one_is_not_repeated_at_once() -> None:
    async with stream_cluster(4) as cluster:
        old = cluster.fake.bookies[3]
        make_old(old)
        client = cluster.client("first", **PATIENT)
        writer = await client.streams.create(THREE, password=PASSWORD)
        await writer.add(b"a")
        questions = 0
        real = cluster.fake.interposed.real.list_bookies

        async def counted() -> object:
            nonlocal questions
            questions += 1
            await asyncio.sleep(0)
            return await real()

        cluster.fake.interposed.interpose("list_bookies", counted)
        for bookie in cluster.fake.bookies[:2]:
            await bookie.stop()
        with pytest.raises(QuorumLostError, match=f"bookie {old.bookie_id} does not know terms"):
            await writer.add(b"b")
        assert asked(old) == []
        assert questions < 50, "not more than a few each time that a spare is looked for"


async def test_a_takeover_without_enough_bookies_names_the_older_ones() -> None:
    async with stream_cluster(3) as cluster:
        writer = await create(cluster)
        await writer.add(b"a")
        for bookie in cluster.fake.bookies[:2]:
            await replace_by_older_version(bookie)
        for error in (LedgerRecoveryError, OctavoError):
            with pytest.raises(error, match=f"bookie {cluster.fake.bookies[0].bookie_id} does not know terms"):
                await cluster.client("second", recovery_timeout_seconds=0.2).take_over(writer.id)
        assert [asked(bookie) for bookie in cluster.fake.bookies[:2]] == [[], []]
