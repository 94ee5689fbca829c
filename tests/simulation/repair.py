"""What an operator does about a bookie that refuses its disks: the offline tools, in a process of their own.

The refusal itself says which tool is the remedy; the operator knows no better. Such a bookie comes back in doubt
(rule B4), which is what makes doubt come about in a universe at all.
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
    """Do what a refusal asks for. None: done, start the bookie again; else why it could not be done."""
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
