"""Bookies in the process of a script, for what is measured within one process."""

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.bookie.disk.filesystem import RealFileSystem
from octavo.metadata import open_metadata_store

BOOKIES = 3


async def start_bookies(
    stack: contextlib.AsyncExitStack, folder: Path, *, clock: Callable[[], float] | None = None
) -> tuple[str, list[Bookie]]:
    """Start three bookies on SQLite with their data in ``folder``; ``stack`` stops them. Returns the URI of the
    metadata, and the bookies. ``clock``: as :meth:`Bookie.start` takes it."""
    uri = f"sqlite:///{folder}/metadata.db"
    bookies = []
    for number in range(BOOKIES):
        store = await stack.enter_async_context(await open_metadata_store(uri, create=True))
        filesystem = RealFileSystem()
        stack.push_async_callback(filesystem.close)
        bookie = await Bookie.start(
            load_config(None, {}, {"port": 0, "data_dir": folder / f"bookie-{number}", "metadata": uri}),
            filesystem=filesystem,
            store=store,
            rng=random.Random(number),
            software="script",
            clock=clock,
        )
        stack.push_async_callback(bookie.stop)
        bookies.append(bookie)
    return uri, bookies
