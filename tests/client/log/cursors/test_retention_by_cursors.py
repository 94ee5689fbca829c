"""What retention by cursors keeps, of both layouts (rule P8)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from octavo.client.log.documents.chain import Retention
from octavo.client.log.documents.cursors import CursorState
from support.clusters.retention_world import DROPS_ALL, IDLE_SECONDS, OLD, World, open_world
from support.interleavings import Turns

END = 15
"""Of what is known of the log."""

BY_CURSORS = Retention(cursors=True)


@asynccontextmanager
async def log_of(layout: str, retention: Retention, **cursors: int) -> AsyncIterator[World]:
    turns = Turns(lambda _name, _arguments: False)
    stored = {name: CursorState(position, 10_000_000) for name, position in cursors.items()}
    async with open_world(layout, turns, retention, stored) as world:
        yield world


LAYOUTS = pytest.mark.parametrize("layout", ["stream", "chain"])


@LAYOUTS
async def test_nothing_is_dropped_before_there_is_a_cursor(layout: str) -> None:
    async with log_of(layout, DROPS_ALL) as world:
        await world.leader.tidy()
        assert await world.first_position() == 0
        keeper = world.keeper("consumer")
        cell = await keeper.open("billing", world.first_position)
        assert cell.position == 0
        await world.leader.tidy()
        assert await world.first_position() == 0
        await keeper.delete(cell)
        await world.leader.tidy()
        assert await world.first_position() == 0, "a log whose cursors were all deleted has none"


@LAYOUTS
async def test_other_limits_decide_once_all_cursors_are_idle(layout: str) -> None:
    async with log_of(layout, DROPS_ALL, gone=OLD) as world:
        await world.leader.tidy()
        assert await world.first_position() <= OLD
        world.time_ms += int(IDLE_SECONDS * 1000) + 1
        await world.leader.tidy()
        assert await world.first_position() > OLD


@LAYOUTS
@pytest.mark.parametrize("retention", [BY_CURSORS, DROPS_ALL])
async def test_a_cursor_at_the_end_is_not_idle(layout: str, retention: Retention) -> None:
    """It waits for the leader. Were it idle, nothing would say that all before it was consumed."""
    async with log_of(layout, retention, waiting=END) as world:
        await world.leader.tidy()
        dropped = await world.first_position()
        assert dropped > OLD
    async with log_of(layout, BY_CURSORS, waiting=END, behind=OLD) as world:
        await world.leader.tidy()
        assert await world.first_position() <= OLD
        world.time_ms += int(IDLE_SECONDS * 1000) + 1
        await world.leader.tidy()
        assert await world.first_position() == dropped, "what the one at the end has consumed"


@LAYOUTS
async def test_what_only_idle_cursors_have_passed_is_kept(layout: str) -> None:
    async with log_of(layout, BY_CURSORS, gone=OLD) as world:
        await world.leader.tidy()
        before = await world.first_position()
        world.time_ms += int(IDLE_SECONDS * 1000) + 1
        await world.leader.tidy()
        assert await world.first_position() == before
