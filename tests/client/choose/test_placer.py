"""Placement for one client: who is registered, who failed lately, and the racks of those who are gone."""

import random
from collections.abc import AsyncIterator

import pytest
from octavo.client.choose.arrangement import Spread
from octavo.client.choose.placer import Placer
from octavo.metadata import BookieLease, BookieRegistration, BookieState, MetadataStore, open_metadata_store
from octavo.protocol.errors import NotEnoughBookiesError
from octavo.protocol.ids import BookieId
from octavo.protocol.quorums import Quorums

THREE = Quorums(3, 3, 2)


class World:
    """A store with bookies in racks, and a placer whose quarantine the test fills."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.leases: dict[str, BookieLease] = {}
        self.quarantined: set[BookieId] = set()

    def placer(self, racks_min: int = 1, hosts_min: int = 1) -> Placer:
        least = Spread(racks_min, hosts_min)
        return Placer(self.store, rng=random.Random(1), least=least, quarantined=lambda: self.quarantined)

    async def register(self, name: str, rack: str, state: BookieState = BookieState.WRITABLE) -> None:
        self.leases[name] = await self.store.register_bookie(
            BookieRegistration(
                bookie_id=BookieId(name), address="h:1", state=state, version="1", boot_id="b", rack=rack
            )
        )


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with await open_metadata_store("memory://") as store:
        world = World(store)
        for name in ("a0", "a1", "b0", "b1", "c0"):
            await world.register(name, f"/{name[0]}")
        yield world


async def test_quarantined_and_read_only_bookies_are_left_out_of_new_ledgers(world: World) -> None:
    world.quarantined = {BookieId("a0")}
    await world.register("b0", "/b", BookieState.READ_ONLY)
    for _ in range(20):
        assert set(await world.placer().new_ensemble(THREE)) == {"a1", "b1", "c0"}


async def test_new_ledger_takes_quarantined_bookies_rather_than_none_but_never_read_only_ones(world: World) -> None:
    world.quarantined = {BookieId("a0"), BookieId("a1"), BookieId("c0")}
    assert len(set(await world.placer().new_ensemble(THREE))) == 3
    await world.register("b0", "/b", BookieState.READ_ONLY)
    await world.register("b1", "/b", BookieState.READ_ONLY)
    with pytest.raises(NotEnoughBookiesError, match=r"4 .* needed, there are 3 \(read-only: b0, b1\)"):
        await world.placer().new_ensemble(Quorums(4, 3, 2))


async def test_replacements_leave_out_the_quarantined_and_those_the_caller_names(world: World) -> None:
    ensemble = tuple(map(BookieId, ("a0", "b0", "c0")))
    world.quarantined = {BookieId("b1")}
    placer = world.placer()
    assert await placer.replacements(THREE, ensemble, {0}) == {0: "a1"}
    with pytest.raises(NotEnoughBookiesError, match=r"replace a0: no other .* \(not to be used: a1, b1\)"):
        await placer.replacements(THREE, ensemble, {0}, avoid=[BookieId("a1")])


async def test_rack_of_a_member_whose_registration_is_gone_is_remembered(world: World) -> None:
    """a1 may take c0's place only if b0, which is not registered any more, is known to be in another rack."""
    ensemble = tuple(map(BookieId, ("a0", "b0", "c0")))
    world.quarantined = {BookieId("b1")}
    placer = world.placer(racks_min=2)
    await placer.new_ensemble(THREE)
    await world.leases["b0"].release()
    assert await placer.replacements(THREE, ensemble, {2}) == {2: "a1"}
    with pytest.raises(NotEnoughBookiesError, match="must span 2 racks"):
        await world.placer(racks_min=2).replacements(THREE, ensemble, {2})
