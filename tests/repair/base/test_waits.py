"""How long bookies have been missing or held, for certain (rule A13), through auditors whose clocks are wrong."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from octavo.client.options import ClientOptions
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata import MetadataStore
from octavo.metadata.clocks.proven_time import BootTime, Moment, ProvenTime
from octavo.metadata.cluster.repair_states import BookieCondition, Condition, RepairStates
from octavo.metadata.encoding import encode_object
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.protocol.errors import MetadataConflictError, MetadataError
from octavo.protocol.ids import BookieId
from octavo.repair.audit.bookie_watch import BookieWatch
from octavo.repair.base.settings import RepairSettings
from octavo.repair.base.waits import DOCUMENT, Wait, Waits, decode_waits
from octavo.repair.operate import operators
from support.clusters.fake_bookie import registered_bookies
from support.clusters.local_bookie import MemoryBookie
from support.metadata.interposed_store import InterposedStore
from support.metadata.metadata_clusters import cookie, registration

A = BookieId("a")
NOON_SECONDS = 1_767_268_800
HOUR = 3600.0
DAY = 24 * HOUR
YEAR = 365 * DAY
UNSET = -float(NOON_SECONDS)


@dataclass
class World:
    """A cluster of five bookies, of which ``a`` is not registered. ``passed`` seconds after noon."""

    store: MetadataStore
    cluster_id: str
    passed: float = 0.0
    store_off: float = 0.0
    faces: list[InterposedStore] = field(default_factory=list)
    """The stores of the auditors, in their order."""

    def now_ms(self, off: float = 0.0) -> int:
        return int((NOON_SECONDS + self.passed + off) * 1000)

    def auditor(self, off: list[float], host: str | None = None) -> BookieWatch:
        """The eyes of an auditor whose clock is off by ``off[0]`` at present."""
        face = InterposedStore(self.store)

        async def time_ms() -> int:
            return self.now_ms(self.store_off)

        face.interpose("time_ms", time_ms)
        self.faces.append(face)
        name = host or f"host-{len(self.faces)}"
        bookie = Auditor("z", face.face, self.cluster_id, self, off)
        pool = ConnectionPool(face.face, cluster_id=self.cluster_id, options=ClientOptions(), rng=random.Random(1))
        settings = RepairSettings(lost_seconds=HOUR, audit_seconds=60.0)
        return BookieWatch(bookie, pool, settings, boot_clock=lambda: BootTime(name, int(self.passed * 1000)))

    async def condition(self) -> Condition | None:
        return (await operators.read_states(self.store)).condition_of(A)

    async def audit_for(self, auditor: BookieWatch, seconds: float) -> None:
        """Look every five minutes."""
        for _ in range(int(seconds // 300)):
            await auditor.observe()
            self.passed += 300
        await auditor.observe()


class Auditor(MemoryBookie):
    """Its clock is that of the world, and wrong."""

    def __init__(self, bookie_id: str, store: MetadataStore, cluster_id: str, world: World, off: list[float]) -> None:
        super().__init__(bookie_id, store, cluster_id)
        self._clock = lambda: world.now_ms(off[0]) / 1000

    @property
    def wall_clock(self):  # type: ignore[no-untyped-def]
        return self._clock


@asynccontextmanager
async def world_of() -> AsyncIterator[World]:
    async with open_memory_store(MemoryServer()) as store, registered_bookies(store, 4):
        await store.create_cookie(cookie("a"))
        yield World(store, await store.cluster_id())


CLOCKS = {
    "right": (0.0, 0.0, 0.0),
    "a day ahead": (DAY, 0.0, 0.0),
    "a day behind": (-DAY, 0.0, 0.0),
    "in 1970": (UNSET, 0.0, 0.0),
    "store a year ahead": (0.0, YEAR, 0.0),
    "store in 1970": (0.0, UNSET, 0.0),
    "operator a day behind": (0.0, 0.0, -DAY),
    "operator a year ahead": (0.0, 0.0, YEAR),
    "operator in 1970": (0.0, 0.0, UNSET),
}


@pytest.mark.parametrize(("off", "store_off", "operator"), CLOCKS.values(), ids=CLOCKS)
async def test_a_hold_lasts_and_so_does_the_grace_time_whatever_one_clock_shows(
    off: float, store_off: float, operator: float
) -> None:
    """Nine auditors, one after another: every second one has a wrong clock."""
    async with world_of() as world:
        await operators.hold(world.store, "a", seconds=2 * HOUR, reason="", now_ms=world.now_ms(operator))
        world.store_off = store_off
        for number in range(9):
            await world.audit_for(world.auditor([off if number % 2 else 0.0]), 600)
            assert await world.condition() is Condition.HELD
        world.store_off = 0.0
        last = world.auditor([0.0])
        await world.audit_for(last, HOUR)
        assert await world.condition() is Condition.MISSING, "one wrong clock must not hold for ever"
        await world.audit_for(last, HOUR + 600)
        assert await world.condition() is Condition.LOST


@pytest.mark.parametrize("steps", [[DAY], [-DAY], [UNSET, 0.0], [YEAR, -YEAR, 0.0]])
async def test_an_auditor_whose_clock_is_set_while_it_runs_ends_no_hold(steps: list[float]) -> None:
    async with world_of() as world:
        await operators.hold(world.store, "a", seconds=2 * HOUR, reason="", now_ms=world.now_ms())
        off = [0.0]
        auditor = world.auditor(off)
        for step in steps:
            await world.audit_for(auditor, 600)
            off[0] = step
            world.store_off = step  # the only clock of the host
        await world.audit_for(auditor, HOUR)
        assert await world.condition() is Condition.HELD
        await world.audit_for(auditor, HOUR + 600)
        assert await world.condition() is Condition.MISSING


async def test_a_bookie_that_is_missing_for_a_moment_is_not_lost_by_an_auditor_a_day_ahead() -> None:
    async with world_of() as world:
        await world.audit_for(world.auditor([0.0]), 300)
        assert await world.condition() is Condition.MISSING
        await world.audit_for(world.auditor([DAY]), 3000)
        assert await world.condition() is Condition.MISSING
        await world.audit_for(world.auditor([DAY]), 900)
        assert await world.condition() is Condition.LOST


async def test_the_grace_time_goes_on_while_there_is_no_auditor() -> None:
    async with world_of() as world:
        await world.audit_for(world.auditor([0.0]), 300)
        world.passed += HOUR
        await world.auditor([0.0]).observe()
        assert await world.condition() is Condition.LOST


async def test_conditions_of_older_versions_are_counted_from_the_first_look() -> None:
    async with world_of() as world:
        since_ms = world.now_ms() - int(DAY * 1000)
        await operators.change_states(
            world.store, lambda states: states.with_bookie(A, BookieCondition(Condition.MISSING, since_ms))
        )
        auditor = world.auditor([0.0])
        await world.audit_for(auditor, 3540)
        assert await world.condition() is Condition.MISSING
        await world.audit_for(auditor, 600)
        assert await world.condition() is Condition.LOST


async def test_a_damaged_count_begins_anew() -> None:
    async with world_of() as world:
        await world.audit_for(world.auditor([0.0]), 1800)
        found = await world.store.read_document(DOCUMENT)
        assert found is not None
        await world.store.compare_and_set_document(DOCUMENT, b"{}", found.version)
        auditor = world.auditor([0.0])
        await world.audit_for(auditor, 3540)
        assert await world.condition() is Condition.MISSING
        await world.audit_for(auditor, 600)
        assert await world.condition() is Condition.LOST


async def test_an_auditor_that_another_one_has_overtaken_steps_down() -> None:
    """Rule A4: also when only the count has changed meanwhile."""
    async with world_of() as world:
        first, second = world.auditor([0.0]), world.auditor([0.0])
        await first.observe()
        found = await world.store.read_document(DOCUMENT)
        assert found is not None

        async def put(name: str, value: bytes, version: object) -> object:
            await second.observe()
            return await world.store.put_document(name, value, version)  # type: ignore[arg-type]

        world.passed += 600
        world.faces[0].interpose("put_document", put)
        with pytest.raises(MetadataConflictError):
            await first.observe()


async def test_while_all_bookies_are_there_nothing_is_asked_or_noted() -> None:
    async with world_of() as world:
        await world.store.register_bookie(registration("a"))
        auditor = world.auditor([DAY])
        world.faces[0].make_unavailable("time_ms")
        await world.audit_for(auditor, 300)
        assert await world.store.read_document(DOCUMENT) is None
        assert auditor.next_at(5.0) is None


async def test_the_next_look_is_when_what_is_left_of_the_wait_has_passed() -> None:
    async with world_of() as world:
        auditor = world.auditor([0.0])
        await world.audit_for(auditor, 600)
        assert auditor.next_at(5.0) == 5.0 + HOUR - 600
        await operators.hold(world.store, "a", seconds=7200, reason="", now_ms=world.now_ms(YEAR))
        await world.audit_for(auditor, 600)
        assert auditor.next_at(5.0) == 5.0 + 7200 - 600


async def test_the_auditor_shows_by_how_much_its_clock_is_ahead() -> None:
    async with world_of() as world:
        auditor = world.auditor([DAY])
        await auditor.compare_clocks()
        assert auditor.clock_ahead_ms == 86_400_000


# --- the count --------------------------------------------------------------------------------------------------------


def moment(ms: int) -> Moment:
    return Moment(ms, ms, BootTime("a", ms))


def missing(since_ms: int) -> RepairStates:
    return RepairStates({A: BookieCondition(Condition.MISSING, since_ms)})


def test_what_is_counted_and_when_it_is_written() -> None:
    stored = Waits(ProvenTime(moment(0))).of(missing(7))
    assert stored.begun == {A: Wait(7, None, 0)}
    later = stored.advanced(moment(5000))
    assert later.elapsed_ms(A, missing(7).bookies[A]) == 5000
    assert later.elapsed_ms(A, missing(8).bookies[A]) == 0, "it is missing anew"
    assert later.of(missing(8)).begun == {A: Wait(8, None, 5000)}
    assert later.of(RepairStates({A: BookieCondition(Condition.LOST, 7)})).begun == {}
    assert not later.is_worth_writing(stored, 80_001)
    assert later.is_worth_writing(stored, 80_000)
    assert later.of(missing(8)).is_worth_writing(stored, 10**9)
    assert not stored.advanced(moment(999)).is_worth_writing(stored, 1)
    held = stored.of(RepairStates({A: BookieCondition(Condition.HELD, 7, 80_007)}))
    assert held.advanced(moment(5000)).is_worth_writing(held, 10**9)


def test_the_document_is_read_as_it_was_written_also_of_a_newer_version() -> None:
    waits = Waits(ProvenTime(moment(4), 9), {A: Wait(1, None, 2), BookieId("b"): Wait(1, 5, 2)}, {"newer": 3})
    assert decode_waits(waits.encode()) == waits


@pytest.mark.parametrize("waits", [{"a": [1, 2]}, {"a": ["1", None, 3]}, {"a": [1, "2", 3]}, {"a": 5}])
def test_a_damaged_document_is_refused(waits: object) -> None:
    fields = {"time": ProvenTime(moment(0)).to_fields(), "waits": waits}
    with pytest.raises(MetadataError, match="repair/clock"):
        decode_waits(encode_object(fields, format_number=1))
    with pytest.raises(MetadataError):
        decode_waits(replace(Waits(ProvenTime(moment(0)))).encode()[:-4])


async def test_an_auditor_that_looked_before_knows_how_long_another_ones_count_is_ago() -> None:
    """Its clock is ahead of the other auditor's, and the store's is set forward: by both of them, hours have passed
    since the other one counted."""
    async with world_of() as world:
        ahead, right = world.auditor([2 * HOUR]), world.auditor([0.0])
        await ahead.observe()
        await world.audit_for(right, 900)
        world.store_off = YEAR
        world.passed += 60
        await ahead.observe()
        assert await world.condition() is Condition.MISSING
        await world.audit_for(ahead, HOUR - 1200)
        assert await world.condition() is Condition.MISSING
        await world.audit_for(ahead, 1500)
        assert await world.condition() is Condition.LOST
