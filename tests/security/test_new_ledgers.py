"""Ledgers that do not exist yet: no client can fence them, pin its key to them, or fill a bookie with them
(rule S2)."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from octavo.bookie.config import load_config
from octavo.bookie.server.new_ledgers import NewLedgers
from octavo.metadata.stream.model import StreamKey
from octavo.protocol.entries import Digest, derive_secrets, make_verifier
from octavo.protocol.errors import MetadataUnavailableError, NoSuchLedgerError, UnauthorizedError
from octavo.protocol.ids import LedgerId
from octavo.protocol.messages import Added, LacAnswer, LacWritten, ReadFlag, ReadLac, WriteLac
from octavo.protocol.places import place
from support.clusters.tls_bookies import Cluster, cluster_of
from support.metadata.interposed_store import InterposedStore
from support.metadata.stream_metadata import open_stream
from support.raw_client import PASSWORD, RawClient, add, key_of, read, seal, seal_lac
from support.waiting import WAIT_SECONDS, eventually


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with cluster_of({"verify_new_ledgers": "true"}) as cluster:
        yield cluster


def attacker_of(cluster: Cluster) -> RawClient:
    host, _, port = cluster.bookies[0].address.rpartition(":")
    return RawClient(host, int(port))


def fence_of(ledger_id: int, password: bytes = PASSWORD) -> ReadLac:
    return ReadLac(ledger_id, key_of(ledger_id, password), ReadFlag.FENCE, 0, None, 0, 0, 0)


INVENTED_IDS = int(os.environ.get("OCTAVO_INVENTED_IDS", "400"))
TOGETHER = 100
"""Requests that the attacker sends without waiting for answers."""


async def test_a_ledger_of_the_future_is_neither_fenced_nor_pinned_nor_filled(cluster: Cluster) -> None:
    async with attacker_of(cluster) as attacker, cluster.client() as client:
        await attacker.greet()
        for attack in (
            fence_of(0),
            read(0, 0, 9, fence=True),
            add(0, seal(0, 0, [b"mine"])),
            add(0, seal(0, 0, [b"mine"]), recovery=True),
            WriteLac(0, key_of(0), 0, seal_lac(0, 0)),
        ):
            assert isinstance(await attacker.ask(attack), NoSuchLedgerError), attack
        assert cluster.bookies[0].service.storage.ledgers.known_ids() == []
        async with client.create_ledger(1, 1, 1, password=b"the victim's") as ledger:
            assert ledger.id == 0
            assert await ledger.add(b"first") == 0
            for attack in (fence_of(0), add(0, seal(0, 1, [b"mine"]))):
                assert isinstance(await attacker.ask(attack), UnauthorizedError), attack
            assert await ledger.add(b"second") == 1


async def test_a_wrong_key_is_refused_before_the_first_add_has_pinned_the_right_one(cluster: Cluster) -> None:
    async with attacker_of(cluster) as attacker, cluster.client() as client:
        await attacker.greet()
        async with client.create_ledger(1, 1, 1, password=b"the victim's") as ledger:
            for attack in (fence_of(0), add(0, seal(0, 0, [b"mine"]))):
                assert isinstance(await attacker.ask(attack), UnauthorizedError), attack
            assert await ledger.add(b"first") == 0


async def test_requests_that_wait_together_are_answered_and_the_ledger_is_looked_up_once(cluster: Cluster) -> None:
    async with attacker_of(cluster) as honest, cluster.client() as client:
        await honest.greet()
        ledger = await client.create_ledger(1, 1, 1, password=PASSWORD)
        ids = [honest.send(add(0, seal(0, number, [b"entry"]))) for number in range(50)]
        ids.append(honest.send(WriteLac(0, key_of(0), 0, seal_lac(0, 10))))
        async with asyncio.timeout(WAIT_SECONDS):
            answers = dict([await honest.receive_reply() for _ in ids])
        assert sorted(answers) == ids
        assert [answer for answer in answers.values() if answer != Added()] == [LacWritten()]
        read_ledgers = cluster.bookies[0].service.storage.ledgers.known_ids()
        assert read_ledgers == [0]
        fenced = await honest.ask(fence_of(0))
        assert isinstance(fenced, LacAnswer)
        assert fenced.fenced
        await ledger.close()


async def test_a_ledger_that_was_deleted_here_by_mistake_is_revived_by_the_first_request_that_brings_its_key(
    cluster: Cluster,
) -> None:
    """Rule B5: what the metadata have exists, also where the look at them was one for a new ledger."""
    storage = cluster.bookies[0].service.storage
    async with attacker_of(cluster) as honest, cluster.client() as client:
        await honest.greet()
        await client.create_ledger(1, 1, 1, password=PASSWORD)
        await storage.writer.delete(LedgerId(0))
        assert isinstance(await honest.ask(fence_of(0, b"another")), UnauthorizedError)
        assert storage.ledgers.is_deleted(LedgerId(0)), "a wrong key revives nothing"
        assert isinstance(await honest.ask(fence_of(0)), LacAnswer)
        assert not storage.ledgers.is_deleted(LedgerId(0))
        assert await honest.ask(add(0, seal(0, 0, [b"entry"]), recovery=True)) == Added()


async def test_a_fence_is_looked_up_once_although_it_pins_no_key(cluster: Cluster) -> None:
    new_ledgers = cluster.bookies[0].service.new_ledgers
    assert new_ledgers is not None
    async with attacker_of(cluster) as honest, cluster.client() as client:
        await honest.greet()
        await client.create_ledger(1, 1, 1, password=PASSWORD)
        assert new_ledgers.must_wait(fence_of(0))
        assert isinstance(await honest.ask(fence_of(0)), LacAnswer)
        assert not new_ledgers.must_wait(fence_of(0))
        assert new_ledgers.must_wait(fence_of(0, b"another")), "another key was not verified"
        assert not new_ledgers.must_wait(ReadLac(0, b"", ReadFlag.NONE, 0, None, 0, 0, 0))


async def test_a_stream_takes_each_of_its_keys_and_no_other(cluster: Cluster) -> None:
    store, ledger_id = cluster.store, await cluster.store.allocate_ledger_id()
    salts = {b"old": b"1" * 16, PASSWORD: b"2" * 16}
    keys = tuple(
        StreamKey(
            digest=Digest.CRC32C,
            verifier=make_verifier(derive_secrets(password, ledger_id), Digest.CRC32C, salt),
            salt=salt,
        )
        for password, salt in salts.items()
    )
    await store.create_stream(replace(open_stream(), ledger_id=ledger_id, keys=keys))
    new_ledgers = cluster.bookies[0].service.new_ledgers
    assert new_ledgers is not None
    for password in salts:
        await new_ledgers.verify(ledger_id, key_of(ledger_id, password))
    with pytest.raises(UnauthorizedError):
        await new_ledgers.verify(ledger_id, key_of(ledger_id, b"another"))
    async with attacker_of(cluster) as client:
        await client.greet()
        first = place(1, 0)
        assert await client.ask(replace(add(ledger_id, seal(ledger_id, first, [b"entry"])), term=1)) == Added()
        assert isinstance(await client.ask(fence_of(ledger_id, b"another")), UnauthorizedError)


async def test_invented_ids_are_remembered_nowhere(cluster: Cluster) -> None:
    service = cluster.bookies[0].service
    new_ledgers = service.new_ledgers
    assert new_ledgers is not None
    most = 0
    async with attacker_of(cluster) as attacker:
        await attacker.greet()
        for start in range(0, INVENTED_IDS, TOGETHER):
            for number in range(start, start + TOGETHER):
                attacker.send(fence_of(number) if number % 2 else add(number, seal(number, 0, [b"mine"])))
            for _ in range(TOGETHER):
                _, answer = await attacker.receive_reply()
                most = max(most, new_ledgers.remembered)
                assert isinstance(answer, NoSuchLedgerError)
    assert new_ledgers.remembered == 0
    assert most <= TOGETHER
    assert new_ledgers.refused == INVENTED_IDS
    assert service.storage.ledgers.known_ids() == []


async def test_a_look_up_that_fails_after_its_client_has_gone_is_no_defect(cluster: Cluster) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def read_either(_ledger_id: LedgerId) -> None:
        asked.set()
        await answered.wait()
        raise MetadataUnavailableError("no answer")

    store = InterposedStore(cluster.store)
    store.interpose("read_either", read_either)
    new_ledgers = NewLedgers(cluster.bookies[0].service.storage, store.face)
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    waiting = asyncio.ensure_future(new_ledgers.verify(LedgerId(1), b"key"))
    await asked.wait()
    waiting.cancel()
    await asyncio.wait([waiting])
    answered.set()
    await eventually(lambda: new_ledgers.remembered == 0)
    del waiting  # its traceback refers to the look-up
    gc.collect()
    assert complaints == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, False),
        ({"auth": "required", "key_file": "/k"}, True),
        ({"auth": "required", "key_file": "/k", "verify_new_ledgers": "false"}, False),
        ({"verify_new_ledgers": "true"}, True),
    ],
)
def test_new_ledgers_are_verified_where_authentication_is_required(settings: dict[str, str], expected: bool) -> None:
    config = load_config(None, {}, {"data_dir": Path("/b"), **settings})
    assert config.verifies_new_ledgers is expected
