"""The operator: runs the offline tools for a bookie that refuses to start on its disks, in a process of its own.

The error message names the tool; the operator has no other knowledge. No disk of a universe is ever unmounted: files
that the tool misses are gone for good, and the operator says so. The repaired bookie comes back in doubt (rule B4).
Without repairs no bookie of a universe would ever be in doubt.
"""

import random
import re
from pathlib import Path

from octavo.bookie.disk.filesystem import FileSystem
from octavo.bookie.identity.errors import DataWrongError
from octavo.bookie.offline.layout import Layout, locked
from octavo.bookie.offline.rebuild_index import IndexRebuild
from octavo.bookie.offline.reset_identity import reset_identity
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.errors import OctavoError


async def repair(
    filesystem: FileSystem,
    layout: Layout,
    store: MetadataStore,
    *,
    refusal: str,
    bookie_id: str | None,
    rng: random.Random,
) -> str | None:
    """Run the tool that ``refusal`` names. Returns None when the bookie may be started again, else the error."""
    try:
        for path in layout.directories.values():
            await filesystem.make_directory(path)
        async with locked(filesystem, layout):
            if "rebuild-index" in refusal:
                await _rebuild(filesystem, layout)
            else:
                try:
                    await reset_identity(filesystem, layout, store, bookie_id=bookie_id, rng=rng)
                except DataWrongError:
                    await _rebuild(filesystem, layout)
                    await reset_identity(filesystem, layout, store, bookie_id=bookie_id, rng=rng)
    except (OctavoError, OSError) as error:
        return str(error)
    return None


async def _rebuild(filesystem: FileSystem, layout: Layout) -> None:
    try:
        await IndexRebuild(filesystem, layout).run()
    except DataWrongError as error:
        lost = [Path(path) for path in re.findall(r"--lost-dir (\S+)", error.message)]
        if not lost:
            raise
        await IndexRebuild(filesystem, layout, lost=lost).run()
