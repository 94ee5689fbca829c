"""Carries out a move (:mod:`octavo.bookie.archive.mover`): reads entries, puts the object, reads it back, has its word
written. No bookie runs this yet."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Protocol

from octavo.bookie.archive.errors import (
    ArchiveError,
    ObjectDamagedError,
    ObjectMissingError,
    ObjectTooLargeError,
    StoreAwayError,
    StoreRefusedError,
    WrongEntryError,
)
from octavo.bookie.archive.format import Head
from octavo.bookie.archive.mover import Move, Outcome, Step
from octavo.bookie.archive.opening import WholeCheck
from octavo.bookie.archive.store import OwnedStore
from octavo.bookie.archive.writing import PART_BYTES, ObjectWriter, Written

READ_BACK_BYTES: Final = 4 * 1024 * 1024
"""Fetched at a time."""
PAUSE_SECONDS_FIRST: Final = 1.0
PAUSE_SECONDS_MAX: Final = 300.0
"""Pauses double from the first to this: a store that is away for hours is asked a few hundred times."""

_OUTCOMES: Final[dict[type[ArchiveError], Outcome]] = {
    StoreAwayError: Outcome.UNKNOWN,
    StoreRefusedError: Outcome.REFUSED,
    ObjectMissingError: Outcome.MISSING,
    ObjectDamagedError: Outcome.DAMAGED,
    WrongEntryError: Outcome.DAMAGED,
    ObjectTooLargeError: Outcome.DAMAGED,
}


class MovedRange(Protocol):
    """The entries that are moved, and the metadata that get the word."""

    @property
    def head(self) -> Head:
        """Of the object, with a token that no object had before."""

    def entries(self) -> AsyncIterator[Sequence[bytes]]:
        """The sealed entries of all ranges, in order, in batches; from this bookie or from other members."""

    async def write_word(self, written: Written) -> Outcome:
        """Name the object by compare-and-set. Doing so twice is as good as once."""

    async def take_back(self, written: Written) -> Outcome:
        """Take the word out of the metadata, if it is there."""


async def move(
    work: MovedRange,
    store: OwnedStore,
    *,
    clock: Callable[[], float],
    part_bytes: int = PART_BYTES,
    read_back_bytes: int = READ_BACK_BYTES,
) -> Step:
    """Move one object; how it ended. ``clock``: seconds that count on while the host is suspended."""
    state = Move(began_at_seconds=clock())
    written: Written | None = None
    pause_seconds = PAUSE_SECONDS_FIRST
    while not (step := state.look_at_clock(clock())).is_end:
        try:
            if step is Step.UPLOAD:
                written = await _upload(work, store, part_bytes)
                outcome = Outcome.OK
            else:
                assert written is not None, "every step but the first follows an upload"
                outcome = await _take(step, work, store, written, read_back_bytes)
        except ArchiveError as error:
            outcome = _OUTCOMES[type(error)]
        if state.taken(outcome) is step:
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, PAUSE_SECONDS_MAX)
        else:
            pause_seconds = PAUSE_SECONDS_FIRST
    return step


async def _take(step: Step, work: MovedRange, store: OwnedStore, written: Written, read_back_bytes: int) -> Outcome:
    if step is Step.WRITE_WORD:
        return await work.write_word(written)
    if step is Step.TAKE_BACK:
        return await work.take_back(written)
    if step is Step.READ_BACK:
        await read_whole(store, written, read_back_bytes=read_back_bytes)
        return Outcome.OK
    facts = await store.head(written.name.key)
    return Outcome.OK if facts.size == written.object_bytes else Outcome.DAMAGED


async def read_whole(store: OwnedStore, written: Written, *, read_back_bytes: int = READ_BACK_BYTES) -> None:
    """Read all of an object and verify it.

    Raises:
        ObjectDamagedError: it is not what was written.
        ObjectMissingError: there is no such object.
        StoreAwayError: no answer.
        StoreRefusedError: the store refuses.
    """
    check = WholeCheck(written.name, written.object_bytes, sha256=written.sha256)
    for start in range(0, written.object_bytes, read_back_bytes):
        stop = min(start + read_back_bytes, written.object_bytes)
        check.feed(await store.get(written.name.key, start, stop))
    check.finish()


async def _upload(work: MovedRange, store: OwnedStore, part_bytes: int) -> Written:
    writer = ObjectWriter(work.head, part_bytes=part_bytes)
    facts: list[Written] = []

    async def parts() -> AsyncIterator[bytes]:
        async for batch in work.entries():
            for part in writer.add(batch):
                yield part
        last, written = writer.finish()
        facts.append(written)
        for part in last:
            yield part

    await store.put(work.head.name.key, parts())
    return facts[0]
