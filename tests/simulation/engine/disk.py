"""A machine's disk, and a process's :class:`octavo.bookie.disk.filesystem.FileSystem` on it.

The disk outlives processes: a killed process leaves its writes in the page cache, a power cut leaves what was synced
and, page by page, some of the rest. Operations take virtual time and run in lanes, as in the real file system: one lane
for each file with a dedicated thread, one for all other files, and reads in parallel. So adds arrive while a sync is
under way, and a crash happens between any two operations or in the middle of one.

:class:`DiskFaults` lists the faults; the world sets them.
"""

import asyncio
import errno
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.bookie.disk.direct_io import DIRECT_BLOCK_BYTES
from octavo.bookie.disk.filesystem import DiskSpace
from simulation.engine.inode import Inode
from simulation.engine.loop import Process, SimulationLoop
from simulation.engine.trace import Trace

_READ_ONLY = frozenset({"size", "read", "list_directory", "exists", "open", "disk_space", "close"})

_LOOKS = frozenset({"list_directory", "exists", "open", "disk_space", "close"})
"""Operations that neither read nor change the content of a file."""

CAPACITY_UNLIMITED = 1 << 40
"""Bytes that no universe writes: the sizes of files are not added up."""

OPERATION_SECONDS_MAX = 3.0
"""Longest duration of one operation on a slow disk. Operations must end soon after everything is healed."""


@dataclass(slots=True)
class DiskSettings:
    """Durations of operations without faults, in seconds, and the disk's capacity in bytes."""

    read_seconds: float = 0.0001
    write_seconds: float = 0.00002
    sync_seconds: float = 0.0005
    spike_chance: float = 0.0
    """Chance that an operation takes up to ``spike_seconds`` more."""
    spike_seconds: float = 1.0
    capacity_bytes: int = CAPACITY_UNLIMITED
    looks_take_time: bool = True
    """Whether operations that neither read nor change a file take time. They are a third of all operations."""
    garble_chance: float = 0.0
    """Chance that a power cut leaves arbitrary bytes in pages of a file that were being written: those that a synced
    write under way touches, and those that the page cache had not written yet."""


@dataclass(slots=True)
class DiskFaults:
    """Faults that are active now. Chances per operation, from 0 to 1."""

    read_error_chance: float = 0.0
    write_error_chance: float = 0.0
    sync_failures_due: int = 0
    """Number of the next syncs that fail."""
    sync_fails_in_journal: bool = False
    """Whether only synced writes of journal segments fail."""
    lie_chance: float = 0.0
    """Chance that a synced write never reaches the platter. Only for machines of the fault budget."""
    slow_factor: float = 1.0
    crash_at: int = 0
    """The power is cut at this changing operation, counted from when this was set; 0: never."""
    crash_of: str = ""
    """If set, only operations of this kind count; ``journal``: synced writes of journal segments."""
    crash_kills_process: bool = False
    """Whether only the process is killed at that operation; otherwise the machine loses its power."""


class _Operation:
    """A requested operation."""

    __slots__ = ("act", "future", "kind", "path")

    def __init__(self, kind: str, path: Path, act: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self.kind = kind
        self.path = path
        self.act = act
        self.future = future


class Disk:
    """The names and files of one machine. ``on_crash`` is called when a planned power cut is due."""

    def __init__(
        self, loop: SimulationLoop, name: str, rng: random.Random, settings: DiskSettings, trace: Trace
    ) -> None:
        self.loop = loop
        self.name = name
        self.rng = rng
        self.settings = settings
        self.faults = DiskFaults()
        self.trace = trace
        self.on_crash: Callable[[], None] | None = None
        self.operations = 0
        """Number of changing operations so far."""
        self.names: dict[Path, Inode] = {}
        self.directories: set[Path] = {Path("/")}
        self._durable_names: dict[Path, Inode] = {}
        self._unsynced: dict[Path, list[Callable[[dict[Path, Inode]], None]]] = {}
        """Directory -> its unsynced changes of names, in order."""
        self._crash_counted = 0
        self._interrupted: list[Inode] = []
        """Files with a synced write that was under way when its process died, until the disk has finished it."""

    # --- losses -----------------------------------------------------------------------------------------------------

    def power_cut(self) -> None:
        """Lose some or all of what is not durable."""
        names = dict(self._durable_names)
        rng = self.rng
        for changes in self._unsynced.values():
            kept = rng.choice((0, 0, len(changes), rng.randint(0, len(changes))))
            if kept < len(changes):
                self.trace.count("disk: unsynced names lost")
            for change in changes[:kept]:
                change(names)
        self._unsynced.clear()
        lost = torn = 0
        writing = dict.fromkeys([*self._interrupted, *(inode for inode in names.values() if inode.dirty)])
        garble_chance = self.settings.garble_chance
        garbled = {inode for inode in writing if garble_chance and rng.random() < garble_chance}
        self._interrupted.clear()
        if garbled:
            self.trace.count("disk: interrupted write garbled", len(garbled))
        for inode in dict.fromkeys(names.values()):
            torn += bool(inode.dirty)
            lost += inode.power_cut(rng, garbles=inode in garbled)
        if torn:
            self.trace.count("disk: unsynced data lost or torn", torn)
        if lost:
            self.trace.count("disk: lying syncs lost pages", lost)
        self.names = names
        self._durable_names = dict(names)

    def interrupt(self, write: "_SyncedWrite") -> None:
        """Let a synced write reach the page cache, but no further, because its process has died."""
        if self.room_for(write.inode, write.offset + len(write.data)):
            write.inode.interrupt(write.offset, write.data)
            self._interrupted.append(write.inode)

    def finish_writes(self) -> None:
        """Finish interrupted writes: the machine of the dead process still has power."""
        for inode in self._interrupted:
            inode.interrupted = range(0)
        self._interrupted.clear()

    def wipe(self, directory: Path) -> int:
        """Lose everything below a directory. Returns the number of files lost."""
        gone = [path for path in self.names if directory in path.parents]
        for path in gone:
            del self.names[path]
            self._durable_names.pop(path, None)
        self._unsynced.clear()
        self.directories = {path for path in self.directories if directory not in (path, *path.parents)}
        return len(gone)

    # --- names ------------------------------------------------------------------------------------------------------

    def change_names(self, directory: Path, change: Callable[[dict[Path, Inode]], None]) -> None:
        """Create, rename or remove a name. The change is durable once the directory is synced."""
        change(self.names)
        self._unsynced.setdefault(directory, []).append(change)

    def sync_names(self, directory: Path) -> None:
        """Make the changes of a directory durable."""
        for change in self._unsynced.pop(directory, ()):
            change(self._durable_names)

    def used_bytes(self) -> int:
        """Total size of all files."""
        return sum(len(inode.volatile) for inode in self.names.values())

    # --- faults -----------------------------------------------------------------------------------------------------

    def duration(self, kind: str) -> float:
        """Draw the duration of an operation in seconds."""
        settings, draw = self.settings, self.rng.random
        if kind in ("sync", "write_and_sync", "sync_directory"):
            seconds = settings.sync_seconds
        elif kind in _READ_ONLY:
            seconds = settings.read_seconds
        else:
            seconds = settings.write_seconds
        seconds = min(seconds * self.faults.slow_factor * (0.5 + draw()), OPERATION_SECONDS_MAX)
        if settings.spike_chance and draw() < settings.spike_chance:
            self.trace.count("disk: slow operation")
            seconds += draw() * settings.spike_seconds
        return seconds

    def error_of(self, kind: str, path: Path) -> int | None:
        """The errno with which an operation fails now, or None."""
        faults = self.faults
        if kind == "read":
            if faults.read_error_chance and self.rng.random() < faults.read_error_chance:
                self.trace.count("disk: read error")
                return errno.EIO
        elif kind in ("sync", "write_and_sync", "sync_directory"):
            if faults.sync_failures_due and (not faults.sync_fails_in_journal or _journals(kind, path)):
                faults.sync_failures_due -= 1
                self.trace.count("disk: sync failed")
                return errno.EIO
        elif kind not in _READ_ONLY and faults.write_error_chance and self.rng.random() < faults.write_error_chance:
            self.trace.count("disk: write error")
            return errno.EIO
        return None

    def count_change(self, kind: str, path: Path) -> bool:
        """Count a changing operation. Returns whether a planned crash happens in it."""
        self.operations += 1
        faults = self.faults
        if faults.crash_at and (
            not faults.crash_of or (_journals(kind, path) if faults.crash_of == "journal" else kind == faults.crash_of)
        ):
            self._crash_counted += 1
            if self._crash_counted == faults.crash_at:
                faults.crash_at = 0
                self._crash_counted = 0
                return True
        return False

    def room_for(self, inode: Inode, size: int) -> bool:
        """Whether a file may grow to ``size``."""
        growth = size - len(inode.volatile)
        if growth <= 0 or self.settings.capacity_bytes >= CAPACITY_UNLIMITED:
            return True
        return self.used_bytes() + growth <= self.settings.capacity_bytes


def _name_length(path: Path) -> int:
    text = str(path)  # a path caches its string, but not its name
    return len(text) - text.rfind("/") - 1


def _journals(kind: str, path: Path) -> bool:
    return kind == "write_and_sync" and path.name.startswith("journal-")


class SimulatedFileSystem:
    """One process's access to its machine's disk; it ends with the process."""

    def __init__(self, process: Process, disk: Disk) -> None:
        self.process = process
        self.disk = disk
        self._loop = disk.loop
        self._lanes: list[Lane] = []
        self.lane = self.new_lane()
        self._locked: dict[Path, None] = {}
        self.open_files: dict[SimulatedFile, None] = {}
        process.on_death.append(self._died)

    def new_lane(self) -> "Lane":
        """A lane, whose operations run one after another."""
        lane = Lane(self)
        self._lanes.append(lane)
        return lane

    def _died(self) -> None:
        # The operation that a thread was executing may have reached the page cache.
        for lane in self._lanes:
            lane.interrupt(self.disk)

    def run(self, lane: "Lane | None", kind: str, path: Path, act: Callable[[], Any]) -> asyncio.Future[Any]:
        """Begin an operation, in a lane or (None) in parallel to all lanes. Returns the future of its result."""
        loop, disk = self._loop, self.disk
        if kind in _LOOKS and not disk.settings.looks_take_time:
            return _done_now(loop.create_future(), act)
        operation = _Operation(kind, path, act, loop.create_future())
        due = loop.now + disk.duration(kind)
        if lane is not None:
            due = lane.place(operation, loop.now, due)
        loop.call_process(self.process, due, self._complete, lane, operation)
        return operation.future

    def _complete(self, lane: "Lane | None", operation: _Operation) -> None:
        disk, kind = self.disk, operation.kind
        if lane is not None:
            lane.queue.popleft()
        changing = kind not in _READ_ONLY
        if changing:
            disk.trace.stored(self._loop.now, self.process.name, kind, _name_length(operation.path))
            if disk.count_change(kind, operation.path):
                # The operation takes effect, as far as it does without a sync; its caller is not told.
                if lane is not None:
                    lane.queue.appendleft(operation)
                assert disk.on_crash is not None
                self._loop.call_process(self._loop.world, self._loop.now, disk.on_crash)
                self.process.pause()
                return
        future = operation.future
        code = disk.error_of(kind, operation.path)
        try:
            result = operation.act() if code is None else _fail(code, operation)
        except OSError as error:
            if not future.done():
                future.set_exception(error)
            else:
                error.__traceback__ = None
            return
        if not future.done():
            future.set_result(result)
        elif isinstance(result, SimulatedFile):
            # Its caller was cancelled: the file is closed again.
            self.open_files.pop(result, None)

    # --- FileSystem -------------------------------------------------------------------------------------------------

    async def open(
        self, path: Path, *, create: bool = False, dedicated_thread: bool = False, direct: bool = False
    ) -> "SimulatedFile":
        disk = self.disk

        def act() -> SimulatedFile:
            found = disk.names.get(path)
            if found is None:
                self._check_directory(path.parent)
            if create:
                if found is not None:
                    raise FileExistsError(errno.EEXIST, "file exists", str(path))
                found = inode = Inode()
                disk.change_names(path.parent, lambda names: names.__setitem__(path, inode))
            if found is None:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            lane = self.new_lane() if dedicated_thread else self.lane
            return SimulatedFile(self, path, found, lane, block_bytes=DIRECT_BLOCK_BYTES if direct else 1)

        opening = self.run(self.lane, "create" if create else "open", path, act)
        try:
            file: SimulatedFile = await opening
        except asyncio.CancelledError:
            if not opening.cancelled() and opening.exception() is None:  # it was opened just before
                self.open_files.pop(opening.result(), None)
            raise
        return file

    async def list_directory(self, path: Path) -> list[str]:
        disk = self.disk

        def act() -> list[str]:
            self._check_directory(path)
            start = f"{path}/" if path.name else "/"
            size = len(start)
            below = [text[size:] for text in map(str, (*disk.names, *disk.directories)) if text.startswith(start)]
            return sorted(name for name in below if name and "/" not in name)

        names: list[str] = await self.run(self.lane, "list_directory", path, act)
        return names

    async def exists(self, path: Path) -> bool:
        disk = self.disk
        found: bool = await self.run(self.lane, "exists", path, lambda: path in disk.names or path in disk.directories)
        return found

    async def make_directory(self, path: Path) -> None:
        await self.run(self.lane, "make_directory", path, lambda: self.disk.directories.update((path, *path.parents)))

    async def rename(self, source: Path, target: Path) -> None:
        def move(names: dict[Path, Inode]) -> None:
            if source in names:
                names[target] = names.pop(source)

        def act() -> None:
            self._check_file(source)
            self.disk.change_names(target.parent, move)

        await self.run(self.lane, "rename", target, act)

    async def remove(self, path: Path) -> None:
        def drop(names: dict[Path, Inode]) -> None:
            names.pop(path, None)

        def act() -> None:
            self._check_file(path)
            self.disk.change_names(path.parent, drop)

        await self.run(self.lane, "remove", path, act)

    async def sync_directory(self, path: Path) -> None:
        def act() -> None:
            self._check_directory(path)
            self.disk.sync_names(path)

        await self.run(self.lane, "sync_directory", path, act)

    async def lock(self, path: Path) -> Callable[[], None]:
        def act() -> Callable[[], None]:
            self._check_directory(path.parent)
            if path in self._locked:
                raise BlockingIOError(errno.EAGAIN, "locked", str(path))
            self._locked[path] = None
            return lambda: self._locked.pop(path, None)

        unlock: Callable[[], None] = await self.run(self.lane, "lock", path, act)
        return unlock

    async def disk_space(self, path: Path) -> DiskSpace:
        disk = self.disk

        def act() -> DiskSpace:
            capacity = disk.settings.capacity_bytes
            return DiskSpace(capacity, max(0, capacity - disk.used_bytes()))

        space: DiskSpace = await self.run(self.lane, "disk_space", path, act)
        return space

    async def close(self) -> None:
        await self.run(self.lane, "close", Path("/"), lambda: None)

    def _check_directory(self, path: Path) -> None:
        if path not in self.disk.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))

    def _check_file(self, path: Path) -> None:
        if path not in self.disk.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))


class Lane:
    """Operations that run one after another, as in one thread."""

    def __init__(self, filesystem: SimulatedFileSystem) -> None:
        self._filesystem = filesystem
        self._free_at = 0.0
        self.queue: deque[_Operation] = deque()

    def place(self, operation: _Operation, now: float, due: float) -> float:
        """Queue an operation. Returns the time at which it will be done."""
        self._free_at = max(self._free_at, now) + (due - now)
        self.queue.append(operation)
        return self._free_at

    def interrupt(self, disk: Disk) -> None:
        """Handle the death of the process: the operation under way may reach the page cache; no other begins."""
        if self.queue and disk.rng.random() < 0.85:
            act = self.queue[0].act
            if isinstance(act, _SyncedWrite):
                disk.interrupt(act)
        self.queue.clear()


class _SyncedWrite:
    """A write that is synced before it returns. A crash may leave it written but not synced."""

    __slots__ = ("data", "disk", "inode", "offset", "path")

    def __init__(self, disk: Disk, path: Path, inode: Inode, offset: int, data: bytes) -> None:
        self.disk = disk
        self.path = path
        self.inode = inode
        self.offset = offset
        self.data = data

    def __call__(self) -> None:
        disk = self.disk
        if not disk.room_for(self.inode, self.offset + len(self.data)):
            disk.trace.count("disk: full")
            raise OSError(errno.ENOSPC, "no space left on device", str(self.path))
        if disk.faults.lie_chance and disk.rng.random() < disk.faults.lie_chance:
            disk.trace.count("disk: lying sync")
            self.inode.lie(self.offset, self.data)
        else:
            self.inode.write_and_sync(self.offset, self.data)

    def write_only(self) -> None:
        """Write without the sync."""
        if self.disk.room_for(self.inode, self.offset + len(self.data)):
            self.inode.write(self.offset, self.data)


class _Sync:
    """A sync of the content that a file has when the sync begins."""

    __slots__ = ("_end", "disk", "inode")

    def __init__(self, disk: Disk, inode: Inode) -> None:
        self.disk = disk
        self.inode = inode
        self._end = inode.begin_sync()

    def __call__(self) -> None:
        self._end()


class SimulatedFile:
    """An open file. See :class:`octavo.bookie.disk.filesystem.File`."""

    def __init__(
        self, filesystem: SimulatedFileSystem, path: Path, inode: Inode, lane: Lane, *, block_bytes: int
    ) -> None:
        """Writes are padded with zeros to a multiple of ``block_bytes``, as direct writes are."""
        self._filesystem = filesystem
        self._path = path
        self._inode = inode
        self._lane = lane
        self._block_bytes = block_bytes
        self._closed = False
        filesystem.open_files[self] = None

    def __repr__(self) -> str:
        return f"<SimulatedFile {self._path}>"

    @property
    def path(self) -> Path:
        return self._path

    async def size(self) -> int:
        self._check_open()
        return len(self._inode.volatile)

    async def read(self, offset: int, size: int) -> bytes:
        self._check_open()
        inode = self._inode
        data: bytes = await self._filesystem.run(
            None, "read", self._path, lambda: bytes(inode.volatile[offset : offset + size])
        )
        return data

    async def write(self, offset: int, buffers: Sequence[bytes]) -> None:
        self._check_open()
        inode, data, disk = self._inode, self._padded(offset, buffers), self._filesystem.disk

        def act() -> None:
            if not disk.room_for(inode, offset + len(data)):
                disk.trace.count("disk: full")
                raise OSError(errno.ENOSPC, "no space left on device", str(self._path))
            inode.write(offset, data)

        await self._filesystem.run(self._lane, "write", self._path, act)

    def write_and_sync(self, offset: int, buffers: Sequence[bytes]) -> Awaitable[None]:
        self._check_open()
        filesystem = self._filesystem
        act = _SyncedWrite(filesystem.disk, self._path, self._inode, offset, self._padded(offset, buffers))
        return filesystem.run(self._lane, "write_and_sync", self._path, act)

    async def sync(self) -> None:
        self._check_open()
        await self._filesystem.run(self._lane, "sync", self._path, _Sync(self._filesystem.disk, self._inode))

    async def allocate(self, size: int) -> None:
        self._check_open()
        inode, disk = self._inode, self._filesystem.disk

        def act() -> None:
            if not disk.room_for(inode, size):
                disk.trace.count("disk: full")
                raise OSError(errno.ENOSPC, "no space left on device", str(self._path))
            if size > len(inode.volatile):
                inode.resize(size)

        await self._filesystem.run(self._lane, "allocate", self._path, act)

    async def truncate(self, size: int) -> None:
        self._check_open()
        await self._filesystem.run(self._lane, "truncate", self._path, lambda: self._inode.resize(size))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._filesystem.open_files.pop(self, None)
        await self._filesystem.run(self._lane, "close", self._path, lambda: None)

    def _padded(self, offset: int, buffers: Sequence[bytes]) -> bytes:
        data = b"".join(buffers)
        return data + bytes(-(offset + len(data)) % self._block_bytes)

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "the file is closed", str(self._path))


def _done_now(future: asyncio.Future[Any], act: Callable[[], Any]) -> asyncio.Future[Any]:
    try:
        future.set_result(act())
    except OSError as error:
        future.set_exception(error)
    return future


def _fail(code: int, operation: _Operation) -> Any:
    """Fail an operation. After a failed sync the platter holds some of the pages, and no later sync writes the rest."""
    act = operation.act
    if isinstance(act, _SyncedWrite):
        act.write_only()
    if isinstance(act, _SyncedWrite | _Sync):
        act.inode.fail_sync(act.disk.rng)
    raise OSError(code, "input/output error", str(operation.path))
