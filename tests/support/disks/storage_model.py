"""Explores what a bookie's storage answers: every order of some events, each state before and after a loss of power."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from pathlib import Path
from typing import Protocol

from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.protocol.ids import LedgerId
from support.clusters.ledgers import ids_of
from support.disks.faulty_filesystem import MemoryFileSystem

DATA = Path("/d")
SETTINGS = StorageSettings(
    checkpoint_seconds=86_400, journal=JournalSettings(segment_bytes=16 * 1024, first_fill_bytes=0)
)


class Machine:
    """A storage on a disk in memory that loses power."""

    def __init__(self) -> None:
        self.filesystem = MemoryFileSystem()
        self.storage: Storage

    async def open(self) -> None:
        self.storage = await Storage.open(
            self.filesystem, directory=DATA, journal_directory=Path("/j"), settings=SETTINGS, on_fatal=_fail
        )

    async def crash(self) -> None:
        """Lose what is not durable, and start again."""
        before, storage = self.filesystem, self.storage
        self.filesystem = before.after_crash(seed=1)
        before.crashed.clear()
        await storage.close()  # on the disk as it was: it leaves no task behind
        await self.open()

    def suffixes(self, directory: Path | None = None) -> tuple[str, ...]:
        """Of the files: what a storage has on its disk decides what it does next."""
        files = self.filesystem.files() if directory is None else self.filesystem.files(directory)
        return tuple(sorted(path.suffix for path in files))


def _fail(error: BaseException) -> None:
    raise AssertionError("the storage failed") from error


async def compact_all(storage: Storage) -> None:
    """Checkpoint and compact until nothing is left to compact. The first rounds only end the log that is written."""
    for _ in range(3):
        await storage.checkpoint()
        await storage.compact(1.1, RateLimiter(1e12))


async def delete_and_revive(storage: Storage, ledger_id: LedgerId) -> bool:
    """Delete a ledger and bring it back; False if it is not there."""
    if ledger_id not in storage.ledgers.live_ids():
        return False
    await storage.writer.delete(ledger_id)
    await storage.writer.revive(ledger_id)
    return True


async def read_through(
    storage: Storage, ledger_id: LedgerId, ids: Sequence[int], end: int
) -> tuple[list[int], list[int]]:
    """The ids that reads give which go on to ``end``, and which of ``ids`` they call unknown."""
    given: list[int] = []
    unknown: list[tuple[int, int]] = []
    first = 0
    while first <= end:
        found = await storage.reader.read(ledger_id, first, end, entries_max=10, bytes_max=10_000)
        given += ids_of(found.entries)
        unknown += found.unknown
        first = found.last_covered + 1
    return given, [one for low, high in unknown for one in ids if low <= one <= high]


class Host(Protocol):
    """A bookie with what it has promised."""

    machine: Machine

    async def apply(self, event: str) -> bool:
        """Apply an event; False if it is refused or does nothing here."""


async def _went(host: Host, path: Sequence[str]) -> bool:
    for event in path:
        if not await host.apply(event):
            return False
    return True


async def new_states[H: Host, S: Hashable](
    start: Callable[[], Awaitable[H]], look: Callable[[H], Awaitable[S]], events: Sequence[str], length_max: int
) -> AsyncIterator[tuple[H, S]]:
    """Follow every path of these events up to a length, and give each state once, with the host that reached it, which
    is closed. ``look`` checks the promises and tells the state. From a state that was seen no path goes on."""
    seen: set[S] = set()
    paths: deque[tuple[str, ...]] = deque([()])
    while paths:
        path = paths.popleft()
        host = await start()
        try:
            if not await _went(host, path):
                continue
            state = await look(host)
        except AssertionError as error:
            error.add_note(f"after: {', '.join(path)}")
            raise
        finally:
            await host.machine.storage.close()
        if state not in seen:
            seen.add(state)
            if len(path) < length_max:
                paths.extend((*path, event) for event in events)
            yield host, state
