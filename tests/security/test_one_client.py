"""What one principal may do to the others with the rights that it has: nothing that stops them (rule B13)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
from octavo.bookie.bookie import Bookie
from octavo.bookie.server.answers import RUNS_PER_ANSWER_MAX
from octavo.bookie.server.clients import HELD_REQUESTS_MAX, LONG_POLLS_MAX, QUESTIONS_AT_ONCE, Client, Clients
from octavo.bookie.storage.settings import StorageSettings
from octavo.metadata import open_metadata_store
from octavo.metadata.store.values import Versioned
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.protocol.entries import Digest, derive_secrets, make_verifier
from octavo.protocol.errors import BookieOverloadedError
from octavo.protocol.ids import LedgerId
from octavo.protocol.messages import Added, Ping, Pong, ReadFlag, ReadLac
from support.clusters.ledgers import LedgerScript
from support.clusters.tls_bookies import start_bookie
from support.disks.crash_workload import open_storage
from support.disks.faulty_filesystem import MemoryFileSystem
from support.metadata.interposed_store import InterposedStore
from support.metadata.ledger_metadata import open_ledger
from support.metadata.memory_stores import memory_uri
from support.raw_client import PASSWORD, RawClient, add, key_of, seal
from support.waiting import eventually

INVENTED = 1 << 40
"""Ids from here on are those of no ledger."""

MIB = 1 << 20


class AwayStore:
    """A metadata store that does not answer questions about invented ids."""

    def __init__(self, store: InterposedStore) -> None:
        self.asked = 0
        self.asked_at_once = 0
        self.back = asyncio.Event()
        self._store = store

    async def read_either(self, ledger_id: LedgerId) -> Versioned[EitherMetadata]:
        if ledger_id >= INVENTED:
            self.asked += 1
            self.asked_at_once = max(self.asked_at_once, self.asked)
            await self.back.wait()
            self.asked -= 1
        return await self._store.real.read_either(ledger_id)


@asynccontextmanager
async def bookie_whose_store_is_away() -> AsyncIterator[tuple[Bookie, AwayStore]]:
    async with await open_metadata_store(memory_uri("one-client"), create=True) as store:
        interposed = InterposedStore(store)
        away = AwayStore(interposed)
        interposed.interpose("read_either", away.read_either)
        bookie = await start_bookie(interposed.face, 1, verify_new_ledgers="true", repair=False)
        try:
            ledger_id, salt = await store.allocate_ledger_id(), b"s" * 16
            verifier = make_verifier(derive_secrets(PASSWORD, ledger_id), Digest.CRC32C, salt)
            await store.create_ledger(replace(open_ledger(ledger_id), verifier=verifier, salt=salt))
            yield bookie, away
        finally:
            away.back.set()
            await bookie.stop()


async def connected(stack: AsyncExitStack, bookie: Bookie, address: str) -> RawClient:
    """A client of the bookie at this address of the host."""
    host, _, port = bookie.address.rpartition(":")
    client = RawClient(host, int(port))
    client.reader, client.writer = await asyncio.open_connection(
        host, int(port), local_addr=(address, 0), limit=1 << 24
    )
    stack.callback(client.writer.close)
    await client.greet()
    return client


def fence_of(ledger_id: int) -> ReadLac:
    return ReadLac(ledger_id, key_of(ledger_id), ReadFlag.FENCE, 0, None, 0, 0, 0)


async def test_adds_that_wait_for_the_store_stop_no_socket() -> None:
    """Ten frames to invented ids stopped every socket for as long as the metadata store was away."""
    async with bookie_whose_store_is_away() as (bookie, away), AsyncExitStack() as stack:
        greedy = await connected(stack, bookie, "127.0.0.2")
        other = await connected(stack, bookie, "127.0.0.3")
        assert await other.ask(add(0, seal(0, 0, [b"first"]))) == Added()
        payload = b"x" * MIB
        frames = bookie.service.storage.admission.bytes_max // MIB
        for number in range(frames):
            greedy.send(add(INVENTED + number, seal(INVENTED + number, 0, [payload])))
        asked = greedy.send(Ping())
        refusals: list[object] = []
        while (reply := await greedy.receive_reply()) != (asked, Pong()):
            refusals.append(reply[1])
        assert len(refusals) >= frames // 2
        assert {type(refusal) for refusal in refusals} == {BookieOverloadedError}
        assert "address 127.0.0.2 wait for the metadata store" in str(refusals[0])
        assert not bookie.service.held_back
        assert await other.ask(add(0, seal(0, 1, [b"second"]))) == Added()
        assert bookie.service.clients.refused["held"] == len(refusals)
        away.back.set()
        await eventually(lambda: bookie.service.storage.admission.waiting_bytes == 0)


async def test_few_questions_of_one_client_reach_the_store_at_a_time() -> None:
    """The bookie's lease is kept in the same store, and waited behind fences of invented ids."""
    async with bookie_whose_store_is_away() as (bookie, away), AsyncExitStack() as stack:
        greedy = await connected(stack, bookie, "127.0.0.2")
        for number in range(200):
            greedy.send(fence_of(INVENTED + number))
        await eventually(lambda: away.asked == QUESTIONS_AT_ONCE)
        other = await connected(stack, bookie, "127.0.0.3")
        assert await other.ask(add(0, seal(0, 0, [b"first"]))) == Added()
        assert away.asked_at_once == QUESTIONS_AT_ONCE
        away.back.set()
        for _ in range(200):
            await greedy.receive_reply()
        asking = bookie.service.clients.enter("address 127.0.0.2", _Connection())
        assert len(asking.connections) == 2, "that of the greedy one, and this one"
        assert (asking.held_requests, asking.held_bytes) == (0, 0), "its budget is free again"


class _Connection:
    def regulate(self) -> None:
        """Nothing to read."""


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    clients = Clients()
    yield clients.enter("principal p", _Connection())
    clients.close()


async def test_long_polls_of_a_client_are_bounded_over_all_connections(client: Client) -> None:
    for _ in range(LONG_POLLS_MAX):
        client.begin_long_poll()
    with pytest.raises(BookieOverloadedError, match=f"principal p has {LONG_POLLS_MAX} long polls"):
        client.begin_long_poll()
    client.end_long_poll()
    client.begin_long_poll()


async def test_held_requests_of_a_client_are_bounded_by_number_and_by_memory(client: Client) -> None:
    client.hold(1000, 80)  # one is held whatever its size: a large entry must not be refused for ever
    with pytest.raises(BookieOverloadedError):
        client.hold(0, 80)
    client.release(1000)
    for _ in range(HELD_REQUESTS_MAX):
        client.hold(0, 80)
    with pytest.raises(BookieOverloadedError):
        client.hold(0, 80)


async def test_listing_a_striped_ledger_gives_the_loop_its_turns_and_stops_at_what_an_answer_holds() -> None:
    """One request for the ids of a striped ledger took the loop for seconds."""
    script, turns = LedgerScript(7), 0
    storage = await open_storage(MemoryFileSystem(), StorageSettings())
    for first in range(0, 80_000, 8000):
        ids = range(first, first + 8000, 2)
        await storage.writer.add(script.ledger_id, script.key, script.entries(ids), recovery=False)
        await storage.admission.wait_for_room()

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.ensure_future(count_turns())
    every = await storage.reader.list_entries(script.ledger_id)
    turns_of_all = turns
    some = await storage.reader.list_entries(script.ledger_id, ranges_max=RUNS_PER_ANSWER_MAX)
    counting.cancel()
    assert every == [(number, number) for number in range(0, 80_000, 2)]
    assert turns_of_all >= 4
    assert some == every[: len(some)]
    assert RUNS_PER_ANSWER_MAX < len(some) <= RUNS_PER_ANSWER_MAX + 8192
    await storage.close()
