"""A process that was paused or cut off while its id went to other disks: it says nothing in their name (rule B10)."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.bookie.identity.cookie import IdentityRefusedError
from octavo.bookie.identity.errors import BookieStartError
from octavo.bookie.identity.incarnation import IdentityLostError
from octavo.bookie.offline.layout import Layout
from octavo.bookie.offline.reset_identity import reset_identity
from octavo.cli.bookies import forget_bookie
from octavo.metadata import BookieRegistration, BookieState, MetadataStore
from octavo.metadata.cluster.registration import UNREGISTERED_SECONDS_MAX
from octavo.metadata.cluster.repair_states import BookieCondition, Condition
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.protocol.errors import BookieShuttingDownError, MetadataUnavailableError
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import Added, ListEntries, Missing, ReadAnswer
from octavo.repair.operate.operators import change_states
from support.disks.faulty_filesystem import MemoryFileSystem
from support.disks.held_disk import HeldDisk, syncs_below
from support.metadata.interposed_store import InterposedStore
from support.raw_client import RawClient, add, read, seal
from support.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.usefixtures("logged")

LEASE_SECONDS = 10.0
PAUSE_SECONDS = 2 * LEASE_SECONDS
DATA = Path("/bookie")
B1 = BookieId("b1")
KNOWN, NEW = 3, 7
"""A ledger of which the bookie holds entries 0 and 1, and one of which it has never heard."""


class World:
    """A metadata store, and the time by which bookies and leases live. It passes only if a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.server = MemoryServer(clock=lambda: self.now, rng=random.Random(1))
        self.handles = 0

    @asynccontextmanager
    async def handle(self) -> AsyncIterator[MetadataStore]:
        self.handles += 1
        rng = random.Random(self.handles)
        async with open_memory_store(self.server, lease_seconds=LEASE_SECONDS, rng=rng) as store:
            yield store

    @asynccontextmanager
    async def bookie(
        self, store: MetadataStore, filesystem: MemoryFileSystem, seed: int = 1, bookie_id: str | None = B1
    ) -> AsyncIterator[Bookie]:
        settings = {"data_dir": DATA, "port": 0, "journal_segment_bytes": 16 << 20, "bookie_id": bookie_id}
        bookie = await Bookie.start(
            load_config(None, {}, settings), filesystem=filesystem, store=store, rng=random.Random(seed), software="0",
            clock=lambda: self.now,
        )  # fmt: skip
        try:
            yield bookie
        finally:
            await bookie.stop()

    def pause(self, seconds: float = PAUSE_SECONDS) -> None:
        """No process runs for so long."""
        self.now += seconds
        self.server.end_late_sessions()


@pytest.fixture
def world() -> World:
    return World()


def registration() -> BookieRegistration:
    """Of a process that cannot be reached."""
    return BookieRegistration(
        bookie_id=B1, address="127.0.0.1:1", state=BookieState.WRITABLE, version="0", boot_id="unreachable"
    )


@asynccontextmanager
async def client_of(bookie: Bookie) -> AsyncIterator[RawClient]:
    host, _, port = bookie.address.rpartition(":")
    async with RawClient(host, int(port)) as client:
        await client.greet()
        yield client


async def write(client: RawClient, ledger_id: int = KNOWN, first: int = 0) -> object:
    return await client.ask(add(ledger_id, seal(ledger_id, first, [b"one", b"two"])))


async def give_to_new_disks(store: MetadataStore, patience_seconds: float = 5.0) -> MemoryFileSystem:
    filesystem, layout = MemoryFileSystem(), Layout.of(DATA)
    for directory in layout.directories.values():
        await filesystem.make_directory(directory)
    await reset_identity(
        filesystem, layout, store, bookie_id=B1, rng=random.Random(5), patience_seconds=patience_seconds
    )
    return filesystem


async def refuses(client: RawClient, request: object) -> bool:
    answer = await client.ask(request)  # type: ignore[arg-type]
    return isinstance(answer, BookieShuttingDownError) and answer.retryable and "its id is still" in answer.message


async def denies_nothing(client: RawClient, ledger_id: int) -> None:
    """Nothing is called absent, and no request that counts as the word of the id is served."""
    answer = await client.ask(read(ledger_id, 0, 5))
    assert isinstance(answer, ReadAnswer)
    held = {0, 1} if ledger_id == KNOWN else set()
    unknown = {entry_id for low, high in answer.unknown for entry_id in range(low, high + 1)}
    assert set(range(answer.last_covered + 1)) - held <= unknown
    assert len(answer.entries) == len(held), "what is held is served"
    assert await refuses(client, read(ledger_id, 0, 5, fence=True))
    assert await refuses(client, Missing(ledger_id, 0, 5, 1, (0,)))
    assert await refuses(client, ListEntries(ledger_id, 0, 5))
    assert await refuses(client, add(ledger_id, seal(ledger_id, 9, [b"x"]), recovery=True))


async def test_a_paused_process_whose_id_has_new_disks_says_nothing_and_ends(world: World) -> None:
    async with (
        world.handle() as first,
        world.handle() as second,
        world.bookie(first, MemoryFileSystem()) as old,
        client_of(old) as client,
    ):
        assert isinstance(await write(client), Added)
        world.pause()
        disks = await give_to_new_disks(second)
        async with world.bookie(second, disks, 2) as new:
            # It goes on with what has arrived meanwhile, and has not noticed anything.
            assert await refuses(client, add(KNOWN, seal(KNOWN, 2, [b"three"])))
            assert await refuses(client, add(NEW, seal(NEW, 0, [b"one"])))
            await denies_nothing(client, KNOWN)
            await denies_nothing(client, NEW)
            await first.renew_leases()
            error = await asyncio.wait_for(old.broken(), 5)
            assert isinstance(error, IdentityLostError)
            assert "the id b1 has been given to other data" in str(error)
            assert await refuses(client, add(KNOWN, seal(KNOWN, 2, [b"three"])))
            registrations = await second.list_bookies()
            assert [one.address for one in registrations.values()] == [new.address]


async def test_an_add_that_was_being_synced_when_the_process_was_paused_is_not_confirmed(world: World) -> None:
    disk: HeldDisk = syncs_below(DATA / "journal")
    async with world.handle() as store, world.bookie(store, disk) as bookie, client_of(bookie) as client:
        assert isinstance(await write(client), Added)
        disk.hold()
        client.send(add(KNOWN, seal(KNOWN, 2, [b"three"])))
        await asyncio.wait_for(disk.held.wait(), 5)
        world.pause()
        disk.release()
        _, answer = await client.receive_reply()
        assert isinstance(answer, BookieShuttingDownError)
        assert answer.may_have_happened
        await store.renew_leases()
        await eventually(bookie.service.standing.may_deny)
        assert isinstance(await write(client, first=3), Added), "the id is still its own"


async def test_a_process_that_runs_on_without_the_store_confirms_adds_of_what_it_knows_and_nothing_else(
    world: World,
) -> None:
    async with world.handle() as handle:
        store = InterposedStore(handle)
        async with world.bookie(store.face, MemoryFileSystem()) as bookie, client_of(bookie) as client:
            assert isinstance(await write(client), Added)
            store.make_unavailable("register_bookie")
            world.server.end_session(next(iter(world.server.sessions)))
            for _ in range(4):
                world.now += LEASE_SECONDS / 2
                await handle.renew_leases()
            assert isinstance(await client.ask(add(KNOWN, seal(KNOWN, 2, [b"three"]))), Added)
            assert await refuses(client, add(NEW, seal(NEW, 0, [b"one"])))
            await denies_nothing(client, NEW)
            while world.now < 1000.0 + UNREGISTERED_SECONDS_MAX + LEASE_SECONDS:
                world.now += LEASE_SECONDS / 2
                await handle.renew_leases()
            assert await refuses(client, add(KNOWN, seal(KNOWN, 3, [b"four"]))), "but not for ever"
            store.restore()
            await eventually(bookie.service.standing.may_deny)
            assert isinstance(await client.ask(add(NEW, seal(NEW, 0, [b"one"]))), Added)


async def test_a_pause_while_the_store_is_away_ends_that(world: World) -> None:
    async with world.handle() as handle:
        store = InterposedStore(handle)
        async with world.bookie(store.face, MemoryFileSystem()) as bookie, client_of(bookie) as client:
            assert isinstance(await write(client), Added)
            store.make_unavailable("register_bookie")
            world.pause()
            await handle.renew_leases()
            assert await refuses(client, add(KNOWN, seal(KNOWN, 2, [b"three"])))


REASONS = {
    "forgotten": "does not know bookie b1 any more",
    "retired": "has been retired",
    "started elsewhere": "has been started again elsewhere",
    "started from a copy": "has been started again elsewhere",
}


@pytest.mark.parametrize("what", REASONS)
async def test_a_process_that_is_not_the_bookie_any_more_ends_when_it_would_register(world: World, what: str) -> None:
    async with world.handle() as first, world.handle() as second, world.bookie(first, MemoryFileSystem()) as old:
        world.pause()
        cookie = await second.read_cookie(B1)
        assert cookie is not None
        if what == "forgotten":
            await forget_bookie(second, B1)
        elif what == "retired":
            retired = BookieCondition(Condition.RETIRED, 0)
            await change_states(second, lambda states: states.with_bookie(B1, retired))
        else:
            # A copy of the directories ends with the same generation, and a token of its own.
            generation = cookie.value.generation + (what == "started elsewhere")
            other = replace(cookie.value, generation=generation, body=b"token")
            await second.compare_and_set_cookie(other, cookie.version)
        await first.renew_leases()
        error = await asyncio.wait_for(old.broken(), 5)
        assert isinstance(error, IdentityLostError)
        assert REASONS[what] in str(error)
        assert not await second.list_bookies()


async def test_a_process_that_was_paused_and_is_still_the_bookie_goes_on(world: World) -> None:
    async with world.handle() as store, world.bookie(store, MemoryFileSystem()) as bookie:
        world.pause()
        await store.renew_leases()
        await eventually(bookie.service.standing.may_deny)
        assert not bookie.is_broken


async def test_old_disks_of_a_forgotten_bookie_do_not_start_however_often_they_have(world: World) -> None:
    disks = MemoryFileSystem()
    async with world.handle() as store:
        for seed in range(3):
            async with world.bookie(store, disks, seed) as bookie, client_of(bookie) as client:
                assert isinstance(await write(client), Added)
        await forget_bookie(store, B1)
        async with world.bookie(store, MemoryFileSystem(), 9):
            pass
        with pytest.raises(IdentityRefusedError, match="of an earlier bookie of this id"):
            async with world.bookie(store, disks, 10):
                pass


async def test_an_id_is_given_to_no_disks_while_a_process_is_registered_under_it(world: World) -> None:
    async with world.handle() as first, world.handle() as second:
        async with world.bookie(first, MemoryFileSystem()):
            with pytest.raises(BookieStartError, match="is already running at"):
                await give_to_new_disks(second)
        lease = await first.register_bookie(registration())
        with pytest.raises(BookieStartError, match="a process keeps itself registered as bookie b1"):
            await give_to_new_disks(second, patience_seconds=0.05)
        await lease.release()
        await give_to_new_disks(second)


async def test_disks_in_doubt_wait_for_the_registration_of_before_to_end(world: World) -> None:
    """Else it could confirm adds of ledgers that are made after the doubt was limited."""
    async with world.handle() as first, world.handle() as second:
        async with world.bookie(first, MemoryFileSystem()):
            pass
        disks = await give_to_new_disks(second)
        before = await first.register_bookie(registration())
        waits = asyncio.Event()
        store = InterposedStore(second)

        def watch() -> object:
            waits.set()
            return second.watch_bookies()

        async def run() -> int:
            async with world.bookie(store.face, disks, 3) as bookie:
                return bookie.service.storage.doubted_ids_stop or 0

        store.interpose("watch_bookies", watch)
        starting = asyncio.ensure_future(run())
        await asyncio.wait_for(waits.wait(), WAIT_SECONDS)
        made_meanwhile = await first.allocate_ledger_id()
        await before.release()
        assert await asyncio.wait_for(starting, WAIT_SECONDS) > made_meanwhile


async def test_unavailable_is_no_verdict(world: World) -> None:
    """A store that does not answer ends no bookie."""
    async with world.handle() as handle:
        store = InterposedStore(handle)
        async with world.bookie(store.face, MemoryFileSystem()) as bookie:

            async def unavailable(_bookie_id: BookieId) -> object:
                raise MetadataUnavailableError("no answer")

            store.interpose("read_cookie", unavailable)
            world.pause()
            await handle.renew_leases()
            await eventually(lambda: not bookie.subject.ready.registered() if bookie.subject.ready else False)
            assert not bookie.is_broken
            store.restore()
            await eventually(bookie.service.standing.may_deny)
