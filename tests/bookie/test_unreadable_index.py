"""A disk that fails to read the index keeps a bookie from starting, but not for good: the next attempt may succeed."""

import asyncio
import errno
import random
from pathlib import Path
from typing import Any

import pytest
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.bookie.errors import BookieStartError, DataWrongError
from octavo.bookie.filesystem import RealFileSystem
from octavo.metadata import open_metadata_store
from octavo.protocol.messages import ReadAnswer, Request
from support.raw_client import RawClient, add, read, seal


class _FailingFile:
    """A real file whose blocks cannot be read, though its tail and footer, read first, can."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    async def read(self, offset: int, size: int) -> bytes:
        self._reads += 1
        if self._reads > 2:
            raise OSError(errno.EIO, "input/output error")
        content: bytes = await self._file.read(offset, size)
        return content


class _FailingDisk(RealFileSystem):
    fails = True

    async def open(self, path: Path, **how: Any) -> Any:
        file = await super().open(path, **how)
        return _FailingFile(file) if self.fails and path.suffix == ".runs" else file


async def test_a_read_error_in_the_index_is_told_and_the_next_start_may_succeed(tmp_path: Path) -> None:
    uri = "memory://unreadable-index"
    async with await open_metadata_store(uri, create=True) as store:
        config = load_config(None, {}, {"data_dir": tmp_path, "port": 0, "journal_segment_bytes": 16 << 20})
        disk = _FailingDisk()
        disk.fails = False

        async def start() -> Bookie:
            return await Bookie.start(config, filesystem=disk, store=store, rng=random.Random(1), software="0")

        try:
            bookie = await start()
            await ask(bookie, add(1, seal(1, 0, [b"kept"])))
            await bookie.stop()
            disk.fails = True
            with pytest.raises(BookieStartError, match=r"\.runs, offset \d+: cannot be read.*rebuild-index") as raised:
                await start()
            assert not isinstance(raised.value, DataWrongError)
            disk.fails = False
            bookie = await start()
            answer = await ask(bookie, read(1, 0, 0))
            await bookie.stop()
            assert isinstance(answer, ReadAnswer)
            assert b"kept" in b"".join(answer.entries)
        finally:
            await disk.close()


async def ask(bookie: Bookie, request: Request) -> object:
    host, _, port = bookie.address.rpartition(":")
    async with RawClient(host, int(port)) as client:
        await client.greet()
        return await asyncio.wait_for(client.ask(request), 10)
