"""A companion inside a running bookie: what it sees, what it may do, and that it never ends the bookie."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog
from octavo.bookie.bookie import Bookie
from octavo.bookie.companion import Companion, CompanionTask, CompanionView
from octavo.bookie.config import load_config
from octavo.metadata import BookieState, MetadataStore
from octavo.metadata.updates.garbage_hold import GarbageHold, set_hold
from octavo.protocol.errors import BookieReadOnlyError, MetadataError
from octavo.protocol.ids import LedgerId
from octavo.protocol.messages import Added, Info, InfoAnswer, Missing, MissingAnswer
from support.clusters.ledgers import LedgerScript
from support.disks.faulty_filesystem import MemoryFileSystem
from support.raw_client import RawClient, add, seal
from support.waiting import WAIT_SECONDS


@asynccontextmanager
async def running(store: MetadataStore, companion: Companion) -> AsyncIterator[Bookie]:
    settings = {"data_dir": Path("/bookie"), "port": 0, "journal_segment_bytes": 16 << 20, "rack": "/a/1"}
    bookie = await Bookie.start(
        load_config(None, {}, settings), filesystem=MemoryFileSystem(), store=store, rng=random.Random(1),
        software="0", wall_clock=lambda: 1234.5, companion=companion,
    )  # fmt: skip
    try:
        yield bookie
    finally:
        await bookie.stop()


@asynccontextmanager
async def client_of(bookie: Bookie) -> AsyncIterator[RawClient]:
    host, _, port = bookie.address.rpartition(":")
    async with RawClient(host, int(port)) as client:
        hello = await client.greet()
        assert hello.capabilities == ("repair", "deferred-sync", "terms", "packs", "subscriptions")
        yield client


class Recorder:
    """A companion that keeps its view and runs until it is cancelled."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.views: list[CompanionView] = []
        self.started = asyncio.Event()
        self.registered_at_end: list[str] | None = None

    async def __call__(self, view: CompanionView) -> None:
        self.views.append(view)
        if self.failures:
            raise self.failures.pop(0)
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.registered_at_end = list(await view.store.list_bookies())

    async def view(self) -> CompanionView:
        async with asyncio.timeout(WAIT_SECONDS):
            await self.started.wait()
        return self.views[-1]


async def test_companion_sees_its_bookie_and_is_cancelled_before_anything_else(store: MetadataStore) -> None:
    recorder = Recorder()
    async with running(store, recorder) as bookie:
        view = await recorder.view()
        registration = (await store.list_bookies())[bookie.bookie_id]
        assert (view.bookie_id, view.address, view.boot_id, view.rack) == (
            registration.bookie_id, registration.address, registration.boot_id, "/a/1",
        )  # fmt: skip
        assert view.cluster_id == await store.cluster_id()
        assert view.wall_clock() == 1234.5
        assert view.free_bytes == registration.free_bytes
    assert recorder.registered_at_end == [bookie.bookie_id], "it was registered until its companion had ended"
    assert await store.list_bookies() == {}


async def test_what_the_companion_copies_in_is_served(store: MetadataStore) -> None:
    script = LedgerScript(await store.allocate_ledger_id())
    recorder = Recorder()
    async with running(store, recorder) as bookie, client_of(bookie) as client:
        view = await recorder.view()
        await view.copies.copy_in(script.ledger_id, script.entries([0, 1, 5]))
        assert view.take_add_delay_seconds() == 0.0, "copies are no adds"
        bookie.service.requests.add_seconds.observe(0.25)
        bookie.service.requests.add_seconds.observe(0.75)
        assert (view.take_add_delay_seconds(), view.take_add_delay_seconds()) == (0.5, 0.0)
        answer = await client.ask(Missing(script.ledger_id, 0, 8, 3, (0, 2)))
        assert answer == MissingAnswer(8, ((2, 4), (6, 8)), ())
        bookie.service.read_only = True
        with pytest.raises(BookieReadOnlyError):
            await view.copies.copy_in(script.ledger_id, script.entries([6]))


async def test_companion_learns_that_the_metadata_may_be_older_than_the_data(store: MetadataStore) -> None:
    """Rule D5: as garbage collection does, by the hold and by what only the bookie knows."""
    recorder = Recorder()
    async with running(store, recorder) as bookie:
        view = await recorder.view()
        await view.check_metadata()
        cookie = await store.read_cookie(bookie.bookie_id)
        assert cookie is not None
        older = replace(cookie.value, generation=cookie.value.generation - 1)
        version = await store.compare_and_set_cookie(older, cookie.version)
        with pytest.raises(MetadataError, match="restored from a backup"):
            await view.check_metadata()
        await store.compare_and_set_cookie(cookie.value, version)
        await view.check_metadata()
        await set_hold(store, GarbageHold("an operator's reason", datetime(2026, 1, 1, tzinfo=UTC)))
        with pytest.raises(MetadataError, match="an operator's reason"):
            await view.check_metadata()


async def test_draining_bookie_is_registered_as_read_only_and_takes_adds(store: MetadataStore) -> None:
    recorder = Recorder()
    async with running(store, recorder) as bookie, client_of(bookie) as client:
        view = await recorder.view()
        for draining, state in ((True, BookieState.READ_ONLY), (False, BookieState.WRITABLE)):
            await view.set_draining(draining)
            assert view.draining == draining
            assert (await store.list_bookies())[bookie.bookie_id].state is state
            ledger_id = LedgerId(int(draining))
            assert await client.ask(add(ledger_id, seal(ledger_id, 0, [b"a"]))) == Added()


async def test_published_facts_are_in_info(store: MetadataStore) -> None:
    recorder = Recorder()
    async with running(store, recorder) as bookie, client_of(bookie) as client:
        view = await recorder.view()
        before = await client.ask(Info())
        view.publish({"repair_queued": 3, "repair_auditor": True})
        after = await client.ask(Info())
        assert isinstance(before, InfoAnswer)
        assert isinstance(after, InfoAnswer)
        assert dict(after.facts) | {"uptime_seconds": 0} == {
            **before.facts, "uptime_seconds": 0, "repair_queued": 3, "repair_auditor": True,
        }  # fmt: skip


async def test_companion_that_fails_is_run_again_and_the_bookie_goes_on(
    store: MetadataStore,
) -> None:
    healthy, failing = Recorder(), Recorder(ValueError("one"), OSError("two"))
    with structlog.testing.capture_logs() as events:
        async with running(store, healthy) as bookie:
            task = CompanionTask(failing, await healthy.view(), restart_seconds=0.001)
            await failing.view()
            assert len(failing.views) == 3
            assert not bookie.is_broken
            await task.stop()
    failed = [event for event in events if event["event"].startswith("companion failed")]
    assert [event["restarts"] for event in failed] == [0, 1]


async def test_companion_that_returns_is_done_for_good(store: MetadataStore) -> None:
    returned = asyncio.Event()

    async def once(_view: CompanionView) -> None:
        assert not returned.is_set()
        returned.set()

    async with running(store, once) as bookie:
        async with asyncio.timeout(WAIT_SECONDS):
            await returned.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        assert not bookie.is_broken
