"""Merging parts of the index: which ones, and how (streaming, with one block of each part in memory)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType

from octavo.bookie.index.part import Part, PartWriter
from octavo.bookie.index.runs import Run, clip, coalesce, exclude_all, merge_step

TIER_GROWTH = 4
"""Number of parts of one tier that are merged into one of the next: every run is written about log4(total / smallest)
times."""

TIER_BYTES = 256 * 1024
"""Parts smaller than this belong to the lowest tier."""

_YIELD_RUNS = 16
"""Runs processed between two yields to the event loop: well under a millisecond of work."""


def tier_of(size: int) -> int:
    """The tier of a part of ``size`` bytes."""
    tier = 0
    while size >= TIER_BYTES:
        size //= TIER_GROWTH
        tier += 1
    return tier


def choose_merge(sizes: Sequence[int]) -> tuple[int, int] | None:
    """The adjacent parts (half-open positions) to merge next, given the parts' sizes from oldest to newest.

    The newest parts come first. Only adjacent parts are merged, because a newer part replaces entries of an older one.
    None when no merge is worthwhile.
    """
    tiers = [tier_of(size) for size in sizes]
    for highest in range(max(tiers, default=0) + 1):
        stop = len(tiers)
        while stop > 0:
            start = stop
            while start > 0 and tiers[start - 1] <= highest:
                start -= 1
            if stop - start >= TIER_GROWTH:
                return start, stop
            stop = min(start, stop - 1)
    return None


Stream = AsyncIterator[tuple[int, Run]]


async def _anext_or_none(stream: Stream) -> tuple[int, Run] | None:
    return await anext(stream, None)


async def _merge_two(older: Stream, newer: Stream) -> Stream:
    below, above = await _anext_or_none(older), await _anext_or_none(newer)
    while below is not None or above is not None:
        if above is None or (below is not None and below[0] < above[0]):
            assert below is not None
            yield below
            below = await _anext_or_none(older)
        elif below is None or above[0] < below[0]:
            yield above
            above = await _anext_or_none(newer)
        else:
            ledger_id = below[0]
            step = merge_step(below[1], above[1])
            for run in step.settled:
                yield ledger_id, run
            below = (ledger_id, step.older) if step.older is not None else await _anext_or_none(older)
            above = (ledger_id, step.newer) if step.newer is not None else await _anext_or_none(newer)


async def _merge_states(parts: Sequence[Part]) -> AsyncIterator[tuple[int, bytes]]:
    """Per ledger the state of the newest part that has one, in order of ledger id."""
    streams = [part.states() for part in parts]
    heads = [await anext(stream, None) for stream in streams]
    while any(heads):
        ledger_id = min(head[0] for head in heads if head is not None)
        state = b""
        for at, head in enumerate(heads):
            if head is not None and head[0] == ledger_id:
                state = head[1]
                heads[at] = await anext(streams[at], None)
        yield ledger_id, state


async def _add_runs(writer: PartWriter, ledger_id: int, runs: Sequence[Run]) -> None:
    for run in coalesce(runs):
        await writer.add_run(ledger_id, run)


def merged_runs(parts: Sequence[Part]) -> Stream:
    """The combined runs of ``parts`` (oldest first), in order of ledger and id. Raises :class:`IndexDamagedError`."""
    stream: Stream = parts[0].runs() if parts else _nothing()
    for part in parts[1:]:
        stream = _merge_two(stream, part.runs())
    return stream


async def _nothing() -> Stream:
    for item in list[tuple[int, Run]]():
        yield item


async def merge_parts(
    parts: Sequence[Part],
    writer: PartWriter,
    is_gone: Callable[[int], bool],
    first_kept: Callable[[int], int] = lambda _ledger_id: 0,
    without: Mapping[int, Sequence[tuple[int, int]]] = MappingProxyType({}),
) -> Part:
    """Write the combined content of ``parts`` (oldest first) and finish the new part. Omits runs of ledgers for which
    ``is_gone`` returns true, ids below ``first_kept``, and the intervals ``without``, of each
    ledger in order and apart. Raises
    :class:`IndexDamagedError`, OSError."""
    stream = merged_runs(parts)
    current, first, batch, handled = -1, 0, list[Run](), 0
    async for ledger_id, run in stream:
        if is_gone(ledger_id):
            continue
        if ledger_id != current or len(batch) >= _YIELD_RUNS:
            await _add_runs(writer, current, batch)
            current, first, batch = ledger_id, first_kept(ledger_id), []
        kept = clip(run, first, run.last)
        if kept is not None:
            batch += exclude_all(kept, without.get(ledger_id, ()))
        handled += 1
        if handled % _YIELD_RUNS == 0:
            await asyncio.sleep(0)
    await _add_runs(writer, current, batch)
    handled = 0
    async for ledger_id, state in _merge_states(parts):
        await writer.add_state(ledger_id, state)
        handled += 1
        if handled % _YIELD_RUNS == 0:
            await asyncio.sleep(0)
    return await writer.finish()
