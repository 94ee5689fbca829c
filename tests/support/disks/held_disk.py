"""A disk in memory some of whose steps wait until the test releases them."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from support.disks.faulty_filesystem import MemoryFileSystem


class HeldDisk(MemoryFileSystem):
    """After :meth:`hold`, every step for whose name and path ``holds`` is true waits until :meth:`release`. ``held`` is
    set once a step waits."""

    def __init__(self, holds: Callable[[str, Path], bool]) -> None:
        super().__init__()
        self._holds = holds
        self._released = asyncio.Event()
        self._released.set()
        self.held = asyncio.Event()

    def hold(self) -> None:
        """Let steps wait from now on."""
        self._released.clear()

    def release(self) -> None:
        """Let steps go on, those that wait included."""
        self._released.set()

    async def step(self, name: str, path: Path) -> None:
        """As every file system does, later."""
        if not self._released.is_set() and self._holds(name, path):
            self.held.set()
            await self._released.wait()
        await super().step(name, path)


def syncs_below(directory: Path) -> HeldDisk:
    """A disk whose syncs of files in this directory can be held."""
    return HeldDisk(lambda name, path: name == "sync" and path.parent == directory)
