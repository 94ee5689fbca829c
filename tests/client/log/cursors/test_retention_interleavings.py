"""Retention, consumers and operators at once, in every order of their steps at the store: nothing is dropped that a
cursor holds back (rule P20), by the production code of both layouts."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from octavo.client.log.cursors.floor import agree_on_cut
from octavo.client.log.cursors.reading import read_cursors
from octavo.client.log.documents.chain import Retention
from octavo.client.log.documents.cursors import CursorsDocument, CursorState, encode_cursors
from octavo.client.log.documents.names import cursors_document, list_document
from support.clusters.retention_world import DROPS_ALL, IDLE_SECONDS, OLD, World, nothing, open_world
from support.interleavings import Parties, Turns, explore
from support.metadata.metadata_clusters import MemoryCluster


def is_step(_name: str, arguments: tuple[object, ...]) -> bool:
    """Steps that parties meet at: the two documents."""
    return arguments[0] in (list_document("orders"), cursors_document("id-1"))


type Check = Callable[[World], Awaitable[None]]


async def every_order(
    layout: str,
    parties: Callable[[World], Parties],
    check: Check,
    *,
    retention: Retention = DROPS_ALL,
    cursors: dict[str, CursorState] | None = None,
    prepare: Check | None = None,
) -> int:
    """How many orders there are."""

    @asynccontextmanager
    async def world(turns: Turns) -> AsyncIterator[Parties]:
        async with open_world(layout, turns, retention, cursors or {}) as made:
            if prepare is not None:
                await prepare(made)
            yield parties(made)
            await check(made)

    return await explore(world, is_step=is_step)


LAYOUTS = pytest.mark.parametrize("layout", ["stream", "chain"])


@LAYOUTS
async def test_a_cursor_that_is_made_meanwhile_is_not_passed(layout: str) -> None:
    truncated = 0

    def parties(world: World) -> Parties:
        keeper = world.keeper("consumer")

        async def consume() -> None:
            async def beginning() -> int:
                return await world.first_position(world.access("consumer").store)

            await keeper.open("new", beginning)

        return {"leader": world.leader.tidy, "consumer": consume}

    async def check(world: World) -> None:
        nonlocal truncated
        first = await world.first_position()
        new = (await read_cursors(world.store, "id-1"))["new"]
        assert new.position >= first
        assert new.position in (0, first)
        truncated += first > 0

    tried = await every_order(layout, parties, check, cursors={"other": CursorState(15, 10_000_000)})
    assert 0 < truncated < tried, "both come first in some orders"


@LAYOUTS
async def test_an_idle_consumer_that_comes_back_meanwhile_holds_back_or_comes_too_late(layout: str) -> None:
    """Too late: after the floor was written. A follower gets what became of its position from the log."""
    outcomes: set[bool] = set()

    async def prepare(world: World) -> None:
        await world.leader.tidy()
        assert await world.first_position() <= OLD, "it is not idle yet"
        world.time_ms += int(IDLE_SECONDS * 1000) + 1

    def parties(world: World) -> Parties:
        keeper = world.keeper("consumer")

        async def consume() -> None:
            keeper.touch(await keeper.open("old", nothing))
            await keeper.flush()

        return {"leader": world.leader.tidy, "consumer": consume}

    async def check(world: World) -> None:
        first = await world.first_position()
        floor = next(one.floor for one in world.stored if one.cursors["old"].touched_at_ms == world.time_ms)
        outcomes.add(first > OLD)
        assert (first > OLD) == (floor > OLD), "it is passed only if the floor was there before it"

    cursors = {"old": CursorState(OLD, 10_000_000)}
    assert await every_order(layout, parties, check, cursors=cursors, prepare=prepare) > 2
    assert outcomes == {True, False}


@LAYOUTS
async def test_a_retention_that_keeps_more_is_kept_to_once_it_is_set(layout: str) -> None:
    def parties(world: World) -> Parties:
        keeper = world.keeper("operator")

        async def operate() -> None:
            async def beginning() -> int:
                return await world.first_position(world.access("operator").store)

            await world.set_retention("operator", DROPS_ALL)
            await keeper.open("new", beginning)

        return {"leader": world.leader.tidy, "operator": operate}

    async def check(world: World) -> None:
        assert (await read_cursors(world.store, "id-1"))["new"].position == await world.first_position()

    assert await every_order(layout, parties, check, retention=replace(DROPS_ALL, cursors=False)) > 2


async def test_a_floor_that_stands_already_does_not_speak_for_the_cursors_of_now(tmp_path: Path) -> None:
    """A round was interrupted behind its floor. In the next one a cursor is touched while it is looked at."""
    metadata = MemoryCluster(tmp_path)
    async with metadata.stack:
        store = await metadata.open()
        cursors = {"consumer": CursorState(3, 0)}
        document = CursorsDocument(cursors, floor=9)
        version = await store.create_document(cursors_document("id-1"), encode_cursors(document))
        looks: list[int] = []

        async def cut_of(found: Mapping[str, CursorState]) -> int:
            looks.append(found["consumer"].touched_at_ms)
            if len(looks) == 1:
                touched = document.with_cursors({"consumer": CursorState(3, 1)})
                await store.compare_and_set_document(cursors_document("id-1"), encode_cursors(touched), version)
                return 9  # it was idle
            return 3

        assert await agree_on_cut(store, "id-1", 0, cut_of) == 3
        assert looks == [0, 1]
