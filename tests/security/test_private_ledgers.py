"""Private ledgers (rule S3): bookies give their entries to clients with the key, and to repairs, and to no others."""

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

import pytest
from octavo.metadata import open_metadata_store
from octavo.protocol.errors import InvalidArgumentError, OctavoError, UnauthorizedError
from octavo.protocol.ids import LedgerId
from octavo.protocol.messages import (
    Add,
    Added,
    AddFlag,
    LacAnswer,
    ListEntries,
    Missing,
    Read,
    ReadAnswer,
    ReadFlag,
    ReadLac,
    Reply,
    Request,
)
from octavo.protocol.places import place
from octavo.security.roles import Role
from support.clusters.principals import DOCUMENTS, GUARDED, raw
from support.clusters.tls_bookies import Cluster, cluster_of
from support.disks.copies import StorageHost
from support.disks.faulty_filesystem import MemoryFileSystem
from support.metadata.memory_stores import memory_uri
from support.raw_client import PASSWORD, RawClient, key_of, seal
from support.waiting import WAIT_SECONDS, eventually

LEDGER = 7
KEY = key_of(LEDGER)
WRONG = key_of(LEDGER, b"another")


def read_of(key: bytes, flags: ReadFlag = ReadFlag.NONE, ledger_id: int = LEDGER) -> Read:
    return Read(ledger_id, key, flags, 0, 0, 9, 1, (0,), 10, 1 << 20)


def lac_of(key: bytes, flags: ReadFlag = ReadFlag.NONE, *, wait_milliseconds: int = 0) -> ReadLac:
    return ReadLac(LEDGER, key, flags, 0, None, wait_milliseconds, 10, 1 << 20)


def private_add(first: int = 0, *, ledger_id: int = LEDGER, flags: AddFlag = AddFlag.PRIVATE) -> Add:
    return Add(ledger_id, key_of(ledger_id), flags, 0, seal(ledger_id, first, [b"secret"]))


READS: dict[str, Request] = {
    "read": read_of(b""),
    "read with the key": read_of(KEY),
    "read with another key": read_of(WRONG),
    "read_lac": lac_of(b""),
    "read_lac with the key": lac_of(KEY),
    "read_lac with another key": lac_of(WRONG),
    "long poll": lac_of(b"", wait_milliseconds=60_000),
    "list": ListEntries(LEDGER, 0, 9),
    "read for repair": read_of(b"", ReadFlag.REPAIR),
    "read_lac for repair": lac_of(b"", ReadFlag.REPAIR),
    "missing": Missing(LEDGER, 0, 9, 1, (0,)),
    "fencing read with another key": read_of(WRONG, ReadFlag.FENCE),
}

WITH_KEY = {"read with the key", "read_lac with the key"}
OF_REPAIR = {"read for repair", "read_lac for repair", "missing"}
EVERYTHING = set(READS) - {"fencing read with another key", "long poll"}
"""A role for repairs needs no key; but it may not fence, and a long poll would wait."""


async def asked(client: RawClient, reads: dict[str, Request]) -> tuple[set[str], bool]:
    """Which of the reads are answered, and whether an answer held the payload."""
    answered, seen = set(), False
    for name, request in reads.items():
        answer = await client.ask(request)
        if not isinstance(answer, UnauthorizedError):
            assert not isinstance(answer, OctavoError), answer
            answered.add(name)
        seen |= _shows_payload(answer)
    return answered, seen


def _shows_payload(answer: Reply | OctavoError) -> bool:
    sealed: list[bytes] = []
    if isinstance(answer, ReadAnswer | LacAnswer):
        sealed += answer.entries
    if isinstance(answer, LacAnswer) and answer.entry is not None:
        sealed.append(answer.entry)
    return any(b"secret" in one for one in sealed)


@pytest.fixture
async def guarded() -> AsyncIterator[Cluster]:
    """A bookie that requires authentication."""
    async with cluster_of(GUARDED, documents=DOCUMENTS) as cluster:
        yield cluster


@pytest.fixture
async def plain() -> AsyncIterator[Cluster]:
    """A bookie that asks no client who it is."""
    async with cluster_of({"repair": False}) as cluster:
        yield cluster


def connection_to(cluster: Cluster) -> RawClient:
    host, _, port = cluster.bookies[0].address.rpartition(":")
    return RawClient(host, int(port))


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        (Role.OBSERVE, set()),
        (Role.READ, WITH_KEY),
        (Role.APPEND, WITH_KEY),
        (Role.REPAIR, EVERYTHING),
        (Role.ADMIN, EVERYTHING),
    ],
)
async def test_a_private_ledger_is_read_with_its_key_or_with_the_role_repair(
    guarded: Cluster, role: Role, expected: set[str]
) -> None:
    (bookie,) = guarded.bookies
    async with raw(bookie, Role.APPEND) as writer:
        assert await writer.ask(private_add()) == Added()
    reads = {name: one for name, one in READS.items() if name in EVERYTHING or role not in {Role.REPAIR, Role.ADMIN}}
    async with raw(bookie, role) as client:
        answered, seen = await asked(client, reads)
    assert answered == expected
    assert seen is bool(expected)


async def test_a_bookie_without_authentication_asks_readers_for_the_key_and_believes_repairs(plain: Cluster) -> None:
    async with connection_to(plain) as client:
        await client.greet()
        assert await client.ask(private_add()) == Added()
        answered, _ = await asked(client, READS)
        assert answered == WITH_KEY | OF_REPAIR | {"list"}


async def test_a_reader_that_waited_for_the_ledger_before_it_was_private_gets_nothing(plain: Cluster) -> None:
    async with connection_to(plain) as attacker, connection_to(plain) as writer:
        await attacker.greet()
        await writer.greet()
        attacker.send(lac_of(b"", wait_milliseconds=60_000))
        (bookie,) = plain.bookies
        await eventually(lambda: any(connection.long_polls for connection in bookie.service.connections))
        assert await writer.ask(private_add(0)) == Added()
        confirming = Add(LEDGER, KEY, AddFlag.PRIVATE, 0, seal(LEDGER, 1, [b"secret"], lac=0))
        assert await writer.ask(confirming) == Added()
        async with asyncio.timeout(WAIT_SECONDS):
            _, answer = await attacker.receive_reply()
        assert isinstance(answer, UnauthorizedError)


async def test_a_ledger_becomes_private_late_and_stays_so(plain: Cluster) -> None:
    async with connection_to(plain) as client:
        await client.greet()
        assert await client.ask(private_add(0, flags=AddFlag.NONE)) == Added()
        assert isinstance(await client.ask(read_of(b"")), ReadAnswer)
        stranger = Add(LEDGER, WRONG, AddFlag.PRIVATE, 0, seal(LEDGER, 1, [b"x"]))
        assert isinstance(await client.ask(stranger), UnauthorizedError), "a stranger makes no ledger private"
        assert isinstance(await client.ask(read_of(b"")), ReadAnswer)
        assert await client.ask(private_add(1, flags=AddFlag.PRIVATE | AddFlag.RECOVERY)) == Added()
        assert isinstance(await client.ask(read_of(b"")), UnauthorizedError)
        assert await client.ask(private_add(2, flags=AddFlag.NONE)) == Added()
        assert isinstance(await client.ask(read_of(b"")), UnauthorizedError)


async def test_copies_without_a_pinned_key_are_read_with_the_key_that_the_metadata_know() -> None:
    async with cluster_of({"repair": False}, {"repair": False}) as cluster:
        async with cluster.client() as client:
            writer = await client.create_ledger(1, 1, 1, password=PASSWORD, private=True)
        target = cluster.bookies[1].service.storage
        await target.writer.copy_in(writer.id, seal(writer.id, 0, [b"secret"]), private=True)
        host, _, port = cluster.bookies[1].address.rpartition(":")
        async with RawClient(host, int(port)) as client:
            await client.greet()
            outcomes = [
                type(await client.ask(read_of(key, flags, writer.id)))
                for key, flags in [
                    (b"", ReadFlag.NONE),
                    (key_of(writer.id, b"another"), ReadFlag.NONE),
                    (key_of(writer.id, b"another"), ReadFlag.FENCE),
                    (key_of(writer.id), ReadFlag.NONE),
                    (key_of(writer.id), ReadFlag.FENCE),
                ]
            ]
        assert outcomes == [UnauthorizedError, UnauthorizedError, UnauthorizedError, ReadAnswer, ReadAnswer]


@pytest.mark.parametrize("copied", [False, True])
async def test_restarts_and_power_cuts_do_not_make_a_private_ledger_public(copied: bool) -> None:
    async with await open_metadata_store(memory_uri(f"private-{copied}"), create=True) as store:
        host = await StorageHost(MemoryFileSystem(), store).start()
        entries = seal(LEDGER, 0, [b"secret"])
        if copied:
            await host.copies.copy_in(LedgerId(LEDGER), entries, private=True)
        else:
            host.storage.writer.make_private(LedgerId(LEDGER), KEY)
            await host.storage.writer.add(LedgerId(LEDGER), KEY, entries, recovery=False)
        pinned = None if copied else KEY
        await host.cut_power(seed=1)  # replayed
        assert host.storage.reader.private_key(LedgerId(LEDGER)) == (True, pinned)
        await host.restart()  # read from the index
        assert host.storage.reader.private_key(LedgerId(LEDGER)) == (True, pinned)
        await host.storage.writer.delete(LedgerId(LEDGER))
        await host.storage.writer.revive(LedgerId(LEDGER))
        await host.cut_power(seed=2)
        assert host.storage.reader.private_key(LedgerId(LEDGER)) == (True, pinned)
        await host.storage.close()


# --- clients ----------------------------------------------------------------------------------------------------------


async def test_clients_write_follow_recover_and_check_private_ledgers(plain: Cluster) -> None:
    async with plain.client() as writing, plain.client() as reading:
        ledger = await writing.create_ledger(1, 1, 1, password=PASSWORD, private=True)
        await ledger.add(b"one")
        async with reading.open_ledger(ledger.id, password=PASSWORD, recover=False) as follower:
            await ledger.add(b"two")
            async with asyncio.timeout(WAIT_SECONDS):
                assert (await anext(follower.follow())).payload == b"one"
        with pytest.raises(UnauthorizedError, match="is private"):
            await reading.read_replica("b1", ledger.id, 0, 1)
        replica = await reading.read_replica("b1", ledger.id, 0, 1, password=PASSWORD)
        assert len(replica.sealed) == 2
        async with reading.open_ledger(ledger.id, password=PASSWORD) as recovered:
            assert [entry.payload async for entry in recovered] == [b"one", b"two"]
            assert recovered.metadata.private
        await ledger.close()  # finds the ledger closed where it would close it


@pytest.mark.parametrize(("layout", "first", "ledgers"), [("chain", 0, 2), ("stream", place(2, 0), 1)])
async def test_the_segments_of_a_private_log_are_private(
    plain: Cluster, layout: Literal["chain", "stream"], first: int, ledgers: int
) -> None:
    """``first``: the id of the first entry on bookies."""
    async with plain.client() as client:
        async with (
            client.create_log("orders", 1, 1, 1, password=PASSWORD, private=True, layout=layout) as log,
            log.lead() as leader,
        ):
            await leader.add(b"one")
        async with client.open_log("orders", password=PASSWORD) as log, log.lead() as leader:
            await leader.add(b"two")  # in another segment or term, made by what is stored
        ids = [ledger_id async for ledger_id in client.list_ledgers()]
        assert len(ids) >= ledgers
        for ledger_id in ids[:ledgers]:
            with pytest.raises(UnauthorizedError, match="is private"):
                await client.read_replica("b1", ledger_id, first, first + 1)
            replica = await client.read_replica("b1", ledger_id, first, first + 1, password=PASSWORD)
            assert replica.sealed, "there is something to keep private"


async def test_a_private_ledger_without_a_password_is_refused_before_it_exists(plain: Cluster) -> None:
    async with plain.client() as client:
        with pytest.raises(InvalidArgumentError, match="a password is needed"):
            client.create_ledger(1, 1, 1, private=True)
        with pytest.raises(InvalidArgumentError, match="a password is needed"):
            client.create_log("orders", private=True)
        with pytest.raises(InvalidArgumentError, match="private must be True or False"):
            client.create_ledger(1, 1, 1, password=PASSWORD, private=1)  # type: ignore[call-overload]
        assert [one async for one in client.list_ledgers()] == []
