"""The index on disk is a dict from (ledger, entry) to place; damage is never an absence."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.bookie.index.format import IndexDamagedError
from octavo.bookie.index.index import Index
from octavo.bookie.index.merge import TIER_BYTES, choose_merge, merge_parts, tier_of
from octavo.bookie.index.part import Part, PartWriter
from octavo.bookie.index.runs import Run, RunMap, make_run, sizes_between
from octavo.bookie.storage.manifest import DOUBT_OF_EVERY_LEDGER, Manifest, decode_manifest, encode_manifest
from octavo.protocol.held_entries import Doubt
from support.disks.faulty_filesystem import MemoryFileSystem

DIRECTORY = Path("/index")
Places = dict[tuple[int, int], tuple[bytes | int, int, int]]


def places(ledger_id: int, runs: list[Run]) -> Places:
    found: Places = {}
    for run in runs:
        offset = run.offset
        for entry_id, size in zip(run.ids, sizes_between(run, 0, len(run.ids)), strict=True):
            assert (ledger_id, entry_id) not in found
            found[ledger_id, entry_id] = (run.place, offset, size)
            offset += size
    return found


async def write_part(filesystem: MemoryFileSystem, part_id: int, content: dict[int, RunMap]) -> Part:
    writer = await PartWriter.create(filesystem, DIRECTORY, part_id)
    for ledger_id in sorted(content):
        for run in content[ledger_id].runs:
            await writer.add_run(ledger_id, run)
    for ledger_id in sorted(content):
        await writer.add_state(ledger_id, b"state %d of %d" % (part_id, ledger_id))
    return await writer.finish()


async def new_filesystem() -> MemoryFileSystem:
    filesystem = MemoryFileSystem()
    await filesystem.make_directory(DIRECTORY)
    return filesystem


@st.composite
def puts(draw: st.DrawFn) -> tuple[int, int, Run]:
    """Part, ledger, run; regular and irregular, narrow and wide, up to a hundred entries."""
    count = draw(st.integers(1, 100))
    first = draw(st.integers(0, 150)) + draw(st.sampled_from([0, 0, 2**40]))
    if draw(st.booleans()):
        stride = draw(st.sampled_from([1, 1, 2, 1000]))
        ids = list(range(first, first + count * stride, stride))
    else:
        spread = draw(st.sampled_from([2, 3, 500]))
        ids = sorted({first + (at * 7919) % (count * spread) for at in range(count)})
    size_max = draw(st.sampled_from([1, 300, 70_000]))
    sizes = [48 + at * 31 % size_max for at in range(len(ids))]
    return (
        draw(st.integers(1, 4)),
        draw(st.sampled_from([0, 1, 5, 2**63 - 1])),
        make_run(ids, sizes, draw(st.integers(1, 3)), 32),
    )


@given(st.lists(puts(), max_size=12), st.integers(0, 3), st.integers(2, 4))
@settings(max_examples=60, deadline=None)
def test_parts_and_their_merges_are_a_dict(chosen: list[tuple[int, int, Run]], start: int, count: int) -> None:
    async def scenario() -> None:
        filesystem = await new_filesystem()
        content: dict[int, dict[int, RunMap]] = {part_id: {} for part_id in range(1, 5)}
        for part_id, ledger_id, run in chosen:
            content[part_id].setdefault(ledger_id, RunMap()).put(run)
        model: Places = {}
        for part_id in sorted(content):
            for ledger_id, run_map in content[part_id].items():
                model |= places(ledger_id, run_map.runs)
        for part_id, run_maps in content.items():
            await (await write_part(filesystem, part_id, run_maps)).retire()
        index = await Index.open(filesystem, DIRECTORY, sorted(content), cache_bytes=5_000)
        await check_lookups(index, model)
        states = dict([item async for item in index.states()])
        old = index.parts[start : start + count]
        merged = await merge_parts(old, await index.new_part(9), lambda _ledger_id: False)
        await index.replace(old, merged)
        await check_lookups(index, model)
        assert dict([item async for item in index.states()]) == states
        await index.close()

    asyncio.run(scenario())


async def check_lookups(index: Index, model: Places) -> None:
    for ledger_id in (0, 1, 2, 5, 2**63 - 1):
        for first, last in ((0, 2**62), (10, 120), (100, 100), (2**40, 2**40 + 60)):
            lookup = await index.lookup(ledger_id, first, last)
            assert lookup.unknown == []
            RunMap(lookup.runs).check_invariants()
            assert places(ledger_id, lookup.runs) == {
                key: place for key, place in model.items() if key[0] == ledger_id and first <= key[1] <= last
            }


async def test_damaged_block_hides_only_the_ids_it_could_name() -> None:
    filesystem = await new_filesystem()
    older, newer = RunMap(), RunMap()
    for first in range(0, 60_000, 20):
        older.put(make_run(range(first, first + 20), [100 + at for at in range(20)], 1, first * 200))
    newer.put(make_run(range(30_000, 30_100), [100] * 100, 2, 32))
    parts = [await write_part(filesystem, 1, {7: older, 8: older}), await write_part(filesystem, 2, {7: newer})]
    index = Index(filesystem, DIRECTORY, parts, cache_bytes=1)
    whole = places(7, (await index.lookup(7, 0, 10**6)).runs)
    blocks = parts[0].run_blocks
    assert len(blocks) > 5
    filesystem.damage(parts[0].path, blocks[1].offset + 5)
    lookup = await index.lookup(7, 0, 10**6)
    assert len(lookup.unknown) == 1
    (low, high), found = lookup.unknown[0], places(7, lookup.runs)
    assert found == {key: place for key, place in whole.items() if not low <= key[1] <= high}
    assert 0 < high - low < 20_000
    assert (await index.lookup(8, 0, 10**6)).unknown == []
    with pytest.raises(IndexDamagedError, match=f"offset {blocks[1].offset}"):
        await merge_parts(parts, await index.new_part(3), lambda _ledger_id: False)
    await index.close()


async def test_damage_in_a_newer_part_hides_older_places_and_newer_finds_stay() -> None:
    filesystem = await new_filesystem()
    maps = [RunMap([make_run(range(100), [50] * 100, place, 32)]) for place in (1, 2, 3)]
    maps[2] = RunMap([make_run(range(40, 60), [50] * 20, 3, 32)])
    parts = [await write_part(filesystem, at + 1, {1: run_map}) for at, run_map in enumerate(maps)]
    index = Index(filesystem, DIRECTORY, parts, cache_bytes=1000)
    filesystem.damage(parts[1].path, parts[1].run_blocks[0].offset + 1)
    lookup = await index.lookup(1, 0, 200)
    assert lookup.unknown == [(0, 39), (60, 99)]
    assert [(run.first, run.last, run.place) for run in lookup.runs] == [(40, 59, 3)]
    assert index.damage_seen == 1
    await index.close()


async def test_block_read_from_another_place_does_not_verify() -> None:
    filesystem = await new_filesystem()
    run_map = RunMap([make_run(range(10), [50] * 10, 1, 32)])
    first, second = [await write_part(filesystem, part_id, {1: run_map}) for part_id in (1, 2)]
    filesystem.set_content(second.path, filesystem.content(first.path))
    with pytest.raises(IndexDamagedError):
        await Part.open(filesystem, second.path, 2)
    await first.retire()
    await second.retire()


async def test_retired_part_is_closed_after_its_last_reader() -> None:
    filesystem = await new_filesystem()
    part = await write_part(filesystem, 1, {1: RunMap([make_run(range(10), [50] * 10, 1, 32)])})
    part.acquire()
    await part.retire()
    assert [item async for item in part.runs()]
    await part.release()
    with pytest.raises(IndexDamagedError, match="closed"):
        assert [item async for item in part.runs()]


@pytest.mark.parametrize("turns", range(8))
async def test_replacement_cut_short_at_any_turn_leaves_no_file_open_once_the_index_is_closed(turns: int) -> None:
    filesystem = await new_filesystem()
    run_map = RunMap([make_run(range(10), [50] * 10, 1, 32)])
    for part_id in (1, 2, 3):
        await (await write_part(filesystem, part_id, {part_id: run_map})).retire()
    index = await Index.open(filesystem, DIRECTORY, [1, 2, 3], cache_bytes=1000)
    merged = await write_part(filesystem, 4, {1: run_map})
    replacing = asyncio.ensure_future(index.replace(index.parts, merged))
    for _ in range(turns):
        await asyncio.sleep(0)
    replacing.cancel()
    await asyncio.wait([replacing])
    if merged not in index.parts:
        await merged.retire()
    await index.close()
    assert not filesystem.open_files


@given(st.lists(st.integers(100, 10**8), max_size=200))
@settings(max_examples=50, deadline=None)
def test_merging_bounds_the_number_of_parts_and_the_work(sizes: list[int]) -> None:
    live: list[int] = []
    written = 0
    for size in sizes:
        live.append(size)
        while (chosen := choose_merge(live)) is not None:
            start, stop = chosen
            merged = sum(live[start:stop])
            assert stop - start >= 2
            written += merged
            live[start:stop] = [merged]
    assert len(live) <= 4 * (tier_of(sum(sizes)) + 2)
    small = [size for size in sizes if size < TIER_BYTES]
    assert written <= sum(sizes) * (tier_of(sum(sizes)) + 2) + TIER_BYTES * len(small)


def test_manifest_round_trip_and_every_damaged_byte() -> None:
    manifest = Manifest((3, 4096), 17, 9, (1, 5, 4), ((2, 100), (8, 2**40)))
    data = encode_manifest(manifest)
    assert decode_manifest(data) == manifest
    assert decode_manifest(encode_manifest(manifest._replace(mark=None))).mark is None
    some = Doubt(12, 7, {0: 0, 3: 2**40, 6: 1})
    for doubt in (Doubt(12), DOUBT_OF_EVERY_LEDGER, Doubt(12, 7), Doubt(12, 12), some):
        other = manifest._replace(mark=None, doubt=doubt)
        assert decode_manifest(encode_manifest(other)) == other
    for at in range(len(data)):
        with pytest.raises(ValueError, match=r"checksum|format"):
            decode_manifest(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(ValueError, match=r"checksum|format"):
            decode_manifest(data[:at])
