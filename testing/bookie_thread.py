"""A bookie of a test, for a thread of its own. A kill leaves its files as they are at that moment."""

import asyncio
import random
import time
from dataclasses import replace
from pathlib import Path

from octavo._version import __version__
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import BookieConfig
from octavo.metadata.connect import open_cluster
from octavo.metadata.updates.cluster_release import begin_cluster
from octavo.testing.memory_disk import MemoryDisk
from octavo.testing.server_thread import Life, cancel_all


class BookieServer:
    """See the module."""

    def __init__(self, config: BookieConfig) -> None:
        self._config = config
        self._disk = MemoryDisk()
        assert config.bookie_id is not None, "a bookie of a test has a name"
        self.name = config.bookie_id

    def keep_address(self, address: str) -> None:
        """Listen there from the next start on, as a bookie of production does."""
        host, _, port = address.rpartition(":")
        self._config = replace(self._config, host=host, port=int(port))

    def freeze(self) -> None:
        """A kill begins: nothing is written any more."""
        self._disk.freeze()

    def thaw(self) -> None:
        """Before each start: files can be written."""
        self._disk.thaw()

    async def serve(self, life: Life) -> None:
        """Start, and end as ``life`` says."""
        config = self._config
        store = await open_cluster(config.metadata, create=True, lease_seconds=config.lease_seconds)
        try:
            await begin_cluster(store)
            bookie = await Bookie.start(
                config,
                filesystem=self._disk,
                store=store,
                rng=random.Random(),
                software=__version__,
                wall_clock=time.time,
            )
            life.started(bookie.address)
            broken = asyncio.ensure_future(bookie.broken())
            broken.add_done_callback(lambda _: life.end_with(kill=True))
            if await life.is_killed():
                self._disk.freeze()
                bookie.sever()
                await cancel_all()
            else:
                broken.cancel()
                await bookie.stop()
        finally:
            await store.close()


def config_of(name: str, metadata: str, *, lease_seconds: float) -> BookieConfig:
    """The settings of a bookie of a test: small files, no background reads, and a host of its own."""
    return BookieConfig(
        data_dir=Path(f"/{name}"),
        bookie_id=name,
        host_id=name,
        port=0,
        metadata=metadata,
        lease_seconds=lease_seconds,
        journal_segment_bytes=16 << 20,
        checkpoint_journal_bytes=8 << 20,
        entry_log_bytes=16 << 20,
        cache_bytes=4 << 20,
        page_cache_bytes=0,
        scrub_bytes_per_second=0,
        drain_timeout_seconds=1.0,
    )
