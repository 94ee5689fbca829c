"""The registration of a bookie, kept in the background."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from octavo.bookie.registration import Registrar
from octavo.metadata import BookieRegistration, BookieState, MetadataStore
from octavo.metadata.store.values import Version
from octavo.protocol.errors import LeaseLostError
from octavo.protocol.ids import BookieId
from support.metadata.metadata_clusters import cookie
from support.waiting import eventually

VERSION = Version(7)


async def test_an_announcement_on_a_lost_registration_is_left_to_the_next_one(store: MetadataStore) -> None:
    """A change of state (disks, draining) just after the session ended fails nothing: registering again tells it."""
    version = await store.create_cookie(cookie("b0"))
    registrar = registrar_of(store, lambda: registration("b0"), version)
    await registrar.start()
    try:
        await store.register_bookie(registration("b0", boot_id="boot-2"))
        await registrar.announce()
    finally:
        await registrar.stop()


def registrar_of(store: MetadataStore, current: Callable[[], BookieRegistration], version: Version) -> Registrar:
    async def confirm() -> Version:
        return version

    return Registrar(
        store, current, random.Random(1), confirm=confirm, registered=lambda _lease: None, lost=lambda _error: None
    )


class SlowStore:
    """Has one registration. A call takes effect, and returns, when the test calls :meth:`answer` with its number."""

    def __init__(self, lease: "type[SlowLease]") -> None:
        self._lease = lease
        self.calls: list[asyncio.Event] = []
        self.stored: BookieRegistration | None = None
        self.leases: list[SlowLease] = []

    async def called(self) -> None:
        self.calls.append(asyncio.Event())
        await self.calls[-1].wait()

    def answer(self, number: int) -> None:
        self.calls[number].set()

    async def register_bookie(self, registration: BookieRegistration, *, cookie: Version) -> "SlowLease":
        assert cookie == VERSION
        await self.called()
        self.stored = registration
        self.leases.append(self._lease(self))
        return self.leases[-1]


class SlowLease:
    def __init__(self, store: SlowStore) -> None:
        self.store = store
        self.ended = asyncio.Event()

    @property
    def lost(self) -> bool:
        return self.ended.is_set()

    async def update(self, registration: BookieRegistration) -> None:
        await self.store.called()
        if self.lost:
            raise LeaseLostError("lost")
        self.store.stored = registration

    async def wait_lost(self) -> None:
        await self.ended.wait()

    async def release(self) -> None:
        self.store.stored = None


class Announcing:
    """A registrar on a slow store, and the registration that it announces."""

    def __init__(self, lease: type[SlowLease] = SlowLease) -> None:
        self.store = SlowStore(lease)
        self.current = registration("b0")
        self.registrar = registrar_of(cast("Any", self.store), lambda: self.current, VERSION)

    async def start(self) -> None:
        starting = asyncio.ensure_future(self.registrar.start())
        await self.calls(1)
        self.store.answer(0)
        await starting

    async def calls(self, number: int) -> None:
        """Wait until the store has been called so often."""
        await eventually(lambda: len(self.store.calls) >= number)

    def become(self, state: BookieState) -> "asyncio.Task[None]":
        """Change the state and begin to announce it."""
        self.current = replace(self.current, state=state)
        return asyncio.create_task(self.registrar.announce())


async def test_of_two_announcements_at_once_the_newer_one_stays() -> None:
    bookie = Announcing()
    await bookie.start()
    older = bookie.become(BookieState.READ_ONLY)
    await bookie.calls(2)
    newer = bookie.become(BookieState.WRITABLE)
    for _ in range(5):
        await asyncio.sleep(0)
    for number in reversed(range(1, len(bookie.store.calls))):  # the answers in the other order, as far as they can be
        bookie.store.answer(number)
        await asyncio.sleep(0)
    await bookie.calls(3)
    bookie.store.answer(2)
    await asyncio.gather(older, newer)
    assert bookie.store.stored == bookie.current
    await bookie.registrar.stop()


async def test_what_changes_while_the_bookie_is_registered_for_the_first_time_is_announced() -> None:
    bookie = Announcing()
    starting = asyncio.ensure_future(bookie.registrar.start())
    await bookie.calls(1)
    await bookie.become(BookieState.READ_ONLY)  # there is no registration yet
    bookie.store.answer(0)
    await starting
    await bookie.calls(2)
    bookie.store.answer(1)
    await eventually(lambda: bookie.store.stored == bookie.current)
    await bookie.registrar.stop()


async def test_what_changes_while_the_bookie_is_registered_again_is_announced() -> None:
    bookie = Announcing()
    await bookie.start()
    bookie.store.leases[0].ended.set()
    await bookie.calls(2)
    await bookie.become(BookieState.READ_ONLY)  # the lease that is known is lost
    bookie.store.answer(1)
    await bookie.calls(3)
    bookie.store.answer(2)
    await eventually(lambda: bookie.store.stored == bookie.current)
    await bookie.registrar.stop()


async def test_nothing_is_announced_if_nothing_has_changed() -> None:
    bookie = Announcing()
    await bookie.start()
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(bookie.store.calls) == 1
    await bookie.registrar.stop()
    assert bookie.store.stored is None


async def test_a_bookie_stops_although_the_store_does_not_take_its_registration_back() -> None:
    class Silent(SlowLease):
        async def release(self) -> None:
            asked.set()
            await asyncio.Event().wait()

    asked = asyncio.Event()
    bookie = Announcing(Silent)
    await bookie.start()
    bookie.registrar.release_seconds_max = 0.0
    await bookie.registrar.stop()
    assert asked.is_set()
    assert bookie.store.stored is not None


def registration(bookie_id: str, boot_id: str = "boot-1") -> BookieRegistration:
    return BookieRegistration(
        bookie_id=BookieId(bookie_id), address="127.0.0.1:1", state=BookieState.WRITABLE, version="1", boot_id=boot_id
    )
