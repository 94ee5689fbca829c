"""Every disk that a power cut can leave, at every instant of a storage's life, keeps what was promised
(rules B1 to B3).

``OCTAVO_CRASH_SAMPLES`` (default 2) is the number of places drawn per fault class and instant where not every
combination can be built, and of the states every ``OCTAVO_CRASH_EVERY``-th (default 12) is checked. ``make soak`` draws
more and checks all.
"""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import pytest
import structlog
from support.disks.crash_states import FAULT_CLASSES, crash_states
from support.disks.crash_workload import Driver, Promises, log_writes, promises_at, recorded, verify
from support.disks.recording_filesystem import NameChange, Noted, Recording, SyncBegun, SyncEnded

SAMPLES = int(os.environ.get("OCTAVO_CRASH_SAMPLES", "2"))
EVERY = int(os.environ.get("OCTAVO_CRASH_EVERY", "12"))
PHASES = ("replay", "checkpoint", "close", "delete", "drop", "trim", "relief", "compaction")

Workload = Callable[[Driver], Awaitable[None]]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


async def few_adds_and_a_fence(driver: Driver) -> None:
    """Small enough for every combination at most instants."""
    await driver.add(1, range(3))
    await driver.fence(1)
    await driver.add(1, (3,), recovery=True)
    await driver.checkpoint()
    await driver.add(2, (0,))


async def everything(driver: Driver) -> None:
    """Rolled logs and segments, flushes, checkpoints, merges, resent and interleaved ids, fences of two terms of which
    one comes late, copies of another bookie's entries, trims."""
    for round_number in range(7):
        first = round_number * 20
        adds = [
            driver.add(1, range(first, first + 10)),
            driver.add(1, range(first + 10, first + 20)),
            driver.add(2, range(first, first + 20, 2)),
        ]
        if round_number == 1:
            await adds[-1]
            await driver.fence(3, term=2)
            adds.append(driver.add(3, range(5), recovery=True))
        if round_number == 2:
            await driver.fence(3, term=1)
        if round_number in {2, 5}:
            # A ledger that this bookie has never heard of, above and below what it holds of it.
            adds.append(driver.copy_in(4, range(first, first + 12)))
            adds.append(driver.copy_in(4, range(first - 12, first, 3)))
        if round_number % 2:
            adds.append(driver.add(2, range(first - 20, first, 2)))
            adds.append(driver.add(2, range(first - 19, first, 2)))
        driver.write_lac(1, first)
        await asyncio.gather(*adds)
        if round_number in {1, 3, 4, 5, 6}:
            await driver.checkpoint()


async def deletion_and_compaction(driver: Driver) -> None:
    """Ledgers come and go, and one comes back after it was dropped; logs that hold little else are compacted, wholly
    dead ones removed, while others are written and resent; a compacted log is compacted again."""
    for ledger_id in (1, 2, 3, 4):
        await asyncio.gather(driver.add(ledger_id, range(15)), driver.add(5, range(ledger_id * 5, ledger_id * 5 + 5)))
        if ledger_id in {2, 4}:
            await driver.checkpoint()
    await driver.fence(5)
    await driver.delete(1)
    await driver.delete(2)
    more = [driver.add(6, range(first, first + 10)) for first in range(0, 40, 10)]
    await asyncio.gather(driver.compact(0.6), driver.storage.checkpoint(), *more)
    await driver.delete(3)
    await driver.drop(4)
    await driver.add(5, range(5), recovery=True)  # below what is held: looked up
    await driver.compact(0.9)
    await driver.checkpoint()
    await driver.copy_in(4, range(3, 9))
    await driver.delete(6)
    await driver.compact(0.9)


async def truncation(driver: Driver) -> None:
    """Trims that come between adds and with them, that frames straddle, and that compactions follow."""
    for round_number in range(4):
        first = round_number * 20
        adds = [driver.add(1, range(first, first + 20)), driver.add(2, range(first, first + 10))]
        await asyncio.gather(*adds, *([driver.trim(1, first - 3)] if round_number else []))
        if round_number:
            await driver.add(1, range(first - 6, first), recovery=True)
        if round_number % 2:
            await driver.checkpoint()
            await driver.compact(0.9)
    await driver.trim(1, 100)
    await driver.add(1, range(98, 103))
    await driver.compact(0.9)


async def relief(driver: Driver) -> None:
    """Ranges in several parts of the index that are given up while adds come, and entries of them that come again."""
    for first in (0, 20):
        await asyncio.gather(driver.add(1, range(first, first + 20)), driver.add(2, range(first, first + 10)))
        await driver.checkpoint()
    await asyncio.gather(driver.relieve(1, 5, 29), driver.add(2, range(40, 50)), driver.add(1, range(40, 50)))
    await driver.compact(0.9)
    await driver.add(1, range(8, 12), recovery=True)
    await driver.add(2, range(50, 60))
    await driver.checkpoint()
    await driver.relieve(1, 0, 9)
    await driver.compact(0.9)


WORKLOADS = (few_adds_and_a_fence, everything, deletion_and_compaction, truncation, relief)


async def run(workload: Workload, files: Mapping[Path, bytes]) -> Recording:
    async with recorded(files) as (driver, recording):
        await workload(driver)
    return recording


async def check_all(
    recording: Recording, start: Promises | None, *, seed: int, samples: int, counts: Counter[str], every: int = 1
) -> list[tuple[dict[Path, bytes], Promises]]:
    """Verify the states of a recording, every ``every``-th of them; gives them back with their promises."""
    promises = promises_at(recording.events, start)
    checked = []
    for number, state in enumerate(crash_states(recording, seed=seed, samples=samples)):
        if number % every:
            continue
        expected = promises[state.instant]
        try:
            await verify(state.files, expected)
        except Exception as error:
            recent = "\n  ".join(map(_short, recording.events[max(0, state.instant - 12) : state.instant]))
            error.add_note(f"{state.fault_class}, after event {state.instant}, while {expected.phase}:\n  {recent}")
            raise
        counts[state.fault_class] += 1
        counts[f"while: {expected.phase or 'adding'}"] += 1
        checked.append((state.files, expected))
    return checked


def _short(event: object) -> str:
    return str(event)[:200]


def _file_kind(event: object) -> str | None:
    """What happened to which kind of file, as ``made .log``."""
    if not isinstance(event, NameChange):
        return None
    verb = "removed" if event.target is None else "made" if event.source is None else "renamed"
    path = event.target or event.source
    assert path is not None
    return f"{verb} {path.suffix or path.name}"


CROSSED = {
    "made .log", "removed .log", "made .runs", "removed .runs", "renamed .totals", "removed .totals",
    "renamed manifest", "renamed .segment",
}  # fmt: skip
"""What the workloads must do to files, or the states were of something else than they are meant to be."""


def show(title: str, counts: Counter[str], capsys: pytest.CaptureFixture[str]) -> None:
    total = sum(counts[name] for name in FAULT_CLASSES)
    lines = [f"\n{title}: {total} crash states"]
    lines += [f"  {count:6} {name}" for name, count in sorted(counts.items())]
    with capsys.disabled():
        sys.stdout.write("\n".join(lines) + "\n")


async def test_what_was_promised_survives_a_power_cut_at_every_instant(capsys: pytest.CaptureFixture[str]) -> None:
    counts: Counter[str] = Counter()
    crossed: set[str] = set()
    for seed, workload in enumerate(WORKLOADS):
        recording = await run(workload, {})
        await check_all(recording, None, seed=seed, samples=SAMPLES, counts=counts, every=EVERY)
        crossed.update(kind for event in recording.events if (kind := _file_kind(event)))
    show("one power cut", counts, capsys)
    assert crossed >= CROSSED
    missing = [name for name in FAULT_CLASSES if not counts[name]]
    missing += [name for name in PHASES if not counts[f"while: {name}"]]
    assert not missing, "classes that no state was built for"
    assert sum(counts[name] for name in FAULT_CLASSES) >= 500


@pytest.mark.parametrize("workload", WORKLOADS)
async def test_no_page_that_a_manifest_counts_is_written_again(workload: Workload) -> None:
    """The journal may no longer hold what is in such a page of an entry log (rule B3)."""
    recording = await run(workload, {})
    again, after = log_writes(recording)
    assert not again
    if workload not in {few_adds_and_a_fence, truncation}:  # where a compaction follows, the log is not written on
        assert after, "no log was written on after a manifest had counted it"


@pytest.mark.parametrize("kind", [int, Path])
async def test_states_of_a_disk_whose_syncs_do_nothing_do_not_pass(kind: type) -> None:
    """The check can fail: with every sync of a file, or of a directory, taken out of the recording it does."""
    recording = await run(few_adds_and_a_fence, {})
    recording.events = [
        Noted(None) if isinstance(event, SyncBegun) and isinstance(event.what, kind) else event
        for event in recording.events
    ]
    begun = {event.serial for event in recording.events if isinstance(event, SyncBegun)}
    recording.events = [
        Noted(None) if isinstance(event, SyncEnded) and event.serial not in begun else event
        for event in recording.events
    ]
    with pytest.raises(Exception, match=r"lost|damage|missing|unknown|checksum"):
        await check_all(recording, None, seed=0, samples=4, counts=Counter())


async def idle(driver: Driver) -> None:
    """A start and a stop: replay, its checkpoint, the new journal."""


async def busy(driver: Driver) -> None:
    """A start, and at once what moves most."""
    await driver.delete(4)
    await asyncio.gather(driver.compact(0.9), driver.add(5, range(40, 45), recovery=True))
    await driver.checkpoint()


async def test_power_cuts_during_the_start_after_a_power_cut_lose_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    counts: Counter[str] = Counter()
    for seed, workload in enumerate(WORKLOADS):
        recording = await run(workload, {})
        first_cuts = await check_all(recording, None, seed=seed, samples=1, counts=Counter(), every=41)
        for number, (files, promises) in enumerate(first_cuts):
            second, every = (busy, 9 * EVERY) if number % 3 == 1 else (idle, 16 * EVERY)
            again = await run(second, files)
            await check_all(again, promises, seed=number, samples=1, counts=counts, every=every)
    show("power cuts in the start after a power cut", counts, capsys)
    assert counts["while: replay"] > 20
    assert counts["while: compaction"] > 10
