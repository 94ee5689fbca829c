"""More than a bookie can take: its memory stays bounded, it pushes back, and no client starves another."""

import asyncio
from pathlib import Path

import pytest
from octavo.bookie.bookie import Bookie
from octavo.protocol.errors import LedgerFencedError, OctavoError
from octavo.protocol.limits import REQUESTS_PER_CONNECTION_MAX
from octavo.protocol.messages import Added, Missing, MissingAnswer, ReadAnswer, Reply
from support.clusters.memory_bookies import CACHE_BYTES, bookie_on, connected
from support.disks.faulty_filesystem import MemoryFileSystem
from support.disks.held_disk import HeldDisk
from support.raw_client import RawClient, add, read, seal
from support.waiting import WAIT_SECONDS, eventually, pause

pytestmark = pytest.mark.usefixtures("logged")


class SlowDisk(MemoryFileSystem):
    """Every sync takes a while."""

    sync_seconds = 0.004

    async def step(self, name: str, path: Path) -> None:
        if name == "sync":
            await pause(self.sync_seconds)
        await super().step(name, path)


async def flood(bookie: Bookie, ledger_id: int, frames: int) -> None:
    """Frames of 64 KiB as fast as the socket takes them, without waiting for answers."""
    async with connected(bookie) as client:

        async def answers() -> None:
            for _ in range(frames):
                _, outcome = await client.receive_reply()
                assert isinstance(outcome, Added), outcome

        answering = asyncio.ensure_future(answers())
        for number in range(frames):
            client.send(add(ledger_id, seal(ledger_id, number * 4, [bytes(16_000)] * 4)))
            await client.writer.drain()
        await answering


async def test_slow_disk_pushes_back_and_memory_stays_bounded() -> None:
    async with bookie_on(SlowDisk()) as bookie:
        storage, most, held_back = bookie.service.storage, 0, 0
        floods = [asyncio.ensure_future(flood(bookie, ledger_id, 60)) for ledger_id in range(1, 9)]
        while not all(task.done() for task in floods):
            most = max(most, storage.memory_bytes)
            held_back += bookie.service.held_back
            await asyncio.sleep(0)
        await asyncio.gather(*floods)
        sent = 8 * 60 * 64_000
        # Two generations of the cache, what waits for the journal, and the frame of each connection that came last.
        assert most < 3 * CACHE_BYTES + 8 * 128 * 1024 < sent / 8
        assert held_back, "sockets were left unread"
        assert storage.statistics().cache_bytes <= 2 * CACHE_BYTES + 8 * 128 * 1024


async def test_requests_take_effect_in_order_also_while_sockets_are_left_unread() -> None:
    """Rule F2: what comes before a fence is stored, what comes behind it is refused."""
    count = REQUESTS_PER_CONNECTION_MAX + 80
    async with bookie_on(SlowDisk()) as bookie, connected(bookie) as client:
        before = [client.send(add(1, seal(1, entry_id, [b""]))) for entry_id in range(count)]
        fence = client.send(read(1, 0, 0, fence=True))
        behind = client.send(add(1, seal(1, count, [b"behind the fence"])))
        outcomes: dict[int, Reply | OctavoError] = {}
        while len(outcomes) < count + 2:
            request_id, outcome = await client.receive_reply()
            outcomes[request_id] = outcome
        assert [outcomes[request_id] for request_id in before] == [Added()] * count
        assert isinstance(outcomes[fence], ReadAnswer)
        assert isinstance(outcomes[behind], LedgerFencedError)


async def test_a_burst_into_one_ledger_does_not_starve_another() -> None:
    async with bookie_on(SlowDisk()) as bookie, connected(bookie) as client:
        burst = asyncio.ensure_future(flood(bookie, 1, 400))
        lone = 0
        while not burst.done():
            assert isinstance(await client.ask(add(2, seal(2, lone, [b"lone"]))), Added)
            lone += 1
        await burst
        # An add waits for the group before its own and for a flush, not for the burst: 25 MB in pieces of half a MB.
        assert lone > 30


async def test_readers_that_do_not_take_what_they_asked_for_stop_no_writer() -> None:
    async with bookie_on(MemoryFileSystem()) as bookie, connected(bookie) as writer:
        for number in range(40):
            assert isinstance(await writer.ask(add(1, seal(1, number * 4, [bytes(16_000)] * 4))), Added)
        readers = []
        for _ in range(30):
            reader = RawClient(*(bookie.address.rpartition(":")[0::2]))  # type: ignore[arg-type]
            await reader.__aenter__()
            await reader.greet()
            reader.pause_reading()
            for _ in range(200):
                reader.send(read(1, 0, 159, bytes_max=4 << 20))
            readers.append(reader)
        before = bookie.service.storage.memory_bytes
        for number in range(100):
            assert isinstance(await writer.ask(add(2, seal(2, number, [b"goes on"]))), Added)
        answer = await writer.ask(read(2, 0, 99))
        assert isinstance(answer, ReadAnswer)
        assert len(answer.entries) == 100
        assert bookie.service.storage.memory_bytes < before + CACHE_BYTES
        for reader in readers:
            reader.writer.transport.abort()


async def test_a_client_that_reads_nothing_for_long_loses_its_connection_and_frees_its_memory() -> None:
    async with bookie_on(MemoryFileSystem(), stalled_client_seconds=0.06) as bookie, connected(bookie) as writer:
        for number in range(40):
            assert isinstance(await writer.ask(add(1, seal(1, number * 4, [bytes(16_000)] * 4))), Added)
        async with connected(bookie) as reader:
            reader.pause_reading()
            for _ in range(100):
                reader.send(read(1, 0, 159, bytes_max=4 << 20))
            await eventually(lambda: bookie.service.answers.connections_evicted > 0)
            await eventually(lambda: len(bookie.service.connections) == 1)
        assert isinstance(await writer.ask(add(2, seal(2, 0, [b"goes on"]))), Added)
        assert bookie.service.answers.budget.held == 0


async def test_an_add_that_is_not_synced_is_no_copy_yet() -> None:
    """Rule I9: what MISSING leaves out counts as held, and a power cut may still take it away."""
    disk = HeldDisk(lambda name, path: name == "sync" and "journal" in path.name)
    async with bookie_on(disk) as bookie, connected(bookie) as client, connected(bookie) as other:
        disk.hold()
        adding = asyncio.ensure_future(client.ask(add(7, seal(7, 0, [b"a"]))))
        await disk.held.wait()
        asking = asyncio.ensure_future(other.ask(Missing(7, 0, 1, 1, (0,))))
        for _ in range(200):
            await asyncio.sleep(0)
        assert not asking.done()
        disk.release()
        assert await asking == MissingAnswer(1, ((1, 1),), ())
        assert await adding == Added()


async def test_adds_of_held_ids_push_back_and_their_memory_stays_bounded() -> None:
    """A writer that sends everything again makes the bookie read what it holds before it can answer."""
    disk = HeldDisk(lambda name, path: name == "read" and path.parent.name == "entries")
    async with bookie_on(disk) as bookie:
        service, storage = bookie.service, bookie.service.storage
        await asyncio.gather(*(flood(bookie, ledger_id, 60) for ledger_id in range(1, 9)))
        await storage.checkpoint()
        disk.hold()

        def outstanding() -> int:
            return sum(connection.outstanding for connection in service.connections)

        again = [asyncio.ensure_future(flood(bookie, ledger_id, 60)) for ledger_id in range(1, 9)]
        async with asyncio.timeout(WAIT_SECONDS):
            # Without a bound the bookie would read all frames.
            while not service.held_back and outstanding() < 8 * 60:  # noqa: ASYNC110 - the bookie's work on sockets
                await asyncio.sleep(0)
        for _ in range(200):
            await asyncio.sleep(0)
        assert service.held_back
        # What one turn of the loop has read from each socket comes on top; entries are charged with their joined copy.
        assert CACHE_BYTES <= storage.admission.waiting_bytes <= CACHE_BYTES + 8 * 2 * 256 * 1024
        disk.release()
        await asyncio.gather(*again)
        assert storage.admission.waiting_bytes == 0
        assert storage.statistics().duplicates_refused == 0
