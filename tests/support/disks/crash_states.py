"""From a recording of what was asked of a file system to every state of the disk that a crash may leave. Pure.

The persistence model, from ``octavo.bookie.disk.filesystem``: what a sync covered is on disk. Of everything else each
*page* by itself is on disk in any of the versions it has gone through since, or torn between two of them; a file's size
likewise; each change of a directory by itself has happened or not. A file whose name is not on disk does not exist.
A block that an unsynced write touches holds anything, also where it held durable bytes before: the kernel, too, writes
whole pages, and a disk may be interrupted in the middle of one.

Where few things are unsettled at an instant, every combination is built; elsewhere each fault class by itself, at every
place or at some drawn from a seed, and a number of random mixtures.
"""

import random
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

from octavo.bookie.disk.direct_io import DIRECT_BLOCK_BYTES
from support.disks.recording_filesystem import (
    BytesChange,
    Ended,
    Event,
    NameChange,
    Noted,
    Recording,
    SyncBegun,
    SyncEnded,
)

PAGE_BYTES = 512
"""What a disk writes whole: a sector, smaller than a page of memory, which makes more states."""

EXHAUSTIVE_MAX = 64
"""Combinations up to which an instant is enumerated whole."""

FAULT_CLASSES = (
    "everything unsynced lost",
    "everything unsynced kept",
    "names kept, bytes lost",
    "names and sizes kept, bytes zero",
    "bytes kept, names lost",
    "one page lost",
    "one page kept",
    "page torn inside",
    "older version of a page",
    "anything in a block of an interrupted write",
    "some names lost, in order",
    "some names lost, out of order",
    "every combination",
    "random mixture",
)


class CrashState(NamedTuple):
    """A disk after a crash. ``instant``: how many events of the recording had happened."""

    instant: int
    fault_class: str
    files: dict[Path, bytes]


class _Page(NamedTuple):
    inode: int
    number: int


class _Fate(NamedTuple):
    """How many of the unsynced changes of each page and size, and which of the names, are on disk."""

    versions: dict[_Page, int]
    sizes: dict[int, int]
    names: frozenset[int]
    torn: tuple[_Page, int] | None = None
    """In this page, only a number of bytes of the next version are there."""
    scrambled: tuple[int, int, bytes] | None = None
    """Inode, offset and content of a block whose write was interrupted."""


class DiskModel:
    """What is on disk for certain, and what is not, at one instant of a recording."""

    def __init__(self, recording: Recording) -> None:
        inodes = recording.initial_inodes
        self.durable: dict[int, bytes] = {inodes[path]: content for path, content in recording.initial.items()}
        self.names: dict[Path, int] = dict(inodes)
        self.changes: list[BytesChange] = []
        self.name_changes: list[NameChange] = []
        self._returned: set[int] = set()
        self._syncs: dict[int, set[int]] = {}

    def apply(self, event: Event) -> None:
        if isinstance(event, BytesChange):
            self.changes.append(event)
        elif isinstance(event, NameChange):
            self.name_changes.append(event)
        elif isinstance(event, Ended):
            self._returned.add(event.serial)
        elif isinstance(event, SyncBegun):
            pending: list[BytesChange] | list[NameChange]
            if isinstance(event.what, int):
                pending = [change for change in self.changes if change.inode == event.what]
            else:
                pending = [change for change in self.name_changes if change.directory == event.what]
            self._syncs[event.serial] = {change.serial for change in pending if change.serial in self._returned}
        elif isinstance(event, SyncEnded):
            self._settle(self._syncs.pop(event.serial))

    def _settle(self, covered: set[int]) -> None:
        for change in self.changes:
            if change.serial in covered:
                self.durable[change.inode] = _changed(self.durable.get(change.inode, b""), change)
        self.changes = [change for change in self.changes if change.serial not in covered]
        for name_change in self.name_changes:
            if name_change.serial in covered:
                _change_name(self.names, name_change)
        self.name_changes = [change for change in self.name_changes if change.serial not in covered]

    # --- states ------------------------------------------------------------------------------------------------------

    def pages(self) -> dict[_Page, int]:
        """Page -> number of its unsynced changes, of files that can have a name."""
        named = {*self.names.values(), *(change.inode for change in self.name_changes)}
        pages: dict[_Page, int] = {}
        for change in self.changes:
            if change.data is not None and change.inode in named:
                last = (change.offset + len(change.data) - 1) // PAGE_BYTES
                for number in range(change.offset // PAGE_BYTES, last + 1):
                    page = _Page(change.inode, number)
                    pages[page] = pages.get(page, 0) + 1
        return pages

    def _unsynced_blocks(self) -> list[tuple[int, int]]:
        """Inode and offset of every block that an unsynced write touches."""
        blocks: set[tuple[int, int]] = set()
        for change in self.changes:
            if change.data:
                first = change.offset - change.offset % DIRECT_BLOCK_BYTES
                starts = range(first, change.offset + len(change.data), DIRECT_BLOCK_BYTES)
                blocks.update((change.inode, start) for start in starts)
        return sorted(blocks)

    def _scrambled_fates(
        self, chance: random.Random, samples: int, pages: dict[_Page, int], sizes: dict[int, int], names: frozenset[int]
    ) -> Iterator[tuple[str, _Fate]]:
        for inode, start in _some(chance, self._unsynced_blocks(), samples):
            junk = chance.choice([bytes(DIRECT_BLOCK_BYTES), chance.randbytes(DIRECT_BLOCK_BYTES)])
            versions = {page: chance.randint(0, count) for page, count in pages.items()}
            fate = _Fate(versions, sizes, names, scrambled=(inode, start, junk))
            yield "anything in a block of an interrupted write", fate

    def build(self, fate: _Fate) -> dict[Path, bytes]:
        names = dict(self.names)
        for name_change in self.name_changes:
            if name_change.serial in fate.names:
                _change_name(names, name_change)
        return {path: self._content(inode, fate) for path, inode in names.items()}

    def _content(self, inode: int, fate: _Fate) -> bytes:
        durable = self.durable.get(inode, b"")
        changes = [change for change in self.changes if change.inode == inode]
        if not changes:
            return durable
        images = [durable]
        for change in changes:
            images.append(_changed(images[-1], change))
        content = bytearray(_sized(durable, len(images[fate.sizes.get(inode, 0)])))
        touched: dict[int, list[int]] = {}
        for at, change in enumerate(changes):
            if change.data is not None:
                last = (change.offset + len(change.data) - 1) // PAGE_BYTES
                for number in range(change.offset // PAGE_BYTES, last + 1):
                    touched.setdefault(number, []).append(at + 1)
        for number, versions in touched.items():
            page = _Page(inode, number)
            kept = fate.versions.get(page, 0)
            if kept:
                _put_page(content, images[versions[kept - 1]], number)
            if fate.torn is not None and fate.torn[0] == page and kept < len(versions):
                _put_page(content, images[versions[kept]], number, fate.torn[1])
        if fate.scrambled is not None and fate.scrambled[0] == inode:
            _, start, junk = fate.scrambled
            content[start : start + len(junk)] = junk[: max(0, len(content) - start)]
        return bytes(content)

    def fates(self, chance: random.Random, samples: int) -> Iterator[tuple[str, _Fate]]:
        """Fate by fate with its class; some twice. ``samples`` bounds the places drawn per class."""
        pages = self.pages()
        sizes = {change.inode: 0 for change in self.changes}
        for change in self.changes:
            sizes[change.inode] += 1
        names = [change.serial for change in self.name_changes]
        nothing: dict[_Page, int] = {}
        every = frozenset(names)
        yield "everything unsynced lost", _Fate(nothing, {}, frozenset())
        if not pages and not sizes and not names:
            return
        yield "everything unsynced kept", _Fate(pages, sizes, every)
        yield from self._scrambled_fates(chance, samples, pages, sizes, every)
        combinations = _product(pages.values()) * _product(sizes.values()) * 2 ** len(names)
        if combinations <= EXHAUSTIVE_MAX:
            yield from self._all_fates(pages, sizes, names)
            return
        if names:
            yield "names kept, bytes lost", _Fate(nothing, {}, every)
            yield "bytes kept, names lost", _Fate(pages, sizes, frozenset())
            for count in _some(chance, list(range(1, len(names))), samples):
                yield "some names lost, in order", _Fate(pages, sizes, frozenset(names[:count]))
            for lost in _some(chance, names[:-1], samples):
                yield "some names lost, out of order", _Fate(pages, sizes, every - {lost})
        if sizes:
            yield "names and sizes kept, bytes zero", _Fate(nothing, sizes, every)
        for page in _some(chance, list(pages), samples):
            yield "one page lost", _Fate(pages | {page: 0}, sizes, every)
        for page in _some(chance, list(pages), samples):
            yield "one page kept", _Fate({page: pages[page]}, sizes, every)
        for page in _some(chance, list(pages), samples):
            torn = (page, chance.randrange(8, PAGE_BYTES, 8))
            yield "page torn inside", _Fate(pages | {page: chance.randrange(pages[page])}, sizes, every, torn)
        for page in _some(chance, [page for page, count in pages.items() if count > 1], samples):
            yield "older version of a page", _Fate(pages | {page: chance.randrange(1, pages[page])}, sizes, every)
        for _ in range(samples):
            yield (
                "random mixture",
                _Fate(
                    {page: chance.randint(0, count) for page, count in pages.items()},
                    {inode: chance.randint(0, count) for inode, count in sizes.items()},
                    frozenset(serial for serial in names if chance.random() < 0.5),
                ),
            )

    def _all_fates(
        self, pages: dict[_Page, int], sizes: dict[int, int], names: list[int]
    ) -> Iterator[tuple[str, _Fate]]:
        for versions in product(*(range(count + 1) for count in pages.values())):
            for grown in product(*(range(count + 1) for count in sizes.values())):
                for chosen in product((False, True), repeat=len(names)):
                    kept = frozenset(serial for serial, is_kept in zip(names, chosen, strict=True) if is_kept)
                    yield (
                        "every combination",
                        _Fate(dict(zip(pages, versions, strict=True)), dict(zip(sizes, grown, strict=True)), kept),
                    )


def crash_states(recording: Recording, *, seed: int, samples: int) -> Iterator[CrashState]:
    """The states after a crash at every instant of the recording, each disk once as long as nothing is noted."""
    model = DiskModel(recording)
    seen: set[int] = set()
    for instant, event in enumerate([None, *recording.events]):
        if event is not None:
            model.apply(event)
        if isinstance(event, Noted):
            seen.clear()
        elif isinstance(event, Ended):
            continue  # on disk nothing has changed
        chance = random.Random(seed * 1_000_003 + instant)
        for fault_class, fate in model.fates(chance, samples):
            files = model.build(fate)
            key = hash(frozenset(files.items()))
            if key not in seen:
                seen.add(key)
                yield CrashState(instant, fault_class, files)


def _product(counts: Iterable[int]) -> int:
    """How many ways there are to choose, or a number above the limit."""
    result = 1
    for count in counts:
        result *= count + 1
        if result > EXHAUSTIVE_MAX:
            break
    return result


def _some[T](chance: random.Random, places: list[T], count: int) -> list[T]:
    return places if len(places) <= count else chance.sample(places, count)


def _changed(content: bytes, change: BytesChange) -> bytes:
    if change.data is None:
        return _sized(content, change.offset)
    grown = _sized(content, max(len(content), change.offset + len(change.data)))
    return grown[: change.offset] + change.data + grown[change.offset + len(change.data) :]


def _sized(content: bytes, size: int) -> bytes:
    return content[:size].ljust(size, b"\0")


def _put_page(content: bytearray, image: bytes, number: int, size: int = PAGE_BYTES) -> None:
    start = number * PAGE_BYTES
    stop = min(start + size, len(image))
    if len(content) < stop:
        content.extend(bytes(stop - len(content)))
    content[start:stop] = image[start:stop]


def _change_name(names: dict[Path, int], change: NameChange) -> None:
    if change.source is not None and names.get(change.source) == change.inode:
        del names[change.source]
    if change.target is not None:
        names[change.target] = change.inode
