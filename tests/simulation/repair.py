"""The operator: runs the offline tools for a bookie that refuses to start on its disks, in a process of its own.

The error message names the tool; the operator has no other knowledge. The repaired bookie comes back in doubt (rule
B4). Without repairs no bookie of a universe would ever be in doubt.
"""

import random

from octavo.bookie.disk.filesystem import FileSystem
from octavo.bookie.identity.errors import DataWrongError
from octavo.bookie.offline.layout import Layout, locked
from octavo.bookie.offline.rebuild_index import IndexRebuild
from octavo.bookie.offline.reset_identity import reset_identity
from octavo.metadata.store import MetadataStore
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
                await IndexRebuild(filesystem, layout).run()
            else:
                try:
                    await reset_identity(filesystem, layout, store, bookie_id=bookie_id, rng=rng)
                except DataWrongError:
                    await IndexRebuild(filesystem, layout).run()
                    await reset_identity(filesystem, layout, store, bookie_id=bookie_id, rng=rng)
    except (OctavoError, OSError) as error:
        return str(error)
    return None
