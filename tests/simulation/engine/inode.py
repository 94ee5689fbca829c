"""The bytes of one file on a simulated disk: what reads see, what is durable, and what survives a power cut."""

import random
from collections.abc import Callable, Iterable, Iterator

PAGE_BYTES = 512
"""The unit that survives or is lost separately, a disk sector. Smaller than a page, to produce more torn writes."""

SECTORS_WRITTEN = 8
"""Sectors that the kernel writes as a whole, a page of its cache: an interrupted write leaves arbitrary bytes there."""


class Inode:
    """The content of a file, independent of its name. Reads see ``volatile``; the platter holds ``durable``."""

    __slots__ = ("_changes", "dirty", "durable", "interrupted", "owed", "size_dirty", "synced_last", "uncached",
                 "volatile")  # fmt: skip

    def __init__(self, content: bytes = b"") -> None:
        self.volatile = bytearray(content)
        self.durable = bytearray(content)
        self.dirty: dict[int, int] = {}
        """Page whose latest change has not been synced -> number of that change."""
        self._changes = 0
        self.size_dirty = False
        self.synced_last: tuple[int, int] = (0, 0)
        """Start and stop offset of the latest synced write."""
        self.interrupted: range = range(0)
        """Pages of a synced write that was under way when its process died."""
        self.uncached: set[int] = set()
        """Dirty pages of such a write: it bypassed the page cache."""
        self.owed: dict[int, bytes] = {}
        """Page of a sync that lied -> what the platter holds instead. A power cut loses these pages only if a later
        sync of the file was honoured: a lie about the last group before a crash cannot be told from a torn write."""

    def write(self, offset: int, data: bytes) -> None:
        """Write without a sync."""
        stop = offset + len(data)
        if offset > len(self.volatile):
            self.resize(offset)
        if stop > len(self.volatile):
            self.size_dirty = True
        self.volatile[offset:stop] = data
        self._touch(offset, stop)

    def resize(self, size: int) -> None:
        """Truncate, or extend with zeros."""
        old = len(self.volatile)
        if size < old:
            del self.volatile[size:]
            self.dirty = {page: change for page, change in self.dirty.items() if page * PAGE_BYTES < size}
            if size % PAGE_BYTES:
                self._touch(size, size + 1)
        else:
            self.volatile.extend(bytes(size - old))
            self._touch(old, size)
        self.size_dirty = True

    def _touch(self, start: int, stop: int) -> None:
        self._changes += 1
        self.dirty.update(dict.fromkeys(range(start // PAGE_BYTES, -(-stop // PAGE_BYTES)), self._changes))

    def begin_sync(self) -> Callable[[], None]:
        """Begin a sync. The result is to be called when the sync ends: it makes durable what is in the file now."""
        covered, image = dict(self.dirty), bytes(self.volatile)

        def end() -> None:
            durable = self.durable
            _set_size(durable, len(image))
            for pages in _runs(covered):
                start, stop = pages.start * PAGE_BYTES, pages.stop * PAGE_BYTES
                durable[start:stop] = image[start:stop]
            if self.dirty == covered:
                self.dirty.clear()
            else:
                self.dirty = {page: change for page, change in self.dirty.items() if covered.get(page) != change}
            if len(self.volatile) == len(image):
                self.size_dirty = False

        return end

    def write_and_sync(self, offset: int, data: bytes) -> None:
        """Write, and make these bytes and the file's size durable."""
        before, self.dirty = self.dirty, {}
        self.write(offset, data)
        if self.size_dirty:
            _set_size(self.durable, len(self.volatile))
            self.size_dirty = False
        stop = offset + len(data)
        # Bytes, not pages: the rest of a page may hold unsynced data.
        self.durable[offset:stop] = data
        self.dirty = {
            page: change
            for page, change in before.items()
            if not (offset <= page * PAGE_BYTES and (page + 1) * PAGE_BYTES <= stop)
        }
        self.synced_last = (offset, stop)

    def interrupt(self, offset: int, data: bytes) -> None:
        """Write without a sync, as a synced write does that is interrupted. If the power fails at the same moment, the
        pages that the write touches may hold anything (:meth:`power_cut`), also where their content did not change."""
        self.write(offset, data)
        self.interrupted = range(offset // PAGE_BYTES, -(-(offset + len(data)) // PAGE_BYTES))
        self.uncached.update(self.interrupted)

    def lie(self, offset: int, data: bytes) -> None:
        """Report a write as synced although it never reaches the platter. Reads see it until the next power cut."""
        stop = offset + len(data)
        for page in range(offset // PAGE_BYTES, -(-stop // PAGE_BYTES)):
            start = page * PAGE_BYTES
            self.owed[page] = bytes(self.durable[start : start + PAGE_BYTES])
        self.write_and_sync(offset, data)

    def fail_sync(self, rng: random.Random) -> None:
        """Fail a sync: some pages reach the platter, some do not, and the kernel marks all of them clean."""
        self.durable = bytearray(self.survivors(rng))
        self.dirty.clear()
        self.size_dirty = False

    def survivors(self, rng: random.Random) -> bytes:
        """What the platter would hold after a power cut now: every unsynced page is kept, lost or torn."""
        if not self.dirty and not self.size_dirty:
            return bytes(self.durable)
        mood = rng.random()  # sometimes all pages share one fate
        if mood < 0.08:
            return bytes(self.durable)
        if mood < 0.16:
            return bytes(self.volatile)
        kept = bytearray(self.durable)
        if rng.random() < 0.5:
            _set_size(kept, len(self.volatile))
        for page in sorted(self.dirty):
            fate = rng.random()
            if fate < 0.25:
                _keep_page(kept, self.volatile, page, PAGE_BYTES)
            elif fate < 0.75:
                _keep_page(kept, self.volatile, page, self._tear(page, rng))
        return bytes(kept)

    def _tear(self, page: int, rng: random.Random) -> int:
        """Number of bytes of a torn page that reached the platter: less than its content without trailing zeros."""
        start = page * PAGE_BYTES
        written = len(bytes(self.volatile[start : start + PAGE_BYTES]).rstrip(b"\0"))
        return rng.randrange(written) if written else 0

    def power_cut(self, rng: random.Random, *, garbles: bool = False) -> int:
        """Reduce the file to what survives a power cut. Returns the number of pages that lying syncs lost. ``garbles``:
        some pages of an interrupted synced write, and of what the page cache was writing, hold arbitrary bytes."""
        content = bytearray(self.survivors(rng))
        if garbles:
            share = rng.choice((0.1, 0.5, 1.0))
            written = {page // SECTORS_WRITTEN for page in self.dirty if page not in self.uncached}
            cached = {at * SECTORS_WRITTEN + sector for at in written for sector in range(SECTORS_WRITTEN)}
            for page in sorted({*self.interrupted, *cached}):
                start, stop = page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, len(content))
                if start < stop and rng.random() < share:
                    content[start:stop] = rng.randbytes(stop - start)
        self.interrupted = range(0)
        self.uncached.clear()
        lost = 0
        first, stop = self.synced_last
        for page, before in self.owed.items():
            start = page * PAGE_BYTES
            if (start < stop and start + PAGE_BYTES > first) or start >= len(content):
                continue
            content[start : start + len(before)] = before
            lost += 1
        self.owed.clear()
        self.volatile = content
        self.durable = bytearray(content)
        self.dirty.clear()
        self.size_dirty = False
        return lost

    def flip(self, offset: int, mask: int) -> None:
        """Flip bits of one byte, on the platter and in what reads see."""
        self.volatile[offset] ^= mask
        if offset < len(self.durable):
            self.durable[offset] ^= mask


def _runs(pages: Iterable[int]) -> Iterator[range]:
    """The runs of consecutive numbers in ``pages``."""
    start = stop = -1
    for page in pages:
        if page != stop:
            if stop > start:
                yield range(start, stop)
            start = page
        stop = page + 1
    if stop > start:
        yield range(start, stop)


def _set_size(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _keep_page(target: bytearray, source: bytearray, page: int, size: int) -> None:
    start = page * PAGE_BYTES
    end = min(start + PAGE_BYTES, len(source))
    if end > len(target):
        _set_size(target, end)
    stop = min(start + size, end)
    target[start:stop] = source[start:stop]
