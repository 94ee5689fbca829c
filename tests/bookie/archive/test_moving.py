"""Moves on a simulated store and real metadata: killed between any two steps, paused, and through every fault of a
store (rule J6)."""

import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from octavo.bookie.archive.errors import ObjectDamagedError, ObjectMissingError
from octavo.bookie.archive.format import Head, IdRange, ObjectName, make_head
from octavo.bookie.archive.mover import GIVE_UP_SECONDS, Outcome, Step
from octavo.bookie.archive.moving import move, read_whole
from octavo.bookie.archive.store import OwnedStore
from octavo.bookie.archive.writing import Written
from octavo.metadata import MetadataStore, open_metadata_store
from octavo.metadata.ledger.archive_word import ArchiveWord
from octavo.metadata.stream.archived import ArchiveTail, FragmentWords, TakeBackTail
from octavo.metadata.stream.model import StreamMetadata
from octavo.metadata.updates.update import update_stream
from octavo.protocol.errors import MetadataConflictError
from octavo.protocol.ids import LedgerId
from octavo.protocol.quorums import Quorums
from simulation.engine.loop import SimulationLoop
from simulation.engine.object_store import SimulatedBucket, SimulatedStoreDriver
from support.clusters.ledgers import LedgerScript
from support.metadata.paged_streams import many_fragments, resting
from support.metadata.stream_metadata import open_stream

SEVEN = LedgerId(7)
STREAM = resting(open_stream(*many_fragments(6)))
COUNT = 3
"""Fragments that are moved."""


class KilledError(Exception):
    """The process has ended."""


@dataclass
class World:
    """A bucket, the metadata of one stream, and what moves its first fragments."""

    bucket: SimulatedBucket
    metadata: MetadataStore
    store: OwnedStore

    def work(self, token: int) -> "FragmentsMove":
        return FragmentsMove(self, token.to_bytes(16, "big"))

    async def stream(self) -> StreamMetadata:
        return (await self.metadata.read_stream(SEVEN)).value

    async def named(self) -> set[ArchiveWord]:
        return {word for fragment in (await self.stream()).fragments for word in fragment.archive}

    async def check(self) -> None:
        """Every word names an object that is there, whole."""
        for word in await self.named():
            name = ObjectName(SEVEN, word.first, word.last, word.token)
            await read_whole(self.store, Written(name, word.object_bytes, 0, 0, word.sha256, 0))


class FragmentsMove:
    """Moves fragments of the tail into one object."""

    def __init__(self, world: World, token: bytes) -> None:
        self._world = world
        self._fragments = STREAM.fragments[:COUNT]
        self._ranges = [IdRange(one.first_entry_id, STREAM.last_id_of(one) or 0) for one in self._fragments]
        self._head = make_head(token, SEVEN, Quorums(3, 3, 2), self._ranges)
        self.before_word: Callable[[], None] = lambda: None
        self.answers: list[Outcome] = []
        """Given instead of what became of the word, as long as there are any."""

    @property
    def head(self) -> Head:
        return self._head

    async def entries(self) -> AsyncIterator[Sequence[bytes]]:
        for first, last in self._ranges:
            yield LedgerScript(7).entries(range(first, last + 1))

    def _words(self, written: Written) -> tuple[FragmentWords, ...]:
        name = written.name
        word = ArchiveWord(1, name.token, name.first, name.last, written.object_bytes, written.sha256)
        return tuple(
            FragmentWords(one.first_entry_id, STREAM.last_id_of(one) or one.first_entry_id, (word,))
            for one in self._fragments
        )

    async def write_word(self, written: Written) -> Outcome:
        self.before_word()
        return await self._change(ArchiveTail(self._words(written)))

    async def take_back(self, written: Written) -> Outcome:
        return await self._change(TakeBackTail(self._words(written)))

    async def _change(self, change: ArchiveTail | TakeBackTail) -> Outcome:
        try:
            await update_stream(self._world.metadata, SEVEN, change, writer_token="mover")
        except MetadataConflictError:
            return Outcome.REFUSED
        return self.answers.pop(0) if self.answers else Outcome.OK


def in_world(story: Callable[[World, SimulationLoop], Coroutine[Any, Any, None]], *, seed: int = 1) -> None:
    """Play a story in virtual time."""
    loop = SimulationLoop()

    async def run() -> None:
        bucket = SimulatedBucket(random.Random(seed))
        async with await open_metadata_store("memory://", create=True) as metadata:
            while await metadata.allocate_ledger_id() < SEVEN:
                pass
            await metadata.create_stream(STREAM)
            store = OwnedStore(SimulatedStoreDriver(bucket, "cluster"), b"owner")
            await store.claim()
            await story(World(bucket, metadata, store), loop)

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


def test_a_move_ends_with_a_word_for_each_fragment_and_an_object_that_is_whole() -> None:
    async def story(world: World, loop: SimulationLoop) -> None:
        assert await move(world.work(1), world.store, clock=loop.time) is Step.DONE
        stream = await world.stream()
        assert [len(fragment.archive) for fragment in stream.fragments] == [1, 1, 1, 0, 0, 0]
        assert stream.archived_before == stream.fragments[COUNT].first_entry_id
        await world.check()

    in_world(story)


@pytest.mark.parametrize("steps", range(6))
def test_a_mover_that_is_killed_between_any_two_steps_leaves_nothing_that_is_wrong(steps: int) -> None:
    async def story(world: World, loop: SimulationLoop) -> None:
        looks = 0

        def clock() -> float:
            nonlocal looks
            looks += 1
            if looks > steps:
                raise KilledError
            return loop.time()

        try:
            assert await move(world.work(1), world.store, clock=clock) is Step.DONE
        except KilledError:
            await world.check()
        had_word = bool(await world.named())
        ended = await move(world.work(2), world.store, clock=loop.time)
        assert ended is (Step.GARBAGE if had_word else Step.DONE)
        assert len(await world.named()) == 1
        await world.check()

    in_world(story)


@pytest.mark.parametrize("seed", range(40))
def test_a_store_with_every_fault_gets_the_entries_in_the_end(seed: int) -> None:
    async def story(world: World, loop: SimulationLoop) -> None:
        faults = world.bucket.faults
        faults.delay_seconds_max, faults.busy_chance, faults.lost_answer_chance = 20.0, 0.2, 0.2
        faults.truncated_chance = 0.1
        token, ended = 0, Step.GARBAGE
        while ended is not Step.DONE:
            token += 1
            assert token < 200
            ended = await move(world.work(token), world.store, clock=loop.time, part_bytes=1500, read_back_bytes=500)
            assert ended in {Step.DONE, Step.GARBAGE}
        world.bucket.faults = type(faults)()
        assert len(await world.named()) == 1
        await world.check()

    in_world(story, seed=seed)


def test_two_movers_at_once_write_one_word() -> None:
    async def story(world: World, loop: SimulationLoop) -> None:
        second = world.work(2)

        async def overtaken(written: Written) -> Outcome:
            assert await move(second, world.store, clock=loop.time) is Step.DONE
            return await FragmentsMove.write_word(first, written)

        first = world.work(1)
        first.write_word = overtaken  # type: ignore[method-assign]
        assert await move(first, world.store, clock=loop.time) is Step.GARBAGE
        assert {word.token for word in await world.named()} == {second.head.token}
        await world.check()

    in_world(story)


def test_a_mover_that_was_paused_for_two_days_writes_no_word() -> None:
    async def story(world: World, loop: SimulationLoop) -> None:
        paused = iter([0.0, 0.0, 0.0, 2 * 86400.0])
        assert await move(world.work(1), world.store, clock=lambda: next(paused)) is Step.GARBAGE
        assert await world.named() == set()

    in_world(story)


def test_a_word_whose_object_was_deleted_meanwhile_is_taken_back() -> None:
    """The mover was paused between its look at the clock and its word, and a sweeper took the object for garbage."""

    async def story(world: World, loop: SimulationLoop) -> None:
        work = world.work(1)
        work.before_word = lambda: world.bucket.remove(f"cluster/{work.head.name.key}")
        assert await move(work, world.store, clock=loop.time) is Step.GARBAGE
        assert await world.named() == set()
        assert await move(world.work(2), world.store, clock=loop.time) is Step.DONE
        await world.check()

    in_world(story)


@pytest.mark.parametrize("answers", [[Outcome.UNKNOWN], [Outcome.UNKNOWN] * 3])
def test_a_word_whose_answer_was_lost_is_written_once(answers: list[Outcome]) -> None:
    async def story(world: World, loop: SimulationLoop) -> None:
        work = world.work(1)
        work.answers = answers
        assert await move(work, world.store, clock=loop.time) is Step.DONE
        assert len(await world.named()) == 1
        await world.check()

    in_world(story)


@pytest.mark.parametrize("from_end", [1, 10, 100, 1000])
def test_an_object_that_is_damaged_when_it_is_read_back_gets_no_word(from_end: int) -> None:
    async def story(world: World, loop: SimulationLoop) -> None:
        work = world.work(1)
        looks = 0

        def clock() -> float:
            nonlocal looks
            looks += 1
            if looks == 3:  # after the upload
                key = f"cluster/{work.head.name.key}"
                world.bucket.damage(key, len(world.bucket.objects[key][0]) - from_end)
            return loop.time()

        assert await move(work, world.store, clock=clock) is Step.GARBAGE
        assert await world.named() == set()

    in_world(story)


@pytest.mark.parametrize(("hours", "ended"), [(1, Step.DONE), (7, Step.GARBAGE)])
def test_credentials_that_are_revoked_for_a_while_delay_a_move(hours: int, ended: Step) -> None:
    async def story(world: World, loop: SimulationLoop) -> None:
        looks = 0

        def clock() -> float:
            nonlocal looks
            looks += 1
            world.bucket.faults.revoked = looks >= 3 and loop.time() < hours * 3600
            return loop.time()

        assert await move(world.work(1), world.store, clock=clock) is ended
        assert loop.time() >= min(hours * 3600, GIVE_UP_SECONDS)
        world.bucket.faults.revoked = False
        await world.check()

    in_world(story)


def test_the_check_of_these_stories_notices_a_lost_and_a_damaged_object() -> None:
    async def story(world: World, loop: SimulationLoop) -> None:
        work = world.work(1)
        key = f"cluster/{work.head.name.key}"
        assert await move(work, world.store, clock=loop.time) is Step.DONE
        world.bucket.damage(key, 200)
        with pytest.raises(ObjectDamagedError):
            await world.check()
        world.bucket.remove(key)
        with pytest.raises(ObjectMissingError):
            await world.check()

    in_world(story)
