"""Watches when the store cannot be reached, answers nonsense, or fails."""

import asyncio

import pytest
from octavo.metadata.store.watch import WatchHub
from octavo.protocol.errors import (
    ClientClosedError,
    InternalError,
    MetadataError,
    MetadataUnavailableError,
    OctavoError,
)


class Source:
    """Something to watch, which can be made to fail and to wait."""

    def __init__(self) -> None:
        self.value: int | None = 0
        self.failure: Exception | None = None
        self.loads = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def load(self, _previous: int | None) -> int | None:
        self.loads += 1
        value = self.value
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return value


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def watching() -> list[bool]:
    return []


@pytest.fixture
def hub(watching: list[bool]) -> WatchHub:
    return WatchHub(watching.append, retry_seconds=0)


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_change_during_a_load_causes_one_more(hub: WatchHub, source: Source) -> None:
    async with hub.watch("k", source.load) as watch:
        assert await anext(watch) == 0
        source.gate.clear()
        hub.changed_one("k")
        await turns()
        source.value = 1  # too late for the load under way
        for _ in range(10):
            hub.changed_one("k")
        source.gate.set()
        assert await anext(watch) == 1
        assert source.loads == 3


async def test_first_value_is_from_a_load_begun_after_joining(hub: WatchHub, source: Source) -> None:
    async with hub.watch("k", source.load) as first:
        await anext(first)
        source.gate.clear()
        hub.changed_one("k")
        await turns()
        source.value = 1
        async with hub.watch("k", source.load) as second:
            joining = asyncio.ensure_future(anext(second))
            await turns()
            source.gate.set()
            assert await joining == 1


async def test_value_loaded_again_and_found_the_same_is_not_reported(hub: WatchHub, source: Source) -> None:
    async with hub.watch("k", source.load) as watch:
        await anext(watch)
        waiting = asyncio.ensure_future(anext(watch))
        hub.changed(lambda key: key == "k")
        hub.changed(lambda key: key == "other")
        await turns()
        assert source.loads == 2
        assert not waiting.done()
        source.value = None
        hub.changed_one("k")
        assert await waiting is None


async def test_watch_outlasts_a_store_that_cannot_be_reached(hub: WatchHub, source: Source) -> None:
    async with hub.watch("k", source.load) as watch:
        await anext(watch)
        source.failure, source.value = MetadataUnavailableError("away"), 1
        hub.changed_one("k")
        waiting = asyncio.ensure_future(anext(watch))
        await turns(10)
        assert source.loads > 2
        assert not waiting.done()
        source.failure = None
        assert await waiting == 1


async def test_value_that_cannot_be_understood_is_told_to_every_watcher(hub: WatchHub, source: Source) -> None:
    source.failure = MetadataError("ledger 7: damaged")
    async with hub.watch("k", source.load) as first, hub.watch("k", source.load) as second:
        for watch in (first, second):
            with pytest.raises(MetadataError, match="ledger 7"):
                await anext(watch)
        source.failure = None
        async with hub.watch("k", source.load) as later:  # repaired meanwhile
            assert await anext(later) == 0


async def test_defect_in_a_load_is_reported_and_hangs_no_watch(hub: WatchHub, source: Source) -> None:
    source.failure = KeyError("a defect")
    async with hub.watch("k", source.load) as watch:
        with pytest.raises(InternalError, match="a defect"):
            await anext(watch)


async def test_driver_is_told_whether_anything_is_watched(hub: WatchHub, source: Source, watching: list[bool]) -> None:
    async with hub.watch("a", source.load), hub.watch("b", source.load), hub.watch("b", source.load):
        assert watching == [True]
    assert watching == [True, False]


async def test_closed_hub_ends_watches_and_takes_no_more(hub: WatchHub, source: Source) -> None:
    async with hub.watch("k", source.load) as watch:
        await anext(watch)
        waiting = asyncio.ensure_future(anext(watch))
        await turns()
        await hub.close()
        with pytest.raises(ClientClosedError):
            await waiting
        with pytest.raises(ClientClosedError):
            await anext(watch)
    with pytest.raises(ClientClosedError):
        await hub.watch("k", source.load).__aenter__()


async def test_watch_is_entered_once_and_before_it_is_used(hub: WatchHub, source: Source) -> None:
    watch = hub.watch("k", source.load)
    with pytest.raises(RuntimeError, match="enter the watch"):
        await anext(watch)
    async with watch:
        with pytest.raises(RuntimeError, match="once"):
            await watch.__aenter__()


class Told:
    """What a watch that was begun has called back with."""

    def __init__(self) -> None:
        self.values: list[int | None] = []
        self.ends: list[OctavoError] = []
        self.refuses: type[Exception] | None = None

    def value(self, value: int | None) -> None:
        if self.refuses is not None:
            raise self.refuses("not wanted")
        self.values.append(value)

    def end(self, error: OctavoError) -> None:
        self.ends.append(error)


async def test_watch_that_was_begun_calls_back_with_the_first_value_and_each_change(
    hub: WatchHub, source: Source, watching: list[bool]
) -> None:
    told = Told()
    watch = hub.watch("k", source.load).begin(told.value, told.end)
    assert told.values == []
    await turns()
    source.value = 1
    hub.changed_one("k")
    await turns()
    hub.changed_one("k")  # nothing has changed
    await turns()
    assert told.values == [0, 1]
    watch.stop()
    source.value = 2
    hub.changed_one("k")
    await turns()
    assert (told.values, told.ends, watching) == ([0, 1], [], [True, False])
    await hub.close()


async def test_first_value_of_a_watch_that_was_begun_is_from_a_load_begun_after_that(
    hub: WatchHub, source: Source
) -> None:
    async with hub.watch("k", source.load) as other:
        await anext(other)
        source.gate.clear()
        hub.changed_one("k")
        await turns()
        source.value = 1
        told = Told()
        hub.watch("k", source.load).begin(told.value, told.end)
        source.gate.set()
        await turns(10)
        assert told.values == [1]
    await hub.close()


@pytest.mark.parametrize("refusal", [MetadataError, ValueError])
async def test_error_of_what_is_called_back_ends_the_watch_and_no_other(
    hub: WatchHub, source: Source, refusal: type[Exception]
) -> None:
    told, other = Told(), Told()
    told.refuses = refusal
    hub.watch("k", source.load).begin(told.value, told.end)
    hub.watch("k", source.load).begin(other.value, other.end)
    await turns()
    source.value = 1
    hub.changed_one("k")
    await turns()
    assert [type(error) for error in told.ends] == [MetadataError if refusal is MetadataError else InternalError]
    assert (other.values, other.ends) == ([0, 1], [])
    await hub.close()
    await turns()
    assert [type(error) for error in other.ends] == [ClientClosedError]
    assert len(told.ends) == 1


async def test_watch_begun_on_a_closed_hub_is_told_so(hub: WatchHub, source: Source) -> None:
    await hub.close()
    told = Told()
    hub.watch("k", source.load).begin(told.value, told.end)
    assert told.ends == []
    await turns()
    assert [type(error) for error in told.ends] == [ClientClosedError]


async def test_watch_stopped_before_it_is_told_hears_nothing(hub: WatchHub, source: Source) -> None:
    told = Told()
    watch = hub.watch("k", source.load).begin(told.value, told.end)
    hub.watch("k", source.load).begin(lambda _value: watch.stop(), told.end)
    other = Told()
    hub.watch("k", source.load).begin(other.value, other.end)
    source.gate.clear()
    await turns()
    watch.stop()
    source.gate.set()
    await turns()
    assert (told.values, other.values) == ([], [0])
    await hub.close()


async def test_closing_waits_for_loads_of_watches_that_were_stopped(hub: WatchHub, source: Source) -> None:
    source.gate.clear()
    before = asyncio.all_tasks()
    told = Told()
    watch = hub.watch("k", source.load).begin(told.value, told.end)
    await turns()
    assert asyncio.all_tasks() - before
    watch.stop()
    await hub.close()
    assert not asyncio.all_tasks() - before
